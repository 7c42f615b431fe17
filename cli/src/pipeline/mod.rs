//! Every role in one process: brokers, SDK, consumers, reward service and stores, wired together.

mod outlet;
mod token_drop;

use crate::data::place;
use anyhow::{Context, Result, bail};
use outlet::FanoutOutlet;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use token_drop::TokenDrop;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use windfall_config::{FileSource, LiveRules};
use windfall_consumer::{
    Clock as _, ConsumerHandle, ConsumerStats, Crashed, DrainReport, Gate, Parts, Salvage, SystemClock,
};
use windfall_limiter::{Limit, Limiter, Now};
use windfall_queue::contract::Broker;
use windfall_queue::embedded::{EmbeddedBroker, EmbeddedOptions};
use windfall_queue::faulty::Faulty;
use windfall_queue::virtual_queue::{Clock, Fanout, FanoutOptions, FanoutStats};
use windfall_reward_service::fake::{FakeDownstream, FakeOptions};
use windfall_reward_service::ledger::{Ledger, LedgerOptions};
use windfall_reward_service::{
    Connector, ConnectorOptions, GrantObserver, Payer, RewardHandle, RewardOptions, RewardService,
    RewardStats, system_clock,
};
use windfall_sdk::{Inherited, Sdk, SdkOptions, SdkParts, SdkStats, SpoolMode};
use windfall_store::contract::TokenStore;
use windfall_store::embedded::{EmbeddedStore, EmbeddedStoreOptions};
use windfall_store::switchable::Switchable;
use windfall_token::{Algorithm, KeyFile, KeyRing};

/// The consumer group of the reward service.
pub const GROUP: &str = "reward";
/// The tenant of the demo's tokens.
pub const APP_ID: &str = "windfall";
/// The embedded brokers.
pub const BROKERS: [&str; 2] = ["a", "b"];
/// The connector that pays badges.
const BADGES: &str = "badges";
/// About 480 packs on their way, enough for a broker that hangs for some seconds.
const SPOOL_BYTES: u64 = 32 << 20;
/// Copies that no queue takes; beyond it they stay in the window.
const SALVAGE_MAX_BYTES: u64 = 64 << 20;

/// What a pipeline is opened with, beyond its data directory.
#[derive(Debug, Clone)]
pub struct PipelineOptions {
    /// Seeds faults and jitter.
    pub seed: u64,
    /// Where the SDK keeps events.
    pub sdk: SdkOptions,
    /// How the badge downstream behaves.
    pub badges: FakeOptions,
}

impl PipelineOptions {
    /// The demo's.
    pub fn new(data: &Path, seed: u64) -> Self {
        Self {
            seed,
            sdk: SdkOptions {
                app_id: APP_ID.into(),
                spool: SpoolMode::Process(place::spool(data)),
                spool_bytes: SPOOL_BYTES,
                ..SdkOptions::default()
            },
            badges: FakeOptions { name: BADGES.into(), seed, ..FakeOptions::default() },
        }
    }
}

/// A running pipeline.
pub struct Pipeline {
    /// The live rules.
    pub rules: LiveRules,
    /// The activity service's way in.
    pub sdk: Sdk,
    /// Brokers by name, each behind a switch for faults.
    pub brokers: BTreeMap<String, Arc<Faulty>>,
    /// The token store, behind a switch.
    pub tokens: Arc<Switchable>,
    /// The slow downstream.
    pub badges: Arc<FakeDownstream>,
    rewards: RewardHandle,
    fanout: Arc<Fanout>,
    consumers: Vec<RunningConsumer>,
    salvage: Arc<Salvage>,
    token_drop: TokenDrop,
    /// Carries changed budgets from the rules to the ledger.
    budgets: JoinHandle<()>,
    rules_source: FileSource,
}

/// A consumer under watch: one that ends by itself is noticed.
struct RunningConsumer {
    topic: String,
    stats: Arc<ConsumerStats>,
    drain: oneshot::Sender<Duration>,
    task: JoinHandle<std::result::Result<DrainReport, Crashed>>,
}

