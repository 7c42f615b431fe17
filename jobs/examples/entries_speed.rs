//! How fast the embedded store of entries changes groups of three: one that is there, one that is new and woken later, one
//! that is deleted. `cargo run --release -p windfall-jobs --example entries_speed [groups per call] [process|machine]`.

use std::sync::Arc;
use std::time::Instant;
use windfall_contract::Clock;
use windfall_contract::due::{Durability, Shard};
use windfall_contract::entries::{
    Applied, EntryChange, EntryError, EntryGroup, EntryKey, EntryStore, Expect, InvalidKey, To,
};
use windfall_jobs::store::embedded::{EmbeddedEntries, EmbeddedEntriesOptions};

const GROUPS: u64 = 600_000;
const CALLERS: u64 = 8;
const SHARDS: u16 = 64;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let batch = words.next().map_or(Ok(300), |text| text.parse::<u64>())?;
    let durability = match words.next().as_deref() {
        Some("machine") => Durability::Machine,
        _ => Durability::Process,
    };
    let dir = tempfile::tempdir()?;
    let options = EmbeddedEntriesOptions { durability, ..EmbeddedEntriesOptions::default() };
    let store = EmbeddedEntries::open(dir.path(), &options, Clock::system())?;
    let began = Instant::now();
    let callers = (0..CALLERS).map(|caller| tokio::spawn(run(Arc::clone(&store), caller, batch)));
    let mut done = 0;
    for caller in callers.collect::<Vec<_>>() {
        done += caller.await??;
    }
    let took = began.elapsed();
    let a_second = u128::from(done) * 1_000_000 / took.as_micros().max(1);
    println!("{done} groups of 3 changes, {batch} by call, in {took:?}: {a_second} a second");
    Ok(())
}

async fn run(store: Arc<EmbeddedEntries>, caller: u64, batch: u64) -> Result<u64, EntryError> {
    let mut done = 0;
    for call in (caller..GROUPS / batch).step_by(8) {
        let groups: Result<Vec<_>, _> = (0..batch).map(|at| group(call * batch + at, batch)).collect();
        let groups = groups.map_err(|error| EntryError::Unusable(error.to_string()))?;
        let shard = Shard(u16::try_from(call % u64::from(SHARDS)).unwrap_or(0));
        let (_, applied) = store.apply(shard, &groups).await?;
        done += applied.iter().filter(|one| matches!(one, Applied::Done(_))).count() as u64;
    }
    Ok(done)
}

fn group(at: u64, batch: u64) -> Result<EntryGroup, InvalidKey> {
    let put = |name: String, expect, wake_ms| {
        let to = To::Put { value: vec![7; 200].into(), wake_ms };
        Ok(EntryChange { key: EntryKey::new(name)?, expect, to })
    };
    // The one of the shard's call before.
    let gone = match at.checked_sub(u64::from(SHARDS) * batch) {
        Some(before) => format!("run/{before:016}"),
        None => "none".into(),
    };
    let gone = EntryKey::new(gone)?;
    let changes = vec![
        put(format!("job/{:08}", at % 5_000), Expect::Anything, Some(1_900_000_000_000 + at))?,
        put(format!("run/{at:016}"), Expect::Absent, Some(1_900_000_000_000 + at))?,
        EntryChange { key: gone, expect: Expect::Anything, to: To::Deleted },
    ];
    Ok(EntryGroup { changes, not_after_ms: None })
}
