//! A token store on files inside the process, on fjall.
//!
//! A token lies under `user_id ‖ name`, the user id as eight big-endian bytes with its sign bit turned, so
//! that a user's tokens are neighbours in the order of their names. Canonical base64url is kept as the bytes
//! it stands for, a quarter less to write; any other text as it is. Calls return when the system has the
//! bytes: they survive `kill -9`, not the death of the machine, which a weak dependency can afford. A directory
//! belongs to one process.
//!
//! Calls run on the runtime's blocking threads, at most [`EmbeddedStoreOptions::max_calls`] at a time; beyond that
//! they are `Unavailable` at once, so that a slow disk takes no more than that (I9).

mod presence;

use crate::packing::{packed, text, unpacked};
use async_trait::async_trait;
use fjall::compaction::Leveled;
use fjall::config::{BlockSizePolicy, BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{Database, Error, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode};
use parking_lot::Mutex;
use presence::Presence;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use windfall_contract::asserted::catch_assertion;
use windfall_contract::tokens::{StoredToken, TokenKey, TokenPut, TokenStore, Unavailable};

/// The newest layout. Format 1 kept every token as text; such entries are still read.
const FORMAT: u32 = 2;
const FORMAT_FILE: &str = "WINDFALL-STORE";
/// The number of table files that wait to be merged. With more of them less is written twice, and a read looks into
/// more files. fjall
/// slows writers down from 20 on.
const TABLES_BEFORE_MERGE: u8 = 8;
const USER_BYTES: usize = 8;
/// The bytes that an entry takes in memory beside its key and token, roughly.
const ENTRY_BYTES: usize = 150;
/// How often a full store looks whether an earlier memtable has reached its file.
const ROTATE_RETRY: Duration = Duration::from_millis(1);
/// A store with more tokens than this is not read at the start; reading so many takes about a tenth of a second.
const READ_AT_START_MAX: usize = 100_000;
/// The bytes of a name in a key at most; longer ones are refused where they are made.
const MAX_NAME_BYTES: usize = 60_000;

/// How an embedded store uses memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedStoreOptions {
    /// Memory for tokens before they move to table files; up to three times this is in use. 1 to 256 MiB, default
    /// 4 MiB. A token that goes before its memory does never costs a table entry.
    pub memtable_bytes: u64,
    /// Cache for blocks read from table files. Default 2 MiB.
    pub cache_bytes: u64,
    /// The number of calls that run at a time. 1 to 1024, default 32.
    pub max_calls: usize,
}

impl Default for EmbeddedStoreOptions {
    fn default() -> Self {
        Self { memtable_bytes: 4 << 20, cache_bytes: 2 << 20, max_calls: 32 }
    }
}

/// The store could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenStoreError {
    /// An option is out of its range.
    #[error("{0}")]
    Invalid(String),
    /// Another process holds the directory.
    #[error("{0} is in use by another process")]
    InUse(String),
    /// Written by a newer version of Windfall.
    #[error("{place} has format version {found}; this build reads up to {FORMAT}")]
    Newer {
        /// What was opened.
        place: String,
        /// The version found.
        found: u32,
    },
    /// The files cannot be read. They may be deleted: tokens are proofs, not money.
    #[error("{place} is damaged: {what}")]
    Damaged {
        /// What was opened.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// The operating system refused.
    #[error("{place}: {what}")]
    Io {
        /// What was opened.
        place: String,
        /// The system's answer.
        what: String,
    },
}

/// The embedded token store.
pub struct EmbeddedStore {
    files: Arc<Files>,
    calls: Arc<Semaphore>,
}

struct Files {
    database: Database,
    tokens: Keyspace,
    presence: Presence,
    memtable_bytes: u64,
    /// The bytes written since the last rotation.
    fresh_bytes: Mutex<u64>,
    /// The lock on the directory, which is released last.
    _lock: File,
}

impl EmbeddedStore {
    /// Opens the store in `dir`, creating it if there is none. Blocks.
    ///
    /// # Errors
    /// [`OpenStoreError`].
    pub fn open(dir: &Path, options: &EmbeddedStoreOptions) -> Result<Arc<Self>, OpenStoreError> {
        let place = dir.display().to_string();
        options.check()?;
        std::fs::create_dir_all(dir)
            .map_err(|error| OpenStoreError::Io { place: place.clone(), what: error.to_string() })?;
        let lock = lock(dir, &place)?;
        let fresh = is_fresh(dir, &place)?;
        // fjall asserts on some damage while it recovers.
        let files = match catch_assertion(|| open_files(dir, options, fresh, lock)) {
            Ok(files) => files.map_err(|error| open_error(&place, &error))?,
            Err(asserted) => {
                let what = format!("recovery stopped at an impossible value: {asserted}");
                return Err(OpenStoreError::Damaged { place, what });
            }
        };
        write_format(dir, &place)?;
        Ok(Arc::new(Self { files: Arc::new(files), calls: Arc::new(Semaphore::new(options.max_calls)) }))
    }

