//! The due tasks of one target, and when how many of them may go.

use super::due_queue::DueQueue;
use super::memory::TargetMemory;
use super::shedding::Shedding;
use super::term::{HeldTask, Term};
use crate::stats::TargetStats;
use crate::tenants::{CatchUp, Class, TargetRules};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use windfall_contract::breaker::{Breaker, Pass};
use windfall_contract::due::Target;
use windfall_contract::rules::{Fuse, Limit, TypeLimit};
use windfall_limiter::{Limiter, Now, Share, TypeId, Wait};

const NS_PER_MS: u64 = 1_000_000;
/// A rate that has run dry is asked again after so long: a sub-batch of some tasks is better than many of one.
const RATE_PAUSE_NS: u64 = 20 * NS_PER_MS;
/// Tasks of a lease that may have run out wait so long before they are looked at again.
const UNSAFE_PAUSE_NS: u64 = 50 * NS_PER_MS;
/// A target whose oldest task is later than this gets its whole concurrency.
const LATE_MS: u64 = 200;

/// What all parts of a dispatcher know of a target.
pub(super) struct TargetInfo {
    /// Its number in this dispatcher, and that of its tenant.
    pub lane: usize,
    pub tenant_lane: usize,
    pub tenant: Arc<str>,
    pub class: Class,
    pub rules: TargetRules,
    /// `None` where this instance has no such target.
    pub target: Option<Arc<dyn Target>>,
    /// Whether the store did not say whose its tasks are.
    pub is_unknown: bool,
    /// Whether what its route stands for is no longer so. Nothing is fired by it any more.
    pub is_outdated: AtomicBool,
    pub memory: TargetMemory,
    pub shedding: Shedding,
    pub stats: Arc<TargetStats>,
}

impl TargetInfo {
    pub fn is_newest_first(&self) -> bool {
        self.rules.catch_up == CatchUp::NewestFirst
    }

    pub fn is_outdated(&self) -> bool {
        self.is_outdated.load(SeqCst)
    }
}

/// Due tasks of one target that were read under one lease.
pub(super) struct DueChunk {
    pub info: Arc<TargetInfo>,
    pub term: Arc<Term>,
    pub tasks: Vec<HeldTask>,
}

/// A part of a sub-batch: its tasks count as in flight in their term.
pub(super) struct BatchPart {
    pub term: Arc<Term>,
    pub tasks: Vec<HeldTask>,
}

/// What the answers to a sub-batch say of its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// It takes nothing just now.
    Away,
    /// It does not take these tasks, and took others meanwhile.
    NotThese,
    /// It answers.
    Here,
}

/// What a lane has to send.
pub(super) enum ToSend {
    Batch(Vec<BatchPart>),
    /// Nothing before this moment (monotonic ns).
    NotBefore(u64),
    /// Nothing before a sub-batch has landed, or a task has come.
    Nothing,
}

/// The due tasks of one target.
pub(super) struct TargetLane {
    pub info: Arc<TargetInfo>,
    /// Whether it waits for its turn.
    pub is_offered: bool,
    /// When it is looked at again (monotonic ns), if it waits for a time.
    pub wake_ns: Option<u64>,
    /// How many sub-batches had a task that the target took.
    pub takings: u32,
    queue: DueQueue,
    retries: BinaryHeap<Retrying>,
    retries_made: u64,
    in_flight_batches: usize,
    breaker: Breaker,
    rate: Option<(Limiter, TypeId)>,
    share: (u32, u32),
}

/// A task that waits for its next attempt.
struct Retrying {
    at_ns: u64,
    /// Keeps the order of those that come at the same moment.
    number: u64,
    term: Arc<Term>,
    task: HeldTask,
}

impl PartialEq for Retrying {
    fn eq(&self, other: &Self) -> bool {
        (self.at_ns, self.number) == (other.at_ns, other.number)
    }
}

impl Eq for Retrying {}

