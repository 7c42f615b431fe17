//! The master broker is frozen while rewards are sent as fast as this pipeline grants them: every call answers, what was on its
//! way arrives through the backup before the master is back, and nothing is lost or credited twice. The master stays frozen until
//! it has arrived, so that no figure of this machine decides.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test may panic")]

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use windfall_config::LiveRules;
use windfall_consumer::{ConsumerHandle, Parts, RequeueOutcome, RequeueSink, SharedLimiter, SpillLog};
use windfall_contract::Clock;
use windfall_contract::broker::{
    Broker, Consumer, Delivery, DeliverySink, Lag, OpenError, OutRecord, Producer, SendRefused, Tag,
};
use windfall_ledger::{Ledger, LedgerOptions, LedgerReader, Unbudgeted};
use windfall_limiter::{Limit, Limiter, Now};
use windfall_proto::event;
use windfall_proto::record;
use windfall_queue_kafka::{KafkaBroker, KafkaOptions};
use windfall_queue_rocketmq::{RocketBroker, RocketOptions};
use windfall_queue_virtual::{Fanout, FanoutOptions};
use windfall_reward_service::{RewardHandle, RewardOptions, RewardService};
use windfall_sdk::{Prize, RedPacketRain, Sdk, SdkOptions, SdkParts, SpoolMode, User};
use windfall_servers::{Private, Server, Servers};
use windfall_tests::{AboutMoney, scratch};
use windfall_token::{Algorithm, KeyFile, KeyRing};

const GROUP: &str = "reward";
const BEFORE: Duration = Duration::from_secs(4);
const FROZEN: Duration = Duration::from_secs(10);
const AFTER: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(400);
const SENDERS: u64 = 2;
/// What the grants of this test sustain on two cores beside the servers.
const SENT_PER_S: u64 = 30_000;
const USERS: u64 = 20_000;

