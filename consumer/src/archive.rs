//! What finally failed, on its way to the failure archive. Unfinished until the archive has it.

use crate::dispatch::{Dispatch, NS_PER_MS};
use crate::going_back::Chore;
use crate::held::Key;
use crate::requeue::Fate;
use crate::stats::Cause;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::Id;
use windfall_contract::rewards::{ArchiveUnavailable, Failed, Rejection};

/// Items in one call.
const BATCH: usize = 256;
const PAUSE_MIN_NS: u64 = 100 * NS_PER_MS;
const PAUSE_MAX_NS: u64 = 5_000 * NS_PER_MS;

/// One event, or one malformed record.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    key: Key,
    failures: u32,
    is_record: bool,
    failed: Failed,
}

/// Items that wait, and those being archived. No more than there are events of records in hand.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    waiting: VecDeque<Item>,
    asked: Option<(Id, Vec<Item>)>,
    ask_at_ns: u64,
    pause_ns: u64,
}

impl Item {
    pub fn event(key: Key, failures: u32, event: Bytes, rejection: Rejection, detail: String) -> Self {
        Self { key, failures, is_record: false, failed: Failed { payload: event, rejection, detail } }
    }
}

impl Archive {
    pub fn push(&mut self, item: Item) {
        self.waiting.push_back(item);
    }

    pub fn push_record(&mut self, key: Key, record: Bytes, detail: String) {
        let failed = Failed { payload: record, rejection: Rejection::Malformed, detail };
        self.push(Item { key, failures: 0, is_record: true, failed });
    }

    pub fn is_asked_by(&self, task: Id) -> bool {
        self.asked.as_ref().is_some_and(|(own, _)| *own == task)
    }
}

impl Dispatch {
    /// Asks the archive to take what waits.
    pub fn archive_turn(&mut self, now_ns: u64) {
        let archive = &mut self.archive;
        if archive.asked.is_some() || archive.waiting.is_empty() || now_ns < archive.ask_at_ns {
            return;
        }
        let many = archive.waiting.len().min(BATCH);
        // What was revoked meanwhile is its next owner's to archive.
        let items: Vec<Item> =
            archive.waiting.drain(..many).filter(|item| self.book.get(item.key).is_some()).collect();
        if items.is_empty() {
            return;
        }
        let failed: Vec<Failed> = items.iter().map(|item| item.failed.clone()).collect();
        let rewards = Arc::clone(&self.rewards);
        let patience = Duration::from_millis(self.rules.pacing.deadline_ms);
        let task = self.chores.spawn(async move {
            let asked = tokio::time::timeout(patience, rewards.archive(&failed)).await;
            let late = |_| Err(ArchiveUnavailable("no answer by the deadline".into()));
            Chore::Archived(asked.unwrap_or_else(late))
        });
        archive.asked = Some((task.id(), items));
    }

    /// Takes in the archive's answer.
    pub fn archived(&mut self, result: Result<(), ArchiveUnavailable>, now_ns: u64) {
        let Some((_, items)) = self.archive.asked.take() else { return };
        if let Err(error) = result {
            let pause_ns = (self.archive.pause_ns * 2).clamp(PAUSE_MIN_NS, PAUSE_MAX_NS);
            self.archive.pause_ns = pause_ns;
            self.archive.ask_at_ns = now_ns + pause_ns;
            tracing::warn!(topic = %self.topic, %error, items = items.len(), "cannot archive");
            // I2: not archived, so not finished. What is past its deadline goes back and comes again.
            for item in items.into_iter().rev() {
                match self.book.get(item.key).map(|held| held.overdue) {
                    Some(true) => self.archive_later(item),
                    Some(false) => self.archive.waiting.push_front(item),
                    None => {}
                }
            }
            return;
        }
        self.archive.pause_ns = 0;
        for item in items {
            let lane = self.book.get(item.key).and_then(|held| held.lane);
            if let Some(lane) = lane {
                self.lanes.all[lane].stats.archived.add(1);
            }
            self.stats.archived.add(1);
            self.book.settle(item.key, 1);
        }
    }

    fn archive_later(&mut self, item: Item) {
        let Some(held) = self.book.get(item.key) else { return };
        self.stats.count_requeued(Cause::Deadline, 1);
        if item.is_record {
            return self.back.push_record(item.key, item.failed.payload);
        }
        let bonus_type = match held.lane {
            Some(lane) => Arc::clone(&self.lanes.all[lane].name),
            None => windfall_proto::record::split(&held.payload)
                .map_or_else(|_| Arc::from(""), |(head, _)| head.bonus_type.into()),
        };
        let fate = Fate {
            bonus_type,
            attempt: held.attempt,
            failures: item.failures,
            not_before_ms: 0,
            cause: Cause::Deadline,
        };
        self.back.push(&fate, 0, item.key, item.failed.payload);
    }
}