/// What the live view and the report show of a pipeline.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Of the SDK.
    pub sdk: SdkStats,
    /// Of the virtual queues.
    pub fanout: FanoutStats,
    /// Of the reward service.
    pub rewards: RewardStats,
    /// Records written and not yet committed, by topic.
    pub lag: BTreeMap<String, u64>,
    /// Records written, over all topics.
    pub written: u64,
    /// Events written back to a queue.
    pub requeued: u64,
    /// Events that consumers hold.
    pub in_hand: u64,
    /// Copies in the salvage file.
    pub salvaged: usize,
    /// The rules that consumers run.
    pub rules_version: u64,
    /// Tokens dropped from the store because their reward was credited, and removals given up.
    pub tokens_removed: (u64, u64),
}

impl Snapshot {
    /// Nothing is on its way any more.
    pub fn is_idle(&self) -> bool {
        // Slots in use count packs that still gather.
        self.sdk.packs_in_flight == 0
            && self.sdk.spool_slots.0 == 0
            && self.fanout.parcels == 0
            && self.salvaged == 0
            && self.lag.values().all(|records| *records == 0)
    }
}

/// How a drain ended.
#[derive(Debug)]
pub enum Drained {
    /// Nothing is on its way; the last movement was seen then.
    All {
        /// When.
        last_moved: Instant,
    },
    /// Somebody said stop.
    Stopped,
    /// Nothing moved for too long.
    Stalled(Box<Snapshot>),
}

/// What closing left undone.
#[derive(Debug, Clone, Default)]
pub struct ClosedPipeline {
    /// Packs that wait in the spool.
    pub packs_left: usize,
    /// Records that will be delivered again.
    pub records_left: u64,
}

impl Pipeline {
    /// Opens everything below `data`, takes over what an earlier process left, and starts consuming.
    pub async fn open(data: &Path, options: PipelineOptions) -> Result<(Self, Inherited)> {
        let clock = Clock::system();
        let keys = open_keys(data, &clock)?;
        let known = BROKERS.map(str::to_owned).to_vec();
        let own_clock = clock.clone();
        let (rules, rules_source) =
            FileSource::open(&place::rules(data), Some(known), move || own_clock.unix_ms())
                .context("the live rules cannot be opened")?;
        let brokers = open_brokers(data, options.seed)?;
        let as_brokers =
            |(name, faulty): (&String, &Arc<Faulty>)| (name.clone(), Arc::clone(faulty) as Arc<dyn Broker>);
        let fanout = Fanout::open(
            &rules.current(),
            brokers.iter().map(as_brokers).collect(),
            FanoutOptions::default(),
            clock.clone(),
        )
        .context("the queues cannot be opened")?;
        let fanout = Arc::new(fanout);
        let tokens = EmbeddedStore::open(&place::tokens(data), &EmbeddedStoreOptions::default())
            .context("the token store cannot be opened")?;
        let tokens = Switchable::new(tokens);
        let token_drop = TokenDrop::start(Arc::clone(&tokens) as Arc<dyn TokenStore>);
        let badges = FakeDownstream::open(place::badge_book(data), options.badges, system_clock())
            .context("the badge downstream's book cannot be opened")?;
        let badges = Arc::new(badges);
        let rewards = open_rewards(data, &badges, token_drop.observer())?;
        rewards.apply_budgets(&rules.current().budgets).await.context("the budgets cannot be set")?;
        let parts = SdkParts {
            keys,
            rules: rules.clone(),
            fanout: Arc::clone(&fanout),
            tokens: Some(Arc::clone(&tokens) as Arc<dyn TokenStore>),
            clock,
        };
        let (sdk, inherited) = Sdk::init(options.sdk, parts).context("the SDK cannot start")?;
        let salvage = Salvage::open(&place::salvage(data), SALVAGE_MAX_BYTES)
            .context("the salvage file cannot be opened")?;
        let budgets = tokio::spawn(follow_budgets(rules.clone(), rewards.clone()));
        let mut own = Self {
            budgets,
            rules,
            sdk,
            brokers,
            tokens,
            badges,
            rewards,
            fanout,
            consumers: Vec::new(),
            salvage: Arc::new(salvage),
            token_drop,
            rules_source,
        };
        own.start_consumers(options.seed).await?;
        Ok((own, inherited))
    }

