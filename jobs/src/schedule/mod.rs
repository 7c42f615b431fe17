//! When a job is due.
//!
//! A [`Schedule`] is parsed once, at the edge, and then cannot hold nonsense: an expression that never matches, an unknown
//! time zone, an empty list or an interval out of bounds is a [`ScheduleError`]. It does no I/O and reads no clock; times
//! are Unix milliseconds.
//!
//! | schedule | JSON | due |
//! |---|---|---|
//! | [`CronSchedule`] | `{"cron": {"expression": "0 0/5 * * * ?", "zone": "Asia/Shanghai"}}` | when the wall clock of the zone matches |
//! | [`FixedRate`] | `{"fixed_rate": {"every_ms": 60000, "start_ms": 0}}` | at `start_ms`, and every `every_ms` from there, without drift |
//! | [`FixedDelay`] | `{"fixed_delay": {"delay_ms": 60000}}` | `delay_ms` after the end of the last run |
//! | [`At`] | `{"at": {"time_ms": 1800000000000}}` | once |
//! | [`Times`] | `{"times": {"times_ms": [1800000000000]}}` | at each of the times |
//!
//! - [`cron`] says what an expression may hold, and what happens when the clocks of its zone change.
//! - [`due_now`] says what to start now, and what to do about occurrences that were missed.
//!
//! ```
//! use windfall_jobs::schedule::{Misfire, Schedule, due_now};
//!
//! let json = r#"{"cron": {"expression": "0 0/5 9-17 ? * MON-FRI", "zone": "Asia/Shanghai"}}"#;
//! let schedule: Schedule = serde_json::from_str(json)?;
//!
//! let monday_0902_ms = 1_767_574_920_000; // 2026-01-05T09:02:00+08:00
//! let monday_0905_ms = 1_767_575_100_000;
//! assert_eq!(schedule.next_after(monday_0902_ms), Some(monday_0905_ms));
//!
//! let (now_ms, threshold_ms) = (monday_0905_ms + 40, 15_000);
//! let decision = due_now(&schedule, monday_0902_ms, now_ms, Misfire::DoNothing, threshold_ms);
//! assert_eq!(decision.start_ms, Some(monday_0905_ms));
//! assert_eq!(decision.next_ms, Some(monday_0905_ms + 300_000));
//! # Ok::<(), serde_json::Error>(())
//! ```

pub mod cron;
mod error;
mod interval;
mod misfire;
mod times;

pub use cron::CronSchedule;
pub use error::{CronProblem, ItemProblem, ScheduleError};
pub use interval::{FixedDelay, FixedRate, INTERVAL_MAX_MS, INTERVAL_MIN_MS};
pub use misfire::{COUNTED_MAX, Decision, FIRE_ALL_MAX, FireAllLimit, Misfire, due_now};
pub use times::{At, TIMES_MAX, Times};

use serde::{Deserialize, Serialize};

/// A time by the wall clock of a zone, as `2027-02-06T20:00:00+08:00`; `None` where the zone or the time is none.
#[must_use]
pub fn local_time(time_ms: u64, zone: &str) -> Option<String> {
    let time = jiff::Timestamp::from_millisecond(i64::try_from(time_ms).ok()?).ok()?;
    let local = time.in_tz(zone).ok()?;
    Some(local.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string())
}

/// The end of time: 2200-01-01T00:00:00Z. No occurrence lies there or later. A time that was given in micro- or
/// nanoseconds by mistake lies beyond it, and is refused.
pub const END_OF_TIME_MS: u64 = 7_258_118_400_000;

/// When a job is due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// When the wall clock of a time zone matches a cron expression.
    Cron(CronSchedule),
    /// At a start and every so many milliseconds from there.
    FixedRate(FixedRate),
    /// So many milliseconds after the end of the last run.
    FixedDelay(FixedDelay),
    /// Once.
    At(At),
    /// At each time of a list.
    Times(Times),
}

impl Schedule {
    /// The first occurrence that is strictly later than `after_ms`, if there is one. A fixed delay has none: it counts from
    /// the end of a run, which [`Self::next_after_end`] takes.
    #[must_use]
    pub fn next_after(&self, after_ms: u64) -> Option<u64> {
        self.first_from(after_ms.checked_add(1)?)
    }

    /// For a fixed delay: when the next run is due if the last one ended at `ended_ms`. For the first run, give the time
    /// when the job was made. None for every other schedule.
    #[must_use]
    pub fn next_after_end(&self, ended_ms: u64) -> Option<u64> {
        match self {
            Self::FixedDelay(delay) => delay.next_after_end(ended_ms),
            Self::Cron(_) | Self::FixedRate(_) | Self::At(_) | Self::Times(_) => None,
        }
    }

    /// All occurrences that are strictly later than `after_ms`, in order. A cron expression may have billions of them:
    /// take as many as you need.
    pub fn occurrences_after(&self, after_ms: u64) -> impl Iterator<Item = u64> + '_ {
        std::iter::successors(self.next_after(after_ms), |last_ms| self.next_after(*last_ms))
    }

    /// The first `limit` occurrences from `from_ms` on and before `to_ms`.
    #[must_use]
    pub fn occurrences_between(&self, from_ms: u64, to_ms: u64, limit: usize) -> Vec<u64> {
        std::iter::successors(self.first_from(from_ms), |last_ms| self.next_after(*last_ms))
            .take_while(|due_ms| *due_ms < to_ms)
            .take(limit)
            .collect()
    }

    /// The first occurrence at `from_ms` or later.
    fn first_from(&self, from_ms: u64) -> Option<u64> {
        let due_ms = match self {
            Self::Cron(cron) => cron.first_from(from_ms),
            Self::FixedRate(rate) => rate.first_from(from_ms),
            Self::FixedDelay(_) => None,
            Self::At(at) => at.first_from(from_ms),
            Self::Times(times) => times.first_from(from_ms),
        }?;
        (due_ms < END_OF_TIME_MS).then_some(due_ms)
    }
}

#[cfg(test)]
mod tests;