    /// Runs `work` on a blocking thread. If the caller goes away, it still runs to its end: calls may be repeated.
    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Files) -> Result<T, String> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let Ok(permit) = self.calls.clone().try_acquire_owned() else {
            return Err(Unavailable("too many calls at a time".into()));
        };
        let files = self.files.clone();
        let called = tokio::task::spawn_blocking(move || {
            let result = work(&files);
            drop(permit);
            result
        });
        called.await.map_err(|error| Unavailable(error.to_string()))?.map_err(Unavailable)
    }
}

impl EmbeddedStoreOptions {
    fn check(&self) -> Result<(), OpenStoreError> {
        let within = [
            ("memtable_bytes", self.memtable_bytes, 1 << 20, 256 << 20),
            ("cache_bytes", self.cache_bytes, 0, 1 << 30),
            ("max_calls", self.max_calls as u64, 1, 1024),
        ];
        for (name, value, low, high) in within {
            if !(low..=high).contains(&value) {
                return Err(OpenStoreError::Invalid(format!("{name} is {value}; it may be {low} to {high}")));
            }
        }
        Ok(())
    }
}

#[async_trait]
impl TokenStore for EmbeddedStore {
    async fn put(&self, batch: &[TokenPut]) -> Result<(), Unavailable> {
        let entries = batch
            .iter()
            .map(|put| Ok((key(put.user_id, &put.name)?, packed(&put.token))))
            .collect::<Result<Vec<_>, Unavailable>>()?;
        // Before the write: whoever removes a token afterwards must find that it may be there.
        entries.iter().for_each(|(key, _)| self.files.presence.add(key));
        self.call(move |files| {
            let mut batch = files.batch(entries.len());
            let mut bytes = 0;
            for (key, token) in entries {
                bytes += ENTRY_BYTES + key.len() + token.len();
                batch.insert(&files.tokens, key, token);
            }
            files.commit(batch, bytes)
        })
        .await
    }

    async fn remove(&self, batch: &[TokenKey]) -> Result<(), Unavailable> {
        let mut keys = keys(batch)?;
        // Most tokens of credited rewards were never written.
        keys.retain(|key| self.files.presence.may_hold(key));
        if keys.is_empty() {
            return Ok(());
        }
        self.call(move |files| {
            let mut batch = files.batch(keys.len());
            let mut bytes = 0;
            for key in keys {
                // Looking is cheaper than a tombstone.
                if files.tokens.contains_key(&key).map_err(|error| error.to_string())? {
                    bytes += ENTRY_BYTES + key.len();
                    batch.remove(&files.tokens, key);
                }
            }
            files.commit(batch, bytes)
        })
        .await
    }

    async fn get(&self, wanted: &[TokenKey]) -> Result<Vec<Option<Box<str>>>, Unavailable> {
        let keys = keys(wanted)?;
        self.call(move |files| {
            let read = |key: Vec<u8>| match files.tokens.get(key).map_err(|error| error.to_string())? {
                Some(value) => unpacked(&value).map(Some),
                None => Ok(None),
            };
            keys.into_iter().map(read).collect()
        })
        .await
    }

    async fn list(
        &self,
        user_id: i64,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StoredToken>, Unavailable> {
        let first = match after {
            Some(after) => Bound::Excluded(key(user_id, after)?),
            None => Bound::Included(key(user_id, "")?),
        };
        let user = user(user_id);
        self.call(move |files| {
            let mut page = Vec::new();
            for guard in files.tokens.range((first, Bound::Unbounded)).take(limit) {
                let (key, value) = guard.into_inner().map_err(|error| error.to_string())?;
                let Some(name) = key.strip_prefix(user.as_slice()) else { break };
                page.push(StoredToken { name: text(name)?, token: unpacked(&value)? });
            }
            Ok(page)
        })
        .await
    }
}

impl Files {
    fn batch(&self, capacity: usize) -> OwnedWriteBatch {
        OwnedWriteBatch::with_capacity(self.database.clone(), capacity).durability(Some(PersistMode::Buffer))
    }

    /// Writes a batch of so many bytes, then keeps memory within bounds: fjall alone rotates when it gets to it, and
    /// lets memory grow until then (I9). The caller that fills it up waits for the disk.
    fn commit(&self, batch: OwnedWriteBatch, bytes: usize) -> Result<(), String> {
        batch.commit().map_err(|error| error.to_string())?;
        let mut fresh = self.fresh_bytes.lock();
        *fresh += bytes as u64;
        if *fresh < self.memtable_bytes {
            return Ok(());
        }
        while self.tokens.sealed_memtable_count() >= 2 {
            // Says so when a flush has failed: nobody would ever empty a memtable again.
            self.database.persist(PersistMode::Buffer).map_err(|error| error.to_string())?;
            std::thread::sleep(ROTATE_RETRY);
        }
        self.tokens.rotate_memtable().map_err(|error| error.to_string())?;
        *fresh = 0;
        Ok(())
    }
}

fn keys(keys: &[TokenKey]) -> Result<Vec<Vec<u8>>, Unavailable> {
    keys.iter().map(|one| key(one.user_id, &one.name)).collect()
}

fn key(user_id: i64, name: &str) -> Result<Vec<u8>, Unavailable> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Unavailable(format!("a name of {} bytes", name.len())));
    }
    let mut key = Vec::with_capacity(USER_BYTES + name.len());
    key.extend_from_slice(&user(user_id));
    key.extend_from_slice(name.as_bytes());
    Ok(key)
}

