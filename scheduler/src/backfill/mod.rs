//! Backfill: an operator has the timers of a past time fired again, each id once.
//!
//! What is fired is what the far tier keeps of hours that were loaded ([`PastTasks`]), but for what was cancelled, moved
//! or changed since, and for what still waits in the slot store and fires by itself. A task is stored in the slot store
//! once more, under the id that it had first: from there on it is a due task as any other, with retries and dead letters.
//!
//! A run goes through the store shard by shard. Of a shard it holds the ids that wait, at most [`WAITING_MAX`], and one page
//! of tasks. It keeps below its own rate and below half of each target's, and waits while a target is away or behind: so
//! what is due now goes ahead.
//!
//! The slot store itself knows how far a backfill has come: its batches are those of a log of its own, which follows from
//! the range, the filters and the name ([`BackfillRequest`]), and each batch has the place of its last task as its number.
//! So the same backfill goes on where it stood, also when its process has died, or when it is asked for twice, and stores
//! nothing twice; and a store that has lost what was stored has lost that as well. Another name makes another backfill.

mod pace;
mod run;
mod waiting;

use crate::stats::{BackfillStats, DispatchStats};
use crate::tenants::Tenants;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use windfall_contract::Clock;
use windfall_contract::due::{PastTasks, SlotStore};

/// Ids that wait in one shard, beyond which a run gives up: they fire by themselves, and the run can be begun later.
pub const WAITING_MAX: usize = 1_000_000;
/// The rate of a run that names none.
pub const RATE_DEFAULT_PER_S: u64 = 1_000;
/// The highest rate of a run.
pub const RATE_MAX_PER_S: u64 = 1_000_000;
/// Runs that are remembered.
const RUNS_MAX: usize = 16;
/// The bytes of a name.
const NAME_MAX_BYTES: usize = 64;

/// What a run is to fire. Range, tenant, target and name say which backfill it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackfillRequest {
    /// What was due from this moment on, in Unix milliseconds.
    pub from_ms: u64,
    /// What was due before this moment.
    pub to_ms: u64,
    /// Only tasks of this tenant.
    pub tenant: Option<String>,
    /// Only tasks of targets of this name.
    pub target: Option<String>,
    /// A backfill of another name fires what this one has fired once more. May be empty.
    pub name: String,
    /// Tasks per second at most: 1 to [`RATE_MAX_PER_S`].
    pub rate_per_s: u64,
    /// Counts, and fires nothing.
    pub is_dry_run: bool,
}

/// A run was not begun, and nothing was fired.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackfillError {
    /// The request is wrong as it is.
    #[error("{0}")]
    Invalid(String),
    /// It is right, but cannot be done now.
    #[error("{0}")]
    NotNow(String),
}

/// How a run stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackfillState {
    /// It goes on; where it waits, it says for what.
    Running(Option<String>),
    /// All of it is done.
    Done,
    /// It was ended by an operator, or with its process. What it had stored fires.
    Cancelled,
    /// It cannot go on. What it had stored fires.
    Failed(String),
}

/// A run, as far as it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackfillStatus {
    /// Names it in the process that runs it.
    pub id: String,
    /// What was asked for.
    pub request: BackfillRequest,
    /// The name of the caller who began it.
    pub by: String,
    /// How it stands.
    pub state: BackfillState,
    /// Tasks that were stored to be fired again, or that a dry run would store, by tenant and target.
    pub fired: BTreeMap<(String, String), u64>,
    /// Tasks that were left out because they had been cancelled.
    pub cancelled: u64,
    /// Tasks that were left out because they had been moved or changed when they were near: what they are now lies in the
    /// slot store alone. Those of all tenants are counted.
    pub moved: u64,
    /// Tasks that were left out because they wait, and fire by themselves.
    pub waiting: u64,
    /// Tasks that were left out because an earlier run of the same backfill had come past them.
    pub before: u64,
    /// Tasks that were left out because nobody has their target.
    pub unknown: u64,
    /// Shards that are done, and all of them.
    pub shards: (u16, u16),
}

