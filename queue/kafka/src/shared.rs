//! What a consumer and its thread share: partitions, records read ahead, changes to report, orders to carry out.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use windfall_contract::broker::{Change, Commit, Epoch, Fetch, InRecord, PollError, Polled};

pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Something came for `poll`.
    pub(super) arrived: Notify,
    /// Something came for the thread: room, an order, the end.
    pub(super) ordered: Condvar,
}

/// How a partition stands to this member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Not ours.
    Away,
    Ours,
    /// It is to be given back; commits still count.
    Leaving,
}

/// One partition of the topic.
#[derive(Debug)]
struct Slot {
    phase: Phase,
    /// Of the present or the last assignment.
    epoch: Epoch,
    records: VecDeque<InRecord>,
    bytes: usize,
    /// The caller wants none of it.
    paused: bool,
    /// librdkafka is to bring none of it, as it was paused for too long; what was read ahead has been thrown away.
    parked: bool,
    /// The first offset that the caller was not given.
    next: u64,
    /// The first offset that was not read; 0 is the beginning of the log, wherever that is.
    read: u64,
    /// The caller commits nothing below.
    committed: u64,
}

/// What the thread is to do with librdkafka.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Order {
    /// The caller has polled again: these go now.
    Release(Vec<u32>),
    /// Bring no more of it.
    Park(u32),
    /// Bring it again, from the first offset that the caller was not given.
    Resume(u32),
}

pub(super) struct State {
    slots: Vec<Slot>,
    changes: VecDeque<Change>,
    /// Losses that the caller was not told of.
    losses: VecDeque<PollError>,
    /// What the commit that runs now names.
    committing: Vec<u32>,
    /// Revocations that the last poll has brought.
    announced: Vec<u32>,
    pub(super) orders: VecDeque<Order>,
    /// Bytes and records read ahead, of partitions that may be brought and of those that are paused.
    flowing: Held,
    paused: Held,
    bytes_max: usize,
    /// Where the next poll starts to look, so that each partition has its turn.
    turn: usize,
    pub(super) partitions: u32,
    pub(super) polled_at: Instant,
    /// What stands in the way of reading.
    pub(super) trouble: Option<String>,
    /// The caller has closed or dropped the consumer.
    pub(super) is_closing: bool,
    /// The thread has ended.
    pub(super) is_over: bool,
}

/// A record costs at least this much of the read-ahead limit.
const RECORD_BYTES_MIN: usize = 128;
/// Records taken from one partition before the next has its turn.
const RUN: usize = 64;

#[derive(Debug, Default, Clone, Copy)]
struct Held {
    bytes: usize,
    records: usize,
}

impl Held {
    const fn add(&mut self, records: usize, bytes: usize) {
        self.bytes += bytes;
        self.records += records;
    }

    const fn sub(&mut self, records: usize, bytes: usize) {
        self.bytes -= bytes;
        self.records -= records;
    }
}

fn cost(record: &InRecord) -> usize {
    (record.payload.len() + record.key.len()).max(RECORD_BYTES_MIN)
}

impl Shared {
    pub(super) fn new(partitions: u32, bytes_max: usize) -> Self {
        let state = State {
            slots: Vec::new(),
            changes: VecDeque::new(),
            losses: VecDeque::new(),
            committing: Vec::new(),
            announced: Vec::new(),
            orders: VecDeque::new(),
            flowing: Held::default(),
            paused: Held::default(),
            bytes_max,
            turn: 0,
            partitions,
            polled_at: Instant::now(),
            trouble: None,
            is_closing: false,
            is_over: false,
        };
        Self { state: Mutex::new(state), arrived: Notify::new(), ordered: Condvar::new() }
    }

    /// Appends what was read, and wakes `poll`.
    pub(super) fn append(&self, batch: &mut Vec<InRecord>) {
        let mut state = self.state.lock();
        for record in batch.drain(..) {
            state.append(record);
        }
        drop(state);
        self.arrived.notify_one();
    }

