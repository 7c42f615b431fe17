//! The rows of the scheduler: a store on a private Redis (append-only file, a sync each second) or in a folder, the
//! scheduler's own halves in this process, and targets that only note what comes, or Kafka.
//!
//! `WINDFALL_BENCH_SMALL=1` makes each row a fraction of its size, to see that it runs; its figures mean nothing then.

pub mod add;
mod by_hand;
pub mod bytes_per_task;
pub mod cancel;
pub mod embedded;
pub mod far;
pub mod fire;
pub mod lateness;
mod sink;

use crate::mint::FIELDS;
use anyhow::{Context, Result, bail};
use bytes::{BufMut, Bytes, BytesMut};
use redis::aio::MultiplexedConnection;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use windfall_contract::Clock;
use windfall_contract::due::{Added, SlotStore, Target, TaskId};
use windfall_scheduler::{
    CALL_TASKS_MAX, Class, DispatchOptions, Dispatcher, NewTask, Retry, TargetRules, TenantRules, Tenants,
    Timers, TimersOptions,
};
use windfall_servers::{Private, RedisOptions as ServerOptions};
use windfall_slots::redis::{RedisSlots, RedisSlotsOptions};

/// The app that calls by gRPC.
const TENANT: &str = FIELDS.app_id;
const TARGET: &str = "out";
/// Callers at a time.
const CALLERS: u64 = 8;
/// What a task carries.
const PAYLOAD_BYTES: usize = 64;
/// The time over which waiting tasks are spread.
const SPREAD_MS: u64 = 7_200_000;
/// Sub-batches that a target takes side by side.
const CONCURRENCY: usize = 128;
/// A dispatcher may hold so much: a quarter of it holds a minute at 50,000 tasks per second, which is read once then.
const MEMORY_BYTES_MAX: usize = 4 << 30;
/// How far ahead dispatchers read; due times are kept farther away than this until all is ready.
const AHEAD_MS: u64 = 10_000;
/// How long before that dispatchers start: they take their shards meanwhile.
const START_MS: u64 = 3_000;

/// Whether the rows only show that they run.
fn is_small() -> bool {
    std::env::var_os("WINDFALL_BENCH_SMALL").is_some_and(|value| !value.is_empty() && value != "0")
}

/// The size of a row.
pub fn sized(full: u64, small: u64) -> u64 {
    if is_small() { small } else { full }
}

/// Runs a row on a Redis of its own.
pub fn on_redis<T, F: Future<Output = Result<T>>>(run: impl FnOnce(String) -> F) -> Result<T> {
    let server = Private::start(ServerOptions::default())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(server.url().to_owned()))
}

/// A connection that empties the server, and asks it what it has used.
pub struct Control(MultiplexedConnection);

impl Control {
    pub async fn open(url: &str) -> Result<Self> {
        // Without a time limit: emptying takes its time.
        let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let client = redis::Client::open(url)?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&patient).await?;
        // Its file is not rewritten in the middle of a round of one of the sides.
        let mut keep = redis::cmd("CONFIG");
        keep.arg("SET").arg("auto-aof-rewrite-percentage").arg(0);
        keep.exec_async(&mut connection).await?;
        Ok(Self(connection))
    }

    async fn empty(&mut self) -> Result<()> {
        redis::cmd("FLUSHALL").arg("SYNC").exec_async(&mut self.0).await.context("Redis cannot be emptied")
    }

    /// CPU time, user and system, of all of its threads.
    pub async fn cpu_ns(&mut self) -> Result<f64> {
        let user_s = self.info("cpu", "used_cpu_user").await?;
        Ok((user_s + self.info("cpu", "used_cpu_sys").await?) * 1e9)
    }

    pub async fn used_bytes(&mut self) -> Result<f64> {
        self.info("memory", "used_memory").await
    }

    async fn info(&mut self, section: &str, name: &str) -> Result<f64> {
        let text: String = redis::cmd("INFO").arg(section).query_async(&mut self.0).await?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.with_context(|| format!("Redis does not tell {name}"))?
            .trim()
            .parse()
            .context("a number of Redis")
    }
}

async fn redis_slots(url: &str) -> Result<Arc<dyn SlotStore>> {
    let options = RedisSlotsOptions { call_timeout_ms: 30_000, ..RedisSlotsOptions::at(url) };
    Ok(RedisSlots::open(options).await?)
}

