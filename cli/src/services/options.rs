//! The options file of a role: its backends, its callers and its services.

use super::jobs::JobsServiceAt;
use super::long_delays::LongDelaysAt;
use super::role::Role;
use super::scheduler::SchedulerAt;
use super::signing::SigningAt;
use super::task_queue::TaskQueueAt;
use crate::drivers::{BrokerAt, Driver, LedgerAt, LedgerMarkAt, RulesAt, TokensAt};
use crate::logging::TraceOptions;
use crate::place;
use crate::wiring::Work;
use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use windfall_auditor::AuditorOptions;
use windfall_connectors::{GrpcOptions, HttpOptions};
use windfall_console::ConsoleOptions;
use windfall_edge::ServeOptions;
use windfall_ledger::Unbudgeted;
use windfall_proto::order::check_name;
use windfall_reward_service::{AckMode, Again, AsyncGrantOptions, ConnectorOptions, SceneSteps};
use windfall_sdk::SdkOptions;
use windfall_token_service::TokenOptions;
use windfall_wallet::WalletOptions;

/// The prefix of the variables that override the file. It is longer than the program's name: an orchestrator makes
/// variables of a service's name, and those are no options.
const ENVIRONMENT: &str = "WINDFALL_OPTION";

/// Options of every role, in one file: a role reads what it needs, and all of a fleet may share the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServiceOptions {
    /// Where this process keeps its own: the spool, the salvage file, embedded parts, copies. No two processes share it.
    pub data: PathBuf,
    /// The key ring. Default: `keys.toml` in `data`.
    pub keys: Option<PathBuf>,
    /// How records are signed and verified; none: a process that works on records of Kafka or RocketMQ refuses to start.
    pub signing: Option<SigningAt>,
    /// The access file. Default: `access.toml` in `data`.
    pub access: Option<PathBuf>,
    /// The place of the live rules.
    pub rules: RulesAt,
    /// The brokers that the rules name.
    pub brokers: BTreeMap<String, BrokerAt>,
    /// The token store.
    pub tokens: TokensAt,
    /// The ledger.
    pub ledger: LedgerAt,
    /// Where the ledger's mark is kept, by which a ledger that went back in time is noticed.
    pub ledger_mark: LedgerMarkAt,
    /// The app that is served; callers of another one are refused. Each app has topics, a token store and a ledger of
    /// its own: those know users and order numbers, not apps. Default `windfall`.
    pub tenant: String,
    /// How the SDK of the gateway gathers and keeps. The role sets `app_id` and the spool's directory.
    pub sdk: SdkOptions,
    /// Topics that a consumer reads; none: all that the rules name.
    pub topics: Vec<String>,
    /// The options of each consumer.
    pub consumer: windfall_consumer::Options,
    /// The scheduler that keeps events which are due long after now; none: gateways take no such rewards.
    pub long_delays: Option<LongDelaysAt>,
    /// The payers.
    pub rewards: RewardsAt,
    /// Grants that are done later.
    pub grant_async: GrantAsyncAt,
    /// Downstream systems by name.
    pub connectors: BTreeMap<String, ConnectorAt>,
    /// The options of the scheduler: its store, its tenants and their targets.
    pub scheduler: SchedulerAt,
    /// The options of cron and one-off jobs; none: the process runs none.
    pub jobs: Option<JobsServiceAt>,
    /// The options of the task queues: their APIs and their pools.
    pub task_queue: TaskQueueAt,
    /// The options of the console: operators' web page.
    pub console: ConsoleOptions,
    /// The pace of the auditor.
    pub auditor: AuditorOptions,
    /// The options of the token verifier.
    pub token_service: TokenOptions,
    /// The time-outs of wallets.
    pub wallet: WalletOptions,
    /// The address of the server, and its limits.
    pub serve: ServeOptions,
    /// The export of traces.
    pub trace: TraceOptions,
    /// How long a stop may take, ms. 0 to 600,000; default 20,000.
    pub drain_ms: u64,
}

