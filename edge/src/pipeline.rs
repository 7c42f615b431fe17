//! The checks that every request of either transport passes before its service: limits, authentication, roles.

use crate::access::AccessSource;
use crate::authenticate::{Peer, authenticate, is_known};
use crate::body::{BodyLimits, BodyRoom, Holding};
use crate::health::{GrpcHealth, Health};
use crate::identity::{Call, Role};
use crate::metrics::Metrics;
use crate::openapi::{self, OpenApiError, Served};
use crate::pages::MountedPages;
use crate::refusal::{Reason, Refusal, Transport, code_name, json_response};
use crate::router::{GrpcHandler, Route, Router, grpc, roles};
use crate::trace;
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT, HeaderMap};
use http::{Method, Request, Response, StatusCode, Version};
use http_body::Body as _;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_health::pb::health_server::HealthServer;
use tracing::Instrument;

/// The bytes that are read of a body that is not wanted.
const UNREAD_BYTES_MAX: usize = 64 << 10;
/// How long such a body is read.
const UNREAD_TIME: Duration = Duration::from_secs(1);
const GRPC_HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
const GRPC_HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Limits of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) header_bytes_max: usize,
    pub(crate) headers_max: usize,
    pub(crate) body: BodyLimits,
    pub(crate) bodies_bytes_max: usize,
    pub(crate) request_timeout: Duration,
    pub(crate) calls_max: usize,
    pub(crate) is_health_open: bool,
    pub(crate) has_certificates: bool,
}

/// What the connection of a call holds for it until its answer is written, and is told about it.
pub(crate) trait Held: Send + Sync + Unpin + 'static {
    /// The call comes from a known caller.
    fn authenticated(&self);
    /// The answer is made; from now on it waits for the peer.
    fn answered(&self);
}

pub(crate) struct RequestPipeline {
    limits: Limits,
    access: AccessSource,
    metrics: Metrics,
    health: Health,
    grpc_health: GrpcHandler,
    by_http_path: HashMap<&'static str, Arc<Route>>,
    by_grpc_path: HashMap<String, Arc<Route>>,
    openapi: Bytes,
    /// The apps whose callers are served; every app where there is no list.
    tenants: Option<Arc<BTreeSet<String>>>,
    pages: Option<MountedPages>,
    places: Arc<Semaphore>,
    room: BodyRoom,
}

/// A path that exists.
enum Target<'a> {
    Live,
    Ready,
    GrpcHealth,
    OpenApi,
    Metrics,
    Method(&'a Arc<Route>),
    /// The path exists on the other transport.
    OtherTransport,
}

impl RequestPipeline {
    pub(crate) fn new(
        limits: Limits,
        router: &Router,
        access: AccessSource,
        metrics: Metrics,
        health: Health,
    ) -> Result<Self, OpenApiError> {
        let served =
            Served { body_bytes_max: limits.body.bytes_max, has_certificates: limits.has_certificates };
        let openapi = serde_json::to_vec(&openapi::document(router.routes(), served)?)?;
        let mut services: Vec<String> = router
            .routes()
            .iter()
            .map(|route| format!("{}.{}", crate::router::PACKAGE, route.service))
            .collect();
        services.dedup();
        let grpc_health = grpc(HealthServer::new(GrpcHealth { health: health.clone(), services }));
        let by_http_path = router.routes().iter().map(|route| (route.http_path, Arc::clone(route))).collect();
        let pages = router
            .mounted_pages()
            .map(|pages| MountedPages::new(pages, limits.body, limits.request_timeout, metrics.clone()));
        let by_grpc_path =
            router.routes().iter().map(|route| (route.grpc_path(), Arc::clone(route))).collect();
        Ok(Self {
            room: BodyRoom::new(limits.bodies_bytes_max, metrics.clone()),
            places: Arc::new(Semaphore::new(limits.calls_max)),
            limits,
            access,
            metrics,
            health,
            grpc_health,
            by_http_path,
            by_grpc_path,
            openapi: openapi.into(),
            tenants: router.tenants(),
            pages,
        })
    }

