//! One port, both protocols: a request that says it is gRPC goes to the generated service, any other is a signed
//! order.

use super::{FakeDownstream, ServerOptions, ServerStats, Trouble};
use crate::answer::{AnswerJson, OrderJson, Outcome};
use crate::signature::{HEADER, HEADER_V2, Signed, verify, verify_v2};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;
use windfall_contract::Clock;
use windfall_contract::connector::{Connector, PayAnswer, PayOrder};
use windfall_proto::v1::downstream_server::{Downstream, DownstreamServer};
use windfall_proto::v1::{PayOutcome, PayReply, PayRequest};

/// Bytes of a request's body.
const BODY_MAX_BYTES: usize = 64 << 10;
/// A request's head and body come within so long.
const READ_MAX: Duration = Duration::from_secs(10);

/// The connection is to be cut: the answer is lost.
#[derive(Debug, thiserror::Error)]
#[error("the answer is lost")]
pub(super) struct Cut;

/// What all connections share.
pub(super) struct Shared {
    options: ServerOptions,
    downstream: Arc<FakeDownstream>,
    clock: Clock,
    trouble: Mutex<(Option<Trouble>, u32)>,
    answers: AtomicU64,
    http: AtomicU64,
    grpc: AtomicU64,
    forbidden: AtomicU64,
    troubled: AtomicU64,
}

impl Shared {
    pub fn new(options: ServerOptions, downstream: Arc<FakeDownstream>, clock: Clock) -> Self {
        let trouble = Mutex::new((options.trouble, options.trouble_per_mille));
        let zero = AtomicU64::default;
        Self {
            options,
            downstream,
            clock,
            trouble,
            answers: zero(),
            http: zero(),
            grpc: zero(),
            forbidden: zero(),
            troubled: zero(),
        }
    }

    pub fn set_trouble(&self, trouble: Option<Trouble>, per_mille: u32) {
        *self.trouble.lock() = (trouble, per_mille);
    }

    pub fn stats(&self) -> ServerStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ServerStats {
            http: get(&self.http),
            grpc: get(&self.grpc),
            forbidden: get(&self.forbidden),
            troubled: get(&self.troubled),
        }
    }

    /// Whether this answer is troubled: as many as wanted, evenly spread.
    fn trouble(&self) -> Option<Trouble> {
        let (trouble, per_mille) = *self.trouble.lock();
        let nth = self.answers.fetch_add(1, Ordering::Relaxed);
        let share = |nth: u64| nth.saturating_mul(per_mille.min(1_000).into()) / 1_000;
        let hit = trouble.filter(|_| share(nth + 1) > share(nth));
        self.troubled.fetch_add(hit.is_some().into(), Ordering::Relaxed);
        hit
    }

    fn forbid(&self) {
        self.forbidden.fetch_add(1, Ordering::Relaxed);
    }
}

