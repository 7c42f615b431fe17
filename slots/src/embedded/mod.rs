//! A slot store on files inside the process, on fjall.
//!
//! A task is one row under its shard, slot and index; rows of a shard are changed in steps, each of which is one write
//! batch, so that a kill leaves a step whole or not at all. In memory there are some bytes for each slot, and none for
//! a task ([`EmbeddedSlotsOptions::slots_max`] bounds them). A directory belongs to one process.
//!
//! **Durability.** With [`Durability::Process`] an Ok survives `kill -9` and not the death of the machine. With
//! [`Durability::Machine`] it is synced first; calls on different shards share a sync.
//!
//! **Time.** The clock is the one that the store is opened with. What was due while the store was closed counts as
//! fired when it is opened again: it can no longer be cancelled.
//!
//! **Doubt.** When a write fails, nobody knows whether it is there. From then on each call that writes is refused until
//! the store is opened again.
//!
//! Calls run on the runtime's blocking threads, [`EmbeddedSlotsOptions::max_calls`] at a time; others wait for their
//! turn.

mod dispatch;
mod files;
mod once;
mod pages;
mod registry;
mod rows;
mod shard;
mod tasks;

use crate::checks;
use async_trait::async_trait;
use files::Files;
use parking_lot::Mutex;
use rows::Key;
use shard::{ShardState, ShardStep, SlotsBound};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use tokio::sync::Semaphore;
use windfall_contract::Clock;
use windfall_contract::due::{
    Added, Advanced, CancelOnce, CancelledOnce, Change, Changed, DeadTask, Durability, FinishBatch, Found,
    HeldBy, KnownName, Lease, LeaseError, LoadBatch, Loaded, NameKept, NewRecord, OnceAnswers, OnceRecord,
    ReadFrom, Route, Shard, SlotMinute, SlotState, SlotStore, StoreError, TaskAt, TaskId, WaitingPage,
};

/// How an embedded slot store uses memory and disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedSlotsOptions {
    /// The number of shards, 16 to 1,024, default 64. It is fixed when the store is made: opening it with another
    /// number is an error.
    pub shards: u16,
    /// What an Ok survives: [`Durability::Process`] (default) or [`Durability::Machine`].
    pub durability: Durability,
    /// Memory for rows before they move to table files; up to three times this is in use. 1 to 256 MiB, default
    /// 16 MiB.
    pub memtable_bytes: u64,
    /// Cache for blocks read from table files. At most 1 GiB, default 16 MiB.
    pub cache_bytes: u64,
    /// Calls at work at a time. 1 to 1,024, default 16.
    pub max_calls: usize,
    /// Slots of all shards at most: a task that needs one more is refused until others have gone. Each takes about 20
    /// bytes of memory. 1,000 to 100,000,000, default 4,000,000: a month of minutes in each of 64 shards.
    pub slots_max: usize,
}

impl Default for EmbeddedSlotsOptions {
    fn default() -> Self {
        Self {
            shards: 64,
            durability: Durability::Process,
            memtable_bytes: 16 << 20,
            cache_bytes: 16 << 20,
            max_calls: 16,
            slots_max: 4_000_000,
        }
    }
}

/// The store could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenSlotsError {
    /// An option is out of its range.
    #[error("{0}")]
    Invalid(String),
    /// Another process holds the directory.
    #[error("{0} is in use by another process")]
    InUse(String),
    /// The store was made with another number of shards.
    #[error("{place} was made with {found} shards, which cannot be changed; the option says {asked}")]
    OtherShards {
        /// What was opened.
        place: String,
        /// The number that it was made with.
        found: u16,
        /// The number that the option says.
        asked: u16,
    },
    /// Written by a newer version of Windfall.
    #[error("{place} has format version {found}; this build reads up to {known}")]
    Newer {
        /// What was opened.
        place: String,
        /// The version found.
        found: u32,
        /// The newest version that this build reads.
        known: u32,
    },
    /// The files cannot be read. Restore them from a backup: the tasks that wait are in them alone.
    #[error("{place} is damaged: {what}")]
    Damaged {
        /// What was opened.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// The system said no.
    #[error("{place}: {what}")]
    Io {
        /// What was opened.
        place: String,
        /// The system's answer.
        what: String,
    },
}

/// The embedded slot store.
pub struct EmbeddedSlots {
    inner: Arc<Inner>,
    calls: Arc<Semaphore>,
    durability: Durability,
}

