//! `scheduler.far`: what waiting tasks of 64 bytes that are due evenly in 1 to 30 days cost, with a Redis as the near store
//! and segments in a folder: bytes on disk per task; and beside them the objects, and the memory of this process and of
//! Redis beyond what both had when they were empty.

use super::{CALLERS, Control, PAYLOAD_BYTES, TENANT, on_redis, redis_slots, scattered, sized, task, timers};
use crate::measure::{Row, Unit, per, scratch};
use anyhow::{Context, Result, ensure};
use object_store::local::LocalFileSystem;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, JoinSet};
use windfall_contract::Clock;
use windfall_contract::due::SlotStore;
use windfall_far::{FarOptions, FarSlots, FarTier, FileLog};
use windfall_scheduler::{CALL_TASKS_MAX, Timers};

const DAY_MS: u64 = 86_400_000;
/// The pause before tasks are added again that had no room: the disk is behind.
const AGAIN: Duration = Duration::from_millis(50);
/// Between two looks at the memory.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Segments have settled when nothing was merged for so long.
const SETTLED: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(600);
const MB: f64 = 1e6;

/// The size of the row where the caller has chosen one.
pub static TASKS: OnceLock<u64> = OnceLock::new();

pub fn measure(name: &'static str) -> Result<Row> {
    on_redis(|url| run(name, url))
}

async fn run(name: &'static str, url: String) -> Result<Row> {
    let mut control = Control::open(&url).await?;
    let tasks = TASKS.get().copied().unwrap_or_else(|| sized(10_000_000, 200_000));
    let (folder, clock) = (scratch()?, Clock::system());
    let (segments, log) = (folder.path().join("far"), folder.path().join("log"));
    std::fs::create_dir(&segments)?;
    let objects = Arc::new(LocalFileSystem::new_with_prefix(&segments)?.with_fsync(true));
    let options = FarOptions::default();
    let flush_bytes = u64::try_from(options.flush_bytes)?;
    let far = FarTier::open(options, Box::new(FileLog::open(&log)?), objects, clock.clone()).await?;
    let near = redis_slots(&url).await?;
    let store: Arc<dyn SlotStore> = Arc::new(FarSlots::start_shared(near, far.clone()));
    let timers = timers(&store);
    let begin_ms = clock.unix_ms() + DAY_MS;
    let due_ms = move |number: u64| begin_ms + scattered(number, tasks) * (29 * DAY_MS) / tasks;

    let empty = (resident_bytes()?, control.used_bytes().await?);
    let most = Arc::new(AtomicU64::new(empty.0));
    let watching = watch(Arc::clone(&most));
    let began = Instant::now();
    add(&timers, tasks, due_ms).await?;
    let added_per_s = per(tasks, 1) / began.elapsed().as_secs_f64();
    settle(&far, flush_bytes).await?;
    watching.abort();
    let resident = most.load(Relaxed).max(resident_bytes()?).saturating_sub(empty.0);
    let memory_mb = (per(resident, 1) + control.used_bytes().await? - empty.1) / MB;
    timers.close().await;
    ensure!(far.gauges().waiting == tasks, "{} of {tasks} tasks wait far away", far.gauges().waiting);
    let ((objects, bytes), (_, log_bytes)) = (size(&segments)?, size(&log)?);
    let payload = per(u64::try_from(PAYLOAD_BYTES)?, 1);
    let bytes_a_task = per(bytes + log_bytes, tasks);
    ensure!(bytes_a_task > payload, "{bytes_a_task} bytes per task are less than its payload");
    Ok(Row::new(name, bytes_a_task, Unit::Bytes, None)
        .with("tasks", per(tasks, 1))
        .with("objects", per(objects, 1))
        .with("memory_beyond_empty_mb", memory_mb)
        .with("added_per_s", added_per_s))
}

/// Adds all tasks by several callers. No ids are kept: they would be most of what is measured.
async fn add(timers: &Timers, tasks: u64, due_ms: impl Fn(u64) -> u64 + Copy + Send + 'static) -> Result<()> {
    let batch = u64::try_from(CALL_TASKS_MAX)?;
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let timers = timers.clone();
        callers.spawn(async move {
            let mut first = caller * batch;
            while first < tasks {
                let mut left: Vec<u64> = (first..tasks.min(first + batch)).collect();
                while !left.is_empty() {
                    let call = left.iter().map(|number| task(*number, due_ms(*number))).collect();
                    let answers = timers.add(TENANT, call).await;
                    let again = left.iter().zip(answers).filter(|(_, answer)| answer.is_err());
                    left = again.map(|(number, _)| *number).collect();
                    if !left.is_empty() {
                        tokio::time::sleep(AGAIN).await;
                    }
                }
                first += CALLERS * batch;
            }
        });
    }
    while let Some(done) = callers.join_next().await {
        done?;
    }
    Ok(())
}

/// Waits until what is full is in segments, and these are merged.
async fn settle(far: &FarTier, flush_bytes: u64) -> Result<()> {
    let (began, mut last, mut since) = (Instant::now(), 0, Instant::now());
    while far.gauges().memory_bytes >= flush_bytes || since.elapsed() < SETTLED {
        ensure!(began.elapsed() < PATIENCE, "the segments do not settle: {:?}", far.stats());
        let done = far.stats().flushes + far.stats().merges;
        if done != last {
            (last, since) = (done, Instant::now());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Notes the most that this process has had in memory.
fn watch(most: Arc<AtomicU64>) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            if let Ok(bytes) = resident_bytes() {
                most.fetch_max(bytes, Relaxed);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    })
}

fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.context("the system does not tell VmRSS")?.trim().trim_end_matches(" kB");
    Ok(kib.trim().parse::<u64>()? << 10)
}

/// The files below a folder, and their bytes.
fn size(folder: &Path) -> Result<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let (more_files, more_bytes) = match entry.file_type()?.is_dir() {
            true => size(&entry.path())?,
            false => (1, entry.metadata()?.len()),
        };
        (files, bytes) = (files + more_files, bytes + more_bytes);
    }
    Ok((files, bytes))
}
