//! Answers: their form, their errors, and the headers that every one of them has.

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use std::io::Write;

/// Everything comes from here, nothing is inline, and nobody may frame it.
const POLICY: &str = "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      font-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
/// Shorter answers are sent as they are.
const PACK_FROM_BYTES: usize = 1_024;

/// An answer to a browser.
pub(crate) struct Answer(Response<Bytes>);

/// A request that is not done, in the form of the services' errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) message: String,
    /// The number under which what was asked for waits for a second person.
    pub(crate) proposal: Option<u64>,
}

impl Refused {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), proposal: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "INVALID_ARGUMENT", message)
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "PERMISSION_DENIED", message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", message)
    }
}

impl Answer {
    pub(crate) fn new(status: StatusCode, kind: &'static str, body: Bytes) -> Self {
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let fixed = [
            (header::CONTENT_TYPE, kind),
            (header::CACHE_CONTROL, "no-store"),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::X_FRAME_OPTIONS, "DENY"),
            (header::REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        ];
        for (name, value) in fixed {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        Self(response)
    }

    /// JSON, or an error where it cannot be written.
    pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Self::new(status, "application/json", body.into()),
            Err(error) => {
                tracing::error!(%error, "an answer cannot be written");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "application/json", Bytes::from_static(b"{}"))
            }
        }
    }

    /// JSON that is there already, packed as well.
    pub(crate) fn written(json: &Written, asked: &HeaderMap) -> Self {
        match &json.packed {
            Some(packed) if takes_gzip(asked) => {
                Self::new(StatusCode::OK, "application/json", packed.clone())
                    .with(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"))
                    .with(header::VARY, HeaderValue::from_static("accept-encoding"))
            }
            _ => Self::new(StatusCode::OK, "application/json", json.plain.clone()),
        }
    }

    pub(crate) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers_mut().insert(name, value);
        self
    }

    pub(crate) fn into_response(self) -> Response<Bytes> {
        self.0
    }
}

impl From<Refused> for Answer {
    fn from(refused: Refused) -> Self {
        #[derive(Serialize)]
        struct Body<'a> {
            code: &'static str,
            message: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            proposal: Option<u64>,
        }
        let body = Body { code: refused.code, message: &refused.message, proposal: refused.proposal };
        Self::json(refused.status, &body)
    }
}

/// JSON that many readers get.
#[derive(Clone, Default)]
pub(crate) struct Written {
    pub(crate) plain: Bytes,
    packed: Option<Bytes>,
}

impl Written {
    pub(crate) fn new(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        let plain = Bytes::from(serde_json::to_vec(value)?);
        let packed = if plain.len() >= PACK_FROM_BYTES { gzip(&plain) } else { None };
        Ok(Self { plain, packed })
    }
}

/// Whether the browser takes what is packed.
pub(crate) fn takes_gzip(asked: &HeaderMap) -> bool {
    let taken = asked.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    taken.is_some_and(|taken| taken.split(',').any(|one| one.trim() == "gzip"))
}

/// The bytes packed; none where that failed.
pub(crate) fn gzip(plain: &[u8]) -> Option<Bytes> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::default());
    packer.write_all(plain).and_then(|()| packer.finish()).ok().map(Bytes::from)
}
