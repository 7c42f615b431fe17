//! The one thread that writes: it gathers what all producers took and what all groups committed into one batch.

use super::cleanup;
use super::ends::EndsFile;
use super::group::{MapWrite, Position};
use super::state::BrokerState;
use super::storage::ChunkKey;
use super::topic::Topic;
use super::write_queue::Work;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use windfall_contract::broker::Delivery;

/// How often the writer looks whether an earlier memtable has reached its file.
const ROTATE_RETRY: Duration = Duration::from_millis(1);

/// The writer thread's own state.
pub(super) struct Writer {
    broker: Arc<BrokerState>,
    ends: EndsFile,
    /// The bytes written to memory since the last rotation.
    memtable_bytes: u64,
    /// Whether the last clean-up left something that may be deleted.
    unclean: bool,
}

impl Writer {
    pub(super) fn new(broker: Arc<BrokerState>, ends: EndsFile) -> Self {
        Self { broker, ends, memtable_bytes: 0, unclean: true }
    }

    /// Writes until the broker stops and everything taken is written.
    pub(super) fn run(mut self) {
        loop {
            let work = self.broker.write_queue.next(self.broker.options.linger);
            let idle = work.taken.is_empty() && work.commits.is_empty();
            if work.stopping && idle {
                return;
            }
            let stored = self.broker.write_queue.failed().map_or_else(
                || {
                    // The thread must live on to answer everybody, even where fjall asserts.
                    catch_unwind(AssertUnwindSafe(|| self.write(&work)))
                        .unwrap_or_else(|_| Err("the write stopped at an impossible value".into()))
                },
                Err,
            );
            if let Err(what) = &stored {
                tracing::error!(place = %self.broker.place, what, "the broker cannot write any more");
                self.broker.write_queue.fail(what);
            }
            let committed = !work.commits.is_empty();
            self.report(work, &stored);
            if stored.is_ok() && (committed || self.unclean) {
                self.clean();
            }
        }
    }

    fn write(&mut self, work: &Work) -> Result<(), String> {
        let storage = &self.broker.storage;
        let chunks = work.taken.iter().map(|(_, taken)| taken.chunks.len()).sum::<usize>();
        let mut batch = storage.batch(chunks + work.commits.len());
        let mut ends: BTreeMap<(u32, u32), (u64, &Arc<Topic>)> = BTreeMap::new();
        let mut bytes = 0u64;
        for (producer, taken) in &work.taken {
            let topic = &producer.topic;
            for (partition, count, chunk) in &taken.chunks {
                let (end, _) =
                    ends.entry((topic.id, *partition)).or_insert_with(|| (topic.end(*partition), topic));
                let at = ChunkKey { topic: topic.id, partition: *partition, base: *end };
                storage.put_chunk(&mut batch, at, chunk.clone());
                *end += u64::from(*count);
                bytes += chunk.len() as u64;
            }
        }
        for ((topic, name, partition), group) in &work.commits {
            let Some(Position { committed, map }) = group.position(*partition) else { continue };
            storage.put_commit(&mut batch, *topic, name, (*partition, committed));
            match map {
                MapWrite::None => {}
                MapWrite::Put(map) => storage.put_map(&mut batch, *topic, name, *partition, &map),
                MapWrite::Remove => storage.remove_map(&mut batch, *topic, name, *partition),
            }
        }
        batch.commit().map_err(|error| error.to_string())?;
        if !ends.is_empty() {
            let written = ends.iter().map(|(place, (end, _))| (*place, *end));
            self.ends.raise(written).map_err(|error| format!("the file of ends: {error}"))?;
        }
        for ((_, partition), (end, topic)) in &ends {
            if let Some(partition) = topic.partition(*partition) {
                partition.end.store(*end, Ordering::Release);
            }
        }
        self.rotate(bytes)
    }

    /// Keeps the memory in use within bounds, by waiting for the disk if necessary.
    fn rotate(&mut self, bytes: u64) -> Result<(), String> {
        self.memtable_bytes += bytes;
        if self.memtable_bytes < self.broker.options.memtable_bytes {
            return Ok(());
        }
        while !self.broker.storage.rotate().map_err(|error| error.to_string())? {
            std::thread::sleep(ROTATE_RETRY);
        }
        self.memtable_bytes = 0;
        Ok(())
    }

    fn report(&self, work: Work, stored: &Result<(), String>) {
        let write_queue = &self.broker.write_queue;
        // After a failed write the journal may or may not hold the batch.
        let delivery = stored.clone().map_or_else(Delivery::Unknown, |()| Delivery::Stored);
        let mut topics: BTreeMap<u32, Arc<Topic>> = BTreeMap::new();
        for (producer, taken) in work.taken {
            topics.entry(producer.topic.id).or_insert_with(|| producer.topic.clone());
            write_queue.release(taken.records, taken.bytes);
            producer.report(&delivery);
        }
        for topic in topics.values() {
            topic.wake_readers();
        }
        write_queue.tell_committed(work.commits_asked);
    }

    /// Deletes a bounded part of what every group has committed.
    fn clean(&mut self) {
        match cleanup::step(&self.broker) {
            Ok(step) => {
                self.unclean = step == cleanup::Step::More;
                if self.unclean {
                    self.broker.write_queue.wake_soon();
                }
            }
            Err(error) => {
                tracing::warn!(place = %self.broker.place, %error, "finished records could not be deleted")
            }
        }
    }
}
