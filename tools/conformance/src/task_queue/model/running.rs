//! Makes the calls of a run on a store, and holds each answer against the model.
//!
//! The store's clock decides, and it may go on during a call. Where an answer does not say when it was decided, the test reads
//! the clock before and after the call. What became true in between may have been seen by the store or not. Then the test asks
//! what has become of the job, and the model goes on from there. Where the clock is the test's, there is no such moment, and
//! each answer has to be the one that the model has.

use super::jobs::{Model, Place, State};
use super::ops::{Asked, ModelClock, Op, Pick, QUEUES, SHARDS, Spec};
use crate::task_queue::{Fixture, holds, said, same};
use bytes::Bytes;
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::Arc;
use windfall_contract::due::Shard;
use windfall_contract::task_queue::{
    FoundJob, JobId, JobStore, Lease, NewJobs, OnceJob, OnceMark, QueueName, Take, ready_ms,
};

/// Calls in a row that a store may need for one thing, which has few jobs here.
pub(super) const CALLS_MAX: usize = 1_000;
/// Consumers at the same time.
const RUSH: usize = 4;

pub(super) struct Run<'f> {
    fixture: &'f dyn Fixture,
    store: Option<Arc<dyn JobStore>>,
    names: Vec<QueueName>,
    pub(super) model: Model,
}

/// The shards that a run uses.
pub(super) fn shards() -> impl Iterator<Item = Shard> {
    (0..SHARDS).map(Shard)
}

impl<'f> Run<'f> {
    pub(super) async fn begin(fixture: &'f dyn Fixture) -> Result<Self, String> {
        let name = |number: usize| QueueName::new("model", &format!("q{number}")).map_err(said);
        let names = (0..QUEUES).map(name).collect::<Result<_, _>>()?;
        let mut run = Self { fixture, store: None, names, model: Model::default() };
        run.reopen().await?;
        holds("there are shards enough", run.store()?.shards() >= SHARDS)?;
        Ok(run)
    }

