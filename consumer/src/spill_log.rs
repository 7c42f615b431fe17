//! The spill log: where records wait when every queue refuses them (I2). It is one file, appended, synced, replayed.
//! Operators know it as the salvage file.
//!
//! The file `salvage.log` is a magic of eight bytes, then frames: body length (u32, little-endian), CRC32C of the
//! body (u32, little-endian), body. A body is a protobuf message: 1 bonus type, 2 activity, 3 scene, 4 user,
//! 5 key, 6 payload, 7 events. Entries are marked as done in memory alone; the file is cut when all are, and
//! rewritten when it is full and half of it is done. So after a crash some are replayed twice, which their order
//! numbers make harmless. `salvage.lock` is held while it is open.
//!
//! A damaged frame costs that frame alone. Its bytes go to the end of `salvage.damaged` for an operator to inspect,
//! it is counted and logged, and every other frame is replayed.
//!
//! Everything here blocks on the disk: call it from a thread that may.

mod frame;
mod inspect;

pub use frame::RouteId;
pub use inspect::{Inspection, inspect};

use self::frame::{HEAD_BYTES, MAGIC};
use crate::requeue::{RequeueOutcome, RequeueRecord};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use windfall_contract::declare_metrics;

/// The number of tries to take the lock: an [inspection](inspect) of the directory holds it for a moment.
const LOCK_TRIES: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The spill log of a process.
#[derive(Debug)]
pub struct SpillLog {
    dir: PathBuf,
    max_bytes: u64,
    file: Mutex<Log>,
    /// The lock file, which is locked as long as this is open.
    _lock: File,
}

declare_metrics! {
    /// What a process's salvage file holds and has lost.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct SpillStats {
        gauge "windfall_salvage_pending_records"
        "Records in the salvage file that no broker has stored yet" {
            /// The number of records that no broker has stored yet, now.
            pub pending: u64,
        }
        counter "windfall_salvage_damaged_frames_total"
        "Damaged frames of the salvage file; their bytes are kept in salvage.damaged" {
            /// The number of runs of damaged bytes that were set aside.
            pub damaged: u64,
        }
    }
}

/// Names an entry while the file is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EntryId(u64);

/// The spill log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SpillOpenError {
    /// Another process has the directory open. Each directory belongs to one process.
    #[error("{0} is in use by another process")]
    InUse(PathBuf),
    /// It was not written by this version of Windfall. Move it away, or use the version that wrote it.
    #[error("{0} is not a salvage file of this version")]
    Unknown(PathBuf),
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// Nothing was written; keep the records.
#[derive(Debug, thiserror::Error)]
pub enum SpillError {
    /// The file has reached its limit. It empties itself when queues take records again.
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
    /// Runs of damaged bytes that were set aside.
    damaged: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: u64,
    at: u64,
    body_bytes: u32,
    route: RouteId,
    state: EntryState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryState {
    Waiting,
    Taken,
    Done,
}

impl SpillLog {
    /// Opens or creates the file in `dir`, at most `max_bytes` long. What it holds is there to be taken. What is
    /// damaged is set aside first; at the end of the file that may be a write that a crash cut short, which was never
    /// reported as stored.
    ///
    /// # Errors
    /// [`SpillOpenError`].
    pub fn open(dir: &Path, max_bytes: u64) -> Result<Self, SpillOpenError> {
        let at = open_error;
        std::fs::create_dir_all(dir).map_err(at(dir))?;
        let lock_path = dir.join("salvage.lock");
        let lock = open_file(&lock_path).map_err(at(&lock_path))?;
        let mut tries = LOCK_TRIES;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if tries > 1 => std::thread::sleep(LOCK_PAUSE),
                Err(TryLockError::WouldBlock) => return Err(SpillOpenError::InUse(dir.to_owned())),
                Err(TryLockError::Error(error)) => return Err(at(&lock_path)(error)),
            }
            tries -= 1;
        }
        let path = dir.join("salvage.log");
        let mut file = open_file(&path).map_err(at(&path))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(at(&path))?;
        // A file shorter than its magic was being created when its process died.
        if bytes.len() >= MAGIC.len() && bytes[..MAGIC.len()] != MAGIC[..] {
            return Err(SpillOpenError::Unknown(path));
        }
        let mut log = Log { file, len: bytes.len() as u64, next_id: 0, entries: VecDeque::new(), damaged: 0 };
        log.take_over(dir, &bytes).map_err(at(&path))?;
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
            let needed = record.payload.len() as u64;
            let full = SpillError::Full { needed, max: u64::from(frame::BODY_MAX_BYTES) };
            let frame = frame::build(record).ok_or(full)?;
            sizes.push((frame.len(), RouteId::of(record)));
            frames.extend_from_slice(&frame);
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

