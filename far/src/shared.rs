//! The far tier of a slot store that several processes use: one of them keeps it, and the others ask that one.
//!
//! The store itself says whose far timers it has: the log that was the first to name itself there, in one step, for ever.
//! Two logs would give equal ids to different tasks, so any other log is refused, whenever it comes.

use crate::slots::{all, far_id, place};
use crate::turns::{Turns, overtaken};
use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use windfall_contract::Clock;
use windfall_contract::due::{
    Added, Advanced, CancelOnce, CancelledOnce, Change, Changed, DUE_MAX_MS, DeadTask, Durability,
    FinishBatch, Found, HeldBy, KnownName, Lease, LeaseError, LoadBatch, Loaded, Moved, NameKept, NewRecord,
    OnceAnswers, OnceRecord, PAYLOAD_MAX_BYTES, ReadFrom, Route, Shard, SlotMinute, SlotState, SlotStore,
    StoreError, TaskAt, TaskId, WaitingPage,
};

/// A tenant of nobody, for no rules may name one like it. Its first target is the log that has the far tier.
const OWNERS: &str = "@far";
const FIRST_TARGET: u16 = 1;
/// Calls to the keeper at a time, for the tasks of one batch.
const CALLS_AT_ONCE: usize = 16;

/// Names a log as the one whose far timers the store has.
pub(crate) async fn claim(store: &dyn SlotStore, log: u64) -> Result<(), StoreError> {
    let own = format!("{log:016x}");
    if owner(store).await?.is_none() {
        let tenant = store.tenant(OWNERS).await?;
        store.target(tenant, &own).await?;
    }
    match owner(store).await? {
        Some(owner) if owner == own => Ok(()),
        Some(owner) => Err(StoreError::Unusable(format!(
            "its far timers are those of the far log {owner}, and this process has the far log {own}: one process \
             keeps the far timers of a store, and the others have forward_to"
        ))),
        None => Err(StoreError::Unavailable("it does not say whose far timers it has".into())),
    }
}

/// The log that has the far tier of a store.
async fn owner(store: &dyn SlotStore) -> Result<Option<String>, StoreError> {
    let tenant = store.tenant(OWNERS).await?;
    Ok(store.names(Route { tenant, target: FIRST_TARGET }).await?.map(|(_, owner)| owner))
}

/// Notes the name of a number, or that it has two.
fn note<K: Ord>(names: &mut BTreeMap<K, Option<String>>, number: K, name: &str) {
    let known = names.entry(number).or_insert_with(|| Some(name.to_owned()));
    if known.as_deref() != Some(name) {
        *known = None;
    }
}

fn unnamed() -> StoreError {
    let what = "the timers' store does not say any more whose the task is: it may have lost its data. Start the \
                processes of the store again";
    StoreError::Unavailable(what.into())
}

/// Tasks of one tenant: their places in a batch, and each with the name of its target.
type OfTenant = (Vec<usize>, Vec<(String, NewRecord)>);

/// The process that keeps the far tier of a store, as another one reaches it. All of it is by name: the numbers of the
/// store stay in each process.
#[async_trait]
pub trait FarKeeper: Send + Sync {
    /// Adds a tenant's tasks, each with the name of its target and without a key: one answer for each, in order; `None`
    /// for one that is surely not stored there, for instance because it would not be stored as durably as asked.
    ///
    /// # Errors
    /// [`StoreError`]: any of them may be stored.
    async fn add(
        &self,
        tenant: &str,
        tasks: Vec<(String, NewRecord)>,
        durability: Durability,
    ) -> Result<Vec<Option<TaskId>>, StoreError>;

    /// Cancels or changes a tenant's task, wherever it lies. `number` grows with each other change of a task that this
    /// process asks for: one that arrives there behind a later one of the same task must not be done.
    ///
    /// # Errors
    /// [`StoreError`]: it may be done or not, and may be repeated.
    async fn change(
        &self,
        tenant: &str,
        id: TaskId,
        to: Option<Moved>,
        number: u64,
    ) -> Result<Changed, StoreError>;

    /// Finds a tenant's task, wherever it lies; with the name of its target.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn get(&self, tenant: &str, id: TaskId) -> Result<Option<(String, Found)>, StoreError>;

    /// A tenant's waiting tasks that are not near yet, as [`SlotStore::list_far`]; each with the name of its target.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn list(
        &self,
        tenant: &str,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<FarNamedPage, StoreError>;
}

/// A part of a tenant's tasks, each with the name of its target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FarNamedPage {
    /// Waiting tasks.
    pub tasks: Vec<(String, Found)>,
    /// Where to go on; `None` at the end.
    pub next: Option<TaskId>,
}

