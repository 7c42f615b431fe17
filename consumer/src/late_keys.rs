//! Records that are refused now and may be good ones: this process may be behind their sender, with its ring of keys, or
//! with the rules that say which topics a queue has. They wait, within bounds, while the ring and the rules are read again.
//!
//! A key is waited for from the first record that names it, and after that time not again for a while, so somebody who writes
//! garbage cannot have each record of it wait. What is still refused then goes to the archive, and a replay verifies it by the
//! ring of that time. Another ring, or other rules, end both times.

use crate::in_flight::{InFlightTable, Key};
use crate::units::NS_PER_MS;
use std::collections::BTreeMap;
use windfall_signing::Refused;

/// How long a key is waited for: processes look at the file of their keys every 5 seconds, and once more when a look fails.
const WAIT_NS: u64 = 15_000 * NS_PER_MS;
/// The age at which a record waits no longer, however often the ring and the rules change meanwhile.
const AGE_MAX_NS: u64 = 4 * WAIT_NS;
/// The number of records that wait at most.
const RECORDS_MAX: usize = 8_192;
/// How long a key that was waited for in vain is not waited for again.
const REST_NS: u64 = 4 * WAIT_NS;
/// How far above the ring's highest number a key may be to be waited for: an operator adds one key for each sender. A number
/// below is that of no key, since a ring keeps those of its destroyed ones.
const AHEAD_MAX: u32 = 32;
/// The number of keys that are waited for at most, or were in vain a short time ago. Those that are ahead of one ring fit.
const LACKS_MAX: usize = 64;

/// What a record waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lack {
    /// A ring with the key of this number.
    Key(u32),
    /// Rules by which this topic belongs to the queue that the record was signed for.
    Rules,
}

/// The records that wait.
#[derive(Debug, Default)]
pub(crate) struct LateKeys {
    waiting: Vec<Waiting>,
    bytes: u64,
    /// Until when each is waited for. It stays for a while when that time is over.
    until_ns: BTreeMap<Lack, u64>,
}

#[derive(Debug)]
struct Waiting {
    key: Key,
    lack: Lack,
    bytes: u64,
}

impl Lack {
    const fn of(refused: &Refused) -> Option<Self> {
        match (refused.lacks(), refused) {
            (Some(key), _) => Some(Self::Key(key)),
            (None, Refused::WrongQueue { .. }) => Some(Self::Rules),
            (None, _) => None,
        }
    }
}

impl LateKeys {
    /// Whether a record that came then may wait, or wait on.
    pub const fn takes_since(since_ns: u64, now_ns: u64) -> bool {
        now_ns.saturating_sub(since_ns) < AGE_MAX_NS
    }

    /// Whether another ring could have what is lacking, if the highest number of this one is `highest`.
    pub fn can_come(refused: &Refused, highest: u32) -> bool {
        refused.lacks().is_none_or(|key| key > highest && key - highest <= AHEAD_MAX)
    }

    /// Lets a record wait, if that can help and there is room; says whether it waits. `bytes_max` bounds all that wait.
    pub fn wait(&mut self, key: Key, refused: &Refused, bytes: u64, bytes_max: u64, now_ns: u64) -> bool {
        let Some(lack) = Lack::of(refused) else { return false };
        self.until_ns.retain(|_, until_ns| now_ns < until_ns.saturating_add(REST_NS));
        let is_known = self.until_ns.contains_key(&lack);
        let has_room = self.waiting.len() < RECORDS_MAX && self.bytes.saturating_add(bytes) <= bytes_max;
        if !has_room || (!is_known && self.until_ns.len() >= LACKS_MAX) {
            return false;
        }
        if now_ns >= *self.until_ns.entry(lack).or_insert(now_ns.saturating_add(WAIT_NS)) {
            return false;
        }
        self.bytes += bytes;
        self.waiting.push(Waiting { key, lack, bytes });
        true
    }

    /// Takes all that wait, in the order in which they came: there is another ring, or there are other rules.
    pub fn take_all(&mut self) -> Vec<Key> {
        self.until_ns.clear();
        self.take_where(|_| true)
    }

    /// Takes those that were waited for in vain, and those that `is_in_the_way` names.
    pub fn take_overdue(&mut self, is_in_the_way: impl Fn(Key) -> bool, now_ns: u64) -> Vec<Key> {
        let until_ns = std::mem::take(&mut self.until_ns);
        let is_over = |lack| until_ns.get(&lack).is_none_or(|until_ns| now_ns >= *until_ns);
        let taken = self.take_where(|own| is_over(own.lack) || is_in_the_way(own.key));
        self.until_ns = until_ns;
        taken
    }

    fn take_where(&mut self, is_taken: impl Fn(&Waiting) -> bool) -> Vec<Key> {
        let (taken, stay): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(is_taken);
        self.waiting = stay;
        self.bytes -= taken.iter().map(|own| own.bytes).sum::<u64>();
        taken.into_iter().map(|own| own.key).collect()
    }

    /// Forgets those that are not in flight any more.
    pub fn forget_gone(&mut self, table: &InFlightTable) {
        drop(self.take_where(|own| table.get(own.key).is_none()));
    }

    /// The number of records that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::tests::record_in;

    const LATE: Refused = Refused::UnknownKey { key: 7 };

