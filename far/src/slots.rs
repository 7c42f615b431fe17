//! Both tiers as one slot store.

use crate::change::{FarChanged, may_be_stored};
use crate::look::{FarFound, found_cancelled};
use crate::shared::claim;
use crate::tier::FarTier;
use crate::turns::{Turn, overtaken};
use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt, stream};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinHandle;
use windfall_contract::due::{
    Added, Advanced, CancelOnce, CancelledOnce, Change, Changed, DUE_MAX_MS, DeadTask, Durability,
    FinishBatch, Found, HeldBy, KnownName, Lease, LeaseError, LoadBatch, Loaded, NameKept, NewRecord,
    OnceAnswers, OnceRecord, PAYLOAD_MAX_BYTES, ReadFrom, Route, Shard, SlotMinute, SlotState, SlotStore,
    StoreError, TaskAt, TaskId, WaitingPage,
};

const PANIC_PAUSE: Duration = Duration::from_secs(1);
/// The pause between two attempts to learn whose far timers a shared store has.
const CLAIM_AGAIN: Duration = Duration::from_secs(1);
/// Tasks of a batch that are looked for in segments at a time.
const LOOKS_AT_ONCE: usize = 16;

/// A slot store in front of which the far tier takes what is due later than the horizon and has no key. A call that
/// has tasks of both tiers is one step in each of them: after an error any of its tasks may be stored or changed.
/// [`list`](SlotStore::list) leaves tasks of the far tier to [`list_far`](SlotStore::list_far), and [`counts`](SlotStore::counts) counts all of them in
/// the first shard. Dispatchers use the near store itself, or this one, which is the same to them.
pub struct FarSlots {
    owned: Owned,
    running: JoinHandle<()>,
}

/// A slot store, and the far tier of its tasks.
#[derive(Clone)]
struct Owned {
    near: Arc<dyn SlotStore>,
    far: FarTier,
    /// Whether the store is known to have no other far timers than these.
    is_claimed: Arc<AtomicBool>,
    /// Whether other processes use the store as well.
    is_shared: bool,
}

impl Owned {
    /// A store that was emptied has forgotten whose far timers it has: it is told again.
    async fn keep_claim(&self) {
        if self.is_shared
            && self.is_claimed.load(Relaxed)
            && let Err(error) = claim(&*self.near, self.far.log_id()).await
        {
            // Where it has those of another log by now, nothing more is taken for it.
            self.is_claimed.store(!matches!(error, StoreError::Unusable(_)), Relaxed);
            tracing::warn!(%error, "the timers' store does not say that it has this process's far timers");
        }
    }

    /// Fails where the store has the far timers of another log, or does not say.
    async fn claim(&self) -> Result<(), StoreError> {
        if !self.is_claimed.load(Relaxed) {
            claim(&*self.near, self.far.log_id()).await?;
            self.is_claimed.store(true, Relaxed);
        }
        Ok(())
    }
}

impl FarSlots {
    /// Both tiers, and a task of the current tokio runtime that loads from one into the other until this is dropped.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(near: Arc<dyn SlotStore>, far: FarTier) -> Self {
        Self::run(Owned { near, far, is_claimed: Arc::new(AtomicBool::new(true)), is_shared: false })
    }

    /// The same for a store that other processes use as well. The store remembers for ever whose far timers it has: those
    /// of the first log. Nothing is taken, changed or loaded before the store has said that they are these.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start_shared(near: Arc<dyn SlotStore>, far: FarTier) -> Self {
        Self::run(Owned { near, far, is_claimed: Arc::default(), is_shared: true })
    }

    /// Asks the store whether it has no other far timers than these.
    ///
    /// # Errors
    /// [`StoreError::Unusable`] where it has those of another log.
    pub async fn claim(&self) -> Result<(), StoreError> {
        self.owned.claim().await
    }

    fn run(owned: Owned) -> Self {
        let running = tokio::spawn(run_again(owned.clone()));
        Self { owned, running }
    }
}

