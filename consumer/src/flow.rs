//! The path of a record through the parts: from its delivery to its lane, into a grant call, and until it is settled.
//! Each part owns the state of one rule and returns its decisions; this file and those below it pass them on, and own the state
//! of none.

mod arriving;
mod deadlines;
mod granting;
mod leaving;
mod placing;

use crate::archive::{Archive, ArchiveEnd};
use crate::delay_queue::DelayQueue;
use crate::grant_calls::{CallEnd, GrantCalls};
use crate::hand_over::{HandOver, HandOverEnd};
use crate::in_flight::InFlightTable;
use crate::key_gone::KeyGone;
use crate::lane::Lane;
use crate::lanes::Lanes;
use crate::late_keys::LateKeys;
use crate::options::Options;
use crate::pace::Pace;
use crate::partition::Standing;
use crate::partitions::Partitions;
use crate::parts::Parts;
use crate::retry_state::{RetryAnswer, RetryState};
use crate::signatures::Entrance;
use crate::stats::ConsumerStats;
use crate::units::NS_PER_MS;
use crate::watchdog::{self, Waiting};
use std::collections::BTreeMap;
use std::sync::Arc;
use windfall_contract::broker::{Commit, Epoch, Position};
use windfall_contract::rules::Rules;
use windfall_limiter::Limiter;

/// The number of records in flight, in whatever state, at which nothing more is fetched.
const RECORDS_IN_FLIGHT_MAX: usize = 1 << 18;

/// The parts that a record passes through.
pub(crate) struct Flow {
    topic: Arc<str>,
    stats: Arc<ConsumerStats>,
    entrance: Entrance,
    late_keys: LateKeys,
    key_gone: KeyGone,
    limiter: Arc<Limiter>,
    rules: Arc<Rules>,
    table: InFlightTable,
    partitions: Partitions,
    lanes: Lanes,
    delay_queue: DelayQueue,
    hand_over: HandOver,
    pace: Pace,
    grants: GrantCalls,
    retries: RetryState,
    archive: Archive,
}

/// An answer that came to one of the parts.
pub(crate) enum Answer {
    Retried(RetryAnswer),
    Granted(CallEnd),
    Archived(ArchiveEnd),
    HandedOver(HandOverEnd),
}

/// Its beginning, the rules, and assignments and revocations.
impl Flow {
    pub fn new(parts: &Parts, options: &Options, stats: &Arc<ConsumerStats>, now_ns: u64) -> Self {
        let topic: Arc<str> = parts.topic.as_str().into();
        let acks = parts.source.acks();
        let entrance = Entrance::new(Arc::clone(&topic), parts.signatures.clone());
        entrance.show(stats);
        Self {
            stats: Arc::clone(stats),
            entrance,
            late_keys: LateKeys::default(),
            key_gone: KeyGone::default(),
            limiter: Arc::clone(parts.limiter.limiter()),
            rules: (parts.rules)(),
            table: InFlightTable::new(acks),
            partitions: Partitions::new(acks, options.commit_every_ms, now_ns),
            lanes: Lanes::default(),
            delay_queue: DelayQueue::default(),
            hand_over: HandOver::new(
                Arc::clone(&topic),
                parts.long_delays.clone(),
                options.hand_over_after_ms,
                Arc::clone(stats),
            ),
            pace: Pace::new(options),
            grants: GrantCalls::new(Arc::clone(&topic), Arc::clone(&parts.rewards)),
            retries: RetryState::new(
                Arc::clone(&topic),
                Arc::clone(&parts.requeue_sink),
                Arc::clone(&parts.spill_log),
                options.jitter_seed,
                Arc::clone(stats),
            ),
            archive: Archive::new(Arc::clone(&topic), Arc::clone(&parts.rewards)),
            topic,
        }
    }

    /// The rules in force.
    pub fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    /// Takes over new rules.
    pub fn apply(&mut self, rules: Arc<Rules>) {
        self.rules = rules;
        let Self { lanes, rules, topic, limiter, stats, .. } = self;
        lanes.apply(rules, topic, limiter, |name| stats.of_type(name));
        self.entrance.apply(&self.rules);
        self.stats.rules_version.set(self.rules.version);
        self.send_back_closed_lanes();
    }

    /// Sets the bounds of the lanes by what the limiter lets pass now.
    pub fn set_bounds(&mut self) {
        self.lanes.set_bounds(&self.rules.pacing, &self.limiter);
    }

