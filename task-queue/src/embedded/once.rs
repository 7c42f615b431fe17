//! Jobs that are published at most once: a mark for each, by the hour in which it was made.

use super::files::Files;
use super::rows::{self, Reading};
use super::{ShardStep, jobs};
use std::ops::Bound;
use windfall_contract::task_queue::{JobId, JobStoreError, ONCE_KEPT_MS, OnceJob};

/// The marks that one sweep forgets.
const FORGOTTEN_MAX: usize = 2_000;
/// A mark is kept for its hour and the one after it.
const KEPT_HOURS: u64 = 2;

/// What of a shard's marks is in memory.
pub(super) struct Marks {
    /// No mark lies before this key: rows that are gone need not be looked at again.
    from: Vec<u8>,
    /// The hour in which the first of them is forgotten.
    due_hour: Option<u64>,
}

impl Marks {
    pub(super) fn load(files: &Files, shard: u16) -> Result<Self, JobStoreError> {
        let prefix = rows::marks(shard);
        let first = files.range(&prefix, Bound::Included(prefix.clone())).next().transpose()?;
        let due_hour = first.map(|(key, _)| due_hour(&key, &prefix)).transpose()?;
        Ok(Self { from: prefix, due_hour })
    }

    /// Whether a sweep has something to forget.
    pub(super) fn are_due(&self, now_ms: u64) -> bool {
        self.due_hour.is_some_and(|due_hour| due_hour <= now_ms / ONCE_KEPT_MS)
    }

    /// A mark is put. It may lie before all others, where the clock has gone back.
    fn put(&mut self, key: &[u8], hour: u64) {
        if *key < *self.from {
            self.from = key.to_vec();
        }
        let due_hour = hour + KEPT_HOURS;
        self.due_hour = Some(self.due_hour.map_or(due_hour, |first| first.min(due_hour)));
    }
}

pub(super) fn publish(
    step: &mut ShardStep<'_>,
    batch: &[OnceJob],
) -> Result<Vec<Option<JobId>>, JobStoreError> {
    let hour = step.now_ms / ONCE_KEPT_MS;
    let mut ids = Vec::with_capacity(batch.len());
    for OnceJob { mark, job } in batch {
        if is_known(step, hour, &mark.0)? {
            ids.push(None);
            continue;
        }
        note(step, hour, &mark.0);
        let published = jobs::publish(step, std::slice::from_ref(job));
        ids.push(published.into_iter().flatten().next());
    }
    Ok(ids)
}

/// Whether a job of this mark was published about now.
pub(super) fn is_known(step: &ShardStep<'_>, hour: u64, mark: &[u8]) -> Result<bool, JobStoreError> {
    // The next hour's, too: the clock may have gone back, by an hour.
    for near in hour.saturating_sub(1)..=hour + 1 {
        if step.step.get(&rows::once(step.state.number, near, mark))?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Notes that a job of this mark was published in this hour.
pub(super) fn note(step: &mut ShardStep<'_>, hour: u64, mark: &[u8]) {
    let key = rows::once(step.state.number, hour, mark);
    step.state.marks.put(&key, hour);
    step.step.put(key, Vec::new());
}

/// Forgets marks that were kept for long enough. How many.
pub(super) fn forget(step: &mut ShardStep<'_>) -> Result<usize, JobStoreError> {
    if !step.state.marks.are_due(step.now_ms) {
        return Ok(0);
    }
    let hour = step.now_ms / ONCE_KEPT_MS;
    let prefix = rows::marks(step.state.number);
    let from = Bound::Included(step.state.marks.from.clone());
    let (mut over, mut first_left) = (Vec::new(), None);
    for row in step.files.range(&prefix, from) {
        let (key, _) = row?;
        let due_hour = due_hour(&key, &prefix)?;
        if due_hour > hour || over.len() == FORGOTTEN_MAX {
            first_left = Some((key, due_hour));
            break;
        }
        over.push(key.to_vec());
    }
    let marks = &mut step.state.marks;
    marks.due_hour = first_left.as_ref().map(|(_, due_hour)| *due_hour);
    match (first_left, over.last()) {
        (Some((key, _)), _) => marks.from = key.to_vec(),
        (None, Some(last)) => marks.from = [last.as_slice(), &[0]].concat(),
        (None, None) => {}
    }
    let count = over.len();
    over.into_iter().for_each(|key| step.step.remove(key));
    Ok(count)
}

/// The hour in which a mark is forgotten.
fn due_hour(key: &[u8], prefix: &[u8]) -> Result<u64, JobStoreError> {
    Ok(Reading(&key[prefix.len()..]).u64()?.saturating_add(KEPT_HOURS))
}

#[cfg(test)]
mod tests {
    use super::super::{EmbeddedJobs, EmbeddedJobsOptions};
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use windfall_contract::Clock;
    use windfall_contract::due::Shard;
    use windfall_contract::task_queue::{JobStore, NewJobs, OnceMark, QueueName};

    fn once(number: u8) -> OnceJob {
        let job = NewJobs {
            queue: QueueName::new("n", "q").unwrap(),
            delay_s: 0,
            ttl_s: 0,
            tries: 1,
            is_versioned: false,
            attributes: Vec::new(),
            bodies: vec!["x".into()],
        };
        OnceJob { mark: OnceMark([number; 16]), job }
    }

    /// Each sweep went over what all sweeps before it had removed, under the lock of the shard.
    #[tokio::test]
    async fn a_sweep_begins_behind_the_marks_that_are_gone_and_before_those_that_came_since() {
        let dir = tempfile::tempdir().unwrap();
        let now_ms = Arc::new(AtomicU64::new(500_000 * ONCE_KEPT_MS));
        let time = Arc::clone(&now_ms);
        let clock = Clock::from_unix_ms(move || time.load(SeqCst));
        let store = EmbeddedJobs::open(dir.path(), &EmbeddedJobsOptions::default(), clock).unwrap();
        let publish = async |number| {
            let ids = store.publish_once(Shard(0), &[once(number)]).await.unwrap();
            ids[0].is_some()
        };
        let forgotten = async || store.sweep(Shard(0), 0).await.unwrap().forgotten;
        let from = || store.inner.shards[0].lock().marks.from.clone();
        for number in [1, 2, 3] {
            assert!(publish(number).await);
        }
        now_ms.fetch_add(2 * ONCE_KEPT_MS, SeqCst);
        assert!(publish(4).await);
        assert_eq!(forgotten().await, 3);
        assert!(from() > rows::once(0, 500_000, &[3; 16]), "the next sweep begins behind them");
        assert_eq!(forgotten().await, 0);
        // The clock goes back to before all marks that are there.
        now_ms.fetch_sub(6 * ONCE_KEPT_MS, SeqCst);
        assert!(publish(5).await);
        assert_eq!(forgotten().await, 0);
        now_ms.fetch_add(8 * ONCE_KEPT_MS, SeqCst);
        assert_eq!(forgotten().await, 2, "it and the one of the hour that was ahead");
        assert!(publish(6).await);
        now_ms.fetch_add(2 * ONCE_KEPT_MS, SeqCst);
        assert_eq!(forgotten().await, 1);
        assert!(from() > rows::once(0, 500_004, &[6; 16]), "none is left");
    }
}
