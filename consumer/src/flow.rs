//! The path of a record through the parts: from its delivery to its lane, into a grant call, and until it is settled.
//! Each part owns the state of one rule and returns its decisions; this file passes them on.

use crate::archive::{Archive, ArchiveAnswer, ArchiveEnd, ArchiveItem};
use crate::delay_queue::DelayQueue;
use crate::grant_calls::{CallEnd, GrantCall, GrantCalls, Tally};
use crate::hand_over::{HandOver, HandOverEnd};
use crate::health::CallAnswer;
use crate::in_flight::{InFlightRecord, InFlightTable, Key, Place};
use crate::key_gone::KeyGone;
use crate::lanes::{Entry, Lanes};
use crate::late_keys::LateKeys;
use crate::outbox::RetryMetadata;
use crate::pace::Pace;
use crate::partitions::Partitions;
use crate::record_head::RecordHead;
use crate::requeue_delay::delay_ms;
use crate::retry_state::{RetryAnswer, RetryState};
#[cfg(feature = "sabotage")]
use crate::sabotage::{Stage, handles};
use crate::signatures::Entrance;
use crate::stats::{Cause, ConsumerStats};
use crate::units::NS_PER_MS;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use windfall_contract::broker::Epoch;
use windfall_contract::rewards::{GrantReply, Rejection, RetryReason};
use windfall_contract::rules::Rules;
use windfall_limiter::{Limiter, Now};

/// The number of records in flight, in whatever state, at which nothing more is fetched.
const RECORDS_IN_FLIGHT_MAX: usize = 1 << 18;
/// The least wait before an event that was not decided is asked for again.
const ASK_AGAIN_MIN_MS: u64 = 5;
/// The number of an event's own time-outs that are asked for again in place. A downstream at its limit lets some calls
/// time out now and then, and has paid most of them when it is asked again.
const TIMEOUTS_IN_PLACE: u32 = 3;
/// The reply that stands for an answer which did not come.
const NO_ANSWER: GrantReply = GrantReply::Retry { after_ms: 0, reason: RetryReason::StoreUnavailable };

/// The parts that a record passes through.
pub(crate) struct Flow {
    pub topic: Arc<str>,
    pub stats: Arc<ConsumerStats>,
    pub entrance: Entrance,
    pub late_keys: LateKeys,
    pub key_gone: KeyGone,
    pub limiter: Arc<Limiter>,
    pub rules: Arc<Rules>,
    pub table: InFlightTable,
    pub partitions: Partitions,
    pub lanes: Lanes,
    pub delay_queue: DelayQueue,
    pub hand_over: HandOver,
    pub pace: Pace,
    pub grants: GrantCalls,
    pub retries: RetryState,
    pub archive: Archive,
}

/// Assignments and revocations, and where a record waits.
impl Flow {
    pub fn assigned(&mut self, partition: u32, epoch: Epoch, next_offset: u64, now_ns: u64) {
        if let Some(old) = self.partitions.epoch(partition) {
            self.revoked(partition, old);
        }
        tracing::info!(topic = %self.topic, partition, epoch = epoch.0, next_offset, "assigned");
        self.partitions.assign(partition, epoch, next_offset, now_ns);
    }

    /// Commits what is finished and forgets the rest: the next owner is delivered it again. Calls in flight for it are
    /// harmless (I1) and have no effect on any window.
    pub fn revoked(&mut self, partition: u32, epoch: Epoch) {
        // The window first: from here on its tickets do nothing.
        if !self.partitions.revoke(partition, epoch) {
            return;
        }
        for key in self.table.keys_of(partition) {
            self.leave_place(key);
            self.table.remove(key);
        }
        self.lanes.forget_gone(&self.table);
        self.late_keys.forget_gone(&self.table);
        tracing::info!(topic = %self.topic, partition, epoch = epoch.0, "revoked");
    }

