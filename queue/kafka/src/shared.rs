//! The state that a consumer and its thread share: partitions, records read ahead, changes to report, and orders to
//! carry out.

use super::finished::{Inherited, Lineage, TopicId};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use windfall_contract::broker::{Change, Commit, Epoch, Fetch, InRecord, PollError, Polled};
use windfall_contract::finished::Origin;

pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Signals that something came for `poll`.
    pub(super) arrived: Notify,
    /// Signals that something came for the thread: room, an order, or the end.
    pub(super) ordered: Condvar,
}

/// Whether this member owns a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// This member does not own it.
    Away,
    Ours,
    /// It is to be given back; commits still count.
    Leaving,
}

/// One partition of the topic.
#[derive(Debug)]
struct Slot {
    phase: Phase,
    /// The epoch of the present or the last assignment.
    epoch: Epoch,
    records: VecDeque<InRecord>,
    bytes: usize,
    /// Whether the caller has paused it.
    paused: bool,
    /// Whether librdkafka is to bring none of its records, because it was paused for too long; what was read ahead has
    /// been thrown away.
    parked: bool,
    /// The first offset that the caller was not given.
    next: u64,
    /// The first offset that was not read; 0 is the beginning of the log, wherever that is.
    read: u64,
    /// The offset below which the caller commits nothing more.
    committed: u64,
    /// The leader epochs of what was read.
    lineage: Lineage,
    /// The offsets that earlier owners have finished, which are not to be brought.
    inherited: Inherited,
    /// The offset after the last one that was left out.
    passed: u64,
}

/// An order to the thread that owns librdkafka's client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Order {
    /// Give these partitions back: the caller has polled again.
    Release(Vec<u32>),
    /// Bring no more records of this partition.
    Park(u32),
    /// Bring this partition's records again, from the first offset that the caller was not given.
    Resume(u32),
}

pub(super) struct State {
    slots: Vec<Slot>,
    changes: VecDeque<Change>,
    /// Losses that the caller was not told of.
    losses: VecDeque<PollError>,
    /// The partitions that the running commit names.
    committing: Vec<u32>,
    /// Partitions of which records were left out that the caller has finished before.
    passed: Vec<u32>,
    /// The id of the topic that is read; `None` while it is not known.
    topic_id: Option<TopicId>,
    /// The partitions of which the last poll announced the revocation.
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
    /// Why nothing can be read just now.
    pub(super) trouble: Option<String>,
    /// The caller has closed or dropped the consumer.
    pub(super) is_closing: bool,
    /// The thread has ended.
    pub(super) is_over: bool,
}

