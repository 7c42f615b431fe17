//! The files: one fjall database with one keyspace, changed by steps that are carried out whole or not at all.

use super::{EmbeddedSlotsOptions, OpenSlotsError};
use bytes::Bytes;
use fjall::compaction::Leveled;
use fjall::config::{BlockSizePolicy, BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{Database, Error, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode};
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use windfall_contract::asserted::catch_assertion;
use windfall_contract::due::{Durability, StoreError};

const FORMAT: u32 = 1;
const FORMAT_FILE: &str = "WINDFALL-SLOTS";
/// Table files that wait to be merged: more of them is less to write twice, and more to look into for a read. fjall
/// slows writers down from 20 on.
const TABLES_BEFORE_MERGE: u8 = 8;
/// About what a row takes in memory beside its key and value.
const ROW_BYTES: usize = 150;
/// How often a full store looks whether an earlier memtable has reached its file.
const ROTATE_RETRY: Duration = Duration::from_millis(1);

pub(super) struct Files {
    database: Database,
    rows: Keyspace,
    memtable_bytes: u64,
    /// Written since the last rotation.
    fresh_bytes: Mutex<u64>,
    syncs: Option<Syncs>,
    /// A write has failed: nobody knows whether it is there, so nothing may be built on it before the files are read
    /// again.
    has_failed: AtomicBool,
    /// Released last.
    _lock: File,
}

/// Callers who wait for the disk at the same time share one sync.
#[derive(Default)]
struct Syncs {
    written: AtomicU64,
    synced: Mutex<u64>,
}

impl Files {
    pub(super) fn open(dir: &Path, options: &EmbeddedSlotsOptions) -> Result<Self, OpenSlotsError> {
        let place = dir.display().to_string();
        std::fs::create_dir_all(dir)
            .map_err(|error| OpenSlotsError::Io { place: place.clone(), what: error.to_string() })?;
        let lock = lock(dir, &place)?;
        let is_fresh = is_fresh(dir, &place)?;
        // fjall asserts on some damage while it recovers.
        let files = match catch_assertion(|| open_files(dir, options, is_fresh, lock)) {
            Ok(files) => files.map_err(|error| open_error(&place, &error))?,
            Err(asserted) => {
                let what = format!("recovery stopped at an impossible value: {asserted}");
                return Err(OpenSlotsError::Damaged { place, what });
            }
        };
        write_format(dir, &place)?;
        Ok(files)
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self.rows.get(key).map_err(|error| unavailable(&error))?.map(Bytes::from))
    }

    /// Rows from `from` on, in order, as long as their keys begin with `prefix`.
    pub(super) fn range(
        &self,
        prefix: &[u8],
        from: Bound<Vec<u8>>,
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), StoreError>> + use<> {
        let prefix = prefix.to_vec();
        let rows = self.rows.range((from, Bound::Unbounded));
        rows.map(|guard| {
            let (key, value) = guard.into_inner().map_err(|error| unavailable(&error))?;
            Ok((Bytes::from(key), Bytes::from(value)))
        })
        .take_while(move |row| row.as_ref().map_or(true, |(key, _)| key.starts_with(&prefix)))
    }

    /// The last key that begins with `prefix`.
    pub(super) fn last(&self, prefix: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let last = self.rows.prefix(prefix).next_back();
        last.map(|guard| guard.key().map(Bytes::from).map_err(|error| unavailable(&error))).transpose()
    }

    /// Begins a step.
    pub(super) fn step(&self) -> Step<'_> {
        let batch = OwnedWriteBatch::with_capacity(self.database.clone(), 64);
        Step { files: self, batch, bytes: 0, changed: HashMap::new() }
    }

    /// Writes a batch of so many bytes, then keeps memory within bounds: fjall alone rotates when it gets to it, and
    /// lets memory grow until then (I9). Whoever fills it up waits for the disk.
    fn commit(&self, batch: OwnedWriteBatch, bytes: usize) -> Result<(), StoreError> {
        if self.has_failed.load(SeqCst) {
            return Err(failed("an earlier write has failed"));
        }
        let mut committed = batch.durability(Some(PersistMode::Buffer)).commit();
        if committed.is_ok()
            && let Some(syncs) = &self.syncs
        {
            committed = syncs.wait(&self.database);
        }
        committed.map_err(|error| {
            self.has_failed.store(true, SeqCst);
            failed(&error.to_string())
        })?;
        let mut fresh = self.fresh_bytes.lock();
        *fresh += bytes as u64;
        if *fresh < self.memtable_bytes {
            return Ok(());
        }
        while self.rows.sealed_memtable_count() >= 2 {
            // Says so when a flush has failed: nobody would ever empty a memtable again.
            if let Err(error) = self.database.persist(PersistMode::Buffer) {
                self.has_failed.store(true, SeqCst);
                return Err(failed(&error.to_string()));
            }
            std::thread::sleep(ROTATE_RETRY);
        }
        // The batch itself is written: a memtable that stays one more time is no reason to deny it.
        if let Err(error) = self.rows.rotate_memtable() {
            tracing::warn!(%error, "a memtable of the slot store cannot be put aside; the next write tries again");
            return Ok(());
        }
        *fresh = 0;
        Ok(())
    }
}

