//! Executors that speak the protocol of XXL-JOB: they get runs, register and report.

use super::{AskError, ExecutorCalls, LogCall, LogLines, RunCall};
use crate::definition::Block;
use crate::runs::{Report, Reported, RunNumber, Sent};
use crate::xxl::{
    AccessToken, AddressRules, Admin, AdminError, AppName, BlockStrategy, CallError, ClientOptions, Executor,
    ExecutorAddress, HandleCode, LogRequest, Refusal, RunRequest, RunResult, WrongOption, XxlClient,
};
use crate::{Jobs, JobsError};
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The wait for a free place and the call itself each take so long at most: an executor only queues a run before it answers.
const CALL_TIMEOUT_MS: u64 = 1_200;
const CONNECT_TIMEOUT_MS: u64 = 800;

/// Calls executors that speak the protocol of XXL-JOB, each with the access token of its tenant.
///
/// A value is for executors of one tenant's app; [`of`](ExecutorCalls::of) gives that of another one.
#[derive(Clone)]
pub struct XxlExecutors {
    clients: Arc<Clients>,
    tenant: String,
    app: String,
}

struct Clients {
    by_tenant: BTreeMap<String, XxlClient>,
    /// For tenants without a token.
    plain: XxlClient,
}

impl XxlExecutors {
    /// Calls that go where the rules permit, by TLS where an address begins with `https://`: `ca_file` has the authorities of
    /// such executors, by default those of the system. Connects to nothing yet.
    ///
    /// # Errors
    /// [`WrongOption`] names the option.
    pub fn new(
        tokens: &BTreeMap<String, AccessToken>,
        rules: &AddressRules,
        ca_file: Option<&Path>,
    ) -> Result<Self, WrongOption> {
        let client = |token: Option<&AccessToken>| {
            let options = ClientOptions {
                connect_timeout_ms: CONNECT_TIMEOUT_MS,
                call_timeout_ms: CALL_TIMEOUT_MS,
                ca_file: ca_file.map(Path::to_owned),
                ..ClientOptions::default()
            };
            XxlClient::new(options, token, rules.clone())
        };
        let of = |(tenant, token): (&String, &AccessToken)| Ok((tenant.clone(), client(Some(token))?));
        let by_tenant = tokens.iter().map(of).collect::<Result<_, WrongOption>>()?;
        let clients = Clients { by_tenant, plain: client(None)? };
        Ok(Self { clients: Arc::new(clients), tenant: String::new(), app: String::new() })
    }

    fn client(&self) -> &XxlClient {
        self.clients.by_tenant.get(&self.tenant).unwrap_or(&self.clients.plain)
    }

    fn executor(&self, address: &str) -> Result<Executor, String> {
        let address = ExecutorAddress::parse(address).map_err(|error| format!("`{address}`: {error}"))?;
        // A job that was removed since has no app any more; released executors do not look at it.
        let app = if self.app.is_empty() { "windfall" } else { &self.app };
        Ok(Executor { app: AppName::parse(app).map_err(|error| format!("`{app}`: {error}"))?, address })
    }
}

/// The protocol's number of a job has 31 bits and a sign. Ours stays as it is where it fits; a larger one becomes a negative
/// number by its bits, which is another job's with a chance of one in two thousand million.
fn job_id(job: u64) -> i32 {
    match i32::try_from(job) {
        Ok(job) => job,
        Err(_) => {
            let mixed = job.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
            -1 - i32::try_from(mixed).unwrap_or(i32::MAX - 1).min(i32::MAX - 1)
        }
    }
}

#[async_trait]
impl ExecutorCalls for XxlExecutors {
    fn of(&self, tenant: &str, app: &str) -> Option<Arc<dyn ExecutorCalls>> {
        Some(Arc::new(Self {
            clients: Arc::clone(&self.clients),
            tenant: tenant.to_owned(),
            app: app.to_owned(),
        }))
    }

    async fn run(&self, address: &str, call: RunCall) -> Sent {
        let executor = match self.executor(address) {
            Ok(executor) => executor,
            Err(why) => return Sent::NotSent(why),
        };
        let Ok(log_id) = i64::try_from(call.run) else {
            return Sent::Refused(format!(
                "the number {} of the run is too large for the protocol",
                call.run
            ));
        };
        let request = RunRequest {
            job_id: job_id(call.job),
            handler: call.handler,
            params: call.params,
            block: match call.block {
                Block::SerialExecution => BlockStrategy::SerialExecution,
                Block::DiscardLater => BlockStrategy::DiscardLater,
                Block::CoverEarly => BlockStrategy::CoverEarly,
            },
            timeout_s: call.timeout_s,
            log_id,
            // It comes back with the result, and says there of which attempt that is.
            log_date_time_ms: i64::try_from(call.sent_ms).unwrap_or(i64::MAX),
            broadcast_index: call.part.index,
            broadcast_total: call.part.total,
        };
        sent(self.client().run(&executor, &request).await)
    }

    async fn is_alive(&self, address: &str) -> bool {
        let Ok(executor) = self.executor(address) else { return false };
        self.client().beat(&executor).await.is_ok()
    }

    async fn is_idle(&self, address: &str, job: u64) -> bool {
        let Ok(executor) = self.executor(address) else { return false };
        self.client().idle_beat(&executor, job_id(job)).await.is_ok()
    }

