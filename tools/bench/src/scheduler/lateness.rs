//! `scheduler.lateness`: how late tasks come, 100,000 per second for 60 s, from Redis by two instances to a target that
//! only notes the time. `scheduler.mixed`: the same while as many tasks per second are added, which are due later. Both
//! instances, the callers and Redis share the machine. One run of 60 s, and no baseline.

use super::sink::Sink;
use super::{
    AHEAD_MS, Control, SPREAD_MS, TENANT, dispatcher, fill, on_redis, redis_slots, scattered, sized,
    start_time, task, timers, wait_for,
};
use crate::measure::{Row, Unit, per, process_cpu_ns};
use anyhow::{Result, bail, ensure};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use windfall_contract::Clock;
use windfall_contract::due::{Added, Target};
use windfall_scheduler::Timers;

/// Tasks that are surely added per second before they are due.
const FILL_PER_S: u64 = 60_000;
/// Callers that add while tasks fire, and tasks of their calls.
const ADDERS: u64 = 4;
const BATCH: u64 = 500;
/// What is added while tasks fire is due so much later.
const LATER_MS: u64 = 600_000;
const PATIENCE: Duration = Duration::from_secs(120);

pub fn lateness(name: &'static str) -> Result<Row> {
    on_redis(|url| run(name, url, false))
}

pub fn mixed(name: &'static str) -> Result<Row> {
    on_redis(|url| run(name, url, true))
}

async fn run(name: &'static str, url: String, adds: bool) -> Result<Row> {
    let mut control = Control::open(&url).await?;
    let clock = Clock::system();
    let (per_s, seconds) = (sized(100_000, 5_000), sized(60, 10));
    let tasks = per_s * seconds;
    let store = redis_slots(&url).await?;
    let timers = timers(&store);
    let begin_ms = clock.unix_ms() + AHEAD_MS + 5_000 + tasks * 1_000 / FILL_PER_S;
    fill(&timers, 0..tasks, move |number| begin_ms + scattered(number, tasks) * 1_000 / per_s).await?;
    start_time(&clock, begin_ms).await?;

    let sink = Arc::new(Sink::new(clock.clone())?);
    let (own_ns, redis_ns) = (process_cpu_ns(), control.cpu_ns().await?);
    let mut dispatchers = Vec::new();
    for instance in ["one", "two"] {
        let target = Arc::clone(&sink) as Arc<dyn Target>;
        dispatchers.push(dispatcher(redis_slots(&url).await?, target, instance));
    }
    tokio::time::sleep(Duration::from_millis(begin_ms.saturating_sub(clock.unix_ms()))).await;
    let patience = PATIENCE + Duration::from_secs(seconds);
    let fired = wait_for("fired", tasks, patience, || sink.fired());
    let added_per_s = if adds {
        let (added_per_s, ()) = tokio::try_join!(add(&timers, begin_ms, tasks, per_s), fired)?;
        Some(added_per_s)
    } else {
        fired.await?;
        None
    };
    for dispatcher in dispatchers {
        dispatcher.drain(PATIENCE).await;
    }
    let own_cpu_ns = per(process_cpu_ns() - own_ns, tasks);
    let redis_cpu_ns = (control.cpu_ns().await? - redis_ns) / per(tasks, 1);
    timers.close().await;
    ensure!(sink.fired() == tasks, "{} of {tasks} tasks came", sink.fired());
    ensure!(sink.early() == 0, "{} tasks came early", sink.early());
    let late_ms = sink.late_ms();
    let quantile = |quantile: f64| per(late_ms.value_at_quantile(quantile), 1);
    let took_ms = sink.last_ms().saturating_sub(begin_ms).max(1);
    let row = Row::new(name, quantile(0.99), Unit::Ms, None)
        .with("p50_ms", quantile(0.5))
        .with("max_ms", per(late_ms.max(), 1))
        .with("fired_per_s", per(tasks * 1_000, took_ms))
        .with("cpu_ns_a_task", own_cpu_ns)
        .with("redis_cpu_ns_a_task", redis_cpu_ns);
    Ok(match added_per_s {
        Some(added_per_s) => row.with("added_per_s", added_per_s),
        None => row,
    })
}

/// Adds tasks at a rate. Says how many per second were added.
async fn add(timers: &Timers, begin_ms: u64, tasks: u64, per_s: u64) -> Result<f64> {
    let began = Instant::now();
    let mut callers = JoinSet::new();
    for caller in 0..ADDERS {
        let timers = timers.clone();
        callers.spawn(async move {
            let mut first = caller * BATCH;
            while first < tasks {
                let numbers = first..tasks.min(first + BATCH);
                let at = Duration::from_millis(numbers.end * 1_000 / per_s);
                tokio::time::sleep(at.saturating_sub(began.elapsed())).await;
                let due_ms = |number: u64| begin_ms + LATER_MS + scattered(number, tasks) * SPREAD_MS / tasks;
                let answers =
                    timers.add(TENANT, numbers.map(|number| task(number, due_ms(number))).collect()).await;
                if let Some(other) = answers.iter().find(|answer| !matches!(answer, Ok(Added::Stored(_)))) {
                    bail!("a task was not added: {other:?}");
                }
                first += ADDERS * BATCH;
            }
            Ok(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    Ok(per(tasks, 1) / began.elapsed().as_secs_f64())
}
