//! What every store of jobs has to show: each sentence of [`contract`](windfall_contract::task_queue), as a check.
//!
//! [`run`] has the checks; [`run_model`] makes random calls and holds the store against a naive one in memory.

mod far;
mod jobs;
mod leases;
mod model;
mod tokens;

pub use model::{ModelClock, run as run_model};

use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use windfall_contract::due::Shard;
use windfall_contract::task_queue::{
    JobId, JobStore, NewJobs, QUEUES_PAGE, QueueCounts, QueueName, QueueTokens, TTL_DEFAULT_S, Take,
    TakenJob, TakenJobs,
};

/// A store under test, with at least two shards, and a clock that goes on while it is waited for.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// Names the driver in messages.
    fn name(&self) -> &str;

    /// Opens the store; again after all handles of the last were dropped, with the same data.
    ///
    /// # Errors
    /// What the driver says; it fails the check.
    async fn open(&self) -> Result<(Arc<dyn JobStore>, Arc<dyn QueueTokens>), String>;

    /// Lets the store's clock go on by so much at least.
    async fn wait_ms(&self, ms: u64);

    /// Kills the process of an open store, where the driver can have that, so that the next [`open`](Self::open) finds what it
    /// leaves. The handles of the store are dropped afterwards, and may not change that.
    ///
    /// # Errors
    /// What the driver says; it fails the check.
    async fn crash(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Runs all checks on queues of their own each, and returns the failed ones with what was wrong.
pub async fn run(fixture: &dyn Fixture) -> Vec<(&'static str, String)> {
    let mut results = jobs::run(fixture).await;
    results.extend(leases::run(fixture).await);
    results.extend(far::run(fixture).await);
    results.extend(tokens::run(fixture).await);
    failed(fixture, results)
}

/// Runs a check or two of each kind of call, those that wait side by side, which takes a few seconds: for a store that passes
/// [`run`], that may be opened several times at once, and that is reached in another way here. Queues are those of [`run`].
pub async fn run_short(fixture: &dyn Fixture) -> Vec<(&'static str, String)> {
    let (mut results, leases) = tokio::join!(jobs::run_short(fixture), leases::run_short(fixture));
    results.extend(leases);
    results.extend(far::run(fixture).await);
    results.extend(tokens::run(fixture).await);
    failed(fixture, results)
}

fn failed(fixture: &dyn Fixture, results: Vec<Checked>) -> Vec<(&'static str, String)> {
    let failed = results.into_iter().filter_map(|(name, result)| Some((name, result.err()?)));
    failed.map(|(name, what)| (name, format!("{}: {what}", fixture.name()))).collect()
}

type Checked = (&'static str, Result<(), String>);

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:.2000?}, not {expected:.2000?}")) }
}

fn holds(what: &str, is_so: bool) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(format!("it is not so that {what}")) }
}

/// A check's own queue, in one shard.
struct Case {
    store: Arc<dyn JobStore>,
    shard: Shard,
    queue: QueueName,
}

impl Case {
    async fn open(fixture: &dyn Fixture, queue: &str) -> Result<Self, String> {
        let (store, _) = fixture.open().await?;
        let queue = QueueName::new("checks", queue).map_err(said)?;
        Ok(Self { store, shard: Shard(1), queue })
    }

    fn jobs(&self, bodies: &[&str]) -> NewJobs {
        NewJobs {
            queue: self.queue.clone(),
            delay_s: 0,
            ttl_s: TTL_DEFAULT_S,
            tries: 1,
            is_versioned: false,
            attributes: Vec::new(),
            bodies: bodies.iter().map(|body| Bytes::copy_from_slice(body.as_bytes())).collect(),
        }
    }

    async fn publish(&self, jobs: NewJobs) -> Result<Vec<JobId>, String> {
        let ids = self.store.publish(self.shard, &[jobs]).await.map_err(said)?;
        ids.into_iter().next().ok_or_else(|| "no answer".into())
    }

    async fn publish_one(&self, jobs: NewJobs) -> Result<JobId, String> {
        self.publish(jobs).await?.first().copied().ok_or_else(|| "no id".into())
    }

    async fn take(&self, count: usize, ttr_s: u32) -> Result<Vec<TakenJob>, String> {
        Ok(self.take_at(count, ttr_s).await?.1.jobs)
    }

    async fn take_at(&self, count: usize, ttr_s: u32) -> Result<(u64, TakenJobs), String> {
        let take = Take { queue: self.queue.clone(), count, ttr_s };
        let (now_ms, taken) = self.store.take(self.shard, &[take]).await.map_err(said)?;
        Ok((now_ms, taken.into_iter().next().ok_or("no answer")?))
    }

    async fn remove(&self, id: JobId) -> Result<bool, String> {
        let gone = self.store.remove(self.shard, &[(self.queue.clone(), id)]).await.map_err(said)?;
        gone.first().copied().ok_or_else(|| "no answer".into())
    }

    async fn counts(&self) -> Result<QueueCounts, String> {
        let counts = self.store.look(self.shard, std::slice::from_ref(&self.queue)).await.map_err(said)?;
        counts.first().copied().ok_or_else(|| "no answer".into())
    }

    /// Ready, delayed, dead.
    async fn has(&self, what: &str, ready: u64, delayed: u64, dead: u64) -> Result<(), String> {
        same(what, &self.counts().await?, &QueueCounts { ready, delayed, dead })
    }

    /// All queues of the shard, page by page, and how many pages there are.
    async fn queues(&self) -> Result<(BTreeSet<QueueName>, usize), String> {
        let (mut all, mut pages, mut cursor) = (BTreeSet::new(), 0, 0);
        loop {
            let (next, page) = self.store.queues(self.shard, cursor).await.map_err(said)?;
            holds("a page is no longer than some", page.len() <= 2 * QUEUES_PAGE)?;
            all.extend(page);
            pages += 1;
            if next == 0 {
                return Ok((all, pages));
            }
            cursor = next;
        }
    }

    async fn tend(&self) -> Result<(), String> {
        while self.store.tend(self.shard).await.map_err(said)?.is_cut {}
        Ok(())
    }
}

fn bodies(jobs: &[TakenJob]) -> Vec<String> {
    jobs.iter().map(|job| String::from_utf8_lossy(&job.body).into_owned()).collect()
}
