//! A log in local files: `<position>.log`, each one part. A file begins with a magic word and the log's id; a frame is
//! its length, the CRC-32C of the log's id and of its bytes, and its bytes. So a payload that looks like a frame is none:
//! nobody outside knows the id.
//!
//! **A full disk.** A frame that the disk does not take is cut off again, and the log goes on as soon as there is room.
//!
//! **A failed sync.** Where that fails, too, or a sync, nobody knows what is there. A second sync would prove nothing: the
//! system may have thrown away what it could not write. So the file takes nothing more. What its owner has in memory goes
//! elsewhere, and the log goes on in a file of its own ([`FarLog::begin_anew`]), which has another magic word: the file
//! before it may be torn anywhere behind its last sync, and counts as far as its frames are whole. Who waited for the sync
//! that failed never gets an Ok.
//!
//! The tail that a crash has torn off is cut off when the log is opened. Where a whole frame stands behind a damaged
//! one, it was no crash: acknowledged tasks would be lost, and the log is refused.

use super::{FRAME_MAX_BYTES, FarLog, LogError};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const MAGIC: &[u8; 8] = b"WFFARLG1";
/// The same for a part that was begun behind a failed write.
const MAGIC_ANEW: &[u8; 8] = b"WFFARLA1";
const HEAD_BYTES: usize = 16;
const FRAME_HEAD_BYTES: usize = 8;

/// The log in a directory of its own.
pub struct FileLog {
    dir: PathBuf,
    id: u64,
    /// Bytes that a crash had torn off.
    torn_bytes: u64,
    writing: Mutex<Writing>,
    /// Callers who wait at the same time share one sync.
    synced: Mutex<Synced>,
    has_failed: AtomicBool,
    /// The lock on the folder, which is released last.
    _lock: File,
}

struct Synced {
    /// Up to where it is synced, but for what is unknown.
    upto: u64,
    /// What lies behind the first position, up to the second one, was written when a write had failed: nobody knows whether
    /// it is there.
    unknown: Option<(u64, u64)>,
}

struct Writing {
    file: File,
    end: u64,
    /// Where each part begins, the last one being written.
    parts: BTreeMap<u64, PathBuf>,
}

