//! What fuzz targets reach of this crate, and nobody else.

use crate::dead_letter;
use bytes::Bytes;
use windfall_contract::due::{DeadTask, TaskId};

/// A task that was given up; `None` where its bytes are refused.
pub fn dead_letter(id: TaskId, bytes: Bytes) -> Option<DeadTask> {
    dead_letter::decode(id, bytes).ok()
}

/// The bytes of a task that was given up.
pub fn dead_letter_bytes(dead: &DeadTask) -> Bytes {
    dead_letter::encode(dead)
}
