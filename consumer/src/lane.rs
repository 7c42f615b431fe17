//! The lane of one bonus type: a bounded queue between fetch and grant.

use crate::in_flight::{InFlightRecord, InFlightTable, Key, Place};
use crate::stats::{Cause, TypeStats};
use crate::units::NS_PER_MS;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::rules::{Fuse, Pacing, TypeLimit};
use windfall_limiter::{Fuse as LimiterFuse, Limiter, TypeId, Wait};

/// The longest that a lane whose downstream decides nothing waits between calls.
const BACKOFF_MAX_NS: u64 = 1_000 * NS_PER_MS;
const BACKOFF_MIN_NS: u64 = 5 * NS_PER_MS;
/// A limited lane asks again no sooner than this, so that grants come in batches; it asks sooner where its burst
/// would overflow meanwhile.
const ASK_EVERY_NS: u64 = 2 * NS_PER_MS;
/// How soon a lane asks again whose fuse the limiter knows of before we do.
const ASK_FUSE_AGAIN_NS: u64 = 50 * NS_PER_MS;
/// Fewer events than a batch wait at most so long behind a call of the same lane for more to come.
const GATHER_NS: u64 = 2 * NS_PER_MS;

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
    bytes: u64,
    pub bound_events: u64,
    bound_bytes: u64,
    /// Events in grant calls.
    pub granting: u64,
    calls: u32,
    /// Neither the limiter nor the downstream is asked before.
    pub ask_at_ns: u64,
    /// Where fewer events than a batch wait behind a call: since when.
    gathering_since_ns: Option<u64>,
    /// The least time between two questions to the limiter.
    ask_every_ns: u64,
    backoff_ns: u64,
    /// When events last passed, or came to an empty lane.
    pub passed_ns: u64,
    /// The limiter has let pass less than there was, when it was asked last.
    pub is_limited: bool,
}

/// A part of a record in a grant call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    /// `None` once its events were requeued: then the answer is not waited for.
    pub key: Option<Key>,
    pub events: u32,
}