    /// Answers a request. `held` stays until the answer is written.
    pub(crate) async fn answer(
        &self,
        peer: &Peer,
        request: Request<Incoming>,
        held: impl Held,
    ) -> Response<Body> {
        let started = Instant::now();
        let transport = transport_of(&request);
        let mut in_flight = InFlight::new(&self.places, self.metrics.clone(), held);
        let mut names = ("none", "none");
        let deadline = self.deadline(transport, request.headers());
        let mut request = Some(request);
        let answered = self.pass(peer, &mut request, transport, &mut in_flight, deadline, &mut names).await;
        let code = code_of(&answered);
        let unread = request.filter(|request| !request.body().is_end_stream());
        if answered.is_err() || unread.is_some() {
            // Anybody can be refused, and read the answer as slowly as the connection lets them; and no call may wait
            // for a body that is not wanted.
            in_flight.give_up_place();
        }
        if let Some(unread) = unread {
            drain(unread).await;
        }
        let response = answered.unwrap_or_else(|refusal| {
            self.metrics.refused(refusal.reason);
            tracing::debug!(reason = refusal.reason.name(), face = transport.name(), "a call was refused");
            refusal.response(transport)
        });
        self.metrics.answered(transport, names, code_name(code), started.elapsed());
        in_flight.held.answered();
        response.map(|body| Body::new(Holding::new(body, in_flight)))
    }

    /// Everything that can end a call before its service sees it, cheapest first. Takes the request when it reads its
    /// body.
    async fn pass(
        &self,
        peer: &Peer,
        waiting: &mut Option<Request<Incoming>>,
        transport: Transport,
        in_flight: &mut InFlight<impl Held>,
        deadline: Duration,
        names: &mut (&'static str, &'static str),
    ) -> Result<Response<Body>, Refusal> {
        let Some(request) = waiting.as_ref() else {
            return Err(Refusal::new(Reason::Broken, "there is no request"));
        };
        self.check_headers(request)?;
        let target = self.target(request.uri().path(), transport);
        if let Some(Target::Live | Target::Ready | Target::GrpcHealth) = target
            && (self.limits.is_health_open || peer.is_loopback())
        {
            return self.probe(target, transport, waiting, in_flight).await;
        }
        if let Some(pages) = self.pages_for(request.uri().path(), transport, target.as_ref()) {
            *names = ("Pages", "answer");
            // Pages have places of their own.
            in_flight.give_up_place();
            let InFlight { place, held, .. } = in_flight;
            return pages.answer(peer, waiting, place, || held.authenticated()).await;
        }
        if !in_flight.has_place() {
            if is_known(&self.access, peer, request.headers()) {
                in_flight.held.authenticated();
            }
            let full = Refusal::new(Reason::TooManyCalls, "too many calls are in flight; call again");
            return Err(full.retry_after_ms(200));
        }
        // The time-out covers all that may wait: the users' keys, too.
        let known = || in_flight.held.authenticated();
        let authenticated = authenticate(&self.access, peer, request.headers(), known);
        let mut call = within(deadline, authenticated).await??;
        let target = target.ok_or_else(|| Refusal::new(Reason::NoRoute, "there is nothing at this path"))?;
        match target {
            Target::Live | Target::Ready | Target::GrpcHealth => {
                self.probe(Some(target), transport, waiting, in_flight).await
            }
            Target::OpenApi => {
                check_method(request, Method::GET)?;
                self.check_tenant(&call)?;
                Ok(json_response(StatusCode::OK, self.openapi.clone()))
            }
            Target::Metrics => {
                check_method(request, Method::GET)?;
                self.check_tenant(&call)?;
                check_role(&call, roles::METRICS)?;
                self.metrics
                    .response()
                    .map_err(|_| Refusal::new(Reason::Broken, "a metric cannot be written"))
            }
            Target::OtherTransport => {
                Err(Refusal::new(Reason::MediaType, "this path is gRPC's: application/grpc over HTTP/2"))
            }
            Target::Method(route) => {
                *names = (route.service, route.method);
                let span = trace::begin(route, &mut call, transport, request.headers());
                let answered =
                    self.call(route, call, transport, waiting, deadline).instrument(span.clone()).await;
                let code = code_of(&answered);
                trace::end(&span, code, code_name(code));
                answered
            }
        }
    }

    /// The pages, where the path is theirs: nothing that the services have.
    fn pages_for(
        &self,
        path: &str,
        transport: Transport,
        target: Option<&Target<'_>>,
    ) -> Option<&MountedPages> {
        let is_free = target.is_none() && transport == Transport::Http;
        self.pages.as_ref().filter(|pages| is_free && pages.takes(path))
    }

    async fn call(
        &self,
        route: &Route,
        call: Call,
        transport: Transport,
        waiting: &mut Option<Request<Incoming>>,
        deadline: Duration,
    ) -> Result<Response<Body>, Refusal> {
        let (parts, body) = take(waiting, |request| {
            check_method(request, Method::POST)?;
            self.check_tenant(&call)?;
            check_role(&call, route.role)?;
            check_media(transport, request.headers())
        })?;
        let (body, taken) = self.room.read(body, self.limits.body).await?;
        let answer = match transport {
            Transport::Http => route.answer_json(call, body),
            Transport::Grpc => route.answer_grpc(call, Request::from_parts(parts, Full::new(body))),
        };
        // The caller is told that the outcome is unknown; the service must tolerate being dropped anywhere, as it must
        // tolerate being killed anywhere.
        let response = within(deadline, answer).await;
        drop(taken);
        response
    }

