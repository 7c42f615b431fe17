//! `scheduler.fire`: tasks per second from Redis to Kafka, of which all are due in one second: from the second's beginning
//! to the last acknowledgement; one instance. Beside it a bare `ThreadedProducer` with the same acknowledgements that sends
//! the same records from memory, from two threads, until each is acknowledged. Rounds alternate.

use super::{
    AHEAD_MS, Control, TENANT, dispatcher, fill, on_redis, payload, redis_slots, sized, start_time, timers,
    wait_for,
};
use crate::bare_producer::BareProducer;
use crate::measure::{Row, Unit, median, per, process_cpu_ns};
use anyhow::{Result, ensure};
use prost::Message;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_contract::Clock;
use windfall_contract::broker::Broker;
use windfall_contract::due::{Firing, Shard, SlotMinute, TaskId};
use windfall_queue_kafka::{KafkaBroker, KafkaOptions};
use windfall_scheduler_service::{TopicChecks, TopicOptions, TopicTarget};
use windfall_servers::Servers;

const ROUNDS: usize = 3;
const THREADS: u64 = 2;
const PARTITIONS: u32 = 10;
const PATIENCE: Duration = Duration::from_secs(120);

pub fn measure(name: &'static str) -> Result<Row> {
    let servers = Servers::from_env_or_start(&["kafka"])?.server("kafka")?.url().to_owned();
    on_redis(|url| run(name, url, servers))
}

/// What the rounds of a side gave.
#[derive(Default)]
struct Figures {
    seconds: Vec<f64>,
    cpu_ns: Vec<f64>,
    redis_cpu_ns: Vec<f64>,
}

async fn run(name: &'static str, url: String, servers: String) -> Result<Row> {
    let mut control = Control::open(&url).await?;
    let tasks = sized(1_000_000, 20_000);
    let prefix = format!("bench-{}-", Clock::system().unix_ms());
    let broker = KafkaBroker::open(&KafkaOptions { prefix: prefix.clone(), ..KafkaOptions::at(&servers) })?;
    for topic in ["fired", "bare"] {
        tokio::task::block_in_place(|| broker.ensure_topic(topic, PARTITIONS))?;
    }
    let bare = BareProducer::open(&servers)?;
    let records = Arc::new(records(tasks)?);
    let (mut ours, mut theirs) = (Figures::default(), Figures::default());
    for round in 0..=ROUNDS {
        control.empty().await?;
        let (took, cpu_ns, redis_cpu_ns) = fire(&url, &broker, tasks, &mut control).await?;
        let (bare_took, bare_cpu_ns) =
            tokio::task::block_in_place(|| send_bare(&bare, &format!("{prefix}bare"), &records))?;
        eprintln!("  run {round} of {ROUNDS}: {took:.2?}, bare {bare_took:.2?}");
        // The first round warms up.
        if round > 0 {
            ours.seconds.push(took.as_secs_f64());
            ours.cpu_ns.push(cpu_ns);
            ours.redis_cpu_ns.push(redis_cpu_ns);
            theirs.seconds.push(bare_took.as_secs_f64());
            theirs.cpu_ns.push(bare_cpu_ns);
        }
    }
    let (ours_s, bare_s) = (median(ours.seconds), median(theirs.seconds));
    let rate = |seconds: f64| per(tasks, 1) / seconds;
    Ok(Row::new(name, rate(ours_s), Unit::PerSecond, Some(rate(bare_s)))
        .with("due_to_last_ack_s", ours_s)
        .with("bare_s", bare_s)
        .with("cpu_ns_a_task", median(ours.cpu_ns))
        .with("cpu_ns_a_task_bare", median(theirs.cpu_ns))
        .with("redis_cpu_ns_a_task", median(ours.redis_cpu_ns)))
}

/// One round: how long it took, and the CPU time per task of this process and of Redis, reading ahead included.
async fn fire(
    url: &str,
    broker: &Arc<KafkaBroker>,
    tasks: u64,
    control: &mut Control,
) -> Result<(Duration, f64, f64)> {
    let clock = Clock::system();
    let store = redis_slots(url).await?;
    let timers = timers(&store);
    let lead_ms = AHEAD_MS + sized(30_000, 5_000);
    let begin_ms = clock.unix_ms() + lead_ms;
    fill(&timers, 0..tasks, move |number| begin_ms + number % 1_000).await?;
    start_time(&clock, begin_ms).await?;
    timers.close().await;
    let options = TopicOptions {
        topic: "fired".into(),
        partitions: PARTITIONS,
        timeout_ms: 60_000,
        // The broker of a measurement stands alone.
        checks: TopicChecks::Off,
        headers: false,
    };
    let broker = Arc::clone(broker) as Arc<dyn Broker>;
    let topic = Arc::new(TopicTarget::new(broker, options, clock.clone()));
    let (own_ns, redis_ns) = (process_cpu_ns(), control.cpu_ns().await?);
    let dispatcher = dispatcher(store, topic.clone(), "one");
    let stats = dispatcher.stats();
    let patience = PATIENCE + Duration::from_millis(lead_ms);
    wait_for("acknowledged", tasks, patience, || stats.done.get()).await?;
    let took = Duration::from_millis(clock.unix_ms().saturating_sub(begin_ms));
    let cpu_ns = per(process_cpu_ns() - own_ns, tasks);
    dispatcher.drain(PATIENCE).await;
    let redis_cpu_ns = (control.cpu_ns().await? - redis_ns) / per(tasks, 1);
    topic.close(PATIENCE).await;
    ensure!(stats.done.get() == tasks, "{} of {tasks} tasks came", stats.done.get());
    Ok((took, cpu_ns, redis_cpu_ns))
}

/// The records as a target writes them: key and value.
fn records(tasks: u64) -> Result<Vec<(String, Vec<u8>)>> {
    let now_ms = Clock::system().unix_ms();
    (0..tasks)
        .map(|number| {
            let shard = Shard(u16::try_from(number % 64)?);
            let id = TaskId { shard, slot: SlotMinute::of(now_ms), index: u32::try_from(number / 64)? };
            let firing = Firing {
                id,
                tenant: TENANT.into(),
                key: None,
                due_ms: now_ms,
                attempt: 1,
                payload: payload(number),
            };
            Ok((id.to_string(), firing.to_wire().encode_to_vec()))
        })
        .collect()
}

fn send_bare(producer: &BareProducer, topic: &str, records: &[(String, Vec<u8>)]) -> Result<(Duration, f64)> {
    let (began, cpu_ns) = (Instant::now(), process_cpu_ns());
    let part = records.len().div_ceil(usize::try_from(THREADS)?);
    std::thread::scope(|scope| {
        let send = |records: &[(String, Vec<u8>)]| -> Result<()> {
            for (key, value) in records {
                producer.send(topic, key.as_bytes(), value)?;
            }
            Ok(())
        };
        let threads: Vec<_> =
            records.chunks(part).map(|records| scope.spawn(move || send(records))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("panicked")))
    })?;
    let count = u64::try_from(records.len())?;
    producer.settle(count, PATIENCE)?;
    Ok((began.elapsed(), per(process_cpu_ns() - cpu_ns, count)))
}