/// A slot store whose far tier another process keeps, if one does. What is due later than the horizon and has no key goes
/// to that process, and so does every question about a task with an id of the far tier. Without a way to that process
/// tasks are added near, and what the near store does not know of a far id is unavailable, and never said not to be there.
pub struct FarElsewhere {
    near: Arc<dyn SlotStore>,
    keeper: Option<Arc<dyn FarKeeper>>,
    horizon_ms: u64,
    clock: Clock,
    named: Mutex<CallersNames>,
    /// The changes that go on.
    turns: Turns,
}

/// What the callers of this process mean by the near store's numbers. A store that lost its data may give a number to
/// another tenant, and the keeper must not do to that one's tasks what a caller of the first one asks for.
#[derive(Default)]
struct CallersNames {
    /// `None` for a number that two names have.
    tenants: BTreeMap<u16, Option<String>>,
    targets: BTreeMap<(u16, u16), Option<String>>,
}

impl FarElsewhere {
    /// In front of the near store.
    pub fn new(
        near: Arc<dyn SlotStore>,
        keeper: Option<Arc<dyn FarKeeper>>,
        horizon_ms: u64,
        clock: Clock,
    ) -> Self {
        Self { near, keeper, horizon_ms, clock, named: Mutex::default(), turns: Turns::default() }
    }

    fn names(&self, route: Route) -> Result<(String, String), StoreError> {
        let tenant = self.tenant_name(route.tenant)?;
        let target = self.named.lock().targets.get(&(route.tenant, route.target)).cloned().flatten();
        Ok((tenant, target.ok_or_else(unnamed)?))
    }

    fn tenant_name(&self, tenant: u16) -> Result<String, StoreError> {
        self.named.lock().tenants.get(&tenant).cloned().flatten().ok_or_else(unnamed)
    }

    /// A task of the keeper, with the number of its target here.
    async fn routed(&self, tenant: u16, target: &str, mut found: Found) -> Result<Found, StoreError> {
        // One that was cancelled has none any more.
        let target = if target.is_empty() { 0 } else { self.near.target(tenant, target).await? };
        found.record.route = Route { tenant, target };
        Ok(found)
    }

    /// An error where the store has far timers, so that a task that is not near may be one of them.
    async fn nobody_keeps(&self) -> Result<(), StoreError> {
        match owner(&*self.near).await? {
            None => Ok(()),
            Some(_) => Err(StoreError::Unavailable(
                "another process keeps the far timers of this store; ask that one, or set scheduler.far.forward_to"
                    .into(),
            )),
        }
    }

    /// One answer for each; `None` for one that is to be added near: the keeper may refuse one tenant's tasks, and those
    /// of others that came with them must not fail for it.
    async fn add_far(
        &self,
        keeper: &dyn FarKeeper,
        tasks: Vec<NewRecord>,
    ) -> Result<Vec<Option<Added>>, StoreError> {
        let mut by_tenant: BTreeMap<String, OfTenant> = BTreeMap::new();
        let count = tasks.len();
        let mut known: BTreeMap<(u16, u16), (String, String)> = BTreeMap::new();
        for (at, task) in tasks.into_iter().enumerate() {
            let route = (task.route.tenant, task.route.target);
            let (tenant, target) = match known.get(&route) {
                Some(names) => names.clone(),
                None => {
                    let names = self.names(task.route)?;
                    known.insert(route, names.clone());
                    names
                }
            };
            let (places, tasks) = by_tenant.entry(tenant).or_default();
            places.push(at);
            tasks.push((target, task));
        }
        let mut answers: Vec<Option<Option<Added>>> = vec![None; count];
        for (tenant, (places, tasks)) in by_tenant {
            let ids = keeper.add(&tenant, tasks, self.near.durability()).await?;
            place(&mut answers, places, ids.into_iter().map(|id| id.map(Added::Stored)).collect());
        }
        all(answers)
    }
}

#[async_trait]
impl SlotStore for FarElsewhere {
    fn shards(&self) -> u16 {
        self.near.shards()
    }

    fn durability(&self) -> Durability {
        self.near.durability()
    }

    async fn tenant(&self, name: &str) -> Result<u16, StoreError> {
        let number = self.near.tenant(name).await?;
        note(&mut self.named.lock().tenants, number, name);
        Ok(number)
    }

    async fn target(&self, tenant: u16, name: &str) -> Result<u16, StoreError> {
        let number = self.near.target(tenant, name).await?;
        note(&mut self.named.lock().targets, (tenant, number), name);
        Ok(number)
    }

    async fn names(&self, route: Route) -> Result<Option<(String, String)>, StoreError> {
        self.near.names(route).await
    }

