//! The calls that look at jobs, and those that keep a store.

use super::jobs::{Place, State};
use super::ops::QUEUES;
use super::running::{CALLS_MAX, Run, shards};
use crate::task_queue::{holds, said, same};
use std::collections::BTreeSet;
use windfall_contract::due::Shard;
use windfall_contract::task_queue::{FoundJob, JobId, Tended};

impl Run<'_> {
    /// All sizes.
    pub(super) async fn look(&self) -> Result<(), String> {
        for shard in shards() {
            let from_ms = self.now_ms(shard).await?;
            let looked = self.store()?.look(shard, self.names()).await.map_err(said)?;
            let ready_for = self.store()?.ready_for_ms(shard, self.names()).await.map_err(said)?;
            let to_ms = self.now_ms(shard).await?;
            same("answers", &(looked.len(), ready_for.len()), &(QUEUES, QUEUES))?;
            for (queue, (found, ready_for_ms)) in looked.into_iter().zip(ready_for).enumerate() {
                let place = Place { shard, queue };
                let (first, last) = (self.model.counts(place, from_ms), self.model.counts(place, to_ms));
                let what = format!("of {place:?}, {found:?} is between {first:?} and {last:?}");
                holds(&what, (first.ready..=last.ready).contains(&found.ready))?;
                holds(&what, found.ready + found.delayed == first.ready + first.delayed)?;
                holds(&what, found.dead == first.dead)?;
                let is_known = first.ready == 0 || ready_for_ms.is_some();
                holds(&format!("it is said for how long a job of {place:?} has been ready"), is_known)?;
            }
        }
        Ok(())
    }

    /// A job that was looked at is as it has to be.
    fn is_as_found(&self, id: JobId, found: Option<FoundJob>) -> Result<(), String> {
        let job = self.model.jobs.get(&id);
        let expected = job.and_then(|job| job.as_found(id));
        same(&format!("{id}, which is {job:?}"), &found.map(|found| found.job), &expected)
    }

    pub(super) async fn get(&self, queue: usize, id: JobId) -> Result<(), String> {
        let found = self.store()?.get(self.name(queue), id).await.map_err(said)?;
        if self.model.jobs.get(&id).is_some_and(|job| job.queue == queue) {
            return self.is_as_found(id, found);
        }
        same("a job of another queue", &found, &None)
    }

    pub(super) async fn peek(&self, place: Place) -> Result<(), String> {
        let from_ms = self.now_ms(place.shard).await?;
        let name = self.name(place.queue);
        let Some(found) = self.store()?.peek(place.shard, name).await.map_err(said)? else {
            let ready = self.model.ids(place, |id, job| job.is_ready(id, from_ms));
            return same("ready jobs where none is the next one", &ready, &Vec::new());
        };
        let to_ms = self.now_ms(place.shard).await?;
        holds("a look says its time", (from_ms..=to_ms).contains(&found.now_ms))?;
        let id = found.job.id;
        let is_next = self.model.of(place).any(|(own, job)| own == id && job.is_ready(id, found.now_ms));
        holds(&format!("{id} is ready at {}, and in {place:?}", found.now_ms), is_next)?;
        self.is_as_found(id, Some(found))
    }

    fn dead(&self, place: Place) -> Vec<(JobId, (u64, u64))> {
        let since = |state| match state {
            State::Dead { since_ms } => Some(since_ms),
            State::Fresh | State::Again | State::Leased { .. } | State::Over => None,
        };
        self.model.of(place).filter_map(|(id, job)| Some((id, since(job.state)?))).collect()
    }

    pub(super) async fn dead_head(&self, place: Place) -> Result<(), String> {
        let name = self.name(place.queue);
        let head = self.store()?.dead_head(place.shard, name).await.map_err(said)?;
        let dead = self.dead(place);
        let Some(head) = head else {
            return same("dead jobs without a head", &dead, &Vec::new());
        };
        // One that has certainly been there for longer.
        let since_ms = dead.iter().find(|(id, _)| *id == head).map(|(_, since_ms)| since_ms.0);
        let since_ms = since_ms.ok_or_else(|| format!("{head} is not dead in {place:?}"))?;
        let before: Vec<_> = dead.iter().filter(|(_, (_, latest_ms))| *latest_ms < since_ms).collect();
        holds(&format!("{head} has been dead longer than {before:?}"), before.is_empty())
    }

    pub(super) async fn respawn(&mut self, place: Place, limit: usize, ttl_s: u32) -> Result<(), String> {
        let from_ms = self.now_ms(place.shard).await?;
        let name = self.name(place.queue);
        let count = self.store()?.respawn(place.shard, name, limit, ttl_s).await.map_err(said)?;
        let to_ms = self.now_ms(place.shard).await?;
        let dead = self.dead(place);
        same("jobs that were brought back", &count, &limit.min(dead.len()))?;
        let ttl_ms = u64::from(ttl_s) * 1_000;
        let mut back = 0;
        for (id, _) in dead {
            let found = self.find(id).await?.ok_or_else(|| format!("{id} was dead, and is gone"))?.job;
            if found.tries_left == 0 {
                continue;
            }
            back += 1;
            let within_ms = if ttl_s == 0 { (0, 0) } else { (from_ms + ttl_ms, to_ms + ttl_ms) };
            let is_from_now = (within_ms.0..=within_ms.1).contains(&found.expires_ms);
            holds(&format!("the new ttl counts from now: {found:?}, {within_ms:?}"), is_from_now)?;
            let job = self.model.job(id)?;
            (job.state, job.tries_left, job.expires_ms) = (State::Again, 1, found.expires_ms);
            same("a job that was brought back", &Some(found), &job.as_found(id))?;
        }
        same("jobs that have a try again", &back, &count)
    }

    pub(super) async fn drop_dead(&mut self, place: Place, limit: usize) -> Result<(), String> {
        let name = self.name(place.queue);
        let count = self.store()?.drop_dead(place.shard, name, limit).await.map_err(said)?;
        let dead: Vec<JobId> = self.dead(place).into_iter().map(|(id, _)| id).collect();
        same("dead jobs that were dropped", &count, &limit.min(dead.len()))?;
        let gone = self.gone(&dead).await?;
        same("dead jobs that are gone", &gone.len(), &count)?;
        self.model.end(&gone)
    }

    pub(super) async fn drop_ready(&mut self, place: Place) -> Result<(), String> {
        let from_ms = self.now_ms(place.shard).await?;
        let (store, name) = (self.store()?, self.name(place.queue));
        let mut calls = 1;
        while store.drop_ready(place.shard, name).await.map_err(said)? {
            calls += 1;
            holds("dropping comes to an end", calls <= CALLS_MAX)?;
        }
        let to_ms = self.now_ms(place.shard).await?;
        let dropped = self.model.ids(place, |id, job| job.is_ready(id, from_ms));
        let perhaps = self.model.ids(place, |id, job| !job.is_ready(id, from_ms) && job.is_ready(id, to_ms));
        same("ready jobs that are gone", &self.gone(&dropped).await?, &dropped)?;
        let perhaps = self.gone(&perhaps).await?;
        self.model.end(&dropped)?;
        self.model.end(&perhaps)
    }

    /// Until no lease may have ended without having been seen to.
    pub(super) async fn tend(&mut self, shard: Shard) -> Result<(), String> {
        let store = self.store()?;
        let first_ms = self.now_ms(shard).await?;
        let mut from_ms = first_ms;
        let mut done = Tended::default();
        let leases: Vec<(JobId, u64)> = self
            .model
            .of_shard(shard)
            .filter_map(|(id, job)| match job.state {
                State::Leased { end_ms } => Some((id, end_ms)),
                State::Fresh | State::Again | State::Dead { .. } | State::Over => None,
            })
            .collect();
        let mut calls = 0;
        let last_ms = loop {
            let tended = store.tend(shard).await.map_err(said)?;
            let to_ms = self.now_ms(shard).await?;
            done.again += tended.again;
            done.dead += tended.dead;
            done.expired += tended.expired;
            let is_doubtful = leases.iter().any(|(_, end_ms)| from_ms < *end_ms && *end_ms <= to_ms);
            if !tended.is_cut && !is_doubtful {
                break to_ms;
            }
            calls += 1;
            holds("tending comes to an end", calls <= CALLS_MAX)?;
            from_ms = to_ms;
        };
        let mut expected = Tended::default();
        for (id, end_ms) in leases.into_iter().filter(|(_, end_ms)| *end_ms <= last_ms) {
            // It was seen to between these.
            let since_ms = (end_ms.max(first_ms), last_ms);
            let found = self.find(id).await?;
            let job = self.model.job(id)?;
            let may_be_over = job.is_expired(since_ms.1);
            let must_be_over = job.is_expired(since_ms.0);
            job.state = match found {
                Some(_) if job.tries_left == 0 => State::Dead { since_ms },
                Some(_) if !must_be_over => State::Again,
                None if may_be_over && job.tries_left > 0 => State::Over,
                found => return Err(format!("{id}, which is {job:?}, is {found:?} at {last_ms}")),
            };
            match job.state {
                State::Dead { .. } => expected.dead += 1,
                State::Again => expected.again += 1,
                _ => expected.expired += 1,
            }
        }
        same("what has become of leases that ended", &done, &expected)
    }

    /// Once round.
    pub(super) async fn sweep(&mut self, shard: Shard) -> Result<(), String> {
        let store = self.store()?;
        let (mut cursor, mut expired, mut calls) = (0, 0, 0);
        loop {
            let swept = store.sweep(shard, cursor).await.map_err(said)?;
            expired += swept.expired;
            cursor = swept.cursor;
            if cursor == 0 {
                break;
            }
            calls += 1;
            holds("a sweep comes round", calls <= CALLS_MAX)?;
        }
        let to_ms = self.now_ms(shard).await?;
        let over: Vec<JobId> = self
            .model
            .of_shard(shard)
            .filter(|(id, job)| job.is_ready(*id, to_ms) && job.is_expired(to_ms))
            .map(|(id, _)| id)
            .collect();
        let gone = self.gone(&over).await?;
        same("jobs that have expired and were swept away", &(gone.len() as u64), &expired)?;
        self.model.end(&gone)
    }

    /// Every job that there ever was is as it has to be, and each queue that has one is named.
    pub(super) async fn compare(&self) -> Result<(), String> {
        self.look().await?;
        for id in self.model.jobs.keys() {
            self.is_as_found(*id, self.find(*id).await?)?;
        }
        for shard in shards() {
            let (mut named, mut cursor, mut calls) = (BTreeSet::new(), 0, 0);
            loop {
                let (next, page) = self.store()?.queues(shard, cursor).await.map_err(said)?;
                named.extend(page);
                cursor = next;
                if cursor == 0 {
                    break;
                }
                calls += 1;
                holds("the pages of queues come to an end", calls <= CALLS_MAX)?;
            }
            for queue in 0..QUEUES {
                let has_jobs = self.model.of(Place { shard, queue }).next().is_some();
                let is_named = !has_jobs || named.contains(self.name(queue));
                holds(&format!("queue {queue} of {shard:?} is named"), is_named)?;
            }
        }
        Ok(())
    }
}
