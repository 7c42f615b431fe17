//! What a store of jobs is, without files or servers: a list of jobs.

use crate::task_queue::{holds, same};
use bytes::Bytes;
use std::collections::BTreeMap;
use windfall_contract::due::Shard;
use windfall_contract::task_queue::{
    Attributes, JobId, Lease, NewJobs, ONCE_KEPT_MS, QueueCounts, TakenJob, ready_ms,
};

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It was never taken.
    Fresh,
    /// It was taken, and waits to be taken again.
    Again,
    Leased {
        end_ms: u64,
    },
    /// Since some time between these.
    Dead {
        since_ms: (u64, u64),
    },
    /// It was acknowledged, cancelled or dropped, or its ttl has ended and somebody has come upon it.
    Over,
}

/// A job as it has to be.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) queue: usize,
    pub(super) state: State,
    /// 0 is never.
    pub(super) expires_ms: u64,
    pub(super) tries_left: u16,
    body: Bytes,
    attributes: Attributes,
}

impl Job {
    pub(super) fn is_ready(&self, id: JobId, now_ms: u64) -> bool {
        match self.state {
            State::Fresh => ready_ms(id.published_ms(), id.delay_s()) <= now_ms,
            State::Again => true,
            State::Leased { .. } | State::Dead { .. } | State::Over => false,
        }
    }

    pub(super) fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms != 0 && self.expires_ms <= now_ms
    }

    /// Never taken, and published without a delay.
    fn is_plain(&self, id: JobId) -> bool {
        self.state == State::Fresh && id.delay_s() == 0
    }

    /// As a look has to find it; `None` if it is over.
    pub(super) fn as_found(&self, id: JobId) -> Option<TakenJob> {
        let expires_ms = match self.state {
            State::Over => return None,
            State::Dead { .. } => 0,
            State::Fresh | State::Again | State::Leased { .. } => self.expires_ms,
        };
        let (body, attributes) = (self.body.clone(), self.attributes.clone());
        Some(TakenJob { id, body, attributes, expires_ms, tries_left: self.tries_left })
    }
}

/// A queue in a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) shard: Shard,
    pub(super) queue: usize,
}

/// All jobs that there ever were.
#[derive(Default)]
pub(super) struct Model {
    pub(super) jobs: BTreeMap<JobId, Job>,
    /// By shard, until when each is known at least.
    pub(super) marks: BTreeMap<(Shard, u8), u64>,
    /// All leases that there ever were: queue, job, end.
    pub(super) leases: Vec<(usize, JobId, u64)>,
    bodies: u64,
}

impl Model {
    /// A body that no other job has.
    pub(super) fn new_body(&mut self) -> Bytes {
        self.bodies += 1;
        format!("body {}", self.bodies).into()
    }

    /// The jobs of a place that are not over.
    pub(super) fn of(&self, place: Place) -> impl Iterator<Item = (JobId, &Job)> {
        self.of_shard(place.shard).filter(move |(_, job)| job.queue == place.queue)
    }

    /// The jobs of a shard that are not over.
    pub(super) fn of_shard(&self, shard: Shard) -> impl Iterator<Item = (JobId, &Job)> {
        let jobs = self.jobs.iter().map(|(id, job)| (*id, job));
        jobs.filter(move |(id, job)| id.shard() == shard && job.state != State::Over)
    }

    /// The ids of a place's jobs of which this is so.
    pub(super) fn ids(&self, place: Place, is_so: impl Fn(JobId, &Job) -> bool) -> Vec<JobId> {
        self.of(place).filter(|(id, job)| is_so(*id, job)).map(|(id, _)| id).collect()
    }

    pub(super) fn job(&mut self, id: JobId) -> Result<&mut Job, String> {
        self.jobs.get_mut(&id).ok_or_else(|| format!("nobody published {id}"))
    }

    pub(super) fn end(&mut self, ids: &[JobId]) -> Result<(), String> {
        ids.iter().try_for_each(|id| {
            self.job(*id)?.state = State::Over;
            Ok(())
        })
    }

    /// What is counted at this time.
    pub(super) fn counts(&self, place: Place, now_ms: u64) -> QueueCounts {
        let mut counts = QueueCounts::default();
        for (id, job) in self.of(place) {
            match job.state {
                State::Dead { .. } => counts.dead += 1,
                State::Leased { .. } | State::Over => {}
                State::Fresh | State::Again if job.is_ready(id, now_ms) => counts.ready += 1,
                State::Fresh | State::Again => counts.delayed += 1,
            }
        }
        counts
    }

