//! The records in flight: from their delivery until every event of theirs is settled.
//!
//! This table is the only place that finishes a record, so it is the place that keeps I3.

use crate::record_head::RecordHead;
use crate::window::Ticket;
use bytes::Bytes;
use windfall_contract::broker::{Acks, Position};
use windfall_proto::record;
use windfall_proto::wire::{Malformed, Reader, Value};

/// A record in flight.
#[derive(Debug)]
pub(crate) struct InFlightRecord {
    pub position: Position,
    /// The ticket; `None` only under sabotage.
    ticket: Option<Ticket>,
    pub payload: Bytes,
    /// Its lane; `None` for a record that never gets to one (it is malformed or of an unknown type).
    pub lane: Option<usize>,
    pub attempt: u32,
    pub failures: u32,
    /// The number of the key that its original was signed with; 0 where that is not known.
    pub origin: u32,
    /// The due time in the record's head; 0 once it is due.
    not_before_ms: i64,
    /// Since when its own work is under way: its arrival, or when it was due if that came later.
    since_ns: u64,
    /// When the head-of-line deadline began to count: as above, and anew each time that it has passed and the record
    /// was held all the same.
    held_since_ns: u64,
    place: Place,
    /// Where in the payload the first event stands that was not cut yet.
    cut_at: usize,
    /// The number of events that were not cut yet.
    uncut: u32,
    /// The number of events that are not settled yet. The record is finished at 0.
    open: u32,
    /// Since when events of it were asked for and not decided, and wait in place.
    undecided_since_ns: Option<u64>,
    /// When that was last found out.
    undecided_at_ns: u64,
    /// Whether it is past its deadline: whatever happens to it next, it is requeued.
    is_overdue: bool,
}

/// Where the uncut events of a record wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// They wait in their lane.
    Lane,
    /// They wait in the delay queue.
    DelayQueue,
    /// None are left, or they are being requeued or archived.
    Gone,
}

/// The name of a record in flight. It means nothing once the record is finished or forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

/// All records in flight, by key.
#[derive(Debug, Default)]
pub(crate) struct InFlightTable {
    slots: Vec<(u32, Option<InFlightRecord>)>,
    free: Vec<u32>,
    /// Bytes of the records in flight.
    bytes: u64,
    /// Finished records that the broker has to be told of one by one; `None` where it commits positions.
    finished: Option<Vec<Position>>,
}

impl InFlightRecord {
    /// A record that goes to the archive as it came.
    pub fn whole(position: Position, ticket: Option<Ticket>, payload: Bytes, now_ns: u64) -> Self {
        Self {
            position,
            ticket,
            payload,
            lane: None,
            attempt: 0,
            failures: 0,
            origin: 0,
            not_before_ms: 0,
            since_ns: now_ns,
            held_since_ns: now_ns,
            place: Place::Gone,
            cut_at: 0,
            uncut: 0,
            open: 1,
            undecided_since_ns: None,
            undecided_at_ns: 0,
            is_overdue: false,
        }
    }

    /// Notes that the record has come in: its lane, the key that its original was signed with, and its head, where that could
    /// be read.
    pub fn comes_in(&mut self, lane: Option<usize>, origin: u32, head: Option<&RecordHead<'_>>, now_ns: u64) {
        (self.lane, self.origin) = (lane, origin);
        (self.since_ns, self.held_since_ns) = (now_ns, now_ns);
        let Some(head) = head else { return };
        (self.attempt, self.failures) = (head.attempt, head.failures);
        self.not_before_ms = head.not_before_ms;
        (self.cut_at, self.uncut) = (head.events_at, head.count);
        self.open = head.count;
    }

    /// The due time in the record's head; 0 once it is due.
    pub const fn not_before_ms(&self) -> i64 {
        self.not_before_ms
    }

    /// Brings a due time that is later than this back to it; returns whether it was later.
    pub fn bring_forward_to(&mut self, latest_ms: i64) -> bool {
        let is_later = self.not_before_ms > latest_ms;
        self.not_before_ms = self.not_before_ms.min(latest_ms);
        is_later
    }

