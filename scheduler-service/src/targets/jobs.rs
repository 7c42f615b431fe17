//! A job of a task queue.

use super::away::AwayShards;
use async_trait::async_trait;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinSet;
use windfall_contract::due::{Fired, Firing, Shard, Target};
use windfall_contract::task_queue::{JobStore, JobStoreError, NewJobs, OnceJob, OnceMark, QueueName};

/// Jobs of one call of the store at most.
const CALL_JOBS_MAX: usize = 256;
/// Bytes of one call of the store at most, besides its first job.
const CALL_BYTES_MAX: usize = 4 << 20;
/// The attribute of a job that names its timer.
const TIMER_ID: &str = "timer-id";

/// Which queue, and how its jobs live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobTargetOptions {
    /// The queue.
    pub queue: QueueName,
    /// How long a job lives from when its timer fires, in seconds; 0 is for ever.
    pub ttl_s: u32,
    /// How often it may be taken, at least once.
    pub tries: u16,
}

/// Publishes timers to a queue: the payload is a job's body, and its attribute `timer-id` is the timer's id.
///
/// A timer is [`Fired::Done`] when the store has its job. A timer that fires again, because an answer was lost or a process
/// died, publishes nothing for as long as the store knows that its job was there ([`JobStore::publish_once`]), be it taken,
/// acknowledged or dead meanwhile; after that its job comes once more, with the same `timer-id`. While the store does not
/// answer at all, no attempt counts, so that no timer is given up for it. A shard that does not answer is asked once a second,
/// so that its timers hold up no others.
pub struct JobTarget {
    store: Arc<dyn JobStore>,
    options: JobTargetOptions,
    away: Arc<AwayShards>,
}

impl JobTarget {
    /// Publishes to this store.
    pub fn new(store: Arc<dyn JobStore>, options: JobTargetOptions) -> Self {
        Self { store, options, away: Arc::default() }
    }

    fn job(&self, firing: Firing) -> OnceJob {
        let JobTargetOptions { queue, ttl_s, tries } = &self.options;
        let mark = mark(&firing, queue);
        let job = NewJobs {
            queue: queue.clone(),
            delay_s: 0,
            ttl_s: *ttl_s,
            tries: *tries,
            is_versioned: true,
            attributes: vec![(TIMER_ID.into(), firing.id.to_string())],
            bodies: vec![firing.payload],
        };
        OnceJob { mark, job }
    }
}

#[async_trait]
impl Target for JobTarget {
    async fn fire(&self, batch: Vec<Firing>) -> Vec<Fired> {
        let mut outcomes = vec![Fired::Failed("the call of the store was given up".into()); batch.len()];
        let shards = self.store.shards();
        let mut calls = JoinSet::new();
        let placed = batch.into_iter().map(|firing| {
            let once = self.job(firing);
            (once.mark.shard(shards), once.job.bodies.iter().map(|body| body.len()).sum(), once)
        });
        for call in calls_of(placed) {
            if let Some(why) = self.away.reason(call.shard) {
                call.places.into_iter().for_each(|at| outcomes[at] = Fired::Away(why.clone()));
                continue;
            }
            let (store, away) = (Arc::clone(&self.store), Arc::clone(&self.away));
            calls.spawn(async move {
                let answer = store.publish_once(call.shard, &call.jobs).await;
                away.note(call.shard, &answer);
                (call.places, answer.map_or_else(|error| outcome_of(&error), |_| Fired::Done))
            });
        }
        while let Some(called) = calls.join_next().await {
            match called {
                Ok((places, outcome)) => places.into_iter().for_each(|at| outcomes[at] = outcome.clone()),
                Err(error) => tracing::error!(%error, "publishing the jobs of timers has panicked"),
            }
        }
        outcomes
    }
}

