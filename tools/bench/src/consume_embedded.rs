//! `consume.embedded`: events per second from the first poll to the last commit, by the real consumer with a grant
//! that does nothing, on the embedded queue on disk: 256 events per record, about 200 bytes per event, limits that
//! nothing reaches. Beside it the same with one event per record, which is the cost for a reader that cannot read
//! packs.

pub mod topic;

use crate::measure::{Row, Unit, median, per, process_cpu_ns, scratch};
use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_consumer::{
    Done, Options, Parts, RequeueOutcome, RequeueRecord, RequeueSink, SharedLimiter, SpillLog,
};
use windfall_contract::Clock;
use windfall_contract::broker::{Broker, Consumer};
use windfall_contract::rewards::{ArchiveUnavailable, Failed, GrantReply, Rewards};
use windfall_contract::rules::{Fuse, Limit, Limits, Pacing, Rules, TypeLimit};
use windfall_limiter::{Limiter, Now};
use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};

/// Fresh topics, filled and drained one after the other, so that seconds are measured and 1.2 GB of disk are enough.
const RUNS: usize = 7;
const GROUP: &str = "reward";
/// How long closing may take.
const CLOSE: Duration = Duration::from_secs(10);
/// Without an end so long after the start, something hangs.
const DEADLINE: Duration = Duration::from_secs(120);

/// The number of events in one run, and in one record.
struct Load {
    events: u64,
    pack: u32,
}

const PACKED: Load = Load { events: 5_000_000, pack: 256 };
const SINGLE: Load = Load { events: 1_000_000, pack: 1 };

pub fn measure(name: &'static str) -> Result<Row> {
    // As `windfall demo` has it.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (mut packed_per_s, mut single_per_s) = (Vec::new(), Vec::new());
    for run in 1..=RUNS {
        for (load, rates_per_s) in [(PACKED, &mut packed_per_s), (SINGLE, &mut single_per_s)] {
            let Drained { took, cpu_ns } = runtime.block_on(fill_and_drain(&load))?;
            let rate_per_s = per(load.events, 1) / took.as_secs_f64();
            eprintln!(
                "  run {run} of {RUNS}: {} events, {} a record: {rate_per_s:.0} a second, {:.0} ns of CPU an event",
                load.events,
                load.pack,
                per(cpu_ns, load.events)
            );
            rates_per_s.push(rate_per_s);
        }
    }
    Ok(Row::new(name, median(packed_per_s), Unit::PerSecond, Some(median(single_per_s))))
}

struct Drained {
    took: Duration,
    cpu_ns: u64,
}

async fn fill_and_drain(load: &Load) -> Result<Drained> {
    let directory = scratch()?;
    let broker = EmbeddedBroker::open(&directory.path().join("broker"), &EmbeddedOptions::default())?;
    topic::fill(&*broker, topic::NAME, load.events, load.pack, |record| record)?;
    let source = broker.consumer(topic::NAME, GROUP).await?;
    let parts = parts(source, Arc::new(NoWork), rules(), &directory.path().join("salvage"))?;
    let (began, cpu_before_ns) = (Instant::now(), process_cpu_ns());
    let consumer = windfall_consumer::spawn(parts, Options::default());
    while consumer.stats().credited.get() < load.events {
        ensure!(began.elapsed() < DEADLINE, "the consumer makes no progress: {:?}", consumer.stats());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let credited = consumer.stats().credited.get();
    let report = consumer.drain(CLOSE).await?;
    let drained = Drained { took: began.elapsed(), cpu_ns: process_cpu_ns() - cpu_before_ns };
    let left = broker.lag(topic::NAME, GROUP).await?.records();
    ensure!(report.is_clean() && left == 0, "{left} records are not committed: {report:?}");
    ensure!(credited == load.events, "{credited} of {} events are credited", load.events);
    Ok(drained)
}

/// Wired as `windfall` does.
pub fn parts(
    source: Box<dyn Consumer>,
    rewards: Arc<dyn Rewards>,
    rules: Rules,
    salvage: &Path,
) -> Result<Parts> {
    let clock = Clock::system();
    let rules = Arc::new(rules);
    let now = Now(clock.monotonic_ns());
    let Limit { rate_per_s, burst } = rules.limits.global;
    let limiter = Limiter::new(windfall_contract::rules::Limit { rate_per_s, burst }, now);
    Ok(Parts {
        topic: topic::NAME.into(),
        source,
        rewards,
        requeue_sink: Arc::new(NoWork),
        spill_log: Arc::new(SpillLog::open(salvage, 1 << 20).context("the salvage file")?),
        long_delays: None,
        signatures: None,
        limiter: Arc::new(SharedLimiter::new(Arc::new(limiter), now)),
        rules: Arc::new(move || Arc::clone(&rules)),
        clock,
    })
}

pub fn rules() -> Rules {
    let limit = Limit { rate_per_s: 100_000_000, burst: 10_000_000 };
    let of_type = |name: &str| (name.to_owned(), TypeLimit { limit, fuse: Fuse::Closed, priority: 0 });
    Rules {
        version: 1,
        bonus_types: topic::TYPES.map(str::to_owned).to_vec(),
        draining: Vec::new(),
        topics: [].into(),
        queues: [].into(),
        routes: Vec::new(),
        limits: Limits { global: limit, types: topic::TYPES.map(of_type).into() },
        budgets: Vec::new(),
        caps: [].into(),
        revocations: Default::default(),
        changes_need_approval: false,
        staged: None,
        tries_staged: false,
        pacing: Pacing::default(),
    }
}

/// Credits everything at once, and takes no copy.
pub struct NoWork;

#[async_trait]
impl Rewards for NoWork {
    async fn grant_batch(&self, _bonus_type: &str, events: &[Bytes]) -> Vec<GrantReply> {
        vec![GrantReply::Credited; events.len()]
    }

    async fn archive(&self, _failed: &[Failed]) -> Result<(), ArchiveUnavailable> {
        Err(ArchiveUnavailable("nothing may fail here".into()))
    }
}

impl RequeueSink for NoWork {
    fn requeue(&self, _record: RequeueRecord, done: Done) {
        done(RequeueOutcome::Refused);
    }
}
