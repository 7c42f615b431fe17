//! The far tier beside a real Redis, which is killed while tasks are loaded into it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use object_store::memory::InMemory;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;
use windfall_contract::Clock;
use windfall_contract::due::{
    Added, Change, Changed, NewRecord, Route, Shard, SlotStore, StoreError, TaskAt, TaskId,
};
use windfall_far::{FarElsewhere, FarOptions, FarSlots, FarTier, FileLog};
use windfall_servers::{Private, RedisOptions as ServerOptions};
use windfall_slots::redis::{RedisSlots, RedisSlotsOptions};

const PATIENCE: Duration = Duration::from_secs(120);
const HOUR_MS: u64 = 3_600_000;
const TASKS: usize = 20_000;

async fn near(url: &str) -> Arc<RedisSlots> {
    let options = RedisSlotsOptions {
        call_timeout_ms: 20_000,
        connect_timeout_ms: 20_000,
        ..RedisSlotsOptions::at(url)
    };
    RedisSlots::open(options).await.unwrap()
}

async fn tier(log: &Path, clock: &Clock) -> FarTier {
    let options = FarOptions { flush_bytes: 256 << 10, load_per_s: 5_000, ..FarOptions::default() };
    let log = Box::new(FileLog::open(log).unwrap());
    FarTier::open(options, log, Arc::new(InMemory::new()), clock.clone()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_redis_that_is_killed_while_tasks_are_loaded_has_each_of_them_once() {
    let server =
        Arc::new(spawn_blocking(|| Private::start(ServerOptions::default()).unwrap()).await.unwrap());
    let dir = tempfile::tempdir().unwrap();
    let ahead_ms = Arc::new(AtomicU64::new(0));
    let clock = Clock::from_unix_ms({
        let (ahead_ms, system) = (Arc::clone(&ahead_ms), Clock::system());
        move || system.unix_ms() + ahead_ms.load(SeqCst)
    });
    let store = near(server.url()).await;
    let far = tier(&dir.path().join("log"), &clock).await;
    let slots = FarSlots::start_shared(Arc::clone(&store) as _, far.clone());
    slots.claim().await.unwrap();
    let tenant = slots.tenant("shop").await.unwrap();
    let route = Route { tenant, target: slots.target(tenant, "hook").await.unwrap() };
    let start_ms = clock.unix_ms();
    let mut expected: BTreeMap<TaskId, u64> = BTreeMap::new();
    for batch in 0..TASKS / 1_000 {
        let task = |at: u64| NewRecord {
            due_ms: start_ms + 4 * HOUR_MS + at * 17_989 % (5 * HOUR_MS),
            route,
            key: None,
            payload: at.to_string().into(),
        };
        let tasks: Vec<_> = (0..1_000).map(task).collect();
        let added = slots.add(Shard(u16::try_from(batch % 64).unwrap()), &tasks).await.unwrap();
        for (task, added) in tasks.iter().zip(added) {
            let Added::Stored(id) = added else { panic!("{added:?}") };
            assert!(id.is_far());
            expected.insert(id, task.due_ms);
        }
    }
    let cancelled: Vec<TaskId> = expected.keys().step_by(100).copied().collect();
    for id in &cancelled {
        let cancel = Change { tenant, at: TaskAt::Id(*id), to: None };
        assert_eq!(slots.change(id.shard, &[cancel]).await.unwrap(), [Changed::Done(*id)]);
        expected.remove(id);
    }
    // Another process, which keeps none and knows of no keeper, and one that would keep them as well.
    let alone = FarElsewhere::new(near(server.url()).await, None, 2 * HOUR_MS, clock.clone());
    let first = *expected.keys().next().unwrap();
    let asked = alone.get(first.shard, tenant, &[TaskAt::Id(first)]).await;
    assert!(matches!(asked, Err(StoreError::Unavailable(_))), "{asked:?}");
    let second =
        FarSlots::start_shared(near(server.url()).await, tier(&dir.path().join("second"), &clock).await);
    assert!(matches!(second.claim().await, Err(StoreError::Unusable(_))));

    ahead_ms.store(10 * HOUR_MS, SeqCst);
    let began = Instant::now();
    let mut kills = 0;
    while far.gauges().waiting > 0 {
        assert!(began.elapsed() < PATIENCE, "{:?} {:?}", far.gauges(), far.stats());
        if kills < 3 && far.stats().loaded > kills * 5_000 {
            kills += 1;
            let server = Arc::clone(&server);
            spawn_blocking(move || server.restart().unwrap()).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(kills, 3);
    let (mut found, mut after) = (BTreeMap::new(), None);
    loop {
        let page = store.list(tenant, after, 1_000).await.unwrap();
        for task in page.tasks {
            let due_ms = task.id.slot.start_ms() + u64::from(task.record.offset_ms);
            let id = task.record.first_id.unwrap_or(task.id);
            assert_eq!(found.insert(id, due_ms), None, "{id} is there twice");
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found.len(), expected.len());
    assert!(found == expected);
}