    pub fn assigned(&mut self, partition: u32, epoch: Epoch, next_offset: u64, now_ns: u64) {
        if let Some(old) = self.partitions.epoch(partition) {
            self.revoked(partition, old);
        }
        tracing::info!(topic = %self.topic, partition, epoch = epoch.0, next_offset, "assigned");
        self.partitions.assign(partition, epoch, next_offset, now_ns);
    }

    /// Commits what is finished and forgets the rest: the next owner is delivered it again. Calls in flight for it are
    /// harmless (I1) and have no effect on any window.
    pub fn revoked(&mut self, partition: u32, epoch: Epoch) {
        // The window first: from here on its tickets do nothing.
        if !self.partitions.revoke(partition, epoch) {
            return;
        }
        for key in self.table.keys_of(partition) {
            self.leave_place(key);
            self.table.remove(key);
        }
        self.lanes.forget_gone(&self.table);
        self.late_keys.forget_gone(&self.table);
        tracing::info!(topic = %self.topic, partition, epoch = epoch.0, "revoked");
    }

    /// Notes that a partition is read on from this offset, though no record was delivered below it.
    pub fn passed(&mut self, partition: u32, epoch: Epoch, next_offset: u64) {
        if let Some(own) = self.partitions.under(partition, epoch) {
            own.passed(next_offset);
        }
    }

    /// The partitions owned, as they stand, for a loop that goes on after a panic of this one.
    pub fn standings(&mut self) -> BTreeMap<u32, Standing> {
        self.partitions.standings()
    }

    /// Takes over the partitions of the loop before this one, and what its broker was not told of.
    pub fn resume(&mut self, standings: &BTreeMap<u32, Standing>, finished: Vec<Position>, now_ns: u64) {
        for (partition, standing) in standings {
            self.partitions.resume(*partition, standing, now_ns);
        }
        self.table.tell_again(finished);
    }

    /// All that was delivered to the loop before this one is in the windows again, or finished.
    pub fn catch_up(&mut self, standings: &BTreeMap<u32, Standing>) {
        for (partition, standing) in standings {
            self.partitions.catch_up(*partition, standing.next);
        }
    }
}

/// The questions of the loop to all parts together.
impl Flow {
    /// Waits for an answer to one of the parts; for ever where none is due. Cancel-safe.
    pub async fn next(&mut self) -> Answer {
        tokio::select! {
            biased;
            answer = self.retries.next() => Answer::Retried(answer),
            Some(ended) = self.grants.next() => Answer::Granted(ended),
            Some(ended) = self.archive.next() => Answer::Archived(ended),
            Some(ended) = self.hand_over.next() => Answer::HandedOver(ended),
        }
    }

    /// Takes in an answer.
    pub fn answered(&mut self, answer: Answer, now_ns: u64) {
        match answer {
            Answer::Retried(answer) => self.retried(answer, now_ns),
            Answer::Granted(ended) => self.granted(ended, now_ns),
            Answer::Archived(ended) => self.archived(ended, now_ns),
            Answer::HandedOver(ended) => self.handed_over(ended, now_ns),
        }
    }

    /// Takes in all answers that are there already.
    pub fn take_in_answers(&mut self, now_ns: impl Fn() -> u64) {
        while let Some(answer) = self.retries.try_next() {
            self.retried(answer, now_ns());
        }
        while let Some(ended) = self.grants.try_next() {
            self.granted(ended, now_ns());
        }
        while let Some(ended) = self.archive.try_next() {
            self.archived(ended, now_ns());
        }
        while let Some(ended) = self.hand_over.try_next() {
            self.handed_over(ended, now_ns());
        }
    }

    /// Looks at what depends on time and is not urgent: what waits for a key or for a fuse, what would stop its partition,
    /// partitions that do not move, and the gauges.
    pub fn look(&mut self, now_ns: u64, wall_ms: i64) {
        self.lanes.look(now_ns);
        self.send_back_closed_lanes();
        self.unpin_full_windows(now_ns);
        self.look_at_late_keys(now_ns, wall_ms);
        self.watch(now_ns);
    }

