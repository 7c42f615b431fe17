//! Which shards this instance owns: those that rendezvous hashing gives it among the instances that live.

use super::firing::FiringLoop;
use super::owner::{Leave, Left, own};
use super::rendezvous::is_mine;
use super::shared::Shared;
use super::{Drained, Health, Parts};
use crate::caught::caught;
use crate::fail_points::FailPoint;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use windfall_contract::due::Shard;

const RESTART_PAUSE_MIN: Duration = Duration::from_millis(100);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(5);
/// A part that has run for so long without a panic is restarted without a pause of note.
const WELL_AFTER: Duration = Duration::from_secs(60);
/// Names are kept with each fifth beat.
const BEATS_PER_KEEP: u64 = 5;
/// How long an instance that leaves counts as alive still: others take its shards at once.
const LEAVING_TTL_MS: u64 = 1;

/// Runs until a drain is asked for. A panic of the firing loop loses what is in memory: everything begins anew then,
/// with new leases.
pub(super) async fn run(parts: Parts, mut drain: oneshot::Receiver<Duration>) -> Drained {
    let mut pause = RESTART_PAUSE_MIN;
    loop {
        let started = Instant::now();
        let mut fleet = Fleet::new(Shared::new(parts.clone()), Arc::clone(&parts.health));
        match fleet.run(&mut drain).await {
            Ended::DrainAsked(deadline) => return fleet.drain(deadline).await,
            Ended::Panicked(why) => {
                tracing::error!(why, "the firing loop panicked; the dispatcher begins anew");
                parts.stats.panics.add(1);
            }
        }
        let left = u64::try_from(fleet.running.len()).unwrap_or(u64::MAX);
        drop(fleet);
        pause = next_pause(pause, started.elapsed());
        if tokio::time::timeout(pause, &mut drain).await.is_ok() {
            return Drained { unnoted_tasks: 0, unreleased_shards: left };
        }
    }
}

enum Ended {
    DrainAsked(Duration),
    Panicked(String),
}

/// One run, and what it owns.
struct Fleet {
    shared: Arc<Shared>,
    health: Arc<Health>,
    living: Vec<String>,
    /// How often the store was there for this run.
    beats: u64,
    firing: JoinSet<Result<(), String>>,
    owners: JoinSet<(Shard, Result<Left, String>)>,
    running: BTreeMap<Shard, Running>,
    panicked: BTreeMap<Shard, (Instant, Duration)>,
}

struct Running {
    leave: watch::Sender<Leave>,
    started: Instant,
}

impl Fleet {
    fn new(shared: Shared, health: Arc<Health>) -> Self {
        let shared = Arc::new(shared);
        let mut firing = JoinSet::new();
        let firing_loop = FiringLoop::new(Arc::clone(&shared));
        firing.spawn(caught(firing_loop.run()));
        Self {
            shared,
            health,
            living: Vec::new(),
            beats: 0,
            firing,
            owners: JoinSet::new(),
            running: BTreeMap::new(),
            panicked: BTreeMap::new(),
        }
    }

