//! What the scheduler has done and holds, cheap to read at any time.

use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use windfall_contract::declare_metrics;
use windfall_contract::metrics::{Each, Readable};

/// A number that the scheduler writes and anybody reads.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

impl Readable for Count {
    fn read(&self, value: &[&str], each: &mut Each<'_>) {
        each(value, self.get());
    }
}

/// The upper ends of the lateness buckets: milliseconds, and the label in seconds.
const LATENESS: [(u64, &str); 10] = [
    (25, "0.025"),
    (50, "0.05"),
    (100, "0.1"),
    (250, "0.25"),
    (500, "0.5"),
    (1_000, "1"),
    (5_000, "5"),
    (60_000, "60"),
    (600_000, "600"),
    (u64::MAX, "+Inf"),
];

/// How late tasks went out, in buckets.
#[derive(Debug, Default)]
pub struct Lateness([Count; LATENESS.len()]);

impl Lateness {
    pub(crate) fn add(&self, late_ms: u64) {
        let at = LATENESS.iter().position(|&(upto_ms, _)| late_ms <= upto_ms).unwrap_or(LATENESS.len() - 1);
        self.0[at].add(1);
    }

    /// How many tasks went out at most so late: milliseconds and tasks, each bucket with the ones before it.
    pub fn cumulative(&self) -> [(u64, u64); LATENESS.len()] {
        let mut sum = 0;
        std::array::from_fn(|at| {
            sum += self.0[at].get();
            (LATENESS[at].0, sum)
        })
    }
}

impl Readable for Lateness {
    fn read(&self, _value: &[&str], each: &mut Each<'_>) {
        for ((_, label), (_, sum)) in LATENESS.iter().zip(self.cumulative()) {
            each(&[label], sum);
        }
    }
}

declare_metrics! {
    /// What a dispatcher has done and holds. Counters unless a doc says "now".
    #[derive(Debug, Default)]
    pub struct DispatchStats {
        counter "windfall_scheduler_attempts_total" ["outcome"]
        "Attempts to hand a due task to its target, by what the target said; `unknown`: the call panicked, or did not end in time" {
            /// Tasks that their target has.
            pub done: Count as "done",
            /// Attempts that failed.
            pub failed: Count as "failed",
            /// Tasks that their target refused for good.
            pub refused: Count as "refused",
            /// Attempts at a target that took nothing just then.
            pub away: Count as "away",
            /// Attempts of which nobody knows what became.
            pub unknown: Count as "unknown",
        }
        counter "windfall_scheduler_retried_tasks_total"
        "Times that a task was put back to be tried again after a failed attempt" {
            /// Times that a task was put back to be tried again.
            pub retried: Count,
        }
        counter "windfall_scheduler_dead_tasks_total"
        "Tasks that were given up; they stay among the dead letters of their tenant" {
            /// Tasks that were given up.
            pub dead: Count,
        }
        counter "windfall_scheduler_lateness_total" ["le"]
        "Tasks by the time between due time and handing over at the first attempt, in seconds; each bucket counts the ones before it" {
            /// How late tasks went out at their first attempt.
            pub lateness: Lateness,
        }
        counter "windfall_scheduler_late_tasks_total"
        "Tasks that were handed over more than a second after their time" {
            /// Tasks that went out more than a second late.
            pub late: Count,
        }
        counter "windfall_scheduler_unnoted_tasks_total"
        "Tasks that had been handed over, and not yet noted as over, when their shard was lost, or moved to another instance before their target had answered; their next owner hands them over again with the same id" {
            /// Tasks that may be repeated, because their shard was lost before they were noted.
            pub unnoted: Count,
        }
        counter "windfall_scheduler_deferred_tasks_total"
        "Times that a task had no room in memory when it was read; it is read again later" {
            /// Times that a task had no room in memory when it was read.
            pub deferred: Count,
        }
        counter "windfall_scheduler_damaged_entries_total"
        "Entries of slots that could not be read; they stay, and so does their slot" {
            /// Entries that could not be read.
            pub damaged: Count,
        }
        counter "windfall_scheduler_store_errors_total"
        "Calls to the slot store that had no answer; they are repeated" {
            /// Calls to the store that had no answer.
            pub store_errors: Count,
        }
        counter "windfall_scheduler_lost_names_total" ["outcome"]
        "Times that the store had lost a name of a tenant or a target whose tasks this instance fires: `put_back`, under its number; `moved`, it has a second number by now, and tasks under either fire; `taken`, another name has its number, and this instance fires nothing that lies under it" {
            /// Names that the store had lost, and has again.
            pub names_put_back: Count as "put_back",
            /// Names that have a second number by now.
            pub names_moved: Count as "moved",
            /// Names whose number another name has.
            pub names_taken: Count as "taken",
        }
        counter "windfall_scheduler_leases_lost_total"
        "Shards that another instance had, or may have had, before this one gave them back" {
            /// Leases that were lost.
            pub leases_lost: Count,
        }
        counter "windfall_scheduler_panics_total"
        "Times that a part of the dispatcher panicked; it is started again" {
            /// Times that a part panicked.
            pub panics: Count,
        }
        gauge "windfall_scheduler_shards"
        "Shards of the timers' store, all of which have an owner while the fleet is well" {
            /// Shards of the store.
            pub shards: Count,
        }
        gauge "windfall_scheduler_owned_shards"
        "Shards that this instance fires" {
            /// Shards owned, now.
            pub owned_shards: Count,
        }
        gauge "windfall_scheduler_instances"
        "Instances that live, as this one sees it" {
            /// Instances that live, now.
            pub instances: Count,
        }
        gauge "windfall_scheduler_memory_bytes"
        "Bytes of tasks in memory, their overhead included" {
            /// Bytes of tasks in memory, now.
            pub memory_bytes: Count,
        }
        gauge "windfall_scheduler_in_flight_batches"
        "Sub-batches whose target has not answered" {
            /// Sub-batches in flight, now.
            pub in_flight_batches: Count,
        }
        gauge "windfall_scheduler_slots"
        "Slots that this instance reads or has not dropped yet" {
            /// Slots open, now.
            pub slots: Count,
        }
        .. {
            targets: RwLock<Vec<Arc<TargetStats>>>
        }
    }
}

