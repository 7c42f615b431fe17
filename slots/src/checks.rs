//! What a caller may ask of a store, whichever driver it is. A call that is refused here has changed nothing.

use windfall_contract::due::{
    CancelOnce, Change, DUE_MAX_MS, FinishBatch, KnownName, LoadBatch, NewRecord, OnceRecord,
    PAYLOAD_MAX_BYTES, Shard, StoreError, TaskKey,
};

/// The numbers of shards that a store may have.
pub(crate) const SHARDS: std::ops::RangeInclusive<u16> = 16..=1_024;
/// The bytes of a tenant's, a target's and an instance's name at most.
pub(crate) const NAME_MAX_BYTES: usize = 200;
/// The bytes that a dead letter keeps of what its target said last.
pub(crate) const REASON_MAX_BYTES: usize = 1_000;
/// The entries that one page of a list looks at, at most.
pub(crate) const LISTED_MAX: usize = 10_000;

fn refuse<T>(why: String) -> Result<T, StoreError> {
    Err(StoreError::Unusable(why))
}

pub(crate) fn shard(shard: Shard, shards: u16) -> Result<(), StoreError> {
    match shard.0 < shards {
        true => Ok(()),
        false => refuse(format!("there is no shard {}: the store has {shards}", shard.0)),
    }
}

pub(crate) fn name(name: &str) -> Result<(), StoreError> {
    match name.len() {
        1..=NAME_MAX_BYTES => Ok(()),
        other => refuse(format!("a name has 1 to {NAME_MAX_BYTES} bytes, this one has {other}")),
    }
}

pub(crate) fn known_names(known: &[KnownName]) -> Result<(), StoreError> {
    for KnownName { tenant, target } in known {
        name(&tenant.1)?;
        if let Some((_, target)) = target {
            name(target)?;
        }
    }
    Ok(())
}

fn task(due_ms: u64, payload_bytes: usize) -> Result<(), StoreError> {
    if due_ms > DUE_MAX_MS {
        return refuse(format!("a task is due at {DUE_MAX_MS} at the latest, this one at {due_ms}"));
    }
    if payload_bytes > PAYLOAD_MAX_BYTES {
        return refuse(format!("a payload has at most {PAYLOAD_MAX_BYTES} bytes, this one {payload_bytes}"));
    }
    Ok(())
}

pub(crate) fn add(into: Shard, shards: u16, batch: &[NewRecord]) -> Result<(), StoreError> {
    shard(into, shards)?;
    for record in batch {
        task(record.due_ms, record.payload.len())?;
        record.key.as_ref().map_or(Ok(()), |key| own_key(into, shards, record.route.tenant, key))?;
    }
    Ok(())
}

fn own_key(of: Shard, shards: u16, tenant: u16, key: &TaskKey) -> Result<(), StoreError> {
    match key.shard(tenant, shards) {
        own if own == of => Ok(()),
        own => refuse(format!("the task's key belongs to shard {}, not {}", own.0, of.0)),
    }
}

pub(crate) fn add_once(into: Shard, shards: u16, batch: &[OnceRecord]) -> Result<(), StoreError> {
    shard(into, shards)?;
    for record in batch {
        task(record.due_ms, record.payload.len())?;
        own_key(into, shards, record.route.tenant, &record.key)?;
    }
    Ok(())
}

pub(crate) fn cancel_once(of: Shard, shards: u16, batch: &[CancelOnce]) -> Result<(), StoreError> {
    shard(of, shards)?;
    batch.iter().try_for_each(|cancel| own_key(of, shards, cancel.tenant, &cancel.key))
}

pub(crate) fn load(into: Shard, shards: u16, batch: &LoadBatch) -> Result<(), StoreError> {
    shard(into, shards)?;
    if batch.sequence >= 1 << 53 {
        return refuse(format!("the number of a batch is below 2^53, this one is {}", batch.sequence));
    }
    for record in &batch.records {
        task(record.due_ms, record.payload.len())?;
        if record.id.shard != into || !record.id.is_far() {
            return refuse(format!("{} is no id that the far tier gave in shard {}", record.id, into.0));
        }
    }
    Ok(())
}

pub(crate) fn change(of: Shard, shards: u16, batch: &[Change]) -> Result<(), StoreError> {
    shard(of, shards)?;
    for moved in batch.iter().filter_map(|change| change.to.as_ref()) {
        task(moved.due_ms.unwrap_or(0), moved.payload.as_ref().map_or(0, |payload| payload.len()))?;
    }
    Ok(())
}

/// Whether a batch finishes entries that its slot does not have; `entries` is what it has.
pub(crate) fn is_beyond(batch: &FinishBatch, entries: u32) -> bool {
    let bitmap_bytes = u64::from(entries).div_ceil(8);
    let is_beyond =
        |(first, bytes): &(u32, bytes::Bytes)| u64::from(*first) + bytes.len() as u64 > bitmap_bytes;
    batch.done.iter().any(is_beyond) || batch.attempts.keys().any(|index| *index >= entries)
}
