//! The spool's errors, and what to do about each.

use std::io;
use std::path::PathBuf;

/// Why a spool could not be opened. Every event that was stored there is still there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An option is out of its range. Final: change the configuration.
    #[error("spool option {option} = {value}: must be {range}")]
    Option {
        /// Its name in [`SpoolOptions`](crate::SpoolOptions).
        option: &'static str,
        /// The value that was given.
        value: u64,
        /// The values that are allowed.
        range: &'static str,
    },
    /// The disk has no room to preallocate the file. Retry after freeing disk space, or with a smaller spool.
    #[error(
        "no room for the spool: {path} needs {needed_bytes} bytes; free disk space, raise the quota or file size limit, or lower total_bytes"
    )]
    DiskFull {
        /// The file that could not be allocated.
        path: PathBuf,
        /// Its size.
        needed_bytes: u64,
        /// The system's word.
        source: io::Error,
    },
    /// This user may not write there. Final: change the owner, the mode or the directory.
    #[error("cannot write to the spool directory {path}: {source}; make it writable or choose another")]
    ReadOnly {
        /// What could not be written.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// The file system cannot reserve space, so a full disk could kill the process later. Final: choose a
    /// directory on ext4, XFS or tmpfs.
    #[error("the file system of {path} cannot preallocate: {source}; put the spool on ext4, XFS or tmpfs")]
    CannotPreallocate {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// Anything else the system refuses.
    #[error("spool: cannot {doing} {path}: {source}")]
    Io {
        /// What was being done, as a verb.
        doing: &'static str,
        /// The path that it was done to.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
}

impl OpenError {
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::ReadOnly { path, source }
            }
            _ => Self::Io { doing, path, source },
        }
    }

    pub(crate) fn allocating(path: impl Into<PathBuf>, needed_bytes: u64, source: io::Error) -> Self {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::DiskFull { path, needed_bytes, source }
            }
            io::ErrorKind::Unsupported => Self::CannotPreallocate { path, source },
            _ => Self::io("preallocate", path, source),
        }
    }
}

/// Every slot holds events that no broker has acknowledged, or the disk failed to sync a slot
/// ([`Usage::sync_failed`](crate::Usage::sync_failed)). Refuse the event with an error, and let the
/// caller send it again once packs were freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the spool is full: every slot waits for a broker")]
pub struct SpoolFull;

/// This pack takes no more: it has its number of events, or the event is larger than what is left. Nothing was
/// changed. Seal it and append to a new one; if an empty pack has no room, the event is larger than `slot_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the pack has no room for this event")]
pub struct NoRoom;
