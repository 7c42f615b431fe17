//! What is fixed when the far tier is opened.

use serde::{Deserialize, Serialize};

/// Options of the far tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FarOptions {
    /// Tasks that are due later than this from now are taken: 7,200,000 (2 h) to 604,800,000 (7 days). Default
    /// 7,200,000. An hour's tasks are loaded from half of this before the hour on.
    pub horizon_ms: u64,
    /// Tasks that are loaded near per second at most: 100 to 10,000,000. Default 50,000.
    pub load_per_s: u64,
    /// Whether an Ok survives the end of the machine: the log is synced first, and calls share a sync. Default false:
    /// it survives the end of the process.
    pub is_synced: bool,
    /// Bytes of tasks in memory at which they are written into a segment: 64 KiB to 256 MiB. Default 16 MiB.
    pub flush_bytes: usize,
    /// Bytes of tasks in memory at most, while the object store is away: `flush_bytes` to 4 GiB. Default 96 MiB. Beyond
    /// it tasks are refused.
    pub memory_bytes_max: usize,
    /// Segments with tasks of many hours at which they are merged into segments of one hour each: 2 to 64. Default 8.
    pub merge_segments: usize,
    /// How long an hour's segments are kept after the hour has passed, so that it can be fired again: 0 to 2,592,000,000
    /// (30 days). Default 86,400,000 (a day). With 0 they go as soon as the hour is loaded, for good: a start with
    /// another value keeps the hours that are loaded from then on.
    pub keep_ms: u64,
}

/// An option is out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}, but only {low} to {high} is allowed")]
pub struct OutOfRange {
    /// The name of the option.
    pub name: &'static str,
    /// The value that was asked for.
    pub value: u64,
    /// The least value that is allowed.
    pub low: u64,
    /// The greatest value that is allowed.
    pub high: u64,
}

impl FarOptions {
    /// Checks that each option is in its range.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first option that is not.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let wide = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
        let all = [
            ("horizon_ms", self.horizon_ms, 7_200_000, 604_800_000),
            ("load_per_s", self.load_per_s, 100, 10_000_000),
            ("flush_bytes", wide(self.flush_bytes), 64 << 10, 256 << 20),
            ("memory_bytes_max", wide(self.memory_bytes_max), wide(self.flush_bytes), 4 << 30),
            ("merge_segments", wide(self.merge_segments), 2, 64),
            ("keep_ms", self.keep_ms, 0, 2_592_000_000),
        ];
        match all.iter().find(|(_, value, low, high)| !(low..=high).contains(&value)) {
            Some(&(name, value, low, high)) => Err(OutOfRange { name, value, low, high }),
            None => Ok(()),
        }
    }
}

impl Default for FarOptions {
    fn default() -> Self {
        Self {
            horizon_ms: 7_200_000,
            load_per_s: 50_000,
            is_synced: false,
            flush_bytes: 16 << 20,
            memory_bytes_max: 96 << 20,
            merge_segments: 8,
            keep_ms: 86_400_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_has_a_range_and_the_defaults_are_in_it() {
        assert_eq!(FarOptions::default().check(), Ok(()));
        let wrong = FarOptions { merge_segments: 1, ..FarOptions::default() }.check().unwrap_err();
        assert_eq!(wrong.to_string(), "merge_segments is 1, but only 2 to 64 is allowed");
    }
}
