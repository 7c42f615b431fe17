//! What a role stands on, opened as the options say, and closed in the order of an event's way.

use super::connectors::Wired;
use super::following::FollowRules;
use super::keys::FollowKeys;
use super::later::{LaterQueue, Rewriting};
use super::opening::open_fanout;
use super::options::ServiceOptions;
use super::role::Role;
use super::slow::Slow;
use crate::backends::RulesFollower;
use crate::data::place;
use crate::pipeline::{Consuming, Shared, TokenDrop, follow_budgets};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::{AbortHandle, block_in_place};
use windfall_config::LiveRules;
use windfall_contract::Clock;
use windfall_contract::broker::Broker;
use windfall_contract::rules::Fuse;
use windfall_contract::tokens::TokenStore;
use windfall_edge::{Faces, Health};
use windfall_gateway::Gateway;
use windfall_queue::virtual_queue::Fanout;
use windfall_reward_service::rpc::{ArchiveService, RewardsService};
use windfall_reward_service::{AsyncGrants, Fuses, ResumeOptions, Resumer, RewardHandle, RewardService};
use windfall_sdk::{Sdk, SdkOptions, SdkParts, SpoolMode};
use windfall_token::KeyRing;
use windfall_token_service::{KeyRingVerifier, TokenParts, TokenService};
use windfall_wallet::{Wallet, WalletParts, WalletService};

/// What is open.
pub struct Parts {
    pub rules: LiveRules,
    pub brokers: BTreeMap<String, Arc<dyn Broker>>,
    pub fanout: Option<Arc<Fanout>>,
    pub sdks: BTreeMap<String, Sdk>,
    pub rewards: Option<RewardHandle>,
    pub book: Option<KeyRingVerifier>,
    pub wallet: Option<Wallet>,
    pub connectors: Vec<Wired>,
    pub consuming: Option<Consuming>,
    token_drop: Option<TokenDrop>,
    budgets: Option<AbortHandle>,
    slow: Option<Slow>,
    following: Option<FollowRules>,
    later: Option<AsyncGrants>,
    rewriting: Option<Rewriting>,
    keys: Option<FollowKeys>,
    resuming: Option<AbortHandle>,
    follower: RulesFollower,
}

impl Parts {
    /// Opens what the role needs, and starts consumers if it has them.
    pub async fn open(role: Role, options: &ServiceOptions, clock: &Clock) -> Result<Self> {
        let (rules, follower) = block_in_place(|| options.follow_rules(clock))?;
        let brokers = if role.queues() { options.open_brokers()? } else { BTreeMap::new() };
        let fanout = if role.queues() { Some(open_fanout(&rules, &brokers, clock)?) } else { None };
        let keys = if role.sends() || role.judges_tokens() { Some(options.open_keys()?) } else { None };
        let tokens = options.open_tokens().await?;
        let connectors = if role.grants() { options.wire_connectors(&Clock::system())? } else { Vec::new() };
        let mut own = Self {
            sdks: BTreeMap::new(),
            rewards: None,
            book: None,
            wallet: None,
            consuming: None,
            token_drop: None,
            budgets: None,
            slow: None,
            following: None,
            later: None,
            rewriting: None,
            keys: None,
            resuming: None,
            rules,
            brokers,
            fanout,
            connectors,
            follower,
        };
        if role.grants() {
            own.open_rewards(options, &tokens).await?;
        }
        if let Some(keys) = &keys {
            if role.sends() {
                own.open_sdks(options, keys, &tokens, clock)?;
            }
            if role.judges_tokens() {
                let parts =
                    TokenParts { keys: keys.clone(), store: Arc::clone(&tokens), rules: own.rules.clone() };
                let book = KeyRingVerifier::open(options.token_service.clone(), parts)?;
                let taking = book.clone();
                let take = move |ring| taking.set_keys(ring).map_err(|error| error.to_string());
                own.keys = Some(FollowKeys::start(&options.keys_path(), take));
                own.book = Some(book);
            }
        }
        if let (Some(book), Some(rewards), true) = (&own.book, &own.rewards, role.serves_wallets()) {
            let rewards = Arc::new(rewards.clone().with_fuses(fuses(&own.rules)));
            let (verifier, accounts) = (Arc::new(book.clone()), Arc::clone(&rewards) as _);
            own.wallet =
                Some(Wallet::open(options.wallet.clone(), WalletParts { verifier, rewards, accounts })?);
        }
        if let (Some(fanout), Some(rewards), true) = (&own.fanout, &own.rewards, role.serves_grants()) {
            let queue = Arc::new(LaterQueue::new(Arc::clone(fanout), own.rules.clone()));
            let granting = rewards.clone().with_fuses(fuses(&own.rules));
            let later = AsyncGrants::new(granting, queue, options.grant_async.later_options());
            own.later = Some(later);
        }
        if let (Some(rewards), false) = (&own.rewards, own.connectors.is_empty()) {
            let resumer = Resumer::new(rewards.clone(), ResumeOptions::default());
            own.resuming = Some(tokio::spawn(resumer.run()).abort_handle());
        }
        if role.consumes() {
            own.consume(options).await?;
        } else if let Some(rewards) = &own.rewards {
            own.budgets =
                Some(tokio::spawn(follow_budgets(own.rules.clone(), rewards.clone())).abort_handle());
        }
        if let (Some(fanout), false) = (&own.fanout, role.sends()) {
            // Else its SDK does.
            own.following = Some(FollowRules::start(&own.rules, Arc::clone(fanout)));
        }
        let slow = Slow::start(own.rules.clone(), own.brokers.clone(), own.rewards.clone());
        if let Some(later) = &own.later {
            let found = slow.found();
            let lag = move || found.lock().lag_records.values().sum();
            own.rewriting = Some(Rewriting::start(later.clone(), options.grant_async.again(), lag));
        }
        own.slow = Some(slow);
        Ok(own)
    }