/// The payers of bonus types, and of withdrawals.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RewardsAt {
    /// The apps whose events are granted; an event of another app is archived. None: the app that `tenant` names.
    pub apps: Vec<String>,
    /// Whether a user's number means the same person in each of several apps. Without it a process that grants or holds accounts
    /// refuses more than one app, `tenant` included, since accounts, tokens and budgets go by the user's number alone. Default
    /// false.
    pub users_are_shared_by_apps: bool,
    /// What happens to a reward that no budget covers: `refuse` or `allow`. Default `refuse`; with `serve --dev`
    /// `allow`, since its rules have no budgets.
    pub unbudgeted: Option<UnbudgetedAt>,
    /// The payer of types that `pays` does not name: `ledger`, `nobody`, or a connector's name. Default `ledger`.
    pub default_pays: String,
    /// The payer by type.
    pub pays: BTreeMap<String, String>,
    /// The payer of withdrawals: `ledger` (a front end pays them out elsewhere and acknowledges each), or a connector's name.
    /// Default `ledger`.
    pub payout: String,
    /// Threads that write to the ledger, each on a connection of its own, 1 to 64. Default: what suits the ledger; 1 in
    /// a file, which has one writer, 3 on PostgreSQL.
    pub writers: Option<usize>,
    /// Events that one transaction takes at most, 1 to 65,536. Default: what suits the ledger; 8,192 in a file, 1,000
    /// on PostgreSQL.
    pub batch_events_max: Option<usize>,
    /// Whether rewards that the ledger itself pays are credited while the ledger does not hold its mark, because it went
    /// back in time. Payouts are stopped all the same. Default false: rewards wait in their queues.
    pub grant_when_ledger_went_back: bool,
}

impl RewardsAt {
    fn check(&self) -> Result<()> {
        let options = [("writers", self.writers, 64), ("batch_events_max", self.batch_events_max, 65_536)];
        for (name, value, high) in options {
            if let Some(value) = value.filter(|value| !(1..=high).contains(value)) {
                bail!("rewards.{name} is {value}, but only 1 to {high} is allowed");
            }
        }
        Ok(())
    }

    /// The apps whose events are granted in a fleet of this tenant.
    pub fn apps_of(&self, tenant: &str) -> BTreeSet<String> {
        match self.apps.as_slice() {
            [] => BTreeSet::from([tenant.to_owned()]),
            named => named.iter().cloned().collect(),
        }
    }

    /// Refuses users of several apps in one ledger, unless their numbers are said to mean the same people. An event that names no
    /// app, and each call, is of the tenant, so that counts as one of the apps.
    fn check_apps(&self, tenant: &str) -> Result<()> {
        let mut apps = self.apps_of(tenant);
        apps.insert(tenant.to_owned());
        if apps.len() < 2 || self.users_are_shared_by_apps {
            return Ok(());
        }
        let named = apps.into_iter().collect::<Vec<_>>().join(", ");
        bail!(
            "the options tenant and rewards.apps name several apps ({named}), but accounts, tokens and budgets go by the user's \
             number alone: user 42 of one app and user 42 of another would have one balance, and each could withdraw what the \
             other was given. Run a fleet with a ledger of its own for each app; or, where a number means the same person in \
             all of them, say so by rewards.users_are_shared_by_apps = true"
        )
    }
}

/// What happens to a reward whose activity, scene and type no budget covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnbudgetedAt {
    /// It is archived as `unbudgeted`; a budget that is set later, and a replay, credit it.
    Refuse,
    /// It is granted, and counted, so that a budget that is set later counts it.
    Allow,
}

impl From<UnbudgetedAt> for Unbudgeted {
    fn from(at: UnbudgetedAt) -> Self {
        match at {
            UnbudgetedAt::Refuse => Self::Refuse,
            UnbudgetedAt::Allow => Self::Allow,
        }
    }
}

