//! A store of jobs with a fault, which the model has to find.

use super::Embedded;
use async_trait::async_trait;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use windfall_conformance::task_queue::Fixture;
use windfall_contract::due::{Durability, Shard};
use windfall_contract::task_queue::{
    DoubtfulJobs, FarJob, FoundJob, JobId, JobStore, JobStoreError, Lease, NewJobs, OnceJob, PublishedFar,
    QueueCounts, QueueName, QueueTokens, Swept, Take, TakenJob, TakenJobs, Tended, ready_ms,
};
use windfall_task_queue::embedded::EmbeddedJobs;

/// What is wrong with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A job that somebody has is given to another consumer.
    LeasesTwice,
    /// What was acknowledged is there again when the store was opened again.
    ForgetsAcknowledgements,
    /// Jobs that wait for their delay to end are not there when the store was opened again.
    LosesDelayedJobs,
    /// A job that is taken again has as many tries as before.
    CountsTriesOnce,
    /// A consumer that meets an expired job gets none.
    HidesJobsBehindExpired,
    /// Jobs are taken before their delay has ended.
    IsEarly,
    /// Dead jobs are not counted.
    CountsNoDeadJobs,
}

impl Fault {
    pub(super) const ALL: [Self; 7] = [
        Self::LeasesTwice,
        Self::ForgetsAcknowledgements,
        Self::LosesDelayedJobs,
        Self::CountsTriesOnce,
        Self::HidesJobsBehindExpired,
        Self::IsEarly,
        Self::CountsNoDeadJobs,
    ];

    /// Whether a failure says what the fault is.
    pub(super) fn is_named_by(self, what: &str) -> bool {
        match self {
            Self::LeasesTwice => what.contains("was taken at") && what.contains("Leased"),
            Self::ForgetsAcknowledgements => what.contains("was taken at") && what.contains("Over"),
            // Any call may miss it: a size, a look, a consumer.
            Self::LosesDelayedJobs => true,
            Self::CountsTriesOnce => what.contains("a job that was taken: "),
            // What is hidden may have expired, too.
            Self::HidesJobsBehindExpired => {
                what.contains("were not taken") || what.contains("where fewer were taken than were asked for")
            }
            Self::IsEarly => what.contains("was taken at") && what.contains("Fresh"),
            Self::CountsNoDeadJobs => what.contains("dead: 0"),
        }
    }
}

/// A job that was taken.
#[derive(Clone)]
struct Known {
    shard: Shard,
    queue: QueueName,
    job: TakenJob,
    lease_end_ms: u64,
}

/// What a fault needs to know, whether or not the store is closed in between.
#[derive(Default)]
struct Memory {
    taken: Vec<Known>,
    acknowledged: Vec<Known>,
    published: Vec<(Shard, QueueName, JobId)>,
}

/// The embedded store, with a fault.
pub(super) struct Planted {
    embedded: Embedded,
    fault: Fault,
    memory: Arc<Mutex<Memory>>,
    was_open: AtomicBool,
}

impl Planted {
    pub(super) fn new(embedded: Embedded, fault: Fault) -> Self {
        Self { embedded, fault, memory: Arc::default(), was_open: AtomicBool::new(false) }
    }
}

#[async_trait]
impl Fixture for Planted {
    fn name(&self) -> &str {
        "planted"
    }

    async fn open(&self) -> Result<(Arc<dyn JobStore>, Arc<dyn QueueTokens>), String> {
        let inner = self.embedded.open_now().map_err(|error| error.to_string())?;
        let is_reopened = self.was_open.swap(true, SeqCst);
        if is_reopened && self.fault == Fault::LosesDelayedJobs {
            let published = std::mem::take(&mut self.memory.lock().published);
            for (shard, queue, id) in published {
                let (now_ms, _) = inner.take(shard, &[]).await.map_err(|error| error.to_string())?;
                if ready_ms(id.published_ms(), id.delay_s()) > now_ms {
                    inner.remove(shard, &[(queue, id)]).await.map_err(|error| error.to_string())?;
                }
            }
        }
        let (fault, memory) = (self.fault, Arc::clone(&self.memory));
        let store = Faulty { inner: Arc::clone(&inner), fault, memory, is_reopened };
        Ok((Arc::new(store) as _, inner))
    }

