//! The contract, sentence by sentence.

use super::{PATIENCE, options, prefix, shared};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use windfall_conformance::broker::{CHECKS, Fixture};
use windfall_contract::broker::{Broker, OpenError};
use windfall_queue_kafka::{KafkaBroker, KafkaOptions};

pub(super) struct Kafka {
    options: KafkaOptions,
    prefix: String,
    /// Of each broker that was opened.
    lost_assignments: Mutex<Vec<Arc<AtomicU64>>>,
}

impl Kafka {
    /// Topics and groups of this run's own, on the broker of these options.
    pub(super) fn new(options: KafkaOptions, what: &str) -> Self {
        Self { options, prefix: prefix(what), lost_assignments: Mutex::default() }
    }
}

#[async_trait]
impl Fixture for Kafka {
    fn name(&self) -> &str {
        "kafka"
    }

    fn prefix(&self) -> &str {
        &self.prefix
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn quiet(&self) -> Duration {
        Duration::from_millis(300)
    }

    fn reasons_to_repeat(&self) -> u64 {
        self.lost_assignments.lock().iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    async fn open(&self) -> Result<Arc<dyn Broker>, OpenError> {
        let options = self.options.clone();
        let opened = tokio::task::spawn_blocking(move || KafkaBroker::open(&options)).await.unwrap();
        let opened = opened?;
        self.lost_assignments.lock().push(opened.lost_assignments());
        Ok(opened)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn kafka_conforms() {
    let servers = tokio::task::spawn_blocking(|| shared("kafka")).await.unwrap();
    let fixture = Kafka::new(options(&servers, String::new()), "conform");
    let mut failed = Vec::new();
    for (name, _) in CHECKS {
        let started = Instant::now();
        if let Err(what) = windfall_conformance::broker::run_one(&fixture, name).await {
            failed.push(format!("{name}: {what}"));
        }
        println!("{name}: {:?}", started.elapsed());
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
