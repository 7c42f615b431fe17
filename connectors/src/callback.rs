//! Timers as signed HTTP requests.

use crate::dial::DialError;
use crate::http::{PostClient, post_client};
use crate::options::{HttpOptions, SetupError};
use crate::sign::Sign;
use crate::target::Template;
use crate::{ANSWER_MAX_BYTES, AllowList};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, USER_AGENT};
use hyper::{Request, StatusCode};
use std::time::Duration;
use tokio::sync::Semaphore;
use windfall_contract::Clock;
use windfall_contract::due::{Fired, Firing, Target};

/// Bytes of an answer that a timer which is given up keeps as its reason.
const REASON_MAX_BYTES: usize = 200;

/// Calls an HTTP address with each timer: a `POST` whose body is a [`FiredTimer`](windfall_proto::v1::FiredTimer) as JSON,
/// signed as orders are (see [`signature`](crate::signature)), to addresses that the allow list permits alone. The header
/// `idempotency-key` is the timer's id.
///
/// | answer | is | and then |
/// |---|---|---|
/// | 2xx | `Done` | the timer is over |
/// | 429, 503; no connection; no turn in time | `Away` | it is tried again, and that counts as no attempt |
/// | 408, 5xx, 1xx, 3xx; no whole answer in time, or a connection that broke | `Failed` | it is tried again, as often as its retries allow |
/// | other 4xx | `Refused` | it is given up, with the answer's first bytes as the reason |
///
/// A redirect is not followed. An answer's body is read up to [`ANSWER_MAX_BYTES`], and says nothing but the reason.
pub struct HttpCallback {
    name: String,
    path: String,
    origin: String,
    sign: Sign,
    client: PostClient,
    timeout: Duration,
    /// Calls at a time, over all batches.
    calls: Semaphore,
    clock: Clock,
}

impl HttpCallback {
    /// Sets it up, with so many calls at a time: reads the secret and the authorities, checks the URL against the allow
    /// list. Connects to nothing yet. `name` is for the log.
    ///
    /// # Errors
    /// [`SetupError`] names the option.
    pub fn new(
        name: &str,
        options: &HttpOptions,
        calls_max: usize,
        clock: Clock,
    ) -> Result<Self, SetupError> {
        let wire = &options.wire;
        wire.check()?;
        let allow = AllowList::parse(&options.allow)?;
        let template = Template::parse(&options.url, &allow, wire.plaintext)?;
        let path = template.fixed().ok_or_else(|| {
            SetupError::option("url", "has a place in braces, which the URL of a callback cannot have")
        })?;
        let path = path.to_owned();
        let sign = Sign::new(options, &template.target)?;
        let client = post_client(template.target.clone(), allow, wire, clock.clone())?;
        Ok(Self {
            name: name.to_owned(),
            path,
            origin: template.target.origin(),
            sign,
            client,
            timeout: Duration::from_millis(wire.timeout_ms),
            calls: Semaphore::new(calls_max.max(1)),
            clock,
        })
    }

    /// Waits for its turn no longer than a call may take, so that a batch answers within two such times.
    async fn post(&self, firing: &Firing) -> Fired {
        let Ok(Ok(_turn)) = tokio::time::timeout(self.timeout, self.calls.acquire()).await else {
            return Fired::Busy(format!("no call ended within {} ms", self.timeout.as_millis()));
        };
        match tokio::time::timeout(self.timeout, self.ask(firing)).await {
            Ok(fired) => fired,
            Err(_) => Fired::Unknown(format!("no whole answer within {} ms", self.timeout.as_millis())),
        }
    }

    async fn ask(&self, firing: &Firing) -> Fired {
        let request = match self.request(firing) {
            Ok(request) => request,
            Err(why) => return Fired::Refused(why),
        };
        let response = match self.client.request(request).await {
            Ok(response) => response,
            Err(error) => {
                tracing::debug!(callback = self.name, id = %firing.id, %error, "no answer");
                return match DialError::find(&error) {
                    Some(dial) => Fired::Away(dial.to_string()),
                    None => Fired::Unknown(format!("the connection broke: {error}")),
                };
            }
        };
        let (head, body) = response.into_parts();
        // Read to its end, so that the connection can be used again; what came first is the reason of a refusal.
        let body = Limited::new(body, ANSWER_MAX_BYTES).collect().await;
        judge(head.status, &body.map(|body| body.to_bytes()).unwrap_or_default())
    }

    fn request(&self, firing: &Firing) -> Result<Request<Full<Bytes>>, String> {
        let body =
            serde_json::to_vec(&firing.to_wire()).map_err(|error| format!("it is no JSON: {error}"))?;
        let request = Request::post(format!("{}{}", self.origin, self.path));
        self.sign
            .headers(request, &self.path, &firing.id.to_string(), self.clock.wall_ms(), &body)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .header(ACCEPT_ENCODING, "identity")
            .header(USER_AGENT, concat!("windfall/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(body.into()))
            .map_err(|error| format!("it is no request: {error}"))
    }
}

#[async_trait]
impl Target for HttpCallback {
    async fn fire(&self, batch: Vec<Firing>) -> Vec<Fired> {
        join_all(batch.iter().map(|firing| self.post(firing))).await
    }
}

fn judge(status: StatusCode, body: &[u8]) -> Fired {
    let what = || match reason(body) {
        text if text.is_empty() => format!("HTTP {}", status.as_u16()),
        text => format!("HTTP {}: {text}", status.as_u16()),
    };
    match status.as_u16() {
        200..=299 => Fired::Done,
        429 => Fired::Busy(what()),
        503 => Fired::Away(what()),
        // A proxy's words for "no answer".
        408 | 502 | 504 => Fired::Unknown(what()),
        500..=599 => Fired::Failed(what()),
        400..=499 => Fired::Refused(what()),
        300..=399 => Fired::Failed(format!("{}; a redirect is not followed", what())),
        _ => Fired::Failed(what()),
    }
}

/// The first bytes of an answer, on one line.
fn reason(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(REASON_MAX_BYTES)]);
    let plain: String = text.chars().map(|sign| if sign.is_control() { ' ' } else { sign }).collect();
    plain.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_one_meaning() {
        let judged = |status: u16| judge(StatusCode::from_u16(status).unwrap(), b"");
        for status in [200, 201, 202, 204, 299] {
            assert_eq!(judged(status), Fired::Done, "{status}");
        }
        assert!(matches!(judged(429), Fired::Busy(_)) && matches!(judged(503), Fired::Away(_)));
        for status in [101, 301, 302, 307, 500, 501, 599, 600] {
            assert!(matches!(judged(status), Fired::Failed(_)), "{status}");
        }
        for status in [408, 502, 504] {
            assert!(matches!(judged(status), Fired::Unknown(_)), "{status}");
        }
        for status in [400, 401, 403, 404, 409, 410, 413, 422, 499] {
            assert!(matches!(judged(status), Fired::Refused(_)), "{status}");
        }
    }

    #[test]
    fn a_refusal_keeps_the_first_line_of_what_was_said() {
        let bad = StatusCode::BAD_REQUEST;
        assert_eq!(judge(bad, b"no such\r\n user"), Fired::Refused("HTTP 400: no such   user".into()));
        assert_eq!(judge(bad, b""), Fired::Refused("HTTP 400".into()));
        let Fired::Refused(why) = judge(bad, &[b'x'; 9_000]) else { panic!("it was refused") };
        assert!(why.len() < REASON_MAX_BYTES + 20);
    }
}
