//! The options of the scheduler: where timers lie, whose they are, and where they go.

use super::options::ServiceOptions;
use super::task_queue::{JobStores, PoolAt};
use crate::drivers::{Driver, DurabilityAt, FarAt, SlotsAt};
use crate::place;
use crate::wiring::{AddQueuePart, AddTopic, SchedulingOptions, TargetPart};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use windfall_connectors::{HttpCallback, HttpOptions};
use windfall_contract::Clock;
use windfall_contract::task_queue::{QueueName, TTL_DEFAULT_S};
use windfall_scheduler::{
    AddQueueOptions, CatchUp, Class, DispatchOptions, Retry, TargetRules, TenantRules, Tenants, TimersOptions,
};
use windfall_scheduler_service::{
    FAR_JOBS_TENANT, FarJobTarget, FarJobTimers, JobTarget, JobTargetOptions, TopicChecks, TopicOptions,
};

/// Options of the scheduler.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedulerAt {
    /// Where timers lie until their time: `embedded`, or `redis` with its options. Default `embedded`.
    pub store: SlotsAt,
    /// The parts that the store is divided into, 16 to 1,024; fixed when it is made. Default 64.
    pub shards: u16,
    /// What the Ok of a call survives: `process` or `machine`. Default `process`.
    pub durability: DurabilityAt,
    /// Where timers wait that are due later than a horizon. Default: nowhere, so that all that this process adds wait in
    /// `store`.
    pub far: Option<FarAt>,
    /// The queue by which adds may come while the store is away. Default: none.
    pub queue: Option<AddQueueAt>,
    /// How calls are gathered.
    pub timers: TimersOptions,
    /// How timers are fired.
    pub dispatch: DispatchOptions,
    /// Whose timers are kept, by name. None by default: every add is refused.
    pub tenants: BTreeMap<String, TenantAt>,
}

/// The queue by which adds may come.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddQueueAt {
    /// The topic that adds are written to.
    pub master: AddTopicAt,
    /// The topic that they are written to while the master's broker is away: another one on another broker.
    pub backup: AddTopicAt,
    /// The id of the store, 16 hexadecimal digits, for a process that shall take adds before it has reached the store for the
    /// first time. Default: what the process has noted in its data directory.
    #[serde(default)]
    pub store_id: Option<String>,
    /// Tenants whose adds with a key go by the queue unless a call says otherwise. Default: none.
    #[serde(default)]
    pub default_for: Vec<String>,
    /// How long a key stays used after its timer is over: 60,000 to 7,776,000,000. Default 86,400,000, a day.
    #[serde(default)]
    pub keys_kept_ms: Option<u64>,
    /// How long an add is offered to the topics: 100 to 60,000. Default 5,000.
    #[serde(default)]
    pub write_timeout_ms: Option<u64>,
    /// How long after the store's answer a record is finished: 0 to 600,000. Default 10,000.
    #[serde(default)]
    pub settle_ms: Option<u64>,
    /// Records of each topic that were read and are not stored yet, at most: 100 to 10,000,000. Default 65,536.
    #[serde(default)]
    pub held_records_max: Option<usize>,
    /// Their bytes at most: 1 MiB to 16 GiB. Default 64 MiB.
    #[serde(default)]
    pub held_bytes_max: Option<usize>,
    /// The bytes of the file of records that were set aside, at most: 1 MiB to 1 TiB. Default 256 MiB.
    #[serde(default)]
    pub set_aside_bytes_max: Option<u64>,
    /// Whether adds are signed where there is `[signing]`. Default `true`; `false` is for an upgrade, while schedulers run that
    /// cannot read signed adds.
    #[serde(default)]
    pub sign: Option<bool>,
}

/// A topic of the queue of adds.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddTopicAt {
    /// One of `brokers`.
    pub broker: String,
    /// The topic's name. It is made where it is missing.
    pub topic: String,
    /// The partitions that it has at least, 1 to 1,024. Default 4.
    #[serde(default = "default_partitions")]
    pub partitions: u32,
}

