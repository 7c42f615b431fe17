//! A store of entries on files inside the process, on fjall.
//!
//! An entry is one row, its time to wake another one. A call that changes entries is one write batch, so that a kill leaves
//! it whole or not at all. In memory there are some bytes for each shard and none for an entry. A directory belongs to one
//! process.
//!
//! **Durability.** With [`Durability::Process`] an Ok survives `kill -9` and not the death of the machine. With
//! [`Durability::Machine`] it is synced first, and so is what a read has seen; calls that wait at the same time share a
//! sync, those on one shard too.
//!
//! **Versions** are the clock in microseconds, or one more than the shard's last version where that is not less. So they do
//! not go back over a restart, and those that died with the machine are not given again unless its clock has gone back
//! meanwhile. **Numbers** are set aside on the disk, 1,000 at a time and synced, before they are given: none is given twice,
//! and up to 1,000 of a shard are skipped when the store is opened again.
//!
//! **Time.** The clock is the one that the store is opened with.
//!
//! **Doubt.** When a write fails, nobody knows whether it is there. From then on each call is refused until the store is
//! opened again.
//!
//! Calls run on the runtime's blocking threads: those that change a shard or ask who is to be woken one after the other,
//! reads beside them, [`EmbeddedEntriesOptions::max_reads`] at a time.

mod files;
mod rows;
mod shard;

use super::checks;
use async_trait::async_trait;
use files::Files;
use shard::ShardState;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::spawn_blocking;
use windfall_contract::Clock;
use windfall_contract::due::{Durability, Shard};
use windfall_contract::entries::{
    ANSWER_MAX_BYTES, Applied, Entry, EntryError, EntryGroup, EntryKey, EntryPage, EntryStore, Woken,
};

/// How an embedded store of entries uses memory and disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedEntriesOptions {
    /// The number of shards, 1 to 1,024, default 64. It is fixed when the store is made: opening it with another number is
    /// an error.
    pub shards: u16,
    /// What an Ok survives: [`Durability::Process`] (default) or [`Durability::Machine`].
    pub durability: Durability,
    /// Memory for rows before they move to table files; up to three times this is in use. 1 to 256 MiB, default 16 MiB.
    pub memtable_bytes: u64,
    /// Cache for blocks read from table files. At most 1 GiB, default 16 MiB.
    pub cache_bytes: u64,
    /// Reads at work at a time; others wait for their turn. 1 to 1,024, default 16.
    pub max_reads: usize,
}

impl Default for EmbeddedEntriesOptions {
    fn default() -> Self {
        Self {
            shards: 64,
            durability: Durability::Process,
            memtable_bytes: 16 << 20,
            cache_bytes: 16 << 20,
            max_reads: 16,
        }
    }
}

/// The store could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenEntriesError {
    /// An option is out of its range.
    #[error("{0}")]
    Invalid(String),
    /// Another process holds the directory.
    #[error("{0} is in use by another process")]
    InUse(String),
    /// The store was made with another number of shards.
    #[error("{place} was made with {found} shards, which cannot be changed; the option says {asked}")]
    OtherShards {
        /// What was opened.
        place: String,
        /// The number that it was made with.
        found: u16,
        /// The number that the option says.
        asked: u16,
    },
    /// Written by a newer version of Windfall.
    #[error("{place} has format version {found}; this build reads up to {known}")]
    Newer {
        /// What was opened.
        place: String,
        /// The version found.
        found: u32,
        /// The newest version that this build reads.
        known: u32,
    },
    /// The files cannot be read. Restore them from a backup: the jobs and their runs are in them alone.
    #[error("{place} is damaged: {what}")]
    Damaged {
        /// What was opened.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// The system said no.
    #[error("{place}: {what}")]
    Io {
        /// What was opened.
        place: String,
        /// The system's answer.
        what: String,
    },
}

