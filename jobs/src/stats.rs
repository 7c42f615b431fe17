//! What is counted of jobs.

use std::sync::atomic::{AtomicU64, Ordering};
use windfall_contract::declare_metrics;
use windfall_contract::metrics::{Each, Readable};

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

/// Lateness of first calls is counted in buckets up to so many milliseconds, and in one for all above.
pub const LATENESS_BUCKETS_MS: [u64; 9] = [10, 50, 100, 250, 500, 1_000, 2_500, 5_000, 30_000];

impl Readable for Count {
    fn read(&self, value: &[&str], each: &mut Each<'_>) {
        each(value, self.get());
    }
}

declare_metrics! {
    /// What a process has counted of jobs since its start.
    #[derive(Debug, Default)]
    pub struct JobsStats {
        counter "windfall_jobs_started_total"
        "Scheduled occurrences that were started" {
            /// Scheduled occurrences that were started.
            pub started: Count,
        }
        counter "windfall_jobs_left_out_total"
        "Occurrences that the misfire strategy of their job left out, or that were due when it was changed or paused" {
            /// Occurrences that the misfire strategy left out, or that were due and not decided when their job was changed or paused.
            pub left_out: Count,
        }
        counter "windfall_jobs_stale_total"
        "Due tasks of jobs that had been changed, paused or removed, or of occurrences that had been decided" {
            /// Due tasks of jobs that had been changed, paused or removed since, or of occurrences that had been decided before.
            pub stale: Count,
        }
        counter "windfall_jobs_early_total"
        "Occurrences that fired before their time by the clock of the store of jobs, each time: they are decided in their time" {
            /// Occurrences that had fired before their time by the clock of the store of jobs, each time: they were not decided yet.
            pub early: Count,
        }
        counter "windfall_jobs_sent_total"
        "Runs that were sent to an executor or a target" {
            /// Runs that were sent.
            pub sent: Count,
        }
        counter "windfall_jobs_sent_again_total"
        "Runs that were sent again because nobody knew whether they had been" {
            /// Runs that were sent again because nobody knows whether they had been: after a crash, or without an answer.
            pub sent_again: Count,
        }
        counter "windfall_jobs_retried_total"
        "Attempts that came after a failed one" {
            /// Attempts that came after a failed one.
            pub retried: Count,
        }
        counter "windfall_jobs_ended_total" ["outcome"]
        "Runs that ended, by how" {
            /// Runs that ended well.
            pub succeeded: Count as "succeeded",
            /// Runs that ended as failed, with their retries spent.
            pub failed: Count as "failed",
            /// Runs that ended without a report in their time, with their retries spent.
            pub timed_out: Count as "timed_out",
            /// Runs of jobs that run at most once of which nobody knows whether they were sent.
            pub missed: Count as "missed",
            /// Runs that an operator ended.
            pub killed: Count as "killed",
        }
        counter "windfall_jobs_reports_unknown_total"
        "Reports about runs that are not known, or were over" {
            /// Reports about runs that are not known, or were over.
            pub reports_unknown: Count,
        }
        counter "windfall_jobs_overdue_found_total"
        "Occurrences whose due task was missing, and that were found by the look for overdue ones" {
            /// Occurrences whose due task was missing, and that were found by the look for overdue ones.
            pub overdue_found: Count,
        }
        counter "windfall_jobs_children_lost_total"
        "Children of runs that were not run: there is no such job, or it could not be started for a day" {
            /// Children that were not run: there is no such job, or it could not be started for a day.
            pub children_lost: Count,
        }
        counter "windfall_jobs_store_errors_total"
        "Calls of the stores that failed, and were made again" {
            /// Calls of the stores that failed, and were made again.
            pub store_failed: Count,
        }
        counter "windfall_jobs_panics_total"
        "Looks, calls and notes of runs that ended by a panic" {
            /// Looks at the stores, calls and notes of runs that ended by a panic. Looks are made again.
            pub panics: Count,
        }
        counter "windfall_jobs_unreadable_total"
        "Entries of jobs that cannot be read, each time that one is come upon" {
            /// Entries that cannot be read, each time that one is come upon.
            pub unreadable: Count,
        }
        gauge "windfall_jobs_executors"
        "Executors that are registered, as this process has read it" {
            /// Executors that are registered, as this process has read it.
            pub executors: Count,
        }
        gauge "windfall_jobs_waiting_runs"
        "Runs that wait in this process to be sent" {
            /// Runs that wait in this process to be sent.
            pub waiting: Count,
        }
        .. {
            /// Occurrences by how late the first call for their run began: see [`LATENESS_BUCKETS_MS`]. Exported as a histogram, which the table of metrics has no kind for.
            pub lateness: [Count; LATENESS_BUCKETS_MS.len() + 1],
            /// The sum of it, in milliseconds.
            pub lateness_sum_ms: Count,
        }
    }
}

impl JobsStats {
    pub(crate) fn called_late(&self, late_ms: u64) {
        let bucket = LATENESS_BUCKETS_MS.iter().position(|most_ms| late_ms <= *most_ms);
        self.lateness_sum_ms.add(late_ms);
        self.lateness[bucket.unwrap_or(LATENESS_BUCKETS_MS.len())].add(1);
    }
}
