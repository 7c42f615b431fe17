//! The calls of executors: who calls, what is in them, and the answer in the protocol's own form.

use super::address::{Executor, ExecutorAddress};
use super::admin::{Admin, AdminError};
use super::answer;
use super::app::AppName;
use super::body::{Body, BodyError, BodyRoom, discard};
use super::result::read_results;
use super::rules::AddressRules;
use super::server::Door;
use super::token::TOKEN_HEADER;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use windfall_contract::{Clock, declare_metrics};
use windfall_edge::GuardedCall;

/// The group that executors register in; the other one, `ADMIN`, is of schedulers.
const EXECUTORS: &str = "EXECUTOR";

/// What all connections share.
pub(super) struct Api {
    pub(super) doors: Vec<Door>,
    pub(super) rules: AddressRules,
    pub(super) clock: Clock,
    pub(super) bodies: BodyRoom,
    pub(super) admin_timeout: Duration,
    /// Calls to the admin, which go on when their connection has ended.
    pub(super) calls: TaskTracker,
    /// Ends them.
    pub(super) cut: CancellationToken,
    pub(super) counters: Counters,
}

declare_metrics! {
    /// What a server counted since it was started.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct ServerStats counted by Counters {
        counter "windfall_jobs_xxl_calls_total" ["answer"]
        "Calls of executors that speak the protocol of XXL-JOB, by what became of them" {
            /// Registrations that were taken; each executor makes one in 30 seconds.
            pub registrations: u64 as "registered",
            /// Executors that took their leave.
            pub removals: u64 as "removed",
            /// Reports that were taken.
            pub reports: u64 as "reported",
            /// Calls with another access token, or without one.
            pub wrong_tokens: u64 as "wrong_token",
            /// Calls that could not be read, or name an address that is not allowed.
            pub bad_calls: u64 as "bad",
            /// Calls that could be read and were not done. Executors repeat them.
            pub failed_calls: u64 as "failed",
        }
        counter "windfall_jobs_xxl_results_total"
        "Results of runs that executors of XXL-JOB have reported, repeated ones included" {
            /// The results in the reports that were taken, repeated ones included.
            pub results: u64,
        }
    }
}

/// The calls that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Register,
    Remove,
    Report,
}

/// The body of both calls of the registry.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RegistryBody {
    registry_group: String,
    registry_key: String,
    registry_value: String,
}

