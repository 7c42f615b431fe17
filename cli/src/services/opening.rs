//! Opens what the options name: rules, keys, brokers, queues, token store, ledger.

use super::options::{BrokerAt, LedgerAt, RulesAt, ServiceOptions, TokensAt};
use crate::backends::RulesFollower;
use crate::data::place;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::task::block_in_place;
use windfall_config::etcd::{EtcdOptions, EtcdSource};
use windfall_config::{FileSource, LiveRules};
use windfall_contract::Clock;
use windfall_contract::broker::Broker;
use windfall_contract::tokens::TokenStore;
use windfall_ledger::{Ledger, LedgerOptions, PostgresOptions};
use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};
use windfall_queue_kafka::KafkaBroker;
use windfall_queue_rocketmq::RocketBroker;
use windfall_queue_virtual::{Fanout, FanoutOptions};
use windfall_store::embedded::{EmbeddedStore, EmbeddedStoreOptions};
use windfall_store::redis::RedisStore;
use windfall_token::KeyRing;

impl ServiceOptions {
    /// The key ring's file.
    pub fn keys_path(&self) -> PathBuf {
        self.keys.clone().unwrap_or_else(|| place::keys(&self.data))
    }

    /// The access file.
    pub fn access_path(&self) -> PathBuf {
        self.access.clone().unwrap_or_else(|| self.data.join("access.toml"))
    }

    /// The file of the live rules, where they are in one.
    pub fn rules_path(&self) -> Option<PathBuf> {
        match &self.rules {
            RulesAt::Data => Some(place::rules(&self.data)),
            RulesAt::File(path) => Some(path.clone()),
            RulesAt::Etcd(_) => None,
        }
    }

    /// Follows the live rules. Blocks until there are some.
    pub fn follow_rules(&self, clock: &Clock) -> Result<(LiveRules, RulesFollower)> {
        let known = Some(self.brokers.keys().cloned().collect());
        let clock = clock.clone();
        let now = move || clock.unix_ms();
        match (&self.rules, self.rules_path()) {
            (RulesAt::Etcd(etcd), _) => {
                let copy = Some(place::rules_copy(&self.data));
                EtcdSource::open(EtcdOptions { copy, ..etcd.clone() }, known, now)
                    .map(|(live, source)| (live, RulesFollower::Etcd(source)))
                    .context("the live rules in etcd cannot be opened")
            }
            (_, path) => FileSource::open(&path.unwrap_or_default(), known, now)
                .map(|(live, source)| (live, RulesFollower::File(source)))
                .context("the live rules cannot be opened"),
        }
    }

    /// Reads the key ring.
    pub fn open_keys(&self) -> Result<KeyRing> {
        let path = self.keys_path();
        KeyRing::load(&path).with_context(|| {
            format!("the key ring cannot be read; `windfall keys new --keys {}` makes one", path.display())
        })
    }

    /// Opens every broker.
    pub fn open_brokers(&self) -> Result<BTreeMap<String, Arc<dyn Broker>>> {
        let open = |(name, at): (&String, &BrokerAt)| {
            let broker = block_in_place(|| match at {
                BrokerAt::Embedded => {
                    EmbeddedBroker::open(&place::broker(&self.data, name), &EmbeddedOptions::default())
                        .map(|broker| broker as Arc<dyn Broker>)
                }
                BrokerAt::Kafka(options) => KafkaBroker::open(options).map(|broker| broker as _),
                BrokerAt::Rocketmq(options) => {
                    RocketBroker::open(options).map(|broker| Arc::new(broker) as _)
                }
            });
            Ok((name.clone(), broker.with_context(|| format!("broker {name} cannot be opened"))?))
        };
        self.brokers.iter().map(open).collect()
    }

    /// Opens the token store.
    pub async fn open_tokens(&self) -> Result<Arc<dyn TokenStore>> {
        match &self.tokens {
            TokensAt::Redis(options) => {
                let store = RedisStore::open(options.clone()).await;
                Ok(store.context("the token store in Redis cannot be opened")?)
            }
            TokensAt::Embedded => {
                let store = EmbeddedStore::open(&place::tokens(&self.data), &EmbeddedStoreOptions::default());
                Ok(store.context("the token store cannot be opened")?)
            }
        }
    }

    /// Whether other processes may use the same token store.
    pub const fn shares_tokens(&self) -> bool {
        matches!(self.tokens, TokensAt::Redis(_))
    }

    /// Opens the ledger for writing.
    pub fn open_ledger(&self) -> Result<Ledger> {
        match &self.ledger {
            LedgerAt::Postgres(at) => {
                let options = PostgresOptions { schema: at.schema.clone(), ..PostgresOptions::default() };
                block_in_place(|| Ledger::connect(&at.url, &options))
                    .context("the ledger in PostgreSQL cannot be opened")
            }
            LedgerAt::File => Ledger::open(place::ledger(&self.data), &LedgerOptions::default())
                .context("the ledger cannot be opened"),
        }
    }
}

/// Opens the queues of the rules in force. Waits for brokers.
pub fn open_fanout(
    rules: &LiveRules,
    brokers: &BTreeMap<String, Arc<dyn Broker>>,
    clock: &Clock,
) -> Result<Arc<Fanout>> {
    block_in_place(|| {
        Fanout::open(&rules.current(), brokers.clone(), FanoutOptions::default(), clock.clone())
    })
    .map(Arc::new)
    .context("the queues cannot be opened")
}