impl FileLog {
    /// Opens the log in `dir`, creating it if there is none. Blocks.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn open(dir: &Path) -> Result<Self, LogError> {
        let io = |error: std::io::Error| io_error(dir, &error);
        std::fs::create_dir_all(dir).map_err(io)?;
        let lock = File::create(dir.join("LOCK")).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LogError::InUse(dir.display().to_string())),
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
        let mut parts = BTreeMap::new();
        for entry in std::fs::read_dir(dir).map_err(io)? {
            let path = entry.map_err(io)?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                // What a crash left half made.
                Some("new") => std::fs::remove_file(&path).map_err(io)?,
                Some("log") => {
                    let stem = path.file_stem().and_then(|stem| stem.to_str());
                    let position = stem.and_then(|stem| stem.parse().ok());
                    parts.insert(position.ok_or_else(|| damaged(&path, "its name is no position"))?, path);
                }
                _ => {}
            }
        }
        let Some((&start, last)) = parts.last_key_value() else {
            let id = getrandom::u64().map_err(|error| LogError::Io {
                place: dir.display().to_string(),
                what: error.to_string(),
            })?;
            let (path, file) = move_part(dir, 0, &aside_part(dir, MAGIC, id, 0, &[])?)?;
            let writing = Writing { file, end: 0, parts: [(0, path)].into() };
            return Ok(Self::of(dir, id, 0, writing, false, lock));
        };
        let bytes = std::fs::read(last).map_err(io)?;
        let (id, is_anew) = head(last, &bytes)?;
        let seed = seed_of(id);
        let whole = whole_frames(seed, &bytes[HEAD_BYTES..]).map_err(|()| {
            damaged(last, "whole frames stand behind one that is damaged, so it was not torn by a crash")
        })?;
        let len = HEAD_BYTES + whole;
        let torn_bytes = wide(bytes.len() - len);
        let file = OpenOptions::new().append(true).open(last).map_err(io)?;
        if torn_bytes > 0 {
            tracing::warn!(file = %last.display(), torn_bytes, "a crash has torn the end of the far log off; what was acknowledged stands before it");
            file.set_len(wide(len)).and_then(|()| file.sync_all()).map_err(io)?;
        }
        // What is read from the parts before it may never have reached the disk. So all goes elsewhere once more.
        let has_failed = is_anew && parts.len() > 1;
        let writing = Writing { file, end: start + wide(whole), parts };
        Ok(Self::of(dir, id, torn_bytes, writing, has_failed, lock))
    }

    /// The bytes that a crash had torn off, and that were cut off when the log was opened.
    pub fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }

    fn of(dir: &Path, id: u64, torn_bytes: u64, writing: Writing, has_failed: bool, lock: File) -> Self {
        let upto = writing.parts.last_key_value().map_or(0, |(start, _)| *start);
        let synced = Mutex::new(Synced { upto, unknown: None });
        let (dir, has_failed) = (dir.to_owned(), AtomicBool::new(has_failed));
        Self { dir, id, torn_bytes, writing: Mutex::new(writing), synced, has_failed, _lock: lock }
    }

    /// Nothing is built on a write of which nobody knows whether it is there.
    fn guarded<T>(&self, work: impl FnOnce() -> Result<T, LogError>) -> Result<T, LogError> {
        self.usable()?;
        work().inspect_err(|error| self.fail(error))
    }

    pub(crate) fn fail(&self, error: &LogError) {
        if !self.has_failed.swap(true, SeqCst) {
            tracing::error!(%error, "the far log takes nothing until what it has is in segments and it goes on in another file");
        }
    }

    /// Cuts off what was written of a frame that the disk did not take as a whole.
    fn cut_off(&self, writing: &mut Writing) -> Result<(), LogError> {
        let start = writing.parts.last_key_value().map_or(0, |(start, _)| *start);
        let whole = wide(HEAD_BYTES) + (writing.end - start);
        self.guarded(|| writing.file.set_len(whole).map_err(|error| io_error(&self.dir, &error)))
    }

    /// A frame behind its head.
    fn put_frame(&self, into: &mut BytesMut, frame: &[u8]) -> Result<(), LogError> {
        if frame.is_empty() || frame.len() > FRAME_MAX_BYTES {
            let what = format!("a frame of {} bytes is none", frame.len());
            return Err(LogError::Io { place: self.dir.display().to_string(), what });
        }
        into.put_u32(u32::try_from(frame.len()).unwrap_or(u32::MAX));
        into.put_u32(checksum(seed_of(self.id), frame));
        into.put_slice(frame);
        Ok(())
    }

    fn usable(&self) -> Result<(), LogError> {
        match self.has_failed.load(SeqCst) {
            false => Ok(()),
            true => {
                let what =
                    "an earlier write has failed; nothing is taken until the log goes on in another file"
                        .into();
                Err(LogError::Io { place: self.dir.display().to_string(), what })
            }
        }
    }
}

impl FarLog for FileLog {
    fn id(&self) -> u64 {
        self.id
    }

    fn is_new(&self) -> bool {
        self.writing.lock().parts.keys().eq([&0])
    }

    fn first(&self) -> u64 {
        self.writing.lock().parts.first_key_value().map_or(0, |(start, _)| *start)
    }

    fn part_bytes(&self) -> u64 {
        let writing = self.writing.lock();
        writing.end - writing.parts.last_key_value().map_or(0, |(start, _)| *start)
    }

    fn end(&self) -> u64 {
        self.writing.lock().end
    }

    fn append(&self, frame: &[u8]) -> Result<u64, LogError> {
        let mut bytes = BytesMut::with_capacity(FRAME_HEAD_BYTES + frame.len());
        self.put_frame(&mut bytes, frame)?;
        let mut writing = self.writing.lock();
        self.usable()?;
        if let Err(error) = writing.file.write_all(&bytes) {
            self.cut_off(&mut writing)?;
            return Err(io_error(&self.dir, &error));
        }
        writing.end += wide(bytes.len());
        Ok(writing.end)
    }