/// A user id as bytes that sort like the number, negative ones first.
fn user(user_id: i64) -> [u8; USER_BYTES] {
    (user_id ^ i64::MIN).to_be_bytes()
}

/// Makes `dir` this handle's alone, before anything in it is looked at.
fn lock(dir: &Path, place: &str) -> Result<File, OpenStoreError> {
    let io = |error: std::io::Error| OpenStoreError::Io { place: place.into(), what: error.to_string() };
    let file = File::create(dir.join("LOCK")).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenStoreError::InUse(place.into())),
        Err(TryLockError::Error(error)) => Err(io(error)),
    }
}

fn open_files(
    dir: &Path,
    options: &EmbeddedStoreOptions,
    fresh: bool,
    lock: File,
) -> Result<Files, fjall::Error> {
    let home = dir.join("db");
    if fresh && !home.exists() {
        // fjall cannot open what a kill left half made: so it is made aside, and moved when it is whole.
        let making = dir.join("making");
        if making.exists() {
            std::fs::remove_dir_all(&making)?;
        }
        drop(open_database(&making, options)?);
        std::fs::rename(&making, &home)?;
    }
    // Format 1 had its files in the directory itself.
    let old = dir.join("version").exists();
    if !old && !home.exists() {
        return Err(std::io::Error::new(ErrorKind::NotFound, "the database is gone").into());
    }
    let (database, tokens) = open_database(if old { dir } else { &home }, options)?;
    let presence = presence_of(&tokens)?;
    let fresh_bytes = Mutex::new(0);
    let memtable_bytes = options.memtable_bytes;
    Ok(Files { database, tokens, presence, memtable_bytes, fresh_bytes, _lock: lock })
}

fn open_database(path: &Path, options: &EmbeddedStoreOptions) -> Result<(Database, Keyspace), fjall::Error> {
    let database = Database::builder(path)
        .cache_size(options.cache_bytes)
        .max_journaling_size(64 << 20)
        .worker_threads(2)
        .max_cached_files(Some(64))
        .open()?;
    let bits = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0));
    let merge = Leveled::default().with_l0_threshold(TABLES_BEFORE_MERGE);
    let tokens = database.keyspace("tokens", || {
        KeyspaceCreateOptions::default()
            .max_memtable_size(options.memtable_bytes * 2)
            .data_block_size_policy(BlockSizePolicy::all(8 << 10))
            .filter_policy(FilterPolicy::all(bits))
            .compaction_strategy(Arc::new(merge))
    })?;
    Ok((database, tokens))
}

/// The filter over what an earlier process has left. A large store is not read as a whole at the start: there every
/// token may be present.
fn presence_of(tokens: &Keyspace) -> Result<Presence, fjall::Error> {
    let presence = Presence::empty();
    for (at, guard) in tokens.iter().enumerate() {
        if at == READ_AT_START_MAX {
            return Ok(Presence::unknown());
        }
        presence.add(&guard.key()?);
    }
    Ok(presence)
}

/// Whether the files were never made whole: the file that names the layout is written last.
fn is_fresh(dir: &Path, place: &str) -> Result<bool, OpenStoreError> {
    match std::fs::read_to_string(dir.join(FORMAT_FILE)) {
        Ok(text) => match text.trim().parse::<u32>() {
            Ok(found) if found > FORMAT => Err(OpenStoreError::Newer { place: place.into(), found }),
            Ok(1..) => Ok(false),
            _ => {
                let what = format!("{FORMAT_FILE} holds no version");
                Err(OpenStoreError::Damaged { place: place.into(), what })
            }
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(OpenStoreError::Io { place: place.into(), what: error.to_string() }),
    }
}

fn write_format(dir: &Path, place: &str) -> Result<(), OpenStoreError> {
    let fresh = dir.join(format!("{FORMAT_FILE}.new"));
    std::fs::write(&fresh, format!("{FORMAT}\n"))
        .and_then(|()| std::fs::rename(&fresh, dir.join(FORMAT_FILE)))
        .map_err(|error| OpenStoreError::Io { place: place.into(), what: error.to_string() })
}

fn open_error(place: &str, error: &Error) -> OpenStoreError {
    let place = place.to_owned();
    let missing = [ErrorKind::UnexpectedEof, ErrorKind::NotFound, ErrorKind::InvalidData];
    match error {
        Error::Locked => OpenStoreError::InUse(place),
        Error::Io(system) if !missing.contains(&system.kind()) => {
            OpenStoreError::Io { place, what: system.to_string() }
        }
        damaged => OpenStoreError::Damaged { place, what: damaged.to_string() },
    }
}
