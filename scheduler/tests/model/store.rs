//! A slot store in memory, on tokio's clock: as simple as it can be, and it can be away, lose answers and change its
//! clock.

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use windfall_contract::due::*;

pub const START_MS: u64 = 1_800_000_000_000;

#[derive(Default)]
struct ShardModel {
    watermark_ms: u64,
    slots: BTreeMap<SlotMinute, SlotModel>,
    keys: BTreeMap<(u16, TaskKey), (SlotMinute, u32)>,
    /// Where tasks that were moved lie now, by the id that they had.
    moved: BTreeMap<TaskId, TaskId>,
    counts: BTreeMap<u16, u64>,
    dead: BTreeMap<TaskId, DeadTask>,
    owner: Option<(String, u64)>,
    epoch: u64,
    finished: (u64, u64),
    /// By far log: its last batch.
    loaded: BTreeMap<u64, u64>,
    /// Keys whose task came by a queue, and the digest of its add: in use, and used up.
    once: BTreeMap<(u16, TaskKey), u32>,
    used: BTreeMap<(u16, TaskKey), Used>,
    kept_ms: Option<u64>,
    from_ms: u64,
}

/// How a key was used up: whether it was cancelled, the digest of its add if that has come, and when.
#[derive(Clone, Copy)]
struct Used {
    is_cancelled: bool,
    digest: Option<u32>,
    at_ms: u64,
}

#[derive(Default)]
struct SlotModel {
    entries: Vec<Bytes>,
    ended: BTreeSet<u32>,
    done: Vec<u8>,
    attempts: BTreeMap<u32, u32>,
}

/// Names and their numbers, by either.
#[derive(Default)]
struct Numbers {
    by_name: BTreeMap<String, u16>,
    by_number: BTreeMap<u16, String>,
}

impl Numbers {
    fn of(&mut self, name: &str) -> u16 {
        if let Some(known) = self.by_name.get(name) {
            return *known;
        }
        let number = self.by_number.last_key_value().map_or(0, |(last, _)| last + 1);
        self.by_name.insert(name.to_owned(), number);
        self.by_number.insert(number, name.to_owned());
        number
    }

    fn keep(&mut self, (number, name): &(u16, String)) -> NameKept {
        let has_name = self.by_number.get(number).cloned();
        if has_name.as_ref().is_some_and(|has| has != name) {
            return NameKept::Taken;
        }
        self.by_number.insert(*number, name.clone());
        let has_number = *self.by_name.entry(name.clone()).or_insert(*number);
        match () {
            () if has_number != *number => NameKept::Moved,
            () if has_name.is_some() => NameKept::Same,
            () => NameKept::PutBack,
        }
    }
}

#[derive(Default)]
struct Model {
    shards: Vec<ShardModel>,
    queue_id: Option<u64>,
    /// The run of the server; another one has lost what a test lets it lose.
    run: u64,
    away_shards: BTreeSet<Shard>,
    /// Adds by the queue that are refused: those with this payload, or all calls where it is empty.
    refuses: Option<Bytes>,
    tenants: Numbers,
    targets: BTreeMap<u16, Numbers>,
    living: BTreeMap<String, u64>,
    skew_ms: i64,
    away_until: Option<Instant>,
    /// One call of so many loses its answer, and one its question.
    loses_one_of: u64,
    random: u64,
}

pub struct ModelStore {
    start: Instant,
    shards: u16,
    delay: Option<Duration>,
    model: Mutex<Model>,
}

impl ModelStore {
    pub fn new(shards: u16, seed: u64, delay: Option<Duration>) -> Self {
        let shard_models = (0..shards).map(|_| ShardModel::default()).collect();
        let model = Model { shards: shard_models, random: seed, ..Model::default() };
        Self { start: Instant::now(), shards, delay, model: Mutex::new(model) }
    }

    pub fn now_ms(&self) -> u64 {
        let skew_ms = self.model.lock().skew_ms;
        self.time_ms(skew_ms)
    }

    fn time_ms(&self, skew_ms: i64) -> u64 {
        let elapsed_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap();
        (START_MS + elapsed_ms).saturating_add_signed(skew_ms)
    }

    pub fn jump_ms(&self, by_ms: i64) {
        self.model.lock().skew_ms += by_ms;
    }

