//! The consumer of one topic, as its process follows it: what it does is reported, and one that has failed for good
//! ends the process.

use super::background::{Background, Hopeless, Tasks};
use super::signing::{AcceptedByName, SigningKeys};
use anyhow::{Context, Result};
use std::sync::Arc;
use std::time::Duration;
use windfall_config::LiveRules;
use windfall_consumer::{
    ConsumerStats, Options, RequeueSink, SharedLimiter, SpillLog, SupervisedParts, Supervisor,
    SupervisorState,
};
use windfall_contract::Clock;
use windfall_contract::broker::{Broker, OpenError};
use windfall_contract::long_delays::LongDelays;
use windfall_contract::rewards::Rewards;
use windfall_edge::{Health, Need};

/// The parts that every consumer of the process is made of.
pub struct TopicParts {
    /// The consumer group.
    pub group: &'static str,
    /// The process's service that grants.
    pub rewards: Arc<dyn Rewards>,
    /// The queues that records are requeued to.
    pub requeue_sink: Arc<dyn RequeueSink>,
    /// The spill log, where records wait when no queue takes them.
    pub spill_log: Arc<SpillLog>,
    /// The keys that records are verified with; none: every record is taken of the topics that `accepted` has.
    pub signing: Option<SigningKeys>,
    /// The topics that are read where there are no keys.
    pub accepted: AcceptedByName,
    /// Where events that are due long after now are handed over.
    pub long_delays: Option<Arc<dyn LongDelays>>,
    /// The limiter with the process's share.
    pub limiter: Arc<SharedLimiter>,
    /// The live rules.
    pub rules: LiveRules,
    /// The process's clock.
    pub clock: Clock,
    /// The owner of the process's tasks.
    pub tasks: Tasks,
    /// Where missing topics are told.
    pub health: Health,
    /// The options of each consumer, but for the seed of its jitter.
    pub options: Options,
}

/// A topic on a broker.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TopicKey {
    /// The broker's name in the options.
    pub broker: String,
    /// The topic's name.
    pub name: String,
}

/// A running consumer.
pub struct TopicConsumer {
    key: TopicKey,
    supervisor: Supervisor,
    follower: Background,
}

impl TopicConsumer {
    /// Starts it; a broker that is away, or that the options do not name, is waited for. A topic that anybody could have written to
    /// is not read without keys, unless that is accepted by name. `nth` tells its jitter from those of others. // I12
    pub fn start(parts: &TopicParts, key: TopicKey, broker: Option<Arc<dyn Broker>>, nth: u64) -> Self {
        let (group, own) = (parts.group, key.clone());
        let may_be_read = parts.signing.is_some() || parts.accepted.has(&key.broker, &key.name);
        let open = move || -> windfall_consumer::Opening {
            let (broker, key) = (broker.clone(), own.clone());
            Box::pin(async move {
                let broker = broker.ok_or_else(|| {
                    let TopicKey { broker, name } = &key;
                    let what = format!("{name} is on the broker {broker}, which the options do not name");
                    OpenError::Invalid(what)
                })?;
                if !may_be_read {
                    let TopicKey { broker, name } = &key;
                    return Err(OpenError::Invalid(format!(
                        "{name} is on the broker {broker}, which other processes can write to, and its records cannot be verified \
                         without signing.keys; nor does [signing] accept unsigned ones of it by name"
                    )));
                }
                broker.consumer(&key.name, group).await
            })
        };
        let live = parts.rules.clone();
        let supervised = SupervisedParts {
            topic: format!("{}@{}", key.name, key.broker),
            open: Box::new(open),
            rewards: Arc::clone(&parts.rewards),
            requeue_sink: Arc::clone(&parts.requeue_sink),
            spill_log: Arc::clone(&parts.spill_log),
            long_delays: parts.long_delays.clone(),
            signatures: parts.signing.as_ref().map(|keys| keys.of_topic(&key.name)),
            limiter: Arc::clone(&parts.limiter),
            rules: Arc::new(move || live.current()),
            clock: parts.clock.clone(),
        };
        let jitter_seed = parts.options.jitter_seed.wrapping_add(nth);
        let supervisor = Supervisor::start(supervised, Options { jitter_seed, ..parts.options.clone() });
        let follower = follow(parts, &key, &supervisor);
        Self { key, supervisor, follower }
    }

    /// The counters, which go on over restarts.
    pub fn stats(&self) -> &Arc<ConsumerStats> {
        self.supervisor.stats()
    }

    /// Whether it reads its topic now.
    pub fn is_reading(&self) -> bool {
        self.supervisor.state() == SupervisorState::Running
    }

    /// Asks it to drain, at once; the future waits until it has.
    pub fn drain(self, deadline: Duration) -> impl Future<Output = Result<()>> {
        let Self { key, supervisor, follower } = self;
        let draining = supervisor.drain(deadline);
        async move {
            let drained = draining.await.map(drop);
            drop(follower);
            drained.with_context(|| format!("the consumer of {} on {}", key.name, key.broker))
        }
    }
}

/// Reports what it does. One that has failed for good ends the process, whose other consumers would go on without it.
fn follow(parts: &TopicParts, key: &TopicKey, supervisor: &Supervisor) -> Background {
    let name = format!("consumer of {} on {}", key.name, key.broker);
    let part = Arc::new(parts.health.part(name.clone(), Need::Weak));
    let (states, tasks) = (supervisor.watch(), parts.tasks.clone());
    parts.tasks.spawn("follows a consumer", move || {
        let (mut states, part, tasks, name) =
            (states.clone(), Arc::clone(&part), tasks.clone(), name.clone());
        async move {
            loop {
                let state = states.borrow_and_update().clone();
                if !state.is_alive() {
                    tasks.fatal(Hopeless::Failed(format!("the {name} has {state}")));
                }
                match state.is_ready() {
                    true => part.is_there(),
                    // Before the first answer there is nothing to say.
                    false if state == (SupervisorState::Opening { why: None }) => {}
                    false => part.is_missing(state.to_string()),
                }
                if states.changed().await.is_err() {
                    return;
                }
            }
        }
    })
}
