//! The files: fjall's database, its three keyspaces, and the keys in them.
//!
//! `log` holds chunks under `topic u32 ‖ partition u32 ‖ first offset u64`; `meta` holds topics by name, the lowest
//! kept offset of each partition, and what groups have finished beyond their committed offsets; `groups` holds these
//! offsets. All integers in keys are big endian.

use super::chunk;
use super::options::{EmbeddedOptions, Fsync};
use bytes::Bytes;
use fjall::config::{BlockSizePolicy, FilterPolicy};
use fjall::{
    Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, LsmError, OwnedWriteBatch, PersistMode,
};
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::Path;
use windfall_contract::asserted::catch_assertion;
use windfall_contract::broker::OpenError;
use windfall_contract::finished::{Finished, Origin};

/// The newest layout that this build reads.
const FORMAT: u32 = 1;
const FORMAT_FILE: &str = "WINDFALL-QUEUE";
const MAKING_FILE: &str = "MAKING";
const TOPIC: u8 = b't';
const LOW: u8 = b'l';
const MAP: u8 = b'm';
/// The bytes of a map of finished offsets at most; a longer map is cut there.
const MAP_BYTES_MAX: usize = 4_000;
/// Chunks at least this big are kept beside the sorted tables, so that compaction never copies them.
const SEPARATE_BYTES: u32 = 1 << 10;

/// A topic as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TopicRow {
    pub(super) id: u32,
    pub(super) partitions: u32,
}

/// The offsets that are kept of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// The first offset that is kept.
    pub(super) low: u64,
    /// The offset that the next record gets.
    pub(super) end: u64,
}

/// A chunk could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("{0}")]
    Damaged(String),
    #[error("{0}")]
    Io(String),
}

/// The open database.
pub(super) struct Storage {
    database: Database,
    log: Keyspace,
    meta: Keyspace,
    groups: Keyspace,
    persist: PersistMode,
}

impl Storage {
    /// Opens or creates the files in `dir`, which becomes this process's alone.
    pub(super) fn open(dir: &Path, options: &EmbeddedOptions) -> Result<Self, OpenError> {
        let place = dir.display().to_string();
        std::fs::create_dir_all(dir).map_err(|error| io(&place, &error))?;
        let making = if check_format(dir, &place)? { None } else { Some(Making::begin(dir, &place)?) };
        // fjall asserts on some damage while it recovers.
        let opened = catch_assertion(|| open_database(dir, options));
        match opened {
            Ok(Ok(storage)) => {
                making.map_or(Ok(()), |making| making.finish(dir)).map_err(|error| io(&place, &error))?;
                Ok(storage)
            }
            Ok(Err(error)) => Err(open_error(&place, error)),
            Err(asserted) => {
                let what = format!("recovery stopped at an impossible value: {asserted}");
                Err(OpenError::Damaged { place, what })
            }
        }
    }

    /// A batch that reaches the system, and the disk if the options say so, before its commit returns.
    pub(super) fn batch(&self, capacity: usize) -> OwnedWriteBatch {
        OwnedWriteBatch::with_capacity(self.database.clone(), capacity).durability(Some(self.persist))
    }

    /// A batch that reaches the disk before its commit returns, whatever the options say.
    pub(super) fn synced_batch(&self, capacity: usize) -> OwnedWriteBatch {
        OwnedWriteBatch::with_capacity(self.database.clone(), capacity).durability(Some(PersistMode::SyncAll))
    }

    pub(super) fn put_chunk(&self, batch: &mut OwnedWriteBatch, at: ChunkKey, bytes: Bytes) {
        batch.insert(&self.log, at.encode().as_slice(), bytes);
    }

    pub(super) fn put_commit(&self, batch: &mut OwnedWriteBatch, topic: u32, group: &str, at: (u32, u64)) {
        let (partition, offset) = at;
        let mut key = topic.to_be_bytes().to_vec();
        key.extend_from_slice(group.as_bytes());
        key.extend_from_slice(&partition.to_be_bytes());
        batch.insert(&self.groups, key, offset.to_be_bytes().as_slice());
    }

    /// Stores the offsets of a partition that a group has finished beyond its position, as far as the map fits.
    pub(super) fn put_map(
        &self,
        batch: &mut OwnedWriteBatch,
        topic: u32,
        group: &str,
        partition: u32,
        map: &Finished,
    ) {
        match map.encode(&origin(topic), MAP_BYTES_MAX) {
            Some(bytes) => batch.insert(&self.meta, map_key(topic, group, partition), bytes),
            None => self.remove_map(batch, topic, group, partition),
        }
    }