    /// What is asked for every few seconds.
    pub const fn slow(&self) -> Option<&Slow> {
        self.slow.as_ref()
    }

    async fn open_rewards(&mut self, options: &ServiceOptions, tokens: &Arc<dyn TokenStore>) -> Result<()> {
        let ledger = options.open_ledger()?;
        let token_drop = TokenDrop::start(Arc::clone(tokens));
        let connectors = self.connectors.iter().map(|wired| Arc::clone(&wired.connector)).collect();
        let rewards = RewardService::start(
            options.reward_options()?,
            ledger,
            connectors,
            Some(token_drop.observer()),
            Clock::system(),
        )
        .context("the reward service cannot start")?;
        crate::pipeline::set_budgets(&rewards, &self.rules.current())
            .await
            .context("the budgets cannot be set")?;
        self.rewards = Some(rewards);
        self.token_drop = Some(token_drop);
        Ok(())
    }

    fn open_sdks(
        &mut self,
        options: &ServiceOptions,
        keys: &KeyRing,
        tokens: &Arc<dyn TokenStore>,
        clock: &Clock,
    ) -> Result<()> {
        let Some(fanout) = &self.fanout else { bail!("an SDK without queues") };
        let tenant = &options.tenant;
        let sdk_options = SdkOptions {
            app_id: tenant.clone(),
            spool: SpoolMode::Process(place::spool(&options.data).join(tenant)),
            ..options.sdk.clone()
        };
        let parts = SdkParts {
            keys: keys.clone(),
            rules: self.rules.clone(),
            fanout: Arc::clone(fanout),
            tokens: Some(Arc::clone(tokens)),
            clock: clock.clone(),
        };
        let (sdk, inherited) =
            Sdk::init(sdk_options, parts).with_context(|| format!("the SDK of app {tenant} cannot start"))?;
        if inherited.packs > 0 || !inherited.set_aside.is_empty() {
            tracing::info!(tenant, ?inherited, "an earlier process left these in the spool");
        }
        self.sdks.insert(tenant.clone(), sdk);
        Ok(())
    }

