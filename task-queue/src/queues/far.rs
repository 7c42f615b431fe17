//! Jobs that are due much later: they wait as timers of the scheduler, and their ids say as which ones.

use super::{Inner, Kept, QueueError, Queues};
use std::sync::Arc;
use tokio::sync::oneshot;
use windfall_contract::due::{Changed, PAYLOAD_MAX_BYTES, Shard, TaskId, Waiting};
use windfall_contract::task_queue::{
    DoubtfulJobs, FarJob, FarTimers, FarTimersError, FoundJob, JobId, JobStoreError, NewJobs, ONCE_KEPT_MS,
    PublishedFar, QueueName, TakenJob, ready_ms,
};

/// By how much the clocks of a store's shards differ at most.
const CLOCKS_APART_MS: u64 = 3_600_000;
/// Calls that publish far jobs at a time at most; one more is told to come again.
const FAR_PUBLISHING_MAX: usize = 16_384;

/// Where jobs wait that are due later than a horizon.
#[derive(Clone)]
pub struct FarJobs {
    /// The timers that they wait as. Whatever fires them publishes to the same store of jobs.
    pub timers: Arc<dyn FarTimers>,
    /// Jobs with a longer delay than this wait there, but for those that are too long for a timer's payload.
    pub horizon_s: u32,
}

/// How the timer of a far job is.
enum Timer {
    /// The scheduler does not know it: there never was such a timer, or it is over, or it was late.
    Gone,
    Cancelled,
    /// It is that of a job of another queue.
    OfAnother,
    Waits(FarJob),
    Fires(FarJob),
}

impl From<FarTimersError> for QueueError {
    fn from(error: FarTimersError) -> Self {
        match error {
            FarTimersError::Busy(_) => Self::Busy,
            unavailable @ FarTimersError::Unavailable(_) => {
                Self::Store(JobStoreError::Unavailable(unavailable.to_string()))
            }
        }
    }
}

/// The ids of far jobs, or jobs that are not for later, with what has to live as long.
type PublishedOrNear = Result<Vec<JobId>, (NewJobs, Kept)>;

impl Queues {
    /// Publishes jobs as timers, if they are for later; else it returns them. The scheduler goes on with them when the caller
    /// hangs up, so a task of its own does.
    pub(super) async fn publish_far(&self, jobs: NewJobs, kept: Kept) -> Result<PublishedOrNear, QueueError> {
        if !self.inner.are_far(&jobs) {
            return Ok(Err((jobs, kept)));
        }
        let inner = Arc::clone(&self.inner);
        let (reply, answer) = oneshot::channel();
        {
            let mut publishing = self.inner.far_publishing.lock();
            // Those that have ended have answered, and the callers of those that have panicked know.
            while publishing.try_join_next().is_some() {}
            if publishing.len() >= FAR_PUBLISHING_MAX {
                return Err(QueueError::Busy);
            }
            publishing.spawn(async move {
                let published = inner.publish_far(jobs).await;
                let answer = published.map(|published| published.map_err(|jobs| (jobs, kept)));
                // Whoever has hung up waits for no answer.
                reply.send(answer).ok();
            });
        }
        let given_up = |_| JobStoreError::Unavailable("the call was given up".into());
        answer.await.map_err(given_up)?
    }
}

impl Inner {
    /// Whether jobs are for later.
    fn are_far(&self, jobs: &NewJobs) -> bool {
        self.far.as_ref().is_some_and(|far| jobs.delay_s > far.horizon_s)
    }

    /// Publishes jobs as timers, if they are for later; else it returns them.
    async fn publish_far(&self, jobs: NewJobs) -> Result<Result<Vec<JobId>, NewJobs>, QueueError> {
        let Some(far) = self.far.as_ref().filter(|_| self.are_far(&jobs)) else {
            return Ok(Err(jobs));
        };
        // The store's clock, and not this host's, says when a job was published, and so when it is due.
        let well = self.shards().find(|shard| self.is_asked(*shard)).unwrap_or(Shard(0));
        let published_ms = self.store_now_ms(well).await?;
        let payloads = FarJob::payloads(&jobs, published_ms);
        if payloads.iter().any(|payload| payload.len() > PAYLOAD_MAX_BYTES) {
            return Ok(Err(jobs));
        }
        let timers = far.timers.add(ready_ms(published_ms, jobs.delay_s), payloads).await?;
        let seed = JobId::new(published_ms, Shard(0), 0, jobs.delay_s, jobs.is_versioned);
        let ids: Option<Vec<JobId>> =
            timers.iter().map(|timer| JobId::of_timer(*timer, seed, self.store.shards())).collect();
        if let Some(ids) = ids {
            return Ok(Ok(ids));
        }
        // More timers in the hour than ids have room for, or the time has come meanwhile. A target refuses such timers, so no
        // job comes twice where one of them fires all the same.
        for timer in timers {
            far.timers.cancel(timer).await?;
        }
        Ok(Err(jobs))
    }

