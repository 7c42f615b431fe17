//! A running process: started from its parts, watched, and closed in the order of an event's way.

use super::async_grants::{self, AsyncGrantQueue};
use super::background::Background;
use super::consuming::{Consuming, Shared};
use super::parts::{Brokers, Options, Parts};
use super::token_drop::TokenDrop;
use super::work::Work;
use super::{budgets, keys, queues};
use crate::drivers::RulesFollower;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_config::LiveRules;
use windfall_contract::Clock;
use windfall_contract::connector::Connector;
use windfall_contract::rules::Fuse;
use windfall_contract::tokens::TokenStore;
use windfall_edge::Health;
use windfall_ledger::Ledger;
use windfall_queue_virtual::Fanout;
use windfall_reward_service::{
    AsyncGrants, Fuses, ResumeOptions, Resumer, RewardHandle, RewardOptions, RewardService,
};
use windfall_sdk::{Inherited, Sdk, SdkOptions, SdkParts};
use windfall_token::KeyRing;
use windfall_token_service::{KeyRingVerifier, TokenOptions, TokenParts};
use windfall_wallet::{Wallet, WalletParts};

/// What runs in a process; what its [`Work`] does not need is missing.
pub struct Wiring {
    /// The live rules.
    pub rules: LiveRules,
    /// The brokers.
    pub brokers: Brokers,
    /// The virtual queues.
    pub fanout: Option<Arc<Fanout>>,
    /// SDKs by the app that they send for.
    pub sdks: BTreeMap<String, Sdk>,
    /// What an earlier process left in the SDK's spool.
    pub inherited: Inherited,
    /// The reward service.
    pub rewards: Option<RewardHandle>,
    /// The token verifier.
    pub verifier: Option<KeyRingVerifier>,
    /// The wallet.
    pub wallet: Option<Wallet>,
    /// Asynchronous grants, on the reward service behind the fuses.
    pub async_grants: Option<AsyncGrants>,
    /// The consumers.
    pub consuming: Option<Consuming>,
    token_drop: Option<TokenDrop>,
    background: Vec<Background>,
    rules_follower: RulesFollower,
}

/// What a closed process leaves to the next one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Closed {
    /// Packs that wait in the spool.
    pub packs_left: usize,
}

/// What the token store has at least to take the last tokens, also where the deadline is over.
const TOKENS_CLOSE: Duration = Duration::from_secs(2);

impl Wiring {
    /// Starts what this work needs, consumers last.
    pub async fn start(work: Work, parts: Parts, options: Options) -> Result<Self> {
        let Parts { rules, rules_follower, brokers, keys, ledger, connectors, clock, .. } = parts;
        let mut tokens = parts.tokens;
        if work.needs_keys() && keys.is_none() {
            bail!("a process that sends or verifies tokens needs a key ring");
        }
        if work.grants() && ledger.is_none() {
            bail!("a process that grants rewards needs a ledger");
        }
        let fanout = if work.queues() { Some(queues::open(&rules, &brokers, &clock)?) } else { None };
        let mut own = Self {
            rules,
            brokers,
            fanout,
            sdks: BTreeMap::new(),
            inherited: Inherited::default(),
            rewards: None,
            verifier: None,
            wallet: None,
            async_grants: None,
            consuming: None,
            token_drop: None,
            background: Vec::new(),
            rules_follower,
        };
        if let (Some(ledger), true) = (ledger, work.grants()) {
            let token_drop = TokenDrop::start(tokens, parts.tokens_are_shared);
            // Whoever reads or writes tokens in this process does so through the table, or a credit would miss them.
            tokens = token_drop.store();
            own.start_rewards(options.rewards, ledger, connectors, token_drop, &clock).await?;
        }
        if let (Some(keys), true) = (keys.clone(), work.sends) {
            own.start_sdk(options.sdk, options.spool, keys, &tokens, &clock)?;
        } else if let Some(fanout) = &own.fanout {
            // An SDK takes over new rules for the queues that it sends to.
            own.background.push(queues::follow(&own.rules, Arc::clone(fanout)));
        }
        if let (Some(keys), true) = (keys, work.verifies_tokens()) {
            own.start_verifier(options.token_service, keys, tokens, &options.keys_file)?;
        }
        if let (Some(verifier), Some(rewards), true) = (&own.verifier, &own.rewards, work.serves_wallets) {
            let rewards = Arc::new(rewards.clone().with_fuses(fuses(&own.rules)));
            let (verifier, accounts) = (Arc::new(verifier.clone()), Arc::clone(&rewards) as _);
            own.wallet = Some(Wallet::open(options.wallet, WalletParts { verifier, rewards, accounts })?);
        }
        if let (Some(fanout), Some(rewards), true) = (&own.fanout, &own.rewards, work.serves_grants) {
            let queue = Arc::new(AsyncGrantQueue::new(Arc::clone(fanout), own.rules.clone()));
            let granting = rewards.clone().with_fuses(fuses(&own.rules));
            let grants = AsyncGrants::new(granting, queue, options.async_grants);
            let (rules, brokers) = (own.rules.clone(), own.brokers.clone());
            own.background.push(async_grants::write_again(grants.clone(), options.rewrite, rules, brokers));
            own.async_grants = Some(grants);
        }
        if let (Some(fanout), Some(rewards), true) = (&own.fanout, &own.rewards, work.consumes) {
            let shared = Shared { brokers: &own.brokers, rules: &own.rules, fanout, rewards, clock: &clock };
            let consuming =
                Consuming::start(&shared, &options.topics, &options.salvage, options.jitter_seed).await?;
            own.consuming = Some(consuming);
        }
        Ok(own)
    }

