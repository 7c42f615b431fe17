//! The delay queue: records that are not due yet, the earliest first.

use crate::in_flight::{InFlightRecord, InFlightTable, Key, Place};
use crate::units::NS_PER_MS;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use windfall_contract::rules::Pacing;

/// The delay queue. It holds no more than one lane does (I9), and beyond that what was fetched already and has nowhere
/// else to wait.
#[derive(Debug, Default)]
pub(crate) struct DelayQueue {
    due: BinaryHeap<Reverse<(u64, Key)>>,
    records: usize,
    events: u64,
    bytes: u64,
}

impl DelayQueue {
    /// Whether a record that is due in `early_ms` fits. Half of the queue is kept for records that are due within
    /// `hold_max`, and an empty queue takes any record.
    pub fn has_room_for(&self, record: &InFlightRecord, early_ms: u64, pacing: &Pacing) -> bool {
        let part = if early_ms <= pacing.hold_max_ms { 1 } else { 2 };
        let (events, bytes) = (u64::from(record.uncut()), record.payload.len() as u64);
        let fits = self.events + events <= u64::from(pacing.lane_events_max) / part
            && self.bytes + bytes <= pacing.lane_bytes_max / part;
        fits || self.records == 0
    }

    /// Takes a record that is due in `early_ms`.
    pub fn enter(&mut self, key: Key, record: &mut InFlightRecord, early_ms: u64, now_ns: u64) {
        record.moves_to(Place::DelayQueue);
        let due_ns = now_ns.saturating_add(early_ms.saturating_mul(NS_PER_MS));
        self.due.push(Reverse((due_ns, key)));
        self.records += 1;
        self.events += u64::from(record.uncut());
        self.bytes += record.payload.len() as u64;
    }

    /// Whether more waits than the bounds allow.
    pub fn is_overfull(&self, pacing: &Pacing) -> bool {
        self.events > u64::from(pacing.lane_events_max) || self.bytes > pacing.lane_bytes_max
    }

    /// Forgets a record that waits here and goes elsewhere; its key is skipped later.
    pub fn forget(&mut self, record: &InFlightRecord) {
        self.records = self.records.saturating_sub(1);
        self.events = self.events.saturating_sub(u64::from(record.uncut()));
        self.bytes = self.bytes.saturating_sub(record.payload.len() as u64);
    }

    /// Takes out a record that has waited until it was due.
    pub fn pop_due(&mut self, table: &mut InFlightTable, now_ns: u64) -> Option<Key> {
        while let Some(&Reverse((due_ns, key))) = self.due.peek() {
            if due_ns > now_ns {
                return None;
            }
            self.due.pop();
            if let Some(record) = table.get_mut(key).filter(|record| record.place() == Place::DelayQueue) {
                record.moves_to(Place::Gone);
                self.forget(record);
                return Some(key);
            }
        }
        None
    }

    /// All records that wait, the earliest due first; the caller moves them elsewhere.
    pub fn take_all(&mut self, table: &InFlightTable) -> Vec<Key> {
        let due = std::mem::take(&mut self.due).into_sorted_vec();
        due.into_iter().rev().map(|Reverse((_, key))| key).filter(|&key| waits(table, key)).collect()
    }

    /// Frees the keys of records that left before they were due, when they are more than half.
    pub fn compact(&mut self, table: &InFlightTable) {
        if self.due.len() > 1024 && self.due.len() > 2 * self.records {
            self.due.retain(|&Reverse((_, key))| waits(table, key));
        }
    }

    /// How many records wait.
    pub fn len(&self) -> usize {
        self.records
    }
}

fn waits(table: &InFlightTable, key: Key) -> bool {
    table.get(key).is_some_and(|record| record.place() == Place::DelayQueue)
}
