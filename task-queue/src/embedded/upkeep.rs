//! Leases that end, dead letters, and what goes away by itself.

use super::ShardStep;
use super::jobs::{Looked, ReadyJobs, is_expired, pop};
use super::rows::Key;
use super::{once, removals};
use windfall_contract::task_queue::{
    HeldRecord, HeldState, JobId, JobStoreError, QueueName, Swept, TAKE_MAX, Tended,
};

/// The queues that one sweep looks at.
const SWEPT_QUEUES: usize = 100;
/// The jobs of a queue that one sweep forgets.
const SWEPT_JOBS: usize = 200;

pub(super) fn tend(step: &mut ShardStep<'_>) -> Result<Tended, JobStoreError> {
    let now_ms = step.now_ms;
    let ended: Vec<(u64, u32, JobId)> = step
        .state
        .leases
        .iter()
        .take_while(|(end_ms, ..)| *end_ms <= now_ms)
        .take(TAKE_MAX)
        .copied()
        .collect();
    let mut tended = Tended { is_cut: ended.len() == TAKE_MAX, ..Tended::default() };
    let mut looked = Looked::default();
    for (end_ms, number, id) in ended {
        if looked.is_enough() {
            tended.is_cut = true;
            break;
        }
        let name = step.state.names.get(&number).cloned().ok_or_else(super::rows::damaged)?;
        let (_, record) = step.held_at(&name, id)?.ok_or_else(super::rows::damaged)?;
        looked.add(&record);
        step.unhold(&name, end_ms, HeldState::Leased, id);
        if record.tries_left == 0 {
            step.hold(&name, now_ms, &HeldRecord { state: HeldState::Dead, ..record });
            tended.dead += 1;
        } else if is_expired(&record, now_ms) {
            let key = super::rows::held(step.state.number, number, id);
            step.step.remove(key);
            tended.expired += 1;
        } else {
            step.hold(&name, now_ms, &HeldRecord { state: HeldState::ReadyAgain, ..record });
            tended.again += 1;
        }
    }
    Ok(tended)
}

/// Whether there is more.
pub(super) fn drop_ready(step: &mut ShardStep<'_>, name: &QueueName) -> Result<bool, JobStoreError> {
    let mut ready = ReadyJobs::default();
    for _ in 0..TAKE_MAX {
        let Some(next) = ready.next(step, name, TAKE_MAX)? else { return Ok(false) };
        pop(step, name, next);
    }
    Ok(true)
}

pub(super) fn respawn(
    step: &mut ShardStep<'_>,
    name: &QueueName,
    limit: usize,
    ttl_s: u32,
) -> Result<usize, JobStoreError> {
    let dead = first_dead(step, name, limit);
    let now_ms = step.now_ms;
    let (mut looked, mut count) = (Looked::default(), 0);
    for (at_ms, id) in &dead {
        if looked.is_enough() {
            break;
        }
        let (_, record) = step.held_at(name, *id)?.ok_or_else(super::rows::damaged)?;
        looked.add(&record);
        count += 1;
        step.unhold(name, *at_ms, HeldState::Dead, *id);
        let expires_ms = if ttl_s == 0 { 0 } else { now_ms + u64::from(ttl_s) * 1_000 };
        let record = HeldRecord { state: HeldState::ReadyAgain, expires_ms, tries_left: 1, ..record };
        step.hold(name, now_ms, &record);
    }
    Ok(count)
}

pub(super) fn drop_dead(step: &mut ShardStep<'_>, name: &QueueName, limit: usize) -> usize {
    let dead = first_dead(step, name, limit);
    for (at_ms, id) in &dead {
        step.forget_held(name, *at_ms, HeldState::Dead, *id);
    }
    dead.len()
}

fn first_dead(step: &ShardStep<'_>, name: &QueueName, limit: usize) -> Vec<(u64, JobId)> {
    let queue = step.state.queues.get(name);
    queue.map(|own| own.dead.iter().take(limit.min(TAKE_MAX)).copied().collect()).unwrap_or_default()
}

pub(super) fn sweep(step: &mut ShardStep<'_>, cursor: u64) -> Result<Swept, JobStoreError> {
    let from = u32::try_from(cursor).unwrap_or(0);
    let mut page: Vec<(u32, QueueName)> =
        step.state.names.range(from..).take(SWEPT_QUEUES + 1).map(|(at, name)| (*at, name.clone())).collect();
    let mut swept = Swept::default();
    swept.forgotten += (once::forget(step)? + removals::forget(step)?) as u64;
    swept.far_removals = step.state.removals.count();
    if page.len() > SWEPT_QUEUES {
        swept.cursor = page.pop().map_or(0, |(number, _)| u64::from(number));
    }
    for (number, name) in page {
        let mut ready = ReadyJobs::default();
        for _ in 0..SWEPT_JOBS {
            let Some(next) = ready.next(step, &name, 1)? else { break };
            if !next.is_expired(step.now_ms) {
                break;
            }
            pop(step, &name, next);
            swept.expired += 1;
        }
        if step.state.queues.get(&name).is_some_and(super::queue::QueueState::is_empty) {
            step.state.queues.remove(&name);
            step.state.names.remove(&number);
            let key = Key::of(b'q').u16(step.state.number).u32(number).end();
            step.step.remove(key);
            swept.forgotten += 1;
        }
    }
    Ok(swept)
}
