//! How a process runs jobs.

use crate::runs::Keep;
use serde::{Deserialize, Serialize};

/// The longest time-out of a call that a store of entries may have: a lease of 4 s is renewed after 1.5 s, and must not end while
/// that call is open.
pub const STORE_TIMEOUT_MAX_MS: u64 = 2_500;

/// How a process runs jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobsOptions {
    /// Calls to executors and targets that are made side by side: 1 to 10,000. Default 1,024.
    pub calls_max: usize,
    /// How often each shard is looked at for runs that have to go on, in milliseconds: 50 to 2,000. Default 250.
    pub tend_every_ms: u64,
    /// How often executors are read, in milliseconds: 100 to 10,000. Default 1,000.
    pub executors_every_ms: u64,
    /// How long an executor is there after its last heartbeat, in milliseconds: 5,000 to 600,000. Default 90,000, which is
    /// three heartbeats of XXL-JOB's executors.
    pub executor_ttl_ms: u64,
    /// How long a run that succeeded is kept, in milliseconds: at most 30 days. Default one hour. A run takes about 500 bytes.
    pub keep_succeeded_ms: u64,
    /// Runs that succeeded and are kept, about: 10,000 to 1,000,000,000. Default 10,000,000, which is 5 GB. Where more are made
    /// within [`keep_succeeded_ms`](Self::keep_succeeded_ms), they are kept for a shorter time, but for a minute.
    pub succeeded_max: u64,
    /// How long any other run is kept, and a job without another occurrence, in milliseconds: at most 90 days. Default a week.
    pub keep_failed_ms: u64,
    /// Jobs that each tenant may have, 1 to 100,000,000. Default 1,000,000. A job takes about 1.5 KB, and its earlier versions as
    /// much again.
    pub jobs_max: u64,
}

impl Default for JobsOptions {
    fn default() -> Self {
        Self {
            calls_max: 1_024,
            tend_every_ms: 250,
            executors_every_ms: 1_000,
            executor_ttl_ms: 90_000,
            keep_succeeded_ms: 3_600_000,
            succeeded_max: 10_000_000,
            keep_failed_ms: 7 * 86_400_000,
            jobs_max: 1_000_000,
        }
    }
}

/// An option that is out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{option}` is {min} to {max}, not {value}")]
pub struct OutOfRange {
    /// The name of the option.
    pub option: &'static str,
    /// The value that it has.
    pub value: u64,
    /// The least value that is allowed.
    pub min: u64,
    /// The greatest value that is allowed.
    pub max: u64,
}

impl JobsOptions {
    /// Checks every range.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first option that cannot be used.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let calls_max = u64::try_from(self.calls_max).unwrap_or(u64::MAX);
        let ranges = [
            ("calls_max", calls_max, 1, 10_000),
            ("tend_every_ms", self.tend_every_ms, 50, 2_000),
            ("executors_every_ms", self.executors_every_ms, 100, 10_000),
            ("executor_ttl_ms", self.executor_ttl_ms, 5_000, 600_000),
            ("keep_succeeded_ms", self.keep_succeeded_ms, 0, 30 * 86_400_000),
            ("succeeded_max", self.succeeded_max, 10_000, 1_000_000_000),
            ("keep_failed_ms", self.keep_failed_ms, 0, 90 * 86_400_000),
            ("jobs_max", self.jobs_max, 1, 100_000_000),
        ];
        let wrong = ranges.into_iter().find(|(_, value, min, max)| !(min..=max).contains(&value));
        wrong.map_or(Ok(()), |(option, value, min, max)| Err(OutOfRange { option, value, min, max }))
    }

    pub(crate) const fn keep(&self) -> Keep {
        Keep { succeeded_ms: self.keep_succeeded_ms, failed_ms: self.keep_failed_ms }
    }
}
