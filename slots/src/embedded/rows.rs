//! The rows of the store: a letter, then numbers in big-endian, so that rows sort as tasks do.
//!
//! | key | value |
//! |---|---|
//! | `c` | the number of shards |
//! | `m` shard | watermark, lease and last finished batch |
//! | `n` shard, tenant | how many tasks wait |
//! | `s` shard, slot | nothing: the slot is there |
//! | `r` shard, slot, index | an entry |
//! | `e` shard, slot, index | where the task was moved, or loaded under this id; nothing where it was cancelled |
//! | `d` shard, slot, page | a page of the done bitmap |
//! | `a` shard, slot, index | how often the task was tried in vain |
//! | `k` shard, tenant, key | slot and index of the task of that key, and the digest of its add where that came by a queue |
//! | `u` shard, tenant, key | a key that was used once: how it ended, the digest of its add, when |
//! | `o` shard, time, tenant, key | nothing: these keys, by the time at which they were used up |
//! | `p` shard | how long used keys are kept, and from when they are known |
//! | `q` | the id of the queue of adds |
//! | `l` shard, log | the last batch that a log of the far tier has loaded |
//! | `x` tenant, shard, slot, index | a dead letter |
//! | `t` name; `T` number | a tenant's number; its name |
//! | `g` tenant, name; `G` tenant, number | a target's number; its name |
//! | `z` shard, slot | nothing: the slot is gone, and its rows are going |
//! | `b` instance | until when it lives, and how long it said |

use windfall_contract::due::{Shard, SlotMinute, StoreError, TaskId};

/// The bytes of a page of the done bitmap: 2,048 entries.
pub(super) const PAGE_BYTES: usize = 256;

/// Writes a key.
pub(super) struct Key(Vec<u8>);

impl Key {
    pub(super) fn of(letter: u8) -> Self {
        let mut key = Vec::with_capacity(16);
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

/// A key of a slot's entry.
pub(super) fn entry(letter: u8, shard: u16, slot: u32, index: u32) -> Vec<u8> {
    Key::of(letter).u16(shard).u32(slot).u32(index).end()
}

/// Where a key row leads, and where a task was moved.
pub(super) fn place(slot: u32, index: u32) -> Vec<u8> {
    let mut bytes = slot.to_be_bytes().to_vec();
    bytes.extend_from_slice(&index.to_be_bytes());
    bytes
}

pub(super) fn read_place(bytes: &[u8]) -> Result<(u32, u32), StoreError> {
    let mut at = Reading(bytes);
    Ok((at.u32()?, at.u32()?))
}

/// The id behind the letter of an `r` row, or behind the tenant of an `x` row.
pub(super) fn read_id(bytes: &[u8]) -> Result<TaskId, StoreError> {
    let mut at = Reading(bytes);
    Ok(TaskId { shard: Shard(at.u16()?), slot: SlotMinute(at.u32()?), index: at.u32()? })
}

/// Reads numbers from the front.
pub(super) struct Reading<'a>(pub(super) &'a [u8]);

impl<'a> Reading<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let (first, rest) = self.0.split_first_chunk().ok_or_else(damaged)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn u16(&mut self) -> Result<u16, StoreError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, StoreError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, StoreError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn text(self) -> Result<&'a str, StoreError> {
        std::str::from_utf8(self.0).map_err(|_| damaged())
    }
}

pub(super) fn damaged() -> StoreError {
    StoreError::Unusable("a row of the slot store is damaged".into())
}
