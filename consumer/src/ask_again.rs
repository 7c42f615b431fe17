//! Events that were asked for and not decided. They wait in place, in their lane, and are asked for again under the
//! same order number: nothing is copied for it, and a time-out is no reason to give up.

use crate::in_flight::{InFlightTable, Key};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// Events of one record with the same number of failed grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UndecidedEvents {
    pub key: Key,
    pub failures: u32,
    pub events: Vec<Bytes>,
}

/// The events of one lane that wait to be asked for again. They are cut out of their records already.
#[derive(Debug, Default)]
pub(crate) struct AskAgain {
    due: VecDeque<UndecidedEvents>,
    due_events: u64,
    /// The events by the time at which they may be asked for; the second number keeps the order in which they came.
    later: BTreeMap<(u64, u64), UndecidedEvents>,
    later_events: u64,
    came: u64,
}

impl AskAgain {
    /// Takes one event that may not be asked for before `at_ns`. Events of a record that come one after the other stay
    /// together.
    pub fn push_one(&mut self, key: Key, failures: u32, event: Bytes, at_ns: u64) {
        let last = self.came.checked_sub(1).and_then(|last| self.later.get_mut(&(at_ns, last)));
        match last.filter(|last| last.key == key && last.failures == failures) {
            Some(last) => {
                last.events.push(event);
                self.later_events += 1;
            }
            None => self.push(UndecidedEvents { key, failures, events: vec![event] }, at_ns),
        }
    }

    /// Takes events that may not be asked for before `at_ns`.
    pub fn push(&mut self, undecided: UndecidedEvents, at_ns: u64) {
        self.later_events += undecided.events.len() as u64;
        self.later.insert((at_ns, self.came), undecided);
        self.came += 1;
    }

    /// Makes events due whose time has come; returns how many events are due.
    pub fn make_due(&mut self, now_ns: u64) -> u64 {
        while let Some(first) = self.later.first_entry().filter(|first| first.key().0 <= now_ns) {
            let undecided = first.remove();
            self.later_events -= undecided.events.len() as u64;
            self.due_events += undecided.events.len() as u64;
            self.due.push_back(undecided);
        }
        self.due_events
    }

    /// Cuts at most `most` of the due events, in the order in which they became due.
    pub fn cut(&mut self, most: u64) -> Vec<UndecidedEvents> {
        let mut left = most;
        let mut out = Vec::new();
        while left > 0
            && let Some(mut first) = self.due.pop_front()
        {
            let take = usize::try_from(left).unwrap_or(usize::MAX).min(first.events.len());
            let rest = first.events.split_off(take);
            if !rest.is_empty() {
                self.due.push_front(UndecidedEvents { events: rest, ..first });
            }
            left -= take as u64;
            out.push(first);
        }
        self.due_events -= most - left;
        out
    }

    /// Takes out the events of the records that `leaves` names.
    pub fn take(&mut self, leaves: impl Fn(Key) -> bool) -> Vec<UndecidedEvents> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut out = Vec::new();
        for undecided in std::mem::take(&mut self.due) {
            if leaves(undecided.key) {
                self.due_events -= undecided.events.len() as u64;
                out.push(undecided);
            } else {
                self.due.push_back(undecided);
            }
        }
        for (_, undecided) in self.later.extract_if(.., |_, undecided| leaves(undecided.key)) {
            self.later_events -= undecided.events.len() as u64;
            out.push(undecided);
        }
        out
    }

    /// Forgets events of records that are no longer in flight: their partitions have another owner.
    pub fn forget_gone(&mut self, table: &InFlightTable) {
        drop(self.take(|key| table.get(key).is_none()));
    }

    /// The records of the events.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.due.iter().chain(self.later.values()).map(|undecided| undecided.key)
    }

    /// When the next events may be asked for; `None` where some may now, or none wait.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.later.first_key_value().map(|(&(at_ns, _), _)| at_ns).filter(|_| self.due.is_empty())
    }

    /// The number of events that are due, as of the last [`make_due`](Self::make_due).
    pub fn due_events(&self) -> u64 {
        self.due_events
    }

    /// The number of all events that wait.
    pub fn events(&self) -> u64 {
        self.due_events + self.later_events
    }

    pub fn is_empty(&self) -> bool {
        self.events() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::tests::record_in;

    fn events(count: usize) -> Vec<Bytes> {
        vec![Bytes::from_static(b"e"); count]
    }

    #[test]
    fn events_are_cut_when_they_are_due_in_the_order_of_their_times() {
        let mut table = InFlightTable::default();
        let (first, second) = (table.insert(record_in(0)), table.insert(record_in(1)));
        let mut again = AskAgain::default();
        again.push(UndecidedEvents { key: second, failures: 1, events: events(5) }, 200);
        again.push(UndecidedEvents { key: first, failures: 0, events: events(3) }, 100);
        assert_eq!((again.make_due(99), again.next_due_ns()), (0, Some(100)));
        assert_eq!((again.make_due(100), again.events()), (3, 8));
        again.make_due(200);
        let cut = again.cut(4);
        assert_eq!(
            cut.iter().map(|part| (part.key, part.events.len())).collect::<Vec<_>>(),
            [(first, 3), (second, 1)]
        );
        assert_eq!((again.due_events(), again.cut(9)[0].events.len(), again.events()), (4, 4, 0));
    }

    #[test]
    fn events_of_a_record_that_leaves_are_taken_wherever_they_wait() {
        let mut table = InFlightTable::default();
        let (goes, stays) = (table.insert(record_in(0)), table.insert(record_in(1)));
        let mut again = AskAgain::default();
        for (key, at_ns) in [(goes, 1), (stays, 1), (goes, 9), (stays, 9)] {
            again.push(UndecidedEvents { key, failures: 0, events: events(2) }, at_ns);
        }
        again.make_due(1);
        assert_eq!(again.take(|key| key == goes).len(), 2);
        assert_eq!((again.due_events(), again.events()), (2, 4));
        table.remove(stays);
        again.forget_gone(&table);
        assert!(again.is_empty());
    }
}