/// A tenant of the scheduler.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantAt {
    /// How many of its timers may wait. Default 1,000,000.
    pub waiting_max: u64,
    /// How many it may add per second through each instance. Default 10,000.
    pub adds_per_s: u64,
    /// `urgent`, `normal` or `bulk`: which tenants' due timers go first when there are too many. Default `normal`.
    pub class: Class,
    /// Where its timers may go, by name.
    pub targets: BTreeMap<String, TargetAt>,
}

/// A target of a tenant.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetAt {
    /// What it is.
    pub to: TargetTo,
    /// When a timer that failed is tried again. Default: exponential, 10 attempts, from 1 s to 5 min.
    #[serde(default)]
    pub retry: Option<Retry>,
    /// Batches that are handed over at a time by each instance, 1 to 1,024; for `http` also the calls at a time. Default 8.
    #[serde(default)]
    pub concurrency: Option<usize>,
    /// Timers per second that it gets at most from all instances, 1 to 100,000,000. Default: as many as are due.
    #[serde(default)]
    pub rate_per_s: Option<u64>,
    /// In which order overdue timers go out: `oldest_first` (default), or `newest_first`, what is due now before them.
    #[serde(default)]
    pub catch_up: Option<CatchUp>,
}

/// What a target is.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TargetTo {
    /// A topic of a broker.
    Topic(TopicAt),
    /// An HTTP address.
    Http(HttpOptions),
    /// A reward, sent by this process's SDK.
    SendBonus,
    /// A queue of a pool of `task_queue.pools`.
    TaskQueue(TimersQueueAt),
}

/// A queue that timers are published to.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimersQueueAt {
    /// One of `task_queue.pools`. Default `default`.
    #[serde(default = "default_pool")]
    pub pool: String,
    /// The queue's namespace.
    pub namespace: String,
    /// The queue.
    pub queue: String,
    /// How long a job lives from when its timer fires, in seconds; 0 is for ever. Default 86,400, a day.
    #[serde(default = "default_ttl_s")]
    pub ttl_s: u32,
    /// How often it may be taken, 1 to 65,535. Default 1.
    #[serde(default = "default_tries")]
    pub tries: u16,
}

impl TimersQueueAt {
    fn options(&self) -> Result<JobTargetOptions> {
        let queue = QueueName::new(&self.namespace, &self.queue)?;
        if self.tries == 0 {
            bail!("tries is 0, but a job needs one");
        }
        Ok(JobTargetOptions { queue, ttl_s: self.ttl_s, tries: self.tries })
    }
}

fn default_pool() -> String {
    "default".into()
}

const fn default_ttl_s() -> u32 {
    TTL_DEFAULT_S
}

const fn default_tries() -> u16 {
    1
}

/// A topic that timers are written to.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicAt {
    /// One of `brokers`.
    pub broker: String,
    /// The topic's name. It is made where it is missing.
    pub topic: String,
    /// The partitions that it has at least, 1 to 10,000. Default 4.
    #[serde(default = "default_partitions")]
    pub partitions: u32,
    /// A record without an answer after so long is tried again, 100 to 600,000 ms. Default 30,000.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
    /// What happens where its settings may lose what it has stored: `refuse`, `warn` or `off`. Default `warn`.
    #[serde(default)]
    pub checks: ChecksAt,
    /// Whether id, due time and attempt are in headers, too. Kafka alone has them. Default `false`.
    #[serde(default)]
    pub headers: bool,
}

/// What happens where a topic may lose what it has stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChecksAt {
    /// It is not written to.
    Refuse,
    /// It is said when the process starts.
    #[default]
    Warn,
    /// Nobody looks.
    Off,
}

impl From<ChecksAt> for TopicChecks {
    fn from(at: ChecksAt) -> Self {
        match at {
            ChecksAt::Refuse => Self::Refuse,
            ChecksAt::Warn => Self::Warn,
            ChecksAt::Off => Self::Off,
        }
    }
}

const fn default_partitions() -> u32 {
    4
}

const fn default_timeout_ms() -> u64 {
    30_000
}

impl Default for SchedulerAt {
    fn default() -> Self {
        Self {
            store: SlotsAt::default(),
            shards: 64,
            durability: DurabilityAt::default(),
            far: None,
            queue: None,
            timers: TimersOptions::default(),
            dispatch: DispatchOptions::default(),
            tenants: BTreeMap::new(),
        }
    }
}