/// The name by which a queue's store knows a timer. It also says the shard, so that the same timer meets the same shard each
/// time. The timer's id alone would not do: a slot store that was made anew gives the ids of the one before, and two fleets give
/// the same ids.
fn mark(firing: &Firing, queue: &QueueName) -> OnceMark {
    let mut hasher = Sha256::new();
    let key = firing.key.as_ref().map_or(&[][..], |key| key.as_bytes());
    for part in [firing.tenant.as_bytes(), queue.as_str().as_bytes(), key, &firing.payload] {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    hasher.update(firing.due_ms.to_be_bytes());
    hasher.update(firing.id.text().as_bytes());
    let mut mark = [0; 16];
    mark.copy_from_slice(&hasher.finalize()[..16]);
    OnceMark(mark)
}

/// A call of the store, and which places of the batch its jobs have.
pub(super) struct Call<J> {
    pub shard: Shard,
    pub places: Vec<usize>,
    pub jobs: Vec<J>,
}

/// The calls of the store, for jobs that each come with their shard and bytes.
pub(super) fn calls_of<J>(batch: impl Iterator<Item = (Shard, usize, J)>) -> Vec<Call<J>> {
    let mut calls: Vec<Call<J>> = Vec::new();
    // Of each shard: its last call, and the bytes in it.
    let mut open: BTreeMap<Shard, (usize, usize)> = BTreeMap::new();
    for (at, (shard, bytes, job)) in batch.enumerate() {
        let last = open.get(&shard).copied();
        let fitting = last
            .filter(|(call, all)| calls[*call].jobs.len() < CALL_JOBS_MAX && all + bytes <= CALL_BYTES_MAX);
        let (call, all) = fitting.unwrap_or_else(|| {
            calls.push(Call { shard, places: Vec::new(), jobs: Vec::new() });
            (calls.len() - 1, 0)
        });
        open.insert(shard, (call, all + bytes));
        calls[call].places.push(at);
        calls[call].jobs.push(job);
    }
    calls
}

/// What an error means for a timer. Nobody knows whether its job is stored; if it is, the next attempt finds it.
pub(super) fn outcome_of(error: &JobStoreError) -> Fired {
    match error {
        JobStoreError::Unavailable(_) => Fired::Away(error.to_string()),
        JobStoreError::Unusable(_) | JobStoreError::TooManyFarRemovals => Fired::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn firing(id: &str, payload: &[u8]) -> Firing {
        let payload = Bytes::copy_from_slice(payload);
        Firing { id: id.parse().unwrap(), tenant: "t".into(), key: None, due_ms: 7, attempt: 1, payload }
    }

    #[test]
    fn a_mark_is_one_of_the_timer_and_not_of_the_attempt() {
        let queue = QueueName::new("n", "q").unwrap();
        let first = firing("0001-01c3a2f0-00000000", b"x");
        let again = Firing { attempt: 9, ..first.clone() };
        assert_eq!(mark(&first, &queue), mark(&again, &queue));
        let other_queue = QueueName::new("n", "q2").unwrap();
        assert_ne!(mark(&first, &queue), mark(&first, &other_queue));
        for other in [
            firing("0001-01c3a2f0-00000001", b"x"),
            firing("0001-01c3a2f0-00000000", b"y"),
            Firing { tenant: "u".into(), ..first.clone() },
            Firing { due_ms: 8, ..first.clone() },
        ] {
            assert_ne!(mark(&first, &queue), mark(&other, &queue), "{other:?}");
        }
    }

    #[test]
    fn a_batch_is_cut_into_calls_that_a_store_takes() {
        let job = |number: u8, bytes: usize| OnceJob {
            mark: OnceMark([number; 16]),
            job: NewJobs {
                queue: QueueName::new("n", "q").unwrap(),
                delay_s: 0,
                ttl_s: 0,
                tries: 1,
                is_versioned: true,
                attributes: Vec::new(),
                bodies: vec![vec![0; bytes].into()],
            },
        };
        let batch = (0..=255).flat_map(|number| [job(number, 10), job(number, 10), job(number, 60_000)]);
        let calls = calls_of(batch.map(|once| (once.mark.shard(4), once.job.bodies[0].len(), once)));
        let mut places: Vec<usize> = calls.iter().flat_map(|call| call.places.iter().copied()).collect();
        places.sort_unstable();
        assert_eq!(places, (0..768).collect::<Vec<_>>());
        for call in &calls {
            assert!(call.jobs.len() <= CALL_JOBS_MAX && call.jobs.len() == call.places.len());
            assert!(call.jobs.iter().all(|once| once.mark.shard(4) == call.shard));
            let bytes: usize = call.jobs.iter().map(|once| once.job.bodies[0].len()).sum();
            assert!(bytes <= CALL_BYTES_MAX, "{bytes}");
        }
    }
}
