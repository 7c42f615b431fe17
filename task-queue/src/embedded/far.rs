//! Far jobs, which come with an id of their own when their time has come. They lie among the jobs that were taken before, which
//! are found by their ids alone.

use super::{ShardStep, jobs, once, rows};
use windfall_contract::task_queue::{
    FAR_REMOVAL_KEPT_MS, FarJob, HeldRecord, HeldState, JobId, JobStoreError, ONCE_KEPT_MS, PublishedFar,
    QueueName, ready_ms,
};

pub(super) fn publish(
    step: &mut ShardStep<'_>,
    batch: &[FarJob],
) -> Result<Vec<PublishedFar>, JobStoreError> {
    batch.iter().map(|job| publish_one(step, job)).collect()
}

fn publish_one(step: &mut ShardStep<'_>, job: &FarJob) -> Result<PublishedFar, JobStoreError> {
    let FarJob { queue, record } = job;
    let (id, hour) = (record.id, step.now_ms / ONCE_KEPT_MS);
    let own = mark(queue, id);
    let removed = rows::once(step.state.number, removal_hour(id), &own);
    if once::is_known(step, hour, &own)?
        || step.step.get(&removed)?.is_some()
        // It may be there for longer than its mark, in somebody's hands.
        || step.held_at(queue, id)?.is_some()
    {
        return Ok(PublishedFar::Over);
    }
    let ready = ready_at_ms(id);
    if ready > step.now_ms {
        return Ok(PublishedFar::Early(ready - step.now_ms));
    }
    let (expires_ms, tries_left) = (record.expires_ms(), record.tries);
    let held = HeldRecord { state: HeldState::ReadyAgain, expires_ms, tries_left, record: record.clone() };
    if jobs::is_expired(&held, step.now_ms) {
        return Ok(PublishedFar::Over);
    }
    once::note(step, hour, &own);
    step.hold(queue, ready, &held);
    Ok(PublishedFar::Stored)
}

/// Whether it was there.
pub(super) fn remove(step: &mut ShardStep<'_>, queue: &QueueName, id: JobId) -> Result<bool, JobStoreError> {
    let hour = removal_hour(id).max(step.now_ms / ONCE_KEPT_MS);
    once::note(step, hour, &mark(queue, id));
    jobs::remove(step, queue, id)
}

/// The hour under which it is noted that the job was deleted.
fn removal_hour(id: JobId) -> u64 {
    (ready_at_ms(id) + FAR_REMOVAL_KEPT_MS) / ONCE_KEPT_MS
}

fn ready_at_ms(id: JobId) -> u64 {
    ready_ms(id.published_ms(), id.delay_s())
}

fn mark(queue: &QueueName, id: JobId) -> Vec<u8> {
    [id.as_bytes(), queue.as_str().as_bytes()].concat()
}
