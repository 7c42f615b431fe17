//! Timers that become jobs of a task queue, also where answers are lost, the store is away, and two fire one timer at once.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::Notify;
use windfall_contract::Clock;
use windfall_contract::due::{Durability, Fired, Firing, Shard, Target};
use windfall_contract::task_queue::{
    FoundJob, JobId, JobStore, JobStoreError, Lease, NewJobs, OnceJob, QueueCounts, QueueName, Swept, Take,
    TakenJob, TakenJobs, Tended,
};
use windfall_scheduler_service::{JobTarget, JobTargetOptions};
use windfall_task_queue::embedded::{EmbeddedJobs, EmbeddedJobsOptions};

const SHARDS: u16 = 3;

fn queue() -> QueueName {
    QueueName::new("calls", "ring").unwrap()
}

fn open(dir: &tempfile::TempDir) -> Arc<EmbeddedJobs> {
    let options = EmbeddedJobsOptions { shards: SHARDS, ..EmbeddedJobsOptions::default() };
    EmbeddedJobs::open(dir.path(), &options, Clock::system()).unwrap()
}

fn target(store: Arc<dyn JobStore>) -> JobTarget {
    JobTarget::new(store, JobTargetOptions { queue: queue(), ttl_s: 600, tries: 3 })
}

fn firings(count: u32, attempt: u32) -> Vec<Firing> {
    let firing = |index| Firing {
        id: format!("0001-01c3a2f0-{index:08x}").parse().unwrap(),
        tenant: "calls".into(),
        key: None,
        due_ms: 1_234,
        attempt,
        payload: Bytes::from(format!("call {index}")),
    };
    (0..count).map(firing).collect()
}

