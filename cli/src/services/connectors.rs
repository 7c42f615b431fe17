//! The downstream systems of the options file, and which bonus type each pays.

use super::options::{ConnectorAt, GuardAt, ServiceOptions, Wire};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::sync::Arc;
use windfall_connectors::{GrpcConnector, HttpConnector, Snapshot};
use windfall_contract::Clock;
use windfall_contract::connector::Connector;
use windfall_reward_service::{ConnectorOptions, Payer, RewardOptions};

/// A connector that is set up, and its counters.
pub struct Wired {
    /// Its name in the options.
    pub name: String,
    /// The connector that the reward service calls.
    pub connector: Arc<dyn Connector>,
    /// Reads its counters.
    pub snapshot: Arc<dyn Fn() -> Snapshot + Send + Sync>,
}

impl ServiceOptions {
    /// Sets up every connector. Nothing is connected yet.
    pub fn wire_connectors(&self, clock: &Clock) -> Result<Vec<Wired>> {
        self.connectors.iter().map(|(name, at)| wire(name, at, clock)).collect()
    }

    /// The options of the reward service: the payers, and the guard around each downstream.
    pub fn reward_options(&self) -> Result<RewardOptions> {
        let payer = |word: &str, key: &str| -> Result<Payer> {
            Ok(match word {
                "ledger" => Payer::Ledger,
                "nobody" => Payer::Nobody,
                name if self.connectors.contains_key(name) => Payer::Connector(name.into()),
                other => bail!(
                    "{key} is {other:?}, but only `ledger`, `nobody` or the name of a [connectors] table is allowed"
                ),
            })
        };
        let pays = self.rewards.pays.iter().map(|(bonus_type, word)| {
            Ok((bonus_type.clone(), payer(word, &format!("rewards.pays.{bonus_type}"))?))
        });
        Ok(RewardOptions {
            apps: self.rewards.apps_of(&self.tenant),
            tenant: self.tenant.clone(),
            default_pays: payer(&self.rewards.default_pays, "rewards.default_pays")?,
            pays: pays.collect::<Result<BTreeMap<_, _>>>()?,
            payout: payer(&self.rewards.payout, "rewards.payout")?,
            connectors: self.connectors.iter().map(|(name, at)| (name.clone(), guard(&at.guard))).collect(),
            writers: self.rewards.writers,
            batch_events_max: self.rewards.batch_events_max,
            grant_when_ledger_went_back: self.rewards.grant_when_ledger_went_back,
            ..RewardOptions::default()
        })
    }
}

fn wire(name: &str, at: &ConnectorAt, clock: &Clock) -> Result<Wired> {
    let wrong = || format!("the options connectors.{name} cannot be used");
    Ok(match &at.wire {
        Wire::Http(options) => {
            let own = HttpConnector::new(name, options, clock.clone()).with_context(wrong)?;
            let own = Arc::new(own);
            let read = Arc::clone(&own);
            Wired { name: name.into(), connector: own, snapshot: Arc::new(move || read.metrics()) }
        }
        Wire::Grpc(options) => {
            let own = GrpcConnector::new(name, options, clock.clone()).with_context(wrong)?;
            let own = Arc::new(own);
            let read = Arc::clone(&own);
            Wired { name: name.into(), connector: own, snapshot: Arc::new(move || read.metrics()) }
        }
    })
}

fn guard(at: &GuardAt) -> ConnectorOptions {
    let GuardAt { concurrency, timeout_ms, timeout_retry_ms, breaker_failures, breaker_open_ms } = *at;
    ConnectorOptions { concurrency, timeout_ms, timeout_retry_ms, breaker_failures, breaker_open_ms }
}
