//! One bounded queue a bonus type, between fetch and grant, so that a slow type cannot block another.
//!
//! - Bound: what the type may pass within `hold_max`, at most `lane_events_max` events and `lane_bytes_max`
//!   bytes. So whoever is let in waits no longer than `hold_max` for his own limit, and room opens at the pace at
//!   which the lane passes: fetching what fits is fetching at that pace.
//! - Order: lanes are served by priority, so what the global bucket has goes to cash first.
//! - Grants in flight: half of `in_hand_max` is shared by all lanes, the other half is split into a part for each,
//!   so a type whose downstream hangs leaves the others theirs.

use crate::held::{Book, Key, Place};
use crate::stats::TypeStats;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use windfall_contract::rules::{Fuse, Pacing, Rules, TypeLimit};
use windfall_limiter::{Limiter, TypeId};

/// The longest that a lane whose downstream decides nothing waits between calls.
const BACKOFF_MAX_NS: u64 = 1_000_000_000;
const BACKOFF_MIN_NS: u64 = 5_000_000;
/// A limited lane asks again no sooner than this, so that grants come in batches; less where its burst would
/// overflow meanwhile.
const ASK_EVERY_NS: u64 = 2_000_000;

/// Fewer events than a batch wait at most so long behind a call of the same lane for more to come.
pub(crate) const GATHER_NS: u64 = 2_000_000;

/// The lane of one bonus type.
#[derive(Debug)]
pub(crate) struct Lane {
    pub name: Arc<str>,
    pub id: TypeId,
    /// `None` once the rules no longer have the type.
    pub rule: Option<TypeLimit>,
    pub stats: Arc<TypeStats>,
    queue: VecDeque<Key>,
    /// Events that wait, not counting what was cut.
    pub events: u64,
    /// Bytes of the records that wait.
    pub bytes: u64,
    pub bound_events: u64,
    pub bound_bytes: u64,
    /// Events in calls.
    pub granting: u64,
    pub calls: u32,
    /// Nothing is asked of limiter or downstream before.
    pub ask_at_ns: u64,
    /// Where fewer events than a batch wait behind a call: since when.
    pub gathering_since_ns: Option<u64>,
    /// The least time between two questions to the limiter.
    pub ask_every_ns: u64,
    backoff_ns: u64,
    /// When events last passed, or came to an empty lane.
    pub passed_ns: u64,
    /// The limiter has let pass less than there was, when it was asked last.
    pub is_limited: bool,
    /// Events that came lately; a moving sum over the last polls.
    pub recent_events: u64,
}

/// All lanes.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    pub all: Vec<Lane>,
    /// Indices by priority.
    pub by_priority: Vec<usize>,
    last_found: usize,
}

/// Part of a record in a grant call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    /// `None` once its events were requeued: then the answer is not waited for.
    pub key: Option<Key>,
    pub events: u32,
}

impl Lane {
    pub fn fuse(&self) -> Fuse {
        self.rule.map_or(Fuse::Closed, |rule| rule.fuse)
    }

    /// Whether a record may come in. An empty lane takes any, or a record larger than the bound would never pass.
    pub fn has_room(&self, events: u32, bytes: usize) -> bool {
        self.events == 0 && self.bound_events > 0
            || self.events + u64::from(events) <= self.bound_events
                && self.bytes + bytes as u64 <= self.bound_bytes
    }

    /// Records of so many events that fit with an eighth to spare; 0 while less than a quarter is free.
    pub fn records_that_fit(&self, a_record: u64) -> u64 {
        let room = (self.bound_events - self.bound_events / 8).saturating_sub(self.events);
        match room / a_record {
            0 if self.events == 0 && self.bound_events > 0 => 1,
            _ if room * 4 < self.bound_events => 0,
            records => records,
        }
    }

    pub fn push(&mut self, key: Key, events: u32, bytes: usize, now_ns: u64) {
        if self.events == 0 {
            self.passed_ns = now_ns;
        }
        self.queue.push_back(key);
        self.events += u64::from(events);
        self.bytes += bytes as u64;
    }

    /// A record that waits here goes elsewhere; its key is passed over later.
    pub fn forget(&mut self, events: u32, bytes: usize) {
        self.events = self.events.saturating_sub(u64::from(events));
        self.bytes = self.bytes.saturating_sub(bytes as u64);
        if self.events == 0 {
            self.queue.clear();
            self.gathering_since_ns = None;
        }
    }

    /// Cuts `events` events off the front, across records.
    pub fn cut(&mut self, book: &mut Book, events: u32) -> (Vec<Bytes>, Vec<Segment>) {
        let mut out = Vec::with_capacity(events as usize);
        let mut segments = Vec::new();
        let mut left = events;
        while left > 0 {
            let Some(&key) = self.queue.front() else { break };
            let Some(held) = book.get_mut(key).filter(|held| held.place == Place::Lane) else {
                self.queue.pop_front();
                continue;
            };
            // Every record was walked from end to end on arrival, so cutting does not fail.
            let taken = held.cut(left, &mut out).unwrap_or(0);
            self.events = self.events.saturating_sub(u64::from(taken));
            if held.uncut == 0 || taken == 0 {
                held.place = Place::Gone;
                self.bytes = self.bytes.saturating_sub(held.payload.len() as u64);
                self.queue.pop_front();
            }
            left -= taken;
            segments.push(Segment { key: Some(key), events: taken });
        }
        (out, segments)
    }

    /// Frees the keys of records that went elsewhere (I9): while nothing passes here none is passed over. There is
    /// an event at least for each that is alive.
    pub fn compact(&mut self, book: &Book) {
        if self.queue.len() > 1024 && self.queue.len() as u64 > 2 * self.events {
            self.queue.retain(|&key| book.get(key).is_some_and(|held| held.place == Place::Lane));
        }
    }

