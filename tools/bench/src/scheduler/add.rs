//! `scheduler.add`: tasks added per second by `Timers/AddBatch` over gRPC, 100 per call, by eight callers at once, with due
//! times evenly over two hours. Beside it a pipeline of `SET` and `ZADD` for each 100 of the same tasks, by eight callers
//! with a connection each. Caller, server and Redis share the machine; rounds alternate on an emptied Redis.

use super::{
    CALLERS, Control, SPREAD_MS, TARGET, by_hand, on_redis, payload, redis_slots, scattered, sized, timers,
};
use crate::measure::{Row, Unit, median, per, process_cpu_ns};
use crate::served::Served;
use anyhow::{Result, ensure};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use windfall_client::TimersClient;
use windfall_contract::Clock;
use windfall_edge::{Role, Router};
use windfall_proto::v1::{AddTimersRequest, NewTimer, add_timer_result};
use windfall_scheduler_service::TimersService;

const ROUNDS: usize = 5;
/// Tasks of a call, and of a pipeline.
const BATCH: u64 = 100;

/// What the rounds of a side gave.
#[derive(Default)]
struct Figures {
    per_s: Vec<f64>,
    redis_cpu_ns: Vec<f64>,
    own_cpu_ns: Vec<f64>,
}

pub fn measure(name: &'static str) -> Result<Row> {
    on_redis(|url| run(name, url))
}

async fn run(name: &'static str, url: String) -> Result<Row> {
    let mut control = Control::open(&url).await?;
    let tasks = sized(400_000, 20_000);
    let hands = by_hand::connect(&url).await?;
    let (mut ours, mut theirs) = (Figures::default(), Figures::default());
    for round in 0..=ROUNDS {
        for is_ours in [true, false] {
            control.empty().await?;
            let begin_ms = Clock::system().unix_ms() + 120_000;
            let due_ms = move |number: u64| begin_ms + scattered(number, tasks) * SPREAD_MS / tasks;
            let (redis_ns, own_ns) = (control.cpu_ns().await?, process_cpu_ns());
            let took = if is_ours {
                by_grpc(&url, tasks, BATCH, due_ms).await?
            } else {
                let began = Instant::now();
                by_hand::add(&hands, tasks, BATCH, due_ms).await?;
                began.elapsed()
            };
            let own_cpu_ns = per(process_cpu_ns() - own_ns, tasks);
            let redis_cpu_ns = (control.cpu_ns().await? - redis_ns) / per(tasks, 1);
            let side = if is_ours { "by gRPC" } else { "by hand" };
            let per_s = per(tasks, 1) / took.as_secs_f64();
            eprintln!("  run {round} of {ROUNDS}, {side}: {per_s:.0} a second");
            // The first round warms up.
            if round > 0 {
                let figures = if is_ours { &mut ours } else { &mut theirs };
                figures.per_s.push(per_s);
                figures.redis_cpu_ns.push(redis_cpu_ns);
                figures.own_cpu_ns.push(own_cpu_ns);
            }
        }
    }
    let (redis_cpu_ns, redis_cpu_ns_by_hand) = (median(ours.redis_cpu_ns), median(theirs.redis_cpu_ns));
    Ok(Row::new(name, median(ours.per_s), Unit::PerSecond, Some(median(theirs.per_s)))
        .with("redis_cpu_ns_a_task", redis_cpu_ns)
        .with("redis_cpu_ns_a_task_by_hand", redis_cpu_ns_by_hand)
        .with("redis_cpu_ratio", redis_cpu_ns / redis_cpu_ns_by_hand)
        .with("cpu_ns_a_task", median(ours.own_cpu_ns))
        .with("cpu_ns_a_task_by_hand", median(theirs.own_cpu_ns)))
}

/// Adds tasks over gRPC, so many per call, by [`CALLERS`] callers at a time. How long that took.
pub async fn by_grpc(
    url: &str,
    tasks: u64,
    batch: u64,
    due_ms: impl Fn(u64) -> u64 + Copy + Send + 'static,
) -> Result<Duration> {
    let timers = timers(&redis_slots(url).await?);
    let router = Router::new().timers(Arc::new(TimersService::new(timers.clone())));
    let served = Served::start(router, Role::Schedule).await?;
    let client = TimersClient::open(served.client())?;
    // The connection is there, and the names have their numbers.
    add(&client, vec![(tasks, due_ms(0))]).await?;
    let began = Instant::now();
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let client = client.clone();
        callers.spawn(async move {
            let mut first = caller * batch;
            while first < tasks {
                let numbers = first..tasks.min(first + batch);
                add(&client, numbers.map(|number| (number, due_ms(number))).collect()).await?;
                first += CALLERS * batch;
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    let took = began.elapsed();
    served.stop().await;
    timers.close().await;
    Ok(took)
}

async fn add(client: &TimersClient, tasks: Vec<(u64, u64)>) -> Result<()> {
    let timer = |(number, due_ms): (u64, u64)| NewTimer {
        target: TARGET.into(),
        due_ms,
        key: String::new(),
        payload: payload(number).to_vec(),
    };
    let timers = tasks.into_iter().map(timer).collect();
    let results = client.add_batch(AddTimersRequest { timers, ..Default::default() }).await?;
    let is_added = |result: &Option<_>| matches!(result, Some(add_timer_result::Result::Added(_)));
    ensure!(results.iter().all(|result| is_added(&result.result)), "{:?}", results.first());
    Ok(())
}
