//! RocketMQ's official Rust client as an independent peer: what it sends we must read, what we send it must read.
//!
//! - `windfall-rocketmq-peer send ENDPOINT TOPIC COUNT`: messages with the bodies `peer-0`, `peer-1` …
//! - `windfall-rocketmq-peer receive ENDPOINT TOPIC GROUP COUNT RECEIVERS`: receives and acknowledges, and prints
//!   one JSON object: bodies as text, how long it took from the first message to the last acknowledgement.
//!
//! Topic and group must exist.

use anyhow::{Context, Result, bail};
use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::{Producer, SimpleConsumer};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The number of messages in a batch, and in a request: the largest that the broker gives out.
const BATCH: usize = 32;
/// For as long as nothing at all comes.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["send", endpoint, topic, count] => send(endpoint, topic, count.parse()?).await,
        ["receive", endpoint, topic, group, count, receivers] => {
            receive(endpoint, topic, group, count.parse()?, receivers.parse()?).await
        }
        _ => bail!("send ENDPOINT TOPIC COUNT, or receive ENDPOINT TOPIC GROUP COUNT RECEIVERS"),
    }
}

fn client(endpoint: &str) -> ClientOption {
    let mut client = ClientOption::default();
    client.set_access_url(endpoint);
    client.set_enable_tls(false);
    client.set_long_polling_timeout(Duration::from_secs(1));
    client
}

async fn send(endpoint: &str, topic: &str, count: usize) -> Result<()> {
    let mut options = ProducerOption::default();
    options.set_topics(vec![topic]);
    let mut producer = Producer::new(options, client(endpoint))?;
    producer.start().await?;
    let numbers: Vec<usize> = (0..count).collect();
    for batch in numbers.chunks(BATCH) {
        for number in batch {
            let body = format!("peer-{number}").into_bytes();
            let message =
                MessageBuilder::builder().set_topic(topic).set_tag("rain").set_body(body).build()?;
            producer.send(message).await.with_context(|| format!("message {number}"))?;
        }
    }
    producer.shutdown().await?;
    println!("{}", serde_json::json!({ "sent": count }));
    Ok(())
}

async fn receive(endpoint: &str, topic: &str, group: &str, count: usize, receivers: usize) -> Result<()> {
    let mut options = SimpleConsumerOption::default();
    options.set_topics(vec![topic]);
    options.set_consumer_group(group);
    let mut consumer = SimpleConsumer::new(options, client(endpoint))?;
    consumer.start().await?;
    let (consumer, received) = (Arc::new(consumer), Arc::new(AtomicUsize::new(0)));
    let started = Instant::now();
    let tasks: Vec<_> = (0..receivers)
        .map(|_| {
            let (consumer, received, topic) =
                (Arc::clone(&consumer), Arc::clone(&received), topic.to_owned());
            tokio::spawn(receive_some(consumer, received, topic, count))
        })
        .collect();
    let (mut bodies, mut first, mut last) = (Vec::new(), None::<Instant>, started);
    for task in tasks {
        let (its, its_first, its_last) = task.await??;
        bodies.extend(its);
        first = first.into_iter().chain(its_first).min();
        last = last.max(its_last);
    }
    let seconds = last.duration_since(first.unwrap_or(started)).as_secs_f64();
    println!("{}", serde_json::json!({ "received": bodies.len(), "seconds": seconds, "bodies": bodies }));
    Ok(())
}

/// Bodies, and when the first came and the last was acknowledged.
async fn receive_some(
    consumer: Arc<SimpleConsumer>,
    received: Arc<AtomicUsize>,
    topic: String,
    count: usize,
) -> Result<(Vec<String>, Option<Instant>, Instant)> {
    let everything = FilterExpression::new(FilterType::Tag, "*");
    let (mut bodies, mut first, mut last) = (Vec::new(), None, Instant::now());
    while received.load(Ordering::Relaxed) < count {
        let messages =
            consumer.receive_with(&topic, &everything, BATCH as i32, Duration::from_secs(30)).await;
        for message in messages.unwrap_or_default() {
            first = first.or(Some(Instant::now()));
            consumer.ack(&message).await.context("an acknowledgement")?;
            bodies.push(String::from_utf8_lossy(message.body()).into_owned());
            received.fetch_add(1, Ordering::Relaxed);
            last = Instant::now();
        }
        if last.elapsed() > PATIENCE {
            bail!("{} of {count} messages within {PATIENCE:?}", received.load(Ordering::Relaxed));
        }
    }
    Ok((bodies, first, last))
}
