//! Far jobs: jobs that are due much later wait as timers of the scheduler, on its disk, and are published to their queue when
//! the timer fires, under the id that their publisher was given.
//!
//! Nothing is stored to map one to the other: the id of a far job says which timer it waits as ([`JobId::timer`]), and the
//! timer's payload says the rest ([`FarJob`]).

use super::{JobId, JobRecord, NewJobs, QueueName, RecordError};
use crate::due::{Changed, Shard, TaskId, Waiting};
use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};

/// The version of the bytes that a timer keeps.
const VERSION: u8 = 1;
/// The version, and the length of the queue's name.
const HEAD_BYTES: usize = 3;

const CUT: RecordError = RecordError("it is cut short");

/// A job that waits, or has waited, as a timer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FarJob {
    /// The queue that it comes to.
    pub queue: QueueName,
    /// The job as the queue's store will keep it.
    pub record: JobRecord,
}

impl FarJob {
    /// The payloads of the timers that these jobs wait as, in the order of their bodies.
    pub fn payloads(jobs: &NewJobs, published_ms: u64) -> Vec<Bytes> {
        // Shard and number come from the timer, which has no id yet.
        let id = JobId::new(published_ms, Shard(0), 0, jobs.delay_s, jobs.is_versioned);
        let queue = jobs.queue.as_str();
        let payload = |body: &Bytes| {
            let (attributes, body) = (jobs.attributes.clone(), body.clone());
            let record = JobRecord { id, tries: jobs.tries, ttl_s: jobs.ttl_s, attributes, body }.encode();
            let mut payload = BytesMut::with_capacity(HEAD_BYTES + queue.len() + record.len());
            payload.put_u8(VERSION);
            payload.put_u16(u16::try_from(queue.len()).unwrap_or(u16::MAX));
            payload.put_slice(queue.as_bytes());
            payload.put_slice(&record);
            payload.freeze()
        };
        jobs.bodies.iter().map(payload).collect()
    }

    /// The job of a timer, as the store with so many shards will have it.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn of_timer(payload: &Bytes, timer: TaskId, shards: u16) -> Result<Self, RecordError> {
        if payload.len() < HEAD_BYTES {
            return Err(CUT);
        }
        if payload[0] != VERSION {
            return Err(RecordError("it has a version that this one does not know"));
        }
        let name_end = HEAD_BYTES + usize::from(u16::from_be_bytes([payload[1], payload[2]]));
        let name = payload.get(HEAD_BYTES..name_end).ok_or(CUT)?;
        let name = std::str::from_utf8(name).ok().and_then(|name| QueueName::parse(name).ok());
        let queue = name.ok_or(RecordError("its queue has no valid name"))?;
        let record = JobRecord::decode(&payload.slice(name_end..))?;
        let record = record.ok_or(RecordError("it was deleted, and waits"))?;
        let id = JobId::of_timer(timer, record.id, shards);
        let id = id.ok_or(RecordError("its timer is none that far jobs wait as"))?;
        Ok(Self { queue, record: JobRecord { id, ..record } })
    }
}

/// What became of a far job that was to be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishedFar {
    /// It is ready.
    Stored,
    /// It was published before, or deleted, or its ttl has ended. Nothing was stored.
    Over,
    /// It is due in so many milliseconds only, by the store's clock. Nothing was stored.
    Early(u64),
    /// It comes so late that the store no longer knows whether it was deleted. Nothing was stored.
    Doubtful,
}

/// What becomes of a far job that comes so late that its store no longer knows whether it was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DoubtfulJobs {
    /// It is not published, and its caller hears so.
    #[default]
    Refuse,
    /// It is published, as an operator has decided.
    Publish,
}

/// The timers of one store of jobs. Clones of a store's processes share them: whoever asks finds each timer.
#[async_trait]
pub trait FarTimers: Send + Sync {
    /// Adds timers that are due then. Their ids, in the order of `payloads`; all are added or, but for a time-out, none.
    ///
    /// # Errors
    /// [`FarTimersError`].
    async fn add(&self, due_ms: u64, payloads: Vec<Bytes>) -> Result<Vec<TaskId>, FarTimersError>;

