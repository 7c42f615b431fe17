//! The consuming half: consumers with what they share, the queues they write back to, and the reward service.
//! A pipeline has one; a guest process is nothing but one.

use super::outlet::FanoutOutlet;
use super::token_drop::TokenDrop;
use super::{GROUP, SALVAGE_MAX_BYTES};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};
use windfall_config::LiveRules;
use windfall_consumer::{ConsumerHandle, ConsumerStats, Crashed, DrainReport, Gate, Parts, Salvage};
use windfall_contract::Clock;
use windfall_contract::broker::Broker;
use windfall_contract::rules::Rules;
use windfall_ledger::BudgetsApplied;
use windfall_limiter::{Limit, Limiter, Now};
use windfall_queue::virtual_queue::Fanout;
use windfall_reward_service::{CallError, RewardHandle};

/// What consumers work with.
pub struct Shared {
    /// Brokers by name.
    pub brokers: BTreeMap<String, Arc<dyn Broker>>,
    /// The live rules.
    pub rules: LiveRules,
    /// Where records go back to.
    pub fanout: Arc<Fanout>,
    /// Who grants.
    pub rewards: RewardHandle,
    /// Drops the tokens of credited rewards.
    pub token_drop: TokenDrop,
}

/// Running consumers.
pub struct Consuming {
    pub shared: Shared,
    pub salvage: Arc<Salvage>,
    consumers: Vec<RunningConsumer>,
    /// Carries changed budgets from the rules to the ledger.
    budgets: JoinHandle<()>,
}

/// A consumer under watch: one that ends by itself is noticed.
struct RunningConsumer {
    topic: String,
    stats: Arc<ConsumerStats>,
    drain: oneshot::Sender<Duration>,
    task: JoinHandle<std::result::Result<DrainReport, Crashed>>,
}

impl Consuming {
    /// Starts a consumer for each topic of the rules that `wanted` names.
    pub async fn start(
        shared: Shared,
        salvage: &Path,
        seed: u64,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let salvage =
            Salvage::open(salvage, SALVAGE_MAX_BYTES).context("the salvage file cannot be opened")?;
        let budgets = tokio::spawn(follow_budgets(shared.rules.clone(), shared.rewards.clone()));
        let mut own = Self { shared, salvage: Arc::new(salvage), consumers: Vec::new(), budgets };
        let clock = Clock::system();
        let now = Now(clock.monotonic_ns());
        let rules = own.shared.rules.current();
        let global = rules.limits.global;
        let limiter =
            Arc::new(Limiter::new(Limit { rate_per_s: global.rate_per_s, burst: global.burst }, now));
        let gate = Arc::new(Gate::new(limiter, now));
        let outlet = Arc::new(FanoutOutlet::new(Arc::clone(&own.shared.fanout), own.shared.rules.clone()));
        for (name, topic) in rules.topics.iter().filter(|(name, _)| wanted(name)) {
            let broker =
                own.shared.brokers.get(&topic.broker).context("a topic on a broker that is not there")?;
            let source =
                broker.consumer(name, GROUP).await.with_context(|| format!("topic {name} cannot be read"))?;
            let live = own.shared.rules.clone();
            let parts = Parts {
                topic: name.clone(),
                source,
                rewards: Arc::new(own.shared.rewards.clone()),
                outlet: Arc::clone(&outlet) as _,
                salvage: Arc::clone(&own.salvage),
                gate: Arc::clone(&gate),
                rules: Arc::new(move || live.current()),
                clock: clock.clone(),
            };
            let options = windfall_consumer::Options {
                jitter_seed: seed.wrapping_add(own.consumers.len() as u64),
                ..windfall_consumer::Options::default()
            };
            own.consumers.push(RunningConsumer::start(name, windfall_consumer::spawn(parts, options)));
        }
        Ok(own)
    }

    /// Counters of each consumer.
    pub fn stats(&self) -> impl Iterator<Item = &ConsumerStats> {
        self.consumers.iter().map(|consumer| &*consumer.stats)
    }

