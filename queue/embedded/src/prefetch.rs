//! A consumer's read-ahead: chunks of the partitions that it owns, read in turn up to a limit in bytes, polled in turn.
//! The reader thread ([`super::reader`]) fills it, the consumer empties it, the group announces changes through it.

use super::chunk::ChunkCursor;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use tokio::sync::Notify;
use windfall_contract::broker::{Change, Epoch, Fetch, InRecord, PollError, Polled};
use windfall_contract::finished::Finished;

/// The chunks that are read and not yet polled, shared by a consumer, its reader thread and its group.
#[derive(Debug)]
pub(super) struct Prefetch {
    state: Mutex<State>,
    /// The reader thread waits here for room, records or the end.
    work: Condvar,
    /// `poll` waits here for records, changes or a failure.
    pub(super) ready: Notify,
    limit_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    slots: Vec<Slot>,
    /// The partition whose turn it is to be read, and the one to be polled.
    read_turn: usize,
    poll_turn: usize,
    failure: Option<PollError>,
    /// Whether a failure was just reported: records of other partitions go first then.
    reported: bool,
    closed: bool,
}

#[derive(Debug)]
struct Slot {
    partition: u32,
    epoch: Epoch,
    next_read: u64,
    paused: bool,
    /// Whether its last read failed and nobody was told yet.
    failed: bool,
    chunks: VecDeque<ChunkCursor>,
    bytes: usize,
    /// The offsets that the group has finished and that are not to be brought.
    finished: Finished,
    /// The offset after the last one that was left out, until a later one is brought.
    passed: Option<u64>,
}

/// A chunk to read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    pub(super) partition: u32,
    epoch: Epoch,
    /// The offset of the first record wanted.
    pub(super) from: u64,
}

impl Prefetch {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self { state: Mutex::default(), work: Condvar::new(), ready: Notify::new(), limit_bytes }
    }

    /// Wakes the reader, because new records may be there.
    pub(super) fn look(&self) {
        // The lock orders this after a reader that has just found nothing and is about to wait.
        drop(self.state.lock());
        self.work.notify_one();
    }

    /// Wakes `poll`, because changes may be there.
    pub(super) fn announce(&self) {
        self.ready.notify_one();
    }

    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_one();
    }

    pub(super) fn add(&self, partition: u32, epoch: Epoch, next_offset: u64, finished: Finished) {
        let slot = Slot {
            partition,
            epoch,
            next_read: next_offset,
            paused: false,
            failed: false,
            chunks: VecDeque::new(),
            bytes: 0,
            finished,
            passed: None,
        };
        self.state.lock().slots.push(slot);
        self.work.notify_one();
    }

    pub(super) fn remove(&self, partition: u32) {
        self.state.lock().slots.retain(|slot| slot.partition != partition);
        self.work.notify_one();
    }

    pub(super) fn pause(&self, partition: u32, epoch: Epoch, paused: bool) {
        let mut state = self.state.lock();
        for slot in &mut state.slots {
            if slot.partition == partition && slot.epoch == epoch {
                slot.paused = paused;
            }
        }
        drop(state);
        self.ready.notify_one();
    }

    /// Takes what is read, partition by partition in turn, or the failure of one. Never waits.
    pub(super) fn take(&self, fetch: Fetch) -> Result<Polled, PollError> {
        let mut state = self.state.lock();
        if !state.reported
            && let Some(failure) = state.failure.take()
        {
            return Err(self.report(state, failure));
        }
        state.reported = false;
        // Of what was left out before: the records of this poll come behind it.
        let mut changes = state.take_passed();
        let records = state.take(fetch);
        if records.is_empty() {
            changes.extend(state.take_passed());
        }
        if records.is_empty()
            && changes.is_empty()
            && let Some(failure) = state.failure.take()
        {
            return Err(self.report(state, failure));
        }
        drop(state);
        // There is room, also where all that was read was left out.
        if !records.is_empty() || !changes.is_empty() {
            self.work.notify_one();
        }
        Ok(Polled { changes, records })
    }

    /// The failed partition is read again after this, and the others are polled first.
    fn report(&self, mut state: MutexGuard<'_, State>, failure: PollError) -> PollError {
        state.reported = true;
        for slot in &mut state.slots {
            slot.failed = false;
        }
        drop(state);
        self.work.notify_one();
        failure
    }

    /// Has `read` bring one chunk after the other, where `end_of` says that a partition has more, until the consumer
    /// closes.
    pub(super) fn fill(
        &self,
        end_of: impl Fn(u32) -> u64,
        read: impl Fn(Job) -> Result<ChunkCursor, PollError>,
    ) {
        let mut state = self.state.lock();
        while !state.closed {
            let Some(job) = state.next_job(&end_of, self.limit_bytes) else {
                self.work.wait(&mut state);
                continue;
            };
            let result = MutexGuard::unlocked(&mut state, || read(job));
            state.absorb(job, result);
            self.ready.notify_one();
        }
    }
}