impl Syncs {
    fn wait(&self, database: &Database) -> Result<(), Error> {
        let own = self.written.fetch_add(1, SeqCst) + 1;
        let mut synced = self.synced.lock();
        if *synced < own {
            let up_to = self.written.load(SeqCst);
            database.persist(PersistMode::SyncData)?;
            *synced = up_to;
        }
        Ok(())
    }
}

/// Changes that are carried out together.
pub(super) struct Step<'f> {
    files: &'f Files,
    batch: OwnedWriteBatch,
    bytes: usize,
    /// Rows that may be changed again in this step: a batch of fjall takes a key once.
    changed: HashMap<Vec<u8>, Option<Bytes>>,
}

impl Step<'_> {
    /// Whether there is nothing to write.
    pub(super) fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.bytes == 0
    }

    /// What is there, or will be by this step.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        match self.changed.get(key) {
            Some(row) => Ok(row.clone()),
            None => self.files.get(key),
        }
    }

    pub(super) fn put(&mut self, key: Vec<u8>, value: impl Into<Bytes>) {
        self.changed.insert(key, Some(value.into()));
    }

    pub(super) fn remove(&mut self, key: Vec<u8>) {
        self.changed.insert(key, None);
    }

    /// Writes a row that this step does not look at again.
    pub(super) fn append(&mut self, key: Vec<u8>, value: Bytes) {
        self.bytes += ROW_BYTES + key.len() + value.len();
        self.batch.insert(&self.files.rows, key, value);
    }

    /// Removes a row that this step does not look at again.
    pub(super) fn forget(&mut self, key: impl Into<fjall::Slice>) {
        let key = key.into();
        self.bytes += ROW_BYTES + key.len();
        self.batch.remove(&self.files.rows, key);
    }

    pub(super) fn commit(mut self) -> Result<(), StoreError> {
        for (key, value) in std::mem::take(&mut self.changed) {
            match value {
                Some(value) => self.append(key, value),
                None => self.forget(key),
            }
        }
        if self.batch.is_empty() {
            return Ok(());
        }
        self.files.commit(self.batch, self.bytes)
    }
}

fn unavailable(error: &Error) -> StoreError {
    StoreError::Unavailable(error.to_string())
}

fn failed(what: &str) -> StoreError {
    StoreError::Unavailable(format!("{what}; the store must be opened again"))
}

