//! Where due tasks go.

use super::{TaskId, TaskKey};
use async_trait::async_trait;
use bytes::Bytes;
use windfall_proto::v1::FiredTimer;

/// A task whose time has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firing {
    /// The id under which its caller knows it: the same in every attempt, and after a move.
    pub id: TaskId,
    /// The tenant's name.
    pub tenant: String,
    /// The caller's own key.
    pub key: Option<TaskKey>,
    /// The due time that the caller asked for, in Unix milliseconds.
    pub due_ms: u64,
    /// 1 at the first attempt.
    pub attempt: u32,
    /// What the target gets.
    pub payload: Bytes,
}

impl Firing {
    /// As targets outside of the process get it. A key that is no UTF-8 text has the replacement character in its place.
    pub fn to_wire(&self) -> FiredTimer {
        let key =
            self.key.as_ref().map_or(String::new(), |key| String::from_utf8_lossy(key.as_bytes()).into());
        FiredTimer {
            id: self.id.to_string(),
            tenant: self.tenant.clone(),
            key,
            due_ms: self.due_ms,
            attempt: self.attempt,
            payload: self.payload.to_vec(),
        }
    }
}

/// What became of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fired {
    /// The target has it.
    Done,
    /// The target does not have it, or nobody knows: it is tried again, as often as its retries allow.
    Failed(String),
    /// The target will never take it: it is given up at once.
    Refused(String),
    /// The target takes nothing just now. It is tried again, and the attempt does not count, unless the target took
    /// other tasks in the same call, or since this task's last attempt.
    Away(String),
    /// There is no room for it just now, whatever it is: it was not handed over, and the attempt never counts.
    Busy(String),
}

/// Takes due tasks. Any number of calls may run side by side.
#[async_trait]
pub trait Target: Send + Sync {
    /// Hands tasks over: one answer for each, in order. Answers in its own time-out, whatever the other side does. A
    /// call that is dropped may have handed over any of them.
    async fn fire(&self, batch: Vec<Firing>) -> Vec<Fired>;
}