    async fn start_consumers(&mut self, seed: u64) -> Result<()> {
        let clock = Arc::new(SystemClock::start());
        let now = Now(clock.now_ns());
        let rules = self.rules.current();
        let global = rules.limits.global;
        let limiter =
            Arc::new(Limiter::new(Limit { rate_per_s: global.rate_per_s, burst: global.burst }, now));
        let gate = Arc::new(Gate::new(limiter, now));
        let outlet = Arc::new(FanoutOutlet::new(Arc::clone(&self.fanout), self.rules.clone()));
        for (name, topic) in &rules.topics {
            let broker = self.brokers.get(&topic.broker).context("a topic on a broker that is not there")?;
            let source =
                broker.consumer(name, GROUP).await.with_context(|| format!("topic {name} cannot be read"))?;
            let live = self.rules.clone();
            let parts = Parts {
                topic: name.clone(),
                source,
                rewards: Arc::new(self.rewards.clone()),
                outlet: Arc::clone(&outlet) as _,
                salvage: Arc::clone(&self.salvage),
                gate: Arc::clone(&gate),
                rules: Arc::new(move || live.current()),
                clock: Arc::clone(&clock) as _,
            };
            let options = windfall_consumer::Options {
                jitter_seed: seed.wrapping_add(self.consumers.len() as u64),
                ..windfall_consumer::Options::default()
            };
            self.consumers.push(RunningConsumer::start(name, windfall_consumer::spawn(parts, options)));
        }
        Ok(())
    }

    /// How far everything is.
    pub async fn snapshot(&self) -> Result<Snapshot> {
        let mut lag = BTreeMap::new();
        let mut written = 0;
        for (name, topic) in &self.rules.current().topics {
            if let Some(broker) = self.brokers.get(&topic.broker) {
                let now = broker.lag(name, GROUP).await?;
                lag.insert(name.clone(), now.records());
                written += now.end;
            }
        }
        let stats = || self.consumers.iter().map(|consumer| &*consumer.stats);
        let sum = |pick: fn(&ConsumerStats) -> u64| stats().map(pick).sum::<u64>();
        Ok(Snapshot {
            sdk: self.sdk.stats(),
            fanout: self.fanout.stats(),
            rewards: self.rewards.stats(),
            lag,
            written,
            requeued: sum(ConsumerStats::requeued_all),
            in_hand: sum(|stats| {
                stats.types().iter().map(|lane| lane.lane_events.get()).sum::<u64>()
                    + stats.events_granting.get()
            }),
            salvaged: self.salvage.pending(),
            rules_version: stats().map(|stats| stats.rules_version.get()).min().unwrap_or(0),
            tokens_removed: self.token_drop.counts(),
        })
    }