    /// Waits for an order, for room, for the end; at most `wait`.
    pub(super) fn await_order(&self, wait: Duration) {
        let mut state = self.state.lock();
        if state.orders.is_empty() && !state.is_closing {
            self.ordered.wait_for(&mut state, wait);
        }
    }
}

impl State {
    fn slot(&mut self, partition: u32) -> &mut Slot {
        let at = usize::try_from(partition).unwrap_or(usize::MAX);
        while self.slots.len() <= at {
            self.slots.push(Slot {
                phase: Phase::Away,
                epoch: Epoch(0),
                records: VecDeque::new(),
                bytes: 0,
                paused: false,
                parked: false,
                next: 0,
                read: 0,
                committed: 0,
            });
        }
        self.partitions = self.partitions.max(partition + 1);
        &mut self.slots[at]
    }

    fn known(&mut self, partition: u32) -> Option<&mut Slot> {
        self.slots.get_mut(usize::try_from(partition).ok()?)
    }

    // What the thread does.

    /// A partition is ours from now on, read from `next` on.
    pub(super) fn assigned(&mut self, partition: u32, next: u64) {
        let slot = self.slot(partition);
        slot.epoch = Epoch(slot.epoch.0.saturating_add(1));
        (slot.phase, slot.next, slot.read, slot.committed) = (Phase::Ours, next, next, next);
        (slot.paused, slot.parked) = (false, false);
        let epoch = slot.epoch;
        self.changes.push_back(Change::Assigned { partition, epoch, next_offset: next });
    }

    /// A partition goes: at once if it is `lost`, for commits would be refused, or else with the poll after the
    /// one that says so. Whether it was ours.
    pub(super) fn revoked(&mut self, partition: u32, lost: bool) -> bool {
        self.drop_records(partition);
        let Some(slot) = self.known(partition).filter(|slot| slot.phase == Phase::Ours) else { return false };
        slot.phase = if lost { Phase::Away } else { Phase::Leaving };
        let epoch = slot.epoch;
        self.changes.push_back(Change::Revoked { partition, epoch });
        true
    }

    /// Where the partitions that are being read are: the offset after the last one read. Not those that began at the
    /// beginning and have read nothing yet: they are where their log begins.
    pub(super) fn positions(&self) -> Vec<(u32, u64)> {
        let slots = (0u32..).zip(&self.slots);
        let read = slots.filter(|(_, slot)| slot.phase == Phase::Ours && !slot.parked && slot.read > 0);
        read.map(|(partition, slot)| (partition, slot.read)).collect()
    }

    /// Records were lost, and reading goes on at `resumes_at`. Ahead of what was read, the assignment lasts: what
    /// the caller holds of it may be nowhere else. Behind it, offsets come again, under another epoch.
    pub(super) fn lost(&mut self, partition: u32, resumes_at: u64, loss: PollError) {
        self.losses.push_back(loss);
        match self.known(partition) {
            Some(slot) if slot.read < resumes_at => slot.read = resumes_at,
            _ => {
                self.revoked(partition, true);
                self.assigned(partition, resumes_at);
            }
        }
    }

    /// All that we own, or are about to give back, is gone.
    pub(super) fn all_lost(&mut self) {
        for partition in 0..self.partitions {
            self.revoked(partition, true);
            if let Some(slot) = self.known(partition) {
                slot.phase = Phase::Away;
            }
        }
        self.announced.clear();
        self.orders.clear();
    }

    /// A record of a partition that is not ours any more, or that nobody wants now, is thrown away.
    fn append(&mut self, record: InRecord) {
        let cost = cost(&record);
        let partition = record.partition;
        let Some(slot) = self.known(partition) else { return };
        if slot.phase != Phase::Ours || slot.parked {
            return;
        }
        let epoch = slot.epoch;
        slot.read = record.offset + 1;
        slot.records.push_back(InRecord { epoch, ..record });
        slot.bytes += cost;
        let paused = slot.paused;
        if paused {
            self.paused.add(1, cost);
            self.park_if_too_much(partition);
        } else {
            self.flowing.add(1, cost);
        }
    }

