//! The spill log: where records wait when every queue refuses them (I2). It is one file, appended, synced, replayed.
//! Operators know it as the salvage file.
//!
//! The file `salvage.log` is a magic of eight bytes, then frames: body length (u32, little-endian), CRC32C of the
//! body (u32, little-endian), body. A body is a protobuf message: 1 bonus type, 2 activity, 3 scene, 4 user,
//! 5 key, 6 payload, 7 events. Entries are marked as done in memory alone; the file is cut when all are, and
//! rewritten when it is full and half of it is done. So after a crash some are replayed twice, which their order
//! numbers make harmless. `salvage.lock` is held while it is open.
//!
//! Everything here blocks on the disk: call it from a thread that may.

use crate::requeue::{RequeueOutcome, RequeueRecord};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use windfall_proto::wire::{self, Malformed, Reader, Value};

const MAGIC: &[u8; 8] = b"WFSALV01";
const FRAME_HEAD_BYTES: usize = 8;
/// A frame is a record and a few names; no broker takes one that large.
const BODY_MAX_BYTES: u32 = 64 << 20;

/// The spill log of a process.
#[derive(Debug)]
pub struct SpillLog {
    dir: PathBuf,
    max_bytes: u64,
    file: Mutex<Log>,
    /// Locked as long as this is open.
    _lock: File,
}

/// Names an entry while the file is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EntryId(u64);

/// The spill log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SpillOpenError {
    /// Another process has it. There is one process per directory.
    #[error("{0} is in use by another process")]
    InUse(PathBuf),
    /// It was not written by this version of Windfall. Move it away, or use the version that wrote it.
    #[error("{0} is not a salvage file of this version")]
    Unknown(PathBuf),
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// Nothing was written; keep what it was for.
#[derive(Debug, thiserror::Error)]
pub enum SpillError {
    /// It has reached its limit. It empties itself when queues take records again.
    #[error("the salvage file has no room for {needed} bytes; its limit is {max}")]
    Full {
        /// Bytes to write.
        needed: u64,
        /// The limit.
        max: u64,
    },
    /// The system refused. Trying again is sound.
    #[error("the salvage file cannot be written: {0}")]
    Io(#[from] io::Error),
}

#[derive(Debug)]
struct Log {
    file: File,
    /// Bytes of whole frames and the magic; whatever lies behind is overwritten.
    len: u64,
    entries: VecDeque<Entry>,
    next_id: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: u64,
    at: u64,
    body_bytes: u32,
    state: EntryState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryState {
    Waiting,
    Taken,
    Done,
}

impl SpillLog {
    /// Opens or creates the file in `dir`, at most `max_bytes` long. What it holds is there to be taken.
    ///
    /// A damaged end (a write that a crash cut short, which nobody was told had succeeded) is copied to
    /// the end of `salvage.damaged` for a person to look at, and cut off.
    ///
    /// # Errors
    /// [`SpillOpenError`].
    pub fn open(dir: &Path, max_bytes: u64) -> Result<Self, SpillOpenError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| SpillOpenError::Io { path, source }
        };
        std::fs::create_dir_all(dir).map_err(at(dir))?;
        let lock_path = dir.join("salvage.lock");
        let lock = open_file(&lock_path).map_err(at(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(SpillOpenError::InUse(dir.to_owned())),
            Err(TryLockError::Error(error)) => return Err(at(&lock_path)(error)),
        }
        let path = dir.join("salvage.log");
        let mut file = open_file(&path).map_err(at(&path))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(at(&path))?;
        // A file shorter than its magic was being created when its process died.
        if bytes.len() >= MAGIC.len() && bytes[..MAGIC.len()] != MAGIC[..] {
            return Err(SpillOpenError::Unknown(path));
        }
        let (entries, len) = scan(&bytes);
        let mut log = Log { file, len, next_id: entries.len() as u64, entries };
        log.repair(dir, &bytes).map_err(at(&path))?;
        Ok(Self { dir: dir.to_owned(), max_bytes, file: Mutex::new(log), _lock: lock })
    }