    fn sync(&self, position: u64) -> Result<(), LogError> {
        let mut synced = self.synced.lock();
        if synced.unknown.is_some_and(|(before, upto)| position > before && position <= upto) {
            let what = "a write has failed, and nobody knows whether this one is there".into();
            return Err(LogError::Io { place: self.dir.display().to_string(), what });
        }
        if synced.upto >= position {
            return Ok(());
        }
        let (file, end) = {
            let writing = self.writing.lock();
            (writing.file.try_clone(), writing.end)
        };
        self.guarded(|| {
            file.and_then(|file| file.sync_data()).map_err(|error| io_error(&self.dir, &error))?;
            synced.upto = end;
            Ok(())
        })
    }

    fn begin_part(&self) -> Result<u64, LogError> {
        // The earlier part is whole before a later one is there.
        let end = self.writing.lock().end;
        self.sync(end)?;
        let mut writing = self.writing.lock();
        self.guarded(|| writing.file.sync_data().map_err(|error| io_error(&self.dir, &error)))?;
        let start = writing.end;
        // A disk without room leaves the earlier part as it is.
        let aside = aside_part(&self.dir, MAGIC, self.id, start, &[])?;
        self.guarded(|| {
            let (path, file) = move_part(&self.dir, start, &aside)?;
            writing.parts.insert(start, path);
            writing.file = file;
            Ok(start)
        })
    }

    fn has_failed(&self) -> bool {
        self.has_failed.load(SeqCst)
    }

    fn begin_anew(&self, frames: &[Bytes]) -> Result<u64, LogError> {
        let mut bytes = BytesMut::new();
        frames.iter().try_for_each(|frame| self.put_frame(&mut bytes, frame))?;
        let mut writing = self.writing.lock();
        let start = writing.end;
        let aside = aside_part(&self.dir, MAGIC_ANEW, self.id, start, &bytes)?;
        let (path, file) = move_part(&self.dir, start, &aside)?;
        writing.parts.insert(start, path);
        (writing.file, writing.end) = (file, start + wide(bytes.len()));
        Ok(start)
    }

    fn go_on_from(&self, position: u64) {
        let mut synced = self.synced.lock();
        let before = synced.unknown.map_or(synced.upto, |(before, _)| before);
        *synced = Synced { upto: self.writing.lock().end, unknown: Some((before, position)) };
        self.has_failed.store(false, SeqCst);
        tracing::warn!(place = %self.dir.display(), "the far log goes on in another file");
    }

    fn forget(&self, position: u64) -> Result<(), LogError> {
        let mut writing = self.writing.lock();
        let old: Vec<u64> = writing.parts.range(..position).map(|(start, _)| *start).collect();
        for start in old {
            let Some(path) = writing.parts.get(&start) else { continue };
            std::fs::remove_file(path).map_err(|error| io_error(&self.dir, &error))?;
            writing.parts.remove(&start);
        }
        Ok(())
    }

    fn replay(
        &self,
        position: u64,
        each: &mut dyn FnMut(Bytes) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        let parts = self.writing.lock().parts.clone();
        if !parts.contains_key(&position) {
            return Err(damaged(&self.dir, &format!("the part from {position} on is missing")));
        }
        let mut expected = position;
        let mut all = parts.range(position..).peekable();
        while let Some((start, path)) = all.next() {
            if *start != expected {
                return Err(damaged(path, &format!("what is between {expected} and {start} is missing")));
            }
            let bytes = Bytes::from(std::fs::read(path).map_err(|error| io_error(path, &error))?);
            if head(path, &bytes)?.0 != self.id {
                return Err(damaged(path, "it belongs to another log"));
            }
            let mut rest = bytes.slice(HEAD_BYTES..);
            expected += wide(rest.len());
            // Behind its last sync anything may be missing.
            let anew = match all.peek() {
                Some((next, path)) if is_anew(path)? => Some(**next),
                _ => None,
            };
            if let Some(next) = anew {
                let len = usize::try_from(next - start).unwrap_or(usize::MAX);
                rest.truncate(len);
                expected = next;
            }
            while !rest.is_empty() {
                let Some(frame) = frame_at(seed_of(self.id), &rest) else {
                    if anew.is_none() {
                        return Err(damaged(path, "a frame does not have its checksum"));
                    }
                    tracing::warn!(file = %path.display(), bytes = rest.len(), "a failed write has torn the end of a part of the far log; what was acknowledged stands before it");
                    break;
                };
                rest.advance(FRAME_HEAD_BYTES);
                each(rest.split_to(frame))?;
            }
        }
        Ok(())
    }
}

