//! What a store of jobs offers, and what callers may rely on. The conformance suite checks each sentence.

use super::{Attributes, DoubtfulJobs, FarJob, JobId, PublishedFar, QueueName, RecordError};
use crate::due::{Durability, Shard};
use async_trait::async_trait;
use bytes::Bytes;

/// Jobs of one queue to publish, which differ in their bodies alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewJobs {
    /// Their queue.
    pub queue: QueueName,
    /// From when on they may be taken, in seconds from now.
    pub delay_s: u32,
    /// How long they live, from now; 0 is for ever.
    pub ttl_s: u32,
    /// How often they may be taken, at least once.
    pub tries: u16,
    /// Whether their ids are those of jobs with attributes.
    pub is_versioned: bool,
    /// What their publisher says of them. Each name and value has at most 255 bytes, and all have at most 65,000.
    pub attributes: Attributes,
    /// One for each job, at least one, each at most [`BODY_MAX_BYTES`](super::BODY_MAX_BYTES).
    pub bodies: Vec<Bytes>,
}

/// What a job is known by that is published by several calls at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OnceMark(pub [u8; 16]);

impl OnceMark {
    /// The shard of a store with so many: the same mark always meets the same one.
    pub fn shard(self, shards: u16) -> Shard {
        let [first, second, ..] = self.0;
        Shard(u16::from_be_bytes([first, second]) % shards.max(1))
    }
}

/// A job that is published at most once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnceJob {
    /// What it is known by.
    pub mark: OnceMark,
    /// The job, with one body.
    pub job: NewJobs,
}

/// What a consumer wants of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Take {
    /// Which queue.
    pub queue: QueueName,
    /// At most so many jobs, 1 to [`TAKE_MAX`](super::TAKE_MAX).
    pub count: usize,
    /// How long they are the consumer's.
    pub ttr_s: u32,
}

/// A job that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenJob {
    /// Its id.
    pub id: JobId,
    /// Its body.
    pub body: Bytes,
    /// What its publisher said of it.
    pub attributes: Attributes,
    /// When its ttl ends, in Unix milliseconds of the store's clock; 0 is never.
    pub expires_ms: u64,
    /// How often it may be taken after this.
    pub tries_left: u16,
}

/// What one [`take`](JobStore::take) has of a job: another one that takes it later has another end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The job's queue.
    pub queue: QueueName,
    /// Its id.
    pub id: JobId,
    /// When its ttr ends, in Unix milliseconds of the store's clock.
    pub end_ms: u64,
}

impl Lease {
    /// When a lease ends that was taken at `now_ms`.
    pub const fn end_ms(now_ms: u64, ttr_s: u32) -> u64 {
        now_ms + ttr_s as u64 * 1_000
    }
}

/// The answer to one [`Take`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TakenJobs {
    /// What was taken.
    pub jobs: Vec<TakenJob>,
    /// How many jobs of the queue are still ready in the shard.
    pub ready_left: u64,
    /// Jobs that it came upon whose ttl had ended, and that are gone.
    pub expired: u64,
    /// Whether the call ended before it had looked at all that is ready: ask again.
    pub is_cut: bool,
}

/// A job as it is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundJob {
    /// What it is; `tries_left` counts this look as none.
    pub job: TakenJob,
    /// The store's clock at the look.
    pub now_ms: u64,
}

impl FoundJob {
    /// Whether its ttl has ended.
    pub const fn is_expired(&self) -> bool {
        self.job.expires_ms != 0 && self.job.expires_ms <= self.now_ms
    }
}

/// The jobs of a queue in one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueCounts {
    /// May be taken now; those whose ttl has ended count until somebody comes upon them.
    pub ready: u64,
    /// Wait for their delay to end.
    pub delayed: u64,
    /// Are in the dead letter.
    pub dead: u64,
}

impl std::ops::AddAssign for QueueCounts {
    fn add_assign(&mut self, other: Self) {
        self.ready += other.ready;
        self.delayed += other.delayed;
        self.dead += other.dead;
    }
}

/// What [`JobStore::tend`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tended {
    /// Jobs whose lease ended, and that are ready again.
    pub again: u64,
    /// Jobs whose lease ended with no try left.
    pub dead: u64,
    /// Jobs whose lease ended, and their ttl before.
    pub expired: u64,
    /// Whether there may be more to do at once.
    pub is_cut: bool,
}