    pub fn away_for(&self, time: Duration) {
        self.model.lock().away_until = Some(Instant::now() + time);
    }

    /// Lets shards be away for adds and changes until they are back.
    pub fn away_shards(&self, shards: impl IntoIterator<Item = Shard>) {
        self.model.lock().away_shards = shards.into_iter().collect();
    }

    /// Lets adds by the queue with this payload be refused; all calls where it is empty.
    pub fn refuse(&self, payload: Option<Bytes>) {
        self.model.lock().refuses = payload;
    }

    pub fn queue_id_now(&self) -> Option<u64> {
        self.model.lock().queue_id
    }

    /// Another run of the server, which has lost all tasks and marks.
    pub fn restart_empty(&self) {
        let mut model = self.model.lock();
        model.run += 1;
        for shard in &mut model.shards {
            let (epoch, watermark_ms) = (shard.epoch + 1, shard.watermark_ms);
            *shard = ShardModel { epoch, watermark_ms, ..ShardModel::default() };
        }
    }

    /// Loses all names, and keeps the tasks, as a cluster does that loses the node of the names.
    pub fn lose_names(&self) {
        let mut model = self.model.lock();
        model.tenants = Numbers::default();
        model.targets.clear();
    }

    pub fn used_count(&self) -> usize {
        self.model.lock().shards.iter().map(|shard| shard.used.len()).sum()
    }

    pub fn lose_one_of(&self, calls: u64) {
        self.model.lock().loses_one_of = calls;
    }

    /// Takes the leases of all shards away, as another instance would that took them.
    pub fn seize(&self) {
        for shard in &mut self.model.lock().shards {
            shard.epoch += 1;
            shard.owner = None;
        }
    }

    pub fn owners(&self) -> Vec<Option<String>> {
        let now_ms = self.now_ms();
        let owner = |shard: &ShardModel| {
            shard.owner.as_ref().filter(|(_, end_ms)| *end_ms > now_ms).map(|(owner, _)| owner.clone())
        };
        self.model.lock().shards.iter().map(owner).collect()
    }

    pub fn slot_count(&self) -> usize {
        self.model.lock().shards.iter().map(|shard| shard.slots.len()).sum()
    }

    pub fn waiting_count(&self) -> u64 {
        self.model.lock().shards.iter().flat_map(|shard| shard.counts.values()).sum()
    }

    pub fn key_count(&self) -> usize {
        self.model.lock().shards.iter().map(|shard| shard.keys.len()).sum()
    }

    /// One call: it may take time, be lost before it is done, or after.
    async fn call<T>(&self, does: impl FnOnce(&mut Model, u64) -> T) -> Result<T, StoreError> {
        if let Some(delay) = self.delay {
            tokio::time::sleep(delay).await;
        }
        let mut model = self.model.lock();
        let away = || Err(StoreError::Unavailable("a test wants it".into()));
        if model.away_until.is_some_and(|until| until > Instant::now()) {
            return away();
        }
        model.random =
            model.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let drawn = model.random >> 33;
        let loses = model.loses_one_of;
        if loses > 0 && drawn.is_multiple_of(loses) {
            return away();
        }
        let now_ms = self.time_ms(model.skew_ms);
        let answer = does(&mut model, now_ms);
        if loses > 0 && drawn % loses == 1 { away() } else { Ok(answer) }
    }

    /// A call about a shard, which may be away alone.
    async fn call_of<T>(
        &self,
        shard: Shard,
        does: impl FnOnce(&mut Model, u64) -> T,
    ) -> Result<T, StoreError> {
        if self.model.lock().away_shards.contains(&shard) {
            return Err(StoreError::Unavailable("a test wants this shard to be away".into()));
        }
        self.call(does).await
    }

    async fn leased<T>(
        &self,
        lease: &Lease,
        does: impl FnOnce(&mut ShardModel, u64) -> T,
    ) -> Result<T, LeaseError> {
        let fenced = self.call(|model, now_ms| {
            let shard = model.shard(lease.shard);
            let is_held = shard.epoch == lease.epoch && shard.owner.is_some();
            is_held.then(|| does(shard, now_ms)).ok_or(LeaseError::Lost)
        });
        fenced.await?
    }
}