    /// Decides where a record waits. Nothing is done with it before it is due: a record that was requeued with a delay
    /// must not spin through the queue.
    pub fn place(&mut self, key: Key, head: &RecordHead<'_>, now_ns: u64, wall_ms: i64) {
        let Some(record) = self.table.get_mut(key) else { return };
        if head.failures > self.rules.pacing.max_failures {
            let is_known = record.lane.is_some();
            self.work_begins(key, now_ns);
            let rejection = if is_known { Rejection::MaxFailures } else { Rejection::UnknownType };
            return self.archive_rest(key, rejection);
        }
        let early_ms = u64::try_from(head.not_before_ms.saturating_sub(wall_ms)).unwrap_or(0);
        if early_ms == 0 {
            return self.is_due(key, now_ns);
        }
        let longest_ms = self.rules.pacing.not_before_ahead_max_ms();
        if early_ms > longest_ms && self.hand_over.takes(record) {
            return self.place_asked_for(key, early_ms, now_ns);
        }
        let early_ms = early_ms.min(longest_ms);
        let latest_ms = wall_ms.saturating_add(i64::try_from(longest_ms).unwrap_or(i64::MAX));
        if record.not_before_ms > latest_ms {
            // Only a clock that is ahead sets such a time.
            record.not_before_ms = latest_ms;
            self.stats.not_before_clamped.add(1);
        }
        // A record that is not due is requeued once at most: a copy waits here, and the fetch waits with it.
        let has_room = self.delay_queue.has_room_for(record, early_ms, &self.rules.pacing);
        if has_room || head.attempt > 0 || !self.lanes.can_any_flow(now_ns) {
            return self.delay_queue.enter(key, record, early_ms, now_ns);
        }
        self.pace.churned(now_ns);
        self.send_back(key, Cause::NotDue);
    }

    /// Places a record whose sender wants it to be granted long after now: beside others that are not due, and to be
    /// handed over where it is due later than records wait here. One for which there is no room goes round through its
    /// queue however often, if a type could flow: while nobody takes it, it must not stop what is behind it.
    fn place_asked_for(&mut self, key: Key, early_ms: u64, now_ns: u64) {
        let Some(record) = self.table.get_mut(key) else { return };
        let has_room = self.delay_queue.has_room_for(record, early_ms, &self.rules.pacing);
        if !has_room && self.lanes.can_any_flow(now_ns) {
            self.pace.churned(now_ns);
            return self.send_back(key, Cause::NotDue);
        }
        self.delay_queue.enter(key, record, early_ms, now_ns);
        if self.hand_over.is_long(early_ms) {
            self.hand_over.push(key);
        }
    }

    /// Takes in an answer about records that were handed over.
    pub fn handed_over(&mut self, ended: HandOverEnd, now_ns: u64) {
        for key in self.hand_over.take_in(ended, now_ns) {
            // One that was due meanwhile, or was requeued, is finished by that: its order number credits once.
            let Some(record) = self.table.get(key).filter(|record| record.place == Place::DelayQueue) else {
                continue;
            };
            let events = record.uncut;
            self.leave_place(key);
            self.stats.handed_over.add(events.into());
            // I3: each of its events is stored elsewhere.
            self.table.settle(key, events);
        }
    }

    /// Releases the records that are due.
    pub fn release_due(&mut self, now_ns: u64) {
        while let Some(key) = self.delay_queue.pop_due(&mut self.table, now_ns) {
            self.is_due(key, now_ns);
        }
    }

    /// Puts a record that is due into its lane, or back to a queue where its lane does not take it.
    fn is_due(&mut self, key: Key, now_ns: u64) {
        self.work_begins(key, now_ns);
        let Some(record) = self.table.get_mut(key) else { return };
        record.not_before_ms = 0;
        let (lane, events, attempt) = (record.lane, record.uncut, record.attempt);
        let entry = self.lanes.enter(key, record, now_ns);
        if let (Some(lane), Entry::Waits | Entry::Full(_)) = (lane, entry) {
            self.pace.came(lane, events);
        }
        match entry {
            Entry::Waits if lane.is_some_and(|at| self.lanes.can_flow(at, now_ns)) => {
                self.pace.found_others()
            }
            Entry::Waits => {}
            Entry::Full(cause) => {
                if attempt > 0 {
                    self.pace.came_round(now_ns);
                }
                self.pace.churned(now_ns);
                self.send_back(key, cause);
            }
            Entry::Closed(cause) => self.send_back(key, cause),
        }
    }

    /// From now on the record's age counts towards the head-of-line deadline. A record that is not due has no work of
    /// its own yet, so it is not stuck, however long it waits.
    pub fn work_begins(&mut self, key: Key, now_ns: u64) {
        let Some(record) = self.table.get_mut(key) else { return };
        (record.since_ns, record.held_since_ns) = (now_ns, now_ns);
        self.partitions.work_begins(record.position.partition, key);
    }