impl Drop for FarSlots {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// Runs the far tier, again after a panic: it goes on where its log says.
async fn run_again(owned: Owned) {
    // Whoever opens the far tier says why it waits.
    while owned.claim().await.is_err() {
        tokio::time::sleep(CLAIM_AGAIN).await;
    }
    let Owned { near, far, .. } = owned;
    while AssertUnwindSafe(far.run(Arc::clone(&near))).catch_unwind().await.is_err() {
        tracing::error!("a part of the far tier panicked; it is started again");
        tokio::time::sleep(PANIC_PAUSE).await;
    }
}

/// Puts answers where they belong.
pub(crate) fn place<T>(into: &mut [Option<T>], places: Vec<usize>, answers: Vec<T>) {
    places.into_iter().zip(answers).for_each(|(at, answer)| into[at] = Some(answer));
}

pub(crate) fn all<T>(answers: Vec<Option<T>>) -> Result<Vec<T>, StoreError> {
    let all: Option<Vec<T>> = answers.into_iter().collect();
    all.ok_or_else(|| StoreError::Unavailable("a tier has not answered for each task".into()))
}

/// What became of a change of a task with a far id.
enum Outcome {
    Done(Changed),
    /// The near store has to say it.
    Near,
    /// Another change was asked for after it. Others of its batch go on.
    Overtaken,
}

/// What became of the change at this place of a batch.
async fn changed_far(
    far: FarTier,
    near: Arc<dyn SlotStore>,
    at: usize,
    id: TaskId,
    change: Change,
    turn: Arc<Turn>,
) -> Result<(usize, Outcome), StoreError> {
    let Change { tenant, to, .. } = change;
    let outcome = match far.change_in_turn(Arc::clone(&turn), tenant, id, to).await {
        Ok(FarChanged::Here(changed)) => Outcome::Done(changed),
        Ok(FarChanged::Near) => Outcome::Near,
        // It is done, so it must not be done again: the task may have been changed once more since, or have fired.
        Ok(FarChanged::MovedNear) => {
            let found = near.get(id.shard, tenant, &[TaskAt::Id(id)]).await?;
            let lies_at = found.into_iter().flatten().next().map(|found| found.id);
            Outcome::Done(Changed::Done(lies_at.unwrap_or(id)))
        }
        Err(_) if turn.is_overtaken() => Outcome::Overtaken,
        Err(error) => return Err(error),
    };
    Ok((at, outcome))
}

/// Which of these tasks were cancelled before their hour was loaded, so that the near store does not know them: their
/// places. Each comes with its tenant.
async fn which_were_cancelled(
    far: &FarTier,
    unknown: Vec<(usize, u16, TaskId)>,
) -> Result<Vec<usize>, StoreError> {
    let calls = unknown.into_iter().map(|(at, tenant, id)| {
        let far = far.clone();
        async move { far.was_cancelled(tenant, id).await.map(|is_cancelled| is_cancelled.then_some(at)) }
    });
    let mut calls = stream::iter(calls).buffered(LOOKS_AT_ONCE);
    let mut cancelled = Vec::new();
    while let Some(answered) = calls.next().await {
        cancelled.extend(answered?);
    }
    Ok(cancelled)
}

/// The id of a task of the far tier, where it is named by one and belongs to the shard.
pub(crate) fn far_id(at: &TaskAt, shard: Shard) -> Option<TaskId> {
    match at {
        TaskAt::Id(id) if id.is_far() && id.shard == shard => Some(*id),
        TaskAt::Id(_) | TaskAt::Key(_) => None,
    }
}

#[async_trait]
impl SlotStore for FarSlots {
    fn shards(&self) -> u16 {
        self.owned.near.shards()
    }

    /// The weaker one of both.
    fn durability(&self) -> Durability {
        match (self.owned.near.durability(), self.owned.far.durability()) {
            (Durability::Machine, far) => far,
            (Durability::EverySecond, Durability::Machine) => Durability::EverySecond,
            (Durability::EverySecond | Durability::Process, _) => Durability::Process,
        }
    }

    async fn tenant(&self, name: &str) -> Result<u16, StoreError> {
        self.owned.near.tenant(name).await
    }

    async fn target(&self, tenant: u16, name: &str) -> Result<u16, StoreError> {
        self.owned.near.target(tenant, name).await
    }

    async fn names(&self, route: Route) -> Result<Option<(String, String)>, StoreError> {
        self.owned.near.names(route).await
    }

    async fn keep_names(&self, known: &[KnownName]) -> Result<Vec<NameKept>, StoreError> {
        let kept = self.owned.near.keep_names(known).await?;
        self.owned.keep_claim().await;
        Ok(kept)
    }