    /// Waits until nothing is on its way, as long as something moves at least every `stall`.
    pub async fn drained(&self, stall: Duration, stopped: impl Fn() -> bool) -> Result<Drained> {
        let mut last: Option<(u64, u64)> = None;
        let mut idle_before = false;
        let mut last_moved = Instant::now();
        loop {
            let now = self.snapshot().await?;
            // Twice in a row and nothing written in between: a copy that moved from one topic to another while
            // the lags were read one by one would show in `written`.
            let credited: u64 = now.rewards.types.values().map(|one| one.credited).sum();
            let mark = (now.written, credited + now.rewards.archived);
            if now.is_idle() && idle_before && last == Some(mark) {
                return Ok(Drained::All { last_moved });
            }
            idle_before = now.is_idle();
            if last != Some(mark) {
                last_moved = Instant::now();
                last = Some(mark);
            }
            if let Some(dead) = self.consumers.iter().find(|consumer| consumer.task.is_finished()) {
                bail!(
                    "the consumer of {} has ended by itself; nothing is lost, go on with --resume",
                    dead.topic
                );
            }
            if stopped() {
                return Ok(Drained::Stopped);
            }
            if last_moved.elapsed() > stall {
                return Ok(Drained::Stalled(Box::new(now)));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Closes in the order of the way: SDK, consumers, queues, reward service, stores.
    pub async fn close(self, deadline: Duration) -> Result<ClosedPipeline> {
        let sdk = self.sdk.clone();
        let packs_left = tokio::task::spawn_blocking(move || sdk.close(deadline).packs_left).await?;
        // All at once: one that drains must not leave its topics' share to those that still fetch.
        let draining: Vec<_> = self.consumers.into_iter().map(|consumer| consumer.drain(deadline)).collect();
        let mut crashed = Ok(());
        for drained in draining {
            // The others and the stores are closed in order all the same.
            crashed = crashed.and(drained.await);
        }
        let fanout = Arc::clone(&self.fanout);
        tokio::task::spawn_blocking(move || fanout.close(deadline)).await?;
        self.budgets.abort();
        let rewards = self.rewards;
        tokio::task::spawn_blocking(move || rewards.close()).await?;
        self.token_drop.close().await;
        self.rules_source.close();
        // Whatever was not finished, or was written back while draining.
        let mut records_left = 0;
        for (name, topic) in &self.rules.current().topics {
            if let Some(broker) = self.brokers.get(&topic.broker) {
                records_left += broker.lag(name, GROUP).await?.records();
            }
        }
        crashed?;
        Ok(ClosedPipeline { packs_left, records_left })
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

/// Sets budgets anew with every version of the rules that changes them.
async fn follow_budgets(rules: LiveRules, rewards: RewardHandle) {
    let mut changes = rules.subscribe();
    let mut applied = rules.current().budgets.clone();
    loop {
        let now = changes.borrow_and_update().budgets.clone();
        if now != applied {
            match rewards.apply_budgets(&now).await {
                Ok(raised) => {
                    for one in raised {
                        tracing::warn!(?one, "a budget cannot go below what was given out");
                    }
                    applied = now;
                }
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

fn open_keys(data: &Path, clock: &Clock) -> Result<KeyRing> {
    let path = place::keys(data);
    if !path.exists() {
        // Tokens of another ring would be worthless: only a directory where nothing was sent yet gets a new one.
        if place::spool(data).exists() {
            bail!(
                "{} is missing; restore it, for the tokens that were given out open with no other",
                path.display()
            );
        }
        KeyFile::create(&path, Algorithm::HmacSha256, clock.unix_ms())
            .context("the key ring cannot be made")?;
    }
    KeyRing::load(&path).context("the key ring cannot be read")
}

fn open_brokers(data: &Path, seed: u64) -> Result<BTreeMap<String, Arc<Faulty>>> {
    let mut brokers = BTreeMap::new();
    for name in BROKERS {
        let broker = EmbeddedBroker::open(&place::broker(data, name), &EmbeddedOptions::default())
            .with_context(|| format!("broker {name} cannot be opened"))?;
        brokers.insert(name.to_owned(), Faulty::new(broker, seed));
    }
    Ok(brokers)
}

pub fn open_rewards(
    data: &Path,
    badges: &Arc<FakeDownstream>,
    observer: GrantObserver,
) -> Result<RewardHandle> {
    let ledger = Ledger::open(place::ledger(data), &LedgerOptions::default())
        .context("the ledger cannot be opened")?;
    let options = RewardOptions {
        pays: [("badge".to_owned(), Payer::Connector(BADGES.into()))].into(),
        connectors: [(
            BADGES.to_owned(),
            ConnectorOptions { timeout_ms: 150, ..ConnectorOptions::default() },
        )]
        .into(),
        ..RewardOptions::default()
    };
    let connectors = vec![Arc::clone(badges) as Arc<dyn Connector>];
    RewardService::start(options, ledger, connectors, Some(observer), system_clock())
        .context("the reward service cannot start")
}
