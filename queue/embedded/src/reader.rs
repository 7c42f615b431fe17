//! The thread that reads ahead for one consumer.

use super::chunk::ChunkCursor;
use super::prefetch::{Job, Prefetch};
use super::state::BrokerState;
use super::storage::{ChunkKey, ReadError, Storage};
use super::topic::Topic;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use windfall_contract::broker::PollError;

/// Starts the reader thread of one consumer; it ends when `prefetch` is closed.
pub(super) fn start(
    broker: Arc<BrokerState>,
    topic: Arc<Topic>,
    prefetch: Arc<Prefetch>,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let number = broker.readers.fetch_add(1, Ordering::Relaxed);
    std::thread::Builder::new().name(format!("queue-read-{number}")).spawn(move || {
        prefetch.fill(|partition| topic.end(partition), |job| read(&broker.storage, topic.id, job));
    })
}

/// Reads the chunk that holds the job's offset.
fn read(storage: &Storage, topic: u32, job: Job) -> Result<ChunkCursor, PollError> {
    let damaged = |what: String| PollError::Damaged { partition: job.partition, offset: job.from, what };
    let at = ChunkKey { topic, partition: job.partition, base: job.from };
    let found = storage.chunk(at).and_then(|exact| match exact {
        Some(bytes) => Ok(Some((job.from, bytes))),
        // The group committed inside a chunk.
        None => storage.last_chunk(at),
    });
    match found {
        Ok(Some((base, bytes))) => ChunkCursor::open(bytes, base, job.from)
            .map_err(|_| damaged("the chunk does not hold this offset".into())),
        Ok(None) => Err(damaged("the chunk is missing".into())),
        Err(ReadError::Damaged(what)) => Err(damaged(what)),
        Err(ReadError::Io(what)) => Err(PollError::Unavailable(what)),
    }
}
