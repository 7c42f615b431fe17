//! The rows of jobs: the scheduler with jobs in this process, its timers and its entries on a private Redis (append-only
//! file, a sync each second) or in a folder, and executors that end each run at once.

pub mod cron;
mod executors;
pub mod one_off;
pub mod trigger;

use anyhow::{Result, bail, ensure};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use windfall_contract::Clock;
use windfall_contract::due::SlotStore;
use windfall_contract::entries::EntryStore;
use windfall_jobs::definition::{ChangeNote, JobName, JobSpec};
use windfall_jobs::executors::ExecutorCalls;
use windfall_jobs::store::embedded::{EmbeddedEntries, EmbeddedEntriesOptions};
use windfall_jobs::store::redis::{RedisEntries, RedisEntriesOptions};
use windfall_jobs::{Jobs, JobsOptions, JobsParts};
use windfall_scheduler::{DispatchOptions, Dispatcher, Tenants, Timers, TimersOptions};
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};
use windfall_slots::redis::{RedisSlots, RedisSlotsOptions};

const TENANT: &str = "bench";
const APP: &str = "app";
/// Callers that make jobs at a time, and jobs of their calls.
const CALLERS: u64 = 8;
const JOBS_A_CALL: u64 = 1_000;
const EVERY_SECOND: &str = r#"{"cron": {"expression": "* * * * * ?", "zone": "Asia/Shanghai"}}"#;
const PATIENCE: Duration = Duration::from_secs(60);

/// Where timers and jobs are kept.
struct Stores {
    slots: Arc<dyn SlotStore>,
    entries: Arc<dyn EntryStore>,
}

impl Stores {
    async fn on_redis(url: &str) -> Result<Self> {
        let slots = RedisSlotsOptions { call_timeout_ms: 30_000, ..RedisSlotsOptions::at(url) };
        let entries = RedisEntriesOptions { call_timeout_ms: 30_000, ..RedisEntriesOptions::at(url) };
        let entries = RedisEntries::open(entries.for_jobs()).await?;
        Ok(Self { slots: RedisSlots::open(slots).await?, entries })
    }

    fn in_folder(folder: &Path) -> Result<Self> {
        let clock = Clock::system();
        tokio::task::block_in_place(|| {
            let slots = folder.join("timers");
            let slots = EmbeddedSlots::open(&slots, &EmbeddedSlotsOptions::default(), clock.clone())?;
            let entries = folder.join("jobs");
            let entries = EmbeddedEntries::open(&entries, &EmbeddedEntriesOptions::default(), clock.clone())?;
            Ok(Self { slots, entries })
        })
    }
}

/// What a process has that runs jobs, with the options that are the defaults.
struct Instance {
    jobs: Jobs,
    dispatcher: Dispatcher,
    timers: Timers,
}

impl Instance {
    fn start(stores: &Stores, name: &str, calls: Arc<dyn ExecutorCalls>) -> Self {
        let (tenants, clock) = (Arc::new(Tenants(Jobs::tenants())), Clock::system());
        let slots = || Arc::clone(&stores.slots);
        let timers = Timers::start(TimersOptions::default(), Arc::clone(&tenants), slots(), clock.clone());
        let parts = JobsParts {
            store: Arc::clone(&stores.entries),
            timers: timers.clone(),
            calls,
            targets: BTreeMap::new(),
            clock: clock.clone(),
        };
        let jobs = Jobs::start(JobsOptions::default(), parts);
        let options = DispatchOptions::default();
        let dispatcher = Dispatcher::start(options, tenants, slots(), jobs.targets(), name.to_owned(), clock);
        Self { jobs, dispatcher, timers }
    }

    /// Waits until an executor is registered, and this process has read of it.
    async fn has_executor(&self) -> Result<()> {
        let began = Instant::now();
        while self.jobs.stats().executors.get() == 0 {
            ensure!(began.elapsed() < PATIENCE, "no executor is registered after {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    async fn stop(self) {
        self.dispatcher.drain(PATIENCE).await;
        self.jobs.close(PATIENCE).await;
        self.timers.close().await;
    }
}

fn note() -> ChangeNote {
    ChangeNote { at_ms: 1, by: "bench".into(), why: "to measure".into() }
}

/// The text of a job's specification.
fn spec_text(schedule: &str) -> String {
    let destination =
        format!(r#"{{"executor": {{"app": "{APP}", "handler": "count", "routing": "round"}}}}"#);
    format!(r#"{{"schedule": {schedule}, "destination": {destination}, "params": "greetings"}}"#)
}

/// Makes jobs by [`CALLERS`] callers at a time. How long that took.
async fn put_all(
    jobs: &Jobs,
    count: u64,
    name: &'static str,
    schedule: impl Fn(u64) -> String + Copy + Send + 'static,
) -> Result<Duration> {
    let began = Instant::now();
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let jobs = jobs.clone();
        callers.spawn(async move {
            for first in (caller * JOBS_A_CALL..count).step_by(usize::try_from(CALLERS * JOBS_A_CALL)?) {
                let job = |number| -> Result<(JobName, JobSpec)> {
                    let spec = serde_json::from_str(&spec_text(&schedule(number)))?;
                    Ok((JobName::new(&format!("{name}-{number}"))?, spec))
                };
                let new: Result<Vec<_>> = (first..count.min(first + JOBS_A_CALL)).map(job).collect();
                let made = jobs.put_new(TENANT, &new?, &note()).await;
                if let Some(Err(error)) = made.into_iter().find(Result::is_err) {
                    bail!("a job was not made: {error}");
                }
            }
            Ok(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    Ok(began.elapsed())
}