/// Makes `dir` this handle's alone, before anything in it is looked at.
fn lock(dir: &Path, place: &str) -> Result<File, OpenSlotsError> {
    let io = |error: std::io::Error| OpenSlotsError::Io { place: place.into(), what: error.to_string() };
    let file = File::create(dir.join("LOCK")).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenSlotsError::InUse(place.into())),
        Err(TryLockError::Error(error)) => Err(io(error)),
    }
}

fn open_files(
    dir: &Path,
    options: &EmbeddedSlotsOptions,
    is_fresh: bool,
    lock: File,
) -> Result<Files, Error> {
    let home = dir.join("db");
    if is_fresh && !home.exists() {
        // fjall cannot open what a kill left half made: so it is made aside, and moved when it is whole.
        let making = dir.join("making");
        if making.exists() {
            std::fs::remove_dir_all(&making)?;
        }
        drop(open_database(&making, options)?);
        std::fs::rename(&making, &home)?;
        File::open(dir)?.sync_all()?;
    }
    if !home.exists() {
        return Err(std::io::Error::new(ErrorKind::NotFound, "the database is gone").into());
    }
    let (database, rows) = open_database(&home, options)?;
    let syncs = (options.durability == Durability::Machine).then(Syncs::default);
    Ok(Files {
        database,
        rows,
        memtable_bytes: options.memtable_bytes,
        fresh_bytes: Mutex::new(0),
        syncs,
        has_failed: AtomicBool::new(false),
        _lock: lock,
    })
}

fn open_database(path: &Path, options: &EmbeddedSlotsOptions) -> Result<(Database, Keyspace), Error> {
    let database = Database::builder(path)
        .cache_size(options.cache_bytes)
        .max_journaling_size((options.memtable_bytes * 8).max(64 << 20))
        .worker_threads(2)
        .max_cached_files(Some(64))
        .open()?;
    let bits = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0));
    let merge = Leveled::default().with_l0_threshold(TABLES_BEFORE_MERGE);
    let rows = database.keyspace("rows", || {
        KeyspaceCreateOptions::default()
            .max_memtable_size(options.memtable_bytes * 2)
            .data_block_size_policy(BlockSizePolicy::all(8 << 10))
            .filter_policy(FilterPolicy::all(bits))
            .compaction_strategy(Arc::new(merge))
    })?;
    Ok((database, rows))
}

/// Whether the files were never made whole: the file that names the layout is written last.
fn is_fresh(dir: &Path, place: &str) -> Result<bool, OpenSlotsError> {
    match std::fs::read_to_string(dir.join(FORMAT_FILE)) {
        Ok(text) => match text.trim().parse::<u32>() {
            Ok(found) if found > FORMAT => {
                Err(OpenSlotsError::Newer { place: place.into(), found, known: FORMAT })
            }
            Ok(1..) => Ok(false),
            _ => {
                let what = format!("{FORMAT_FILE} holds no version");
                Err(OpenSlotsError::Damaged { place: place.into(), what })
            }
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(OpenSlotsError::Io { place: place.into(), what: error.to_string() }),
    }
}

fn write_format(dir: &Path, place: &str) -> Result<(), OpenSlotsError> {
    let fresh = dir.join(format!("{FORMAT_FILE}.new"));
    std::fs::write(&fresh, format!("{FORMAT}\n"))
        .and_then(|()| File::open(&fresh)?.sync_all())
        .and_then(|()| std::fs::rename(&fresh, dir.join(FORMAT_FILE)))
        .map_err(|error| OpenSlotsError::Io { place: place.into(), what: error.to_string() })
}

fn open_error(place: &str, error: &Error) -> OpenSlotsError {
    let place = place.to_owned();
    let missing = [ErrorKind::UnexpectedEof, ErrorKind::NotFound, ErrorKind::InvalidData];
    match error {
        Error::Locked => OpenSlotsError::InUse(place),
        Error::Io(system) if !missing.contains(&system.kind()) => {
            OpenSlotsError::Io { place, what: system.to_string() }
        }
        damaged => OpenSlotsError::Damaged { place, what: damaged.to_string() },
    }
}