    pub(super) async fn step(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Publish(shard, specs) => self.publish(*shard, specs).await,
            Op::PublishOnce(shard, marks, spec) => self.publish_once(*shard, marks, spec).await,
            Op::Take(shard, asked) => self.take(*shard, asked).await.map(drop),
            Op::Consume { queues, count, ttr_s } => self.consume(queues, *count, *ttr_s).await,
            Op::Rush(shard, asked) => self.rush(*shard, *asked).await,
            Op::Remove(shard, picks) => {
                let jobs: Vec<_> = picks.iter().filter_map(|pick| self.picked(*shard, *pick)).collect();
                self.remove(*shard, &jobs).await
            }
            Op::GiveBack(nth) => self.give_back(*nth).await,
            Op::Look => self.look().await,
            Op::Peek(shard, queue) => self.peek(Place { shard: *shard, queue: *queue }).await,
            Op::Get(shard, pick) => match self.picked(*shard, *pick) {
                Some((queue, id)) => self.get(queue, id).await,
                None => Ok(()),
            },
            Op::DeadHead(shard, queue) => self.dead_head(Place { shard: *shard, queue: *queue }).await,
            Op::Respawn { shard, queue, limit, ttl_s } => {
                self.respawn(Place { shard: *shard, queue: *queue }, *limit, *ttl_s).await
            }
            Op::DropDead { shard, queue, limit } => {
                self.drop_dead(Place { shard: *shard, queue: *queue }, *limit).await
            }
            Op::DropReady(shard, queue) => self.drop_ready(Place { shard: *shard, queue: *queue }).await,
            Op::Tend(shard) => self.tend(*shard).await,
            Op::Sweep(shard) => self.sweep(*shard).await,
            Op::Wait { ms } => {
                self.fixture.wait_ms(*ms).await;
                Ok(())
            }
            Op::Compare => self.compare().await,
            Op::Reopen => self.reopen().await,
            Op::Crash => {
                self.fixture.crash().await?;
                self.reopen().await
            }
        }
    }

    /// What is left comes when its time has come, and nothing else does, then or later.
    pub(super) async fn finish(&mut self, clock: ModelClock) -> Result<(), String> {
        self.compare().await?;
        for shard in shards() {
            let soon_ms = self.now_ms(shard).await? + 4_000;
            let comes_ms = |id: JobId, state| match state {
                State::Fresh => ready_ms(id.published_ms(), id.delay_s()),
                State::Leased { end_ms } => end_ms,
                State::Again | State::Dead { .. } | State::Over => 0,
            };
            if clock == ModelClock::OfTheStore {
                // Nobody waits for those that are for much later.
                let far = self.model.of_shard(shard).filter(|(id, job)| comes_ms(*id, job.state) > soon_ms);
                let far: Vec<_> = far.map(|(id, job)| (job.queue, id)).collect();
                self.remove(shard, &far).await?;
            }
            let last_ms = self.model.of_shard(shard).map(|(id, job)| comes_ms(id, job.state)).max();
            let wait_ms = last_ms.unwrap_or(0).saturating_sub(self.now_ms(shard).await?);
            self.fixture.wait_ms(wait_ms).await;
            self.tend(shard).await?;
            for queue in 0..QUEUES {
                self.take(shard, &[Asked { queue, count: 1_000, ttr_s: 1 }]).await?;
                self.drop_dead(Place { shard, queue }, 1_000).await?;
            }
            let left = self.model.of_shard(shard).map(|(id, job)| (job.queue, id)).collect::<Vec<_>>();
            self.remove(shard, &left).await?;
        }
        self.reopen().await?;
        self.fixture.wait_ms(1_100).await;
        for shard in shards() {
            self.tend(shard).await?;
            for queue in 0..QUEUES {
                same("jobs that come at the end", &self.take_all(shard, queue).await?, &0)?;
            }
        }
        self.compare().await
    }

    async fn take_all(&mut self, shard: Shard, queue: usize) -> Result<usize, String> {
        self.take(shard, &[Asked { queue, count: 1_000, ttr_s: 600 }]).await
    }

    pub(super) fn store(&self) -> Result<Arc<dyn JobStore>, String> {
        self.store.clone().ok_or_else(|| "the store is closed".into())
    }

    pub(super) fn name(&self, queue: usize) -> &QueueName {
        &self.names[queue % QUEUES]
    }

    pub(super) fn names(&self) -> &[QueueName] {
        &self.names
    }

    /// The store's clock.
    pub(super) async fn now_ms(&self, shard: Shard) -> Result<u64, String> {
        Ok(self.store()?.take(shard, &[]).await.map_err(said)?.0)
    }

    /// What the store says of a job of the model.
    pub(super) async fn find(&self, id: JobId) -> Result<Option<FoundJob>, String> {
        let queue = self.model.jobs.get(&id).map_or(0, |job| job.queue);
        self.store()?.get(self.name(queue), id).await.map_err(said)
    }

    /// Those of these jobs that the store has no more.
    pub(super) async fn gone(&self, ids: &[JobId]) -> Result<Vec<JobId>, String> {
        let mut gone = Vec::new();
        for id in ids {
            if self.find(*id).await?.is_none() {
                gone.push(*id);
            }
        }
        Ok(gone)
    }

    fn picked(&self, shard: Shard, pick: Pick) -> Option<(usize, JobId)> {
        let nth_of = |ids: Vec<(usize, JobId)>, nth: u64| {
            let at = nth.checked_rem(ids.len() as u64)?;
            ids.get(usize::try_from(at).ok()?).copied()
        };
        let any = || {
            let own = self.model.jobs.iter().filter(|(id, _)| id.shard() == shard);
            own.map(|(id, job)| (job.queue, *id)).collect::<Vec<_>>()
        };
        match pick {
            Pick::Leased(nth) => {
                let jobs = self.model.of_shard(shard);
                let leased = jobs.filter(|(_, job)| matches!(job.state, State::Leased { .. }));
                nth_of(leased.map(|(id, job)| (job.queue, id)).collect(), nth)
            }
            Pick::Any(nth) => nth_of(any(), nth),
            Pick::Misnamed(nth) => nth_of(any(), nth).map(|(queue, id)| ((queue + 1) % QUEUES, id)),
        }
    }

    async fn reopen(&mut self) -> Result<(), String> {
        self.store = None;
        self.store = Some(self.fixture.open().await?.0);
        Ok(())
    }

    fn new_jobs(&mut self, spec: &Spec) -> NewJobs {
        let bodies: Vec<Bytes> = (0..spec.bodies).map(|_| self.model.new_body()).collect();
        let attribute = |body: &Bytes| ("of".to_owned(), String::from_utf8_lossy(body).into_owned());
        NewJobs {
            queue: self.name(spec.queue).clone(),
            delay_s: spec.delay_s,
            ttl_s: spec.ttl_s,
            tries: spec.tries,
            is_versioned: spec.is_versioned,
            attributes: bodies.iter().take(spec.is_versioned.into()).map(attribute).collect(),
            bodies,
        }
    }

    async fn publish(&mut self, shard: Shard, specs: &[Spec]) -> Result<(), String> {
        let batch: Vec<NewJobs> = specs.iter().map(|spec| self.new_jobs(spec)).collect();
        let from_ms = self.now_ms(shard).await?;
        let ids = self.store()?.publish(shard, &batch).await.map_err(said)?;
        let within_ms = (from_ms, self.now_ms(shard).await?);
        let lengths: Vec<usize> = ids.iter().map(Vec::len).collect();
        same("ids of each group", &lengths, &batch.iter().map(|jobs| jobs.bodies.len()).collect())?;
        for ((spec, jobs), ids) in specs.iter().zip(&batch).zip(&ids) {
            let place = Place { shard, queue: spec.queue };
            for (body, id) in jobs.bodies.iter().zip(ids) {
                self.model.published(place, jobs, body, *id, within_ms)?;
            }
        }
        Ok(())
    }

    async fn publish_once(&mut self, shard: Shard, marks: &[u8], spec: &Spec) -> Result<(), String> {
        let batch: Vec<OnceJob> = marks
            .iter()
            .map(|mark| OnceJob { mark: OnceMark([*mark; 16]), job: self.new_jobs(spec) })
            .collect();
        let from_ms = self.now_ms(shard).await?;
        let ids = self.store()?.publish_once(shard, &batch).await.map_err(said)?;
        let within_ms = (from_ms, self.now_ms(shard).await?);
        same("answers", &ids.len(), &batch.len())?;
        let mut seen = BTreeSet::new();
        for ((mark, once), id) in marks.iter().zip(&batch).zip(ids) {
            let known =
                if seen.insert(*mark) { self.model.is_known(shard, *mark, within_ms.1) } else { Some(true) };
            let is_so = known.is_none_or(|is_known| is_known == id.is_none());
            holds(&format!("mark {mark} is known: {known:?}, with the answer {id:?}"), is_so)?;
            if let (Some(id), Some(body)) = (id, once.job.bodies.first()) {
                let place = Place { shard, queue: spec.queue };
                self.model.published(place, &once.job, body, id, within_ms)?;
                self.model.marked(shard, *mark, from_ms);
            }
        }
        Ok(())
    }

    fn take_of(&self, asked: &Asked) -> Take {
        Take { queue: self.name(asked.queue).clone(), count: asked.count, ttr_s: asked.ttr_s }
    }

    /// How many were taken.
    async fn take(&mut self, shard: Shard, asked: &[Asked]) -> Result<usize, String> {
        let takes: Vec<Take> = asked.iter().map(|one| self.take_of(one)).collect();
        let (now_ms, answers) = self.store()?.take(shard, &takes).await.map_err(said)?;
        same("answers", &answers.len(), &takes.len())?;
        let mut expired = [0; QUEUES];
        for (one, answer) in asked.iter().zip(&answers) {
            let place = Place { shard, queue: one.queue };
            holds("so few jobs are looked at in one call", !answer.is_cut)?;
            holds("no more jobs are taken than were asked for", answer.jobs.len() <= one.count)?;
            self.model.taken_in_order(place, now_ms, one.ttr_s, &answer.jobs)?;
            if answer.jobs.len() < one.count {
                self.model.hides_none(place, now_ms, now_ms)?;
            }
            expired[one.queue] += answer.expired;
            let ready = self.model.counts(place, now_ms).ready;
            same("ready jobs that are left", &(answer.ready_left + expired[one.queue]), &ready)?;
            let is_bare = answer.jobs.len() == one.count || answer.ready_left == 0;
            holds("nothing is left where fewer were taken than were asked for", is_bare)?;
        }
        for (queue, expired) in expired.into_iter().enumerate() {
            self.expire(Place { shard, queue }, now_ms, expired).await?;
        }
        Ok(answers.iter().map(|answer| answer.jobs.len()).sum())
    }

    /// The store has come upon so many jobs whose ttl had ended: it says which.
    async fn expire(&mut self, place: Place, now_ms: u64, count: u64) -> Result<(), String> {
        let over = self.model.ids(place, |id, job| job.is_ready(id, now_ms) && job.is_expired(now_ms));
        let gone = self.gone(&over).await?;
        same("jobs that have expired and are gone", &(gone.len() as u64), &count)?;
        self.model.end(&gone)
    }

    async fn consume(&mut self, queues: &[usize], count: usize, ttr_s: u32) -> Result<(), String> {
        let mut looks = Vec::new();
        for shard in shards() {
            let from_ms = self.now_ms(shard).await?;
            looks.push((shard, from_ms, self.store()?.look(shard, &self.names).await.map_err(said)?));
        }
        // The queues to the left of this one have nothing left.
        let (mut got, mut bare) = (0, 0);
        for (at, queue) in queues.iter().enumerate() {
            for (shard, _, counts) in &looks {
                if got < count && counts.get(*queue).is_some_and(|counts| counts.ready > 0) {
                    let asked = Asked { queue: *queue, count: count - got, ttr_s };
                    let some = self.take(*shard, &[asked]).await?;
                    got += some;
                    bare = if some > 0 { at } else { bare };
                }
            }
        }
        if got < count {
            bare = queues.len();
        }
        for (shard, from_ms, _) in looks {
            let to_ms = self.now_ms(shard).await?;
            for queue in &queues[..bare] {
                self.model.hides_none(Place { shard, queue: *queue }, from_ms, to_ms)?;
            }
        }
        Ok(())
    }

    async fn rush(&mut self, shard: Shard, asked: Asked) -> Result<(), String> {
        let (store, take) = (self.store()?, [self.take_of(&asked)]);
        let answers = join_all((0..RUSH).map(|_| store.take(shard, &take))).await;
        let answers = answers.into_iter().collect::<Result<Vec<_>, _>>().map_err(said)?;
        let place = Place { shard, queue: asked.queue };
        let (mut expired, mut last_ms) = (0, 0);
        for (now_ms, taken) in &answers {
            same("answers", &taken.len(), &1)?;
            for job in &taken[0].jobs {
                self.model.taken(place, *now_ms, asked.ttr_s, job)?;
            }
            expired += taken[0].expired;
            last_ms = last_ms.max(*now_ms);
        }
        for (now_ms, taken) in &answers {
            if taken[0].jobs.len() < asked.count {
                self.model.hides_none(place, *now_ms, *now_ms)?;
            }
        }
        self.expire(place, last_ms, expired).await
    }

    pub(super) async fn remove(&mut self, shard: Shard, jobs: &[(usize, JobId)]) -> Result<(), String> {
        let named: Vec<_> = jobs.iter().map(|(queue, id)| (self.name(*queue).clone(), *id)).collect();
        let removed = self.store()?.remove(shard, &named).await.map_err(said)?;
        let expected: Vec<_> = jobs.iter().map(|(queue, id)| self.model.removed(*queue, *id)).collect();
        same(&format!("whether each of {jobs:?} was there"), &removed, &expected)
    }

    async fn give_back(&mut self, nth: usize) -> Result<(), String> {
        let Some((queue, id, end_ms)) = self.model.leases.iter().rev().nth(nth).copied() else {
            return Ok(());
        };
        let lease = Lease { queue: self.name(queue).clone(), id, end_ms };
        self.store()?.give_back(id.shard(), &[lease]).await.map_err(said)?;
        let to_ms = self.now_ms(id.shard()).await?;
        let found = self.find(id).await?.map(|found| found.job.tries_left);
        let job = self.model.job(id)?;
        if job.state != (State::Leased { end_ms }) {
            return Ok(());
        }
        let with_try = job.tries_left.saturating_add(1);
        // A lease whose end nobody has seen to yet may be one that has ended, or not.
        if end_ms > to_ms || found != Some(job.tries_left) {
            same("tries of a job that was given back", &found, &Some(with_try))?;
            (job.state, job.tries_left) = (State::Again, with_try);
        }
        Ok(())
    }
}
