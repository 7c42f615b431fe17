//! A role's process: the wiring on the parts that the options name, and what is read of it now and then.

use super::connectors::Wired;
use super::options::ServiceOptions;
use super::polled_metrics::PolledMetrics;
use super::role::Role;
use crate::place;
use crate::wiring::{self, Wiring};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::block_in_place;
use windfall_contract::Clock;
use windfall_contract::rules::Rules;
use windfall_edge::Router;
use windfall_ledger::Unbudgeted;
use windfall_reward_service::rpc::{ArchiveService, RewardsService};
use windfall_sdk::SdkOptions;
use windfall_sdk::rpc::Gateway;
use windfall_token::KeyRing;
use windfall_token_service::TokenService;
use windfall_wallet::WalletService;

/// A running role. It reads like the wiring that it has.
pub struct Parts {
    wiring: Wiring,
    /// The downstream systems, for their counters.
    pub connectors: Vec<Wired>,
    polled: PolledMetrics,
}

impl Deref for Parts {
    type Target = Wiring;

    fn deref(&self) -> &Wiring {
        &self.wiring
    }
}

impl Parts {
    /// Opens what the options name and the role needs, and starts it.
    pub async fn open(role: Role, options: &ServiceOptions, clock: &Clock) -> Result<Self> {
        let connectors = if role.work().grants() { options.wire_connectors(clock)? } else { Vec::new() };
        let parts = options.open_parts(role.work(), &connectors, clock).await?;
        let wiring = Wiring::start(role.work(), parts, options.wiring_options()?).await?;
        let polled =
            PolledMetrics::start(wiring.rules.clone(), wiring.brokers.clone(), wiring.rewards.clone());
        Ok(Self { wiring, connectors, polled })
    }

    /// What is polled every few seconds.
    pub const fn polled_metrics(&self) -> Option<&PolledMetrics> {
        Some(&self.polled)
    }

    /// The services of a role.
    pub fn router(&self, role: Role, tenant: &str) -> Router {
        let mut router = Router::of_tenants([tenant.to_owned()]);
        if role.work().sends {
            router = router.send(Arc::new(Gateway::new(self.sdks.clone())));
        }
        if let Some(verifier) = &self.verifier
            && role.work().serves_tokens
        {
            router = router.tokens(Arc::new(TokenService::new(verifier.clone())));
        }
        if let (Some(rewards), Some(grants)) = (&self.rewards, &self.async_grants) {
            let service = RewardsService::with_queue(grants.clone());
            router =
                router.rewards(Arc::new(service)).archive(Arc::new(ArchiveService::new(rewards.clone())));
        }
        if let Some(wallet) = &self.wallet {
            router = router.wallet(Arc::new(WalletService::new(wallet.clone())));
        }
        router
    }

    /// Closes in the order of an event's way.
    pub async fn close(self, deadline: Duration) -> Result<()> {
        drop(self.polled);
        self.wiring.close(deadline).await.map(drop)
    }
}

impl ServiceOptions {
    /// Opens the parts that the options name, as far as this work needs them.
    async fn open_parts(
        &self,
        work: wiring::Work,
        connectors: &[Wired],
        clock: &Clock,
    ) -> Result<wiring::Parts> {
        let known = self.brokers.keys().cloned().collect();
        let copy = place::rules_copy(&self.data);
        let (rules, rules_follower) = block_in_place(|| self.rules.follow(&self.data, copy, known, clock))?;
        let brokers = if work.queues() { self.open_brokers()? } else { BTreeMap::new() };
        let keys = if work.needs_keys() { Some(self.open_keys()?) } else { None };
        let tokens = self.tokens.open(&self.data).await?;
        let ledger = if work.grants() {
            let unbudgeted = self.unbudgeted(&rules.current());
            Some(block_in_place(|| self.ledger.open(&self.data, unbudgeted))?)
        } else {
            None
        };
        let connectors = connectors.iter().map(|wired| Arc::clone(&wired.connector)).collect();
        let clock = clock.clone();
        let tokens_are_shared = self.tokens.is_shared();
        Ok(wiring::Parts {
            rules,
            rules_follower,
            brokers,
            tokens,
            tokens_are_shared,
            keys,
            ledger,
            connectors,
            clock,
        })
    }

    /// What becomes of rewards that no budget covers; the log says so, since the first reward of a campaign whose budget
    /// was forgotten depends on it.
    fn unbudgeted(&self, rules: &Rules) -> Unbudgeted {
        let unbudgeted = self.rewards.unbudgeted.map_or(Unbudgeted::default(), Unbudgeted::from);
        let budgets = rules.budgets.len();
        match unbudgeted {
            Unbudgeted::Refuse => tracing::info!(
                budgets,
                "rewards.unbudgeted = \"refuse\": what no budget of the rules covers is archived, not granted"
            ),
            Unbudgeted::Allow => tracing::warn!(
                budgets,
                "rewards.unbudgeted = \"allow\": what no budget of the rules covers is granted without an upper bound"
            ),
        }
        unbudgeted
    }

    fn open_brokers(&self) -> Result<wiring::Brokers> {
        let open = |(name, at): (&String, &crate::drivers::BrokerAt)| {
            let broker = block_in_place(|| at.open(name, &place::broker(&self.data, name)))?;
            Ok((name.clone(), broker))
        };
        self.brokers.iter().map(open).collect()
    }

    fn open_keys(&self) -> Result<KeyRing> {
        let path = self.keys_path();
        KeyRing::load(&path).with_context(|| {
            format!("the key ring cannot be read; `windfall keys new --file {}` makes one", path.display())
        })
    }

    /// How the wiring uses the parts.
    fn wiring_options(&self) -> Result<wiring::Options> {
        Ok(wiring::Options {
            sdk: SdkOptions { app_id: self.tenant.clone(), ..self.sdk.clone() },
            spool: place::spool(&self.data).join(&self.tenant),
            rewards: self.reward_options()?,
            token_service: self.token_service.clone(),
            wallet: self.wallet.clone(),
            async_grants: self.grant_async.later_options(),
            rewrite: self.grant_async.again(),
            topics: self.topics.clone(),
            salvage: place::salvage(&self.data),
            keys_file: self.keys_path(),
            jitter_seed: u64::from(std::process::id()),
        })
    }
}
