//! The rows of the store: a letter, then numbers in big-endian, so that rows sort as jobs do.
//!
//! | key | value |
//! |---|---|
//! | `c` | the number of shards |
//! | `s` shard | the number of the last job of the shard |
//! | `q` shard, number | the name of a queue that has jobs in the shard |
//! | `w` shard, queue, ready from, sequence | a job that was never taken |
//! | `h` shard, queue, id | since or until when, then a job that was taken |
//! | `o` shard, hour, mark | nothing: a job with this mark was published in this hour. A far job's mark is its id and queue |
//! | `v` shard, mark | nothing: it is remembered that a far job was deleted |
//! | `e` shard, hour, mark | nothing: it is remembered until the hour after this one |
//! | `f` shard | the last of these hours of which any was forgotten |
//! | `t` namespace, 0, digest | a token |
//! | `l` namespace, 0, digest | its limit |

use bytes::{BufMut, Bytes, BytesMut};
use windfall_contract::task_queue::{HeldRecord, JobId, JobStoreError};

/// Writes a key.
pub(super) struct Key(Vec<u8>);

impl Key {
    pub(super) fn of(letter: u8) -> Self {
        let mut key = Vec::with_capacity(32);
        key.push(letter);
        Self(key)
    }

    pub(super) fn u16(mut self, number: u16) -> Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    pub(super) fn u32(mut self, number: u32) -> Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    pub(super) fn u64(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn end(self) -> Vec<u8> {
        self.0
    }
}

pub(super) fn waiting(shard: u16, queue: u32, ready_ms: u64, sequence: u64) -> Vec<u8> {
    Key::of(b'w').u16(shard).u32(queue).u64(ready_ms).u64(sequence).end()
}

pub(super) fn held(shard: u16, queue: u32, id: JobId) -> Vec<u8> {
    Key::of(b'h').u16(shard).u32(queue).bytes(id.as_bytes()).end()
}

/// What the keys of all marks of a shard begin with.
pub(super) fn marks(shard: u16) -> Vec<u8> {
    Key::of(b'o').u16(shard).end()
}

pub(super) fn once(shard: u16, hour: u64, mark: &[u8]) -> Vec<u8> {
    Key::of(b'o').u16(shard).u64(hour).bytes(mark).end()
}

pub(super) fn removal(shard: u16, mark: &[u8]) -> Vec<u8> {
    Key::of(b'v').u16(shard).bytes(mark).end()
}

/// What the keys of all deletions of a shard's far jobs begin with, in the order of their hours.
pub(super) fn removals(shard: u16) -> Vec<u8> {
    Key::of(b'e').u16(shard).end()
}

pub(super) fn removal_at(shard: u16, hour: u64, mark: &[u8]) -> Vec<u8> {
    Key::of(b'e').u16(shard).u64(hour).bytes(mark).end()
}

pub(super) fn removals_forgotten(shard: u16) -> Vec<u8> {
    Key::of(b'f').u16(shard).end()
}

/// The value of a held job: the end of its lease, or since when it is ready again or dead.
pub(super) fn held_value(at_ms: u64, record: &HeldRecord) -> Bytes {
    let record = record.encode();
    let mut value = BytesMut::with_capacity(8 + record.len());
    value.put_u64(at_ms);
    value.put_slice(&record);
    value.freeze()
}

pub(super) fn read_held(value: &Bytes) -> Result<(u64, HeldRecord), JobStoreError> {
    let at_ms = Reading(value).u64()?;
    Ok((at_ms, HeldRecord::decode(&value.slice(8..))?))
}

/// A token's key, by the letter of its row.
pub(super) fn token(letter: u8, namespace: &str, digest: &str) -> Vec<u8> {
    Key::of(letter).bytes(namespace.as_bytes()).bytes(&[0]).bytes(digest.as_bytes()).end()
}

/// Reads numbers from the front.
pub(super) struct Reading<'a>(pub(super) &'a [u8]);

impl Reading<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], JobStoreError> {
        let (first, rest) = self.0.split_first_chunk().ok_or_else(damaged)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn u16(&mut self) -> Result<u16, JobStoreError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, JobStoreError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, JobStoreError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn id(&mut self) -> Result<JobId, JobStoreError> {
        self.array().map(JobId::from_bytes)
    }
}

pub(super) fn damaged() -> JobStoreError {
    JobStoreError::Unusable("a row of the store of jobs is damaged".into())
}
