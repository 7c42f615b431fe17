//! Jobs on stores in memory, with executors that do as they are told, on the clock of the test's runtime: it stands while
//! anybody has something to do, so that nothing depends on the speed of the machine.

mod entries;
mod slots;
mod targets;

pub(crate) use entries::{Call, FakeEntries, Fault};
pub(crate) use slots::FakeSlots;
pub(crate) use targets::FakeTarget;

use crate::book::{Kept, run_key};
use crate::core::{Core, OCCURRENCES, tenant_of};
use crate::definition::{ChangeNote, JobName, JobNumber, JobSpec, Priority};
use crate::executors::{AskError, ExecutorCalls, LogCall, LogLines, RunCall};
use crate::occurrences::Occurrence;
use crate::runs::{Reported, Run, RunNumber, Sent};
use crate::{Jobs, JobsOptions, JobsParts};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use windfall_contract::Clock;
use windfall_contract::due::{Fired, Firing, Shard, SlotMinute, SlotStore, TaskId};
use windfall_contract::entries::EntryStore;
use windfall_scheduler::{Tenants, Timers, TimersOptions};

pub(crate) const START_MS: u64 = 1_800_000_000_000;
pub(crate) const DAILY: &str = r#"{"fixed_rate": {"every_ms": 86400000}}"#;
pub(crate) const TO_APP: &str = r#"{"executor": {"app": "app", "handler": "h"}}"#;

/// What an executor does: it answers after so many milliseconds.
type Answers = Arc<dyn Fn(&str, &RunCall) -> (u64, Sent) + Send + Sync>;

/// What is wrong with an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Nobody listens at its address.
    Dead,
    /// It takes calls, and never answers.
    Hung,
    /// A run of each job goes there.
    Busy,
}

/// The time-out of calls to an executor.
const CALL_TIMEOUT_MS: u64 = 2_000;

pub(crate) struct FakeExecutors {
    pub calls: Mutex<Vec<(String, RunCall)>>,
    pub answers: Mutex<Answers>,
    pub beat_ms: Mutex<u64>,
    /// Who was asked to end a run: the address, the job and the run.
    pub kills: Mutex<Vec<(String, u64, u64)>>,
    /// Whose logs were asked for.
    pub logs: Mutex<Vec<(String, LogCall)>>,
    /// The executors that are not well, by address.
    pub troubles: Mutex<BTreeMap<String, Trouble>>,
}

impl FakeExecutors {
    fn trouble(&self, address: &str) -> Option<Trouble> {
        self.troubles.lock().get(address).copied()
    }
}

#[async_trait]
impl ExecutorCalls for FakeExecutors {
    async fn run(&self, address: &str, call: RunCall) -> Sent {
        let answers = Arc::clone(&self.answers.lock());
        let (after_ms, sent) = match self.trouble(address) {
            Some(Trouble::Dead) => (0, Sent::NotSent("nobody listens".into())),
            Some(Trouble::Hung) => (CALL_TIMEOUT_MS, Sent::Unknown("no answer".into())),
            Some(Trouble::Busy) | None => answers(address, &call),
        };
        self.calls.lock().push((address.to_owned(), call));
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        sent
    }

    async fn is_alive(&self, address: &str) -> bool {
        let beat_ms = *self.beat_ms.lock();
        let (after_ms, is_alive) = match self.trouble(address) {
            Some(Trouble::Dead) => (0, false),
            Some(Trouble::Hung) => (CALL_TIMEOUT_MS, false),
            Some(Trouble::Busy) | None => (beat_ms, true),
        };
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        is_alive
    }

    async fn is_idle(&self, address: &str, _: u64) -> bool {
        self.is_alive(address).await && self.trouble(address) != Some(Trouble::Busy)
    }

    async fn kill(&self, address: &str, job: u64, run: u64) -> Result<(), AskError> {
        self.kills.lock().push((address.to_owned(), job, run));
        Ok(())
    }

    /// One line for each that is asked for.
    async fn log(&self, address: &str, call: LogCall) -> Result<LogLines, AskError> {
        if self.trouble(address).is_some() {
            return Err(AskError::NoAnswer("nobody listens".into()));
        }
        self.logs.lock().push((address.to_owned(), call));
        let text = format!("line {}\n", call.from_line);
        Ok(LogLines { text, next_line: call.from_line + 1, is_end: false })
    }
}

/// A process with jobs.
pub(crate) struct Fleet {
    pub clock: Clock,
    pub store: Arc<FakeEntries>,
    pub slots: Arc<FakeSlots>,
    pub executors: Arc<FakeExecutors>,
    pub target: Arc<FakeTarget>,
    pub jobs: Jobs,
}

impl Fleet {
    pub async fn start(shards: u16, options: JobsOptions) -> Self {
        let start = Instant::now();
        let ms = move || u64::try_from(start.elapsed().as_millis()).unwrap();
        let ns = move || u64::try_from(start.elapsed().as_nanos()).unwrap();
        let clock = Clock::from_sources(ns, move || START_MS + ms());
        let store = FakeEntries::new(clock.clone(), shards);
        let slots = Arc::new(FakeSlots::default());
        let done: Answers = Arc::new(|_, _| (0, Sent::Finished(Reported::Succeeded(String::new()))));
        let executors = Arc::new(FakeExecutors {
            calls: Mutex::default(),
            answers: Mutex::new(done),
            beat_ms: Mutex::new(0),
            kills: Mutex::default(),
            logs: Mutex::default(),
            troubles: Mutex::default(),
        });
        let target = Arc::new(FakeTarget::default());
        let jobs = start_jobs(&store, &slots, &executors, &target, &clock, options);
        let fleet = Self { clock, store, slots, executors, target, jobs };
        fleet.register("app", "x").await;
        fleet
    }

