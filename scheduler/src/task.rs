//! Tasks as callers give and see them, and why a call is refused.

use bytes::Bytes;
use windfall_contract::due::{DUE_MAX_MS, PAYLOAD_MAX_BYTES, StoreError, TaskId, TaskKey, Waiting};

/// A task to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTask {
    /// The name of one of the tenant's targets.
    pub target: String,
    /// When it is due, in Unix milliseconds. What is due in the past fires at once.
    pub due_ms: u64,
    /// The caller's own key; a second task of the same key is not stored while the first one waits.
    pub key: Option<TaskKey>,
    /// What the target gets.
    pub payload: Bytes,
}

/// Where an add is written first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Accept {
    /// To the store.
    #[default]
    Store,
    /// To a queue, from which it is taken into the store.
    Queue,
}

/// A task as it is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskView {
    /// Where it lies now.
    pub id: TaskId,
    /// The id that its target sees: the one that it had first.
    pub first_id: TaskId,
    /// The name of its target; `None` where the store does not know it any more.
    pub target: Option<String>,
    /// When it is due, in Unix milliseconds, as the caller asked for it.
    pub due_ms: u64,
    /// The caller's own key.
    pub key: Option<TaskKey>,
    /// Whether it waits.
    pub state: Waiting,
    /// What the target gets.
    pub payload: Bytes,
}

/// A task that was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadView {
    /// The id that its target saw.
    pub id: TaskId,
    /// The name of its target; `None` where the store does not know it any more.
    pub target: Option<String>,
    /// When it was due, in Unix milliseconds, as the caller asked for it.
    pub due_ms: u64,
    /// When it was given up, in Unix milliseconds by the store's clock.
    pub died_ms: u64,
    /// How often it was tried.
    pub attempts: u32,
    /// What its target said last.
    pub reason: String,
    /// The caller's own key.
    pub key: Option<TaskKey>,
    /// What the target was to get.
    pub payload: Bytes,
}

/// A task was not added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The options name no such tenant.
    #[error("there is no tenant `{0}`")]
    UnknownTenant(String),
    /// The tenant has no such target.
    #[error("the tenant has no target `{0}`")]
    UnknownTarget(String),
    /// Its payload is too long.
    #[error("a payload has at most {PAYLOAD_MAX_BYTES} bytes, this one has {0}")]
    PayloadTooLong(usize),
    /// It is due after the latest time that can be stored.
    #[error("a task may be due up to {DUE_MAX_MS} ms after 1970, this one is due at {0}")]
    DueTooFar(u64),
    /// The call has more tasks than a call may have.
    #[error("one call adds at most {max} tasks, this one has {0}", max = crate::CALL_TASKS_MAX)]
    TooMany(usize),
    /// As many of the tenant's tasks wait as may.
    #[error("{waiting} tasks of the tenant wait, and {max} may")]
    QuotaWaiting {
        /// How many wait.
        waiting: u64,
        /// How many may.
        max: u64,
    },
    /// The tenant adds faster than it may.
    #[error("the tenant adds faster than it may; try again in {retry_after_ms} ms")]
    QuotaRate {
        /// When to try again.
        retry_after_ms: u64,
    },
    /// The store did not answer: the task may be stored or not. One with a key can be added again without a doubt.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An add by the queue has no key.
    #[error("an add by the queue has a key, which is used once")]
    KeyMissing,
    /// There is no queue.
    #[error("no adds are taken by a queue here")]
    NoQueue,
    /// The queue took nothing. Nothing was stored; try again in a moment.
    #[error("the queue of adds takes nothing now: {0}")]
    QueueAway(String),
    /// No broker has answered: the task may be written to the queue or not. It can be added again under its key without a
    /// doubt.
    #[error("the queue of adds has not answered: {0}")]
    QueueUnknown(String),
    /// Too many tasks wait to be stored. Nothing was stored; try again in a moment.
    #[error("too many tasks wait to be stored; try again in a moment")]
    Busy,
    /// This instance takes nothing any more. Nothing was stored; another instance may take it.
    #[error("this instance is closing")]
    Closing,
}

/// A call about tasks failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimersError {
    /// The options name no such tenant.
    #[error("there is no tenant `{0}`")]
    UnknownTenant(String),
    /// The new payload is too long.
    #[error("a payload has at most {PAYLOAD_MAX_BYTES} bytes, this one has {0}")]
    PayloadTooLong(usize),
    /// The new time is after the latest one that can be stored.
    #[error("a task may be due up to {DUE_MAX_MS} ms after 1970, this one is due at {0}")]
    DueTooFar(u64),
    /// The update has neither a time nor a payload.
    #[error("an update has a new due time, a new payload, or both")]
    NothingToChange,
    /// The call names more tasks than a call may name.
    #[error("one call names at most {max} tasks, this one has {0}", max = crate::CALL_TASKS_MAX)]
    TooMany(usize),
    /// The store did not answer: a change may be done or not. It may be repeated.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no queue, so that no add of a key can come later.
    #[error("no adds are taken by a queue here")]
    NoQueue,
    /// No task of the key is known, and the tenant has no room for the mark that keeps a later add of it away.
    #[error(
        "no task of the key is known, and the tenant has as many tasks and marks of cancelled keys as it may"
    )]
    NoRoomForMark,
    /// Too many calls wait for the store. Nothing was changed; try again in a moment.
    #[error("too many calls wait for the slot store; try again in a moment")]
    Busy,
    /// This instance takes nothing any more. Nothing was changed; another instance may take it.
    #[error("this instance is closing")]
    Closing,
}
