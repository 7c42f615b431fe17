//! From the lanes to the reward service and back: what may pass is cut, granted in batches across records, and
//! settled event by event.

use crate::archive::Item;
use crate::dispatch::{Dispatch, NS_PER_MS};
use crate::held::Key;
use crate::lanes::{GATHER_NS, Segment};
use crate::requeue::Fate;
use crate::stats::Cause;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use windfall_contract::rewards::{GrantReply, Rejection, RetryReason};
use windfall_contract::rules::Fuse;
use windfall_limiter::{self as limiter, Now, Wait};

/// How a lane asks again whose fuse the limiter knows of before we do.
const ASK_FUSE_AGAIN_NS: u64 = 50 * NS_PER_MS;
/// What stands for an answer that did not come.
const NO_ANSWER: GrantReply = GrantReply::Retry { after_ms: 0, reason: RetryReason::StoreUnavailable };

pub(crate) type Answered = Result<(Id, (u64, Vec<GrantReply>)), JoinError>;

/// Grant calls in flight. Bounded by `in_hand_max` events.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub answers: JoinSet<(u64, Vec<GrantReply>)>,
    in_flight: HashMap<u64, Call>,
    next: u64,
}

#[derive(Debug)]
struct Call {
    lane: usize,
    events: Arc<Vec<Bytes>>,
    segments: Vec<Segment>,
    task: AbortHandle,
}

/// What one segment's answers amount to.
#[derive(Debug, Default)]
struct Tally {
    credited: u64,
    already: u64,
    rejected: u64,
}

impl Tally {
    fn settled(&self) -> u64 {
        self.credited + self.already + self.rejected
    }
}

impl Dispatch {
    /// Lets every lane pass what it may, by priority.
    pub fn pump(&mut self, now_ns: u64) {
        if self.is_frozen(now_ns) {
            return;
        }
        for rank in 0..self.lanes.by_priority.len() {
            let at = self.lanes.by_priority[rank];
            while self.pass(at, now_ns) {}
        }
    }

    /// Lets one batch of a lane pass; whether another may follow.
    fn pass(&mut self, at: usize, now_ns: u64) -> bool {
        let (batch, in_hand_max) = (self.pacing().grant_batch, self.pacing().in_hand_max);
        let may_gather = self.drain.is_none();
        let lane = &self.lanes.all[at];
        if lane.events == 0 || now_ns < lane.ask_at_ns || lane.fuse() != Fuse::Closed || lane.rule.is_none() {
            return false;
        }
        let room = self.lanes.room_to_grant(lane, in_hand_max);
        let lane = &mut self.lanes.all[at];
        if may_gather && lane.calls > 0 && lane.events < u64::from(batch) {
            let since_ns = *lane.gathering_since_ns.get_or_insert(now_ns);
            if now_ns.saturating_sub(since_ns) < GATHER_NS {
                return false;
            }
        }
        let wanted = u32::try_from(lane.events.min(room)).unwrap_or(batch).min(batch);
        if wanted == 0 {
            return false;
        }
        lane.gathering_since_ns = None;
        let admission = self.gate.limiter().admit(lane.id, wanted, Now(now_ns));
        lane.is_limited = admission.granted < wanted;
        if admission.granted > 0 {
            lane.passed_ns = now_ns;
            self.call(at, admission.granted);
        }
        if admission.granted < wanted {
            self.must_wait(at, admission.wait, now_ns);
        }
        admission.granted == wanted
    }

    fn call(&mut self, at: usize, granted: u32) {
        let lane = &mut self.lanes.all[at];
        let (events, segments) = lane.cut(&mut self.book, granted);
        if events.is_empty() {
            return;
        }
        lane.granting += events.len() as u64;
        lane.calls += 1;
        self.stats.grant_calls.add(1);
        let (events, serial) = (Arc::new(events), self.calls.next);
        self.calls.next += 1;
        let (rewards, name, asked) = (Arc::clone(&self.rewards), Arc::clone(&lane.name), Arc::clone(&events));
        let task = self.calls.answers.spawn(async move {
            let replies = rewards.grant_batch(&name, &asked).await;
            (serial, replies)
        });
        self.calls.in_flight.insert(serial, Call { lane: at, events, segments, task });
    }

    /// A short wait is held, a longer one goes back. What a fuse or a limit sends back is never archived for it.
    fn must_wait(&mut self, at: usize, wait: Wait, now_ns: u64) {
        let hold_max = Duration::from_millis(self.pacing().hold_max_ms);
        let lane = &mut self.lanes.all[at];
        match wait {
            Wait::For(wait) if wait <= hold_max => {
                let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
                lane.ask_at_ns = now_ns + wait_ns.max(lane.ask_every_ns);
            }
            Wait::For(_) => self.flush_lane(at, Cause::Limit, now_ns),
            Wait::Never => match self.gate.limiter().fuse(lane.id) {
                limiter::Fuse::Pause => lane.ask_at_ns = now_ns + ASK_FUSE_AGAIN_NS,
                limiter::Fuse::Divert => self.flush_lane(at, Cause::Fuse, now_ns),
                limiter::Fuse::Closed => self.flush_lane(at, Cause::Limit, now_ns),
            },
        }
    }

