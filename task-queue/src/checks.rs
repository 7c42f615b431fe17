//! What a store refuses whatever it is made of: no caller of this crate asks for it.

use std::ops::RangeInclusive;
use windfall_contract::due::Shard;
use windfall_contract::task_queue::{
    BODY_MAX_BYTES, FarJob, JobStoreError, NewJobs, OnceJob, SHARDS_MAX, TAKE_MAX, Take,
};

/// The numbers of shards that a store may have.
pub(crate) const SHARDS: RangeInclusive<u16> = 1..=SHARDS_MAX;
/// The most deletions of far jobs that a store's options may let it remember.
pub(crate) const FAR_REMOVALS_MAX: u64 = 100_000_000;

fn unusable(what: impl Into<String>) -> JobStoreError {
    JobStoreError::Unusable(what.into())
}

pub(crate) fn shard(shard: Shard, shards: u16) -> Result<(), JobStoreError> {
    match shard.0 < shards {
        true => Ok(()),
        false => Err(unusable(format!("there is no shard {}: the store has {shards}", shard.0))),
    }
}

pub(crate) fn publish(own: Shard, shards: u16, batch: &[NewJobs]) -> Result<(), JobStoreError> {
    shard(own, shards)?;
    for jobs in batch {
        let is_too_long = jobs.bodies.iter().any(|body| body.len() > BODY_MAX_BYTES);
        if jobs.tries == 0 || jobs.bodies.is_empty() || is_too_long {
            return Err(unusable("there is no job, or it has no try, or its body is too long"));
        }
        let texts = jobs.attributes.iter().flat_map(|(key, value)| [key.len(), value.len()]);
        if texts.clone().any(|len| len > 255) || texts.map(|len| len + 1).sum::<usize>() > 65_000 {
            return Err(unusable("the attributes of a job are too long"));
        }
    }
    Ok(())
}

pub(crate) fn publish_once(own: Shard, shards: u16, batch: &[OnceJob]) -> Result<(), JobStoreError> {
    shard(own, shards)?;
    for OnceJob { job, .. } in batch {
        publish(own, shards, std::slice::from_ref(job))?;
        if job.bodies.len() != 1 {
            return Err(unusable("a job that is published once has one body"));
        }
    }
    Ok(())
}

pub(crate) fn publish_far(own: Shard, shards: u16, batch: &[FarJob]) -> Result<(), JobStoreError> {
    shard(own, shards)?;
    for FarJob { record, .. } in batch {
        if record.id.shard() != own || record.tries == 0 || record.body.len() > BODY_MAX_BYTES {
            return Err(unusable("a far job is of another shard, or it has no try, or its body is too long"));
        }
    }
    Ok(())
}

pub(crate) fn take(own: Shard, shards: u16, batch: &[Take]) -> Result<(), JobStoreError> {
    shard(own, shards)?;
    match batch.iter().all(|take| (1..=TAKE_MAX).contains(&take.count)) {
        true => Ok(()),
        false => Err(unusable(format!("1 to {TAKE_MAX} jobs may be taken"))),
    }
}
