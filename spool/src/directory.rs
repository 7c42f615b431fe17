//! Instance directories: making, locking, adopting and deleting them.
//!
//! ```text
//! <root>/instance-<16 hex digits>/lock    flock held for as long as the owner lives
//! <root>/instance-<16 hex digits>/spool   the file; it exists from the moment it is complete
//! <root>/instance-….damaged/              set aside for people; never touched again
//! ```
//!
//! Whoever holds the lock, and has checked that the locked file is the one that still lies there, owns the
//! directory. A crash at any step leaves one of these, each of which the next start handles:
//! - *Making*: directory, lock, `spool.new` allocated and synced, renamed to `spool`. Before the rename nothing can
//!   have been stored, so a directory without `spool` is deleted.
//! - *Adopting* changes nothing in the directory.
//! - *Freeing* is one store per slot. What was not freed is handed out again.
//! - *Deleting*: all slots are free; `spool` goes first, then the lock, then the directory. In between it is a
//!   directory without `spool`.

use crate::error::OpenError;
use crate::format::{BadHeader, FORMAT_VERSION, HEADER_BYTES, Header, PAGE_BYTES};
use crate::options::Geometry;
use crate::region::Region;
use memmap2::MmapOptions;
use rustix::fs::FallocateFlags;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const PREFIX: &str = "instance-";
const LOCK: &str = "lock";
const SPOOL: &str = "spool";
const SPOOL_NEW: &str = "spool.new";
/// The number of tries to make a directory. Another process deletes a new directory only in the instant before it is
/// locked, so few tries are needed.
const MAKE_TRIES: u32 = 16;

/// A directory that this process owns: its lock is held until this is dropped.
#[derive(Debug)]
pub(crate) struct InstanceDir {
    path: PathBuf,
    _lock: File,
}

/// A spool file that is whole.
pub(crate) struct Found {
    pub directory: InstanceDir,
    pub geometry: Geometry,
    file: File,
}

/// The directories in a root that have no living owner.
#[derive(Default)]
pub(crate) struct Scan {
    pub whole: Vec<Found>,
    /// Directories without a spool file, which were made or deleted halfway.
    pub husks: Vec<InstanceDir>,
    pub damaged: Vec<(InstanceDir, String)>,
    /// Directories that are left as they are: they cannot be read, or a newer release wrote them.
    pub refused: Vec<(PathBuf, String)>,
}

/// Looks at every instance directory whose owner is gone, and takes its lock. Changes nothing.
pub(crate) fn scan(root: &Path) -> Result<Scan, OpenError> {
    let mut scan = Scan::default();
    let listing = fs::read_dir(root).map_err(|error| OpenError::io("list", root, error))?;
    for entry in listing {
        let path = entry.map_err(|error| OpenError::io("list", root, error))?.path();
        if !is_instance(&path) {
            continue;
        }
        match InstanceDir::try_lock(&path) {
            Ok(Some(directory)) => inspect(directory, &mut scan),
            Ok(None) => {}
            Err(error) => scan.refused.push((path, error.to_string())),
        }
    }
    // By name, so that the same root reads the same each time.
    scan.whole.sort_by(|a, b| a.directory.path.cmp(&b.directory.path));
    Ok(scan)
}

fn is_instance(path: &Path) -> bool {
    let digits = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(PREFIX));
    digits.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn inspect(directory: InstanceDir, scan: &mut Scan) {
    let path = directory.path.join(SPOOL);
    let file = match OpenOptions::new().read(true).write(true).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            scan.husks.push(directory);
            return;
        }
        Err(error) => {
            scan.refused.push((path, error.to_string()));
            return;
        }
    };
    match read_header(&file) {
        Ok(Ok(header)) => scan.whole.push(Found { directory, geometry: header.geometry, file }),
        // Its lock is let go, so that a process of that release can take it over at any time.
        Ok(Err(BadHeader::Newer(found))) => scan.refused.push((path, newer(found))),
        Ok(Err(BadHeader::Damaged)) => {
            scan.damaged.push((directory, "its header is damaged, and the copy at its end too".into()));
        }
        Err(error) => scan.refused.push((path, error.to_string())),
    }
}

fn newer(found: u32) -> String {
    format!(
        "a newer release wrote it (format {found}, this one reads up to {FORMAT_VERSION}) and its events are not sent by this \
         process; start that release on this directory, and it sends them"
    )
}

/// Reads the header, or its copy at the end.
fn read_header(file: &File) -> io::Result<Result<Header, BadHeader>> {
    let len = file.metadata()?.len();
    let mut outcome = Err(BadHeader::Damaged);
    for at in [0, len.saturating_sub(PAGE_BYTES as u64)] {
        let mut bytes = [0; HEADER_BYTES];
        match file.read_exact_at(&mut bytes, at) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => continue,
            Err(error) => return Err(error),
        }
        outcome = match Header::decode(&bytes) {
            // A file that is shorter than it says would raise SIGBUS when read.
            Ok(header) if header.geometry.file_bytes() == len => return Ok(Ok(header)),
            Ok(_) => Err(BadHeader::Damaged),
            Err(BadHeader::Newer(found)) => return Ok(Err(BadHeader::Newer(found))),
            Err(BadHeader::Damaged) => outcome,
        };
    }
    Ok(outcome)
}