    async fn probe(
        &self,
        target: Option<Target<'_>>,
        transport: Transport,
        waiting: &mut Option<Request<Incoming>>,
        in_flight: &mut InFlight<impl Held>,
    ) -> Result<Response<Body>, Refusal> {
        // It needs none, and like a refusal it may be anybody's.
        in_flight.give_up_place();
        if let Some(Target::GrpcHealth) = target {
            let (parts, body) = take(waiting, |request| {
                check_method(request, Method::POST)?;
                check_media(transport, request.headers())
            })?;
            let limits = BodyLimits { bytes_max: self.limits.body.bytes_max.min(1024), ..self.limits.body };
            let (body, _taken) = self.room.read(body, limits).await?;
            return Ok((self.grpc_health)(Request::from_parts(parts, Full::new(body))).await);
        }
        if let Some(request) = waiting {
            check_method(request, Method::GET)?;
        }
        Ok(match target {
            Some(Target::Ready) => self.health.ready_response(),
            _ => self.health.live_response(),
        })
    }

    /// Whether the caller's app is served here at all: a caller of another one gets nothing, whatever its roles.
    fn check_tenant(&self, call: &Call) -> Result<(), Refusal> {
        let tenant = &*call.caller.tenant;
        match &self.tenants {
            Some(served) if !served.contains(tenant) => {
                let what = format!("the app `{tenant}` is not served here");
                Err(Refusal::new(Reason::OtherTenant, what))
            }
            _ => Ok(()),
        }
    }

    fn target(&self, path: &str, transport: Transport) -> Option<Target<'_>> {
        let of_grpc = || self.by_grpc_path.get(path);
        let is_grpc_health = path == GRPC_HEALTH_CHECK || path == GRPC_HEALTH_WATCH;
        match transport {
            Transport::Grpc if is_grpc_health => Some(Target::GrpcHealth),
            Transport::Grpc => of_grpc().map(Target::Method),
            Transport::Http => match path {
                "/health/live" => Some(Target::Live),
                "/health/ready" => Some(Target::Ready),
                "/openapi.json" => Some(Target::OpenApi),
                "/metrics" => Some(Target::Metrics),
                _ if is_grpc_health => Some(Target::OtherTransport),
                _ => match self.by_http_path.get(path) {
                    Some(route) => Some(Target::Method(route)),
                    None => of_grpc().map(|_| Target::OtherTransport),
                },
            },
        }
    }

    fn check_headers<B>(&self, request: &Request<B>) -> Result<(), Refusal> {
        let target = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
        let bytes =
            |(name, value): (&http::HeaderName, &http::HeaderValue)| name.as_str().len() + value.len() + 4;
        let bytes = request.headers().iter().map(bytes).sum::<usize>() + target;
        if bytes > self.limits.header_bytes_max || request.headers().len() > self.limits.headers_max {
            let what = format!(
                "the headers are more than {} or longer than {} bytes; tokens go in the body",
                self.limits.headers_max, self.limits.header_bytes_max
            );
            return Err(Refusal::new(Reason::HeadersTooLarge, what));
        }
        Ok(())
    }

    /// The caller's own deadline, where it is the sooner one.
    fn deadline(&self, transport: Transport, headers: &HeaderMap) -> Duration {
        let asked = match transport {
            Transport::Grpc => {
                headers.get("grpc-timeout").and_then(|value| parse_timeout(value.to_str().ok()?))
            }
            Transport::Http => None,
        };
        asked.map_or(self.limits.request_timeout, |asked| asked.min(self.limits.request_timeout))
    }
}

/// A call, and its place among those in flight where there was one.
struct InFlight<H> {
    place: Option<OwnedSemaphorePermit>,
    metrics: Metrics,
    held: H,
}

impl<H> InFlight<H> {
    fn new(places: &Arc<Semaphore>, metrics: Metrics, held: H) -> Self {
        metrics.calls_in_flight().inc();
        Self { place: Arc::clone(places).try_acquire_owned().ok(), metrics, held }
    }

    fn has_place(&self) -> bool {
        self.place.is_some()
    }

    fn give_up_place(&mut self) {
        self.place = None;
    }
}

impl<H> Drop for InFlight<H> {
    fn drop(&mut self) {
        self.metrics.calls_in_flight().dec();
    }
}