async fn take_all(store: &dyn JobStore) -> Vec<TakenJob> {
    let mut all = Vec::new();
    for shard in (0..SHARDS).map(Shard) {
        let take = [Take { queue: queue(), count: 1_000, ttr_s: 600 }];
        let (_, mut taken) = store.take(shard, &take).await.unwrap();
        all.append(&mut taken[0].jobs);
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_timer_becomes_one_job_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let target = target(store.clone());
    assert_eq!(target.fire(firings(700, 1)).await, vec![Fired::Done; 700]);
    let jobs = take_all(&*store).await;
    let named: BTreeSet<(String, Bytes)> =
        jobs.iter().map(|job| (job.attributes[0].1.clone(), job.body.clone())).collect();
    let expected: BTreeSet<_> =
        firings(700, 1).into_iter().map(|firing| (firing.id.to_string(), firing.payload)).collect();
    assert_eq!((jobs.len(), named), (700, expected));
    assert!(jobs.iter().all(|job| job.attributes[0].0 == "timer-id" && job.tries_left == 2));
    let shards: BTreeSet<Shard> = jobs.iter().map(|job| job.id.shard()).collect();
    assert_eq!(shards.len(), usize::from(SHARDS), "timers are spread over the shards");
    // A process died before it noted them. Some jobs are over by now, the others are with a consumer.
    for job in &jobs[..300] {
        assert_eq!(store.remove(job.id.shard(), &[(queue(), job.id)]).await.unwrap(), [true]);
    }
    assert_eq!(target.fire(firings(700, 2)).await, vec![Fired::Done; 700]);
    assert_eq!(take_all(&*store).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_timer_that_two_processes_fire_at_once_is_one_job() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let (one, two) = (target(store.clone()), target(store.clone()));
    let (first, second) = tokio::join!(one.fire(firings(200, 1)), two.fire(firings(200, 1)));
    assert_eq!((first, second), (vec![Fired::Done; 200], vec![Fired::Done; 200]));
    assert_eq!(take_all(&*store).await.len(), 200);
}

/// After that, a shard that did not answer is asked again.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_lost_answer_and_a_store_that_is_away_cost_no_attempt_and_make_no_second_job() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let faulty = Faulty::new(&store);
    faulty.is_away.store(true, SeqCst);
    faulty.loses.store(true, SeqCst);
    let target = target(faulty.clone());
    let is_away = |fates: Vec<Fired>| fates.iter().all(|fate| matches!(fate, Fired::Away(_)));
    assert!(is_away(target.fire(firings(9, 1)).await));
    assert_eq!(take_all(&*store).await, [], "it was away");
    faulty.is_away.store(false, SeqCst);
    tokio::time::advance(ASKED_AGAIN_AFTER).await;
    assert!(is_away(target.fire(firings(9, 1)).await), "it has stored them, and said nothing");
    faulty.loses.store(false, SeqCst);
    tokio::time::advance(ASKED_AGAIN_AFTER).await;
    assert_eq!(target.fire(firings(9, 1)).await, vec![Fired::Done; 9]);
    assert_eq!(take_all(&*store).await.len(), 9);
}

/// Each sub-batch waited for its slowest call, so that one shard that was away slowed down the timers of all.
#[tokio::test(start_paused = true)]
async fn a_shard_that_is_away_is_asked_once_a_second_and_holds_up_no_other_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let faulty = Faulty::new(&store);
    let target = Arc::new(target(faulty.clone()));
    let away = Shard(1);
    *faulty.away.lock() = Some(away);
    let fire = async |attempt| {
        let fates = target.fire(firings(90, attempt)).await;
        let done = fates.iter().filter(|fate| **fate == Fired::Done).count();
        let away = fates.iter().filter(|fate| matches!(fate, Fired::Away(_))).count();
        assert!(done > 0 && done + away == 90, "{fates:?}");
        (away, faulty.asked.swap(0, SeqCst))
    };
    let (lost, asked) = fire(1).await;
    assert!(lost > 0);
    assert_eq!(asked, 1);
    assert_eq!(fire(2).await, (lost, 0), "it is not asked so soon again");
    tokio::time::advance(ASKED_AGAIN_AFTER).await;
    // While one call waits for it, others do not.
    faulty.hangs.store(true, SeqCst);
    let waiting = tokio::spawn({
        let target = Arc::clone(&target);
        async move { target.fire(firings(90, 3)).await }
    });
    while faulty.asked.load(SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(fire(3).await, (lost, 1), "the one that waits");
    assert!(!waiting.is_finished());
    faulty.hangs.store(false, SeqCst);
    faulty.goes_on.notify_one();
    waiting.await.unwrap();
    // When it is back, it is asked as always.
    *faulty.away.lock() = None;
    tokio::time::advance(ASKED_AGAIN_AFTER).await;
    assert_eq!(fire(4).await, (0, 0));
    assert_eq!(fire(5).await, (0, 0));
    assert_eq!(take_all(&*store).await.len(), 90);
}

/// A store that is away, or loses its answers.
struct Faulty {
    inner: Arc<EmbeddedJobs>,
    is_away: AtomicBool,
    loses: AtomicBool,
    /// A shard that does not answer; how often it was asked; whether such a call waits until it goes on.
    away: Mutex<Option<Shard>>,
    asked: AtomicU32,
    hangs: AtomicBool,
    goes_on: Notify,
}

impl Faulty {
    fn new(inner: &Arc<EmbeddedJobs>) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::clone(inner),
            is_away: AtomicBool::new(false),
            loses: AtomicBool::new(false),
            away: Mutex::default(),
            asked: AtomicU32::new(0),
            hangs: AtomicBool::new(false),
            goes_on: Notify::new(),
        })
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
        self.inner.publish(shard, batch).await
    }

    async fn publish_once(
        &self,
        shard: Shard,
        batch: &[OnceJob],
    ) -> Result<Vec<Option<JobId>>, JobStoreError> {
        let error = |what: &str| Err(JobStoreError::Unavailable(what.into()));
        if self.is_away.load(SeqCst) {
            return error("it is away");
        }
        let is_away = *self.away.lock() == Some(shard);
        if is_away {
            self.asked.fetch_add(1, SeqCst);
            if self.hangs.load(SeqCst) {
                self.goes_on.notified().await;
            }
            return error("its shard is away");
        }
        let ids = self.inner.publish_once(shard, batch).await?;
        if self.loses.load(SeqCst) { error("its answer is lost") } else { Ok(ids) }
    }

    async fn take(&self, shard: Shard, batch: &[Take]) -> Result<(u64, Vec<TakenJobs>), JobStoreError> {
        self.inner.take(shard, batch).await
    }

    async fn remove(&self, shard: Shard, jobs: &[(QueueName, JobId)]) -> Result<Vec<bool>, JobStoreError> {
        self.inner.remove(shard, jobs).await
    }

    async fn give_back(&self, shard: Shard, leases: &[Lease]) -> Result<(), JobStoreError> {
        self.inner.give_back(shard, leases).await
    }

    async fn look(&self, shard: Shard, queues: &[QueueName]) -> Result<Vec<QueueCounts>, JobStoreError> {
        self.inner.look(shard, queues).await
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

    async fn queues(&self, shard: Shard) -> Result<Vec<QueueName>, JobStoreError> {
        self.inner.queues(shard).await
    }
}
