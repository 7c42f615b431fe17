//! What if the store's answer is lost, and what if it never did what it was asked? A consumer, a publisher and an
//! acknowledgement meet both.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod api;

use api::{Served, TOKEN, Wire, serve};
use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use windfall_contract::Clock;
use windfall_contract::due::{Durability, Shard};
use windfall_contract::task_queue::{
    DoubtfulJobs, FarJob, FoundJob, JobId, JobStore, JobStoreError, Lease, NewJobs, OnceJob, PublishedFar,
    QueueCounts, QueueName, QueueTokens, RateLimit, Swept, Take, TakenJobs, Tended, TokenRecord,
};
use windfall_task_queue::ApiOptions;
use windfall_task_queue::embedded::{EmbeddedJobs, EmbeddedJobsOptions};

const REFUSE: u8 = 1;
const LOSE_ANSWER: u8 = 2;
/// How long a test waits for what a machine that stalls does late.
const PATIENCE: Duration = Duration::from_secs(90);

/// A store whose next call goes wrong.
struct Faulty {
    inner: Arc<EmbeddedJobs>,
    next: AtomicU8,
    /// Whether the last shard does not answer.
    is_half_away: AtomicBool,
    /// It lets no job go, and says how many there are.
    keeps_jobs: AtomicBool,
    /// It comes upon nothing but jobs that are over, and never reaches their end.
    finds_none: AtomicBool,
    /// Nothing is swept away.
    is_unswept: AtomicBool,
    /// Whether publishing waits.
    hangs: AtomicBool,
    /// How often it was asked to publish.
    publishes: AtomicU64,
    /// How often the first shard was asked for the age of its jobs, as the metrics do.
    looks: AtomicU64,
}