/// The request, where the checks of its head let it pass.
fn take(
    waiting: &mut Option<Request<Incoming>>,
    checked: impl FnOnce(&Request<Incoming>) -> Result<(), Refusal>,
) -> Result<(http::request::Parts, Incoming), Refusal> {
    let Some(request) = waiting.take() else {
        return Err(Refusal::new(Reason::Broken, "there is no request"));
    };
    if let Err(refusal) = checked(&request) {
        *waiting = Some(request);
        return Err(refusal);
    }
    Ok(request.into_parts())
}

/// Reads a small body that is not wanted, over HTTP/1: a connection that is closed with some of it unread may be reset,
/// and the answer be lost with it. What is larger, or slow, is not waited for.
async fn drain(request: Request<Incoming>) {
    // Who asks before sending has sent nothing.
    if request.version() >= Version::HTTP_2 || request.headers().contains_key(EXPECT) {
        return;
    }
    let mut body = request.into_body();
    if body.size_hint().lower() > UNREAD_BYTES_MAX as u64 {
        return;
    }
    let reading = async {
        let mut left = UNREAD_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            left = match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                Some(left) => left,
                None => return,
            };
        }
    };
    // Whether it came to its end or not, the answer goes out.
    tokio::time::timeout(UNREAD_TIME, reading).await.ok();
}

fn code_of(answered: &Result<Response<Body>, Refusal>) -> Code {
    match answered {
        Ok(response) => response.extensions().get::<Status>().map_or(Code::Ok, Status::code),
        Err(refusal) => refusal.code(),
    }
}

async fn within<T>(deadline: Duration, work: impl Future<Output = T>) -> Result<T, Refusal> {
    tokio::time::timeout(deadline, work).await.map_err(|_| {
        Refusal::new(
            Reason::Deadline,
            "no answer in time: whether the call took effect is not known; ask again",
        )
    })
}

/// gRPC needs HTTP/2, for its trailers.
fn transport_of<B>(request: &Request<B>) -> Transport {
    let is_grpc = |kind: &[u8]| matches!(kind, b"application/grpc" | b"application/grpc+proto");
    let kind = request.headers().get(CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    if request.version() == Version::HTTP_2 && kind.is_some_and(is_grpc) {
        Transport::Grpc
    } else {
        Transport::Http
    }
}

fn check_method<B>(request: &Request<B>, method: Method) -> Result<(), Refusal> {
    if *request.method() == method {
        return Ok(());
    }
    let allowed = if method == Method::GET { "GET" } else { "POST" };
    Err(Refusal::new(Reason::Method, format!("this path takes {allowed} only")).allow(allowed))
}

fn check_role(call: &Call, role: Role) -> Result<(), Refusal> {
    if call.caller.roles.has(role) {
        return Ok(());
    }
    Err(Refusal::new(
        Reason::NoRole,
        format!("this call needs the role `{role}`, which the caller does not have"),
    ))
}

/// One content type, and no encoding: what is compressed could become anything.
fn check_media(transport: Transport, headers: &HeaderMap) -> Result<(), Refusal> {
    for encoding in headers.get_all(CONTENT_ENCODING).iter().chain(headers.get_all("grpc-encoding")) {
        if encoding.as_bytes() != b"identity" {
            return Err(Refusal::new(Reason::Encoding, "bodies are taken as they are, never compressed"));
        }
    }
    if transport == Transport::Http {
        let mut kinds = headers.get_all(CONTENT_TYPE).iter();
        let is_json = kinds.next().is_some_and(|kind| kind.to_str().is_ok_and(is_json));
        if !is_json || kinds.next().is_some() {
            return Err(Refusal::new(Reason::MediaType, "`content-type` must be application/json"));
        }
    }
    Ok(())
}

fn is_json(kind: &str) -> bool {
    let (kind, parameters) = kind.split_once(';').unwrap_or((kind, ""));
    let parameters = parameters.trim();
    kind.trim().eq_ignore_ascii_case("application/json")
        && (parameters.is_empty() || parameters.eq_ignore_ascii_case("charset=utf-8"))
}

/// `grpc-timeout`: up to 8 digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_of_grpc_is_read_as_documented() {
        assert_eq!(parse_timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(parse_timeout("250m"), Some(Duration::from_millis(250)));
        for wrong in ["", "m", "1", "123456789S", "-1S", "1x", "1é"] {
            assert_eq!(parse_timeout(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn json_may_say_its_charset_and_nothing_else() {
        for good in ["application/json", "Application/JSON; charset=UTF-8", "application/json;charset=utf-8"]
        {
            assert!(is_json(good), "{good}");
        }
        for bad in [
            "",
            "text/json",
            "application/json; charset=utf-16",
            "application/jsonp",
            "application/json, a/b",
        ] {
            assert!(!is_json(bad), "{bad}");
        }
    }
}
