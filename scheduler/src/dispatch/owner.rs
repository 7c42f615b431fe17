//! The owner of one shard: takes its lease, moves its watermark, reads its slots, queues what is due, notes what is over,
//! drops what is finished, and gives the lease back.

use super::shared::Shared;
use super::slot::{ReadEntry, Slot};
use super::target_lane::{DueChunk, TargetInfo};
use super::term::{HeldTask, Moment, Outcome, Term, What};
use crate::fail_points::FailPoint;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use windfall_contract::due::{
    Advanced, DueRecord, FinishBatch, Lease, LeaseError, ReadFrom, Shard, SlotEntry, SlotMinute, StoreError,
};

/// Slots that a shard has open, but for those of this minute and after it, and those of which something is in flight.
/// Others are closed again, and looked at in turn.
const OPEN_SLOTS_MAX: usize = 256;
/// The newest past slots that are open beside them, where a target takes the newest tasks first.
const NEWEST_OPEN_SLOTS: usize = 128;
/// How often one of the slots that are not open is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Slots that one turn opens at most: each costs a call.
const OPENED_AT_ONCE: usize = 16;
/// A lease counts as over this long before it is.
const SAFETY_MS: u64 = 500;
/// Bytes of the payloads of dead letters after which a batch is full.
const DEAD_BYTES_MAX: usize = 1 << 20;
const STORE_PAUSE_MIN: Duration = Duration::from_millis(50);
const STORE_PAUSE_MAX: Duration = Duration::from_secs(1);
const ACQUIRE_PAUSE_MAX_MS: u64 = 250;
const ACQUIRE_PAUSE_MIN_MS: u64 = 20;

/// Whether an owner is told to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// It goes on.
    No,
    /// Another instance is to have the shard. A target that hangs must not keep the others' tasks from firing: what has
    /// no answer when a lease's time is over is left to the next owner, who hands it over again.
    Soon,
    /// The process ends: it waits for all answers, and whoever asked sets the limit.
    Settled,
}

/// How owning a shard ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Left {
    /// Tasks that were handed over and could not be noted as over.
    pub unnoted_tasks: u64,
    /// Whether the lease was given back, or there was none.
    pub is_released: bool,
}

/// Takes the shard's lease as soon as nobody else has it, and owns the shard until it is told to leave or loses it.
pub(super) async fn own(shared: Arc<Shared>, shard: Shard, mut leave: watch::Receiver<Leave>) -> Left {
    let mut pause = STORE_PAUSE_MIN;
    let (lease, began) = loop {
        if *leave.borrow() != Leave::No {
            return Left { unnoted_tasks: 0, is_released: true };
        }
        let began = Moment::now(&shared.clock);
        let ttl_ms = shared.options.lease_ttl_ms;
        let wait = match shared.asked(shared.store.acquire(shard, &shared.instance, ttl_ms)).await {
            Ok(Ok(lease)) => break (lease, began),
            Ok(Err(held)) => {
                Duration::from_millis(held.left_ms.clamp(ACQUIRE_PAUSE_MIN_MS, ACQUIRE_PAUSE_MAX_MS))
            }
            Err(_) => {
                pause = (pause * 2).min(STORE_PAUSE_MAX);
                pause
            }
        };
        tokio::select! {
            biased;
            _ = leave.changed() => {}
            () = tokio::time::sleep(wait) => {}
        }
    };
    shared.reach(FailPoint::Acquired).await;
    Owner::new(shared, lease, began).run(leave).await
}

struct Owner {
    shared: Arc<Shared>,
    lease: Lease,
    term: Arc<Term>,
    slots: BTreeMap<SlotMinute, Slot>,
    targets: HashMap<windfall_contract::due::Route, Arc<TargetInfo>>,
    watermark_ms: u64,
    /// The slot beyond [`OPEN_SLOTS_MAX`] that was looked at last, and when.
    looked_at: (SlotMinute, Instant),
    sequence: u64,
    /// What became of tasks, not taken in yet.
    outcomes: VecDeque<Outcome>,
    /// What was sent, or is to be sent, and has no answer yet: it is repeated as it is.
    unsent: VecDeque<(SlotMinute, FinishBatch)>,
    next_finish: Instant,
    pause: Duration,
    /// What it has seen of [`Shared::outdated`].
    outdated: u64,
    /// Whether a route that it has read tasks of stands for something else by now.
    begins_anew: bool,
}

/// What a turn with the store has come to.
enum Turned {
    /// There is nothing more to do before the next one is due.
    Done,
    /// There is more to read at once.
    More,
}