impl Model {
    fn shard(&mut self, shard: Shard) -> &mut ShardModel {
        &mut self.shards[usize::from(shard.0)]
    }
}

impl ShardModel {
    fn add(&mut self, shard: Shard, new: &NewRecord, first_id: Option<TaskId>) -> TaskId {
        let due_ms = new.due_ms.max(self.watermark_ms);
        let minute = SlotMinute::of(due_ms);
        let slot = self.slots.entry(minute).or_default();
        let index = u32::try_from(slot.entries.len()).unwrap();
        let record = DueRecord {
            offset_ms: u16::try_from(due_ms - minute.start_ms()).unwrap(),
            route: new.route,
            key: new.key.clone(),
            asked_ms: (due_ms != new.due_ms).then_some(new.due_ms),
            first_id,
            payload: new.payload.clone(),
        };
        slot.entries.push(record.encode());
        if let Some(key) = &new.key {
            self.keys.insert((new.route.tenant, key.clone()), (minute, index));
        }
        TaskId { shard, slot: minute, index }
    }

    /// Whether a task that fires gives its key to another one.
    fn gives_up_key(&self, (slot, index): (SlotMinute, u32), new: &NewRecord) -> bool {
        let Some(slot_model) = self.slots.get(&slot) else { return true };
        let SlotEntry::Task(old) = SlotEntry::decode(&slot_model.entries[index as usize]).unwrap() else {
            return true;
        };
        let due_ms = slot.start_ms() + u64::from(old.offset_ms);
        let was = (old.asked_ms.unwrap_or(due_ms), old.route, &old.payload);
        due_ms <= self.watermark_ms && was != (new.due_ms, new.route, &new.payload)
    }

    fn find(&self, shard: Shard, tenant: u16, at: &TaskAt) -> Option<Found> {
        let mut id = match at {
            TaskAt::Id(id) => *id,
            TaskAt::Key(key) => {
                let (slot, index) = *self.keys.get(&(tenant, key.clone()))?;
                TaskId { shard, slot, index }
            }
        };
        while let Some(next) = self.moved.get(&id) {
            id = *next;
        }
        let slot = self.slots.get(&id.slot)?;
        let SlotEntry::Task(record) = SlotEntry::decode(slot.entries.get(id.index as usize)?).unwrap() else {
            return None;
        };
        let due_ms = id.slot.start_ms() + u64::from(record.offset_ms);
        let state = match () {
            () if slot.ended.contains(&id.index) => Waiting::Cancelled,
            () if due_ms <= self.watermark_ms => Waiting::Firing,
            () => Waiting::Waiting,
        };
        (record.route.tenant == tenant).then_some(Found { id, state, record })
    }

    /// A key is free; one whose task came by a queue was used once.
    fn free_key(&mut self, key: (u16, TaskKey), is_cancelled: bool, at_ms: u64) {
        self.keys.remove(&key);
        if let Some(digest) = self.once.remove(&key) {
            self.used.insert(key, Used { is_cancelled, digest: Some(digest), at_ms });
        }
    }

    fn add_once(&mut self, shard: Shard, record: &OnceRecord, oldest_ms: u64, now_ms: u64) -> AddedOnce {
        let key = (record.route.tenant, record.key.clone());
        let same = |known| if known == record.digest() { AddedOnce::Known } else { AddedOnce::Other };
        if let Some(known) = self.once.get(&key) {
            return same(*known);
        }
        let OnceRecord { due_ms, route, payload, .. } = record.clone();
        let new = NewRecord { due_ms, route, key: Some(record.key.clone()), payload };
        if let Some(&held) = self.keys.get(&key)
            && !self.gives_up_key(held, &new)
        {
            return AddedOnce::Other;
        }
        match self.used.get(&key) {
            Some(Used { is_cancelled: false, digest, .. }) => return same(digest.unwrap()),
            Some(Used { digest, .. }) => {
                let had_come = digest.is_some();
                if !had_come {
                    *self.counts.get_mut(&key.0).unwrap() -= 1;
                    let digest = Some(record.digest());
                    self.used.insert(key, Used { is_cancelled: true, digest, at_ms: now_ms });
                }
                return AddedOnce::Cancelled { had_come };
            }
            None if record.written_ms < oldest_ms => return AddedOnce::TooOld,
            None => {}
        }
        self.once.insert(key, record.digest());
        *self.counts.entry(route.tenant).or_default() += 1;
        AddedOnce::Stored(self.add(shard, &new, None))
    }

