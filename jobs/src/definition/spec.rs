//! What a job does, when, and what happens when it goes wrong.

use super::JobName;
use crate::routing::Strategy;
use crate::schedule::{Misfire, Schedule};
use serde::{Deserialize, Serialize};

/// Bytes of a job's parameters at most.
pub const PARAMS_MAX_BYTES: usize = 16 * 1024;
const CHILDREN_MAX: usize = 16;
const TIMEOUT_MAX_S: u32 = 86_400;
const RETRIES_MAX: u32 = 100;
const RETRY_WAIT_MAX_MS: u64 = 86_400_000;
const TEXT_MAX_BYTES: usize = 255;

/// What a job does, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// When it is due.
    pub schedule: Schedule,
    /// Where its runs go.
    pub destination: Destination,
    /// What its runs get, at most [`PARAMS_MAX_BYTES`].
    #[serde(default)]
    pub params: String,
    /// Seconds within which a run must be reported as over, up to a day; 0: it may take as long as it needs. Default 300.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: u32,
    /// What happens after a failed run.
    #[serde(default)]
    pub retries: Retries,
    /// What happens when an occurrence comes late by more than 15 seconds.
    #[serde(default)]
    pub misfire: Misfire,
    /// What an executor does with a run while an earlier one of the job still goes there.
    #[serde(default)]
    pub block: Block,
    /// Whether a run of which nobody knows whether it was sent is sent again.
    #[serde(default)]
    pub delivery: Delivery,
    /// Which jobs' occurrences go before its own while there is more to start than can be started.
    #[serde(default)]
    pub priority: Priority,
    /// Jobs of the same tenant that are run once when a run has succeeded, at most 16.
    #[serde(default)]
    pub children: Vec<JobName>,
    /// No occurrence before this, in Unix milliseconds.
    #[serde(default)]
    pub starts_ms: Option<u64>,
    /// No occurrence after this, in Unix milliseconds.
    #[serde(default)]
    pub ends_ms: Option<u64>,
    /// Whom an alert about it is for. Windfall sends no mail: the address is shown with the job.
    #[serde(default)]
    pub alarm_email: Option<String>,
}

/// Where a job's runs go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Destination {
    /// An executor that is registered for an app. The run is over when the executor reports it.
    Executor {
        /// The app's name.
        app: String,
        /// The name of the handler there.
        handler: String,
        /// Which of the app's executors.
        #[serde(default)]
        routing: Strategy,
    },
    /// One of the tenant's targets in the scheduler: a topic, an HTTP callback, `send_bonus`, a task queue. The run is over
    /// when the target has taken it.
    Target {
        /// The target's name.
        name: String,
    },
}

/// What an executor does with a run while an earlier one of the job still goes there. The names are XXL-JOB's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Block {
    /// It waits for the earlier one.
    #[default]
    #[serde(alias = "SERIAL_EXECUTION")]
    SerialExecution,
    /// It is dropped, and fails.
    #[serde(alias = "DISCARD_LATER")]
    DiscardLater,
    /// The earlier one is ended, and fails.
    #[serde(alias = "COVER_EARLY")]
    CoverEarly,
}

/// What is done where nobody knows whether a run was sent: after a crash, or when no answer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// It is sent again, with the same occurrence id: no occurrence is lost.
    #[default]
    AtLeastOnce,
    /// It is not sent again, and reported as missed: no occurrence is run twice. A failed run is not tried again either.
    AtMostOnce,
}

/// A class of service, as in the scheduler: each keeps a floor, so none ever starves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// First.
    Urgent,
    /// Second.
    #[default]
    Normal,
    /// Last.
    Bulk,
}

/// When a run that failed is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Retries {
    /// After the same time each time.
    Fixed {
        /// How often, besides the first attempt: 0 to 100.
        max: u32,
        /// The wait, at most a day.
        wait_ms: u64,
    },
    /// After a time that doubles.
    Exponential {
        /// How often, besides the first attempt: 0 to 100.
        max: u32,
        /// The first wait, 1 ms to a day.
        first_ms: u64,
        /// The longest wait, at most a day.
        max_ms: u64,
    },
}

/// What is wrong with a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{field}`: {what}")]
pub struct WrongSpec {
    /// The field.
    pub field: &'static str,
    /// What it must be.
    pub what: String,
}