    /// The protocol names no run: all of the job's that go or wait at the executor are ended.
    async fn kill(&self, address: &str, job: u64, _run: u64) -> Result<(), AskError> {
        let executor = self.executor(address)?;
        self.client().kill(&executor, job_id(job)).await.map_err(not_answered)
    }

    async fn log(&self, address: &str, call: LogCall) -> Result<LogLines, AskError> {
        let executor = self.executor(address)?;
        let request = LogRequest {
            log_id: i64::try_from(call.run).map_err(|error| error.to_string())?,
            log_date_time_ms: i64::try_from(call.sent_ms).map_err(|error| error.to_string())?,
            from_line: i32::try_from(call.from_line).map_err(|error| error.to_string())?,
        };
        let lines = self.client().log(&executor, request).await.map_err(not_answered)?;
        let next_line = u32::try_from(lines.to_line).unwrap_or(0).saturating_add(1).max(call.from_line);
        Ok(LogLines { text: lines.text, next_line, is_end: lines.is_end })
    }
}

/// Why a question has no answer.
fn not_answered(error: CallError) -> AskError {
    let why = error.to_string();
    match error {
        CallError::Refused { .. } => AskError::Refused(why),
        CallError::NotSent { .. } | CallError::Unknown { .. } => AskError::NoAnswer(why),
    }
}

/// What an answer says of a run.
fn sent(answer: Result<(), CallError>) -> Sent {
    match answer {
        Ok(()) => Sent::Accepted,
        Err(CallError::NotSent { reason, .. }) => Sent::NotSent(reason),
        Err(CallError::Unknown { reason, .. }) => Sent::Unknown(reason),
        Err(CallError::Refused { msg, refusal, .. }) => match refusal {
            // An earlier call, whose answer was lost, has come through.
            Refusal::Repeated => Sent::Accepted,
            // It is no executor of ours: another one may be.
            Refusal::WrongToken | Refusal::NoSuchCall => Sent::NotSent(msg),
            Refusal::Blocked | Refusal::Busy | Refusal::NoHandler | Refusal::Other => Sent::Refused(msg),
        },
    }
}

/// Takes registrations and results of a tenant's executors.
pub struct XxlAdmin {
    jobs: Jobs,
    tenant: String,
}

impl XxlAdmin {
    /// For the executors of this tenant.
    pub const fn new(jobs: Jobs, tenant: String) -> Self {
        Self { jobs, tenant }
    }
}

fn not_done(error: JobsError) -> AdminError {
    match error {
        JobsError::WrongField { .. } => AdminError::Refused(error.to_string()),
        other => AdminError::Unavailable(other.to_string()),
    }
}

#[async_trait]
impl Admin for XxlAdmin {
    async fn register(&self, executor: Executor) -> Result<(), AdminError> {
        let Executor { app, address } = executor;
        self.jobs.register(&self.tenant, app.as_str(), address.as_str()).await.map_err(not_done)
    }

    async fn remove(&self, executor: Executor) -> Result<(), AdminError> {
        let Executor { app, address } = executor;
        self.jobs.unregister(&self.tenant, app.as_str(), address.as_str()).await.map_err(not_done)
    }

    async fn report(&self, results: Vec<RunResult>) -> Result<(), AdminError> {
        let reports = results.into_iter().filter_map(|result| {
            // A number below zero is none of ours.
            let run = RunNumber(u64::try_from(result.run).ok()?);
            let how = match result.handle_code {
                HandleCode::Success => Reported::Succeeded(result.message),
                HandleCode::Failure => Reported::Failed(result.message),
                HandleCode::Timeout => Reported::TimedOut(result.message),
            };
            // The protocol knows no attempts: the time with which the run was sent says which one it is.
            let sent_ms = u64::try_from(result.log_date_time_ms).ok();
            Some(Report { run, attempt: None, sent_ms, how })
        });
        self.jobs.report(&self.tenant, reports.collect()).await.map_err(not_done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_number_stays_where_it_fits_and_is_negative_where_not() {
        assert_eq!((job_id(0), job_id(1_027), job_id(i32::MAX as u64)), (0, 1_027, i32::MAX));
        let large: std::collections::BTreeSet<i32> =
            (0..1_000).map(|job| job_id((1 << 31) + job * 1_024)).collect();
        assert!(large.len() == 1_000 && large.iter().all(|id| *id < 0));
        assert!(job_id(u64::MAX) < 0);
    }

    #[test]
    fn only_what_certainly_did_not_come_may_go_to_another_executor() {
        let address = ExecutorAddress::parse("http://10.0.0.1:1").unwrap();
        let refused = |refusal| {
            sent(Err(CallError::Refused { address: address.clone(), code: 500, msg: "m".into(), refusal }))
        };
        assert_eq!(refused(Refusal::Repeated), Sent::Accepted);
        assert_eq!(refused(Refusal::WrongToken), Sent::NotSent("m".into()));
        assert_eq!(refused(Refusal::Blocked), Sent::Refused("m".into()));
        assert_eq!(refused(Refusal::NoHandler), Sent::Refused("m".into()));
        let unknown = CallError::Unknown { address: address.clone(), reason: "r".into() };
        assert_eq!(sent(Err(unknown)), Sent::Unknown("r".into()));
        assert_eq!(sent(Err(CallError::NotSent { address, reason: "r".into() })), Sent::NotSent("r".into()));
        assert_eq!(sent(Ok(())), Sent::Accepted);
    }
}
