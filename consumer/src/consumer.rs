//! Starting, watching and closing a consumer.

use crate::dispatch::Dispatch;
use crate::gate::Gate;
use crate::options::Options;
use crate::requeue::Outlet;
use crate::salvage::Salvage;
use crate::stats::ConsumerStats;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use windfall_contract::Clock;
use windfall_contract::broker;
use windfall_contract::rewards::Rewards;
use windfall_contract::rules::Rules;

/// The live rules, as of now. Asked each turn of the loop, so it must be as cheap as an `Arc`'s clone.
pub type RulesNow = Arc<dyn Fn() -> Arc<Rules> + Send + Sync>;

/// What a consumer is made of.
pub struct Parts {
    /// The topic's name, for the fleet's share and for the log.
    pub topic: String,
    /// Where records come from.
    pub source: Box<dyn broker::Consumer>,
    /// Where events are granted and archived.
    pub rewards: Arc<dyn Rewards>,
    /// Where copies go.
    pub outlet: Arc<dyn Outlet>,
    /// Where they wait when no queue takes them; one a process.
    pub salvage: Arc<Salvage>,
    /// The limiter and the fleet's share; one a process.
    pub gate: Arc<Gate>,
    /// The live rules.
    pub rules: RulesNow,
    /// The same clock that the gate was started with.
    pub clock: Clock,
}

/// A running consumer. Dropped without [`drain`](Self::drain) it stops at once, as if its process had died:
/// what it held is delivered again.
#[derive(Debug)]
pub struct ConsumerHandle {
    stats: Arc<ConsumerStats>,
    drain: Option<oneshot::Sender<Duration>>,
    task: JoinHandle<DrainReport>,
}

/// How a consumer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainReport {
    /// Records that were in hand at the end. They are not committed and will be delivered again.
    pub unfinished_records: usize,
    /// Whether the last commit was stored. If not, finished records may be delivered again, which is harmless.
    pub committed: bool,
    /// Whether the source was closed in time, and left its group.
    pub closed: bool,
}

/// The consumer's loop ended by a panic or was cancelled. What it held is delivered again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the consumer's loop ended: {0}")]
pub struct Crashed(pub String);

impl DrainReport {
    /// Nothing was left and nothing is in doubt.
    pub const fn is_clean(&self) -> bool {
        self.unfinished_records == 0 && self.committed && self.closed
    }
}

/// Starts a consumer as a task of the current tokio runtime.
///
/// # Panics
/// Outside a tokio runtime.
pub fn spawn(parts: Parts, options: Options) -> ConsumerHandle {
    let stats = Arc::new(ConsumerStats::default());
    let (drain, drain_asked) = oneshot::channel();
    let dispatch = Dispatch::new(parts, options, Arc::clone(&stats));
    ConsumerHandle { stats, drain: Some(drain), task: tokio::spawn(dispatch.run(drain_asked)) }
}

impl ConsumerHandle {
    /// Its numbers.
    pub fn stats(&self) -> &Arc<ConsumerStats> {
        &self.stats
    }

    /// Stops fetching, finishes what is in hand, writes back at half of `deadline` what is not finished by then,
    /// commits, and leaves the group. Ends at `deadline`, plus at most seven seconds for commit and leave-taking.
    /// Keep outlet and rewards open until it returns.
    ///
    /// # Errors
    /// [`Crashed`]: the loop had ended before.
    pub async fn drain(mut self, deadline: Duration) -> Result<DrainReport, Crashed> {
        if let Some(drain) = self.drain.take() {
            // A loop that is gone does not listen; awaiting its task says why.
            drain.send(deadline).ok();
        }
        (&mut self.task).await.map_err(|error| Crashed(error.to_string()))
    }

    /// Waits until the loop has ended by itself, which it only does by a panic.
    pub async fn ended(&mut self) -> Crashed {
        match (&mut self.task).await {
            Ok(_) => Crashed("drained".into()),
            Err(error) => Crashed(error.to_string()),
        }
    }
}

impl Drop for ConsumerHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}
