//! The process's liveness and readiness.

use crate::refusal::json_response;
use http::{Response, StatusCode};
use parking_lot::RwLock;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use tonic::body::Body;

/// Named checks, parts that come and go, and one switch. Cheap to clone: all clones are one.
///
/// ```
/// use windfall_edge::{Health, Need};
///
/// let health = Health::new();
/// health.check("ledger", || Err("the database does not answer".to_owned()));
/// assert_eq!(health.failing()["ledger"], "the database does not answer");
/// assert!(!health.is_ready());
///
/// let health = Health::new();
/// let tokens = health.part("tokens", Need::Weak);
/// tokens.is_missing("Redis does not answer");
/// assert_eq!(health.missing()["tokens"], "Redis does not answer");
/// assert!(health.is_ready());
/// ```
#[derive(Clone, Default)]
pub struct Health(Arc<Inner>);

/// What the absence of a part means for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The process is not ready.
    Strong,
    /// The process is ready for what it can do without the part, and reports that the part is missing.
    Weak,
}

/// Something outside of the process that it works with: a broker's topic, a database. When the
/// handle is dropped, the part is forgotten.
/// The code that works with the part reports its state, as often as it likes: a change is logged once, when the part
/// goes and when it comes back.
#[derive(Debug)]
pub struct Part {
    health: Health,
    name: String,
    id: u64,
}

type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

#[derive(Default)]
struct Inner {
    checks: RwLock<BTreeMap<&'static str, Check>>,
    parts: RwLock<BTreeMap<String, PartState>>,
    next_part: AtomicU64,
    is_held_back: AtomicBool,
    dead: RwLock<Option<String>>,
}

struct PartState {
    id: u64,
    need: Need,
    /// Whether nothing was reported so far, so that the first report is not logged as a change.
    is_new: bool,
    missing: Option<String>,
}

impl Health {
    /// A health that is ready and has no checks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check, or replaces the one of that name. It is asked at each probe, so it must answer at once: read known
    /// state and do no I/O. The error text says what is wrong, to everyone who may probe.
    pub fn check(&self, name: &'static str, check: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        self.0.checks.write().insert(name, Arc::new(check));
    }

    /// Adds a part, or replaces the one of that name. It is missing until it is reported to be there.
    pub fn part(&self, name: impl Into<String>, need: Need) -> Part {
        let (name, id) = (name.into(), self.0.next_part.fetch_add(1, Relaxed));
        let state = PartState { id, need, is_new: true, missing: Some("not reached yet".to_owned()) };
        self.0.parts.write().insert(name.clone(), state);
        Part { health: self.clone(), name, id }
    }

    /// Every part, and whether it is there.
    pub fn parts(&self) -> Vec<(String, bool)> {
        self.0.parts.read().iter().map(|(name, state)| (name.clone(), state.missing.is_none())).collect()
    }

    /// Holds readiness back, whatever the checks say, or lets them decide again.
    pub fn ready(&self, is_ready: bool) {
        self.0.is_held_back.store(!is_ready, Relaxed);
    }

    /// Says that the process cannot go on and has to be started again. There is no way back.
    pub fn die(&self, why: impl Into<String>) {
        self.0.dead.write().get_or_insert_with(|| why.into());
    }

    /// Whether no check fails, no strong part is missing and nothing holds back.
    pub fn is_ready(&self) -> bool {
        self.failing().is_empty()
    }

    /// The checks that fail and the strong parts that are missing, with what they say.
    pub fn failing(&self) -> BTreeMap<String, String> {
        // Copied, so that a check may take its time without holding up one that is being added.
        let checks: Vec<_> =
            self.0.checks.read().iter().map(|(&name, check)| (name, Arc::clone(check))).collect();
        let mut failing = self.missing_of(Need::Strong);
        for (name, check) in checks {
            failing.extend(check().err().map(|why| (name.to_owned(), why)));
        }
        if self.0.is_held_back.load(Relaxed) {
            failing.insert("serving".to_owned(), "starting or stopping".to_owned());
        }
        if let Some(why) = &*self.0.dead.read() {
            failing.insert("live".to_owned(), why.clone());
        }
        failing
    }

