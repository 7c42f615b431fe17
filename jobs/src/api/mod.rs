//! What callers do with jobs.

mod define;
mod executors;
mod runs;
mod views;

pub use views::{ExecutorView, JobView, JobsError, RunView};

use crate::book::{Book, Definitions};
use crate::core::{Core, OCCURRENCES, tenant_of};
use crate::definition::Priority;
use crate::executors::{ExecutorCalls, ExecutorTable};
use crate::heartbeats::Heartbeats;
use crate::known_states::KnownStates;
use crate::leasing::LeaseNumbers;
use crate::occurrences::Occurrences;
use crate::options::JobsOptions;
use crate::outbox::Outbox;
use crate::quotas::Quotas;
use crate::retention::Retention;
use crate::routing::{Router, RouterOptions};
use crate::stats::JobsStats;
use crate::store_clock::StoreClocks;
use crate::writes::Writes;
use crate::{presence, sending, tending};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use windfall_contract::Clock;
use windfall_contract::due::Target;
use windfall_contract::entries::EntryStore;
use windfall_scheduler::{Class, Retry, TargetRules, TenantRules, Timers};

/// Versions of a job that are kept besides the one that is there.
pub(crate) const VERSIONS_MAX: u64 = 90;

/// What jobs are made of.
pub struct JobsParts {
    /// Where jobs, runs and executors are kept.
    pub store: Arc<dyn EntryStore>,
    /// What adds due tasks; its tenants must have those of [`Jobs::tenants`].
    pub timers: Timers,
    /// What speaks with executors.
    pub calls: Arc<dyn ExecutorCalls>,
    /// The targets of the tenants, by tenant and name.
    pub targets: BTreeMap<(String, String), Arc<dyn Target>>,
    /// The clock.
    pub clock: Clock,
}

/// Keeps jobs, starts their runs, and follows them to their ends. Clones share one.
#[derive(Clone)]
pub struct Jobs(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub core: Arc<Core>,
    closing: CancellationToken,
    tasks: Mutex<Option<Tasks>>,
}

struct Tasks {
    sending: JoinHandle<()>,
    tending: JoinHandle<()>,
    reading: JoinHandle<()>,
}

impl Jobs {
    /// Starts as tasks of the current tokio runtime. Never waits and never fails.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(options: JobsOptions, parts: JobsParts) -> Self {
        let JobsParts { store, timers, calls, targets, clock } = parts;
        let (outbox, tickets) = Outbox::new();
        let shards = store.shards();
        let core = Arc::new(Core {
            book: Book::new(store, Retention::new(clock.clone(), usize::from(shards), &options)),
            definitions: Definitions::default(),
            known_states: KnownStates::default(),
            timers,
            store_clocks: StoreClocks::new(clock.clone(), usize::from(shards)),
            writes: Writes::new(clock.clone(), usize::from(shards)),
            leases: LeaseNumbers::new(seed()),
            heartbeats: Heartbeats::new(clock.clone(), usize::from(shards), &options),
            quotas: Quotas::new(clock.clone(), options.jobs_max),
            clock,
            options,
            stats: Arc::new(JobsStats::default()),
            executors: ExecutorTable::default(),
            router: Router::new(RouterOptions::default(), seed()),
            calls,
            targets,
            outbox,
        });
        let closing = CancellationToken::new();
        let tasks = Tasks {
            sending: tokio::spawn(sending::run(Arc::clone(&core), tickets, closing.clone())),
            tending: tokio::spawn(tending::run(Arc::clone(&core))),
            reading: tokio::spawn(presence::read_executors(Arc::clone(&core))),
        };
        Self(Arc::new(Inner { core, closing, tasks: Mutex::new(Some(tasks)) }))
    }

    /// The tenants under which the scheduler keeps the due tasks of jobs, to be added to those that it knows.
    pub fn tenants() -> BTreeMap<String, TenantRules> {
        let of = |priority, class| {
            // A job's occurrence is never given up: what fails is the store, and attempts that nothing takes do not count.
            let retry = Retry::Exponential { attempts_max: 1_000, first_ms: 200, max_ms: 5_000 };
            let rules = TargetRules { retry, concurrency: 16, ..TargetRules::default() };
            let targets = BTreeMap::from([(OCCURRENCES.to_owned(), rules)]);
            let rules = TenantRules { waiting_max: u64::MAX, adds_per_s: 100_000_000, class, targets };
            (tenant_of(priority).to_owned(), rules)
        };
        BTreeMap::from([
            of(Priority::Urgent, Class::Urgent),
            of(Priority::Normal, Class::Normal),
            of(Priority::Bulk, Class::Bulk),
        ])
    }

    /// The scheduler's targets for the due tasks of jobs, by tenant and name.
    pub fn targets(&self) -> BTreeMap<(String, String), Arc<dyn Target>> {
        let target: Arc<dyn Target> = Arc::new(Occurrences(Arc::clone(&self.0.core)));
        let of = |priority| ((tenant_of(priority).to_owned(), OCCURRENCES.to_owned()), Arc::clone(&target));
        [Priority::Urgent, Priority::Normal, Priority::Bulk].map(of).into()
    }

    /// Whether the tenant has a target of this name in this process.
    pub fn has_target(&self, tenant: &str, name: &str) -> bool {
        self.0.core.targets.contains_key(&(tenant.to_owned(), name.to_owned()))
    }

    /// What is counted.
    pub fn stats(&self) -> Arc<JobsStats> {
        Arc::clone(&self.0.core.stats)
    }

    /// Ends: runs that are being sent are sent, and the answers are written. Close the scheduler's dispatcher before. What is
    /// not done by the deadline is left as if the process had died. Whether all was done.
    pub async fn close(&self, deadline: Duration) -> bool {
        let Some(Tasks { mut sending, tending, reading }) = self.0.tasks.lock().take() else { return true };
        tending.abort();
        reading.abort();
        self.0.closing.cancel();
        let is_done = tokio::time::timeout(deadline, &mut sending).await.is_ok();
        sending.abort();
        is_done
    }
}

/// Instances choose differently, so that together they spread runs.
fn seed() -> u64 {
    getrandom::u64().unwrap_or_default()
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(tasks) = self.tasks.get_mut().take() {
            [tasks.sending, tasks.tending, tasks.reading].iter().for_each(JoinHandle::abort);
        }
    }
}