    /// How a timer is, and its payload, which one that was cancelled need not have any more.
    ///
    /// # Errors
    /// [`FarTimersError`].
    async fn get(&self, timer: TaskId) -> Result<Option<(Waiting, Bytes)>, FarTimersError>;

    /// Cancels a timer. It may be repeated.
    ///
    /// # Errors
    /// [`FarTimersError`].
    async fn cancel(&self, timer: TaskId) -> Result<Changed, FarTimersError>;
}

/// The scheduler cannot do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FarTimersError {
    /// Too much waits for it. Nothing was changed.
    #[error("the scheduler is busy: {0}")]
    Busy(String),
    /// It did not answer, or cannot now: a change may be done or not.
    #[error("the scheduler is unavailable: {0}")]
    Unavailable(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::due::{FAR_INDEX, SlotMinute};
    use crate::task_queue::ready_ms;
    use proptest::prelude::*;

    fn jobs(delay_s: u32) -> NewJobs {
        NewJobs {
            queue: QueueName::new("n", "q").unwrap(),
            delay_s,
            ttl_s: 0,
            tries: 7,
            is_versioned: true,
            attributes: vec![("color".into(), "red".into())],
            bodies: vec!["one".into(), "".into()],
        }
    }

    proptest! {
        #[test]
        fn an_id_leads_to_its_timer_and_a_timer_to_its_job(
            published_ms in 0_u64..(1 << 44), delay_s: u32, shard in 0_u16..1_024, number in 0_u32..(1 << 28),
            is_far: bool, shards in 1_u16..=256,
        ) {
            let slot = SlotMinute::of(ready_ms(published_ms, delay_s));
            let index = if is_far { FAR_INDEX | number } else { number };
            let timer = TaskId { shard: Shard(shard), slot, index };
            let jobs = jobs(delay_s);
            for (payload, body) in FarJob::payloads(&jobs, published_ms).iter().zip(&jobs.bodies) {
                let job = FarJob::of_timer(payload, timer, shards).unwrap();
                let id = job.record.id;
                prop_assert_eq!((id.published_ms(), id.delay_s(), id.is_versioned()), (published_ms, delay_s, true));
                prop_assert!(id.shard().0 < shards);
                prop_assert_eq!(id.timer(), Some(timer));
                prop_assert_eq!((&job.queue, &job.record.body), (&jobs.queue, body));
                prop_assert_eq!((job.record.tries, job.record.ttl_s), (7, 0));
                prop_assert_eq!(&job.record.attributes, &jobs.attributes);
            }
        }

        #[test]
        fn any_bytes_are_a_far_job_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let timer = TaskId { shard: Shard(1), slot: SlotMinute(7), index: FAR_INDEX };
            let payload = Bytes::from(bytes);
            prop_assert!(FarJob::of_timer(&payload, timer, 3).is_ok() || FarJob::of_timer(&payload, timer, 3).is_err());
        }
    }

    #[test]
    fn a_timer_that_no_id_has_room_for_or_of_another_minute_has_no_job() {
        let payload = FarJob::payloads(&jobs(90_000), 1_800_000_000_000).remove(0);
        let slot = SlotMinute::of(ready_ms(1_800_000_000_000, 90_000));
        let timer = TaskId { shard: Shard(3), slot, index: FAR_INDEX | 7 };
        assert!(FarJob::of_timer(&payload, timer, 1).is_ok());
        for wrong in [
            TaskId { index: FAR_INDEX | 1 << 28, ..timer },
            TaskId { index: 1 << 28, ..timer },
            TaskId { shard: Shard(1_024), ..timer },
            TaskId { slot: SlotMinute(slot.0 + 1), ..timer },
        ] {
            assert!(FarJob::of_timer(&payload, wrong, 1).is_err(), "{wrong}");
        }
        let near = JobId::new(1_800_000_000_000, Shard(0), JobId::SEQUENCES - 1, 90_000, false);
        assert_eq!(near.timer(), None, "no job that a store has numbered is a far one");
    }
}
