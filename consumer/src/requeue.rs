//! Writing events back to a queue: what a copy looks like, when it is due, and where it goes.

use crate::held::Key;
use crate::stats::Cause;
use bytes::Bytes;
use std::sync::Arc;
use windfall_contract::rules::Pacing;
use windfall_proto::event::{self, EventRef};
use windfall_proto::record::{self, Head};

/// Events that one copy carries at most, as the SDK packs them.
pub(crate) const COPY_EVENTS_MAX: usize = 256;
/// Bytes of events that one copy carries at most; one event alone may be larger.
pub(crate) const COPY_BYTES_MAX: usize = 64 << 10;
/// Copies on their way at once; more wait for one of these to be answered.
pub(crate) const COPIES_ON_THE_WAY_MAX: usize = 1024;

/// Copies being made that an event is compared with, the latest: records that are not due yet may have a fate each,
/// and a whole room of them goes back at once when the consumer closes.
const OPEN_COMPARED: usize = 64;

/// A record to write to one of the candidate queues of its first event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requeued {
    /// The bonus type of its events; empty for a malformed record that the archive would not take.
    pub bonus_type: String,
    /// The first event's activity; with `scene` and `bonus_type` it finds the route.
    pub activity: String,
    /// The first event's scene.
    pub scene: String,
    /// The first event's user, who picks master or backup.
    pub first_user_id: i64,
    /// The partition key: the first event's order number followed by the attempt.
    pub key: Vec<u8>,
    /// The record's bytes.
    pub payload: Vec<u8>,
    /// Events in it.
    pub events: u32,
}

/// What became of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequeueOutcome {
    /// A broker has acknowledged it.
    Stored,
    /// No candidate took it, or nobody knows: it goes to the salvage file.
    Refused,
}

/// What [`Outlet::requeue`] calls, once, when a copy's fate is known. Dropped uncalled it counts as refused.
pub type Done = Box<dyn FnOnce(RequeueOutcome) + Send>;

/// Where copies go: the virtual queues, in a process that is wired up.
pub trait Outlet: Send + Sync {
    /// Tries the candidate queues of the record's route. Never blocks; `done` may be called before it returns,
    /// or later from any thread.
    fn requeue(&self, record: Requeued, done: Done);
}

/// A copy being made: events of one type with the same past, from any number of records.
#[derive(Debug)]
pub(crate) struct Copy {
    pub bonus_type: Arc<str>,
    /// The attempt that it will be.
    pub attempt: u32,
    pub failures: u32,
    pub not_before_ms: i64,
    /// The least delay that anybody asked for.
    pub after_ms: u64,
    pub body: Body,
    pub parts: Vec<(Key, u32)>,
}

#[derive(Debug)]
pub(crate) enum Body {
    Events(Vec<Bytes>),
    /// A malformed record as it came.
    Raw(Bytes),
}

/// The past and the future of an event that goes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fate {
    pub bonus_type: Arc<str>,
    pub attempt: u32,
    pub failures: u32,
    pub not_before_ms: i64,
    pub cause: Cause,
}

/// Gathers events that go back until the end of the loop's turn.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    open: Vec<(Copy, usize)>,
    full: Vec<Copy>,
}

impl Outbox {
    /// Adds one event of a record. Its record stays unfinished until the copy is stored (I3).
    pub fn push(&mut self, fate: &Fate, after_ms: u64, key: Key, event: Bytes) {
        let fits = |copy: &Copy| {
            copy.attempt == fate.attempt.saturating_add(1)
                && copy.failures == fate.failures
                && copy.not_before_ms == fate.not_before_ms
                && *copy.bonus_type == *fate.bonus_type
        };
        let lately = self.open.len().saturating_sub(OPEN_COMPARED);
        let at = match self.open[lately..].iter().rposition(|(copy, _)| fits(copy)) {
            Some(at) => lately + at,
            None => {
                self.open.push((Copy::of(fate), 0));
                self.open.len() - 1
            }
        };
        let (copy, bytes) = &mut self.open[at];
        copy.after_ms = copy.after_ms.max(after_ms);
        *bytes += event.len();
        let Body::Events(events) = &mut copy.body else { return };
        events.push(event);
        match copy.parts.last_mut() {
            Some((last, count)) if *last == key => *count += 1,
            _ => copy.parts.push((key, 1)),
        }
        if events.len() >= COPY_EVENTS_MAX || *bytes >= COPY_BYTES_MAX {
            let (copy, _) = self.open.swap_remove(at);
            self.full.push(copy);
        }
    }