impl Faulty {
    fn new(inner: Arc<EmbeddedJobs>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            next: AtomicU8::new(0),
            is_half_away: AtomicBool::new(false),
            keeps_jobs: AtomicBool::new(false),
            finds_none: AtomicBool::new(false),
            is_unswept: AtomicBool::new(false),
            hangs: AtomicBool::new(false),
            publishes: AtomicU64::new(0),
            looks: AtomicU64::new(0),
        })
    }

    fn reaches(&self, shard: Shard) -> Result<(), JobStoreError> {
        match self.is_half_away.load(SeqCst) && shard.0 + 1 == self.inner.shards() {
            true => Err(JobStoreError::Unavailable("its server is away".into())),
            false => Ok(()),
        }
    }

    fn refuses(&self) -> Result<(), JobStoreError> {
        match self.next.compare_exchange(REFUSE, 0, SeqCst, SeqCst) {
            Ok(_) => Err(JobStoreError::Unavailable("it is away".into())),
            Err(_) => Ok(()),
        }
    }

    fn loses(&self) -> Result<(), JobStoreError> {
        match self.next.compare_exchange(LOSE_ANSWER, 0, SeqCst, SeqCst) {
            Ok(_) => Err(JobStoreError::Unavailable("its answer is lost".into())),
            Err(_) => Ok(()),
        }
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
        self.publishes.fetch_add(1, SeqCst);
        self.refuses()?;
        self.reaches(shard)?;
        while self.hangs.load(SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let ids = self.inner.publish(shard, batch).await?;
        self.loses().map(|()| ids)
    }

    async fn publish_once(
        &self,
        shard: Shard,
        batch: &[OnceJob],
    ) -> Result<Vec<Option<JobId>>, JobStoreError> {
        self.refuses()?;
        self.reaches(shard)?;
        let ids = self.inner.publish_once(shard, batch).await?;
        self.loses().map(|()| ids)
    }

    async fn publish_far(
        &self,
        shard: Shard,
        batch: &[FarJob],
        doubtful: DoubtfulJobs,
    ) -> Result<Vec<PublishedFar>, JobStoreError> {
        self.inner.publish_far(shard, batch, doubtful).await
    }

    async fn remove_far(
        &self,
        shard: Shard,
        jobs: &[(QueueName, JobId)],
    ) -> Result<Vec<bool>, JobStoreError> {
        self.inner.remove_far(shard, jobs).await
    }

    async fn take(&self, shard: Shard, batch: &[Take]) -> Result<(u64, Vec<TakenJobs>), JobStoreError> {
        self.refuses()?;
        self.reaches(shard)?;
        if self.keeps_jobs.load(SeqCst) {
            return Err(JobStoreError::Unavailable("it lets no job go".into()));
        }
        if self.finds_none.load(SeqCst) {
            let cut = TakenJobs { is_cut: true, ..TakenJobs::default() };
            return Ok((0, vec![cut; batch.len()]));
        }
        let taken = self.inner.take(shard, batch).await?;
        self.loses().map(|()| taken)
    }

    async fn remove(&self, shard: Shard, jobs: &[(QueueName, JobId)]) -> Result<Vec<bool>, JobStoreError> {
        self.refuses()?;
        let removed = self.inner.remove(shard, jobs).await?;
        self.loses().map(|()| removed)
    }

    async fn give_back(&self, shard: Shard, leases: &[Lease]) -> Result<(), JobStoreError> {
        self.inner.give_back(shard, leases).await
    }

    async fn look(&self, shard: Shard, queues: &[QueueName]) -> Result<Vec<QueueCounts>, JobStoreError> {
        self.reaches(shard)?;
        self.inner.look(shard, queues).await
    }

    async fn ready_for_ms(
        &self,
        shard: Shard,
        queues: &[QueueName],
    ) -> Result<Vec<Option<u64>>, JobStoreError> {
        self.reaches(shard)?;
        self.looks.fetch_add(u64::from(shard.0 == 0), SeqCst);
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
        self.reaches(shard)?;
        self.inner.tend(shard).await
    }

    async fn sweep(&self, shard: Shard, cursor: u64) -> Result<Swept, JobStoreError> {
        if self.is_unswept.load(SeqCst) {
            return Ok(Swept::default());
        }
        self.inner.sweep(shard, cursor).await
    }

    async fn queues(&self, shard: Shard, cursor: u64) -> Result<(u64, Vec<QueueName>), JobStoreError> {
        self.inner.queues(shard, cursor).await
    }
}

#[async_trait]
impl QueueTokens for Faulty {
    async fn token(&self, namespace: &str, digest: &str) -> Result<Option<TokenRecord>, JobStoreError> {
        self.inner.token(namespace, digest).await
    }

    async fn tokens(&self) -> Result<Vec<TokenRecord>, JobStoreError> {
        self.inner.tokens().await
    }

    async fn add_token(&self, record: &TokenRecord, digest: &str) -> Result<bool, JobStoreError> {
        self.inner.add_token(record, digest).await
    }

    async fn remove_token(&self, namespace: &str, digest: &str) -> Result<(), JobStoreError> {
        self.inner.remove_token(namespace, digest).await
    }

    async fn limit_token(
        &self,
        namespace: &str,
        digest: &str,
        limit: Option<RateLimit>,
    ) -> Result<bool, JobStoreError> {
        self.inner.limit_token(namespace, digest, limit).await
    }

