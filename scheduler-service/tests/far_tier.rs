//! Jobs of a task queue that are due in hours, over HTTP, through the scheduler's real far tier: its log, its segments, the loader,
//! the dispatcher. Some are deleted long before, some while they are loaded, and some when they are near.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use windfall_contract::Clock;
use windfall_contract::due::{SlotStore, Target};
use windfall_contract::task_queue::{DoubtfulJobs, FarTimers, JobId, JobStore};
use windfall_far::{FarOptions, FarSlots, FarTier, FileLog};
use windfall_scheduler::{DispatchOptions, Dispatcher, Tenants, Timers, TimersOptions};
use windfall_scheduler_service::{FAR_JOBS_TENANT, FarJobTarget, FarJobTimers};
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};
use windfall_task_queue::embedded::{EmbeddedJobs, EmbeddedJobsOptions};
use windfall_task_queue::{ApiOptions, FarJobs, PoolParts};

/// The beginning of an hour.
const START_MS: u64 = 1_800_000_000_000;
const HOUR_MS: u64 = 3_600_000;
/// So long that the jobs are not near before hours have passed.
const DELAY_S: u64 = 6 * 3_600;
const JOBS: usize = 400;
const TOKEN: &str = "a-token-for-far-jobs";
const PATIENCE: Duration = Duration::from_secs(60);

/// One call on a connection of its own: its status and its body.
async fn call(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, serde_json::Value) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\nx-token: {TOKEN}");
    stream.write_all(format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}").as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_default())
}