impl Default for TenantAt {
    fn default() -> Self {
        Self { waiting_max: 1_000_000, adds_per_s: 10_000, class: Class::default(), targets: BTreeMap::new() }
    }
}

impl SchedulerAt {
    /// Refuses what cannot be, and names the option.
    pub fn check(
        &self,
        brokers: &BTreeMap<String, crate::drivers::BrokerAt>,
        pools: &BTreeMap<String, PoolAt>,
    ) -> Result<()> {
        if !(16..=1_024).contains(&self.shards) {
            bail!("scheduler.shards is {}, but only 16 to 1024 is allowed", self.shards);
        }
        if let Some(far) = &self.far {
            if far.forward_to.is_some() && !self.store.is_shared() {
                bail!(
                    "scheduler.far.forward_to needs a store in Redis: one of its processes keeps the far timers"
                );
            }
            far.check()?;
        }
        if let Some(queue) = &self.queue {
            queue.check(brokers, &self.tenants)?;
        }
        self.timers.check().context("the options [scheduler.timers] cannot be used")?;
        self.dispatch.check().context("the options [scheduler.dispatch] cannot be used")?;
        if let Some(own) = self.tenants.keys().find(|name| name.starts_with('_')) {
            bail!(
                "scheduler.tenants.{own}: names that begin with `_` are the scheduler's own; name the tenant otherwise"
            );
        }
        self.rules().check().context("the options [scheduler.tenants] cannot be used")?;
        self.check_task_queues(pools)?;
        for (tenant, target, at) in self.all_targets() {
            let key = format!("scheduler.tenants.{tenant}.targets.{target}.to.topic");
            let TargetTo::Topic(topic) = &at.to else { continue };
            let Some(broker) = brokers.get(&topic.broker) else {
                let known: Vec<&str> = brokers.keys().map(String::as_str).collect();
                bail!("{key}.broker is {:?}, but [brokers] has only {}", topic.broker, known.join(", "));
            };
            if topic.headers && broker.driver() != Some(Driver::Kafka) {
                bail!("{key}.headers is true, but only topics of Kafka have headers");
            }
            if topic.topic.is_empty() {
                bail!("{key}.topic is empty, but it must name a topic");
            }
            if !(1..=10_000).contains(&topic.partitions) {
                bail!("{key}.partitions is {}, but only 1 to 10000 is allowed", topic.partitions);
            }
            if !(100..=600_000).contains(&topic.timeout_ms) {
                bail!("{key}.timeout_ms is {}, but only 100 to 600000 is allowed", topic.timeout_ms);
            }
        }
        Ok(())
    }

    fn check_task_queues(&self, pools: &BTreeMap<String, PoolAt>) -> Result<()> {
        for (tenant, target, at) in self.all_targets() {
            let TargetTo::TaskQueue(at) = &at.to else { continue };
            let key = format!("scheduler.tenants.{tenant}.targets.{target}.to.task_queue");
            let Some(pool) = pools.get(&at.pool) else {
                bail!("{key}.pool is {:?}, but [task_queue.pools] does not name it", at.pool);
            };
            at.options().with_context(|| format!("the options {key} cannot be used"))?;
            let fire_timeout_ms = self.dispatch.fire_timeout_ms;
            // A call that is cut off would count as a failed attempt of every timer in it, also while the whole store is away.
            if let Some(call_timeout_ms) = pool.store.call_timeout_ms().filter(|ms| *ms >= fire_timeout_ms) {
                bail!(
                    "scheduler.dispatch.fire_timeout_ms is {fire_timeout_ms}, but {key} publishes to the pool {:?}, whose \
                     call_timeout_ms is {call_timeout_ms}: give fire_timeout_ms more than that",
                    at.pool
                );
            }
        }
        Ok(())
    }

    /// The names of the topics of the queue of adds.
    pub fn add_topics(&self) -> BTreeSet<String> {
        let topics = self.queue.iter().flat_map(|queue| [&queue.master, &queue.backup]);
        topics.map(|at| at.topic.clone()).collect()
    }

