//! Group commit: callers share the wait for the disk, and hold no lock of their pack meanwhile.
//!
//! An event is stored and published under its pack's lock, and its caller hears Ok when a sync has covered it. The
//! first caller that finds no sync under way starts one, for all that is stored by then; those that come meanwhile wait
//! for the next one. So a slow disk costs a caller two syncs at most, however many callers there are, and it costs the
//! callers of other packs nothing but the disk's own time.

use crate::format::{DIRECTORY_AT, ENTRY_BYTES, Entry};
use crate::instance::Instance;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A position in a pack: a number of events, and the end of the last of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub count: u32,
    pub end: usize,
}

/// How much of a pack is on disk.
pub(crate) struct PackSync {
    instance: Arc<Instance>,
    slot: u32,
    state: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    stored: Mark,
    synced: Mark,
    is_syncing: bool,
    has_failed: bool,
}

/// An event that was stored. With [`Durability::Machine`](crate::Durability::Machine) it is not on disk before
/// [`wait`](Self::wait) has said so.
#[must_use = "the event is on disk only when `wait` has returned Ok"]
pub struct Stored {
    sync: Option<(Arc<PackSync>, u32)>,
}

/// The disk failed. The event is removed from its pack again, and the spool takes nothing more until it is opened
/// again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the disk of the spool failed; the event was not stored")]
pub struct NotSynced;

impl Stored {
    pub(crate) const fn new(sync: Option<(Arc<PackSync>, u32)>) -> Self {
        Self { sync }
    }

    /// Waits until the event is as durable as the spool's options say. Call it without the pack's lock, so that other
    /// callers can store their events meanwhile and share the next sync.
    ///
    /// # Errors
    /// [`NotSynced`]: nothing of the event is kept.
    pub fn wait(self) -> Result<(), NotSynced> {
        match self.sync {
            None => Ok(()),
            Some((sync, count)) => sync.wait(count),
        }
    }
}

impl PackSync {
    pub fn new(instance: Arc<Instance>, slot: u32) -> Arc<Self> {
        Arc::new(Self { instance, slot, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Notes that the pack's writer has stored events up to `mark`.
    pub fn stored(&self, mark: Mark) {
        self.state.lock().stored = mark;
    }

    /// How far the pack is on disk; `None` while a sync of what is stored is still to come.
    pub fn settled(&self) -> Option<Mark> {
        let state = self.state.lock();
        (!state.is_syncing && (state.has_failed || state.synced == state.stored)).then_some(state.synced)
    }

    /// Waits until the first `count` events are on disk, and syncs them if nobody else does.
    pub fn wait(&self, count: u32) -> Result<(), NotSynced> {
        let mut state = self.state.lock();
        loop {
            if state.synced.count >= count {
                return Ok(());
            }
            if state.has_failed {
                return Err(NotSynced);
            }
            if state.is_syncing {
                self.changed.wait(&mut state);
                continue;
            }
            state.is_syncing = true;
            let target = state.stored;
            drop(state);
            let synced = self.instance.sync(self.slot, target.end);
            state = self.state.lock();
            state.is_syncing = false;
            if synced {
                state.synced = target;
            } else {
                state.has_failed = true;
                self.cut(state.synced.count);
            }
            self.changed.notify_all();
        }
    }

    /// Ends the directory behind the events that are on disk: no caller got Ok for the others. No other thread writes
    /// this word any more, as an event with a greater index has been stored.
    fn cut(&self, count: u32) {
        let at = self.instance.geometry.slot_at(self.slot) + DIRECTORY_AT + count as usize * ENTRY_BYTES;
        self.instance.region.word(at).store(Entry::END, Ordering::Release);
    }
}