    /// For how long used keys are kept from now on, and from when on adds are judged.
    fn keep(&mut self, kept_ms: u64, now_ms: u64) -> u64 {
        if let Some(before_ms) = self.kept_ms.filter(|before_ms| *before_ms < kept_ms) {
            self.from_ms = self.from_ms.max(now_ms - before_ms);
        }
        self.kept_ms = Some(kept_ms);
        self.from_ms.max(now_ms - kept_ms)
    }

    fn delete_used(&mut self, before_ms: u64) {
        let counts = &mut self.counts;
        self.used.retain(|(tenant, _), used| {
            let stays = used.at_ms >= before_ms;
            if !stays && used.digest.is_none() {
                *counts.get_mut(tenant).unwrap() -= 1;
            }
            stays
        });
    }

    fn cancel_once(&mut self, shard: Shard, cancel: &CancelOnce, now_ms: u64) -> CancelledOnce {
        let key = (cancel.tenant, cancel.key.clone());
        let digest = self.once.get(&key).copied();
        let at = TaskAt::Key(cancel.key.clone());
        match self.change(shard, &Change { tenant: cancel.tenant, at, to: None }, now_ms) {
            Changed::Done(id) => {
                let digest = Some(digest.unwrap_or(0));
                self.used.insert(key, Used { is_cancelled: true, digest, at_ms: now_ms });
                CancelledOnce::Done(id)
            }
            Changed::Cancelled => CancelledOnce::Cancelled,
            Changed::Firing => CancelledOnce::Firing,
            Changed::Unknown => match self.used.get(&key) {
                Some(Used { is_cancelled: true, .. }) => CancelledOnce::Cancelled,
                Some(_) => CancelledOnce::Firing,
                None if !cancel.may_mark => CancelledOnce::Unmarked,
                None => {
                    *self.counts.entry(cancel.tenant).or_default() += 1;
                    self.used.insert(key, Used { is_cancelled: true, digest: None, at_ms: now_ms });
                    CancelledOnce::Marked
                }
            },
        }
    }

    fn change(&mut self, shard: Shard, change: &Change, now_ms: u64) -> Changed {
        let Some(Found { id, state, record }) = self.find(shard, change.tenant, &change.at) else {
            return Changed::Unknown;
        };
        match state {
            Waiting::Cancelled => return Changed::Cancelled,
            Waiting::Firing => return Changed::Firing,
            Waiting::Waiting => {}
        }
        let slot = self.slots.get_mut(&id.slot).unwrap();
        slot.ended.insert(id.index);
        slot.entries.push(SlotEntry::End(id.index).encode());
        let Some(to) = &change.to else {
            record.key.into_iter().for_each(|key| self.free_key((change.tenant, key), true, now_ms));
            *self.counts.get_mut(&change.tenant).unwrap() -= 1;
            return Changed::Done(id);
        };
        let due_ms = id.slot.start_ms() + u64::from(record.offset_ms);
        let new = NewRecord {
            due_ms: to.due_ms.unwrap_or(due_ms),
            route: record.route,
            key: record.key,
            payload: to.payload.clone().unwrap_or(record.payload),
        };
        let now_at = self.add(shard, &new, Some(record.first_id.unwrap_or(id)));
        self.moved.insert(id, now_at);
        Changed::Done(now_at)
    }

    fn advance(&mut self, now_ms: u64, ahead_ms: u64, reads: &[ReadFrom], max_bytes: usize) -> Advanced {
        self.watermark_ms = self.watermark_ms.max(now_ms);
        let before = SlotMinute::of(self.watermark_ms + ahead_ms);
        let slots =
            self.slots.range(..=before).map(|(minute, slot)| (*minute, slot.entries.len() as u32)).collect();
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for ReadFrom { slot, next_index } in reads {
            let Some(found) = self.slots.get(slot) else { continue };
            let part: Vec<_> = found.entries[(*next_index as usize).min(found.entries.len())..]
                .iter()
                .take_while(|entry| {
                    let fits = bytes == 0 || bytes + entry.len() <= max_bytes;
                    bytes += if fits { entry.len() } else { max_bytes };
                    fits
                })
                .cloned()
                .collect();
            if !part.is_empty() {
                entries.push((*slot, *next_index, part));
            }
        }
        Advanced { watermark_ms: self.watermark_ms, slots, entries }
    }

