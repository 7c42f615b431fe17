//! Brokers: files, Kafka or RocketMQ.

#[cfg(not(all(feature = "kafka", feature = "rocketmq")))]
use super::Absent;
use super::{Driver, Reach};
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;
use windfall_contract::broker::Broker;
use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};
#[cfg(feature = "kafka")]
use windfall_queue_kafka::{KafkaBroker, KafkaOptions};
#[cfg(feature = "rocketmq")]
use windfall_queue_rocketmq::{RocketBroker, RocketOptions};

#[cfg(not(feature = "kafka"))]
type KafkaOptions = Absent;
#[cfg(not(feature = "rocketmq"))]
type RocketOptions = Absent;

/// The kind of a broker of the rules.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum BrokerAt {
    /// Files in the data directory, for one process alone.
    Embedded,
    /// A Kafka cluster.
    Kafka(KafkaOptions),
    /// RocketMQ.
    Rocketmq(RocketOptions),
}

impl BrokerAt {
    /// The Kafka cluster behind these bootstrap servers, with a prefix for the names of topics and groups.
    pub fn kafka(bootstrap_servers: &str, prefix: String, reach: &Reach) -> Self {
        #[cfg(feature = "kafka")]
        let options = KafkaOptions {
            bootstrap_servers: bootstrap_servers.to_owned(),
            prefix,
            tls: reach.tls.clone(),
            plaintext: reach.plaintext,
            // A demo is told once that its cluster is not there.
            connect_timeout_ms: 10_000,
            ..KafkaOptions::default()
        };
        #[cfg(not(feature = "kafka"))]
        let options = {
            let (_, _, _) = (bootstrap_servers, prefix, reach);
            Absent
        };
        Self::Kafka(options)
    }

    /// The RocketMQ with this proxy (its gRPC address) and this broker, with a prefix as above.
    pub fn rocketmq(proxy: &str, broker: &str, prefix: String, reach: &Reach) -> Self {
        #[cfg(feature = "rocketmq")]
        let options = RocketOptions {
            endpoints: vec![proxy.to_owned()],
            admin: vec![broker.to_owned()],
            prefix,
            tls: reach.tls.clone(),
            plaintext: reach.plaintext,
            // The same: a demo is told once.
            connect_timeout_ms: 10_000,
            ..RocketOptions::default()
        };
        #[cfg(not(feature = "rocketmq"))]
        let options = {
            let (_, _, _, _) = (proxy, broker, prefix, reach);
            Absent
        };
        Self::Rocketmq(options)
    }

    /// Refuses what cannot be opened as it is asked for. Connects to nothing.
    pub fn check(&self) -> Result<()> {
        self.driver().map_or(Ok(()), Driver::check)?;
        #[cfg(feature = "kafka")]
        if let Self::Kafka(options) = self {
            options.check_address()?;
        }
        #[cfg(feature = "rocketmq")]
        if let Self::Rocketmq(options) = self {
            options.check_address()?;
        }
        Ok(())
    }

    /// The driver that it needs.
    pub const fn driver(&self) -> Option<Driver> {
        match self {
            Self::Embedded => None,
            Self::Kafka(_) => Some(Driver::Kafka),
            Self::Rocketmq(_) => Some(Driver::RocketMq),
        }
    }

    /// Whether other processes can write to it, so that records need a signature. Files are one process's alone. // I12
    pub const fn is_shared(&self) -> bool {
        !matches!(self, Self::Embedded)
    }

    /// Opens it; `folder` is where an embedded one keeps its files. Blocks.
    pub fn open(&self, name: &str, folder: &Path) -> Result<Arc<dyn Broker>> {
        let opened = match self {
            Self::Embedded => EmbeddedBroker::open(folder, &EmbeddedOptions::default())
                .map(|broker| broker as Arc<dyn Broker>)
                .map_err(anyhow::Error::from),
            Self::Kafka(options) => open_kafka(options),
            Self::Rocketmq(options) => open_rocketmq(options),
        };
        opened.with_context(|| format!("broker {name} cannot be opened"))
    }
}

#[cfg(feature = "kafka")]
fn open_kafka(options: &KafkaOptions) -> Result<Arc<dyn Broker>> {
    Ok(KafkaBroker::open(options)?)
}

#[cfg(not(feature = "kafka"))]
fn open_kafka(_: &KafkaOptions) -> Result<Arc<dyn Broker>> {
    Driver::Kafka.absent()
}

#[cfg(feature = "rocketmq")]
fn open_rocketmq(options: &RocketOptions) -> Result<Arc<dyn Broker>> {
    Ok(Arc::new(RocketBroker::open(options)?))
}

#[cfg(not(feature = "rocketmq"))]
fn open_rocketmq(_: &RocketOptions) -> Result<Arc<dyn Broker>> {
    Driver::RocketMq.absent()
}