/// The embedded store of entries.
pub struct EmbeddedEntries {
    inner: Arc<Inner>,
    durability: Durability,
    reads: Arc<Semaphore>,
    /// Whoever has it syncs for all that wait.
    syncing: Arc<Mutex<()>>,
}

struct Inner {
    shards: Vec<Arc<Mutex<ShardState>>>,
    clock: Clock,
    /// Released last.
    files: Files,
}

impl EmbeddedEntries {
    /// Opens the store in `dir`, creating it if there is none. Blocks.
    ///
    /// # Errors
    /// [`OpenEntriesError`].
    pub fn open(
        dir: &Path,
        options: &EmbeddedEntriesOptions,
        clock: Clock,
    ) -> Result<Arc<Self>, OpenEntriesError> {
        options.check()?;
        let files = Files::open(dir, options)?;
        let place = dir.display().to_string();
        let damaged =
            |error: EntryError| OpenEntriesError::Damaged { place: place.clone(), what: error.to_string() };
        let found = fix_shards(&files, options.shards).map_err(damaged)?;
        if found != options.shards {
            return Err(OpenEntriesError::OtherShards { place, found, asked: options.shards });
        }
        let load = |number| ShardState::load(&files, number).map(|state| Arc::new(Mutex::new(state)));
        let shards = (0..options.shards).map(load).collect::<Result<_, _>>().map_err(damaged)?;
        Ok(Arc::new(Self {
            inner: Arc::new(Inner { shards, clock, files }),
            durability: options.durability,
            reads: Arc::new(Semaphore::new(options.max_reads)),
            syncing: Arc::default(),
        }))
    }

    /// Runs `work` on a shard, on a blocking thread. If the caller goes away, it still runs to its end.
    async fn on_shard<T: Send + 'static>(
        &self,
        shard: Shard,
        work: impl FnOnce(&mut ShardState, &Files, u64) -> Result<T, EntryError> + Send + 'static,
    ) -> Result<T, EntryError> {
        checks::shard(shard, self.shards())?;
        let mut state = Arc::clone(&self.inner.shards[usize::from(shard.0)]).lock_owned().await;
        let inner = Arc::clone(&self.inner);
        let called = spawn_blocking(move || {
            inner.files.check()?;
            work(&mut state, &inner.files, inner.clock.unix_ms())
        });
        let done = called.await.map_err(gone)??;
        self.synced().await?;
        Ok(done)
    }

    /// Runs a read on a blocking thread.
    async fn look<T: Send + 'static>(
        &self,
        shard: Shard,
        work: impl FnOnce(&Files) -> Result<T, EntryError> + Send + 'static,
    ) -> Result<T, EntryError> {
        checks::shard(shard, self.shards())?;
        let turn = Arc::clone(&self.reads).acquire_owned().await.map_err(gone)?;
        let inner = Arc::clone(&self.inner);
        let called = spawn_blocking(move || {
            let found = inner.files.check().and_then(|()| work(&inner.files));
            drop(turn);
            found
        });
        let found = called.await.map_err(gone)??;
        self.synced().await?;
        Ok(found)
    }

    /// Waits until all that is written now is synced, where an Ok says so.
    async fn synced(&self) -> Result<(), EntryError> {
        let Some(batch) = self.inner.files.unsynced() else { return Ok(()) };
        let turn = Arc::clone(&self.syncing).lock_owned().await;
        if self.inner.files.unsynced().is_none() {
            return Ok(());
        }
        let inner = Arc::clone(&self.inner);
        let called = spawn_blocking(move || {
            let done = inner.files.sync(batch);
            drop(turn);
            done
        });
        called.await.map_err(gone)?
    }
}

fn gone(error: impl std::fmt::Display) -> EntryError {
    EntryError::Unavailable(error.to_string())
}