    async fn add(&self, shard: Shard, batch: &[NewRecord]) -> Result<Vec<Added>, StoreError> {
        let is_far = |task: &NewRecord| task.key.is_none() && self.owned.far.takes(task.due_ms);
        let far: Vec<usize> = (0..batch.len()).filter(|at| is_far(&batch[*at])).collect();
        let is_whole =
            |task: &NewRecord| task.payload.len() <= PAYLOAD_MAX_BYTES && task.due_ms <= DUE_MAX_MS;
        // The near store refuses what nobody takes, before anything is stored.
        if far.is_empty() || !batch.iter().all(is_whole) {
            return self.owned.near.add(shard, batch).await;
        }
        if shard.0 >= self.owned.near.shards() {
            return Err(StoreError::Unusable(format!("there is no shard {}", shard.0)));
        }
        self.claim().await?;
        let routes: BTreeMap<_, _> = far
            .iter()
            .map(|at| batch[*at].route)
            .map(|route| ((route.tenant, route.target), route))
            .collect();
        for route in routes.into_values() {
            self.owned.far.name(&*self.owned.near, route).await?;
        }
        let mut answers: Vec<Option<Added>> = vec![None; batch.len()];
        let taken = self.owned.far.add(shard, far.iter().map(|at| batch[*at].clone()).collect()).await?;
        for (at, id) in far.into_iter().zip(taken) {
            answers[at] = id.map(Added::Stored);
        }
        let near: Vec<usize> = (0..batch.len()).filter(|at| answers[*at].is_none()).collect();
        if !near.is_empty() {
            let tasks: Vec<_> = near.iter().map(|at| batch[*at].clone()).collect();
            let added = self.owned.near.add(shard, &tasks).await?;
            place(&mut answers, near, added);
        }
        all(answers)
    }

    async fn load(&self, shard: Shard, batch: &LoadBatch) -> Result<Loaded, StoreError> {
        self.owned.near.load(shard, batch).await
    }

    async fn queue_id(&self, fresh: Option<u64>) -> Result<Option<u64>, StoreError> {
        self.owned.near.queue_id(fresh).await
    }

    /// Near, whenever they are due: they have keys.
    async fn add_once(
        &self,
        shard: Shard,
        batch: &[OnceRecord],
        keys_kept_ms: u64,
    ) -> Result<OnceAnswers, StoreError> {
        self.owned.near.add_once(shard, batch, keys_kept_ms).await
    }

    async fn cancel_once(
        &self,
        shard: Shard,
        batch: &[CancelOnce],
    ) -> Result<Vec<CancelledOnce>, StoreError> {
        self.owned.near.cancel_once(shard, batch).await
    }

    async fn change(&self, shard: Shard, batch: &[Change]) -> Result<Vec<Changed>, StoreError> {
        if batch.iter().all(|change| far_id(&change.at, shard).is_none()) {
            return self.owned.near.change(shard, batch).await;
        }
        // The near store refuses what nobody takes, before anything is changed.
        if !batch.iter().filter_map(|change| change.to.as_ref()).all(may_be_stored) {
            return self.owned.near.change(shard, batch).await;
        }
        // Before anything is waited for: a change that comes later overtakes this one wherever it hangs. Two changes of
        // one task in one batch are done in order, as long as both are done in the same tier; the first one that moves a
        // task near is answered when the task is there.
        let turns = self.owned.far.turns().begin_all(shard, batch);
        self.claim().await?;
        let mut answers: Vec<Option<Changed>> = vec![None; batch.len()];
        // These do not wait for segments, which may take longer than their callers do.
        let own: Vec<usize> = (0..batch.len()).filter(|at| turns[*at].is_none()).collect();
        if !own.is_empty() {
            let changes: Vec<_> = own.iter().map(|at| batch[*at].clone()).collect();
            let changed = self.owned.near.change(shard, &changes).await?;
            place(&mut answers, own, changed);
        }
        let (mut tasks, mut calls) = (BTreeSet::new(), Vec::new());
        for (at, (change, turn)) in batch.iter().zip(&turns).enumerate() {
            let (Some(id), Some(turn)) = (far_id(&change.at, shard), turn) else { continue };
            let (far, near) = (self.owned.far.clone(), Arc::clone(&self.owned.near));
            tasks.insert((change.tenant, id));
            calls.push(changed_far(far, near, at, id, change.clone(), Arc::clone(turn)));
        }
        let width = if tasks.len() == calls.len() { LOOKS_AT_ONCE } else { 1 };
        let mut calls = stream::iter(calls).buffered(width);
        let (mut near, mut is_overtaken) = (Vec::new(), false);
        while let Some(answered) = calls.next().await {
            match answered? {
                (at, Outcome::Done(changed)) => answers[at] = Some(changed),
                (at, Outcome::Near) => near.push(at),
                (_, Outcome::Overtaken) => is_overtaken = true,
            }
        }
        // Looks at other tasks of the batch may have taken long.
        let looked = near.len();
        near.retain(|at| turns[*at].as_ref().is_some_and(|turn| !turn.is_overtaken()));
        is_overtaken |= near.len() < looked;
        if !near.is_empty() {
            let changes: Vec<_> = near.iter().map(|at| batch[*at].clone()).collect();
            let mut changed = self.owned.near.change(shard, &changes).await?;
            // Before it is acknowledged: what it was must never be fired again.
            self.owned.far.note_changes(shard, &changes, &changed).await?;
            let unknown = changes.iter().zip(&changed).enumerate().filter_map(|(at, (change, changed))| {
                let id = far_id(&change.at, shard).filter(|_| *changed == Changed::Unknown)?;
                Some((at, change.tenant, id))
            });
            for at in which_were_cancelled(&self.owned.far, unknown.collect()).await? {
                changed[at] = Changed::Cancelled;
            }
            place(&mut answers, near, changed);
        }
        // At last: the others of the batch are done.
        if is_overtaken {
            return Err(overtaken());
        }
        all(answers)
    }

