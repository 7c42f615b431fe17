//! A store of jobs on files inside the process, on fjall.
//!
//! A job is one row: under its queue and the time from which it is ready as long as it was never taken, under its id from
//! then on. Rows of a shard are changed in steps, each of which is one write batch, so that a kill leaves a step whole or
//! not at all. In memory there are some bytes for each job that was taken and is not over, and for each tenth of a second
//! (a second for long delays) in which jobs of a queue become ready. A directory belongs to one process.
//!
//! **Durability.** With [`Durability::Process`] an Ok survives `kill -9` and not the death of the machine. With
//! [`Durability::Machine`] it is synced first; calls on different shards share a sync.
//!
//! **Time.** The clock is the one that the store is opened with.
//!
//! **Doubt.** When a write fails, nobody knows whether it is there. From then on each call is refused until the store is
//! opened again.
//!
//! Calls run on the runtime's blocking threads, one per shard at a time.

mod far;
mod files;
mod jobs;
mod once;
mod queue;
mod removals;
mod rows;
mod tokens;
mod upkeep;

use crate::checks;
use async_trait::async_trait;
use files::{Files, Step};
use once::Marks;
use parking_lot::Mutex;
use queue::QueueState;
use removals::Removals;
use rows::{Key, Reading};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use tokens::CallCounts;
use windfall_contract::Clock;
use windfall_contract::due::{Durability, Shard};
use windfall_contract::task_queue::{
    DoubtfulJobs, FAR_REMOVALS_MAX, FarJob, FoundJob, HeldState, JobId, JobStore, JobStoreError, Lease,
    NewJobs, OnceJob, PublishedFar, QUEUES_PAGE, QueueCounts, QueueName, Swept, Take, TakenJobs, Tended,
};

/// How an embedded store of jobs uses memory and disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedJobsOptions {
    /// The number of shards, 1 to 256, default 1: more let calls of one process go on side by side. It is fixed when the
    /// store is made: opening it with another number is an error.
    pub shards: u16,
    /// What an Ok survives: [`Durability::Process`] (default) or [`Durability::Machine`].
    pub durability: Durability,
    /// Memory for rows before they move to table files; up to three times this is in use. 1 to 256 MiB, default 16 MiB.
    pub memtable_bytes: u64,
    /// Cache for blocks read from table files. At most 1 GiB, default 16 MiB.
    pub cache_bytes: u64,
    /// How many deletions of far jobs are remembered at a time, each shard its part: a week and more for each. Beyond that
    /// deletions of jobs that are not there are refused. 1 to 100,000,000, default 1,000,000.
    pub far_removals_max: u64,
}

impl Default for EmbeddedJobsOptions {
    fn default() -> Self {
        Self {
            shards: 1,
            durability: Durability::Process,
            memtable_bytes: 16 << 20,
            cache_bytes: 16 << 20,
            far_removals_max: FAR_REMOVALS_MAX,
        }
    }
}

/// The store could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenJobsError {
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
    /// The files cannot be read. Restore them from a backup: the jobs that wait are in them alone.
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

/// The embedded store of jobs.
pub struct EmbeddedJobs {
    inner: Arc<Inner>,
    durability: Durability,
}

struct Inner {
    shards: Vec<Mutex<ShardState>>,
    calls: Mutex<CallCounts>,
    clock: Clock,
    /// Released last.
    files: Files,
}

/// What of a shard is in memory.
struct ShardState {
    number: u16,
    /// The number of the last job.
    sequence: u64,
    queues: HashMap<QueueName, QueueState>,
    names: BTreeMap<u32, QueueName>,
    next_queue: u32,
    /// By the end of the lease: queue and id.
    leases: BTreeSet<(u64, u32, JobId)>,
    marks: Marks,
    removals: Removals,
}

/// A step in one shard. Its memory is changed at once: where the files then refuse the step, the store refuses
/// everything until it is opened again.
struct ShardStep<'s> {
    state: &'s mut ShardState,
    files: &'s Files,
    step: Step<'s>,
    now_ms: u64,
}