/// Which parts must answer before `GrantAsync` does.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GrantAsyncAt {
    /// Where `scenes` says nothing: whether the budget must be reserved. Default `strong`.
    pub store: AckModeAt,
    /// Where `scenes` says nothing: whether a broker must have the event. Default `strong`.
    pub queue: AckModeAt,
    /// The acknowledgements of scenes that are not listed.
    pub scenes: Vec<SceneAt>,
    /// How long a weak order store is waited for, 1 to 60,000 ms. Default 200.
    pub weak_store_ms: u64,
    /// The age at which the event of an order that is still reserved is written again, 1,000 ms to a day; then at twice
    /// that age, and so on. Default 600,000.
    pub again_after_ms: u64,
}

/// The acknowledgements that a scene asks for.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SceneAt {
    /// The campaign.
    pub activity: String,
    /// The scene within the campaign.
    pub scene: String,
    /// Whether the budget must be reserved.
    #[serde(default)]
    pub store: AckModeAt,
    /// Whether a broker must have the event.
    #[serde(default)]
    pub queue: AckModeAt,
}

/// Whether the order store or the queue must answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AckModeAt {
    /// It must answer.
    #[default]
    Strong,
    /// The grant goes on without its answer; the other one then holds the order.
    Weak,
}

/// A downstream system.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectorAt {
    /// The protocol and its options.
    pub wire: Wire,
    /// The limits and time-outs of calls to it.
    #[serde(default)]
    pub guard: GuardAt,
}

/// The protocol of a downstream system.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Wire {
    /// Signed JSON over HTTP.
    Http(HttpOptions),
    /// `windfall.v1.Downstream`.
    Grpc(GrpcOptions),
}

/// The guard around a downstream system; ranges and defaults are those of the reward service's `ConnectorOptions`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuardAt {
    /// The number of calls at once.
    pub concurrency: usize,
    /// The time without an answer after which a call's outcome is unknown.
    pub timeout_ms: u64,
    /// The least wait that a time-out asks for.
    pub timeout_retry_ms: u64,
    /// The number of unknown outcomes in a row that opens the breaker.
    pub breaker_failures: u32,
    /// The time after which an open breaker lets one call through.
    pub breaker_open_ms: u64,
}

impl Default for GuardAt {
    fn default() -> Self {
        let ConnectorOptions { concurrency, timeout_ms, timeout_retry_ms, breaker_failures, breaker_open_ms } =
            ConnectorOptions::default();
        Self { concurrency, timeout_ms, timeout_retry_ms, breaker_failures, breaker_open_ms }
    }
}

impl Default for GrantAsyncAt {
    fn default() -> Self {
        let (steps, again) = (AckModeAt::default(), Again::default().after_ms);
        let weak_store_ms = AsyncGrantOptions::default().weak_store_ms;
        Self { store: steps, queue: steps, scenes: Vec::new(), weak_store_ms, again_after_ms: again }
    }
}

impl From<AckModeAt> for AckMode {
    fn from(at: AckModeAt) -> Self {
        match at {
            AckModeAt::Strong => Self::Strong,
            AckModeAt::Weak => Self::Weak,
        }
    }
}

impl GrantAsyncAt {
    /// The options in the form of the reward service.
    pub fn later_options(&self) -> AsyncGrantOptions {
        let steps =
            |store: AckModeAt, queue: AckModeAt| SceneSteps { store: store.into(), queue: queue.into() };
        let scenes = self
            .scenes
            .iter()
            .map(|own| ((own.activity.clone(), own.scene.clone()), steps(own.store, own.queue)));
        AsyncGrantOptions {
            default: steps(self.store, self.queue),
            scenes: scenes.collect(),
            weak_store_ms: self.weak_store_ms,
        }
    }

    /// When events are written again.
    pub fn again(&self) -> Again {
        Again { after_ms: self.again_after_ms, ..Again::default() }
    }

