//! The durable log in front of the segments: what an Ok of the far tier rests on.

mod file;

pub use file::FileLog;

use bytes::Bytes;

/// The bytes of a frame at most.
pub const FRAME_MAX_BYTES: usize = 64 << 20;

/// A log cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The system said no. After a failed write nobody knows what is there: the log takes nothing more before a part was
    /// [begun anew](FarLog::begin_anew), or the log was opened again.
    #[error("the far log {place}: {what}")]
    Io {
        /// Where it lies.
        place: String,
        /// The system's answer.
        what: String,
    },
    /// Another process writes it.
    #[error("the far log {0} is in use by another process")]
    InUse(String),
    /// Something is missing or flipped in the midst of it. Restore it: acknowledged tasks are in it alone.
    #[error("the far log {place} is damaged: {what}")]
    Damaged {
        /// Where it lies.
        place: String,
        /// What is wrong.
        what: String,
    },
}

/// An append-only sequence of frames. A position in it is a number that grows; a frame is there as a whole or not at
/// all. One process has it.
pub trait FarLog: Send + Sync {
    /// Names it for ever: drawn at random when it was made, so that no two logs are taken for one another.
    fn id(&self) -> u64;

    /// Whether no part of it was ever begun or forgotten: nothing of it can be in a segment.
    fn is_new(&self) -> bool;

    /// The position at which its oldest part begins.
    fn first(&self) -> u64;

    /// The bytes of the part that is being written.
    fn part_bytes(&self) -> u64;

    /// The position behind its last frame.
    fn end(&self) -> u64;

    /// Appends a frame, and returns the position behind it. It survives the end of the process.
    ///
    /// # Errors
    /// [`LogError`].
    fn append(&self, frame: &[u8]) -> Result<u64, LogError>;

    /// Waits until all before the position survives the end of the machine.
    ///
    /// # Errors
    /// [`LogError`].
    fn sync(&self, position: u64) -> Result<(), LogError>;

    /// Begins a part that can be kept without those before it, and returns the position at which it begins.
    ///
    /// # Errors
    /// [`LogError`].
    fn begin_part(&self) -> Result<u64, LogError>;

    /// Whether a write has failed of which nobody knows whether it is there. Nothing is taken meanwhile, and nothing that
    /// was not synced before is ever said to be.
    fn has_failed(&self) -> bool;

    /// Where a write has failed: begins a part behind it, in a file of its own, with these frames, and syncs it. Returns
    /// the position at which it begins. The log takes nothing before [`go_on_from`](Self::go_on_from).
    ///
    /// # Errors
    /// [`LogError`]; it may be repeated.
    fn begin_anew(&self, frames: &[Bytes]) -> Result<u64, LogError>;

    /// The part that was begun anew at the position counts, and nothing before it: all of that is safe elsewhere. The log
    /// takes frames again.
    fn go_on_from(&self, position: u64);

    /// Deletes the parts that end at the position or before it.
    ///
    /// # Errors
    /// [`LogError`].
    fn forget(&self, position: u64) -> Result<(), LogError>;

    /// Hands over all frames from the position on, at which a part begins.
    ///
    /// # Errors
    /// [`LogError`]; [`LogError::Damaged`] where the log does not reach back to the position.
    fn replay(
        &self,
        position: u64,
        each: &mut dyn FnMut(Bytes) -> Result<(), LogError>,
    ) -> Result<(), LogError>;
}