    /// Notes that the record is due.
    pub const fn becomes_due(&mut self) {
        self.not_before_ms = 0;
    }

    /// Since when its own work is under way.
    pub const fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// When the head-of-line deadline began to count.
    pub const fn held_since_ns(&self) -> u64 {
        self.held_since_ns
    }

    /// Notes that its own work begins.
    pub const fn work_begins(&mut self, now_ns: u64) {
        self.since_ns = now_ns;
        self.held_since_ns = now_ns;
    }

    /// Lets it wait on, for another deadline.
    pub const fn holds_on(&mut self, now_ns: u64) {
        self.held_since_ns = now_ns;
    }

    /// Where its uncut events wait.
    pub const fn place(&self) -> Place {
        self.place
    }

    /// Notes that its uncut events wait there from now on.
    pub const fn moves_to(&mut self, place: Place) {
        self.place = place;
    }

    /// The number of events that were not cut yet.
    pub const fn uncut(&self) -> u32 {
        self.uncut
    }

    /// Notes that events of it were asked for and not decided. What waits for its turn with the downstream was not asked for.
    pub fn was_not_decided(&mut self, waits_for_its_turn: bool, now_ns: u64) {
        let since_ns = self.undecided_since_ns.unwrap_or(now_ns);
        self.undecided_since_ns = (!waits_for_its_turn).then_some(since_ns);
        self.undecided_at_ns = now_ns;
    }

    /// Whether events of it were asked for and not decided then already, and again after that.
    pub fn is_undecided_since(&self, since_ns: u64) -> bool {
        self.undecided_since_ns.is_some_and(|undecided_ns| undecided_ns <= since_ns)
            && self.undecided_at_ns > since_ns
    }

    /// Whether it is past its deadline.
    pub const fn is_overdue(&self) -> bool {
        self.is_overdue
    }

    /// Notes that it is past its deadline.
    pub const fn becomes_overdue(&mut self) {
        self.is_overdue = true;
    }

    /// Cuts up to `most` events off the front, as slices of the payload.
    pub fn cut(&mut self, most: u32, out: &mut Vec<Bytes>) -> Result<u32, Malformed> {
        let take = most.min(self.uncut);
        self.cut_at = self.read(take, out)?;
        self.uncut -= take;
        Ok(take)
    }

    /// The events that were not cut yet, as slices of the payload.
    pub fn uncut_events(&self) -> Result<Vec<Bytes>, Malformed> {
        let mut events = Vec::with_capacity(self.uncut as usize);
        self.read(self.uncut, &mut events)?;
        Ok(events)
    }

    /// Reads so many uncut events, and returns where the next one stands.
    fn read(&self, take: u32, out: &mut Vec<Bytes>) -> Result<usize, Malformed> {
        let mut reader = Reader::new(&self.payload[self.cut_at..]);
        for _ in 0..take {
            let (_, Value::Len(event)) = reader.field()? else {
                return Err(reader.malformed("an event"));
            };
            let end = self.cut_at + reader.position();
            out.push(self.payload.slice(end - event.len()..end));
        }
        Ok(self.cut_at + reader.position())
    }

    /// The bonus type as the record itself names it; `None` where the record is malformed.
    pub fn bonus_type(&self) -> Option<&str> {
        record::split(&self.payload).ok().map(|(head, _)| head.bonus_type)
    }
}

impl InFlightTable {
    pub fn new(acks: Acks) -> Self {
        Self { finished: (acks == Acks::Each).then(Vec::new), ..Self::default() }
    }

