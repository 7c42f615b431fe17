//! What is fixed when a consumer starts. What may change while it runs stands in the rules' `pacing`.

use serde::{Deserialize, Serialize};

/// Static options of one consumer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Finished records are committed this often: 1 to 60,000. Default 100. What was not committed is read again after
    /// a crash.
    pub commit_every_ms: u64,
    /// The time without a poll after which the broker gives this member's partitions away: 100 to 600,000. Default
    /// 10,000. Nothing is admitted when the last poll is older than this. Set it to the value of the broker's client.
    pub session_timeout_ms: u64,
    /// The number of records in one poll at most: 1 to 10,000. Default 512.
    pub fetch_records_max: usize,
    /// The number of bytes in one poll at most: 64 KiB to 64 MiB. Default 4 MiB.
    pub fetch_bytes_max: usize,
    /// Records that a full lane or a full delay queue may send back to the queues per second: 1 to 100,000. Default
    /// 1,000. Beyond it the fetch slows down: a late event is better than a broker that is busy with requeued copies.
    pub churn_per_s: u64,
    /// An event whose sender wants it to be granted later than so long from now is handed over to the service of long
    /// delays, where there is one; others wait here. 600,000 to 86,400,000; default 600,000, ten minutes. It counts as the
    /// longest delay that the consumer sets itself where the rules have a longer one.
    pub hand_over_after_ms: u64,
    /// Panics of the loop in a row, without progress between them, after which the supervisor gives up: 1 to 1,000.
    /// Default 10.
    pub panics_max: u32,
    /// Seeds the jitter of delays. Default 0; give each instance its own. It cannot be set in a file.
    #[serde(skip)]
    pub jitter_seed: u64,
}

/// An option is out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}, but only {low} to {high} is allowed")]
pub struct OutOfRange {
    /// The option.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
    /// The least that is allowed.
    pub low: u64,
    /// The most.
    pub high: u64,
}

impl Options {
    /// Checks that each option is in its range.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first option that is not.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let wide = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
        for (name, value, low, high) in [
            ("commit_every_ms", self.commit_every_ms, 1, 60_000),
            ("session_timeout_ms", self.session_timeout_ms, 100, 600_000),
            ("fetch_records_max", wide(self.fetch_records_max), 1, 10_000),
            ("fetch_bytes_max", wide(self.fetch_bytes_max), 64 << 10, 64 << 20),
            ("churn_per_s", self.churn_per_s, 1, 100_000),
            ("hand_over_after_ms", self.hand_over_after_ms, 600_000, 86_400_000),
            ("panics_max", self.panics_max.into(), 1, 1_000),
        ] {
            if !(low..=high).contains(&value) {
                return Err(OutOfRange { name, value, low, high });
            }
        }
        Ok(())
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            commit_every_ms: 100,
            session_timeout_ms: 10_000,
            fetch_records_max: 512,
            fetch_bytes_max: 4 << 20,
            churn_per_s: 1_000,
            hand_over_after_ms: 600_000,
            panics_max: 10,
            jitter_seed: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_has_a_range_and_the_defaults_are_in_it() {
        assert_eq!(Options::default().check(), Ok(()));
        let wrong = Options { churn_per_s: 0, ..Options::default() }.check().unwrap_err();
        assert_eq!(wrong.to_string(), "churn_per_s is 0, but only 1 to 100000 is allowed");
        for wrong in [
            Options { commit_every_ms: 60_001, ..Options::default() },
            Options { session_timeout_ms: 99, ..Options::default() },
            Options { fetch_records_max: 0, ..Options::default() },
            Options { fetch_bytes_max: 1, ..Options::default() },
            Options { hand_over_after_ms: 1_000, ..Options::default() },
            Options { panics_max: 0, ..Options::default() },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }
}
