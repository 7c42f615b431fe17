//! Jobs that are published at most once: a mark for each, by the hour in which it was made.

use super::rows::{self, Key, Reading};
use super::{ShardStep, jobs};
use std::ops::Bound;
use windfall_contract::task_queue::{JobId, JobStoreError, ONCE_KEPT_MS, OnceJob};

/// The marks that one sweep forgets.
const FORGOTTEN_MAX: usize = 2_000;

pub(super) fn publish(
    step: &mut ShardStep<'_>,
    batch: &[OnceJob],
) -> Result<Vec<Option<JobId>>, JobStoreError> {
    let hour = step.now_ms / ONCE_KEPT_MS;
    let mut ids = Vec::with_capacity(batch.len());
    for OnceJob { mark, job } in batch {
        let mut is_known = false;
        // The next hour's, too: the clock may have gone back.
        for near in hour.saturating_sub(1)..=hour + 1 {
            is_known |= step.step.get(&rows::once(step.state.number, near, *mark))?.is_some();
        }
        if is_known {
            ids.push(None);
            continue;
        }
        step.step.put(rows::once(step.state.number, hour, *mark), Vec::new());
        let published = jobs::publish(step, std::slice::from_ref(job));
        ids.push(published.into_iter().flatten().next());
    }
    Ok(ids)
}

/// Forgets marks that were kept for long enough. How many.
pub(super) fn forget(step: &mut ShardStep<'_>) -> Result<usize, JobStoreError> {
    let hour = step.now_ms / ONCE_KEPT_MS;
    let prefix = Key::of(b'o').u16(step.state.number).end();
    let mut over = Vec::new();
    for row in step.files.range(&prefix, Bound::Included(prefix.clone())).take(FORGOTTEN_MAX) {
        let (key, _) = row?;
        if Reading(&key[prefix.len()..]).u64()? + 1 >= hour {
            break;
        }
        over.push(key.to_vec());
    }
    let count = over.len();
    over.into_iter().for_each(|key| step.step.remove(key));
    Ok(count)
}
