//! Jobs for later, which wait as timers: what publishers, consumers and cancels see of them, also where the scheduler is away,
//! its answer is lost, and a timer fires while its job is deleted.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod api;

use api::{Served, TOKEN, serve, serve_with};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use windfall_contract::Clock;
use windfall_contract::due::{Changed, FAR_INDEX, Shard, SlotMinute, TaskId, Waiting};
use windfall_contract::task_queue::{
    DoubtfulJobs, FAR_REMOVAL_KEPT_MS, FarJob, FarTimers, FarTimersError, JobId, JobStore, JobStoreError,
    NewJobs, ONCE_KEPT_MS, PublishedFar, QueueName, ready_ms,
};
use windfall_task_queue::embedded::{EmbeddedJobs, EmbeddedJobsOptions};
use windfall_task_queue::{ApiOptions, FarJobs};

const START_MS: u64 = 1_800_000_000_000;
const SHARDS: u16 = 3;
const HORIZON_S: u32 = 60;

/// What the next calls meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Fault {
    #[default]
    None,
    /// They are told to come again.
    Busy,
    /// They do nothing, and say so to nobody.
    Away,
    /// They do it, and say so to nobody.
    LosesAnswers,
    /// The timer's time comes between a look at it and its cancel.
    FiresBeforeCancel,
    /// They find a timer that is on its way to another tier, and cannot cancel it there.
    CannotCancel,
    /// The hour has more timers than ids have room for.
    HourIsFull,
}

#[derive(Default)]
struct Timers {
    all: Mutex<BTreeMap<TaskId, (u64, Waiting, Bytes)>>,
    fault: Mutex<Fault>,
    /// They answer no add for as long.
    hang: AtomicBool,
    /// The adds that have come.
    adds: AtomicU64,
}

impl Timers {
    fn before(&self) -> Result<(), FarTimersError> {
        match *self.fault.lock() {
            Fault::Busy => Err(FarTimersError::Busy("injected".into())),
            Fault::Away => Err(FarTimersError::Unavailable("injected".into())),
            Fault::None
            | Fault::LosesAnswers
            | Fault::FiresBeforeCancel
            | Fault::CannotCancel
            | Fault::HourIsFull => Ok(()),
        }
    }

    fn after<T>(&self, answer: T) -> Result<T, FarTimersError> {
        match *self.fault.lock() {
            Fault::LosesAnswers => Err(FarTimersError::Unavailable("injected".into())),
            _ => Ok(answer),
        }
    }

    fn states(&self) -> Vec<Waiting> {
        self.all.lock().values().map(|(_, state, _)| *state).collect()
    }

    /// Their time has come: the jobs that a scheduler hands over now.
    fn fire(&self) -> Vec<FarJob> {
        let mut all = self.all.lock();
        let waiting = all.iter_mut().filter(|(_, (_, state, _))| *state != Waiting::Cancelled);
        let fired = waiting.map(|(id, (_, state, payload))| {
            *state = Waiting::Firing;
            FarJob::of_timer(payload, *id, SHARDS).unwrap()
        });
        fired.collect()
    }
}

