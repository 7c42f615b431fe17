//! A running process: started from its parts, watched, and closed in the order of an event's path.

use super::async_grants::{self, AsyncGrantQueue};
use super::background::{Background, Tasks};
use super::budgets::BudgetsReady;
use super::consuming::{Consuming, Shared};
use super::ledger_mark::KeptMark;
use super::parts::{Brokers, Options, Parts};
use super::scheduling::{Scheduling, SchedulingOptions};
use super::signing::SigningKeys;
use super::token_drop::TokenDrop;
use super::work::Work;
use super::{budgets, keys, queues, readiness};
use crate::drivers::{LedgerMark, RulesFollower};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_config::LiveRules;
use windfall_contract::Clock;
use windfall_contract::connector::Connector;
use windfall_contract::due::PastTasks;
use windfall_contract::rules::Fuse;
use windfall_contract::tokens::TokenStore;
use windfall_edge::Health;
#[cfg(feature = "roles")]
use windfall_far::FarTier;
use windfall_ledger::Ledger;
use windfall_queue_virtual::Fanout;
use windfall_reward_service::{
    AsyncGrants, Fuses, ResumeOptions, Resumer, RewardHandle, RewardOptions, RewardService, RulesInForce,
};
use windfall_sdk::{Inherited, Sdk, SdkOptions, SdkParts, Signer};
use windfall_store::write_behind::WriteBehindCounts;
use windfall_token::KeyRing;
use windfall_token_service::{KeyRingVerifier, TokenOptions, TokenParts};
use windfall_wallet::{Wallet, WalletParts};

/// The running parts of a process; parts that its [`Work`] does not need are missing.
pub struct Wiring {
    /// The live rules.
    pub rules: LiveRules,
    /// The brokers.
    pub brokers: Brokers,
    /// The keys that records are signed and verified with.
    pub signing: Option<SigningKeys>,
    /// The virtual queues.
    pub fanout: Option<Arc<Fanout>>,
    /// SDKs by the app that they send for.
    pub sdks: BTreeMap<String, Sdk>,
    /// The packs that an earlier process left in the SDK's spool.
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
    /// The scheduler.
    pub scheduling: Option<Scheduling>,
    /// The far tier of its store.
    #[cfg(feature = "roles")]
    pub far: Option<FarTier>,
    /// The owner of the process's tasks.
    pub tasks: Tasks,
    health: Health,
    budgets: BudgetsReady,
    token_drop: Option<TokenDrop>,
    kept_mark: Option<KeptMark>,
    background: Vec<Background>,
    rules_follower: RulesFollower,
}

/// The work that a closed process leaves to the next one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Closed {
    /// Packs that wait in the spool.
    pub packs_left: usize,
}

/// The least time that the token store has to take the last tokens, even if the deadline is over.
const TOKENS_CLOSE: Duration = Duration::from_secs(2);

