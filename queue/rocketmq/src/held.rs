//! What a consumer has received and not finished: ready for a poll, or in the caller's hands.
//!
//! A record's handle changes when it is extended, and acknowledging an old one is answered OK and does nothing. So a
//! record is never extended and acknowledged at once: `Doing` says which of both is under way.
//!
//! The broker writes a delivery down under its first position and its time in ms, and an extension or a return as a new
//! delivery before it strikes out the old one: both in the same ms would strike out each other, and the record would
//! never come again. So a record is not given back at once after it came or was extended.

use super::payload;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};
use windfall_contract::broker::{Epoch, Fetch, InRecord};
use windfall_rocketmq_wire::{AckEntry, InMessage};

/// The wait before a record may be given back: a few times the millisecond that must not be shared.
const SETTLES: Duration = Duration::from_millis(5);

/// The records by their offsets, which count their arrivals here.
#[derive(Debug, Default)]
pub(super) struct Held {
    records: BTreeMap<u64, Record>,
    ready: VecDeque<u64>,
    ready_bytes: usize,
    next_offset: u64,
}

#[derive(Debug)]
struct Record {
    entry: AckEntry,
    /// Key and payload, until the record is handed over.
    content: Option<(Bytes, Bytes)>,
    hidden_until: Instant,
    /// When it came, or when its last extension came to its end.
    since: Instant,
    doing: Doing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Nothing,
    Extending,
    Acknowledging,
}

/// What `finish` finds of the records that are to be acknowledged.
#[derive(Debug, Default)]
pub(super) struct ToAck {
    /// Records that are now marked as being acknowledged; the caller reports how that went.
    pub(super) now: Vec<(u64, AckEntry)>,
    /// Records that are being extended: ask again when that is over.
    pub(super) later: Vec<u64>,
}

impl Held {
    pub(super) fn arrived(&mut self, message: InMessage, now: Instant, invisible: Duration) {
        let entry = AckEntry::of(&message);
        let content = payload::from_message(message);
        let offset = self.next_offset;
        self.next_offset += 1;
        self.ready_bytes += content.1.len();
        self.ready.push_back(offset);
        // Hidden since a moment ago, but the margin of extensions is half of the duration.
        let hidden_until = now + invisible;
        let (content, doing) = (Some(content), Doing::Nothing);
        self.records.insert(offset, Record { entry, content, hidden_until, since: now, doing });
    }

