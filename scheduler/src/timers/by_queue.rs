//! Adds that are written to a queue first, and cancels that may overtake them.

use super::group_commit::{GroupCommit, Refused, answered};
use super::stats::TimersCounters;
use super::{Inner, invalid};
use crate::CALL_TASKS_MAX;
use crate::add_queue::{AddQueue, KeyedTask, QueueRefusal};
use crate::options::TimersOptions;
use crate::task::{AddError, NewTask, TimersError};
use std::collections::BTreeMap;
use std::sync::Arc;
use windfall_contract::due::{CancelOnce, CancelledOnce, Shard, SlotStore, TaskKey};

/// What [`Timers`](super::Timers) has where there is a queue.
pub(super) struct ByQueue {
    queue: AddQueue,
    cancels: GroupCommit<CancelOnce, CancelledOnce>,
}

impl ByQueue {
    pub fn start(
        queue: AddQueue,
        options: &TimersOptions,
        store: &Arc<dyn SlotStore>,
        counters: &Arc<TimersCounters>,
    ) -> Self {
        let (own, counters) = (Arc::clone(store), Arc::clone(counters));
        let cancels = GroupCommit::start_for_callers(
            options,
            store.shards(),
            Box::new(move |shard, batch: Vec<CancelOnce>| {
                let (store, counters) = (Arc::clone(&own), Arc::clone(&counters));
                Box::pin(async move { counters.flushed(store.cancel_once(shard, &batch).await) })
            }),
        );
        Self { queue, cancels }
    }

    pub fn is_default_of(&self, tenant: &str) -> bool {
        self.queue.is_default_of(tenant)
    }

    pub async fn close(&self) {
        self.cancels.close().await;
    }
}

impl Inner {
    pub(super) async fn add_by_queue(&self, tenant: &str, tasks: Vec<NewTask>) -> Vec<Result<(), AddError>> {
        let count = tasks.len();
        let all = |error: AddError| vec![Err(error); count];
        let Some(rules) = self.tenants.0.get(tenant) else {
            return all(AddError::UnknownTenant(tenant.to_owned()));
        };
        let Some(by_queue) = &self.by_queue else { return all(AddError::NoQueue) };
        if count > CALL_TASKS_MAX {
            return all(AddError::TooMany(count));
        }
        let missing = |task: &NewTask| task.key.is_none().then_some(AddError::KeyMissing);
        let judged = |task: &NewTask| invalid(rules, task).or_else(|| missing(task)).map(Err);
        let mut answers: Vec<Option<Result<(), AddError>>> = tasks.iter().map(judged).collect();
        let valid = answers.iter().filter(|answer| answer.is_none()).count();
        let mut admitted = self.quotas.admit(tenant, valid);
        if let Some(error) = &admitted.rest {
            let refused = answers.iter_mut().filter(|answer| answer.is_none()).skip(admitted.count);
            refused.for_each(|answer| *answer = Some(Err(error.clone())));
        }
        let open = tasks.into_iter().zip(&answers).filter(|(_, answer)| answer.is_none());
        let keyed = open.filter_map(|(task, _)| task.key.clone().map(|key| KeyedTask { task, key }));
        let keyed: Vec<_> = keyed.collect();
        let mut written = match keyed.is_empty() {
            true => Vec::new(),
            false => by_queue.queue.write(tenant, keyed).await,
        }
        .into_iter();
        let mut not_written = 0;
        for answer in answers.iter_mut().filter(|answer| answer.is_none()) {
            let outcome = written.next().unwrap_or_else(|| Err(QueueRefusal::Unknown(String::new())));
            *answer = Some(outcome.map_err(|refusal| {
                not_written += u64::from(!matches!(refusal, QueueRefusal::Unknown(_)));
                match refusal {
                    QueueRefusal::Not(what) => AddError::QueueAway(what),
                    QueueRefusal::Unknown(what) => AddError::QueueUnknown(what),
                    QueueRefusal::Closing => AddError::Closing,
                }
            }));
        }
        admitted.reserved.not_stored(not_written);
        answers.into_iter().map(|answer| answer.unwrap_or(Err(AddError::Busy))).collect()
    }

    pub(super) async fn cancel_once(
        &self,
        tenant: &str,
        keys: Vec<TaskKey>,
    ) -> Vec<Result<CancelledOnce, TimersError>> {
        let count = keys.len();
        let all = |error: TimersError| vec![Err(error); count];
        let Some(by_queue) = &self.by_queue else { return all(TimersError::NoQueue) };
        if count > CALL_TASKS_MAX {
            return all(TimersError::TooMany(count));
        }
        let number = match self.tenant(tenant).await {
            Ok(number) => number,
            Err(error) => return all(error),
        };
        // A key that nobody knows takes memory until its mark is over, as a task does that waits.
        let (marks, mut reserved) = self.quotas.reserve_marks(tenant, count);
        let mut by_shard: BTreeMap<Shard, (Vec<usize>, Vec<CancelOnce>)> = BTreeMap::new();
        for (place, key) in keys.into_iter().enumerate() {
            let shard = key.shard(number, self.store.shards());
            let (places, cancels) = by_shard.entry(shard).or_default();
            places.push(place);
            cancels.push(CancelOnce { tenant: number, key, may_mark: place < marks });
        }
        let submit = |(shard, (places, cancels)): (Shard, (Vec<usize>, Vec<CancelOnce>))| {
            (places, by_queue.cancels.submit(Some(shard), cancels, 0))
        };
        let flights: Vec<_> = by_shard.into_iter().map(submit).collect();
        let mut answers = all(TimersError::Busy);
        let mut not_marked = 0;
        for (places, flight) in flights {
            let cancelled = match flight {
                Ok(flight) => answered(flight).await.map_err(TimersError::Store),
                Err(Refused::Busy) => Err(TimersError::Busy),
                Err(Refused::Closing) => Err(TimersError::Closing),
            };
            for (nth, place) in places.into_iter().enumerate() {
                answers[place] = match cancelled.as_ref().map(|cancelled| cancelled[nth]) {
                    Ok(CancelledOnce::Unmarked) => Err(TimersError::NoRoomForMark),
                    Ok(cancelled) => {
                        not_marked += u64::from(place < marks && cancelled != CancelledOnce::Marked);
                        Ok(cancelled)
                    }
                    Err(error) => {
                        let is_certain = !matches!(error, TimersError::Store(_));
                        not_marked += u64::from(place < marks && is_certain);
                        Err(error.clone())
                    }
                };
            }
        }
        reserved.not_stored(not_marked);
        answers
    }
}
