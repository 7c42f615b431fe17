//! The auditor of a process: its start and its end, and the life of a process that does nothing else.

use super::metrics::{self, Sources};
use super::options::ServiceOptions;
use super::role::Role;
use super::run::{Stops, tell_readiness};
use crate::drivers::{LedgerAt, LedgerMark};
use crate::outcome::Outcome;
use crate::wiring::{Hopeless, Tasks};
use anyhow::{Context, Result, anyhow};
use std::sync::Arc;
use windfall_auditor::{AuditHandle, AuditService, AuditsService};
use windfall_contract::Clock;
use windfall_edge::{AccessSource, Health, Metrics, Router};
use windfall_ledger::Auditor;

/// The number of transfers of a step in a ledger in a file: its writer waits meanwhile.
const FILE_ROWS_MAX: u32 = 10_000;
/// The number of unread transfers at most with which its balances are compared: they are read under its write lock.
const FILE_UNREAD_MAX: u32 = 50_000;

impl ServiceOptions {
    /// Whether a process of this role audits beside its services.
    pub fn has_auditor(&self, role: Role) -> bool {
        role == Role::Serve && self.auditor.enabled
    }

    /// Starts to audit the ledger that the options name. One that is away is audited when it is back.
    pub fn start_auditor(&self, clock: &Clock) -> Result<AuditHandle> {
        let mut pace = self.auditor.clone();
        if matches!(self.ledger, LedgerAt::File) {
            pace.increment_rows = pace.increment_rows.min(FILE_ROWS_MAX);
            pace.unread_rows_max = pace.unread_rows_max.min(FILE_UNREAD_MAX);
        }
        let options = self.clone();
        let open = move || options.open_auditor().map_err(|error| format!("{error:#}"));
        AuditService::start(pace, Box::new(open), clock.clone()).context("the auditor cannot be started")
    }

    /// Opens the ledger for auditing, under its mark where it has one. Blocks.
    fn open_auditor(&self) -> Result<Auditor> {
        // First: while the ledger is away this is tried in each round, and the mark would be read and told of each time.
        let auditor = self.ledger.open_auditor(&self.data)?;
        Ok(match self.open_mark()? {
            Some(LedgerMark { guard, .. }) => auditor.guarded(Arc::clone(&guard))?,
            None => auditor,
        })
    }
}

/// Lets the auditor's step end, off the runtime's threads.
pub async fn close(audit: AuditHandle) {
    if tokio::task::spawn_blocking(move || audit.close()).await.is_err() {
        tracing::error!("closing the auditor has panicked");
    }
}

/// The life of a process of the role `auditor`: it runs no live rules, and keeps nothing on its own disk.
pub async fn live(options: &ServiceOptions, stops: &mut Stops, clock: &Clock) -> Result<Outcome> {
    let role = Role::Auditor;
    let path = options.access_path();
    let access = AccessSource::follow(&path, clock.clone())
        .with_context(|| format!("callers cannot be read from {}", path.display()))?;
    let health = Health::new();
    let tasks = Tasks::new(health.clone());
    let measured = Metrics::new();
    let audit = options.start_auditor(clock)?;
    metrics::export(&measured, &Sources::of_process(&health, &tasks).with_audit(Some(audit.clone())));
    let router =
        Router::of_tenants([options.tenant.clone()]).audits(Arc::new(AuditsService::new(audit.clone())));
    let served = windfall_edge::Parts { router, access, metrics: measured, health: health.clone() };
    let mut serve = options.serve.clone();
    serve.stop_timeout_ms = serve.stop_timeout_ms.min(options.drain_ms);
    let server = windfall_edge::serve(&serve, served).await.context("the auditor cannot be served")?;
    health.ready(true);
    let address = server.address();
    let outcome = tokio::select! {
        why = stops.first() => {
            tracing::info!(%role, why, "stops");
            Ok(Outcome::Clean)
        }
        why = tasks.hopeless() => {
            tracing::error!(%role, %why, "the process cannot go on");
            match why {
                Hopeless::Failed(_) => Ok(Outcome::Failed),
                Hopeless::Refused(why) => Err(anyhow!(why)),
            }
        }
        never = tell_readiness(role, address, &health) => never,
    };
    let ending = async {
        server.stop().await;
        close(audit).await;
        outcome
    };
    tokio::select! {
        outcome = ending => outcome,
        _ = stops.first() => Ok(Outcome::Interrupted),
    }
}
