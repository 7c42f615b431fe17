//! Measures how fast a consumer drains the embedded broker when the grant does nothing: `cargo run --release -p
//! windfall-consumer --example consume [EVENTS [PACK]]`, 8,000,000 events in records of 256 by default.
#![allow(clippy::cast_precision_loss)]

use async_trait::async_trait;
use bytes::Bytes;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_consumer::{
    Done, Options, Parts, RequeueOutcome, RequeueRecord, RequeueSink, SharedLimiter, SpillLog, spawn,
};
use windfall_contract::Clock;
use windfall_contract::broker::{Broker, Delivery, DeliverySink, OutRecord, SendRefused, Tag};
use windfall_contract::rewards::{ArchiveUnavailable, Failed, GrantReply, Rewards};
use windfall_contract::rules::{Fuse, Limit, Limits, Pacing, Rules, TypeLimit};
use windfall_limiter::{self as limiter, Limiter, Now};
use windfall_proto::event::EventRef;
use windfall_proto::record::{self, Head};
use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};

struct Nothing;

#[async_trait]
impl Rewards for Nothing {
    async fn grant_batch(&self, _: &str, events: &[Bytes]) -> Vec<GrantReply> {
        vec![GrantReply::Credited; events.len()]
    }

    async fn archive(&self, _: &[Failed]) -> Result<(), ArchiveUnavailable> {
        Ok(())
    }
}

impl RequeueSink for Nothing {
    fn requeue(&self, _: RequeueRecord, done: Done) {
        done(RequeueOutcome::Refused);
    }
}

impl DeliverySink for Nothing {
    fn delivered(&self, _: Tag, _: Delivery) {}
}

fn rules() -> Rules {
    let wide = Limit { rate_per_s: 100_000_000, burst: 10_000_000 };
    let of_type = |name: &str| (name.to_owned(), TypeLimit { limit: wide, fuse: Fuse::Closed, priority: 0 });
    Rules {
        version: 1,
        bonus_types: vec!["cash".into(), "coin".into()],
        draining: Vec::new(),
        topics: Default::default(),
        queues: Default::default(),
        routes: Vec::new(),
        limits: Limits { global: wide, types: [of_type("cash"), of_type("coin")].into() },
        budgets: Vec::new(),
        caps: Default::default(),
        revocations: Default::default(),
        changes_need_approval: false,
        staged: None,
        tries_staged: false,
        pacing: Pacing::default(),
    }
}

/// Fills the topic with `events` events, `pack` per record, of two types in turn.
fn fill(broker: &EmbeddedBroker, events: u32, pack: u32) -> Result<(), Box<dyn Error>> {
    let producer = broker.producer("rain", Arc::new(Nothing))?;
    let mut payload = Vec::new();
    for n in 0..events.div_ceil(pack) {
        let bonus_type = if n % 2 == 0 { "cash" } else { "coin" };
        let head = Head { bonus_type, attempt: 0, failures: 0, not_before_ms: 0, count: pack };
        payload.clear();
        head.encode(&mut payload);
        for at in 0..pack {
            let trade_no = format!("spring-2027:red-packet-rain:{}", n * pack + at);
            let event = EventRef {
                trade_no: &trade_no,
                user_id: i64::from(n * pack + at) + 1,
                device_id: "device-42",
                app_id: "wallet",
                activity: "spring-2027",
                scene: "red-packet-rain",
                bonus_type,
                amount: 888,
                description: "a red packet",
                award_time_ms: 1_800_000_000_000,
                first_sent_ms: 1_800_000_000_000,
                trace_id: &[],
            };
            let mut bytes = Vec::with_capacity(160);
            event.encode([], &mut bytes);
            record::push_event(&mut payload, &bytes);
        }
        let out = OutRecord { key: &n.to_be_bytes(), payload: &payload };
        while let Err(refused) = producer.send(Tag(n.into()), out) {
            match refused {
                SendRefused::Full => std::thread::sleep(Duration::from_millis(1)),
                other => return Err(other.into()),
            }
        }
    }
    producer.close(Duration::from_secs(60));
    Ok(())
}

async fn drain(broker: &EmbeddedBroker, dir: &Path, events: u64) -> Result<Duration, Box<dyn Error>> {
    let clock: Clock = Clock::system();
    let limit =
        limiter::Limit { rate_per_s: limiter::Limit::RATE_PER_S_MAX, burst: limiter::Limit::BURST_MAX };
    let rules = Arc::new(rules());
    let now = Now(clock.monotonic_ns());
    let parts = Parts {
        topic: "rain".into(),
        source: broker.consumer("rain", "grant").await?,
        rewards: Arc::new(Nothing),
        requeue_sink: Arc::new(Nothing),
        spill_log: Arc::new(SpillLog::open(dir, 1 << 20)?),
        long_delays: None,
        signatures: None,
        limiter: Arc::new(SharedLimiter::new(Arc::new(Limiter::new(limit, now)), now)),
        rules: Arc::new(move || Arc::clone(&rules)),
        clock,
    };
    let began = Instant::now();
    let consumer = spawn(parts, Options::default());
    while consumer.stats().credited.get() < events {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let took = began.elapsed();
    println!(
        "  {} grant calls, {} commits, {} events requeued",
        consumer.stats().grant_calls.get(),
        consumer.stats().commits.get(),
        consumer.stats().requeued_all()
    );
    let report = consumer.drain(Duration::from_secs(5)).await?;
    assert!(report.is_clean(), "{report:?}");
    Ok(took)
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let events: u32 = args.next().map_or(Ok(8_000_000), |text| text.parse())?;
    let pack: u32 = args.next().map_or(Ok(256), |text| text.parse())?;
    let dir = tempfile::tempdir()?;
    let broker = EmbeddedBroker::open(&dir.path().join("broker"), &EmbeddedOptions::default())?;
    broker.ensure_topic("rain", 4)?;
    let events = events.next_multiple_of(pack);
    fill(&broker, events, pack)?;
    let took = drain(&broker, &dir.path().join("salvage"), events.into()).await?;
    let per_s = f64::from(events) / took.as_secs_f64();
    println!("{events} events, {pack} a record: {took:.2?}, {:.2} M events/s", per_s / 1e6);
    Ok(())
}
