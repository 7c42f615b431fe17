//! `outage.send`: what a call costs while both topics of another queue are away for ten minutes. Two queues lie on two
//! Kafkas, and each takes 50,000 sends per second; then the Kafka of one is killed. Its queue fills its own share of the
//! spool and refuses; sends to the other queue must never be refused. Beside it the same calls before and after the
//! outage. Once the Kafka is back, every send that was answered must be acknowledged.

use crate::measure::{Row, Unit, scratch};
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_config::LiveRules;
use windfall_contract::Clock;
use windfall_contract::broker::Broker;
use windfall_queue_kafka::{KafkaBroker, KafkaOptions};
use windfall_queue_virtual::{Fanout, FanoutOptions};
use windfall_sdk::{KeyRing, Prize, RedPacketRain, Sdk, SdkOptions, SdkParts, SendError, SpoolMode, User};
use windfall_servers::Private;

const RATE_PER_S: f64 = 50_000.0;
/// Before the outage, and behind it.
const CALM: Duration = Duration::from_secs(30);
const OUTAGE: Duration = Duration::from_secs(600);
const DRAIN: Duration = Duration::from_secs(120);

/// Two names for each Kafka, because the rules want the topics of a queue on two brokers.
const RULES: &str = r#"
version = 1
types = ["cash", "coin"]
[topics.away-a]
broker = "away-1"
partitions = 8
[topics.away-b]
broker = "away-2"
partitions = 8
[topics.well-a]
broker = "well-1"
partitions = 8
[topics.well-b]
broker = "well-2"
partitions = 8
[queues.away]
master = "away-a"
backup = "away-b"
ratio = 50
[queues.well]
master = "well-a"
backup = "well-b"
ratio = 50
[[routes]]
type = "cash"
queue = "away"
[[routes]]
type = "*"
queue = "well"
[limits.global]
rate_per_s = 1
burst = 1
[limits.default]
rate_per_s = 1
burst = 1
[end]
"#;

pub fn measure(name: &'static str) -> Result<Row> {
    let [away, well] = [(); 2].map(|()| Private::start(windfall_servers::KafkaOptions::default()));
    let (away, well) = (away?, well?);
    let directory = scratch()?;
    let (sdk, fanout) = open(&away, &well, SpoolMode::Process(directory.path().join("spool")))?;
    let mut callers = [Caller::new(&sdk, "cash")?, Caller::new(&sdk, "coin")?];
    let before = both(&mut callers, CALM)?;
    away.kill()?;
    eprintln!("  both topics of one queue are away for {} s", OUTAGE.as_secs());
    let [refused, beside] = both(&mut callers, OUTAGE)?;
    away.start()?;
    drained(&sdk)?;
    let after = both(&mut callers, CALM)?;
    drained(&sdk)?;
    let answered: u64 = callers.iter().map(|caller| caller.answered).sum();
    drop(callers);
    let sent = sdk.stats().sent;
    let report = sdk.close_blocking(DRAIN);
    ensure!(fanout.close(DRAIN).undelivered == 0 && report.packs_left == 0, "packs are left: {report:?}");
    ensure!(sent == answered, "{sent} calls are counted, and {answered} were answered");
    ensure!(beside.refused == 0, "{} sends to the queue that is well were refused", beside.refused);
    let [_, mut calm] = before;
    calm.took_ns.add(&after[1].took_ns)?;
    Ok(Row::new(name, p99_ns(&beside), Unit::NsACall, Some(p99_ns(&calm)))
        .with("p50_ns", quantile_ns(&beside, 0.5))
        .with("p50_calm_ns", quantile_ns(&calm, 0.5))
        .with("p999_ns", quantile_ns(&beside, 0.999))
        .with("p999_calm_ns", quantile_ns(&calm, 0.999))
        .with("sends_beside", count(beside.took_ns.len()))
        .with("sends_to_the_queue_away", count(refused.took_ns.len()))
        .with("of_them_refused", count(refused.refused)))
}

