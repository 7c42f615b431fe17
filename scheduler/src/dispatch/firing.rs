//! The firing loop: due tasks go to their targets in sub-batches, side by side and in turn.

use super::jitter::Jitter;
use super::shared::Shared;
use super::target_lane::{BatchPart, DueChunk, Said, TargetLane, ToSend};
use super::term::{HeldTask, Outcome, PutBack, Term, What};
use super::turns::{Turn, Turns};
use crate::caught::caught;
use crate::fail_points::FailPoint;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;
use windfall_contract::due::{Fired, Firing, SlotMinute, TaskId};

/// A task that goes out later than this is counted as late.
const LATE_MS: u64 = 1_000;
/// Bytes of a target's reason that are kept.
const REASON_MAX_BYTES: usize = 500;
const NS_PER_MS: u64 = 1_000_000;
/// How often the tasks of leases that are over are swept out.
const SWEEP_EVERY_NS: u64 = 1_000 * NS_PER_MS;

/// Owns the queues of all targets and the sub-batches in flight. Dropped, it lets go of them all.
pub(super) struct FiringLoop {
    shared: Arc<Shared>,
    lanes: Vec<Option<TargetLane>>,
    turns: Turns,
    /// When which lane is looked at again (monotonic ns).
    wakes: BinaryHeap<Reverse<(u64, usize)>>,
    in_flight: JoinSet<Landed>,
    jitter: Jitter,
    swept_ns: u64,
    dropped: Vec<HeldTask>,
}

/// A sub-batch whose call has ended.
struct Landed {
    lane: usize,
    parts: Vec<BatchPart>,
    answers: Result<Vec<Fired>, NoAnswer>,
}

/// Why a call has no answers. Any of its tasks may have been handed over.
#[derive(Debug, thiserror::Error)]
enum NoAnswer {
    #[error("its target panicked: {0}")]
    Panicked(String),
    #[error("its target has not answered within `fire_timeout_ms`, {0} ms")]
    TooLate(u64),
}

/// What one part of a sub-batch has come to.
#[derive(Default)]
struct Sorted {
    /// Whether its call ended without an answer.
    is_unknown: bool,
    /// Whether its target took a task of the same sub-batch.
    has_taken: bool,
    /// Whether its target was away for a task, and took others meanwhile.
    has_passed_over: bool,
    outcomes: Vec<Outcome>,
    away: VecDeque<HeldTask>,
    retries: Vec<HeldTask>,
    freed_bytes: usize,
}