    /// Appends records, all or none, durable when it returns.
    ///
    /// # Errors
    /// [`SpillError`].
    pub fn append(&self, records: &[RequeueRecord]) -> Result<(), SpillError> {
        let mut frames = Vec::new();
        let mut sizes = Vec::with_capacity(records.len());
        for record in records {
            let body = encode(record);
            let full = SpillError::Full { needed: body.len() as u64, max: u64::from(BODY_MAX_BYTES) };
            let size = u32::try_from(body.len()).ok().filter(|size| *size <= BODY_MAX_BYTES).ok_or(full)?;
            frames.extend_from_slice(&size.to_le_bytes());
            frames.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
            frames.extend_from_slice(&body);
            sizes.push(size);
        }
        let needed = frames.len() as u64;
        let log = &mut *self.file.lock();
        if log.len + needed > self.max_bytes {
            log.compact(&self.dir)?;
        }
        if log.len + needed > self.max_bytes {
            return Err(SpillError::Full { needed, max: self.max_bytes });
        }
        log.append(&frames, &sizes)?;
        Ok(())
    }

    /// Takes up to `most` waiting entries for replay; each has to be [settled](Self::settle).
    ///
    /// # Errors
    /// [`SpillError::Io`]; nothing is taken.
    pub fn take(&self, most: usize) -> Result<Vec<(EntryId, RequeueRecord)>, SpillError> {
        let log = &mut *self.file.lock();
        let mut taken = Vec::new();
        let waiting = log.entries.iter_mut().filter(|entry| entry.state == EntryState::Waiting);
        for entry in waiting.take(most) {
            let mut body = vec![0; entry.body_bytes as usize];
            log.file.seek(SeekFrom::Start(entry.at + FRAME_HEAD_BYTES as u64))?;
            log.file.read_exact(&mut body)?;
            // It had the right checksum when it was written or scanned.
            let record = decode(&body).map_err(|bad| io::Error::new(io::ErrorKind::InvalidData, bad))?;
            taken.push((EntryId(entry.id), record));
        }
        for (EntryId(id), _) in &taken {
            log.set_state(*id, EntryState::Taken);
        }
        Ok(taken)
    }

    /// Says what became of an entry taken: a broker has it, or it waits again.
    ///
    /// # Errors
    /// [`SpillError::Io`]: an empty file could not be cut; its entries may be replayed again after a restart.
    pub fn settle(&self, id: EntryId, outcome: RequeueOutcome) -> Result<(), SpillError> {
        let log = &mut *self.file.lock();
        match outcome {
            RequeueOutcome::Stored => log.set_state(id.0, EntryState::Done),
            RequeueOutcome::Refused => log.set_state(id.0, EntryState::Waiting),
        }
        while log.entries.front().is_some_and(|entry| entry.state == EntryState::Done) {
            log.entries.pop_front();
        }
        if log.entries.is_empty() && log.len > MAGIC.len() as u64 {
            log.len = MAGIC.len() as u64;
            log.file.set_len(log.len)?;
            log.file.sync_data()?;
        }
        Ok(())
    }

    /// Entries that no broker has stored yet.
    pub fn pending(&self) -> usize {
        let log = self.file.lock();
        log.entries.iter().filter(|entry| entry.state != EntryState::Done).count()
    }

    /// Entries that wait to be taken.
    pub fn waiting(&self) -> usize {
        let log = self.file.lock();
        log.entries.iter().filter(|entry| entry.state == EntryState::Waiting).count()
    }
}

impl Log {
    fn repair(&mut self, dir: &Path, bytes: &[u8]) -> io::Result<()> {
        let good = usize::try_from(self.len).unwrap_or(bytes.len());
        if good < bytes.len() {
            // Behind what is there from an earlier damage, and safe before it is cut here: an entry that was
            // acknowledged may be in it.
            let kept = dir.join("salvage.damaged");
            let mut kept = OpenOptions::new().append(true).create(true).open(kept)?;
            kept.write_all(&bytes[good..])?;
            kept.sync_all()?;
            self.file.set_len(self.len)?;
        }
        if bytes.len() < MAGIC.len() {
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(MAGIC)?;
            self.len = MAGIC.len() as u64;
        }
        self.file.sync_all()?;
        File::open(dir)?.sync_all()
    }