    pub(super) fn remove_map(&self, batch: &mut OwnedWriteBatch, topic: u32, group: &str, partition: u32) {
        batch.remove(&self.meta, map_key(topic, group, partition));
    }

    /// The map that `put_map` has stored. A map that cannot be read is ignored, and its records are delivered again.
    pub(super) fn map(&self, topic: u32, group: &str, partition: u32) -> Result<Finished, ReadError> {
        let Some(bytes) = self.meta.get(map_key(topic, group, partition)).map_err(read_error)? else {
            return Ok(Finished::default());
        };
        let known = Finished::decode(&bytes).filter(|(from, _)| *from == origin(topic));
        if known.is_none() {
            tracing::warn!(
                topic,
                group,
                partition,
                "a map of finished records is unreadable: they come again"
            );
        }
        Ok(known.map(|(_, map)| map).unwrap_or_default())
    }

    pub(super) fn put_low(&self, batch: &mut OwnedWriteBatch, topic: u32, partition: u32, low: u64) {
        batch.insert(&self.meta, low_key(topic, partition).as_slice(), low.to_be_bytes().as_slice());
    }

    pub(super) fn remove_chunk(&self, batch: &mut OwnedWriteBatch, at: ChunkKey) {
        batch.remove(&self.log, at.encode().as_slice());
    }

    pub(super) fn put_topic(&self, name: &str, row: TopicRow) -> fjall::Result<()> {
        let mut key = vec![TOPIC];
        key.extend_from_slice(name.as_bytes());
        let mut value = row.id.to_be_bytes().to_vec();
        value.extend_from_slice(&row.partitions.to_be_bytes());
        let mut batch = self.batch(1);
        batch.insert(&self.meta, key, value);
        batch.commit()
    }

    pub(super) fn topics(&self) -> Result<BTreeMap<String, TopicRow>, ReadError> {
        let mut topics = BTreeMap::new();
        for guard in self.meta.prefix([TOPIC]) {
            let (key, value) = guard.into_inner().map_err(read_error)?;
            let name = key.get(1..).and_then(|name| std::str::from_utf8(name).ok());
            let row = value.split_first_chunk().and_then(|(id, rest)| {
                let partitions = u32::from_be_bytes(rest.try_into().ok()?);
                Some(TopicRow { id: u32::from_be_bytes(*id), partitions })
            });
            let (Some(name), Some(row)) = (name, row) else {
                return Err(ReadError::Damaged("a topic's entry has the wrong shape".into()));
            };
            topics.insert(name.to_owned(), row);
        }
        Ok(topics)
    }

    /// The groups of a topic: committed offsets by partition.
    pub(super) fn groups(&self, topic: u32) -> Result<BTreeMap<String, BTreeMap<u32, u64>>, ReadError> {
        let damaged = || ReadError::Damaged("a group's entry has the wrong shape".into());
        let mut groups: BTreeMap<String, BTreeMap<u32, u64>> = BTreeMap::new();
        for guard in self.groups.prefix(topic.to_be_bytes()) {
            let (key, value) = guard.into_inner().map_err(read_error)?;
            let (name, partition) = key.get(4..).and_then(<[u8]>::split_last_chunk).ok_or_else(damaged)?;
            let name = std::str::from_utf8(name).map_err(|_| damaged())?;
            let offset: [u8; 8] = value.as_ref().try_into().map_err(|_| damaged())?;
            let partition = u32::from_be_bytes(*partition);
            groups.entry(name.to_owned()).or_default().insert(partition, u64::from_be_bytes(offset));
        }
        Ok(groups)
    }

    /// What is kept of a partition.
    pub(super) fn extent(&self, topic: u32, partition: u32) -> Result<Extent, ReadError> {
        let low = match self.meta.get(low_key(topic, partition)).map_err(read_error)? {
            None => 0,
            Some(value) => u64::from_be_bytes(
                value
                    .as_ref()
                    .try_into()
                    .map_err(|_| ReadError::Damaged("a partition's low mark has the wrong shape".into()))?,
            ),
        };
        let end = match self.last_chunk(ChunkKey { topic, partition, base: u64::MAX })? {
            Some((base, bytes)) => {
                let count = chunk::count(&bytes)
                    .ok_or_else(|| ReadError::Damaged(format!("the chunk at offset {base} is malformed")))?;
                base + u64::from(count)
            }
            None => low,
        };
        Ok(Extent { low, end })
    }