    fn check(&self) -> Result<()> {
        if !(1..=60_000).contains(&self.weak_store_ms) {
            bail!("grant_async.weak_store_ms is {}, but only 1 to 60000 is allowed", self.weak_store_ms);
        }
        if !(1_000..=86_400_000).contains(&self.again_after_ms) {
            bail!(
                "grant_async.again_after_ms is {}, but only 1000 to 86400000 is allowed",
                self.again_after_ms
            );
        }
        let weak = |store: AckModeAt, queue: AckModeAt| store == queue && store == AckModeAt::Weak;
        if weak(self.store, self.queue) {
            bail!("grant_async.store and grant_async.queue are both weak, so nothing would hold an order");
        }
        if let Some(own) = self.scenes.iter().find(|own| weak(own.store, own.queue)) {
            let (activity, scene) = (&own.activity, &own.scene);
            bail!(
                "grant_async.scenes makes both store and queue weak for {activity}/{scene}, so nothing would hold an order"
            );
        }
        Ok(())
    }
}

impl Default for RewardsAt {
    fn default() -> Self {
        Self {
            apps: Vec::new(),
            users_are_shared_by_apps: false,
            unbudgeted: None,
            default_pays: "ledger".into(),
            pays: BTreeMap::new(),
            payout: "ledger".into(),
            writers: None,
            batch_events_max: None,
            grant_when_ledger_went_back: false,
        }
    }
}

impl Default for ServiceOptions {
    fn default() -> Self {
        Self {
            data: PathBuf::from("windfall-data"),
            keys: None,
            signing: None,
            access: None,
            rules: RulesAt::default(),
            brokers: BTreeMap::new(),
            tokens: TokensAt::default(),
            ledger: LedgerAt::default(),
            ledger_mark: LedgerMarkAt::default(),
            tenant: "windfall".into(),
            sdk: SdkOptions::default(),
            topics: Vec::new(),
            consumer: windfall_consumer::Options::default(),
            long_delays: None,
            rewards: RewardsAt::default(),
            grant_async: GrantAsyncAt::default(),
            connectors: BTreeMap::new(),
            scheduler: SchedulerAt::default(),
            jobs: None,
            task_queue: TaskQueueAt::default(),
            console: ConsoleOptions::default(),
            auditor: AuditorOptions::default(),
            token_service: TokenOptions::default(),
            wallet: WalletOptions::default(),
            serve: ServeOptions::default(),
            trace: TraceOptions::default(),
            drain_ms: 20_000,
        }
    }
}

impl ServiceOptions {
    /// The file's values, over them the environment's, over them `data`.
    pub fn load(path: Option<&Path>, data: Option<PathBuf>) -> Result<Self> {
        let mut options: Self = windfall_config::load(path, std::env::vars_os(), ENVIRONMENT)?;
        if let Some(data) = data {
            options.data = data;
        }
        if options.brokers.is_empty() {
            options.brokers = ["a", "b"].map(|name| (name.to_owned(), BrokerAt::Embedded)).into();
        }
        // It is a part of the keys that payers are given, which connectors send as a header.
        check_name(&options.tenant).map_err(|why| {
            anyhow!("the option tenant {why}; it names the app that is served, by visible ASCII characters")
        })?;
        if options.rewards.apps.iter().any(String::is_empty) {
            bail!("the option rewards.apps has an empty name, but each must name an app");
        }
        options.check_drivers()?;
        options.grant_async.check()?;
        options.rewards.check()?;
        options.ledger_mark.check()?;
        options.consumer.check().context("the options [consumer] cannot be used")?;
        options.scheduler.check(&options.brokers, &options.task_queue.pools)?;
        options.task_queue.check()?;
        options.console.check()?;
        options.auditor.check()?;
        options.task_queue.check_far_jobs(&options.scheduler)?;
        if let Some(jobs) = &options.jobs {
            jobs.check(options.scheduler.store.is_shared())?;
        }
        options.check_long_delays()?;
        if options.drain_ms > 600_000 {
            bail!("drain_ms is {}, but only 0 to 600000 is allowed", options.drain_ms);
        }
        std::fs::create_dir_all(&options.data)
            .with_context(|| format!("the directory {} cannot be created", options.data.display()))?;
        Ok(options)
    }

