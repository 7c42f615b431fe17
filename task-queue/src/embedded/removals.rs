//! Far jobs that were deleted before they came. Each is remembered for a week after it was due; a shard remembers so many at
//! most, and notes up to which time it has forgotten any. So a job that comes later than that is known to be doubtful, whatever
//! the clock and the scheduler did meanwhile.

use super::ShardStep;
use super::files::Files;
use super::rows::{self, Reading};
use std::ops::Bound;
use windfall_contract::task_queue::{FAR_REMOVAL_KEPT_MS, JobId, JobStoreError, ONCE_KEPT_MS, ready_ms};

/// The deletions that one sweep forgets.
const FORGOTTEN_MAX: usize = 2_000;
/// One is kept for its hour and the one after it.
const KEPT_HOURS: u64 = 2;

/// What of a shard's deletions is in memory.
pub(super) struct Removals {
    count: u64,
    count_max: u64,
    /// The hour of the first of them, or an earlier one.
    first_hour: Option<u64>,
    /// The last hour of which any was forgotten; 0 where none ever was.
    forgotten_upto: u64,
}

impl Removals {
    pub(super) fn load(files: &Files, shard: u16, count_max: u64) -> Result<Self, JobStoreError> {
        let upto = files.get(&rows::removals_forgotten(shard))?;
        let forgotten_upto = upto.map_or(Ok(0), |bytes| Reading(&bytes).u64())?;
        let prefix = rows::removals(shard);
        let (mut count, mut first_hour) = (0, None);
        for row in files.range(&prefix, Bound::Included(prefix.clone())) {
            let (key, _) = row?;
            first_hour = first_hour.or(Some(Reading(&key[prefix.len()..]).u64()?));
            count += 1;
        }
        Ok(Self { count, count_max, first_hour, forgotten_upto })
    }

    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn have_room(&self, more: usize) -> bool {
        more == 0 || self.count + more as u64 <= self.count_max
    }

    /// Whether a deletion under this hour may be forgotten.
    pub(super) const fn has_forgotten(&self, hour: u64) -> bool {
        hour <= self.forgotten_upto
    }

    /// Whether a sweep has something to forget.
    pub(super) fn are_due(&self, now_ms: u64) -> bool {
        self.first_hour.is_some_and(|hour| is_due(hour, now_ms))
    }
}

impl ShardStep<'_> {
    /// Whether it is remembered that the job of this mark was deleted.
    pub(super) fn is_removed(&self, mark: &[u8]) -> Result<bool, JobStoreError> {
        Ok(self.step.get(&rows::removal(self.state.number, mark))?.is_some())
    }

    /// Remembers that a job was deleted which [is not](Self::is_removed) yet.
    pub(super) fn note_removal(&mut self, id: JobId, mark: &[u8]) {
        let (shard, hour) = (self.state.number, removal_hour(id).max(self.now_ms / ONCE_KEPT_MS));
        self.step.put(rows::removal(shard, mark), Vec::new());
        self.step.put(rows::removal_at(shard, hour, mark), Vec::new());
        let removals = &mut self.state.removals;
        removals.count += 1;
        removals.first_hour = Some(removals.first_hour.map_or(hour, |first| first.min(hour)));
    }
}

/// Forgets deletions that were remembered for long enough. How many.
pub(super) fn forget(step: &mut ShardStep<'_>) -> Result<usize, JobStoreError> {
    if !step.state.removals.are_due(step.now_ms) {
        return Ok(0);
    }
    let shard = step.state.number;
    let prefix = rows::removals(shard);
    // Rows that are gone need not be looked at again.
    let from = rows::removal_at(shard, step.state.removals.first_hour.unwrap_or(0), &[]);
    let (mut over, mut first_left, mut upto) = (Vec::new(), None, 0);
    for row in step.files.range(&prefix, Bound::Included(from)) {
        let (key, _) = row?;
        let mut at = Reading(&key[prefix.len()..]);
        let hour = at.u64()?;
        if !is_due(hour, step.now_ms) || over.len() == FORGOTTEN_MAX {
            first_left = Some(hour);
            break;
        }
        upto = upto.max(hour);
        over.push([rows::removal(shard, at.0), key.to_vec()]);
    }
    let removals = &mut step.state.removals;
    removals.first_hour = first_left;
    removals.count = removals.count.saturating_sub(over.len() as u64);
    if upto > removals.forgotten_upto {
        removals.forgotten_upto = upto;
        // In one step with them: a job that comes is known to be deleted, or to be doubtful.
        step.step.put(rows::removals_forgotten(shard), upto.to_be_bytes().to_vec());
    }
    let count = over.len();
    over.into_iter().flatten().for_each(|key| step.step.remove(key));
    Ok(count)
}

/// The hour under which it is remembered that a far job was deleted: a week after it is due.
pub(super) fn removal_hour(id: JobId) -> u64 {
    (ready_ms(id.published_ms(), id.delay_s()) + FAR_REMOVAL_KEPT_MS) / ONCE_KEPT_MS
}

const fn is_due(hour: u64, now_ms: u64) -> bool {
    hour + KEPT_HOURS <= now_ms / ONCE_KEPT_MS
}
