//! How far the records of one partition are.

use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;
use windfall_contract::broker::Epoch;
use windfall_contract::due::Shard;

/// The records of one assignment of a partition that are not finished. What has neither of both states is finished.
pub(super) struct Partition {
    pub epoch: Epoch,
    next_read: u64,
    /// Records that were read, and are neither stored nor set aside.
    open: BTreeSet<u64>,
    /// Records that the store has answered: where, in which run of its server, and when.
    answered: BTreeMap<u64, Answered>,
    /// The position that was committed last.
    committed: u64,
    /// Records that are finished and not yet said to be, for a broker that is told of each.
    finished: Vec<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Answered {
    shard: Shard,
    run: u64,
    at: Instant,
}

/// The last call of a shard that was answered: in which run of its server, and when it was asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastAnswer {
    pub run: u64,
    pub asked_at: Instant,
}

impl Partition {
    pub const fn new(epoch: Epoch, next_offset: u64) -> Self {
        Self {
            epoch,
            next_read: next_offset,
            open: BTreeSet::new(),
            answered: BTreeMap::new(),
            committed: next_offset,
            finished: Vec::new(),
        }
    }

    pub fn read(&mut self, offset: u64) {
        self.next_read = self.next_read.max(offset.saturating_add(1));
        self.open.insert(offset);
    }

    pub fn passed(&mut self, next_offset: u64) {
        self.next_read = self.next_read.max(next_offset);
    }

    /// The store has answered for it.
    pub fn answered(&mut self, offset: u64, shard: Shard, run: u64, at: Instant) {
        if self.open.remove(&offset) {
            self.answered.insert(offset, Answered { shard, run, at });
        }
    }

    /// It is over, and nothing can be lost of it.
    pub fn finished(&mut self, offset: u64) {
        if self.open.remove(&offset) {
            self.finished.push(offset);
        }
    }

    pub fn open(&self) -> usize {
        self.open.len()
    }

    pub fn unsettled(&self) -> usize {
        self.answered.len()
    }

    /// Whether the store has answered something of this shard in another run, which may be lost.
    pub fn may_have_lost(&self, shard: Shard, run: u64) -> bool {
        self.answered.values().any(|answered| answered.shard == shard && answered.run != run)
    }

    /// Finishes what a server still has so long after it has answered.
    pub fn settle(&mut self, settle: std::time::Duration, last: &impl Fn(Shard) -> Option<LastAnswer>) {
        let finished = &mut self.finished;
        self.answered.retain(|offset, answered| {
            let is_settled = last(answered.shard)
                .is_some_and(|last| last.run == answered.run && last.asked_at >= answered.at + settle);
            if is_settled {
                finished.push(*offset);
            }
            !is_settled
        });
    }

    /// The position up to which everything is finished, if it is another one than was committed.
    pub fn position(&self) -> Option<u64> {
        let first_open = self.open.first().copied();
        let first_answered = self.answered.keys().next().copied();
        let position = first_open.into_iter().chain(first_answered).min().unwrap_or(self.next_read);
        (position > self.committed).then_some(position)
    }

    pub const fn committed(&mut self, position: u64) {
        self.committed = position;
    }

    /// Takes the records that are finished.
    pub fn take_finished(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.finished)
    }

    /// Gives back records whose end could not be told.
    pub fn give_back(&mut self, finished: Vec<u64>) {
        self.finished.extend(finished);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SETTLE: Duration = Duration::from_secs(2);

    #[test]
    fn nothing_is_finished_before_the_server_still_has_it_after_a_while() {
        let began = Instant::now();
        let mut partition = Partition::new(Epoch(1), 10);
        for offset in [10, 11, 12, 15] {
            partition.read(offset);
        }
        assert_eq!(partition.position(), None);
        partition.answered(10, Shard(1), 7, began);
        partition.answered(11, Shard(2), 7, began + SETTLE);
        partition.answered(12, Shard(1), 7, began);
        let asked = |run, at| move |_| Some(LastAnswer { run, asked_at: at });
        partition.settle(SETTLE, &asked(7, began + SETTLE / 2));
        assert_eq!(partition.position(), None, "too early");
        partition.settle(SETTLE, &asked(8, began + SETTLE * 2));
        assert_eq!(partition.position(), None, "another run");
        assert!(partition.may_have_lost(Shard(1), 8) && !partition.may_have_lost(Shard(1), 7));
        partition.settle(SETTLE, &asked(7, began + SETTLE));
        assert_eq!((partition.position(), partition.unsettled(), partition.open()), (Some(11), 1, 1));
        partition.settle(SETTLE, &asked(7, began + SETTLE * 2));
        assert_eq!(partition.position(), Some(15), "offsets may have gaps");
        partition.committed(15);
        partition.finished(15);
        assert_eq!(partition.position(), Some(16));
        assert_eq!(partition.take_finished(), [10, 12, 11, 15]);
        partition.passed(20);
        assert_eq!(partition.position(), Some(20));
    }
}
