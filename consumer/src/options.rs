//! What is fixed when a consumer starts. What may change while it runs stands in the rules' `pacing`.

use serde::{Deserialize, Serialize};

/// Static options of one consumer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Finished records are committed this often: 1 to 60,000. Default 100: what a crash makes us read again.
    pub commit_every_ms: u64,
    /// The broker gives our partitions away when we have not polled for so long: 100 to 600,000. Default 10,000.
    /// Nothing is admitted when the last poll is older than this. Set it to what the broker's client has.
    pub session_timeout_ms: u64,
    /// Records of one poll at most: 1 to 10,000. Default 512.
    pub fetch_records_max: usize,
    /// Bytes of one poll at most: 64 KiB to 64 MiB. Default 4 MiB.
    pub fetch_bytes_max: usize,
    /// Records that a full lane or a full delay queue may send back to the queues per second: 1 to 100,000. Default
    /// 1,000. Beyond it the fetch slows down: better late than a broker that is busy with our leftovers.
    pub churn_per_s: u64,
    /// Seeds the jitter of delays. Default 0; give each instance its own.
    pub jitter_seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            commit_every_ms: 100,
            session_timeout_ms: 10_000,
            fetch_records_max: 512,
            fetch_bytes_max: 4 << 20,
            churn_per_s: 1_000,
            jitter_seed: 0,
        }
    }
}
