//! Timers that become jobs of a task queue, also where answers are lost, the store is away, and two fire one timer at once.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::Notify;
use windfall_contract::Clock;
use windfall_contract::due::{
    Changed, Durability, FAR_INDEX, Fired, Firing, Shard, SlotMinute, SlotStore, Target, TaskId, Waiting,
};
use windfall_contract::task_queue::{
    DoubtfulJobs, FAR_REMOVAL_KEPT_MS, FarJob, FarTimers, FoundJob, JobId, JobStore, JobStoreError, Lease,
    NewJobs, ONCE_KEPT_MS, OnceJob, PublishedFar, QueueCounts, QueueName, Swept, Take, TakenJob, TakenJobs,
    Tended, ready_ms,
};
use windfall_scheduler::{DispatchOptions, Dispatcher, Tenants, Timers, TimersOptions};
use windfall_scheduler_service::{FAR_JOBS_TENANT, FarJobTarget, FarJobTimers, JobTarget, JobTargetOptions};
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};
use windfall_task_queue::embedded::{EmbeddedJobs, EmbeddedJobsOptions};

const SHARDS: u16 = 3;

fn queue() -> QueueName {
    QueueName::new("calls", "ring").unwrap()
}

fn open(dir: &tempfile::TempDir) -> Arc<EmbeddedJobs> {
    open_with(dir, Clock::system())
}

