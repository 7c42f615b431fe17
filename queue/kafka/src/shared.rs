//! The state that a consumer and its thread share: partitions, records read ahead, changes to report, and orders to
//! carry out.

use super::finished::{Inherited, Lineage, TopicId};
use super::start::{self, Left, Start};
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
    /// The offset after the last one that was seen, also of what was thrown away.
    seen: u64,
    /// The id of the topic that these offsets belong to, where it is known.
    topic: Option<TopicId>,
    /// Whether the topic was created anew since: these offsets say nothing any more, and the partition is to be begun at
    /// the new log's beginning.
    is_void: bool,
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
    /// The topic's id, as the cluster said last; `None` while it is not known.
    pub(super) topic_id: Option<TopicId>,
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
                seen: 0,
                topic: None,
                is_void: false,
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
        let topic = self.topic_id;
        let slot = self.slot(partition);
        slot.epoch = Epoch(slot.epoch.0.saturating_add(1));
        (slot.phase, slot.next, slot.read, slot.committed) = (Phase::Ours, next, next, next);
        (slot.paused, slot.parked, slot.seen) = (false, false, next);
        (slot.lineage, slot.inherited, slot.passed) = (Lineage::default(), inherited, 0);
        (slot.topic, slot.is_void) = (topic, false);
        let epoch = slot.epoch;
        self.changes.push_back(Change::Assigned { partition, epoch, next_offset: next });
    }

    /// Notes that a partition that was assigned is read from its start on, and what is gone before that.
    pub(super) fn started(&mut self, partition: u32, start: Start) {
        self.losses.extend(start.losses);
        self.assigned(partition, start.next, start.inherited);
        let slot = self.slot(partition);
        slot.topic = start.topic.or(slot.topic);
    }

    /// Notes that a partition that is this member's is read from the beginning of a topic that was created anew. What the
    /// caller holds of the old one is of an epoch that is over (I3).
    pub(super) fn begun_anew(&mut self, partition: u32) {
        self.revoked(partition, true);
        self.assigned(partition, 0, Inherited::default());
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
    /// log. Those in a topic that is no more are none.
    pub(super) fn positions(&self) -> Vec<(u32, u64)> {
        let slots = (0u32..).zip(&self.slots);
        let slots = slots.filter(|(_, slot)| slot.phase == Phase::Ours && !slot.is_void);
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

    /// The topic's id, as the cluster says now. Where it is not that of a partition's offsets, the topic was created anew:
    /// what was not finished of the old log is a loss, and the offsets are void. Returns the partitions of this member
    /// whose are.
    pub(super) fn topic_is(&mut self, id: TopicId) -> Vec<u32> {
        self.topic_id = Some(id);
        let mut void = Vec::new();
        for (partition, slot) in (0u32..).zip(&mut self.slots) {
            // What another member owns by now is that one's to report, or is judged when it comes back.
            if slot.phase == Phase::Away || slot.topic.replace(id).is_none_or(|known| known == id) {
                continue;
            }
            let left = Left { committed: slot.committed, seen: slot.seen };
            self.losses.push_back(start::created_anew(partition, left));
            (slot.lineage, slot.inherited, slot.passed) = (Lineage::default(), Inherited::default(), 0);
            slot.is_void = true;
            void.push(partition);
        }
        void
    }

    /// The partitions of this member that are to be begun at the beginning of a topic that was created anew.
    pub(super) fn void_partitions(&self) -> Vec<u32> {
        let slots = (0u32..).zip(&self.slots);
        slots.filter(|(_, slot)| slot.phase == Phase::Ours && slot.is_void).map(|(at, _)| at).collect()
    }

    /// What this member left behind of a partition that is not its own now, in an earlier topic of this name.
    pub(super) fn left(&self, partition: u32, topic: TopicId) -> Option<Left> {
        let slot = self.slots.get(usize::try_from(partition).ok()?)?;
        let is_another = slot.topic.is_some_and(|known| known != topic);
        is_another.then_some(Left { committed: slot.committed, seen: slot.seen })
    }

    /// Appends a record. One of a partition that is no longer this member's, or is parked, is thrown away, and so is
    /// one that an earlier owner has finished, and one that comes again from the beginning of a new log.
    fn append(&mut self, (record, leader_epoch): Read) {
        let cost = cost(&record);
        let partition = record.partition;
        let Some(slot) = self.known(partition) else { return };
        if slot.phase != Phase::Ours || slot.is_void {
            return;
        }
        slot.seen = slot.seen.max(record.offset + 1);
        if slot.parked {
            return;
        }
        // The beginning of the log, wherever that is, is not at 0, and nobody could tell it when it was asked for.
        let is_gap = slot.read == 0 && record.offset > 0;
        let epoch = slot.epoch;
        slot.read = record.offset + 1;
        slot.lineage.read(record.offset, leader_epoch);
        if is_gap {
            // Brought back there after a pause, it is no gap once more.
            slot.next = record.offset;
            self.losses.push_back(start::deleted_before_the_first_read(partition, record.offset));
        }
        let Some(slot) = self.known(partition) else { return };
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

    /// Whether a rebalance waits until partitions are given back.
    pub(super) fn is_giving_back(&self) -> bool {
        self.slots.iter().any(|slot| slot.phase == Phase::Leaving)
            || self.orders.iter().any(|order| matches!(order, Order::Release(_)))
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
    /// finished beyond. A position in a topic that is no more would skip records of the new one (I2).
    pub(super) fn commits(&self, commits: &[Commit]) -> Vec<Commit> {
        let counts = |commit: &&Commit| {
            let slot = self.slots.get(usize::try_from(commit.partition).unwrap_or(usize::MAX));
            slot.is_some_and(|slot| {
                slot.phase != Phase::Away
                    && !slot.is_void
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
            let beyond = slot.and_then(|slot| Some((slot, slot.topic?))).map(|(slot, topic)| {
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
mod tests;
