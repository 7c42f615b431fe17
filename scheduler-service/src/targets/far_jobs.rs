//! A job of a task queue that was published long before.

use super::away::AwayShards;
use super::jobs::{Call, calls_of, outcome_of};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;
use windfall_contract::due::{Fired, Firing, Target};
use windfall_contract::task_queue::{DoubtfulJobs, FarJob, JobStore, PublishedFar};

/// How long jobs are waited for whose time has come by the timers' clock, and not by that of their store.
const EARLY_MAX_MS: u64 = 10_000;

/// Publishes [far jobs](FarJob) to their queues, each under the id that its publisher was given.
///
/// A timer is [`Fired::Done`] when the store has its job, or knows that it was there or was deleted
/// ([`JobStore::publish_far`]). While the store does not answer at all, no attempt counts. One of which the store no longer
/// knows whether it was deleted is given up at once, for an operator to decide, unless it was decided that such jobs come.
pub struct FarJobTarget {
    store: Arc<dyn JobStore>,
    away: Arc<AwayShards>,
    doubtful: DoubtfulJobs,
}

/// What a timer is given up with whose job may have been deleted.
const DOUBTFUL: &str = "it comes more than a week late, and the store has forgotten which jobs of that time were deleted: delete                         it, or set task_queue.publish_doubtful_jobs and send it again";

impl FarJobTarget {
    /// Publishes to this store. `doubtful` is about jobs of which the store no longer knows whether they were deleted.
    pub fn new(store: Arc<dyn JobStore>, doubtful: DoubtfulJobs) -> Self {
        Self { store, away: Arc::default(), doubtful }
    }

    /// How long handing timers over may take where a call of the store takes so long at most: they may be early, and go
    /// with a second call.
    pub const fn fire_max_ms(store_call_max_ms: u64) -> u64 {
        store_call_max_ms.saturating_mul(2).saturating_add(EARLY_MAX_MS)
    }
}

#[async_trait]
impl Target for FarJobTarget {
    async fn fire(&self, batch: Vec<Firing>) -> Vec<Fired> {
        let mut outcomes = vec![Fired::Failed("the call of the store was given up".into()); batch.len()];
        let (mut places, mut jobs) = (Vec::new(), Vec::new());
        for (at, firing) in batch.into_iter().enumerate() {
            match FarJob::of_timer(&firing.payload, firing.id, self.store.shards()) {
                Ok(job) => {
                    places.push(at);
                    jobs.push((job.record.id.shard(), job.record.body.len(), job));
                }
                Err(error) => outcomes[at] = Fired::Refused(format!("the payload is no far job: {error}")),
            }
        }
        let mut calls = JoinSet::new();
        for call in calls_of(jobs.into_iter()) {
            if let Some(why) = self.away.reason(call.shard) {
                call.places.into_iter().for_each(|nth| outcomes[places[nth]] = Fired::Away(why.clone()));
                continue;
            }
            calls.spawn(publish(Arc::clone(&self.store), Arc::clone(&self.away), self.doubtful, call));
        }
        while let Some(called) = calls.join_next().await {
            match called {
                Ok(published) => {
                    published.into_iter().for_each(|(nth, outcome)| outcomes[places[nth]] = outcome)
                }
                Err(error) => tracing::error!(%error, "publishing far jobs has panicked"),
            }
        }
        outcomes
    }
}

/// Publishes the jobs of a call, those that come too early in further ones: their places, and what became of each.
async fn publish(
    store: Arc<dyn JobStore>,
    away: Arc<AwayShards>,
    doubtful: DoubtfulJobs,
    call: Call<FarJob>,
) -> Vec<(usize, Fired)> {
    let Call { shard, mut places, mut jobs } = call;
    let (mut outcomes, mut waited_ms) = (Vec::with_capacity(places.len()), 0);
    loop {
        let answer = store.publish_far(shard, &jobs, doubtful).await;
        away.note(shard, &answer);
        let published = match answer {
            Ok(published) => published,
            Err(error) => {
                outcomes.extend(places.into_iter().map(|at| (at, outcome_of(&error))));
                return outcomes;
            }
        };
        let (mut early, mut longest_ms) = ((Vec::new(), Vec::new()), 0);
        for ((at, job), published) in places.into_iter().zip(jobs).zip(published) {
            match published {
                PublishedFar::Stored | PublishedFar::Over => outcomes.push((at, Fired::Done)),
                PublishedFar::Doubtful => outcomes.push((at, Fired::Refused(DOUBTFUL.into()))),
                PublishedFar::Early(ms) => {
                    longest_ms = longest_ms.max(ms);
                    early.0.push(at);
                    early.1.push(job);
                }
            }
        }
        (places, jobs) = early;
        if places.is_empty() {
            return outcomes;
        }
        waited_ms += longest_ms;
        if waited_ms > EARLY_MAX_MS {
            let late =
                format!("the clock of the queue's store is {longest_ms} ms behind that of the timers' store");
            outcomes.extend(places.into_iter().map(|at| (at, Fired::Busy(late.clone()))));
            return outcomes;
        }
        sleep(Duration::from_millis(longest_ms)).await;
    }
}
