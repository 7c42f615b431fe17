//! What the server answers, read as what it has to be.

use bytes::Bytes;
use redis::Value;
use std::str::FromStr;
use windfall_contract::task_queue::{FoundJob, HeldRecord, HeldState, JobId, JobStoreError, TakenJob};

pub(super) fn unexpected(answer: &Value) -> JobStoreError {
    JobStoreError::Unavailable(format!("an answer of another kind: {answer:.100?}"))
}

pub(super) fn array(answer: Value) -> Result<Vec<Value>, JobStoreError> {
    match answer {
        Value::Array(values) | Value::Set(values) => Ok(values),
        other => Err(unexpected(&other)),
    }
}

/// An array of so many parts.
pub(super) fn parts<const N: usize>(answer: Value) -> Result<[Value; N], JobStoreError> {
    let values = array(answer)?;
    <[Value; N]>::try_from(values).map_err(|values| unexpected(&Value::Array(values)))
}

pub(super) fn bytes(answer: Value) -> Result<Bytes, JobStoreError> {
    match answer {
        Value::BulkString(bytes) => Ok(bytes.into()),
        other => Err(unexpected(&other)),
    }
}

/// A number, as one or as text.
pub(super) fn number<N: TryFrom<i64> + FromStr>(answer: &Value) -> Result<N, JobStoreError> {
    match answer {
        Value::Int(number) => N::try_from(*number).map_err(|_| unexpected(answer)),
        other => text(other)?.parse().map_err(|_| unexpected(other)),
    }
}

/// A number that may be below zero by what a server has lost.
pub(super) fn count(answer: &Value) -> Result<u64, JobStoreError> {
    Ok(u64::try_from(number::<i64>(answer)?).unwrap_or(0))
}

pub(super) fn text(answer: &Value) -> Result<&str, JobStoreError> {
    match answer {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).map_err(|_| unexpected(answer)),
        Value::SimpleString(text) => Ok(text),
        other => Err(unexpected(other)),
    }
}

/// A job as it is held.
pub(super) fn held(answer: Value) -> Result<TakenJob, JobStoreError> {
    let HeldRecord { state, expires_ms, tries_left, record } = HeldRecord::decode(&bytes(answer)?)?;
    // What is in the dead letter has no ttl any more.
    let expires_ms = if state == HeldState::Dead { 0 } else { expires_ms };
    Ok(TakenJob { id: record.id, body: record.body, attributes: record.attributes, expires_ms, tries_left })
}

/// The clock, and a job or none.
pub(super) fn found(answer: Value) -> Result<Option<FoundJob>, JobStoreError> {
    let mut values = array(answer)?.into_iter();
    let now_ms = values.next().map_or(Ok(0), |now| number(&now))?;
    match values.next() {
        None | Some(Value::Nil | Value::Boolean(false)) => Ok(None),
        Some(value) => Ok(Some(FoundJob { job: held(value)?, now_ms })),
    }
}

pub(super) fn id(answer: Value) -> Result<JobId, JobStoreError> {
    let found = bytes(answer)?;
    let found: [u8; 16] =
        found[..].try_into().map_err(|_| JobStoreError::Unusable("an id has not 16 bytes".into()))?;
    Ok(JobId::from_bytes(found))
}