    /// Topics with the counters of their consumers, for those who read them now and then.
    pub fn counters(&self) -> Vec<(String, Arc<ConsumerStats>)> {
        self.consumers.iter().map(|consumer| (consumer.topic.clone(), Arc::clone(&consumer.stats))).collect()
    }

    /// Topics with their consumers' tasks, for those who watch whether they live.
    pub fn watches(&self) -> Vec<(String, AbortHandle)> {
        self.consumers.iter().map(|consumer| (consumer.topic.clone(), consumer.task.abort_handle())).collect()
    }

    /// The topic of a consumer that has ended by itself.
    pub fn dead(&self) -> Option<&str> {
        self.consumers.iter().find(|consumer| consumer.task.is_finished()).map(|dead| dead.topic.as_str())
    }

    /// Drains the consumers, then closes queues, reward service and stores. Says how many records the topics still
    /// hold for the group, where that can be read.
    pub async fn close(self, deadline: Duration) -> Result<()> {
        // All at once: one that drains must not leave its topics' share to those that still fetch.
        let draining: Vec<_> = self.consumers.into_iter().map(|consumer| consumer.drain(deadline)).collect();
        let mut crashed = Ok(());
        for drained in draining {
            // The others and the stores are closed in order all the same.
            crashed = crashed.and(drained.await);
        }
        let Shared { fanout, rewards, token_drop, .. } = self.shared;
        tokio::task::spawn_blocking(move || fanout.close(deadline)).await?;
        self.budgets.abort();
        tokio::task::spawn_blocking(move || rewards.close()).await?;
        token_drop.close().await;
        crashed
    }
}

impl RunningConsumer {
    fn start(topic: &str, mut consumer: ConsumerHandle) -> Self {
        let stats = Arc::clone(consumer.stats());
        let (drain, asked) = oneshot::channel();
        let name = topic.to_owned();
        let task = tokio::spawn(async move {
            tokio::select! {
                crashed = consumer.ended() => {
                    tracing::error!(topic = name, %crashed, "a consumer ended by itself");
                    Err(crashed)
                }
                asked = asked => match asked {
                    Ok(deadline) => consumer.drain(deadline).await,
                    // The pipeline is gone without a close: the consumer ends as if killed.
                    Err(_) => Err(Crashed("its pipeline is gone".into())),
                },
            }
        });
        Self { topic: topic.to_owned(), stats, drain, task }
    }

    /// Asks it to drain, at once; the future waits until it has.
    fn drain(self, deadline: Duration) -> impl Future<Output = Result<()>> {
        let Self { topic, drain, task, .. } = self;
        // One that has crashed does not listen; its task says so.
        drain.send(deadline).ok();
        async move {
            let drained = task.await.with_context(|| format!("the consumer of {topic}"))?;
            drained.map(drop).with_context(|| format!("the consumer of {topic}"))
        }
    }
}

/// Sets the budgets of these rules, unless newer rules have set theirs, and says what could not be set as asked.
pub async fn set_budgets(rewards: &RewardHandle, rules: &Rules) -> Result<(), CallError> {
    match rewards.apply_budgets(rules.version, &rules.budgets).await? {
        BudgetsApplied::Set(raised) => {
            for one in raised {
                tracing::warn!(?one, "a budget cannot go below what was given out");
            }
        }
        BudgetsApplied::Stale { newest } => tracing::warn!(
            version = rules.version,
            newest,
            "the ledger has the budgets of newer rules, and keeps them; this process has old ones"
        ),
    }
    Ok(())
}

/// Sets budgets anew with every version of the rules that changes them.
pub async fn follow_budgets(rules: LiveRules, rewards: RewardHandle) {
    let mut changes = rules.subscribe();
    // Once at the beginning: the rules may have changed since the start set them.
    let mut applied = None;
    loop {
        let now = Arc::clone(&changes.borrow_and_update());
        if applied.as_ref() != Some(&now.budgets) {
            match set_budgets(&rewards, &now).await {
                Ok(()) => applied = Some(now.budgets.clone()),
                Err(error) => {
                    tracing::warn!(%error, "budgets not set yet; trying again");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    continue;
                }
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}