impl EmbeddedJobs {
    /// Opens the store in `dir`, creating it if there is none. Blocks.
    ///
    /// # Errors
    /// [`OpenJobsError`].
    pub fn open(dir: &Path, options: &EmbeddedJobsOptions, clock: Clock) -> Result<Arc<Self>, OpenJobsError> {
        options.check()?;
        let files = Files::open(dir, options)?;
        let place = dir.display().to_string();
        let damaged =
            |error: JobStoreError| OpenJobsError::Damaged { place: place.clone(), what: error.to_string() };
        let found = fix_shards(&files, options.shards).map_err(damaged)?;
        if found != options.shards {
            return Err(OpenJobsError::OtherShards { place, found, asked: options.shards });
        }
        let removals_max = options.far_removals_max.div_ceil(options.shards.into());
        let load = |number| ShardState::load(&files, number, removals_max).map(Mutex::new);
        let shards = (0..options.shards).map(load).collect::<Result<_, _>>().map_err(damaged)?;
        let inner = Inner { shards, calls: Mutex::default(), clock, files };
        Ok(Arc::new(Self { inner: Arc::new(inner), durability: options.durability }))
    }

    /// Runs `work` on a blocking thread. If the caller goes away, it still runs to its end.
    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, JobStoreError> + Send + 'static,
    ) -> Result<T, JobStoreError> {
        let inner = Arc::clone(&self.inner);
        let called = tokio::task::spawn_blocking(move || {
            inner.files.check()?;
            work(&inner)
        });
        called.await.map_err(|error| JobStoreError::Unavailable(error.to_string()))?
    }

    /// A look at the memory of a shard: at once where nobody works on it, else on a blocking thread, for whoever does may
    /// wait for the disk.
    async fn glance<T: Send + 'static>(
        &self,
        shard: Shard,
        look: impl FnOnce(&mut ShardState, u64) -> T + Send + 'static,
    ) -> Result<T, JobStoreError> {
        checks::shard(shard, self.shards())?;
        self.inner.files.check()?;
        let at = usize::from(shard.0);
        if let Some(mut state) = self.inner.shards[at].try_lock() {
            return Ok(look(&mut state, self.inner.clock.unix_ms()));
        }
        self.call(move |inner| Ok(look(&mut inner.shards[at].lock(), inner.clock.unix_ms()))).await
    }

    /// One step in a shard.
    async fn step<T: Send + 'static>(
        &self,
        shard: Shard,
        work: impl FnOnce(&mut ShardStep<'_>) -> Result<T, JobStoreError> + Send + 'static,
    ) -> Result<T, JobStoreError> {
        checks::shard(shard, self.shards())?;
        self.call(move |inner| {
            let mut state = inner.shards[usize::from(shard.0)].lock();
            let now_ms = inner.clock.unix_ms();
            let mut step =
                ShardStep { state: &mut state, files: &inner.files, step: inner.files.step(), now_ms };
            match work(&mut step) {
                Ok(result) => step.step.commit().map(|()| result),
                // Memory may say what the files do not.
                Err(error) => {
                    inner.files.give_up();
                    Err(error)
                }
            }
        })
        .await
    }
}

impl EmbeddedJobsOptions {
    fn check(&self) -> Result<(), OpenJobsError> {
        let within = [
            ("shards", self.shards.into(), (*checks::SHARDS.start()).into(), (*checks::SHARDS.end()).into()),
            ("memtable_bytes", self.memtable_bytes, 1 << 20, 256 << 20),
            ("cache_bytes", self.cache_bytes, 0, 1 << 30),
            ("far_removals_max", self.far_removals_max, 1, checks::FAR_REMOVALS_MAX),
        ];
        for (name, value, low, high) in within {
            if !(low..=high).contains(&value) {
                return Err(OpenJobsError::Invalid(format!("{name} is {value}; it may be {low} to {high}")));
            }
        }
        match self.durability {
            Durability::Process | Durability::Machine => Ok(()),
            Durability::EverySecond => Err(OpenJobsError::Invalid(
                "durability is every second, which files inside the process do not have; it may be process or machine"
                    .into(),
            )),
        }
    }
}

/// The number of shards that the store was made with, which is now where it is new.
fn fix_shards(files: &Files, shards: u16) -> Result<u16, JobStoreError> {
    if let Some(found) = files.get(b"c")? {
        return Reading(&found).u16();
    }
    let mut step = files.step();
    step.put(b"c".to_vec(), shards.to_be_bytes().to_vec());
    step.commit()?;
    Ok(shards)
}

