//! The records that one producer has taken and not yet reported: they stand in the chunks of their partitions, and
//! their tags.

use super::chunk::ChunkBuffer;
use super::topic::Topic;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_contract::broker::{Delivery, DeliverySink, OutRecord, Tag};

/// Shared by a producer, which fills it, and the writer, which empties it.
pub(super) struct PendingRecords {
    pub(super) topic: Arc<Topic>,
    /// The sink; `None` after `close`, because a sink may own its producer, and with it the broker.
    sink: Mutex<Option<Arc<dyn DeliverySink>>>,
    state: Mutex<State>,
    /// `close` waits here until nothing is open.
    idle: Condvar,
}

/// Records taken over by the writer in one go.
pub(super) struct Taken {
    /// Partition, records, bytes of each chunk, in the order of their partition.
    pub(super) chunks: Vec<(u32, u32, Bytes)>,
    pub(super) records: usize,
    pub(super) bytes: usize,
}

/// The records that were open when the producer gave up.
pub(super) struct GivenUp {
    /// The tags of all of them, written or not: nobody else will report them any more.
    pub(super) tags: Vec<Tag>,
    /// The records of it that the writer had not taken, and their bytes.
    pub(super) unwritten: usize,
    pub(super) unwritten_bytes: usize,
}

/// Whether the producer was closed.
#[derive(Debug)]
pub(super) struct Closed;

#[derive(Default)]
struct State {
    closed: bool,
    dropped: bool,
    filling: Vec<ChunkBuffer>,
    sealed: Vec<(u32, u32, Bytes)>,
    waiting: Vec<Tag>,
    waiting_bytes: usize,
    /// The tags of records that the writer has taken and not yet reported.
    in_flight: Vec<Tag>,
    /// The number of records that `send` has taken and that are not yet reported.
    open: usize,
}

impl PendingRecords {
    pub(super) fn new(topic: Arc<Topic>, sink: Arc<dyn DeliverySink>) -> Arc<Self> {
        Arc::new(Self { topic, sink: Mutex::new(Some(sink)), state: Mutex::default(), idle: Condvar::new() })
    }

    /// Copies a record into the chunk of its partition. The caller has checked both lengths.
    pub(super) fn push(
        &self,
        tag: Tag,
        partition: usize,
        (key_len, payload_len): (u16, u32),
        record: OutRecord<'_>,
    ) -> Result<(), Closed> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Closed);
        }
        state.push(partition, key_len, payload_len, record);
        state.waiting.push(tag);
        state.waiting_bytes += record.key.len() + record.payload.len();
        state.open += 1;
        Ok(())
    }

    /// From now on nothing is taken; false if that was so already.
    pub(super) fn close(&self) -> bool {
        let mut state = self.state.lock();
        !std::mem::replace(&mut state.closed, true)
    }

    /// Waits until everything is reported, for `timeout` at most.
    pub(super) fn wait_until_idle(&self, timeout: Duration) {
        let mut state = self.state.lock();
        let deadline = Instant::now().checked_add(timeout);
        while state.open > 0 {
            let timed_out = match deadline {
                Some(deadline) => self.idle.wait_until(&mut state, deadline).timed_out(),
                None => {
                    self.idle.wait(&mut state);
                    false
                }
            };
            if timed_out {
                return;
            }
        }
    }

    /// Takes back what is still open: what the writer has not begun will never be written, and what it has begun it
    /// will not report.
    pub(super) fn give_up(&self) -> GivenUp {
        let mut state = self.state.lock();
        let (unwritten, unwritten_bytes) = (state.waiting.len(), std::mem::take(&mut state.waiting_bytes));
        state.filling.clear();
        state.sealed.clear();
        let mut tags = std::mem::take(&mut state.waiting);
        tags.append(&mut state.in_flight);
        state.open -= tags.len();
        GivenUp { tags, unwritten, unwritten_bytes }
    }

    /// Gives the sink away: nothing is reported any more.
    pub(super) fn take_sink(&self) -> Option<Arc<dyn DeliverySink>> {
        self.sink.lock().take()
    }

    /// The producer is gone; what it left is written and reported all the same.
    pub(super) fn abandon(&self) {
        self.state.lock().dropped = true;
    }

    /// Hands all waiting records to the writer; `None` if there are none.
    pub(super) fn take(&self) -> Option<Taken> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.waiting.is_empty() {
            return None;
        }
        for (partition, buffer) in (0u32..).zip(&mut state.filling) {
            if !buffer.is_empty() {
                let (count, bytes) = buffer.seal();
                state.sealed.push((partition, count, bytes));
            }
        }
        let taken = Taken {
            chunks: std::mem::take(&mut state.sealed),
            records: state.waiting.len(),
            bytes: std::mem::take(&mut state.waiting_bytes),
        };
        state.in_flight = std::mem::take(&mut state.waiting);
        Some(taken)
    }

    /// Reports the records of the last `take`, unless `close` has done so meanwhile.
    pub(super) fn report(&self, delivery: &Delivery) {
        // The sink first: once its tags are taken, `close` may let go of it.
        let sink = self.sink.lock().clone();
        let tags = std::mem::take(&mut self.state.lock().in_flight);
        if let Some(sink) = sink {
            for tag in &tags {
                // One producer's owner must not stop the writer of all.
                let told = catch_unwind(AssertUnwindSafe(|| sink.delivered(*tag, delivery.clone())));
                if told.is_err() {
                    tracing::error!(?tag, "a delivery sink panicked");
                }
            }
        }
        let mut state = self.state.lock();
        state.open -= tags.len();
        if state.open == 0 {
            self.idle.notify_all();
        }
    }

    /// Whether no record can come any more.
    pub(super) fn is_over(&self) -> bool {
        let state = self.state.lock();
        (state.dropped || state.closed) && state.waiting.is_empty()
    }
}

impl State {
    fn push(&mut self, partition: usize, key_len: u16, payload_len: u32, record: OutRecord<'_>) {
        if self.filling.len() <= partition {
            self.filling.resize_with(partition + 1, ChunkBuffer::default);
        }
        let Some(buffer) = self.filling.get_mut(partition) else { return };
        if buffer.is_full_for(record.key, record.payload) {
            let (count, bytes) = buffer.seal();
            // The index came from a partition count, which is a u32.
            self.sealed.push((u32::try_from(partition).unwrap_or(u32::MAX), count, bytes));
        }
        buffer.push(key_len, payload_len, record.key, record.payload);
    }
}
