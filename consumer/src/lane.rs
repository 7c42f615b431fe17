//! The lane of one bonus type: a bounded queue between fetch and grant.

use crate::ask_again::{AskAgain, UndecidedEvents};
use crate::health::{CallAnswer, TypeHealth};
use crate::in_flight::{InFlightRecord, InFlightTable, Key, Place};
use crate::stats::{Cause, TypeStats};
use crate::units::NS_PER_MS;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use windfall_contract::rules::{Fuse, Pacing, TypeLimit};
use windfall_limiter::{Fuse as LimiterFuse, Limiter, TypeId, Wait};

/// The longest time until a limited lane asks again: limits and shares may change meanwhile.
const ASK_MAX_NS: u64 = 1_000 * NS_PER_MS;
/// The least time until a limited lane asks again, so that grants come in batches; it asks sooner where its burst
/// would overflow meanwhile.
const ASK_EVERY_NS: u64 = 2 * NS_PER_MS;
/// How soon a lane asks again if nothing of its type may pass.
const ASK_SHUT_AGAIN_NS: u64 = 50 * NS_PER_MS;
/// How long fewer events than a batch wait at most, behind a call of the same lane, for more to come.
const GATHER_NS: u64 = 2 * NS_PER_MS;
/// The weight of the last call in the share of events that were credited before.
const REPEATS_WEIGHT: f64 = 0.125;
/// The number of events in one call of a type whose last call has decided nothing.
const PROBE_EVENTS: u32 = 16;

/// The lane of one bonus type.
#[derive(Debug)]
pub(crate) struct Lane {
    pub name: Arc<str>,
    pub id: TypeId,
    /// The type's rule; `None` once the rules no longer have the type.
    rule: Option<TypeLimit>,
    pub stats: Arc<TypeStats>,
    queue: VecDeque<Key>,
    /// The number of events that wait and were not asked for yet.
    events: u64,
    /// Events that wait to be asked for again.
    again: AskAgain,
    /// Bytes of the records that wait.
    bytes: u64,
    /// The number of events that the type may pass within `hold_max`; the fetch follows this bound.
    bound_events: u64,
    /// The number of events that may wait here at most.
    most_events: u64,
    most_bytes: u64,
    health: TypeHealth,
    is_probing: bool,
    /// Whether events of the type may come with the topic, by the rules.
    may_come: bool,
    /// The number of events in grant calls.
    granting: u64,
    calls: u32,
    /// The time before which neither the limiter nor the downstream is asked.
    ask_at_ns: u64,
    /// Since when fewer events than a batch have waited behind a call; `None` where none do.
    gathering_since_ns: Option<u64>,
    /// The least time between two questions to the limiter.
    ask_every_ns: u64,
    /// When events last passed, or came to an empty lane.
    passed_ns: u64,
    /// Whether the limiter let fewer events pass than there were, when it was last asked.
    is_limited: bool,
    /// The part of the events in the last calls that had been credited before: 0 to 1.
    repeat_share: f64,
}

