//! `kafka.send`: events per second by `send_bonus` to a real Kafka, with all steps: token, spool, pack,
//! acknowledgement; two callers. Beside it a bare `ThreadedProducer` with the same acknowledgements that sends the same
//! events, one per record, from two threads, until each is acknowledged. As further figures: one that sends the same
//! packed records, and the p99 of a call, by one caller, at half of the load.

use crate::bare_producer::BareProducer;
use crate::measure::{Row, Unit, median, per, process_cpu_ns, scratch};
use crate::mint::FIELDS;
use crate::send_call::EVENT;
use crate::send_call::null::NullStore;
use anyhow::{Context, Result, ensure};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use windfall_config::LiveRules;
use windfall_contract::Clock;
use windfall_contract::broker::Broker;
use windfall_proto::record::{self, Head};
use windfall_queue_kafka::{KafkaBroker, KafkaOptions};
use windfall_queue_virtual::{Fanout, FanoutOptions};
use windfall_sdk::{Prize, RedPacketRain, Sdk, SdkOptions, SdkParts, SendError, SpoolMode, User};
use windfall_servers::Servers;
use windfall_token::KeyRing;

const RUNS: usize = 5;
const THREADS: u64 = 2;
/// Calls of one thread in one run.
const CALLS: u64 = 300_000;
const PACK: u64 = 256;
const CLOSE: Duration = Duration::from_secs(30);

const RULES: &str = r#"
version = 1
types = ["cash"]
[topics.a]
broker = "kafka"
partitions = 10
[topics.b]
broker = "kafka2"
partitions = 10
[queues.cash]
master = "a"
backup = "b"
ratio = 100
[[routes]]
type = "*"
queue = "cash"
[limits.global]
rate_per_s = 1
burst = 1
[limits.default]
rate_per_s = 1
burst = 1
[end]
"#;

pub fn measure(name: &'static str) -> Result<Row> {
    let servers = Servers::from_env_or_start(&["kafka"])?.server("kafka")?.url().to_owned();
    let prefix = format!("bench-{}-", SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis());
    let broker = KafkaBroker::open(&KafkaOptions { prefix: prefix.clone(), ..KafkaOptions::at(&servers) })?;
    for topic in ["single", "packed"] {
        broker.ensure_topic(topic, 10)?;
    }
    let directory = scratch()?;
    let (sdk, fanout) = open(broker, SpoolMode::Process(directory.path().join("spool")))?;
    let rain = RedPacketRain::new(&sdk, FIELDS.activity, FIELDS.bonus_type)?;
    let bare = BareProducer::open(&servers)?;
    let (single, packs) = (format!("{prefix}single"), format!("{prefix}packed"));
    let (mut ours_per_s, mut bare_per_s, mut packed_per_s) = (Vec::new(), Vec::new(), Vec::new());
    let (mut ours_cpu_ns, mut bare_cpu_ns, mut packed_cpu_ns) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..=RUNS {
        let (ours, ours_ns) = rate(|thread| call(&rain, run, thread), || drained(&sdk))?;
        let (one, one_ns) = rate(|_| send_bare(&bare, &single, 1), || bare.settle(records(1), CLOSE))?;
        let (packed, packed_ns) =
            rate(|_| send_bare(&bare, &packs, PACK), || bare.settle(records(PACK), CLOSE))?;
        eprintln!("  run {run} of {RUNS}: {ours:.0} a second, bare {one:.0}, bare packed {packed:.0}");
        // The first warms up.
        if run > 0 {
            ours_per_s.push(ours);
            bare_per_s.push(one);
            packed_per_s.push(packed);
            ours_cpu_ns.push(ours_ns);
            bare_cpu_ns.push(one_ns);
            packed_cpu_ns.push(packed_ns);
        }
    }
    let (ours, packed) = (median(ours_per_s), median(packed_per_s));
    // Half of that load, call by call.
    let p99_us = p99(&rain, ours / 2.0)?.as_secs_f64() * 1e6;
    drained(&sdk)?;
    drop(rain);
    let report = sdk.close_blocking(CLOSE);
    ensure!(fanout.close(CLOSE).undelivered == 0 && report.packs_left == 0, "packs are left: {report:?}");
    Ok(Row::new(name, ours, Unit::PerSecond, Some(median(bare_per_s)))
        .with("bare_packed_per_s", packed)
        .with("ratio_to_bare_packed", ours / packed)
        .with("cpu_ns_an_event", median(ours_cpu_ns))
        .with("cpu_ns_an_event_bare", median(bare_cpu_ns))
        .with("cpu_ns_an_event_bare_packed", median(packed_cpu_ns))
        .with("call_p99_us_at_half_load", p99_us))
}