#[async_trait]
impl FarTimers for Timers {
    async fn add(&self, due_ms: u64, payloads: Vec<Bytes>) -> Result<Vec<TaskId>, FarTimersError> {
        self.adds.fetch_add(1, SeqCst);
        while self.hang.load(SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.before()?;
        let mut all = self.all.lock();
        let mut ids = Vec::new();
        for payload in payloads {
            let full = if *self.fault.lock() == Fault::HourIsFull { 1 << 28 } else { 0 };
            let index = FAR_INDEX | full | u32::try_from(all.len()).unwrap();
            let id = TaskId { shard: Shard(9), slot: SlotMinute::of(due_ms), index };
            all.insert(id, (due_ms, Waiting::Waiting, payload));
            ids.push(id);
        }
        drop(all);
        self.after(ids)
    }

    async fn get(&self, timer: TaskId) -> Result<Option<(Waiting, Bytes)>, FarTimersError> {
        self.before()?;
        Ok(self.all.lock().get(&timer).map(|(_, state, payload)| (*state, payload.clone())))
    }

    async fn cancel(&self, timer: TaskId) -> Result<Changed, FarTimersError> {
        self.before()?;
        if *self.fault.lock() == Fault::CannotCancel {
            return Err(FarTimersError::Unavailable("it is on its way".into()));
        }
        let changed = match self.all.lock().get_mut(&timer) {
            None => Changed::Unknown,
            Some((_, state, _)) if *self.fault.lock() == Fault::FiresBeforeCancel => {
                *state = Waiting::Firing;
                Changed::Firing
            }
            Some((_, state @ Waiting::Waiting, _)) => {
                *state = Waiting::Cancelled;
                Changed::Done(timer)
            }
            Some((_, Waiting::Cancelled, _)) => Changed::Cancelled,
            Some((_, Waiting::Firing, _)) => Changed::Firing,
        };
        self.after(changed)
    }
}

fn options() -> EmbeddedJobsOptions {
    EmbeddedJobsOptions { shards: SHARDS, ..EmbeddedJobsOptions::default() }
}

async fn hand_over(store: &EmbeddedJobs, jobs: &[FarJob], doubtful: DoubtfulJobs) -> Vec<PublishedFar> {
    let mut published = Vec::new();
    for job in jobs {
        let one = store.publish_far(job.record.id.shard(), std::slice::from_ref(job), doubtful).await;
        published.extend(one.unwrap());
    }
    published
}

async fn sweep(store: &EmbeddedJobs) -> u64 {
    let mut left = 0;
    for shard in (0..SHARDS).map(Shard) {
        left += loop {
            let swept = store.sweep(shard, 0).await.unwrap();
            if swept.forgotten == 0 {
                break swept.far_removals;
            }
        };
    }
    left
}

struct World {
    served: Served,
    store: Arc<EmbeddedJobs>,
    timers: Arc<Timers>,
    now_ms: Arc<AtomicU64>,
    _dir: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        Self::with(&options()).await
    }

    async fn with(options: &EmbeddedJobsOptions) -> Self {
        Self::with_api(options, ApiOptions::default()).await
    }

    async fn with_api(options: &EmbeddedJobsOptions, api: ApiOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let now_ms = Arc::new(AtomicU64::new(START_MS));
        let own = Arc::clone(&now_ms);
        let clock = Clock::from_unix_ms(move || own.load(SeqCst));
        let store = EmbeddedJobs::open(dir.path(), options, clock).unwrap();
        let timers = Arc::new(Timers::default());
        let far = FarJobs { timers: Arc::clone(&timers) as _, horizon_s: HORIZON_S };
        let served = serve_with(&[("default", Arc::clone(&store))], Some(far), api).await;
        Self { served, store, timers, now_ms, _dir: dir }
    }

    /// Publishes a job for later, and returns its id.
    async fn publish(&self, body: &str) -> String {
        let reply = self.served.wire.put("/api/n/q?delay=3600&ttl=7200&tries=3", body).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        reply.text("job_id")
    }

    /// As a scheduler's target does.
    async fn hand_over(&self, jobs: &[FarJob]) -> Vec<PublishedFar> {
        hand_over(&self.store, jobs, DoubtfulJobs::Refuse).await
    }

    /// What the shards' sweeps leave of deletions that are remembered.
    async fn sweep(&self) -> u64 {
        sweep(&self.store).await
    }

    async fn status(&self, method: &str, path: &str) -> u16 {
        self.served.wire.call(method, path, &[("x-token", TOKEN)], "").await.status
    }