/// What became of the calls of one phase, refused ones among them.
struct Phase {
    took_ns: Histogram<u64>,
    refused: u64,
}

/// A thread of an activity service that sends to one queue.
struct Caller {
    rain: RedPacketRain,
    next_user: i64,
    answered: u64,
}

impl Caller {
    fn new(sdk: &Sdk, bonus_type: &str) -> Result<Self> {
        Ok(Self { rain: RedPacketRain::new(sdk, "outage", bonus_type)?, next_user: 1, answered: 0 })
    }

    /// Sends at the set rate; a call that comes late is made at once.
    fn send_for(&mut self, time: Duration) -> Result<Phase> {
        let mut phase = Phase { took_ns: Histogram::new(3)?, refused: 0 };
        let prize = Prize { amount: 8, description: "red packet" };
        let began = Instant::now();
        let mut due = Duration::ZERO;
        while due < time {
            while began.elapsed() < due {
                std::thread::sleep(Duration::from_micros(200));
            }
            let call = Instant::now();
            let answer = self.rain.send(1, User::id(self.next_user), 0, prize);
            phase.took_ns.saturating_record(u64::try_from(call.elapsed().as_nanos())?);
            match answer {
                Ok(_) => self.answered += 1,
                Err(SendError::SpoolFull | SendError::QueueFull { .. }) => phase.refused += 1,
                Err(other) => return Err(other).context("send_bonus"),
            }
            self.next_user += 1;
            due += Duration::from_secs_f64(1.0 / RATE_PER_S);
        }
        Ok(phase)
    }
}

/// One phase of both callers, side by side.
fn both([away, well]: &mut [Caller; 2], time: Duration) -> Result<[Phase; 2]> {
    std::thread::scope(|scope| {
        let away = scope.spawn(move || away.send_for(time));
        let well = well.send_for(time)?;
        let away = away.join().unwrap_or_else(|_| anyhow::bail!("a caller panicked"))?;
        Ok([away, well])
    })
}

fn drained(sdk: &Sdk) -> Result<()> {
    let began = Instant::now();
    loop {
        let stats = sdk.stats();
        if stats.packs_in_flight == 0 && stats.spool_slots.0 == 0 {
            return Ok(());
        }
        ensure!(began.elapsed() < DRAIN, "packs are not acknowledged: {stats:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn open(away: &Private, well: &Private, spool: SpoolMode) -> Result<(Sdk, Arc<Fanout>)> {
    let rules = LiveRules::fixed(windfall_config::parse_rules(RULES, None)?);
    let mut brokers = Vec::new();
    for (names, server) in [(["away-1", "away-2"], away), (["well-1", "well-2"], well)] {
        let broker: Arc<dyn Broker> = KafkaBroker::open(&KafkaOptions::at(server.url()))?;
        brokers.extend(names.map(|name| (name.to_owned(), Arc::clone(&broker))));
    }
    let clock = Clock::system();
    let fanout = Fanout::open(
        &rules.current(),
        brokers.into_iter().collect(),
        FanoutOptions::default(),
        clock.clone(),
    )?;
    let fanout = Arc::new(fanout);
    let parts = SdkParts {
        spool,
        keys: KeyRing::ephemeral()?,
        signer: None,
        rules,
        fanout: Arc::clone(&fanout),
        tokens: None,
        clock,
    };
    let (sdk, _) = Sdk::init(SdkOptions { app_id: "windfall".into(), ..SdkOptions::default() }, parts)?;
    Ok((sdk, fanout))
}

fn p99_ns(phase: &Phase) -> f64 {
    quantile_ns(phase, 0.99)
}

fn quantile_ns(phase: &Phase, quantile: f64) -> f64 {
    count(phase.took_ns.value_at_quantile(quantile))
}

#[allow(clippy::cast_precision_loss)] // far below 2^52
fn count(value: u64) -> f64 {
    value as f64
}
