//! Taking records: a copy into the chunk of the record's partition, within the broker's limits.

use super::Alive;
use super::chunk::ChunkBuffer;
use super::topic::Topic;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_contract::broker::{Delivery, DeliverySink, OutRecord, Producer, SendRefused, Tag};

/// A producer as callers hold it. Dropping it without `close` leaves the writer to finish what was taken.
pub(super) struct EmbeddedProducer {
    alive: Arc<Alive>,
    shared: Arc<ProducerShared>,
}

/// What a producer shares with the writer thread.
pub(super) struct ProducerShared {
    pub(super) topic: Arc<Topic>,
    /// Gone after `close`: a sink may own its producer, and with it the broker.
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

#[derive(Default)]
struct State {
    closed: bool,
    dropped: bool,
    filling: Vec<ChunkBuffer>,
    sealed: Vec<(u32, u32, Bytes)>,
    waiting: Vec<Tag>,
    waiting_bytes: usize,
    /// Taken by the writer, not yet reported.
    in_flight: Vec<Tag>,
    /// Taken by `send` and not yet reported.
    open: usize,
}

impl EmbeddedProducer {
    pub(super) fn new(alive: Arc<Alive>, topic: Arc<Topic>, sink: Arc<dyn DeliverySink>) -> Self {
        let shared = Arc::new(ProducerShared {
            topic,
            sink: Mutex::new(Some(sink)),
            state: Mutex::default(),
            idle: Condvar::new(),
        });
        alive.inner.signals.register(shared.clone());
        Self { alive, shared }
    }
}

impl Producer for EmbeddedProducer {
    fn send(&self, tag: Tag, record: OutRecord<'_>) -> Result<(), SendRefused> {
        let inner = &self.alive.inner;
        let max = inner.options.max_record_bytes;
        if record.payload.len() > max {
            return Err(SendRefused::TooLarge { bytes: record.payload.len(), max });
        }
        let too_large = |bytes, max| move |_| SendRefused::TooLarge { bytes, max };
        let key_len =
            u16::try_from(record.key.len()).map_err(too_large(record.key.len(), usize::from(u16::MAX)))?;
        let payload_len =
            u32::try_from(record.payload.len()).map_err(too_large(record.payload.len(), max))?;
        if let Some(what) = inner.signals.failed() {
            return Err(SendRefused::Unavailable(what));
        }
        let bytes = record.key.len() + record.payload.len();
        // It would be `Full` for ever.
        let most = inner.options.max_unreported_bytes;
        if bytes > most {
            return Err(SendRefused::TooLarge { bytes, max: most });
        }
        if !inner.signals.admit(bytes, &inner.options) {
            return Err(SendRefused::Full);
        }
        let count = self.shared.topic.count();
        let partition = partition_of(record.key, count);
        let mut state = self.shared.state.lock();
        if state.closed {
            drop(state);
            inner.signals.release(1, bytes);
            return Err(SendRefused::Closed);
        }
        state.push(partition, key_len, payload_len, record);
        state.waiting.push(tag);
        state.waiting_bytes += bytes;
        state.open += 1;
        drop(state);
        inner.signals.nudge();
        Ok(())
    }

    fn close(&self, timeout: Duration) -> usize {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        if state.closed {
            return 0;
        }
        state.closed = true;
        // The writer asks producers for their state under its own lock: never wake it under ours.
        drop(state);
        self.alive.inner.signals.hurry();
        let mut state = shared.state.lock();
        let deadline = Instant::now().checked_add(timeout);
        while state.open > 0 {
            let timed_out = match deadline {
                Some(deadline) => shared.idle.wait_until(&mut state, deadline).timed_out(),
                None => {
                    shared.idle.wait(&mut state);
                    false
                }
            };
            if timed_out {
                break;
            }
        }
        // What the writer has not begun will never be written; what it has begun, it will not report.
        let (unwritten, bytes) = (state.waiting.len(), std::mem::take(&mut state.waiting_bytes));
        state.filling.clear();
        state.sealed.clear();
        let mut open = std::mem::take(&mut state.waiting);
        open.append(&mut state.in_flight);
        state.open -= open.len();
        drop(state);
        self.alive.inner.signals.release(unwritten, bytes);
        self.alive.inner.signals.nudge();
        let sink = shared.sink.lock().take();
        if let Some(sink) = sink {
            for tag in &open {
                sink.delivered(*tag, Delivery::Unknown("the producer closed before the answer".into()));
            }
        }
        open.len()
    }
}

impl Drop for EmbeddedProducer {
    fn drop(&mut self) {
        self.shared.state.lock().dropped = true;
        self.alive.inner.signals.nudge();
    }
}

impl ProducerShared {
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

    /// Whether nothing can come of it any more.
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

/// Equal keys, equal partition, on any machine: FNV-1a (<http://www.isthe.com/chongo/tech/comp/fnv/>), its high
/// bits spread over the partitions.
fn partition_of(key: &[u8], partitions: usize) -> usize {
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let wide = u128::from(mixed) * (partitions as u128);
    usize::try_from(wide >> 64).unwrap_or(0)
}