    /// Takes up to `most` waiting entries for replay, the oldest first; each has to be [settled](Self::settle).
    ///
    /// # Errors
    /// [`SpillError::Io`]; nothing is taken.
    pub fn take(&self, most: usize) -> Result<Vec<(EntryId, RequeueRecord)>, SpillError> {
        self.take_by(most, |_| most)
    }

    /// The same with at most `of_route` entries of each route, so that what no queue takes just now does not stand
    /// before the rest. An entry that is damaged is set aside, and one that cannot be read waits again.
    ///
    /// # Errors
    /// [`SpillError::Io`]; nothing is taken.
    pub fn take_by(
        &self,
        most: usize,
        of_route: impl Fn(RouteId) -> usize,
    ) -> Result<Vec<(EntryId, RequeueRecord)>, SpillError> {
        let log = &mut *self.file.lock();
        let mut taken = Vec::new();
        let mut routes: BTreeMap<RouteId, usize> = BTreeMap::new();
        let mut unreadable = None;
        for at in 0..log.entries.len() {
            if taken.len() >= most {
                break;
            }
            let entry = log.entries[at];
            let left = routes.entry(entry.route).or_insert_with(|| of_route(entry.route));
            if entry.state != EntryState::Waiting || *left == 0 {
                continue;
            }
            match log.read(&entry) {
                Ok(frame) => match frame::check(&frame) {
                    Some(record) => {
                        *left -= 1;
                        log.entries[at].state = EntryState::Taken;
                        taken.push((EntryId(entry.id), record));
                    }
                    None => match log.set_aside(&self.dir, &frame, entry.at) {
                        Ok(()) => log.entries[at].state = EntryState::Done,
                        Err(error) => unreadable = Some(error),
                    },
                },
                Err(error) => unreadable = Some(error),
            }
        }
        if let Some(error) = &unreadable {
            tracing::error!(%error, "a frame of the salvage file cannot be read or set aside");
        }
        match unreadable {
            Some(error) if taken.is_empty() => Err(error.into()),
            _ => Ok(taken),
        }
    }

    /// Reports the outcome of a taken entry: a broker has stored it, or it waits again.
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

    /// Rewrites the file without the entries that a broker has stored.
    ///
    /// # Errors
    /// [`SpillError::Io`]; they may be replayed again after a restart.
    pub fn forget_stored(&self) -> Result<(), SpillError> {
        let log = &mut *self.file.lock();
        if log.entries.iter().any(|entry| entry.state == EntryState::Done) {
            log.rewrite(&self.dir)?;
        }
        Ok(())
    }

