//! Errors in one place: what a [`Status`] is in HTTP, and what this crate refuses by itself, on both transports.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde::Serialize;
use std::borrow::Cow;
use tonic::body::Body;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

/// The name of the retry hint, the milliseconds to wait before the same call may succeed: in gRPC metadata, and as a
/// field in JSON.
pub const RETRY_AFTER_MS: &str = "retry-after-ms";

/// The name of the reason of a refusal, where its code has several: in gRPC metadata, and as a field in JSON.
pub const REASON: &str = "reason";

/// An error that says when to come again, on both transports.
pub fn retry_later(code: Code, message: impl Into<String>, after_ms: u64) -> Status {
    let mut metadata = MetadataMap::new();
    metadata.insert(RETRY_AFTER_MS, after_ms.into());
    Status::with_metadata(code, message, metadata)
}

/// An error whose code has several reasons, and that says which one it has, on both transports. The reason is a word in
/// lower case, which callers compare.
pub fn refused_for(code: Code, message: impl Into<String>, reason: &'static str) -> Status {
    let mut metadata = MetadataMap::new();
    metadata.insert(REASON, MetadataValue::from_static(reason));
    Status::with_metadata(code, message, metadata)
}

/// The HTTP status of a code.
pub const fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Cancelled | Code::Unknown | Code::Internal | Code::DataLoss => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}

/// The name of a code, as JSON bodies and metrics have it.
pub const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// All codes that an error can have, in the order of their numbers.
pub(crate) const ERROR_CODES: [Code; 16] = [
    Code::Cancelled,
    Code::Unknown,
    Code::InvalidArgument,
    Code::DeadlineExceeded,
    Code::NotFound,
    Code::AlreadyExists,
    Code::PermissionDenied,
    Code::ResourceExhausted,
    Code::FailedPrecondition,
    Code::Aborted,
    Code::OutOfRange,
    Code::Unimplemented,
    Code::Internal,
    Code::Unavailable,
    Code::DataLoss,
    Code::Unauthenticated,
];

/// The transport that a call came in by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Grpc,
    Http,
}

impl Transport {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Http => "http",
        }
    }
}

/// Why a call did not reach its service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    HeadersTooLarge,
    TooManyCalls,
    NoCaller,
    BadUser,
    UserNotAllowed,
    UsersUnavailable,
    OtherTenant,
    NoRole,
    NoRoute,
    Method,
    MediaType,
    Encoding,
    BodyTooLarge,
    BodyTooSlow,
    BodyBroken,
    NoMemory,
    Deadline,
    Broken,
}

impl Reason {
    /// Its name as the metric's label.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::HeadersTooLarge => "headers_too_large",
            Self::TooManyCalls => "too_many_calls",
            Self::NoCaller => "no_caller",
            Self::BadUser => "bad_user",
            Self::UserNotAllowed => "user_not_allowed",
            Self::UsersUnavailable => "users_unavailable",
            Self::OtherTenant => "other_tenant",
            Self::NoRole => "no_role",
            Self::NoRoute => "no_route",
            Self::Method => "method",
            Self::MediaType => "media_type",
            Self::Encoding => "encoding",
            Self::BodyTooLarge => "body_too_large",
            Self::BodyTooSlow => "body_too_slow",
            Self::BodyBroken => "body_broken",
            Self::NoMemory => "no_memory",
            Self::Deadline => "deadline",
            Self::Broken => "broken",
        }
    }

    /// Its HTTP status and its gRPC code.
    const fn answer(self) -> (StatusCode, Code) {
        match self {
            Self::HeadersTooLarge => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, Code::ResourceExhausted),
            Self::TooManyCalls | Self::UsersUnavailable | Self::NoMemory => {
                (StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable)
            }
            Self::NoCaller | Self::BadUser => (StatusCode::UNAUTHORIZED, Code::Unauthenticated),
            Self::UserNotAllowed | Self::OtherTenant | Self::NoRole => {
                (StatusCode::FORBIDDEN, Code::PermissionDenied)
            }
            Self::NoRoute => (StatusCode::NOT_FOUND, Code::Unimplemented),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, Code::Unimplemented),
            Self::MediaType | Self::Encoding => (StatusCode::UNSUPPORTED_MEDIA_TYPE, Code::Unimplemented),
            Self::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, Code::ResourceExhausted),
            Self::BodyTooSlow => (StatusCode::REQUEST_TIMEOUT, Code::DeadlineExceeded),
            Self::BodyBroken => (StatusCode::BAD_REQUEST, Code::InvalidArgument),
            Self::Deadline => (StatusCode::GATEWAY_TIMEOUT, Code::DeadlineExceeded),
            Self::Broken => (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal),
        }
    }
}

