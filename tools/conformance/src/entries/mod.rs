//! What every store of entries has to show: each sentence of [`contract`](windfall_contract::entries), as a check.
//!
//! [`run`] has the checks; [`run_model`] makes random calls and holds the store against a naive one in memory.

mod changes;
mod model;
mod pages;
mod races;
mod refusals;
mod wakes;

pub use model::run as run_model;

use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;
use windfall_contract::due::Shard;
use windfall_contract::entries::{
    Applied, Entry, EntryChange, EntryError, EntryGroup, EntryKey, EntryStore, Expect, To,
};

/// A store under test, which is new, has at least 32 shards, and a clock that goes on while it is waited for.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// Names the driver in messages.
    fn name(&self) -> &str;

    /// Opens the store; again after all handles of the last were dropped, with the same data.
    ///
    /// # Errors
    /// What the driver says; it fails the check.
    async fn open(&self) -> Result<Arc<dyn EntryStore>, String>;

    /// Another client of the store while one is open; where only one may be, the same one.
    ///
    /// # Errors
    /// What the driver says; it fails the check.
    async fn beside(&self, open: &Arc<dyn EntryStore>) -> Result<Arc<dyn EntryStore>, String>;

    /// Lets the store's clock go on by so much at least.
    async fn wait_ms(&self, ms: u64);

    /// Sets the store's clock back by so much; false where it cannot be set.
    fn clock_back_ms(&self, ms: u64) -> bool;
}

/// Runs all checks on shards of their own each, and returns the failed ones with what was wrong.
pub async fn run(fixture: &dyn Fixture) -> Vec<(&'static str, String)> {
    let mut results = changes::run(fixture).await;
    results.extend(refusals::run(fixture).await);
    results.extend(pages::run(fixture).await);
    results.extend(wakes::run(fixture).await);
    results.extend(races::run(fixture).await);
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

fn key(bytes: impl AsRef<[u8]>) -> Result<EntryKey, String> {
    EntryKey::new(Bytes::copy_from_slice(bytes.as_ref())).map_err(said)
}

fn put(bytes: impl AsRef<[u8]>, expect: Expect, value: &str) -> Result<EntryChange, String> {
    let to = To::Put { value: Bytes::copy_from_slice(value.as_bytes()), wake_ms: None };
    Ok(EntryChange { key: key(bytes)?, expect, to })
}

fn put_to_wake(bytes: impl AsRef<[u8]>, wake_ms: u64) -> Result<EntryChange, String> {
    let to = To::Put { value: Bytes::from_static(b"v"), wake_ms: Some(wake_ms) };
    Ok(EntryChange { key: key(bytes)?, expect: Expect::Anything, to })
}

fn delete(bytes: impl AsRef<[u8]>, expect: Expect) -> Result<EntryChange, String> {
    Ok(EntryChange { key: key(bytes)?, expect, to: To::Deleted })
}

fn keep(bytes: impl AsRef<[u8]>, expect: Expect) -> Result<EntryChange, String> {
    Ok(EntryChange { key: key(bytes)?, expect, to: To::Same })
}

fn group(changes: impl IntoIterator<Item = EntryChange>) -> EntryGroup {
    EntryGroup { changes: changes.into_iter().collect(), not_after_ms: None }
}

fn keys_of(entries: &[Entry]) -> Vec<EntryKey> {
    entries.iter().map(|entry| entry.key.clone()).collect()
}

/// A check's own shard.
#[derive(Clone)]
struct Case {
    store: Arc<dyn EntryStore>,
    shard: Shard,
}

impl Case {
    async fn open(fixture: &dyn Fixture, shard: u16) -> Result<Self, String> {
        Ok(Self { store: fixture.open().await?, shard: Shard(shard) })
    }

    async fn apply(&self, groups: &[EntryGroup]) -> Result<Vec<Applied>, String> {
        Ok(self.store.apply(self.shard, groups).await.map_err(said)?.1)
    }

    async fn one(&self, changes: impl IntoIterator<Item = EntryChange>) -> Result<Applied, String> {
        let applied = self.apply(&[group(changes)]).await?;
        match applied[..] {
            [one] => Ok(one),
            _ => Err(format!("{applied:?} for one group")),
        }
    }

    /// The version that a group was given, which has to be done.
    async fn done(&self, changes: impl IntoIterator<Item = EntryChange>) -> Result<u64, String> {
        match self.one(changes).await? {
            Applied::Done(version) => Ok(version),
            other => Err(format!("a group is {other:?}")),
        }
    }

    async fn get(&self, bytes: impl AsRef<[u8]>) -> Result<Option<Entry>, String> {
        let found = self.store.read(self.shard, &[key(bytes)?]).await.map_err(said)?;
        found.into_iter().next().ok_or_else(|| "no answer".into())
    }

    async fn value(&self, bytes: impl AsRef<[u8]>) -> Result<Option<String>, String> {
        Ok(self.get(bytes).await?.map(|entry| String::from_utf8_lossy(&entry.value).into_owned()))
    }

    async fn now_ms(&self) -> Result<u64, String> {
        Ok(self.store.apply(self.shard, &[]).await.map_err(said)?.0)
    }

    /// The entries that begin with a prefix, of all pages.
    async fn scan(&self, prefix: &[u8], limit: usize) -> Result<Vec<Entry>, String> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = self.store.scan(self.shard, prefix, after.as_ref(), limit).await.map_err(said)?;
            holds("a page is no longer than asked for", page.entries.len() <= limit)?;
            holds(
                "a page that is not the last one has an entry",
                page.next.is_none() || !page.entries.is_empty(),
            )?;
            found.extend(page.entries);
            after = page.next;
            if after.is_none() {
                return Ok(found);
            }
        }
    }

    /// The keys of those to be woken now.
    async fn woken(&self) -> Result<Vec<EntryKey>, String> {
        let woken = self.store.woken(self.shard, 1_000).await.map_err(said)?;
        holds("all fits in one answer", !woken.is_cut)?;
        Ok(keys_of(&woken.entries))
    }
}

fn refused<T: std::fmt::Debug>(what: &str, answer: Result<T, EntryError>) -> Result<(), String> {
    match answer {
        Err(EntryError::Unusable(_)) => Ok(()),
        other => Err(format!("{what} is answered {other:.300?}, and has to be unusable")),
    }
}
