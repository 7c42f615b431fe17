//! How a target that catches up with the newest first makes room in memory for what is due now.
//!
//! A shard's owner finds that tasks of a minute have no room, and wants it. The firing loop takes tasks of older minutes
//! out of the target's queue and hands them back to their owners, who read them again later. From then on minutes up to
//! the last of those are read only while the target holds less than half of what it may.

use std::sync::atomic::{AtomicU32, Ordering};
use windfall_contract::due::SlotMinute;

/// What owners and the firing loop tell each other of one target.
#[derive(Debug)]
pub(super) struct Shedding {
    /// The newest minute that has no room; 0: none.
    wanted: AtomicU32,
    /// The first minute of which nothing was handed back.
    floor: AtomicU32,
    /// The oldest minute of which tasks are queued.
    oldest: AtomicU32,
}

impl Default for Shedding {
    fn default() -> Self {
        Self { wanted: AtomicU32::new(0), floor: AtomicU32::new(0), oldest: AtomicU32::new(u32::MAX) }
    }
}

impl Shedding {
    /// Tasks of this minute have no room. Nothing happens unless there are tasks of older ones.
    pub fn want(&self, minute: SlotMinute) {
        if self.oldest.load(Ordering::Relaxed) < minute.0 {
            self.wanted.fetch_max(minute.0, Ordering::Relaxed);
        }
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    /// Takes the wish out.
    pub fn take_wanted(&self) -> Option<SlotMinute> {
        let wanted = self.wanted.swap(0, Ordering::Relaxed);
        (wanted > 0).then_some(SlotMinute(wanted))
    }

    /// Tasks of minutes up to this one were handed back.
    pub fn shed_upto(&self, minute: SlotMinute) {
        self.floor.fetch_max(minute.0.saturating_add(1), Ordering::Relaxed);
    }

    /// Whether nothing of this minute, or of one behind it, was handed back.
    pub fn is_above(&self, minute: SlotMinute) -> bool {
        minute.0 >= self.floor.load(Ordering::Relaxed)
    }

    /// Tasks of this minute and of newer ones are queued; `None`: of none.
    pub fn queued_from(&self, minute: Option<SlotMinute>) {
        self.oldest.store(minute.map_or(u32::MAX, |minute| minute.0), Ordering::Relaxed);
    }
}