/// Begins and ends runs, one at a time. Clones share them.
#[derive(Clone)]
pub struct Backfills(Arc<Inner>);

struct Inner {
    parts: Parts,
    runs: Mutex<Runs>,
}

/// What runs are made of.
#[derive(Clone)]
pub struct BackfillParts {
    /// Where tasks are stored to be fired.
    pub store: Arc<dyn SlotStore>,
    /// Where the past is kept; `None` where there is no far tier.
    pub past: Option<Arc<dyn PastTasks>>,
    /// Who has which targets.
    pub tenants: Arc<Tenants>,
    /// What the dispatcher of this process has.
    pub fired: Arc<DispatchStats>,
    /// The clock that tells what lies in the past.
    pub clock: Clock,
}

/// The same, with what a run counts.
#[derive(Clone)]
struct Parts {
    given: BackfillParts,
    stats: Arc<BackfillStats>,
}

#[derive(Default)]
struct Runs {
    begun: u64,
    /// The last one last.
    last: VecDeque<Arc<Run>>,
    task: Option<JoinHandle<()>>,
}

/// A run, as its task and those who ask share it.
struct Run {
    status: Mutex<BackfillStatus>,
    cancel: watch::Sender<bool>,
}

impl Backfills {
    /// Runs over these parts.
    pub fn new(parts: BackfillParts) -> Self {
        let parts = Parts { given: parts, stats: Arc::default() };
        Self(Arc::new(Inner { parts, runs: Mutex::default() }))
    }