    /// Another process on the same stores, in place of this one.
    pub async fn restart(&mut self, options: JobsOptions) {
        assert!(self.jobs.close(Duration::from_secs(600)).await);
        self.jobs = start_jobs(&self.store, &self.slots, &self.executors, &self.target, &self.clock, options);
        sleep_ms(2_000).await;
    }

    pub async fn register(&self, app: &str, address: &str) {
        self.jobs.register("t", app, address).await.unwrap();
        sleep_ms(2_000).await;
    }

    pub fn core(&self) -> &Arc<Core> {
        &self.jobs.0.core
    }

    pub async fn put(&self, job: &str, schedule: &str, destination: &str, more: &str) -> JobNumber {
        let note = ChangeNote { at_ms: 1, by: "test".into(), why: String::new() };
        let spec = spec(schedule, destination, more);
        self.jobs.put("t", &name(job), &spec, None, note).await.unwrap().number
    }

    pub async fn run(&self, job: &str) -> RunNumber {
        self.jobs.run("t", &name(job), None).await.unwrap()
    }

    pub fn answer(&self, answer: impl Fn(&str, &RunCall) -> (u64, Sent) + Send + Sync + 'static) {
        *self.executors.answers.lock() = Arc::new(answer);
    }

    pub fn calls(&self) -> Vec<RunCall> {
        self.executors.calls.lock().iter().map(|(_, call)| call.clone()).collect()
    }

    pub fn calls_of(&self, run: RunNumber) -> usize {
        self.calls().iter().filter(|call| call.run == run.0).count()
    }

    pub fn shard_of(&self, number: u64) -> Shard {
        self.core().book.shard_of(number).unwrap()
    }

    /// A run as it is stored, whatever the store does to calls.
    pub fn stored(&self, run: RunNumber) -> Option<(Run, u64)> {
        let entry = self.store.entry(self.shard_of(run.0), &run_key(run))?;
        let Kept { is, .. } = crate::book::kept::<Run>(&entry).unwrap();
        Some((is, entry.wake_ms.unwrap()))
    }

    /// A name of a job that lies in this shard.
    pub fn name_in(&self, shard: u16) -> String {
        let is_there =
            |at: &usize| self.core().book.shard_of_name("t", &name(&format!("job-{at}"))) == Shard(shard);
        format!("job-{}", (0..1_000).find(is_there).unwrap())
    }

    /// Fires occurrences as the scheduler does.
    pub async fn fire(&self, occurrences: &[Occurrence]) -> Vec<Fired> {
        let tenant = tenant_of(Priority::Normal);
        let id = TaskId { shard: Shard(0), slot: SlotMinute(0), index: 0 };
        let firing = |occurrence: &Occurrence| Firing {
            id,
            tenant: tenant.into(),
            key: occurrence.key(),
            due_ms: occurrence.due_ms,
            attempt: 1,
            payload: occurrence.encode(),
        };
        let target = self.jobs.targets()[&(tenant.to_owned(), OCCURRENCES.to_owned())].clone();
        target.fire(occurrences.iter().map(firing).collect()).await
    }
}

fn start_jobs(
    store: &Arc<FakeEntries>,
    slots: &Arc<FakeSlots>,
    executors: &Arc<FakeExecutors>,
    target: &Arc<FakeTarget>,
    clock: &Clock,
    options: JobsOptions,
) -> Jobs {
    let slots = Arc::clone(slots) as Arc<dyn SlotStore>;
    let tenants = Arc::new(Tenants(Jobs::tenants()));
    // No executor of a test says again that it lives, unless the test is about that.
    let ttl_ms = options.executor_ttl_ms;
    let is_default = ttl_ms == JobsOptions::default().executor_ttl_ms;
    let options = JobsOptions { executor_ttl_ms: if is_default { 1 << 40 } else { ttl_ms }, ..options };
    let parts = JobsParts {
        store: Arc::clone(store) as Arc<dyn EntryStore>,
        timers: Timers::start(TimersOptions::default(), tenants, slots, clock.clone()),
        calls: Arc::clone(executors) as Arc<dyn ExecutorCalls>,
        targets: target.named(),
        clock: clock.clone(),
    };
    Jobs::start(options, parts)
}

pub(crate) fn name(name: &str) -> JobName {
    JobName::new(name).unwrap()
}

pub(crate) fn spec(schedule: &str, destination: &str, more: &str) -> JobSpec {
    let json = format!(r#"{{"schedule": {schedule}, "destination": {destination}{more}}}"#);
    serde_json::from_str(&json).unwrap()
}

pub(crate) async fn sleep_ms(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Waits until something is true, by the clock of the test.
pub(crate) async fn eventually(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(120), "it did not come to pass");
        sleep_ms(10).await;
    }
}