    /// The store has published a job, at some time between two.
    pub(super) fn published(
        &mut self,
        place: Place,
        jobs: &NewJobs,
        body: &Bytes,
        id: JobId,
        within_ms: (u64, u64),
    ) -> Result<(), String> {
        let found = (id.shard(), id.delay_s(), id.is_versioned());
        same("shard, delay and version of an id", &found, &(place.shard, jobs.delay_s, jobs.is_versioned))?;
        let published_ms = id.published_ms();
        let is_now = (within_ms.0..=within_ms.1).contains(&published_ms);
        holds(&format!("{id} says when it was published, between {within_ms:?}"), is_now)?;
        let expires_ms = match jobs.ttl_s {
            0 => 0,
            ttl_s => published_ms + u64::from(ttl_s) * 1_000,
        };
        let job = Job {
            queue: place.queue,
            state: State::Fresh,
            expires_ms,
            tries_left: jobs.tries,
            body: body.clone(),
            attributes: jobs.attributes.clone(),
        };
        holds(&format!("{id} was given once"), self.jobs.insert(id, job).is_none())
    }

    /// Whether a mark has to be known, must not be, or may be (`None`).
    pub(super) fn is_known(&self, shard: Shard, mark: u8, now_ms: u64) -> Option<bool> {
        match self.marks.get(&(shard, mark)) {
            None => Some(false),
            Some(until_ms) => (now_ms < *until_ms).then_some(true),
        }
    }

    pub(super) fn marked(&mut self, shard: Shard, mark: u8, from_ms: u64) {
        self.marks.insert((shard, mark), from_ms + ONCE_KEPT_MS);
    }

    /// The store has taken a job at this time. That is right if it was ready, had not expired, and is as it has to be.
    pub(super) fn taken(
        &mut self,
        place: Place,
        now_ms: u64,
        ttr_s: u32,
        taken: &TakenJob,
    ) -> Result<(), String> {
        let id = taken.id;
        let job = self.job(id)?;
        same(&format!("queue and shard of {id}"), &(job.queue, id.shard()), &(place.queue, place.shard))?;
        if !job.is_ready(id, now_ms) || job.is_expired(now_ms) {
            let due_ms = ready_ms(id.published_ms(), id.delay_s());
            return Err(format!("{id}, which is due at {due_ms}, was taken at {now_ms}, and is {job:?}"));
        }
        let tries_left = job.tries_left.checked_sub(1).ok_or_else(|| format!("{id} has no try left"))?;
        job.tries_left = tries_left;
        same("a job that was taken", &Some(taken), &job.as_found(id).as_ref())?;
        let end_ms = Lease::end_ms(now_ms, ttr_s);
        job.state = State::Leased { end_ms };
        self.leases.push((place.queue, id, end_ms));
        Ok(())
    }

    /// The same of all jobs of one answer. Those that were published without a delay, and were never taken before, come in
    /// the order in which they were published, and none before them is passed over.
    pub(super) fn taken_in_order(
        &mut self,
        place: Place,
        now_ms: u64,
        ttr_s: u32,
        taken: &[TakenJob],
    ) -> Result<(), String> {
        let is_plain = |id: JobId| self.jobs.get(&id).is_some_and(|job| job.is_plain(id));
        let plain: Vec<u64> =
            taken.iter().map(|job| job.id).filter(|id| is_plain(*id)).map(|id| id.sequence()).collect();
        holds(&format!("{plain:?} are in the order in which they were published"), plain.is_sorted())?;
        taken.iter().try_for_each(|job| self.taken(place, now_ms, ttr_s, job))?;
        let Some(last) = plain.last() else { return Ok(()) };
        let passed_over =
            self.ids(place, |id, job| job.is_plain(id) && !job.is_expired(now_ms) && id.sequence() < *last);
        holds(&format!("{passed_over:?} are not passed over"), passed_over.is_empty())
    }

    /// No job that is ready at a time is left where a consumer has got fewer than it wanted.
    pub(super) fn hides_none(&self, place: Place, ready_at_ms: u64, alive_at_ms: u64) -> Result<(), String> {
        let left = self.ids(place, |id, job| job.is_ready(id, ready_at_ms) && !job.is_expired(alive_at_ms));
        let what =
            || format!("{left:?} of queue {} are ready at {ready_at_ms}, and were not taken", place.queue);
        if left.is_empty() { Ok(()) } else { Err(what()) }
    }

    /// Whether a job of this queue was there; it is over now.
    pub(super) fn removed(&mut self, queue: usize, id: JobId) -> bool {
        let job = self.jobs.get_mut(&id).filter(|job| job.queue == queue && job.state != State::Over);
        let Some(job) = job else { return false };
        job.state = State::Over;
        true
    }
}
