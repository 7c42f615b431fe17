//! What executors are asked, whatever protocol they speak.

use crate::definition::Block;
use crate::runs::{Part, Sent};
use async_trait::async_trait;
use std::sync::Arc;

/// A run for an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunCall {
    /// The run's number, by which it is reported.
    pub run: u64,
    /// The job's number.
    pub job: u64,
    /// The same in every attempt, and different for every other occurrence.
    pub occurrence_id: String,
    /// Which handler of the executor runs it.
    pub handler: String,
    /// What the handler gets.
    pub params: String,
    /// What happens while an earlier run of the job still goes there.
    pub block: Block,
    /// Seconds that it may take; 0: as long as it needs.
    pub timeout_s: u32,
    /// When it was due, in Unix milliseconds.
    pub due_ms: u64,
    /// What tells this attempt from all others of the run where a protocol has a time alone: [`Run::sent_ms`].
    ///
    /// [`Run::sent_ms`]: crate::runs::Run::sent_ms
    pub sent_ms: u64,
    /// 1 at the first attempt.
    pub attempt: u32,
    /// Which part of a broadcast it is; 0 of 1 where it is none.
    pub part: Part,
}

/// Asks for lines of a run's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogCall {
    /// The run's number.
    pub run: u64,
    /// When the run was due.
    pub due_ms: u64,
    /// [`RunCall::sent_ms`] of its last attempt.
    pub sent_ms: u64,
    /// The first line that is wanted, 1 being the first.
    pub from_line: u32,
}

/// Lines of a run's log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogLines {
    /// The text.
    pub text: String,
    /// The line to go on with.
    pub next_line: u32,
    /// Whether nothing will follow.
    pub is_end: bool,
}

/// Why an executor has not done what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// It could not be asked, or has not answered.
    #[error("{0}")]
    NoAnswer(String),
    /// It has answered that it does not do it: the same call once more is of no use.
    #[error("{0}")]
    Refused(String),
}

impl From<String> for AskError {
    fn from(why: String) -> Self {
        Self::NoAnswer(why)
    }
}

/// Speaks with executors. Each call answers in its own time-out.
#[async_trait]
pub trait ExecutorCalls: Send + Sync {
    /// The calls to executors of a tenant's app, where they differ from others, as by the access token that they carry.
    fn of(&self, _tenant: &str, _app: &str) -> Option<Arc<dyn ExecutorCalls>> {
        None
    }

    /// Hands a run over.
    async fn run(&self, address: &str, call: RunCall) -> Sent;

    /// Whether the executor answers.
    async fn is_alive(&self, address: &str) -> bool;

    /// Whether the executor answers, and no run of the job goes or waits there.
    async fn is_idle(&self, address: &str, job: u64) -> bool;

    /// Asks the executor to end a run of a job. Executors that know no runs, as those of XXL-JOB, end all runs of the job that
    /// go or wait there.
    ///
    /// # Errors
    /// [`AskError`] says why it could not be asked, or what it said.
    async fn kill(&self, address: &str, job: u64, run: u64) -> Result<(), AskError>;

    /// Reads a run's log from a line on.
    ///
    /// # Errors
    /// [`AskError`] says why it could not be asked, or what it said.
    async fn log(&self, address: &str, call: LogCall) -> Result<LogLines, AskError>;
}
