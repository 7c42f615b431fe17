//! Starts, watches and drains a consumer.

use crate::dispatch::Dispatch;
use crate::drain::{DrainAsked, DrainReport};
use crate::options::Options;
use crate::parts::Parts;
use crate::stats::ConsumerStats;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A running consumer. Dropped without [`drain`](Self::drain) it stops at once, as if its process had died:
/// what it held is delivered again.
#[derive(Debug)]
pub struct ConsumerHandle {
    stats: Arc<ConsumerStats>,
    drain: Option<oneshot::Sender<Duration>>,
    task: JoinHandle<DrainReport>,
}

/// The consumer's loop ended by a panic or was cancelled. What it held is delivered again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the consumer's loop ended: {0}")]
pub struct Crashed(pub String);

/// Starts a consumer as a task of the current tokio runtime. A panic of its loop ends it;
/// [`Supervisor`](crate::Supervisor) starts it again.
///
/// # Panics
/// Outside a tokio runtime.
pub fn spawn(parts: Parts, options: Options) -> ConsumerHandle {
    let stats = Arc::new(ConsumerStats::default());
    let (drain, drain_asked) = oneshot::channel();
    let mut dispatch = Dispatch::new(parts, options, Arc::clone(&stats));
    let task = tokio::spawn(async move {
        dispatch.run(&mut DrainAsked::by(drain_asked)).await;
        dispatch.leave().await
    });
    ConsumerHandle { stats, drain: Some(drain), task }
}

impl ConsumerHandle {
    /// Its counters.
    pub fn stats(&self) -> &Arc<ConsumerStats> {
        &self.stats
    }

    /// Stops fetching, finishes what is in flight, writes back at half of `deadline` what is not finished by then,
    /// commits, and leaves the group. Ends at `deadline`, plus at most seven seconds for the commit and leaving the
    /// group. Keep the requeue sink and the rewards open until it returns.
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