    async fn wait_ms(&self, ms: u64) {
        self.embedded.wait_ms(ms).await;
    }

    async fn crash(&self) -> Result<(), String> {
        self.embedded.crash().await
    }
}

struct Faulty {
    inner: Arc<EmbeddedJobs>,
    fault: Fault,
    memory: Arc<Mutex<Memory>>,
    is_reopened: bool,
}

impl Faulty {
    /// A job that this consumer must not get.
    async fn wrong_job(&self, shard: Shard, now_ms: u64, queue: &QueueName) -> Option<TakenJob> {
        let is_here = |known: &Known| known.shard == shard && known.queue == *queue;
        match self.fault {
            Fault::LeasesTwice => {
                let memory = self.memory.lock();
                let mut leased = memory.taken.iter().filter(|known| known.lease_end_ms > now_ms);
                leased.rfind(|known| is_here(known)).map(|known| known.job.clone())
            }
            Fault::ForgetsAcknowledgements if self.is_reopened => {
                let memory = self.memory.lock();
                memory.acknowledged.iter().rfind(|known| is_here(known)).map(|known| known.job.clone())
            }
            Fault::IsEarly => self.early_job(shard, now_ms, queue).await,
            _ => None,
        }
    }

    async fn early_job(&self, shard: Shard, now_ms: u64, queue: &QueueName) -> Option<TakenJob> {
        let published = self.memory.lock().published.clone();
        let (_, _, id) = published.into_iter().rfind(|(own, name, id)| {
            *own == shard && name == queue && ready_ms(id.published_ms(), id.delay_s()) > now_ms
        })?;
        let job = self.inner.get(queue, id).await.ok()??.job;
        Some(TakenJob { tries_left: job.tries_left.saturating_sub(1), ..job })
    }

    fn note_taken(&self, shard: Shard, now_ms: u64, take: &Take, taken: &mut TakenJobs) {
        let mut memory = self.memory.lock();
        for job in &mut taken.jobs {
            let was_taken = memory.taken.iter().any(|earlier| earlier.job.id == job.id);
            let (queue, lease_end_ms) = (take.queue.clone(), Lease::end_ms(now_ms, take.ttr_s));
            memory.taken.push(Known { shard, queue, job: job.clone(), lease_end_ms });
            if was_taken && self.fault == Fault::CountsTriesOnce {
                job.tries_left += 1;
            }
        }
    }

    /// Whether the job that comes next has expired.
    async fn is_stuck(&self, shard: Shard, batch: &[Take]) -> Result<bool, JobStoreError> {
        let ([take], Fault::HidesJobsBehindExpired) = (batch, self.fault) else { return Ok(false) };
        Ok(self.inner.peek(shard, &take.queue).await?.is_some_and(|head| head.is_expired()))
    }
}

#[async_trait]
impl JobStore for Faulty {
    fn shards(&self) -> u16 {
        self.inner.shards()
    }

    fn durability(&self) -> Durability {
        self.inner.durability()
    }

    async fn publish(&self, shard: Shard, batch: &[NewJobs]) -> Result<Vec<Vec<JobId>>, JobStoreError> {
        let ids = self.inner.publish(shard, batch).await?;
        let mut memory = self.memory.lock();
        for (jobs, ids) in batch.iter().zip(&ids) {
            memory.published.extend(ids.iter().map(|id| (shard, jobs.queue.clone(), *id)));
        }
        Ok(ids)
    }

    async fn publish_once(
        &self,
        shard: Shard,
        batch: &[OnceJob],
    ) -> Result<Vec<Option<JobId>>, JobStoreError> {
        self.inner.publish_once(shard, batch).await
    }

    async fn publish_far(
        &self,
        shard: Shard,
        batch: &[FarJob],
        doubtful: DoubtfulJobs,
    ) -> Result<Vec<PublishedFar>, JobStoreError> {
        self.inner.publish_far(shard, batch, doubtful).await
    }