    fn drop_records(&mut self, partition: u32) {
        let Some(slot) = self.known(partition) else { return };
        let (records, bytes, paused) = (slot.records.len(), slot.bytes, slot.paused);
        slot.records = VecDeque::new();
        slot.bytes = 0;
        if paused { self.paused.sub(records, bytes) } else { self.flowing.sub(records, bytes) }
    }

    /// Whether the thread should read no more for now.
    pub(super) const fn is_full(&self) -> bool {
        self.flowing.bytes >= self.bytes_max
    }

    /// Whether there is room enough that reading again pays.
    pub(super) const fn has_room(&self) -> bool {
        self.flowing.bytes < self.bytes_max / 2
    }

    /// What we own, with the offset that is to be read next, unless it is parked.
    pub(super) fn ours(&self) -> Vec<u32> {
        let slots = (0u32..).zip(&self.slots);
        slots.filter(|(_, slot)| slot.phase == Phase::Ours && !slot.parked).map(|(at, _)| at).collect()
    }

    /// Where a parked partition that is wanted again goes on.
    pub(super) fn wanted(&self, partition: u32) -> Option<u64> {
        let slot = self.slots.get(usize::try_from(partition).ok()?)?;
        (slot.phase == Phase::Ours && slot.parked && !slot.paused).then_some(slot.next)
    }

    /// It has been sought back to where it goes on: what comes now counts.
    pub(super) fn unpark(&mut self, partition: u32) {
        if let Some(slot) = self.known(partition) {
            slot.parked = false;
            slot.read = slot.next;
        }
    }

    /// What is to be given back, and was not yet.
    pub(super) fn leaving(&self) -> Vec<u32> {
        let slots = (0u32..).zip(&self.slots);
        slots.filter(|(_, slot)| slot.phase == Phase::Leaving).map(|(at, _)| at).collect()
    }

    // What the caller does.

    /// The caller polls again: what the last poll announced goes now, and its epoch is over.
    pub(super) fn begin_poll(&mut self) -> bool {
        self.polled_at = Instant::now();
        if self.announced.is_empty() {
            return false;
        }
        let announced = std::mem::take(&mut self.announced);
        for partition in &announced {
            if let Some(slot) = self.known(*partition).filter(|slot| slot.phase == Phase::Leaving) {
                slot.phase = Phase::Away;
            }
        }
        self.orders.push_back(Order::Release(announced));
        true
    }

    /// What there is to bring; `None` is nothing.
    pub(super) fn take(&mut self, fetch: Fetch) -> Option<Result<Polled, PollError>> {
        if let Some(loss) = self.losses.pop_front() {
            return Some(Err(loss));
        }
        let mut polled = Polled::default();
        for change in self.changes.drain(..) {
            if let Change::Revoked { partition, .. } = change {
                let slot = self.slots.get(usize::try_from(partition).unwrap_or(usize::MAX));
                if slot.is_some_and(|slot| slot.phase == Phase::Leaving) {
                    self.announced.push(partition);
                }
            }
            polled.changes.push(change);
        }
        self.take_records(fetch, &mut polled.records);
        if !polled.changes.is_empty() || !polled.records.is_empty() {
            return Some(Ok(polled));
        }
        if self.is_over {
            return Some(Err(PollError::Unavailable("the consumer's thread has ended".into())));
        }
        self.trouble.take().map(|trouble| Err(PollError::Unavailable(trouble)))
    }