    async fn run(&mut self, drain: &mut oneshot::Receiver<Duration>) -> Ended {
        let mut ticks = tokio::time::interval(Duration::from_millis(self.shared.options.lease_renew_ms));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                asked = &mut *drain => return Ended::DrainAsked(asked.unwrap_or_default()),
                Some(ended) = self.firing.join_next() => return Ended::Panicked(panic_of(ended)),
                Some(ended) = self.owners.join_next(), if !self.owners.is_empty() => {
                    match ended {
                        Ok((shard, left)) => self.ended(shard, left),
                        Err(error) => tracing::error!(%error, "the owner of a shard ended badly"),
                    }
                }
                _ = ticks.tick() => {
                    let is_there = self.beat().await;
                    self.balance();
                    if is_there {
                        self.keep_names().await;
                    }
                }
            }
        }
    }

    /// Keeps names with each fifth beat: the first time only when processes that ran before this one have put back what the store
    /// may have lost, and never for so long that the next beat comes late.
    async fn keep_names(&mut self) {
        self.beats += 1;
        if !self.beats.is_multiple_of(BEATS_PER_KEEP) {
            return;
        }
        let most = Duration::from_millis(self.shared.options.lease_ttl_ms) / 4;
        match tokio::time::timeout(most, self.shared.keep_names()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "names could not be kept now"),
            Err(_) => tracing::debug!("names could not be kept in time"),
        }
        self.shared.outdate_withheld();
    }

    /// Says whether the store has answered.
    async fn beat(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        shared.reach(FailPoint::Beat).await;
        let beat = shared.store.beat(&shared.instance, shared.options.lease_ttl_ms);
        // Without an answer the last one stands: leases decide, and not who seems to live.
        let answer = shared.asked(beat).await;
        let is_there = answer.is_ok();
        match answer {
            Ok(living) => {
                self.health.beaten(&shared.clock);
                shared.stats.instances.set(u64::try_from(living.len()).unwrap_or(u64::MAX));
                self.living = living;
            }
            Err(error) => self.health.silent(&error),
        }
        shared.stats.memory_bytes.set(u64::try_from(shared.memory.used_bytes()).unwrap_or(u64::MAX));
        is_there
    }

    /// Takes the shards that belong to this instance, and leaves the others.
    fn balance(&mut self) {
        let now = Instant::now();
        for shard in (0..self.shared.store.shards()).map(Shard) {
            let is_mine = !self.living.is_empty() && is_mine(shard, &self.shared.instance, &self.living);
            let is_paused = self.panicked.get(&shard).is_some_and(|(until, _)| *until > now);
            match self.running.get(&shard) {
                // One that leaves goes on leaving, and is begun anew when it has left.
                Some(running) => {
                    running.leave.send_if_modified(|leave| {
                        let goes = !is_mine && *leave == Leave::No;
                        if goes {
                            *leave = Leave::Soon;
                        }
                        goes
                    });
                }
                None if is_mine && !is_paused => {
                    let (leave, asked) = watch::channel(Leave::No);
                    let owner = own(Arc::clone(&self.shared), shard, asked);
                    self.owners.spawn(async move { (shard, caught(owner).await) });
                    self.running.insert(shard, Running { leave, started: now });
                }
                None => {}
            }
        }
    }

    fn ended(&mut self, shard: Shard, left: Result<Left, String>) {
        let ran = self.running.remove(&shard).map_or(Duration::ZERO, |running| running.started.elapsed());
        if let Err(why) = left {
            tracing::error!(shard = shard.0, why, "the owner of a shard panicked; it begins anew");
            self.shared.stats.panics.add(1);
            let last = self.panicked.get(&shard).map_or(RESTART_PAUSE_MIN, |(_, pause)| *pause);
            let pause = next_pause(last, ran);
            self.panicked.insert(shard, (Instant::now() + pause, pause));
        }
    }

    /// Gives every shard back, as soon as what was handed over is noted.
    async fn drain(mut self, deadline: Duration) -> Drained {
        let until = Instant::now() + deadline;
        for running in self.running.values() {
            running.leave.send_replace(Leave::Settled);
        }
        let shared = Arc::clone(&self.shared);
        let farewell = shared.asked(shared.store.beat(&shared.instance, LEAVING_TTL_MS));
        if let Ok(Err(error)) = tokio::time::timeout_at(until, farewell).await {
            tracing::warn!(%error, "others learn only by time that this instance leaves");
        }
        let mut drained = Drained::default();
        while !self.owners.is_empty() {
            let Ok(Some(ended)) = tokio::time::timeout_at(until, self.owners.join_next()).await else {
                break;
            };
            let Ok((shard, left)) = ended else { continue };
            drained.unnoted_tasks += left.as_ref().map_or(0, |left| left.unnoted_tasks);
            drained.unreleased_shards += u64::from(!left.as_ref().is_ok_and(|left| left.is_released));
            self.ended(shard, left);
        }
        drained.unreleased_shards += u64::try_from(self.running.len()).unwrap_or(u64::MAX);
        drained
    }
}

fn panic_of(ended: Result<Result<(), String>, tokio::task::JoinError>) -> String {
    match ended {
        Ok(Ok(())) => "it ended".to_owned(),
        Ok(Err(panic)) => panic,
        Err(error) => error.to_string(),
    }
}

/// Pauses double while panics follow each other.
fn next_pause(last: Duration, ran: Duration) -> Duration {
    if ran >= WELL_AFTER { RESTART_PAUSE_MIN } else { (last * 2).min(RESTART_PAUSE_MAX) }
}