impl PartialOrd for Retrying {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Retrying {
    /// The earliest one is the greatest, as the heap wants it.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_ns, other.number).cmp(&(self.at_ns, self.number))
    }
}

impl TargetLane {
    pub fn new(info: Arc<TargetInfo>, probe_every_ms: u64, now_ns: u64) -> Self {
        let rate = info.rules.rate_per_s.map(|rate_per_s| {
            let burst = u32::try_from(rate_per_s / 10).unwrap_or(u32::MAX).clamp(1, Limit::BURST_MAX);
            let limit = Limit { rate_per_s, burst };
            let limiter = Limiter::new(limit, Now(now_ns));
            let tasks = limiter.type_id("tasks");
            let rule = TypeLimit { limit, fuse: Fuse::Closed, priority: 0 };
            limiter.apply(limit, &[("tasks".to_owned(), rule)], Now(now_ns));
            (limiter, tasks)
        });
        if !info.is_outdated() {
            info.stats.away.set(u64::from(info.target.is_none()));
        }
        Self {
            is_offered: false,
            wake_ns: None,
            takings: 0,
            queue: DueQueue::new(info.rules.catch_up),
            retries: BinaryHeap::new(),
            retries_made: 0,
            in_flight_batches: 0,
            breaker: Breaker::new(1, probe_every_ms.saturating_mul(NS_PER_MS)),
            rate,
            share: (1, 1),
            info,
        }
    }

    pub fn has_work(&self) -> bool {
        self.queue.len() > 0 && self.info.target.is_some() && !self.info.is_outdated()
    }

    pub fn push(&mut self, term: Arc<Term>, tasks: VecDeque<HeldTask>) {
        self.queue.push(&term, tasks);
        self.show();
    }

    /// Puts tasks behind all others, which the target does not take just now.
    pub fn set_aside(&mut self, term: &Arc<Term>, tasks: VecDeque<HeldTask>) {
        self.queue.set_aside(term, tasks);
        self.show();
    }

    pub fn retry_at(&mut self, at_ns: u64, term: Arc<Term>, task: HeldTask) {
        self.retries_made += 1;
        self.retries.push(Retrying { at_ns, number: self.retries_made, term, task });
        self.show();
    }

    /// Puts the tasks whose next attempt has come into the queue; says when the next one comes.
    pub fn release_retries(&mut self, now_ns: u64) -> Option<u64> {
        while self.retries.peek().is_some_and(|next| next.at_ns <= now_ns) {
            let Some(Retrying { term, task, .. }) = self.retries.pop() else { break };
            self.push(term, [task].into());
        }
        self.show();
        self.retries.peek().map(|next| next.at_ns)
    }

    pub fn landed(&mut self) {
        self.in_flight_batches = self.in_flight_batches.saturating_sub(1);
    }

    /// Whether the target took other tasks since a task's last try: then it is not the target that is away.
    pub fn takes_others(&self, tried_at: Option<u32>) -> bool {
        tried_at.is_some_and(|takings| takings != self.takings)
    }

    /// The target has answered a sub-batch.
    pub fn answered(&mut self, said: Said, now_ns: u64) {
        match said {
            Said::Away => self.breaker.trip(now_ns),
            // A probe that says nothing of the others leaves the breaker as it is.
            Said::NotThese if self.breaker.is_open() => self.breaker.trip(now_ns),
            Said::NotThese => {}
            Said::Here => {
                self.breaker.succeeded();
                self.queue.restore();
            }
        }
        if !self.info.is_outdated() {
            self.info.stats.away.set(u64::from(self.breaker.is_open()));
        }
    }

    /// The instance fires so many of all shards: the target's rate is the fleet's.
    pub fn set_share(&mut self, owned: u32, shards: u32, now_ns: u64) {
        let Some((limiter, _)) = self.rate.as_ref().filter(|_| self.share != (owned, shards)) else { return };
        if let Some(share) = Share::new(owned, shards) {
            limiter.set_share(share, Now(now_ns));
            self.share = (owned, shards);
        }
    }

