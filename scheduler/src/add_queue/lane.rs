//! The records of one shard that wait to be stored.

use super::options::{BATCH_BYTES_MAX, BATCH_RECORDS_MAX, RETRY_FIRST, RETRY_MAX};
use super::partition::LastAnswer;
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;
use windfall_contract::broker::Epoch;
use windfall_contract::due::OnceRecord;

/// Where a record was read, and under which assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub partition: u32,
    pub epoch: Epoch,
    pub offset: u64,
}

/// A record that waits to be stored.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub at: Place,
    pub once: OnceRecord,
    /// Its bytes, for the case that it is set aside.
    pub record: Bytes,
    /// How often it was refused alone.
    pub refusals: u32,
    /// When it was refused alone for the first time.
    pub refused_at: Option<Instant>,
}

/// One shard: a call at a time, so that a shard that is away holds up no other one, and its records keep their order.
#[derive(Default)]
pub(super) struct Lane {
    waiting: VecDeque<Waiting>,
    /// The records of the call that has no answer yet.
    called: Option<usize>,
    /// The next call stores nothing: it asks whether the shard is there.
    pub is_probed: bool,
    /// A batch of several was refused as a whole: they go one by one until one of them is taken or refused.
    pub one_by_one: usize,
    not_before: Option<Instant>,
    pause: Duration,
    pub last: Option<LastAnswer>,
    /// When the store has answered for a record of it last.
    pub stored_at: Option<Instant>,
}

impl Lane {
    pub fn push(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    pub fn is_wanted(&self) -> bool {
        self.is_probed || !self.waiting.is_empty()
    }

    /// Records that wait, and those whose call has no answer yet.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.called.unwrap_or(0)
    }

    /// The call has its answer.
    pub const fn answered(&mut self) {
        self.called = None;
    }

    pub const fn is_called(&self) -> bool {
        self.called.is_some()
    }

    pub const fn is_failing(&self) -> bool {
        self.not_before.is_some()
    }

    /// Whether it may be called now.
    pub fn may_be_called(&self, now: Instant) -> bool {
        self.called.is_none() && self.not_before.is_none_or(|at| at <= now)
    }

    /// Whether the server has to be asked once more whether it still has what it answered.
    pub fn is_to_be_confirmed(&self, settle: Duration, now: Instant) -> bool {
        self.stored_at.is_some_and(|stored_at| {
            let settled_at = stored_at + settle;
            now >= settled_at && self.last.is_none_or(|last| last.asked_at < settled_at)
        })
    }

    /// The records of the call that begins now.
    pub fn next_batch(&mut self) -> Vec<Waiting> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let most = match self.one_by_one {
            _ if std::mem::take(&mut self.is_probed) => 0,
            0 => BATCH_RECORDS_MAX,
            _ => 1,
        };
        while let Some(next) = self.waiting.pop_front_if(|next| {
            let fits = batch.is_empty() || bytes + next.record.len() <= BATCH_BYTES_MAX;
            fits && batch.len() < most
        }) {
            bytes += next.record.len();
            batch.push(next);
        }
        self.called = Some(batch.len());
        batch
    }

    /// Records that were not stored wait at the front again.
    pub fn give_back(&mut self, batch: Vec<Waiting>) {
        batch.into_iter().rev().for_each(|waiting| self.waiting.push_front(waiting));
    }

    /// A record that is refused waits behind the others.
    pub fn put_behind(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    pub fn failed(&mut self, now: Instant) {
        self.pause = (self.pause * 2).clamp(RETRY_FIRST, RETRY_MAX);
        self.not_before = Some(now + self.pause);
    }

    pub fn succeeded(&mut self, last: LastAnswer) {
        (self.not_before, self.pause, self.last) = (None, Duration::ZERO, Some(last));
    }

    /// Takes those of the records that have no call in flight.
    pub fn take_where(&mut self, is_taken: impl Fn(&Waiting) -> bool) -> VecDeque<Waiting> {
        let (taken, stay) = std::mem::take(&mut self.waiting).into_iter().partition(is_taken);
        self.waiting = stay;
        taken
    }

    /// Forgets the records of a partition that belongs to somebody else now; returns how many, and their bytes.
    pub fn forget(&mut self, partition: u32) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        self.waiting.retain(|waiting| {
            let stays = waiting.at.partition != partition;
            if !stays {
                count += 1;
                bytes += waiting.record.len();
            }
            stays
        });
        (count, bytes)
    }
}
