//! A process that dies at each step between the reading of a slot and its end, on files. The next process goes on: what
//! callers were told is stored fires, what they were told is cancelled does not, and what repeats was in flight.
#![cfg(feature = "sabotage")]
#![allow(clippy::unwrap_used)]

use async_trait::async_trait;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, read_to_string};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use windfall_contract::Clock;
use windfall_contract::due::{Added, Changed, Fired, Firing, Shard, SlotStore, Target, TaskAt};
use windfall_scheduler::sabotage::{FailPoint, abort_at};
use windfall_scheduler::{
    Class, DispatchOptions, Dispatcher, NewTask, TargetRules, TenantRules, Tenants, Timers, TimersOptions,
};
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions, OpenSlotsError};

const DIR: &str = "WINDFALL_TEST_DEATHS_DIR";
const POINT: &str = "WINDFALL_TEST_DEATHS_POINT";
const TASKS: u64 = 600;
const MINUTE_MS: u64 = 61_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes each task down before it answers; the system keeps what a dead process wrote.
struct Journal(File);

#[async_trait]
impl Target for Journal {
    async fn fire(&self, batch: Vec<Firing>) -> Vec<Fired> {
        let lines: String = batch.iter().map(|task| line(&task.payload)).collect();
        (&self.0).write_all(lines.as_bytes()).unwrap();
        vec![Fired::Done; batch.len()]
    }
}

fn line(payload: &[u8]) -> String {
    format!("{}\n", u64::from_be_bytes(payload.try_into().unwrap()))
}

fn append(dir: &Path, name: &str) -> File {
    OpenOptions::new().create(true).append(true).open(dir.join(name)).unwrap()
}

fn lines(dir: &Path, name: &str) -> Vec<u64> {
    let text = read_to_string(dir.join(name)).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// Adds, cancels, fires and drops everything, unless it dies meanwhile.
async fn live(dir: &Path, dies_at: Option<FailPoint>) {
    let (system, ahead_ms) =
        (Clock::system(), Arc::new(AtomicU64::new(if dies_at.is_some() { 0 } else { MINUTE_MS })));
    let (wall, ahead) = (system.clone(), Arc::clone(&ahead_ms));
    let store_clock = Clock::from_sources(
        move || system.monotonic_ns(),
        move || wall.unix_ms() + ahead.load(Ordering::SeqCst),
    );
    let options = EmbeddedSlotsOptions { shards: 16, ..EmbeddedSlotsOptions::default() };
    let store: Arc<dyn SlotStore> = loop {
        match EmbeddedSlots::open(&dir.join("slots"), &options, store_clock.clone()) {
            Ok(store) => break store,
            Err(OpenSlotsError::InUse(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error}"),
        }
    };
    let targets = [("out".to_owned(), TargetRules::default())].into();
    let rules = TenantRules { waiting_max: 100_000, adds_per_s: 1_000_000, class: Class::Normal, targets };
    let tenants = Arc::new(Tenants([("shop".to_owned(), rules)].into()));
    let timers =
        Timers::start(TimersOptions::default(), Arc::clone(&tenants), Arc::clone(&store), Clock::system());
    if dies_at.is_some() {
        add_and_cancel(dir, &timers, store_clock.unix_ms()).await;
    }
    let target = Arc::new(Journal(append(dir, "fired"))) as Arc<dyn Target>;
    let targets = [(("shop".to_owned(), "out".to_owned()), target)].into();
    let (dispatch, clock) = (DispatchOptions::default(), Clock::system());
    let dispatcher = Dispatcher::start(dispatch, tenants, Arc::clone(&store), targets, "one".into(), clock);
    let until = Instant::now() + PATIENCE;
    while waiting(&*store).await > 0 {
        assert!(Instant::now() < until, "not all tasks have fired");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The next minute has come: slots are dropped.
    ahead_ms.store(MINUTE_MS, Ordering::SeqCst);
    while dispatcher.stats().slots.get() > 0 {
        assert!(Instant::now() < until, "not all slots are dropped");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if dies_at.is_some_and(|point| matches!(point, FailPoint::Beat | FailPoint::EntriesRead)) {
        // These are passed again and again: death comes, however slow the machine is.
        tokio::time::sleep(PATIENCE).await;
    }
    dispatcher.drain(Duration::from_secs(10)).await;
    timers.close().await;
}

async fn add_and_cancel(dir: &Path, timers: &Timers, now_ms: u64) {
    let (mut added, mut cancelled) = (append(dir, "added"), append(dir, "cancelled"));
    let task = |number: u64| NewTask {
        target: "out".into(),
        due_ms: now_ms + 500 + number,
        key: None,
        payload: number.to_be_bytes().to_vec().into(),
    };
    let mut ids = Vec::new();
    // Each call goes to a shard of its own.
    for first in (0..TASKS).step_by(50) {
        ids.extend(timers.add("shop", (first..first + 50).map(task).collect()).await);
    }
    for (number, id) in (0..TASKS).zip(ids) {
        let Added::Stored(id) = id.unwrap() else { panic!("no task has a key") };
        added.write_all(format!("{number}\n").as_bytes()).unwrap();
        if number.is_multiple_of(5) {
            match timers.cancel("shop", vec![TaskAt::Id(id)]).await[0] {
                Ok(Changed::Done(_)) => cancelled.write_all(format!("{number}\n").as_bytes()).unwrap(),
                ref other => assert_eq!(*other, Ok(Changed::Firing)),
            }
        }
    }
}

async fn waiting(store: &dyn SlotStore) -> u64 {
    let mut count = 0;
    for shard in (0..store.shards()).map(Shard) {
        count += store.counts(shard).await.unwrap().values().sum::<u64>();
    }
    count
}

/// Not a test: the process that dies, and the one after it.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let point = std::env::var(POINT).ok().map(|point| FailPoint::ALL[point.parse::<usize>().unwrap()]);
    if let Some(point) = point {
        let nth = match point {
            // It is passed in each turn: some tasks have fired by then.
            FailPoint::EntriesRead => 400,
            FailPoint::Acquired | FailPoint::StateRead | FailPoint::Beat => 2,
            _ => 3,
        };
        abort_at("one", point, nth);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(live(Path::new(&dir), point));
}

fn run(dir: &Path, point: Option<usize>) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env(DIR, dir);
    if let Some(point) = point {
        command.env(POINT, point.to_string());
    }
    let output = command.output().unwrap();
    if !output.status.success() && point.is_none() {
        panic!("the second process failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    output.status.success()
}

#[test]
fn what_dies_at_any_step_is_gone_on_with_by_the_next_process() {
    for (number, point) in FailPoint::ALL.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!run(dir.path(), Some(number)), "it came past {point:?}");
        run(dir.path(), None);
        let fired = lines(dir.path(), "fired");
        let distinct: BTreeSet<_> = fired.iter().copied().collect();
        let (added, cancelled) = (lines(dir.path(), "added"), lines(dir.path(), "cancelled"));
        assert!(added.len() as u64 == TASKS && cancelled.len() > 50, "{point:?}: {}", cancelled.len());
        for number in &added {
            let is_cancelled = cancelled.contains(number);
            assert_eq!(distinct.contains(number), !is_cancelled, "{point:?}: {number}");
        }
        let repeated = fired.len() - distinct.len();
        assert!(repeated < 400, "{point:?}: {repeated} were repeated");
    }
}