    /// The numbers of entries that it holds and has lost.
    pub fn stats(&self) -> SpillStats {
        SpillStats { pending: self.pending() as u64, damaged: self.file.lock().damaged }
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
    /// Takes in what the file holds; sets damage aside, and leaves a file without it.
    fn take_over(&mut self, dir: &Path, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() < MAGIC.len() {
            self.file.set_len(0)?;
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(MAGIC)?;
            self.len = MAGIC.len() as u64;
            self.file.sync_all()?;
            return File::open(dir)?.sync_all();
        }
        let scan = frame::scan(bytes);
        for frame in &scan.frames {
            self.add(frame.at as u64, frame.body_bytes, RouteId::of(&frame.record));
        }
        for damaged in &scan.damaged {
            // Safe before it is cut out here: an entry that was acknowledged may be in it.
            self.set_aside(dir, &bytes[damaged.clone()], damaged.start as u64)?;
        }
        match scan.damaged.as_slice() {
            [] => {}
            [end] if end.end == bytes.len() => {
                self.len = end.start as u64;
                self.file.set_len(self.len)?;
            }
            _ => return self.rewrite(dir),
        }
        self.file.sync_all()?;
        File::open(dir)?.sync_all()
    }

    /// Keeps damaged bytes for an operator, behind those of an earlier damage.
    fn set_aside(&mut self, dir: &Path, bytes: &[u8], at: u64) -> io::Result<()> {
        let kept = dir.join("salvage.damaged");
        let mut file = OpenOptions::new().append(true).create(true).open(&kept)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        self.damaged += 1;
        let (kept, bytes) = (kept.display(), bytes.len());
        tracing::error!(at, bytes, %kept, "a damaged frame of the salvage file is set aside; the rest is replayed");
        Ok(())
    }

    fn append(&mut self, frames: &[u8], sizes: &[(usize, RouteId)]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.len))?;
        // On an error `len` stays, so the next append overwrites what was written in part.
        self.file.write_all(frames)?;
        sync_frames(&self.file)?;
        let mut at = self.len;
        for &(frame_bytes, route) in sizes {
            // No frame is larger than that.
            let body_bytes = u32::try_from(frame_bytes - HEAD_BYTES).unwrap_or(u32::MAX);
            self.add(at, body_bytes, route);
            at += frame_bytes as u64;
        }
        self.len = at;
        Ok(())
    }

    fn add(&mut self, at: u64, body_bytes: u32, route: RouteId) {
        let id = self.next_id;
        self.next_id += 1;
        self.entries.push_back(Entry { id, at, body_bytes, route, state: EntryState::Waiting });
    }

    /// The bytes of an entry's frame.
    fn read(&mut self, entry: &Entry) -> io::Result<Vec<u8>> {
        let mut frame = vec![0; HEAD_BYTES + entry.body_bytes as usize];
        self.file.seek(SeekFrom::Start(entry.at))?;
        self.file.read_exact(&mut frame)?;
        Ok(frame)
    }

    fn set_state(&mut self, id: u64, state: EntryState) {
        // Ids ascend, so an entry is found by halving.
        if let Ok(at) = self.entries.binary_search_by_key(&id, |entry| entry.id) {
            self.entries[at].state = state;
        }
    }

    /// Rewrites the file without what is done, if that is half of it or more.
    fn compact(&mut self, dir: &Path) -> io::Result<()> {
        let kept: u64 = self.entries.iter().filter(|entry| entry.is_kept()).map(Entry::bytes).sum();
        if kept > self.len / 2 {
            return Ok(());
        }
        self.rewrite(dir)
    }

    /// Rewrites the file without what is done or damaged.
    fn rewrite(&mut self, dir: &Path) -> io::Result<()> {
        let path = dir.join("salvage.log");
        let new_path = dir.join("salvage.new");
        let mut new =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&new_path)?;
        new.write_all(MAGIC)?;
        let mut entries = VecDeque::new();
        let mut at = MAGIC.len() as u64;
        let kept: Vec<Entry> = self.entries.iter().filter(|entry| entry.is_kept()).copied().collect();
        for entry in kept {
            let frame = self.read(&entry)?;
            new.write_all(&frame)?;
            entries.push_back(Entry { at, ..entry });
            at += entry.bytes();
        }
        new.sync_all()?;
        let dir = File::open(dir)?;
        std::fs::rename(&new_path, &path)?;
        // I2: from here on the old file has no name, so nothing may be appended to it, whatever fails next.
        (self.file, self.entries, self.len) = (new, entries, at);
        dir.sync_all()
    }
}

impl Entry {
    fn is_kept(&self) -> bool {
        self.state != EntryState::Done
    }

    fn bytes(&self) -> u64 {
        HEAD_BYTES as u64 + u64::from(self.body_bytes)
    }
}

/// Waits until appended frames are on disk.
#[cfg(not(feature = "sabotage"))]
fn sync_frames(file: &File) -> io::Result<()> {
    file.sync_data()
}

/// Waits until appended frames are on disk, unless the promise is to be broken.
#[cfg(feature = "sabotage")]
fn sync_frames(file: &File) -> io::Result<()> {
    if crate::sabotage::skips_salvage_sync() { Ok(()) } else { file.sync_data() }
}

fn open_error(path: &Path) -> impl FnOnce(io::Error) -> SpillOpenError + use<> {
    let path = path.to_owned();
    move |source| SpillOpenError::Io { path, source }
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}
