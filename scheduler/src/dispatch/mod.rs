//! The firing half: shards are owned, read, fired and noted.
//!
//! The `fleet` says which shards this instance owns and runs an `owner` for each. An owner holds a lease (`term`), reads
//! its `slot`s ahead of their time within the `memory`, and queues what is due with the `firing` loop. That has a
//! `target_lane` per target, with the order of its tasks (`due_queue`), and gives each its turn (`turns`). What became of
//! a task goes back to its owner, who notes it. A target that takes the newest tasks first makes room for them
//! (`shedding`).

mod due_queue;
mod firing;
mod fleet;
mod jitter;
mod memory;
mod owner;
mod rendezvous;
mod shared;
mod shedding;
mod slot;
mod target_lane;
mod term;
mod turns;

use crate::options::DispatchOptions;
use crate::stats::DispatchStats;
use crate::tenants::Tenants;
use parking_lot::Mutex;
use shared::Targets;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use windfall_contract::Clock;
use windfall_contract::due::{SlotStore, StoreError, Target};

/// A dispatcher whose store has not answered for so long is not ready.
const SILENCE_MAX_MS: u64 = 5_000;

/// Fires the tasks of the shards that it owns. Dropped without [`drain`](Self::drain) it stops at once, as if its
/// process had died: its shards are taken over when their leases have run out.
pub struct Dispatcher {
    stats: Arc<DispatchStats>,
    health: Arc<Health>,
    clock: Clock,
    drain: Option<oneshot::Sender<Duration>>,
    task: JoinHandle<Drained>,
}

/// What a drain left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// Tasks that had been handed over and could not be noted as over, because their shard was lost meanwhile.
    pub unnoted_tasks: u64,
    /// Shards that were not given back in time; others get them when their lease has run out, and hand over again
    /// what was not noted.
    pub unreleased_shards: u64,
}

/// What a dispatcher is made of.
#[derive(Clone)]
struct Parts {
    options: DispatchOptions,
    tenants: Arc<Tenants>,
    store: Arc<dyn SlotStore>,
    targets: Arc<Targets>,
    instance: Arc<str>,
    clock: Clock,
    stats: Arc<DispatchStats>,
    health: Arc<Health>,
}

/// When the store answered last (monotonic ms from the start, plus 1; 0: never), and why it has not since.
#[derive(Debug, Default)]
struct Health {
    beaten_ms: AtomicU64,
    why_not: Mutex<Option<String>>,
}

impl Health {
    fn silent(&self, error: &StoreError) {
        *self.why_not.lock() = Some(error.to_string());
    }

    fn beaten(&self, clock: &Clock) {
        *self.why_not.lock() = None;
        self.beaten_ms.store((clock.monotonic_ns() / 1_000_000).saturating_add(1), Ordering::Relaxed);
    }

    fn check(&self, clock: &Clock) -> Result<(), String> {
        let beaten_ms = self.beaten_ms.load(Ordering::Relaxed);
        let silent_ms = (clock.monotonic_ns() / 1_000_000).saturating_add(1).saturating_sub(beaten_ms);
        let since = match beaten_ms {
            0 => "yet".to_owned(),
            _ if silent_ms > SILENCE_MAX_MS => format!("for {} s", silent_ms / 1_000),
            _ => return Ok(()),
        };
        let why = self.why_not.lock().as_ref().map_or(String::new(), |why| format!(": {why}"));
        Err(format!("the slot store has not answered {since}{why}"))
    }
}

impl Dispatcher {
    /// Starts as tasks of the current tokio runtime. Never waits and never fails: it asks for what is missing until it
    /// comes. `instance` names this process among those that share the store, and no other one may have the name.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(
        options: DispatchOptions,
        tenants: Arc<Tenants>,
        store: Arc<dyn SlotStore>,
        targets: BTreeMap<(String, String), Arc<dyn Target>>,
        instance: String,
        clock: Clock,
    ) -> Self {
        let (stats, health) = (Arc::new(DispatchStats::default()), Arc::new(Health::default()));
        stats.shards.set(u64::from(store.shards()));
        let parts = Parts {
            options,
            tenants,
            store,
            targets: Arc::new(targets),
            instance: instance.into(),
            clock: clock.clone(),
            stats: Arc::clone(&stats),
            health: Arc::clone(&health),
        };
        let (drain, asked) = oneshot::channel();
        Self { stats, health, clock, drain: Some(drain), task: tokio::spawn(fleet::run(parts, asked)) }
    }

    /// Reads no more, waits for the answers of the targets, notes what is over, and gives the shards back, each as soon
    /// as it can: nothing is repeated. What has not come to its end by the deadline is left as if the process had died.
    pub async fn drain(mut self, deadline: Duration) -> Drained {
        if let Some(drain) = self.drain.take() {
            // One that has ended does not listen; awaiting its task says so.
            drain.send(deadline).ok();
        }
        (&mut self.task).await.unwrap_or_else(|error| {
            tracing::error!(%error, "the dispatcher had ended before its drain");
            Drained { unnoted_tasks: 0, unreleased_shards: self.stats.owned_shards.get() }
        })
    }

    /// Its numbers.
    pub fn stats(&self) -> Arc<DispatchStats> {
        Arc::clone(&self.stats)
    }

    /// Says whether it is ready: its store has answered within the last seconds. It does not keep the dispatcher.
    pub fn check(&self) -> impl Fn() -> Result<(), String> + Send + Sync + use<> {
        let (health, clock) = (Arc::clone(&self.health), self.clock.clone());
        move || health.check(&clock)
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher")
            .field("owned_shards", &self.stats.owned_shards.get())
            .finish_non_exhaustive()
    }
}