    async fn keep_names(&self, known: &[KnownName]) -> Result<Vec<NameKept>, StoreError> {
        self.near.keep_names(known).await
    }

    async fn add(&self, shard: Shard, batch: &[NewRecord]) -> Result<Vec<Added>, StoreError> {
        let far_from_ms = self.clock.unix_ms().saturating_add(self.horizon_ms);
        let is_far = |task: &NewRecord| task.key.is_none() && task.due_ms > far_from_ms;
        let is_whole =
            |task: &NewRecord| task.payload.len() <= PAYLOAD_MAX_BYTES && task.due_ms <= DUE_MAX_MS;
        let Some(keeper) = &self.keeper else { return self.near.add(shard, batch).await };
        // The near store refuses what nobody takes, before anything is stored.
        if !batch.iter().any(is_far) || !batch.iter().all(is_whole) {
            return self.near.add(shard, batch).await;
        }
        let far: Vec<usize> = (0..batch.len()).filter(|at| is_far(&batch[*at])).collect();
        let tasks = far.iter().map(|at| batch[*at].clone()).collect();
        let mut answers: Vec<Option<Added>> = vec![None; batch.len()];
        for (at, added) in far.into_iter().zip(self.add_far(&**keeper, tasks).await?) {
            answers[at] = added;
        }
        let near: Vec<usize> = (0..batch.len()).filter(|at| answers[*at].is_none()).collect();
        if !near.is_empty() {
            let tasks: Vec<_> = near.iter().map(|at| batch[*at].clone()).collect();
            let added = self.near.add(shard, &tasks).await?;
            place(&mut answers, near, added);
        }
        all(answers)
    }

    async fn load(&self, shard: Shard, batch: &LoadBatch) -> Result<Loaded, StoreError> {
        self.near.load(shard, batch).await
    }

    async fn queue_id(&self, fresh: Option<u64>) -> Result<Option<u64>, StoreError> {
        self.near.queue_id(fresh).await
    }

    /// Near, whenever they are due: they have keys.
    async fn add_once(
        &self,
        shard: Shard,
        batch: &[OnceRecord],
        keys_kept_ms: u64,
    ) -> Result<OnceAnswers, StoreError> {
        self.near.add_once(shard, batch, keys_kept_ms).await
    }

    async fn cancel_once(
        &self,
        shard: Shard,
        batch: &[CancelOnce],
    ) -> Result<Vec<CancelledOnce>, StoreError> {
        self.near.cancel_once(shard, batch).await
    }

    async fn change(&self, shard: Shard, batch: &[Change]) -> Result<Vec<Changed>, StoreError> {
        // Before anything is waited for: a change that comes later overtakes this one wherever it hangs in this process.
        let turns = self.turns.begin_all(shard, batch);
        let mut answers: Vec<Option<Changed>> = vec![None; batch.len()];
        let is_near = |change: &Change| self.keeper.is_none() || far_id(&change.at, shard).is_none();
        // First: they do not wait for the keeper, which may take longer than their callers do.
        let near: Vec<usize> = (0..batch.len()).filter(|at| is_near(&batch[*at])).collect();
        if !near.is_empty() {
            let changes: Vec<_> = near.iter().map(|at| batch[*at].clone()).collect();
            let changed = self.near.change(shard, &changes).await?;
            let is_open = |(change, changed): (&Change, &Changed)| {
                *changed == Changed::Unknown && far_id(&change.at, shard).is_some()
            };
            if changes.iter().zip(&changed).any(is_open) {
                self.nobody_keeps().await?;
            }
            place(&mut answers, near, changed);
        }
        if let Some(keeper) = &self.keeper {
            let (mut ids, mut calls) = (BTreeSet::new(), Vec::new());
            for (at, (change, turn)) in batch.iter().zip(&turns).enumerate() {
                let (Some(id), Some(turn)) = (far_id(&change.at, shard), turn) else { continue };
                let (keeper, tenant) = (Arc::clone(keeper), self.tenant_name(change.tenant)?);
                let (to, turn) = (change.to.clone(), Arc::clone(turn));
                ids.insert((change.tenant, id));
                calls.push(async move {
                    if turn.is_overtaken() {
                        return Ok((at, None));
                    }
                    match keeper.change(&tenant, id, to, turn.number()).await {
                        Ok(changed) => Ok((at, Some(changed))),
                        Err(_) if turn.is_overtaken() => Ok((at, None)),
                        Err(error) => Err(error),
                    }
                });
            }
            // Two changes of one task are done in order.
            let width = if ids.len() == calls.len() { CALLS_AT_ONCE } else { 1 };
            let mut calls = stream::iter(calls).buffered(width);
            let mut is_overtaken = false;
            while let Some(answered) = calls.next().await {
                let (at, changed) = answered?;
                is_overtaken |= changed.is_none();
                answers[at] = changed;
            }
            // At last: the others of the batch are done.
            if is_overtaken {
                return Err(overtaken());
            }
        }
        all(answers)
    }

