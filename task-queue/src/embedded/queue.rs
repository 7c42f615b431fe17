//! What of a queue is in memory: counts, and some bytes for each job that was taken. Jobs that were never taken cost
//! nothing but a count for each time at which some become ready.

use std::collections::{BTreeMap, BTreeSet};
use windfall_contract::task_queue::{HeldState, JobId, QueueCounts};

/// A queue in one shard.
pub(super) struct QueueState {
    /// Its number in the rows.
    pub(super) number: u32,
    /// Jobs that were never taken and are ready.
    pub(super) fresh: u64,
    /// Jobs that become ready, by when.
    delayed: BTreeMap<u64, u64>,
    delayed_count: u64,
    /// No job that was never taken lies before this place: rows that are gone need not be looked at again.
    pub(super) from: (u64, u64),
    /// Jobs that are ready again, by since when.
    pub(super) again: BTreeSet<(u64, JobId)>,
    /// Jobs in the dead letter, by since when.
    pub(super) dead: BTreeSet<(u64, JobId)>,
    /// Jobs that somebody has.
    pub(super) leased: u64,
    /// Jobs that become ready up to this time are in `fresh`.
    counted_to_ms: u64,
}

impl QueueState {
    pub(super) fn new(number: u32) -> Self {
        Self {
            number,
            fresh: 0,
            delayed: BTreeMap::new(),
            delayed_count: 0,
            from: (0, 0),
            again: BTreeSet::new(),
            dead: BTreeSet::new(),
            leased: 0,
            counted_to_ms: 0,
        }
    }

    /// Counts as ready what has become so.
    pub(super) fn advance(&mut self, now_ms: u64) {
        self.counted_to_ms = self.counted_to_ms.max(now_ms);
        while let Some(first) = self.delayed.first_entry().filter(|first| *first.key() <= now_ms) {
            let count = first.remove();
            self.delayed_count -= count;
            self.fresh += count;
        }
    }

    pub(super) fn published(&mut self, ready_ms: u64, sequence: u64, count: u64) {
        self.from = self.from.min((ready_ms, sequence));
        if ready_ms <= self.counted_to_ms {
            self.fresh += count;
        } else {
            *self.delayed.entry(ready_ms).or_default() += count;
            self.delayed_count += count;
        }
    }

    /// A job that was never taken is gone.
    pub(super) fn fresh_gone(&mut self, ready_ms: u64) {
        match self.delayed.get_mut(&ready_ms) {
            Some(count) if ready_ms > self.counted_to_ms => {
                *count -= 1;
                self.delayed_count -= 1;
                if *count == 0 {
                    self.delayed.remove(&ready_ms);
                }
            }
            _ => self.fresh = self.fresh.saturating_sub(1),
        }
    }

    /// A job that was taken is in this state from now on.
    pub(super) fn held(&mut self, state: HeldState, at_ms: u64, id: JobId) {
        match state {
            HeldState::Leased => self.leased += 1,
            HeldState::ReadyAgain => {
                self.again.insert((at_ms, id));
            }
            HeldState::Dead => {
                self.dead.insert((at_ms, id));
            }
        }
    }

    /// It is in this state no more.
    pub(super) fn unheld(&mut self, state: HeldState, at_ms: u64, id: JobId) {
        match state {
            HeldState::Leased => self.leased = self.leased.saturating_sub(1),
            HeldState::ReadyAgain => {
                self.again.remove(&(at_ms, id));
            }
            HeldState::Dead => {
                self.dead.remove(&(at_ms, id));
            }
        }
    }

    pub(super) fn counts(&self) -> QueueCounts {
        QueueCounts {
            ready: self.fresh + self.again.len() as u64,
            delayed: self.delayed_count,
            dead: self.dead.len() as u64,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let counts = self.counts();
        counts.ready + counts.delayed + counts.dead + self.leased == 0
    }
}