    fn watch(&mut self, now_ns: u64) {
        let pacing = &self.rules.pacing;
        // A record that waits for its due time holds its partition back, and is no reason for an alarm.
        let patience_ms = pacing.deadline_ms.saturating_mul(2).saturating_add(pacing.longest_delay_ms());
        let overview = self.partitions.look(&self.table, patience_ms.saturating_mul(NS_PER_MS), now_ns);
        watchdog::report(&self.topic, &overview, &self.stats);
        self.delay_queue.compact(&self.table);
        self.hand_over.compact(&self.table, self.delay_queue.len());
        self.lanes.compact(&self.table);
        let waiting = Waiting {
            in_flight: self.table.len(),
            delayed: self.delay_queue.len(),
            for_key: self.late_keys.len(),
            for_hand_over: self.hand_over.len(),
        };
        watchdog::show(&overview, waiting, &self.stats, now_ns);
        watchdog::show_lanes(&self.lanes, &self.table, &self.stats, now_ns);
    }

    /// The records in flight.
    pub fn table(&self) -> &InFlightTable {
        &self.table
    }

    /// The number of partitions owned.
    pub fn partitions(&self) -> usize {
        self.partitions.len()
    }

    /// Notes that so many records were fetched, or let in.
    pub fn polled(&mut self, records: usize) {
        self.pace.polled(records);
    }

    /// When the next lane wants to pass something; `None` where none does.
    pub fn next_pass_ns(&self) -> Option<u64> {
        self.lanes.iter().filter_map(Lane::wants_to_go_ns).min()
    }

    /// Decides which partitions are paused, and returns what there is to commit.
    pub fn plan(&mut self, now_ns: u64) -> Vec<Commit> {
        let commits = self.partitions.take_commits(now_ns);
        let paused = self.partitions.decide_pauses(&self.lanes, &self.rules.pacing, now_ns);
        self.stats.paused_partitions.set(paused);
        commits
    }

    /// Whether the broker is to be told of a pause or of a finished record.
    pub fn has_news(&self) -> bool {
        self.partitions.has_pauses() || self.table.finished() > 0
    }

    /// The pauses that the broker is to be told of with the next turn.
    pub fn take_pauses(&mut self) -> Vec<(u32, Epoch, bool)> {
        self.partitions.take_pauses()
    }

    /// The finished records that the broker is to be told of with the next turn, one by one.
    pub fn take_finished(&mut self) -> Vec<Position> {
        self.table.take_finished()
    }

    /// Notes that these commits were stored.
    pub fn committed(&mut self, commits: &[Commit]) {
        self.partitions.committed(commits);
    }

    /// Notes that the broker did not learn of these finished records. Commits that were not stored are made with a later turn.
    pub fn not_committed(&mut self, finished: Vec<Position>) {
        self.table.tell_again(finished);
    }

    /// All that there is to commit before leaving the group, with commits that were not stored.
    pub fn take_last_commits(&mut self, not_stored: Vec<Commit>) -> Vec<Commit> {
        self.partitions.commit_again(not_stored);
        self.partitions.take_last_commits()
    }

    /// Sends to the requeue sink and to the archive what may go there.
    pub fn send_off(&mut self, now_ns: u64, wall_ms: impl FnOnce() -> i64) {
        let pacing = &self.rules.pacing;
        self.retries.turn(pacing, now_ns, wall_ms);
        self.archive.turn(&self.table, pacing.deadline_ms, now_ns);
        self.hand_over.turn(&self.table, pacing.deadline_ms, now_ns);
        #[cfg(feature = "sabotage")]
        self.settle_stored();
    }

    /// The number of records to fetch.
    pub fn records_to_fetch(&self, now_ns: u64) -> usize {
        let pacing = &self.rules.pacing;
        let is_full = self.is_table_full()
            || self.table.finished() >= RECORDS_IN_FLIGHT_MAX
            || self.delay_queue.is_overfull(pacing)
            || self.retries.is_full(pacing);
        if is_full { 0 } else { self.pace.records_to_fetch(&self.lanes, pacing, now_ns) }
    }

    /// Whether as much is in flight as may be (I9): as if every lane were full, and the delay queue, and as much again
    /// were in calls, going back or to the archive, and waiting for a key.
    fn is_table_full(&self) -> bool {
        let bytes_max = self.rules.pacing.lane_bytes_max.saturating_mul(self.lanes.len() as u64 + 4);
        self.table.len() >= RECORDS_IN_FLIGHT_MAX || self.table.bytes() >= bytes_max
    }

    /// Whether nothing is in flight and nothing is being requeued. What waits for a key is left to the next reader.
    pub fn is_empty(&self) -> bool {
        self.table.len() == self.late_keys.len() && self.retries.is_empty()
    }
}
