//! `scheduler.bytes_per_task`: what a waiting task of 64 bytes takes of Redis's `used_memory`, with due times evenly over
//! two hours and 64 shards. Beside it the same tasks as ids in a sorted set and payloads in strings.

use super::{Control, SPREAD_MS, by_hand, fill, on_redis, redis_slots, scattered, sized, timers};
use crate::measure::{Row, Unit, per};
use anyhow::Result;
use std::time::Duration;
use windfall_contract::Clock;

/// What connections hold for a moment is given back by then.
const SETTLE: Duration = Duration::from_secs(2);

pub fn measure(name: &'static str) -> Result<Row> {
    on_redis(|url| run(name, url))
}

async fn run(name: &'static str, url: String) -> Result<Row> {
    let mut control = Control::open(&url).await?;
    // Never fewer: the slots themselves would weigh more.
    let tasks = sized(1_000_000, 200_000);
    let begin_ms = Clock::system().unix_ms() + 120_000;
    let due_ms = move |number: u64| begin_ms + scattered(number, tasks) * SPREAD_MS / tasks;

    let store = redis_slots(&url).await?;
    let timers = timers(&store);
    let empty = used(&mut control).await?;
    fill(&timers, 0..tasks, due_ms).await?;
    let ours = (used(&mut control).await? - empty) / per(tasks, 1);
    timers.close().await;
    drop(store);

    control.empty().await?;
    let hands = by_hand::connect(&url).await?;
    let empty = used(&mut control).await?;
    by_hand::add(&hands, tasks, 1_000, due_ms).await?;
    let theirs = (used(&mut control).await? - empty) / per(tasks, 1);
    Ok(Row::new(name, ours, Unit::Bytes, Some(theirs)))
}

async fn used(control: &mut Control) -> Result<f64> {
    tokio::time::sleep(SETTLE).await;
    control.used_bytes().await
}