    /// What a process of this role does with these options: `serve` keeps timers if a tenant is named, jobs are run
    /// or jobs of task queues are to wait as timers, and a scheduler has an SDK if one of its targets sends rewards.
    pub fn work_of(&self, role: Role) -> Work {
        let work = role.work();
        let schedules = work.schedules
            && (role == Role::Scheduler
                || !self.scheduler.tenants.is_empty()
                || self.jobs.is_some()
                || self.task_queue.asks_for_far_jobs());
        Work { sends: work.sends || (schedules && self.scheduler.sends_bonuses()), schedules, ..work }
    }

    /// Refuses several apps where a process of this role grants, or holds accounts.
    ///
    /// # Errors
    /// What they would share, and what to do.
    pub fn check_apps(&self, role: Role) -> Result<()> {
        if role.work().grants() { self.rewards.check_apps(&self.tenant) } else { Ok(()) }
    }

    /// Whether a process of this role has task queues: `serve` has, if a pool is named.
    pub fn has_task_queues(&self, role: Role) -> bool {
        role == Role::TaskQueue || (role == Role::Serve && !self.task_queue.pools.is_empty())
    }

    /// The key ring's file.
    pub fn keys_path(&self) -> PathBuf {
        self.keys.clone().unwrap_or_else(|| place::keys(&self.data))
    }

    /// The access file.
    pub fn access_path(&self) -> PathBuf {
        self.access.clone().unwrap_or_else(|| self.data.join("access.toml"))
    }