/// Events per second of two threads, until all of them are acknowledged, and nanoseconds of CPU time per event.
fn rate(send: impl Fn(u64) -> Result<()> + Sync, end: impl Fn() -> Result<()>) -> Result<(f64, f64)> {
    let (began, cpu_before_ns) = (Instant::now(), process_cpu_ns());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn({
                    let send = &send;
                    move || send(thread)
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("panicked")))
    })?;
    end()?;
    let events = THREADS * CALLS;
    let per_s = per(events, 1) / began.elapsed().as_secs_f64();
    Ok((per_s, per(process_cpu_ns() - cpu_before_ns, events)))
}

fn call(rain: &RedPacketRain, run: usize, thread: u64) -> Result<()> {
    let round = u32::try_from(run)? + 1;
    for number in 0..CALLS {
        one_call(rain, round, i64::try_from(thread * CALLS + number)?)?;
    }
    Ok(())
}

fn one_call(rain: &RedPacketRain, round: u32, user: i64) -> Result<()> {
    let prize = Prize { amount: FIELDS.amount, description: FIELDS.description };
    loop {
        match rain.send(round, User::id(FIELDS.user_id + user), 0, prize) {
            Ok(_) => return Ok(()),
            Err(SendError::SpoolFull) => std::thread::yield_now(),
            Err(other) => return Err(other).context("send_bonus"),
        }
    }
}

fn drained(sdk: &Sdk) -> Result<()> {
    let began = Instant::now();
    loop {
        let stats = sdk.stats();
        if stats.packs_in_flight == 0 && stats.spool_slots.0 == 0 {
            return Ok(());
        }
        ensure!(began.elapsed() < CLOSE, "packs are not acknowledged: {stats:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn p99(rain: &RedPacketRain, rate_per_s: f64) -> Result<Duration> {
    let began = Instant::now();
    let mut took = Vec::new();
    for number in 0..CALLS {
        let due = Duration::from_secs_f64(per(number, 1) / rate_per_s);
        while began.elapsed() < due {
            std::thread::sleep(Duration::from_micros(50));
        }
        let call = Instant::now();
        one_call(rain, 1_000, i64::try_from(number)?)?;
        took.push(call.elapsed());
    }
    took.sort();
    Ok(took[took.len() / 100 * 99])
}

/// The number of records that a run sends with so many events in each.
const fn records(pack: u64) -> u64 {
    THREADS * CALLS.div_ceil(pack)
}

fn send_bare(producer: &BareProducer, topic: &str, pack: u64) -> Result<()> {
    let (mut payload, mut event) = (Vec::new(), Vec::new());
    let mut left = CALLS;
    while left > 0 {
        let count = pack.min(left);
        left -= count;
        payload.clear();
        Head { bonus_type: "cash", attempt: 0, failures: 0, not_before_ms: 0, count: u32::try_from(count)? }
            .encode(&mut payload);
        for _ in 0..count {
            event.clear();
            EVENT.encode([], &mut event);
            record::push_event(&mut payload, &event);
        }
        producer.send(topic, &left.to_be_bytes(), &payload)?;
    }
    Ok(())
}

fn open(broker: Arc<KafkaBroker>, spool: SpoolMode) -> Result<(Sdk, Arc<Fanout>)> {
    let rules = LiveRules::fixed(windfall_config::parse_rules(RULES, None)?);
    // Two names of one broker: rules want two, and all goes to the master.
    let brokers = ["kafka", "kafka2"].map(|name| (name.to_owned(), Arc::clone(&broker) as Arc<dyn Broker>));
    let clock = Clock::system();
    let fanout = Fanout::open(&rules.current(), brokers.into(), FanoutOptions::default(), clock.clone())?;
    let fanout = Arc::new(fanout);
    let options = SdkOptions { app_id: FIELDS.app_id.into(), ..SdkOptions::default() };
    let parts = SdkParts {
        spool,
        keys: KeyRing::ephemeral()?,
        signer: None,
        rules,
        fanout: Arc::clone(&fanout),
        tokens: Some(Arc::new(NullStore)),
        clock,
    };
    let (sdk, _) = Sdk::init(options, parts)?;
    Ok((sdk, fanout))
}
