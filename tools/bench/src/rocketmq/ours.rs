//! The driver, as the sender and the consumer use it.

use super::{CLIENTS, GROUP, QUEUES, Seen, event};
use anyhow::{Result, ensure};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use windfall_contract::broker::{
    Broker, Delivery, DeliverySink, Fetch, OutRecord, Position, Producer, SendRefused, Tag,
};
use windfall_queue_rocketmq::{RocketBroker, RocketOptions};
use windfall_servers::Server;

const CLOSE: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_secs(120);
const FETCH: Fetch = Fetch { max_records: 1024, max_bytes: 16 << 20, wait: Duration::from_millis(100) };

pub struct Ours {
    broker: RocketBroker,
}

#[derive(Default)]
struct Stored(AtomicU64);

impl DeliverySink for Stored {
    fn delivered(&self, _tag: Tag, delivery: Delivery) {
        if delivery == Delivery::Stored {
            self.0.fetch_add(1, Relaxed);
        }
    }
}

impl Ours {
    pub fn open(server: &Server) -> Result<Self> {
        let options = RocketOptions {
            endpoints: vec![server.url().to_owned()],
            admin: vec![server.address("broker")?.to_owned()],
            receive_wait_ms: 500,
            ..RocketOptions::default()
        };
        Ok(Self { broker: RocketBroker::open(&options)? })
    }

    /// Makes a topic, and lets the group begin at its first record.
    pub async fn prepare(&self, topic: &str) -> Result<()> {
        self.broker.ensure_topic(topic, QUEUES)?;
        self.broker.consumer(topic, GROUP).await?.close().await;
        Ok(())
    }

    /// Sends events by two callers; all are stored at the end.
    pub fn send(&self, topic: &str, events: u64) -> Result<Duration> {
        let stored = Arc::new(Stored::default());
        let producer = self.broker.producer(topic, Arc::clone(&stored) as Arc<dyn DeliverySink>)?;
        let began = Instant::now();
        std::thread::scope(|scope| {
            let producer = &*producer;
            let send = |client| scope.spawn(move || send_some(producer, (client..events).step_by(CLIENTS)));
            let sends: Vec<_> = (0..CLIENTS as u64).map(send).collect();
            sends.into_iter().try_for_each(|send| send.join().unwrap_or_else(|_| anyhow::bail!("died")))
        })?;
        producer.close(CLOSE);
        let took = began.elapsed();
        ensure!(stored.0.load(Relaxed) == events, "not all of {events} events are stored");
        Ok(took)
    }

    /// Receives and acknowledges events by two members of a group.
    pub async fn receive(&self, topic: &str, events: u64) -> Result<Duration> {
        let mut consumers = Vec::new();
        for _ in 0..CLIENTS {
            consumers.push(self.broker.consumer(topic, GROUP).await?);
        }
        let seen = Arc::new(parking_lot::Mutex::new(Seen::none_of(events)?));
        let began = Instant::now();
        let members = consumers.into_iter().map(|mut consumer| {
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                while seen.lock().left > 0 {
                    ensure!(began.elapsed() < DEADLINE, "{} events do not come", seen.lock().left);
                    let records = consumer.poll(FETCH).await?.records;
                    let positions = records.iter().map(|record| Position {
                        partition: record.partition,
                        epoch: record.epoch,
                        offset: record.offset,
                    });
                    consumer.finish(&positions.collect::<Vec<_>>()).await?;
                    let mut seen = seen.lock();
                    records.iter().try_for_each(|record| seen.add(&record.payload))?;
                }
                Ok(consumer)
            })
        });
        let members: Vec<_> = members.collect();
        let mut done = Vec::new();
        for member in members {
            done.push(member.await??);
        }
        let took = began.elapsed();
        for consumer in done {
            consumer.close().await;
        }
        Ok(took)
    }
}

fn send_some(producer: &dyn Producer, numbers: impl Iterator<Item = u64>) -> Result<()> {
    for number in numbers {
        let record = OutRecord { key: &[], payload: &event(number) };
        while let Err(refused) = producer.send(Tag(number), record) {
            ensure!(refused == SendRefused::Full, "the broker takes no records: {refused}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    Ok(())
}