    /// Takes in the answer to a call.
    pub fn granted(&mut self, answered: Answered) {
        let (serial, replies) = match answered {
            Ok((_, answer)) => answer,
            Err(error) => {
                // A call that we cancelled is no longer known; one that panicked has decided nothing.
                let is_it = |call: &Call| call.task.id() == error.id();
                let Some(serial) = self.calls.in_flight.iter().find(|(_, c)| is_it(c)).map(|(&s, _)| s)
                else {
                    return;
                };
                tracing::error!(topic = %self.topic, %error, "a grant call ended by itself");
                (serial, Vec::new())
            }
        };
        let Some(call) = self.calls.in_flight.remove(&serial) else { return };
        let now_ns = self.clock.monotonic_ns();
        self.lanes.all[call.lane].granting -= call.events.len() as u64;
        self.lanes.all[call.lane].calls -= 1;
        let mut all = Tally::default();
        let mut at = 0;
        for segment in &call.segments {
            let range = at..at + segment.events as usize;
            at = range.end;
            // I3: only a record that is still waiting for this answer is settled by it.
            match segment.key.filter(|&key| self.book.get(key).is_some()) {
                Some(key) => self.settle(key, &call, range, &replies, &mut all),
                None => self.stats.late_answers.add(segment.events.into()),
            }
        }
        self.count(call.lane, &all, now_ns);
    }

    fn settle(
        &mut self,
        key: Key,
        call: &Call,
        range: std::ops::Range<usize>,
        replies: &[GrantReply],
        all: &mut Tally,
    ) {
        let before = all.settled();
        for at in range {
            match replies.get(at).unwrap_or(&NO_ANSWER) {
                GrantReply::Credited => all.credited += 1,
                GrantReply::AlreadyCredited => all.already += 1,
                GrantReply::Conflict | GrantReply::Rejected(_) => all.rejected += 1,
                GrantReply::Retry { after_ms, reason } => {
                    self.retry(key, call.lane, &call.events[at], *after_ms, *reason);
                }
            }
        }
        let settled = all.settled() - before;
        if settled > 0 {
            self.book.settle(key, u32::try_from(settled).unwrap_or(u32::MAX));
        }
    }

    /// Only failed grants lead to the archive, however often the event went back for another reason.
    fn retry(&mut self, key: Key, lane: usize, event: &Bytes, after_ms: u64, reason: RetryReason) {
        let Some(held) = self.book.get(key) else { return };
        let failures = held.failures.saturating_add(u32::from(reason.is_failure()));
        if failures > self.pacing().max_failures {
            let detail = format!("{failures} failed grants, the last: {reason}");
            self.archive.push(Item::event(key, failures, event.clone(), Rejection::MaxFailures, detail));
            return;
        }
        let fate = Fate {
            bonus_type: Arc::clone(&self.lanes.all[lane].name),
            attempt: held.attempt,
            failures,
            not_before_ms: 0,
            cause: if reason.is_failure() { Cause::Failed } else { Cause::Undecided },
        };
        self.lanes.all[lane].stats.requeued.add(1);
        self.stats.count_requeued(fate.cause, 1);
        self.back.push(&fate, after_ms, key, event.clone());
    }

    fn count(&mut self, lane: usize, all: &Tally, now_ns: u64) {
        let lane = &mut self.lanes.all[lane];
        // Where nothing at all was decided the downstream is not well: ask it less often.
        if all.settled() > 0 {
            lane.decided();
        } else {
            lane.backed_off(now_ns);
        }
        lane.stats.credited.add(all.credited + all.already);
        lane.stats.archived.add(all.rejected);
        self.stats.credited.add(all.credited);
        self.stats.already_credited.add(all.already);
        self.stats.rejected.add(all.rejected);
    }

    /// Writes back the events of overdue records that are in calls. The answers are no longer waited for; a call
    /// that nobody waits for is cancelled, and leaves its room to others. The order number makes the copies
    /// harmless (I1).
    pub fn abandon_overdue_calls(&mut self, cause: Cause) {
        let mut ended = Vec::new();
        for (&serial, call) in &mut self.calls.in_flight {
            let lane = &self.lanes.all[call.lane];
            let mut at = 0;
            for segment in &mut call.segments {
                let events = &call.events[at..at + segment.events as usize];
                at += segment.events as usize;
                let Some(key) = segment.key else { continue };
                let held = match self.book.get(key) {
                    Some(held) if !held.overdue => continue,
                    held => held,
                };
                segment.key = None;
                let Some(held) = held else { continue };
                let fate = Fate {
                    bonus_type: Arc::clone(&lane.name),
                    attempt: held.attempt,
                    failures: held.failures,
                    not_before_ms: 0,
                    cause,
                };
                lane.stats.requeued.add(events.len() as u64);
                self.stats.count_requeued(cause, events.len() as u64);
                events.iter().for_each(|event| self.back.push(&fate, 0, key, event.clone()));
            }
            if call.segments.iter().all(|segment| segment.key.is_none()) {
                ended.push(serial);
            }
        }
        for call in ended.into_iter().filter_map(|serial| self.calls.in_flight.remove(&serial)) {
            call.task.abort();
            self.lanes.all[call.lane].granting -= call.events.len() as u64;
            self.lanes.all[call.lane].calls -= 1;
        }
    }
}
