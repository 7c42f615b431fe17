//! Grants: from the lanes to the reward service and back.

use super::Flow;
use crate::archive::ArchiveItem;
use crate::grant_calls::{CallEnd, GrantCall, Tally};
use crate::health::CallAnswer;
use crate::in_flight::Key;
use crate::outbox::RetryMetadata;
use crate::stage::{Stage, handles};
use crate::stats::Cause;
use crate::undecided::{NextStep, Undecided};
use crate::units::NS_PER_MS;
use bytes::Bytes;
use std::sync::Arc;
use windfall_contract::rewards::{GrantReply, Rejection, RetryReason};
use windfall_limiter::Now;

/// The reply that stands for an answer which did not come.
const NO_ANSWER: GrantReply = GrantReply::Retry { after_ms: 0, reason: RetryReason::StoreUnavailable };

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
    pub(super) fn granted(&mut self, ended: CallEnd, now_ns: u64) {
        let Some((mut call, replies)) = self.grants.take(ended) else { return };
        let answer = CallAnswer::of(&replies, call.events.len());
        let health = self.lanes[call.lane].health();
        let undecided = Undecided::of(&replies, call.events.len(), health, call.began_ns);
        self.lanes[call.lane].call_ended(call.events.len() as u64, call.is_probe, now_ns);
        self.lanes.answered(call.lane, answer, call.began_ns, now_ns);
        self.give_back_for_repeats(&mut call, &replies, now_ns);
        let mut all = Tally::default();
        for (segment, range) in call.segments() {
            // I3: only a record that is still waiting for this answer is settled by it.
            match segment.key.filter(|&key| self.table.get(key).is_some()) {
                Some(key) => {
                    let (failures, lane) = (segment.failures, call.lane);
                    let part = Part { key, failures, lane, undecided };
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

    /// Does what follows a grant that was not decided.
    fn retry(&mut self, part: &Part, event: &Bytes, after_ms: u64, reason: RetryReason, now_ns: u64) {
        if reason.is_failure() || reason == RetryReason::StoreUnavailable {
            self.stats.failed_grants.add(1);
        }
        let Some(record) = self.table.get_mut(part.key) else { return };
        match part.undecided.next_step(reason, part.failures, after_ms, &self.rules.pacing) {
            NextStep::Archive { failures } => {
                let detail = format!("{failures} failed grants, the last: {reason}");
                let (key, event) = (part.key, event.clone());
                self.archive.push(ArchiveItem::event(key, failures, event, Rejection::MaxFailures, detail));
            }
            NextStep::Requeue { failures } => {
                let bonus_type = Arc::clone(&self.lanes[part.lane].name);
                let metadata = RetryMetadata::of(record, bonus_type, failures, 0);
                self.count_requeued(Some(part.lane), Cause::Failed, 1);
                self.retries.push(&metadata, after_ms, part.key, event.clone());
            }
            NextStep::AskAgain { failures, after_ms } => {
                record.was_not_decided(reason == RetryReason::DownstreamBusy, now_ns);
                self.stats.undecided.add(1);
                let at_ns = now_ns.saturating_add(after_ms.saturating_mul(NS_PER_MS));
                self.lanes[part.lane].ask_again(part.key, failures, event.clone(), at_ns);
            }
        }
    }
}

/// A part of a record whose grant was answered.
struct Part {
    key: Key,
    /// Failed grants before this one.
    failures: u32,
    lane: usize,
    undecided: Undecided,
}