impl Wiring {
    /// Starts what this work needs, consumers last.
    pub async fn start(work: Work, parts: Parts, options: Options) -> Result<Self> {
        let Parts { rules, rules_follower, brokers, keys, ledger, connectors, clock, health, tasks, .. } =
            parts;
        let mut tokens = parts.tokens;
        let signing_keys = parts.signing.as_ref().map(|signing| signing.keys().clone());
        let signer = signing_keys.as_ref().map(|keys| keys.signer.clone());
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
            signing: signing_keys.clone(),
            fanout,
            sdks: BTreeMap::new(),
            inherited: Inherited::default(),
            rewards: None,
            verifier: None,
            wallet: None,
            async_grants: None,
            consuming: None,
            scheduling: None,
            #[cfg(feature = "roles")]
            far: parts.far.as_ref().map(|far| far.tier.clone()),
            tasks,
            health,
            budgets: BudgetsReady::new(),
            token_drop: None,
            kept_mark: None,
            background: Vec::new(),
            rules_follower,
        };
        own.background.push(readiness::rules(&own.tasks, &own.health, &own.rules));
        if let Some(signing) = parts.signing {
            own.background.push(signing.follow(&own.tasks));
        }
        own.background.push(readiness::tokens(&own.tasks, &own.health, work, &tokens));
        if let Some(fanout) = &own.fanout {
            own.background.push(readiness::outboxes(&own.tasks, &own.health, fanout));
        }
        if let (Some(ledger), true) = (ledger, work.grants()) {
            let token_drop = TokenDrop::start(tokens, parts.tokens_are_shared, options.data.clone());
            // Whoever reads or writes tokens in this process does so through the table, or a credit would miss them.
            tokens = token_drop.store();
            let ledger = (ledger, parts.ledger_mark);
            own.start_rewards(options.rewards, ledger, connectors, token_drop, signing_keys.as_ref(), &clock)
                .await?;
        }
        if let (Some(keys), true) = (keys.clone(), work.sends) {
            own.start_sdk(options.sdk, options.spool, keys, signer.clone(), &tokens, &clock)?;
        } else if let Some(fanout) = &own.fanout {
            // An SDK takes over new rules for the queues that it sends to.
            own.background.push(queues::follow(&own.tasks, &own.rules, Arc::clone(fanout)));
        }
        if let (Some(keys), true) = (keys, work.verifies_tokens()) {
            own.start_verifier(options.token_service, keys, tokens)?;
        }
        own.follow_keys(&options.keys_file);
        if let (Some(verifier), Some(rewards), true) = (&own.verifier, &own.rewards, work.serves_wallets) {
            let rewards = Arc::new(rewards.clone().with_fuses(fuses(&own.rules, &own.budgets)));
            let (verifier, accounts) = (Arc::new(verifier.clone()), Arc::clone(&rewards) as _);
            own.wallet = Some(Wallet::open(options.wallet, WalletParts { verifier, rewards, accounts })?);
        }
        if let (Some(fanout), Some(rewards), true) = (&own.fanout, &own.rewards, work.serves_grants) {
            let (rules, budgets) = (own.rules.clone(), own.budgets.clone());
            let queue = Arc::new(AsyncGrantQueue::new(Arc::clone(fanout), rules, budgets, signer));
            let granting = rewards.clone().with_fuses(fuses(&own.rules, &own.budgets));
            let grants = AsyncGrants::new(granting, queue, options.async_grants);
            let (rules, brokers) = (own.rules.clone(), own.brokers.clone());
            let writing =
                async_grants::write_again(&own.tasks, grants.clone(), options.rewrite, rules, brokers);
            own.background.push(writing);
            own.async_grants = Some(grants);
        }
        if work.schedules {
            let slots = parts.slots.context("a process that keeps timers needs a slot store")?;
            let scheduling =
                options.scheduling.context("a process that keeps timers must know whose they are")?;
            let scheduling = SchedulingOptions { signing: signing_keys.clone(), ..scheduling };
            let sdk = own.sdks.values().next();
            #[cfg(feature = "roles")]
            let past = own.far.clone().map(|far| Arc::new(far) as Arc<dyn PastTasks>);
            #[cfg(not(feature = "roles"))]
            let past = None;
            let (entries, entries_away) = parts.entries.map(|open| (open.store, open.away)).unzip();
            let mut scheduling =
                Scheduling::start(slots.store, past, entries, scheduling, &own.brokers, sdk, &clock)?;
            scheduling.listen().await?;
            if let Some(running) = scheduling.jobs() {
                let away = entries_away.flatten();
                own.background.push(readiness::jobs(&own.tasks, &own.health, running.store(), away));
            }
            own.background.push(readiness::scheduler(&own.tasks, &own.health, &scheduling, slots.away));
            #[cfg(feature = "roles")]
            if let Some(far) = parts.far {
                own.background.push(readiness::far(&own.tasks, &own.health, far));
            }
            own.background.push(readiness::timers_topics(&own.tasks, &own.health, scheduling.topics()));
            if let Some(running) = scheduling.queue() {
                own.background.push(readiness::outboxes(&own.tasks, &own.health, &running.fanout));
                own.background.push(readiness::add_queue(&own.tasks, &own.health, &running.queue));
            }
            own.scheduling = Some(scheduling);
        }
        if let (Some(fanout), Some(rewards), true) = (&own.fanout, &own.rewards, work.consumes) {
            let shared = Shared {
                brokers: &own.brokers,
                rules: &own.rules,
                fanout,
                rewards,
                signing: signing_keys.as_ref(),
                accepted: &options.accepted,
                long_delays: parts.long_delays,
                budgets: &own.budgets,
                clock: &clock,
                tasks: &own.tasks,
                health: &own.health,
            };
            let consumer =
                windfall_consumer::Options { jitter_seed: options.jitter_seed, ..options.consumer };
            let consuming = Consuming::start(&shared, &options.topics, &options.salvage, consumer)?;
            if (work == Work { consumes: true, ..Work::default() }) {
                own.health.check("consumers", consuming.check());
            }
            own.consuming = Some(consuming);
        }
        Ok(own)
    }

    /// Starts the reward service, with the budgets of the rules in force.
    async fn start_rewards(
        &mut self,
        options: RewardOptions,
        (ledger, mark): (Ledger, Option<LedgerMark>),
        connectors: Vec<Arc<dyn Connector>>,
        token_drop: TokenDrop,
        signing: Option<&SigningKeys>,
        clock: &Clock,
    ) -> Result<()> {
        let has_payers = !connectors.is_empty();
        let rewards =
            RewardService::start(options, ledger, connectors, Some(token_drop.observer()), clock.clone())
                .context("the reward service cannot start")?;
        let rewards = match signing {
            Some(keys) => rewards.with_verifier(keys.verifier()),
            None => rewards,
        };
        let own = self.rules.clone();
        rewards.follow_rules(Box::new(move || {
            let rules = own.current();
            RulesInForce { version: rules.version, order_caps: rules.order_caps() }
        }));
        match budgets::set(&rewards, &self.rules.current()).await {
            // Where newer rules have set theirs, the ledger itself refuses what these rules would grant.
            Ok(_) => self.budgets.set_ready(),
            // A ledger that is away takes them when it is back; nothing is granted before.
            Err(error) if budgets::may_pass(&error) => {}
            Err(error) => return Err(error).context("the budgets cannot be set"),
        }
        let (tasks, health) = (&self.tasks, &self.health);
        self.background.push(budgets::follow(tasks, health, &self.rules, &rewards, &self.budgets));
        self.background.push(readiness::ledger(tasks, health, &rewards));
        if let Some(mark) = mark {
            let (kept, telling) = KeptMark::start(mark, tasks, health, &rewards);
            self.background.push(telling);
            self.kept_mark = Some(kept);
        }
        if has_payers {
            let resuming = rewards.clone();
            self.background.push(tasks.spawn("held withdrawals", move || {
                Resumer::new(resuming.clone(), ResumeOptions::default()).run()
            }));
        }
        let closed = rewards.clone();
        health.check("reward-service", move || {
            if closed.stats().is_closed { Err("the ledger's writers have ended".into()) } else { Ok(()) }
        });
        let behind = rewards.clone();
        health.check("rules-version", move || match behind.behind_rules() {
            Some((own, newest)) => Err(format!(
                "the ledger has seen version {newest} of the rules, this process runs {own} and grants nothing"
            )),
            None => Ok(()),
        });
        self.rewards = Some(rewards);
        self.token_drop = Some(token_drop);
        Ok(())
    }

    fn start_sdk(
        &mut self,
        options: SdkOptions,
        spool: PathBuf,
        keys: KeyRing,
        signer: Option<Signer>,
        tokens: &Arc<dyn TokenStore>,
        clock: &Clock,
    ) -> Result<()> {
        let fanout = self.fanout.clone().context("a process that sends needs queues")?;
        let app_id = options.app_id.clone();
        let parts = SdkParts {
            spool: options.spool_in(spool),
            keys,
            signer,
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
        self.background.push(readiness::sdk(&self.tasks, &sdk));
        self.sdks.insert(app_id, sdk);
        Ok(())
    }

    fn start_verifier(
        &mut self,
        options: TokenOptions,
        keys: KeyRing,
        store: Arc<dyn TokenStore>,
    ) -> Result<()> {
        let verifier = KeyRingVerifier::open(options, TokenParts { keys, store, rules: self.rules.clone() })?;
        self.verifier = Some(verifier);
        Ok(())
    }

    /// Follows the key ring for all that mints and judges tokens here; what judges has a key first.
    fn follow_keys(&mut self, keys_file: &Path) {
        let (verifier, sdks) = (self.verifier.clone(), self.sdks.values().cloned().collect::<Vec<_>>());
        if verifier.is_none() && sdks.is_empty() {
            return;
        }
        let take = move |ring: KeyRing| {
            if let Some(verifier) = &verifier {
                verifier.set_keys(ring.clone()).map_err(|error| error.to_string())?;
            }
            sdks.iter().try_for_each(|sdk| sdk.set_keys(&ring)).map_err(|error| error.to_string())
        };
        self.background.push(keys::follow(&self.tasks, keys_file, take));
    }

    /// Tokens dropped from the store because their reward was credited, and removals given up.
    pub fn tokens_dropped(&self) -> (u64, u64) {
        self.token_drop.as_ref().map_or((0, 0), TokenDrop::counts)
    }

    /// Reads what the table in front of the token store has counted; none where this process credits no rewards.
    pub fn read_write_behind(&self) -> Option<impl Fn() -> WriteBehindCounts + Send + Sync + use<>> {
        self.token_drop.as_ref().map(TokenDrop::read_counts)
    }

    /// Closes the parts in the order of an event's path, within `deadline` in all: scheduler, SDKs, consumers, queues,
    /// reward service, token store, live rules.
    pub async fn close(self, deadline: Duration) -> Result<Closed> {
        let began = Instant::now();
        let left = move || deadline.saturating_sub(began.elapsed());
        let mut closed = Closed::default();
        if let Some(scheduling) = self.scheduling {
            // Its timers send rewards by the SDK, which needs time of its own afterwards.
            scheduling.close(left() / 2).await;
        }
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
        if let Some(kept) = self.kept_mark {
            kept.close().await;
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

/// What an operator has paused or diverted is not granted past the queue either, and nothing before budgets are set.
fn fuses(rules: &LiveRules, budgets: &BudgetsReady) -> Fuses {
    let (rules, budgets) = (rules.clone(), budgets.clone());
    Arc::new(move |bonus_type| {
        budgets.is_ready()
            && rules.current().limits.types.get(bonus_type).is_none_or(|own| own.fuse == Fuse::Closed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::{BrokerAt, DurabilityAt, LedgerAt, RulesAt, SlotsAt, TokensAt};
    use crate::place;
    use crate::services::{Role, dev};
    use crate::wiring::{AcceptedByName, TargetPart};
    use windfall_consumer::Unsigned;
    use windfall_ledger::Unbudgeted;
    use windfall_reward_service::{Again, AsyncGrantOptions};
    use windfall_scheduler::{Class, TargetRules, TenantRules, Tenants};
    use windfall_token::{Algorithm, KeyFile};
    use windfall_wallet::WalletOptions;

    /// Embedded parts in a folder, with everything that any work needs.
    async fn parts(data: &Path) -> Parts {
        let (clock, health) = (Clock::system(), Health::new());
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
            signing: None,
            ledger: Some(LedgerAt::File.open(data, Unbudgeted::Allow).unwrap()),
            ledger_mark: None,
            long_delays: None,
            slots: Some(SlotsAt::Embedded.open(data, 16, DurabilityAt::Process, &clock).await.unwrap()),
            far: None,
            entries: None,
            connectors: Vec::new(),
            clock,
            tasks: Tasks::new(health.clone()),
            health,
        }
    }

    fn options(data: &Path) -> Options {
        Options {
            sdk: SdkOptions { app_id: "windfall".into(), ..SdkOptions::default() },
            data: data.to_owned(),
            spool: place::spool(data),
            rewards: RewardOptions::default(),
            token_service: TokenOptions::default(),
            wallet: WalletOptions::default(),
            async_grants: AsyncGrantOptions::default(),
            rewrite: Again::default(),
            scheduling: Some(scheduling()),
            topics: Vec::new(),
            accepted: AcceptedByName::default(),
            consumer: windfall_consumer::Options::default(),
            salvage: place::salvage(data),
            keys_file: place::keys(data),
            jitter_seed: 1,
        }
    }

    /// A tenant whose timers send rewards, where the process has an SDK for them.
    fn scheduling() -> SchedulingOptions {
        let rules = TenantRules {
            waiting_max: 10,
            adds_per_s: 10,
            class: Class::Normal,
            targets: [("rewards".to_owned(), TargetRules::default())].into(),
        };
        SchedulingOptions {
            timers: Default::default(),
            dispatch: Default::default(),
            tenants: Arc::new(Tenants([("windfall".to_owned(), rules)].into())),
            targets: [(("windfall".to_owned(), "rewards".to_owned()), TargetPart::SendBonus)].into(),
            queue: None,
            signing: None,
            jobs: None,
            instance: "test".into(),
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
            Role::Scheduler,
        ];
        for role in roles {
            let folder = tempfile::tempdir().unwrap();
            let data = folder.path();
            // A scheduler has an SDK where its timers send rewards, as these do.
            let work = Work { sends: role.work().sends || role.work().schedules, ..role.work() };
            let wiring = Wiring::start(work, parts(data).await, options(data)).await.unwrap();
            assert_eq!(wiring.sdks.len(), usize::from(work.sends), "{role}");
            assert_eq!(wiring.fanout.is_some(), work.queues(), "{role}");
            assert_eq!(wiring.rewards.is_some(), work.grants(), "{role}");
            assert_eq!(wiring.verifier.is_some(), work.verifies_tokens(), "{role}");
            assert_eq!(wiring.wallet.is_some(), work.serves_wallets, "{role}");
            assert_eq!(wiring.async_grants.is_some(), work.serves_grants, "{role}");
            assert_eq!(wiring.consuming.is_some(), work.consumes, "{role}");
            assert_eq!(wiring.scheduling.is_some(), work.schedules, "{role}");
            let until = Instant::now() + Duration::from_secs(30);
            while !wiring.health.is_ready() || !wiring.health.missing().is_empty() {
                assert!(
                    Instant::now() < until,
                    "{role}: {:?}",
                    (wiring.health.failing(), wiring.health.missing())
                );
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            wiring.close(Duration::from_secs(10)).await.unwrap();
        }
    }

    async fn until(what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < end, "waited for {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_task_of_a_process_that_panics_is_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let parts = parts(data).await;
        parts.tasks.inject_in_each(2);
        let wiring = Wiring::start(Role::Serve.work(), parts, options(data)).await.unwrap();
        until("two panics of each task", || wiring.tasks.panics().iter().all(|(_, panics)| *panics == 2))
            .await;
        assert!(wiring.tasks.panics().len() >= 7, "{:?}", wiring.tasks.panics());
        until("the process to be whole", || wiring.health.is_ready() && wiring.health.missing().is_empty())
            .await;
        assert_eq!(wiring.tasks.is_hopeless(), None);
        wiring.close(Duration::from_secs(10)).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn topics_that_rules_add_are_read_at_once_and_those_that_they_take_away_drain() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let start = async || {
            let work = Work { consumes: true, ..Work::default() };
            Wiring::start(work, parts(data).await, options(data)).await.unwrap()
        };
        let read = |wiring: &Wiring| -> Vec<String> {
            wiring.consuming.as_ref().unwrap().counters().into_iter().map(|(topic, _)| topic).collect()
        };
        let wiring = start().await;
        until("the first topics", || read(&wiring) == ["cash-a", "gifts-a", "cash-b", "gifts-b"]).await;
        let moved = dev::RULES
            .replace("cash-a = { broker = \"a\"", "cash-new = { broker = \"a\"")
            .replace("master = \"cash-a\"", "master = \"cash-new\"");
        RulesAt::Data.store(data, None).unwrap().set(&moved, "test", "a new master", 2).unwrap();
        let all = ["cash-a", "cash-new", "gifts-a", "cash-b", "gifts-b"];
        until("the new topic", || read(&wiring) == all).await;
        wiring.close(Duration::from_secs(10)).await.unwrap();
        until("the brokers' files to be let go", || {
            ["a", "b"].iter().all(|name| BrokerAt::Embedded.open(name, &place::broker(data, name)).is_ok())
        })
        .await;
        // A process that starts afterwards reads the old topic, too: rewards may wait there.
        let wiring = start().await;
        until("all topics", || read(&wiring) == all).await;
        let lives = wiring.consuming.as_ref().unwrap().read_lives();
        assert_eq!(lives().old().map(|key| key.name.clone()).collect::<Vec<_>>(), ["cash-a"]);
        wiring.close(Duration::from_secs(10)).await.unwrap();
    }

    /// The start refuses what the rules of then name; rules that come later may name more.
    #[tokio::test(flavor = "multi_thread")]
    async fn without_keys_a_topic_that_others_can_write_to_is_not_read_unless_it_is_accepted_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let accepted = AcceptedByName {
            shared_brokers: ["b".to_owned()].into(),
            topics: [("gifts-b".to_owned(), Unsigned::Accept)].into(),
            ..AcceptedByName::default()
        };
        let work = Work { consumes: true, ..Work::default() };
        let wiring =
            Wiring::start(work, parts(data).await, Options { accepted, ..options(data) }).await.unwrap();
        let read = || -> BTreeMap<String, bool> {
            let parts = wiring.health.parts().into_iter();
            parts.filter(|(part, _)| part.starts_with("consumer of")).collect()
        };
        let all =
            [("cash-a on a", true), ("gifts-a on a", true), ("cash-b on b", false), ("gifts-b on b", true)];
        let expected: BTreeMap<String, bool> =
            all.map(|(topic, is_read)| (format!("consumer of {topic}"), is_read)).into();
        until("the other topics to be read", || read() == expected).await;
        let why = || wiring.health.missing().remove("consumer of cash-b on b").unwrap_or_default();
        until("the reason", || why().contains("signing.keys")).await;
        wiring.close(Duration::from_secs(10)).await.unwrap();
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
        let (third, fourth) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let without = Parts { slots: None, ..parts(third.path()).await };
        let refused = Wiring::start(Role::Scheduler.work(), without, options(third.path())).await;
        assert!(refused.err().unwrap().to_string().contains("needs a slot store"));
        let whole = parts(fourth.path()).await;
        let refused = Wiring::start(Role::Scheduler.work(), whole, options(fourth.path())).await;
        assert!(refused.err().unwrap().to_string().contains("needs an SDK"));
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
