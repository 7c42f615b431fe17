//! The name of an application, whose executors share its jobs.

use std::fmt;
use std::sync::Arc;

/// The characters of a name at most, as in XXL-JOB.
const NAME_MAX: usize = 64;

/// What executors of one application register with (`appname`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppName(Arc<str>);

/// It is no name of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an application's name has 1 to 64 letters of ASCII, digits, `-`, `_` and `.`")]
pub struct BadAppName;

impl AppName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`BadAppName`]: its length, or a character that cannot stand in a header.
    pub fn parse(text: &str) -> Result<Self, BadAppName> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        match (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(fits) {
            true => Ok(Self(text.into())),
            false => Err(BadAppName),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AppName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for AppName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_fit_into_a_header() {
        let longest = "a".repeat(NAME_MAX);
        for good in ["a", "xxl-job-executor-sample", "Shop_2.mails", longest.as_str()] {
            assert_eq!(AppName::parse(good).unwrap().as_str(), good);
        }
        let long = "a".repeat(NAME_MAX + 1);
        for bad in ["", " a", "a b", "a\r\nb", "a/b", "wörk", long.as_str()] {
            assert_eq!(AppName::parse(bad), Err(BadAppName), "{bad:?}");
        }
    }
}