    /// The weak parts that are missing, with the reasons: the process works without them.
    pub fn missing(&self) -> BTreeMap<String, String> {
        self.missing_of(Need::Weak)
    }

    fn missing_of(&self, need: Need) -> BTreeMap<String, String> {
        let parts = self.0.parts.read();
        let of_need = parts.iter().filter(|(_, state)| state.need == need);
        of_need.filter_map(|(name, state)| Some((name.clone(), state.missing.clone()?))).collect()
    }

    pub(crate) fn live_response(&self) -> Response<Body> {
        match &*self.0.dead.read() {
            None => json_response(StatusCode::OK, r#"{"live":true}"#),
            Some(why) => json_response(
                StatusCode::SERVICE_UNAVAILABLE,
                json!({ "live": false, "why": why }).to_string(),
            ),
        }
    }

    pub(crate) fn ready_response(&self) -> Response<Body> {
        let (failing, missing) = (self.failing(), self.missing());
        let status = if failing.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let mut said = json!({ "ready": failing.is_empty(), "failing": failing });
        if !missing.is_empty() {
            said["missing"] = json!(missing);
        }
        json_response(status, said.to_string())
    }
}

impl Part {
    /// Reports that the part is there.
    pub fn is_there(&self) {
        self.report(None);
    }

    /// Reports that the part is missing; everyone who may probe can read `why`.
    pub fn is_missing(&self, why: impl Into<String>) {
        self.report(Some(why.into()));
    }

    /// Reports the result of a look at the part.
    pub fn looked(&self, found: Result<(), String>) {
        self.report(found.err());
    }

    fn report(&self, missing: Option<String>) {
        let mut parts = self.health.0.parts.write();
        let Some(state) = parts.get_mut(&self.name).filter(|state| state.id == self.id) else { return };
        let part = &self.name;
        match (&state.missing, &missing) {
            (None, Some(why)) => tracing::warn!(part, why, "a part is gone; what works without it goes on"),
            (Some(_), Some(why)) if state.is_new => {
                tracing::warn!(part, why, "a part is not there yet; what works without it goes on");
            }
            (Some(_), None) if !state.is_new => tracing::info!(part, "a part is back"),
            _ => {}
        }
        (state.missing, state.is_new) = (missing, false);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut parts = self.health.0.parts.write();
        if parts.get(&self.name).is_some_and(|state| state.id == self.id) {
            parts.remove(&self.name);
        }
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (checks, parts) = (self.0.checks.read(), self.0.parts.read());
        f.debug_struct("Health")
            .field("checks", &checks.keys())
            .field("parts", &parts.keys())
            .finish_non_exhaustive()
    }
}

/// `grpc.health.v1`: the same answers for gRPC probes. Only `Check`; clients take a missing `Watch` as documented
/// there, and do not retry.
pub(crate) struct GrpcHealth {
    pub(crate) health: Health,
    /// Full names of the mounted services.
    pub(crate) services: Vec<String>,
}

mod grpc {
    use super::GrpcHealth;
    use tonic::codegen::BoxStream;
    use tonic::{Request, Response, Status};
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_server::Health};

    #[tonic::async_trait]
    impl Health for GrpcHealth {
        type WatchStream = BoxStream<HealthCheckResponse>;

        async fn check(
            &self,
            request: Request<HealthCheckRequest>,
        ) -> Result<Response<HealthCheckResponse>, Status> {
            let service = request.into_inner().service;
            if !service.is_empty() && !self.services.contains(&service) {
                return Err(Status::not_found("no such service here"));
            }
            let status =
                if self.health.is_ready() { ServingStatus::Serving } else { ServingStatus::NotServing };
            Ok(Response::new(HealthCheckResponse { status: status.into() }))
        }

        async fn watch(
            &self,
            _request: Request<HealthCheckRequest>,
        ) -> Result<Response<Self::WatchStream>, Status> {
            Err(Status::unimplemented("ask with Check"))
        }
    }
}