struct Inner {
    shards: Vec<Mutex<ShardState>>,
    bound: SlotsBound,
    /// Names and beats are changed by one at a time.
    registry: Mutex<()>,
    clock: Clock,
    /// Released last.
    files: Files,
}

impl EmbeddedSlots {
    /// Opens the store in `dir`, creating it if there is none. Blocks.
    ///
    /// # Errors
    /// [`OpenSlotsError`].
    pub fn open(
        dir: &Path,
        options: &EmbeddedSlotsOptions,
        clock: Clock,
    ) -> Result<Arc<Self>, OpenSlotsError> {
        options.check()?;
        let files = Files::open(dir, options)?;
        let place = dir.display().to_string();
        let damaged =
            |error: StoreError| OpenSlotsError::Damaged { place: place.clone(), what: error.to_string() };
        let found = fix_shards(&files, options.shards).map_err(damaged)?;
        if found != options.shards {
            return Err(OpenSlotsError::OtherShards { place, found, asked: options.shards });
        }
        dispatch::end_drops(&files).map_err(damaged)?;
        let bound = SlotsBound { count: AtomicUsize::new(0), max: options.slots_max };
        let now_ms = clock.unix_ms();
        let load = |number| ShardState::load(&files, number, now_ms, &bound).map(Mutex::new);
        let shards = (0..options.shards).map(load).collect::<Result<_, _>>().map_err(damaged)?;
        Ok(Arc::new(Self {
            inner: Arc::new(Inner { shards, bound, registry: Mutex::new(()), clock, files }),
            calls: Arc::new(Semaphore::new(options.max_calls)),
            durability: options.durability,
        }))
    }

    /// Runs `work` on a blocking thread. If the caller goes away, it still runs to its end.
    async fn call<T: Send + 'static, E: From<StoreError> + Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let gone = |what: String| E::from(StoreError::Unavailable(what));
        let permit = self.calls.clone().acquire_owned().await.map_err(|error| gone(error.to_string()))?;
        let inner = self.inner.clone();
        let called = tokio::task::spawn_blocking(move || {
            let result = work(&inner);
            drop(inner);
            drop(permit);
            result
        });
        called.await.map_err(|error| gone(error.to_string()))?
    }

    /// One step in a shard, carried out when `work` says Ok.
    async fn step<T: Send + 'static>(
        &self,
        shard: Shard,
        work: impl FnOnce(&mut ShardStep<'_>, u64) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.call(move |inner| {
            let mut state = inner.shard(shard)?.lock();
            let mut step = ShardStep::begin(&inner.files, &mut state, &inner.bound);
            let result = work(&mut step, inner.clock.unix_ms())?;
            step.commit()?;
            Ok(result)
        })
        .await
    }

    /// One step under a lease.
    async fn leased<T: Send + 'static>(
        &self,
        lease: &Lease,
        work: impl FnOnce(&mut ShardStep<'_>, u64) -> Result<T, LeaseError> + Send + 'static,
    ) -> Result<T, LeaseError> {
        let lease = lease.clone();
        self.call(move |inner| {
            let mut state = inner.shard(lease.shard)?.lock();
            dispatch::fence(&state, &lease)?;
            let mut step = ShardStep::begin(&inner.files, &mut state, &inner.bound);
            let result = work(&mut step, inner.clock.unix_ms())?;
            step.commit()?;
            Ok(result)
        })
        .await
    }
}

impl Inner {
    fn shard(&self, shard: Shard) -> Result<&Mutex<ShardState>, StoreError> {
        let count = u16::try_from(self.shards.len()).unwrap_or(u16::MAX);
        checks::shard(shard, count)?;
        Ok(&self.shards[usize::from(shard.0)])
    }
}

impl EmbeddedSlotsOptions {
    fn check(&self) -> Result<(), OpenSlotsError> {
        let within = [
            ("shards", self.shards.into(), (*checks::SHARDS.start()).into(), (*checks::SHARDS.end()).into()),
            ("memtable_bytes", self.memtable_bytes, 1 << 20, 256 << 20),
            ("cache_bytes", self.cache_bytes, 0, 1 << 30),
            ("max_calls", self.max_calls as u64, 1, 1_024),
            ("slots_max", self.slots_max as u64, 1_000, 100_000_000),
        ];
        for (name, value, low, high) in within {
            if !(low..=high).contains(&value) {
                return Err(OpenSlotsError::Invalid(format!("{name} is {value}; it may be {low} to {high}")));
            }
        }
        match self.durability {
            Durability::Process | Durability::Machine => Ok(()),
            Durability::EverySecond => Err(OpenSlotsError::Invalid(
                "durability is every second, which files inside the process do not have; it may be process or machine"
                    .into(),
            )),
        }
    }
}

