//! The API half: tasks are added, moved, cancelled and found.

mod by_queue;
mod group_commit;
mod names;
mod quotas;
mod stats;

pub(crate) use names::Names;
pub use stats::TimersStats;

use crate::CALL_TASKS_MAX;
use crate::add_queue::AddQueue;
use crate::options::TimersOptions;
use crate::stats::TenantStats;
use crate::task::{Accept, AddError, DeadView, NewTask, TaskView, TimersError};
use crate::tenants::{TenantRules, Tenants};
use by_queue::ByQueue;
use group_commit::{GroupCommit, Refused, answered};
use parking_lot::Mutex;
use quotas::Quotas;
use stats::TimersCounters;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use windfall_contract::Clock;
use windfall_contract::due::{
    Added, CancelledOnce, Change, Changed, DUE_MAX_MS, DeadTask, DueRecord, Durability, Found, Moved,
    NewRecord, PAYLOAD_MAX_BYTES, Route, Shard, SlotMinute, SlotStore, StoreError, TaskAt, TaskId, TaskKey,
};

/// How often the names that are in use are said to the store.
const KEEP_NAMES_EVERY: Duration = Duration::from_secs(5);

/// Adds, moves, cancels and finds tasks. Clones share one.
#[derive(Clone)]
pub struct Timers(Arc<Inner>);

struct Inner {
    tenants: Arc<Tenants>,
    store: Arc<dyn SlotStore>,
    names: Arc<Names>,
    quotas: Arc<Quotas>,
    adds: GroupCommit<NewRecord, Added>,
    moves: GroupCommit<Change, Changed>,
    /// Apart from moves, which a full store refuses.
    cancels: GroupCommit<Change, Changed>,
    by_queue: Option<ByQueue>,
    counters: Arc<TimersCounters>,
    /// Counts waiting tasks, and keeps names.
    upkeep: Mutex<Option<JoinHandle<()>>>,
}