    fn finish(&mut self, lease: &Lease, slot: SlotMinute, batch: &FinishBatch, now_ms: u64) {
        if self.finished.0 == lease.epoch && batch.sequence <= self.finished.1 {
            return;
        }
        self.finished = (lease.epoch, batch.sequence);
        if let Some(slot) = self.slots.get_mut(&slot) {
            for (first, bytes) in &batch.done {
                let (first, end) = (*first as usize, *first as usize + bytes.len());
                slot.done.resize(slot.done.len().max(end), 0);
                slot.done[first..end].copy_from_slice(bytes);
            }
            slot.attempts.extend(&batch.attempts);
        }
        for (tenant, key, index) in &batch.keys {
            let key = (*tenant, key.clone());
            if self.keys.get(&key) == Some(&(slot, *index)) {
                self.free_key(key, false, now_ms);
            }
        }
        for (tenant, over) in &batch.over {
            let count = self.counts.get_mut(tenant).unwrap();
            *count = count.checked_sub(u64::from(*over)).expect("no task is over twice");
        }
        self.dead.extend(batch.dead.iter().map(|dead| (dead.id, dead.clone())));
    }
}

#[async_trait]
impl SlotStore for ModelStore {
    fn shards(&self) -> u16 {
        self.shards
    }

    fn durability(&self) -> Durability {
        Durability::Process
    }

    async fn tenant(&self, name: &str) -> Result<u16, StoreError> {
        self.call(|model, _| model.tenants.of(name)).await
    }

    async fn target(&self, tenant: u16, name: &str) -> Result<u16, StoreError> {
        self.call(|model, _| model.targets.entry(tenant).or_default().of(name)).await
    }

    async fn names(&self, route: Route) -> Result<Option<(String, String)>, StoreError> {
        self.call(|model, _| {
            let tenant = model.tenants.by_number.get(&route.tenant)?.clone();
            Some((tenant, model.targets.get(&route.tenant)?.by_number.get(&route.target)?.clone()))
        })
        .await
    }

    async fn keep_names(&self, known: &[KnownName]) -> Result<Vec<NameKept>, StoreError> {
        self.call(|model, _| {
            let keep = |KnownName { tenant, target }: &KnownName| {
                let of_tenant = model.tenants.keep(tenant);
                match target {
                    Some(target) if of_tenant != NameKept::Taken => {
                        let of_target = model.targets.entry(tenant.0).or_default().keep(target);
                        match of_target {
                            NameKept::Same => of_tenant,
                            NameKept::PutBack if of_tenant == NameKept::Moved => NameKept::Moved,
                            of_target => of_target,
                        }
                    }
                    Some(_) | None => of_tenant,
                }
            };
            known.iter().map(keep).collect()
        })
        .await
    }

    async fn add(&self, shard: Shard, batch: &[NewRecord]) -> Result<Vec<Added>, StoreError> {
        self.call_of(shard, |model, now_ms| {
            let shard_model = model.shard(shard);
            let mut of_batch = BTreeSet::new();
            let mut add = |new: &NewRecord| {
                let tenant = new.route.tenant;
                let known = new.key.as_ref().and_then(|key| shard_model.keys.get(&(tenant, key.clone())));
                if let Some(&(slot, index)) = known {
                    let id = TaskId { shard, slot, index };
                    if of_batch.contains(&id) || !shard_model.gives_up_key((slot, index), new) {
                        return Added::Exists(id);
                    }
                }
                *shard_model.counts.entry(tenant).or_default() += 1;
                if let Some(key) = &new.key {
                    shard_model.free_key((tenant, key.clone()), false, now_ms);
                }
                let id = shard_model.add(shard, new, None);
                of_batch.insert(id);
                Added::Stored(id)
            };
            batch.iter().map(&mut add).collect()
        })
        .await
    }