    pub fn push_raw(&mut self, key: Key, record: Bytes) {
        self.full.push(Copy {
            bonus_type: "".into(),
            attempt: 0,
            failures: 0,
            not_before_ms: 0,
            after_ms: 0,
            body: Body::Raw(record),
            parts: vec![(key, 1)],
        });
    }

    /// All copies, due times set.
    pub fn take(&mut self, pacing: &Pacing, wall_ms: i64, jitter: &mut Jitter) -> Vec<Copy> {
        self.full.extend(self.open.drain(..).map(|(copy, _)| copy));
        for copy in &mut self.full {
            // What is not due yet keeps its due time, or it would be put off with every trip.
            if copy.not_before_ms > wall_ms {
                continue;
            }
            let delay_ms = jitter.of(delay_ms(pacing, copy.attempt)).max(copy.after_ms);
            let due_ms = wall_ms.saturating_add(i64::try_from(delay_ms).unwrap_or(i64::MAX));
            copy.not_before_ms = copy.not_before_ms.max(due_ms);
        }
        std::mem::take(&mut self.full)
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.full.is_empty()
    }
}

impl Copy {
    fn of(fate: &Fate) -> Self {
        Self {
            bonus_type: Arc::clone(&fate.bonus_type),
            attempt: fate.attempt.saturating_add(1),
            failures: fate.failures,
            not_before_ms: fate.not_before_ms,
            after_ms: 0,
            body: Body::Events(Vec::new()),
            parts: Vec::new(),
        }
    }

    /// Events in it; 1 for a malformed record.
    pub fn events(&self) -> u32 {
        match &self.body {
            Body::Events(events) => u32::try_from(events.len()).unwrap_or(u32::MAX),
            Body::Raw(_) => 1,
        }
    }

    /// The record to write.
    pub fn build(&self) -> Requeued {
        let events = match &self.body {
            Body::Events(events) => events,
            Body::Raw(record) => return raw(record),
        };
        let head = Head {
            bonus_type: &self.bonus_type,
            attempt: self.attempt,
            failures: self.failures,
            not_before_ms: self.not_before_ms,
            count: self.events(),
        };
        let payload = record::build(head, events.iter().map(|event| &event[..]));
        let first = events.first().map(|event| &event[..]).unwrap_or_default();
        // An event that cannot be read still goes back; the reward service archives it when it is its turn.
        let view = EventRef::parse(first).unwrap_or_default();
        let trade_no = event::trade_no(first).unwrap_or_default();
        Requeued {
            bonus_type: self.bonus_type.to_string(),
            activity: view.activity.to_owned(),
            scene: view.scene.to_owned(),
            first_user_id: view.user_id,
            key: format!("{trade_no}{}", self.attempt).into_bytes(),
            payload,
            events: self.events(),
        }
    }
}

fn raw(record: &Bytes) -> Requeued {
    Requeued {
        bonus_type: String::new(),
        activity: String::new(),
        scene: String::new(),
        first_user_id: 0,
        key: crc32c::crc32c(record).to_be_bytes().to_vec(),
        payload: record.to_vec(),
        events: 1,
    }
}

/// Doubles with each attempt (1 is the first requeue), up to the longest.
fn delay_ms(pacing: &Pacing, attempt: u32) -> u64 {
    let doubled = 1_u64
        .checked_shl(attempt.saturating_sub(1).min(63))
        .and_then(|factor| pacing.requeue_delay_ms.checked_mul(factor));
    doubled.unwrap_or(u64::MAX).min(pacing.requeue_delay_max_ms)
}

/// Spreads delays, so that what failed together does not come back together. SplitMix64
/// (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
#[derive(Debug)]
pub(crate) struct Jitter(u64);