/// A record, and the leader epoch that it was written under, where the broker tells it.
pub(super) type Read = (InRecord, Option<u32>);

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
            passed: Vec::new(),
            topic_id: None,
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
    pub(super) fn append(&self, batch: &mut Vec<Read>) {
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
                lineage: Lineage::default(),
                inherited: Inherited::default(),
                passed: 0,
            });
        }
        self.partitions = self.partitions.max(partition + 1);
        &mut self.slots[at]
    }

    fn known(&mut self, partition: u32) -> Option<&mut Slot> {
        self.slots.get_mut(usize::try_from(partition).ok()?)
    }

    // What the thread does.

    /// Notes that a partition is this member's from now on, and is read from `next` on.
    pub(super) fn assigned(&mut self, partition: u32, next: u64, inherited: Inherited) {
        let slot = self.slot(partition);
        slot.epoch = Epoch(slot.epoch.0.saturating_add(1));
        (slot.phase, slot.next, slot.read, slot.committed) = (Phase::Ours, next, next, next);
        (slot.paused, slot.parked) = (false, false);
        (slot.lineage, slot.inherited, slot.passed) = (Lineage::default(), inherited, 0);
        let epoch = slot.epoch;
        self.changes.push_back(Change::Assigned { partition, epoch, next_offset: next });
    }

    /// Notes that a partition is revoked: at once if it is `lost`, because commits would be refused, or else with the
    /// poll after the one that announces it. Returns whether it was this member's.
    pub(super) fn revoked(&mut self, partition: u32, lost: bool) -> bool {
        self.drop_records(partition);
        let Some(slot) = self.known(partition) else { return false };
        if lost && slot.phase == Phase::Leaving {
            // I3: another member may have it by now. In the next generation a commit of ours would be taken all the same.
            slot.phase = Phase::Away;
            self.announced.retain(|announced| *announced != partition);
            return false;
        }
        if slot.phase != Phase::Ours {
            return false;
        }
        slot.phase = if lost { Phase::Away } else { Phase::Leaving };
        let epoch = slot.epoch;
        self.changes.push_back(Change::Revoked { partition, epoch });
        true
    }

    /// The read positions of this member's partitions: the offset after the last one read, 0 for the beginning of the
    /// log.
    pub(super) fn positions(&self) -> Vec<(u32, u64)> {
        let slots = (0u32..).zip(&self.slots).filter(|(_, slot)| slot.phase == Phase::Ours);
        slots.map(|(partition, slot)| (partition, slot.read)).collect()
    }

    /// Whether librdkafka is to bring no records of the partition.
    pub(super) fn is_parked(&self, partition: u32) -> bool {
        let slot = usize::try_from(partition).ok().and_then(|at| self.slots.get(at));
        slot.is_some_and(|slot| slot.parked)
    }

    /// Records were lost, and reading goes on at `resumes_at`. Ahead of what was read, the assignment lasts: what
    /// the caller holds of it may be nowhere else. Behind it, offsets come again, under another epoch.
    pub(super) fn lost(&mut self, partition: u32, resumes_at: u64, loss: PollError) {
        self.losses.push_back(loss);
        match self.known(partition) {
            Some(slot) if slot.read < resumes_at => {
                slot.read = resumes_at;
                if slot.parked {
                    slot.next = resumes_at;
                }
            }
            _ => {
                self.revoked(partition, true);
                // The map of earlier owners is ignored: the log is another one.
                self.assigned(partition, resumes_at, Inherited::default());
            }
        }
    }

    /// Notes that every partition that this member owned, or was about to give back, is lost.
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

    /// The topic's id, as the cluster says now. Where it has changed, the topic was created anew, and
    /// what is known of its log belongs to the old one.
    pub(super) fn topic_is(&mut self, id: TopicId) {
        if self.topic_id.replace(id).is_some_and(|known| known != id) {
            for slot in &mut self.slots {
                (slot.lineage, slot.inherited) = (Lineage::default(), Inherited::default());
            }
        }
    }

    /// Appends a record. One of a partition that is no longer this member's, or is parked, is thrown away, and so is
    /// one that an earlier owner has finished.
    fn append(&mut self, (record, leader_epoch): Read) {
        let cost = cost(&record);
        let partition = record.partition;
        let Some(slot) = self.known(partition) else { return };
        if slot.phase != Phase::Ours || slot.parked {
            return;
        }
        let epoch = slot.epoch;
        slot.read = record.offset + 1;
        slot.lineage.read(record.offset, leader_epoch);
        if !slot.inherited.is_empty() && slot.inherited.has(record.offset, leader_epoch) {
            slot.passed = slot.read;
            if !self.passed.contains(&partition) {
                self.passed.push(partition);
            }
            return;
        }
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

    /// The partitions that this member owns, unless they are parked.
    pub(super) fn ours(&self) -> Vec<u32> {
        let slots = (0u32..).zip(&self.slots);
        slots.filter(|(_, slot)| slot.phase == Phase::Ours && !slot.parked).map(|(at, _)| at).collect()
    }

    /// The offset at which a parked partition that has been resumed goes on.
    pub(super) fn wanted(&self, partition: u32) -> Option<u64> {
        let slot = self.slots.get(usize::try_from(partition).ok()?)?;
        (slot.phase == Phase::Ours && slot.parked && !slot.paused).then_some(slot.next)
    }

    /// Notes that librdkafka has sought the partition back to where it goes on: records that come now count.
    pub(super) fn unpark(&mut self, partition: u32) {
        if let Some(slot) = self.known(partition) {
            slot.parked = false;
            slot.read = slot.next;
        }
    }

    /// The partitions that are to be given back and were not yet.
    pub(super) fn leaving(&self) -> Vec<u32> {
        let slots = (0u32..).zip(&self.slots);
        slots.filter(|(_, slot)| slot.phase == Phase::Leaving).map(|(at, _)| at).collect()
    }

    // What the caller does.

    /// Begins a poll: partitions whose revocation the last poll announced go now, and their epochs are over.
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

    /// Takes what there is for a poll to bring; `None` if there is nothing.
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
        self.take_passed(&mut polled.changes);
        self.take_records(fetch, &mut polled.records);
        if !polled.changes.is_empty() || !polled.records.is_empty() {
            return Some(Ok(polled));
        }
        if self.is_over {
            return Some(Err(PollError::Unavailable("the consumer's thread has ended".into())));
        }
        self.trouble.take().map(|trouble| Err(PollError::Unavailable(trouble)))
    }

    /// Reports records that were left out at the end of what there is. Where a record follows them, its offset shows
    /// it.
    fn take_passed(&mut self, changes: &mut Vec<Change>) {
        if self.passed.is_empty() {
            return;
        }
        let mut passed = std::mem::take(&mut self.passed);
        passed.retain(|&partition| {
            let Some(slot) = self.known(partition).filter(|slot| slot.phase == Phase::Ours) else {
                return false;
            };
            if slot.passed <= slot.next || slot.records.front().is_some_and(|next| next.offset >= slot.passed)
            {
                return false;
            }
            if !slot.records.is_empty() {
                return true;
            }
            slot.next = slot.passed;
            changes.push(Change::Passed { partition, epoch: slot.epoch, next_offset: slot.next });
            false
        });
        self.passed = passed;
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

    /// I9: a paused partition keeps what was read ahead, so that a short pause costs nothing; but all paused partitions
    /// together keep no more than the others may.
    fn park_if_too_much(&mut self, partition: u32) {
        if self.paused.bytes <= self.bytes_max {
            return;
        }
        self.drop_records(partition);
        // I3: what was left out lay behind what is thrown away now. It is read again, and left out again.
        self.passed.retain(|passed| *passed != partition);
        if let Some(slot) = self.known(partition) {
            (slot.parked, slot.read, slot.passed) = (true, slot.next, 0);
            self.orders.push_back(Order::Park(partition));
        }
    }

    /// The commits that count: of partitions that are still ours, forwards (I3), or from where we are with what is
    /// finished beyond.
    pub(super) fn commits(&self, commits: &[Commit]) -> Vec<Commit> {
        let counts = |commit: &&Commit| {
            let slot = self.slots.get(usize::try_from(commit.partition).unwrap_or(usize::MAX));
            slot.is_some_and(|slot| {
                slot.phase != Phase::Away
                    && slot.epoch == commit.epoch
                    && (slot.committed < commit.next_offset
                        || (slot.committed == commit.next_offset && !commit.finished.is_empty()))
                    && commit.next_offset <= slot.next
            })
        };
        commits.iter().filter(counts).cloned().collect()
    }

    // What the committer does.

    /// Begins a commit and returns the part of it that still counts; those partitions are not given back before it has
    /// ended. With each position goes the map of finished offsets beyond it, and the log that they belong to.
    pub(super) fn begin_commit(&mut self, commits: &[Commit]) -> Vec<(Commit, Origin)> {
        let commits = self.commits(commits);
        self.committing = commits.iter().map(|commit| commit.partition).collect();
        let said = commits.into_iter().map(|commit| {
            let slot = self.slots.get(usize::try_from(commit.partition).unwrap_or(usize::MAX));
            let beyond = slot.zip(self.topic_id).map(|(slot, topic)| {
                let (next, read) = (commit.next_offset, slot.read);
                slot.lineage.with(topic, &commit.finished, &slot.inherited, next, read)
            });
            let (finished, origin) = beyond.unwrap_or_default();
            (Commit { finished, ..commit }, origin)
        });
        said.collect()
    }

    /// Notes the end of a commit.
    pub(super) fn end_commit(&mut self, commits: &[(Commit, Origin)], is_stored: bool) {
        self.committing.clear();
        for (commit, _) in commits.iter().filter(|_| is_stored) {
            let slot = self.known(commit.partition).filter(|slot| slot.epoch == commit.epoch);
            if let Some(slot) = slot {
                slot.committed = slot.committed.max(commit.next_offset);
                slot.lineage.committed(slot.committed);
                slot.inherited.committed(slot.committed);
            }
        }
    }

    /// Whether a running commit names one of these partitions.
    pub(super) fn is_committing(&self, partitions: &[u32]) -> bool {
        self.committing.iter().any(|partition| partitions.contains(partition))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finished::{of_text, to_text};
    use bytes::Bytes;
    use windfall_contract::finished::Finished;

    fn state(bytes_max: usize) -> State {
        Shared::new(2, bytes_max).state.into_inner()
    }

    fn record(partition: u32, offset: u64) -> Read {
        let payload = Bytes::from(vec![0; 1000]);
        (InRecord { partition, epoch: Epoch(0), offset, key: Bytes::new(), payload }, Some(3))
    }

    fn assign(state: &mut State, partition: u32, next: u64) {
        state.assigned(partition, next, Inherited::default());
    }

    fn commit(partition: u32, epoch: u32, next_offset: u64) -> Commit {
        Commit { partition, epoch: Epoch(epoch), next_offset, finished: Finished::default() }
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
    fn a_partition_that_is_lost_while_it_leaves_takes_no_commit_any_more() {
        let mut state = state(10_000);
        assign(&mut state, 0, 0);
        state.append(record(0, 0));
        assert_eq!(offsets(&mut state, 10), [(0, 0)]);
        assert!(state.revoked(0, false));
        assert_eq!(offsets(&mut state, 10), [], "this poll says so");
        assert_eq!(state.commits(&[commit(0, 1, 1)]).len(), 1);
        assert!(!state.revoked(0, true));
        assert_eq!(state.commits(&[commit(0, 1, 1)]), []);
        assert!(!state.begin_poll(), "it is given back already");
    }

    #[test]
    fn a_revoked_partition_goes_with_the_poll_after_the_one_that_says_so() {
        let mut state = state(1 << 20);
        assign(&mut state, 0, 5);
        state.append(record(0, 5));
        assert_eq!(offsets(&mut state, 9), [(0, 5)]);
        state.append(record(0, 6));
        assert!(state.revoked(0, false));
        let commit = commit(0, 1, 6);
        assert!(!state.begin_poll(), "not announced yet");
        assert_eq!(offsets(&mut state, 9), [], "what was read ahead is not ours to bring");
        assert_eq!(state.commits(std::slice::from_ref(&commit)).len(), 1, "announced: commits count");
        assert!(state.begin_poll());
        assert_eq!(state.commits(std::slice::from_ref(&commit)), [], "gone");
        assert_eq!(state.orders, [Order::Release(vec![0])]);
        assign(&mut state, 0, 5);
        assert_eq!(state.commits(std::slice::from_ref(&commit)), [], "an old epoch");
    }

    #[test]
    fn a_lost_partition_goes_at_once() {
        let mut state = state(1 << 20);
        assign(&mut state, 0, 0);
        state.append(record(0, 0));
        assert_eq!(offsets(&mut state, 9), [(0, 0)]);
        state.revoked(0, true);
        let commit = commit(0, 1, 1);
        assert_eq!(state.commits(std::slice::from_ref(&commit)), []);
        assert!(matches!(state.take(fetch(1)), Some(Ok(polled)) if polled.changes.len() == 1));
        assert!(!state.begin_poll(), "nothing is left to release");
    }

    #[test]
    fn commits_go_forwards_and_not_beyond_what_was_brought() {
        let mut state = state(1 << 20);
        assign(&mut state, 1, 10);
        for offset in 10..14 {
            state.append(record(1, offset));
        }
        assert_eq!(offsets(&mut state, 2).len(), 2);
        let commit = |next_offset| commit(1, 1, next_offset);
        let counted = state.begin_commit(&[commit(10), commit(12), commit(13)]);
        assert_eq!(counted.iter().map(|(commit, _)| commit.next_offset).collect::<Vec<_>>(), [12]);
        state.end_commit(&counted, false);
        assert_eq!(state.commits(&[commit(12)]), [commit(12)], "refused: said again");
        state.end_commit(&counted, true);
        assert_eq!(state.commits(&[commit(12)]), []);
    }

    /// The answer to an earlier commit stays away, and meanwhile the partition goes to another member.
    #[test]
    fn a_commit_that_waited_is_held_against_the_epochs_when_it_runs() {
        let mut state = state(1 << 20);
        assign(&mut state, 0, 0);
        state.append(record(0, 0));
        assert_eq!(offsets(&mut state, 9), [(0, 0)]);
        let queued = state.commits(&[commit(0, 1, 1)]);
        assert_eq!(queued.len(), 1);
        let runs = state.begin_commit(&queued);
        assert_eq!(runs.len(), 1);
        assert!(state.is_committing(&[7, 0]), "it is not given back before the commit has ended");
        state.end_commit(&runs, false);
        assert!(!state.is_committing(&[0]));
        assert!(state.revoked(0, false));
        offsets(&mut state, 9);
        state.begin_poll();
        assert_eq!(state.begin_commit(&queued), [], "it is another's now");
        assign(&mut state, 0, 0);
        assert_eq!(state.begin_commit(&queued), [], "it is ours again, under another epoch");
    }

    #[test]
    fn a_loss_is_told_once_and_only_a_log_that_was_cut_off_begins_anew() {
        let mut state = state(1 << 20);
        assign(&mut state, 0, 5);
        assign(&mut state, 1, 0);
        state.append(record(0, 5));
        assert_eq!(offsets(&mut state, 9), [(0, 5)]);
        assert_eq!(state.positions(), [(0, 6), (1, 0)]);
        let taken = |state: &mut State| state.take(fetch(9)).unwrap();
        let lost = |from, to, resumes_at| PollError::Lost {
            partition: 0,
            from,
            to,
            resumes_at,
            what: "gone".into(),
        };
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

    /// What goes with a commit keeps the next owner from being brought what is finished, and then the position goes on.
    #[test]
    fn what_was_finished_beyond_the_position_is_not_brought_again() {
        const TOPIC: TopicId = [9; 16];
        let mut state = state(1 << 20);
        state.topic_is(TOPIC);
        assign(&mut state, 0, 0);
        (0..20).for_each(|offset| state.append(record(0, offset)));
        assert_eq!(offsets(&mut state, 99).len(), 20);
        let finished = Finished::of([2..5, 8..20]);
        let said = state.begin_commit(&[Commit { finished, ..commit(0, 1, 1) }]);
        state.end_commit(&said, true);
        let text = to_text(&said[0].0.finished, &said[0].1).unwrap();

        state.revoked(0, true);
        state.assigned(0, 1, of_text(text.as_bytes(), TOPIC));
        (1..20).for_each(|offset| state.append(record(0, offset)));
        assert_eq!(offsets(&mut state, 3), [(0, 1), (0, 5), (0, 6)]);
        // The map goes on with the next commit, though the caller knows nothing of it.
        let said = state.begin_commit(&[commit(0, 2, 2)]);
        assert_eq!(said[0].0.finished.ranges().collect::<Vec<_>>(), [2..5, 8..20]);
        state.end_commit(&said, true);
        assert_eq!(offsets(&mut state, 9), [(0, 7)]);
        let polled = state.take(fetch(9)).unwrap().unwrap();
        assert_eq!(polled.changes, [Change::Passed { partition: 0, epoch: Epoch(2), next_offset: 20 }]);
        assert!(state.take(fetch(9)).is_none(), "said once");
        assert_eq!(state.commits(&[commit(0, 2, 20)]).len(), 1);

        // The same offsets, written anew after an unclean election.
        state.revoked(0, true);
        state.assigned(0, 1, of_text(text.as_bytes(), TOPIC));
        (1..20).for_each(|offset| state.append((record(0, offset).0, Some(4))));
        assert_eq!(offsets(&mut state, 99).len(), 19, "these are other records");
    }

    #[test]
    fn a_pause_keeps_what_it_may_and_reads_the_rest_again() {
        let mut state = state(2_500);
        assign(&mut state, 0, 0);
        assign(&mut state, 1, 0);
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

    /// Records that an earlier owner has finished lie behind two that nobody has: when those are thrown away in a pause,
    /// nothing is passed, or the two would be lost.
    #[test]
    fn what_a_pause_throws_away_is_not_passed_with_what_was_left_out_behind_it() {
        const TOPIC: TopicId = [9; 16];
        let mut state = state(2_500);
        state.topic_is(TOPIC);
        assign(&mut state, 0, 0);
        (0..5).for_each(|offset| {
            state.append(record(0, offset));
            assert_eq!(offsets(&mut state, 9), [(0, offset)]);
        });
        let finished = Finished::of(std::iter::once(2..5));
        let said = state.begin_commit(&[Commit { finished, ..commit(0, 1, 0) }]);
        state.end_commit(&said, true);
        let text = to_text(&said[0].0.finished, &said[0].1).unwrap();
        state.revoked(0, true);
        state.take(fetch(0));
        state.assigned(0, 0, of_text(text.as_bytes(), TOPIC));
        (0..5).for_each(|offset| state.append(record(0, offset)));
        state.pause(0, Epoch(2), true);
        state.append(record(0, 5));
        assert_eq!(state.orders, [Order::Park(0)]);
        let polled = state.take(fetch(9)).unwrap().unwrap();
        assert!(!polled.changes.iter().any(|change| matches!(change, Change::Passed { .. })), "{polled:?}");
        state.pause(0, Epoch(2), false);
        assert_eq!(state.wanted(0), Some(0));
        state.unpark(0);
        (0..6).for_each(|offset| state.append(record(0, offset)));
        assert_eq!(offsets(&mut state, 9), [(0, 0), (0, 1), (0, 5)]);
    }

    #[test]
    fn a_pause_of_an_epoch_that_is_over_stops_nothing() {
        let mut state = state(1 << 20);
        assign(&mut state, 0, 0);
        state.revoked(0, true);
        assign(&mut state, 0, 0);
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
        assign(&mut state, 0, 0);
        assign(&mut state, 1, 0);
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
