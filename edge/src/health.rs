//! Whether the process lives, and whether it is ready for calls.

use crate::refusal::json_response;
use http::{Response, StatusCode};
use parking_lot::RwLock;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tonic::body::Body;

/// Named checks, and one switch. Cheap to clone: all clones are one.
///
/// ```
/// let health = windfall_edge::Health::new();
/// health.check("ledger", || Err("the database does not answer".to_owned()));
/// assert_eq!(health.failing()["ledger"], "the database does not answer");
/// assert!(!health.is_ready());
/// ```
#[derive(Clone, Default)]
pub struct Health(Arc<Inner>);

type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

#[derive(Default)]
struct Inner {
    checks: RwLock<BTreeMap<&'static str, Check>>,
    is_held_back: AtomicBool,
}

impl Health {
    /// Ready, without checks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check, or replaces the one of that name. It is asked at each probe, so it must answer at once: look at
    /// what is known, do no I/O. The text says what is wrong, to whoever may probe.
    pub fn check(&self, name: &'static str, check: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        self.0.checks.write().insert(name, Arc::new(check));
    }

    /// Holds readiness back, whatever the checks say, or lets them decide again.
    pub fn ready(&self, is_ready: bool) {
        self.0.is_held_back.store(!is_ready, Relaxed);
    }

    /// Whether no check fails and nothing holds back.
    pub fn is_ready(&self) -> bool {
        self.failing().is_empty()
    }

    /// The checks that fail, with what they say.
    pub fn failing(&self) -> BTreeMap<&'static str, String> {
        // Copied, so that a check may take its time without holding up one that is being added.
        let checks: Vec<_> =
            self.0.checks.read().iter().map(|(&name, check)| (name, Arc::clone(check))).collect();
        let mut failing: BTreeMap<_, _> =
            checks.into_iter().filter_map(|(name, check)| check().err().map(|why| (name, why))).collect();
        if self.0.is_held_back.load(Relaxed) {
            failing.insert("serving", "starting or stopping".to_owned());
        }
        failing
    }

    pub(crate) fn live_response() -> Response<Body> {
        json_response(StatusCode::OK, r#"{"live":true}"#)
    }

    pub(crate) fn ready_response(&self) -> Response<Body> {
        let failing = self.failing();
        let status = if failing.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        json_response(status, json!({ "ready": failing.is_empty(), "failing": failing }).to_string())
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("checks", &self.0.checks.read().keys()).finish_non_exhaustive()
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
