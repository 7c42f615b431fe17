//! What the far tier has done and holds.

use std::sync::atomic::{AtomicU64, Ordering};
use windfall_contract::declare_metrics;

declare_metrics! {
    /// What the far tier has done.
    #[derive(Debug, Clone, Copy, Default)]
    pub struct FarStats counted by FarCounters {
        counter "windfall_scheduler_far_added_tasks_total"
        "Tasks that the far tier has taken" {
            /// Tasks that were taken.
            pub added: u64,
        }
        counter "windfall_scheduler_far_loaded_tasks_total"
        "Tasks that were loaded from the far tier into the slot store" {
            /// Tasks that were loaded near.
            pub loaded: u64,
        }
        counter "windfall_scheduler_far_flushes_total"
        "Times that the far tier's log was written into a segment" {
            /// Segments written from the log.
            pub flushes: u64,
        }
        counter "windfall_scheduler_far_merges_total"
        "Times that segments of the far tier were merged" {
            /// Merges.
            pub merges: u64,
        }
        counter "windfall_scheduler_far_errors_total" ["part"]
        "Calls of the far tier that failed and are repeated, by what failed: the object store or the slot store" {
            /// Calls to the object store that failed.
            pub object_errors: u64 as "objects",
            /// Batches that the slot store did not take.
            pub load_errors: u64 as "slots",
        }
        counter "windfall_scheduler_far_damaged_blocks_total"
        "Blocks of segments that could not be read; their tasks are passed over" {
            /// Blocks whose checksum was wrong.
            pub damaged_blocks: u64,
        }
        counter "windfall_scheduler_far_lost_segments_total"
        "Segments that were missing, or of which both indexes were damaged, when the far tier was opened" {
            /// Segments that could not be opened.
            pub lost_segments: u64,
        }
    }
}

declare_metrics! {
    /// What the far tier holds now.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct FarGauges {
        gauge "windfall_scheduler_far_waiting_tasks"
        "Tasks that wait in the far tier" {
            /// Tasks that wait, of all tenants.
            pub waiting: u64,
        }
        gauge "windfall_scheduler_far_segments"
        "Segments of the far tier" {
            /// Segments.
            pub segments: u64,
        }
        gauge "windfall_scheduler_far_segment_bytes"
        "Bytes of the far tier's segments" {
            /// Their bytes.
            pub segment_bytes: u64,
        }
        gauge "windfall_scheduler_far_memory_bytes"
        "Bytes of the far tier's tasks in memory, their overhead included: they are in the log and in no segment yet" {
            /// Bytes of tasks that are in no segment yet.
            pub memory_bytes: u64,
        }
        gauge "windfall_scheduler_far_stopped" ["why"]
        "1 while far timers are neither taken nor changed nor loaded: `log`, a write to their log has failed, until all that is in memory is in a segment and the log goes on in another file; `refused`, until the next start" {
            /// Whether a write to the log has failed.
            pub log_failed: u64 as "log",
            /// Whether log and segments do not belong together, or another process writes the segments.
            pub refused: u64 as "refused",
        }
    }
}

declare_metrics! {
    /// What the far tier holds of one tenant now.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct FarTenantGauges {
        gauge "windfall_scheduler_far_tenant_waiting_tasks"
        "Tasks of a tenant that wait in the far tier of this process; those of windfall_scheduler_waiting_tasks that are left wait in the store" {
            /// Tasks that wait.
            pub waiting: u64,
        }
        .. {
            /// The tenant's name.
            pub tenant: String
        }
    }
}

impl FarCounters {
    pub(crate) fn added(&self, tasks: usize) {
        more(&self.added, tasks);
    }

    pub(crate) fn loaded(&self, tasks: usize) {
        more(&self.loaded, tasks);
    }

    pub(crate) fn flushed(&self) {
        more(&self.flushes, 1);
    }

    pub(crate) fn merged(&self) {
        more(&self.merges, 1);
    }

    pub(crate) fn objects_failed(&self) {
        more(&self.object_errors, 1);
    }

    pub(crate) fn load_failed(&self) {
        more(&self.load_errors, 1);
    }

    pub(crate) fn block_damaged(&self) {
        more(&self.damaged_blocks, 1);
    }

    pub(crate) fn segment_lost(&self) {
        more(&self.lost_segments, 1);
    }
}

fn more(counter: &AtomicU64, count: usize) {
    counter.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
}
