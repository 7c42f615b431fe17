//! Every role in one process: brokers, SDK, consumers, reward service and stores, wired together.

mod consuming;
mod outlet;
mod token_drop;

use crate::backends::{Backends, RulesFollower};
use crate::data::place;
use anyhow::{Context, Result, bail};
pub use consuming::{Consuming, Shared, follow_budgets, set_budgets};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
pub use token_drop::TokenDrop;
use windfall_config::LiveRules;
use windfall_connectors::fake::{FakeDownstream, FakeOptions};
use windfall_consumer::ConsumerStats;
use windfall_contract::Clock;
use windfall_contract::broker::Broker;
use windfall_contract::connector::Connector;
use windfall_contract::tokens::TokenStore;
use windfall_ledger::Ledger;
use windfall_queue::faulty::Faulty;
use windfall_queue::virtual_queue::{Fanout, FanoutOptions, FanoutStats};
use windfall_reward_service::{
    ConnectorOptions, GrantObserver, Payer, RewardHandle, RewardOptions, RewardService, RewardStats,
};
use windfall_sdk::{Inherited, Sdk, SdkOptions, SdkParts, SdkStats, SpoolMode};
use windfall_store::switchable::Switchable;
use windfall_token::{Algorithm, KeyFile, KeyRing};

/// The consumer group of the reward service.
pub const GROUP: &str = "reward";
/// The tenant of the demo's tokens.
pub const APP_ID: &str = "windfall";
/// The brokers that the demo's rules name.
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
    /// What stands behind the contracts.
    pub backends: Backends,
}

impl PipelineOptions {
    /// The demo's.
    pub fn new(data: &Path, backends: Backends, seed: u64) -> Self {
        Self {
            seed,
            backends,
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
    consuming: Consuming,
    rules_source: RulesFollower,
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
    /// Records written and not yet committed, by topic; `None` where the broker does not say just now.
    pub lag: BTreeMap<String, Option<u64>>,
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
            && self.lag.values().all(|records| *records == Some(0))
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
        let (rules, rules_source) = tokio::task::block_in_place(|| {
            options.backends.follow_rules(data, place::rules_copy(data), known, move || own_clock.unix_ms())
        })?;
        let brokers = open_brokers(data, &options.backends, options.seed).await?;
        let as_brokers = || brokers.iter().map(|(name, faulty)| (name.clone(), Arc::clone(faulty) as _));
        let tokens = Switchable::new(options.backends.tokens(data).await?);
        let badges = FakeDownstream::open(place::badge_book(data), options.badges, Clock::system())
            .context("the badge downstream's book cannot be opened")?;
        let badges = Arc::new(badges);
        let shared = open_shared(
            options.backends.ledger(data).await?,
            as_brokers().collect(),
            rules.clone(),
            Arc::clone(&tokens) as _,
            &badges,
        )
        .await?;
        let parts = SdkParts {
            keys,
            rules: rules.clone(),
            fanout: Arc::clone(&shared.fanout),
            tokens: Some(Arc::clone(&tokens) as Arc<dyn TokenStore>),
            clock,
        };
        let (sdk, inherited) = Sdk::init(options.sdk, parts).context("the SDK cannot start")?;
        let consuming = Consuming::start(shared, &place::salvage(data), options.seed, |_| true).await?;
        let own = Self { rules, sdk, brokers, tokens, badges, consuming, rules_source };
        Ok((own, inherited))
    }

    /// How far everything is.
    pub async fn snapshot(&self) -> Result<Snapshot> {
        let mut lag = BTreeMap::new();
        let mut written = 0;
        for (name, topic) in &self.rules.current().topics {
            if let Some(broker) = self.brokers.get(&topic.broker) {
                // A broker that is down is no reason to stop: nothing is known until it is back.
                let now = broker.lag(name, GROUP).await.ok();
                lag.insert(name.clone(), now.map(|now| now.records()));
                written += now.map_or(0, |now| now.end);
            }
        }
        let stats = || self.consuming.stats();
        let sum = |pick: fn(&ConsumerStats) -> u64| stats().map(pick).sum::<u64>();
        let shared = &self.consuming.shared;
        Ok(Snapshot {
            sdk: self.sdk.stats(),
            fanout: shared.fanout.stats(),
            rewards: shared.rewards.stats(),
            lag,
            written,
            requeued: sum(ConsumerStats::requeued_all),
            in_hand: sum(|stats| {
                stats.types().iter().map(|lane| lane.lane_events.get()).sum::<u64>()
                    + stats.events_granting.get()
            }),
            salvaged: self.consuming.salvage.pending(),
            rules_version: stats().map(|stats| stats.rules_version.get()).min().unwrap_or(0),
            tokens_removed: shared.token_drop.counts(),
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
            if let Some(topic) = self.consuming.dead() {
                bail!("the consumer of {topic} has ended by itself; nothing is lost, go on with --resume");
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
        let crashed = self.consuming.close(deadline).await;
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

/// Opens all brokers, each behind a switch for faults.
pub async fn open_brokers(
    data: &Path,
    backends: &Backends,
    seed: u64,
) -> Result<BTreeMap<String, Arc<Faulty>>> {
    let mut brokers = BTreeMap::new();
    for name in BROKERS {
        let broker = backends.broker(data, name).await?;
        brokers.insert(name.to_owned(), Faulty::new(broker, seed));
    }
    Ok(brokers)
}

/// Opens what consumers work with.
pub async fn open_shared(
    ledger: Ledger,
    brokers: BTreeMap<String, Arc<dyn Broker>>,
    rules: LiveRules,
    tokens: Arc<dyn TokenStore>,
    badges: &Arc<FakeDownstream>,
) -> Result<Shared> {
    let current = rules.current();
    // Opening a producer may wait for a broker.
    let fanout = tokio::task::block_in_place(|| {
        Fanout::open(&current, brokers.clone(), FanoutOptions::default(), Clock::system())
    })
    .context("the queues cannot be opened")?;
    let token_drop = TokenDrop::start(tokens);
    let rewards = start_rewards(ledger, badges, token_drop.observer())?;
    set_budgets(&rewards, &current).await.context("the budgets cannot be set")?;
    Ok(Shared { brokers, rules, fanout: Arc::new(fanout), rewards, token_drop })
}

/// Starts the reward service, with badges paid by their downstream.
pub fn start_rewards(
    ledger: Ledger,
    badges: &Arc<FakeDownstream>,
    observer: GrantObserver,
) -> Result<RewardHandle> {
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
    RewardService::start(options, ledger, connectors, Some(observer), Clock::system())
        .context("the reward service cannot start")
}