/// The number of shards that the store was made with, which is now where it is new.
fn fix_shards(files: &Files, shards: u16) -> Result<u16, StoreError> {
    if let Some(found) = files.get(b"c")? {
        return rows::Reading(&found).u16();
    }
    let mut step = files.step();
    step.put(b"c".to_vec(), shards.to_be_bytes().to_vec());
    step.commit()?;
    Ok(shards)
}

#[async_trait]
impl SlotStore for EmbeddedSlots {
    fn shards(&self) -> u16 {
        u16::try_from(self.inner.shards.len()).unwrap_or(u16::MAX)
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    async fn tenant(&self, name: &str) -> Result<u16, StoreError> {
        checks::name(name)?;
        let name = name.to_owned();
        self.call(move |inner| {
            let _one = inner.registry.lock();
            let key = Key::of(b't').bytes(name.as_bytes()).end();
            registry::number_of(&inner.files, key, Key::of(b'T'), &name)
        })
        .await
    }

    async fn target(&self, tenant: u16, name: &str) -> Result<u16, StoreError> {
        checks::name(name)?;
        let name = name.to_owned();
        self.call(move |inner| {
            let _one = inner.registry.lock();
            let key = Key::of(b'g').u16(tenant).bytes(name.as_bytes()).end();
            registry::number_of(&inner.files, key, Key::of(b'G').u16(tenant), &name)
        })
        .await
    }

    async fn names(&self, route: Route) -> Result<Option<(String, String)>, StoreError> {
        self.call(move |inner| registry::names(&inner.files, route)).await
    }

    async fn keep_names(&self, known: &[KnownName]) -> Result<Vec<NameKept>, StoreError> {
        checks::known_names(known)?;
        let known = known.to_vec();
        self.call(move |inner| {
            let _one = inner.registry.lock();
            registry::keep_names(&inner.files, known)
        })
        .await
    }

    async fn add(&self, shard: Shard, batch: &[NewRecord]) -> Result<Vec<Added>, StoreError> {
        checks::add(shard, self.shards(), batch)?;
        let batch = batch.to_vec();
        self.step(shard, move |step, now_ms| tasks::add(step, batch, now_ms)).await
    }

    async fn load(&self, shard: Shard, batch: &LoadBatch) -> Result<Loaded, StoreError> {
        checks::load(shard, self.shards(), batch)?;
        let batch = batch.clone();
        self.step(shard, move |step, _| tasks::load(step, batch)).await
    }

    async fn queue_id(&self, fresh: Option<u64>) -> Result<Option<u64>, StoreError> {
        self.call(move |inner| {
            let _one = inner.registry.lock();
            registry::queue_id(&inner.files, fresh)
        })
        .await
    }

    async fn add_once(
        &self,
        shard: Shard,
        batch: &[OnceRecord],
        keys_kept_ms: u64,
    ) -> Result<OnceAnswers, StoreError> {
        checks::add_once(shard, self.shards(), batch)?;
        let batch = batch.to_vec();
        // The store ends with its process, so whoever asks has met one run of it alone.
        let answers = |added| OnceAnswers { added, run: 0 };
        self.step(shard, move |step, now_ms| once::add(step, batch, keys_kept_ms, now_ms)).await.map(answers)
    }

    async fn cancel_once(
        &self,
        shard: Shard,
        batch: &[CancelOnce],
    ) -> Result<Vec<CancelledOnce>, StoreError> {
        checks::cancel_once(shard, self.shards(), batch)?;
        let batch = batch.to_vec();
        self.step(shard, move |step, now_ms| once::cancel(step, batch, now_ms)).await
    }

    async fn change(&self, shard: Shard, batch: &[Change]) -> Result<Vec<Changed>, StoreError> {
        checks::change(shard, self.shards(), batch)?;
        let batch = batch.to_vec();
        self.step(shard, move |step, now_ms| tasks::change(step, batch, now_ms)).await
    }

    async fn get(&self, shard: Shard, tenant: u16, at: &[TaskAt]) -> Result<Vec<Option<Found>>, StoreError> {
        let at = at.to_vec();
        self.step(shard, move |step, _| tasks::get(step, tenant, at)).await
    }

    async fn list(
        &self,
        tenant: u16,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<WaitingPage, StoreError> {
        self.call(move |inner| pages::list(&inner.files, &inner.shards, tenant, after, limit.max(1))).await
    }

    async fn counts(&self, shard: Shard) -> Result<BTreeMap<u16, u64>, StoreError> {
        self.call(move |inner| Ok(inner.shard(shard)?.lock().counts())).await
    }

    async fn beat(&self, instance: &str, ttl_ms: u64) -> Result<Vec<String>, StoreError> {
        checks::name(instance)?;
        let instance = instance.to_owned();
        self.call(move |inner| {
            let _one = inner.registry.lock();
            registry::beat(&inner.files, &instance, ttl_ms, inner.clock.unix_ms())
        })
        .await
    }

    async fn acquire(
        &self,
        shard: Shard,
        instance: &str,
        ttl_ms: u64,
    ) -> Result<Result<Lease, HeldBy>, StoreError> {
        checks::name(instance)?;
        let instance = instance.to_owned();
        self.step(shard, move |step, now_ms| Ok(dispatch::acquire(step, &instance, ttl_ms, now_ms))).await
    }

    async fn renew(&self, lease: &Lease, ttl_ms: u64) -> Result<(), LeaseError> {
        self.leased(lease, move |step, now_ms| {
            step.meta_mut().lease_end_ms = now_ms.saturating_add(ttl_ms);
            Ok(())
        })
        .await
    }

    async fn release(&self, lease: &Lease) -> Result<(), LeaseError> {
        let lease = lease.clone();
        self.call(move |inner| {
            let mut state = inner.shard(lease.shard)?.lock();
            if state.meta().epoch != lease.epoch {
                return Err(LeaseError::Lost);
            }
            // Where nobody has it, it was given back before, and the answer got lost.
            if state.meta().owner.is_some() {
                let mut step = ShardStep::begin(&inner.files, &mut state, &inner.bound);
                let meta = step.meta_mut();
                (meta.owner, meta.lease_end_ms) = (None, 0);
                step.commit()?;
            }
            Ok(())
        })
        .await
    }

    async fn advance(
        &self,
        lease: &Lease,
        ahead_ms: u64,
        reads: &[ReadFrom],
        max_bytes: usize,
    ) -> Result<Advanced, LeaseError> {
        let (lease, reads) = (lease.clone(), reads.to_vec());
        self.call(move |inner| {
            let mut state = inner.shard(lease.shard)?.lock();
            dispatch::fence(&state, &lease)?;
            let now_ms = inner.clock.unix_ms();
            let mut advanced = dispatch::advance(&inner.files, &mut state, &inner.bound, ahead_ms, now_ms)?;
            // Entries never change, so they may be read while others go on.
            drop(state);
            advanced.entries = dispatch::read(&inner.files, lease.shard.0, &reads, max_bytes)?;
            Ok(advanced)
        })
        .await
    }

    async fn state(&self, lease: &Lease, slot: SlotMinute) -> Result<SlotState, LeaseError> {
        let lease = lease.clone();
        self.call(move |inner| {
            let state = inner.shard(lease.shard)?.lock();
            dispatch::fence(&state, &lease)?;
            Ok(dispatch::slot_state(&inner.files, lease.shard.0, slot)?)
        })
        .await
    }

    async fn finish(&self, lease: &Lease, slot: SlotMinute, batch: &FinishBatch) -> Result<(), LeaseError> {
        let (own, batch) = (lease.clone(), batch.clone());
        self.leased(lease, move |step, now_ms| dispatch::finish(step, &own, slot, batch, now_ms)).await
    }

    async fn drop_slot(&self, lease: &Lease, slot: SlotMinute, entries: u32) -> Result<bool, LeaseError> {
        let lease = lease.clone();
        self.call(move |inner| {
            let mut state = inner.shard(lease.shard)?.lock();
            dispatch::fence(&state, &lease)?;
            Ok(dispatch::drop_slot(&inner.files, &mut state, &inner.bound, slot, entries)?)
        })
        .await
    }

    async fn dead(
        &self,
        tenant: u16,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<Vec<DeadTask>, StoreError> {
        self.call(move |inner| pages::dead(&inner.files, tenant, after, limit)).await
    }

    async fn end_dead(
        &self,
        shard: Shard,
        tenant: u16,
        ids: &[TaskId],
        again: bool,
    ) -> Result<Vec<bool>, StoreError> {
        let ids = ids.to_vec();
        self.step(shard, move |step, _| tasks::end_dead(step, tenant, ids, again)).await
    }
}
