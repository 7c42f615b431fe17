//! What a process says about itself, for who shows it elsewhere than on the page: its metrics, and whether it is ready.

use crate::options::{METRICS_BYTES_MAX, SCRAPE_TIMEOUT, ServiceAt};
use crate::upstream::{Asked, CallError, Called, Upstream};
use bytes::Bytes;
use http::{Method, StatusCode};
use std::fmt;

/// Reads one process by the calls that everybody has. Each call has a connection of its own.
pub struct Reader(Upstream);

/// A process has not said what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Mend the key, or its roles.
    #[error("not allowed: {0}")]
    Denied(String),
    /// Ask again; it may be away, or start just now.
    #[error("{0}")]
    Away(String),
}

impl Reader {
    /// One of this process. Nothing is called before it is asked.
    ///
    /// # Errors
    /// Why the address or the certificates cannot be used.
    pub fn new(at: &ServiceAt) -> Result<Self, String> {
        Upstream::by_itself(at, SCRAPE_TIMEOUT, "use https, or a tunnel that ends on this machine").map(Self)
    }

    /// All its metrics, in Prometheus' text: at most 1 MiB of it, within two seconds.
    ///
    /// # Errors
    /// [`ReadError`] tells a key that may not from a process that is away.
    pub async fn metrics(&self, key: &str) -> Result<String, ReadError> {
        let called = self.get("/metrics", key).await?;
        match called.status {
            StatusCode::OK => String::from_utf8(called.body.into())
                .map_err(|_| ReadError::Away(format!("the metrics of {} are not text", self.0.name))),
            status => Err(refused(status, &called.body)),
        }
    }

    /// What it says about its readiness, which is JSON: `ready`, `failing` and `missing`.
    ///
    /// # Errors
    /// [`ReadError`] tells a key that may not from a process that is away.
    pub async fn readiness(&self, key: &str) -> Result<serde_json::Value, ReadError> {
        let called = self.get("/health/ready", key).await?;
        let said = serde_json::from_slice::<serde_json::Value>(&called.body).ok();
        match said.filter(|said| said["ready"].is_boolean()) {
            Some(said) => Ok(said),
            None => Err(refused(called.status, &called.body)),
        }
    }

    async fn get(&self, path: &str, key: &str) -> Result<Called, ReadError> {
        let asked = Asked { method: Method::GET, path, key, user: None, body: Bytes::new() };
        let away = |what: String| ReadError::Away(what);
        let asking = tokio::time::timeout(SCRAPE_TIMEOUT, self.0.call_up_to(asked, METRICS_BYTES_MAX)).await;
        match asking {
            Ok(Ok(called)) => Ok(called),
            Ok(Err(CallError::Unreachable(_, error))) => Err(away(format!("it cannot be reached: {error}"))),
            Ok(Err(CallError::Broken(_))) => Err(away("its answer broke off".into())),
            Ok(Err(CallError::TooLong(_))) => {
                Err(away(format!("its answer is longer than {METRICS_BYTES_MAX} bytes")))
            }
            Err(_) | Ok(Err(CallError::TimedOut(_))) => {
                Err(away(format!("no answer within {} s", SCRAPE_TIMEOUT.as_secs())))
            }
        }
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reader").field(&self.0.name).finish()
    }
}

fn refused(status: StatusCode, body: &[u8]) -> ReadError {
    // Refusals of a service are JSON with a message; a proxy's may be anything.
    let said = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
    let what = said["message"].as_str().map_or_else(|| format!("it answers {status}"), str::to_owned);
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ReadError::Denied(what),
        _ => ReadError::Away(what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_may_not_is_told_from_a_process_that_is_away() {
        let denied =
            refused(StatusCode::FORBIDDEN, br#"{"code":"PERMISSION_DENIED","message":"it needs `observe`"}"#);
        assert_eq!(denied, ReadError::Denied("it needs `observe`".into()));
        let away = refused(StatusCode::BAD_GATEWAY, b"<html>");
        assert_eq!(away, ReadError::Away("it answers 502 Bad Gateway".into()));
    }

    #[tokio::test]
    async fn a_process_that_is_away_is_named_as_such() {
        let at = ServiceAt {
            name: "a".into(),
            url: "http://127.0.0.1:1".into(),
            ca_file: None,
            server_name: None,
            key_in_plain_text: false,
        };
        let reader = Reader::new(&at).unwrap();
        let error = reader.metrics("key").await.unwrap_err();
        assert!(matches!(&error, ReadError::Away(why) if why.contains("cannot be reached")), "{error}");
        let refused = Reader::new(&ServiceAt { url: "http://10.0.0.1".into(), ..at }).unwrap_err();
        assert!(refused.contains("in the clear"), "{refused}");
    }
}
