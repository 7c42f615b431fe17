//! Adds by a queue into a real Redis that is frozen, killed, and killed with the loss of what it had taken last. The queue is in
//! memory; a test of the binary has a real one.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test may panic")]

mod model;

use async_trait::async_trait;
use model::broker::{MemoryBroker, Shared, TestWriter};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_conformance::redis_nodes::asked;
use windfall_contract::Clock;
use windfall_contract::due::{Fired, Firing, SlotStore, Target, TaskKey};
use windfall_scheduler::{
    AddQueue, AddQueueOptions, AddQueueParts, Class, DispatchOptions, Dispatcher, NewTask, TargetRules,
    TenantRules, Tenants, Timers, TimersOptions,
};
use windfall_servers::{Private, RedisOptions};
use windfall_slots::redis::{RedisSlots, RedisSlotsOptions};

const PATIENCE: Duration = Duration::from_secs(90);
const TOPICS: [&str; 2] = ["adds-a", "adds-b"];

/// How often each payload came.
#[derive(Default)]
struct Came(Mutex<BTreeMap<u64, u64>>);

#[async_trait]
impl Target for Came {
    async fn fire(&self, batch: Vec<Firing>) -> Vec<Fired> {
        let mut came = self.0.lock();
        batch.iter().for_each(|task| *came.entry(model::number_of(&task.payload)).or_default() += 1);
        vec![Fired::Done; batch.len()]
    }
}

struct Fleet {
    server: Private,
    timers: Timers,
    queue: AddQueue,
    dispatcher: Dispatcher,
    came: Arc<Came>,
    clock: Clock,
    _folder: tempfile::TempDir,
}

impl Fleet {
    async fn start(call_timeout_ms: u64) -> Self {
        let server = tokio::task::spawn_blocking(|| Private::start(RedisOptions::default()).unwrap());
        let server = server.await.unwrap();
        let options =
            RedisSlotsOptions { shards: 16, call_timeout_ms, ..RedisSlotsOptions::at(server.url()) };
        let store: Arc<dyn SlotStore> = RedisSlots::open(options).await.unwrap();
        let targets = [("out".to_owned(), TargetRules::default())].into();
        let rules = TenantRules { waiting_max: 100_000, adds_per_s: 100_000, class: Class::Normal, targets };
        let tenants = Arc::new(Tenants([("shop".to_owned(), rules)].into()));
        let (broker, folder) = (Arc::<MemoryBroker>::default(), tempfile::tempdir().unwrap());
        let clock = Clock::system();
        let queue = AddQueue::start(AddQueueParts {
            options: AddQueueOptions { settle_ms: 2_000, ..AddQueueOptions::default() },
            tenants: Arc::clone(&tenants),
            store: Arc::clone(&store),
            writer: TestWriter::new(&broker, &TOPICS),
            signatures: None,
            topics: TOPICS.map(|name| Shared::topic(&broker, name)).to_vec(),
            folder: folder.path().to_owned(),
            clock: clock.clone(),
        });
        let (whose, own) = (Arc::clone(&tenants), Some(queue.clone()));
        let timers =
            Timers::start_with(TimersOptions::default(), whose, Arc::clone(&store), own, clock.clone());
        let came = Arc::<Came>::default();
        let target = Arc::clone(&came) as Arc<dyn Target>;
        let targets = BTreeMap::from([(("shop".to_owned(), "out".to_owned()), target)]);
        let dispatch = DispatchOptions::default();
        let dispatcher = Dispatcher::start(dispatch, tenants, store, targets, "one".into(), clock.clone());
        let own = Self { server, timers, queue, dispatcher, came, clock, _folder: folder };
        own.until("the store's id", |own| own.queue.check().is_ok()).await;
        own
    }

    async fn add(&self, numbers: std::ops::Range<u64>, in_ms: u64) {
        let due_ms = self.clock.unix_ms() + in_ms;
        let task = |number: u64| NewTask {
            target: "out".into(),
            due_ms,
            key: Some(TaskKey::new(format!("order-{number}").as_bytes()).unwrap()),
            payload: model::payload(number),
        };
        for added in self.timers.add_by_queue("shop", numbers.map(task).collect()).await {
            added.unwrap();
        }
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < until, "never came: {what}: {:?}", self.queue.stats());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn came(&self) -> usize {
        self.came.0.lock().len()
    }

    /// Each of them came, and none twice that was not handed over around a crash.
    async fn end(self, numbers: u64) {
        self.until("all timers", |own| own.came() as u64 == numbers).await;
        // A copy that fires would come now.
        tokio::time::sleep(Duration::from_secs(4)).await;
        let came = self.came.0.lock().clone();
        assert_eq!(came.keys().copied().collect::<Vec<_>>(), (0..numbers).collect::<Vec<_>>());
        let twice: Vec<_> = came.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "fired again: {twice:?}");
        self.timers.close().await;
        self.queue.close(Duration::from_secs(10)).await;
        self.dispatcher.drain(Duration::from_secs(10)).await;
    }
}

/// The file that the server appends what it has acknowledged to.
async fn append_only_file(url: &str) -> PathBuf {
    let said: Vec<String> = asked(url, &["CONFIG", "GET", "dir"]).await;
    let files = std::fs::read_dir(PathBuf::from(&said[1]).join("appendonlydir")).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.to_string_lossy().ends_with(".incr.aof"));
    files.sort();
    files.pop().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn adds_succeed_while_redis_is_frozen_and_killed_and_each_fires_once() {
    let fleet = Fleet::start(1_000).await;
    fleet.add(0..200, 1_000).await;
    fleet.until("the first ones", |own| own.came() == 200).await;
    fleet.server.freeze().unwrap();
    fleet.add(200..400, 500).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(fleet.came(), 200);
    assert_eq!(fleet.queue.stats().held.get(), 200);
    fleet.server.thaw().unwrap();
    fleet.until("those of the freeze", |own| own.came() == 400).await;
    // Nothing is handed over when it is killed, so nothing may be repeated.
    tokio::time::sleep(Duration::from_secs(1)).await;
    fleet.server.kill().unwrap();
    fleet.add(400..600, 500).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(fleet.came(), 400);
    fleet.server.start().unwrap();
    fleet.end(600).await;
}

/// The end of a machine under `appendfsync everysec`: what the server took in its last moments is not in its file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn what_redis_lost_with_its_last_second_is_taken_again() {
    let fleet = Fleet::start(1_000).await;
    fleet.add(0..100, 1_000).await;
    fleet.until("the first ones", |own| own.came() == 100).await;
    // Until they are committed and noted: only what comes now may be lost.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let file = append_only_file(fleet.server.url()).await;
    let before = std::fs::metadata(&file).unwrap().len();
    fleet.add(100..300, 20_000).await;
    fleet.until("them to be taken", |own| own.queue.stats().stored.get() == 300).await;
    fleet.server.kill().unwrap();
    assert!(std::fs::metadata(&file).unwrap().len() > before, "it had written them");
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(before).unwrap();
    fleet.server.start().unwrap();
    fleet.until("them to be taken again", |own| own.queue.stats().stored.get() == 500).await;
    assert!(fleet.queue.stats().rereads.get() >= 1);
    fleet.end(300).await;
}
