//! The consumer of one topic: opened when its broker is there, started again when it panics, drained at the end. One that
//! does nothing but panic ends the process.

use super::background::{PANICS_MAX, Tasks};
use anyhow::{Context, Result};
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use windfall_config::LiveRules;
use windfall_consumer::{ConsumerStats, Options, Parts, RequeueSink, SharedLimiter, SpillLog};
use windfall_contract::Clock;
use windfall_contract::broker::{Broker, Consumer};
use windfall_contract::rewards::Rewards;
use windfall_edge::{Health, Need, Part};

/// An attempt to open a topic is given up after so long, and the next one begins.
const OPEN_PATIENCE: Duration = Duration::from_secs(15);
/// Between two attempts; a broker that is back is taken up within five seconds.
const OPEN_AGAIN: Duration = Duration::from_secs(1);
/// Between a panic and the next start, for each panic in a row.
const START_AGAIN: Duration = Duration::from_millis(200);
/// A consumer that has worked for so long begins a new row of panics.
const SOUND: Duration = Duration::from_secs(60);

/// What every consumer of the process is made of.
#[derive(Clone)]
pub struct TopicParts {
    /// The consumer group.
    pub group: &'static str,
    /// The process's service that grants.
    pub rewards: Arc<dyn Rewards>,
    /// The queues that records go back to.
    pub requeue_sink: Arc<dyn RequeueSink>,
    /// The spill log, where records wait when no queue takes them.
    pub spill_log: Arc<SpillLog>,
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
    now: Arc<Mutex<Arc<ConsumerStats>>>,
    is_reading: Arc<AtomicBool>,
    drain: oneshot::Sender<Duration>,
    task: JoinHandle<Result<()>>,
}

impl TopicConsumer {
    /// Starts it; a broker that is away, or that the options do not name, is waited for. `nth` tells its jitter from
    /// those of others.
    pub fn start(parts: &TopicParts, key: TopicKey, broker: Option<Arc<dyn Broker>>, nth: u64) -> Self {
        let part = parts.health.part(format!("consumer of {} on {}", key.name, key.broker), Need::Weak);
        let (now, is_reading) = (Arc::<Mutex<Arc<ConsumerStats>>>::default(), Arc::default());
        let (drain, asked) = oneshot::channel();
        let mut parts = parts.clone();
        parts.options.jitter_seed = parts.options.jitter_seed.wrapping_add(nth);
        let owner = Owner {
            parts,
            key: key.clone(),
            broker,
            part,
            now: Arc::clone(&now),
            is_reading: Arc::clone(&is_reading),
            asked,
        };
        Self { key, now, is_reading, drain, task: tokio::spawn(owner.run()) }
    }

    /// The counters of the consumer that runs now.
    pub fn stats(&self) -> Arc<ConsumerStats> {
        Arc::clone(&self.now.lock())
    }

    /// Whether it reads its topic now.
    pub fn is_reading(&self) -> bool {
        self.is_reading.load(Relaxed)
    }

    /// Asks it to drain, at once; the future waits until it has.
    pub fn drain(self, deadline: Duration) -> impl Future<Output = Result<()>> {
        let Self { key, drain, task, .. } = self;
        // One that has failed does not listen; its task says so.
        drain.send(deadline).ok();
        let name = move || format!("the consumer of {} on {}", key.name, key.broker);
        async move { task.await.with_context(&name)?.with_context(&name) }
    }
}

/// Owns the consumer.
struct Owner {
    parts: TopicParts,
    key: TopicKey,
    broker: Option<Arc<dyn Broker>>,
    part: Part,
    now: Arc<Mutex<Arc<ConsumerStats>>>,
    is_reading: Arc<AtomicBool>,
    asked: oneshot::Receiver<Duration>,
}

impl Owner {
    async fn run(mut self) -> Result<()> {
        let mut in_a_row = 0;
        loop {
            let Some(source) = self.open().await else { return Ok(()) };
            let began = Instant::now();
            let crashed = match self.read(source).await {
                ControlFlow::Break(drained) => return drained,
                ControlFlow::Continue(crashed) => crashed,
            };
            in_a_row = if began.elapsed() >= SOUND { 1 } else { in_a_row + 1 };
            self.part.is_missing(crashed.clone());
            self.parts
                .tasks
                .consumer_panicked(&format!("{} on {}", self.key.name, self.key.broker), in_a_row);
            if in_a_row >= PANICS_MAX {
                anyhow::bail!("{crashed}");
            }
            tokio::select! {
                () = tokio::time::sleep(START_AGAIN * in_a_row) => {}
                _ = &mut self.asked => return Ok(()),
            }
        }
    }

    /// Opens the topic, for as long as it takes; `None`: a drain was asked for before.
    async fn open(&mut self) -> Option<Box<dyn Consumer>> {
        loop {
            let TopicKey { broker: place, name } = &self.key;
            let why = match &self.broker {
                None => format!("the options do not name the broker {place}, on which the topic {name} is"),
                Some(broker) => {
                    let opening =
                        tokio::time::timeout(OPEN_PATIENCE, broker.consumer(name, self.parts.group));
                    tokio::select! {
                        opened = opening => match opened {
                            Ok(Ok(source)) => return Some(source),
                            Ok(Err(error)) => error.to_string(),
                            Err(_) => format!("no answer in {} s", OPEN_PATIENCE.as_secs()),
                        },
                        _ = &mut self.asked => return None,
                    }
                }
            };
            self.part.is_missing(why);
            tokio::select! {
                () = tokio::time::sleep(OPEN_AGAIN) => {}
                _ = &mut self.asked => return None,
            }
        }
    }

    /// Reads until a drain is asked for, or until the consumer has panicked.
    async fn read(&mut self, source: Box<dyn Consumer>) -> ControlFlow<Result<()>, String> {
        let live = self.parts.rules.clone();
        let parts = Parts {
            topic: format!("{}@{}", self.key.name, self.key.broker),
            source,
            rewards: Arc::clone(&self.parts.rewards),
            requeue_sink: Arc::clone(&self.parts.requeue_sink),
            spill_log: Arc::clone(&self.parts.spill_log),
            limiter: Arc::clone(&self.parts.limiter),
            rules: Arc::new(move || live.current()),
            clock: self.parts.clock.clone(),
        };
        let mut consumer = windfall_consumer::spawn(parts, self.parts.options.clone());
        *self.now.lock() = Arc::clone(consumer.stats());
        self.part.is_there();
        self.is_reading.store(true, Relaxed);
        let ended = tokio::select! {
            crashed = consumer.ended() => ControlFlow::Continue(crashed.to_string()),
            asked = &mut self.asked => ControlFlow::Break(match asked {
                Ok(deadline) => consumer.drain(deadline).await.map(drop).map_err(anyhow::Error::from),
                // The process closes without a drain: the consumer ends as if killed.
                Err(_) => Ok(()),
            }),
        };
        self.is_reading.store(false, Relaxed);
        ended
    }
}