    /// Refuses options that name a driver which this binary was built without, and servers that cannot be reached as they
    /// are asked for.
    fn check_drivers(&self) -> Result<()> {
        let check = |key: &str, checked: Result<()>| {
            checked.with_context(|| format!("the option {key} cannot be used"))
        };
        for (name, at) in &self.brokers {
            check(&format!("brokers.{name}"), at.check())?;
        }
        check("rules", self.rules.check())?;
        check("tokens", self.tokens.check())?;
        check("ledger", self.ledger.check())?;
        check("scheduler.store", self.scheduler.store.check())?;
        check("jobs.store", self.jobs.as_ref().map_or(Ok(()), |jobs| jobs.store.check()))?;
        for (name, pool) in &self.task_queue.pools {
            check(&format!("task_queue.pools.{name}"), pool.store.check())?;
        }
        check("trace.otlp", self.trace.otlp.as_ref().map_or(Ok(()), |_| Driver::Otlp.check()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_sdk::SpoolDurability;

    fn parse(text: &str) -> ServiceOptions {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn the_deployments_options_are_options() {
        let options = parse(include_str!("../../../deploy/config/windfall.toml"));
        assert_eq!(options.tenant, "windfall");
        assert!(options.grant_async.check().is_ok());
    }

    #[test]
    fn a_tenant_that_no_header_can_carry_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (file, data) = (folder.path().join("options.toml"), folder.path().join("data"));
        let load = |tenant: &str| {
            std::fs::write(&file, format!("tenant = \"{tenant}\"")).unwrap();
            ServiceOptions::load(Some(&file), Some(data.clone()))
        };
        for tenant in ["", "a shop", "caf\u{e9}", "shop\\n", &"x".repeat(65)] {
            let refused = load(tenant).map(drop).map_err(|error| format!("{error:#}"));
            assert!(
                refused.as_ref().is_err_and(|why| why.contains("option tenant")),
                "{tenant}: {refused:?}"
            );
        }
        assert_eq!(load("Shop_1/eu").unwrap().tenant, "Shop_1/eu");
    }

    #[cfg(all(
        feature = "kafka",
        feature = "rocketmq",
        feature = "redis",
        feature = "postgres",
        feature = "etcd"
    ))]
    #[test]
    fn servers_on_other_machines_are_refused_unless_tls_or_plain_text_is_asked_for_by_name() {
        let deployed = include_str!("../../../deploy/config/windfall.toml");
        parse(deployed).check_drivers().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (file, data) = (folder.path().join("options.toml"), folder.path().join("data"));
        let load = |text: &str| {
            std::fs::write(&file, text).unwrap();
            ServiceOptions::load(Some(&file), Some(data.clone()))
                .map(drop)
                .map_err(|error| format!("{error:#}"))
        };
        for (table, option, server) in [
            ("[rules.etcd]\nendpoints = [\"127.0.0.1:1\", \"etcd:2379\"]", "rules", "etcd at etcd"),
            ("[brokers.a.kafka]\nbootstrap_servers = \"kafka:9092\"", "brokers.a", "Kafka at kafka"),
            ("[brokers.b.rocketmq]\nendpoints = [\"10.0.0.8:8081\"]", "brokers.b", "RocketMQ at 10.0.0.8"),
            ("[tokens.redis]\nurls = [\"redis://:hush@redis\"]", "tokens", "Redis at redis"),
            ("[ledger.postgres]\nurl = \"postgres://u:hush@db/d\"", "ledger", "PostgreSQL at db"),
            ("[scheduler.store.redis]\nurls = [\"redis\"]", "scheduler.store", "Redis at redis"),
            ("[task_queue.pools.a.store.redis]\nurls = [\"redis\"]", "task_queue.pools.a", "Redis at redis"),
        ] {
            let refused = load(table).unwrap_err();
            assert!(refused.contains(&format!("the option {option} cannot be used")), "{refused}");
            assert!(refused.contains(&format!("{server} is not on this machine")), "{refused}");
            assert!(refused.contains("tls = {}") && refused.contains("plaintext = true"), "{refused}");
            assert!(!refused.contains("hush") && !data.exists(), "{refused}");
            assert_eq!(load(&format!("{table}\nplaintext = true")), Ok(()));
            assert_eq!(load(&format!("{table}\ntls = {{}}")), Ok(()));
            let both = load(&format!("{table}\nplaintext = true\ntls = {{}}")).unwrap_err();
            assert!(both.contains("contradict"), "{both}");
            // A process that does not use the server need not have its files.
            assert_eq!(load(&format!("{table}\ntls = {{ ca_file = \"/nowhere/ca.pem\" }}")), Ok(()));
            if data.exists() {
                std::fs::remove_dir_all(&data).unwrap();
            }
        }
    }

    #[test]
    fn the_documented_options_are_options() {
        let text = include_str!("../../../docs/services.md");
        let block = text.split("```toml\n").find(|block| block.starts_with("data = ")).unwrap();
        let options = parse(block.split("```").next().unwrap());
        options.grant_async.check().unwrap();
        assert_eq!(options.rewards.unbudgeted, Some(UnbudgetedAt::Refuse));
        assert_eq!(options.grant_async.scenes.len(), 1);
        assert!(options.connectors.contains_key("badges") && options.trace.otlp.is_some());
        let rewards = options.reward_options().unwrap();
        assert_eq!((rewards.writers, rewards.batch_events_max), (Some(3), Some(1_000)));
        options.consumer.check().unwrap();
        assert_eq!(options.consumer.churn_per_s, 1_000);
    }

