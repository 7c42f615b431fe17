//! What the server answers, read as what it has to be.

use bytes::Bytes;
use redis::Value;
use std::str::FromStr;
use windfall_contract::due::{DueRecord, Shard, SlotEntry, SlotMinute, StoreError, TaskId};

pub(super) fn unexpected(answer: &Value) -> StoreError {
    StoreError::Unavailable(format!("an answer of another kind: {answer:.100?}"))
}

pub(super) fn array(answer: Value) -> Result<Vec<Value>, StoreError> {
    match answer {
        Value::Array(values) => Ok(values),
        other => Err(unexpected(&other)),
    }
}

pub(super) fn bytes(answer: Value) -> Result<Bytes, StoreError> {
    match answer {
        Value::BulkString(bytes) => Ok(bytes.into()),
        other => Err(unexpected(&other)),
    }
}

/// A number, as one or as text.
pub(super) fn number<N: TryFrom<i64> + FromStr>(answer: &Value) -> Result<N, StoreError> {
    match answer {
        Value::Int(number) => N::try_from(*number).map_err(|_| unexpected(answer)),
        other => text(other)?.parse().map_err(|_| unexpected(other)),
    }
}

pub(super) fn text(answer: &Value) -> Result<&str, StoreError> {
    match answer {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).map_err(|_| unexpected(answer)),
        Value::SimpleString(text) => Ok(text),
        other => Err(unexpected(other)),
    }
}

/// Slot and index as two answers.
pub(super) fn id(shard: Shard, slot: &Value, index: &Value) -> Result<TaskId, StoreError> {
    Ok(TaskId { shard, slot: SlotMinute(number(slot)?), index: number(index)? })
}

pub(super) fn record(id: TaskId, entry: Value) -> Result<DueRecord, StoreError> {
    match SlotEntry::decode(&bytes(entry)?) {
        Ok(SlotEntry::Task(record)) => Ok(record),
        Ok(SlotEntry::End(_)) => Err(StoreError::Unusable(format!("{id} is no task"))),
        Err(error) => Err(StoreError::Unusable(format!("{id}: {error}"))),
    }
}
