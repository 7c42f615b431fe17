//! Cron and one-off jobs on the scheduler, routed to executors.
//!
//! For: [`Jobs`] keeps the jobs of tenants with their versions, starts a run for each occurrence, sends it to an executor or
//! to one of the tenant's targets, and follows it until it is reported, tried again, or given up.
//!
//! Not for: what fires due tasks (`windfall-scheduler`), and who may call.
//!
//! - [`schedule`]: when a job is due. [`routing`]: which executor gets a run. Both are pure.
//! - [`definition`]: what a job is. [`runs`]: the rules by which an occurrence becomes a run, and a run goes on. Pure, too.
//! - [`executors`]: what executors are asked; [`xxl`]: the HTTP protocol of XXL-JOB's executors.
//! - [`store`]: where all of it is kept: entries by shard, which change in groups
//!   ([`contract`](windfall_contract::entries)).
//!
//! **The way of an occurrence.** The due task of a job's next occurrence waits in the scheduler's slot store. When it fires, one
//! change in the store of entries moves the job's state on and makes the run, with a lease for the process that made it; the
//! due task of the occurrence after it is added; and only then the scheduler is told that this one is done. The run is
//! sent within its lease, and how that went is written. Each process looks at each shard a few times a second for runs whose
//! lease, time-out or wait is over, and for jobs whose next occurrence is overdue. No lock is held over any of it: changes
//! say what they expect, and whoever comes second finds that out and reads again.
//!
//! ```
//! # use async_trait::async_trait;
//! # use std::{collections::BTreeMap, sync::Arc, time::Duration};
//! # use windfall_contract::Clock;
//! # use windfall_contract::due::SlotStore;
//! # use windfall_contract::entries::EntryStore;
//! # use windfall_jobs::store::embedded::{EmbeddedEntries, EmbeddedEntriesOptions};
//! # use windfall_scheduler::{DispatchOptions, Dispatcher, Tenants, Timers, TimersOptions};
//! # use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};
//! use windfall_jobs::definition::{ChangeNote, JobName, JobSpec};
//! use windfall_jobs::executors::{AskError, ExecutorCalls, LogCall, LogLines, RunCall};
//! use windfall_jobs::runs::{Reported, Sent};
//! use windfall_jobs::{Jobs, JobsOptions, JobsParts};
//!
//! /// An executor inside the process, which is done at once.
//! struct Here;
//!
//! #[async_trait]
//! impl ExecutorCalls for Here {
//!     async fn run(&self, _address: &str, call: RunCall) -> Sent {
//!         println!("{} {}", call.handler, call.params);
//!         Sent::Finished(Reported::Succeeded(String::new()))
//!     }
//! #   async fn is_alive(&self, _address: &str) -> bool { true }
//! #   async fn is_idle(&self, _address: &str, _job: u64) -> bool { true }
//! #   async fn kill(&self, _: &str, _: u64, _: u64) -> Result<(), AskError> { Ok(()) }
//! #   async fn log(&self, _: &str, _: LogCall) -> Result<LogLines, AskError> { Ok(LogLines::default()) }
//!     // … and whether it is alive and idle, how it ends a run, and what it has logged.
//! }
//!
//! # let dir = tempfile::tempdir()?;
//! # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! # let clock = Clock::system();
//! # let slots: Arc<dyn SlotStore> =
//! #     EmbeddedSlots::open(&dir.path().join("slots"), &EmbeddedSlotsOptions::default(), clock.clone())?;
//! # let store: Arc<dyn EntryStore> =
//! #     EmbeddedEntries::open(&dir.path().join("jobs"), &EmbeddedEntriesOptions::default(), clock.clone())?;
//! let tenants = Arc::new(Tenants(Jobs::tenants()));
//! let timers = Timers::start(TimersOptions::default(), tenants.clone(), slots.clone(), clock.clone());
//! let parts = JobsParts { store, timers, calls: Arc::new(Here), targets: BTreeMap::new(), clock: clock.clone() };
//! let jobs = Jobs::start(JobsOptions::default(), parts);
//! let options = DispatchOptions::default();
//! let dispatcher = Dispatcher::start(options, tenants, slots, jobs.targets(), "instance-1".into(), clock);
//!
//! jobs.register("shop", "mailer", "here").await?;
//! let spec: JobSpec = serde_json::from_str(
//!     r#"{"schedule": {"cron": {"expression": "* * * * * ?", "zone": "Asia/Shanghai"}},
//!         "destination": {"executor": {"app": "mailer", "handler": "send", "routing": "round"}},
//!         "params": "greetings"}"#,
//! )?;
//! jobs.put("shop", &JobName::new("greet")?, &spec, None, ChangeNote::default()).await?;
//! while jobs.stats().succeeded.get() == 0 {
//!     tokio::time::sleep(Duration::from_millis(10)).await;
//! }
//! dispatcher.drain(Duration::from_secs(5)).await;
//! jobs.close(Duration::from_secs(5)).await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod api;
mod book;
mod calling;
mod children;
mod core;
pub mod definition;
mod due_clock;
pub mod executors;
mod forgetting;
mod heartbeats;
mod known_states;
mod leasing;
mod occurrences;
mod options;
mod outbox;
mod presence;
mod quotas;
mod retention;
pub mod routing;
#[cfg(feature = "rpc")]
pub mod rpc;
pub mod runs;
pub mod schedule;
mod sending;
mod settling;
mod starting;
mod stats;
mod steps;
pub mod store;
mod store_clock;
mod tending;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod transition;
mod waiting;
mod writes;
pub mod xxl;

pub use api::{ExecutorView, JobView, Jobs, JobsError, JobsParts, RunView};
pub use options::{JobsOptions, OutOfRange, STORE_TIMEOUT_MAX_MS};
pub use stats::{Count, JobsStats, LATENESS_BUCKETS_MS};
