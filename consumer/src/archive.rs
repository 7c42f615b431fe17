//! Sends what finally failed to the failure archive. It stays in flight until the archive has stored it.

use crate::in_flight::{InFlightRecord, InFlightTable, Key};
use crate::units::NS_PER_MS;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinError, JoinSet};
use windfall_contract::rewards::{ArchiveUnavailable, Failed, Rejection, Rewards};

/// The number of items in one call.
const BATCH: usize = 256;
/// The bytes in one call, unless a single item is larger: a call has to end by the deadline, or it is made again for nothing.
const BATCH_BYTES: usize = 4 << 20;
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
        let many = self.next_batch();
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

    /// How many of those that wait make the next call: at least one.
    fn next_batch(&self) -> usize {
        let mut bytes = 0_usize;
        let fits = |item: &&ArchiveItem| {
            bytes = bytes.saturating_add(item.failed.payload.len());
            bytes <= BATCH_BYTES
        };
        self.waiting.iter().take(BATCH).take_while(fits).count().max(1)
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
            match table.get(item.key).map(InFlightRecord::is_overdue) {
                Some(true) => overdue.push(item),
                Some(false) => self.waiting.push_front(item),
                None => {}
            }
        }
        ArchiveAnswer::Overdue(overdue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::tests::record_in;
    use async_trait::async_trait;
    use windfall_contract::rewards::GrantReply;

    /// Needs 100 ms for each MiB.
    struct Slow;

    #[async_trait]
    impl Rewards for Slow {
        async fn grant_batch(&self, _: &str, _: &[Bytes]) -> Vec<GrantReply> {
            Vec::new()
        }

        async fn archive(&self, failed: &[Failed]) -> Result<(), ArchiveUnavailable> {
            let bytes: usize = failed.iter().map(|one| one.payload.len()).sum();
            tokio::time::sleep(Duration::from_millis((bytes as u64 * 100) >> 20)).await;
            Ok(())
        }
    }

    /// 256 items of 2 MiB were one call, which no deadline was long enough for, and the same call again for ever.
    #[tokio::test(start_paused = true)]
    async fn large_records_are_archived_in_calls_that_end_by_the_deadline() {
        let mut archive = Archive::new("rain-a".into(), Arc::new(Slow));
        let mut table = InFlightTable::default();
        let small = Bytes::from(vec![0xff; 1 << 20]);
        let larger_than_a_batch = Bytes::from(vec![0xff; 6 << 20]);
        for record in std::iter::repeat_n(small, 64).chain([larger_than_a_batch]) {
            archive.push(ArchiveItem::record(table.insert(record_in(0)), record, "no record".into()));
        }
        let (start, mut calls) = (tokio::time::Instant::now(), Vec::new());
        let now_ns = || u64::try_from(start.elapsed().as_nanos()).unwrap();
        while table.len() > 0 {
            archive.turn(&table, 1_000, now_ns());
            let ended = archive.next().await.unwrap();
            let ArchiveAnswer::Archived(items) = archive.take_in(ended, &table, now_ns()) else {
                panic!("the archive took nothing of {} items", table.len());
            };
            calls.push(items.len());
            items.iter().for_each(|item| assert!(table.settle(item.key, 1)));
        }
        assert_eq!(calls, [vec![4; 16], vec![1]].concat());
    }

    #[tokio::test(start_paused = true)]
    async fn small_records_are_archived_together() {
        let mut archive = Archive::new("rain-a".into(), Arc::new(Slow));
        let mut table = InFlightTable::default();
        for _ in 0..300 {
            let record = Bytes::from_static(b"\xff");
            archive.push(ArchiveItem::record(table.insert(record_in(0)), record, "no record".into()));
        }
        archive.turn(&table, 1_000, 0);
        assert_eq!(archive.asked.len(), 256);
    }
}
