//! What a consumer has done and holds, cheap to read at any time.

use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one loop writes and anybody reads.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Why an event was written back to a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Its grant failed (counts towards `max_failures`).
    Failed,
    /// The reward service was not able to decide (does not count).
    Undecided,
    /// Its wait for the limit would be longer than `hold_max`, or its lane was full.
    Limit,
    /// The type's fuse is not closed.
    Fuse,
    /// It is not due yet and could not be kept.
    NotDue,
    /// The head-of-line deadline passed.
    Deadline,
    /// The rules do not know its type.
    UnknownType,
    /// The consumer is closing.
    Drain,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 8] = [
        Self::Failed,
        Self::Undecided,
        Self::Limit,
        Self::Fuse,
        Self::NotDue,
        Self::Deadline,
        Self::UnknownType,
        Self::Drain,
    ];

    /// For metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Undecided => "undecided",
            Self::Limit => "limit",
            Self::Fuse => "fuse",
            Self::NotDue => "not_due",
            Self::Deadline => "deadline",
            Self::UnknownType => "unknown_type",
            Self::Drain => "drain",
        }
    }
}

/// One consumer's numbers. Counters unless a doc says "now".
#[derive(Debug, Default)]
pub struct ConsumerStats {
    /// Records read.
    pub records_fetched: Count,
    /// Events in them.
    pub events_fetched: Count,
    /// Grant calls begun.
    pub grant_calls: Count,
    /// Events credited by a call of ours.
    pub credited: Count,
    /// Events that had been credited before.
    pub already_credited: Count,
    /// Events that the reward service refused for good and archived.
    pub rejected: Count,
    /// Events, and malformed records, that we archived.
    pub archived: Count,
    /// Records that could not be read as such; each is also counted as archived.
    pub malformed: Count,
    /// Copies that a broker has stored.
    pub requeues_stored: Count,
    /// Copies that every candidate refused.
    pub requeues_refused: Count,
    /// Copies written to the salvage file.
    pub salvaged: Count,
    /// Salvaged copies that a broker has stored since.
    pub replayed: Count,
    /// Failed appends to the salvage file; what it was for stays in the window.
    pub salvage_failed: Count,
    /// Answers of grant calls that came after their events had been requeued.
    pub late_answers: Count,
    /// Commits that were stored.
    pub commits: Count,
    /// Commits that failed; tried again.
    pub commits_failed: Count,
    /// Polls that failed; tried again.
    pub polls_failed: Count,
    /// Times that the loop found its session over and held back until it had polled.
    pub frozen: Count,
    /// Records skipped because their offset, or a later one, was in hand.
    pub not_ascending: Count,
    /// Tickets dropped unfinished: a bug, each pins its partition until it is assigned anew.
    pub tickets_dropped: Count,
    /// Partitions owned, now.
    pub partitions: Count,
    /// Records in hand, now.
    pub records_in_hand: Count,
    /// Events in grant calls, now.
    pub events_granting: Count,
    /// Records in the delay room, now.
    pub delayed: Count,
    /// Records delivered and not finished, as the windows count them, at the last commit.
    pub window_depth: Count,
    /// Age of the oldest record in hand, now; milliseconds.
    pub oldest_ms: Count,
    /// Partitions without progress for longer than twice the deadline, now.
    pub stuck_partitions: Count,
    /// Partitions whose intake is paused, now.
    pub paused_partitions: Count,
    /// The version of the rules that it runs, now.
    pub rules_version: Count,
    requeued: [Count; Cause::ALL.len()],
    types: RwLock<Vec<Arc<TypeStats>>>,
}

impl ConsumerStats {
    /// Events written back for this cause.
    pub fn requeued(&self, cause: Cause) -> u64 {
        self.requeued[cause as usize].get()
    }

    /// Events written back, all told.
    pub fn requeued_all(&self) -> u64 {
        Cause::ALL.iter().map(|&cause| self.requeued(cause)).sum()
    }

    /// Every type that has had a lane.
    pub fn types(&self) -> Vec<Arc<TypeStats>> {
        self.types.read().clone()
    }

    pub(crate) fn count_requeued(&self, cause: Cause, events: u64) {
        self.requeued[cause as usize].add(events);
    }

    pub(crate) fn of_type(&self, name: &str) -> Arc<TypeStats> {
        let mut types = self.types.write();
        if let Some(known) = types.iter().find(|known| known.name == name) {
            return Arc::clone(known);
        }
        let new = Arc::new(TypeStats { name: name.to_owned(), ..TypeStats::default() });
        types.push(Arc::clone(&new));
        new
    }
}

/// One bonus type's numbers in one consumer.
#[derive(Debug, Default)]
pub struct TypeStats {
    /// The bonus type.
    pub name: String,
    /// Events in its lane, now.
    pub lane_events: Count,
    /// Events credited, now or before.
    pub credited: Count,
    /// Events requeued.
    pub requeued: Count,
    /// Events rejected or archived.
    pub archived: Count,
}