    /// Takes a sub-batch out, if one may go now. `dropped` gets the tasks whose lease is over.
    pub fn take(&mut self, batch_max: usize, now_ns: u64, dropped: &mut Vec<HeldTask>) -> ToSend {
        if self.info.is_outdated() {
            // Their owners let go of these tasks, and read them again.
            return ToSend::Nothing;
        }
        let wanted = self.queue.sift(batch_max, dropped);
        self.show();
        if wanted == 0 {
            return if self.has_work() {
                ToSend::NotBefore(now_ns + UNSAFE_PAUSE_NS)
            } else {
                ToSend::Nothing
            };
        }
        if self.in_flight_batches >= self.width() || self.breaker.is_open() && self.in_flight_batches > 0 {
            return ToSend::Nothing;
        }
        let wanted = match (self.breaker.is_open(), self.breaker.ask(now_ns)) {
            (_, Pass::OpenUntil(until_ns)) => return ToSend::NotBefore(until_ns),
            (true, Pass::Go) => 1,
            (false, Pass::Go) => wanted,
        };
        let granted = match &self.rate {
            None => wanted,
            Some((limiter, tasks)) => {
                let asked = u32::try_from(wanted).unwrap_or(u32::MAX);
                let admission = limiter.admit(*tasks, asked, Now(now_ns));
                if admission.granted == 0 {
                    let wait_ns = match admission.wait {
                        Wait::For(wait) => u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX),
                        Wait::Never => 0,
                    };
                    return ToSend::NotBefore(now_ns.saturating_add(wait_ns.max(RATE_PAUSE_NS)));
                }
                usize::try_from(admission.granted).unwrap_or(wanted)
            }
        };
        let parts = self.queue.pop(granted);
        if parts.is_empty() {
            return ToSend::NotBefore(now_ns + UNSAFE_PAUSE_NS);
        }
        self.in_flight_batches += 1;
        self.show();
        ToSend::Batch(parts)
    }

    /// Takes out all tasks whose lease is over.
    pub fn drop_closed(&mut self, dropped: &mut Vec<HeldTask>) {
        self.queue.drop_closed(dropped);
        if self.retries.iter().any(|retry| !retry.term.is_open()) {
            let (open, closed) = self.retries.drain().partition::<Vec<_>, _>(|retry| retry.term.is_open());
            self.retries = open.into();
            dropped.extend(closed.into_iter().map(|retry| retry.task));
        }
        self.show();
    }

    /// Takes tasks of older minutes out, where a newer one has no room in memory: a quarter of what the target holds, so
    /// that it is seldom done.
    pub fn shed(&mut self) -> Vec<BatchPart> {
        let Some(before) = self.info.shedding.take_wanted() else { return Vec::new() };
        let (parts, last) = self.queue.shed(before, (self.info.memory.held_bytes() / 4).max(1));
        if let Some(last) = last {
            self.info.shedding.shed_upto(last);
        }
        self.show();
        parts
    }

    /// More side by side when it is late.
    fn width(&self) -> usize {
        let concurrency = self.info.rules.concurrency.max(1);
        let is_late = self.queue.oldest().is_some_and(|(term, task)| {
            let due_ms = task.slot.start_ms() + u64::from(task.record.offset_ms);
            term.store_now_ms() > due_ms.saturating_add(LATE_MS)
        });
        if is_late { concurrency } else { concurrency.div_ceil(2) }
    }

    fn show(&self) {
        if self.info.is_outdated() {
            // The numbers of this target are another lane's.
            return;
        }
        self.info.stats.due.set(u64::try_from(self.queue.len()).unwrap_or(u64::MAX));
        if self.info.is_newest_first() {
            self.info.shedding.queued_from(self.queue.oldest_minute());
        }
        self.info.stats.retrying.set(u64::try_from(self.retries.len()).unwrap_or(u64::MAX));
    }
}
