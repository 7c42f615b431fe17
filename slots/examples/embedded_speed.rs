//! How fast the embedded slot store adds and fires 1,000,000 tasks of 64 bytes that are spread over two hours:
//! `cargo run --release -p windfall-slots --example embedded_speed [tasks per call]`. Its clock is a number, so that two
//! hours pass at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;
use windfall_contract::Clock;
use windfall_contract::due::{
    FinishBatch, LeaseError, NewRecord, ReadFrom, Route, Shard, SlotEntry, SlotStore, StoreError,
};
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};

const TASKS: u64 = 1_000_000;
const CALLERS: u64 = 8;
const SHARDS: u16 = 64;
const START_MS: u64 = 1_800_000_000_000;
const SPREAD_MS: u64 = 7_200_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let batch = std::env::args().nth(1).map_or(Ok(100), |text| text.parse::<u64>())?;
    let dir = tempfile::tempdir()?;
    let now_ms = Arc::new(AtomicU64::new(START_MS - 60_000));
    let own_ms = Arc::clone(&now_ms);
    let clock = Clock::from_unix_ms(move || own_ms.load(SeqCst));
    let store = EmbeddedSlots::open(dir.path(), &EmbeddedSlotsOptions::default(), clock)?;

    let began = Instant::now();
    let callers = (0..CALLERS).map(|caller| tokio::spawn(add(Arc::clone(&store), caller, batch)));
    for caller in callers.collect::<Vec<_>>() {
        caller.await??;
    }
    report("added", TASKS, began);

    now_ms.store(START_MS + SPREAD_MS + 60_000, SeqCst);
    let began = Instant::now();
    let callers = (0..CALLERS).map(|caller| tokio::spawn(fire(Arc::clone(&store), caller)));
    let mut fired = 0;
    for caller in callers.collect::<Vec<_>>() {
        fired += caller.await??;
    }
    report("fired", fired, began);
    Ok(())
}

async fn add(store: Arc<EmbeddedSlots>, caller: u64, batch: u64) -> Result<(), StoreError> {
    let payload = bytes::Bytes::from(vec![7; 64]);
    for call in (caller..TASKS / batch).step_by(8) {
        let task = |at: u64| NewRecord {
            due_ms: START_MS + (call * batch + at).wrapping_mul(0x9e37_79b9_7f4a_7c15) % SPREAD_MS,
            route: Route { tenant: 1, target: 1 },
            key: None,
            payload: payload.clone(),
        };
        let tasks: Vec<_> = (0..batch).map(task).collect();
        store.add(Shard(u16::try_from(call % u64::from(SHARDS)).unwrap_or(0)), &tasks).await?;
    }
    Ok(())
}

/// Reads, finishes and drops all slots of the caller's shards.
async fn fire(store: Arc<EmbeddedSlots>, caller: u64) -> Result<u64, LeaseError> {
    let mut fired = 0;
    for shard in (0..SHARDS).map(Shard).filter(|shard| u64::from(shard.0) % CALLERS == caller) {
        let Ok(lease) = store.acquire(shard, "one", 60_000).await? else { continue };
        let slots = store.advance(&lease, 0, &[], 0).await?.slots;
        for (sequence, (slot, entries)) in (1..).zip(slots) {
            let read =
                store.advance(&lease, 0, &[ReadFrom { slot, next_index: 0 }], usize::MAX).await?.entries;
            let entries_read = read.iter().flat_map(|part| &part.2);
            let is_task = |entry| matches!(SlotEntry::decode(entry), Ok(SlotEntry::Task(_)));
            let tasks = u32::try_from(entries_read.filter(|entry| is_task(entry)).count()).unwrap_or(0);
            let bytes = usize::try_from(entries.div_ceil(8)).unwrap_or(0);
            let batch = FinishBatch {
                sequence,
                done: vec![(0, vec![0xff; bytes].into())],
                over: [(1, tasks)].into(),
                ..FinishBatch::default()
            };
            store.finish(&lease, slot, &batch).await?;
            store.drop_slot(&lease, slot, entries).await?;
            fired += u64::from(tasks);
        }
    }
    Ok(fired)
}

fn report(what: &str, tasks: u64, began: Instant) {
    let took = began.elapsed();
    let a_second = u128::from(tasks) * 1_000_000 / took.as_micros().max(1);
    println!("{what} {tasks} tasks in {took:?}: {a_second} a second");
}