/// A part is made aside and moved when it is whole, so that no file without its head is ever found.
fn aside_part(dir: &Path, magic: &[u8; 8], id: u64, start: u64, frames: &[u8]) -> Result<PathBuf, LogError> {
    let io = |error: std::io::Error| io_error(dir, &error);
    let aside = dir.join(format!("{start:020}.new"));
    let mut file = File::create(&aside).map_err(io)?;
    let head = [&magic[..], &id.to_be_bytes()].concat();
    file.write_all(&head).and_then(|()| file.write_all(frames)).and_then(|()| file.sync_all()).map_err(io)?;
    Ok(aside)
}

fn move_part(dir: &Path, start: u64, aside: &Path) -> Result<(PathBuf, File), LogError> {
    let io = |error: std::io::Error| io_error(dir, &error);
    let path = dir.join(format!("{start:020}.log"));
    std::fs::rename(aside, &path).map_err(io)?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io)?;
    let file = OpenOptions::new().append(true).open(&path).map_err(io)?;
    Ok((path, file))
}

/// The id in a file's head, and whether the part was begun behind a failed write.
fn head(path: &Path, bytes: &[u8]) -> Result<(u64, bool), LogError> {
    let anew = bytes.strip_prefix(MAGIC_ANEW);
    let id = anew.or_else(|| bytes.strip_prefix(MAGIC)).and_then(|rest| rest.first_chunk());
    let id = id.map(|id| u64::from_be_bytes(*id));
    Ok((id.ok_or_else(|| damaged(path, "it does not begin as a log does"))?, anew.is_some()))
}

/// Whether a part was begun behind a failed write.
fn is_anew(path: &Path) -> Result<bool, LogError> {
    let mut bytes = [0; HEAD_BYTES];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| io_error(path, &error))?;
    Ok(head(path, &bytes)?.1)
}

/// The length of the whole frame with which `bytes` begin.
fn frame_at(seed: u32, bytes: &[u8]) -> Option<usize> {
    let (len, rest) = bytes.split_first_chunk()?;
    let (sum, rest) = rest.split_first_chunk()?;
    let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
    let frame = rest.get(..len).filter(|_| (1..=FRAME_MAX_BYTES).contains(&len))?;
    (checksum(seed, frame) == u32::from_be_bytes(*sum)).then_some(len)
}

/// The bytes of the whole frames with which `bytes` begin. An error where whole ones follow behind a damaged one.
fn whole_frames(seed: u32, bytes: &[u8]) -> Result<usize, ()> {
    let mut whole = 0;
    while let Some(len) = frame_at(seed, &bytes[whole..]) {
        whole += FRAME_HEAD_BYTES + len;
    }
    match (whole + 1..bytes.len()).any(|at| frame_at(seed, &bytes[at..]).is_some()) {
        true => Err(()),
        false => Ok(whole),
    }
}

fn seed_of(id: u64) -> u32 {
    crc32c::crc32c(&id.to_be_bytes())
}

fn checksum(seed: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, bytes)
}