    /// The keys of the records that wait, and of some that no longer do.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = Key> + '_ {
        self.queue.iter().copied()
    }

    /// When it is worth asking for it again; `None` where nothing waits or nothing may pass by itself.
    pub fn wants_to_go_ns(&self) -> Option<u64> {
        let gathered_ns = self.gathering_since_ns.map_or(0, |since_ns| since_ns + GATHER_NS);
        (self.events > 0 && self.fuse() == Fuse::Closed).then(|| self.ask_at_ns.max(gathered_ns))
    }

    pub fn backed_off(&mut self, now_ns: u64) {
        self.backoff_ns = (self.backoff_ns * 2).clamp(BACKOFF_MIN_NS, BACKOFF_MAX_NS);
        self.ask_at_ns = self.ask_at_ns.max(now_ns + self.backoff_ns);
    }

    pub fn decided(&mut self) {
        self.backoff_ns = 0;
    }

    fn set_bounds(&mut self, pacing: &Pacing, may_pass_per_s: f64) {
        let most = u64::from(pacing.lane_events_max);
        self.bound_bytes = pacing.lane_bytes_max;
        self.bound_events = match self.fuse() {
            Fuse::Pause => most,
            // 0 where nothing may pass at all; else at least a call's worth, so that calls stay whole.
            _ if may_pass_per_s <= 0.0 => 0,
            _ => whole(may_pass_per_s * whole_f64(pacing.hold_max_ms) / 1_000.0)
                .clamp(u64::from(pacing.grant_batch).min(most), most),
        };
        let burst = self.rule.map_or(1, |rule| rule.limit.burst);
        let burst_lasts_ns = whole(f64::from(burst) / may_pass_per_s.max(1e-9) * 0.5e9);
        self.ask_every_ns = ASK_EVERY_NS.min(burst_lasts_ns);
    }
}

impl Lanes {
    /// Takes over the types of new rules. Lanes stay for types that went, so that what waits there finds its way.
    pub fn apply(&mut self, rules: &Rules, limiter: &Limiter, stats: impl Fn(&str) -> Arc<TypeStats>) {
        for name in rules.limits.types.keys() {
            if self.all.iter().all(|lane| *lane.name != **name) {
                self.all.push(Lane::new(name, limiter.type_id(name), stats(name)));
            }
        }
        for lane in &mut self.all {
            lane.rule = rules.limits.types.get(&*lane.name).copied();
            lane.ask_at_ns = 0;
        }
        self.by_priority = (0..self.all.len()).collect();
        self.by_priority.sort_by_key(|&at| self.all[at].rule.map_or(u8::MAX, |rule| rule.priority));
        self.set_bounds(&rules.pacing, limiter);
    }

    pub fn set_bounds(&mut self, pacing: &Pacing, limiter: &Limiter) {
        for lane in &mut self.all {
            lane.set_bounds(pacing, limiter.may_pass_per_s(lane.id));
        }
    }

    /// The lane of a type that the rules have.
    #[inline]
    pub fn find(&mut self, bonus_type: &str) -> Option<usize> {
        let is = |lane: &Lane| *lane.name == *bonus_type;
        if !self.all.get(self.last_found).is_some_and(is) {
            self.last_found = self.all.iter().position(is)?;
        }
        self.all[self.last_found].rule.map(|_| self.last_found)
    }

    /// Events that a lane may have in further calls.
    pub fn room_to_grant(&self, lane: &Lane, in_hand_max: u32) -> u64 {
        let (most, lanes) = (u64::from(in_hand_max), self.all.len().max(1) as u64);
        let own = most / (2 * lanes);
        let shared_used: u64 = self.all.iter().map(|other| other.granting.saturating_sub(own)).sum();
        own.saturating_sub(lane.granting) + (most - own * lanes).saturating_sub(shared_used)
    }
}

impl Lane {
    fn new(name: &str, id: TypeId, stats: Arc<TypeStats>) -> Self {
        Self {
            name: name.into(),
            id,
            rule: None,
            stats,
            queue: VecDeque::new(),
            events: 0,
            bytes: 0,
            bound_events: 0,
            bound_bytes: 0,
            granting: 0,
            calls: 0,
            ask_at_ns: 0,
            gathering_since_ns: None,
            ask_every_ns: 0,
            backoff_ns: 0,
            passed_ns: 0,
            is_limited: false,
            recent_events: 0,
        }
    }
}

/// The whole part of a number of events or nanoseconds, within u64.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // `as` saturates, which is what is meant
fn whole(number: f64) -> u64 {
    number as u64
}

#[allow(clippy::cast_precision_loss)] // milliseconds far below 2^53
fn whole_f64(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::held::{Held, tests::held};
    use windfall_limiter::Limit;

    #[test]
    fn a_lane_that_is_never_cut_keeps_no_keys_of_records_that_left() {
        let limiter = Limiter::new(Limit { rate_per_s: 1, burst: 1 }, windfall_limiter::Now(0));
        let mut lane = Lane::new("cash", limiter.type_id("cash"), Arc::default());
        let mut book = Book::default();
        let in_lane = || Held { place: Place::Lane, uncut: 1, ..held(0) };
        // One always waits, as in a paused type's lane that fills while deadlines empty it.
        let mut last = book.insert(in_lane());
        lane.push(last, 1, 0, 0);
        for _ in 0..5_000 {
            let next = book.insert(in_lane());
            lane.push(next, 1, 0, 0);
            lane.forget(1, 0);
            book.remove(last);
            last = next;
            lane.compact(&book);
        }
        assert!(lane.keys().count() <= 1_025, "{} keys for one record", lane.keys().count());
        assert!(lane.keys().any(|key| key == last));
    }
}
