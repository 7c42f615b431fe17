//! Schedules that name their times.

use super::{END_OF_TIME_MS, ScheduleError};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The most times that a list may hold, those that are given twice included.
pub const TIMES_MAX: usize = 10_000;

/// Due once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawAt")]
pub struct At {
    time_ms: u64,
}

impl At {
    /// Due once at `time_ms`, which may be past.
    ///
    /// # Errors
    /// The time lies beyond [`END_OF_TIME_MS`].
    pub fn new(time_ms: u64) -> Result<Self, ScheduleError> {
        check_time("time_ms", time_ms)?;
        Ok(Self { time_ms })
    }

    /// When it is due.
    #[must_use]
    pub fn time_ms(&self) -> u64 {
        self.time_ms
    }

    pub(super) fn first_from(&self, from_ms: u64) -> Option<u64> {
        (self.time_ms >= from_ms).then_some(self.time_ms)
    }
}

/// Due at each time of a list.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawTimes", into = "RawTimes")]
pub struct Times {
    /// In ascending order, each once, at least one.
    times_ms: Arc<[u64]>,
}

impl Times {
    /// Due at each of these times, in any order; a time that is given twice is one occurrence.
    ///
    /// # Errors
    /// There is no time, there are more than [`TIMES_MAX`], or one lies beyond [`END_OF_TIME_MS`].
    pub fn new(mut times_ms: Vec<u64>) -> Result<Self, ScheduleError> {
        if times_ms.len() > TIMES_MAX {
            return Err(ScheduleError::TooManyTimes { count: times_ms.len() });
        }
        times_ms.sort_unstable();
        times_ms.dedup();
        let latest_ms = times_ms.last().ok_or(ScheduleError::NoTimes)?;
        check_time("times_ms", *latest_ms)?;
        Ok(Self { times_ms: times_ms.into() })
    }

    /// The times in ascending order, each once.
    #[must_use]
    pub fn times_ms(&self) -> &[u64] {
        &self.times_ms
    }

    pub(super) fn first_from(&self, from_ms: u64) -> Option<u64> {
        let passed = self.times_ms.partition_point(|time_ms| *time_ms < from_ms);
        self.times_ms.get(passed).copied()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAt {
    time_ms: u64,
}

impl TryFrom<RawAt> for At {
    type Error = ScheduleError;

    fn try_from(raw: RawAt) -> Result<Self, ScheduleError> {
        Self::new(raw.time_ms)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTimes {
    times_ms: Vec<u64>,
}

impl TryFrom<RawTimes> for Times {
    type Error = ScheduleError;

    fn try_from(raw: RawTimes) -> Result<Self, ScheduleError> {
        Self::new(raw.times_ms)
    }
}

impl From<Times> for RawTimes {
    fn from(times: Times) -> Self {
        Self { times_ms: times.times_ms.to_vec() }
    }
}

fn check_time(option: &'static str, time_ms: u64) -> Result<(), ScheduleError> {
    if time_ms < END_OF_TIME_MS {
        return Ok(());
    }
    Err(ScheduleError::Time { option, time_ms })
}
