//! `scheduler.embedded`: tasks fired per second from a folder of this machine, of which all are due in one second, from the
//! second's beginning until the last one has come to a target that only counts; and how many per second were added before,
//! by eight callers, 1,000 per call.

use super::sink::Sink;
use super::{AHEAD_MS, dispatcher, fill, sized, start_time, timers, wait_for};
use crate::measure::{Row, Unit, median, per, scratch};
use anyhow::{Result, ensure};
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_contract::Clock;
use windfall_contract::due::{SlotStore, Target};
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};

const ROUNDS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(120);

pub fn measure(name: &'static str) -> Result<Row> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let tasks = sized(1_000_000, 20_000);
    let (mut added_per_s, mut fired_per_s) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (added, fired) = runtime.block_on(run(tasks))?;
        eprintln!("  run {round} of {ROUNDS}: {added:.0} added and {fired:.0} fired a second");
        // The first round warms up.
        if round > 0 {
            added_per_s.push(added);
            fired_per_s.push(fired);
        }
    }
    Ok(Row::new(name, median(fired_per_s), Unit::PerSecond, None).with("added_per_s", median(added_per_s)))
}

/// Tasks added and fired per second, in a folder of its own.
async fn run(tasks: u64) -> Result<(f64, f64)> {
    let clock = Clock::system();
    let folder = scratch()?;
    let store: Arc<dyn SlotStore> = tokio::task::block_in_place(|| {
        EmbeddedSlots::open(folder.path(), &EmbeddedSlotsOptions::default(), clock.clone())
    })?;
    let timers = timers(&store);
    let begin_ms = clock.unix_ms() + AHEAD_MS + sized(20_000, 5_000);
    let began = Instant::now();
    fill(&timers, 0..tasks, move |number| begin_ms + number % 1_000).await?;
    let added_per_s = per(tasks, 1) / began.elapsed().as_secs_f64();
    start_time(&clock, begin_ms).await?;
    timers.close().await;

    let sink = Arc::new(Sink::new(clock.clone())?);
    let dispatcher = dispatcher(store, Arc::clone(&sink) as Arc<dyn Target>, "one");
    wait_for("fired", tasks, PATIENCE, || sink.fired()).await?;
    let fired_ms = sink.last_ms().saturating_sub(begin_ms).max(1);
    dispatcher.drain(PATIENCE).await;
    ensure!(sink.fired() == tasks, "{} of {tasks} tasks came", sink.fired());
    Ok((added_per_s, per(tasks * 1_000, fired_ms)))
}