/// The answer to a call that ends here.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) reason: Reason,
    message: Cow<'static, str>,
    retry_after_ms: Option<u64>,
    allow: Option<&'static str>,
}

impl Refusal {
    pub(crate) fn new(reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self { reason, message: message.into(), retry_after_ms: None, allow: None }
    }

    pub(crate) fn retry_after_ms(mut self, after_ms: u64) -> Self {
        self.retry_after_ms = Some(after_ms);
        self
    }

    pub(crate) fn allow(mut self, methods: &'static str) -> Self {
        self.allow = Some(methods);
        self
    }

    /// The code that both transports name.
    pub(crate) fn code(&self) -> Code {
        match self.reason {
            // A path that is not there is "unimplemented" in gRPC alone.
            Reason::NoRoute => Code::NotFound,
            reason => reason.answer().1,
        }
    }

    /// The answer on this transport.
    pub(crate) fn response(&self, transport: Transport) -> Response<Body> {
        let (http, grpc) = self.reason.answer();
        match transport {
            Transport::Grpc => {
                let status = match self.retry_after_ms {
                    Some(after_ms) => retry_later(grpc, self.message.clone(), after_ms),
                    None => Status::new(grpc, self.message.clone()),
                };
                let mut response = status.into_http();
                if self.reason == Reason::Encoding {
                    let identity = HeaderValue::from_static("identity");
                    response.headers_mut().insert("grpc-accept-encoding", identity);
                }
                response
            }
            Transport::Http => {
                let mut response = json_error(http, self.code(), &self.message, None, self.retry_after_ms);
                let headers = response.headers_mut();
                if let Some(methods) = self.allow {
                    headers.insert(header::ALLOW, HeaderValue::from_static(methods));
                }
                if http == StatusCode::UNAUTHORIZED {
                    headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                }
                if self.reason == Reason::Encoding {
                    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
                }
                response
            }
        }
    }
}

/// A service's error as an HTTP answer, which keeps it for the metrics, as tonic's answers do.
pub(crate) fn status_response(status: Status) -> Response<Body> {
    let after = status.metadata().get(RETRY_AFTER_MS).and_then(|value| value.to_str().ok()?.parse().ok());
    let reason = status.metadata().get(REASON).and_then(|value| value.to_str().ok());
    let mut response = json_error(http_status(status.code()), status.code(), status.message(), reason, after);
    response.extensions_mut().insert(status);
    response
}

/// A JSON answer.
pub(crate) fn json_response(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(body.into())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn json_error(
    status: StatusCode,
    code: Code,
    message: &str,
    reason: Option<&str>,
    after_ms: Option<u64>,
) -> Response<Body> {
    #[derive(Serialize)]
    struct ErrorBody<'a> {
        code: &'static str,
        message: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    }
    let body = ErrorBody { code: code_name(code), message, reason, retry_after_ms: after_ms };
    // A struct of strings and a number always becomes JSON.
    let body = serde_json::to_vec(&body).unwrap_or_default();
    let mut response = json_response(status, body);
    if let Some(after_ms) = after_ms {
        // Whole seconds, rounded up: earlier would be too early.
        response.headers_mut().insert(header::RETRY_AFTER, after_ms.div_ceil(1000).into());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_when_to_come_again_on_both_transports() {
        let status = retry_later(Code::Unavailable, "the ledger is away", 1500);
        let http = status_response(status.clone());
        assert_eq!(http.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(http.headers()[header::RETRY_AFTER], "2");
        let grpc = status.into_http::<Body>();
        assert_eq!(grpc.headers()[RETRY_AFTER_MS], "1500");
    }

    #[tokio::test]
    async fn a_refusal_names_its_reason_on_both_transports() {
        let body = async |status| {
            let body = status_response(status).into_body();
            let bytes = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
            serde_json::from_slice::<serde_json::Value>(&bytes).unwrap()
        };
        let status = refused_for(Code::FailedPrecondition, "the user is frozen", "user_frozen");
        assert_eq!(
            body(status.clone()).await,
            serde_json::json!({
                "code": "FAILED_PRECONDITION", "message": "the user is frozen", "reason": "user_frozen",
            })
        );
        assert_eq!(status.into_http::<Body>().headers()[REASON], "user_frozen");
        let without = body(Status::failed_precondition("too little")).await;
        assert_eq!(without, serde_json::json!({ "code": "FAILED_PRECONDITION", "message": "too little" }));
    }

    #[test]
    fn every_code_has_a_name_of_its_own() {
        let mut names: Vec<_> = ERROR_CODES.into_iter().map(code_name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ERROR_CODES.len());
    }
}