/// A clock that a test moves, and that goes on by itself by so many milliseconds every five.
fn moving_clock() -> (Clock, Arc<AtomicU64>, Arc<AtomicU64>, tokio::task::JoinHandle<()>) {
    let (now_ms, step_ms) = (Arc::new(AtomicU64::new(START_MS)), Arc::new(AtomicU64::new(5)));
    let (own, step) = (Arc::clone(&now_ms), Arc::clone(&step_ms));
    let ticking = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(5)).await;
            own.fetch_add(step.load(SeqCst), SeqCst);
        }
    });
    let own = Arc::clone(&now_ms);
    (Clock::from_unix_ms(move || own.load(SeqCst)), now_ms, step_ms, ticking)
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_go_the_whole_way_of_the_far_tier_and_deleted_ones_never_come() {
    let dir = tempfile::tempdir().unwrap();
    let (clock, now_ms, step_ms, ticking) = moving_clock();
    let slots_options = EmbeddedSlotsOptions { shards: 16, ..EmbeddedSlotsOptions::default() };
    let near = EmbeddedSlots::open(&dir.path().join("near"), &slots_options, clock.clone()).unwrap();
    // So slowly that jobs are deleted while others are loaded.
    let far_options = FarOptions { load_per_s: 100, flush_bytes: 64 << 10, ..FarOptions::default() };
    let log = Box::new(FileLog::open(&dir.path().join("log")).unwrap());
    std::fs::create_dir(dir.path().join("segments")).unwrap();
    let objects =
        Arc::new(object_store::local::LocalFileSystem::new_with_prefix(dir.path().join("segments")).unwrap());
    let far = FarTier::open(far_options, log, objects, clock.clone()).await.unwrap();
    let slots: Arc<dyn SlotStore> = Arc::new(FarSlots::start(near, far.clone()));
    let rules = FarJobTimers::tenant_rules(std::iter::once("default"));
    let tenants = Arc::new(Tenants(BTreeMap::from([(FAR_JOBS_TENANT.to_owned(), rules)])));
    let timers =
        Timers::start(TimersOptions::default(), Arc::clone(&tenants), Arc::clone(&slots), clock.clone());
    let jobs = EmbeddedJobsOptions { shards: 4, ..EmbeddedJobsOptions::default() };
    let store = EmbeddedJobs::open(&dir.path().join("jobs"), &jobs, clock.clone()).unwrap();
    let far_timers: Arc<dyn FarTimers> = Arc::new(FarJobTimers::new(timers.clone(), "default"));
    let parts = PoolParts {
        store: Arc::clone(&store) as _,
        tokens: Arc::clone(&store) as _,
        far: Some(FarJobs { timers: far_timers, horizon_s: 3 * 3_600 }),
    };
    let any_port = "127.0.0.1:0".parse().unwrap();
    let options = ApiOptions { listen: any_port, admin_listen: any_port, ..ApiOptions::default() };
    let pools = BTreeMap::from([("default".to_owned(), parts)]);
    let served = windfall_task_queue::start(options, pools, clock.clone()).await.unwrap();
    let api = served.api_address();
    let token = format!("/token/n?description=tests&token={TOKEN}");
    assert_eq!(call(served.admin_address(), "POST", &token, "").await.0, 201);
    let store: Arc<dyn JobStore> = store;
    let target: Arc<dyn Target> = Arc::new(FarJobTarget::new(store, DoubtfulJobs::Refuse));
    let targets = BTreeMap::from([((FAR_JOBS_TENANT.to_owned(), "default".to_owned()), target)]);
    let dispatcher =
        Dispatcher::start(DispatchOptions::default(), tenants, slots, targets, "one".into(), clock);

    // Into the log: each job has the id of a timer of the far tier.
    let mut published = BTreeMap::new();
    for nth in 0..JOBS {
        let path = format!("/api/n/q?delay={DELAY_S}&ttl=0&tries=3");
        let (status, reply) = call(api, "PUT", &path, &format!("job {nth:03} {}", "x".repeat(400))).await;
        assert_eq!(status, 201, "{reply}");
        let id = reply["job_id"].as_str().unwrap().to_owned();
        assert!(id.parse::<JobId>().unwrap().timer().unwrap().is_far(), "{id}");
        assert_eq!(published.insert(id, nth), None);
    }
    assert_eq!(far.gauges().waiting, JOBS as u64);
    let job = |id: &str| format!("/api/n/q/job/{id}");
    // Long before.
    let mut deleted = BTreeSet::new();
    for id in published.keys().step_by(8) {
        assert_eq!(call(api, "GET", &job(id), "").await.0, 200, "{id}");
        assert_eq!(call(api, "DELETE", &job(id), "").await.0, 204, "{id}");
        assert_eq!(call(api, "GET", &job(id), "").await.0, 404, "{id}");
        deleted.insert(id.clone());
    }

    // While the hour is loaded. The jobs were published one after the other, so they are due in the hour after the sixth.
    now_ms.store(START_MS + DELAY_S * 1_000 - HOUR_MS + 1_000, SeqCst);
    until("nothing is loaded", || far.stats().loaded > 0).await;
    // How many can be deleted before all are loaded depends on the disk.
    let mut meanwhile = 0;
    for id in published.keys().skip(3).step_by(8) {
        assert_eq!(call(api, "DELETE", &job(id), "").await.0, 204, "{id}");
        deleted.insert(id.clone());
        if far.gauges().waiting == 0 {
            break;
        }
        meanwhile += 1;
    }
    assert!(meanwhile > 0, "no job was deleted while others were loaded");
    step_ms.store(50, SeqCst);
    until("not all are loaded", || far.gauges().waiting == 0).await;
    // When they are near.
    for id in published.keys().skip(5).step_by(8) {
        assert_eq!(call(api, "GET", &job(id), "").await.0, 200, "{id}");
        assert_eq!(call(api, "DELETE", &job(id), "").await.0, 204, "{id}");
        deleted.insert(id.clone());
    }

    let due_ms = START_MS + DELAY_S * 1_000;
    assert!(now_ms.load(SeqCst) < due_ms, "this took too long");
    assert_eq!(call(api, "GET", "/api/n/q/size", "").await.1["size"], 0, "none comes early");
    now_ms.store(due_ms - 1_000, SeqCst);
    step_ms.store(10, SeqCst);
    let mut come = BTreeSet::new();
    let began = Instant::now();
    while come.len() < published.len() - deleted.len() {
        assert!(
            began.elapsed() < PATIENCE,
            "{} of {} have come",
            come.len(),
            published.len() - deleted.len()
        );
        let (_, reply) = call(api, "GET", "/api/n/q?count=100&ttr=86400&timeout=1", "").await;
        for taken in reply.as_array().into_iter().flatten() {
            let id = taken["job_id"].as_str().unwrap();
            assert!(come.insert(id.to_owned()), "{id} has come twice");
            assert!(published.contains_key(id) && !deleted.contains(id), "{id}");
        }
    }
    // Whatever else there is would have come by now, or comes.
    step_ms.store(100, SeqCst);
    assert_eq!(call(api, "GET", "/api/n/q?timeout=2", "").await.0, 404);
    served.close(Duration::from_secs(5)).await;
    timers.close().await;
    dispatcher.drain(Duration::from_secs(5)).await;
    ticking.abort();
}
