//! Adds that come by a queue. A queue may bring the same add any number of times, in any order with the cancel of its key, and
//! long after the first time; so its key is used once: a task that came by a queue leaves a mark when it is over.

use super::{Route, TaskId, TaskKey};
use bytes::Bytes;

/// A task whose add came by a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnceRecord {
    /// Unix milliseconds, as in [`NewRecord::due_ms`](super::NewRecord::due_ms).
    pub due_ms: u64,
    /// Whose it is, and where it goes.
    pub route: Route,
    /// The caller's own key; the task must be added to the key's shard ([`TaskKey::shard`]).
    pub key: TaskKey,
    /// What the target gets, at most [`PAYLOAD_MAX_BYTES`](super::PAYLOAD_MAX_BYTES).
    pub payload: Bytes,
    /// When its add was written to the queue, in Unix milliseconds by the writer's clock. All copies of a record have the same.
    pub written_ms: u64,
}

impl OnceRecord {
    /// Tells adds of one key that ask for the same from those that do not: a checksum of due time, route and payload.
    pub fn digest(&self) -> u32 {
        let mut digest = crc32c::crc32c(&self.due_ms.to_be_bytes());
        digest = crc32c::crc32c_append(digest, &self.route.tenant.to_be_bytes());
        digest = crc32c::crc32c_append(digest, &self.route.target.to_be_bytes());
        crc32c::crc32c_append(digest, &self.payload)
    }
}

/// What became of an add that came by a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddedOnce {
    /// It is stored under this id.
    Stored(TaskId),
    /// The key belongs to a task that was added with the same due time, route and payload. It waits, fires, or is over: this
    /// is a copy, and was dropped.
    Known,
    /// The key belongs to a task that was added with another due time, route or payload. Nothing was stored.
    Other,
    /// The key was cancelled. Nothing was stored.
    Cancelled {
        /// Whether an add of the key had come before; else the cancel came before any add.
        had_come: bool,
    },
    /// It was written before the time of which the shard knows all keys that were used: it may be a copy of a task that is
    /// over. Nothing was stored.
    TooOld,
}

/// The answers to a batch that came by a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnceAnswers {
    /// One for each record, in order.
    pub added: Vec<AddedOnce>,
    /// Names the run of the server that answered. A server that was started again, and one that took the place of another,
    /// has a run of its own, and may have lost what was stored under an earlier one shortly before.
    pub run: u64,
}

/// A cancel of a key whose add may come later, by a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelOnce {
    /// Only this tenant's task is cancelled.
    pub tenant: u16,
    /// Its key, which must be of the shard.
    pub key: TaskKey,
    /// Whether a key that is not known may be marked, which takes memory until the mark is over.
    pub may_mark: bool,
}

/// What became of a cancel of a key whose add may come later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelledOnce {
    /// A task waited under this id, and is cancelled. No add that comes by a queue uses the key again.
    Done(TaskId),
    /// The key had been cancelled before.
    Cancelled,
    /// The time of its task has come: it fires, or has fired.
    Firing,
    /// No task of this key is known. An add of it that comes by a queue is dropped from now on.
    Marked,
    /// No task of this key is known, and it must not be marked. Nothing was changed.
    Unmarked,
}