    async fn take(&self, shard: Shard, batch: &[Take]) -> Result<(u64, Vec<TakenJobs>), JobStoreError> {
        if self.is_stuck(shard, batch).await? {
            let (now_ms, _) = self.inner.take(shard, &[]).await?;
            let queues: Vec<QueueName> = batch.iter().map(|take| take.queue.clone()).collect();
            let counts = self.inner.look(shard, &queues).await?;
            let none = |counts: &QueueCounts| TakenJobs { ready_left: counts.ready, ..TakenJobs::default() };
            return Ok((now_ms, counts.iter().map(none).collect()));
        }
        let (now_ms, mut answers) = self.inner.take(shard, batch).await?;
        for (take, taken) in batch.iter().zip(&mut answers) {
            if taken.jobs.len() < take.count {
                let wrong = self.wrong_job(shard, now_ms, &take.queue).await;
                taken.jobs.extend(wrong);
            }
            self.note_taken(shard, now_ms, take, taken);
        }
        Ok((now_ms, answers))
    }

    async fn remove(&self, shard: Shard, jobs: &[(QueueName, JobId)]) -> Result<Vec<bool>, JobStoreError> {
        let removed = self.inner.remove(shard, jobs).await?;
        let mut memory = self.memory.lock();
        for ((_, id), _) in jobs.iter().zip(&removed).filter(|(_, was_there)| **was_there) {
            let last = memory.taken.iter().rfind(|known| known.job.id == *id).cloned();
            memory.taken.retain(|known| known.job.id != *id);
            memory.acknowledged.extend(last);
        }
        Ok(removed)
    }

    async fn remove_far(
        &self,
        shard: Shard,
        jobs: &[(QueueName, JobId)],
    ) -> Result<Vec<bool>, JobStoreError> {
        self.inner.remove_far(shard, jobs).await
    }

    async fn give_back(&self, shard: Shard, leases: &[Lease]) -> Result<(), JobStoreError> {
        for lease in leases {
            self.memory.lock().taken.retain(|known| known.job.id != lease.id);
        }
        self.inner.give_back(shard, leases).await
    }

    async fn look(&self, shard: Shard, queues: &[QueueName]) -> Result<Vec<QueueCounts>, JobStoreError> {
        let mut counts = self.inner.look(shard, queues).await?;
        if self.fault == Fault::CountsNoDeadJobs {
            counts.iter_mut().for_each(|counts| counts.dead = 0);
        }
        Ok(counts)
    }

    async fn ready_for_ms(
        &self,
        shard: Shard,
        queues: &[QueueName],
    ) -> Result<Vec<Option<u64>>, JobStoreError> {
        self.inner.ready_for_ms(shard, queues).await
    }

    async fn get(&self, queue: &QueueName, id: JobId) -> Result<Option<FoundJob>, JobStoreError> {
        self.inner.get(queue, id).await
    }

    async fn peek(&self, shard: Shard, queue: &QueueName) -> Result<Option<FoundJob>, JobStoreError> {
        self.inner.peek(shard, queue).await
    }

    async fn drop_ready(&self, shard: Shard, queue: &QueueName) -> Result<bool, JobStoreError> {
        self.inner.drop_ready(shard, queue).await
    }

    async fn dead_head(&self, shard: Shard, queue: &QueueName) -> Result<Option<JobId>, JobStoreError> {
        self.inner.dead_head(shard, queue).await
    }

    async fn respawn(
        &self,
        shard: Shard,
        queue: &QueueName,
        limit: usize,
        ttl_s: u32,
    ) -> Result<usize, JobStoreError> {
        self.inner.respawn(shard, queue, limit, ttl_s).await
    }

    async fn drop_dead(&self, shard: Shard, queue: &QueueName, limit: usize) -> Result<usize, JobStoreError> {
        self.inner.drop_dead(shard, queue, limit).await
    }

    async fn tend(&self, shard: Shard) -> Result<Tended, JobStoreError> {
        self.inner.tend(shard).await
    }

    async fn sweep(&self, shard: Shard, cursor: u64) -> Result<Swept, JobStoreError> {
        self.inner.sweep(shard, cursor).await
    }

    async fn queues(&self, shard: Shard, cursor: u64) -> Result<(u64, Vec<QueueName>), JobStoreError> {
        self.inner.queues(shard, cursor).await
    }
}