    /// Whether a target sends rewards, so that the process needs an SDK.
    pub fn sends_bonuses(&self) -> bool {
        self.all_targets().any(|(_, _, at)| matches!(at.to, TargetTo::SendBonus))
    }

    /// The pools that timers are published to.
    pub fn pools(&self) -> BTreeSet<&str> {
        let pools = self.all_targets().filter_map(|(_, _, at)| match &at.to {
            TargetTo::TaskQueue(at) => Some(at.pool.as_str()),
            TargetTo::Topic(_) | TargetTo::Http(_) | TargetTo::SendBonus => None,
        });
        pools.collect()
    }

    fn all_targets(&self) -> impl Iterator<Item = (&str, &str, &TargetAt)> {
        self.tenants.iter().flat_map(|(tenant, at)| {
            at.targets.iter().map(move |(target, at)| (tenant.as_str(), target.as_str(), at))
        })
    }

    /// The tenants as the scheduler takes them.
    fn rules(&self) -> Tenants {
        let tenants = self.tenants.iter().map(|(name, at)| {
            let targets = at.targets.iter().map(|(name, at)| (name.clone(), at.rules())).collect();
            let TenantAt { waiting_max, adds_per_s, class, .. } = *at;
            (name.clone(), TenantRules { waiting_max, adds_per_s, class, targets })
        });
        Tenants(tenants.collect())
    }
}

impl AddQueueAt {
    fn check(
        &self,
        brokers: &BTreeMap<String, crate::drivers::BrokerAt>,
        tenants: &BTreeMap<String, TenantAt>,
    ) -> Result<()> {
        for (side, at) in [("master", &self.master), ("backup", &self.backup)] {
            let key = format!("scheduler.queue.{side}");
            if !brokers.contains_key(&at.broker) {
                let known: Vec<&str> = brokers.keys().map(String::as_str).collect();
                bail!("{key}.broker is {:?}, but [brokers] has only {}", at.broker, known.join(", "));
            }
            if at.topic.is_empty() {
                bail!("{key}.topic is empty, but it must name a topic");
            }
            if !(1..=1_024).contains(&at.partitions) {
                bail!("{key}.partitions is {}, but only 1 to 1024 is allowed", at.partitions);
            }
        }
        if self.master.broker == self.backup.broker || self.master.topic == self.backup.topic {
            bail!(
                "scheduler.queue: master and backup are topics of different names on different brokers, so that one of \
                 them takes adds while the other is away"
            );
        }
        for (tenant, at) in tenants {
            for (target, at) in &at.targets {
                let TargetTo::Topic(to) = &at.to else { continue };
                let is_own = |at: &&AddTopicAt| (&at.broker, &at.topic) == (&to.broker, &to.topic);
                if let Some(own) = [&self.master, &self.backup].into_iter().find(is_own) {
                    bail!(
                        "scheduler.queue has the topic {:?} of the broker {:?}, which the target {target} of the tenant \
                         {tenant} writes to: adds need topics of their own",
                        own.topic,
                        own.broker
                    );
                }
            }
        }
        if let Some(unknown) = self.default_for.iter().find(|name| !tenants.contains_key(*name)) {
            bail!("scheduler.queue.default_for names {unknown:?}, but [scheduler.tenants] does not");
        }
        self.options()?.check().context("the options [scheduler.queue] cannot be used")
    }

    fn options(&self) -> Result<AddQueueOptions> {
        let default = AddQueueOptions::default();
        let store_id = self.store_id.as_deref().map(|text| {
            let digits = Some(text).filter(|text| text.len() == 16);
            digits.and_then(|text| u64::from_str_radix(text, 16).ok()).with_context(|| {
                format!(
                    "scheduler.queue.store_id is {text:?}, but an id has 16 hexadecimal digits; the log of a scheduler says \
                     the one of its store"
                )
            })
        });
        Ok(AddQueueOptions {
            store_id: store_id.transpose()?,
            default_for: self.default_for.iter().cloned().collect::<BTreeSet<_>>(),
            keys_kept_ms: self.keys_kept_ms.unwrap_or(default.keys_kept_ms),
            write_timeout_ms: self.write_timeout_ms.unwrap_or(default.write_timeout_ms),
            settle_ms: self.settle_ms.unwrap_or(default.settle_ms),
            held_records_max: self.held_records_max.unwrap_or(default.held_records_max),
            held_bytes_max: self.held_bytes_max.unwrap_or(default.held_bytes_max),
            set_aside_bytes_max: self.set_aside_bytes_max.unwrap_or(default.set_aside_bytes_max),
            sign: self.sign.unwrap_or(default.sign),
        })
    }