    async fn count_call(&self, name: &str, interval_s: u32) -> Result<u64, JobStoreError> {
        self.inner.count_call(name, interval_s).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_come_while_the_store_is_busy_are_few_calls_of_the_store() {
    const CALLS: usize = 64;
    let dir = tempfile::tempdir().unwrap();
    let inner = EmbeddedJobs::open(dir.path(), &EmbeddedJobsOptions::default(), Clock::system()).unwrap();
    let store = Faulty::new(inner);
    let Served { wire, queues: _queues, .. } =
        serve(&[("default", Arc::clone(&store))], ApiOptions::default()).await;
    // What is written need not be read yet on a machine that stalls, so one round proves nothing against it.
    let (began, mut rounds) = (Instant::now(), 0);
    loop {
        let before = store.publishes.load(SeqCst);
        store.hangs.store(true, SeqCst);
        let mut calls = Vec::new();
        for _ in 0..CALLS {
            calls.push(wire.begin("PUT", "/api/n/q", &[("x-token", TOKEN)], "body").await);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        store.hangs.store(false, SeqCst);
        for call in calls {
            assert_eq!(Wire::end(call).await.status, 201);
        }
        rounds += 1;
        assert_eq!(wire.get("/api/n/q/size").await.json()["size"], CALLS * rounds);
        let publishes = store.publishes.load(SeqCst) - before;
        if publishes <= 16 {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{publishes} calls of the store for {CALLS} callers");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_loses_no_job_and_a_repeated_call_is_what_it_should_be() {
    let dir = tempfile::tempdir().unwrap();
    let inner = EmbeddedJobs::open(dir.path(), &EmbeddedJobsOptions::default(), Clock::system()).unwrap();
    let store = Faulty::new(inner);
    let Served { wire, queues: _queues, .. } =
        serve(&[("default", Arc::clone(&store))], ApiOptions::default()).await;
    let next = |fault| store.next.store(fault, SeqCst);
    let size = async || wire.get("/api/n/q/size").await.json()["size"].as_u64().unwrap();

    // A publisher that repeats what was not answered has one job, or two where only the answer was lost.
    for (fault, jobs) in [(REFUSE, 1), (LOSE_ANSWER, 3)] {
        next(fault);
        assert_eq!(wire.put("/api/n/q?tries=3", "body").await.status, 500);
        assert_eq!(wire.put("/api/n/q?tries=3", "body").await.status, 201);
        assert_eq!(size().await, jobs);
    }
    // A replacement whose publishing was not answered leaves the old one.
    let old = wire.put("/api/n/other", "old").await.text("job_id");
    next(REFUSE);
    let path = format!("/api/n/other/job/{old}");
    assert_eq!((wire.put(&path, "new").await.status, wire.get(&path).await.status), (500, 200));

    // A consumer that gets no answer has cost the job a try at most, and no job is gone.
    next(REFUSE);
    assert_eq!(wire.get("/api/n/q?ttr=1").await.status, 500);
    assert_eq!(size().await, 3);
    next(LOSE_ANSWER);
    assert_eq!(wire.get("/api/n/q?ttr=1&count=3").await.status, 500);
    let (mut tries, mut ids) = (Vec::new(), Vec::new());
    while ids.len() < 3 {
        let job = wire.get("/api/n/q?ttr=600&timeout=20").await.json();
        tries.push(job["remain_tries"].as_u64().unwrap());
        ids.push(job["job_id"].as_str().unwrap().to_owned());
    }
    assert_eq!(tries, [1, 1, 1], "each was taken once for the lost answer, and once for this one");

    // An acknowledgement may be repeated.
    for (fault, id) in [(REFUSE, &ids[0]), (LOSE_ANSWER, &ids[1])] {
        let path = format!("/api/n/q/job/{id}");
        next(fault);
        assert_eq!(wire.delete(&path).await.status, 500);
        assert_eq!((wire.delete(&path).await.status, wire.get(&path).await.status), (204, 404));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_away_holds_up_no_other_one() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedJobsOptions { shards: 3, ..EmbeddedJobsOptions::default() };
    let store = Faulty::new(EmbeddedJobs::open(dir.path(), &options, Clock::system()).unwrap());
    let Served { wire, queues: _queues, .. } =
        serve(&[("default", Arc::clone(&store))], ApiOptions::default()).await;
    store.is_half_away.store(true, SeqCst);
    // Whoever tends to leases finds out.
    tokio::time::sleep(Duration::from_millis(500)).await;
    for _ in 0..12 {
        assert_eq!(wire.put("/api/n/q?tries=3", "body").await.status, 201);
    }
    assert_eq!(wire.get("/api/n/q?ttr=1").await.status, 200);
    let mut taken = 0;
    while taken < 12 {
        // The first one is back when its ttr has ended.
        let job = wire.get("/api/n/q,other?ttr=600&timeout=10").await;
        assert_eq!(job.status, 200, "{taken}: {job:?}");
        taken += 1;
    }
    assert_eq!(wire.get("/api/n/q").await.status, 404);
    assert_eq!(wire.get("/api/n/q/size").await.status, 500, "a size that leaves out a part would be a lie");
    store.is_half_away.store(false, SeqCst);
    assert_eq!(wire.get("/api/n/q/size").await.status, 200);
}

/// With several shards, a consumer was told that there is no job where the store had not let any go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_hears_that_no_job_could_be_taken_and_not_that_there_is_none() {
    for shards in [1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let options = EmbeddedJobsOptions { shards, ..EmbeddedJobsOptions::default() };
        let store = Faulty::new(EmbeddedJobs::open(dir.path(), &options, Clock::system()).unwrap());
        let Served { wire, queues: _queues, .. } =
            serve(&[("default", Arc::clone(&store))], ApiOptions::default()).await;
        assert_eq!(wire.put("/api/n/q", "body").await.status, 201);
        store.keeps_jobs.store(true, SeqCst);
        for path in ["/api/n/q", "/api/n/other,q", "/api/n/q?count=9&timeout=30"] {
            let refused = wire.get(path).await;
            assert_eq!(
                (refused.status, refused.json()),
                (500, serde_json::json!({ "error": "internal error" })),
                "{path} of {shards} shards"
            );
        }
        // Where shards are looked at, it is known of an empty queue that nothing was kept back.
        let empty = if shards > 1 { 404 } else { 500 };
        assert_eq!(wire.get("/api/n/empty").await.status, empty, "{shards} shards");
        store.keeps_jobs.store(false, SeqCst);
        assert_eq!(wire.get("/api/n/other,q").await.status, 200);
        assert_eq!(wire.get("/api/n/other,q").await.status, 404);
    }
}

/// Jobs that a consumer found over were not counted, and those that nobody asked for alone were.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_a_consumer_finds_over_are_counted_as_expired() {
    let dir = tempfile::tempdir().unwrap();
    let inner = EmbeddedJobs::open(dir.path(), &EmbeddedJobsOptions::default(), Clock::system()).unwrap();
    let store = Faulty::new(inner);
    store.is_unswept.store(true, SeqCst);
    let Served { wire, queues, .. } = serve(&[("default", Arc::clone(&store))], ApiOptions::default()).await;
    let counters = Arc::clone(&queues.counters()[0].1);
    assert_eq!(wire.put("/api/n/q/bulk?ttl=1", "[1, 2, 3]").await.status, 201);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(counters.pool().expired_waiting, 0);
    assert_eq!(wire.get("/api/n/q").await.status, 404);
    assert_eq!(counters.pool().expired_waiting, 3);
}

/// It was shown with a second that was left, and with its tries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_head_is_shown_without_data_ttl_and_tries() {
    let dir = tempfile::tempdir().unwrap();
    let inner = EmbeddedJobs::open(dir.path(), &EmbeddedJobsOptions::default(), Clock::system()).unwrap();
    let store = Faulty::new(inner);
    store.is_unswept.store(true, SeqCst);
    let Served { wire, queues: _queues, .. } =
        serve(&[("default", Arc::clone(&store))], ApiOptions::default()).await;
    let id = wire.put("/api/n/q?ttl=1&tries=3", "body").await.text("job_id");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let head = wire.get("/api/n/q/peek").await;
    let mut shown = head.json();
    assert!(shown["elapsed_ms"].take().as_u64().is_some_and(|ms| ms >= 1_000), "{head:?}");
    let expected = serde_json::json!({
        "namespace": "n", "queue": "q", "job_id": id, "data": null, "ttl": 0, "elapsed_ms": null,
        "remain_tries": 0, "attributes": null,
    });
    assert_eq!((head.status, shown), (200, expected));
}

/// Behind two million jobs that were over, a consumer was told that there is none, though one was ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_reaches_no_end_of_jobs_that_are_over_is_told_to_come_again() {
    for shards in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let options = EmbeddedJobsOptions { shards, ..EmbeddedJobsOptions::default() };
        let store = Faulty::new(EmbeddedJobs::open(dir.path(), &options, Clock::system()).unwrap());
        let Served { wire, queues: _queues, .. } =
            serve(&[("default", Arc::clone(&store))], ApiOptions::default()).await;
        assert_eq!(wire.put("/api/n/q", "behind them").await.status, 201);
        store.finds_none.store(true, SeqCst);
        assert_eq!(wire.get("/api/n/q").await.status, 503);
        store.finds_none.store(false, SeqCst);
        assert_eq!(wire.get("/api/n/q").await.data(), b"behind them");
    }
}

/// The gauges left out what a shard held that was away, so that alerts ended and workers went while its jobs waited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gauges_go_up_and_not_down_while_a_shard_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedJobsOptions { shards: 2, ..EmbeddedJobsOptions::default() };
    let store = Faulty::new(EmbeddedJobs::open(dir.path(), &options, Clock::system()).unwrap());
    let publish = async |shard| {
        let jobs = NewJobs {
            queue: QueueName::new("n", "q").unwrap(),
            delay_s: 0,
            ttl_s: 0,
            tries: 1,
            is_versioned: false,
            attributes: Vec::new(),
            bodies: vec!["x".into(); 3],
        };
        store.inner.publish(Shard(shard), &[jobs]).await.unwrap();
    };
    publish(0).await;
    publish(1).await;
    store.is_half_away.store(true, SeqCst);
    let Served { wire, queues, .. } = serve(&[("default", Arc::clone(&store))], ApiOptions::default()).await;
    let counters = Arc::clone(&queues.counters()[0].1);
    let ready = || {
        let mut ready = None;
        counters.each_waiting(|_, queue, gauges| {
            if queue == "q" {
                ready = Some(gauges.ready);
            }
        });
        ready
    };
    let becomes = async |expected: u64| {
        let began = Instant::now();
        while ready() != Some(expected) {
            assert!(began.elapsed() < PATIENCE, "{:?} in place of {expected}", ready());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    becomes(3).await;
    assert_eq!(wire.get("/api/n/q?count=2").await.status, 200);
    let looks = store.looks.load(SeqCst);
    while store.looks.load(SeqCst) < looks + 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(ready(), Some(3), "nobody knows how many there are");
    store.is_half_away.store(false, SeqCst);
    becomes(4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_hang_up_free_no_memory_that_the_store_waits_for() {
    let dir = tempfile::tempdir().unwrap();
    let inner = EmbeddedJobs::open(dir.path(), &EmbeddedJobsOptions::default(), Clock::system()).unwrap();
    let store = Faulty::new(inner);
    let options = ApiOptions { bodies_bytes_max: 16 << 20, ..ApiOptions::default() };
    let Served { wire, queues: _queues, .. } = serve(&[("default", Arc::clone(&store))], options).await;
    store.hangs.store(true, SeqCst);
    let body = "x".repeat(1 << 20);
    for _ in 0..16 {
        let gone = wire.begin("PUT", "/api/n/q", &[("x-token", TOKEN)], &body).await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        drop(gone);
    }
    assert_eq!(wire.put("/api/n/q", &body).await.status, 503);
    store.hangs.store(false, SeqCst);
    let mut status = 503;
    for _ in 0..200 {
        status = wire.put("/api/n/q", &body).await.status;
        if status == 201 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(status, 201, "there is room again when the store has answered");
}