impl Jitter {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Between a half of `most` and all of it.
    pub fn of(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        most - mixed % (most / 2 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pacing() -> Pacing {
        Pacing {
            hold_max_ms: 1_000,
            deadline_ms: 30_000,
            requeue_delay_ms: 100,
            requeue_delay_max_ms: 60_000,
            max_failures: 5,
            grant_batch: 256,
            in_hand_max: 4096,
            lane_events_max: 10_000,
            lane_bytes_max: 8 << 20,
        }
    }

    #[test]
    fn delays_double_up_to_the_longest_and_never_overflow() {
        let delays: Vec<_> = [1, 2, 3, 10, 11, 64, u32::MAX].map(|n| delay_ms(&pacing(), n)).into();
        assert_eq!(delays, [100, 200, 400, 51_200, 60_000, 60_000, 60_000]);
    }

    #[test]
    fn jitter_stays_between_half_and_all() {
        let mut jitter = Jitter::new(7);
        let drawn: Vec<_> = (0..1000).map(|_| jitter.of(100)).collect();
        assert!(drawn.iter().all(|delay| (50..=100).contains(delay)));
        assert!(drawn.contains(&50) && drawn.contains(&100));
        assert_eq!(jitter.of(0), 0);
    }

    #[test]
    fn events_of_one_fate_travel_together_and_split_at_the_size_of_a_pack() {
        let mut outbox = Outbox::default();
        let mut book = crate::held::Book::default();
        let keys: Vec<_> = (0..3).map(|n| book.insert(crate::held::tests::held(n))).collect();
        let fate = Fate {
            bonus_type: "cash".into(),
            attempt: 2,
            failures: 1,
            not_before_ms: 0,
            cause: Cause::Failed,
        };
        for n in 0..300_u32 {
            outbox.push(&fate, n.into(), keys[n as usize / 100], Bytes::from_static(b"e"));
        }
        outbox.push(&Fate { failures: 2, ..fate }, 0, keys[0], Bytes::from_static(b"f"));
        let copies = outbox.take(&pacing(), 1_000_000, &mut Jitter::new(1));
        assert_eq!(copies.iter().map(Copy::events).collect::<Vec<_>>(), [256, 44, 1]);
        assert_eq!(copies[0].parts, [(keys[0], 100), (keys[1], 100), (keys[2], 56)]);
        assert_eq!((copies[1].attempt, copies[1].failures), (3, 1));
        // Attempt 3 is delayed by 200 to 400 ms, and by the 299 ms that somebody asked for at least.
        assert!((1_000_299..=1_000_400).contains(&copies[1].not_before_ms));
        let built = copies[1].build();
        let (head, events) = record::split(&built.payload).unwrap();
        assert_eq!((head.attempt, head.failures, head.count), (3, 1, 44));
        assert_eq!(events.filter(Result::is_ok).count(), 44);
    }

    #[test]
    fn an_attempt_at_the_end_of_its_range_stays_there_and_travels_packed() {
        let mut outbox = Outbox::default();
        let key = crate::held::Book::default().insert(crate::held::tests::held(0));
        let (bonus_type, attempt) = ("cash".into(), u32::MAX);
        let fate = Fate { bonus_type, attempt, failures: 0, not_before_ms: 0, cause: Cause::Limit };
        (0..2).for_each(|_| outbox.push(&fate, 0, key, Bytes::from_static(b"e")));
        let copies = outbox.take(&pacing(), 0, &mut Jitter::new(1));
        assert_eq!(
            copies.iter().map(|copy| (copy.attempt, copy.events())).collect::<Vec<_>>(),
            [(attempt, 2)]
        );
    }

    #[test]
    fn a_room_full_of_different_fates_goes_back_at_once() {
        let mut outbox = Outbox::default();
        let key = crate::held::Book::default().insert(crate::held::tests::held(0));
        let began = std::time::Instant::now();
        for not_before_ms in 0..100_000 {
            let bonus_type = "cash".into();
            let fate = Fate { bonus_type, attempt: 1, failures: 0, not_before_ms, cause: Cause::Drain };
            outbox.push(&fate, 0, key, Bytes::from_static(b"e"));
        }
        // Compared with each other they take 5 * 10^9 steps.
        assert!(began.elapsed().as_secs() < 2, "{:?}", began.elapsed());
        assert_eq!(outbox.take(&pacing(), 0, &mut Jitter::new(1)).len(), 100_000);
    }
}