    fn part(&self, data: &std::path::Path) -> Result<AddQueuePart> {
        let topic = |at: &AddTopicAt| AddTopic {
            broker: at.broker.clone(),
            topic: at.topic.clone(),
            partitions: at.partitions,
        };
        Ok(AddQueuePart {
            options: self.options()?,
            master: topic(&self.master),
            backup: topic(&self.backup),
            folder: place::add_queue(data),
        })
    }
}

impl TargetAt {
    fn rules(&self) -> TargetRules {
        let default = TargetRules::default();
        TargetRules {
            retry: self.retry.unwrap_or(default.retry),
            concurrency: self.concurrency.unwrap_or(default.concurrency),
            rate_per_s: self.rate_per_s,
            catch_up: self.catch_up.unwrap_or_default(),
            sends_rewards: matches!(self.to, TargetTo::SendBonus),
        }
    }
}

impl ServiceOptions {
    /// How the scheduler is started. Connects to nothing yet. `jobs` are the stores of the pools that timers go to.
    pub fn scheduling_options(
        &self,
        instance: String,
        jobs: &JobStores,
        clock: &Clock,
    ) -> Result<SchedulingOptions> {
        let mut targets = BTreeMap::new();
        for (tenant, target, at) in self.scheduler.all_targets() {
            let part = match &at.to {
                TargetTo::SendBonus => TargetPart::SendBonus,
                TargetTo::TaskQueue(at) => {
                    let store = jobs.get(&at.pool);
                    let store = store.with_context(|| format!("the pool {} is not open", at.pool))?;
                    TargetPart::Ready(Arc::new(JobTarget::new(Arc::clone(store), at.options()?)))
                }
                TargetTo::Topic(at) => TargetPart::Topic {
                    broker: at.broker.clone(),
                    options: TopicOptions {
                        topic: at.topic.clone(),
                        partitions: at.partitions,
                        timeout_ms: at.timeout_ms,
                        checks: at.checks.into(),
                        headers: at.headers,
                    },
                },
                TargetTo::Http(options) => {
                    let name = format!("{tenant}/{target}");
                    let callback = HttpCallback::new(&name, options, at.rules().concurrency, clock.clone());
                    TargetPart::Ready(Arc::new(callback.with_context(|| {
                        format!(
                            "the options scheduler.tenants.{tenant}.targets.{target}.to.http cannot be used"
                        )
                    })?))
                }
            };
            targets.insert((tenant.to_owned(), target.to_owned()), part);
        }
        let mut tenants = self.scheduler.rules();
        let far_jobs = self.far_job_targets(jobs);
        if !far_jobs.is_empty() {
            let rules = FarJobTimers::tenant_rules(far_jobs.keys().map(|(_, pool)| pool.as_str()));
            tenants.0.insert(FAR_JOBS_TENANT.to_owned(), rules);
            targets.extend(far_jobs);
        }
        let jobs = self.jobs_part()?;
        if jobs.is_some() {
            tenants.0.extend(windfall_jobs::Jobs::tenants());
        }
        let mut seed = DefaultHasher::new();
        instance.hash(&mut seed);
        Ok(SchedulingOptions {
            timers: self.scheduler.timers.clone(),
            dispatch: DispatchOptions { jitter_seed: seed.finish(), ..self.scheduler.dispatch.clone() },
            tenants: Arc::new(tenants),
            targets,
            queue: self.scheduler.queue.as_ref().map(|at| at.part(&self.data)).transpose()?,
            // The wiring has them.
            signing: None,
            jobs,
            instance,
        })
    }

