//! Far jobs, which come with an id of their own when their time has come. They lie among the jobs that were taken before, which
//! are found by their ids alone.

use super::removals::removal_hour;
use super::{ShardStep, jobs, once, rows};
use std::collections::BTreeSet;
use windfall_contract::task_queue::{
    DoubtfulJobs, FarJob, HeldRecord, HeldState, JobId, JobStoreError, ONCE_KEPT_MS, PublishedFar, QueueName,
    ready_ms,
};

pub(super) fn publish(
    step: &mut ShardStep<'_>,
    batch: &[FarJob],
    doubtful: DoubtfulJobs,
) -> Result<Vec<PublishedFar>, JobStoreError> {
    batch.iter().map(|job| publish_one(step, job, doubtful)).collect()
}

fn publish_one(
    step: &mut ShardStep<'_>,
    job: &FarJob,
    doubtful: DoubtfulJobs,
) -> Result<PublishedFar, JobStoreError> {
    let FarJob { queue, record } = job;
    let (id, hour) = (record.id, step.now_ms / ONCE_KEPT_MS);
    let own = mark(queue, id);
    // The release before remembered deletions there.
    let removed_before = rows::once(step.state.number, removal_hour(id), &own);
    if once::is_known(step, hour, &own)?
        || step.is_removed(&own)?
        || step.step.get(&removed_before)?.is_some()
        // It may be there for longer than its mark, in somebody's hands.
        || step.held_at(queue, id)?.is_some()
    {
        return Ok(PublishedFar::Over);
    }
    let ready = ready_ms(id.published_ms(), id.delay_s());
    if ready > step.now_ms {
        return Ok(PublishedFar::Early(ready - step.now_ms));
    }
    let (expires_ms, tries_left) = (record.expires_ms(), record.tries);
    let held = HeldRecord { state: HeldState::ReadyAgain, expires_ms, tries_left, record: record.clone() };
    if jobs::is_expired(&held, step.now_ms) {
        return Ok(PublishedFar::Over);
    }
    if doubtful == DoubtfulJobs::Refuse && step.state.removals.has_forgotten(removal_hour(id)) {
        return Ok(PublishedFar::Doubtful);
    }
    once::note(step, hour, &own);
    step.hold(queue, ready, &held);
    Ok(PublishedFar::Stored)
}

/// Whether each was there; an inner error where there is no room to remember that they are deleted, and nothing is changed.
pub(super) fn remove(
    step: &mut ShardStep<'_>,
    all: &[(QueueName, JobId)],
) -> Result<Result<Vec<bool>, JobStoreError>, JobStoreError> {
    let mut fresh = BTreeSet::new();
    for (queue, id) in all {
        let own = mark(queue, *id);
        if !step.is_removed(&own)? {
            fresh.insert((*id, own));
        }
    }
    if !step.state.removals.have_room(fresh.len()) {
        return Ok(Err(JobStoreError::TooManyFarRemovals));
    }
    fresh.into_iter().for_each(|(id, own)| step.note_removal(id, &own));
    all.iter().map(|(queue, id)| jobs::remove(step, queue, *id)).collect::<Result<_, _>>().map(Ok)
}

fn mark(queue: &QueueName, id: JobId) -> Vec<u8> {
    [id.as_bytes(), queue.as_str().as_bytes()].concat()
}
