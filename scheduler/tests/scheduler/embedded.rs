//! The scheduler on files: adds, cancels, moves, a dispatcher that dies and one that leaves, on the system's clock.

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use windfall_contract::Clock;
use windfall_contract::due::{
    Added, Changed, Fired, Firing, Moved, Shard, SlotStore, Target, TaskAt, TaskId,
};
use windfall_scheduler::{
    Class, DispatchOptions, Dispatcher, Drained, NewTask, TargetRules, TenantRules, Tenants, Timers,
    TimersOptions,
};
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};

const TASKS: u64 = 20_000;

/// Keeps what it gets, and when.
struct Journal {
    clock: Clock,
    got: Mutex<Vec<(u64, u64, TaskId)>>,
}

#[async_trait]
impl Target for Journal {
    async fn fire(&self, batch: Vec<Firing>) -> Vec<Fired> {
        let now_ms = self.clock.unix_ms();
        tokio::time::sleep(Duration::from_millis(2)).await;
        let number = |payload: &Bytes| u64::from_be_bytes(payload[..8].try_into().unwrap());
        self.got.lock().extend(batch.iter().map(|task| (number(&task.payload), now_ms, task.id)));
        vec![Fired::Done; batch.len()]
    }
}

impl Journal {
    fn distinct(&self) -> usize {
        self.got.lock().iter().map(|(number, ..)| *number).collect::<BTreeSet<_>>().len()
    }
}

/// The system's clock, and what a test adds.
fn clock() -> (Clock, Arc<AtomicU64>) {
    let (system, ahead_ms) = (Clock::system(), Arc::new(AtomicU64::new(0)));
    let (wall, ahead) = (system.clone(), Arc::clone(&ahead_ms));
    let clock = Clock::from_sources(
        move || system.monotonic_ns(),
        move || wall.unix_ms() + ahead.load(Ordering::SeqCst),
    );
    (clock, ahead_ms)
}

async fn wait_for(what: &str, within: Duration, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + within;
    while !is_so() {
        assert!(Instant::now() < until, "{what}: not within {within:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timers_on_files_fire_over_a_death_and_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (store_clock, ahead_ms) = clock();
    let options = EmbeddedSlotsOptions { shards: 16, ..EmbeddedSlotsOptions::default() };
    let store = EmbeddedSlots::open(dir.path(), &options, store_clock.clone()).unwrap();
    let store: Arc<dyn SlotStore> = store;
    let targets = [("out".to_owned(), TargetRules::default())].into();
    let rules = TenantRules { waiting_max: 100_000, adds_per_s: 1_000_000, class: Class::Normal, targets };
    let tenants = Arc::new(Tenants([("shop".to_owned(), rules)].into()));
    let journal = Arc::new(Journal { clock: store_clock.clone(), got: Mutex::default() });
    let start = |instance: &str| {
        let target = Arc::clone(&journal) as Arc<dyn Target>;
        let targets = BTreeMap::from([(("shop".to_owned(), "out".to_owned()), target)]);
        let (options, clock) = (DispatchOptions::default(), Clock::system());
        Dispatcher::start(options, Arc::clone(&tenants), Arc::clone(&store), targets, instance.into(), clock)
    };
    let (timers_clock, options) = (Clock::system(), TimersOptions::default());
    let timers = Timers::start(options, Arc::clone(&tenants), Arc::clone(&store), timers_clock);

    // A third is due soon, a third later, and a third is cancelled or moved.
    let begun_ms = store_clock.unix_ms();
    let due_ms = |number: u64| begun_ms + if number.is_multiple_of(3) { 2_000 } else { 12_000 };
    let mut ids = Vec::new();
    for first in (0..TASKS).step_by(1_000) {
        let task = |number: u64| NewTask {
            target: "out".into(),
            due_ms: due_ms(number),
            key: None,
            payload: Bytes::copy_from_slice(&number.to_be_bytes()),
        };
        for added in timers.add("shop", (first..first + 1_000).map(task).collect()).await {
            let Ok(Added::Stored(id)) = added else { panic!("{added:?}") };
            ids.push(id);
        }
    }
    let dying = start("a");
    let leaving = start("b");
    let mut cancelled = BTreeSet::new();
    for (number, id) in (0..TASKS).zip(&ids).filter(|(number, _)| number % 3 == 2).take(1_000) {
        assert_eq!(timers.cancel("shop", vec![TaskAt::Id(*id)]).await, [Ok(Changed::Done(*id))]);
        cancelled.insert(number);
    }
    let moved = usize::try_from(TASKS - 1).unwrap();
    let to = Moved { due_ms: Some(begun_ms + 14_000), payload: None };
    assert!(matches!(timers.update("shop", TaskAt::Id(ids[moved]), to).await, Ok(Changed::Done(_))));

    let soon = usize::try_from(TASKS.div_ceil(3)).unwrap();
    wait_for("the first third", Duration::from_secs(20), || journal.distinct() >= soon).await;
    drop(dying);
    let _last = start("c");
    wait_for("the rest begins", Duration::from_secs(30), || journal.distinct() > soon + 100).await;
    assert_eq!(leaving.drain(Duration::from_secs(10)).await, Drained::default());
    let expected = ids.len() - cancelled.len();
    wait_for("all fire", Duration::from_secs(30), || journal.distinct() >= expected).await;
    for (number, at_ms, id) in journal.got.lock().iter() {
        assert!(*at_ms >= due_ms(*number), "{number} is early");
        assert!(!cancelled.contains(number), "{number} was cancelled");
        assert_eq!(*id, ids[usize::try_from(*number).unwrap()], "the id is the first one");
    }
    // What was in flight when the first one died may be repeated, and no more.
    assert!(
        journal.got.lock().len() - expected <= soon,
        "{} were repeated",
        journal.got.lock().len() - expected
    );

    ahead_ms.store(120_000, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(2)).await;
    for shard in (0..16).map(Shard) {
        assert!(store.counts(shard).await.unwrap().values().all(|count| *count == 0));
    }
    assert_eq!(timers.get("shop", TaskAt::Id(ids[0])).await, Ok(None), "its slot is gone");
    timers.close().await;
}