    fn take_records(&mut self, fetch: Fetch, out: &mut Vec<InRecord>) {
        let mut bytes = 0;
        if self.flowing.records == 0 || fetch.max_records == 0 {
            return;
        }
        out.reserve(fetch.max_records.min(self.flowing.records));
        let mut empty = 0;
        while empty < self.slots.len() {
            self.turn = (self.turn + 1) % self.slots.len();
            let slot = &mut self.slots[self.turn];
            if slot.paused || slot.records.is_empty() {
                empty += 1;
                continue;
            }
            empty = 0;
            for _ in 0..RUN {
                let Some(record) = slot.records.front() else { break };
                bytes += record.payload.len();
                let is_first = out.is_empty();
                if out.len() >= fetch.max_records || (bytes > fetch.max_bytes && !is_first) {
                    return;
                }
                let Some(record) = slot.records.pop_front() else { break };
                let cost = cost(&record);
                slot.bytes -= cost;
                slot.next = record.offset + 1;
                self.flowing.sub(1, cost);
                out.push(record);
            }
        }
    }

    pub(super) fn pause(&mut self, partition: u32, epoch: Epoch, paused: bool) {
        let is_meant = |slot: &&mut Slot| slot.phase == Phase::Ours && slot.epoch == epoch;
        let Some(slot) = self.known(partition).filter(is_meant) else { return };
        if std::mem::replace(&mut slot.paused, paused) == paused {
            return;
        }
        let (records, bytes, parked) = (slot.records.len(), slot.bytes, slot.parked);
        if paused {
            self.flowing.sub(records, bytes);
            self.paused.add(records, bytes);
            self.park_if_too_much(partition);
            return;
        }
        self.paused.sub(records, bytes);
        self.flowing.add(records, bytes);
        if parked {
            // I3: what still comes is from behind what was thrown away. The thread takes the mark away, once it has
            // sought back.
            self.orders.push_back(Order::Resume(partition));
        }
    }

    /// I9: a paused partition keeps what was read ahead, so that a short pause costs nothing; but all of them
    /// together not more than the others may.
    fn park_if_too_much(&mut self, partition: u32) {
        if self.paused.bytes <= self.bytes_max {
            return;
        }
        self.drop_records(partition);
        if let Some(slot) = self.known(partition) {
            slot.parked = true;
            self.orders.push_back(Order::Park(partition));
        }
    }

    /// The commits that count: of partitions that are still ours, forwards (I3).
    pub(super) fn commits(&self, commits: &[Commit]) -> Vec<Commit> {
        let counts = |commit: &&Commit| {
            let slot = self.slots.get(usize::try_from(commit.partition).unwrap_or(usize::MAX));
            slot.is_some_and(|slot| {
                slot.phase != Phase::Away
                    && slot.epoch == commit.epoch
                    && slot.committed < commit.next_offset
                    && commit.next_offset <= slot.next
            })
        };
        commits.iter().filter(counts).copied().collect()
    }

    // What the committer does.

    /// A commit runs now. What still counts of it is committed, and is not given back before it has ended.
    pub(super) fn begin_commit(&mut self, commits: &[Commit]) -> Vec<Commit> {
        let commits = self.commits(commits);
        self.committing = commits.iter().map(|commit| commit.partition).collect();
        commits
    }

    /// It has ended.
    pub(super) fn end_commit(&mut self, commits: &[Commit], is_stored: bool) {
        self.committing.clear();
        for commit in commits.iter().filter(|_| is_stored) {
            let slot = self.known(commit.partition).filter(|slot| slot.epoch == commit.epoch);
            if let Some(slot) = slot {
                slot.committed = slot.committed.max(commit.next_offset);
            }
        }
    }