/// A part of a record in a grant call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    /// The record's key; `None` once its events were requeued, so that the answer is not waited for.
    pub key: Option<Key>,
    pub events: u32,
    /// Failed grants of these events before this call.
    pub failures: u32,
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
            again: AskAgain::default(),
            bytes: 0,
            bound_events: 0,
            most_events: 0,
            most_bytes: 0,
            health: TypeHealth::new(),
            is_probing: false,
            may_come: true,
            granting: 0,
            calls: 0,
            ask_at_ns: 0,
            gathering_since_ns: None,
            ask_every_ns: 0,
            passed_ns: 0,
            is_limited: false,
            repeat_share: 0.0,
        }
    }

    /// Takes over the type's rule, and whether events of the type may come with the topic.
    pub fn apply(&mut self, rule: Option<TypeLimit>, may_come: bool) {
        (self.rule, self.may_come) = (rule, may_come);
        self.ask_at_ns = 0;
    }

    /// The type's rule; `None` once the rules no longer have the type.
    pub fn rule(&self) -> Option<TypeLimit> {
        self.rule
    }

    /// Whether events of the type may come with the topic, by the rules.
    pub fn may_come(&self) -> bool {
        self.may_come
    }

    /// The number of events that the type may pass within `hold_max`.
    pub fn bound_events(&self) -> u64 {
        self.bound_events
    }

    /// The number of events in grant calls.
    pub fn granting(&self) -> u64 {
        self.granting
    }

    /// Whether the downstream of the type answers.
    pub fn health(&self) -> &TypeHealth {
        &self.health
    }

    pub fn fuse(&self) -> Fuse {
        self.rule.map_or(Fuse::Closed, |rule| rule.fuse)
    }

    /// Why a record is requeued that this lane does not hold.
    pub fn why_not_held(&self) -> Cause {
        if self.fuse() == Fuse::Closed { Cause::Limit } else { Cause::Fuse }
    }

    /// Events that wait, asked for before or not.
    pub fn waiting_events(&self) -> u64 {
        self.events + self.again.events()
    }

    /// Whether a record fits. An empty lane takes any, or a record larger than the bound would never pass.
    pub fn has_room_for(&self, record: &InFlightRecord) -> bool {
        let waiting = self.waiting_events();
        waiting == 0
            || waiting + u64::from(record.uncut()) <= self.most_events
                && self.bytes + record.payload.len() as u64 <= self.most_bytes
    }

    /// Whether the lane is full.
    pub fn is_full(&self) -> bool {
        self.waiting_events() >= self.most_events || self.bytes >= self.most_bytes
    }

    /// Records of so many events that pass within `hold_max`, with an eighth to spare; 0 while less than a quarter of
    /// that is free.
    pub fn records_that_fit(&self, events_per_record: u64) -> u64 {
        let waiting = self.waiting_events();
        let room = (self.bound_events - self.bound_events / 8).saturating_sub(waiting);
        match room / events_per_record {
            0 if waiting == 0 && self.bound_events > 0 => 1,
            _ if room * 4 < self.bound_events || self.is_full() => 0,
            records => records,
        }
    }

    /// Whether events of the type would be granted now, as far as the type is concerned.
    pub fn can_flow(&self, now_ns: u64) -> bool {
        self.is_let_through() && !self.health.is_suspect() && !self.health.is_silent(now_ns)
    }

    /// Whether events of the type could be granted now, as far as anybody knows. A type whose last call has decided nothing, and
    /// of which no event waits here, is found out about by the next event that is fetched, and by nothing else.
    pub fn may_flow(&self, now_ns: u64) -> bool {
        let is_unknown = self.is_idle() && now_ns >= self.ask_at_ns;
        self.is_let_through() && (!self.health.is_suspect() || is_unknown) && !self.health.is_silent(now_ns)
    }

    /// Whether neither an operator nor a limit of 0 holds the type.
    fn is_let_through(&self) -> bool {
        self.rule.is_some() && self.fuse() == Fuse::Closed && self.bound_events > 0
    }

    /// Whether calls go on that show how the reward service does.
    pub fn is_asking(&self) -> bool {
        self.granting > 0 || self.is_let_through() && self.waiting_events() > 0
    }

    /// Whether it has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.waiting_events() == 0 && self.granting == 0
    }

    /// Whether what waits here is held back for longer than it takes to ask for it: by a limit, a fuse or a downstream.
    pub fn is_held_back(&self, hold_max_ns: u64, now_ns: u64) -> bool {
        let passes = now_ns.saturating_sub(self.passed_ns) <= hold_max_ns && self.bound_events > 0;
        !passes || self.is_limited
    }

    pub fn push(&mut self, key: Key, record: &mut InFlightRecord, now_ns: u64) {
        if self.waiting_events() == 0 {
            self.passed_ns = now_ns;
        }
        record.moves_to(Place::Lane);
        self.queue.push_back(key);
        self.events += u64::from(record.uncut());
        self.bytes += record.payload.len() as u64;
    }

    /// Forgets a record that waits here and goes elsewhere; its key is skipped later.
    pub fn forget(&mut self, record: &InFlightRecord) {
        self.events = self.events.saturating_sub(u64::from(record.uncut()));
        self.bytes = self.bytes.saturating_sub(record.payload.len() as u64);
        if self.events == 0 {
            self.queue.clear();
            self.gathering_since_ns = None;
        }
    }

    /// How many events of at most a batch to ask the limiter for; 0 while it is not time. Fewer events than a batch
    /// gather behind a call, unless they must not. A type whose last call has decided nothing is asked for a few.
    pub fn wants(&mut self, batch: u32, may_gather: bool, now_ns: u64) -> u32 {
        let askable = self.events + self.again.make_due(now_ns);
        let is_shut = self.fuse() != Fuse::Closed || self.rule.is_none();
        if askable == 0 || now_ns < self.ask_at_ns || is_shut || self.is_probing {
            return 0;
        }
        let room = self.room_to_come_back();
        let wanted = u32::try_from(askable.min(room)).unwrap_or(batch).min(batch);
        if wanted == 0 {
            return 0;
        }
        if self.health.is_suspect() {
            return wanted.min(PROBE_EVENTS);
        }
        if may_gather && self.calls > 0 && wanted < batch {
            let since_ns = *self.gathering_since_ns.get_or_insert(now_ns);
            return if now_ns.saturating_sub(since_ns) >= GATHER_NS { wanted } else { 0 };
        }
        wanted
    }

    /// The number of events that may go into further calls, as far as it matters how the last ones went. The end of a call makes room.
    const fn room_to_come_back(&self) -> u64 {
        // A probe goes even while calls are in flight that began before the type became suspect.
        match self.health.is_suspect() {
            true => u64::MAX,
            false => self.health.events_max().saturating_sub(self.granting),
        }
    }

    /// Notes that the limiter was asked for `wanted` events and let `granted` of them pass.
    pub fn was_answered(&mut self, wanted: u32, granted: u32, now_ns: u64) {
        self.gathering_since_ns = None;
        self.is_limited = granted < wanted;
        if granted > 0 {
            self.passed_ns = now_ns;
        }
    }

    /// Waits as the limiter says: however long it takes, what waits stays here. Only a fuse that diverts sends it back;
    /// the return value says so.
    pub fn wait(&mut self, wait: Wait, limiter: &Limiter, now_ns: u64) -> Option<Cause> {
        let wait_ns = match wait {
            Wait::For(wait) => u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX).min(ASK_MAX_NS),
            Wait::Never if limiter.fuse(self.id) == LimiterFuse::Divert => return Some(Cause::Fuse),
            Wait::Never => ASK_SHUT_AGAIN_NS,
        };
        self.ask_at_ns = now_ns + wait_ns.max(self.ask_every_ns);
        None
    }

    /// Cuts `events` events, across records: half of them from those that are asked for again, as far as there are any,
    /// so that events which fail each time do not stand before those that would not.
    pub fn cut(&mut self, table: &mut InFlightTable, events: u32) -> (Vec<Bytes>, Vec<Segment>) {
        let mut out = Vec::with_capacity(events as usize);
        let mut segments = Vec::new();
        let mut left = events;
        let new = u64::from(events / 2).min(self.events);
        for undecided in self.again.cut(u64::from(events) - new) {
            let count = u32::try_from(undecided.events.len()).unwrap_or(u32::MAX);
            left = left.saturating_sub(count);
            out.extend(undecided.events);
            let (key, failures) = (Some(undecided.key), undecided.failures);
            segments.push(Segment { key, events: count, failures });
        }
        while left > 0 {
            let Some(&key) = self.queue.front() else { break };
            let Some(record) = table.get_mut(key).filter(|record| record.place() == Place::Lane) else {
                self.queue.pop_front();
                continue;
            };
            // Every record was walked from end to end on arrival, so cutting does not fail.
            let taken = record.cut(left, &mut out).unwrap_or(0);
            self.events = self.events.saturating_sub(u64::from(taken));
            let failures = record.failures;
            if record.uncut() == 0 || taken == 0 {
                record.moves_to(Place::Gone);
                self.bytes = self.bytes.saturating_sub(record.payload.len() as u64);
                self.queue.pop_front();
            }
            left -= taken;
            segments.push(Segment { key: Some(key), events: taken, failures });
        }
        (out, segments)
    }

    /// Notes that a grant call of `events` events begins; returns whether it is a probe, the only call while its type
    /// is suspect.
    pub fn call_begins(&mut self, events: u64, now_ns: u64) -> bool {
        self.granting += events;
        self.calls += 1;
        self.health.call_begins(now_ns);
        self.is_probing = self.health.is_suspect();
        self.is_probing
    }

    /// Notes that a grant call of `events` events was answered or given up.
    pub fn call_ended(&mut self, events: u64, is_probe: bool, now_ns: u64) {
        self.granting -= events;
        self.calls -= 1;
        self.is_probing &= !is_probe;
        self.health.call_ended(self.calls > 0, now_ns);
    }

    /// A call was answered, or given up. Where nothing at all was decided the type is asked for less often.
    pub fn answered(&mut self, answer: CallAnswer, began_ns: u64, now_ns: u64) {
        let wait_ns = self.health.answered(answer, began_ns, now_ns);
        if wait_ns > 0 {
            self.ask_at_ns = self.ask_at_ns.max(now_ns + wait_ns);
        }
    }

    /// Notes that so many of the events of a call had been credited before.
    pub fn saw_repeats(&mut self, repeats: usize, events: usize) {
        let share = whole_f64(repeats as u64) / whole_f64(events.max(1) as u64);
        self.repeat_share += (share - self.repeat_share) * REPEATS_WEIGHT;
    }

    /// How many of so many events have been credited before, by what the last calls let expect.
    pub fn repeats_among(&self, events: u32) -> u32 {
        u32::try_from(whole(f64::from(events) * self.repeat_share + 0.5)).unwrap_or(events).min(events)
    }

    /// The limiter got tokens back, and may be asked at once. One that waits for its downstream waits on.
    pub fn ask_soon(&mut self, now_ns: u64) {
        if self.is_limited && !self.health.is_suspect() {
            self.ask_at_ns = self.ask_at_ns.min(now_ns);
        }
    }

    /// Keeps an event that was not decided; it is asked for again at `at_ns` or later.
    pub fn ask_again(&mut self, key: Key, failures: u32, event: Bytes, at_ns: u64) {
        self.again.push_one(key, failures, event, at_ns);
    }

    /// Keeps events for which no answer came; they are asked for again.
    pub fn ask_all_again(&mut self, unanswered: UndecidedEvents, now_ns: u64) {
        self.again.push(unanswered, now_ns);
    }

    /// Takes out the events that wait to be asked for again, of the records that `leaves` names.
    pub fn take_undecided(&mut self, leaves: impl Fn(Key) -> bool) -> Vec<UndecidedEvents> {
        self.again.take(leaves)
    }

    /// Forgets events of records that are no longer in flight.
    pub fn forget_gone(&mut self, table: &InFlightTable) {
        self.again.forget_gone(table);
    }

    /// Since when the oldest record has been here of which events wait, asked for before or not.
    pub fn oldest_since_ns(&self, table: &InFlightTable) -> Option<u64> {
        let first = self.queue.iter().copied().find(|&key| waits(table, key));
        first
            .into_iter()
            .chain(self.again.keys())
            .filter_map(|key| table.get(key))
            .map(InFlightRecord::since_ns)
            .min()
    }

    /// The records that wait, the oldest first.
    pub fn waiting(&self, table: &InFlightTable) -> Vec<Key> {
        self.queue.iter().copied().filter(|&key| waits(table, key)).collect()
    }

    /// Frees the keys of records that went elsewhere (I9): while nothing passes here, no dead key is skipped. There is
    /// at least one event for each record that is alive.
    pub fn compact(&mut self, table: &InFlightTable) {
        if self.queue.len() > 1024 && self.queue.len() as u64 > 2 * self.events {
            self.queue.retain(|&key| waits(table, key));
        }
    }

    /// When it is worth asking for it again; `None` where nothing waits or nothing may pass by itself.
    pub fn wants_to_go_ns(&self) -> Option<u64> {
        if self.fuse() != Fuse::Closed || self.is_probing || self.room_to_come_back() == 0 {
            return None;
        }
        let gathered_ns = self.gathering_since_ns.map_or(0, |since_ns| since_ns + GATHER_NS);
        let has_some = self.events > 0 || self.again.due_events() > 0;
        let at_ns = if has_some { Some(0) } else { self.again.next_due_ns() };
        at_ns.map(|at_ns| at_ns.max(self.ask_at_ns).max(gathered_ns))
    }

    /// Sets the lane's bounds: how much may wait here, and how much its type may pass within `hold_max`.
    pub fn set_bounds(&mut self, pacing: &Pacing, may_pass_per_s: f64) {
        let most = u64::from(pacing.lane_events_max);
        self.most_events = most;
        self.most_bytes = pacing.lane_bytes_max;
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
    table.get(key).is_some_and(|record| record.place() == Place::Lane)
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
    use crate::in_flight::tests::uncut_since;
    use windfall_limiter::Limit;

    #[test]
    fn a_lane_that_is_never_cut_keeps_no_keys_of_records_that_left() {
        let limiter = Limiter::new(Limit { rate_per_s: 1, burst: 1 }, windfall_limiter::Now(0));
        let mut lane = Lane::new("cash", limiter.type_id("cash"), Arc::default());
        let mut table = InFlightTable::default();
        let enter = |lane: &mut Lane, table: &mut InFlightTable| {
            let key = table.insert(uncut_since(0));
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

    #[test]
    fn the_oldest_is_the_first_that_still_waits_asked_for_before_or_not() {
        let limiter = Limiter::new(Limit { rate_per_s: 1, burst: 1 }, windfall_limiter::Now(0));
        let mut lane = Lane::new("cash", limiter.type_id("cash"), Arc::default());
        let mut table = InFlightTable::default();
        assert_eq!(lane.oldest_since_ns(&table), None);
        let mut enter = |lane: &mut Lane, since_ns| {
            let key = table.insert(uncut_since(since_ns));
            lane.push(key, table.get_mut(key).unwrap(), since_ns);
            key
        };
        let [asked, first, second] = [7, 8, 9].map(|since_ns| enter(&mut lane, since_ns));
        assert_eq!(lane.oldest_since_ns(&table), Some(7));
        // All of the oldest was asked for, and not decided.
        table.get_mut(asked).unwrap().moves_to(Place::Gone);
        assert_eq!(lane.oldest_since_ns(&table), Some(8));
        lane.again.push(UndecidedEvents { key: asked, failures: 0, events: vec![Bytes::new()] }, 100);
        assert_eq!(lane.oldest_since_ns(&table), Some(7));
        for gone in [asked, first] {
            table.remove(gone).unwrap();
        }
        assert_eq!(lane.oldest_since_ns(&table), Some(9));
        table.remove(second).unwrap();
        assert_eq!(lane.oldest_since_ns(&table), None);
    }
}