impl Found {
    /// Maps the file, after disk space has been reserved for every byte of it.
    pub fn map(&self) -> Result<Region, OpenError> {
        map(&self.file, &self.directory.path.join(SPOOL), self.geometry)
    }
}

/// Reserves and maps a file.
fn map(file: &File, path: &Path, geometry: Geometry) -> Result<Region, OpenError> {
    let bytes = geometry.file_bytes();
    // Also of a file that was whole: a copy of it may have holes, and a store to a hole on a full disk is SIGBUS.
    rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes)
        .map_err(|error| OpenError::allocating(path, bytes, error.into()))?;
    let map = MmapOptions::new().map_raw(file).map_err(|error| OpenError::io("map", path, error))?;
    Ok(Region::mapped(map))
}

impl InstanceDir {
    /// Makes a directory with a new spool file in it, or nothing.
    pub fn make(root: &Path, geometry: Geometry) -> Result<(Self, Region), OpenError> {
        for _ in 0..MAKE_TRIES {
            let instance = RandomState::new().hash_one(std::process::id());
            let path = root.join(format!("{PREFIX}{instance:016x}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(OpenError::io("create", path, error)),
            }
            // Another start may have seen it before it was locked, and deleted it.
            let locked = Self::try_lock(&path).map_err(|error| OpenError::io("lock", &path, error))?;
            let Some(directory) = locked else { continue };
            return match directory.make_spool(root, Header { instance, geometry }) {
                Ok(region) => Ok((directory, region)),
                Err(error) => {
                    directory.delete_or_warn();
                    Err(error)
                }
            };
        }
        Err(OpenError::io("lock a new directory in", root, io::ErrorKind::WouldBlock.into()))
    }

    fn make_spool(&self, root: &Path, header: Header) -> Result<Region, OpenError> {
        let path = self.path.join(SPOOL_NEW);
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(|error| OpenError::io("create", &path, error))?;
        let region = map(&file, &path, header.geometry)?;
        let bytes = header.encode();
        let written = [0, header.geometry.file_bytes() - PAGE_BYTES as u64]
            .into_iter()
            .try_for_each(|at| file.write_all_at(&bytes, at))
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&path, self.path.join(SPOOL)))
            .and_then(|()| File::open(&self.path)?.sync_all())
            .and_then(|()| File::open(root)?.sync_all());
        written.map_err(|error| OpenError::io("write", &path, error))?;
        Ok(region)
    }

    /// Takes a directory's lock; `None` if it has a living owner or is just being deleted.
    fn try_lock(path: &Path) -> io::Result<Option<Self>> {
        let lock_path = path.join(LOCK);
        match OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&lock_path) {
            Ok(lock) => Self::take(path, lock),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Locks a lock file that was opened before, if it is still the one in the directory: its last owner may have
    /// deleted it meanwhile.
    fn take(path: &Path, lock: File) -> io::Result<Option<Self>> {
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let ours = lock.metadata()?;
        match fs::metadata(path.join(LOCK)) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {
                Ok(Some(Self { path: path.to_owned(), _lock: lock }))
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Deletes the directory with all files of the spool in it. The lock file goes last but one, so that nobody adopts
    /// half of it.
    fn delete(&self) -> io::Result<()> {
        for name in [SPOOL, SPOOL_NEW, LOCK] {
            match fs::remove_file(self.path.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::remove_dir(&self.path)
    }

    /// Deletes the directory. If that fails, nothing is lost: it holds no events, and the next start tries again.
    pub fn delete_or_warn(&self) {
        if let Err(error) = self.delete() {
            tracing::warn!(path = %self.path.display(), %error, "cannot delete an emptied spool directory");
        }
    }

    /// Renames the directory so that no start looks at it again; returns its new path.
    pub fn set_aside(&self) -> io::Result<PathBuf> {
        let mut name = self.path.clone().into_os_string();
        name.push(".damaged");
        fs::rename(&self.path, &name)?;
        Ok(name.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_that_was_replaced_before_it_was_locked_gives_no_ownership() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("instance-0123456789abcdef");
        fs::create_dir(&path).unwrap();
        let first = InstanceDir::try_lock(&path).unwrap().unwrap();
        assert!(InstanceDir::try_lock(&path).unwrap().is_none(), "it has an owner");
        let slow = || File::open(path.join(LOCK)).unwrap();
        let (slow_one, slow_two) = (slow(), slow());
        first.delete().unwrap();
        drop(first);
        assert!(InstanceDir::take(&path, slow_one).unwrap().is_none(), "it is gone");
        fs::create_dir(&path).unwrap();
        let second = InstanceDir::try_lock(&path).unwrap().unwrap();
        assert!(InstanceDir::take(&path, slow_two).unwrap().is_none(), "it is another one's now");
        drop(second);
        assert!(InstanceDir::try_lock(&path).unwrap().is_some());
    }
}
