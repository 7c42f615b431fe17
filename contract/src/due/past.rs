//! Tasks of the past, kept so that an operator can fire them again.

use super::{FarRecord, Route, Shard, SlotMinute, StoreError, TaskId};
use async_trait::async_trait;

/// The time of which all tasks of the far tier are kept, in Unix milliseconds. It is empty where `to_ms` is not behind
/// `from_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastSpan {
    /// What was due from this hour on is kept.
    pub from_ms: u64,
    /// What was due from this hour on is not loaded as a whole.
    pub to_ms: u64,
}

/// A part of the tasks of an hour that lie in one shard.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PastPage {
    /// Tasks as they were when they were loaded, none of which was cancelled or changed since.
    pub tasks: Vec<FarRecord>,
    /// How many of the others were cancelled.
    pub cancelled: u64,
    /// How many of the others were moved or changed: what they are now lies in the slot store alone.
    pub moved: u64,
    /// Where to go on; `None` at the end.
    pub next: Option<TaskId>,
}

/// Keeps tasks for a while after they were loaded into the slot store.
#[async_trait]
pub trait PastTasks: Send + Sync {
    /// Of which time tasks are kept now.
    ///
    /// # Errors
    /// [`StoreError`] where that is not known yet.
    fn span(&self) -> Result<PastSpan, StoreError>;

    /// What the numbers of a route stood for when its tasks were added.
    fn names(&self, route: Route) -> Option<(String, String)>;

    /// Tasks of one hour and one shard, in the order of their ids, behind `after`. `hour` is any minute of the hour. A
    /// cancel that was acknowledged before the call is known to it.
    ///
    /// # Errors
    /// [`StoreError`]; [`StoreError::Unusable`] where the hour is not kept any more.
    async fn page(
        &self,
        hour: SlotMinute,
        shard: Shard,
        after: Option<TaskId>,
    ) -> Result<PastPage, StoreError>;
}
