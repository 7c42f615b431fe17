//! Records in flight: a slab keyed by tag, the retries that are due, and the answers that are overdue.

use super::outbox::Outbox;
use super::pending::PendingRecord;
use super::shares::Place;
use super::topology::{QueueId, Side};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use windfall_contract::broker::{Delivery, Tag};

/// The number of entries from which on the heap of due answers is swept.
const SWEEP_FROM: usize = 1_024;

/// A record in flight, and the topics that have been tried for it.
pub(super) struct InFlightSend {
    pub(super) record: Box<dyn PendingRecord>,
    /// Queues that it may take, in the order of trying.
    pub(super) candidates: Box<[(QueueId, Side)]>,
    /// Their topics, in the order of trying.
    pub(super) targets: Box<[Arc<Outbox>]>,
    /// The topology that they were taken from.
    pub(super) serial: u64,
    /// The index of the target that is next, or that has the record.
    pub(super) at: usize,
    /// The number of failed rounds over all targets, which is the backoff's exponent.
    pub(super) rounds: u32,
    /// How often a topic took it and then failed.
    pub(super) failed: u32,
    /// How often an answer did not come in time.
    pub(super) overdue: u32,
    /// When the record is given up (monotonic ns); `None`: at `close`.
    pub(super) until_ns: Option<u64>,
    /// The place that it takes in the fan-out's shares.
    pub(super) place: Place,
}

impl InFlightSend {
    /// The topic that has it, or that is next.
    pub(super) fn target(&self) -> &Arc<Outbox> {
        &self.targets[self.at]
    }

    /// Moves on to the next target.
    pub(super) const fn advance(&mut self) {
        self.at = (self.at + 1) % self.targets.len();
    }
}

enum Slot {
    /// An empty slot, and the next one in the list of empty slots, if there is one.
    Vacant(Option<u32>),
    /// `send` is being called with its bytes.
    Sending,
    /// The report came before `send` returned.
    Early(Delivery),
    /// A producer has it.
    Sent(InFlightSend),
}

/// All records that a fan-out carries.
pub(super) struct InFlightTable {
    slots: Vec<(u32, Slot)>,
    vacant: Option<u32>,
    waiting: BinaryHeap<Reverse<Due>>,
    /// When answers are overdue. An answered record's entry stays until it is on top or swept out.
    overdue: BinaryHeap<Reverse<(u64, Tag)>>,
    sequence: u64,
}

/// The state of a record after `send` has taken it.
pub(super) enum AfterSend {
    /// It is in flight.
    Sent,
    /// The producer has reported its delivery already, before `send` returned.
    Early(InFlightSend, Delivery),
}

