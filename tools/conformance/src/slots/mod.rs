//! What every slot store has to show: each sentence of [`contract`](windfall_contract::due), as a check.

mod dispatch;
mod far;
mod once;
mod tasks;

use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;
use windfall_contract::due::{
    Added, Advanced, Found, Lease, NewRecord, ReadFrom, Route, Shard, SlotEntry, SlotMinute, SlotStore,
    TaskId, TaskKey,
};

/// The lease that a check takes where its end does not matter.
const LONG_MS: u64 = 60_000;
/// A time that a test can wait for.
const SOON_MS: u64 = 1_500;

/// A store under test. It has 64 shards, and a clock that goes on while it is waited for.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// Names the driver in messages.
    fn name(&self) -> &str;

    /// Opens the store; again after all handles of the last were dropped, with the same data.
    ///
    /// # Errors
    /// What the driver says; it fails the check.
    async fn open(&self) -> Result<Arc<dyn SlotStore>, String>;

    /// What the store's clock says.
    fn now_ms(&self) -> u64;

    /// Lets the store's clock go on by so much at least.
    async fn wait_ms(&self, ms: u64);

    /// Sets the store's clock back by so much. Where it cannot be set, whatever the store remembers of it is moved on
    /// by as much instead, which is the same to the store.
    ///
    /// # Errors
    /// What went wrong; it fails the check.
    async fn clock_back_ms(&self, ms: u64) -> Result<(), String>;

    /// Sets the store's clock on by so much; false where it cannot be set.
    fn clock_ahead_ms(&self, ms: u64) -> bool;
}

/// Runs all checks on shards and tenants of their own each, and returns the failed ones with what was wrong.
pub async fn run(fixture: &dyn Fixture) -> Vec<(&'static str, String)> {
    let mut results = tasks::run(fixture).await;
    results.extend(dispatch::run(fixture).await);
    results.extend(far::run(fixture).await);
    results.extend(once::run(fixture).await);
    failed(fixture, results)
}

/// Runs a check or two of each kind of call, which take a few seconds: for a store that passes [`run`] and that is reached in
/// another way here. Shards and tenants are those of [`run`].
pub async fn run_short(fixture: &dyn Fixture) -> Vec<(&'static str, String)> {
    let mut results = tasks::run_short(fixture).await;
    results.extend(dispatch::run_short(fixture).await);
    results.extend(far::run_short(fixture).await);
    results.extend(once::run_short(fixture).await);
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

/// A check's own shard, tenant and target.
struct Case {
    store: Arc<dyn SlotStore>,
    shard: Shard,
    route: Route,
}

impl Case {
    async fn open(fixture: &dyn Fixture, shard: u16, name: &str) -> Result<Self, String> {
        Self::of(fixture.open().await?, shard, name).await
    }

    async fn of(store: Arc<dyn SlotStore>, shard: u16, name: &str) -> Result<Self, String> {
        let tenant = store.tenant(name).await.map_err(said)?;
        let target = store.target(tenant, "target").await.map_err(said)?;
        Ok(Self { store, shard: Shard(shard), route: Route { tenant, target } })
    }

    fn task(&self, due_ms: u64, payload: &str) -> NewRecord {
        NewRecord {
            due_ms,
            route: self.route,
            key: None,
            payload: Bytes::copy_from_slice(payload.as_bytes()),
        }
    }

    /// A key that belongs to the shard of the case.
    fn key(&self, name: &str) -> Result<TaskKey, String> {
        let tries = (0..100_000_u32).filter_map(|one| TaskKey::new(format!("{name}-{one}").as_bytes()).ok());
        let mut own = tries.filter(|key| key.shard(self.route.tenant, self.store.shards()) == self.shard);
        own.next().ok_or_else(|| "no key of this shard was found".into())
    }

    async fn add(&self, batch: &[NewRecord]) -> Result<Vec<TaskId>, String> {
        let answers = self.store.add(self.shard, batch).await.map_err(said)?;
        let stored = answers.into_iter().map(|answer| match answer {
            Added::Stored(id) => Ok(id),
            Added::Exists(id) => Err(format!("{id} exists")),
        });
        stored.collect()
    }

    async fn add_one(&self, due_ms: u64, payload: &str) -> Result<TaskId, String> {
        self.add(&[self.task(due_ms, payload)]).await?.pop().ok_or_else(|| "no answer".into())
    }

    async fn acquire(&self, instance: &str) -> Result<Lease, String> {
        let lease = self.store.acquire(self.shard, instance, LONG_MS).await.map_err(said)?;
        lease.map_err(|held| format!("{held:?}"))
    }

    async fn advance(&self, lease: &Lease) -> Result<Advanced, String> {
        self.store.advance(lease, 0, &[], 0).await.map_err(said)
    }

    async fn waiting(&self) -> Result<u64, String> {
        let counts = self.store.counts(self.shard).await.map_err(said)?;
        Ok(counts.get(&self.route.tenant).copied().unwrap_or(0))
    }

    /// The tenant's tasks that wait, of all pages.
    async fn list(&self, limit: usize) -> Result<Vec<Found>, String> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = self.store.list(self.route.tenant, after, limit).await.map_err(said)?;
            holds("a page is no longer than asked for", page.tasks.len() <= limit)?;
            found.extend(page.tasks);
            after = page.next;
            if after.is_none() {
                return Ok(found);
            }
        }
    }

    /// All entries of a slot, read as a dispatcher does.
    async fn read(&self, lease: &Lease, slot: SlotMinute) -> Result<Vec<SlotEntry>, String> {
        let mut entries: Vec<SlotEntry> = Vec::new();
        loop {
            let next_index = u32::try_from(entries.len()).map_err(said)?;
            let from = [ReadFrom { slot, next_index }];
            let advanced = self.store.advance(lease, 0, &from, 1 << 20).await.map_err(said)?;
            let Some((of, first, more)) = advanced.entries.into_iter().next() else { return Ok(entries) };
            same("the part that was read", &(of, first), &(slot, next_index))?;
            for entry in &more {
                entries.push(SlotEntry::decode(entry).map_err(said)?);
            }
        }
    }
}

fn slot_of(due_ms: u64) -> SlotMinute {
    SlotMinute::of(due_ms)
}
