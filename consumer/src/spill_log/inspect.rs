//! Looks into a spill log without changing it, also while a process has it.

use super::frame::{self, MAGIC};
use super::{SpillOpenError, open_error};
use crate::requeue::RequeueRecord;
use std::fs::{File, TryLockError};
use std::path::Path;

/// The content of a spill log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inspection {
    /// The records, the oldest first. A broker may have stored some of them already: those are replayed again, which
    /// their order numbers make harmless.
    pub records: Vec<RequeueRecord>,
    /// Runs of damaged bytes in the file.
    pub damaged_frames: usize,
    /// Bytes in them.
    pub damaged_bytes: u64,
    /// Bytes that were set aside earlier, in `salvage.damaged`.
    pub set_aside_bytes: u64,
    /// Whether a process has the directory open.
    pub is_in_use: bool,
}

/// Looks into the spill log in `dir`. One that a process is writing to may seem damaged at its end.
///
/// # Errors
/// [`SpillOpenError`]; not [`SpillOpenError::InUse`].
pub fn inspect(dir: &Path) -> Result<Inspection, SpillOpenError> {
    let path = dir.join("salvage.log");
    let bytes = std::fs::read(&path).map_err(open_error(&path))?;
    if bytes.len() >= MAGIC.len() && bytes[..MAGIC.len()] != MAGIC[..] {
        return Err(SpillOpenError::Unknown(path));
    }
    let scan = frame::scan(&bytes);
    Ok(Inspection {
        records: scan.frames.into_iter().map(|frame| frame.record).collect(),
        damaged_frames: scan.damaged.len(),
        damaged_bytes: scan.damaged.iter().map(|range| range.len() as u64).sum(),
        set_aside_bytes: std::fs::metadata(dir.join("salvage.damaged")).map_or(0, |kept| kept.len()),
        is_in_use: is_in_use(dir)?,
    })
}

fn is_in_use(dir: &Path) -> Result<bool, SpillOpenError> {
    let path = dir.join("salvage.lock");
    let Ok(lock) = File::open(&path) else { return Ok(false) };
    match lock.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(open_error(&path)(error)),
    }
}