    /// Takes a record out of its lane or the delay queue, wherever it waits.
    fn leave_place(&mut self, key: Key) {
        let Some(record) = self.table.get_mut(key) else { return };
        match (record.place, record.lane) {
            (Place::Lane, Some(at)) => self.lanes[at].forget(record),
            (Place::DelayQueue, _) => self.delay_queue.forget(record),
            _ => {}
        }
        record.place = Place::Gone;
    }
}

/// Grants: from the lanes to the reward service and back.
impl Flow {
    /// Lets every lane pass as many events as it may, by priority.
    pub fn pump(&mut self, may_gather: bool, now_ns: u64) {
        for rank in 0..self.lanes.len() {
            let at = self.lanes.ranked(rank);
            while self.pass(at, may_gather, now_ns) {}
        }
    }

    /// Lets one batch of a lane pass; returns whether another may follow.
    fn pass(&mut self, at: usize, may_gather: bool, now_ns: u64) -> bool {
        let pacing = &self.rules.pacing;
        let Some(admission) = self.lanes.admit(at, pacing, may_gather, &self.limiter, now_ns) else {
            return false;
        };
        if admission.granted > 0 {
            self.call(at, admission.granted, now_ns);
        }
        if let Some(cause) = admission.send_rest_back {
            self.send_lane_back(at, cause);
        }
        admission.may_ask_again
    }

    fn call(&mut self, at: usize, granted: u32, now_ns: u64) {
        let lane = &mut self.lanes[at];
        let cut = lane.cut(&mut self.table, granted);
        if !cut.0.is_empty() {
            self.stats.grant_calls.add(1);
            let repeats = lane.repeats_among(granted);
            let held = (repeats > 0).then(|| self.limiter.hold(lane.id, repeats, Now(now_ns)));
            self.grants.begin(at, lane, cut, held, now_ns);
        }
    }

    /// Takes in the answer to a call.
    pub fn granted(&mut self, ended: CallEnd, now_ns: u64) {
        let Some((mut call, replies)) = self.grants.take(ended) else { return };
        let answer = CallAnswer::of(&replies, call.events.len());
        let health = &self.lanes[call.lane].health;
        let fault = match answer == CallAnswer::Decided || health.has_decided_since(call.began_ns) {
            true => Fault::OfTheEvent,
            false if health.is_open() => Fault::OfTheType,
            false => Fault::Unknown,
        };
        self.lanes[call.lane].call_ended(call.events.len() as u64, call.is_probe, now_ns);
        self.lanes.answered(call.lane, answer, call.began_ns, now_ns);
        self.give_back_for_repeats(&mut call, &replies, now_ns);
        let is_timeout_own = are_most_decided(&replies, call.events.len());
        let mut all = Tally::default();
        for (segment, range) in call.segments() {
            // I3: only a record that is still waiting for this answer is settled by it.
            match segment.key.filter(|&key| self.table.get(key).is_some()) {
                Some(key) => {
                    let (failures, lane) = (segment.failures, call.lane);
                    let part = Part { key, failures, lane, fault, is_timeout_own };
                    self.settle(
                        &part,
                        &call.events[range.clone()],
                        replies.get(range.start..),
                        &mut all,
                        now_ns,
                    );
                }
                None => self.stats.late_answers.add(range.len() as u64),
            }
        }
        let lane = &mut self.lanes[call.lane];
        lane.stats.credited.add(all.credited + all.already);
        lane.stats.archived.add(all.rejected);
        self.stats.credited.add(all.credited);
        self.stats.already_credited.add(all.already);
        self.stats.rejected.add(all.rejected);
    }

    /// An event that was credited before took nothing from the downstream, so the token of its type comes back. Copies of
    /// what is credited would else hold up what is not, and the longer that waits, the more often it is copied.
    fn give_back_for_repeats(&mut self, call: &mut GrantCall, replies: &[GrantReply], now_ns: u64) {
        let replies = &replies[..replies.len().min(call.events.len())];
        let repeats = replies.iter().filter(|reply| matches!(reply, GrantReply::AlreadyCredited)).count();
        let lane = &mut self.lanes[call.lane];
        if !replies.is_empty() {
            lane.saw_repeats(repeats, replies.len());
        }
        if let Some(held) = call.held.take().filter(|_| repeats > 0) {
            held.give_back(u32::try_from(repeats).unwrap_or(u32::MAX), Now(now_ns));
            lane.ask_soon(now_ns);
        }
    }