    /// The chunk that starts exactly at the key.
    pub(super) fn chunk(&self, at: ChunkKey) -> Result<Option<Bytes>, ReadError> {
        Ok(self.log.get(at.encode()).map_err(read_error)?.map(Bytes::from))
    }

    /// The last chunk of the partition that starts at or before the key's offset.
    pub(super) fn last_chunk(&self, at: ChunkKey) -> Result<Option<(u64, Bytes)>, ReadError> {
        let first = ChunkKey { base: 0, ..at };
        let Some(guard) = self.log.range(first.encode()..=at.encode()).next_back() else { return Ok(None) };
        let (key, value) = guard.into_inner().map_err(read_error)?;
        Ok(Some((base_of(&key)?, Bytes::from(value))))
    }

    /// The first offsets of at most `limit` chunks in `from..below`.
    pub(super) fn bases(&self, from: ChunkKey, below: u64, limit: usize) -> Result<Vec<u64>, ReadError> {
        let end = ChunkKey { base: below, ..from };
        let range = self.log.range(from.encode()..end.encode());
        range.take(limit).map(|guard| base_of(&guard.key().map_err(read_error)?)).collect()
    }

    /// Moves what is in memory on its way to table files, and says whether it could: `false` while two earlier
    /// lots are still on their way, which bounds the memory (I9).
    pub(super) fn rotate(&self) -> fjall::Result<bool> {
        if self.log.sealed_memtable_count() >= 2 {
            // Says so when a flush has failed: nobody would ever empty a memtable again.
            self.database.persist(PersistMode::Buffer)?;
            return Ok(false);
        }
        self.log.rotate_memtable()?;
        Ok(true)
    }
}

/// Where a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkKey {
    pub(super) topic: u32,
    pub(super) partition: u32,
    pub(super) base: u64,
}

impl ChunkKey {
    fn encode(self) -> [u8; 16] {
        let mut key = [0; 16];
        key[..4].copy_from_slice(&self.topic.to_be_bytes());
        key[4..8].copy_from_slice(&self.partition.to_be_bytes());
        key[8..].copy_from_slice(&self.base.to_be_bytes());
        key
    }
}

fn base_of(key: &[u8]) -> Result<u64, ReadError> {
    let base = key.get(8..).and_then(|base| base.try_into().ok());
    base.map(u64::from_be_bytes).ok_or_else(|| ReadError::Damaged("a chunk's key has the wrong shape".into()))
}

fn map_key(topic: u32, group: &str, partition: u32) -> Vec<u8> {
    let mut key = vec![MAP];
    key.extend_from_slice(&topic.to_be_bytes());
    key.extend_from_slice(group.as_bytes());
    key.extend_from_slice(&partition.to_be_bytes());
    key
}

/// The origin that a topic's maps name. A topic's number is never used again, and there is one log of it, whose end is
/// checked whenever it is opened.
fn origin(topic: u32) -> Origin {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&topic.to_be_bytes());
    Origin { topic: id, epochs: Vec::new() }
}

fn low_key(topic: u32, partition: u32) -> [u8; 9] {
    let mut key = [LOW; 9];
    key[1..5].copy_from_slice(&topic.to_be_bytes());
    key[5..].copy_from_slice(&partition.to_be_bytes());
    key
}

fn open_database(dir: &Path, options: &EmbeddedOptions) -> fjall::Result<Storage> {
    let database = Database::builder(dir)
        .cache_size(options.cache_bytes)
        .max_journaling_size(64 << 20)
        .worker_threads(1)
        .max_cached_files(Some(64))
        .open()?;
    let log = database.keyspace("log", || {
        KeyspaceCreateOptions::default()
            // The writer rotates earlier itself; this is the net below it.
            .max_memtable_size(options.memtable_bytes * 2)
            .with_kv_separation(Some(
                KvSeparationOptions::default()
                    .separation_threshold(SEPARATE_BYTES)
                    .file_target_size(32 << 20)
                    // Records are deleted in the order they came: files empty by themselves, rewriting is waste.
                    .staleness_threshold(0.95),
            ))
            .data_block_size_policy(BlockSizePolicy::all(16 << 10))
            .filter_policy(FilterPolicy::disabled())
    })?;
    let small = || KeyspaceCreateOptions::default().max_memtable_size(1 << 20);
    let meta = database.keyspace("meta", small)?;
    let groups = database.keyspace("groups", small)?;
    let persist = match options.fsync {
        Fsync::Never => PersistMode::Buffer,
        Fsync::EachBatch => PersistMode::SyncData,
    };
    Ok(Storage { database, log, meta, groups, persist })
}