    /// Where the timers of far jobs go, by the tenant that they have, and their pool.
    fn far_job_targets(&self, stores: &JobStores) -> BTreeMap<(String, String), TargetPart> {
        let pools = self.task_queue.far_pools(&self.scheduler);
        let open = pools.filter_map(|pool| Some((pool, stores.get(pool)?)));
        let target = |(pool, store): (&str, &Arc<_>)| {
            let doubtful = self.task_queue.doubtful_jobs();
            let target = TargetPart::Ready(Arc::new(FarJobTarget::new(Arc::clone(store), doubtful)));
            ((FAR_JOBS_TENANT.to_owned(), pool.to_owned()), target)
        };
        open.map(target).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::Role;

    fn load(text: &str) -> Result<ServiceOptions> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("options.toml");
        std::fs::write(&file, text).unwrap();
        ServiceOptions::load(Some(&file), Some(folder.path().join("data")))
    }

    #[test]
    fn the_documented_options_are_options() {
        let text = include_str!("../../../docs/scheduler.md");
        let block = text.split("```toml\n").find(|block| block.starts_with("[scheduler]")).unwrap();
        let scheduler = load(block.split("```").next().unwrap()).unwrap().scheduler;
        assert_eq!(scheduler.tenants.len(), 2);
        assert!(matches!(scheduler.tenants["calls"].targets["hook"].to, TargetTo::Http(_)));
        let block =
            text.split("```toml\n").find(|block| block.starts_with("[scheduler.store.redis]")).unwrap();
        let scheduler = load(block.split("```").next().unwrap()).unwrap().scheduler;
        assert!(matches!(scheduler.store, SlotsAt::Redis(_)));
        let block = text.split("```toml\n").find(|block| block.starts_with("[scheduler.queue]")).unwrap();
        let calls = "[scheduler.tenants.calls.targets.rewards]\nto = \"send_bonus\"\n";
        let scheduler = load(&format!("{calls}{}", block.split("```").next().unwrap())).unwrap().scheduler;
        let queue = scheduler.queue.unwrap();
        let documented = AddQueueOptions { default_for: ["calls".to_owned()].into(), ..Default::default() };
        assert_eq!(queue.options().unwrap(), documented, "the documented values are the defaults");
        let far = |begin: &str, before: &str| {
            let block = text.split("```toml\n").find(|block| block.starts_with(begin)).unwrap();
            load(&format!("{before}{}", block.split("```").next().unwrap())).unwrap().scheduler.far.unwrap()
        };
        assert!(!Driver::S3.is_built() || far("[scheduler.far.s3]", "").s3.is_some());
        if Driver::Redis.is_built() {
            assert!(far("[scheduler.far.forward_to]", "[scheduler.store.redis]\n").forward_to.is_some());
        }
    }

    #[test]
    fn serve_keeps_timers_if_a_tenant_is_named_and_a_scheduler_always_does() {
        let (none, one) = (load("").unwrap(), load(&format!("{TARGET}to = \"send_bonus\"\n")).unwrap());
        let works =
            [&none, &one].map(|options| (options.work_of(Role::Serve), options.work_of(Role::Scheduler)));
        assert_eq!(
            works.map(|(serve, scheduler)| (serve.schedules, scheduler.schedules)),
            [(false, true), (true, true)]
        );
        assert_eq!(works.map(|(_, scheduler)| scheduler.sends), [false, true]);
        assert!(!one.work_of(Role::Wallet).schedules);
    }

    const TARGET: &str = "[scheduler.tenants.marketing.targets.reminders]\n";

