//! What stands behind the contracts: the embedded parts, or real brokers and stores.

mod args;
mod rules;

use crate::data::place;
use anyhow::{Context, Result};
pub use args::BackendArgs;
pub use rules::RulesFollower;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use tokio::task::block_in_place;
use windfall_contract::broker::Broker;
use windfall_contract::tokens::TokenStore;
use windfall_ledger::{Ledger, LedgerOptions, LedgerReader, PostgresOptions};
use windfall_queue::embedded::{EmbeddedBroker, EmbeddedOptions};
use windfall_queue::kafka::{KafkaBroker, KafkaOptions};
use windfall_queue::rocketmq::{RocketBroker, RocketOptions};
use windfall_store::embedded::{EmbeddedStore, EmbeddedStoreOptions};
use windfall_store::redis::{RedisOptions, RedisStore};

/// The parts of one data directory. Kept in its manifest, so that `--resume` and `reconcile` find them again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Backends {
    /// Stands in the names of this run's topics, keys and tables.
    pub run: String,
    /// Servers that `./dev up` runs: what the troubles may stop.
    pub controlled: Vec<String>,
    /// Bootstrap servers.
    pub kafka: Option<String>,
    /// Bootstrap servers of the other cluster.
    pub kafka2: Option<String>,
    /// A proxy's gRPC address and its broker's own, with a comma between.
    pub rocketmq: Option<String>,
    /// Broker a is the one that is broker b without it, and the other way round.
    pub swap: bool,
    /// URLs, with commas in a cluster.
    pub redis: Option<String>,
    /// A URL.
    pub postgres: Option<String>,
    /// URLs of the members that keep the live rules.
    pub etcd: Option<String>,
}

/// What a broker of the rules really is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind<'a> {
    /// In the data directory.
    Embedded,
    /// A Kafka cluster: the server's name and its bootstrap servers.
    Kafka(&'static str, &'a str),
    /// RocketMQ: a proxy's address and a broker's.
    RocketMq(&'a str, &'a str),
}

impl Kind<'_> {
    /// The name of the server, where it is one.
    pub fn server(self) -> Option<&'static str> {
        match self {
            Self::Embedded => None,
            Self::Kafka(name, _) => Some(name),
            Self::RocketMq(..) => Some("rocketmq"),
        }
    }
}

impl Backends {
    /// Whether nothing is real.
    pub fn is_embedded(&self) -> bool {
        let parts = [&self.kafka, &self.kafka2, &self.rocketmq, &self.redis, &self.postgres, &self.etcd];
        parts.iter().all(|one| one.is_none())
    }

    /// What the broker that the rules call `name` is.
    pub fn kind(&self, name: &str) -> Kind<'_> {
        let first = self.kafka.as_deref().map(|address| Kind::Kafka("kafka", address));
        let second = self.kafka2.as_deref().map(|address| Kind::Kafka("kafka2", address));
        let rocket = self.rocketmq.as_deref().and_then(|both| both.split_once(','));
        let other = rocket.map(|(proxy, broker)| Kind::RocketMq(proxy, broker)).or(second);
        (if (name == "a") != self.swap { first } else { other }).unwrap_or(Kind::Embedded)
    }

    /// Opens the broker that the rules call `name`.
    pub async fn broker(&self, data: &Path, name: &str) -> Result<Arc<dyn Broker>> {
        let opened: Result<Arc<dyn Broker>, _> = block_in_place(|| match self.kind(name) {
            Kind::Embedded => EmbeddedBroker::open(&place::broker(data, name), &EmbeddedOptions::default())
                .map(|broker| broker as _),
            Kind::Kafka(_, address) => {
                let options = KafkaOptions {
                    bootstrap_servers: address.to_owned(),
                    prefix: format!("windfall-{}-", self.run),
                    ..KafkaOptions::default()
                };
                KafkaBroker::open(&options).map(|broker| broker as _)
            }
            Kind::RocketMq(proxy, broker) => {
                let options = RocketOptions {
                    endpoints: vec![proxy.to_owned()],
                    admin: vec![broker.to_owned()],
                    prefix: format!("windfall-{}-", self.run),
                    ..RocketOptions::default()
                };
                RocketBroker::open(&options).map(|broker| Arc::new(broker) as _)
            }
        });
        opened.with_context(|| format!("broker {name} cannot be opened"))
    }

    /// Opens the token store.
    pub async fn tokens(&self, data: &Path) -> Result<Arc<dyn TokenStore>> {
        if let Some(urls) = &self.redis {
            let urls: Vec<&str> = urls.split(',').collect();
            let mut options = match urls[..] {
                [url] => RedisOptions::at(url),
                _ => RedisOptions::cluster(urls),
            };
            options.prefix = format!("windfall-{}:", self.run);
            return Ok(RedisStore::open(options)
                .await
                .context("the token store in Redis cannot be opened")?);
        }
        let store = EmbeddedStore::open(&place::tokens(data), &EmbeddedStoreOptions::default())
            .context("the token store cannot be opened")?;
        Ok(store)
    }

    /// Opens the ledger for writing.
    pub async fn ledger(&self, data: &Path) -> Result<Ledger> {
        match &self.postgres {
            Some(url) => block_in_place(|| Ledger::connect(url, &self.postgres_options()))
                .context("the ledger in PostgreSQL cannot be opened"),
            None => Ledger::open(place::ledger(data), &LedgerOptions::default())
                .context("the ledger cannot be opened"),
        }
    }

    /// Opens the ledger for reading alone. Blocks.
    pub fn ledger_reader(&self, data: &Path) -> Result<LedgerReader> {
        match &self.postgres {
            Some(url) => LedgerReader::connect(url, &self.postgres_options()),
            None => LedgerReader::open(place::ledger(data)),
        }
        .context("the ledger cannot be read")
    }

    fn postgres_options(&self) -> PostgresOptions {
        PostgresOptions { schema: format!("windfall_{}", self.run), ..PostgresOptions::default() }
    }
}