    async fn get(&self, shard: Shard, tenant: u16, at: &[TaskAt]) -> Result<Vec<Option<Found>>, StoreError> {
        let mut answers: Vec<Option<Option<Found>>> = vec![None; at.len()];
        let mut calls = Vec::new();
        for (place, at) in at.iter().enumerate() {
            let Some(id) = far_id(at, shard) else { continue };
            let far = self.owned.far.clone();
            calls.push(async move { far.get(tenant, id).await.map(|found| (place, found)) });
        }
        if !calls.is_empty() {
            self.claim().await?;
        }
        let mut calls = stream::iter(calls).buffered(LOOKS_AT_ONCE);
        while let Some(answered) = calls.next().await {
            if let (place, FarFound::Here(found)) = answered? {
                answers[place] = Some(Some(found));
            }
        }
        let near: Vec<usize> = (0..at.len()).filter(|place| answers[*place].is_none()).collect();
        if !near.is_empty() {
            let at: Vec<_> = near.iter().map(|place| at[*place].clone()).collect();
            let mut found = self.owned.near.get(shard, tenant, &at).await?;
            let unknown = at.iter().zip(&found).enumerate().filter_map(|(place, (at, found))| {
                let id = far_id(at, shard).filter(|_| found.is_none())?;
                Some((place, tenant, id))
            });
            for place in which_were_cancelled(&self.owned.far, unknown.collect()).await? {
                found[place] = far_id(&at[place], shard).map(|id| found_cancelled(id, tenant));
            }
            place(&mut answers, near, found);
        }
        all(answers)
    }

    async fn list(
        &self,
        tenant: u16,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<WaitingPage, StoreError> {
        self.owned.near.list(tenant, after, limit).await
    }

    async fn list_far(
        &self,
        tenant: u16,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<WaitingPage, StoreError> {
        self.claim().await?;
        self.owned.far.list(tenant, after, limit).await
    }

    async fn counts(&self, shard: Shard) -> Result<BTreeMap<u16, u64>, StoreError> {
        let mut counts = self.owned.near.counts(shard).await?;
        if shard == Shard(0) {
            for (tenant, waiting) in self.owned.far.counts() {
                *counts.entry(tenant).or_default() += waiting;
            }
        }
        Ok(counts)
    }

    async fn beat(&self, instance: &str, ttl_ms: u64) -> Result<Vec<String>, StoreError> {
        self.owned.near.beat(instance, ttl_ms).await
    }

    async fn acquire(
        &self,
        shard: Shard,
        instance: &str,
        ttl_ms: u64,
    ) -> Result<Result<Lease, HeldBy>, StoreError> {
        self.owned.near.acquire(shard, instance, ttl_ms).await
    }

    async fn renew(&self, lease: &Lease, ttl_ms: u64) -> Result<(), LeaseError> {
        self.owned.near.renew(lease, ttl_ms).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), LeaseError> {
        self.owned.near.release(lease).await
    }

    async fn advance(
        &self,
        lease: &Lease,
        ahead_ms: u64,
        reads: &[ReadFrom],
        max_bytes: usize,
    ) -> Result<Advanced, LeaseError> {
        self.owned.near.advance(lease, ahead_ms, reads, max_bytes).await
    }

    async fn state(&self, lease: &Lease, slot: SlotMinute) -> Result<SlotState, LeaseError> {
        self.owned.near.state(lease, slot).await
    }

    async fn finish(&self, lease: &Lease, slot: SlotMinute, batch: &FinishBatch) -> Result<(), LeaseError> {
        self.owned.near.finish(lease, slot, batch).await
    }

    async fn drop_slot(&self, lease: &Lease, slot: SlotMinute, entries: u32) -> Result<bool, LeaseError> {
        self.owned.near.drop_slot(lease, slot, entries).await
    }

    async fn dead(
        &self,
        tenant: u16,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<Vec<DeadTask>, StoreError> {
        self.owned.near.dead(tenant, after, limit).await
    }

    async fn end_dead(
        &self,
        shard: Shard,
        tenant: u16,
        ids: &[TaskId],
        again: bool,
    ) -> Result<Vec<bool>, StoreError> {
        self.owned.near.end_dead(shard, tenant, ids, again).await
    }
}
