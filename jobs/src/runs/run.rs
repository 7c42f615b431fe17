//! A run, and how it is.

use crate::definition::{JobName, JobNumber};
use serde::{Deserialize, Serialize};

/// Attempts that [`Run::sent_ms`] tells apart before it repeats itself: more than a job may have.
const ATTEMPTS_MAX: u64 = 256;

/// The number of a run, by which executors report it: it says the shard in which the run lies. Numbers are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunNumber(pub u64);

/// An occurrence of a job that was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The job.
    pub job: JobNumber,
    /// Whose it is.
    pub tenant: String,
    /// The version of the job that it follows.
    pub version: u64,
    /// When it was due, in Unix milliseconds. Together with the job's number and [`part`](Self::part) it is the occurrence id
    /// of a scheduled run, the same in every attempt.
    pub due_ms: u64,
    /// Why it was started.
    pub cause: Cause,
    /// 1 at the first attempt.
    pub attempt: u32,
    /// Which part of a broadcast it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// Parameters in place of the job's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<String>,
    /// How it is.
    pub state: RunState,
    /// The executor that it was sent to last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// What was said of it last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// How often in this attempt nobody knew whether it was sent; 0 where its executor has acknowledged it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unanswered: u32,
    /// How often in a row this attempt was put off before it was sent; 0 where it was not.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub postponed: u32,
    /// Whether somebody was called for it in this attempt before it was put off: how late it is was counted then. Processes of an
    /// earlier version leave it out.
    #[serde(default, skip_serializing_if = "is_false")]
    pub was_called: bool,
    /// Which lease it has, or had last: a random number each time that a process takes it to send it, so that a process knows its
    /// own lease, whatever was written meanwhile. 0 is nobody's: processes of an earlier version leave the number out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lease: u32,
    /// How often somebody had it run again after its end.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub again: u32,
    /// Children that it has still to start, because the store had no room for the entry that has them started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<JobName>,
}

// Serde's form.
#[allow(clippy::trivially_copy_pass_by_ref)]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

// Serde's form.
#[allow(clippy::trivially_copy_pass_by_ref)]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Why a run was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Its time had come.
    Schedule,
    /// A caller asked for it.
    Call,
    /// A run of a parent job succeeded: this one.
    Parent(RunNumber),
}

/// One executor's part of a broadcast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// 0 to `total` - 1.
    pub index: u32,
    /// How many executors there were.
    pub total: u32,
}

/// How a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// A process is about to send it, or is sending it.
    Starting {
        /// When the process is taken for dead, by the store's clock.
        until_ms: u64,
        /// Whether it may have been sent. It is written for jobs that run at most once, before they are sent.
        #[serde(default)]
        is_sending: bool,
    },
    /// An executor has it, or may have it.
    Running {
        /// When it is given up, by the store's clock.
        until_ms: u64,
    },
    /// It failed, and is tried again.
    Retrying {
        /// When, by the store's clock.
        at_ms: u64,
    },
    /// It is over.
    Ended {
        /// When, by the store's clock.
        at_ms: u64,
        /// How it ended.
        outcome: Outcome,
    },
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Its executor or its target said so.
    Succeeded,
    /// Its executor or its target said so, or none could be reached, and its retries are spent.
    Failed,
    /// It was not reported in its time, and its retries are spent.
    TimedOut,
    /// It may be run at most once, and nobody knows whether it was sent: it is not sent again.
    Missed,
    /// An operator ended it.
    Killed,
}

impl Outcome {
    /// Whether it waits in the dead letter until somebody runs it again or it is forgotten.
    pub const fn is_dead(self) -> bool {
        matches!(self, Self::Failed | Self::TimedOut | Self::Missed)
    }
}

impl Run {
    /// Whether it is over.
    pub const fn is_over(&self) -> bool {
        matches!(self.state, RunState::Ended { .. })
    }

    /// Whether it waits in the dead letter.
    pub const fn is_dead(&self) -> bool {
        matches!(self.state, RunState::Ended { outcome, .. } if outcome.is_dead())
    }

    /// Whether it is over because nobody knew what became of it.
    pub const fn was_given_up(&self) -> bool {
        matches!(self.state, RunState::Ended { outcome: Outcome::TimedOut | Outcome::Missed, .. })
    }

    /// Whether it may have to be sent when its time to wake has come.
    pub const fn may_be_sent(&self) -> bool {
        match self.state {
            RunState::Starting { .. } | RunState::Retrying { .. } => true,
            RunState::Running { .. } => self.unanswered > 0,
            RunState::Ended { .. } => false,
        }
    }

    /// Whether it still has the lease of this number, and waits for whoever has that one to send it.
    pub const fn is_leased_as(&self, lease: u32) -> bool {
        matches!(self.state, RunState::Starting { .. }) && lease != 0 && self.lease == lease
    }

    /// When it is to be looked at again, by the store's clock.
    pub fn wake_ms(&self, keep: super::Keep) -> u64 {
        match self.state {
            RunState::Starting { until_ms, .. } | RunState::Running { until_ms } => until_ms,
            RunState::Retrying { at_ms } => at_ms,
            // At once, until its children can be started.
            RunState::Ended { at_ms, .. } if !self.children.is_empty() => at_ms,
            RunState::Ended { at_ms, outcome: Outcome::Succeeded } => at_ms.saturating_add(keep.succeeded_ms),
            RunState::Ended { at_ms, .. } => at_ms.saturating_add(keep.failed_ms),
        }
    }

    /// The time that the present attempt is sent with, for executors that show it with their reports and know no attempts. It is
    /// a few milliseconds after the run was due, and differs for each attempt, also after the run was started again.
    pub fn sent_ms(&self) -> u64 {
        let attempts =
            u64::from(self.again).saturating_mul(ATTEMPTS_MAX).saturating_add(u64::from(self.attempt));
        self.due_ms.saturating_add(attempts)
    }

    /// The attempt that was sent with this time, where that is known: processes of an earlier version send the time at which the run
    /// was due. One from before the run was started again has the number 0.
    pub fn attempt_of(&self, sent_ms: u64) -> Option<u32> {
        let attempts = sent_ms.checked_sub(self.due_ms).filter(|attempts| *attempts > 0)?;
        if sent_ms > self.sent_ms() {
            return None;
        }
        if attempts / ATTEMPTS_MAX < u64::from(self.again) {
            return Some(0);
        }
        u32::try_from(attempts % ATTEMPTS_MAX).ok()
    }

    /// What a target knows the run by. It is the same in every attempt, and another one each time that somebody has the run
    /// started again: a target that knows what it has done does it once more then.
    pub fn target_key(&self, number: RunNumber) -> String {
        let occurrence_id = self.occurrence_id(number);
        match self.again {
            0 => occurrence_id,
            again => format!("{occurrence_id}+{again}"),
        }
    }

    /// What is the same in every attempt, and differs for every other occurrence.
    pub fn occurrence_id(&self, number: RunNumber) -> String {
        let part = self.part.map_or(String::new(), |part| format!(".{}", part.index));
        match self.cause {
            Cause::Schedule => format!("{}-{}{part}", self.job.0, self.due_ms),
            Cause::Call | Cause::Parent(_) => format!("{}-r{}", self.job.0, number.0),
        }
    }
}