    /// Starts consumers.
    async fn consume(&mut self, options: &ServiceOptions) -> Result<()> {
        let (Some(fanout), Some(rewards)) = (&self.fanout, &self.rewards) else {
            bail!("a consumer without queues or a ledger")
        };
        let Some(token_drop) = self.token_drop.take() else { bail!("a consumer without a token store") };
        let shared = Shared {
            brokers: self.brokers.clone(),
            rules: self.rules.clone(),
            fanout: Arc::clone(fanout),
            rewards: rewards.clone(),
            token_drop,
        };
        let unknown = options.topics.iter().find(|topic| !self.rules.current().topics.contains_key(*topic));
        if let Some(topic) = unknown {
            bail!("topics names {topic}, which the live rules do not know");
        }
        let wanted = |topic: &str| options.topics.is_empty() || options.topics.iter().any(|one| one == topic);
        let seed = u64::from(std::process::id());
        self.consuming = Some(Consuming::start(shared, &place::salvage(&options.data), seed, wanted).await?);
        Ok(())
    }

    /// The services of a role.
    pub fn faces(&self, role: Role, tenant: &str) -> Faces {
        let mut faces = Faces::of_tenants([tenant.to_owned()]);
        if role.sends() {
            faces = faces.send(Arc::new(Gateway::new(self.sdks.clone())));
        }
        if let Some(book) = &self.book
            && role.serves_tokens()
        {
            faces = faces.tokens(Arc::new(TokenService::new(book.clone())));
        }
        if let Some(rewards) = &self.rewards
            && role.serves_grants()
        {
            let service = match &self.later {
                Some(later) => RewardsService::with_queue(later.clone()),
                None => RewardsService::new(rewards.clone().with_fuses(fuses(&self.rules))),
            };
            faces = faces.rewards(Arc::new(service)).archive(Arc::new(ArchiveService::new(rewards.clone())));
        }
        if let Some(wallet) = &self.wallet {
            faces = faces.wallet(Arc::new(WalletService::new(wallet.clone())));
        }
        faces
    }

    /// What makes this process unfit for calls.
    pub fn watch(&self, health: &Health) {
        if let Some(consuming) = &self.consuming {
            let watches = consuming.watches();
            health.check("consumers", move || match watches.iter().find(|(_, task)| task.is_finished()) {
                Some((topic, _)) => Err(format!("the consumer of {topic} has ended by itself")),
                None => Ok(()),
            });
        }
        if let Some(rewards) = &self.rewards {
            let rewards = rewards.clone();
            health.check("reward-service", move || {
                if rewards.stats().is_closed { Err("the ledger's writers have ended".into()) } else { Ok(()) }
            });
        }
    }

    /// Closes in the order of an event's way: SDKs, consumers, queues, reward service, stores.
    pub async fn close(self, deadline: Duration) -> Result<()> {
        let began = Instant::now();
        let left = move || deadline.saturating_sub(began.elapsed());
        for (tenant, sdk) in self.sdks {
            let report = tokio::task::spawn_blocking(move || sdk.close(left())).await?;
            if report.packs_left > 0 {
                tracing::warn!(tenant, packs = report.packs_left, "wait in the spool for the next start");
            }
        }
        [self.budgets, self.resuming].into_iter().flatten().for_each(|task| task.abort());
        drop(self.slow);
        drop(self.following);
        drop(self.rewriting);
        drop(self.keys);
        drop(self.later);
        let closed = match self.consuming {
            Some(consuming) => consuming.close(left()).await,
            None => {
                if let Some(fanout) = self.fanout {
                    tokio::task::spawn_blocking(move || fanout.close(left())).await?;
                }
                if let Some(rewards) = self.rewards {
                    tokio::task::spawn_blocking(move || rewards.close()).await?;
                }
                if let Some(token_drop) = self.token_drop {
                    token_drop.close().await;
                }
                Ok(())
            }
        };
        self.follower.close();
        closed
    }
}

/// What an operator has paused or diverted is not granted past the queue either.
fn fuses(rules: &LiveRules) -> Fuses {
    let rules = rules.clone();
    Arc::new(move |bonus_type| {
        rules.current().limits.types.get(bonus_type).is_none_or(|own| own.fuse == Fuse::Closed)
    })
}