impl FiringLoop {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self {
            turns: Turns::new(shared.options.batch_tasks_max),
            jitter: Jitter::new(shared.options.jitter_seed),
            swept_ns: shared.clock.monotonic_ns(),
            shared,
            lanes: Vec::new(),
            wakes: BinaryHeap::new(),
            in_flight: JoinSet::new(),
            dropped: Vec::new(),
        }
    }

    /// Runs until it is dropped.
    pub async fn run(mut self) {
        loop {
            self.take_in();
            self.wake_lanes();
            self.sweep();
            self.shed();
            self.send();
            let shared = Arc::clone(&self.shared);
            let pause = self.pause();
            // Each round looks at everything, so the order starves nobody, and a simulation repeats itself.
            tokio::select! {
                biased;
                () = shared.intake.wake.notified() => {}
                Some(landed) = self.in_flight.join_next(), if !self.in_flight.is_empty() => {
                    self.land(landed).await;
                    while let Some(landed) = self.in_flight.try_join_next() {
                        self.land(landed).await;
                    }
                }
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn take_in(&mut self) {
        let chunks = std::mem::take(&mut *self.shared.intake.chunks.lock());
        let now_ns = self.shared.clock.monotonic_ns();
        for DueChunk { info, term, tasks } in chunks {
            let lane = info.lane;
            if self.lanes.len() <= lane {
                self.lanes.resize_with(lane + 1, || None);
            }
            let probe_every_ms = self.shared.options.probe_every_ms;
            self.lanes[lane]
                .get_or_insert_with(|| TargetLane::new(info, probe_every_ms, now_ns))
                .push(term, tasks.into());
            self.offer(lane);
        }
    }

    /// Gives a lane its turn, if it has something to send and does not wait for its turn already.
    fn offer(&mut self, lane: usize) {
        if let Some(Some(found)) = self.lanes.get_mut(lane)
            && !found.is_offered
            && found.has_work()
        {
            found.is_offered = true;
            self.turns.offer(found.info.tenant_lane, found.info.class, lane);
        }
    }

    fn wake_lanes(&mut self) {
        let now_ns = self.shared.clock.monotonic_ns();
        while self.wakes.peek().is_some_and(|Reverse((at_ns, _))| *at_ns <= now_ns) {
            let Some(Reverse((at_ns, lane))) = self.wakes.pop() else { break };
            let Some(Some(found)) = self.lanes.get_mut(lane) else { continue };
            if found.wake_ns != Some(at_ns) {
                continue;
            }
            found.wake_ns = None;
            let next_ns = found.release_retries(now_ns);
            wake_at(&mut self.wakes, found, next_ns);
            self.offer(lane);
        }
    }

    /// Takes out what leases that are over have left, now and then.
    fn sweep(&mut self) {
        let now_ns = self.shared.clock.monotonic_ns();
        if now_ns.saturating_sub(self.swept_ns) < SWEEP_EVERY_NS {
            return;
        }
        self.swept_ns = now_ns;
        for lane in self.lanes.iter_mut().flatten() {
            lane.drop_closed(&mut self.dropped);
            let freed_bytes = self.dropped.drain(..).map(|task| task.cost_bytes).sum();
            self.shared.memory.give_back(&lane.info.memory, freed_bytes);
        }
    }

    /// Hands tasks of older minutes back to their owners, where newer ones of a target that takes the newest first have no
    /// room.
    fn shed(&mut self) {
        if !self.shared.has_newest_first {
            return;
        }
        for lane in self.lanes.iter_mut().flatten() {
            let mut freed_bytes = 0;
            for BatchPart { term, tasks } in lane.shed() {
                freed_bytes += tasks.iter().map(|task| task.cost_bytes).sum::<usize>();
                term.put_back(tasks.iter().map(put_back));
            }
            self.shared.memory.give_back(&lane.info.memory, freed_bytes);
        }
    }

    fn send(&mut self) {
        let options = &self.shared.options;
        let limit_ms = options.fire_timeout_ms;
        let now_ns = self.shared.clock.monotonic_ns();
        let owned = self.shared.owned_shards.load(Ordering::Relaxed);
        let shards = u32::from(self.shared.store.shards());
        loop {
            let free = options.in_flight_batches_max.saturating_sub(self.in_flight.len());
            let Some(Turn { tenant, lane }) = self.turns.next(free) else { break };
            let Some(Some(found)) = self.lanes.get_mut(lane) else { continue };
            found.is_offered = false;
            found.set_share(owned, shards, now_ns);
            let to_send = found.take(options.batch_tasks_max, now_ns, &mut self.dropped);
            let freed_bytes = self.dropped.drain(..).map(|task| task.cost_bytes).sum();
            self.shared.memory.give_back(&found.info.memory, freed_bytes);
            match (to_send, found.info.target.clone()) {
                (ToSend::Batch(parts), Some(target)) => {
                    self.turns.sent(tenant, parts.iter().map(|part| part.tasks.len()).sum());
                    count_lateness(&self.shared, &parts);
                    let tenant = Arc::clone(&found.info.tenant);
                    self.in_flight.spawn(async move {
                        let batch = firings(&parts, &tenant);
                        let call = caught(target.fire(batch));
                        let answers = match tokio::time::timeout(Duration::from_millis(limit_ms), call).await
                        {
                            Ok(answers) => answers.map_err(NoAnswer::Panicked),
                            Err(_) => Err(NoAnswer::TooLate(limit_ms)),
                        };
                        Landed { lane, parts, answers }
                    });
                    if found.has_work() {
                        found.is_offered = true;
                        self.turns.offer(found.info.tenant_lane, found.info.class, lane);
                    }
                }
                (ToSend::NotBefore(at_ns), _) => wake_at(&mut self.wakes, found, Some(at_ns)),
                (ToSend::Nothing | ToSend::Batch(_), _) => {}
            }
        }
        self.shared.stats.in_flight_batches.set(u64::try_from(self.in_flight.len()).unwrap_or(u64::MAX));
    }

    async fn land(&mut self, landed: Result<Landed, tokio::task::JoinError>) {
        let Landed { lane, parts, answers } = match landed {
            Ok(landed) => landed,
            // Its panics are caught, and nobody else cancels it.
            Err(error) => std::panic::resume_unwind(Box::new(error.to_string())),
        };
        self.shared.reach(FailPoint::Answered).await;
        let now_ns = self.shared.clock.monotonic_ns();
        let stats = Arc::clone(&self.shared.stats);
        let Some(Some(found)) = self.lanes.get_mut(lane) else { return };
        found.landed();
        self.turns.landed(found.info.tenant_lane);
        let mut is_unknown = false;
        let mut answers = match answers {
            Ok(answers) => answers.into_iter(),
            Err(why) => {
                let tasks = parts.iter().map(|part| part.tasks.len()).sum();
                tracing::error!(tenant = %found.info.tenant, %why, tasks, "nobody knows what became of timers");
                stats.panics.add(u64::from(matches!(why, NoAnswer::Panicked(_))));
                is_unknown = true;
                vec![Fired::Failed(why.to_string()); tasks].into_iter()
            }
        };
        let has_taken = answers.as_slice().contains(&Fired::Done);
        found.takings = found.takings.wrapping_add(u32::from(has_taken));
        let (mut is_away, mut has_passed_over) = (false, false);
        let mut next_retry_ns = None;
        for BatchPart { term, tasks } in parts {
            let count = u64::try_from(tasks.len()).unwrap_or(u64::MAX);
            let mut sorted = Sorted { is_unknown, has_taken, ..Sorted::default() };
            for task in tasks {
                let answer =
                    answers.next().unwrap_or_else(|| Fired::Failed("its target gave no answer".into()));
                sort(&self.shared, found, task, answer, &mut sorted);
            }
            self.shared.memory.give_back(&found.info.memory, sorted.freed_bytes);
            for task in sorted.retries {
                let wait_ms = self.jitter.of(found.info.rules.retry.wait_ms(task.attempts));
                let at_ns = now_ns.saturating_add(wait_ms.saturating_mul(NS_PER_MS));
                next_retry_ns = Some(next_retry_ns.map_or(at_ns, |next: u64| next.min(at_ns)));
                found.retry_at(at_ns, Arc::clone(&term), task);
            }
            has_passed_over |= sorted.has_passed_over;
            if !sorted.away.is_empty() {
                is_away = true;
                // Behind all others, so that each probe takes another task.
                found.set_aside(&term, sorted.away);
            }
            hand_in(&term, sorted.outcomes, count, self.shared.options.finish_tasks_max);
        }
        let said = match () {
            () if is_away => Said::Away,
            () if has_passed_over && !has_taken => Said::NotThese,
            () => Said::Here,
        };
        found.answered(said, now_ns);
        wake_at(&mut self.wakes, found, next_retry_ns);
        self.offer(lane);
    }

    /// How long nothing happens by itself.
    fn pause(&self) -> Duration {
        let now_ns = self.shared.clock.monotonic_ns();
        let next_ns = self.wakes.peek().map_or(u64::MAX, |Reverse((at_ns, _))| *at_ns);
        let sweep_ns = self.swept_ns.saturating_add(SWEEP_EVERY_NS);
        // A timer may go off a little early.
        Duration::from_nanos(next_ns.min(sweep_ns).saturating_sub(now_ns)).max(Duration::from_millis(1))
    }
}

/// Looks at a lane again at this moment, unless that is done earlier: so a lane has one wake that counts.
fn wake_at(wakes: &mut BinaryHeap<Reverse<(u64, usize)>>, lane: &mut TargetLane, at_ns: Option<u64>) {
    if let Some(at_ns) = at_ns.filter(|at_ns| lane.wake_ns.is_none_or(|known_ns| *at_ns < known_ns)) {
        lane.wake_ns = Some(at_ns);
        wakes.push(Reverse((at_ns, lane.info.lane)));
    }
}

/// Outcomes first, then the end of the flight: whoever finds nothing in flight finds all outcomes.
fn hand_in(term: &Term, mut outcomes: Vec<Outcome>, tasks: u64, wake_at: usize) {
    term.push_outcomes(&mut outcomes, wake_at);
    term.end_flight(tasks);
}

/// Says what becomes of a task.
fn sort(shared: &Shared, lane: &TargetLane, mut task: HeldTask, answer: Fired, sorted: &mut Sorted) {
    let stats = &shared.stats;
    let takes_others = sorted.has_taken || lane.takes_others(task.tried_at);
    task.tried_at = Some(lane.takings);
    let is_passing = matches!(answer, Fired::Busy(_)) || !takes_others;
    sorted.has_passed_over |= !is_passing && matches!(answer, Fired::Away(_));
    let (reason, is_final) = match answer {
        Fired::Done => {
            stats.done.add(1);
            lane.info.stats.done.add(1);
            sorted.freed_bytes += task.cost_bytes;
            let what = What::Over { tenant: task.record.route.tenant, key: task.record.key };
            sorted.outcomes.push(Outcome { slot: task.slot, index: task.index, what });
            return;
        }
        Fired::Away(_) | Fired::Busy(_) if is_passing => {
            stats.away.add(1);
            sorted.away.push_back(task);
            return;
        }
        // Away for this task alone: without a limit it would be asked for ever.
        Fired::Away(reason) | Fired::Busy(reason) | Fired::Failed(reason) | Fired::Unknown(reason) => {
            let counter = if sorted.is_unknown { &stats.unknown } else { &stats.failed };
            counter.add(1);
            (reason, task.attempts.saturating_add(1) >= lane.info.rules.retry.attempts_max())
        }
        Fired::Refused(reason) => {
            stats.refused.add(1);
            (reason, true)
        }
    };
    task.attempts = task.attempts.saturating_add(1);
    let (slot, index) = (task.slot, task.index);
    let what = if is_final {
        stats.dead.add(1);
        lane.info.stats.dead.add(1);
        sorted.freed_bytes += task.cost_bytes;
        What::Dead(Box::new((task.record, task.attempts, cut(reason))))
    } else {
        stats.retried.add(1);
        let tried = What::Tried(task.attempts);
        sorted.retries.push(task);
        tried
    };
    sorted.outcomes.push(Outcome { slot, index, what });
}

fn put_back(task: &HeldTask) -> PutBack {
    let &HeldTask { slot, index, attempts, cost_bytes, ref record, .. } = task;
    PutBack { slot, index, offset_ms: record.offset_ms, route: record.route, attempts, cost_bytes }
}

fn cut(mut reason: String) -> String {
    let end = (0..=REASON_MAX_BYTES.min(reason.len())).rev().find(|at| reason.is_char_boundary(*at));
    reason.truncate(end.unwrap_or(0));
    reason
}

fn count_lateness(shared: &Shared, parts: &[BatchPart]) {
    for part in parts {
        let now_ms = part.term.store_now_ms();
        let firsts = part.tasks.iter().filter(|task| task.attempts == 0);
        for late_ms in firsts.map(|task| now_ms.saturating_sub(due_ms(task.slot, task.record.offset_ms))) {
            shared.stats.lateness.add(late_ms);
            shared.stats.late.add(u64::from(late_ms > LATE_MS));
        }
    }
}

fn due_ms(slot: SlotMinute, offset_ms: u16) -> u64 {
    slot.start_ms().saturating_add(u64::from(offset_ms))
}

fn firings(parts: &[BatchPart], tenant: &Arc<str>) -> Vec<Firing> {
    let mut batch = Vec::with_capacity(parts.iter().map(|part| part.tasks.len()).sum());
    for part in parts {
        let shard = part.term.lease.shard;
        batch.extend(part.tasks.iter().map(|task| Firing {
            id: task.record.first_id.unwrap_or(TaskId { shard, slot: task.slot, index: task.index }),
            tenant: Arc::clone(tenant),
            key: task.record.key.clone(),
            due_ms: crate::timers::asked_ms(task.slot, &task.record),
            attempt: task.attempts.saturating_add(1),
            payload: task.record.payload.clone(),
        }));
    }
    batch
}
