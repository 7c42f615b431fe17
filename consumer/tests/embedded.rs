//! A consumer on the embedded broker: killed, opened again, with events going back to the same topic.
#![allow(missing_docs, clippy::unwrap_used)]

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use windfall_consumer::{
    ConsumerHandle, Done, Options, Parts, RequeueOutcome, RequeueRecord, RequeueSink, SharedLimiter,
    SpillLog, spawn,
};
use windfall_contract::Clock;
use windfall_contract::broker::{Broker, Delivery, DeliverySink, OutRecord, Producer, Tag};
use windfall_contract::rewards::{ArchiveUnavailable, Failed, GrantReply, RetryReason, Rewards};
use windfall_contract::rules::{Fuse, Limit, Limits, Pacing, Rules, TypeLimit};
use windfall_limiter::{self as limiter, Limiter, Now};
use windfall_proto::event::{self, EventRef};
use windfall_proto::record::{self, Head};
use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};

const EVENTS: u32 = 20_000;
const PACK: u32 = 50;

/// Every seventh call fails every third event of its batch.
#[derive(Default)]
struct Ledger {
    credited: Mutex<HashMap<String, u32>>,
    calls: AtomicU64,
}

#[async_trait]
impl Rewards for Ledger {
    async fn grant_batch(&self, _: &str, events: &[Bytes]) -> Vec<GrantReply> {
        let is_bad = self.calls.fetch_add(1, Ordering::SeqCst).is_multiple_of(7);
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut credited = self.credited.lock();
        let grant = |(at, event): (usize, &Bytes)| {
            if is_bad && at % 3 == 0 {
                return GrantReply::Retry { after_ms: 0, reason: RetryReason::DownstreamRetry };
            }
            let times = credited.entry(event::trade_no(event).unwrap().to_owned()).or_default();
            *times += 1;
            if *times == 1 { GrantReply::Credited } else { GrantReply::AlreadyCredited }
        };
        events.iter().enumerate().map(grant).collect()
    }

    async fn archive(&self, failed: &[Failed]) -> Result<(), ArchiveUnavailable> {
        panic!("nothing is to be archived: {failed:?}")
    }
}

/// Back to the same topic.
struct SameTopic {
    producer: Arc<dyn Producer>,
    open: Arc<Open>,
    next: AtomicU64,
}

#[derive(Default)]
struct Open(Mutex<BTreeMap<u64, Done>>);

impl DeliverySink for Open {
    fn delivered(&self, tag: Tag, delivery: Delivery) {
        let Some(done) = self.0.lock().remove(&tag.0) else { return };
        done(if delivery == Delivery::Stored { RequeueOutcome::Stored } else { RequeueOutcome::Refused });
    }
}

impl RequeueSink for SameTopic {
    fn requeue(&self, record: RequeueRecord, done: Done) {
        let tag = self.next.fetch_add(1, Ordering::SeqCst);
        self.open.0.lock().insert(tag, done);
        let out = OutRecord { key: &record.key, payload: &record.payload };
        if self.producer.send(Tag(tag), out).is_err()
            && let Some(done) = self.open.0.lock().remove(&tag)
        {
            done(RequeueOutcome::Refused);
        }
    }
}

fn publish(broker: &EmbeddedBroker) {
    let producer = broker.producer("rain", Arc::new(Open::default())).unwrap();
    for n in 0..EVENTS / PACK {
        let events: Vec<Vec<u8>> = (0..PACK)
            .map(|at| {
                let trade_no = format!("order-{}", n * PACK + at);
                let mut out = Vec::new();
                EventRef { trade_no: &trade_no, bonus_type: "cash", amount: 1, ..EventRef::default() }
                    .encode([], &mut out);
                out
            })
            .collect();
        let head = Head { bonus_type: "cash", attempt: 0, failures: 0, not_before_ms: 0, count: PACK };
        let payload = record::build(head, events.iter().map(Vec::as_slice));
        producer.send(Tag(n.into()), OutRecord { key: &n.to_be_bytes(), payload: &payload }).unwrap();
    }
    assert_eq!(producer.close(Duration::from_secs(10)), 0);
}

async fn start(broker: &EmbeddedBroker, dir: &Path, ledger: &Arc<Ledger>) -> ConsumerHandle {
    let wide = Limit { rate_per_s: 10_000_000, burst: 1_000_000 };
    let cash = TypeLimit { limit: wide, fuse: Fuse::Closed, priority: 0 };
    let rules = Arc::new(Rules {
        version: 1,
        bonus_types: vec!["cash".into()],
        draining: Vec::new(),
        topics: BTreeMap::new(),
        queues: BTreeMap::new(),
        routes: Vec::new(),
        limits: Limits { global: wide, types: [("cash".to_owned(), cash)].into() },
        budgets: Vec::new(),
        caps: Default::default(),
        revocations: Default::default(),
        changes_need_approval: false,
        staged: None,
        tries_staged: false,
        pacing: Pacing { requeue_delay_ms: 10, grant_batch: 100, ..Pacing::default() },
    });
    let open = Arc::new(Open::default());
    let clock: Clock = Clock::system();
    let now = Now(clock.monotonic_ns());
    let limiter = Limiter::new(limiter::Limit { rate_per_s: 0, burst: 1 }, now);
    let parts = Parts {
        topic: "rain".into(),
        source: broker.consumer("rain", "grant").await.unwrap(),
        rewards: Arc::clone(ledger) as Arc<dyn Rewards>,
        requeue_sink: Arc::new(SameTopic {
            producer: broker.producer("rain", Arc::clone(&open) as Arc<dyn DeliverySink>).unwrap(),
            open,
            next: AtomicU64::new(0),
        }),
        spill_log: Arc::new(SpillLog::open(&dir.join("salvage"), 1 << 20).unwrap()),
        long_delays: None,
        signatures: None,
        limiter: Arc::new(SharedLimiter::new(Arc::new(limiter), now)),
        rules: Arc::new(move || Arc::clone(&rules)),
        clock,
    };
    spawn(parts, Options { commit_every_ms: 5, ..Options::default() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_is_credited_once_across_kills_and_nothing_stays_behind() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Arc::new(Ledger::default());
    let open = || EmbeddedBroker::open(&dir.path().join("broker"), &EmbeddedOptions::default()).unwrap();
    let broker = open();
    broker.ensure_topic("rain", 3).unwrap();
    publish(&broker);
    for _ in 0..3 {
        let consumer = start(&broker, dir.path(), &ledger).await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        // Killed: what it held is delivered again.
        drop(consumer);
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let consumer = start(&broker, dir.path(), &ledger).await;
    let began = std::time::Instant::now();
    let lag = || async { broker.lag("rain", "grant").await.unwrap().records() };
    while ledger.credited.lock().len() < EVENTS as usize || lag().await > 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "{} credited", ledger.credited.lock().len());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let report = consumer.drain(Duration::from_secs(5)).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(ledger.credited.lock().len(), EVENTS as usize);
    assert_eq!(lag().await, 0);
}