    /// Begins a run as a task of the current tokio runtime.
    ///
    /// # Errors
    /// [`BackfillError`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(&self, request: BackfillRequest, by: &str) -> Result<BackfillStatus, BackfillError> {
        let past = self.check(&request)?;
        let mut runs = self.0.runs.lock();
        if let Some(run) = runs.last.back().filter(|run| run.is_running()) {
            let id = run.status.lock().id.clone();
            return Err(BackfillError::NotNow(format!(
                "the run {id} goes on; wait for its end or cancel it"
            )));
        }
        runs.begun += 1;
        let clock = &self.0.parts.given.clock;
        let status = BackfillStatus {
            id: format!("{:x}-{}", clock.unix_ms(), runs.begun),
            request,
            by: by.to_owned(),
            state: BackfillState::Running(None),
            fired: BTreeMap::new(),
            cancelled: 0,
            moved: 0,
            waiting: 0,
            before: 0,
            unknown: 0,
            shards: (0, self.0.parts.given.store.shards()),
        };
        let run = Arc::new(Run { status: Mutex::new(status.clone()), cancel: watch::Sender::new(false) });
        runs.last.push_back(Arc::clone(&run));
        if runs.last.len() > RUNS_MAX {
            runs.last.pop_front();
        }
        run.log("a backfill was begun");
        runs.task = Some(tokio::spawn(run::carry_out(self.0.parts.clone(), past, run)));
        Ok(status)
    }

    /// A run of this process, if it is one of the last ones.
    pub fn get(&self, id: &str) -> Option<BackfillStatus> {
        self.find(id).map(|run| run.status.lock().clone())
    }

    /// The last run of this process.
    pub fn last(&self) -> Option<BackfillStatus> {
        let last = self.0.runs.lock().last.back().cloned();
        last.map(|run| run.status.lock().clone())
    }

    /// Ends a run: it stores no more tasks. What it had stored fires. Returns once it has ended.
    pub async fn cancel(&self, id: &str) -> Option<BackfillStatus> {
        let run = self.find(id)?;
        run.cancel.send_replace(true);
        // A run that does not go on is ended by nobody.
        while run.is_running() {
            tokio::time::sleep(run::CANCEL_LOOK).await;
        }
        let status = run.status.lock().clone();
        Some(status)
    }

    /// Ends the run that goes on, with its process.
    pub async fn close(&self) {
        let (last, task) = {
            let mut runs = self.0.runs.lock();
            (runs.last.back().cloned(), runs.task.take())
        };
        if let Some(run) = last {
            run.cancel.send_replace(true);
        }
        if let Some(task) = task
            && let Err(error) = task.await
        {
            tracing::error!(%error, "a backfill ended badly");
        }
    }

    /// What was done.
    pub fn stats(&self) -> Arc<BackfillStats> {
        Arc::clone(&self.0.parts.stats)
    }

    fn find(&self, id: &str) -> Option<Arc<Run>> {
        self.0.runs.lock().last.iter().find(|run| run.status.lock().id == id).cloned()
    }

    fn check(&self, request: &BackfillRequest) -> Result<Arc<dyn PastTasks>, BackfillError> {
        let BackfillParts { past, tenants, clock, .. } = &self.0.parts.given;
        let invalid = |what: String| Err(BackfillError::Invalid(what));
        let BackfillRequest { from_ms, to_ms, .. } = *request;
        if from_ms >= to_ms {
            return invalid("the range is empty: its beginning must be before its end".into());
        }
        if to_ms > clock.unix_ms() {
            return invalid("the range ends in the future; what is due then fires by itself".into());
        }
        if !(1..=RATE_MAX_PER_S).contains(&request.rate_per_s) {
            let rate = request.rate_per_s;
            return invalid(format!("the rate is {rate}, but only 1 to {RATE_MAX_PER_S} is allowed"));
        }
        if request.name.len() > NAME_MAX_BYTES {
            let bytes = request.name.len();
            return invalid(format!("the name has {bytes} bytes, but only {NAME_MAX_BYTES} are allowed"));
        }
        if let Some(tenant) = request.tenant.as_ref().filter(|tenant| !tenants.0.contains_key(*tenant)) {
            return invalid(format!("there is no tenant `{tenant}`"));
        }
        let has = |target: &String| tenants.0.values().any(|rules| rules.targets.contains_key(target));
        if let Some(target) = request.target.as_ref().filter(|target| !has(target)) {
            return invalid(format!("no tenant has a target `{target}`"));
        }
        let Some(past) = past else {
            let what = "this process keeps no past timers: it has no far tier (`[scheduler.far]`)";
            return Err(BackfillError::NotNow(what.into()));
        };
        let span = past.span().map_err(|error| BackfillError::NotNow(error.to_string()))?;
        if from_ms < span.from_ms {
            let what = "the range begins before what is kept: timers that were due before";
            return Err(BackfillError::NotNow(format!(
                "{what} {} (Unix milliseconds) are not kept",
                span.from_ms
            )));
        }
        if to_ms > span.to_ms {
            let what = "the range is not loaded as a whole; what is due from";
            let rest = "(Unix milliseconds) on fires when it is loaded";
            return Err(BackfillError::NotNow(format!("{what} {} {rest}", span.to_ms)));
        }
        Ok(Arc::clone(past))
    }
}

impl Run {
    fn is_running(&self) -> bool {
        matches!(self.status.lock().state, BackfillState::Running(_))
    }

    /// A line for whoever asks later who did what.
    fn log(&self, what: &str) {
        let status = self.status.lock().clone();
        let BackfillRequest { from_ms, to_ms, tenant, target, name, rate_per_s, is_dry_run } = status.request;
        let fired: u64 = status.fired.values().sum();
        tracing::info!(
            id = status.id, by = status.by, from_ms, to_ms, ?tenant, ?target, name, rate_per_s, is_dry_run, fired,
            cancelled = status.cancelled, moved = status.moved, waiting = status.waiting, before = status.before,
            unknown = status.unknown, state = ?status.state, "{what}"
        );
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(task) = self.runs.get_mut().task.take() {
            task.abort();
        }
    }
}

impl fmt::Debug for Backfills {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backfills").field("begun", &self.0.runs.lock().begun).finish_non_exhaustive()
    }
}