    /// Starts the reward service, with the budgets of the rules in force.
    async fn start_rewards(
        &mut self,
        options: RewardOptions,
        ledger: Ledger,
        connectors: Vec<Arc<dyn Connector>>,
        token_drop: TokenDrop,
        clock: &Clock,
    ) -> Result<()> {
        let has_payers = !connectors.is_empty();
        let rewards =
            RewardService::start(options, ledger, connectors, Some(token_drop.observer()), clock.clone())
                .context("the reward service cannot start")?;
        budgets::set(&rewards, &self.rules.current()).await.context("the budgets cannot be set")?;
        self.background.push(budgets::follow(self.rules.clone(), rewards.clone()));
        if has_payers {
            let resumer = Resumer::new(rewards.clone(), ResumeOptions::default());
            self.background.push(Background::spawn("held withdrawals", resumer.run()));
        }
        self.rewards = Some(rewards);
        self.token_drop = Some(token_drop);
        Ok(())
    }

    fn start_sdk(
        &mut self,
        options: SdkOptions,
        spool: PathBuf,
        keys: KeyRing,
        tokens: &Arc<dyn TokenStore>,
        clock: &Clock,
    ) -> Result<()> {
        let fanout = self.fanout.clone().context("a process that sends needs queues")?;
        let app_id = options.app_id.clone();
        let parts = SdkParts {
            spool: options.spool_in(spool),
            keys,
            rules: self.rules.clone(),
            fanout,
            tokens: Some(Arc::clone(tokens)),
            clock: clock.clone(),
        };
        let (sdk, inherited) =
            Sdk::init(options, parts).with_context(|| format!("the SDK of app {app_id} cannot start"))?;
        if inherited.packs > 0 || !inherited.set_aside.is_empty() {
            tracing::info!(app_id, ?inherited, "an earlier process left these in the spool");
        }
        self.inherited = inherited;
        self.sdks.insert(app_id, sdk);
        Ok(())
    }

    fn start_verifier(
        &mut self,
        options: TokenOptions,
        keys: KeyRing,
        store: Arc<dyn TokenStore>,
        keys_file: &Path,
    ) -> Result<()> {
        let verifier = KeyRingVerifier::open(options, TokenParts { keys, store, rules: self.rules.clone() })?;
        let taking = verifier.clone();
        let take = move |ring| taking.set_keys(ring).map_err(|error| error.to_string());
        self.background.push(keys::follow(keys_file, take));
        self.verifier = Some(verifier);
        Ok(())
    }

    /// Tokens dropped from the store because their reward was credited, and removals given up.
    pub fn tokens_dropped(&self) -> (u64, u64) {
        self.token_drop.as_ref().map_or((0, 0), TokenDrop::counts)
    }

    /// Adds the checks that make this process unfit for calls.
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
        let tasks: Vec<_> = self.background.iter().map(Background::watch).collect();
        health.check("background", move || match tasks.iter().find(|(_, task)| task.is_finished()) {
            Some((name, _)) => Err(format!("the background task for {name} has ended by itself")),
            None => Ok(()),
        });
    }

    /// Closes in the order of an event's way, within `deadline` in all: SDKs, consumers, queues, reward service, token
    /// store, live rules.
    pub async fn close(self, deadline: Duration) -> Result<Closed> {
        let began = Instant::now();
        let left = move || deadline.saturating_sub(began.elapsed());
        let mut closed = Closed::default();
        for (app_id, sdk) in self.sdks {
            // A broker that is down must not take the time that the consumers need to finish what they have.
            let report = sdk.close(left() / 2).await;
            if report.packs_left > 0 {
                tracing::warn!(app_id, packs = report.packs_left, "wait in the spool for the next start");
            }
            closed.packs_left += report.packs_left;
        }
        for task in self.background {
            task.end().await;
        }
        drop(self.async_grants);
        // A consumer that crashed must not keep the others, or the ledger, from closing in order.
        let drained = match self.consuming {
            Some(consuming) => consuming.drain(left()).await,
            None => Ok(()),
        };
        if let Some(fanout) = self.fanout {
            tokio::task::spawn_blocking(move || fanout.close(left())).await?;
        }
        if let Some(rewards) = self.rewards {
            tokio::task::spawn_blocking(move || rewards.close()).await?;
        }
        if let Some(token_drop) = self.token_drop {
            // Its tokens are weak; the process must not outlive its deadline for them.
            if tokio::time::timeout(left().max(TOKENS_CLOSE), token_drop.close()).await.is_err() {
                tracing::warn!("the token store was too slow to take the last tokens and removals");
            }
        }
        self.rules_follower.close();
        drained.map(|()| closed)
    }
}

