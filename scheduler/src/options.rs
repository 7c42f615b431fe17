//! What is fixed when the scheduler starts.

use serde::{Deserialize, Serialize};

/// Options of [`Timers`](crate::Timers).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TimersOptions {
    /// How long a call waits for others to be stored with at most: 0 to 100. Default 1. While an earlier batch of adds
    /// without keys has no answer, such an add waits for up to 5 ms, or for this if it is longer.
    pub linger_ms: u64,
    /// Tasks that are stored by one push at most: 1 to 65,536. Default 4,096.
    pub batch_tasks_max: usize,
    /// Tasks that wait to be stored, and those that are being stored, at most: 1,000 to 10,000,000. Default 65,536.
    /// Beyond it, calls are refused.
    pub queue_tasks_max: usize,
    /// Bytes of their payloads at most: 1 MiB to 4 GiB. Default 64 MiB.
    pub queue_bytes_max: usize,
    /// Calls to the store that run side by side: 1 to 1,024. Default 16.
    pub flushes_max: usize,
    /// How often waiting tasks are counted for the quotas: 100 to 600,000. Default 5,000.
    pub count_every_ms: u64,
}

/// Options of the [`Dispatcher`](crate::Dispatcher).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DispatchOptions {
    /// How often each shard's watermark moves: 5 to 1,000. Default 50. A task is late by half of it on average.
    pub advance_every_ms: u64,
    /// How long before their time slots are read: 0 to 600,000. Default 10,000.
    pub ahead_ms: u64,
    /// Bytes of tasks in memory at most, their overhead included: 8 MiB to 64 GiB. Default 512 MiB. What has no room
    /// is read again later, and may fire late. Each target may hold one largest task beyond it.
    pub memory_bytes_max: usize,
    /// Bytes that one call reads at most: 128 KiB to 16 MiB. Default 256 KiB.
    pub read_bytes_max: usize,
    /// Tasks of a sub-batch at most: 1 to 10,000. Default 300.
    pub batch_tasks_max: usize,
    /// Sub-batches in flight at most, over all targets: 4 to 4,096. Default 256.
    pub in_flight_batches_max: usize,
    /// How often it is noted what has fired: 1 to 10,000. Default 100. A crash repeats at most what fired meanwhile.
    pub finish_every_ms: u64,
    /// Tasks after which it is noted at once: 1 to 65,536. Default 4,096.
    pub finish_tasks_max: usize,
    /// How long a shard's lease lasts without being renewed, and an instance counts as alive without a beat: 500 to
    /// 60,000. Default 3,000.
    pub lease_ttl_ms: u64,
    /// How often leases are renewed and beats given: 50 to a third of `lease_ttl_ms`. Default 1,000.
    pub lease_renew_ms: u64,
    /// How often a target that takes nothing is asked again: 10 to 60,000. Default 1,000.
    pub probe_every_ms: u64,
    /// How long one call of a target may take: 1,000 to 86,400,000. Default 900,000, which is far above the time-outs of
    /// the targets themselves. What has no answer by then counts as a failed attempt; it may have been handed over.
    pub fire_timeout_ms: u64,
    /// The seed of the jitter of retries. Default 0; give each instance its own. It is no option of a file.
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

impl TimersOptions {
    /// Checks that each option is in its range.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first option that is not.
    pub fn check(&self) -> Result<(), OutOfRange> {
        in_range(&[
            ("linger_ms", self.linger_ms, 0, 100),
            ("batch_tasks_max", wide(self.batch_tasks_max), 1, 65_536),
            ("queue_tasks_max", wide(self.queue_tasks_max), 1_000, 10_000_000),
            ("queue_bytes_max", wide(self.queue_bytes_max), 1 << 20, 4 << 30),
            ("flushes_max", wide(self.flushes_max), 1, 1_024),
            ("count_every_ms", self.count_every_ms, 100, 600_000),
        ])
    }
}

impl DispatchOptions {
    /// Checks that each option is in its range.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first option that is not.
    pub fn check(&self) -> Result<(), OutOfRange> {
        in_range(&[
            ("advance_every_ms", self.advance_every_ms, 5, 1_000),
            ("ahead_ms", self.ahead_ms, 0, 600_000),
            ("memory_bytes_max", wide(self.memory_bytes_max), 8 << 20, 64 << 30),
            ("read_bytes_max", wide(self.read_bytes_max), 128 << 10, 16 << 20),
            ("batch_tasks_max", wide(self.batch_tasks_max), 1, 10_000),
            ("in_flight_batches_max", wide(self.in_flight_batches_max), 4, 4_096),
            ("finish_every_ms", self.finish_every_ms, 1, 10_000),
            ("finish_tasks_max", wide(self.finish_tasks_max), 1, 65_536),
            ("lease_ttl_ms", self.lease_ttl_ms, 500, 60_000),
            ("lease_renew_ms", self.lease_renew_ms, 50, self.lease_ttl_ms / 3),
            ("probe_every_ms", self.probe_every_ms, 10, 60_000),
            ("fire_timeout_ms", self.fire_timeout_ms, 1_000, 86_400_000),
        ])
    }
}

impl Default for TimersOptions {
    fn default() -> Self {
        Self {
            linger_ms: 1,
            batch_tasks_max: 4_096,
            queue_tasks_max: 65_536,
            queue_bytes_max: 64 << 20,
            flushes_max: 16,
            count_every_ms: 5_000,
        }
    }
}

impl Default for DispatchOptions {
    fn default() -> Self {
        Self {
            advance_every_ms: 50,
            ahead_ms: 10_000,
            memory_bytes_max: 512 << 20,
            read_bytes_max: 256 << 10,
            batch_tasks_max: 300,
            in_flight_batches_max: 256,
            finish_every_ms: 100,
            finish_tasks_max: 4_096,
            lease_ttl_ms: 3_000,
            lease_renew_ms: 1_000,
            probe_every_ms: 1_000,
            fire_timeout_ms: 900_000,
            jitter_seed: 0,
        }
    }
}

pub(crate) fn wide(value: usize) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

pub(crate) fn in_range(all: &[(&'static str, u64, u64, u64)]) -> Result<(), OutOfRange> {
    match all.iter().find(|(_, value, low, high)| !(low..=high).contains(&value)) {
        Some(&(name, value, low, high)) => Err(OutOfRange { name, value, low, high }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_has_a_range_and_the_defaults_are_in_it() {
        assert_eq!(TimersOptions::default().check(), Ok(()));
        assert_eq!(DispatchOptions::default().check(), Ok(()));
        let wrong = TimersOptions { linger_ms: 101, ..TimersOptions::default() }.check().unwrap_err();
        assert_eq!(wrong.to_string(), "linger_ms is 101, but only 0 to 100 is allowed");
        let wrong =
            DispatchOptions { lease_renew_ms: 1_001, ..DispatchOptions::default() }.check().unwrap_err();
        assert_eq!(wrong.to_string(), "lease_renew_ms is 1001, but only 50 to 1000 is allowed");
    }
}
