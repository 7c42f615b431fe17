//! The timers that jobs of a task queue wait as which are due much later.

use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeMap;
use windfall_contract::due::{Added, Changed, TaskAt, TaskId, Waiting};
use windfall_contract::task_queue::{FarTimers, FarTimersError};
use windfall_scheduler::{AddError, Class, NewTask, Retry, TargetRules, TenantRules, Timers, TimersError};

/// The tenant of far jobs; its targets are pools.
pub const FAR_JOBS_TENANT: &str = "_task-queue";

/// The far jobs of one pool.
pub struct FarJobTimers {
    timers: Timers,
    pool: String,
}

impl FarJobTimers {
    /// Those that are fired to the target of this pool.
    pub fn new(timers: Timers, pool: &str) -> Self {
        Self { timers, pool: pool.to_owned() }
    }

    /// What the scheduler has to know of the far jobs of these pools.
    pub fn tenant_rules<'p>(pools: impl Iterator<Item = &'p str>) -> TenantRules {
        // While a pool answers for nothing, no attempt counts. Where a part of its shards is away, a job is given up after two
        // to four hours, and goes on within 15 seconds if they are back before.
        let retry = Retry::Exponential { attempts_max: 1_000, first_ms: 200, max_ms: 15_000 };
        let rules = TargetRules { retry, concurrency: 16, ..TargetRules::default() };
        let targets: BTreeMap<_, _> = pools.map(|pool| (pool.to_owned(), rules)).collect();
        TenantRules { waiting_max: u64::MAX, adds_per_s: 100_000_000, class: Class::Normal, targets }
    }

    /// Takes back what was added of a call that has failed as a whole. Whether nothing is left of it.
    async fn take_back(&self, added: Vec<TaskId>) -> bool {
        let at = added.into_iter().map(TaskAt::Id).collect();
        let cancelled = self.timers.cancel(FAR_JOBS_TENANT, at).await;
        cancelled.iter().all(|answer| matches!(answer, Ok(Changed::Done(_) | Changed::Cancelled)))
    }
}

#[async_trait]
impl FarTimers for FarJobTimers {
    async fn add(&self, due_ms: u64, payloads: Vec<Bytes>) -> Result<Vec<TaskId>, FarTimersError> {
        // Without a key, which would keep it out of the far tier.
        let task = |payload| NewTask { target: self.pool.clone(), due_ms, key: None, payload };
        let answers = self.timers.add(FAR_JOBS_TENANT, payloads.into_iter().map(task).collect()).await;
        let (mut added, mut failed) = (Vec::with_capacity(answers.len()), None);
        for answer in answers {
            match answer {
                Ok(Added::Stored(id) | Added::Exists(id)) => added.push(id),
                Err(error) => failed = Some(graver(failed, add_failure(error))),
            }
        }
        match failed {
            None => Ok(added),
            Some(error) if added.is_empty() || self.take_back(added).await => Err(error),
            Some(error) => Err(FarTimersError::Unavailable(error.to_string())),
        }
    }

    async fn get(&self, timer: TaskId) -> Result<Option<(Waiting, Bytes)>, FarTimersError> {
        let found = self.timers.get(FAR_JOBS_TENANT, TaskAt::Id(timer)).await.map_err(failure)?;
        // A timer of another pool is a job of another one.
        let own = found.filter(|view| view.target.as_ref().is_none_or(|target| *target == self.pool));
        Ok(own.map(|view| (view.state, view.payload)))
    }

    async fn cancel(&self, timer: TaskId) -> Result<Changed, FarTimersError> {
        let mut answers = self.timers.cancel(FAR_JOBS_TENANT, vec![TaskAt::Id(timer)]).await;
        answers.pop().unwrap_or(Err(TimersError::Busy)).map_err(failure)
    }
}

/// Where one add of a call may be done, nobody may be told that nothing is.
fn graver(before: Option<FarTimersError>, error: FarTimersError) -> FarTimersError {
    match before {
        Some(before @ FarTimersError::Unavailable(_)) => before,
        Some(FarTimersError::Busy(_)) | None => error,
    }
}

fn add_failure(error: AddError) -> FarTimersError {
    match error {
        AddError::Busy | AddError::Closing | AddError::QuotaWaiting { .. } | AddError::QuotaRate { .. } => {
            FarTimersError::Busy(error.to_string())
        }
        other => FarTimersError::Unavailable(other.to_string()),
    }
}

fn failure(error: TimersError) -> FarTimersError {
    match error {
        TimersError::Busy | TimersError::Closing => FarTimersError::Busy(error.to_string()),
        other => FarTimersError::Unavailable(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_of_which_a_part_may_be_done_is_not_said_to_have_done_nothing() {
        let (busy, away) = (FarTimersError::Busy("b".into()), FarTimersError::Unavailable("a".into()));
        assert_eq!(graver(None, busy.clone()), busy);
        assert_eq!(graver(Some(busy.clone()), away.clone()), away);
        assert_eq!(graver(Some(away.clone()), busy), away);
    }

    #[test]
    fn a_job_of_a_shard_that_is_away_is_given_up_after_two_to_four_hours() {
        let retry = FarJobTimers::tenant_rules(std::iter::once("default")).targets["default"].retry;
        // The jitter takes away a half at most.
        let longest_ms: u64 = (1..retry.attempts_max()).map(|failed| retry.wait_ms(failed)).sum();
        assert!((7_200_000..=14_400_000 + 600_000).contains(&longest_ms), "{longest_ms} ms");
        assert!(longest_ms / 2 >= 7_200_000, "{longest_ms} ms");
        assert_eq!(retry.wait_ms(999), 15_000, "it goes on soon after the shard is back");
    }
}
