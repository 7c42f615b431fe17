//! What tasks 1 to 30 days ahead cost: `far_memory [tasks] [folder]`. Prints bytes and objects on disk, and what the
//! process has in memory beyond what it had when the far tier was empty.

use object_store::local::LocalFileSystem;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use windfall_contract::Clock;
use windfall_contract::due::{NewRecord, Route, Shard};
use windfall_far::{FarOptions, FarTier, FileLog};
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};

const BATCH: u64 = 1_000;
const DAY_MS: u64 = 24 * 3_600_000;
const PAYLOAD_BYTES: usize = 64;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let tasks: u64 = arguments.next().map_or(Ok(1_000_000), |count| count.parse())?;
    let temporary = tempfile::tempdir()?;
    let dir = arguments.next().map_or(temporary.path().to_owned(), Into::into);
    let clock = Clock::system();
    let near = EmbeddedSlots::open(&dir.join("slots"), &EmbeddedSlotsOptions::default(), clock.clone())?;
    std::fs::create_dir_all(dir.join("far"))?;
    let objects = Arc::new(LocalFileSystem::new_with_prefix(dir.join("far"))?);
    let log = Box::new(FileLog::open(&dir.join("log"))?);
    let far = FarTier::open(FarOptions::default(), log, objects, clock.clone()).await?;
    let running = tokio::spawn({
        let (far, near) = (far.clone(), near.clone());
        async move { far.run(near).await }
    });
    let empty_bytes = resident_bytes()?;
    let (began, start_ms) = (Instant::now(), clock.unix_ms() + DAY_MS);
    let mut most_bytes = 0;
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for batch in 0..tasks.div_ceil(BATCH) {
        let task = |_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let payload = vec![u8::try_from(random % 251).unwrap_or(0); PAYLOAD_BYTES].into();
            let due_ms = start_ms + random % (29 * DAY_MS);
            NewRecord { due_ms, route: Route { tenant: 1, target: 1 }, key: None, payload }
        };
        let records: Vec<_> = (0..BATCH.min(tasks - batch * BATCH)).map(task).collect();
        let shard = Shard(u16::try_from(batch % 64)?);
        // While memory is full, the disk is waited for.
        while far.add(shard, records.clone()).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        if batch % 100 == 0 {
            most_bytes = most_bytes.max(resident_bytes()?);
        }
    }
    let added_s = began.elapsed().as_secs_f64();
    // What is full is written and merged.
    tokio::time::sleep(std::time::Duration::from_secs(20)).await;
    let resident = resident_bytes()?.max(most_bytes);
    let (objects, bytes) = size(&dir.join("far"))?;
    let (_, log_bytes) = size(&dir.join("log"))?;
    println!("{tasks} tasks of {PAYLOAD_BYTES} bytes in {added_s:.1} s");
    println!(
        "objects {objects}, bytes {bytes}, of the log {log_bytes}, a task {}",
        (bytes + log_bytes) / tasks.max(1)
    );
    println!("resident MiB: empty {}, at most {}", empty_bytes >> 20, resident >> 20);
    println!("{:?} {:?}", far.gauges(), far.stats());
    running.abort();
    Ok(())
}

fn resident_bytes() -> Result<u64, Box<dyn Error>> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split_whitespace().nth(1).ok_or("no second field")?.parse()?;
    Ok(pages * 4_096)
}

fn size(dir: &Path) -> Result<(u64, u64), Box<dyn Error>> {
    let (mut files, mut bytes) = (0, 0);
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let (more_files, more_bytes) = match entry.file_type()?.is_dir() {
            true => size(&entry.path())?,
            false => (1, entry.metadata()?.len()),
        };
        (files, bytes) = (files + more_files, bytes + more_bytes);
    }
    Ok((files, bytes))
}
