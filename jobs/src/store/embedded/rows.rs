//! The rows of the store: a letter, the shard, then numbers in big-endian, so that rows sort as entries do.
//!
//! | key | value |
//! |---|---|
//! | `c` | the number of shards |
//! | `e` shard, key | version, time to wake (2^64 - 1: none), value: an entry |
//! | `w` shard, time to wake, key | nothing |
//! | `v` shard | the version of the last change |
//! | `n` shard | the last number that may have been given |

use bytes::{BufMut, Bytes};
use windfall_contract::entries::{Entry, EntryError, EntryKey};

/// Bytes in front of an entry's value.
const HEAD_BYTES: usize = 16;
const NEVER: u64 = u64::MAX;
/// Bytes of the letter and the shard.
const SHARD_BYTES: usize = 3;

/// What of an entry a change is decided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) version: u64,
    pub(super) wake_ms: Option<u64>,
}

impl Head {
    pub(super) fn read(row: &[u8]) -> Result<Self, EntryError> {
        let (version, rest) = number(row)?;
        let (wake_ms, _) = number(rest)?;
        Ok(Self { version, wake_ms: (wake_ms != NEVER).then_some(wake_ms) })
    }

    pub(super) fn with_value(self, value: &[u8]) -> Vec<u8> {
        let mut row = Vec::with_capacity(HEAD_BYTES + value.len());
        row.put_u64(self.version);
        row.put_u64(self.wake_ms.unwrap_or(NEVER));
        row.extend_from_slice(value);
        row
    }
}

/// The key of what a shard has once.
pub(super) fn of_shard(letter: u8, shard: u16) -> Vec<u8> {
    let mut row = Vec::with_capacity(48);
    row.push(letter);
    row.put_u16(shard);
    row
}

/// The key of an entry's row; that of an empty key begins those of all entries.
pub(super) fn entry_row(shard: u16, key: &[u8]) -> Vec<u8> {
    let mut row = of_shard(b'e', shard);
    row.extend_from_slice(key);
    row
}

pub(super) fn wake_row(shard: u16, wake_ms: u64, key: &[u8]) -> Vec<u8> {
    let mut row = of_shard(b'w', shard);
    row.put_u64(wake_ms);
    row.extend_from_slice(key);
    row
}

/// The time and the entry's key in the key of a wake row.
pub(super) fn read_wake_row(row: &Bytes) -> Result<(u64, EntryKey), EntryError> {
    let (wake_ms, key) = number(row.get(SHARD_BYTES..).unwrap_or_default())?;
    let key = EntryKey::new(row.slice_ref(key)).map_err(|_| damaged())?;
    Ok((wake_ms, key))
}

/// The key of the entry in the key of its row.
pub(super) fn key_of(row: &Bytes) -> Result<EntryKey, EntryError> {
    EntryKey::new(row.slice(SHARD_BYTES..)).map_err(|_| damaged())
}

/// The entry of a row.
pub(super) fn entry(key: EntryKey, row: &Bytes) -> Result<Entry, EntryError> {
    let Head { version, wake_ms } = Head::read(row)?;
    Ok(Entry { key, version, wake_ms, value: row.slice(HEAD_BYTES..) })
}

pub(super) fn number(bytes: &[u8]) -> Result<(u64, &[u8]), EntryError> {
    let (first, rest) = bytes.split_first_chunk().ok_or_else(damaged)?;
    Ok((u64::from_be_bytes(*first), rest))
}

pub(super) fn damaged() -> EntryError {
    EntryError::Unusable("a row of the store of entries is damaged".into())
}