    fn fault(&self, fault: Fault) {
        *self.timers.fault.lock() = fault;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_for_later_waits_as_a_timer_and_comes_under_its_id() {
    let world = World::new().await;
    let wire = &world.served.wire;
    let headers = [("x-token", TOKEN), ("enable-job-version", "YES"), ("job-attr-color", "red")];
    let reply = wire.call("PUT", "/api/n/q?delay=3600&ttl=7200&tries=3", &headers, "later").await;
    assert_eq!(reply.status, 201, "{reply:?}");
    let id = reply.text("job_id");
    let known: JobId = id.parse().unwrap();
    assert_eq!((known.delay_s(), known.published_ms(), known.is_versioned()), (3_600, START_MS, true));
    let due_ms = ready_ms(START_MS, 3_600);
    assert_eq!(world.timers.all.lock().get(&known.timer().unwrap()).unwrap().0, due_ms);
    let near = wire.put(&format!("/api/n/q?delay={HORIZON_S}"), "near").await.text("job_id");
    assert_eq!(near.parse::<JobId>().unwrap().timer(), None);

    world.now_ms.fetch_add(1_000_000, SeqCst);
    let path = format!("/api/n/q/job/{id}");
    let seen = wire.get(&path).await;
    let expected = json!({
        "namespace": "n", "queue": "q", "job_id": id, "data": "bGF0ZXI=", "ttl": 6_200,
        "elapsed_ms": 1_000_000, "remain_tries": 0, "attributes": { "color": "red" },
    });
    assert_eq!((seen.status, seen.json()), (200, expected));
    assert_eq!(wire.get(&format!("/api/n/other/job/{id}")).await.status, 404);
    // Dropping what is ready leaves alone what is not.
    assert_eq!(world.status("DELETE", "/api/n/q").await, 204);

    let early = world.hand_over(&world.timers.fire()).await;
    assert_eq!(early, [PublishedFar::Early(due_ms - START_MS - 1_000_000)]);
    world.now_ms.store(due_ms, SeqCst);
    let fired = world.timers.fire();
    assert_eq!(world.hand_over(&fired).await, [PublishedFar::Stored]);
    let job = wire.get("/api/n/q?ttr=60").await;
    assert_eq!(
        (job.text("job_id"), job.data(), job.json()["remain_tries"].as_u64()),
        (id, b"later".to_vec(), Some(2))
    );
    assert_eq!(job.json()["ttl"], 3_600, "it counts from when the job was published");
    // It fires again, before and after it is acknowledged.
    assert_eq!(world.hand_over(&fired).await, [PublishedFar::Over]);
    world.fault(Fault::Away);
    assert_eq!(world.status("DELETE", &path).await, 204, "an acknowledgement needs no scheduler");
    world.fault(Fault::None);
    assert_eq!(world.hand_over(&fired).await, [PublishedFar::Over]);
    assert_eq!(wire.get(&path).await.status, 404);
}

/// The memory of far jobs was given back when their publisher hung up, while the scheduler still had them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishers_of_far_jobs_that_hang_up_free_no_memory_and_their_jobs_come_all_the_same() {
    let api = ApiOptions { bodies_bytes_max: 16 << 20, ..ApiOptions::default() };
    let world = World::with_api(&options(), api).await;
    let wire = &world.served.wire;
    world.timers.hang.store(true, SeqCst);
    let jobs = json!(vec!["x".repeat(60_000); 64]).to_string();
    let path = "/api/n/q/bulk?delay=3600&ttl=0";
    for calls in 1..=4 {
        let gone = wire.begin("PUT", path, &[("x-token", TOKEN)], &jobs).await;
        let began = Instant::now();
        while world.timers.adds.load(SeqCst) < calls {
            assert!(began.elapsed() < Duration::from_secs(60), "the jobs do not reach the scheduler");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(gone);
    }
    // The server has noticed that they are gone.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(wire.put(path, &jobs).await.status, 503);
    world.timers.hang.store(false, SeqCst);
    let began = Instant::now();
    while wire.put(path, &jobs).await.status != 201 {
        assert!(began.elapsed() < Duration::from_secs(60), "there is no room again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    while world.timers.states().len() < 5 * 64 {
        assert!(began.elapsed() < Duration::from_secs(60), "those whose publisher has gone do not wait");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_calls_wait_together_and_what_is_too_long_for_a_timer_waits_in_the_queue() {
    let world = World::new().await;
    let wire = &world.served.wire;
    let reply = wire.put("/api/n/q/bulk?delay=3600&ttl=0", r#"[1, 2, 3]"#).await;
    assert_eq!(reply.status, 201);
    let ids: Vec<JobId> = reply.json()["job_ids"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_str().unwrap().parse().unwrap())
        .collect();
    assert_eq!((ids.len(), world.timers.states().len()), (3, 3));
    let long = format!("[1, \"{}\"]", "x".repeat(70_000));
    let reply = wire.put("/api/n/q/bulk?delay=3600&ttl=0", &long).await;
    assert_eq!((reply.status, world.timers.states().len()), (201, 3), "{reply:?}");
    world.now_ms.fetch_add(3_601_000, SeqCst);
    assert_eq!(world.hand_over(&world.timers.fire()).await, [PublishedFar::Stored; 3]);
    let jobs = wire.get("/api/n/q?count=100").await.json();
    assert_eq!(jobs.as_array().map(Vec::len), Some(5));
    let shards: std::collections::BTreeSet<Shard> = ids.iter().map(JobId::shard).collect();
    assert_eq!(shards.len(), usize::from(SHARDS), "they are spread over the shards");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_without_a_scheduler_is_refused_and_one_without_an_answer_may_be_done() {
    let world = World::new().await;
    let wire = &world.served.wire;
    let publish = async || wire.put("/api/n/q?delay=3600", "x").await;
    for (fault, status) in [(Fault::Busy, 503), (Fault::Away, 500)] {
        world.fault(fault);
        assert_eq!(publish().await.status, status, "{fault:?}");
        assert_eq!(world.timers.states(), [], "nothing is stored");
        let near = wire.put("/api/n/q?delay=1", "x").await;
        assert_eq!(near.status, 201, "what is near needs no scheduler");
    }
    world.fault(Fault::LosesAnswers);
    let lost = publish().await;
    assert_eq!((lost.status, lost.json()), (500, json!({ "error": "internal error" })));
    world.fault(Fault::None);
    assert_eq!(publish().await.status, 201);
    // As with any publish that is repeated: it may be there twice.
    assert_eq!(world.timers.states(), [Waiting::Waiting; 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_was_deleted_never_comes_whenever_its_timer_fires() {
    let world = World::new().await;
    let path = |id: &str| format!("/api/n/q/job/{id}");
    // Long before, once and again; not by the name of another queue.
    let early = world.publish("early").await;
    assert_eq!(world.status("DELETE", &format!("/api/n/other/job/{early}")).await, 204);
    assert_eq!(world.timers.states(), [Waiting::Waiting]);
    assert_eq!(world.status("DELETE", &path(&early)).await, 204);
    assert_eq!(world.timers.states(), [Waiting::Cancelled]);
    assert_eq!(world.status("GET", &path(&early)).await, 404);

    // Its time comes while it is deleted; and it had come before, and the job is on its way.
    let (racing, fired) = (world.publish("racing").await, world.publish("fired").await);
    world.now_ms.fetch_add(3_601_000, SeqCst);
    world.fault(Fault::FiresBeforeCancel);
    assert_eq!(world.status("DELETE", &path(&racing)).await, 204);
    world.fault(Fault::None);
    let on_their_way = world.timers.fire();
    assert_eq!(on_their_way.len(), 2);
    assert_eq!(world.status("DELETE", &path(&fired)).await, 204);
    assert_eq!(world.hand_over(&on_their_way).await, [PublishedFar::Over; 2]);
    // One that is late, and that the scheduler finds by its id no more.
    let late = world.publish("late").await;
    world.now_ms.fetch_add(3_601_000, SeqCst);
    let job = world.timers.fire().pop().unwrap();
    assert_eq!(job.record.id.to_string(), late);
    world.timers.all.lock().clear();
    assert_eq!(world.status("DELETE", &path(&late)).await, 204);
    assert_eq!(world.hand_over(&[job]).await, [PublishedFar::Over]);
    // The scheduler was away for days.
    world.now_ms.fetch_add(5 * 86_400_000, SeqCst);
    assert_eq!(world.hand_over(&on_their_way).await, [PublishedFar::Over; 2]);
    assert_eq!(world.status("GET", "/api/n/q").await, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_deleted_whatever_the_scheduler_answers() {
    for fault in [Fault::Busy, Fault::Away, Fault::CannotCancel, Fault::LosesAnswers] {
        let world = World::new().await;
        let path = format!("/api/n/q/job/{}", world.publish("x").await);
        world.fault(fault);
        for _ in 0..2 {
            assert_eq!(world.status("DELETE", &path).await, 204, "{fault:?}");
        }
        world.fault(Fault::None);
        world.now_ms.fetch_add(3_601_000, SeqCst);
        let handed_over = world.hand_over(&world.timers.fire()).await;
        assert!(handed_over.iter().all(|one| *one == PublishedFar::Over), "{fault:?}: {handed_over:?}");
        assert_eq!(world.status("GET", "/api/n/q").await, 404, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_at_a_job_whose_timer_fires_finds_it_unless_it_is_over() {
    let world = World::new().await;
    let id = world.publish("x").await;
    let path = format!("/api/n/q/job/{id}");
    let fired = world.timers.fire();
    assert_eq!(world.status("GET", &path).await, 200, "the queue's clock says that it waits");
    world.now_ms.fetch_add(3_601_000, SeqCst);
    assert_eq!(world.status("GET", &path).await, 200, "it is on its way");
    assert_eq!(world.hand_over(&fired).await, [PublishedFar::Over], "and comes once");
    assert_eq!(world.served.wire.get("/api/n/q").await.text("job_id"), id);
    assert_eq!(world.status("DELETE", &path).await, 204);
    assert_eq!(world.status("GET", &path).await, 404, "and not again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_without_a_scheduler_deletes_far_jobs_and_replacing_one_does() {
    let world = World::new().await;
    let without = serve(&[("default", Arc::clone(&world.store))], ApiOptions::default()).await;
    let id = world.publish("x").await;
    let path = format!("/api/n/q/job/{id}");
    assert_eq!(without.wire.get(&path).await.status, 404);
    assert_eq!(world.served.wire.get(&path).await.status, 200);
    assert_eq!(without.wire.delete(&path).await.status, 204);
    assert_eq!(
        world.served.wire.get(&path).await.status,
        404,
        "its timer waits, and it is deleted all the same"
    );
    let replaced = world.publish("old").await;
    let new = world.served.wire.put(&format!("/api/n/q/job/{replaced}"), "new").await;
    assert_eq!(new.status, 201);
    assert_eq!(world.timers.states(), [Waiting::Waiting, Waiting::Cancelled]);
    // While the scheduler is away, too: the new one is there, and the old one does not come.
    let old = world.publish("old").await;
    world.fault(Fault::Away);
    assert_eq!(world.served.wire.put(&format!("/api/n/q/job/{old}"), "newer").await.status, 201);
    world.fault(Fault::None);
    world.now_ms.fetch_add(3_601_000, SeqCst);
    assert_eq!(world.hand_over(&world.timers.fire()).await, [PublishedFar::Over; 2]);
    assert_eq!(world.served.wire.get("/api/n/q?count=9").await.json().as_array().map(Vec::len), Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_without_room_in_ids_waits_in_its_queue() {
    let world = World::new().await;
    let wire = &world.served.wire;
    world.fault(Fault::HourIsFull);
    let reply = wire.put("/api/n/q/bulk?delay=3600&ttl=0", "[1, 2]").await;
    assert_eq!((reply.status, world.timers.states()), (201, vec![Waiting::Cancelled; 2]), "{reply:?}");
    assert_eq!(wire.put("/api/n/q?delay=3600&ttl=0", "x").await.status, 201);
    world.now_ms.fetch_add(3_601_000, SeqCst);
    let jobs = wire.get("/api/n/q?count=100").await.json();
    assert_eq!(jobs.as_array().map(Vec::len), Some(3), "each comes once: {jobs}");
}

/// The timer of a job that has come says for hours that it fires, where others of its minute are held up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_brings_nothing_back_that_is_over_for_long() {
    let world = World::new().await;
    let id = world.publish("x").await;
    let path = format!("/api/n/q/job/{id}");
    world.now_ms.fetch_add(3_601_000, SeqCst);
    assert_eq!(world.hand_over(&world.timers.fire()).await, [PublishedFar::Stored]);
    assert_eq!(world.served.wire.get("/api/n/q").await.text("job_id"), id);
    assert_eq!(world.status("DELETE", &path).await, 204);
    world.now_ms.fetch_add(3 * 3_600_000, SeqCst);
    assert_eq!(world.status("GET", &path).await, 404);
    assert_eq!(world.status("GET", "/api/n/q").await, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_still_there_comes_no_second_time_however_late_its_timer_fires_again() {
    let world = World::new().await;
    let wire = &world.served.wire;
    let reply = wire.put("/api/n/q/bulk?delay=3600&ttl=0", "[1, 2]").await;
    assert_eq!(reply.status, 201);
    world.now_ms.fetch_add(3_601_000, SeqCst);
    let fired = world.timers.fire();
    assert_eq!(world.hand_over(&fired).await, [PublishedFar::Stored; 2]);
    let leased = wire.get("/api/n/q?ttr=36000").await.text("job_id");
    // The store has forgotten their marks by now.
    world.now_ms.fetch_add(3 * 3_600_000, SeqCst);
    assert_eq!(world.hand_over(&fired).await, [PublishedFar::Over; 2]);
    let ready = wire.get("/api/n/q?ttr=36000").await.text("job_id");
    assert_ne!(ready, leased, "nobody takes a job that is another's");
    assert_eq!(world.status("GET", "/api/n/q").await, 404, "and there are two");
    assert_eq!(wire.get("/api/n/q/size").await.json()["size"], 0);
}

/// The clocks of both stores differ: the scheduler has forgotten the timer, which is late, and the queue's store says that
/// its job is not due yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_deleted_for_good_though_its_timer_is_not_found() {
    let world = World::new().await;
    let id = world.publish("x").await;
    let fired = world.timers.fire();
    world.timers.all.lock().clear();
    assert_eq!(world.status("DELETE", &format!("/api/n/q/job/{id}")).await, 204);
    world.now_ms.fetch_add(3_601_000, SeqCst);
    assert_eq!(world.hand_over(&fired).await, [PublishedFar::Over]);
    assert_eq!(world.status("GET", "/api/n/q").await, 404);
}

/// A week and three hours after a job of `World` was due.
const FORGOTTEN_AFTER_MS: u64 = 3_600_000 + FAR_REMOVAL_KEPT_MS + 3 * ONCE_KEPT_MS;

/// The scheduler was away for more than a week, and the deletions of that time are forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_deletion_was_forgotten_does_not_come_silently() {
    let world = World::new().await;
    let publish = async || world.served.wire.put("/api/n/q?delay=3600&ttl=0", "x").await.text("job_id");
    // Each shard has its own memory: the fourth is a neighbour of the first, and the third one's shard has forgotten nothing.
    let ids = [publish().await, publish().await, publish().await, publish().await];
    world.fault(Fault::Away);
    let deleted = &ids[..2];
    for id in deleted {
        assert_eq!(world.status("DELETE", &format!("/api/n/q/job/{id}")).await, 204);
    }
    assert_eq!(world.sweep().await, 2);
    world.now_ms.fetch_add(FORGOTTEN_AFTER_MS - 2 * ONCE_KEPT_MS, SeqCst);
    let fired = world.timers.fire();
    let of = |id: &str| -> Vec<FarJob> {
        fired.iter().filter(|job| job.record.id.to_string() == id).cloned().collect()
    };
    assert_eq!(world.sweep().await, 2, "a week is not over");
    assert_eq!(world.hand_over(&of(&ids[0])).await, [PublishedFar::Over]);
    world.now_ms.fetch_add(2 * ONCE_KEPT_MS, SeqCst);
    assert_eq!(world.sweep().await, 0);
    for id in deleted {
        assert_eq!(world.hand_over(&of(id)).await, [PublishedFar::Doubtful; 1]);
    }
    // A clock that goes back brings none of them either.
    world.now_ms.fetch_sub(FORGOTTEN_AFTER_MS - 3_600_000, SeqCst);
    assert_eq!(world.hand_over(&of(&ids[0])).await, [PublishedFar::Doubtful]);
    assert_eq!(world.status("GET", "/api/n/q").await, 404);
    assert_eq!(world.hand_over(&of(&ids[2])).await, [PublishedFar::Stored]);
    // One of that hour that was not deleted is in doubt, until an operator has decided. A job that is due later is not.
    assert_eq!(world.hand_over(&of(&ids[3])).await, [PublishedFar::Doubtful]);
    let decided = hand_over(&world.store, &of(&ids[3]), DoubtfulJobs::Publish).await;
    assert_eq!(decided, [PublishedFar::Stored]);
    world.fault(Fault::None);
    let later = publish().await;
    world.now_ms.fetch_add(3_601_000, SeqCst);
    let fired = world.timers.fire();
    let later: Vec<FarJob> = fired.into_iter().filter(|job| job.record.id.to_string() == later).collect();
    assert_eq!(world.hand_over(&later).await, [PublishedFar::Stored]);
}

/// Where nothing was forgotten, nothing is in doubt, however late it comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_come_after_weeks_where_no_deletion_was_forgotten() {
    let world = World::new().await;
    let reply = world.served.wire.put("/api/n/q/bulk?delay=3600&ttl=0", "[1, 2]").await;
    assert_eq!(reply.status, 201);
    world.now_ms.fetch_add(4 * FORGOTTEN_AFTER_MS, SeqCst);
    assert_eq!(world.sweep().await, 0);
    assert_eq!(world.hand_over(&world.timers.fire()).await, [PublishedFar::Stored; 2]);
}

/// Whoever deletes what is not there, again and again, fills no store; and who is refused has deleted nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_deletions_are_remembered_than_an_option_says() {
    let world =
        World::with(&EmbeddedJobsOptions { far_removals_max: 2 * u64::from(SHARDS), ..options() }).await;
    let mut paths = Vec::new();
    for _ in 0..SHARDS * 3 {
        let id = world.served.wire.put("/api/n/q?delay=3600&ttl=0", "x").await.text("job_id");
        paths.push(format!("/api/n/q/job/{id}"));
    }
    world.fault(Fault::Away);
    let mut statuses = Vec::new();
    for path in paths.iter().chain(&paths) {
        statuses.push(world.status("DELETE", path).await);
    }
    let (first, again) = statuses.split_at(paths.len());
    assert_eq!(first, again, "what is remembered may be deleted again, and nothing else");
    assert_eq!(first.iter().filter(|status| **status == 204).count(), 2 * usize::from(SHARDS));
    assert!(first.iter().all(|status| [204, 503].contains(status)), "{first:?}");
    assert_eq!(world.sweep().await, 2 * u64::from(SHARDS));
    let refused = JobStoreError::TooManyFarRemovals;
    let pairs: Vec<_> = paths.iter().map(|path| path.rsplit('/').next().unwrap().parse().unwrap()).collect();
    let of_one: Vec<_> = pairs.into_iter().filter(|id: &JobId| id.shard() == Shard(0)).collect();
    let queue = QueueName::new("n", "q").unwrap();
    let of_one: Vec<_> = of_one.into_iter().map(|id| (queue.clone(), id)).collect();
    assert_eq!(world.store.remove_far(Shard(0), &of_one).await, Err(refused), "all of a call, or nothing");
    // The scheduler is back: its timers are cancelled, which needs no room.
    world.fault(Fault::None);
    let at = first.iter().position(|status| *status == 503).unwrap();
    assert_eq!(world.status("DELETE", &paths[at]).await, 204);
    world.now_ms.fetch_add(3_601_000, SeqCst);
    let published = world.hand_over(&world.timers.fire()).await;
    let stored = published.iter().filter(|fate| **fate == PublishedFar::Stored).count();
    assert_eq!(stored, usize::from(SHARDS) - 1, "what was refused comes: {published:?}");
    // Acknowledging what is there needs no room either.
    let job = world.served.wire.get("/api/n/q").await.text("job_id");
    assert_eq!(world.status("DELETE", &format!("/api/n/q/job/{job}")).await, 204);
    world.now_ms.fetch_add(FORGOTTEN_AFTER_MS, SeqCst);
    assert_eq!(world.sweep().await, 0);
    world.fault(Fault::Away);
    assert_eq!(world.status("DELETE", &paths[at]).await, 204, "there is room again");
}

/// What is remembered, and what was forgotten, is known to the process that opens the files next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_and_the_doubt_that_they_leave_survive_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedJobsOptions { far_removals_max: u64::from(SHARDS), ..options() };
    let open =
        |now_ms: u64| EmbeddedJobs::open(dir.path(), &options, Clock::from_unix_ms(move || now_ms)).unwrap();
    let far = |number: u32| {
        let new = NewJobs {
            queue: QueueName::new("n", "q").unwrap(),
            delay_s: 3_600,
            ttl_s: 0,
            tries: 1,
            is_versioned: false,
            attributes: Vec::new(),
            bodies: vec!["x".into()],
        };
        let slot = SlotMinute::of(ready_ms(START_MS, 3_600));
        // All in the first shard.
        let timer = TaskId { shard: Shard(9), slot, index: FAR_INDEX | (number * u32::from(SHARDS)) };
        FarJob::of_timer(&FarJob::payloads(&new, START_MS)[0], timer, SHARDS).unwrap()
    };
    let (deleted, other) = (far(1), far(2));
    let pair = |job: &FarJob| [(job.queue.clone(), job.record.id)];
    let store = open(START_MS);
    assert_eq!(store.remove_far(Shard(0), &pair(&deleted)).await, Ok(vec![false]));
    drop(store);
    let store = open(START_MS + 3_601_000);
    let full = store.remove_far(Shard(0), &pair(&other)).await;
    assert_eq!(full, Err(JobStoreError::TooManyFarRemovals), "the place is taken");
    let batch = [deleted.clone(), other.clone()];
    let fates = hand_over(&store, &batch, DoubtfulJobs::Refuse).await;
    assert_eq!(fates, [PublishedFar::Over, PublishedFar::Stored]);
    drop(store);
    let store = open(START_MS + FORGOTTEN_AFTER_MS);
    assert_eq!(sweep(&store).await, 0);
    drop(store);
    let store = open(START_MS + FORGOTTEN_AFTER_MS);
    assert_eq!(
        hand_over(&store, &batch, DoubtfulJobs::Refuse).await,
        [PublishedFar::Doubtful, PublishedFar::Over]
    );
    assert_eq!(hand_over(&store, &[deleted], DoubtfulJobs::Publish).await, [PublishedFar::Stored]);
    drop(store);
    // One that was deleted weeks after it was due, in a store that nobody has swept for hours.
    let late = far(3);
    let store = open(START_MS + 3 * FORGOTTEN_AFTER_MS);
    assert_eq!(store.remove_far(Shard(0), &pair(&late)).await, Ok(vec![false]));
    drop(store);
    let store = open(START_MS + 3 * FORGOTTEN_AFTER_MS + 9 * ONCE_KEPT_MS);
    assert_eq!(
        hand_over(&store, std::slice::from_ref(&late), DoubtfulJobs::Publish).await,
        [PublishedFar::Over]
    );
    assert_eq!(sweep(&store).await, 0);
    assert_eq!(hand_over(&store, &[late], DoubtfulJobs::Refuse).await, [PublishedFar::Doubtful]);
}
