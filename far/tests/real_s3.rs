//! The far tier on a folder and on a real S3 server: what it needs of its objects, its tasks' whole way, and a server that
//! is away.
#![cfg(feature = "s3")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::task::{JoinHandle, spawn_blocking};
use windfall_contract::Clock;
use windfall_contract::due::{
    Changed, NewRecord, Route, Shard, SlotMinute, SlotStore, StoreError, TaskAt, TaskId,
};
use windfall_far::{FarChanged, FarFound, FarOptions, FarTier, FileLog, LogError, S3Options};
use windfall_servers::{Private, Server, Spec};
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};

/// The machine is shared.
const PATIENCE: Duration = Duration::from_secs(120);
const START_MS: u64 = 1_800_000_000_000;
const HOUR_MS: u64 = 3_600_000;
const ROUTE: Route = Route { tenant: 1, target: 2 };

async fn server() -> Private {
    spawn_blocking(|| Private::start(Spec::S3).unwrap()).await.unwrap()
}

fn bucket(server: &Server, prefix: &str) -> S3Options {
    let setting = |key: &str| server.setting(key).unwrap().to_owned();
    S3Options {
        endpoint: server.url().to_owned(),
        bucket: setting("bucket"),
        region: setting("region"),
        prefix: prefix.to_owned(),
        access_key_id: setting("access_key_id"),
        secret_access_key: setting("secret_access_key"),
        tls: None,
        plaintext: false,
    }
}

fn folder(dir: &TempDir) -> Arc<dyn ObjectStore> {
    Arc::new(LocalFileSystem::new_with_prefix(dir.path()).unwrap().with_fsync(true))
}