fn tenants() -> Arc<Tenants> {
    let retry = Retry::Fixed { attempts_max: 1_000, wait_ms: 1_000 };
    let target = TargetRules { retry, concurrency: CONCURRENCY, ..TargetRules::default() };
    let rules = TenantRules {
        waiting_max: 1_000_000_000,
        adds_per_s: 100_000_000,
        class: Class::Normal,
        targets: BTreeMap::from([(TARGET.to_owned(), target)]),
    };
    Arc::new(Tenants(BTreeMap::from([(TENANT.to_owned(), rules)])))
}

fn timers(store: &Arc<dyn SlotStore>) -> Timers {
    Timers::start(TimersOptions::default(), tenants(), Arc::clone(store), Clock::system())
}

fn dispatcher(store: Arc<dyn SlotStore>, target: Arc<dyn Target>, instance: &str) -> Dispatcher {
    let options = DispatchOptions {
        ahead_ms: AHEAD_MS,
        memory_bytes_max: MEMORY_BYTES_MAX,
        ..DispatchOptions::default()
    };
    let targets = BTreeMap::from([((TENANT.to_owned(), TARGET.to_owned()), target)]);
    Dispatcher::start(options, tenants(), store, targets, instance.to_owned(), Clock::system())
}

/// The number in front of it tells tasks apart.
fn payload(number: u64) -> Bytes {
    let mut bytes = BytesMut::with_capacity(PAYLOAD_BYTES);
    bytes.put_u64(number);
    bytes.resize(PAYLOAD_BYTES, 7);
    bytes.freeze()
}

/// The same numbers in another order, so that what is added together is due at different times. `tasks` is below the
/// factor, a prime.
const fn scattered(number: u64, tasks: u64) -> u64 {
    number.wrapping_mul(2_654_435_761) % tasks
}

fn task(number: u64, due_ms: u64) -> NewTask {
    NewTask { target: TARGET.into(), due_ms, key: None, payload: payload(number) }
}

/// Adds tasks by [`CALLERS`] callers at a time, 1,000 per call, in the order of their numbers. Returns their ids.
async fn fill(
    timers: &Timers,
    numbers: Range<u64>,
    due_ms: impl Fn(u64) -> u64 + Copy + Send + 'static,
) -> Result<Vec<(u64, TaskId)>> {
    let batch = u64::try_from(CALL_TASKS_MAX)?;
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (timers, numbers) = (timers.clone(), numbers.clone());
        callers.spawn(async move {
            let mut ids = Vec::new();
            let mut first = numbers.start + caller * batch;
            while first < numbers.end {
                let tasks =
                    (first..numbers.end.min(first + batch)).map(|number| task(number, due_ms(number)));
                let answers = timers.add(TENANT, tasks.collect()).await;
                for (number, answer) in (first..).zip(answers) {
                    match answer {
                        Ok(Added::Stored(id)) => ids.push((number, id)),
                        other => bail!("task {number}: {other:?}"),
                    }
                }
                first += CALLERS * batch;
            }
            Ok(ids)
        });
    }
    let mut all = Vec::new();
    while let Some(ids) = callers.join_next().await {
        all.extend(ids??);
    }
    Ok(all)
}

/// Waits until so many tasks have come.
async fn wait_for(what: &str, count: u64, within: Duration, counted: impl Fn() -> u64) -> Result<()> {
    let began = tokio::time::Instant::now();
    while counted() < count {
        if began.elapsed() > within {
            bail!("{what}: {} of {count} within {within:?}", counted());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Waits until dispatchers are to start, so that what they do before costs nothing. Refuses a round whose tasks were not all
/// there before dispatchers began to read.
async fn start_time(clock: &Clock, begin_ms: u64) -> Result<()> {
    let left_ms = begin_ms.saturating_sub(clock.unix_ms());
    if left_ms < AHEAD_MS {
        bail!(
            "adding took too long: {left_ms} ms are left until the first task is due; is the machine busy?"
        );
    }
    tokio::time::sleep(Duration::from_millis(left_ms.saturating_sub(AHEAD_MS + START_MS))).await;
    Ok(())
}
