//! What the server answers, read as what it has to be.

use bytes::Bytes;
use redis::Value;
use std::str::FromStr;
use windfall_contract::entries::{Applied, Entry, EntryError, EntryKey};

/// Bytes in front of an entry's value: its version and its time to wake.
const HEAD_BYTES: usize = 16;
/// The time to wake of an entry that is never woken.
pub(super) const NEVER: u64 = u64::MAX;

pub(super) fn unexpected(answer: &Value) -> EntryError {
    EntryError::Unavailable(format!("an answer of another kind: {answer:.100?}"))
}

pub(super) fn array(answer: Value) -> Result<Vec<Value>, EntryError> {
    match answer {
        Value::Array(values) => Ok(values),
        other => Err(unexpected(&other)),
    }
}

fn bytes(answer: Value) -> Result<Bytes, EntryError> {
    match answer {
        Value::BulkString(bytes) => Ok(bytes.into()),
        other => Err(unexpected(&other)),
    }
}

/// A number, as one or as text.
pub(super) fn number<N: TryFrom<i64> + FromStr>(answer: &Value) -> Result<N, EntryError> {
    match answer {
        Value::Int(number) => N::try_from(*number).map_err(|_| unexpected(answer)),
        other => text(other)?.parse().map_err(|_| unexpected(other)),
    }
}

pub(super) fn text(answer: &Value) -> Result<&str, EntryError> {
    match answer {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).map_err(|_| unexpected(answer)),
        Value::SimpleString(text) => Ok(text),
        other => Err(unexpected(other)),
    }
}

pub(super) fn applied(answer: &Value) -> Result<Applied, EntryError> {
    match answer {
        Value::Int(_) => number(answer).map(Applied::Done),
        word => match text(word)? {
            "c" => Ok(Applied::Conflict),
            "l" => Ok(Applied::Late),
            _ => Err(unexpected(word)),
        },
    }
}

/// An entry as the server keeps it.
pub(super) fn entry(key: EntryKey, answer: Value) -> Result<Entry, EntryError> {
    let row = bytes(answer)?;
    let damaged = || EntryError::Unusable("an entry in Redis is damaged".into());
    let (version, rest) = row.split_first_chunk().ok_or_else(damaged)?;
    let (wake_ms, _) = rest.split_first_chunk().ok_or_else(damaged)?;
    let (version, wake_ms) = (u64::from_be_bytes(*version), u64::from_be_bytes(*wake_ms));
    let wake_ms = (wake_ms != NEVER).then_some(wake_ms);
    Ok(Entry { key, version, wake_ms, value: row.slice(HEAD_BYTES..) })
}

/// Whether there are more, and entries with their keys.
pub(super) fn entries(answer: Value) -> Result<(bool, Vec<Entry>), EntryError> {
    let mut values = array(answer)?.into_iter();
    let is_cut: u8 = number(&values.next().unwrap_or(Value::Nil))?;
    let mut entries = Vec::with_capacity(values.len() / 2);
    while let (Some(key), Some(value)) = (values.next(), values.next()) {
        let key = EntryKey::new(bytes(key)?).map_err(|error| EntryError::Unusable(error.to_string()))?;
        entries.push(entry(key, value)?);
    }
    Ok((is_cut == 1, entries))
}