/// What an operator has paused or diverted is not granted past the queue either.
fn fuses(rules: &LiveRules) -> Fuses {
    let rules = rules.clone();
    Arc::new(move |bonus_type| {
        rules.current().limits.types.get(bonus_type).is_none_or(|own| own.fuse == Fuse::Closed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::{BrokerAt, LedgerAt, RulesAt, TokensAt};
    use crate::place;
    use crate::services::{Role, dev};
    use windfall_reward_service::{Again, AsyncGrantOptions};
    use windfall_token::{Algorithm, KeyFile};
    use windfall_wallet::WalletOptions;

    /// Embedded parts in a folder, with everything that any work needs.
    async fn parts(data: &Path) -> Parts {
        let clock = Clock::system();
        let store = RulesAt::Data.store(data, None).unwrap();
        if store.show().is_err() {
            std::fs::create_dir_all(place::rules(data).parent().unwrap()).unwrap();
            store.set(dev::RULES, "test", "first", 1).unwrap();
            KeyFile::create(&place::keys(data), Algorithm::HmacSha256, 1).unwrap();
        }
        let copy = place::rules_copy(data);
        let known = ["a", "b"].map(str::to_owned).to_vec();
        let (rules, rules_follower) =
            tokio::task::block_in_place(|| RulesAt::Data.follow(data, copy, known, &clock)).unwrap();
        let open = |name: &str| {
            (name.to_owned(), BrokerAt::Embedded.open(name, &place::broker(data, name)).unwrap())
        };
        Parts {
            rules,
            rules_follower,
            brokers: ["a", "b"].map(open).into(),
            tokens: TokensAt::Embedded.open(data).await.unwrap(),
            tokens_are_shared: false,
            keys: Some(KeyRing::load(&place::keys(data)).unwrap()),
            ledger: Some(LedgerAt::File.open(data).unwrap()),
            connectors: Vec::new(),
            clock,
        }
    }

    fn options(data: &Path) -> Options {
        Options {
            sdk: SdkOptions { app_id: "windfall".into(), ..SdkOptions::default() },
            spool: place::spool(data),
            rewards: RewardOptions::default(),
            token_service: TokenOptions::default(),
            wallet: WalletOptions::default(),
            async_grants: AsyncGrantOptions::default(),
            rewrite: Again::default(),
            topics: Vec::new(),
            salvage: place::salvage(data),
            keys_file: place::keys(data),
            jitter_seed: 1,
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_process_has_what_its_work_needs_and_no_more() {
        let roles = [
            Role::Serve,
            Role::TokenService,
            Role::RewardService,
            Role::Consumer,
            Role::Wallet,
            Role::SdkGateway,
        ];
        for role in roles {
            let folder = tempfile::tempdir().unwrap();
            let data = folder.path();
            let work = role.work();
            let wiring = Wiring::start(work, parts(data).await, options(data)).await.unwrap();
            assert_eq!(wiring.sdks.len(), usize::from(work.sends), "{role}");
            assert_eq!(wiring.fanout.is_some(), work.queues(), "{role}");
            assert_eq!(wiring.rewards.is_some(), work.grants(), "{role}");
            assert_eq!(wiring.verifier.is_some(), work.verifies_tokens(), "{role}");
            assert_eq!(wiring.wallet.is_some(), work.serves_wallets, "{role}");
            assert_eq!(wiring.async_grants.is_some(), work.serves_grants, "{role}");
            assert_eq!(wiring.consuming.is_some(), work.consumes, "{role}");
            let health = Health::new();
            wiring.watch(&health);
            assert!(health.is_ready(), "{role}");
            wiring.close(Duration::from_secs(10)).await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_process_without_a_part_that_its_work_needs_is_refused_and_names_the_part() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let without = Parts { keys: None, ..parts(first.path()).await };
        let refused = Wiring::start(Role::SdkGateway.work(), without, options(first.path())).await;
        assert!(refused.err().unwrap().to_string().contains("needs a key ring"));
        let without = Parts { ledger: None, ..parts(second.path()).await };
        let refused = Wiring::start(Role::Consumer.work(), without, options(second.path())).await;
        assert!(refused.err().unwrap().to_string().contains("needs a ledger"));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_process_that_only_consumes_requeues_to_the_queues_of_new_rules() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let work = Work { consumes: true, ..Work::default() };
        let wiring = Wiring::start(work, parts(data).await, options(data)).await.unwrap();
        let fanout = Arc::clone(wiring.fanout.as_ref().unwrap());
        assert!(fanout.queue("late").is_none());
        let late = "[queues.late]\nmaster = \"cash-a\"\nbackup = \"cash-b\"\nratio = 90\n\n[[routes]]";
        let text = dev::RULES.replacen("[[routes]]", late, 1);
        RulesAt::Data.store(data, None).unwrap().set(&text, "test", "a queue", 2).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        while fanout.queue("late").is_none() {
            assert!(Instant::now() < until, "the new queue is not open");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(fanout);
        wiring.close(Duration::from_secs(10)).await.unwrap();
    }
}