impl ShardState {
    fn load(files: &Files, number: u16, removals_max: u64) -> Result<Self, JobStoreError> {
        let sequence = files.get(&Key::of(b's').u16(number).end())?;
        let mut state = Self {
            number,
            sequence: sequence.map_or(Ok(0), |bytes| Reading(&bytes).u64())?,
            queues: HashMap::new(),
            names: BTreeMap::new(),
            next_queue: 0,
            leases: BTreeSet::new(),
            marks: Marks::load(files, number)?,
            removals: Removals::load(files, number, removals_max)?,
        };
        let prefix = Key::of(b'q').u16(number).end();
        for row in files.range(&prefix, Bound::Included(prefix.clone())) {
            let (key, name) = row?;
            let queue = Reading(&key[prefix.len()..]).u32()?;
            let name = std::str::from_utf8(&name).ok().and_then(|name| QueueName::parse(name).ok());
            let name = name.ok_or_else(rows::damaged)?;
            state.next_queue = state.next_queue.max(queue.saturating_add(1));
            state.names.insert(queue, name.clone());
            state.queues.insert(name, QueueState::new(queue));
        }
        let prefix = Key::of(b'w').u16(number).end();
        for row in files.range(&prefix, Bound::Included(prefix.clone())) {
            let (key, _) = row?;
            let mut at = Reading(&key[prefix.len()..]);
            let (queue, ready_ms, sequence) = (at.u32()?, at.u64()?, at.u64()?);
            state.numbered(queue)?.published(ready_ms, sequence, 1);
        }
        let prefix = Key::of(b'h').u16(number).end();
        for row in files.range(&prefix, Bound::Included(prefix.clone())) {
            let (key, value) = row?;
            let mut at = Reading(&key[prefix.len()..]);
            let (queue, id) = (at.u32()?, at.id()?);
            let (at_ms, record) = rows::read_held(&value)?;
            state.numbered(queue)?.held(record.state, at_ms, id);
            if record.state == HeldState::Leased {
                state.leases.insert((at_ms, queue, id));
            }
        }
        Ok(state)
    }

    /// A number that no queue has. They come round: each answer to a synchronous job takes one.
    fn free_number(&mut self) -> u32 {
        while self.names.contains_key(&self.next_queue) {
            self.next_queue = self.next_queue.wrapping_add(1);
        }
        let number = self.next_queue;
        self.next_queue = number.wrapping_add(1);
        number
    }

    fn numbered(&mut self, number: u32) -> Result<&mut QueueState, JobStoreError> {
        let name = self.names.get(&number);
        name.and_then(|name| self.queues.get_mut(name)).ok_or_else(rows::damaged)
    }
}