const RULES: &str = r#"version = 1
types = ["cash"]
[topics]
cash-a = { broker = "a", partitions = 4 }
cash-b = { broker = "b", partitions = 4 }
[queues.cash]
master = "cash-a"
backup = "cash-b"
ratio = 90
[[routes]]
type = "cash"
queue = "cash"
requeue = ["cash"]
[limits.global]
rate_per_s = 1000000
burst = 100000
[limits.default]
rate_per_s = 1000000
burst = 100000
[end]
"#;

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn kafka_frozen_rocketmq_takes_over() {
    let frozen = Private::start(windfall_servers::KafkaOptions::default()).unwrap();
    let servers = Servers::from_env_or_start(&["rocketmq"]).unwrap();
    let (master, backup) = (kafka(&frozen), rocketmq(&servers.server("rocketmq").unwrap()));
    freeze_the_master("Kafka", &frozen, master, backup);
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn rocketmq_frozen_kafka_takes_over() {
    let frozen = Private::start(windfall_servers::RocketMqOptions::default()).unwrap();
    let servers = Servers::from_env_or_start(&["kafka"]).unwrap();
    let (master, backup) = (rocketmq(&frozen), kafka(&servers.server("kafka").unwrap()));
    freeze_the_master("RocketMQ", &frozen, master, backup);
}

fn kafka(server: &Server) -> Arc<dyn Broker> {
    let options = KafkaOptions {
        bootstrap_servers: server.url().to_owned(),
        prefix: format!("failover-{:x}-", std::process::id()),
        ..KafkaOptions::default()
    };
    KafkaBroker::open(&options).unwrap()
}

fn rocketmq(server: &Server) -> Arc<dyn Broker> {
    let options = RocketOptions {
        endpoints: vec![server.url().to_owned()],
        admin: vec![server.address("broker").unwrap().to_owned()],
        prefix: format!("failover-{:x}-", std::process::id()),
        ..RocketOptions::default()
    };
    Arc::new(RocketBroker::open(&options).unwrap())
}

/// What is known of each reward, by its number; times in microseconds since the start, 0 for not yet.
struct Fates {
    began: Instant,
    sent_us: Vec<AtomicU64>,
    /// When the master had acknowledged it.
    stored_us: Vec<AtomicU64>,
    credited_us: Vec<AtomicU64>,
    credits: AtomicU64,
}

impl Fates {
    fn new(rewards: u64) -> Self {
        let column = || (0..rewards).map(|_| AtomicU64::new(0)).collect();
        let began = Instant::now();
        Self {
            began,
            sent_us: column(),
            stored_us: column(),
            credited_us: column(),
            credits: AtomicU64::new(0),
        }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap().max(1)
    }

    /// What is not credited yet, for a message.
    fn open(&self) -> String {
        let of = |column: &[AtomicU64], at: usize| column[at].load(Relaxed);
        let open: Vec<_> = (0..self.sent_us.len()).filter(|&at| of(&self.credited_us, at) == 0).collect();
        let by_master = open.iter().filter(|&&at| of(&self.stored_us, at) > 0).count();
        let first: Vec<_> =
            open.iter().take(5).map(|&at| (at, of(&self.sent_us, at), of(&self.stored_us, at))).collect();
        format!(
            "{} rewards are not credited, of which the master has acknowledged {by_master}; the first (number, \
             sent and stored in µs): {first:?}",
            open.len()
        )
    }

    /// The first time counts.
    fn note(column: &[AtomicU64], number: u64, now_us: u64) {
        let place = &column[usize::try_from(number).unwrap()];
        place.compare_exchange(0, now_us, Relaxed, Relaxed).ok();
    }
}

/// Order numbers end in `/user/number`.
fn number_of(trade_no: &str) -> u64 {
    trade_no.rsplit('/').next().unwrap().parse().unwrap()
}

/// Each of these tests wants the machine for itself.
static ALONE: Mutex<()> = Mutex::new(());

fn freeze_the_master(name: &str, server: &Server, master: Arc<dyn Broker>, backup: Arc<dyn Broker>) {
    let _alone = ALONE.lock();
    let rewards = (BEFORE + FROZEN + AFTER).as_secs() * SENT_PER_S;
    let fates = Arc::new(Fates::new(rewards));
    let dir = scratch();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let watched: Arc<dyn Broker> = Arc::new(Watched { inner: master, fates: Arc::clone(&fates) });
    let brokers: BTreeMap<_, _> = [("a".to_owned(), watched), ("b".to_owned(), backup)].into();
    for (broker, topic) in [("a", "cash-a"), ("b", "cash-b")] {
        brokers[broker].ensure_topic(topic, 4).unwrap();
    }
    let pipeline = Pipeline::open(&runtime, dir.path(), &brokers, &fates);
    let calls = Arc::new(Mutex::new(Vec::new()));
    let is_frozen = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let (sdk, fates, calls) = (pipeline.sdk.clone(), Arc::clone(&fates), Arc::clone(&calls));
            let is_frozen = Arc::clone(&is_frozen);
            std::thread::spawn(move || send(&sdk, sender, rewards, &fates, &is_frozen, &calls))
        })
        .collect();
    std::thread::sleep(BEFORE);
    server.freeze().unwrap();
    is_frozen.store(true, Relaxed);
    let frozen_us = fates.now_us();
    std::thread::sleep(FROZEN);
    let until_us = fates.now_us();
    let started = Instant::now();
    while waiting(&fates, frozen_us, until_us) > 0 {
        assert!(started.elapsed() < PATIENCE, "the backup takes nothing: {}", fates.open());
        std::thread::sleep(Duration::from_millis(50));
    }
    server.thaw().unwrap();
    is_frozen.store(false, Relaxed);
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    let started = Instant::now();
    while fates.credits.load(Relaxed) < rewards {
        assert!(started.elapsed() < PATIENCE, "{}; {:?}", fates.open(), pipeline.fanout.stats());
        std::thread::sleep(Duration::from_millis(50));
    }
    pipeline.close(&runtime);

    let ledger = LedgerReader::open(dir.path().join("ledger.db")).unwrap();
    let sums = ledger.reconcile().unwrap();
    let about = AboutMoney;
    assert!(sums.is_clean(), "{sums:?}");
    assert_eq!((sums.orders, sums.transfers), (rewards, rewards), "each order once");
    drop(about);
    let mut calls = calls.lock();
    calls.sort_unstable();
    let quantile = |per_mille: usize| Duration::from_nanos(calls[calls.len() * per_mille / 1_000]);
    let mut on_the_way = on_the_way(&fates, frozen_us, until_us);
    on_the_way.sort_unstable();
    let slowest = *on_the_way.last().unwrap();
    println!(
        "{name} frozen for {FROZEN:?} at {SENT_PER_S}/s: {} calls meanwhile, p99 {:.1?}, slowest {:.1?}; {} rewards \
         were on their way to the master or sent while it was frozen: half arrived within {:.2?}, 99 % within {:.2?}, \
         the slowest after {slowest:.2?}",
        calls.len(),
        quantile(990),
        Duration::from_nanos(*calls.last().unwrap()),
        on_the_way.len(),
        on_the_way[on_the_way.len() / 2],
        on_the_way[on_the_way.len() * 99 / 100],
    );
    assert!(quantile(990) <= Duration::from_millis(50));
}

