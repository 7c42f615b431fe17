//! The delay room: records that are not due yet.

use crate::held::{Book, Key, Place};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Bounded by its owner, who looks at what is in it before letting more in.
#[derive(Debug, Default)]
pub(crate) struct Room {
    due: BinaryHeap<Reverse<(u64, Key)>>,
    pub records: usize,
    pub events: u64,
    pub bytes: u64,
}

impl Room {
    pub fn push(&mut self, due_ns: u64, key: Key, events: u32, bytes: usize) {
        self.due.push(Reverse((due_ns, key)));
        self.records += 1;
        self.events += u64::from(events);
        self.bytes += bytes as u64;
    }

    /// A record that waits here goes elsewhere; its key is passed over later.
    pub fn forget(&mut self, events: u32, bytes: usize) {
        self.records = self.records.saturating_sub(1);
        self.events = self.events.saturating_sub(u64::from(events));
        self.bytes = self.bytes.saturating_sub(bytes as u64);
    }

    /// A record that is due now. It is out of the room; its `place` is the caller's to set.
    pub fn pop_due(&mut self, book: &Book, now_ns: u64) -> Option<Key> {
        while let Some(&Reverse((due_ns, key))) = self.due.peek() {
            if due_ns > now_ns {
                return None;
            }
            self.due.pop();
            if let Some(held) = book.get(key).filter(|held| held.place == Place::Room) {
                self.forget(held.uncut, held.payload.len());
                return Some(key);
            }
        }
        None
    }

    /// All records that wait, the earliest due first; the caller moves them elsewhere.
    pub fn take_all(&mut self, book: &Book) -> Vec<Key> {
        let due = std::mem::take(&mut self.due).into_sorted_vec();
        let waits = |key: &Key| book.get(*key).is_some_and(|held| held.place == Place::Room);
        due.into_iter().rev().map(|Reverse((_, key))| key).filter(waits).collect()
    }

    /// Frees the keys of records that left before they were due, when they are more than half.
    pub fn compact(&mut self, book: &Book) {
        if self.due.len() > 1024 && self.due.len() > 2 * self.records {
            self.due.retain(|Reverse((_, key))| book.get(*key).is_some_and(|held| held.place == Place::Room));
        }
    }
}
