//! The consumers of a process, one for each topic, with what they share: limits, the way back to the queues, the spill
//! log.

use super::GROUP;
use super::parts::Brokers;
use super::requeue::RequeueToQueues;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};
use windfall_config::LiveRules;
use windfall_consumer::{
    ConsumerHandle, ConsumerStats, Crashed, DrainReport, Options, Parts, SharedLimiter, SpillLog,
};
use windfall_contract::Clock;
use windfall_limiter::{Limit, Limiter, Now};
use windfall_queue_virtual::Fanout;
use windfall_reward_service::RewardHandle;

/// Records that no queue takes; beyond it they stay in the window.
const SALVAGE_MAX_BYTES: u64 = 64 << 20;

/// What consumers work with.
pub struct Shared<'a> {
    /// Brokers by name.
    pub brokers: &'a Brokers,
    /// The live rules.
    pub rules: &'a LiveRules,
    /// Where records go back to.
    pub fanout: &'a Arc<Fanout>,
    /// Who grants.
    pub rewards: &'a RewardHandle,
    /// The process's clock.
    pub clock: &'a Clock,
}

/// Running consumers.
pub struct Consuming {
    /// The spill log.
    pub salvage: Arc<SpillLog>,
    consumers: Vec<RunningConsumer>,
}

/// A consumer under watch: one that ends by itself is noticed.
struct RunningConsumer {
    topic: String,
    stats: Arc<ConsumerStats>,
    drain: oneshot::Sender<Duration>,
    task: JoinHandle<std::result::Result<DrainReport, Crashed>>,
}

impl Consuming {
    /// Starts a consumer for each of these topics; for each that the rules name where there are none.
    pub async fn start(
        shared: &Shared<'_>,
        topics: &[String],
        salvage: &Path,
        jitter_seed: u64,
    ) -> Result<Self> {
        let rules = shared.rules.current();
        if let Some(topic) = topics.iter().find(|topic| !rules.topics.contains_key(*topic)) {
            bail!("the options name the topic {topic}, which the live rules do not know");
        }
        let salvage =
            SpillLog::open(salvage, SALVAGE_MAX_BYTES).context("the salvage file cannot be opened")?;
        let mut own = Self { salvage: Arc::new(salvage), consumers: Vec::new() };
        let now = Now(shared.clock.monotonic_ns());
        let global = rules.limits.global;
        let limiter =
            Arc::new(Limiter::new(Limit { rate_per_s: global.rate_per_s, burst: global.burst }, now));
        let limiter = Arc::new(SharedLimiter::new(limiter, now));
        let requeue = Arc::new(RequeueToQueues::new(Arc::clone(shared.fanout), shared.rules.clone()));
        for (name, topic) in
            rules.topics.iter().filter(|(name, _)| topics.is_empty() || topics.contains(name))
        {
            let broker = shared.brokers.get(&topic.broker).with_context(|| {
                format!(
                    "the topic {name} is on the broker {}, which this process does not have",
                    topic.broker
                )
            })?;
            let source = broker
                .consumer(name, GROUP)
                .await
                .with_context(|| format!("the topic {name} cannot be read"))?;
            let live = shared.rules.clone();
            let parts = Parts {
                topic: name.clone(),
                source,
                rewards: Arc::new(shared.rewards.clone()),
                requeue_sink: Arc::clone(&requeue) as _,
                spill_log: Arc::clone(&own.salvage),
                limiter: Arc::clone(&limiter),
                rules: Arc::new(move || live.current()),
                clock: shared.clock.clone(),
            };
            let options = Options {
                jitter_seed: jitter_seed.wrapping_add(own.consumers.len() as u64),
                ..Options::default()
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

    /// Drains all consumers. One that crashed keeps none of the others from draining.
    pub async fn drain(self, deadline: Duration) -> Result<()> {
        // All at once: one that drains must not leave its topics' share to those that still fetch.
        let draining: Vec<_> = self.consumers.into_iter().map(|consumer| consumer.drain(deadline)).collect();
        let mut crashed = Ok(());
        for drained in draining {
            crashed = crashed.and(drained.await);
        }
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
                    // The process closes without a drain: the consumer ends as if killed.
                    Err(_) => Err(Crashed("its process no longer owns it".into())),
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