/// How many rewards the frozen master cannot bring that were sent before a time, and are not credited yet.
fn waiting(fates: &Fates, frozen_us: u64, until_us: u64) -> usize {
    let of = |column: &[AtomicU64], at: usize| column[at].load(Relaxed);
    let is_waiting = |at: &usize| {
        let (sent_us, stored_us) = (of(&fates.sent_us, *at), of(&fates.stored_us, *at));
        let was_stored = stored_us > 0 && stored_us < frozen_us;
        (1..until_us).contains(&sent_us) && !was_stored && of(&fates.credited_us, *at) == 0
    };
    (0..fates.sent_us.len()).filter(is_waiting).count()
}

/// How long those took that the master had not acknowledged when it froze, and those sent until a time: from
/// the freeze, or the later send, to the credit.
fn on_the_way(fates: &Fates, frozen_us: u64, until_us: u64) -> Vec<Duration> {
    let of = |column: &[AtomicU64], at: usize| column[at].load(Relaxed);
    let open = (0..fates.sent_us.len()).filter(|&at| {
        let (sent_us, stored_us) = (of(&fates.sent_us, at), of(&fates.stored_us, at));
        let was_stored = stored_us > 0 && stored_us < frozen_us;
        let was_credited = of(&fates.credited_us, at) < frozen_us;
        sent_us < until_us && !was_stored && !was_credited
    });
    let took = |at| of(&fates.credited_us, at).saturating_sub(of(&fates.sent_us, at).max(frozen_us));
    open.map(|at| Duration::from_micros(took(at))).collect()
}

/// Sends its part of the rewards at an even pace, and notes how long the calls took while the master was frozen.
fn send(
    sdk: &Sdk,
    sender: u64,
    rewards: u64,
    fates: &Fates,
    is_frozen: &AtomicBool,
    calls: &Mutex<Vec<u64>>,
) {
    let rain = RedPacketRain::new(sdk, "spring", "cash").unwrap();
    let mut took_ns = Vec::new();
    for number in (sender..rewards).step_by(usize::try_from(SENDERS).unwrap()) {
        let due = Duration::from_nanos(number * (1_000_000_000 / SENT_PER_S));
        if let Some(early) = due.checked_sub(fates.began.elapsed()).filter(|early| early.as_micros() > 200) {
            std::thread::sleep(early);
        }
        Fates::note(&fates.sent_us, number, fates.now_us());
        let began = Instant::now();
        let user = User::id(i64::try_from(number % USERS).unwrap() + 1);
        let prize = Prize { amount: 1, description: "red packet" };
        rain.send(0, user, u32::try_from(number).unwrap(), prize).unwrap();
        if is_frozen.load(Relaxed) {
            took_ns.push(u64::try_from(began.elapsed().as_nanos()).unwrap());
        }
    }
    calls.lock().extend(took_ns);
}

/// SDK, queues, consumers and reward service, wired as `windfall` does.
struct Pipeline {
    sdk: Sdk,
    fanout: Arc<Fanout>,
    consumers: Vec<ConsumerHandle>,
    rewards: RewardHandle,
}

impl Pipeline {
    fn open(
        runtime: &tokio::runtime::Runtime,
        dir: &std::path::Path,
        brokers: &BTreeMap<String, Arc<dyn Broker>>,
        fates: &Arc<Fates>,
    ) -> Self {
        let rules = LiveRules::fixed(windfall_config::parse_rules(RULES, None).unwrap());
        let fanout =
            Fanout::open(&rules.current(), brokers.clone(), FanoutOptions::default(), Clock::system())
                .unwrap();
        let fanout = Arc::new(fanout);
        let credited = Arc::clone(fates);
        let observer = Arc::new(move |all: &[(i64, windfall_ledger::OrderId<'_>)]| {
            let now_us = credited.now_us();
            for (_, id) in all {
                let number = number_of(id.trade_no);
                if credited.credited_us[usize::try_from(number).unwrap()].load(Relaxed) == 0 {
                    credited.credits.fetch_add(1, Relaxed);
                }
                Fates::note(&credited.credited_us, number, now_us);
            }
        });
        let ledger = Ledger::open(
            dir.join("ledger.db"),
            &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() },
        )
        .unwrap();
        let rewards = RewardService::start(
            RewardOptions::default(),
            ledger,
            Vec::new(),
            Some(observer),
            Clock::system(),
        )
        .unwrap();
        let keys = dir.join("keys.toml");
        KeyFile::create(&keys, Algorithm::HmacSha256, 0).unwrap();
        let parts = SdkParts {
            spool: SpoolMode::Process(dir.join("spool")),
            keys: KeyRing::load(&keys).unwrap(),
            signer: None,
            rules: rules.clone(),
            fanout: Arc::clone(&fanout),
            tokens: None,
            clock: Clock::system(),
        };
        let (sdk, _) = Sdk::init(SdkOptions::default(), parts).unwrap();
        let consumers = runtime.block_on(consumers(dir, brokers, &rules, &rewards));
        Self { sdk, fanout, consumers, rewards }
    }

