//! The consumers of a process, one for each topic, with what they share: limits, the way back to the queues, the spill
//! log. They begin when the budgets are set, and follow the rules: a topic that is added is read without a restart, one
//! that drains is read as long as the rules name it, and longer if something is left in it.

use super::GROUP;
use super::background::{Background, Tasks};
use super::budgets::BudgetsReady;
use super::parts::Brokers;
use super::requeue::RequeueToQueues;
use super::signing::{AcceptedByName, SigningKeys};
use super::topic_consumer::{TopicConsumer, TopicKey, TopicParts};
use super::topic_life::{TopicLife, TopicLives};
use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use windfall_config::LiveRules;
use windfall_consumer::{ConsumerStats, Options, SharedLimiter, SpillLog};
use windfall_contract::Clock;
use windfall_contract::broker::Lag;
use windfall_contract::long_delays::LongDelays;
use windfall_contract::rules::Rules;
use windfall_edge::Health;
use windfall_limiter::{Limit, Limiter, Now};
use windfall_queue_virtual::Fanout;
use windfall_reward_service::RewardHandle;

/// The pause between two looks at what is left in draining topics.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A broker that takes longer to say how far a group is counts as silent.
const LAG_PATIENCE: Duration = Duration::from_secs(3);
/// How long a consumer may take to leave a topic that is gone.
const LEAVE: Duration = Duration::from_secs(10);
/// Records that no queue takes; beyond it they stay in the window.
const SALVAGE_MAX_BYTES: u64 = 64 << 20;

/// The parts that consumers work with.
pub struct Shared<'a> {
    /// Brokers by name.
    pub brokers: &'a Brokers,
    /// The live rules.
    pub rules: &'a LiveRules,
    /// The sink that records are requeued to.
    pub fanout: &'a Arc<Fanout>,
    /// The service that grants.
    pub rewards: &'a RewardHandle,
    /// The keys that records are signed and verified with.
    pub signing: Option<&'a SigningKeys>,
    /// The topics that are read where there are none.
    pub accepted: &'a AcceptedByName,
    /// Where events that are due long after now are handed over.
    pub long_delays: Option<Arc<dyn LongDelays>>,
    /// Whether the budgets are set: before that no topic is read.
    pub budgets: &'a BudgetsReady,
    /// The process's clock.
    pub clock: &'a Clock,
    /// The owner of the process's tasks.
    pub tasks: &'a Tasks,
    /// Where missing topics are told.
    pub health: &'a Health,
}

/// Running consumers.
pub struct Consuming {
    /// The spill log.
    pub salvage: Arc<SpillLog>,
    fleet: Arc<Fleet>,
    keeper: Background,
}

/// The consumers, and the parts of a new one.
struct Fleet {
    parts: TopicParts,
    brokers: Brokers,
    rules: LiveRules,
    budgets: BudgetsReady,
    /// Topics that are consumed; none: all that the rules name.
    only: Vec<String>,
    consumers: Mutex<BTreeMap<TopicKey, TopicConsumer>>,
    lives: Mutex<TopicLives>,
}

impl Consuming {
    /// Keeps a consumer running for each of these topics; for each that the rules name where there are none.
    pub fn start(shared: &Shared<'_>, topics: &[String], salvage: &Path, options: Options) -> Result<Self> {
        let rules = shared.rules.current();
        let is_known = |name: &String| {
            rules.topics.contains_key(name) || rules.draining.iter().any(|old| old.topic == *name)
        };
        if let Some(topic) = topics.iter().find(|topic| !is_known(topic)) {
            bail!("the options name the topic {topic}, which the live rules do not know");
        }
        // No reason to stop: the rules may have removed it since.
        for topic in shared.signing.iter().flat_map(|keys| keys.topics()).filter(|topic| !is_known(topic)) {
            tracing::warn!(
                topic,
                "[signing.topics] names a topic that the live rules do not know: it is a typo, or they have removed the topic"
            );
        }
        let salvage =
            SpillLog::open(salvage, SALVAGE_MAX_BYTES).context("the salvage file cannot be opened")?;
        let salvage = Arc::new(salvage);
        let now = Now(shared.clock.monotonic_ns());
        let global = rules.limits.global;
        let limiter =
            Arc::new(Limiter::new(Limit { rate_per_s: global.rate_per_s, burst: global.burst }, now));
        let parts = TopicParts {
            group: GROUP,
            rewards: Arc::new(shared.rewards.clone()),
            requeue_sink: Arc::new(RequeueToQueues::new(
                Arc::clone(shared.fanout),
                shared.rules.clone(),
                shared.signing.map(|keys| keys.signer.clone()),
            )),
            spill_log: Arc::clone(&salvage),
            long_delays: shared.long_delays.clone(),
            signing: shared.signing.cloned(),
            accepted: shared.accepted.clone(),
            limiter: Arc::new(SharedLimiter::new(limiter, now)),
            rules: shared.rules.clone(),
            clock: shared.clock.clone(),
            tasks: shared.tasks.clone(),
            health: shared.health.clone(),
            options,
        };
        let fleet = Arc::new(Fleet {
            parts,
            brokers: shared.brokers.clone(),
            rules: shared.rules.clone(),
            budgets: shared.budgets.clone(),
            only: topics.to_vec(),
            consumers: Mutex::default(),
            lives: Mutex::default(),
        });
        let own = Arc::clone(&fleet);
        let keeper = shared.tasks.spawn("consumers", move || Arc::clone(&own).keep());
        Ok(Self { salvage, fleet, keeper })
    }