impl Lane {
    pub fn new(name: &str, id: TypeId, stats: Arc<TypeStats>) -> Self {
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
        }
    }

    pub fn fuse(&self) -> Fuse {
        self.rule.map_or(Fuse::Closed, |rule| rule.fuse)
    }

    /// Why a record goes back that this lane does not hold.
    pub fn why_not_held(&self) -> Cause {
        if self.fuse() == Fuse::Closed { Cause::Limit } else { Cause::Fuse }
    }

    /// Whether a record may come in. An empty lane takes any, or a record larger than the bound would never pass.
    pub fn has_room_for(&self, record: &InFlightRecord) -> bool {
        self.events == 0 && self.bound_events > 0
            || self.events + u64::from(record.uncut) <= self.bound_events
                && self.bytes + record.payload.len() as u64 <= self.bound_bytes
    }

    /// Records of so many events that fit with an eighth to spare; 0 while less than a quarter is free.
    pub fn records_that_fit(&self, events_per_record: u64) -> u64 {
        let room = (self.bound_events - self.bound_events / 8).saturating_sub(self.events);
        match room / events_per_record {
            0 if self.events == 0 && self.bound_events > 0 => 1,
            _ if room * 4 < self.bound_events => 0,
            records => records,
        }
    }

    pub fn push(&mut self, key: Key, record: &mut InFlightRecord, now_ns: u64) {
        if self.events == 0 {
            self.passed_ns = now_ns;
        }
        record.place = Place::Lane;
        self.queue.push_back(key);
        self.events += u64::from(record.uncut);
        self.bytes += record.payload.len() as u64;
    }

    /// A record that waits here goes elsewhere; its key is passed over later.
    pub fn forget(&mut self, record: &InFlightRecord) {
        self.events = self.events.saturating_sub(u64::from(record.uncut));
        self.bytes = self.bytes.saturating_sub(record.payload.len() as u64);
        if self.events == 0 {
            self.queue.clear();
            self.gathering_since_ns = None;
        }
    }

    /// Whether it is time to ask the limiter for events that wait. Fewer events than a batch gather behind a call,
    /// unless they must not.
    pub fn is_ready(&mut self, batch: u32, may_gather: bool, now_ns: u64) -> bool {
        if self.events == 0 || now_ns < self.ask_at_ns || self.fuse() != Fuse::Closed || self.rule.is_none() {
            return false;
        }
        if may_gather && self.calls > 0 && self.events < u64::from(batch) {
            let since_ns = *self.gathering_since_ns.get_or_insert(now_ns);
            return now_ns.saturating_sub(since_ns) >= GATHER_NS;
        }
        true
    }

    /// The limiter was asked for `wanted` events and let `granted` of them pass.
    pub fn was_answered(&mut self, wanted: u32, granted: u32, now_ns: u64) {
        self.gathering_since_ns = None;
        self.is_limited = granted < wanted;
        if granted > 0 {
            self.passed_ns = now_ns;
        }
    }

    /// A short wait is held, a longer one goes back: then says why. What a fuse or a limit sends back is never
    /// archived for it.
    pub fn wait(&mut self, wait: Wait, hold_max_ms: u64, limiter: &Limiter, now_ns: u64) -> Option<Cause> {
        match wait {
            Wait::For(wait) if wait <= Duration::from_millis(hold_max_ms) => {
                let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
                self.ask_at_ns = now_ns + wait_ns.max(self.ask_every_ns);
                None
            }
            Wait::For(_) => Some(Cause::Limit),
            Wait::Never => match limiter.fuse(self.id) {
                LimiterFuse::Pause => {
                    self.ask_at_ns = now_ns + ASK_FUSE_AGAIN_NS;
                    None
                }
                LimiterFuse::Divert => Some(Cause::Fuse),
                LimiterFuse::Closed => Some(Cause::Limit),
            },
        }
    }

    /// Cuts `events` events off the front, across records.
    pub fn cut(&mut self, table: &mut InFlightTable, events: u32) -> (Vec<Bytes>, Vec<Segment>) {
        let mut out = Vec::with_capacity(events as usize);
        let mut segments = Vec::new();
        let mut left = events;
        while left > 0 {
            let Some(&key) = self.queue.front() else { break };
            let Some(record) = table.get_mut(key).filter(|record| record.place == Place::Lane) else {
                self.queue.pop_front();
                continue;
            };
            // Every record was walked from end to end on arrival, so cutting does not fail.
            let taken = record.cut(left, &mut out).unwrap_or(0);
            self.events = self.events.saturating_sub(u64::from(taken));
            if record.uncut == 0 || taken == 0 {
                record.place = Place::Gone;
                self.bytes = self.bytes.saturating_sub(record.payload.len() as u64);
                self.queue.pop_front();
            }
            left -= taken;
            segments.push(Segment { key: Some(key), events: taken });
        }
        (out, segments)
    }

    /// A grant call of so many events begins.
    pub fn call_begins(&mut self, events: u64) {
        self.granting += events;
        self.calls += 1;
    }

    /// A grant call of so many events was answered or given up.
    pub fn call_ended(&mut self, events: u64) {
        self.granting -= events;
        self.calls -= 1;
    }

    /// A call was answered. Where nothing at all was decided the downstream is not well: it is asked less often.
    pub fn downstream_answered(&mut self, has_decided: bool, now_ns: u64) {
        if has_decided {
            self.backoff_ns = 0;
            return;
        }
        self.backoff_ns = (self.backoff_ns * 2).clamp(BACKOFF_MIN_NS, BACKOFF_MAX_NS);
        self.ask_at_ns = self.ask_at_ns.max(now_ns + self.backoff_ns);
    }

    /// The records that wait, the oldest first.
    pub fn waiting(&self, table: &InFlightTable) -> Vec<Key> {
        self.queue.iter().copied().filter(|&key| waits(table, key)).collect()
    }

    /// The records, the latest first, that no longer pass within `hold_max` since a limit was cut. One record may
    /// be larger than the bound; it stays, or nothing would ever pass.
    pub fn excess(&self, table: &InFlightTable) -> Vec<Key> {
        let mut excess = self.events.saturating_sub(self.bound_events.max(1));
        let mut keys = Vec::new();
        let mut latest = self.queue.iter().rev();
        while excess > 0
            && let Some(&key) = latest.next()
        {
            let record = table.get(key).filter(|record| record.place == Place::Lane);
            let Some(events) = record.map(|record| u64::from(record.uncut)) else { continue };
            if excess < events && self.bound_events > 0 {
                break;
            }
            excess = excess.saturating_sub(events);
            keys.push(key);
        }
        keys
    }

    /// Frees the keys of records that went elsewhere (I9): while nothing passes here none is passed over. There is
    /// at least one event for each record that is alive.
    pub fn compact(&mut self, table: &InFlightTable) {
        if self.queue.len() > 1024 && self.queue.len() as u64 > 2 * self.events {
            self.queue.retain(|&key| waits(table, key));
        }
    }

    /// When it is worth asking for it again; `None` where nothing waits or nothing may pass by itself.
    pub fn wants_to_go_ns(&self) -> Option<u64> {
        let gathered_ns = self.gathering_since_ns.map_or(0, |since_ns| since_ns + GATHER_NS);
        (self.events > 0 && self.fuse() == Fuse::Closed).then(|| self.ask_at_ns.max(gathered_ns))
    }

    /// Bounds it by what its type may pass within `hold_max`.
    pub fn set_bounds(&mut self, pacing: &Pacing, may_pass_per_s: f64) {
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

fn waits(table: &InFlightTable, key: Key) -> bool {
    table.get(key).is_some_and(|record| record.place == Place::Lane)
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
    use crate::in_flight::tests::record_in;
    use windfall_limiter::Limit;

    #[test]
    fn a_lane_that_is_never_cut_keeps_no_keys_of_records_that_left() {
        let limiter = Limiter::new(Limit { rate_per_s: 1, burst: 1 }, windfall_limiter::Now(0));
        let mut lane = Lane::new("cash", limiter.type_id("cash"), Arc::default());
        let mut table = InFlightTable::default();
        let enter = |lane: &mut Lane, table: &mut InFlightTable| {
            let key = table.insert(InFlightRecord { uncut: 1, ..record_in(0) });
            lane.push(key, table.get_mut(key).unwrap(), 0);
            key
        };
        // One always waits, as in a paused type's lane that fills while deadlines empty it.
        let mut last = enter(&mut lane, &mut table);
        for _ in 0..5_000 {
            let next = enter(&mut lane, &mut table);
            let left = table.remove(last).unwrap();
            lane.forget(&left);
            last = next;
            lane.compact(&table);
        }
        assert!(lane.queue.len() <= 1_025, "{} keys for one record", lane.queue.len());
        assert_eq!(lane.waiting(&table), [last]);
    }
}
