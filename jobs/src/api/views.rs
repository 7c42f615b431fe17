//! What callers see, and why a call fails.

use crate::definition::{Definition, InvalidName, JobName, JobNumber, WrongSpec};
use crate::runs::{JobState, Run, RunNumber};
use windfall_contract::entries::EntryError;
use windfall_scheduler::AddError;

/// A job as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobView {
    /// Its number.
    pub number: JobNumber,
    /// What it does, and who changed it last.
    pub definition: Definition,
    /// The occurrence that comes next, and the last one that was decided.
    pub state: JobState,
    /// Children that were not there when it was put: they are started only if somebody makes them. Empty where it was not put now.
    pub missing_children: Vec<JobName>,
}

/// A run as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunView {
    /// Its number.
    pub number: RunNumber,
    /// What it is.
    pub run: Run,
}

/// An executor that is registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorView {
    /// Its app.
    pub app: String,
    /// Its address.
    pub address: String,
    /// When it came first, in Unix milliseconds.
    pub since_ms: u64,
    /// When it is gone without another heartbeat, in Unix milliseconds by the store's clock.
    pub until_ms: Option<u64>,
}

/// A call about jobs failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobsError {
    /// There is no such job.
    #[error("the tenant has no job `{0}`")]
    UnknownJob(String),
    /// There is no such run, or it is forgotten.
    #[error("there is no run {0}, or it is forgotten")]
    UnknownRun(u64),
    /// The job is of another version than the caller expects. Nothing was changed: read it, and decide anew.
    #[error("the job is in version {is}, not in version {expected}")]
    OtherVersion {
        /// What it is.
        is: u64,
        /// What the caller expected; 0: no job of this name.
        expected: u64,
    },
    /// The job cannot be used.
    #[error(transparent)]
    WrongSpec(#[from] WrongSpec),
    /// The name cannot be used.
    #[error(transparent)]
    WrongName(#[from] InvalidName),
    /// Another field cannot be used.
    #[error("`{field}`: {what}")]
    WrongField {
        /// The field.
        field: &'static str,
        /// What it must be.
        what: String,
    },
    /// No occurrence of the schedule lies ahead.
    #[error("no occurrence of the schedule lies ahead: the job would never run")]
    NeverDue,
    /// The tenant has as many jobs as it may.
    #[error(
        "the tenant has as many jobs as it may, {jobs_max}: remove some, or have an operator raise `jobs.runs.jobs_max`"
    )]
    TooManyJobs {
        /// How many it may have.
        jobs_max: u64,
    },
    /// Nothing can be asked of an executor: the run was sent to none.
    #[error("the run was sent to no executor")]
    NoExecutor,
    /// The run's job was removed.
    #[error("the run's job was removed: it cannot be run again")]
    JobRemoved,
    /// The run is not over.
    #[error("the run is not over")]
    NotOver,
    /// The executor does not answer.
    #[error("the executor {address}: {why}")]
    Executor {
        /// Its address.
        address: String,
        /// Why there is no answer.
        why: String,
    },
    /// The executor has answered that it does not do it, as one that keeps no logs: the same call once more is of no use.
    #[error("the executor {address} refuses: {why}")]
    Refused {
        /// Its address.
        address: String,
        /// What it said.
        why: String,
    },
    /// The store did not answer: the change may be made or not. It may be repeated.
    #[error(transparent)]
    Store(#[from] EntryError),
    /// The job is kept, but its next occurrence could not be added to the scheduler: it is found within seconds after its time
    /// by a look for overdue ones. Repeat the call, so that it is not late.
    #[error("the job is kept, but its next occurrence is not scheduled yet: {0}")]
    NotScheduled(AddError),
    /// Others change it again and again.
    #[error("the job is being changed by others; try again")]
    Contended,
}
