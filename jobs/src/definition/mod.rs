//! What a job is: its name, what it does and when, and how it changed.

mod name;
mod spec;

pub use name::{InvalidName, JobName, NAME_MAX_BYTES};
pub use spec::{Block, Delivery, Destination, JobSpec, PARAMS_MAX_BYTES, Priority, Retries, WrongSpec};

use serde::{Deserialize, Serialize};

/// The number of a job: it says the shard in which all of the job lies. Numbers are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobNumber(pub u64);

/// A job as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// Whose it is.
    pub tenant: String,
    /// Its name among the tenant's jobs.
    pub name: JobName,
    /// 1 at first, and one more with each change, also with a pause.
    pub version: u64,
    /// Who made this version, when, and why.
    pub change: ChangeNote,
    /// Whether it starts no scheduled runs.
    pub is_paused: bool,
    /// What it does.
    pub spec: JobSpec,
}

/// Who changed a job, and why.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ChangeNote {
    /// When, in Unix milliseconds by the clock of the process that changed it.
    pub at_ms: u64,
    /// Who, as the caller was authenticated.
    pub by: String,
    /// Why, in the caller's words.
    #[serde(default)]
    pub why: String,
}