impl Drop for Owner {
    /// However it ends: nothing more goes out under this lease.
    fn drop(&mut self) {
        self.term.close();
        self.shared.stats.slots.sub(u64::try_from(self.slots.len()).unwrap_or(0));
        self.shared.stats.owned_shards.sub(1);
        self.shared.owned_shards.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Owner {
    fn new(shared: Arc<Shared>, lease: Lease, began: Moment) -> Self {
        let safe_ms =
            shared.options.lease_ttl_ms.saturating_sub(SAFETY_MS.min(shared.options.lease_ttl_ms / 4));
        let term = Arc::new(Term::new(lease.clone(), shared.clock.clone(), safe_ms, began));
        shared.stats.owned_shards.add(1);
        shared.owned_shards.fetch_add(1, Ordering::Relaxed);
        Self {
            outdated: shared.outdated.load(Ordering::SeqCst),
            begins_anew: false,
            shared,
            lease,
            term,
            slots: BTreeMap::new(),
            targets: HashMap::new(),
            watermark_ms: 0,
            looked_at: (SlotMinute(0), Instant::now()),
            sequence: 0,
            outcomes: VecDeque::new(),
            unsent: VecDeque::new(),
            next_finish: Instant::now(),
            pause: STORE_PAUSE_MIN,
        }
    }

    async fn run(mut self, mut leave: watch::Receiver<Leave>) -> Left {
        let every = Duration::from_millis(self.shared.options.advance_every_ms);
        let patience = Duration::from_millis(self.shared.options.lease_ttl_ms);
        let mut told_at = None;
        loop {
            let told = self.told(*leave.borrow());
            let is_leaving = told != Leave::No;
            if is_leaving {
                self.term.close();
            }
            let waited = is_leaving.then(|| told_at.get_or_insert_with(Instant::now).elapsed());
            let is_overdue = told == Leave::Soon && waited.is_some_and(|waited| waited >= patience);
            let started = Instant::now();
            let wait = match self.turn(is_leaving).await {
                Ok(Turned::More) => Duration::ZERO,
                Ok(Turned::Done) if is_leaving && self.may_release(is_overdue) => {
                    match self.release().await {
                        Ok(left) => return left,
                        Err(LeaseError::Lost) => return self.lost(),
                        Err(LeaseError::Store(_)) => self.pause,
                    }
                }
                Ok(Turned::Done) => {
                    self.pause = STORE_PAUSE_MIN;
                    every.saturating_sub(started.elapsed())
                }
                Err(LeaseError::Lost) => return self.lost(),
                Err(LeaseError::Store(error)) => {
                    tracing::debug!(shard = self.lease.shard.0, %error, "a shard waits for its store");
                    self.pause = (self.pause * 2).min(STORE_PAUSE_MAX);
                    self.pause
                }
            };
            if wait.is_zero() {
                tokio::task::yield_now().await;
                continue;
            }
            let term = Arc::clone(&self.term);
            tokio::select! {
                biased;
                changed = leave.changed(), if !is_leaving => {
                    if changed.is_err() {
                        // Whoever owns this task is about to drop it.
                        std::future::pending::<()>().await;
                    }
                }
                () = term.wake.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Whether it is to leave, also because what it knows of a route is no longer so: it gives the shard back then, and
    /// whoever takes it next reads everything anew.
    fn told(&mut self, leave: Leave) -> Leave {
        let outdated = self.shared.outdated.load(Ordering::SeqCst);
        if outdated != self.outdated {
            self.outdated = outdated;
            self.begins_anew |= self.targets.values().any(|info| info.is_outdated());
        }
        if self.begins_anew && leave == Leave::No { Leave::Soon } else { leave }
    }

    /// One turn: keep the lease, read and queue, note, drop.
    async fn turn(&mut self, is_leaving: bool) -> Result<Turned, LeaseError> {
        if self.term.ms_since_renewal() >= self.shared.options.lease_renew_ms {
            self.renew().await?;
        }
        let mut turned = Turned::Done;
        if !is_leaving {
            self.take_put_back();
            turned = self.advance().await?;
            self.queue_due().await;
        }
        let is_urgent = is_leaving || self.term.outcome_count() >= self.shared.options.finish_tasks_max;
        if is_urgent || Instant::now() >= self.next_finish {
            self.next_finish = Instant::now() + Duration::from_millis(self.shared.options.finish_every_ms);
            self.finish().await?;
            if !is_leaving {
                self.drop_slots().await?;
            }
        }
        Ok(turned)
    }

    /// Takes back what gave its room in memory to newer tasks.
    fn take_put_back(&mut self) {
        for back in self.term.take_put_back() {
            match (self.slots.get_mut(&back.slot), self.targets.get(&back.route)) {
                (Some(slot), Some(info)) => slot.put_back(back, info),
                _ => tracing::error!(slot = ?back.slot, "a task was put back whose slot is not open"),
            }
        }
    }

    async fn renew(&mut self) -> Result<(), LeaseError> {
        let began = Moment::now(&self.shared.clock);
        let shared = Arc::clone(&self.shared);
        shared.asked_under_lease(shared.store.renew(&self.lease, shared.options.lease_ttl_ms)).await?;
        self.term.renewed(began);
        Ok(())
    }

    /// Moves the watermark on and reads what has come.
    async fn advance(&mut self) -> Result<Turned, LeaseError> {
        let shared = Arc::clone(&self.shared);
        let options = &shared.options;
        let reads = self.reads();
        let call = shared.store.advance(&self.lease, options.ahead_ms, &reads, options.read_bytes_max);
        let Advanced { watermark_ms, slots, entries } = shared.asked_under_lease(call).await?;
        let has_read = !entries.is_empty();
        let mut read = Vec::with_capacity(entries.len());
        for (slot, first_index, entries) in entries {
            let mut known = Vec::with_capacity(entries.len());
            for entry in entries {
                known.push(self.resolve(SlotEntry::decode(&entry).ok()).await?);
            }
            read.push((slot, first_index, known));
        }
        self.watermark_ms = self.watermark_ms.max(watermark_ms);
        self.term.saw_watermark(self.watermark_ms);
        for (slot, first_index, entries) in read {
            if let Some(slot) = self.slots.get_mut(&slot) {
                shared.stats.deferred.add(slot.take_in(first_index, entries, self.watermark_ms));
            }
        }
        shared.reach(FailPoint::EntriesRead).await;
        let opened = self.open_slots(&slots).await?;
        for (minute, counted) in &slots {
            if let Some(slot) = self.slots.get_mut(minute) {
                slot.saw(self.watermark_ms, *counted);
            }
        }
        self.close_idle_slots(self.newest_from(&slots));
        let has_more = |slot: &Slot| slot.is_behind() || slot.is_reading_again();
        // Where nothing came, asking at once would bring nothing either.
        let is_more = opened || has_read && self.slots.values().any(has_more);
        Ok(if is_more { Turned::More } else { Turned::Done })
    }

    /// Where to read: first what was never read, then what had no room in memory.
    fn reads(&mut self) -> Vec<ReadFrom> {
        let this_minute = SlotMinute::of(self.watermark_ms);
        let from =
            |(minute, slot): (&SlotMinute, &Slot)| ReadFrom { slot: *minute, next_index: slot.read_count() };
        let is_growing = |(minute, slot): &(&SlotMinute, &Slot)| **minute >= this_minute || slot.is_behind();
        let mut reads: Vec<_> = self.slots.iter().filter(is_growing).map(from).collect();
        if self.shared.has_newest_first {
            // What is due now does not wait for a backlog to be read.
            let past = reads.partition_point(|read| read.slot < this_minute);
            reads.rotate_left(past);
        }
        let mut newest_first = Vec::new();
        for (minute, slot) in &mut self.slots {
            let is_newest_first = self.shared.has_newest_first && slot.has_newest_first();
            let Some(next_index) = slot.read_again_from(self.watermark_ms) else { continue };
            let into = if is_newest_first { &mut newest_first } else { &mut reads };
            into.push(ReadFrom { slot: *minute, next_index });
        }
        reads.extend(newest_first.into_iter().rev());
        if self.shared.has_newest_first && self.targets.values().any(|info| info.shedding.is_wanted()) {
            self.shared.intake.wake.notify_one();
        }
        reads
    }

    /// The first of the slots that are open whatever else is: this minute's, or that of the newest part of a backlog.
    fn newest_from(&self, listed: &[(SlotMinute, u32)]) -> SlotMinute {
        let this_minute = SlotMinute::of(self.watermark_ms);
        let past = listed.iter().rev().map(|(minute, _)| *minute).filter(|minute| *minute < this_minute);
        let count = if self.shared.has_newest_first { NEWEST_OPEN_SLOTS } else { 0 };
        past.take(count).last().unwrap_or(this_minute)
    }

    async fn resolve(&mut self, entry: Option<SlotEntry>) -> Result<ReadEntry, StoreError> {
        let record: DueRecord = match entry {
            Some(SlotEntry::Task(record)) => record,
            Some(SlotEntry::End(index)) => return Ok(ReadEntry::End(index)),
            None => {
                self.shared.stats.damaged.add(1);
                return Ok(ReadEntry::Damaged);
            }
        };
        let info = match self.targets.get(&record.route) {
            Some(known) => Arc::clone(known),
            None => {
                let info = self.shared.target(record.route).await?;
                self.targets.insert(record.route, Arc::clone(&info));
                info
            }
        };
        Ok(ReadEntry::Task(record, info))
    }

    /// Opens slots that are new, with what earlier owners noted of them.
    async fn open_slots(&mut self, listed: &[(SlotMinute, u32)]) -> Result<bool, LeaseError> {
        let shared = Arc::clone(&self.shared);
        let newest_from = self.newest_from(listed);
        let looked_at = self.look_at(listed);
        let mut opened = 0;
        let (past, newest) = listed.split_at(listed.partition_point(|(minute, _)| *minute < newest_from));
        // What is due now does not wait for a backlog to be opened.
        let newest = newest.iter().rev();
        let in_order: Vec<_> = match self.shared.has_newest_first {
            true => newest.chain(past).collect(),
            false => listed.iter().collect(),
        };
        for (minute, _) in in_order {
            let is_welcome =
                self.slots.len() < OPEN_SLOTS_MAX || *minute >= newest_from || looked_at == Some(*minute);
            if self.slots.contains_key(minute) || !is_welcome {
                continue;
            }
            if opened == OPENED_AT_ONCE {
                break;
            }
            opened += 1;
            let state = shared.asked_under_lease(shared.store.state(&self.lease, *minute)).await?;
            shared.reach(FailPoint::StateRead).await;
            self.slots.insert(
                *minute,
                Slot::new(*minute, state, shared.options.ahead_ms, Arc::clone(&shared.memory)),
            );
            shared.stats.slots.add(1);
        }
        Ok(opened > 0)
    }

    /// The next slot that is not open, where there are too many to open them all.
    fn look_at(&mut self, listed: &[(SlotMinute, u32)]) -> Option<SlotMinute> {
        let (last, at) = self.looked_at;
        if self.slots.len() < OPEN_SLOTS_MAX || at.elapsed() < LOOK_EVERY {
            return None;
        }
        let mut closed =
            listed.iter().map(|(minute, _)| *minute).filter(|minute| !self.slots.contains_key(minute));
        let first = closed.next()?;
        let next = if first > last { first } else { closed.find(|minute| *minute > last).unwrap_or(first) };
        self.looked_at = (next, Instant::now());
        Some(next)
    }

    /// Closes slots of which nothing can go on now, where too many are open, the latest ones first.
    fn close_idle_slots(&mut self, newest_from: SlotMinute) {
        let too_many = self.slots.len().saturating_sub(OPEN_SLOTS_MAX);
        // One whose notes have no answer yet would be opened again as it was before them.
        let is_noted = |minute: &SlotMinute| !self.unsent.iter().any(|(unsent, _)| unsent == minute);
        let idle =
            |(minute, slot): (&SlotMinute, &Slot)| (slot.is_idle() && is_noted(minute)).then_some(*minute);
        let idle: Vec<_> = self.slots.range(..newest_from).rev().filter_map(idle).take(too_many).collect();
        for minute in idle {
            self.slots.remove(&minute);
            self.shared.stats.slots.sub(1);
        }
    }

    /// Hands what is due to the firing loop.
    async fn queue_due(&mut self) {
        let mut by_target: BTreeMap<usize, (Arc<TargetInfo>, Vec<HeldTask>)> = BTreeMap::new();
        for slot in self.slots.values_mut() {
            slot.take_due(|info, task| {
                let new = || (Arc::clone(info), Vec::new());
                by_target.entry(info.lane).or_insert_with(new).1.push(task);
            });
        }
        if by_target.is_empty() {
            return;
        }
        let chunk = |(info, tasks)| DueChunk { info, term: Arc::clone(&self.term), tasks };
        self.shared.intake.chunks.lock().extend(by_target.into_values().map(chunk));
        self.shared.intake.wake.notify_one();
        self.shared.reach(FailPoint::Queued).await;
    }

    /// Takes the outcomes in, and notes them, as many at a time as one batch may have.
    async fn finish(&mut self) -> Result<(), LeaseError> {
        self.outcomes.extend(self.term.take_outcomes());
        loop {
            self.send_news().await?;
            self.gather_news();
            if self.unsent.is_empty() {
                return Ok(());
            }
        }
    }

    /// Sends what is to be noted. What has no answer is repeated as it is, before anything else is sent.
    async fn send_news(&mut self) -> Result<(), LeaseError> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        shared.reach(FailPoint::BeforeFinish).await;
        while let Some((minute, batch)) = self.unsent.front() {
            shared.asked_under_lease(shared.store.finish(&self.lease, *minute, batch)).await?;
            self.unsent.pop_front();
        }
        shared.reach(FailPoint::AfterFinish).await;
        Ok(())
    }

    /// Makes batches of the oldest outcomes.
    fn gather_news(&mut self) {
        let (mut count, mut dead_bytes) = (0, 0);
        while count < self.shared.options.finish_tasks_max
            && dead_bytes < DEAD_BYTES_MAX
            && let Some(outcome) = self.outcomes.pop_front()
        {
            count += 1;
            if let What::Dead(dead) = &outcome.what {
                dead_bytes += dead.0.payload.len();
            }
            match self.slots.get_mut(&outcome.slot) {
                Some(slot) => slot.finish(self.lease.shard, self.watermark_ms, outcome),
                None => tracing::error!(slot = ?outcome.slot, "a task is over whose slot is not open"),
            }
        }
        for (minute, slot) in self.slots.iter_mut().filter(|(_, slot)| slot.has_news()) {
            self.sequence += 1;
            self.unsent.push_back((*minute, slot.take_news(self.sequence)));
        }
    }

    /// Drops the slots of which everything is over.
    async fn drop_slots(&mut self) -> Result<(), LeaseError> {
        let over = |(minute, slot): (&SlotMinute, &Slot)| {
            slot.is_over(self.watermark_ms).then_some((*minute, slot.read_count()))
        };
        let all_over: Vec<_> = self.slots.iter().filter_map(over).collect();
        for (minute, entries) in all_over {
            let shared = Arc::clone(&self.shared);
            shared.reach(FailPoint::BeforeDrop).await;
            if shared.asked_under_lease(shared.store.drop_slot(&self.lease, minute, entries)).await? {
                self.slots.remove(&minute);
                shared.stats.slots.sub(1);
            }
            shared.reach(FailPoint::AfterDrop).await;
        }
        Ok(())
    }

    /// Whether everything that is over is noted, and nothing is in flight or it has had its time.
    fn may_release(&self, is_overdue: bool) -> bool {
        (is_overdue || self.term.in_flight() == 0)
            && self.term.outcome_count() == 0
            && self.outcomes.is_empty()
            && self.unsent.is_empty()
            && !self.slots.values().any(Slot::has_news)
    }

    /// Gives the lease back. What is in flight now is not noted any more.
    async fn release(&mut self) -> Result<Left, LeaseError> {
        let shared = Arc::clone(&self.shared);
        let unnoted_tasks = self.term.in_flight();
        let outcomes = self.term.outcome_count();
        shared.reach(FailPoint::BeforeRelease).await;
        shared.asked_under_lease(shared.store.release(&self.lease)).await?;
        let unnoted_tasks = unnoted_tasks + u64::try_from(outcomes).unwrap_or(u64::MAX);
        if unnoted_tasks > 0 {
            shared.stats.unnoted.add(unnoted_tasks);
            let shard = self.lease.shard.0;
            tracing::warn!(shard, unnoted_tasks, "a shard has moved before targets had answered");
        }
        Ok(Left { unnoted_tasks, is_released: true })
    }

    /// Another instance has the shard, or may have it.
    fn lost(&mut self) -> Left {
        self.term.close();
        let outcomes = self.term.outcome_count() + self.outcomes.len();
        let outcomes = u64::try_from(outcomes).unwrap_or(u64::MAX);
        let unsent: u64 =
            self.unsent.iter().flat_map(|(_, batch)| batch.over.values()).map(|over| u64::from(*over)).sum();
        let unnoted_tasks = outcomes + unsent + self.term.in_flight();
        self.shared.stats.unnoted.add(unnoted_tasks);
        self.shared.stats.leases_lost.add(1);
        tracing::warn!(shard = self.lease.shard.0, unnoted_tasks, "the lease of a shard is lost");
        Left { unnoted_tasks, is_released: true }
    }
}
