//! What was written to the queue of adds, and what became of it.

use crate::stats::Count;
use windfall_contract::declare_metrics;

declare_metrics! {
    /// What the queue of adds has taken and holds. Counters unless a doc says "now".
    #[derive(Debug, Default)]
    pub struct AddQueueStats {
        counter "windfall_scheduler_queue_written_tasks_total" ["outcome"]
        "Tasks that callers wanted to add by the queue, by what the brokers said; `unknown`: none has answered in time" {
            /// Tasks whose record a broker has stored.
            pub written: Count as "stored",
            /// Tasks whose record no broker has.
            pub not_written: Count as "refused",
            /// Tasks of which nobody knows whether a broker has them.
            pub write_unknown: Count as "unknown",
        }
        counter "windfall_scheduler_queue_taken_records_total" ["outcome"]
        "Records that were taken from the queue of adds, by what became of them; `known`: a copy of a task that the store knows; `cancelled`: its key was cancelled" {
            /// Records whose task was stored.
            pub stored: Count as "stored",
            /// Copies of tasks that the store knows.
            pub known: Count as "known",
            /// Records whose key was cancelled.
            pub cancelled: Count as "cancelled",
            /// Records that were set aside.
            pub set_aside: Count as "set_aside",
        }
        counter "windfall_scheduler_queue_set_aside_records_total" ["reason"]
        "Records of the queue of adds that were set aside, by reason: their timers do not fire" {
            /// Records that cannot be read.
            pub unreadable: Count as "unreadable",
            /// Records for another store.
            pub other_store: Count as "other_store",
            /// Records whose tenant or target the options do not name.
            pub unknown_target: Count as "unknown_target",
            /// Records whose key belongs to another task.
            pub other_task: Count as "other_task",
            /// Records that are older than the keys that the store knows.
            pub too_old: Count as "too_old",
            /// Records that the store refuses again and again.
            pub refused: Count as "refused",
            /// Records that nobody has signed, from topics that take no such records.
            pub unsigned: Count as "unsigned",
            /// Records that no known key has signed as they are.
            pub unverified: Count as "unverified",
        }
        counter "windfall_scheduler_queue_unsigned_records_total"
        "Records of the queue of adds that were taken though nobody had signed them" {
            /// Records that were taken though nobody had signed them, by a process with keys.
            pub unsigned_taken: Count,
        }
        gauge "windfall_scheduler_queue_held_records"
        "Records of the queue of adds that are held because their shard, or the file of records set aside, did not take them when it was asked last" {
            /// Records that are held now because something does not take them.
            pub held: Count,
        }
        gauge "windfall_scheduler_queue_in_memory_records"
        "Records of the queue of adds that were read and are not stored yet" {
            /// Records in memory now.
            pub in_memory: Count,
        }
        counter "windfall_scheduler_queue_rereads_total"
        "Times that the queue of adds was read again from the last commit, because a server of the store was started again or replaced" {
            /// Times that the queue was read again.
            pub rereads: Count,
        }
        counter "windfall_scheduler_queue_errors_total"
        "Topics of the queue of adds that could not be opened, and polls and commits that failed" {
            /// Topics that could not be opened, and polls and commits that failed.
            pub errors: Count,
        }
    }
}