    #[test]
    fn tenants_and_targets_are_read_with_their_defaults() {
        let text = "[scheduler]\nshards = 128\n[scheduler.tenants.calls]\nclass = \"urgent\"\nwaiting_max = 7\n\
                    [scheduler.tenants.marketing.targets.rewards]\nto = \"send_bonus\"\nrate_per_s = 500\n\
                    [scheduler.tenants.marketing.targets.reminders]\n\
                    to = { topic = { broker = \"a\", topic = \"reminders\" } }\n\
                    retry = { fixed = { attempts_max = 3, wait_ms = 1000 } }\nconcurrency = 4\n";
        let scheduler = load(text).unwrap().scheduler;
        assert!(scheduler.sends_bonuses());
        let rules = scheduler.rules();
        assert_eq!((rules.0["calls"].class, rules.0["calls"].waiting_max), (Class::Urgent, 7));
        assert_eq!(rules.0["marketing"].adds_per_s, 10_000);
        let reminders = rules.target("marketing", "reminders").unwrap();
        assert_eq!(reminders.retry, Retry::Fixed { attempts_max: 3, wait_ms: 1_000 });
        assert_eq!((reminders.concurrency, reminders.rate_per_s), (4, None));
        let rewards = rules.target("marketing", "rewards").unwrap();
        assert_eq!((rewards.retry, rewards.rate_per_s), (TargetRules::default().retry, Some(500)));
        assert!(!load("").unwrap().scheduler.sends_bonuses());
    }

    #[test]
    fn a_wrong_option_is_refused_by_its_name() {
        let queue = |first: &str, topic: &str, second: &str, other: &str, rest: &str| {
            format!(
                "[scheduler.queue]\nmaster = {{ broker = {first:?}, topic = {topic:?} }}\n\
                 backup = {{ broker = {second:?}, topic = {other:?} }}\n{rest}\n"
            )
        };
        let topic = |rest: &str| format!("{TARGET}to = {{ topic = {{ {rest} }} }}\n");
        for (wrong, named) in [
            ("[scheduler]\nshards = 8\n".to_owned(), "scheduler.shards is 8"),
            ("[scheduler]\nstore = \"mysql\"\n".to_owned(), "line 2"),
            ("[scheduler.store.redis]\nshards = 64\n".to_owned(), "shards"),
            ("[scheduler.far.forward_to]\nattempts = 1\n".to_owned(), "forward_to needs a store in Redis"),
            ("[scheduler.far]\nhorizon_ms = 1\n".to_owned(), "horizon_ms is 1"),
            ("[scheduler.store.redis]\nneeds_disk_sync = true\n".to_owned(), "needs_disk_sync"),
            (queue("a", "x", "a", "y", ""), "different names on different brokers"),
            (queue("a", "x", "b", "x", ""), "different names on different brokers"),
            (queue("a", "x", "c", "y", ""), "scheduler.queue.backup.broker is \"c\""),
            (queue("a", "", "b", "y", ""), "scheduler.queue.master.topic is empty"),
            (queue("a", "x", "b", "y", "keys_kept_ms = 1"), "keys_kept_ms is 1"),
            (queue("a", "x", "b", "y", "store_id = \"7\""), "store_id is \"7\""),
            (queue("a", "x", "b", "y", "default_for = [\"shop\"]"), "default_for names \"shop\""),
            (
                format!("{}{}", queue("a", "x", "b", "t", ""), topic("broker = \"b\", topic = \"t\"")),
                "adds need topics of their own",
            ),
            ("[scheduler.timers]\nlinger_ms = 101\n".to_owned(), "linger_ms is 101"),
            ("[scheduler.dispatch]\njitter_seed = 1\n".to_owned(), "jitter_seed"),
            ("[scheduler.dispatch]\nlease_ttl_ms = 1\n".to_owned(), "lease_ttl_ms is 1"),
            (topic("broker = \"c\", topic = \"t\""), "to.topic.broker is \"c\", but [brokers] has only a, b"),
            (topic("broker = \"a\", topic = \"\""), "to.topic.topic is empty"),
            (topic("broker = \"a\", topic = \"t\", partitions = 0"), "to.topic.partitions is 0"),
            (topic("broker = \"a\", topic = \"t\", timeout_ms = 1"), "to.topic.timeout_ms is 1"),
            (topic("broker = \"a\", topic = \"t\", checks = \"maybe\""), "checks"),
            (topic("broker = \"a\", topic = \"t\", headers = true"), "to.topic.headers is true"),
            (format!("{TARGET}to = \"send_bonus\"\nconcurrency = 0\n"), "concurrency is 0"),
            (format!("{TARGET}to = \"send_bonus\"\nretries = 0\n"), "retries"),
            ("[scheduler.tenants.\"a b\"]\n".to_owned(), "tenant `a b`"),
        ] {
            let refused = format!("{:#}", load(&wrong).err().unwrap());
            assert!(refused.contains(named), "{wrong}: {refused}");
        }
    }