    fn settle(
        &mut self,
        part: &Part,
        events: &[Bytes],
        replies: Option<&[GrantReply]>,
        all: &mut Tally,
        now_ns: u64,
    ) {
        let before = all.settled();
        for (at, event) in events.iter().enumerate() {
            handles(Stage::Answer, event);
            match replies.and_then(|replies| replies.get(at)).unwrap_or(&NO_ANSWER) {
                GrantReply::Credited => all.credited += 1,
                GrantReply::AlreadyCredited => all.already += 1,
                GrantReply::Conflict | GrantReply::Rejected(_) => all.rejected += 1,
                GrantReply::Retry { after_ms, reason } => {
                    self.retry(part, event, *after_ms, *reason, now_ns);
                }
            }
        }
        let settled = all.settled() - before;
        if settled > 0 {
            self.table.settle(part.key, u32::try_from(settled).unwrap_or(u32::MAX));
        }
    }

    /// Decides what follows a grant that was not decided. An event is requeued only if its own grant has failed; any
    /// other waits in its lane and is asked for again. Only failed grants lead to the archive, however often the event
    /// was asked for. Where most of a call times out, the downstream is away or overloaded, and no grant has failed: the
    /// event may be paid, and a requeued copy would be one more payment to ask for. Where a few time out, each is asked
    /// for again in place before it is requeued. If the downstream refuses all of them, the grants have failed, but a
    /// requeued copy would fare no better.
    fn retry(&mut self, part: &Part, event: &Bytes, after_ms: u64, reason: RetryReason, now_ns: u64) {
        if reason.is_failure() || reason == RetryReason::StoreUnavailable {
            self.stats.failed_grants.add(1);
        }
        let Some(record) = self.table.get_mut(part.key) else { return };
        let (has_failed, goes_back) = match (reason, part.fault) {
            (RetryReason::DownstreamRetry, fault) => (true, fault != Fault::OfTheType),
            (RetryReason::DownstreamTimeout, _) => {
                (part.is_timeout_own, part.is_timeout_own && part.failures >= TIMEOUTS_IN_PLACE)
            }
            _ => (false, false),
        };
        let pacing = &self.rules.pacing;
        let failures = part.failures.saturating_add(u32::from(has_failed));
        if has_failed && failures > pacing.max_failures {
            let detail = format!("{failures} failed grants, the last: {reason}");
            let rejection = Rejection::MaxFailures;
            return self.archive.push(ArchiveItem::event(
                part.key,
                failures,
                event.clone(),
                rejection,
                detail,
            ));
        }
        if goes_back {
            let bonus_type = Arc::clone(&self.lanes[part.lane].name);
            let metadata = RetryMetadata {
                bonus_type,
                attempt: record.attempt,
                failures,
                origin: record.origin,
                not_before_ms: 0,
            };
            self.count_requeued(Some(part.lane), Cause::Failed, 1);
            return self.retries.push(&metadata, after_ms, part.key, event.clone());
        }
        // What the downstream was not asked for waits for its turn there, as at a limit.
        record.undecided_since_ns = match reason {
            RetryReason::DownstreamBusy => None,
            _ => record.undecided_since_ns.or(Some(now_ns)),
        };
        record.undecided_at_ns = now_ns;
        self.stats.undecided.add(1);
        let delay_ms = if has_failed { delay_ms(pacing, failures) } else { ASK_AGAIN_MIN_MS };
        let at_ns = now_ns.saturating_add(after_ms.max(delay_ms).saturating_mul(NS_PER_MS));
        self.lanes[part.lane].ask_again(part.key, failures, event.clone(), at_ns);
    }
}

/// A part of a record whose grant was answered.
struct Part {
    key: Key,
    /// Failed grants before this one.
    failures: u32,
    lane: usize,
    fault: Fault,
    /// Most of what the downstream was asked for by the call was decided, so a time-out is the event's own.
    is_timeout_own: bool,
}

/// Whether most of what a downstream was asked for by a call of so many events was decided.
fn are_most_decided(replies: &[GrantReply], events: usize) -> bool {
    let replies = &replies[..replies.len().min(events)];
    let decided = replies.iter().filter(|reply| reply.is_final()).count();
    let failed =
        |reply: &&GrantReply| matches!(reply, GrantReply::Retry { reason, .. } if reason.is_failure());
    decided > replies.iter().filter(failed).count()
}