    fn keys(table: &mut InFlightTable, many: usize) -> Vec<Key> {
        (0..many).map(|_| table.insert(record_in(0))).collect()
    }

    #[test]
    fn a_key_is_waited_for_once_until_the_ring_changes() {
        let mut table = InFlightTable::default();
        let own = keys(&mut table, 4);
        let mut late = LateKeys::default();
        assert!(late.wait(own[0], &LATE, 10, 100, 1_000));
        assert!(late.wait(own[1], &Refused::UnknownOrigin { origin: 7 }, 10, 100, WAIT_NS), "the same key");
        assert!(late.wait(own[2], &Refused::WrongQueue { key: 1 }, 10, 100, WAIT_NS), "rules");
        assert!(late.take_overdue(|_| false, WAIT_NS + 999).is_empty());
        assert_eq!(late.take_overdue(|_| false, WAIT_NS + 1_000), [own[0], own[1]]);
        assert!(!late.wait(own[0], &LATE, 10, 100, WAIT_NS + 1_000), "it was waited for");
        assert_eq!(late.take_all(), [own[2]]);
        assert!(late.wait(own[0], &LATE, 10, 100, WAIT_NS + 1_000), "by another ring");
        assert_eq!(late.take_overdue(|key| key == own[0], WAIT_NS + 1_000), [own[0]], "it is in the way");
        assert_eq!((late.len(), late.bytes), (0, 0));
    }

    /// A number that somebody has named in advance is not lost for good.
    #[test]
    fn a_key_that_was_waited_for_in_vain_is_waited_for_again_after_a_rest() {
        let mut table = InFlightTable::default();
        let own = keys(&mut table, 2);
        let mut late = LateKeys::default();
        assert!(late.wait(own[0], &LATE, 10, 100, 0));
        assert_eq!(late.take_overdue(|_| false, WAIT_NS), [own[0]]);
        assert!(!late.wait(own[1], &LATE, 10, 100, WAIT_NS + REST_NS - 1));
        assert!(late.wait(own[1], &LATE, 10, 100, WAIT_NS + REST_NS));
    }

    /// Numbers that no next ring can have are not waited for, so those that one can have always find a place.
    #[test]
    fn only_keys_a_little_ahead_of_the_ring_can_come() {
        let can_come = |key, highest| LateKeys::can_come(&Refused::UnknownKey { key }, highest);
        assert!(can_come(8, 7) && can_come(7 + AHEAD_MAX, 7));
        assert!(!can_come(8 + AHEAD_MAX, 7) && !can_come(7, 7) && !can_come(0, 7));
        assert!(can_come(u32::MAX, u32::MAX - 1) && !can_come(1, u32::MAX));
        assert!(LateKeys::can_come(&Refused::WrongQueue { key: 1 }, 7));
        let mut table = InFlightTable::default();
        let own = keys(&mut table, 1);
        let mut late = LateKeys::default();
        let named = |key: u32| Refused::UnknownKey { key };
        let near = (0..10_000).map(named).filter(|own| LateKeys::can_come(own, 7));
        assert!(near.into_iter().all(|refused| late.wait(own[0], &refused, 0, 100, 0)));
        assert!(late.wait(own[0], &Refused::WrongQueue { key: 1 }, 0, 100, 0), "there is room for rules");
    }

    #[test]
    fn what_no_ring_makes_good_does_not_wait() {
        let mut table = InFlightTable::default();
        let own = keys(&mut table, 1);
        let mut late = LateKeys::default();
        let never = [Refused::Unsigned, Refused::Forged { key: 1 }, Refused::DestroyedKey { key: 1 }];
        for refused in
            never.iter().chain(&[Refused::OriginGone { origin: 1 }, Refused::Version { version: 2 }])
        {
            assert!(!late.wait(own[0], refused, 1, 100, 0), "{refused}");
        }
    }

    /// I9: garbage under many numbers takes no more than this, of memory and of time.
    #[test]
    fn what_waits_is_bounded() {
        let mut table = InFlightTable::default();
        let own = keys(&mut table, RECORDS_MAX + 1);
        let mut late = LateKeys::default();
        assert!(late.wait(own[0], &LATE, 100, 100, 0) && !late.wait(own[1], &LATE, 1, 100, 0), "bytes");
        late.take_all();
        let waits = own.iter().filter(|key| late.wait(**key, &LATE, 0, 100, 0)).count();
        assert_eq!(waits, RECORDS_MAX);
        late.take_all();
        let named = |key: u32| Refused::UnknownKey { key };
        let waits = (0..1_000).filter(|key| late.wait(own[0], &named(*key), 0, 100, 0)).count();
        assert_eq!(waits, LACKS_MAX);
        assert_eq!(late.take_overdue(|_| false, WAIT_NS).len(), LACKS_MAX);
        assert!((0..2_000).all(|key| !late.wait(own[0], &named(key), 0, 100, WAIT_NS)), "none of them again");
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut table = InFlightTable::default();
        let own = keys(&mut table, 3);
        let mut late = LateKeys::default();
        own.iter().for_each(|key| assert!(late.wait(*key, &LATE, 5, 100, 0)));
        table.remove(own[1]);
        late.forget_gone(&table);
        assert_eq!((late.len(), late.bytes), (2, 10));
        assert_eq!(late.take_all(), [own[0], own[2]]);
    }
}