    /// A far job that was not in the store of jobs a moment ago.
    pub(super) async fn get_far(&self, queue: &QueueName, id: JobId) -> Result<Option<FoundJob>, QueueError> {
        let (Some(far), Some(timer)) = (&self.far, id.timer()) else { return Ok(None) };
        let (job, may_be_early) = match self.timer(far, timer, queue, id).await? {
            Timer::Cancelled | Timer::OfAnother => return Ok(None),
            // It may have fired since.
            Timer::Gone => return Ok(self.store.get(queue, id).await?),
            Timer::Waits(job) => (job, true),
            // The scheduler may say for hours that it fires, when the store has forgotten that it was there.
            Timer::Fires(job) => {
                let now_ms = self.store_now_ms(id.shard()).await?;
                (job, now_ms < due_ms(id) + ONCE_KEPT_MS / 2)
            }
        };
        // Whether it is published already, or was deleted by a process that could not cancel its timer, only the store knows:
        // whoever publishes it first, it is published once.
        let jobs = std::slice::from_ref(&job);
        let is_early = may_be_early
            && matches!(
                self.store.publish_far(id.shard(), jobs, DoubtfulJobs::Refuse).await?.first(),
                Some(PublishedFar::Early(_))
            );
        if !is_early {
            return Ok(self.store.get(queue, id).await?);
        }
        let now_ms = self.store_now_ms(id.shard()).await?;
        let (expires_ms, record) = (job.record.expires_ms(), job.record);
        let (body, attributes, tries_left) = (record.body, record.attributes, record.tries);
        let job = TakenJob { id, body, attributes, expires_ms, tries_left };
        Ok(Some(FoundJob { job, now_ms }))
    }

    /// Ends a far job that was not in the store of jobs a moment ago: its timer is cancelled, or where that may fire all the
    /// same, because its time has come or the scheduler does not answer, the job is kept away. Whether it was there.
    pub(super) async fn remove_far(&self, queue: &QueueName, id: JobId) -> Result<bool, QueueError> {
        let Some(timer) = id.timer() else { return Ok(false) };
        let found = match &self.far {
            // Nobody here can cancel the timer, which finds then that its job was deleted.
            None => Timer::Gone,
            Some(far) => match self.timer(far, timer, queue, id).await {
                Ok(Timer::Waits(job)) => match far.timers.cancel(timer).await {
                    Ok(Changed::Done(_) | Changed::Cancelled) => return Ok(true),
                    // Its time has just come, or it is on its way to the near tier, or nobody knows.
                    Ok(Changed::Firing | Changed::Unknown) => Timer::Fires(job),
                    Err(error) => {
                        tracing::debug!(%id, %error, "a far job's timer cannot be cancelled: its job is kept away");
                        Timer::Fires(job)
                    }
                },
                Ok(found) => found,
                // Nobody says whether it waits.
                Err(QueueError::Busy | QueueError::Store(JobStoreError::Unavailable(_))) => Timer::Gone,
                Err(error) => return Err(error),
            },
        };
        let may_come = match found {
            Timer::Cancelled | Timer::OfAnother => false,
            // One that is late may be known by its first id no more. No store has given an id of the future, but another
            // shard's clock may be ahead.
            Timer::Gone => id.published_ms() <= self.store_now_ms(id.shard()).await? + CLOCKS_APART_MS,
            Timer::Waits(_) | Timer::Fires(_) => true,
        };
        if !may_come {
            return Ok(false);
        }
        match self.store.remove_far(id.shard(), &[(queue.clone(), id)]).await {
            Ok(removed) => Ok(removed.first().copied().unwrap_or(false)),
            Err(error) => {
                if error == JobStoreError::TooManyFarRemovals {
                    self.counters.far_removal_refused();
                }
                Err(error.into())
            }
        }
    }

    async fn timer(
        &self,
        far: &FarJobs,
        timer: TaskId,
        queue: &QueueName,
        id: JobId,
    ) -> Result<Timer, QueueError> {
        let (is_firing, payload) = match far.timers.get(timer).await? {
            None => return Ok(Timer::Gone),
            // It need not have a payload any more.
            Some((Waiting::Cancelled, _)) => return Ok(Timer::Cancelled),
            Some((state, payload)) => (state == Waiting::Firing, payload),
        };
        Ok(match FarJob::of_timer(&payload, timer, self.store.shards()) {
            Ok(job) if job.queue == *queue && job.record.id == id => {
                if is_firing {
                    Timer::Fires(job)
                } else {
                    Timer::Waits(job)
                }
            }
            Ok(_) | Err(_) => Timer::OfAnother,
        })
    }

    /// The clock of the store of jobs.
    async fn store_now_ms(&self, shard: Shard) -> Result<u64, JobStoreError> {
        // A call that takes nothing says the time.
        let (now_ms, _) = self.store.take(shard, &[]).await?;
        Ok(now_ms)
    }
}

/// When a job is due, by the store's clock.
fn due_ms(id: JobId) -> u64 {
    ready_ms(id.published_ms(), id.delay_s())
}