/// What the far tier needs of its objects.
async fn objects_conform(objects: &dyn ObjectStore) {
    let path = |name: &str| Path::from(name);
    let create = |name: &str, bytes: &'static [u8]| {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let path = path(name);
        async move { objects.put_opts(&path, PutPayload::from_static(bytes), options).await }
    };
    create("manifest/2", b"two").await.unwrap();
    assert!(matches!(create("manifest/2", b"other").await, Err(Error::AlreadyExists { .. })));
    assert_eq!(objects.get(&path("manifest/2")).await.unwrap().bytes().await.unwrap(), "two");
    create("manifest/1", b"one").await.unwrap();
    objects.put(&path("segments/1"), PutPayload::from_static(b"0123456789")).await.unwrap();
    // A cut object answers with what there is, or with an error, and its size says it.
    assert_eq!(objects.get_range(&path("segments/1"), 2..5).await.unwrap(), "234");
    assert!(objects.get_range(&path("segments/1"), 8..12).await.is_ok_and(|bytes| bytes == "89"));
    assert!(objects.get_range(&path("segments/1"), 20..30).await.is_err());
    assert_eq!(objects.head(&path("segments/1")).await.unwrap().size, 10);
    assert!(matches!(objects.get_range(&path("segments/2"), 0..1).await, Err(Error::NotFound { .. })));
    let list = async || {
        let found: Vec<_> = objects.list(Some(&path("manifest"))).try_collect().await.unwrap();
        let mut names: Vec<_> = found.into_iter().map(|meta| meta.location.to_string()).collect();
        names.sort();
        names
    };
    assert_eq!(list().await, ["manifest/1", "manifest/2"]);
    objects.delete(&path("manifest/1")).await.unwrap();
    assert!(matches!(objects.delete(&path("manifest/1")).await, Ok(()) | Err(Error::NotFound { .. })));
    assert_eq!(list().await, ["manifest/2"]);
    // In parts, as a large segment is written, and given up.
    let (first, rest) = (vec![1; 8 << 20], vec![2; 1_000]);
    let mut upload = objects.put_multipart(&path("segments/3")).await.unwrap();
    upload.put_part(first.clone().into()).await.unwrap();
    upload.put_part(rest.clone().into()).await.unwrap();
    upload.complete().await.unwrap();
    let end = u64::try_from(first.len()).unwrap();
    assert_eq!(objects.get_range(&path("segments/3"), end..end + 1_000).await.unwrap(), rest);
    assert_eq!(objects.head(&path("segments/3")).await.unwrap().size, end + 1_000);
    let mut given_up = objects.put_multipart(&path("segments/4")).await.unwrap();
    given_up.put_part(first.into()).await.unwrap();
    given_up.abort().await.unwrap();
    assert!(matches!(objects.head(&path("segments/4")).await, Err(Error::NotFound { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn folder_and_bucket_do_what_the_far_tier_needs() {
    let dir = tempfile::tempdir().unwrap();
    objects_conform(&*folder(&dir)).await;
    let server = server().await;
    objects_conform(&*bucket(&server, "").objects().unwrap()).await;
    objects_conform(&*bucket(&server, "timers/far").objects().unwrap()).await;
    let wrong = S3Options { secret_access_key: "wrong".into(), ..bucket(&server, "timers/far") };
    let refused = wrong.objects().unwrap().head(&Path::from("manifest/2")).await.unwrap_err();
    assert!(!refused.to_string().contains("wrong"), "{refused}");
}

/// A far tier that runs, and what its process leaves behind.
struct World {
    dir: TempDir,
    now_ms: Arc<AtomicU64>,
    objects: Arc<dyn ObjectStore>,
    near: Arc<EmbeddedSlots>,
    far: FarTier,
    running: JoinHandle<()>,
    /// What was acknowledged.
    expected: BTreeMap<TaskId, (u64, Bytes)>,
    cancelled: Vec<TaskId>,
}

fn clock(now_ms: &Arc<AtomicU64>) -> Clock {
    let now_ms = Arc::clone(now_ms);
    Clock::from_unix_ms(move || now_ms.load(SeqCst))
}

async fn open(
    dir: &TempDir,
    now_ms: &Arc<AtomicU64>,
    objects: &Arc<dyn ObjectStore>,
    near: &Arc<EmbeddedSlots>,
) -> (FarTier, JoinHandle<()>) {
    let log = loop {
        // A blocking thread of the last one may still have it for a moment.
        match FileLog::open(&dir.path().join("log")) {
            Err(LogError::InUse(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
            opened => break opened.unwrap(),
        }
    };
    let options =
        FarOptions { flush_bytes: 64 << 10, merge_segments: 3, keep_ms: 0, ..FarOptions::default() };
    let far = FarTier::open(options, Box::new(log), Arc::clone(objects), clock(now_ms)).await.unwrap();
    let (running, near) = (far.clone(), Arc::clone(near));
    let running = tokio::spawn(async move { running.run(near).await });
    (far, running)
}

impl World {
    async fn new(objects: Arc<dyn ObjectStore>) -> Self {
        let (dir, now_ms) = (tempfile::tempdir().unwrap(), Arc::new(AtomicU64::new(START_MS)));
        let slots = EmbeddedSlotsOptions { shards: 16, ..EmbeddedSlotsOptions::default() };
        let near = EmbeddedSlots::open(&dir.path().join("near"), &slots, clock(&now_ms)).unwrap();
        let (far, running) = open(&dir, &now_ms, &objects, &near).await;
        Self { dir, now_ms, objects, near, far, running, expected: BTreeMap::new(), cancelled: Vec::new() }
    }

    async fn restart(self) -> Self {
        let Self { dir, now_ms, objects, near, far, running, expected, cancelled } = self;
        running.abort();
        assert!(running.await.is_err());
        drop(far);
        let (far, running) = open(&dir, &now_ms, &objects, &near).await;
        Self { dir, now_ms, objects, near, far, running, expected, cancelled }
    }

    /// Adds tasks that are due in 4 to 9 hours.
    async fn fill(&mut self, count: usize) {
        self.fill_from(START_MS + 4 * HOUR_MS, count).await;
    }

    /// Adds tasks that are due 4 hours later than those.
    async fn fill_later(&mut self, count: usize) {
        self.fill_from(START_MS + 8 * HOUR_MS, count).await;
    }

    async fn fill_from(&mut self, start_ms: u64, count: usize) {
        let from = self.expected.len() + self.cancelled.len();
        for at in from..from + count {
            let minutes = u64::try_from(at).unwrap() * 7 % 300;
            let due_ms = start_ms + minutes * 60_000 + u64::try_from(at % 1_000).unwrap();
            let payload = Bytes::from(format!("task {at} {}", "x".repeat(100)));
            let task = NewRecord { due_ms, route: ROUTE, key: None, payload: payload.clone() };
            let added = self.far.add(Shard(u16::try_from(at % 16).unwrap()), vec![task]).await.unwrap();
            self.expected.insert(added[0].unwrap(), (due_ms, payload));
        }
    }

    async fn cancel(&mut self, id: TaskId) {
        let changed = self.far.change(ROUTE.tenant, id, None).await.unwrap();
        assert_eq!(changed, FarChanged::Here(Changed::Done(id)));
        self.expected.remove(&id);
        self.cancelled.push(id);
    }

    fn wait_ms(&self, ms: u64) {
        self.now_ms.fetch_add(ms, SeqCst);
    }

    async fn until(&self, what: &str, is_so: impl Fn(&FarTier) -> bool) {
        let began = Instant::now();
        while !is_so(&self.far) {
            assert!(began.elapsed() < PATIENCE, "{what}: {:?} {:?}", self.far.gauges(), self.far.stats());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Everything that was acknowledged is near at its time, and nothing that was cancelled.
    async fn assert_all_near(&self) {
        for (id, (due_ms, payload)) in &self.expected {
            let found = self.near.get(id.shard, ROUTE.tenant, &[TaskAt::Id(*id)]).await.unwrap().remove(0);
            let found = found.unwrap_or_else(|| panic!("{id} is lost"));
            let slot: SlotMinute = found.id.slot;
            assert_eq!(slot.start_ms() + u64::from(found.record.offset_ms), *due_ms, "{id}");
            assert_eq!(found.record.payload, payload, "{id}");
        }
        for id in &self.cancelled {
            assert_eq!(self.near.get(id.shard, ROUTE.tenant, &[TaskAt::Id(*id)]).await.unwrap(), [None]);
        }
        let near: u64 = {
            let mut all = 0;
            for shard in 0..16 {
                all += self.near.counts(Shard(shard)).await.unwrap().values().sum::<u64>();
            }
            all
        };
        assert_eq!(near, u64::try_from(self.expected.len()).unwrap());
    }
}

fn is_flushed(far: &FarTier) -> bool {
    far.gauges().segments > 0 && far.gauges().memory_bytes < 64 << 10
}

/// From the add over segments, merges and a restart into the slot store.
async fn whole_way(objects: Arc<dyn ObjectStore>) {
    let mut world = World::new(objects).await;
    for round in 0..8 {
        world.fill(400).await;
        world.until("it is not flushed", is_flushed).await;
        let in_a_segment = *world.expected.keys().nth(round * 7).unwrap();
        world.cancel(in_a_segment).await;
    }
    world.until("it is not merged", |far| far.stats().merges > 0).await;
    let mut world = world.restart().await;
    let id = *world.expected.keys().nth(100).unwrap();
    world.cancel(id).await;
    let next = *world.expected.keys().next().unwrap();
    assert!(
        matches!(world.far.get(ROUTE.tenant, next).await.unwrap(), FarFound::Here(found) if found.id == next)
    );
    world.wait_ms(10 * HOUR_MS);
    world.until("it is not loaded", |far| far.gauges().waiting == 0).await;
    world.until("segments stay", |far| far.gauges().segments == 0).await;
    world.assert_all_near().await;
    assert_eq!(world.far.stats().object_errors, 0);
    world.running.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn tasks_go_their_whole_way_over_a_folder_and_over_a_bucket() {
    let dir = tempfile::tempdir().unwrap();
    whole_way(folder(&dir)).await;
    let server = server().await;
    whole_way(bucket(&server, "whole/way").objects().unwrap()).await;
}

/// The server stands still, is killed, and comes back. It is away for longer than a call repeats its requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_server_that_is_away_loses_nothing_and_what_is_late_is_loaded_when_it_is_back() {
    let server = Arc::new(server().await);
    let on_server = |work: fn(&Server)| {
        let server = Arc::clone(&server);
        async move { spawn_blocking(move || work(&server)).await.unwrap() }
    };
    let mut world = World::new(bucket(&server, "").objects().unwrap()).await;
    world.fill(1_000).await;
    world.until("it is not flushed", is_flushed).await;
    let in_a_segment = *world.expected.keys().next().unwrap();
    on_server(|server| server.freeze().unwrap()).await;
    let began = Instant::now();
    // An add never waits for it.
    while began.elapsed() < Duration::from_secs(5) {
        let asked = Instant::now();
        world.fill(10).await;
        assert!(asked.elapsed() < Duration::from_secs(4), "an add has waited for the server");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    on_server(|server| server.kill().unwrap()).await;
    // The first hours are to be loaded while it is away.
    world.wait_ms(5 * HOUR_MS);
    let errors = world.far.stats().object_errors;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        world.fill_later(20).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(world.far.stats().object_errors > errors, "{:?}", world.far.stats());
    let asked = world.far.get(ROUTE.tenant, in_a_segment).await;
    assert!(matches!(asked, Err(StoreError::Unavailable(_))), "{asked:?}");
    on_server(|server| server.start().unwrap()).await;
    let back = Instant::now();
    world.until("it is not loaded", |far| far.stats().loaded > 0).await;
    println!("loaded again {:?} after the server was back", back.elapsed());
    world.until("it is not flushed", is_flushed).await;
    world.wait_ms(10 * HOUR_MS);
    world.until("not all of it is loaded", |far| far.gauges().waiting == 0).await;
    world.assert_all_near().await;
    world.running.abort();
}
