//! Schedules that repeat after a number of milliseconds.

use super::{END_OF_TIME_MS, ScheduleError};
use serde::{Deserialize, Serialize};

/// The shortest interval. The scheduler promises to fire within a second of the due time, so a shorter one could not be
/// kept evenly.
pub const INTERVAL_MIN_MS: u64 = 1_000;
/// The longest interval: 366 days.
pub const INTERVAL_MAX_MS: u64 = 366 * 24 * 60 * 60 * 1_000;

/// Due at a start and every so many milliseconds from there. Occurrences are counted from the start, not from the last
/// run, so they never drift.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawFixedRate")]
pub struct FixedRate {
    every_ms: u64,
    start_ms: u64,
}

impl FixedRate {
    /// Due at `start_ms` and every `every_ms` ([`INTERVAL_MIN_MS`] to [`INTERVAL_MAX_MS`]) from there. In JSON, `start_ms`
    /// is 0 if it is missing: occurrences are then multiples of the interval since 1970-01-01T00:00:00Z. Jobs of the same
    /// interval are spread best by different starts.
    ///
    /// # Errors
    /// The interval is out of bounds, or the start lies beyond [`END_OF_TIME_MS`].
    pub fn new(every_ms: u64, start_ms: u64) -> Result<Self, ScheduleError> {
        check_interval("every_ms", every_ms)?;
        if start_ms >= END_OF_TIME_MS {
            return Err(ScheduleError::Time { option: "start_ms", time_ms: start_ms });
        }
        Ok(Self { every_ms, start_ms })
    }

    /// The milliseconds between two occurrences.
    #[must_use]
    pub fn every_ms(&self) -> u64 {
        self.every_ms
    }

    /// The first occurrence.
    #[must_use]
    pub fn start_ms(&self) -> u64 {
        self.start_ms
    }

    pub(super) fn first_from(&self, from_ms: u64) -> Option<u64> {
        let intervals = from_ms.saturating_sub(self.start_ms).div_ceil(self.every_ms);
        intervals.checked_mul(self.every_ms)?.checked_add(self.start_ms)
    }
}

/// Due so many milliseconds after the end of the last run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawFixedDelay")]
pub struct FixedDelay {
    delay_ms: u64,
}

impl FixedDelay {
    /// Due `delay_ms` ([`INTERVAL_MIN_MS`] to [`INTERVAL_MAX_MS`]) after the end of the last run.
    ///
    /// # Errors
    /// The delay is out of bounds.
    pub fn new(delay_ms: u64) -> Result<Self, ScheduleError> {
        check_interval("delay_ms", delay_ms)?;
        Ok(Self { delay_ms })
    }

    /// The milliseconds from the end of a run to the next.
    #[must_use]
    pub fn delay_ms(&self) -> u64 {
        self.delay_ms
    }

    /// When the next run is due if the last one ended at `ended_ms`; for the first run, give the time when the job was
    /// made.
    #[must_use]
    pub fn next_after_end(&self, ended_ms: u64) -> Option<u64> {
        ended_ms.checked_add(self.delay_ms).filter(|due_ms| *due_ms < END_OF_TIME_MS)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFixedRate {
    every_ms: u64,
    #[serde(default)]
    start_ms: u64,
}

impl TryFrom<RawFixedRate> for FixedRate {
    type Error = ScheduleError;

    fn try_from(raw: RawFixedRate) -> Result<Self, ScheduleError> {
        Self::new(raw.every_ms, raw.start_ms)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFixedDelay {
    delay_ms: u64,
}

impl TryFrom<RawFixedDelay> for FixedDelay {
    type Error = ScheduleError;

    fn try_from(raw: RawFixedDelay) -> Result<Self, ScheduleError> {
        Self::new(raw.delay_ms)
    }
}

fn check_interval(option: &'static str, value_ms: u64) -> Result<(), ScheduleError> {
    if (INTERVAL_MIN_MS..=INTERVAL_MAX_MS).contains(&value_ms) {
        return Ok(());
    }
    Err(ScheduleError::Interval { option, value_ms })
}