    /// Whether a commit that runs names one of them.
    pub(super) fn is_committing(&self, partitions: &[u32]) -> bool {
        self.committing.iter().any(|partition| partitions.contains(partition))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn state(bytes_max: usize) -> State {
        Shared::new(2, bytes_max).state.into_inner()
    }

    fn record(partition: u32, offset: u64) -> InRecord {
        let payload = Bytes::from(vec![0; 1000]);
        InRecord { partition, epoch: Epoch(0), offset, key: Bytes::new(), payload }
    }

    fn fetch(max_records: usize) -> Fetch {
        Fetch { max_records, max_bytes: usize::MAX, wait: Duration::ZERO }
    }

    fn offsets(state: &mut State, max_records: usize) -> Vec<(u32, u64)> {
        match state.take(fetch(max_records)) {
            Some(Ok(polled)) => polled.records.iter().map(|one| (one.partition, one.offset)).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn a_revoked_partition_goes_with_the_poll_after_the_one_that_says_so() {
        let mut state = state(1 << 20);
        state.assigned(0, 5);
        state.append(record(0, 5));
        assert_eq!(offsets(&mut state, 9), [(0, 5)]);
        state.append(record(0, 6));
        assert!(state.revoked(0, false));
        let commit = Commit { partition: 0, epoch: Epoch(1), next_offset: 6 };
        assert!(!state.begin_poll(), "not announced yet");
        assert_eq!(offsets(&mut state, 9), [], "what was read ahead is not ours to bring");
        assert_eq!(state.commits(&[commit]), [commit], "announced: commits count");
        assert!(state.begin_poll());
        assert_eq!(state.commits(&[commit]), [], "gone");
        assert_eq!(state.orders, [Order::Release(vec![0])]);
        state.assigned(0, 5);
        assert_eq!(state.commits(&[commit]), [], "an old epoch");
    }

    #[test]
    fn a_lost_partition_goes_at_once() {
        let mut state = state(1 << 20);
        state.assigned(0, 0);
        state.append(record(0, 0));
        assert_eq!(offsets(&mut state, 9), [(0, 0)]);
        state.revoked(0, true);
        let commit = Commit { partition: 0, epoch: Epoch(1), next_offset: 1 };
        assert_eq!(state.commits(&[commit]), []);
        assert!(matches!(state.take(fetch(1)), Some(Ok(polled)) if polled.changes.len() == 1));
        assert!(!state.begin_poll(), "nothing is left to release");
    }

    #[test]
    fn commits_go_forwards_and_not_beyond_what_was_brought() {
        let mut state = state(1 << 20);
        state.assigned(1, 10);
        for offset in 10..14 {
            state.append(record(1, offset));
        }
        assert_eq!(offsets(&mut state, 2).len(), 2);
        let commit = |next_offset| Commit { partition: 1, epoch: Epoch(1), next_offset };
        let counted = state.begin_commit(&[commit(10), commit(12), commit(13)]);
        assert_eq!(counted, [commit(12)]);
        state.end_commit(&counted, false);
        assert_eq!(state.commits(&counted), counted, "refused: said again");
        state.end_commit(&counted, true);
        assert_eq!(state.commits(&[commit(12)]), []);
    }

    /// The answer to an earlier commit stays away, and meanwhile the partition goes to another member.
    #[test]
    fn a_commit_that_waited_is_held_against_the_epochs_when_it_runs() {
        let mut state = state(1 << 20);
        state.assigned(0, 0);
        state.append(record(0, 0));
        assert_eq!(offsets(&mut state, 9), [(0, 0)]);
        let queued = state.commits(&[Commit { partition: 0, epoch: Epoch(1), next_offset: 1 }]);
        assert_eq!(queued.len(), 1);
        let runs = state.begin_commit(&queued);
        assert_eq!(runs, queued);
        assert!(state.is_committing(&[7, 0]), "it is not given back before the commit has ended");
        state.end_commit(&runs, false);
        assert!(!state.is_committing(&[0]));
        assert!(state.revoked(0, false));
        offsets(&mut state, 9);
        state.begin_poll();
        assert_eq!(state.begin_commit(&queued), [], "it is another's now");
        state.assigned(0, 0);
        assert_eq!(state.begin_commit(&queued), [], "it is ours again, under another epoch");
    }

    #[test]
    fn a_loss_is_told_once_and_only_a_log_that_was_cut_off_begins_anew() {
        let mut state = state(1 << 20);
        state.assigned(0, 5);
        state.assigned(1, 0);
        state.append(record(0, 5));
        assert_eq!(offsets(&mut state, 9), [(0, 5)]);
        assert_eq!(state.positions(), [(0, 6)], "the other is where its log begins");
        let taken = |state: &mut State| state.take(fetch(9)).unwrap();
        let lost = |from, to, resumes_at| PollError::Lost { partition: 0, from, to, resumes_at, what: "gone".into() };
        state.append(record(0, 6));
        state.lost(0, 20, lost(7, 20, 20));
        assert_eq!(taken(&mut state).err(), Some(lost(7, 20, 20)));
        state.append(record(0, 20));
        let polled = taken(&mut state).unwrap();
        assert_eq!(polled.changes, [], "what the caller holds may be nowhere else");
        assert_eq!(polled.records.iter().map(|record| record.offset).collect::<Vec<_>>(), [6, 20]);
        state.lost(0, 10, lost(15, 21, 10));
        assert_eq!(taken(&mut state).err(), Some(lost(15, 21, 10)));
        state.append(record(0, 10));
        let polled = taken(&mut state).unwrap();
        let assigned = Change::Assigned { partition: 0, epoch: Epoch(2), next_offset: 10 };
        assert_eq!(polled.changes, [Change::Revoked { partition: 0, epoch: Epoch(1) }, assigned]);
        assert_eq!(polled.records[0].epoch, Epoch(2));
    }

    #[test]
    fn a_pause_keeps_what_it_may_and_reads_the_rest_again() {
        let mut state = state(2_500);
        state.assigned(0, 0);
        state.assigned(1, 0);
        for offset in 0..2 {
            state.append(record(0, offset));
        }
        state.pause(0, Epoch(1), true);
        for offset in 0..2 {
            state.append(record(1, offset));
        }
        assert_eq!(offsets(&mut state, 9), [(1, 0), (1, 1)]);
        state.pause(0, Epoch(1), false);
        assert_eq!(offsets(&mut state, 1), [(0, 0)], "a short pause costs nothing");
        state.pause(0, Epoch(1), true);
        for offset in 2..5 {
            state.append(record(0, offset));
        }
        assert_eq!(state.orders, [Order::Park(0)]);
        state.append(record(0, 5));
        state.pause(0, Epoch(1), false);
        assert_eq!(state.orders.back(), Some(&Order::Resume(0)));
        assert_eq!((state.flowing.records, state.paused.records), (0, 0));
        // I3: until it has been sought back, what still comes would leave a gap behind it.
        state.append(record(0, 6));
        assert_eq!(offsets(&mut state, 9), []);
        assert_eq!(state.wanted(0), Some(1));
        state.pause(0, Epoch(1), true);
        assert_eq!(state.wanted(0), None, "an order of before the pause does nothing");
        state.pause(0, Epoch(1), false);
        state.unpark(0);
        assert_eq!(state.wanted(0), None);
        state.append(record(0, 1));
        assert_eq!(offsets(&mut state, 9), [(0, 1)]);
    }

    #[test]
    fn a_pause_of_an_epoch_that_is_over_stops_nothing() {
        let mut state = state(1 << 20);
        state.assigned(0, 0);
        state.revoked(0, true);
        state.assigned(0, 0);
        state.pause(0, Epoch(1), true);
        state.append(record(0, 0));
        assert_eq!(offsets(&mut state, 9), [(0, 0)]);
        state.pause(0, Epoch(2), true);
        state.append(record(0, 1));
        assert_eq!(offsets(&mut state, 9), []);
        state.pause(0, Epoch(1), false);
        assert_eq!(offsets(&mut state, 9), [], "nor does its end resume anything");
    }

    #[test]
    fn partitions_take_turns_and_limits_hold() {
        let mut state = state(1 << 20);
        state.assigned(0, 0);
        state.assigned(1, 0);
        for offset in 0..200 {
            state.append(record(0, offset));
            state.append(record(1, offset));
        }
        let brought = offsets(&mut state, 200);
        assert!(brought.iter().any(|(partition, _)| *partition == 0));
        assert!(brought.iter().any(|(partition, _)| *partition == 1));
        let small = Fetch { max_records: 100, max_bytes: 10, wait: Duration::ZERO };
        assert!(matches!(state.take(small), Some(Ok(polled)) if polled.records.len() == 1));
    }
}
