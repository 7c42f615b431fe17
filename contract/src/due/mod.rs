//! Due tasks: what is to happen at a time. A task waits in a [`SlotStore`], and goes to its [`Target`] when the store's
//! clock has reached its due time (I10).
//!
//! A store is divided into shards, and a shard into slots of one minute. A slot is an append-only list: the place of a
//! task in it, and so its [`TaskId`], never changes. Whoever holds a shard's [`Lease`] reads its slots ahead of their
//! time, moves the shard's watermark on with the store's clock, and hands the tasks below it to their targets. A task
//! above the watermark can still be cancelled or moved, one below it cannot: so a cancel that was acknowledged is never
//! fired, whatever the dispatcher had read before.

mod ids;
mod once;
mod past;
mod record;
mod store;
mod target;

pub use ids::{FAR_INDEX, InvalidTask, Route, Shard, SlotMinute, TaskId, TaskIdText, TaskKey};
pub use once::{AddedOnce, CancelOnce, CancelledOnce, OnceAnswers, OnceRecord};
pub use past::{PastPage, PastSpan, PastTasks};
pub use record::{DueRecord, RecordError, SlotEntry};
pub use store::{
    Added, Advanced, Change, Changed, DeadTask, Durability, FarRecord, FinishBatch, Found, HeldBy, KnownName,
    Lease, LeaseError, LoadBatch, Loaded, Moved, NameKept, NewRecord, ReadFrom, SlotState, SlotStore,
    StoreError, TaskAt, Waiting, WaitingPage,
};
pub use target::{Fired, Firing, Target};

/// The bytes of a task's payload at most.
pub const PAYLOAD_MAX_BYTES: usize = 64 << 10;
/// The bytes of a caller's own key at most.
pub const KEY_MAX_BYTES: usize = 200;
/// How much longer than asked for the mark of a used key is kept, so that clocks of hosts may differ by so much: an hour.
pub const KEY_MARGIN_MS: u64 = 3_600_000;
/// The latest due time: a bit more than 8,000 years.
pub const DUE_MAX_MS: u64 = (u32::MAX as u64) * 60_000 + 59_999;
