//! `kafka.consume…`: events per second of the real consumer on a real Kafka, from the first event to the last commit,
//! with a grant that does nothing, beside a bare `BaseConsumer` loop that decodes the same events, one per record, and
//! stores its offsets. Neither may leave a lag. The bare loop is tuned as a careful user would tune it; the same loop with
//! librdkafka's defaults stalls for a second at a time, and its figures stand in `more`. Also with one event per record,
//! with 10 ms of waiting per grant and 1,000 grants in flight, and with keys as unequal as Zipf's law has them.

use crate::consume_embedded::{NoWork, parts, rules, topic};
use crate::measure::{Row, Unit, median, per, process_cpu_ns, scratch};
use anyhow::{Result, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;
use windfall_consumer::Options;
use windfall_contract::broker::Broker;
use windfall_contract::rewards::{ArchiveUnavailable, Failed, GrantReply, RetryReason, Rewards};
use windfall_proto::event::EventRef;
use windfall_proto::record;
use windfall_queue_kafka::{KafkaBroker, KafkaOptions};
use windfall_servers::Servers;

const RUNS: usize = 5;
const EVENTS: u64 = 1_000_000;
const PARTITIONS: u32 = 10;
const DEADLINE: Duration = Duration::from_secs(180);
const CLOSE: Duration = Duration::from_secs(10);
const PACK: u32 = 256;

pub fn packed(name: &'static str) -> Result<Row> {
    beside_bare(name, PACK, |record| record)
}

pub fn single(name: &'static str) -> Result<Row> {
    beside_bare(name, 1, |record| record)
}

pub fn zipf(name: &'static str) -> Result<Row> {
    beside_bare(name, PACK, zipf_key)
}

/// Key `k` of 1,000 about as often as 1 ÷ k: e^(uniform · ln 1,000).
fn zipf_key(record: u64) -> u64 {
    let mixed = record.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 1 to 1,000
    let key = (per(mixed, 1 << 32) * 1_000_f64.ln()).exp() as u64;
    key
}

fn beside_bare(name: &'static str, pack: u32, key: fn(u64) -> u64) -> Result<Row> {
    let stage = Stage::open()?;
    let (ours, bare) = (stage.fill("ours", EVENTS, pack, key)?, stage.fill("bare", EVENTS, 1, key)?);
    let (mut by_us, mut tuned, mut default) = (Speeds::default(), Speeds::default(), Speeds::default());
    for run in 0..=RUNS {
        let group = format!("g{run}");
        let us = stage.ours(&ours, &group, EVENTS, Arc::new(NoWork), |_| ())?;
        let by_tuned = stage.bare(&bare, &group, Bare::Tuned)?;
        let by_default = stage.bare(&bare, &group, Bare::Default)?;
        eprintln!(
            "  run {run} of {RUNS}: {:.0} a second, bare {:.0}, bare with defaults {:.0}",
            us.per_s, by_tuned.per_s, by_default.per_s
        );
        // The first warms up.
        if run > 0 {
            by_us.push(us);
            tuned.push(by_tuned);
            default.push(by_default);
        }
    }
    let ((ours, ours_cpu_ns), (bare, bare_cpu_ns)) = (by_us.medians(), tuned.medians());
    let (default, default_cpu_ns) = default.medians();
    Ok(Row::new(name, ours, Unit::PerSecond, Some(bare))
        .with("cpu_ns_an_event", ours_cpu_ns)
        .with("cpu_ns_an_event_bare", bare_cpu_ns)
        .with("bare_with_defaults_per_s", default)
        .with("cpu_ns_an_event_bare_with_defaults", default_cpu_ns))
}

/// How the bare loop's librdkafka is set.
#[derive(Debug, Clone, Copy)]
enum Bare {
    /// It looks again soon once its queue was full, and the queue is large.
    Tuned,
    /// librdkafka's default settings.
    Default,
}

impl Bare {
    fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Tuned => &[
                ("fetch.queue.backoff.ms", "5"),
                ("queued.min.messages", "1000000"),
                ("queued.max.messages.kbytes", "1048576"),
            ],
            Self::Default => &[],
        }
    }
}

/// How fast one run was, and what it cost in CPU time of this process.
struct Speed {
    per_s: f64,
    cpu_ns: f64,
}

impl Speed {
    fn since(began: Instant, cpu_before_ns: u64, events: u64) -> Self {
        let per_s = per(events, 1) / began.elapsed().as_secs_f64();
        Self { per_s, cpu_ns: per(process_cpu_ns() - cpu_before_ns, events) }
    }
}

