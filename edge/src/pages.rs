//! Pages for people, on the port of the services. They authenticate by themselves: a browser has no bearer key.
//!
//! A stranger is answered by the head of his request alone: nothing of a body is read for him, and nothing waits. Those
//! whom the pages know have places and memory of their own, so that calls of the services lose none to pages.

use crate::authenticate::Peer;
use crate::body::{BodyLimits, BodyRoom};
use crate::metrics::Metrics;
use crate::refusal::{Reason, Refusal};
use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::body::Body;
use tonic::{Code, Status};

/// The requests of known visitors in flight at once, until their answers are written or the connection ends.
const PLACES: usize = 32;
/// The bytes of their bodies in memory together.
const BODIES_BYTES_MAX: usize = 16 << 20;

/// Pages that a server answers beside its services, for the paths that [`Pages::takes`] names.
///
/// The server bounds the connection, the headers, the body and the time of a request, and checks nothing about who asks.
#[tonic::async_trait]
pub trait Pages: Send + Sync {
    /// Whether a path belongs to the pages. The services come first: pages cannot take a path of theirs, nor those of
    /// health, of metrics and of `/openapi.json`.
    fn takes(&self, path: &str) -> bool;

    /// Decides by the head of a request, before a byte of its body is read. It must not block: it has no place among the
    /// requests in flight.
    fn by_head(&self, head: &Parts, visitor: Visitor) -> ByHead;

    /// Answers a request of somebody who was found [`ByHead::Known`]. It may be dropped at any await.
    async fn answer(&self, request: Request<Bytes>, visitor: Visitor) -> Response<Bytes>;
}

/// What pages decide by the head of a request.
#[derive(Debug)]
pub enum ByHead {
    /// This is the answer; nothing of a body is read.
    Answer(Response<Bytes>),
    /// The pages know who asks: [`Pages::answer`] is called with the body.
    Known {
        /// The bytes of the body at most; the server's own limit holds as well. 0: none is read.
        body_bytes_max: usize,
    },
}

/// Who asks for a page, as the connection says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visitor {
    /// The other end of the connection.
    pub address: SocketAddr,
    /// Whether the connection is encrypted.
    pub is_tls: bool,
}

/// The pages of a server, with their places and their memory.
pub(crate) struct MountedPages {
    pages: Arc<dyn Pages>,
    places: Arc<Semaphore>,
    room: BodyRoom,
    body: BodyLimits,
    timeout: Duration,
}

impl MountedPages {
    pub(crate) fn new(pages: Arc<dyn Pages>, body: BodyLimits, timeout: Duration, metrics: Metrics) -> Self {
        let room = BodyRoom::new(BODIES_BYTES_MAX, metrics);
        Self { pages, places: Arc::new(Semaphore::new(PLACES)), room, body, timeout }
    }

    pub(crate) fn takes(&self, path: &str) -> bool {
        self.pages.takes(path)
    }

    /// Answers a request. Takes its body where it is read; `is_known` is called where the pages know who asks. `place` is
    /// what the answer holds until it is written: a visitor who does not read must not have more and more answers made.
    pub(crate) async fn answer(
        &self,
        peer: &Peer,
        waiting: &mut Option<Request<Incoming>>,
        place: &mut Option<OwnedSemaphorePermit>,
        is_known: impl FnOnce(),
    ) -> Result<Response<Body>, Refusal> {
        let Some(request) = waiting.take() else {
            return Err(Refusal::new(Reason::Broken, "there is no request"));
        };
        let (head, body) = request.into_parts();
        let visitor = Visitor { address: peer.address, is_tls: peer.is_tls };
        let body_bytes_max = match self.pages.by_head(&head, visitor) {
            ByHead::Known { body_bytes_max } => body_bytes_max,
            ByHead::Answer(answer) => {
                *waiting = Some(Request::from_parts(head, body));
                return Ok(with_status(answer));
            }
        };
        is_known();
        let Ok(own_place) = Arc::clone(&self.places).try_acquire_owned() else {
            *waiting = Some(Request::from_parts(head, body));
            let full =
                Refusal::new(Reason::TooManyCalls, "too many requests for pages are in flight; ask again");
            return Err(full.retry_after_ms(200));
        };
        *place = Some(own_place);
        let (body, _taken) = if body_bytes_max == 0 {
            *waiting = Some(Request::from_parts(head.clone(), body));
            (Bytes::new(), None)
        } else {
            let limits = BodyLimits { bytes_max: self.body.bytes_max.min(body_bytes_max), ..self.body };
            let (body, taken) = self.room.read(body, limits).await?;
            (body, Some(taken))
        };
        let answering = self.pages.answer(Request::from_parts(head, body), visitor);
        match tokio::time::timeout(self.timeout, answering).await {
            Ok(answer) => Ok(with_status(answer)),
            Err(_) => Err(Refusal::new(
                Reason::Deadline,
                "no answer in time: whether the request took effect is not known; look before you ask again",
            )),
        }
    }
}

/// The answer, with the code that metrics count it by.
fn with_status(answer: Response<Bytes>) -> Response<Body> {
    let code = code_of(answer.status());
    let mut answer = answer.map(|body| Body::new(Full::new(body)));
    if code != Code::Ok {
        answer.extensions_mut().insert(Status::new(code, ""));
    }
    answer
}

fn code_of(status: StatusCode) -> Code {
    match status {
        StatusCode::BAD_REQUEST => Code::InvalidArgument,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::CONFLICT => Code::Aborted,
        StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
        StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => Code::Unimplemented,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY => Code::Unavailable,
        StatusCode::GATEWAY_TIMEOUT => Code::DeadlineExceeded,
        status if status.is_server_error() => Code::Internal,
        status if status.is_client_error() => Code::Unknown,
        _ => Code::Ok,
    }
}