const fn default_timeout_s() -> u32 {
    300
}

impl Default for Retries {
    /// None.
    fn default() -> Self {
        Self::Fixed { max: 0, wait_ms: 0 }
    }
}

impl Retries {
    /// The wait before the attempt that follows `attempt`, 1 being the first; `None` where retries are spent.
    pub fn wait_ms_after(&self, attempt: u32) -> Option<u64> {
        match *self {
            Self::Fixed { max, wait_ms } => (attempt <= max).then_some(wait_ms),
            Self::Exponential { max, first_ms, max_ms } => {
                let doubled = first_ms.saturating_mul(1 << attempt.saturating_sub(1).min(40));
                (attempt <= max).then(|| doubled.min(max_ms))
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        let (max, waits) = match *self {
            Self::Fixed { max, wait_ms } => (max, [wait_ms, 1]),
            Self::Exponential { max, first_ms, max_ms } => (max, [max_ms, first_ms]),
        };
        match (max <= RETRIES_MAX, waits.iter().all(|wait| *wait <= RETRY_WAIT_MAX_MS), waits[1] > 0) {
            (true, true, true) => Ok(()),
            (false, _, _) => Err(format!("`max` is at most {RETRIES_MAX}, not {max}")),
            (_, false, _) => Err(format!("a wait is at most {RETRY_WAIT_MAX_MS} ms")),
            _ => Err("`first_ms` is at least 1".to_owned()),
        }
    }
}

impl JobSpec {
    /// Checks every range.
    ///
    /// # Errors
    /// [`WrongSpec`] names the first field that cannot be used.
    pub fn check(&self) -> Result<(), WrongSpec> {
        let wrong = |field, what: String| Err(WrongSpec { field, what });
        let is_text = |text: &str| !text.is_empty() && text.len() <= TEXT_MAX_BYTES && !text.contains('\0');
        let text_rule = format!("it has 1 to {TEXT_MAX_BYTES} bytes, and no zero byte");
        match &self.destination {
            Destination::Executor { app, .. } if !is_text(app) => return wrong("destination.app", text_rule),
            Destination::Executor { handler, .. } if !is_text(handler) => {
                return wrong("destination.handler", text_rule);
            }
            Destination::Target { name } if !is_text(name) => return wrong("destination.name", text_rule),
            _ => {}
        }
        if self.params.len() > PARAMS_MAX_BYTES {
            return wrong("params", format!("at most {PARAMS_MAX_BYTES} bytes, not {}", self.params.len()));
        }
        if self.timeout_s > TIMEOUT_MAX_S {
            return wrong("timeout_s", format!("1 to {TIMEOUT_MAX_S}, or none, not {}", self.timeout_s));
        }
        if let Err(what) = self.retries.check() {
            return wrong("retries", what);
        }
        if self.delivery == Delivery::AtMostOnce && self.retries.wait_ms_after(1).is_some() {
            return wrong("retries", "a job that is run at most once has none".to_owned());
        }
        if self.children.len() > CHILDREN_MAX {
            return wrong("children", format!("at most {CHILDREN_MAX}, not {}", self.children.len()));
        }
        if let (Some(starts_ms), Some(ends_ms)) = (self.starts_ms, self.ends_ms)
            && ends_ms < starts_ms
        {
            return wrong("ends_ms", format!("it lies before `starts_ms`, {starts_ms}"));
        }
        if self.alarm_email.as_ref().is_some_and(|address| !is_text(address)) {
            return wrong("alarm_email", text_rule);
        }
        Ok(())
    }

    /// Its next occurrence behind a time, within its first and last one; `None` where there is none, or where it follows
    /// from the end of a run.
    pub fn next_after(&self, after_ms: u64) -> Option<u64> {
        let after_ms = self.starts_ms.map_or(after_ms, |starts_ms| after_ms.max(starts_ms.saturating_sub(1)));
        self.within(self.schedule.next_after(after_ms)?)
    }

    /// Its next occurrence behind the end of a run, for jobs with a fixed delay.
    pub fn next_after_end(&self, ended_ms: u64) -> Option<u64> {
        self.within(self.schedule.next_after_end(ended_ms)?)
    }

    fn within(&self, due_ms: u64) -> Option<u64> {
        self.ends_ms.is_none_or(|ends_ms| due_ms <= ends_ms).then_some(due_ms)
    }
}
