//! One consumer instance, in a process of its own.

use super::{GROUP, TOPIC, rules};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use windfall_consumer::{
    Done, Options, Parts, RequeueOutcome, RequeueRecord, RequeueSink, SharedLimiter, SpillLog,
};
use windfall_contract::Clock;
use windfall_contract::broker::{Broker, Delivery, DeliverySink, OutRecord, Producer, Tag};
use windfall_contract::rewards::{ArchiveUnavailable, Failed, GrantReply, Rewards};
use windfall_ledger::{Ledger, PostgresOptions, Unbudgeted};
use windfall_limiter::{Limit, Limiter, Now};
use windfall_queue_kafka::{KafkaBroker, KafkaOptions};
use windfall_reward_service::{RewardHandle, RewardOptions, RewardService};

/// What a member is told, by its environment.
pub const KAFKA: &str = "CHURN_KAFKA";
pub const POSTGRES: &str = "CHURN_POSTGRES";
pub const RUN: &str = "CHURN_RUN";
pub const DIR: &str = "CHURN_DIR";
pub const NUMBER: &str = "CHURN_NUMBER";

pub fn broker(address: &str, run: &str) -> Arc<dyn Broker> {
    let options = KafkaOptions {
        bootstrap_servers: address.to_owned(),
        prefix: format!("churn-{run}-"),
        ..KafkaOptions::default()
    };
    KafkaBroker::open(&options).unwrap()
}

pub fn ledger_options(run: &str) -> PostgresOptions {
    PostgresOptions {
        schema: format!("churn_{run}"),
        unbudgeted: Unbudgeted::Allow,
        ..PostgresOptions::default()
    }
}

/// Consumes until its input ends, then leaves in order.
pub fn run(kafka: &str) {
    let of = |name: &str| std::env::var(name).unwrap();
    let (run, dir, number) = (of(RUN), of(DIR), of(NUMBER));
    let dir = Path::new(&dir);
    let broker = broker(kafka, &run);
    let ledger = Ledger::connect(&of(POSTGRES), &ledger_options(&run)).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let rewards =
        RewardService::start(RewardOptions::default(), ledger, Vec::new(), None, Clock::system()).unwrap();
    let report = runtime.block_on(async {
        let clock = Clock::system();
        let now = Now(clock.monotonic_ns());
        let rules = Arc::new(rules());
        let global = rules.limits.global;
        let limiter = Limiter::new(Limit { rate_per_s: global.rate_per_s, burst: global.burst }, now);
        let log = File::create(dir.join(format!("admitted-{number}"))).unwrap();
        let back = Arc::new(Back::default());
        let producer = broker.producer(TOPIC, Arc::clone(&back) as _).unwrap();
        let parts = Parts {
            topic: TOPIC.into(),
            source: broker.consumer(TOPIC, GROUP).await.unwrap(),
            rewards: Arc::new(Logged { rewards: rewards.clone(), log: Mutex::new(BufWriter::new(log)) }),
            requeue_sink: Arc::new(Same { producer: Arc::clone(&producer), back }),
            spill_log: Arc::new(SpillLog::open(&dir.join(format!("salvage-{number}")), 1 << 24).unwrap()),
            long_delays: None,
            signatures: None,
            limiter: Arc::new(SharedLimiter::new(Arc::new(limiter), now)),
            rules: Arc::new(move || Arc::clone(&rules)),
            clock,
        };
        let consumer = windfall_consumer::spawn(parts, Options::default());
        tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await.unwrap().unwrap();
        let report = consumer.drain(Duration::from_secs(10)).await.unwrap();
        tokio::task::block_in_place(|| producer.close(Duration::from_secs(5)));
        report
    });
    rewards.close();
    assert!(report.closed, "{report:?}");
}

/// Notes how many events were admitted, and when.
struct Logged {
    rewards: RewardHandle,
    log: Mutex<BufWriter<File>>,
}

#[async_trait]
impl Rewards for Logged {
    async fn grant_batch(&self, bonus_type: &str, events: &[Bytes]) -> Vec<GrantReply> {
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        {
            let mut log = self.log.lock();
            writeln!(log, "{now_ns} {}", events.len()).unwrap();
            // A kill must not take the line away.
            log.flush().unwrap();
        }
        self.rewards.grant_batch(bonus_type, events).await
    }

    async fn archive(&self, failed: &[Failed]) -> Result<(), ArchiveUnavailable> {
        self.rewards.archive(failed).await
    }
}

/// Copies go to the same topic.
struct Same {
    producer: Arc<dyn Producer>,
    back: Arc<Back>,
}

#[derive(Default)]
struct Back {
    next: AtomicU64,
    open: Mutex<HashMap<Tag, Done>>,
}

impl RequeueSink for Same {
    fn requeue(&self, record: RequeueRecord, done: Done) {
        let tag = Tag(self.back.next.fetch_add(1, Relaxed));
        self.back.open.lock().insert(tag, done);
        if self.producer.send(tag, OutRecord { key: &record.key, payload: &record.payload }).is_err() {
            self.back.delivered(tag, Delivery::Failed("refused".into()));
        }
    }
}

impl DeliverySink for Back {
    fn delivered(&self, tag: Tag, delivery: Delivery) {
        let done = self.open.lock().remove(&tag);
        if let Some(done) = done {
            done(if delivery == Delivery::Stored { RequeueOutcome::Stored } else { RequeueOutcome::Refused });
        }
    }
}