    fn append(&mut self, frames: &[u8], sizes: &[u32]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.len))?;
        // On an error `len` stays, so the next append overwrites what was written in part.
        self.file.write_all(frames)?;
        self.file.sync_data()?;
        let mut at = self.len;
        for &body_bytes in sizes {
            let id = self.next_id;
            self.next_id += 1;
            self.entries.push_back(Entry { id, at, body_bytes, state: EntryState::Waiting });
            at += FRAME_HEAD_BYTES as u64 + u64::from(body_bytes);
        }
        self.len = at;
        Ok(())
    }

    fn set_state(&mut self, id: u64, state: EntryState) {
        // Ids ascend, so an entry is found by halving.
        if let Ok(at) = self.entries.binary_search_by_key(&id, |entry| entry.id) {
            self.entries[at].state = state;
        }
    }

    /// Rewrites the file without what is done, if that is half of it or more.
    fn compact(&mut self, dir: &Path) -> io::Result<()> {
        let keep = |entry: &&Entry| entry.state != EntryState::Done;
        let frame = |entry: &Entry| FRAME_HEAD_BYTES as u64 + u64::from(entry.body_bytes);
        let kept: u64 = self.entries.iter().filter(keep).map(frame).sum();
        if kept > self.len / 2 {
            return Ok(());
        }
        let path = dir.join("salvage.log");
        let new_path = dir.join("salvage.new");
        let mut new =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&new_path)?;
        new.write_all(MAGIC)?;
        let mut entries = VecDeque::new();
        let mut at = MAGIC.len() as u64;
        for entry in self.entries.iter().filter(keep) {
            let mut bytes = vec![0; FRAME_HEAD_BYTES + entry.body_bytes as usize];
            self.file.seek(SeekFrom::Start(entry.at))?;
            self.file.read_exact(&mut bytes)?;
            new.write_all(&bytes)?;
            entries.push_back(Entry { at, ..*entry });
            at += frame(entry);
        }
        new.sync_all()?;
        let dir = File::open(dir)?;
        std::fs::rename(&new_path, &path)?;
        // I2: from here on the old file has no name, so nothing may be appended to it, whatever fails next.
        (self.file, self.entries, self.len) = (new, entries, at);
        dir.sync_all()
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// The whole frames of a file, and where they end.
fn scan(bytes: &[u8]) -> (VecDeque<Entry>, u64) {
    let mut entries = VecDeque::new();
    let mut at = MAGIC.len();
    while let Some(body_bytes) = frame_at(bytes, at) {
        let id = entries.len() as u64;
        entries.push_back(Entry { id, at: at as u64, body_bytes, state: EntryState::Waiting });
        at += FRAME_HEAD_BYTES + body_bytes as usize;
    }
    (entries, at.min(bytes.len()) as u64)
}

fn frame_at(bytes: &[u8], at: usize) -> Option<u32> {
    let head = bytes.get(at..at + FRAME_HEAD_BYTES)?;
    let (size, sum) = head.split_at(4);
    let size = u32::from_le_bytes(size.try_into().ok()?);
    let sum = u32::from_le_bytes(sum.try_into().ok()?);
    let body = at + FRAME_HEAD_BYTES;
    let body = bytes.get(body..body.checked_add(size as usize)?)?;
    (size > 0 && crc32c::crc32c(body) == sum && decode(body).is_ok()).then_some(size)
}

fn encode(record: &RequeueRecord) -> Vec<u8> {
    let mut out = Vec::with_capacity(record.payload.len() + 256);
    wire::put_bytes(&mut out, 1, record.bonus_type.as_bytes());
    wire::put_bytes(&mut out, 2, record.activity.as_bytes());
    wire::put_bytes(&mut out, 3, record.scene.as_bytes());
    wire::put_i64(&mut out, 4, record.first_user_id);
    wire::put_bytes(&mut out, 5, &record.key);
    wire::put_bytes(&mut out, 6, &record.payload);
    wire::put_u64(&mut out, 7, record.events.into());
    out
}

fn decode(body: &[u8]) -> Result<RequeueRecord, Malformed> {
    let mut record = RequeueRecord {
        bonus_type: String::new(),
        activity: String::new(),
        scene: String::new(),
        first_user_id: 0,
        key: Vec::new(),
        payload: Vec::new(),
        events: 0,
    };
    let mut reader = Reader::new(body);
    while !reader.is_empty() {
        let at = reader.position();
        let (field, value): (u64, Value<'_>) = reader.field()?;
        match field {
            1 => record.bonus_type = wire::text(value, at)?.to_owned(),
            2 => record.activity = wire::text(value, at)?.to_owned(),
            3 => record.scene = wire::text(value, at)?.to_owned(),
            4 => record.first_user_id = wire::int64(value, at)?,
            5 => record.key = wire::blob(value, at)?.to_vec(),
            6 => record.payload = wire::blob(value, at)?.to_vec(),
            7 => record.events = wire::uint32(value, at)?,
            _ => {}
        }
    }
    Ok(record)
}
