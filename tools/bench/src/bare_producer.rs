//! The bare producer to Kafka that some rows have as their baseline. It counts what the broker has acknowledged: a record whose
//! delivery failed was not sent.

use anyhow::{Context as _, Result, ensure};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::{ClientConfig, ClientContext};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counts the deliveries since they were last taken.
#[derive(Debug, Default)]
pub struct Deliveries {
    acknowledged: AtomicU64,
    failed: AtomicU64,
}

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, _: ()) {
        let count = if result.is_ok() { &self.acknowledged } else { &self.failed };
        count.fetch_add(1, Ordering::Release);
    }
}

/// A producer that several threads send by.
pub struct BareProducer(ThreadedProducer<Deliveries>);

impl BareProducer {
    /// With the acknowledgements that Windfall asks for, and a linger and a queue with which it is fast.
    pub fn open(servers: &str) -> Result<Self> {
        let producer: ThreadedProducer<Deliveries> = ClientConfig::new()
            .set("bootstrap.servers", servers)
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("linger.ms", "5")
            .set("queue.buffering.max.messages", "500000")
            .create_with_context(Deliveries::default())
            .context("a bare producer")?;
        Ok(Self(producer))
    }

    /// Sends a record, and waits while the queue is full.
    pub fn send(&self, topic: &str, key: &[u8], payload: &[u8]) -> Result<()> {
        while let Err((error, _)) = self.0.send(BaseRecord::<[u8], [u8]>::to(topic).key(key).payload(payload))
        {
            ensure!(error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull), "{error}");
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Waits until the broker has answered for all records, which are so many since the last call. An error where it has not
    /// acknowledged each of them.
    pub fn settle(&self, records: u64, patience: Duration) -> Result<()> {
        let began = Instant::now();
        self.0.flush(patience)?;
        let counts = self.0.context();
        let read = |count: &AtomicU64| count.load(Ordering::Acquire);
        // The producer's own thread may still be counting the last ones.
        while read(&counts.acknowledged) + read(&counts.failed) < records && began.elapsed() < patience {
            std::thread::yield_now();
        }
        let acknowledged = counts.acknowledged.swap(0, Ordering::AcqRel);
        let failed = counts.failed.swap(0, Ordering::AcqRel);
        ensure!(
            acknowledged == records && failed == 0,
            "of {records} records of the bare producer {acknowledged} are acknowledged, and {failed} failed"
        );
        Ok(())
    }
}