    async fn load(&self, shard: Shard, batch: &LoadBatch) -> Result<Loaded, StoreError> {
        self.call(|model, _| {
            let shard_model = model.shard(shard);
            match shard_model.loaded.get(&batch.log) {
                Some(last) if *last > batch.sequence => return Loaded::Other(*last),
                Some(last) if *last == batch.sequence => return Loaded::Before,
                last if batch.follows.is_some_and(|follows| follows != last.copied().unwrap_or(0)) => {
                    return Loaded::Other(last.copied().unwrap_or(0));
                }
                _ if batch.records.is_empty() => return Loaded::Stored,
                _ => {}
            }
            shard_model.loaded.insert(batch.log, batch.sequence);
            for record in &batch.records {
                *shard_model.counts.entry(record.route.tenant).or_default() += 1;
                let FarRecord { id, due_ms, route, payload } = record.clone();
                let at = shard_model.add(shard, &NewRecord { due_ms, route, key: None, payload }, Some(id));
                shard_model.moved.insert(id, at);
            }
            Loaded::Stored
        })
        .await
    }

    async fn queue_id(&self, fresh: Option<u64>) -> Result<Option<u64>, StoreError> {
        self.call(|model, _| {
            model.queue_id = model.queue_id.or(fresh);
            model.queue_id
        })
        .await
    }

    async fn add_once(
        &self,
        shard: Shard,
        batch: &[OnceRecord],
        keys_kept_ms: u64,
    ) -> Result<OnceAnswers, StoreError> {
        let refuses = self.model.lock().refuses.clone();
        if refuses.is_some_and(|what| what.is_empty() || batch.iter().any(|one| one.payload == what)) {
            return Err(StoreError::Unusable("a test wants it".into()));
        }
        self.call_of(shard, |model, now_ms| {
            let run = model.run;
            let shard_model = model.shard(shard);
            let oldest_ms = shard_model.keep(keys_kept_ms, now_ms);
            let added = batch.iter().map(|record| shard_model.add_once(shard, record, oldest_ms, now_ms));
            let added = added.collect();
            shard_model.delete_used(now_ms - keys_kept_ms - KEY_MARGIN_MS);
            OnceAnswers { added, run }
        })
        .await
    }

    async fn cancel_once(
        &self,
        shard: Shard,
        batch: &[CancelOnce],
    ) -> Result<Vec<CancelledOnce>, StoreError> {
        self.call_of(shard, |model, now_ms| {
            batch.iter().map(|cancel| model.shard(shard).cancel_once(shard, cancel, now_ms)).collect()
        })
        .await
    }

    async fn change(&self, shard: Shard, batch: &[Change]) -> Result<Vec<Changed>, StoreError> {
        self.call_of(shard, |model, now_ms| {
            batch.iter().map(|change| model.shard(shard).change(shard, change, now_ms)).collect()
        })
        .await
    }

    async fn get(&self, shard: Shard, tenant: u16, at: &[TaskAt]) -> Result<Vec<Option<Found>>, StoreError> {
        self.call(|model, _| at.iter().map(|at| model.shard(shard).find(shard, tenant, at)).collect()).await
    }