    /// Takes the finished records that the broker was not told of yet.
    pub fn take_finished(&mut self) -> Vec<Position> {
        self.finished.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Notes that the broker did not learn of these records, so that it is told again.
    pub fn tell_again(&mut self, untold: Vec<Position>) {
        if let Some(finished) = &mut self.finished {
            finished.extend(untold);
        }
    }

    /// The number of finished records that the broker was not told of yet.
    pub fn finished(&self) -> usize {
        self.finished.as_ref().map_or(0, Vec::len)
    }

    pub fn insert(&mut self, record: InFlightRecord) -> Key {
        self.bytes += record.payload.len() as u64;
        if let Some(index) = self.free.pop() {
            let (generation, slot) = &mut self.slots[index as usize];
            *slot = Some(record);
            return Key { index, generation: *generation };
        }
        // Far fewer records fit in memory than u32 counts.
        let index = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        self.slots.push((0, Some(record)));
        Key { index, generation: 0 }
    }

    #[inline]
    pub fn get(&self, key: Key) -> Option<&InFlightRecord> {
        let (generation, slot) = self.slots.get(key.index as usize)?;
        slot.as_ref().filter(|_| *generation == key.generation)
    }

    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut InFlightRecord> {
        let (generation, slot) = self.slots.get_mut(key.index as usize)?;
        slot.as_mut().filter(|_| *generation == key.generation)
    }

    pub fn remove(&mut self, key: Key) -> Option<InFlightRecord> {
        let (generation, slot) = self.slots.get_mut(key.index as usize)?;
        if *generation != key.generation {
            return None;
        }
        let record = slot.take()?;
        self.bytes = self.bytes.saturating_sub(record.payload.len() as u64);
        *generation = generation.wrapping_add(1);
        self.free.push(key.index);
        Some(record)
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Bytes of all records in flight, wherever they are: in lanes, in the delay queue, in calls, being requeued or
    /// being archived.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// All records in flight.
    pub fn iter(&self) -> impl Iterator<Item = &InFlightRecord> {
        self.slots.iter().filter_map(|(_, slot)| slot.as_ref())
    }

    /// The keys of a partition's records.
    pub fn keys_of(&self, partition: u32) -> Vec<Key> {
        let of_it = |record: &&InFlightRecord| record.position.partition == partition;
        let key = |(index, (generation, slot)): (u32, &(u32, Option<InFlightRecord>))| {
            slot.as_ref().filter(of_it).map(|_| Key { index, generation: *generation })
        };
        (0_u32..).zip(&self.slots).filter_map(key).collect()
    }

    /// The records that have come in, and for which `find` finds something in their payload.
    pub fn admitted<T>(&self, find: impl Fn(&[u8]) -> Option<T>) -> Vec<(Key, T)> {
        let of_slot = |(index, (generation, slot)): (u32, &(u32, Option<InFlightRecord>))| {
            let record = slot.as_ref().filter(|record| record.lane.is_some() || record.uncut > 0)?;
            Some((Key { index, generation: *generation }, find(&record.payload)?))
        };
        (0_u32..).zip(&self.slots).filter_map(of_slot).collect()
    }

    /// Settles `events` events of a record. The last one finishes the record; returns whether it did.
    #[inline]
    pub fn settle(&mut self, key: Key, events: u32) -> bool {
        let Some(record) = self.get_mut(key) else { return false };
        record.open = record.open.saturating_sub(events);
        if record.open > 0 {
            return false;
        }
        // I3: this is the only place that finishes a record, and every event of it is settled.
        if let Some(record) = self.remove(key) {
            if let Some(finished) = &mut self.finished {
                finished.push(record.position);
            }
            if let Some(ticket) = record.ticket {
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

    pub(crate) fn record_in(partition: u32) -> InFlightRecord {
        let position = Position { partition, epoch: Epoch(1), offset: 0 };
        InFlightRecord::whole(position, None, Bytes::new(), 0)
    }

    /// A record with one event that was not cut yet, whose work is under way since then.
    pub(crate) fn uncut_since(since_ns: u64) -> InFlightRecord {
        InFlightRecord { uncut: 1, since_ns, ..record_in(0) }
    }

    #[test]
    fn a_key_means_nothing_once_its_record_is_finished() {
        let mut table = InFlightTable::default();
        let first = table.insert(InFlightRecord { open: 3, ..record_in(1) });
        assert!(!table.settle(first, 2));
        assert!(table.settle(first, 1));
        let second = table.insert(record_in(2));
        assert!(table.get(first).is_none() && table.remove(first).is_none());
        assert!(!table.settle(first, 1), "a late answer must not settle the place's next record");
        assert_eq!((table.keys_of(1), table.keys_of(2)), (vec![], vec![second]));
    }
}