impl Timers {
    /// Starts as tasks of the current tokio runtime. Never waits and never fails.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(
        options: TimersOptions,
        tenants: Arc<Tenants>,
        store: Arc<dyn SlotStore>,
        clock: Clock,
    ) -> Self {
        Self::start_with(options, tenants, store, None, clock)
    }

    /// The same with a queue by which adds may be written while the store is away.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start_with(
        options: TimersOptions,
        tenants: Arc<Tenants>,
        store: Arc<dyn SlotStore>,
        queue: Option<AddQueue>,
        clock: Clock,
    ) -> Self {
        let counters = Arc::new(TimersCounters::default());
        let names = Arc::new(Names::new(Arc::clone(&store)));
        let quotas = Arc::new(Quotas::new(&tenants, clock));
        let (add_store, add_counters) = (Arc::clone(&store), Arc::clone(&counters));
        let adds = GroupCommit::start(
            &options,
            store.shards(),
            Box::new(move |shard, batch| {
                let (store, counters) = (Arc::clone(&add_store), Arc::clone(&add_counters));
                Box::pin(async move { counters.flushed(store.add(shard, &batch).await) })
            }),
        );
        let changes = || {
            let (change_store, change_counters) = (Arc::clone(&store), Arc::clone(&counters));
            GroupCommit::start_for_callers(
                &options,
                store.shards(),
                Box::new(move |shard, batch: Vec<Change>| {
                    let (store, counters) = (Arc::clone(&change_store), Arc::clone(&change_counters));
                    Box::pin(async move { counters.flushed(store.change(shard, &batch).await) })
                }),
            )
        };
        let (moves, cancels) = (changes(), changes());
        let by_queue = queue.map(|queue| ByQueue::start(queue, &options, &store, &counters));
        let every = Duration::from_millis(options.count_every_ms);
        let counting = count(Arc::clone(&quotas), Arc::clone(&names), Arc::clone(&store), every);
        let keeping = keep_names(Arc::clone(&names), Arc::clone(&counters));
        let upkeep = async move {
            tokio::join!(counting, keeping);
        };
        let upkeep = Mutex::new(Some(tokio::spawn(upkeep)));
        Self(Arc::new(Inner {
            tenants,
            store,
            names,
            quotas,
            adds,
            moves,
            cancels,
            by_queue,
            counters,
            upkeep,
        }))
    }

    /// What an Ok of an add survives.
    pub fn durability(&self) -> Durability {
        self.0.store.durability()
    }

    /// Whether a target's tasks become rewards; `None` where the tenant has no such target.
    pub fn sends_rewards(&self, tenant: &str, target: &str) -> Option<bool> {
        self.0.tenants.target(tenant, target).map(|rules| rules.sends_rewards)
    }

    /// The option of a tenant, and its value, that never lets so many tasks be added together.
    pub fn never_has_room(&self, tenant: &str, together: u64) -> Option<(&'static str, u64)> {
        let rules = self.0.tenants.0.get(tenant)?;
        let quotas = [("waiting_max", rules.waiting_max), ("adds_per_s", rules.adds_per_s)];
        quotas.into_iter().find(|(_, value)| *value < together)
    }

    /// Adds tasks: one answer for each, in order. Two tasks of one call with the same key: the first one is stored.
    pub async fn add(&self, tenant: &str, tasks: Vec<NewTask>) -> Vec<Result<Added, AddError>> {
        let answers = self.0.add(tenant, tasks).await;
        self.0.counters.added(&answers);
        answers
    }

    /// Where an add, a change or a cancel of a tenant goes first that does not say so itself.
    pub fn accept_of(&self, tenant: &str) -> Accept {
        match &self.0.by_queue {
            Some(by_queue) if by_queue.is_default_of(tenant) => Accept::Queue,
            _ => Accept::Store,
        }
    }

    /// Whether adds can go by a queue here.
    pub fn has_queue(&self) -> bool {
        self.0.by_queue.is_some()
    }

    /// Writes tasks to the queue of adds, from which they are taken into the store: one answer for each, in order. Ok: a
    /// broker has stored it. Each key is used once: a task whose key was used is dropped when it is taken.
    pub async fn add_by_queue(&self, tenant: &str, tasks: Vec<NewTask>) -> Vec<Result<(), AddError>> {
        let answers = self.0.add_by_queue(tenant, tasks).await;
        self.0.counters.queued(&answers);
        answers
    }

    /// Cancels tasks by their keys, also those whose adds are still on their way in the queue of adds: one answer for each, in
    /// order.
    pub async fn cancel_once(
        &self,
        tenant: &str,
        keys: Vec<TaskKey>,
    ) -> Vec<Result<CancelledOnce, TimersError>> {
        let answers = self.0.cancel_once(tenant, keys).await;
        self.0.counters.cancelled_once(&answers);
        answers
    }

    /// Moves a task to another time, gives it another payload, or both.
    ///
    /// # Errors
    /// [`TimersError`].
    pub async fn update(&self, tenant: &str, at: TaskAt, to: Moved) -> Result<Changed, TimersError> {
        if to.due_ms.is_none() && to.payload.is_none() {
            return Err(TimersError::NothingToChange);
        }
        if let Some(due_ms) = to.due_ms.filter(|due_ms| *due_ms > DUE_MAX_MS) {
            return Err(TimersError::DueTooFar(due_ms));
        }
        if let Some(len) = to.payload.as_ref().map(bytes::Bytes::len).filter(|len| *len > PAYLOAD_MAX_BYTES) {
            return Err(TimersError::PayloadTooLong(len));
        }
        self.0.change(tenant, vec![at], Some(to)).await.pop().unwrap_or(Err(TimersError::Busy))
    }

    /// Cancels tasks: one answer for each, in order. A task that was cancelled never fires.
    pub async fn cancel(&self, tenant: &str, at: Vec<TaskAt>) -> Vec<Result<Changed, TimersError>> {
        self.0.change(tenant, at, None).await
    }

    /// Finds a task.
    ///
    /// # Errors
    /// [`TimersError`].
    pub async fn get(&self, tenant: &str, at: TaskAt) -> Result<Option<TaskView>, TimersError> {
        let number = self.0.tenant(tenant).await?;
        let Some(shard) = self.0.shard(number, &at) else { return Ok(None) };
        match self.0.store.get(shard, number, &[at]).await?.pop().flatten() {
            Some(found) => Ok(Some(self.0.view(found).await?)),
            None => Ok(None),
        }
    }

    /// Lists waiting tasks, but for those of a far tier, in the order of their ids, at most 1,000. Go on with the id that is returned until there is
    /// none; a page may be empty and not the last one.
    ///
    /// # Errors
    /// [`TimersError`].
    pub async fn list(
        &self,
        tenant: &str,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<(Vec<TaskView>, Option<TaskId>), TimersError> {
        let number = self.0.tenant(tenant).await?;
        let page = self.0.store.list(number, after, limit.clamp(1, CALL_TASKS_MAX)).await?;
        Ok((self.0.views(page.tasks).await?, page.next))
    }

    /// Lists waiting tasks that lie in a far tier, by hour and shard, at most 1,000. Go on with the id that is returned
    /// until there is none; a page may be empty and not the last one. What comes near meanwhile is in neither page.
    ///
    /// # Errors
    /// [`TimersError`].
    pub async fn list_far(
        &self,
        tenant: &str,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<(Vec<TaskView>, Option<TaskId>), TimersError> {
        let number = self.0.tenant(tenant).await?;
        let page = self.0.store.list_far(number, after, limit.clamp(1, CALL_TASKS_MAX)).await?;
        Ok((self.0.views(page.tasks).await?, page.next))
    }

    /// Lists tasks that were given up, in the order of their ids, at most 1,000. Go on behind the last one.
    ///
    /// # Errors
    /// [`TimersError`].
    pub async fn dead(
        &self,
        tenant: &str,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<Vec<DeadView>, TimersError> {
        let number = self.0.tenant(tenant).await?;
        let mut views = Vec::new();
        for dead in self.0.store.dead(number, after, limit.clamp(1, CALL_TASKS_MAX)).await? {
            views.push(self.0.dead_view(dead).await?);
        }
        Ok(views)
    }

    /// Sends tasks that were given up again, due at once, or deletes them. Says for each whether it was there.
    ///
    /// # Errors
    /// [`TimersError`]; some of them may be sent or deleted then. The call may be repeated.
    pub async fn end_dead(
        &self,
        tenant: &str,
        ids: Vec<TaskId>,
        again: bool,
    ) -> Result<Vec<bool>, TimersError> {
        let number = self.0.tenant(tenant).await?;
        if ids.len() > CALL_TASKS_MAX {
            return Err(TimersError::TooMany(ids.len()));
        }
        let mut by_shard: BTreeMap<Shard, (Vec<usize>, Vec<TaskId>)> = BTreeMap::new();
        for (place, id) in ids.iter().enumerate().filter(|(_, id)| id.shard.0 < self.0.store.shards()) {
            let (places, ids) = by_shard.entry(id.shard).or_default();
            places.push(place);
            ids.push(*id);
        }
        let mut were_there = vec![false; ids.len()];
        for (shard, (places, ids)) in by_shard {
            let ended = self.0.store.end_dead(shard, number, &ids, again).await?;
            places.into_iter().zip(ended).for_each(|(place, was_there)| were_there[place] = was_there);
        }
        Ok(were_there)
    }

    /// What was taken and refused.
    pub fn stats(&self) -> TimersStats {
        self.0.counters.read()
    }

    /// What each tenant has.
    pub fn tenants(&self) -> Vec<TenantStats> {
        let each = |(tenant, waiting, waiting_max)| TenantStats { tenant, waiting, waiting_max };
        self.0.quotas.waiting().into_iter().map(each).collect()
    }

    /// Takes nothing any more, and waits until what was taken has its answer.
    pub async fn close(&self) {
        if let Some(upkeep) = self.0.upkeep.lock().take() {
            upkeep.abort();
        }
        self.0.adds.close().await;
        self.0.moves.close().await;
        self.0.cancels.close().await;
        if let Some(by_queue) = &self.0.by_queue {
            by_queue.close().await;
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(upkeep) = self.upkeep.get_mut().take() {
            upkeep.abort();
        }
    }
}

/// Tasks of one call that go to one shard, or to any: their places in the call, and their bytes.
#[derive(Default)]
struct Part {
    places: Vec<usize>,
    records: Vec<NewRecord>,
    bytes: usize,
}

impl Inner {
    async fn add(&self, tenant: &str, tasks: Vec<NewTask>) -> Vec<Result<Added, AddError>> {
        let count = tasks.len();
        let all = |error: AddError| vec![Err(error); count];
        let Some(rules) = self.tenants.0.get(tenant) else {
            return all(AddError::UnknownTenant(tenant.to_owned()));
        };
        if count > CALL_TASKS_MAX {
            return all(AddError::TooMany(count));
        }
        let mut answers: Vec<_> = tasks.iter().map(|task| invalid(rules, task).map(Err)).collect();
        let valid = answers.iter().filter(|answer| answer.is_none()).count();
        let mut admitted = self.quotas.admit(tenant, valid);
        if let Some(error) = &admitted.rest {
            let refused = answers.iter_mut().filter(|answer| answer.is_none()).skip(admitted.count);
            refused.for_each(|answer| *answer = Some(Err(error.clone())));
        }
        let parts = match self.parts(tenant, tasks, &answers).await {
            Ok(parts) => parts,
            Err(error) => {
                admitted.reserved.not_stored(u64::MAX);
                let missing = |answer: Option<_>| answer.unwrap_or_else(|| Err(error.clone().into()));
                return answers.into_iter().map(missing).collect();
            }
        };
        let flights: Vec<_> = parts
            .into_iter()
            .map(|(shard, part)| (part.places, self.adds.submit(shard, part.records, part.bytes)))
            .collect();
        let mut not_stored = 0;
        for (places, flight) in flights {
            let added = match flight {
                Ok(flight) => answered(flight).await.map_err(AddError::Store),
                Err(Refused::Busy) => Err(AddError::Busy),
                Err(Refused::Closing) => Err(AddError::Closing),
            };
            for (nth, place) in places.into_iter().enumerate() {
                let answer = added.as_ref().map(|added| added[nth]).map_err(Clone::clone);
                let is_new = matches!(answer, Ok(Added::Stored(_)) | Err(AddError::Store(_)));
                not_stored += u64::from(!is_new);
                answers[place] = Some(answer);
            }
        }
        admitted.reserved.not_stored(not_stored);
        answers.into_iter().map(|answer| answer.unwrap_or(Err(AddError::Busy))).collect()
    }

    /// The records of all tasks that have no answer yet, by where they go.
    async fn parts(
        &self,
        tenant: &str,
        tasks: Vec<NewTask>,
        answers: &[Option<Result<Added, AddError>>],
    ) -> Result<BTreeMap<Option<Shard>, Part>, StoreError> {
        let mut parts: BTreeMap<Option<Shard>, Part> = BTreeMap::new();
        if answers.iter().all(Option::is_some) {
            return Ok(parts);
        }
        let number = self.names.tenant(tenant).await?;
        let mut last: Option<(String, u16)> = None;
        for (place, task) in tasks.into_iter().enumerate().filter(|(place, _)| answers[*place].is_none()) {
            let target = match &last {
                Some((name, known)) if *name == task.target => *known,
                _ => {
                    let target = self.names.target(number, &task.target).await?;
                    last = Some((task.target, target));
                    target
                }
            };
            let shard = task.key.as_ref().map(|key| key.shard(number, self.store.shards()));
            let part = parts.entry(shard).or_default();
            part.places.push(place);
            part.bytes += task.payload.len();
            let route = Route { tenant: number, target };
            part.records.push(NewRecord { due_ms: task.due_ms, route, key: task.key, payload: task.payload });
        }
        Ok(parts)
    }

    async fn change(
        &self,
        tenant: &str,
        at: Vec<TaskAt>,
        to: Option<Moved>,
    ) -> Vec<Result<Changed, TimersError>> {
        let count = at.len();
        if count > CALL_TASKS_MAX {
            return vec![Err(TimersError::TooMany(count)); count];
        }
        let number = match self.tenant(tenant).await {
            Ok(number) => number,
            Err(error) => return vec![Err(error); count],
        };
        let bytes = to.as_ref().and_then(|to| to.payload.as_ref()).map_or(0, bytes::Bytes::len);
        let mut answers = vec![Ok(Changed::Unknown); count];
        let mut by_shard: BTreeMap<Shard, (Vec<usize>, Vec<Change>)> = BTreeMap::new();
        for (place, at) in at.into_iter().enumerate() {
            if let Some(shard) = self.shard(number, &at) {
                let (places, changes) = by_shard.entry(shard).or_default();
                places.push(place);
                changes.push(Change { tenant: number, at, to: to.clone() });
            }
        }
        let commit = if to.is_some() { &self.moves } else { &self.cancels };
        let submit = |(shard, (places, changes)): (Shard, (Vec<usize>, Vec<Change>))| {
            let bytes = bytes * changes.len();
            (places, commit.submit(Some(shard), changes, bytes))
        };
        let flights: Vec<_> = by_shard.into_iter().map(submit).collect();
        for (places, flight) in flights {
            let changed = match flight {
                Ok(flight) => answered(flight).await.map_err(TimersError::Store),
                Err(Refused::Busy) => Err(TimersError::Busy),
                Err(Refused::Closing) => Err(TimersError::Closing),
            };
            for (nth, place) in places.into_iter().enumerate() {
                answers[place] = changed.as_ref().map(|changed| changed[nth]).map_err(Clone::clone);
            }
        }
        self.counters.changed(&answers);
        answers
    }

    async fn tenant(&self, tenant: &str) -> Result<u16, TimersError> {
        if !self.tenants.0.contains_key(tenant) {
            return Err(TimersError::UnknownTenant(tenant.to_owned()));
        }
        Ok(self.names.tenant(tenant).await?)
    }

    /// The shard that a task must lie in; `None` where there is no such shard.
    fn shard(&self, tenant: u16, at: &TaskAt) -> Option<Shard> {
        let shards = self.store.shards();
        match at {
            TaskAt::Id(id) => Some(id.shard).filter(|shard| shard.0 < shards),
            TaskAt::Key(key) => Some(key.shard(tenant, shards)),
        }
    }

    async fn views(&self, found: Vec<Found>) -> Result<Vec<TaskView>, StoreError> {
        let mut views = Vec::with_capacity(found.len());
        for found in found {
            views.push(self.view(found).await?);
        }
        Ok(views)
    }

    async fn view(&self, found: Found) -> Result<TaskView, StoreError> {
        let Found { id, state, record } = found;
        let target = self.names.route(record.route).await?.map(|(_, target)| target.to_string());
        let due_ms = asked_ms(id.slot, &record);
        let (key, payload) = (record.key, record.payload);
        Ok(TaskView { id, first_id: record.first_id.unwrap_or(id), target, due_ms, key, state, payload })
    }

    async fn dead_view(&self, dead: DeadTask) -> Result<DeadView, StoreError> {
        let DeadTask { id, due_ms, died_ms, attempts, reason, record } = dead;
        let target = self.names.route(record.route).await?.map(|(_, target)| target.to_string());
        let (key, payload) = (record.key, record.payload);
        Ok(DeadView { id, target, due_ms, died_ms, attempts, reason, key, payload })
    }
}

/// When the caller of a task wanted it to be due.
pub(crate) fn asked_ms(slot: SlotMinute, record: &DueRecord) -> u64 {
    record.asked_ms.unwrap_or_else(|| slot.start_ms().saturating_add(u64::from(record.offset_ms)))
}

fn invalid(rules: &TenantRules, task: &NewTask) -> Option<AddError> {
    if !rules.targets.contains_key(&task.target) {
        return Some(AddError::UnknownTarget(task.target.clone()));
    }
    if task.payload.len() > PAYLOAD_MAX_BYTES {
        return Some(AddError::PayloadTooLong(task.payload.len()));
    }
    (task.due_ms > DUE_MAX_MS).then_some(AddError::DueTooFar(task.due_ms))
}

/// Counts the waiting tasks of all shards again and again, for the quotas.
async fn count(quotas: Arc<Quotas>, names: Arc<Names>, store: Arc<dyn SlotStore>, every: Duration) {
    loop {
        if let Err(error) = count_once(&quotas, &names, &*store).await {
            tracing::debug!(%error, "waiting tasks could not be counted; the last count stands");
        }
        tokio::time::sleep(every).await;
    }
}

/// Says the names that are in use to the store again and again, so that it puts back what it has lost.
async fn keep_names(names: Arc<Names>, counters: Arc<TimersCounters>) {
    loop {
        tokio::time::sleep(KEEP_NAMES_EVERY).await;
        match names.keep().await {
            Ok(kept) => counters.names_kept(kept),
            Err(error) => tracing::debug!(%error, "names could not be kept now"),
        }
    }
}

async fn count_once(quotas: &Quotas, names: &Names, store: &dyn SlotStore) -> Result<(), StoreError> {
    let began = quotas.begin_count();
    let mut by_number: BTreeMap<u16, u64> = BTreeMap::new();
    for shard in (0..store.shards()).map(Shard) {
        for (tenant, count) in store.counts(shard).await? {
            *by_number.entry(tenant).or_default() += count;
        }
    }
    let mut counts = BTreeMap::new();
    for name in quotas.names() {
        let number = names.tenant(name).await?;
        counts.insert(name.to_owned(), by_number.get(&number).copied().unwrap_or(0));
    }
    quotas.counted(&began, &counts);
    Ok(())
}
