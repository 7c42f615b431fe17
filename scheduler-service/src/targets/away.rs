//! Shards of a store of jobs that do not answer just now.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use windfall_contract::due::Shard;
use windfall_contract::task_queue::JobStoreError;

/// How long a shard that did not answer is asked nothing.
const AWAY_FOR: Duration = Duration::from_secs(1);

/// The shards that did not answer when they were asked last. Whoever asks them waits until the call's time is over, and
/// so do timers of all other shards in the same sub-batch.
#[derive(Default)]
pub(super) struct AwayShards(Mutex<BTreeMap<Shard, AwayShard>>);

struct AwayShard {
    why: String,
    /// Who comes then finds out whether it is back.
    ask_at: Instant,
}

impl AwayShards {
    /// Why a shard is not to be asked now. One call a second is let through to it.
    pub(super) fn reason(&self, shard: Shard) -> Option<String> {
        let mut all = self.0.lock();
        let own = all.get_mut(&shard)?;
        let now = Instant::now();
        if now < own.ask_at {
            return Some(own.why.clone());
        }
        // What comes while that call waits for its answer need not wait too.
        own.ask_at = now + AWAY_FOR;
        None
    }

    /// Notes what a shard has answered.
    pub(super) fn note<T>(&self, shard: Shard, answer: &Result<T, JobStoreError>) {
        let mut all = self.0.lock();
        match answer {
            Err(error @ JobStoreError::Unavailable(_)) => {
                all.insert(shard, AwayShard { why: error.to_string(), ask_at: Instant::now() + AWAY_FOR });
            }
            Ok(_) | Err(JobStoreError::Unusable(_) | JobStoreError::TooManyFarRemovals) => {
                all.remove(&shard);
            }
        }
    }
}
