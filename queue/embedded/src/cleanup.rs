//! Deletes what every group has committed: whole chunks, a bounded number in each step.

use super::state::BrokerState;
use super::storage::{ChunkKey, ReadError};
use super::topic::{Partition, Topic};
use std::sync::atomic::Ordering;

/// The number of chunks that one step deletes in a partition at most.
const STEP_CHUNKS: usize = 256;
/// The number of finished records below which a partition is left alone, so that deletions are batched too.
const WORTH_RECORDS: u64 = 64;

/// Whether a step left something to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Done,
    More,
}

/// The chunks of one partition that are deleted, and the first offset that stays.
struct Plan {
    partition: u32,
    bases: Vec<u64>,
    low: u64,
}

/// Deletes up to [`STEP_CHUNKS`] chunks in each partition.
pub(super) fn step(broker: &BrokerState) -> Result<Step, ReadError> {
    let topics: Vec<_> = broker.topics.read().values().cloned().collect();
    let mut outcome = Step::Done;
    for topic in topics {
        let plans = plan(broker, &topic)?;
        let chunks = plans.iter().map(|plan| plan.bases.len()).sum::<usize>();
        if chunks == 0 {
            continue;
        }
        let mut batch = broker.storage.batch(chunks + plans.len());
        for plan in plans {
            if plan.bases.len() + 1 >= STEP_CHUNKS {
                outcome = Step::More;
            }
            for base in plan.bases {
                let at = ChunkKey { topic: topic.id, partition: plan.partition, base };
                broker.storage.remove_chunk(&mut batch, at);
            }
            broker.storage.put_low(&mut batch, topic.id, plan.partition, plan.low);
        }
        batch.commit().map_err(super::storage::read_error)?;
    }
    Ok(outcome)
}

/// Decides what goes, and raises the low marks, while no group can be created: a group that comes later starts
/// above what is deleted.
fn plan(broker: &BrokerState, topic: &Topic) -> Result<Vec<Plan>, ReadError> {
    let groups = topic.groups.lock();
    let committed = groups.values().map(|group| group.committed());
    let Some(floors) = committed.reduce(|a, b| a.iter().zip(&b).map(|(a, b)| *a.min(b)).collect()) else {
        return Ok(Vec::new());
    };
    let partitions = topic.partitions.read().clone();
    let mut plans = Vec::new();
    for ((index, floor), partition) in (0u32..).zip(floors).zip(&partitions) {
        if let Some(plan) = plan_partition(broker, topic.id, index, partition, floor)? {
            partition.low.store(plan.low, Ordering::Release);
            plans.push(plan);
        }
    }
    Ok(plans)
}

fn plan_partition(
    broker: &BrokerState,
    topic: u32,
    index: u32,
    partition: &Partition,
    floor: u64,
) -> Result<Option<Plan>, ReadError> {
    let low = partition.low.load(Ordering::Acquire);
    let end = partition.end.load(Ordering::Acquire);
    if floor == low || (floor - low < WORTH_RECORDS && floor < end) {
        return Ok(None);
    }
    let from = ChunkKey { topic, partition: index, base: low };
    let mut bases = broker.storage.bases(from, floor, STEP_CHUNKS)?;
    // The last chunk found may reach past the floor. It is whole only where everything is finished.
    let all = bases.len() < STEP_CHUNKS && floor == end;
    let low = if all { floor } else { bases.pop().unwrap_or(low) };
    Ok((!bases.is_empty()).then_some(Plan { partition: index, bases, low }))
}