#[async_trait]
impl JobStore for EmbeddedJobs {
    fn shards(&self) -> u16 {
        u16::try_from(self.inner.shards.len()).unwrap_or(u16::MAX)
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn has_ended(&self) -> Option<String> {
        self.inner.files.check().err().map(|error| error.to_string())
    }

    async fn publish(&self, shard: Shard, batch: &[NewJobs]) -> Result<Vec<Vec<JobId>>, JobStoreError> {
        checks::publish(shard, self.shards(), batch)?;
        let batch = batch.to_vec();
        self.step(shard, move |step| Ok(jobs::publish(step, &batch))).await
    }

    async fn publish_once(
        &self,
        shard: Shard,
        batch: &[OnceJob],
    ) -> Result<Vec<Option<JobId>>, JobStoreError> {
        checks::publish_once(shard, self.shards(), batch)?;
        let batch = batch.to_vec();
        self.step(shard, move |step| once::publish(step, &batch)).await
    }

    async fn publish_far(
        &self,
        shard: Shard,
        batch: &[FarJob],
        doubtful: DoubtfulJobs,
    ) -> Result<Vec<PublishedFar>, JobStoreError> {
        checks::publish_far(shard, self.shards(), batch)?;
        let batch = batch.to_vec();
        self.step(shard, move |step| far::publish(step, &batch, doubtful)).await
    }

    async fn take(&self, shard: Shard, batch: &[Take]) -> Result<(u64, Vec<TakenJobs>), JobStoreError> {
        checks::take(shard, self.shards(), batch)?;
        let batch = batch.to_vec();
        self.step(shard, move |step| {
            let mut looked = jobs::Looked::default();
            let taken = batch.iter().map(|take| jobs::take(step, take, &mut looked));
            let taken = taken.collect::<Result<_, _>>()?;
            Ok((step.now_ms, taken))
        })
        .await
    }

    async fn remove(&self, shard: Shard, jobs: &[(QueueName, JobId)]) -> Result<Vec<bool>, JobStoreError> {
        let jobs = jobs.to_vec();
        self.step(shard, move |step| jobs.iter().map(|(queue, id)| jobs::remove(step, queue, *id)).collect())
            .await
    }

    async fn remove_far(
        &self,
        shard: Shard,
        jobs: &[(QueueName, JobId)],
    ) -> Result<Vec<bool>, JobStoreError> {
        let jobs = jobs.to_vec();
        self.step(shard, move |step| far::remove(step, &jobs)).await?
    }

    async fn give_back(&self, shard: Shard, leases: &[Lease]) -> Result<(), JobStoreError> {
        let leases = leases.to_vec();
        self.step(shard, move |step| leases.iter().try_for_each(|lease| jobs::give_back(step, lease))).await
    }

    async fn look(&self, shard: Shard, queues: &[QueueName]) -> Result<Vec<QueueCounts>, JobStoreError> {
        let queues = queues.to_vec();
        self.glance(shard, move |state, now_ms| {
            let look = |queue: &QueueName| {
                state.queues.get_mut(queue).map_or(QueueCounts::default(), |own| {
                    own.advance(now_ms);
                    own.counts()
                })
            };
            queues.iter().map(look).collect()
        })
        .await
    }

    async fn ready_for_ms(
        &self,
        shard: Shard,
        queues: &[QueueName],
    ) -> Result<Vec<Option<u64>>, JobStoreError> {
        let queues = queues.to_vec();
        self.step(shard, move |step| queues.iter().map(|queue| jobs::ready_for_ms(step, queue)).collect())
            .await
    }

    async fn get(&self, queue: &QueueName, id: JobId) -> Result<Option<FoundJob>, JobStoreError> {
        let queue = queue.clone();
        self.step(id.shard(), move |step| jobs::get(step, &queue, id)).await
    }

    async fn peek(&self, shard: Shard, queue: &QueueName) -> Result<Option<FoundJob>, JobStoreError> {
        let queue = queue.clone();
        self.step(shard, move |step| jobs::peek(step, &queue)).await
    }

    async fn drop_ready(&self, shard: Shard, queue: &QueueName) -> Result<bool, JobStoreError> {
        let queue = queue.clone();
        self.step(shard, move |step| upkeep::drop_ready(step, &queue)).await
    }

    async fn dead_head(&self, shard: Shard, queue: &QueueName) -> Result<Option<JobId>, JobStoreError> {
        let queue = queue.clone();
        let first = move |state: &mut ShardState, _| {
            state.queues.get(&queue).and_then(|own| own.dead.first()).map(|(_, id)| *id)
        };
        self.glance(shard, first).await
    }

    async fn respawn(
        &self,
        shard: Shard,
        queue: &QueueName,
        limit: usize,
        ttl_s: u32,
    ) -> Result<usize, JobStoreError> {
        let queue = queue.clone();
        self.step(shard, move |step| upkeep::respawn(step, &queue, limit, ttl_s)).await
    }

    async fn drop_dead(&self, shard: Shard, queue: &QueueName, limit: usize) -> Result<usize, JobStoreError> {
        let queue = queue.clone();
        self.step(shard, move |step| Ok(upkeep::drop_dead(step, &queue, limit))).await
    }

    async fn tend(&self, shard: Shard) -> Result<Tended, JobStoreError> {
        let is_idle =
            |state: &mut ShardState, now_ms| state.leases.first().is_none_or(|(end_ms, ..)| *end_ms > now_ms);
        // Mostly there is nothing to do, which needs no thread.
        if self.glance(shard, is_idle).await? {
            return Ok(Tended::default());
        }
        self.step(shard, upkeep::tend).await
    }

    async fn sweep(&self, shard: Shard, cursor: u64) -> Result<Swept, JobStoreError> {
        let idle = |state: &mut ShardState, now_ms| {
            let has_work =
                !state.queues.is_empty() || state.marks.are_due(now_ms) || state.removals.are_due(now_ms);
            (!has_work).then(|| Swept { far_removals: state.removals.count(), ..Swept::default() })
        };
        if let Some(swept) = self.glance(shard, idle).await? {
            return Ok(swept);
        }
        self.step(shard, move |step| upkeep::sweep(step, cursor)).await
    }

    async fn queues(&self, shard: Shard, cursor: u64) -> Result<(u64, Vec<QueueName>), JobStoreError> {
        let page = move |state: &mut ShardState, _| {
            let Ok(first) = u32::try_from(cursor) else { return (0, Vec::new()) };
            let mut rest = state.names.range(first..);
            let names = rest.by_ref().take(QUEUES_PAGE).map(|(_, name)| name.clone()).collect();
            (rest.next().map_or(0, |(number, _)| u64::from(*number)), names)
        };
        self.glance(shard, page).await
    }
}
