//! The access token that scheduler and executors share.

use http::HeaderValue;
use std::fmt;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// The header of the access token, on every call in both directions.
pub(super) const TOKEN_HEADER: &str = "xxl-job-access-token";
/// The header with the application's name, which executors newer than 3.3 ask for; older ones ignore it.
pub(super) const APP_HEADER: &str = "xxl-job-appname";

/// The bytes of a token at most.
const TOKEN_MAX_BYTES: usize = 256;
/// What XXL-JOB's samples come with, which everybody knows.
const SAMPLE_TOKEN: &str = "default_token";

/// The secret that every call carries. Never shown, and compared in constant time.
#[derive(Clone)]
pub struct AccessToken(Zeroizing<String>);

/// It cannot be a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an access token has 1 to 256 visible characters of ASCII")]
pub struct BadToken;

impl AccessToken {
    /// Checks a token.
    ///
    /// # Errors
    /// [`BadToken`]: empty, too long, or with characters that no header can carry.
    pub fn new(text: &str) -> Result<Self, BadToken> {
        let fits =
            (1..=TOKEN_MAX_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        match fits {
            true => Ok(Self(Zeroizing::new(text.to_owned()))),
            false => Err(BadToken),
        }
    }

    /// Whether it is the one of XXL-JOB's samples.
    pub fn is_sample(&self) -> bool {
        *self.0 == SAMPLE_TOKEN
    }

    /// Whether a header carries it. Takes as long for every header of the same length.
    pub(super) fn is_carried_by(&self, header: Option<&HeaderValue>) -> bool {
        header.is_some_and(|header| bool::from(self.0.as_bytes().ct_eq(header.as_bytes())))
    }

    /// The token as a bearer key of a gRPC call.
    #[cfg(feature = "rpc")]
    pub(crate) fn bearer(&self) -> Option<tonic::metadata::MetadataValue<tonic::metadata::Ascii>> {
        let text = Zeroizing::new(format!("Bearer {}", *self.0));
        let mut value = tonic::metadata::MetadataValue::try_from(text.as_str()).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    pub(super) fn header(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::from_str(&self.0).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessToken")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_token_passes_and_it_is_never_shown() {
        let token = AccessToken::new("s3cret-token").unwrap();
        let passes = |text: &str| token.is_carried_by(Some(&HeaderValue::from_str(text).unwrap()));
        assert!(passes("s3cret-token"));
        for wrong in ["", "s3cret-toke", "s3cret-token2", "S3cret-token", " s3cret-token"] {
            assert!(!passes(wrong), "{wrong}");
        }
        assert!(!token.is_carried_by(None));
        let header = token.header().unwrap();
        assert!(header.is_sensitive() && header == "s3cret-token");
        assert!(!format!("{token:?} {header:?}").contains("s3cret"));
        assert!(AccessToken::new("default_token").unwrap().is_sample() && !token.is_sample());
        for bad in ["", "with blank", "line\r\nbreak", "tökén"] {
            assert_eq!(AccessToken::new(bad).unwrap_err(), BadToken);
        }
    }
}