impl InFlightTable {
    pub(super) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            vacant: None,
            waiting: BinaryHeap::new(),
            overdue: BinaryHeap::new(),
            sequence: 0,
        }
    }

    /// A tag for a record that is about to be sent.
    pub(super) fn reserve(&mut self) -> Tag {
        let index = match self.vacant {
            Some(index) => {
                let (_, slot) = &mut self.slots[index as usize];
                if let Slot::Vacant(next) = slot {
                    self.vacant = *next;
                }
                *slot = Slot::Sending;
                index
            }
            None => {
                // The shares bound the records, and the options bound `records_max` far below 2^32.
                let index = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
                self.slots.push((0, Slot::Sending));
                index
            }
        };
        Tag(u64::from(self.slots[index as usize].0) << 32 | u64::from(index))
    }

    /// Notes that `send` took the record.
    pub(super) fn sent(&mut self, tag: Tag, send: InFlightSend, overdue_at_ns: u64) -> AfterSend {
        let Some(index) = self.index(tag) else {
            // Only the sender itself ends a `Sending` slot, so this is a tag of another fan-out. Never drop it.
            return AfterSend::Early(send, Delivery::Unknown("not a tag of this fan-out".into()));
        };
        if let Slot::Early(delivery) = &self.slots[index].1 {
            let delivery = delivery.clone();
            self.release(index);
            return AfterSend::Early(send, delivery);
        }
        self.slots[index].1 = Slot::Sent(send);
        self.overdue.push(Reverse((overdue_at_ns, tag)));
        // I9: as many entries of answered records as there are slots, not as many as come within the time-out.
        if self.overdue.len() > 2 * self.slots.len() + SWEEP_FROM {
            let mut overdue = std::mem::take(&mut self.overdue);
            overdue.retain(|Reverse((_, tag))| self.sent_index(*tag).is_some());
            self.overdue = overdue;
        }
        AfterSend::Sent
    }

    /// Notes that `send` refused the record.
    pub(super) fn refused(&mut self, tag: Tag) {
        if let Some(index) = self.index(tag) {
            self.release(index);
        }
    }

    /// Handles a report: takes the record out, unless the report is stale or early.
    pub(super) fn reported(&mut self, tag: Tag, delivery: &Delivery) -> Option<InFlightSend> {
        let index = self.index(tag)?;
        match &mut self.slots[index].1 {
            slot @ Slot::Sending => {
                *slot = Slot::Early(delivery.clone());
                None
            }
            Slot::Sent(_) => self.release(index),
            Slot::Vacant(_) | Slot::Early(_) => None,
        }
    }

    /// Takes out a record whose answer is overdue at `now_ns`.
    pub(super) fn take_overdue(&mut self, now_ns: u64) -> Option<InFlightSend> {
        while let Some(&Reverse((at_ns, tag))) = self.overdue.peek() {
            let index = self.sent_index(tag);
            if index.is_some() && at_ns > now_ns {
                return None;
            }
            self.overdue.pop();
            if let Some(send) = index.and_then(|index| self.release(index)) {
                return Some(send);
            }
        }
        None
    }

    /// Puts a record aside until `due_ns`.
    pub(super) fn wait(&mut self, due_ns: u64, send: InFlightSend) {
        self.sequence += 1;
        self.waiting.push(Reverse(Due { due_ns, sequence: self.sequence, send }));
    }

    /// Takes out a record whose wait is over.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<InFlightSend> {
        if self.waiting.peek()?.0.due_ns > now_ns {
            return None;
        }
        self.waiting.pop().map(|due| due.0.send)
    }

    /// The next moment at which something is to be done.
    pub(super) fn next_ns(&mut self) -> Option<u64> {
        while self.overdue.peek().is_some_and(|Reverse((_, tag))| self.sent_index(*tag).is_none()) {
            self.overdue.pop();
        }
        let overdue_ns = self.overdue.peek().map(|Reverse((at_ns, _))| *at_ns);
        let due_ns = self.waiting.peek().map(|due| due.0.due_ns);
        match (overdue_ns, due_ns) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        }
    }

    /// Takes out everything but what a `send` under way holds.
    pub(super) fn drain(&mut self) -> Vec<InFlightSend> {
        let mut all: Vec<InFlightSend> = self.waiting.drain().map(|due| due.0.send).collect();
        for index in 0..self.slots.len() {
            if matches!(self.slots[index].1, Slot::Sent(_)) {
                all.extend(self.release(index));
            }
        }
        all
    }

    fn index(&self, tag: Tag) -> Option<usize> {
        let index = usize::try_from(tag.0 & u64::from(u32::MAX)).ok()?;
        let (generation, _) = self.slots.get(index)?;
        (u64::from(*generation) == tag.0 >> 32).then_some(index)
    }

    fn sent_index(&self, tag: Tag) -> Option<usize> {
        self.index(tag).filter(|index| matches!(self.slots[*index].1, Slot::Sent(_)))
    }

    /// Empties a slot and gives the record that was in it.
    fn release(&mut self, index: usize) -> Option<InFlightSend> {
        let (generation, slot) = &mut self.slots[index];
        if matches!(slot, Slot::Vacant(_)) {
            return None;
        }
        // Reports of the old tag are stale from here on.
        *generation = generation.wrapping_add(1);
        let vacant = Slot::Vacant(self.vacant);
        self.vacant = u32::try_from(index).ok();
        match std::mem::replace(slot, vacant) {
            Slot::Sent(send) => Some(send),
            Slot::Vacant(_) | Slot::Sending | Slot::Early(_) => None,
        }
    }
}

struct Due {
    due_ns: u64,
    sequence: u64,
    send: InFlightSend,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.due_ns, self.sequence) == (other.due_ns, other.sequence)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due_ns, self.sequence).cmp(&(other.due_ns, other.sequence))
    }
}