/// Reads the file that names the layout, before anything else is touched; `false` if there is none.
fn check_format(dir: &Path, place: &str) -> Result<bool, OpenError> {
    match std::fs::read_to_string(dir.join(FORMAT_FILE)) {
        Ok(text) => match text.trim().parse::<u32>() {
            Ok(found) if found > FORMAT => {
                Err(OpenError::Newer { place: place.into(), found, known: FORMAT })
            }
            Ok(1..) => Ok(true),
            _ => Err(OpenError::Damaged {
                place: place.into(),
                what: format!("{FORMAT_FILE} holds no version"),
            }),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io(place, &error)),
    }
}

/// A broker that is being made: fjall cannot open what a kill left half made, so a marker file says that this process
/// may make it again. The format file is written last: before that nothing was ever reported stored.
struct Making {
    /// The marker file, which is locked while the broker is being made.
    mark: Option<File>,
}

impl Making {
    fn begin(dir: &Path, place: &str) -> Result<Self, OpenError> {
        let path = dir.join(MAKING_FILE);
        let said = |error: std::io::Error| io(place, &error);
        let began = path.try_exists().map_err(said)?;
        if !began && (dir.join("version").exists() || dir.join("0.jnl").exists()) {
            // These files belong to somebody else and must not be removed.
            return Ok(Self { mark: None });
        }
        let mark = File::create(&path).map_err(said)?;
        match mark.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse(place.into())),
            Err(TryLockError::Error(error)) => return Err(said(error)),
        }
        // Another process may have finished since we looked.
        if check_format(dir, place)? {
            return Ok(Self { mark: None });
        }
        for (name, is_dir) in [("keyspaces", true), ("0.jnl", false), ("version", false), ("ENDS", false)] {
            let left = dir.join(name);
            let gone = if is_dir { std::fs::remove_dir_all(left) } else { std::fs::remove_file(left) };
            match gone {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(said(error)),
                _ => {}
            }
        }
        Ok(Self { mark: Some(mark) })
    }

    fn finish(self, dir: &Path) -> std::io::Result<()> {
        let fresh = dir.join(format!("{FORMAT_FILE}.new"));
        std::fs::write(&fresh, format!("{FORMAT}\n"))?;
        File::open(&fresh)?.sync_all()?;
        std::fs::rename(&fresh, dir.join(FORMAT_FILE))?;
        File::open(dir)?.sync_all()?;
        if self.mark.is_some() {
            std::fs::remove_file(dir.join(MAKING_FILE))?;
        }
        Ok(())
    }
}

pub(super) fn io(place: &str, error: &std::io::Error) -> OpenError {
    OpenError::Io { place: place.into(), what: error.to_string() }
}

pub(super) fn open_error(place: &str, error: fjall::Error) -> OpenError {
    if matches!(error, fjall::Error::Locked) {
        return OpenError::InUse(place.into());
    }
    match read_error(error) {
        ReadError::Io(what) => OpenError::Io { place: place.into(), what },
        ReadError::Damaged(what) => OpenError::Damaged { place: place.into(), what },
    }
}

pub(super) fn read_error(error: fjall::Error) -> ReadError {
    let system = match &error {
        fjall::Error::Io(system) | fjall::Error::Storage(LsmError::Io(system)) => Some(system),
        fjall::Error::Poisoned => {
            return ReadError::Io("an earlier write failed; open the broker again".into());
        }
        _ => None,
    };
    // A file that is missing or short is damage, not the system's refusal.
    let short = [ErrorKind::UnexpectedEof, ErrorKind::NotFound, ErrorKind::InvalidData];
    match system {
        Some(system) if !short.contains(&system.kind()) => ReadError::Io(system.to_string()),
        _ => ReadError::Damaged(error.to_string()),
    }
}
