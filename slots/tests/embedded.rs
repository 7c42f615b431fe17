//! The embedded slot store: the contract, its open errors, restarts.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use windfall_conformance::slots::{self, Fixture};
use windfall_contract::Clock;
use windfall_contract::due::{Added, Durability, NewRecord, Route, Shard, SlotStore, TaskAt, Waiting};
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions, OpenSlotsError};

/// Some day in 2027, in the middle of a minute.
const START_MS: u64 = 1_800_000_030_000;

struct Embedded {
    dir: tempfile::TempDir,
    options: EmbeddedSlotsOptions,
    now_ms: Arc<AtomicU64>,
}

impl Embedded {
    fn new(options: EmbeddedSlotsOptions) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), options, now_ms: Arc::new(AtomicU64::new(START_MS)) }
    }

    fn open_now(&self) -> Result<Arc<EmbeddedSlots>, OpenSlotsError> {
        let now_ms = Arc::clone(&self.now_ms);
        let clock = Clock::from_unix_ms(move || now_ms.load(SeqCst));
        EmbeddedSlots::open(self.dir.path(), &self.options, clock)
    }
}

#[async_trait]
impl Fixture for Embedded {
    fn name(&self) -> &str {
        "embedded"
    }

    async fn open(&self) -> Result<Arc<dyn SlotStore>, String> {
        let store = self.open_now().map_err(|error| error.to_string())?;
        Ok(store)
    }

    fn now_ms(&self) -> u64 {
        self.now_ms.load(SeqCst)
    }

    async fn wait_ms(&self, ms: u64) {
        self.now_ms.fetch_add(ms, SeqCst);
        // Others go on meanwhile.
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }

    async fn clock_back_ms(&self, ms: u64) -> Result<(), String> {
        self.now_ms.fetch_sub(ms, SeqCst);
        Ok(())
    }

    fn clock_ahead_ms(&self, ms: u64) -> bool {
        self.now_ms.fetch_add(ms, SeqCst);
        true
    }
}

fn small() -> EmbeddedSlotsOptions {
    EmbeddedSlotsOptions { memtable_bytes: 1 << 20, cache_bytes: 1 << 20, ..EmbeddedSlotsOptions::default() }
}

fn task(due_ms: u64) -> NewRecord {
    NewRecord { due_ms, route: Route { tenant: 1, target: 1 }, key: None, payload: "x".into() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_conforms() {
    for durability in [Durability::Process, Durability::Machine] {
        let failed = slots::run(&Embedded::new(EmbeddedSlotsOptions { durability, ..small() })).await;
        assert!(failed.is_empty(), "{durability:?}: {failed:#?}");
    }
}

#[tokio::test]
async fn open_says_what_is_wrong() {
    let fixture = Embedded::new(small());
    let store = fixture.open_now().unwrap();
    assert!(matches!(fixture.open_now().map(drop), Err(OpenSlotsError::InUse(_))));
    drop(store);
    let open = |options| {
        EmbeddedSlots::open(fixture.dir.path(), &options, Clock::system()).map(drop).unwrap_err().to_string()
    };
    let other = open(EmbeddedSlotsOptions { shards: 32, ..small() });
    assert!(other.contains("was made with 64 shards") && other.contains("32"), "{other}");
    for wrong in [
        EmbeddedSlotsOptions { shards: 15, ..small() },
        EmbeddedSlotsOptions { memtable_bytes: 5, ..small() },
        EmbeddedSlotsOptions { durability: Durability::EverySecond, ..small() },
    ] {
        let error = EmbeddedSlots::open(fixture.dir.path(), &wrong, Clock::system()).map(drop).unwrap_err();
        assert!(matches!(error, OpenSlotsError::Invalid(_)), "{error:?}");
    }
    std::fs::write(fixture.dir.path().join("WINDFALL-SLOTS"), "2\n").unwrap();
    assert!(open(small()).contains("format version 2"));
    std::fs::write(fixture.dir.path().join("WINDFALL-SLOTS"), "1\n").unwrap();
    std::fs::remove_dir_all(fixture.dir.path().join("db")).unwrap();
    assert!(open(small()).contains("the database is gone"));
}

/// The last watermarks before a machine dies may not be on its disk: what was due while the store was closed may have
/// fired, so that no cancel of it is acknowledged. // I10
#[tokio::test]
async fn what_was_due_while_the_store_was_closed_cannot_be_cancelled() {
    let fixture = Embedded::new(small());
    let store = fixture.open_now().unwrap();
    store.acquire(Shard(1), "one", 1_000).await.unwrap().unwrap();
    let [Added::Stored(soon), Added::Stored(later)] =
        store.add(Shard(1), &[task(START_MS + 10), task(START_MS + 1_000)]).await.unwrap()[..]
    else {
        panic!("they are stored");
    };
    drop(store);
    fixture.now_ms.fetch_add(500, SeqCst);
    let store = fixture.open_now().unwrap();
    let found = store.get(Shard(1), 1, &[TaskAt::Id(soon), TaskAt::Id(later)]).await.unwrap();
    let states: Vec<_> = found.iter().flatten().map(|found| found.state).collect();
    assert_eq!(states, [Waiting::Firing, Waiting::Waiting]);
}

/// I9: a store that has all of its slots takes tasks into those that it has, and no others.
#[tokio::test]
async fn slots_are_bounded() {
    let fixture = Embedded::new(EmbeddedSlotsOptions { slots_max: 1_000, ..small() });
    let store = fixture.open_now().unwrap();
    let minute = |minute: u64| task(START_MS + minute * 60_000);
    let batch: Vec<_> = (0..1_000).map(minute).collect();
    store.add(Shard(1), &batch).await.unwrap();
    let more = store.add(Shard(2), &[minute(1)]).await.unwrap_err();
    assert!(more.to_string().contains("slots_max"), "{more}");
    store.add(Shard(1), &[minute(999)]).await.unwrap();
    let lease = store.acquire(Shard(1), "one", 1_000).await.unwrap().unwrap();
    fixture.now_ms.fetch_add(120_000, SeqCst);
    store.advance(&lease, 0, &[], 0).await.unwrap();
    assert!(store.drop_slot(&lease, windfall_contract::due::SlotMinute::of(START_MS), 1).await.unwrap());
    store.add(Shard(2), &[minute(1)]).await.unwrap();
    store.add(Shard(2), &[minute(2)]).await.unwrap_err();
}