    #[test]
    fn options_of_the_consumer_and_of_the_writers_are_refused_by_name_when_they_are_out_of_range() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("options.toml");
        let load = |text: &str| {
            std::fs::write(&file, text).unwrap();
            ServiceOptions::load(Some(&file), Some(folder.path().join("data")))
        };
        let text = "[consumer]\nchurn_per_s = 200\nsession_timeout_ms = 30000\n[rewards]\nwriters = 8\n";
        let good = load(text).unwrap();
        assert_eq!((good.consumer.churn_per_s, good.consumer.session_timeout_ms), (200, 30_000));
        assert_eq!(good.reward_options().unwrap().writers, Some(8));
        for (wrong, named) in [
            ("[consumer]\nchurn_per_s = 0", "churn_per_s is 0"),
            ("[consumer]\nsession_timeout_ms = 1", "session_timeout_ms is 1"),
            ("[consumer]\njitter_seed = 1", "jitter_seed"),
            ("[rewards]\nwriters = 65", "rewards.writers is 65"),
            ("[rewards]\nbatch_events_max = 0", "rewards.batch_events_max is 0"),
        ] {
            let refused = format!("{:#}", load(wrong).unwrap_err());
            assert!(refused.contains(named), "{wrong}: {refused}");
        }
    }

    /// User 42 of one app and user 42 of another are one account: nobody shares them by accident.
    #[test]
    fn several_apps_are_refused_where_accounts_are_unless_their_users_are_said_to_be_the_same() {
        let grants = [Role::Serve, Role::Consumer, Role::RewardService, Role::Wallet];
        let others = [Role::SdkGateway, Role::TokenService, Role::Scheduler, Role::Console, Role::Auditor];
        for text in [
            "tenant = \"shop\"",
            "tenant = \"shop\"\n[rewards]\napps = [\"shop\", \"shop\"]",
            "tenant = \"shop\"\n[rewards]\napps = [\"shop\", \"games\"]\nusers_are_shared_by_apps = true",
        ] {
            let options = parse(text);
            grants.iter().chain(&others).for_each(|role| options.check_apps(*role).unwrap());
        }
        // The tenant's own events name it or no app, so one other app is a second one.
        for apps in ["\"shop\", \"games\"", "\"games\""] {
            let options = parse(&format!("tenant = \"shop\"\n[rewards]\napps = [{apps}]"));
            for role in grants {
                let refused = options.check_apps(role).unwrap_err().to_string();
                assert!(refused.contains("(games, shop)"), "{role}: {refused}");
                assert!(refused.contains("rewards.users_are_shared_by_apps = true"), "{role}: {refused}");
            }
            others.iter().for_each(|role| options.check_apps(*role).unwrap());
        }
    }

    #[test]
    fn a_spool_that_survives_the_machine_is_an_option() {
        let durability = |text: &str| parse(text).sdk.spool_durability;
        assert_eq!(durability(""), SpoolDurability::Process);
        assert_eq!(durability("[sdk]\nspool_durability = \"machine\""), SpoolDurability::Machine);
        assert!(toml::from_str::<ServiceOptions>("[sdk]\nspool_durability = \"disk\"").is_err());
        let synced = parse("[sdk]\nspool_durability = \"machine\"").sdk.spool_in("dir");
        assert_eq!(synced, windfall_sdk::SpoolMode::Machine("dir".into()));
    }

    #[test]
    fn one_of_store_and_queue_holds_an_order() {
        let scene = "[[grant_async.scenes]]\nactivity = \"a\"\nscene = \"s\"\n";
        let good = parse(&format!("[grant_async]\nqueue = \"weak\"\n{scene}store = \"weak\"\n")).grant_async;
        good.check().unwrap();
        let later = good.later_options();
        assert_eq!(later.default, SceneSteps { store: AckMode::Strong, queue: AckMode::Weak });
        let own = later.scenes[&("a".to_owned(), "s".to_owned())];
        assert_eq!(own, SceneSteps { store: AckMode::Weak, queue: AckMode::Strong });
        for wrong in [
            "[grant_async]\nstore = \"weak\"\nqueue = \"weak\"".to_owned(),
            format!("{scene}store = \"weak\"\nqueue = \"weak\""),
            "[grant_async]\nweak_store_ms = 0".to_owned(),
            "[grant_async]\nagain_after_ms = 1".to_owned(),
        ] {
            assert!(parse(&wrong).grant_async.check().is_err(), "{wrong}");
        }
    }
}
