//! The partitions that we own: their windows, what is in hand of each in delivery order, and how far each is
//! committed.

use crate::held::{Book, Key};
use crate::window::Window;
use std::collections::{BTreeMap, VecDeque};
use windfall_contract::broker::{Commit, Epoch};

/// A window that spans more offsets than this gets no more records until its oldest one is finished. One bit an
/// offset, so 512 KiB.
const SPAN_MAX: u64 = 1 << 22;

/// One partition under one assignment.
#[derive(Debug)]
pub(crate) struct Partition {
    pub epoch: Epoch,
    pub window: Window,
    /// Keys of records whose own work is under way, the oldest first; those that mean nothing any more are passed over.
    order: VecDeque<Key>,
    /// How long `order` was when it was last rid of dead keys.
    order_live: usize,
    committed: u64,
    /// The position at the last look, and when it moved or was reached by an empty window.
    seen_position: u64,
    moved_ns: u64,
    pub is_stuck: bool,
    /// Since when its intake is paused.
    pub paused_ns: Option<u64>,
    /// The lane that its latest records went to, and how many in a row.
    pub run: Option<(usize, u32)>,
    dropped_seen: u64,
}

/// All partitions that we own.
#[derive(Debug, Default)]
pub(crate) struct Partitions {
    pub all: BTreeMap<u32, Partition>,
}

/// What a look at a partition's progress found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// It has just been found stuck.
    pub newly_stuck: bool,
    /// Tickets dropped since the last look, and the lowest offset of all.
    pub dropped: Option<(u64, u64)>,
}

impl Partition {
    pub fn new(epoch: Epoch, next_offset: u64, now_ns: u64) -> Self {
        Self {
            epoch,
            window: Window::new(epoch.0, next_offset),
            order: VecDeque::new(),
            order_live: 0,
            committed: next_offset,
            seen_position: next_offset,
            moved_ns: now_ns,
            is_stuck: false,
            paused_ns: None,
            run: None,
            dropped_seen: 0,
        }
    }

    /// A record of this lane was delivered.
    pub fn delivered(&mut self, lane: Option<usize>) {
        self.run = match (lane, self.run) {
            (None, _) => None,
            (Some(lane), Some((of, length))) if of == lane => Some((lane, length.saturating_add(1))),
            (Some(lane), _) => Some((lane, 1)),
        };
    }

    /// A record's own work begins: no other one of this partition began later.
    pub fn work_begins(&mut self, key: Key) {
        self.order.push_back(key);
    }

    /// The oldest record in hand whose work is under way and that has not been taken by [`take_oldest`](Self::take_oldest).
    pub fn oldest(&mut self, book: &Book) -> Option<Key> {
        while let Some(&key) = self.order.front() {
            if book.get(key).is_some() {
                return Some(key);
            }
            self.order.pop_front();
        }
        None
    }

    pub fn take_oldest(&mut self) {
        self.order.pop_front();
    }

    /// Frees the dead keys behind a record that lives long, when they are more than half.
    pub fn compact(&mut self, book: &Book) {
        if self.order.len() > 4096 && self.order.len() > 2 * self.order_live {
            self.order.retain(|&key| book.get(key).is_some());
            self.order_live = self.order.len();
        }
    }

    pub fn spans_too_much(&mut self) -> bool {
        self.window.next_offset() - self.window.advance() > SPAN_MAX
    }

    /// Looks whether the position has moved within `patience_ns`.
    pub fn look(&mut self, now_ns: u64, patience_ns: u64) -> Progress {
        let position = self.window.advance();
        if position != self.seen_position || position == self.window.next_offset() {
            (self.seen_position, self.moved_ns, self.is_stuck) = (position, now_ns, false);
        }
        let newly_stuck = !self.is_stuck && now_ns.saturating_sub(self.moved_ns) > patience_ns;
        self.is_stuck |= newly_stuck;
        let dropped =
            self.window.dropped().filter(|dropped| dropped.count > self.dropped_seen).map(|dropped| {
                let new = dropped.count - self.dropped_seen;
                self.dropped_seen = dropped.count;
                (new, dropped.first_offset)
            });
        Progress { newly_stuck, dropped }
    }

    /// What there is to commit since the last that was stored.
    pub fn commit(&mut self, partition: u32) -> Option<Commit> {
        let next_offset = self.window.advance();
        (next_offset > self.committed).then_some(Commit { partition, epoch: self.epoch, next_offset })
    }
}

impl Partitions {
    /// What there is to commit.
    pub fn commits(&mut self) -> Vec<Commit> {
        self.all.iter_mut().filter_map(|(&number, partition)| partition.commit(number)).collect()
    }

    /// A commit was stored.
    pub fn committed(&mut self, commit: &Commit) {
        if let Some(partition) = self.all.get_mut(&commit.partition)
            && partition.epoch == commit.epoch
        {
            partition.committed = partition.committed.max(commit.next_offset);
        }
    }
}
