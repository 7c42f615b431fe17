//! What was taken and refused.

use super::names::NamesKept;
use crate::task::{AddError, TimersError};
use std::sync::atomic::{AtomicU64, Ordering};
use windfall_contract::declare_metrics;
use windfall_contract::due::{Added, CancelledOnce, Changed, StoreError};

declare_metrics! {
    /// What [`Timers`](super::Timers) has taken and refused.
    #[derive(Debug, Clone, Copy, Default)]
    pub struct TimersStats counted by TimersCounters {
        counter "windfall_scheduler_added_tasks_total" ["outcome"]
        "Tasks that callers wanted to add, by outcome; `queued`: written to the queue of adds; `unknown`: the store, or the queue, did not answer" {
            /// Tasks that were stored.
            pub stored: u64 as "stored",
            /// Tasks that were written to the queue of adds.
            pub queued: u64 as "queued",
            /// Tasks whose key a waiting task had.
            pub existed: u64 as "exists",
            /// Tasks that were malformed or named nothing that is known.
            pub invalid: u64 as "invalid",
            /// Tasks beyond the tenant's quota of waiting tasks.
            pub over_waiting: u64 as "quota_waiting",
            /// Tasks beyond the tenant's rate.
            pub over_rate: u64 as "quota_rate",
            /// Tasks that were refused because too many waited to be stored.
            pub busy: u64 as "busy",
            /// Tasks of which nobody knows whether they were stored.
            pub add_unknown: u64 as "unknown",
        }
        counter "windfall_scheduler_changed_tasks_total" ["outcome"]
        "Tasks that callers wanted to cancel or move, by outcome; `marked`: a key without a task, whose add by the queue is dropped from now on; `unavailable`: the store did not answer or too many calls waited" {
            /// Tasks that were cancelled or moved.
            pub changed: u64 as "done",
            /// Tasks that had been cancelled before.
            pub cancelled_before: u64 as "cancelled",
            /// Tasks whose time had come.
            pub firing: u64 as "firing",
            /// Tasks that are not there.
            pub not_found: u64 as "unknown",
            /// Keys without a task that were marked as cancelled.
            pub marked: u64 as "marked",
            /// Changes that the store did not answer.
            pub unavailable: u64 as "unavailable",
        }
        counter "windfall_scheduler_flushes_total"
        "Calls to the store that stored or changed tasks" {
            /// Calls to the store that stored or changed tasks.
            pub flushes: u64,
        }
        counter "windfall_scheduler_flush_errors_total"
        "Calls to the store that stored or changed tasks and had no answer" {
            /// Calls to the store that had no answer.
            pub flush_errors: u64,
        }
        counter "windfall_scheduler_lost_names_of_adds_total" ["outcome"]
        "Times that the store had lost a name of a tenant or a target under whose number this process adds tasks: `put_back`, under its number; `moved`, it has a second number by now, which this process does not use; `taken`, another name has its number, and it has a new one" {
            /// Names that the store had lost, and has again.
            pub names_put_back: u64 as "put_back",
            /// Names that have a second number by now.
            pub names_moved: u64 as "moved",
            /// Names whose number another name has.
            pub names_taken: u64 as "taken",
        }
    }
}

impl TimersCounters {
    pub(super) fn added(&self, answers: &[Result<Added, AddError>]) {
        for answer in answers {
            one_more(match answer {
                Ok(Added::Stored(_)) => &self.stored,
                Ok(Added::Exists(_)) => &self.existed,
                Err(error) => self.not_added(error),
            });
        }
    }

    pub(super) fn queued(&self, answers: &[Result<(), AddError>]) {
        for answer in answers {
            one_more(match answer {
                Ok(()) => &self.queued,
                Err(error) => self.not_added(error),
            });
        }
    }

    const fn not_added(&self, error: &AddError) -> &AtomicU64 {
        match error {
            AddError::QuotaWaiting { .. } => &self.over_waiting,
            AddError::QuotaRate { .. } => &self.over_rate,
            AddError::Busy | AddError::QueueAway(_) | AddError::Closing => &self.busy,
            AddError::Store(_) | AddError::QueueUnknown(_) => &self.add_unknown,
            _ => &self.invalid,
        }
    }

    pub(super) fn cancelled_once(&self, answers: &[Result<CancelledOnce, TimersError>]) {
        for answer in answers {
            one_more(match answer {
                Ok(CancelledOnce::Done(_)) => &self.changed,
                Ok(CancelledOnce::Cancelled) => &self.cancelled_before,
                Ok(CancelledOnce::Firing) => &self.firing,
                Ok(CancelledOnce::Marked) => &self.marked,
                Ok(CancelledOnce::Unmarked) => &self.not_found,
                Err(_) => &self.unavailable,
            });
        }
    }

    pub(super) fn changed(&self, answers: &[Result<Changed, TimersError>]) {
        for answer in answers {
            one_more(match answer {
                Ok(Changed::Done(_)) => &self.changed,
                Ok(Changed::Cancelled) => &self.cancelled_before,
                Ok(Changed::Firing) => &self.firing,
                Ok(Changed::Unknown) => &self.not_found,
                Err(_) => &self.unavailable,
            });
        }
    }

    pub(super) fn names_kept(&self, kept: NamesKept) {
        let counts = [
            (&self.names_put_back, kept.put_back),
            (&self.names_moved, kept.moved),
            (&self.names_taken, kept.taken),
        ];
        counts.into_iter().for_each(|(counter, count)| {
            counter.fetch_add(count, Ordering::Relaxed);
        });
    }

    pub(super) fn flushed<A>(&self, answer: Result<A, StoreError>) -> Result<A, StoreError> {
        one_more(&self.flushes);
        if answer.is_err() {
            one_more(&self.flush_errors);
        }
        answer
    }
}

fn one_more(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
