//! Records in hand: from delivery until every event of theirs is settled.

use crate::window::Ticket;
use bytes::Bytes;
use windfall_contract::broker::{Acks, Position};
use windfall_proto::wire::{Malformed, Reader, Value};

/// A record in hand.
#[derive(Debug)]
pub(crate) struct Held {
    pub position: Position,
    /// `None` only under sabotage.
    pub ticket: Option<Ticket>,
    pub payload: Bytes,
    /// Its lane; `None` for a record that never gets to one (malformed, of an unknown type).
    pub lane: Option<usize>,
    pub attempt: u32,
    pub failures: u32,
    /// As the record says; 0 once it is due.
    pub not_before_ms: i64,
    /// Since when its own work is under way: its arrival, or when it was due if that came later.
    pub since_ns: u64,
    pub place: Place,
    /// Where in the payload the first event stands that was not cut yet.
    pub cut_at: usize,
    /// Events not cut yet.
    pub uncut: u32,
    /// Events not settled yet. The record is finished at 0.
    pub open: u32,
    /// Past its deadline: whatever happens to it next, it goes back to a queue.
    pub overdue: bool,
    /// It waits in the delay room, and is due later than a record may wait there.
    pub outlasts_room: bool,
}

/// Where the uncut events of a record wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In its lane.
    Lane,
    /// In the delay room.
    Room,
    /// None are left, or they are on their way to a queue or the archive.
    Gone,
}

/// Names a record in hand, and nothing once it is finished or forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

/// All records in hand, by key.
#[derive(Debug, Default)]
pub(crate) struct Book {
    slots: Vec<(u32, Option<Held>)>,
    free: Vec<u32>,
    /// Bytes of the records in hand.
    bytes: u64,
    /// Finished records that the broker has to be told of one by one; `None` where it commits positions.
    finished: Option<Vec<Position>>,
}

impl Held {
    /// Cuts up to `most` events off the front, as slices of the payload.
    pub fn cut(&mut self, most: u32, out: &mut Vec<Bytes>) -> Result<u32, Malformed> {
        let take = most.min(self.uncut);
        let mut reader = Reader::new(&self.payload[self.cut_at..]);
        for _ in 0..take {
            let (_, Value::Len(event)) = reader.field()? else {
                return Err(reader.malformed("an event"));
            };
            let end = self.cut_at + reader.position();
            out.push(self.payload.slice(end - event.len()..end));
        }
        self.cut_at += reader.position();
        self.uncut -= take;
        Ok(take)
    }
}

impl Book {
    pub fn new(acks: Acks) -> Self {
        Self { finished: (acks == Acks::Each).then(Vec::new), ..Self::default() }
    }

    /// Finished records that the broker was not told of yet.
    pub fn take_finished(&mut self) -> Vec<Position> {
        self.finished.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The broker did not hear of these: it is told again.
    pub fn tell_again(&mut self, untold: Vec<Position>) {
        if let Some(finished) = &mut self.finished {
            finished.extend(untold);
        }
    }

    pub fn has_finished(&self) -> bool {
        self.finished() > 0
    }

    /// How many finished records the broker was not told of yet.
    pub fn finished(&self) -> usize {
        self.finished.as_ref().map_or(0, Vec::len)
    }

    pub fn insert(&mut self, held: Held) -> Key {
        self.bytes += held.payload.len() as u64;
        if let Some(index) = self.free.pop() {
            let (generation, slot) = &mut self.slots[index as usize];
            *slot = Some(held);
            return Key { index, generation: *generation };
        }
        // Far fewer records fit in memory than u32 counts.
        let index = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        self.slots.push((0, Some(held)));
        Key { index, generation: 0 }
    }

    #[inline]
    pub fn get(&self, key: Key) -> Option<&Held> {
        let (generation, slot) = self.slots.get(key.index as usize)?;
        slot.as_ref().filter(|_| *generation == key.generation)
    }

    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut Held> {
        let (generation, slot) = self.slots.get_mut(key.index as usize)?;
        slot.as_mut().filter(|_| *generation == key.generation)
    }

    pub fn remove(&mut self, key: Key) -> Option<Held> {
        let (generation, slot) = self.slots.get_mut(key.index as usize)?;
        if *generation != key.generation {
            return None;
        }
        let held = slot.take()?;
        self.bytes = self.bytes.saturating_sub(held.payload.len() as u64);
        *generation = generation.wrapping_add(1);
        self.free.push(key.index);
        Some(held)
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Bytes of all that are in hand, wherever they are: lanes, room, calls, copies, archive.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keys of all that are in hand.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        (0_u32..).zip(&self.slots).filter_map(|(index, (generation, slot))| {
            slot.as_ref().map(|_| Key { index, generation: *generation })
        })
    }

    /// So many events of a record are settled. Finishes the record with its last one; whether it did.
    #[inline]
    pub fn settle(&mut self, key: Key, events: u32) -> bool {
        let Some(held) = self.get_mut(key) else { return false };
        held.open = held.open.saturating_sub(events);
        if held.open > 0 {
            return false;
        }
        // I3: the only place that finishes a record, and every event of it is settled.
        if let Some(held) = self.remove(key) {
            if let Some(finished) = &mut self.finished {
                finished.push(held.position);
            }
            if let Some(ticket) = held.ticket {
                ticket.finish();
            }
        }
        true
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use windfall_contract::broker::Epoch;

    pub(crate) fn held(partition: u32) -> Held {
        Held {
            position: Position { partition, epoch: Epoch(1), offset: 0 },
            ticket: None,
            payload: Bytes::new(),
            lane: None,
            attempt: 0,
            failures: 0,
            not_before_ms: 0,
            since_ns: 0,
            place: Place::Gone,
            cut_at: 0,
            uncut: 0,
            open: 1,
            overdue: false,
            outlasts_room: false,
        }
    }

    #[test]
    fn a_key_means_nothing_once_its_record_is_finished() {
        let mut book = Book::default();
        let first = book.insert(Held { open: 3, ..held(1) });
        assert!(!book.settle(first, 2));
        assert!(book.settle(first, 1));
        let second = book.insert(held(2));
        assert!(book.get(first).is_none() && book.remove(first).is_none());
        assert!(!book.settle(first, 1), "a late answer must not settle the place's next record");
        assert_eq!(book.keys().collect::<Vec<_>>(), [second]);
    }
}