    async fn get(&self, shard: Shard, tenant: u16, at: &[TaskAt]) -> Result<Vec<Option<Found>>, StoreError> {
        let mut answers: Vec<Option<Option<Found>>> = vec![None; at.len()];
        if let Some(keeper) = &self.keeper {
            let mut calls = Vec::new();
            for (place, at) in at.iter().enumerate() {
                let Some(id) = far_id(at, shard) else { continue };
                let (keeper, name) = (Arc::clone(keeper), self.tenant_name(tenant)?);
                calls.push(async move { keeper.get(&name, id).await.map(|found| (place, found)) });
            }
            let mut calls = stream::iter(calls).buffered(CALLS_AT_ONCE);
            while let Some(answered) = calls.next().await {
                let (place, found) = answered?;
                answers[place] = Some(match found {
                    Some((target, found)) => Some(self.routed(tenant, &target, found).await?),
                    None => None,
                });
            }
        }
        let near: Vec<usize> = (0..at.len()).filter(|place| answers[*place].is_none()).collect();
        if !near.is_empty() {
            let asked: Vec<_> = near.iter().map(|place| at[*place].clone()).collect();
            let found = self.near.get(shard, tenant, &asked).await?;
            let is_open =
                |(at, found): (&TaskAt, &Option<Found>)| found.is_none() && far_id(at, shard).is_some();
            if asked.iter().zip(&found).any(is_open) {
                self.nobody_keeps().await?;
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
        self.near.list(tenant, after, limit).await
    }

    async fn list_far(
        &self,
        tenant: u16,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<WaitingPage, StoreError> {
        let Some(keeper) = &self.keeper else { return Ok(WaitingPage::default()) };
        let FarNamedPage { tasks, next } = keeper.list(&self.tenant_name(tenant)?, after, limit).await?;
        let mut page = WaitingPage { tasks: Vec::with_capacity(tasks.len()), next };
        for (target, found) in tasks {
            page.tasks.push(self.routed(tenant, &target, found).await?);
        }
        Ok(page)
    }

    async fn counts(&self, shard: Shard) -> Result<BTreeMap<u16, u64>, StoreError> {
        self.near.counts(shard).await
    }

    async fn beat(&self, instance: &str, ttl_ms: u64) -> Result<Vec<String>, StoreError> {
        self.near.beat(instance, ttl_ms).await
    }

    async fn acquire(
        &self,
        shard: Shard,
        instance: &str,
        ttl_ms: u64,
    ) -> Result<Result<Lease, HeldBy>, StoreError> {
        self.near.acquire(shard, instance, ttl_ms).await
    }

    async fn renew(&self, lease: &Lease, ttl_ms: u64) -> Result<(), LeaseError> {
        self.near.renew(lease, ttl_ms).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), LeaseError> {
        self.near.release(lease).await
    }

    async fn advance(
        &self,
        lease: &Lease,
        ahead_ms: u64,
        reads: &[ReadFrom],
        max_bytes: usize,
    ) -> Result<Advanced, LeaseError> {
        self.near.advance(lease, ahead_ms, reads, max_bytes).await
    }

    async fn state(&self, lease: &Lease, slot: SlotMinute) -> Result<SlotState, LeaseError> {
        self.near.state(lease, slot).await
    }

    async fn finish(&self, lease: &Lease, slot: SlotMinute, batch: &FinishBatch) -> Result<(), LeaseError> {
        self.near.finish(lease, slot, batch).await
    }

    async fn drop_slot(&self, lease: &Lease, slot: SlotMinute, entries: u32) -> Result<bool, LeaseError> {
        self.near.drop_slot(lease, slot, entries).await
    }

    async fn dead(
        &self,
        tenant: u16,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<Vec<DeadTask>, StoreError> {
        self.near.dead(tenant, after, limit).await
    }

    async fn end_dead(
        &self,
        shard: Shard,
        tenant: u16,
        ids: &[TaskId],
        again: bool,
    ) -> Result<Vec<bool>, StoreError> {
        self.near.end_dead(shard, tenant, ids, again).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_two_names_have_is_nobodys() {
        let mut names = BTreeMap::new();
        for name in ["shop", "shop"] {
            note(&mut names, 2, name);
        }
        assert_eq!(names[&2].as_deref(), Some("shop"));
        // The store lost its data, and gave the number to another tenant.
        for name in ["arcade", "shop", "arcade"] {
            note(&mut names, 2, name);
            assert_eq!(names[&2], None);
        }
    }
}
