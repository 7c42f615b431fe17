//! Where a list of waiting timers goes on: near timers come first, and those of the far tier behind them.

use std::fmt;
use std::str::FromStr;
use windfall_contract::due::TaskId;

/// What a place among the far timers begins with; the digit is the version of the format.
const FAR: &str = "far1";

/// A place in a list of waiting timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListCursor {
    /// Behind this near timer; `None`: at the beginning.
    Near(Option<TaskId>),
    /// Behind this far timer; `None`: at the first one.
    Far(Option<TaskId>),
}

/// The text is no place in a list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no place in a list: give next_after of the page before")]
pub struct InvalidCursor(String);

impl fmt::Display for ListCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Near(None) => Ok(()),
            Self::Near(Some(id)) => write!(f, "{id}"),
            Self::Far(None) => f.write_str(FAR),
            Self::Far(Some(id)) => write!(f, "{FAR}:{id}"),
        }
    }
}

impl FromStr for ListCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let id = |id: &str| id.parse::<TaskId>().map_err(|_| InvalidCursor(text.to_owned()));
        match text.strip_prefix(FAR) {
            None if text.is_empty() => Ok(Self::Near(None)),
            None => Ok(Self::Near(Some(id(text)?))),
            Some("") => Ok(Self::Far(None)),
            Some(behind) => Ok(Self::Far(Some(id(behind.strip_prefix(':').unwrap_or_default())?))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_written_and_another_format_is_refused() {
        let id: TaskId = "0012-01c3a2f0-8000002a".parse().unwrap();
        for cursor in [
            ListCursor::Near(None),
            ListCursor::Near(Some(id)),
            ListCursor::Far(None),
            ListCursor::Far(Some(id)),
        ] {
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        for wrong in ["page 2", "far2", "far2:0012-01c3a2f0-8000002a", "far1:", "far10012-01c3a2f0-8000002a"]
        {
            let refused = wrong.parse::<ListCursor>().unwrap_err();
            assert!(refused.to_string().contains("next_after"), "{refused}");
        }
    }
}
