//! The demo's own process: the one wiring on the demo's parts, with what the live view and the drain ask of it.

use super::backends::Backends;
use super::parts::{self, Breakable, Place};
use super::reach;
use crate::place;
use crate::wiring::{self, Wiring, Work};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use windfall_connectors::fake::FakeOptions;
use windfall_consumer::ConsumerStats;
use windfall_contract::Clock;
use windfall_contract::broker::Lag;
use windfall_queue_virtual::FanoutStats;
use windfall_reward_service::RewardStats;
use windfall_sdk::{Sdk, SdkStats};
use windfall_token::{Algorithm, KeyFile, KeyRing};

/// A running demo.
pub struct Pipeline {
    /// The parts of it that can be broken.
    pub breakable: Breakable,
    /// The SDK by which the activity service sends.
    pub sdk: Sdk,
    /// Everything that runs.
    pub wiring: Wiring,
}

/// The counters that the live view and the report show.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The SDK's counters.
    pub sdk: SdkStats,
    /// The virtual queues' counters.
    pub fanout: FanoutStats,
    /// The reward service's counters.
    pub rewards: RewardStats,
    /// Records written and not yet committed, by topic; `None` where the broker does not say just now.
    pub lag: BTreeMap<String, Option<u64>>,
    /// Records written, over all topics.
    pub written: u64,
    /// Events written back to a queue.
    pub requeued: u64,
    /// Events that consumers hold.
    pub in_flight: u64,
    /// Copies in the salvage file.
    pub salvaged: usize,
    /// The rules that consumers run.
    pub rules_version: u64,
    /// Tokens dropped from the store because their reward was credited, and removals given up.
    pub tokens_removed: (u64, u64),
}

impl Snapshot {
    /// Whether nothing is in flight any more.
    pub fn is_idle(&self) -> bool {
        // Slots in use count packs that still gather.
        self.sdk.packs_in_flight == 0
            && self.sdk.spool_slots.0 == 0
            && self.fanout.pending_records == 0
            && self.salvaged == 0
            && self.lag.values().all(|records| *records == Some(0))
    }
}

/// How a drain ended.
#[derive(Debug)]
pub enum Drained {
    /// Nothing is in flight; the last movement was seen at this time.
    All {
        /// The time of the last movement.
        last_moved: Instant,
    },
    /// The drain was told to stop.
    Stopped,
    /// There was no progress for too long.
    Stalled(Box<Snapshot>),
}

/// The work that closing left undone.
#[derive(Debug, Clone, Default)]
pub struct ClosedPipeline {
    /// Packs that wait in the spool.
    pub packs_left: usize,
    /// Records that will be delivered again.
    pub records_left: u64,
}

impl Pipeline {
    /// Opens everything below `data`, takes over what an earlier process left, and starts consuming.
    pub async fn open(data: &Path, backends: &Backends, badges: FakeOptions, seed: u64) -> Result<Self> {
        let place = Place::of_demo(data);
        let keys = open_keys(data, &Clock::system())?;
        let (breakable, parts) = parts::open(&place, backends, badges, seed).await?;
        reach::brokers(backends, &parts).await?;
        let parts = wiring::Parts { keys: Some(keys), ..parts };
        let work = Work { sends: true, consumes: true, ..Work::default() };
        let wiring = Wiring::start(work, parts, parts::wiring_options(&place, Vec::new(), seed)).await?;
        let sdk = wiring.sdks.get(parts::APP_ID).context("the demo has no SDK")?.clone();
        Ok(Self { breakable, sdk, wiring })
    }

    /// The progress of every part.
    pub async fn snapshot(&self) -> Snapshot {
        let wiring = &self.wiring;
        // A broker that is down is no reason to stop: nothing is known until it is back.
        let lag = wiring::lag(&wiring.rules.current(), &wiring.brokers).await;
        let written = lag.values().flatten().map(|lag| lag.end).sum();
        let counters = wiring.consuming.as_ref().map(wiring::Consuming::counters).unwrap_or_default();
        let stats = || counters.iter().map(|(_, stats)| &**stats);
        let sum = |pick: fn(&ConsumerStats) -> u64| stats().map(pick).sum::<u64>();
        Snapshot {
            sdk: self.sdk.stats(),
            fanout: wiring.fanout.as_ref().map(|fanout| fanout.stats()).unwrap_or_default(),
            rewards: wiring.rewards.as_ref().map(|rewards| rewards.stats()).unwrap_or_default(),
            lag: lag.into_iter().map(|(topic, lag)| (topic, lag.map(Lag::records))).collect(),
            written,
            requeued: sum(ConsumerStats::requeued_all),
            in_flight: sum(|stats| {
                stats.types().iter().map(|lane| lane.lane_events.get()).sum::<u64>()
                    + stats.events_granting.get()
            }),
            salvaged: wiring.consuming.as_ref().map_or(0, |consuming| consuming.salvage.pending()),
            rules_version: stats().map(|stats| stats.rules_version.get()).min().unwrap_or(0),
            tokens_removed: wiring.tokens_dropped(),
        }
    }

    /// Waits until nothing is on its way, as long as something moves at least every `stall`.
    pub async fn drained(&self, stall: Duration, stopped: impl Fn() -> bool) -> Result<Drained> {
        let mut last: Option<(u64, u64)> = None;
        let mut idle_before = false;
        let mut last_moved = Instant::now();
        loop {
            let now = self.snapshot().await;
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
            if let Some(why) = self.wiring.tasks.is_hopeless() {
                bail!("{why}; nothing is lost, go on with --resume");
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

    /// Closes the parts in the order of an event's path: SDK, consumers, queues, reward service, stores.
    pub async fn close(self, deadline: Duration) -> Result<ClosedPipeline> {
        let (rules, brokers) = (self.wiring.rules.current(), self.wiring.brokers.clone());
        let closed = self.wiring.close(deadline).await?;
        // Whatever was not finished, or was written back while draining. A busy broker may need more than one question.
        let until = Instant::now() + deadline;
        let mut lag = wiring::lag(&rules, &brokers).await;
        while lag.values().any(Option::is_none) && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(100)).await;
            lag = wiring::lag(&rules, &brokers).await;
        }
        let mut records_left = 0;
        for (topic, lag) in lag {
            let lag =
                lag.with_context(|| format!("the broker of topic {topic} does not say how far it is read"))?;
            records_left += lag.records();
        }
        Ok(ClosedPipeline { packs_left: closed.packs_left, records_left })
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