/// Accepts until it is told to stop; all connections end with it.
pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    let room = Arc::new(Semaphore::new(shared.options.connections_max.clamp(1, 65_536)));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let permit = Arc::clone(&room).acquire_owned().await.ok();
            (listener.accept().await, permit)
        };
        tokio::select! {
            _ = stop.changed() => return,
            Some(_) = connections.join_next() => {}
            (accepted, permit) = next => match accepted {
                Ok((stream, _)) => {
                    let shared = Arc::clone(&shared);
                    connections.spawn(async move {
                        connection(stream, shared).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { route(shared, request).await }
    });
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(READ_MAX).max_buf_size(32 << 10);
    server.http2().timer(TokioTimer::new()).max_header_list_size(32 << 10);
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(error, "a connection ended");
    }
}

async fn route(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, Cut> {
    let is_grpc = request
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let good = if is_grpc {
        shared.grpc.fetch_add(1, Ordering::Relaxed);
        let mut service =
            DownstreamServer::new(GrpcFace(Arc::clone(&shared))).max_decoding_message_size(BODY_MAX_BYTES);
        service.call(request).await.map_err(|never| match never {})?
    } else {
        shared.http.fetch_add(1, Ordering::Relaxed);
        http(&shared, request).await?
    };
    match shared.trouble() {
        Some(trouble) => trouble.apply(good).ok_or(Cut),
        None => Ok(good),
    }
}

/// Answers one signed order. What is not one gets a status and no outcome: the caller does not know more than that
/// it should look at its settings.
async fn http(shared: &Shared, request: Request<Incoming>) -> Result<Response<Body>, Cut> {
    let (head, body) = request.into_parts();
    if head.method != Method::POST {
        return Ok(plain(StatusCode::METHOD_NOT_ALLOWED, "orders are posted"));
    }
    let body = tokio::time::timeout(READ_MAX, Limited::new(body, BODY_MAX_BYTES).collect()).await;
    let body = match body {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            return Ok(plain(StatusCode::PAYLOAD_TOO_LARGE, "at most 64 KiB"));
        }
        Ok(Err(_)) => return Err(Cut),
        Err(_) => return Ok(plain(StatusCode::REQUEST_TIMEOUT, "too slow")),
    };
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    if !shared.options.open && !is_signed(shared, &head.headers, path, &body) {
        shared.forbid();
        return Ok(plain(StatusCode::UNAUTHORIZED, "the signature is not ours"));
    }
    let Some((order, user_id, amount)) = parse(&body) else {
        return Ok(plain(StatusCode::BAD_REQUEST, "not an order"));
    };
    let order = PayOrder {
        trade_no: &order.trade_no,
        user_id,
        activity: &order.activity,
        scene: &order.scene,
        bonus_type: &order.bonus_type,
        amount,
    };
    if head.headers.get("idempotency-key").map(|key| key.as_bytes()) != Some(order.trade_no.as_bytes()) {
        return Ok(plain(StatusCode::BAD_REQUEST, "idempotency-key is not the order's trade_no"));
    }
    let answer = shared.downstream.pay(order).await;
    answered(order.trade_no, answer).ok_or(Cut)
}

/// Version 2 decides where a request has it. A real downstream puts its own name for the host, and refuses what has version 1
/// alone once its callers sign by version 2.
fn is_signed(shared: &Shared, headers: &HeaderMap, path: &str, body: &[u8]) -> bool {
    let value = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let ServerOptions { signing_keys: keys, skew_ms, .. } = &shared.options;
    let now_ms = shared.clock.wall_ms();
    let Some(header) = value(HEADER_V2) else {
        let header = value(HEADER).unwrap_or_default();
        return verify(keys, header, "POST", path, body, now_ms, *skew_ms).is_ok();
    };
    let signed = Signed {
        method: "POST",
        host: value("host").unwrap_or_default(),
        path_and_query: path,
        idempotency_key: value("idempotency-key").unwrap_or_default(),
        body,
    };
    verify_v2(keys, header, &signed, now_ms, *skew_ms).is_ok()
}

fn parse(body: &[u8]) -> Option<(OrderJson<'_>, i64, i64)> {
    let order: OrderJson<'_> = serde_json::from_slice(body).ok()?;
    let (user_id, amount) = (order.user_id.parse().ok()?, order.amount.parse().ok()?);
    Some((order, user_id, amount))
}

/// The HTTP answer; `None` where there is none.
fn answered(trade_no: &str, answer: PayAnswer) -> Option<Response<Body>> {
    let json = |status, outcome, reason, retry_after_ms: Option<u64>| {
        let answer = AnswerJson { outcome, trade_no: Some(trade_no.to_owned()), reason, retry_after_ms };
        let body = serde_json::to_vec(&answer).unwrap_or_default();
        let mut response = Response::new(Body::new(Full::from(body)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
        if let Some(after_ms) = retry_after_ms {
            headers.insert(RETRY_AFTER, after_ms.div_ceil(1_000).into());
        }
        Some(response)
    };
    match answer {
        PayAnswer::Paid => json(StatusCode::OK, Outcome::Paid, None, None),
        PayAnswer::AlreadyPaid => json(StatusCode::OK, Outcome::AlreadyPaid, None, None),
        PayAnswer::Busy { after_ms } => {
            json(StatusCode::TOO_MANY_REQUESTS, Outcome::Busy, None, Some(after_ms))
        }
        PayAnswer::Retry { after_ms } => {
            json(StatusCode::INTERNAL_SERVER_ERROR, Outcome::Retry, None, Some(after_ms))
        }
        PayAnswer::Refused(why) => json(StatusCode::UNPROCESSABLE_ENTITY, Outcome::Refused, Some(why), None),
        PayAnswer::Unknown => None,
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(Bytes::from_static(text.as_bytes()))));
    *response.status_mut() = status;
    response
}

struct GrpcFace(Arc<Shared>);

#[tonic::async_trait]
impl Downstream for GrpcFace {
    async fn pay(&self, request: tonic::Request<PayRequest>) -> Result<tonic::Response<PayReply>, Status> {
        let shared = &*self.0;
        let shown = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        let shown = shown.and_then(|value| value.strip_prefix("Bearer "));
        let known = shared.options.bearer_key.as_deref();
        // A fake: a real one compares in constant time.
        if !shared.options.open && (shown.is_none() || shown != known) {
            shared.forbid();
            return Err(Status::unauthenticated("the key is not ours"));
        }
        let request = request.into_inner();
        let order = PayOrder {
            trade_no: &request.trade_no,
            user_id: request.user_id,
            activity: &request.activity,
            scene: &request.scene,
            bonus_type: &request.bonus_type,
            amount: request.amount,
        };
        let reply = |outcome: PayOutcome, reason, retry_after_ms| {
            Ok(tonic::Response::new(PayReply { outcome: outcome.into(), reason, retry_after_ms }))
        };
        match shared.downstream.pay(order).await {
            PayAnswer::Paid => reply(PayOutcome::Paid, String::new(), 0),
            PayAnswer::AlreadyPaid => reply(PayOutcome::AlreadyPaid, String::new(), 0),
            PayAnswer::Busy { after_ms } => reply(PayOutcome::Busy, String::new(), after_ms),
            PayAnswer::Retry { after_ms } => reply(PayOutcome::Retry, String::new(), after_ms),
            PayAnswer::Refused(why) => reply(PayOutcome::Refused, why, 0),
            PayAnswer::Unknown => Err(Status::unknown("the answer is lost")),
        }
    }
}