impl EmbeddedEntriesOptions {
    fn check(&self) -> Result<(), OpenEntriesError> {
        let (shards_min, shards_max) = checks::SHARDS.into_inner();
        let within = [
            ("shards", self.shards.into(), shards_min.into(), shards_max.into()),
            ("memtable_bytes", self.memtable_bytes, 1 << 20, 256 << 20),
            ("cache_bytes", self.cache_bytes, 0, 1 << 30),
            ("max_reads", self.max_reads as u64, 1, 1_024),
        ];
        for (name, value, low, high) in within {
            if !(low..=high).contains(&value) {
                return Err(OpenEntriesError::Invalid(format!(
                    "{name} is {value}; it may be {low} to {high}"
                )));
            }
        }
        match self.durability {
            Durability::Process | Durability::Machine => Ok(()),
            Durability::EverySecond => Err(OpenEntriesError::Invalid(
                "durability is every second, which files inside the process do not have; it may be process or machine"
                    .into(),
            )),
        }
    }
}

/// The number of shards that the store was made with, which is now where it is new.
fn fix_shards(files: &Files, shards: u16) -> Result<u16, EntryError> {
    if let Some(found) = files.get(b"c")? {
        return <[u8; 2]>::try_from(&found[..]).map(u16::from_be_bytes).map_err(|_| rows::damaged());
    }
    let mut step = files.step();
    step.put(b"c".to_vec(), shards.to_be_bytes().to_vec());
    step.commit()?;
    Ok(shards)
}

#[async_trait]
impl EntryStore for EmbeddedEntries {
    fn shards(&self) -> u16 {
        u16::try_from(self.inner.shards.len()).unwrap_or(u16::MAX)
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    async fn read(&self, shard: Shard, keys: &[EntryKey]) -> Result<Vec<Option<Entry>>, EntryError> {
        checks::keys(keys)?;
        let keys = keys.to_vec();
        self.look(shard, move |files| {
            let view = files.view();
            let read = |key: EntryKey| {
                let row = view.get(&rows::entry_row(shard.0, key.as_bytes()))?;
                row.map(|row| rows::entry(key, &row)).transpose()
            };
            keys.into_iter().map(read).collect()
        })
        .await
    }

    async fn apply(&self, shard: Shard, groups: &[EntryGroup]) -> Result<(u64, Vec<Applied>), EntryError> {
        checks::groups(groups)?;
        let groups = groups.to_vec();
        self.on_shard(shard, move |state, files, now_ms| Ok((now_ms, state.apply(files, now_ms, &groups)?)))
            .await
    }

    async fn scan(
        &self,
        shard: Shard,
        prefix: &[u8],
        after: Option<&EntryKey>,
        limit: usize,
    ) -> Result<EntryPage, EntryError> {
        let prefix = rows::entry_row(shard.0, prefix);
        let after = after.map(|key| rows::entry_row(shard.0, key.as_bytes()));
        let from = match after.filter(|after| *after >= prefix) {
            Some(after) => Bound::Excluded(after),
            None => Bound::Included(prefix.clone()),
        };
        let limit = checks::limit(limit);
        self.look(shard, move |files| {
            let (mut page, mut bytes) = (EntryPage::default(), 0);
            for row in files.view().range(&prefix, from) {
                let (key, row) = row?;
                bytes += key.len() + row.len();
                if page.entries.len() == limit || (bytes > ANSWER_MAX_BYTES && !page.entries.is_empty()) {
                    page.next = page.entries.last().map(|entry| entry.key.clone());
                    break;
                }
                page.entries.push(rows::entry(rows::key_of(&key)?, &row)?);
            }
            Ok(page)
        })
        .await
    }

    async fn woken(&self, shard: Shard, limit: usize) -> Result<Woken, EntryError> {
        let limit = checks::limit(limit);
        self.on_shard(shard, move |state, files, now_ms| state.woken(files, now_ms, limit)).await
    }

    async fn numbers(&self, shard: Shard, count: u32) -> Result<u64, EntryError> {
        checks::numbers(count)?;
        self.on_shard(shard, move |state, files, _| state.numbers(files, count)).await
    }
}
