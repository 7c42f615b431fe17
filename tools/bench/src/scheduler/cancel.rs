//! `scheduler.cancel`: tasks cancelled per second while they wait in Redis, by eight callers at once, 1,000 per call: every
//! second one. Then the others fire, and none of those. No baseline: peers have no cancel.

use super::sink::Sink;
use super::{
    AHEAD_MS, CALLERS, Control, TENANT, dispatcher, fill, on_redis, redis_slots, sized, start_time, timers,
    wait_for,
};
use crate::measure::{Row, Unit, median, per};
use anyhow::{Result, bail, ensure};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use windfall_contract::Clock;
use windfall_contract::due::{Changed, Target, TaskAt, TaskId};
use windfall_scheduler::{CALL_TASKS_MAX, Timers};

const ROUNDS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(120);
/// What must not fire has this time to fire.
const SETTLE: Duration = Duration::from_secs(2);

pub fn measure(name: &'static str) -> Result<Row> {
    on_redis(|url| run(name, url))
}

async fn run(name: &'static str, url: String) -> Result<Row> {
    let mut control = Control::open(&url).await?;
    let clock = Clock::system();
    let tasks = sized(500_000, 20_000);
    let mut per_s = Vec::new();
    for round in 0..=ROUNDS {
        control.empty().await?;
        let store = redis_slots(&url).await?;
        let timers = timers(&store);
        let begin_ms = clock.unix_ms() + AHEAD_MS + sized(25_000, 5_000);
        let ids = fill(&timers, 0..tasks, move |number| begin_ms + number % 1_000).await?;
        let even: Vec<TaskId> =
            ids.into_iter().filter(|(number, _)| number % 2 == 0).map(|(_, id)| id).collect();
        let cancelled = u64::try_from(even.len())?;
        let rate = per(cancelled, 1) / cancel(&timers, even).await?.as_secs_f64();
        start_time(&clock, begin_ms).await?;
        timers.close().await;

        let sink = Arc::new(Sink::new(clock.clone())?);
        let dispatcher = dispatcher(store, Arc::clone(&sink) as Arc<dyn Target>, "one");
        wait_for("fired", tasks - cancelled, PATIENCE, || sink.fired()).await?;
        tokio::time::sleep(SETTLE).await;
        dispatcher.drain(PATIENCE).await;
        ensure!(sink.even() == 0, "{} tasks fired after their cancel", sink.even());
        ensure!(sink.fired() == tasks - cancelled, "{} tasks fired", sink.fired());
        eprintln!("  run {round} of {ROUNDS}: {rate:.0} a second");
        // The first round warms up.
        if round > 0 {
            per_s.push(rate);
        }
    }
    Ok(Row::new(name, median(per_s), Unit::PerSecond, None))
}

async fn cancel(timers: &Timers, ids: Vec<TaskId>) -> Result<Duration> {
    let began = Instant::now();
    let mut callers = JoinSet::new();
    for own in ids.chunks(ids.len().div_ceil(usize::try_from(CALLERS)?).max(1)) {
        let (timers, own) = (timers.clone(), own.to_vec());
        callers.spawn(async move {
            for batch in own.chunks(CALL_TASKS_MAX) {
                let answers = timers.cancel(TENANT, batch.iter().copied().map(TaskAt::Id).collect()).await;
                if let Some(other) = answers.iter().find(|answer| !matches!(answer, Ok(Changed::Done(_)))) {
                    bail!("a task was not cancelled: {other:?}");
                }
            }
            Ok(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    Ok(began.elapsed())
}