    fn close(self, runtime: &tokio::runtime::Runtime) {
        assert_eq!(self.sdk.close_blocking(Duration::from_secs(20)).packs_left, 0);
        for consumer in self.consumers {
            // After a freeze, an acknowledgement tries again for twice the deadline of its calls, and so does each step
            // of leaving after it; where others have the processors, one answer takes seconds.
            let report = runtime.block_on(consumer.drain(Duration::from_secs(240))).unwrap();
            assert!(report.is_clean(), "{report:?}");
        }
        self.fanout.close(Duration::from_secs(10));
        self.rewards.close();
    }
}

async fn consumers(
    dir: &std::path::Path,
    brokers: &BTreeMap<String, Arc<dyn Broker>>,
    rules: &LiveRules,
    rewards: &RewardHandle,
) -> Vec<ConsumerHandle> {
    let clock = Clock::system();
    let now = Now(clock.monotonic_ns());
    let global = rules.current().limits.global;
    let limiter = Limiter::new(Limit { rate_per_s: global.rate_per_s, burst: global.burst }, now);
    let limiter = Arc::new(SharedLimiter::new(Arc::new(limiter), now));
    let salvage = Arc::new(SpillLog::open(&dir.join("salvage"), 64 << 20).unwrap());
    let mut consumers = Vec::new();
    for (broker, topic) in [("a", "cash-a"), ("b", "cash-b")] {
        let live = rules.clone();
        let parts = Parts {
            topic: topic.into(),
            source: brokers[broker].consumer(topic, GROUP).await.unwrap(),
            rewards: Arc::new(rewards.clone()),
            requeue_sink: Arc::new(NoQueue),
            spill_log: Arc::clone(&salvage),
            long_delays: None,
            signatures: None,
            limiter: Arc::clone(&limiter),
            rules: Arc::new(move || live.current()),
            clock: clock.clone(),
        };
        consumers.push(windfall_consumer::spawn(parts, windfall_consumer::Options::default()));
    }
    consumers
}

/// Copies go to the salvage file, which grants them again.
struct NoQueue;

impl RequeueSink for NoQueue {
    fn requeue(&self, _: windfall_consumer::RequeueRecord, done: windfall_consumer::Done) {
        done(RequeueOutcome::Refused);
    }
}

/// The master, with a note of when it has acknowledged which rewards.
struct Watched {
    inner: Arc<dyn Broker>,
    fates: Arc<Fates>,
}

struct WatchedProducer {
    inner: Arc<dyn Producer>,
    sink: Arc<WatchedSink>,
}

struct WatchedSink {
    sink: Arc<dyn DeliverySink>,
    fates: Arc<Fates>,
    open: Mutex<BTreeMap<Tag, Vec<u64>>>,
}

impl DeliverySink for WatchedSink {
    fn delivered(&self, tag: Tag, delivery: Delivery) {
        let numbers = self.open.lock().remove(&tag).unwrap_or_default();
        if delivery == Delivery::Stored {
            let now_us = self.fates.now_us();
            numbers.into_iter().for_each(|number| Fates::note(&self.fates.stored_us, number, now_us));
        }
        self.sink.delivered(tag, delivery);
    }
}

impl Producer for WatchedProducer {
    fn send(&self, tag: Tag, record: OutRecord<'_>) -> Result<(), SendRefused> {
        let (_, events) = record::split(record.payload).unwrap();
        let numbers =
            events.map(|range| number_of(event::trade_no(&record.payload[range.unwrap()]).unwrap()));
        self.sink.open.lock().insert(tag, numbers.collect());
        self.inner.send(tag, record)
    }

    fn close(&self, timeout: Duration) -> usize {
        self.inner.close(timeout)
    }
}

#[async_trait::async_trait]
impl Broker for Watched {
    fn ensure_topic(&self, topic: &str, partitions: u32) -> Result<(), OpenError> {
        self.inner.ensure_topic(topic, partitions)
    }

    fn producer(&self, topic: &str, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, OpenError> {
        let sink = Arc::new(WatchedSink { sink, fates: Arc::clone(&self.fates), open: Mutex::default() });
        let inner = self.inner.producer(topic, Arc::clone(&sink) as _)?;
        Ok(Arc::new(WatchedProducer { inner, sink }))
    }

    async fn consumer(&self, topic: &str, group: &str) -> Result<Box<dyn Consumer>, OpenError> {
        self.inner.consumer(topic, group).await
    }

    async fn lag(&self, topic: &str, group: &str) -> Result<Lag, OpenError> {
        self.inner.lag(topic, group).await
    }
}