    async fn list(
        &self,
        tenant: u16,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<WaitingPage, StoreError> {
        self.call(|model, _| {
            let mut tasks = Vec::new();
            for (number, shard) in (0..).zip(&model.shards) {
                for (&slot, entries) in &shard.slots {
                    for index in 0..entries.entries.len() as u32 {
                        let id = TaskId { shard: Shard(number), slot, index };
                        let found = shard.find(Shard(number), tenant, &TaskAt::Id(id));
                        let is_done = |at: usize| {
                            entries.done.get(at / 8).is_some_and(|byte| byte & (128 >> (at % 8)) != 0)
                        };
                        let is_wanted = |found: &Found| {
                            found.id == id && found.state != Waiting::Cancelled && !is_done(index as usize)
                        };
                        tasks.extend(found.filter(is_wanted).filter(|_| Some(id) > after));
                    }
                }
            }
            let next = (tasks.len() > limit).then(|| tasks[limit - 1].id);
            tasks.truncate(limit);
            WaitingPage { tasks, next }
        })
        .await
    }

    async fn counts(&self, shard: Shard) -> Result<BTreeMap<u16, u64>, StoreError> {
        self.call(|model, _| model.shard(shard).counts.clone()).await
    }

    async fn beat(&self, instance: &str, ttl_ms: u64) -> Result<Vec<String>, StoreError> {
        self.call(|model, now_ms| {
            model.living.insert(instance.to_owned(), now_ms + ttl_ms);
            model.living.retain(|_, end_ms| *end_ms > now_ms);
            model.living.keys().cloned().collect()
        })
        .await
    }

    async fn acquire(
        &self,
        shard: Shard,
        instance: &str,
        ttl_ms: u64,
    ) -> Result<Result<Lease, HeldBy>, StoreError> {
        self.call(|model, now_ms| {
            let held = model.shard(shard);
            if let Some((owner, end_ms)) = held.owner.as_mut().filter(|(owner, _)| owner != instance) {
                *end_ms = (*end_ms).min(now_ms + ttl_ms);
                if *end_ms > now_ms {
                    return Err(HeldBy { instance: owner.clone(), left_ms: *end_ms - now_ms });
                }
            }
            held.epoch += 1;
            held.owner = Some((instance.to_owned(), now_ms + ttl_ms));
            Ok(Lease { shard, epoch: held.epoch })
        })
        .await
    }

    async fn renew(&self, lease: &Lease, ttl_ms: u64) -> Result<(), LeaseError> {
        self.leased(lease, |shard, now_ms| shard.owner.as_mut().unwrap().1 = now_ms + ttl_ms).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), LeaseError> {
        self.leased(lease, |shard, _| shard.owner = None).await
    }

    async fn advance(
        &self,
        lease: &Lease,
        ahead_ms: u64,
        reads: &[ReadFrom],
        max_bytes: usize,
    ) -> Result<Advanced, LeaseError> {
        self.leased(lease, |shard, now_ms| shard.advance(now_ms, ahead_ms, reads, max_bytes)).await
    }

    async fn state(&self, lease: &Lease, slot: SlotMinute) -> Result<SlotState, LeaseError> {
        self.leased(lease, |shard, _| {
            let state = |slot: &SlotModel| SlotState {
                done: slot.done.clone().into(),
                attempts: slot.attempts.clone(),
            };
            shard.slots.get(&slot).map(state).unwrap_or_default()
        })
        .await
    }

    async fn finish(&self, lease: &Lease, slot: SlotMinute, batch: &FinishBatch) -> Result<(), LeaseError> {
        self.leased(lease, |shard, now_ms| shard.finish(lease, slot, batch, now_ms)).await
    }

    async fn drop_slot(&self, lease: &Lease, slot: SlotMinute, entries: u32) -> Result<bool, LeaseError> {
        self.leased(lease, |shard, _| {
            let Some(found) = shard.slots.get(&slot) else { return true };
            if slot >= SlotMinute::of(shard.watermark_ms) || found.entries.len() as u32 > entries {
                return false;
            }
            let is_done =
                |at: usize| found.done.get(at / 8).is_some_and(|byte| byte & (128 >> (at % 8)) != 0);
            assert!((0..found.entries.len()).all(is_done), "a slot is dropped whose every entry is over");
            shard.slots.remove(&slot);
            true
        })
        .await
    }

    async fn dead(
        &self,
        tenant: u16,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<Vec<DeadTask>, StoreError> {
        self.call(|model, _| {
            let all = model.shards.iter().flat_map(|shard| shard.dead.values());
            let of_tenant = all.filter(|dead| dead.record.route.tenant == tenant && Some(dead.id) > after);
            of_tenant.take(limit).cloned().collect()
        })
        .await
    }

    async fn end_dead(
        &self,
        shard: Shard,
        tenant: u16,
        ids: &[TaskId],
        again: bool,
    ) -> Result<Vec<bool>, StoreError> {
        self.call(|model, now_ms| {
            let model = model.shard(shard);
            let mut end = |id: &TaskId| {
                let Some(dead) = model.dead.remove(id) else { return false };
                assert_eq!(dead.record.route.tenant, tenant);
                if again {
                    let DueRecord { route, key, payload, .. } = dead.record;
                    model.add(shard, &NewRecord { due_ms: now_ms, route, key, payload }, Some(*id));
                    *model.counts.entry(tenant).or_default() += 1;
                }
                true
            };
            ids.iter().map(&mut end).collect()
        })
        .await
    }
}
