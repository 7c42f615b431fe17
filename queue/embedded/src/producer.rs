//! A producer: checks a record against the broker's limits, and hands it over to the writer.

use super::pending::{Closed, PendingRecords};
use super::state::OpenBroker;
use super::topic::Topic;
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::broker::{Delivery, DeliverySink, OutRecord, Producer, SendRefused, Tag};

/// A producer as callers hold it. Dropping it without `close` leaves the writer to finish what was taken.
pub(super) struct EmbeddedProducer {
    broker: Arc<OpenBroker>,
    pending: Arc<PendingRecords>,
}

impl EmbeddedProducer {
    pub(super) fn new(broker: Arc<OpenBroker>, topic: Arc<Topic>, sink: Arc<dyn DeliverySink>) -> Self {
        let pending = PendingRecords::new(topic, sink);
        broker.state.write_queue.register(pending.clone());
        Self { broker, pending }
    }
}

impl Producer for EmbeddedProducer {
    fn send(&self, tag: Tag, record: OutRecord<'_>) -> Result<(), SendRefused> {
        let state = &self.broker.state;
        let max = state.options.max_record_bytes;
        if record.payload.len() > max {
            return Err(SendRefused::TooLarge { bytes: record.payload.len(), max });
        }
        let too_large = |bytes, max| move |_| SendRefused::TooLarge { bytes, max };
        let key_len =
            u16::try_from(record.key.len()).map_err(too_large(record.key.len(), usize::from(u16::MAX)))?;
        let payload_len =
            u32::try_from(record.payload.len()).map_err(too_large(record.payload.len(), max))?;
        if let Some(what) = state.write_queue.failed() {
            return Err(SendRefused::Unavailable(what));
        }
        let bytes = record.key.len() + record.payload.len();
        // It would be `Full` for ever.
        let most = state.options.max_unreported_bytes;
        if bytes > most {
            return Err(SendRefused::TooLarge { bytes, max: most });
        }
        if !state.write_queue.admit(bytes, &state.options) {
            return Err(SendRefused::Full);
        }
        let partition = partition_of(record.key, self.pending.topic.count());
        if let Err(Closed) = self.pending.push(tag, partition, (key_len, payload_len), record) {
            state.write_queue.release(1, bytes);
            return Err(SendRefused::Closed);
        }
        state.write_queue.wake_soon();
        Ok(())
    }

    fn close(&self, timeout: Duration) -> usize {
        if !self.pending.close() {
            return 0;
        }
        let write_queue = &self.broker.state.write_queue;
        write_queue.wake_now();
        self.pending.wait_until_idle(timeout);
        let given_up = self.pending.give_up();
        write_queue.release(given_up.unwritten, given_up.unwritten_bytes);
        write_queue.wake_soon();
        if let Some(sink) = self.pending.take_sink() {
            for tag in &given_up.tags {
                sink.delivered(*tag, Delivery::Unknown("the producer closed before the answer".into()));
            }
        }
        given_up.tags.len()
    }
}

impl Drop for EmbeddedProducer {
    fn drop(&mut self) {
        self.pending.abandon();
        self.broker.state.write_queue.wake_soon();
    }
}

/// The partition of a key, equal for equal keys on any machine: FNV-1a, its high bits spread over the partitions.
fn partition_of(key: &[u8], partitions: usize) -> usize {
    let hash = windfall_contract::fnv1a(key);
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let wide = u128::from(mixed) * (partitions as u128);
    usize::try_from(wide >> 64).unwrap_or(0)
}
