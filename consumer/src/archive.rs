//! Sends what finally failed to the failure archive. It stays in flight until the archive has stored it.

use crate::in_flight::{InFlightTable, Key};
use crate::units::NS_PER_MS;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinError, JoinSet};
use windfall_contract::rewards::{ArchiveUnavailable, Failed, Rejection, Rewards};

/// The number of items in one call.
const BATCH: usize = 256;
const PAUSE_MIN_NS: u64 = 100 * NS_PER_MS;
const PAUSE_MAX_NS: u64 = 5_000 * NS_PER_MS;

/// How a call's task ended.
pub(crate) type ArchiveEnd = Result<Result<(), ArchiveUnavailable>, JoinError>;

/// One event, or one malformed record.
#[derive(Debug, Clone)]
pub(crate) struct ArchiveItem {
    pub key: Key,
    pub failures: u32,
    pub is_record: bool,
    pub failed: Failed,
}

/// Items that wait, and those being archived. There are no more than events of records in flight.
pub(crate) struct Archive {
    topic: Arc<str>,
    rewards: Arc<dyn Rewards>,
    waiting: VecDeque<ArchiveItem>,
    /// The items that the one task of `calls` is archiving.
    asked: Vec<ArchiveItem>,
    calls: JoinSet<Result<(), ArchiveUnavailable>>,
    ask_at_ns: u64,
    pause_ns: u64,
}

/// The outcome of the items of a call, except for those that are to be asked for again.
#[derive(Debug)]
pub(crate) enum ArchiveAnswer {
    /// They are archived.
    Archived(Vec<ArchiveItem>),
    /// I2: they are not archived, so they are not finished. These are past their deadline, and go back to a queue.
    Overdue(Vec<ArchiveItem>),
}

impl ArchiveItem {
    pub fn event(key: Key, failures: u32, event: Bytes, rejection: Rejection, detail: String) -> Self {
        Self { key, failures, is_record: false, failed: Failed { payload: event, rejection, detail } }
    }

    /// A malformed record.
    pub fn record(key: Key, record: Bytes, detail: String) -> Self {
        Self::whole(key, record, Rejection::Malformed, detail)
    }

    /// A whole record, as it came.
    pub fn whole(key: Key, record: Bytes, rejection: Rejection, detail: String) -> Self {
        let failed = Failed { payload: record, rejection, detail };
        Self { key, failures: 0, is_record: true, failed }
    }
}

impl Archive {
    pub fn new(topic: Arc<str>, rewards: Arc<dyn Rewards>) -> Self {
        Self {
            topic,
            rewards,
            waiting: VecDeque::new(),
            asked: Vec::new(),
            calls: JoinSet::new(),
            ask_at_ns: 0,
            pause_ns: 0,
        }
    }

    pub fn push(&mut self, item: ArchiveItem) {
        self.waiting.push_back(item);
    }

    /// Asks the archive to take what waits.
    pub fn turn(&mut self, table: &InFlightTable, patience_ms: u64, now_ns: u64) {
        if !self.calls.is_empty() || self.waiting.is_empty() || now_ns < self.ask_at_ns {
            return;
        }
        let many = self.waiting.len().min(BATCH);
        // Items of a partition that was revoked meanwhile are archived by its next owner.
        let is_ours = |item: &ArchiveItem| table.get(item.key).is_some();
        self.asked = self.waiting.drain(..many).filter(is_ours).collect();
        if self.asked.is_empty() {
            return;
        }
        let failed: Vec<Failed> = self.asked.iter().map(|item| item.failed.clone()).collect();
        let rewards = Arc::clone(&self.rewards);
        let patience = Duration::from_millis(patience_ms);
        self.calls.spawn(async move {
            let asked = tokio::time::timeout(patience, rewards.archive(&failed)).await;
            asked.unwrap_or_else(|_| Err(ArchiveUnavailable("no answer by the deadline".into())))
        });
    }

    /// Waits for the end of a call; `None` where there is none. Cancel-safe.
    pub async fn next(&mut self) -> Option<ArchiveEnd> {
        self.calls.join_next().await
    }

    /// A call that has ended already.
    pub fn try_next(&mut self) -> Option<ArchiveEnd> {
        self.calls.try_join_next()
    }

    /// Takes in the archive's answer. What is not archived and not overdue is asked for again.
    pub fn take_in(&mut self, ended: ArchiveEnd, table: &InFlightTable, now_ns: u64) -> ArchiveAnswer {
        let items = std::mem::take(&mut self.asked);
        let result = ended.unwrap_or_else(|error| Err(ArchiveUnavailable(error.to_string())));
        let Err(error) = result else {
            self.pause_ns = 0;
            return ArchiveAnswer::Archived(items);
        };
        self.pause_ns = (self.pause_ns * 2).clamp(PAUSE_MIN_NS, PAUSE_MAX_NS);
        self.ask_at_ns = now_ns + self.pause_ns;
        tracing::warn!(topic = %self.topic, %error, items = items.len(), "the archive took nothing, it is asked again");
        let mut overdue = Vec::new();
        for item in items.into_iter().rev() {
            match table.get(item.key).map(|record| record.is_overdue) {
                Some(true) => overdue.push(item),
                Some(false) => self.waiting.push_front(item),
                None => {}
            }
        }
        ArchiveAnswer::Overdue(overdue)
    }
}