/// Why a call was not done.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("invalid request, uri-mapping not found.")]
    NoSuchCall,
    #[error("invalid request, HttpMethod not support.")]
    NoPost,
    #[error("The access token is wrong.")]
    WrongToken,
    #[error("{0}")]
    Body(#[from] BodyError),
    #[error("bad request: {0}")]
    Bad(String),
    #[error("{0}")]
    Admin(#[from] AdminError),
    #[error("not done in time")]
    TooSlow,
    #[error("not done")]
    Panicked,
}

impl Call {
    /// The last two steps of a path; what stands before them is the operator's choice.
    fn of(path: &str) -> Option<Self> {
        let path = path.strip_suffix('/').unwrap_or(path);
        let (before, name) = path.rsplit_once('/')?;
        if before.rsplit('/').next() != Some("api") {
            return None;
        }
        match name {
            "registry" => Some(Self::Register),
            "registryRemove" => Some(Self::Remove),
            "callback" => Some(Self::Report),
            _ => None,
        }
    }
}

impl Refused {
    /// Executors read the code in a body of status 200 alone; other callers get a status that their tools understand.
    const fn status(&self) -> StatusCode {
        match self {
            Self::NoSuchCall => StatusCode::NOT_FOUND,
            Self::NoPost => StatusCode::METHOD_NOT_ALLOWED,
            _ => StatusCode::OK,
        }
    }

    /// Whether the body may be left unread, so that the connection cannot go on.
    const fn ends_connection(&self) -> bool {
        matches!(self, Self::NoSuchCall | Self::NoPost | Self::WrongToken | Self::Body(_))
    }
}

impl Api {
    pub(super) async fn answer(
        &self,
        request: Request<Incoming>,
        guarded: &GuardedCall,
    ) -> Response<Full<Bytes>> {
        let (status, ends, body) = match self.done(request, guarded).await {
            Ok(()) => (StatusCode::OK, false, answer::ok()),
            Err(refused) => {
                self.count(&refused);
                tracing::debug!(%refused, "a call of an executor was not done");
                (refused.status(), refused.ends_connection(), answer::fail(&refused.to_string()))
            }
        };
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json;charset=UTF-8"));
        if ends || guarded.is_last() {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    fn count(&self, refused: &Refused) {
        let counter = match refused {
            Refused::WrongToken => &self.counters.wrong_tokens,
            Refused::NoSuchCall | Refused::NoPost | Refused::Body(_) | Refused::Bad(_) => {
                &self.counters.bad_calls
            }
            Refused::Admin(_) | Refused::TooSlow | Refused::Panicked => &self.counters.failed_calls,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// What is called, and who takes it: the one whose token the request carries.
    fn call_of(&self, request: &Request<Incoming>) -> Result<(Call, Arc<dyn Admin>), Refused> {
        let call = Call::of(request.uri().path()).ok_or(Refused::NoSuchCall)?;
        if request.method() != Method::POST {
            return Err(Refused::NoPost);
        }
        let carried = request.headers().get(TOKEN_HEADER);
        let is_open = |door: &Door| door.token.as_ref().is_none_or(|token| token.is_carried_by(carried));
        // All of them are compared, so that the time tells nothing about which one it was.
        let open =
            self.doors.iter().filter(|door| is_open(door)).fold(None, |first, door| first.or(Some(door)));
        open.map(|door| (call, Arc::clone(&door.admin))).ok_or(Refused::WrongToken)
    }

    async fn done(&self, request: Request<Incoming>, guarded: &GuardedCall) -> Result<(), Refused> {
        let (call, admin) = match self.call_of(&request) {
            Ok(call) => call,
            Err(refused) => {
                // Or the caller might find its connection reset before it reads why.
                discard(request.into_body()).await;
                return Err(refused);
            }
        };
        guarded.authenticated();
        let body = self.bodies.read(request.into_body()).await?;
        match call {
            Call::Register => {
                let executor = self.read_executor(&body.bytes)?;
                self.finish(async move { admin.register(executor).await }).await?;
                self.counters.registrations.fetch_add(1, Relaxed);
            }
            Call::Remove => {
                let executor = self.read_executor(&body.bytes)?;
                self.finish(async move { admin.remove(executor).await }).await?;
                self.counters.removals.fetch_add(1, Relaxed);
            }
            Call::Report => self.report(admin, body).await?,
        }
        Ok(())
    }

    fn read_executor(&self, body: &[u8]) -> Result<Executor, Refused> {
        let bad = |why: &dyn std::fmt::Display| Refused::Bad(why.to_string());
        let read: RegistryBody = serde_json::from_slice(body).map_err(|error| bad(&error))?;
        if read.registry_group != EXECUTORS {
            return Err(bad(&"registryGroup is not EXECUTOR"));
        }
        let app = AppName::parse(&read.registry_key).map_err(|error| bad(&error))?;
        let address = ExecutorAddress::parse(&read.registry_value).map_err(|error| bad(&error))?;
        // A name is looked at when it is dialled.
        if address.ip().is_some_and(|ip| !self.rules.permit(ip)) {
            return Err(bad(&format!("executors at {address} are not allowed")));
        }
        Ok(Executor { app, address })
    }

    async fn report(&self, admin: Arc<dyn Admin>, body: Body) -> Result<(), Refused> {
        let results = read_results(&body.bytes, self.clock.wall_ms());
        let results = results.map_err(|error| Refused::Bad(error.to_string()))?;
        let count = results.len() as u64;
        if count > 0 {
            self.finish(async move {
                let reported = admin.report(results).await;
                // The results are as large as the body that they were read from.
                drop(body);
                reported
            })
            .await?;
        }
        self.counters.reports.fetch_add(1, Relaxed);
        self.counters.results.fetch_add(count, Relaxed);
        Ok(())
    }

    /// Does it in a task of its own: an executor waits three seconds, and a report that takes longer must not be begun
    /// anew for ever.
    async fn finish(
        &self,
        work: impl Future<Output = Result<(), AdminError>> + Send + 'static,
    ) -> Result<(), Refused> {
        let timed = tokio::time::timeout(self.admin_timeout, work);
        match self.calls.spawn(self.cut.clone().run_until_cancelled_owned(timed)).await {
            Ok(Some(Ok(done))) => Ok(done?),
            Ok(Some(Err(_)) | None) => Err(Refused::TooSlow),
            Err(_) => Err(Refused::Panicked),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_known_under_any_prefix() {
        for (path, call) in [
            ("/xxl-job-admin/api/registry", Some(Call::Register)),
            ("/api/registryRemove", Some(Call::Remove)),
            ("/a/b//api/callback/", Some(Call::Report)),
            ("/xxl-job-admin/api/jobs", None),
            ("/xxl-job-admin/registry", None),
            ("/myapi/registry", None),
            ("/registry", None),
            ("/", None),
            ("*", None),
        ] {
            assert_eq!(Call::of(path), call, "{path}");
        }
    }
}