/// The cause of a grant that is not decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The event: others of its type are decided.
    OfTheEvent,
    /// The type: several calls in a row have decided nothing of it.
    OfTheType,
    /// Unknown: this call decided nothing of its type.
    Unknown,
}

/// Requeues, and the archive.
impl Flow {
    /// Requeues the events of a record that have not been cut yet.
    pub fn send_back(&mut self, key: Key, cause: Cause) {
        let Some(events) = self.cut_rest(key) else { return };
        let Some(record) = self.table.get(key) else { return };
        let is_unknown = cause == Cause::UnknownType;
        let failures = record.failures.saturating_add(u32::from(is_unknown));
        if is_unknown && failures > self.rules.pacing.max_failures {
            return self.archive_events(key, events, Rejection::UnknownType);
        }
        let metadata = RetryMetadata {
            bonus_type: self.bonus_type(record),
            attempt: record.attempt,
            failures,
            origin: record.origin,
            not_before_ms: record.not_before_ms,
        };
        self.count_requeued(record.lane, cause, events.len());
        events.iter().for_each(|event| handles(Stage::WriteBack, event));
        events.into_iter().for_each(|event| self.retries.push(&metadata, 0, key, event));
    }

    /// Requeues all that waits in a lane.
    fn send_lane_back(&mut self, at: usize, cause: Cause) {
        for key in self.lanes[at].waiting(&self.table) {
            self.send_back(key, cause);
        }
        for undecided in self.lanes[at].take_undecided(|_| true) {
            self.send_asked_back(at, undecided, cause);
        }
    }

    /// Requeues what waits in lanes that are closed.
    pub fn send_back_closed_lanes(&mut self) {
        for at in 0..self.lanes.len() {
            if let Some(cause) = self.lanes.why_closed(at) {
                self.send_lane_back(at, cause);
            }
        }
    }

    /// Requeues all that waits in the delay queue.
    pub fn send_delayed_back(&mut self, cause: Cause) {
        for key in self.delay_queue.take_all(&self.table) {
            self.send_back(key, cause);
        }
    }

    /// Takes in an answer about requeued events.
    pub fn retried(&mut self, answer: RetryAnswer, now_ns: u64) {
        self.retries.take_in(answer, now_ns);
        self.settle_stored();
    }

    fn settle_stored(&mut self) {
        for (key, events) in self.retries.take_stored() {
            self.table.settle(key, events);
        }
    }

    /// Takes in the archive's answer.
    pub fn archived(&mut self, ended: ArchiveEnd, now_ns: u64) {
        match self.archive.take_in(ended, &self.table, now_ns) {
            ArchiveAnswer::Archived(items) => items.iter().for_each(|item| self.is_archived(item)),
            ArchiveAnswer::Overdue(items) => items.into_iter().for_each(|item| self.archive_later(item)),
        }
    }

    fn is_archived(&mut self, item: &ArchiveItem) {
        if let Some(lane) = self.table.get(item.key).and_then(|record| record.lane) {
            self.lanes[lane].stats.archived.add(1);
        }
        self.stats.archived.add(1);
        self.table.settle(item.key, 1);
    }

    /// Requeues an item that the archive did not take in time; it is archived when it is delivered again.
    fn archive_later(&mut self, item: ArchiveItem) {
        if item.failed.rejection == Rejection::Unverified {
            return self.archive.push(item);
        }
        let Some(record) = self.table.get(item.key) else { return };
        self.stats.count_requeued(Cause::Deadline, 1);
        if item.is_record {
            return self.retries.push_record(item.key, item.failed.payload);
        }
        let metadata = RetryMetadata {
            bonus_type: self.bonus_type(record),
            attempt: record.attempt,
            failures: item.failures,
            origin: record.origin,
            not_before_ms: 0,
        };
        self.retries.push(&metadata, 0, item.key, item.failed.payload);
    }

    /// Archives the events of a record that have not been cut yet.
    fn archive_rest(&mut self, key: Key, rejection: Rejection) {
        if let Some(events) = self.cut_rest(key) {
            self.archive_events(key, events, rejection);
        }
    }

    fn archive_events(&mut self, key: Key, events: Vec<Bytes>, rejection: Rejection) {
        let Some(record) = self.table.get(key) else { return };
        let detail = format!("{} failed grants", record.failures);
        for event in events {
            self.archive.push(ArchiveItem::event(key, record.failures, event, rejection, detail.clone()));
        }
    }