/// What [`JobStore::sweep`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Where to go on; 0 is the beginning.
    pub cursor: u64,
    /// Jobs whose ttl had ended, and that are gone.
    pub expired: u64,
    /// Queues that were empty, and marks and deletions of far jobs that were kept for long enough: all are forgotten.
    pub forgotten: u64,
    /// The deletions of far jobs that the shard still remembers.
    pub far_removals: u64,
}

/// The store cannot do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobStoreError {
    /// It did not answer, or not in time, or cannot now: the call may be done or not.
    #[error("the store of jobs is unavailable: {0}")]
    Unavailable(String),
    /// What it holds cannot be read, or the call cannot be.
    #[error("the store of jobs cannot be used: {0}")]
    Unusable(String),
    /// A shard remembers as many deletions of far jobs as it may. Nothing was changed.
    #[error(
        "the store of jobs remembers too many deletions of far jobs; the oldest are forgotten a week after they were due"
    )]
    TooManyFarRemovals,
}

impl From<RecordError> for JobStoreError {
    fn from(error: RecordError) -> Self {
        Self::Unusable(error.to_string())
    }
}

/// Keeps jobs. Each call is one step in one shard: what it answers Ok for is done and survives what
/// [`durability`](Self::durability) says; a call without an answer is done as a whole or not at all. The store's clock
/// decides what is due, and what has expired.
#[async_trait]
pub trait JobStore: Send + Sync {
    /// How many shards it has: 1 to [`SHARDS_MAX`](super::SHARDS_MAX), fixed when it was made.
    fn shards(&self) -> u16;

    /// What an Ok survives.
    fn durability(&self) -> Durability;

    /// Why no call will be answered until the store is opened again, where that is so. A process that has opened it cannot go
    /// on then, and has to be started again.
    fn has_ended(&self) -> Option<String> {
        None
    }

    /// Publishes jobs. Their ids, in the order of `batch` and of its bodies: no two jobs of a store ever have the same.
    ///
    /// # Errors
    /// [`JobStoreError`].
    async fn publish(&self, shard: Shard, batch: &[NewJobs]) -> Result<Vec<Vec<JobId>>, JobStoreError>;

    /// Publishes jobs, but those whose mark the shard has: their ids, or `None`. The shard knows the mark of a job for
    /// [`ONCE_KEPT_MS`](super::ONCE_KEPT_MS) of the store's clock at least, whatever becomes of the job; if the clock goes back
    /// meanwhile, as long as that is by an hour at most. So a call that has no answer may be repeated.
    ///
    /// # Errors
    /// [`JobStoreError`].
    async fn publish_once(
        &self,
        shard: Shard,
        batch: &[OnceJob],
    ) -> Result<Vec<Option<JobId>>, JobStoreError>;

    /// Publishes far jobs whose time has come, each under its own id: one answer for each, in order. A job that was published
    /// so within [`ONCE_KEPT_MS`](super::ONCE_KEPT_MS) is passed over, whatever became of it; so is one that is still there,
    /// leased or dead or not, however long ago that was, and one that [`remove_far`](Self::remove_far) has ended. So a call
    /// that has no answer may be repeated. The ids must be of the shard. `doubtful` is about jobs of a time of which the shard
    /// has forgotten deletions.
    ///
    /// # Errors
    /// [`JobStoreError`].
    async fn publish_far(
        &self,
        shard: Shard,
        batch: &[FarJob],
        doubtful: DoubtfulJobs,
    ) -> Result<Vec<PublishedFar>, JobStoreError>;

    /// Takes jobs that are ready, the one that has been ready longest about first, and leases each in the same step: no
    /// other call takes it within its ttr, unless it is given back. What has expired or was deleted is passed over. The
    /// whole call is bounded in the entries that it looks at and in its bytes; takes that it did not reach are cut. The
    /// first number is the store's clock.
    ///
    /// # Errors
    /// [`JobStoreError`]; what was taken without an answer is ready again when its ttr has ended, or dead if that was its
    /// last try.
    async fn take(&self, shard: Shard, batch: &[Take]) -> Result<(u64, Vec<TakenJobs>), JobStoreError>;

    /// Ends jobs, wherever they are: acknowledges or cancels them. Whether each was there. One that was answered Ok is
    /// never taken afterwards.
    ///
    /// # Errors
    /// [`JobStoreError`].
    async fn remove(&self, shard: Shard, jobs: &[(QueueName, JobId)]) -> Result<Vec<bool>, JobStoreError>;

