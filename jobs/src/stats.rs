//! What is counted of jobs.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows, or is set.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// What it is.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Lateness of starts is counted in buckets up to so many milliseconds, and in one for all above.
pub const LATENESS_BUCKETS_MS: [u64; 9] = [10, 50, 100, 250, 500, 1_000, 2_500, 5_000, 30_000];

/// What a process has counted of jobs since its start.
#[derive(Debug, Default)]
pub struct JobsStats {
    /// Scheduled occurrences that were started.
    pub started: Count,
    /// Occurrences that the misfire strategy left out.
    pub left_out: Count,
    /// Due tasks of jobs that had been changed, paused or removed since, or of occurrences that had been decided before.
    pub stale: Count,
    /// Runs that were sent.
    pub sent: Count,
    /// Runs that were sent again because nobody knows whether they had been: after a crash, or without an answer.
    pub sent_again: Count,
    /// Attempts that came after a failed one.
    pub retried: Count,
    /// Runs that ended well.
    pub succeeded: Count,
    /// Runs that ended as failed, with their retries spent.
    pub failed: Count,
    /// Runs that ended without a report in their time, with their retries spent.
    pub timed_out: Count,
    /// Runs of jobs that run at most once of which nobody knows whether they were sent.
    pub missed: Count,
    /// Runs that an operator ended.
    pub killed: Count,
    /// Reports about runs that are not known, or were over.
    pub reports_unknown: Count,
    /// Occurrences whose due task was missing, and that were found by the look for overdue ones.
    pub overdue_found: Count,
    /// Children that were not run: there is no such job, or it could not be started for a day.
    pub children_lost: Count,
    /// Calls of the stores that failed, and were made again.
    pub store_failed: Count,
    /// Looks at the stores, calls and notes of runs that ended by a panic. Looks are made again.
    pub panics: Count,
    /// Entries that cannot be read, each time that one is come upon.
    pub unreadable: Count,
    /// Executors that are registered, as this process has read it.
    pub executors: Count,
    /// Runs that wait in this process to be sent.
    pub waiting: Count,
    /// Starts by lateness: see [`LATENESS_BUCKETS_MS`].
    pub lateness: [Count; LATENESS_BUCKETS_MS.len() + 1],
    /// The sum of it, in milliseconds.
    pub lateness_sum_ms: Count,
}

impl JobsStats {
    pub(crate) fn started_late(&self, late_ms: u64) {
        self.started.add(1);
        let bucket = LATENESS_BUCKETS_MS.iter().position(|most_ms| late_ms <= *most_ms);
        self.lateness_sum_ms.add(late_ms);
        self.lateness[bucket.unwrap_or(LATENESS_BUCKETS_MS.len())].add(1);
    }
}
