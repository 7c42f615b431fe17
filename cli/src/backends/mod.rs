//! What stands behind the contracts: the embedded parts, or real brokers and stores.

use crate::data::place;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use windfall_queue::contract::Broker;
use windfall_queue::embedded::{EmbeddedBroker, EmbeddedOptions};
use windfall_reward_service::ledger::{Ledger, LedgerOptions, LedgerReader};
use windfall_store::contract::TokenStore;
use windfall_store::embedded::{EmbeddedStore, EmbeddedStoreOptions};

/// The parts of one data directory. Kept in its manifest, so that `--resume` and `reconcile` find them again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Backends {}

impl Backends {
    /// Opens the broker that the rules call `name`.
    pub async fn broker(&self, data: &Path, name: &str) -> Result<Arc<dyn Broker>> {
        let broker = EmbeddedBroker::open(&place::broker(data, name), &EmbeddedOptions::default())
            .with_context(|| format!("broker {name} cannot be opened"))?;
        Ok(broker)
    }

    /// Opens the token store.
    pub async fn tokens(&self, data: &Path) -> Result<Arc<dyn TokenStore>> {
        let store = EmbeddedStore::open(&place::tokens(data), &EmbeddedStoreOptions::default())
            .context("the token store cannot be opened")?;
        Ok(store)
    }

    /// Opens the ledger for writing.
    pub async fn ledger(&self, data: &Path) -> Result<Ledger> {
        Ledger::open(place::ledger(data), &LedgerOptions::default()).context("the ledger cannot be opened")
    }

    /// Opens the ledger for reading alone.
    pub fn ledger_reader(&self, data: &Path) -> Result<LedgerReader> {
        LedgerReader::open(place::ledger(data)).context("the ledger cannot be read")
    }
}