    /// Takes what came in by a destroyed key out of the lanes and the delay queue. The answers of calls that have begun are
    /// waited for: what they do not decide is taken out at the next look.
    pub fn refuse_destroyed(&mut self) {
        let keys = self.key_gone.in_flight(&self.table);
        if keys.is_empty() {
            return;
        }
        let mut undecided: BTreeMap<Key, usize> = BTreeMap::new();
        for at in 0..self.lanes.len() {
            for taken in self.lanes[at].take_undecided(|key| self.key_gone.has(key)) {
                *undecided.entry(taken.key).or_default() += taken.events.len();
            }
        }
        for key in keys {
            let uncut = self.cut_rest(key).map_or(0, |events| events.len());
            let events = undecided.remove(&key).unwrap_or(0) + uncut;
            if events > 0 {
                self.archive_destroyed(key, events);
            }
        }
    }

    /// The record goes to the archive as it came. I3: one of its events stays open until that has stored it.
    fn archive_destroyed(&mut self, key: Key, events: usize) {
        let events = u32::try_from(events).unwrap_or(u32::MAX);
        let Some(record) = self.table.get(key) else { return };
        let Some(item) = self.key_gone.archive(key, record, &self.topic, &self.stats) else {
            self.table.settle(key, events);
            return;
        };
        self.archive.push(item);
        self.table.settle(key, events - 1);
    }

    /// Cuts the remaining events of a record, wherever it waits; `None` where none is left.
    pub fn cut_rest(&mut self, key: Key) -> Option<Vec<Bytes>> {
        self.leave_place(key);
        let record = self.table.get_mut(key).filter(|record| record.uncut > 0)?;
        let mut events = Vec::with_capacity(record.uncut as usize);
        // Every record was walked from end to end on arrival, so cutting does not fail.
        record.cut(u32::MAX, &mut events).ok()?;
        Some(events)
    }

    fn bonus_type(&self, record: &InFlightRecord) -> Arc<str> {
        match record.lane {
            Some(lane) => Arc::clone(&self.lanes[lane].name),
            None => record.bonus_type().unwrap_or_default().into(),
        }
    }

    pub fn count_requeued(&self, lane: Option<usize>, cause: Cause, events: usize) {
        if let Some(lane) = lane {
            self.lanes[lane].stats.requeued.add(events as u64);
        }
        self.stats.count_requeued(cause, events as u64);
    }
}

/// The questions of the loop to all parts together.
impl Flow {
    /// Sends to the requeue sink and to the archive what may go there.
    pub fn send_off(&mut self, now_ns: u64, wall_ms: impl FnOnce() -> i64) {
        let pacing = &self.rules.pacing;
        self.retries.turn(pacing, now_ns, wall_ms);
        self.archive.turn(&self.table, pacing.deadline_ms, now_ns);
        self.hand_over.turn(&self.table, pacing.deadline_ms, now_ns);
        #[cfg(feature = "sabotage")]
        self.settle_stored();
    }

    /// The number of records to fetch.
    pub fn records_to_fetch(&self, now_ns: u64) -> usize {
        let pacing = &self.rules.pacing;
        let is_full = self.is_table_full()
            || self.table.finished() >= RECORDS_IN_FLIGHT_MAX
            || self.delay_queue.is_overfull(pacing)
            || self.retries.is_full(pacing);
        if is_full { 0 } else { self.pace.records_to_fetch(&self.lanes, pacing, now_ns) }
    }

    /// Whether as much is in flight as may be (I9): as if every lane were full, and the delay queue, and as much again
    /// were in calls, going back or to the archive, and waiting for a key.
    pub fn is_table_full(&self) -> bool {
        let bytes_max = self.rules.pacing.lane_bytes_max.saturating_mul(self.lanes.len() as u64 + 4);
        self.table.len() >= RECORDS_IN_FLIGHT_MAX || self.table.bytes() >= bytes_max
    }

    /// Whether nothing is in flight and nothing is being requeued. What waits for a key is left to the next reader.
    pub fn is_empty(&self) -> bool {
        self.table.len() == self.late_keys.len() && self.retries.is_empty()
    }
}

/// Where a test may make the loop panic, by the bytes that it handles.
#[cfg(not(feature = "sabotage"))]
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    Arrival,
    Answer,
    WriteBack,
}

/// Does nothing, except under test.
#[cfg(not(feature = "sabotage"))]
#[inline]
pub(crate) const fn handles(_: Stage, _: &Bytes) {}