impl State {
    fn next_job(&mut self, end_of: impl Fn(u32) -> u64, limit_bytes: usize) -> Option<Job> {
        let share = limit_bytes / self.slots.len().max(1);
        for _ in 0..self.slots.len() {
            self.read_turn = (self.read_turn + 1) % self.slots.len();
            let slot = self.slots.get(self.read_turn)?;
            let room = slot.chunks.is_empty() || slot.bytes < share;
            if room && !slot.failed && slot.next_read < end_of(slot.partition) {
                return Some(Job { partition: slot.partition, epoch: slot.epoch, from: slot.next_read });
            }
        }
        None
    }

    fn absorb(&mut self, job: Job, result: Result<ChunkCursor, PollError>) {
        let slot =
            self.slots.iter_mut().find(|slot| slot.partition == job.partition && slot.epoch == job.epoch);
        // Revoked while it was read.
        let Some(slot) = slot else { return };
        match result {
            Ok(cursor) => {
                slot.next_read = cursor.end();
                slot.bytes += cursor.chunk_bytes();
                slot.chunks.push_back(cursor);
            }
            Err(failure) => {
                slot.failed = true;
                self.failure = Some(failure);
            }
        }
    }

    fn take_passed(&mut self) -> Vec<Change> {
        let passed = self.slots.iter_mut().filter_map(|slot| {
            let next_offset = slot.passed.take()?;
            Some(Change::Passed { partition: slot.partition, epoch: slot.epoch, next_offset })
        });
        passed.collect()
    }

    fn take(&mut self, fetch: Fetch) -> Vec<InRecord> {
        let mut records = Vec::new();
        let mut bytes = 0usize;
        let mut idle = 0;
        while idle < self.slots.len() && records.len() < fetch.max_records {
            self.poll_turn = (self.poll_turn + 1) % self.slots.len();
            let Some(slot) = self.slots.get_mut(self.poll_turn) else { break };
            let before = (records.len(), slot.chunks.len());
            if slot.take_chunk(fetch, &mut records, &mut bytes) {
                break;
            }
            idle = if (records.len(), slot.chunks.len()) == before { idle + 1 } else { 0 };
        }
        records
    }
}

impl Slot {
    /// Moves the rest of the first chunk to `records`; true once `max_bytes` forbids another record.
    fn take_chunk(&mut self, fetch: Fetch, records: &mut Vec<InRecord>, bytes: &mut usize) -> bool {
        if self.paused {
            return false;
        }
        let Some(chunk) = self.chunks.front_mut() else { return false };
        while records.len() < fetch.max_records {
            let Some(size) = chunk.peek_payload_bytes() else { break };
            if !records.is_empty() && bytes.saturating_add(size) > fetch.max_bytes {
                return true;
            }
            let Some((offset, key, payload)) = chunk.next() else { break };
            if self.finished.contains(offset) {
                self.passed = Some(offset + 1);
                continue;
            }
            self.passed = None;
            *bytes += size;
            records.push(InRecord { partition: self.partition, epoch: self.epoch, offset, key, payload });
        }
        if chunk.peek_payload_bytes().is_none()
            && let Some(done) = self.chunks.pop_front()
        {
            self.bytes -= done.chunk_bytes();
        }
        false
    }
}