    #[test]
    fn a_queue_is_a_target_where_its_pool_is_named() {
        let text = include_str!("../../../docs/scheduler.md");
        let block = text.split("```toml\n").find(|block| block.contains("task_queue = {")).unwrap();
        let options = load(block.split("```").next().unwrap()).unwrap();
        assert_eq!(options.scheduler.pools(), BTreeSet::from(["default"]));
        let to = |to: &str| format!("[task_queue.pools.a]\n{TARGET}to = {{ task_queue = {{ {to} }} }}\n");
        let one = load(&to("pool = \"a\", namespace = \"n\", queue = \"q\"")).unwrap();
        let TargetTo::TaskQueue(at) = &one.scheduler.all_targets().next().unwrap().2.to else {
            panic!("it is no queue");
        };
        assert_eq!((at.ttl_s, at.tries), (86_400, 1));
        for (wrong, named) in [
            ("namespace = \"n\", queue = \"q\"", "to.task_queue.pool is \"default\""),
            ("pool = \"a\", namespace = \"n\", queue = \"q\", tries = 0", "tries is 0"),
            ("pool = \"a\", namespace = \"n\", queue = \"_q\"", "to.task_queue cannot be used"),
            ("pool = \"a\", namespace = \"n\"", "queue"),
        ] {
            let refused = format!("{:#}", load(&to(wrong)).err().unwrap());
            assert!(refused.contains(named), "{wrong}: {refused}");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_call_of_a_target_that_is_a_queue_may_take_as_long_as_one_of_its_pool() {
        let load_with = |fire_timeout_ms: u64| {
            load(&format!(
                "[task_queue.pools.a.store.redis]\ncall_timeout_ms = 5000\n\
                 [scheduler.dispatch]\nfire_timeout_ms = {fire_timeout_ms}\n\
                 {TARGET}to = {{ task_queue = {{ pool = \"a\", namespace = \"n\", queue = \"q\" }} }}\n"
            ))
        };
        assert!(load_with(5_001).is_ok());
        let refused = format!("{:#}", load_with(5_000).err().unwrap());
        assert!(
            refused.contains("fire_timeout_ms is 5000") && refused.contains("targets.reminders"),
            "{refused}"
        );
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_store_in_redis_is_an_option_and_its_server_need_not_be_there() {
        let text =
            "[scheduler]\nstore = { redis = { urls = [\"127.0.0.1:1\"], connect_timeout_ms = 100 } }\n";
        let options = load(text).unwrap();
        let SchedulerAt { store, shards, durability, .. } = &options.scheduler;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let open = |store: SlotsAt| {
            runtime
                .block_on(async { store.open(&options.data, *shards, *durability, &Clock::system()).await })
        };
        let slots = open(store.clone()).unwrap();
        assert_eq!((slots.store.shards(), slots.away.is_some()), (64, true));
        let said = runtime.block_on(slots.store.tenant("shop")).unwrap_err().to_string();
        assert!(said.contains("Redis at 127.0.0.1:1 cannot be reached"), "{said}");
        let wrong = load("[scheduler.store.redis]\nprefix = \"a{b\"\n").unwrap().scheduler.store;
        let refused = format!("{:#}", open(wrong).err().unwrap());
        assert!(refused.contains("in Redis cannot be opened: prefix"), "{refused}");
    }

    #[test]
    fn a_callback_whose_host_is_not_allowed_is_refused_when_the_process_starts() {
        let text = format!(
            "{TARGET}[scheduler.tenants.marketing.targets.reminders.to.http]\nurl = \"https://a.example.com/\"\n\
             allow = [\"b.example.com\"]\nkey_id = \"k\"\nsecret_file = \"/nowhere\"\n"
        );
        let options = load(&text).unwrap();
        let refused =
            options.scheduling_options("i".into(), &JobStores::new(), &Clock::system()).err().unwrap();
        let refused = format!("{refused:#}");
        assert!(refused.contains("targets.reminders.to.http") && refused.contains("allow"), "{refused}");
    }
}