#[derive(Default)]
struct Speeds(Vec<f64>, Vec<f64>);

impl Speeds {
    fn push(&mut self, run: Speed) {
        self.0.push(run.per_s);
        self.1.push(run.cpu_ns);
    }

    /// Events per second, and nanoseconds of CPU time per event.
    fn medians(self) -> (f64, f64) {
        (median(self.0), median(self.1))
    }
}

pub fn waiting(name: &'static str) -> Result<Row> {
    let stage = Stage::open()?;
    let filled = stage.fill("ours", WAITING_EVENTS, PACK, |record| record)?;
    let (mut ours_per_s, mut alone_per_s, mut cpu_ns) = (Vec::new(), Vec::new(), Vec::new());
    for run in 1..=WAITING_RUNS {
        let few = |rules: &mut windfall_contract::rules::Rules| {
            (rules.pacing.grant_batch, rules.pacing.in_hand_max) = (1, IN_HAND);
        };
        let waiting = Arc::new(Waiting::start()?);
        let ours = stage.ours(&filled, &format!("w{run}"), WAITING_EVENTS, Arc::clone(&waiting) as _, few)?;
        let alone_per_s_now = stage.runtime.block_on(waits_alone(&waiting))?;
        eprintln!(
            "  run {run} of {WAITING_RUNS}: {:.0} a second, the waits alone {alone_per_s_now:.0}",
            ours.per_s
        );
        ours_per_s.push(ours.per_s);
        cpu_ns.push(ours.cpu_ns);
        alone_per_s.push(alone_per_s_now);
    }
    let (ours, alone) = (median(ours_per_s), median(alone_per_s));
    Ok(Row::new(name, ours, Unit::PerSecond, Some(f64::from(IN_HAND) / WAIT.as_secs_f64()))
        .with("cpu_ns_an_event", median(cpu_ns))
        .with("waits_alone_per_s", alone)
        .with("ratio_to_waits_alone", ours / alone))
}