fn open_with(dir: &tempfile::TempDir, clock: Clock) -> Arc<EmbeddedJobs> {
    let options = EmbeddedJobsOptions { shards: SHARDS, ..EmbeddedJobsOptions::default() };
    EmbeddedJobs::open(dir.path(), &options, clock).unwrap()
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

const DELAY_S: u32 = 3_600;
const PUBLISHED_MS: u64 = 1_800_000_000_000;

fn far_jobs(bodies: usize) -> NewJobs {
    NewJobs {
        queue: queue(),
        delay_s: DELAY_S,
        ttl_s: 0,
        tries: 3,
        is_versioned: false,
        attributes: Vec::new(),
        bodies: (0..bodies).map(|nth| Bytes::from(format!("job {nth}"))).collect(),
    }
}

/// The timers of far jobs, and their ids.
fn far_firings(count: usize) -> (Vec<Firing>, Vec<JobId>) {
    let due_ms = ready_ms(PUBLISHED_MS, DELAY_S);
    let firing = |(index, payload): (u32, Bytes)| {
        let id = TaskId { shard: Shard(7), slot: SlotMinute::of(due_ms), index: FAR_INDEX | index };
        Firing { id, tenant: FAR_JOBS_TENANT.into(), key: None, due_ms, attempt: 1, payload }
    };
    let firings: Vec<_> = (0..).zip(FarJob::payloads(&far_jobs(count), PUBLISHED_MS)).map(firing).collect();
    let id = |firing: &Firing| FarJob::of_timer(&firing.payload, firing.id, SHARDS).unwrap().record.id;
    let ids = firings.iter().map(id).collect();
    (firings, ids)
}

#[tokio::test(start_paused = true)]
async fn a_far_job_that_is_fired_by_several_and_without_an_answer_is_one_job() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(&dir, Clock::from_unix_ms(|| ready_ms(PUBLISHED_MS, DELAY_S)));
    let (firings, ids) = far_firings(300);
    let faulty = Faulty::new(&store);
    faulty.is_away.store(true, SeqCst);
    faulty.loses.store(true, SeqCst);
    let target = FarJobTarget::new(faulty.clone(), DoubtfulJobs::Refuse);
    let is_away = |fates: Vec<Fired>| fates.iter().all(|fate| matches!(fate, Fired::Away(_)));
    assert!(is_away(target.fire(firings.clone()).await));
    faulty.is_away.store(false, SeqCst);
    tokio::time::advance(ASKED_AGAIN_AFTER).await;
    assert!(is_away(target.fire(firings.clone()).await), "it has stored them, and said nothing");
    faulty.loses.store(false, SeqCst);
    tokio::time::advance(ASKED_AGAIN_AFTER).await;
    let other = FarJobTarget::new(store.clone(), DoubtfulJobs::Refuse);
    let (first, second) = tokio::join!(target.fire(firings.clone()), other.fire(firings.clone()));
    assert_eq!((first, second), (vec![Fired::Done; 300], vec![Fired::Done; 300]));
    let taken: BTreeSet<JobId> = take_all(&*store).await.iter().map(|job| job.id).collect();
    assert_eq!(taken, ids.into_iter().collect());
    // What no far job is, is given up, and holds up no other.
    let wrong = Firing { payload: "x".into(), ..firings[0].clone() };
    let fates = target.fire(vec![wrong, firings[1].clone()]).await;
    assert!(matches!(&fates[..], [Fired::Refused(_), Fired::Done]), "{fates:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_far_job_waits_for_the_clock_of_its_store() {
    let dir = tempfile::tempdir().unwrap();
    let now_ms = Arc::new(AtomicU64::new(PUBLISHED_MS));
    let own = Arc::clone(&now_ms);
    // It goes on with each look at it.
    let clock = Clock::from_unix_ms(move || own.fetch_add(20, SeqCst));
    let store = open_with(&dir, clock);
    let target = FarJobTarget::new(store.clone(), DoubtfulJobs::Refuse);
    let (firings, _) = far_firings(5);
    let fates = target.fire(firings.clone()).await;
    assert!(fates.iter().all(|fate| matches!(fate, Fired::Busy(why) if why.contains("behind"))), "{fates:?}");
    assert_eq!(take_all(&*store).await, []);
    now_ms.store(ready_ms(PUBLISHED_MS, DELAY_S) - 100, SeqCst);
    assert_eq!(target.fire(firings).await, vec![Fired::Done; 5]);
    assert_eq!(take_all(&*store).await.len(), 5);
}

/// The scheduler was away for more than a week, and the store has forgotten what was deleted meanwhile.
#[tokio::test(start_paused = true)]
async fn a_far_job_that_may_have_been_deleted_is_given_up_unless_an_operator_has_decided() {
    let dir = tempfile::tempdir().unwrap();
    let now_ms = Arc::new(AtomicU64::new(ready_ms(PUBLISHED_MS, DELAY_S)));
    let own = Arc::clone(&now_ms);
    let store = open_with(&dir, Clock::from_unix_ms(move || own.load(SeqCst)));
    let (firings, ids) = far_firings(usize::from(SHARDS) + 1);
    // The last one lies in the shard of the first one.
    assert_eq!(ids[0].shard(), ids[usize::from(SHARDS)].shard());
    assert_eq!(store.remove_far(ids[0].shard(), &[(queue(), ids[0])]).await, Ok(vec![false]));
    now_ms.fetch_add(FAR_REMOVAL_KEPT_MS + 3 * ONCE_KEPT_MS, SeqCst);
    assert_eq!(store.sweep(ids[0].shard(), 0).await.unwrap().forgotten, 1);
    let target = FarJobTarget::new(store.clone(), DoubtfulJobs::Refuse);
    let fates = target.fire(firings.clone()).await;
    for (at, fate) in fates.iter().enumerate() {
        let is_doubtful = ids[at].shard() == ids[0].shard();
        match fate {
            Fired::Refused(why) => assert!(is_doubtful && why.contains("publish_doubtful_jobs"), "{why}"),
            fate => assert!(!is_doubtful && *fate == Fired::Done, "{fate:?}"),
        }
    }
    assert_eq!(take_all(&*store).await.len(), usize::from(SHARDS) - 1);
    // Sent again.
    let target = FarJobTarget::new(store.clone(), DoubtfulJobs::Publish);
    assert_eq!(target.fire(vec![firings[usize::from(SHARDS)].clone()]).await, [Fired::Done]);
    assert_eq!(take_all(&*store).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scheduler_keeps_finds_cancels_and_fires_far_jobs() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::system();
    let slots: Arc<dyn SlotStore> =
        EmbeddedSlots::open(&dir.path().join("slots"), &EmbeddedSlotsOptions::default(), clock.clone())
            .unwrap();
    let store: Arc<dyn JobStore> = open(&dir);
    let rules = FarJobTimers::tenant_rules(std::iter::once("default"));
    let tenants = Arc::new(Tenants(BTreeMap::from([(FAR_JOBS_TENANT.to_owned(), rules)])));
    tenants.check().unwrap();
    let timers =
        Timers::start(TimersOptions::default(), Arc::clone(&tenants), Arc::clone(&slots), clock.clone());
    let far = FarJobTimers::new(timers.clone(), "default");

    // Long before: found with what it is, and cancelled for good.
    let published_ms = clock.unix_ms();
    let jobs = far_jobs(2);
    let payloads = FarJob::payloads(&jobs, published_ms);
    let later = far.add(ready_ms(published_ms, DELAY_S), payloads.clone()).await.unwrap();
    let (state, payload) = far.get(later[0]).await.unwrap().unwrap();
    assert_eq!((state, &payload), (Waiting::Waiting, &payloads[0]));
    assert_eq!(FarJobTimers::new(timers.clone(), "other").get(later[0]).await.unwrap(), None);
    assert!(matches!(far.cancel(later[0]).await.unwrap(), Changed::Done(_)));
    assert_eq!(far.cancel(later[0]).await.unwrap(), Changed::Cancelled);
    let unknown = FarJobTimers::new(timers.clone(), "unknown").add(published_ms, payloads).await;
    assert!(unknown.is_err(), "a pool that the scheduler does not know");

    // Published an hour ago, and due about now.
    let published_ms = clock.unix_ms() - u64::from(DELAY_S) * 1_000 + 200;
    let due_ms = ready_ms(published_ms, DELAY_S);
    let due = far.add(due_ms, FarJob::payloads(&jobs, published_ms)).await.unwrap();
    let seed = JobId::new(published_ms, Shard(0), 0, DELAY_S, false);
    let ids: Vec<_> = due.iter().map(|timer| JobId::of_timer(*timer, seed, SHARDS).unwrap()).collect();
    let target: Arc<dyn Target> = Arc::new(FarJobTarget::new(Arc::clone(&store), DoubtfulJobs::Refuse));
    let targets = BTreeMap::from([((FAR_JOBS_TENANT.to_owned(), "default".to_owned()), target)]);
    let options = DispatchOptions::default();
    let dispatcher = Dispatcher::start(options, tenants, slots, targets, "one".into(), clock);
    for id in ids {
        let found = loop {
            match store.get(&queue(), id).await.unwrap() {
                Some(found) => break found,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        assert!(found.now_ms >= due_ms && found.job.tries_left == 3, "{found:?}");
    }
    timers.close().await;
    dispatcher.drain(Duration::from_secs(5)).await;
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

    async fn publish_far(
        &self,
        shard: Shard,
        batch: &[FarJob],
        doubtful: DoubtfulJobs,
    ) -> Result<Vec<PublishedFar>, JobStoreError> {
        if self.is_away.load(SeqCst) {
            return Err(JobStoreError::Unavailable("it is away".into()));
        }
        let published = self.inner.publish_far(shard, batch, doubtful).await?;
        match self.loses.load(SeqCst) {
            true => Err(JobStoreError::Unavailable("its answer is lost".into())),
            false => Ok(published),
        }
    }

    async fn remove_far(
        &self,
        shard: Shard,
        jobs: &[(QueueName, JobId)],
    ) -> Result<Vec<bool>, JobStoreError> {
        self.inner.remove_far(shard, jobs).await
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

    async fn queues(&self, shard: Shard, cursor: u64) -> Result<(u64, Vec<QueueName>), JobStoreError> {
        self.inner.queues(shard, cursor).await
    }
}