fn wide(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

fn io_error(place: &Path, error: &std::io::Error) -> LogError {
    LogError::Io { place: place.display().to_string(), what: error.to_string() }
}

fn damaged(place: &Path, what: &str) -> LogError {
    LogError::Damaged { place: place.display().to_string(), what: what.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(log: &FileLog, position: u64) -> Vec<Bytes> {
        let mut all = Vec::new();
        log.replay(position, &mut |frame| {
            all.push(frame);
            Ok(())
        })
        .unwrap();
        all
    }

    #[test]
    fn what_was_appended_is_there_from_each_part_on() {
        let dir = tempfile::tempdir().unwrap();
        let log = FileLog::open(dir.path()).unwrap();
        log.append(b"one").unwrap();
        let part = log.begin_part().unwrap();
        let end = log.append(b"two").unwrap();
        log.sync(end).unwrap();
        assert_eq!(frames(&log, 0), ["one", "two"]);
        assert!(matches!(FileLog::open(dir.path()), Err(LogError::InUse(_))));
        let id = log.id();
        drop(log);
        let log = FileLog::open(dir.path()).unwrap();
        assert_eq!((log.id(), log.torn_bytes()), (id, 0));
        assert_eq!(frames(&log, part), ["two"]);
        log.append(b"three").unwrap();
        log.forget(part).unwrap();
        assert_eq!(frames(&log, part), ["two", "three"]);
        let missing = log.replay(0, &mut |_| Ok(()));
        assert!(matches!(missing, Err(LogError::Damaged { .. })));
    }

    /// Nobody who waited for the sync that failed ever gets an Ok, and those who come later do.
    #[test]
    fn a_log_goes_on_in_another_file_behind_a_failed_sync() {
        let dir = tempfile::tempdir().unwrap();
        let log = FileLog::open(dir.path()).unwrap();
        let safe = log.append(b"synced").unwrap();
        log.sync(safe).unwrap();
        for round in 0..2 {
            let unknown = log.append(b"unknown").unwrap();
            log.fail(&io_error(dir.path(), &std::io::Error::other("a test")));
            assert!(log.has_failed() && log.append(b"more").is_err() && log.sync(unknown).is_err());
            log.sync(safe).unwrap();
            let frames = [Bytes::from_static(b"all"), Bytes::from(format!("of it {round}"))];
            let start = log.begin_anew(&frames).unwrap();
            assert!(log.append(b"more").is_err() && log.sync(log.end()).is_err(), "it does not count yet");
            log.go_on_from(start);
            assert!(!log.has_failed() && log.sync(unknown).is_err() && log.sync(start).is_err());
            log.sync(safe).unwrap();
            log.sync(log.end()).unwrap();
            let end = log.append(b"more").unwrap();
            log.sync(end).unwrap();
            let last = format!("of it {round}");
            assert_eq!(self::frames(&log, start), ["all", &last, "more"]);
        }
        // It was ended before the part that was begun anew counted alone.
        let all = frames(&log, 0);
        assert_eq!(all.len(), 9, "{all:?}");
        drop(log);
        let log = FileLog::open(dir.path()).unwrap();
        assert_eq!(frames(&log, 0), all);
        assert!(log.has_failed(), "what is read of the part before it may not be on the disk");
        let first = log.first();
        let last = *log.writing.lock().parts.last_key_value().unwrap().0;
        log.forget(last).unwrap();
        drop(log);
        let log = FileLog::open(dir.path()).unwrap();
        assert!(!log.has_failed() && log.first() > first);
        assert_eq!(frames(&log, last), ["all", "of it 1", "more"]);
    }

    /// The machine dies before the part that was begun anew counts alone: the disk has any of what was not synced.
    #[test]
    fn a_part_before_one_that_was_begun_anew_counts_as_far_as_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let log = FileLog::open(dir.path()).unwrap();
        let safe = log.append(b"synced").unwrap();
        log.sync(safe).unwrap();
        log.append(b"unknown").unwrap();
        log.append(b"unknown, too").unwrap();
        log.fail(&io_error(dir.path(), &std::io::Error::other("a test")));
        let start = log.begin_anew(&[Bytes::from_static(b"anew")]).unwrap();
        drop(log);
        let path = dir.path().join(format!("{:020}.log", 0));
        let whole = std::fs::read(&path).unwrap();
        let safe = HEAD_BYTES + usize::try_from(safe).unwrap();
        for len in safe..=whole.len() {
            for tail in [&[][..], &[0; 30]] {
                std::fs::write(&path, [&whole[..len], tail].concat()).unwrap();
                let frames = frames(&FileLog::open(dir.path()).unwrap(), 0);
                assert_eq!((&frames[0][..], &frames[frames.len() - 1][..]), (&b"synced"[..], &b"anew"[..]));
            }
        }
        // A hole where a page was not written: what stands behind it does not count.
        let mut holed = whole.clone();
        holed[safe + FRAME_HEAD_BYTES] ^= 1;
        std::fs::write(&path, &holed).unwrap();
        let log = FileLog::open(dir.path()).unwrap();
        assert_eq!((frames(&log, 0).len(), frames(&log, start).len()), (2, 1));
    }

    #[test]
    fn a_torn_tail_is_cut_off_at_each_byte_and_nothing_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let log = FileLog::open(dir.path()).unwrap();
        log.append(b"first").unwrap();
        log.append(b"second").unwrap();
        drop(log);
        let path = dir.path().join(format!("{:020}.log", 0));
        let whole = std::fs::read(&path).unwrap();
        let second = HEAD_BYTES + FRAME_HEAD_BYTES + 5;
        for len in second..whole.len() {
            for tail in [&[][..], &[0; 30]] {
                std::fs::write(&path, [&whole[..len], tail].concat()).unwrap();
                let log = FileLog::open(dir.path()).unwrap();
                assert_eq!(log.torn_bytes(), wide(len + tail.len() - second), "{len}");
                assert_eq!(frames(&log, 0), ["first"], "{len}");
                log.append(b"next").unwrap();
                assert_eq!(frames(&log, 0), ["first", "next"]);
            }
        }
    }

    /// A payload may look like a whole frame; a crash that tears its own frame must still be told from damage.
    #[test]
    fn a_payload_that_looks_like_a_frame_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let log = FileLog::open(dir.path()).unwrap();
        log.append(b"first").unwrap();
        let forged = [&[0, 0, 0, 1][..], &checksum(1, b"x").to_be_bytes(), b"x"].concat();
        let other = [&[0, 0, 0, 1][..], &crc32c::crc32c(b"x").to_be_bytes(), b"x"].concat();
        log.append(&[b"payload ", &forged[..], &other, b" and more"].concat()).unwrap();
        drop(log);
        let path = dir.path().join(format!("{:020}.log", 0));
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let log = FileLog::open(dir.path()).unwrap();
        assert_eq!(frames(&log, 0), ["first"]);
    }

    /// A file that grows no further stands for a full disk: what was written of a frame is cut off, and the log goes on.
    #[test]
    fn a_full_disk_leaves_whole_frames_and_the_log_goes_on_when_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        let log = FileLog::open(dir.path()).unwrap();
        log.append(b"first").unwrap();
        let path = dir.path().join(format!("{:020}.log", 0));
        let len = std::fs::metadata(&path).unwrap().len();
        // A device that is always full takes the place of the file for one write.
        let writable = {
            let mut writing = log.writing.lock();
            let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
            std::mem::replace(&mut writing.file, full)
        };
        assert!(matches!(log.append(b"no room"), Err(LogError::Io { .. })));
        // That device cannot be cut, so the log is closed to writes; a file can.
        assert!(log.has_failed.swap(false, SeqCst));
        log.writing.lock().file = writable;
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"half a fr").unwrap();
        log.cut_off(&mut log.writing.lock()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), len);
        log.append(b"second").unwrap();
        assert_eq!(frames(&log, 0), ["first", "second"]);
        drop(log);
        let log = FileLog::open(dir.path()).unwrap();
        assert_eq!((frames(&log, 0), log.torn_bytes()), (vec!["first".into(), "second".into()], 0));
    }

    #[test]
    fn a_flipped_bit_before_whole_frames_is_no_torn_tail() {
        let dir = tempfile::tempdir().unwrap();
        let log = FileLog::open(dir.path()).unwrap();
        log.append(b"first").unwrap();
        log.append(b"second").unwrap();
        drop(log);
        let path = dir.path().join(format!("{:020}.log", 0));
        let whole = std::fs::read(&path).unwrap();
        for at in HEAD_BYTES..HEAD_BYTES + FRAME_HEAD_BYTES + 5 {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x10;
            std::fs::write(&path, &flipped).unwrap();
            assert!(matches!(FileLog::open(dir.path()), Err(LogError::Damaged { .. })), "byte {at}");
        }
        let mut flipped = whole;
        flipped[3] ^= 1;
        std::fs::write(&path, &flipped).unwrap();
        assert!(matches!(FileLog::open(dir.path()), Err(LogError::Damaged { .. })));
    }
}