/// The events per second that this machine reaches with 1,000 waits at a time and nothing else to do.
async fn waits_alone(waiting: &Arc<Waiting>) -> Result<f64> {
    let each = WAITING_EVENTS / u64::from(IN_HAND);
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..IN_HAND {
        let waiting = Arc::clone(waiting);
        tasks.spawn(async move {
            for _ in 0..each {
                waiting.grant_batch("cash", &[Bytes::new()]).await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done?;
    }
    Ok(per(each * u64::from(IN_HAND), 1) / began.elapsed().as_secs_f64())
}

/// As many as the other rows read: joining and leaving are part of a run.
const WAITING_EVENTS: u64 = 1_000_000;
/// Each takes ten seconds, and as long again for the waits alone.
const WAITING_RUNS: usize = 3;
/// How long a grant waits.
const WAIT: Duration = Duration::from_millis(10);
/// Events that are waited for at a time.
const IN_HAND: u32 = 1_000;

/// Credits everything, 10 ms later: a runtime's own timer would make it 11.
struct Waiting(SyncSender<(Instant, oneshot::Sender<()>)>);

impl Waiting {
    /// Its thread ends with it.
    fn start() -> Result<Self> {
        let (send, waits) = sync_channel::<(Instant, oneshot::Sender<()>)>(4 * usize::try_from(IN_HAND)?);
        // All wait equally long, so the first that came is the first to go.
        std::thread::Builder::new().name("waiting".into()).spawn(move || {
            for (until, done) in waits {
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                done.send(()).ok();
            }
        })?;
        Ok(Self(send))
    }
}

#[async_trait]
impl Rewards for Waiting {
    async fn grant_batch(&self, _bonus_type: &str, events: &[Bytes]) -> Vec<GrantReply> {
        let (done, over) = oneshot::channel();
        let waits = self.0.try_send((Instant::now() + WAIT, done)).is_ok() && over.await.is_ok();
        let unavailable = GrantReply::Retry { after_ms: 0, reason: RetryReason::StoreUnavailable };
        vec![if waits { GrantReply::Credited } else { unavailable }; events.len()]
    }

    async fn archive(&self, _failed: &[Failed]) -> Result<(), ArchiveUnavailable> {
        Err(ArchiveUnavailable("nothing may fail here".into()))
    }
}

struct Stage {
    broker: Arc<KafkaBroker>,
    servers: String,
    prefix: String,
    runtime: tokio::runtime::Runtime,
}

impl Stage {
    fn open() -> Result<Self> {
        let servers = Servers::from_env_or_start(&["kafka"])?.server("kafka")?.url().to_owned();
        let prefix = format!("bench-{}-", SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis());
        let broker =
            KafkaBroker::open(&KafkaOptions { prefix: prefix.clone(), ..KafkaOptions::at(&servers) })?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        Ok(Self { broker, servers, prefix, runtime })
    }

    fn fill(&self, name: &str, events: u64, pack: u32, key: fn(u64) -> u64) -> Result<String> {
        self.broker.ensure_topic(name, PARTITIONS)?;
        topic::fill(&*self.broker, name, events, pack, key)?;
        Ok(name.to_owned())
    }

    fn ours(
        &self,
        topic: &str,
        group: &str,
        events: u64,
        rewards: Arc<dyn Rewards>,
        tune: impl Fn(&mut windfall_contract::rules::Rules),
    ) -> Result<Speed> {
        let directory = scratch()?;
        let mut rules = rules();
        tune(&mut rules);
        self.runtime.block_on(async {
            let source = self.broker.consumer(topic, group).await?;
            let parts = parts(source, rewards, rules, &directory.path().join("salvage"))?;
            let consumer = windfall_consumer::spawn(parts, Options::default());
            let (opened, cpu_before_ns, mut began) = (Instant::now(), process_cpu_ns(), None);
            while consumer.stats().credited.get() < events {
                if began.is_none() && consumer.stats().events_fetched.get() > 0 {
                    began = Some(Instant::now());
                }
                ensure!(opened.elapsed() < DEADLINE, "no progress: {:?}", consumer.stats());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // Ends with the last commit, and leaves the group.
            let credited = consumer.stats().credited.get();
            let report = consumer.drain(CLOSE).await?;
            let speed = Speed::since(began.unwrap_or(opened), cpu_before_ns, events);
            ensure!(credited == events, "{credited} of {events} events are credited");
            let left = self.broker.lag(topic, group).await?.records();
            ensure!(report.is_clean() && left == 0, "{left} records are not committed: {report:?}");
            Ok(speed)
        })
    }

    fn bare(&self, topic: &str, group: &str, set: Bare) -> Result<Speed> {
        let (topic, group) = (format!("{}{topic}", self.prefix), format!("{}{group}.{set:?}", self.prefix));
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.servers)
            .set("group.id", &group)
            .set("auto.offset.reset", "earliest")
            .set("auto.commit.interval.ms", "100")
            .set("fetch.wait.max.ms", "100");
        for (name, value) in set.settings() {
            config.set(*name, *value);
        }
        let consumer: BaseConsumer = config.create()?;
        consumer.subscribe(&[&topic])?;
        let (opened, cpu_before_ns) = (Instant::now(), process_cpu_ns());
        let (mut began, mut count) = (None, 0);
        while count < EVENTS {
            ensure!(opened.elapsed() < DEADLINE, "the bare loop makes no progress");
            let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
            let message = message?;
            began.get_or_insert_with(Instant::now);
            let payload = message.payload().unwrap_or_default();
            let (_, events) = record::split(payload)?;
            for event in events {
                black_box(EventRef::parse(&payload[event?])?);
                count += 1;
            }
        }
        match consumer.commit_consumer_state(CommitMode::Sync) {
            // The automatic commit was first.
            Ok(()) | Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::NoOffset)) => {}
            Err(error) => return Err(error.into()),
        }
        drop(consumer);
        let speed = Speed::since(began.unwrap_or(opened), cpu_before_ns, count);
        let left = self.bare_lag(&topic, &group)?;
        ensure!(left == 0, "the bare loop has not committed {left} records");
        Ok(speed)
    }

    /// The number of records of a topic that a group has not committed.
    fn bare_lag(&self, topic: &str, group: &str) -> Result<i64> {
        let mut config = ClientConfig::new();
        let consumer: BaseConsumer =
            config.set("bootstrap.servers", &self.servers).set("group.id", group).create()?;
        let mut asked = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            asked.add_partition(topic, i32::try_from(partition)?);
        }
        let mut left = 0;
        for one in consumer.committed_offsets(asked, CLOSE)?.elements() {
            let (low, high) = consumer.fetch_watermarks(topic, one.partition(), CLOSE)?;
            let committed = match one.offset() {
                Offset::Offset(committed) => committed,
                _ => low,
            };
            left += high - committed;
        }
        Ok(left)
    }
}
