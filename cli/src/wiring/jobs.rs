//! The cron and one-off jobs of a process: what runs them, and where executors register.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_contract::Clock;
use windfall_contract::due::Target;
use windfall_contract::entries::EntryStore;
use windfall_edge::ListenerCounts;
use windfall_jobs::executors::{BySchemes, XxlAdmin, XxlExecutors};
use windfall_jobs::rpc::{GrpcExecutors, GrpcOptions};
use windfall_jobs::xxl::{AccessToken, AddressRules, Door, ServerOptions, ServerStats, XxlServer};
use windfall_jobs::{Jobs, JobsOptions, JobsParts};
use windfall_scheduler::Timers;

/// How jobs are run.
#[derive(Clone)]
pub struct JobsPart {
    /// How runs are started and kept.
    pub options: JobsOptions,
    /// What executors and this process show each other, by tenant.
    pub tokens: BTreeMap<String, AccessToken>,
    /// Where executors may be.
    pub rules: AddressRules,
    /// The authorities of executors at `https://`; none: the system's.
    pub ca_file: Option<PathBuf>,
    /// Where executors of XXL-JOB register; none: nowhere.
    pub xxl: Option<ServerOptions>,
    /// Whose those executors are where no tenant has a token.
    pub tenant: String,
}

/// Reads what a listener for executors has counted.
pub type ReadXxlStats = Arc<dyn Fn() -> ServerStats + Send + Sync>;

/// Running jobs.
pub struct RunningJobs {
    /// What keeps them.
    pub jobs: Jobs,
    store: Arc<dyn EntryStore>,
    xxl: Option<XxlServer>,
    part: JobsPart,
    clock: Clock,
}

impl RunningJobs {
    /// Starts them; executors cannot register yet.
    pub fn start(
        part: JobsPart,
        store: Arc<dyn EntryStore>,
        timers: Timers,
        targets: BTreeMap<(String, String), Arc<dyn Target>>,
        clock: &Clock,
    ) -> Result<Self> {
        let unusable = "executors of jobs cannot be called";
        let grpc = GrpcExecutors::new(GrpcOptions::default(), &part.tokens, part.rules.clone());
        let http = XxlExecutors::new(&part.tokens, &part.rules, part.ca_file.as_deref()).context(unusable)?;
        let calls = BySchemes { grpc: Arc::new(grpc.context(unusable)?), http: Arc::new(http) };
        let (calls, own) = (Arc::new(calls), clock.clone());
        let parts = JobsParts { store: Arc::clone(&store), timers, calls, targets, clock: own };
        let jobs = Jobs::start(part.options, parts);
        Ok(Self { jobs, store, xxl: None, part, clock: clock.clone() })
    }

    /// Listens for executors that speak the protocol of XXL-JOB, if the options say where.
    pub async fn listen(&mut self) -> Result<()> {
        let Some(options) = self.part.xxl.clone() else { return Ok(()) };
        let (address, is_tls) = (options.listen, options.tls.is_some());
        if !address.ip().is_loopback() {
            if self.part.tokens.is_empty() {
                tracing::warn!(
                    %address,
                    "whoever reaches this address can register executors and report results, because \
                     jobs.xxl.allow_without_token is set"
                );
            }
            if !is_tls {
                tracing::warn!(
                    %address,
                    "executors of XXL-JOB register without TLS, because jobs.xxl.plaintext is set: access tokens cross the \
                     network in the clear"
                );
            }
        }
        let door = |token: Option<&AccessToken>, tenant: &str| Door {
            token: token.cloned(),
            admin: Arc::new(XxlAdmin::new(self.jobs.clone(), tenant.to_owned())),
        };
        let mut doors: Vec<Door> =
            self.part.tokens.iter().map(|(tenant, token)| door(Some(token), tenant)).collect();
        if doors.is_empty() {
            doors.push(door(None, &self.part.tenant));
        }
        let server = XxlServer::start_with(options, doors, self.part.rules.clone(), self.clock.clone()).await;
        let server = server.context("executors of XXL-JOB cannot be served ([jobs.xxl] of the options)")?;
        let scheme = if is_tls { "https" } else { "http" };
        let at = server.address();
        println!("windfall jobs: executors of XXL-JOB register at {scheme}://{at}/xxl-job-admin");
        self.xxl = Some(server);
        Ok(())
    }

    /// Returns the targets that timers of jobs go to, which begin their runs, by tenant and name.
    pub fn targets(&self) -> BTreeMap<(String, String), Arc<dyn Target>> {
        self.jobs.targets()
    }

    /// Returns the store of the jobs.
    pub fn store(&self) -> &Arc<dyn EntryStore> {
        &self.store
    }

    /// Where executors may be.
    pub const fn rules(&self) -> &AddressRules {
        &self.part.rules
    }

    /// Reads what executors of XXL-JOB have called, where they may register.
    pub fn xxl_stats(&self) -> Option<ReadXxlStats> {
        self.xxl.as_ref().map(|server| Arc::new(server.read_stats()) as _)
    }

    /// What the port of executors of XXL-JOB counts, where there is one.
    pub fn port_counts(&self) -> Option<Arc<ListenerCounts>> {
        self.xxl.as_ref().map(XxlServer::port_counts)
    }

    /// Ends them: executors report elsewhere, and runs that are being sent are sent. The scheduler's dispatcher has been drained.
    pub async fn close(self, deadline: Duration) {
        let began = Instant::now();
        if let Some(server) = self.xxl {
            let closed = server.close(deadline / 2).await;
            if closed.cut > 0 {
                tracing::warn!(
                    closed.cut,
                    "calls of executors were in flight for too long; executors repeat them"
                );
            }
        }
        if !self.jobs.close(deadline.saturating_sub(began.elapsed())).await {
            tracing::warn!(
                "runs of jobs were not sent in time; another process, or the next start, goes on with them"
            );
        }
    }
}