    /// Ends far jobs as [`remove`](Self::remove) does, and keeps those away that are published later: until
    /// [`FAR_REMOVAL_KEPT_MS`](super::FAR_REMOVAL_KEPT_MS) after the job was due, and for
    /// [`ONCE_KEPT_MS`](super::ONCE_KEPT_MS) at least. A job that comes later is [`PublishedFar::Doubtful`]: what forgets a
    /// deletion remembers in the same step up to which time it has forgotten any.
    ///
    /// # Errors
    /// [`JobStoreError`]; [`TooManyFarRemovals`](JobStoreError::TooManyFarRemovals) where there is no room to remember that the
    /// jobs were deleted.
    async fn remove_far(&self, shard: Shard, jobs: &[(QueueName, JobId)])
    -> Result<Vec<bool>, JobStoreError>;

    /// Makes leased jobs ready again that no consumer has seen, with the try that taking them has cost. Does nothing where
    /// the lease has ended, even if somebody else has the job now.
    ///
    /// # Errors
    /// [`JobStoreError`].
    async fn give_back(&self, shard: Shard, leases: &[Lease]) -> Result<(), JobStoreError>;

    /// How many jobs there are of each queue.
    ///
    /// # Errors
    /// [`JobStoreError`].
    async fn look(&self, shard: Shard, queues: &[QueueName]) -> Result<Vec<QueueCounts>, JobStoreError>;

    /// For how long, in milliseconds of the store's clock, the job of each queue that about comes next has been ready;
    /// `None` where none is.
    ///
    /// # Errors
    /// [`JobStoreError`].
    async fn ready_for_ms(
        &self,
        shard: Shard,
        queues: &[QueueName],
    ) -> Result<Vec<Option<u64>>, JobStoreError>;

    /// A job, wherever it is.
    ///
    /// # Errors
    /// [`JobStoreError`].
    async fn get(&self, queue: &QueueName, id: JobId) -> Result<Option<FoundJob>, JobStoreError>;

    /// The job that about comes next.
    ///
    /// # Errors
    /// [`JobStoreError`].
    async fn peek(&self, shard: Shard, queue: &QueueName) -> Result<Option<FoundJob>, JobStoreError>;

    /// Ends all jobs that are ready. Whether it has to be called again for more.
    ///
    /// # Errors
    /// [`JobStoreError`].
    async fn drop_ready(&self, shard: Shard, queue: &QueueName) -> Result<bool, JobStoreError>;

    /// The job that has been in the dead letter longest.
    ///
    /// # Errors
    /// [`JobStoreError`].
    async fn dead_head(&self, shard: Shard, queue: &QueueName) -> Result<Option<JobId>, JobStoreError>;

    /// Makes dead jobs ready, at most `limit` and [`TAKE_MAX`](super::TAKE_MAX) in one call, with one try and a ttl that
    /// counts from now. How many.
    ///
    /// # Errors
    /// [`JobStoreError`].
    async fn respawn(
        &self,
        shard: Shard,
        queue: &QueueName,
        limit: usize,
        ttl_s: u32,
    ) -> Result<usize, JobStoreError>;

    /// Ends dead jobs, at most `limit` and [`TAKE_MAX`](super::TAKE_MAX) in one call. How many.
    ///
    /// # Errors
    /// [`JobStoreError`].
    async fn drop_dead(&self, shard: Shard, queue: &QueueName, limit: usize) -> Result<usize, JobStoreError>;

    /// Sees to leases that have ended: a job with tries left is ready again, unless its ttl has ended; one without is in
    /// the dead letter, where its ttl no longer counts. To be called a few times a second, by any number of processes.
    ///
    /// # Errors
    /// [`JobStoreError`].
    async fn tend(&self, shard: Shard) -> Result<Tended, JobStoreError>;

    /// Forgets, in some of the shard's queues, jobs at their heads whose ttl has ended, and queues that are empty. To be
    /// called now and then with the cursor of the call before.
    ///
    /// # Errors
    /// [`JobStoreError`].
    async fn sweep(&self, shard: Shard, cursor: u64) -> Result<Swept, JobStoreError>;

    /// About [`QUEUES_PAGE`](super::QUEUES_PAGE) of the queues that have a job in the shard, and perhaps some that had, from a
    /// cursor on, and where to go on; 0 is the beginning and the end. One that is there from the first page to the last one is on
    /// one of them at least, perhaps on two.
    ///
    /// # Errors
    /// [`JobStoreError`].
    async fn queues(&self, shard: Shard, cursor: u64) -> Result<(u64, Vec<QueueName>), JobStoreError>;
}