    /// Hands over what a poll may have.
    pub(super) fn take(&mut self, fetch: Fetch, partition: u32, epoch: Epoch) -> Vec<InRecord> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while taken.len() < fetch.max_records
            && let Some(offset) = self.ready.front().copied()
        {
            // Gone since: it comes again.
            let Some(record) = self.records.get_mut(&offset) else {
                self.ready.pop_front();
                continue;
            };
            let size = record.content.as_ref().map_or(0, |(_, payload)| payload.len());
            if !taken.is_empty() && bytes + size > fetch.max_bytes {
                break;
            }
            bytes += size;
            self.ready.pop_front();
            self.ready_bytes -= size;
            if let Some((key, payload)) = record.content.take() {
                taken.push(InRecord { partition, epoch, offset, key, payload });
            }
        }
        taken
    }

    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    pub(super) fn ready_bytes(&self) -> usize {
        self.ready_bytes
    }

    pub(super) fn unfinished(&self) -> usize {
        self.records.len()
    }

    /// Records whose hiding ends within `margin`, the longest untouched first: those whose extension hung lately come
    /// last.
    pub(super) fn due_to_extend(&self, now: Instant, margin: Duration) -> Vec<u64> {
        let due = |record: &Record| record.doing == Doing::Nothing && record.hidden_until < now + margin;
        let due = self.records.iter().filter(|(_, record)| due(record));
        let mut due: Vec<_> = due.map(|(offset, record)| (record.since, *offset)).collect();
        due.sort_unstable();
        due.into_iter().map(|(_, offset)| offset).collect()
    }

    /// Marks a record as being extended. `None` where something else is being done with it, or it is shown again.
    pub(super) fn begin_extend(&mut self, offset: u64, now: Instant) -> Option<AckEntry> {
        let record = self.records.get_mut(&offset)?;
        if record.doing != Doing::Nothing || record.hidden_until <= now {
            return None;
        }
        record.doing = Doing::Extending;
        Some(record.entry.clone())
    }

    /// Notes the end of an extension, which brought a new handle and time or left the old ones.
    pub(super) fn extended(&mut self, offset: u64, now: Instant, done: Option<(String, Instant)>) {
        if let Some(record) = self.records.get_mut(&offset) {
            (record.doing, record.since) = (Doing::Nothing, now);
            if let Some((handle, hidden_until)) = done {
                (record.entry.handle, record.hidden_until) = (handle, hidden_until);
            }
        }
    }

    /// Forgets records that are no longer hidden: they are no longer this member's, and the server delivers them again
    /// to some member. Returns how many there were.
    pub(super) fn forget_shown(&mut self, now: Instant) -> usize {
        let shown = |record: &Record| record.doing == Doing::Nothing && record.hidden_until <= now;
        let shown: Vec<_> =
            self.records.iter().filter(|(_, record)| shown(record)).map(|(offset, _)| *offset).collect();
        for offset in &shown {
            self.remove(*offset);
        }
        shown.len()
    }

    /// Marks records as being acknowledged. Unknown ones are passed over.
    pub(super) fn take_to_ack(&mut self, offsets: &[u64]) -> ToAck {
        let mut to_ack = ToAck::default();
        for offset in offsets {
            match self.records.get_mut(offset) {
                Some(record) if record.doing == Doing::Nothing => {
                    record.doing = Doing::Acknowledging;
                    to_ack.now.push((*offset, record.entry.clone()));
                }
                Some(record) if record.doing == Doing::Extending => to_ack.later.push(*offset),
                // Another call of `finish` is at it: its caller went away, and its task did not.
                Some(_) => to_ack.later.push(*offset),
                None => {}
            }
        }
        to_ack
    }

    /// How many of these records are no longer hidden: what was answered of them may have come too late.
    pub(super) fn shown_of(&self, offsets: impl Iterator<Item = u64>, now: Instant) -> usize {
        offsets
            .filter_map(|offset| self.records.get(&offset))
            .filter(|record| record.hidden_until <= now)
            .count()
    }

    /// Notes that a record was not acknowledged: it stays hidden, and may be acknowledged again.
    pub(super) fn not_acked(&mut self, offset: u64) {
        if let Some(record) = self.records.get_mut(&offset) {
            record.doing = Doing::Nothing;
        }
    }

    /// Removes a record that is acknowledged, or no longer this member's.
    pub(super) fn remove(&mut self, offset: u64) {
        if let Some(record) = self.records.remove(&offset)
            && let Some((_, payload)) = record.content
        {
            self.ready_bytes -= payload.len();
        }
    }

    /// Takes out, to be given back, every unfinished record that is not being extended or acknowledged now and was not
    /// just before. Also returns whether any record is left.
    pub(super) fn give_back(&mut self, now: Instant) -> (Vec<AckEntry>, bool) {
        let idle: Vec<_> = self
            .records
            .iter()
            .filter(|(_, record)| record.doing == Doing::Nothing && record.since + SETTLES <= now)
            .map(|(offset, record)| (*offset, record.entry.clone()))
            .collect();
        for (offset, _) in &idle {
            self.remove(*offset);
        }
        self.ready.clear();
        (idle.into_iter().map(|(_, entry)| entry).collect(), !self.records.is_empty())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // tests
    use super::*;
    use windfall_rocketmq_wire::Body;

    const HIDDEN: Duration = Duration::from_secs(10);

    fn held(count: usize, now: Instant) -> Held {
        let mut held = Held::default();
        for number in 0..count {
            held.arrived(
                InMessage {
                    id: number.to_string(),
                    handle: format!("first-{number}"),
                    properties: [].into(),
                    body: Body::Plain(vec![0; number].into()),
                    attempt: 1,
                },
                now,
                HIDDEN,
            );
        }
        held
    }

    const fn fetch(max_records: usize, max_bytes: usize) -> Fetch {
        Fetch { max_records, max_bytes, wait: Duration::ZERO }
    }

    #[test]
    fn a_poll_gets_what_it_may_have() {
        let mut held = held(10, Instant::now());
        let offsets = |held: &mut Held, fetch| -> Vec<u64> {
            held.take(fetch, 0, Epoch(1)).into_iter().map(|record| record.offset).collect()
        };
        assert!(offsets(&mut held, fetch(0, 100)).is_empty());
        assert_eq!(offsets(&mut held, fetch(2, 100)), [0, 1]);
        assert_eq!(offsets(&mut held, fetch(9, 5)), [2, 3]);
        // The first one comes whatever its size.
        assert_eq!(offsets(&mut held, fetch(9, 1)), [4]);
        assert_eq!(offsets(&mut held, fetch(9, 1000)), [5, 6, 7, 8, 9]);
        assert_eq!((held.ready(), held.ready_bytes(), held.unfinished()), (0, 0, 10));
    }

    #[test]
    fn extension_and_acknowledgement_never_meet() {
        let now = Instant::now();
        let mut held = held(2, now);
        assert!(held.due_to_extend(now, Duration::from_secs(5)).is_empty());
        let later = now + Duration::from_secs(6);
        assert_eq!(held.due_to_extend(later, Duration::from_secs(5)), [0, 1]);
        for offset in [0, 1] {
            assert!(held.begin_extend(offset, later).is_some());
            // Once is enough.
            assert!(held.begin_extend(offset, later).is_none());
        }
        assert!(held.due_to_extend(later, Duration::from_secs(5)).is_empty());
        let to_ack = held.take_to_ack(&[0, 1, 77]);
        assert_eq!((to_ack.now.len(), to_ack.later), (0, vec![0, 1]));
        held.extended(0, later, Some(("second-0".into(), later + HIDDEN)));
        let to_ack = held.take_to_ack(&[0]);
        assert_eq!(to_ack.now.first().map(|(_, entry)| entry.handle.as_str()), Some("second-0"));
        // Being acknowledged, it is neither extended nor forgotten.
        assert!(held.due_to_extend(later + HIDDEN, HIDDEN).is_empty());
        assert!(held.begin_extend(0, later).is_none());
        assert_eq!(held.forget_shown(later + 3 * HIDDEN), 0);
        held.not_acked(0);
        assert_eq!(held.due_to_extend(later + HIDDEN, HIDDEN), [0]);
        held.remove(0);
        assert_eq!(held.take_to_ack(&[0]).now.len(), 0);
    }

    /// One broker of two hangs: records that wait for their extension can be acknowledged, and those of the other
    /// broker have their turn.
    #[test]
    fn extensions_that_hang_do_not_hold_up_the_others() {
        let now = Instant::now();
        let mut held = held(3, now);
        let later = now + HIDDEN / 2;
        assert_eq!(held.due_to_extend(later, HIDDEN), [0, 1, 2]);
        held.begin_extend(0, later).unwrap();
        assert_eq!(held.take_to_ack(&[1]).now.len(), 1, "due, and not being extended");
        held.not_acked(1);
        held.extended(0, later + HIDDEN / 4, None);
        assert_eq!(held.due_to_extend(later + HIDDEN / 4, HIDDEN), [1, 2, 0]);
        assert!(held.begin_extend(1, now + HIDDEN).is_none(), "shown to others");
    }

    #[test]
    fn what_is_shown_again_is_forgotten() {
        let now = Instant::now();
        let mut held = held(3, now);
        held.take(fetch(1, 100), 0, Epoch(1));
        assert!(held.due_to_extend(now + HIDDEN, Duration::ZERO).is_empty());
        assert_eq!(held.forget_shown(now + HIDDEN), 3);
        assert_eq!((held.unfinished(), held.ready_bytes()), (0, 0));
        assert!(held.take(fetch(9, 100), 0, Epoch(1)).is_empty());
        assert!(held.take_to_ack(&[0, 1]).now.is_empty());
    }

    #[test]
    fn all_idle_is_given_back() {
        let now = Instant::now();
        let mut held = held(3, now);
        held.take_to_ack(&[1]);
        let (entries, left) = held.give_back(now + SETTLES);
        assert_eq!((entries.len(), left), (2, true));
        held.remove(1);
        assert!(!held.give_back(now + SETTLES).1);
        assert_eq!(held.ready(), 0);
    }

    /// In the ms of its delivery or extension a return would strike the record out at the broker.
    #[test]
    fn what_just_came_is_given_back_a_little_later() {
        let now = Instant::now();
        let mut held = held(2, now);
        let early = held.give_back(now + Duration::from_millis(1));
        assert_eq!((early.0.len(), early.1), (0, true));
        held.begin_extend(1, now).unwrap();
        held.extended(1, now + HIDDEN / 2, Some(("second-1".into(), now + HIDDEN)));
        let (entries, left) = held.give_back(now + HIDDEN / 2);
        assert_eq!((entries.len(), left), (1, true));
        let (entries, left) = held.give_back(now + HIDDEN / 2 + SETTLES);
        let handles: Vec<_> = entries.iter().map(|entry| entry.handle.as_str()).collect();
        assert_eq!((handles, left), (vec!["second-1"], false));
    }
}
