//! `jobs.cron`: how late runs start, of 20,000 jobs on a cron of one second, on two instances that share a Redis, with an
//! executor inside this process; and how many occurrences were never called, or more than once.

use super::executors::{Came, Here, Noted};
use super::{APP, EVERY_SECOND, Instance, Stores, TENANT, put_all};
use crate::measure::{Row, Unit, per, process_cpu_ns};
use crate::scheduler::{Control, on_redis, sized};
use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_contract::Clock;
use windfall_jobs::executors::ExecutorCalls;

/// What is due so soon after the jobs were made does not count.
const SETTLING_MS: u64 = 5_000;
/// What has not come so long after the last second is lost: later than 15 s an occurrence is left out.
const LATEST: Duration = Duration::from_secs(20);

/// What was called of the occurrences that count.
struct Tally {
    calls: u64,
    occurrences: u64,
    late_ms: Histogram<u64>,
}

pub fn measure(name: &'static str) -> Result<Row> {
    on_redis(async move |url: String| run(name, &url).await)
}

async fn run(name: &'static str, url: &str) -> Result<Row> {
    let mut control = Control::open(url).await?;
    let (clock, jobs, seconds) = (Clock::system(), sized(20_000, 500), sized(30, 5));
    let noted = Arc::new(Noted::new(clock.clone()));
    let instances = two_instances(url, &noted).await?;
    put_all(&instances[0].jobs, jobs, "job", |_| EVERY_SECOND.to_owned()).await?;

    let begin_ms = (clock.unix_ms() + SETTLING_MS).next_multiple_of(1_000);
    let counted = begin_ms..begin_ms + seconds * 1_000;
    let sleep_until = |at_ms: u64| Duration::from_millis(at_ms.saturating_sub(clock.unix_ms()));
    tokio::time::sleep(sleep_until(counted.start)).await;
    let (own_ns, redis_ns, began) = (process_cpu_ns(), control.cpu_ns().await?, Instant::now());
    tokio::time::sleep(sleep_until(counted.end)).await;
    let took_ns = began.elapsed().as_secs_f64() * 1e9;
    let own_cores = per(process_cpu_ns() - own_ns, 1) / took_ns;
    let redis_cores = (control.cpu_ns().await? - redis_ns) / took_ns;

    let expected = jobs * seconds;
    let ended = Instant::now();
    while noted.read(|came| tally(came, &counted))?.occurrences < expected && ended.elapsed() < LATEST {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    // What is sent a second time comes while the instances end, at the latest.
    for instance in instances {
        let stats = instance.jobs.stats();
        eprintln!(
            "  an instance started {}, sent again {}, left out {}, found overdue {}",
            stats.started.get(),
            stats.sent_again.get(),
            stats.left_out.get(),
            stats.overdue_found.get()
        );
        instance.stop().await;
    }
    let Tally { calls, occurrences, late_ms } = noted.read(|came| tally(came, &counted))?;
    ensure!(occurrences > 0, "no occurrence of {expected} has come");
    let quantile = |quantile: f64| per(late_ms.value_at_quantile(quantile), 1);
    Ok(Row::new(name, quantile(0.99), Unit::Ms, None)
        .with("p50_ms", quantile(0.5))
        .with("max_ms", per(late_ms.max(), 1))
        .with("lost_occurrences", per(expected - occurrences, 1))
        .with("double_occurrences", per(calls - occurrences, 1))
        .with("due_per_s", per(jobs, 1))
        .with("cpu_cores", own_cores)
        .with("redis_cpu_cores", redis_cores))
}

/// Each has connections of its own. Both know of the executor.
async fn two_instances(url: &str, noted: &Arc<Noted>) -> Result<Vec<Instance>> {
    let executor = Arc::new(Here { noted: Some(Arc::clone(noted)) });
    let mut instances = Vec::new();
    for instance in ["one", "two"] {
        let stores = Stores::on_redis(url).await?;
        let calls = Arc::clone(&executor) as Arc<dyn ExecutorCalls>;
        instances.push(Instance::start(&stores, instance, calls));
    }
    instances[0].jobs.register(TENANT, APP, "here").await?;
    for instance in &instances {
        instance.has_executor().await?;
    }
    Ok(instances)
}

fn tally(came: &[Came], counted: &Range<u64>) -> Result<Tally> {
    let (mut calls, mut seen) = (0, HashSet::new());
    let mut late_ms = Histogram::new_with_bounds(1, 3_600_000, 3)?;
    for Came { job, due_ms, at_ms } in came.iter().filter(|came| counted.contains(&came.due_ms)) {
        calls += 1;
        if seen.insert((*job, *due_ms)) {
            late_ms.saturating_record(at_ms.saturating_sub(*due_ms));
        }
    }
    Ok(Tally { calls, occurrences: u64::try_from(seen.len())?, late_ms })
}
