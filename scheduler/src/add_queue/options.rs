//! The options of the queue of adds. All its limits are here.

use crate::options::{OutOfRange, in_range, wide};
use std::collections::BTreeSet;
use std::time::Duration;

const DAY_MS: u64 = 86_400_000;

/// The topics from which adds are taken, how much of them is in memory, and for how long used keys are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddQueueOptions {
    /// The id of the store's queue, for a process that shall take adds before it has reached the store for the first time.
    /// Default: the id that the process has noted in its folder.
    pub store_id: Option<u64>,
    /// Tenants whose adds with a key go by the queue unless a call says otherwise, and so do its cancels by key. Default: none.
    pub default_for: BTreeSet<String>,
    /// How long a key stays used after its task is over, and how old an add may be that is judged: 60,000 to 90 days.
    /// Default a day.
    pub keys_kept_ms: u64,
    /// How long a record is offered to the topics before the call answers that nobody knows: 100 to 60,000. Default 5,000.
    pub write_timeout_ms: u64,
    /// How long after the store's answer a record is finished, if the server still has what it answered: 0 to 600,000.
    /// Default 10,000. A Redis with `appendfsync everysec` answers for two seconds more while a sync of its disk takes long: this
    /// has to be longer than two seconds and the longest sync.
    pub settle_ms: u64,
    /// Records of each topic at most that were read and are not stored yet: 100 to 10,000,000. Default 65,536. Beyond it the
    /// topic is not read.
    pub held_records_max: usize,
    /// Their bytes at most: 1 MiB to 16 GiB. Default 64 MiB.
    pub held_bytes_max: usize,
    /// The bytes of the file of records that were set aside at most: 1 MiB to 1 TiB. Default 256 MiB. Beyond it such records
    /// are held.
    pub set_aside_bytes_max: u64,
    /// Whether adds are signed where the process has keys for it. Default `true`. `false` is for an upgrade, while processes of a
    /// release read the queue that takes signed adds for damaged ones.
    pub sign: bool,
}

impl Default for AddQueueOptions {
    fn default() -> Self {
        Self {
            store_id: None,
            default_for: BTreeSet::new(),
            keys_kept_ms: DAY_MS,
            write_timeout_ms: 5_000,
            settle_ms: 10_000,
            held_records_max: 65_536,
            held_bytes_max: 64 << 20,
            set_aside_bytes_max: 256 << 20,
            sign: true,
        }
    }
}

impl AddQueueOptions {
    /// Checks that each option is in its range.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first option that is not.
    pub fn check(&self) -> Result<(), OutOfRange> {
        in_range(&[
            ("keys_kept_ms", self.keys_kept_ms, 60_000, 90 * DAY_MS),
            ("write_timeout_ms", self.write_timeout_ms, 100, 60_000),
            ("settle_ms", self.settle_ms, 0, 600_000),
            ("held_records_max", wide(self.held_records_max), 100, 10_000_000),
            ("held_bytes_max", wide(self.held_bytes_max), 1 << 20, 16 << 30),
            ("set_aside_bytes_max", self.set_aside_bytes_max, 1 << 20, 1 << 40),
        ])
    }
}

/// Records that one call stores at most, and their bytes.
pub(super) const BATCH_RECORDS_MAX: usize = 300;
pub(super) const BATCH_BYTES_MAX: usize = 1 << 20;
/// Calls to the store that run side by side for one topic.
pub(super) const CALLS_MAX: usize = 32;
/// Records that one poll brings at most, and their bytes.
pub(super) const POLL_RECORDS_MAX: usize = 2_000;
pub(super) const POLL_BYTES_MAX: usize = 4 << 20;
/// How long a poll waits for a record: shorter than a tick, which ends a poll, so that a poll of a topic without new records
/// succeeds too.
pub(super) const POLL_WAIT: Duration = Duration::from_millis(50);
/// How often it is looked what can be finished, and what is to be tried again.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// The pause after a call that the store did not answer; it doubles up to the longest one.
pub(super) const RETRY_FIRST: Duration = Duration::from_millis(100);
pub(super) const RETRY_MAX: Duration = Duration::from_secs(5);
/// The pause after a broker, the store at the start, or the file of records set aside was asked in vain.
pub(super) const AGAIN: Duration = Duration::from_secs(1);
/// How long polls or commits of a topic fail before readiness shows it.
pub(super) const TROUBLED_AFTER: Duration = Duration::from_secs(5);
/// How often all shards are looked at for marks whose time is over.
pub(super) const TIDY_EVERY: Duration = Duration::from_secs(60);
/// How often a record is refused alone before it is set aside, where its shard answers meanwhile.
pub(super) const REFUSALS_MAX: u32 = 5;
/// How long a record waits for the key that has signed it: a process looks at the file of its keys every 5 seconds, at once when
/// it lacks a key, and once more when a look fails.
pub(super) const KEY_WAIT: Duration = Duration::from_secs(15);
/// The part of the records, and of their bytes, in memory that may wait for a key, so that garbage leaves room for others.
pub(super) const KEY_WAIT_SHARE: usize = 4;
/// How many times as many records as are held may wait to be finished.
pub(super) const UNSETTLED_FACTOR: usize = 16;