declare_metrics! {
    /// What one target of one tenant has in this instance.
    #[derive(Debug, Default)]
    pub struct TargetStats {
        gauge "windfall_scheduler_due_tasks"
        "Tasks of a target whose time has come and that wait in memory to be handed over" {
            /// Tasks that are due and wait, now.
            pub due: Count,
        }
        gauge "windfall_scheduler_retrying_tasks"
        "Tasks of a target that wait for their next attempt" {
            /// Tasks that wait for their next attempt, now.
            pub retrying: Count,
        }
        gauge "windfall_scheduler_target_away"
        "1 while a target takes nothing and is only asked now and then, or while this instance has no such target" {
            /// Whether the target takes nothing, now.
            pub away: Count,
        }
        counter "windfall_scheduler_target_tasks_total" ["outcome"]
        "Tasks of a target that are over, by outcome" {
            /// Tasks that the target has.
            pub done: Count as "done",
            /// Tasks that were given up.
            pub dead: Count as "dead",
        }
        .. {
            /// The tenant's name.
            pub tenant: String,
            /// The target's name.
            pub target: String
        }
    }
}

impl DispatchStats {
    /// Every target that has had a due task.
    pub fn targets(&self) -> Vec<Arc<TargetStats>> {
        self.targets.read().clone()
    }

    pub(crate) fn of_target(&self, tenant: &str, target: &str) -> Arc<TargetStats> {
        let mut targets = self.targets.write();
        if let Some(known) = targets.iter().find(|known| known.tenant == tenant && known.target == target) {
            return Arc::clone(known);
        }
        let new = TargetStats { tenant: tenant.into(), target: target.into(), ..TargetStats::default() };
        targets.push(Arc::new(new));
        targets.last().map(Arc::clone).unwrap_or_default()
    }
}

declare_metrics! {
    /// What backfills of this process have done.
    #[derive(Debug, Default)]
    pub struct BackfillStats {
        counter "windfall_scheduler_backfill_tasks_total" ["outcome"]
        "Tasks that backfills have stored to be fired again (`fired`), or left out: cancelled, moved or changed near, still waiting, stored before by the same backfill, or without a target that is known" {
            /// Tasks that were stored to be fired again.
            pub fired: Count as "fired",
            /// Tasks that had been cancelled.
            pub cancelled: Count as "cancelled",
            /// Tasks that had been moved or changed.
            pub moved: Count as "moved",
            /// Tasks that wait, and fire by themselves.
            pub waiting: Count as "waiting",
            /// Tasks that an earlier run of the same backfill had come past.
            pub before: Count as "before",
            /// Tasks whose target nobody has.
            pub unknown: Count as "unknown",
        }
        counter "windfall_scheduler_backfills_total" ["state"]
        "Runs of backfills that have ended, by how they ended; dry runs are not counted" {
            /// Runs that are done.
            pub runs_done: Count as "done",
            /// Runs that an operator, or the end of the process, has ended.
            pub runs_cancelled: Count as "cancelled",
            /// Runs that could not go on.
            pub runs_failed: Count as "failed",
        }
        gauge "windfall_scheduler_backfill_running"
        "1 while a backfill goes on in this process" {
            /// Whether a run goes on, now.
            pub running: Count,
        }
    }
}

declare_metrics! {
    /// What one tenant has, as this instance sees it.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct TenantStats {
        gauge "windfall_scheduler_waiting_tasks"
        "Tasks of a tenant that wait, as they were counted last, with what this instance added since" {
            /// Tasks that wait.
            pub waiting: u64,
        }
        gauge "windfall_scheduler_waiting_tasks_max"
        "Tasks of a tenant that may wait" {
            /// Tasks that may wait.
            pub waiting_max: u64,
        }
        .. {
            /// The tenant's name.
            pub tenant: String
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_buckets_count_the_ones_before_them() {
        let lateness = Lateness::default();
        [0, 25, 26, 999, u64::MAX].into_iter().for_each(|late_ms| lateness.add(late_ms));
        assert_eq!(lateness.cumulative().map(|(_, sum)| sum), [2, 3, 3, 3, 3, 4, 4, 4, 4, 5]);
    }
}