    /// Topics with the counters of their consumers, as they are now.
    pub fn counters(&self) -> Vec<(String, Arc<ConsumerStats>)> {
        self.fleet.counters()
    }

    /// Reads the counters of the consumers that run then, for those who read them now and then.
    pub fn read_counters(&self) -> impl Fn() -> Vec<(String, Arc<ConsumerStats>)> + Send + Sync + use<> {
        let fleet = Arc::clone(&self.fleet);
        move || fleet.counters()
    }

    /// Reads what is left in topics that nobody writes to any more.
    pub fn read_lives(&self) -> impl Fn() -> TopicLives + Send + Sync + use<> {
        let fleet = Arc::clone(&self.fleet);
        move || fleet.lives.lock().clone()
    }

    /// Why no topic is read, where none is.
    pub fn check(&self) -> impl Fn() -> Result<(), String> + Send + Sync + use<> {
        // The fleet holds the readiness that this becomes part of: one of them must not keep the other.
        let fleet = Arc::downgrade(&self.fleet);
        move || {
            let fleet = fleet.upgrade().ok_or_else(|| "the consumers have ended".to_owned())?;
            match fleet.consumers.lock().values().any(TopicConsumer::is_reading) {
                true => Ok(()),
                false if !fleet.budgets.is_ready() => Err("they wait until the budgets are set".into()),
                false => Err("no topic is read".into()),
            }
        }
    }

    /// Drains all consumers. One that crashed keeps none of the others from draining.
    pub async fn drain(self, deadline: Duration) -> Result<()> {
        self.keeper.end().await;
        let consumers = std::mem::take(&mut *self.fleet.consumers.lock());
        // All at once: one that drains must not leave its topics' share to those that still fetch.
        let draining: Vec<_> = consumers.into_values().map(|consumer| consumer.drain(deadline)).collect();
        let mut crashed = Ok(());
        for drained in draining {
            crashed = crashed.and(drained.await);
        }
        crashed
    }
}

impl Fleet {
    async fn keep(self: Arc<Self>) {
        let mut changes = self.rules.subscribe();
        self.budgets.ready().await;
        loop {
            let now = Arc::clone(&changes.borrow_and_update());
            self.follow(&now);
            self.look().await;
            self.leave_what_is_gone().await;
            self.parts.limiter.settle(Now(self.parts.clock.monotonic_ns()));
            // An error: the rules will not change any more, but topics go on to drain.
            if let Ok(Err(_)) = tokio::time::timeout(LOOK_EVERY, changes.changed()).await {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }

    /// Starts consumers for topics that have none, and notes what the rules say of each.
    fn follow(&self, rules: &Rules) {
        let is_ours = |name: &String| self.only.is_empty() || self.only.contains(name);
        let key = |broker: &String, name: &String| TopicKey { broker: broker.clone(), name: name.clone() };
        let active = rules.topics.iter().map(|(name, topic)| (key(&topic.broker, name), TopicLife::Active));
        let draining = rules.draining.iter().map(|old| (key(&old.broker, &old.topic), TopicLife::draining()));
        let named = active.chain(draining).filter(|(key, _)| is_ours(&key.name));
        let mut lives = self.lives.lock();
        lives.follow(named.collect());
        let mut consumers = self.consumers.lock();
        for key in lives.keys() {
            if !consumers.contains_key(key) {
                let broker = self.brokers.get(&key.broker).cloned();
                let nth = consumers.len() as u64;
                consumers.insert(key.clone(), TopicConsumer::start(&self.parts, key.clone(), broker, nth));
            }
        }
    }

    /// Asks what is left in topics that nobody writes to any more.
    async fn look(&self) {
        let old: Vec<TopicKey> = self.lives.lock().old().cloned().collect();
        for key in old {
            let left = match self.brokers.get(&key.broker) {
                Some(broker) => {
                    let asked = tokio::time::timeout(LAG_PATIENCE, broker.lag(&key.name, GROUP)).await;
                    asked.ok().and_then(Result::ok).map(Lag::records)
                }
                None => None,
            };
            self.lives.lock().looked(&key, left, Instant::now());
        }
    }

    /// Ends the consumers of topics that the rules do not name and in which nothing is left.
    async fn leave_what_is_gone(&self) {
        let gone = self.lives.lock().take_gone(Instant::now());
        for key in gone {
            let consumer = self.consumers.lock().remove(&key);
            if let Some(consumer) = consumer
                && let Err(error) = consumer.drain(LEAVE).await
            {
                tracing::warn!(error = format!("{error:#}"), "a topic that is gone was not left in order");
            }
        }
    }

    /// A topic that moved is there twice: the old one is told from the new one by its broker.
    fn counters(&self) -> Vec<(String, Arc<ConsumerStats>)> {
        let lives = self.lives.lock();
        let consumers = self.consumers.lock();
        consumers.iter().map(|(key, one)| (lives.label(key), Arc::clone(one.stats()))).collect()
    }
}
