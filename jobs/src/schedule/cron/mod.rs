//! Cron expressions: what they may hold, and what happens when clocks change.
//!
//! # Two dialects
//!
//! The number of fields decides by which rules an expression is read, because users bring expressions from two worlds
//! which give the same text different meanings:
//!
//! | | 5 fields: Unix | 6 or 7 fields: Quartz, as XXL-JOB |
//! |---|---|---|
//! | fields | minute, hour, day of month, month, day of week | a second before them, and a year after them (7) |
//! | weekdays | 0 to 7, both 0 and 7 are Sunday | 1 to 7, 1 is Sunday |
//! | both day fields are restricted | either of them matches | refused |
//! | `?` in a day field | the same as `*` | the same as `*`, but not in both day fields |
//! | `5/15` | refused: write `5-59/15` | from 5 on, every 15 |
//! | `L` in the day of week | refused: write `5L` | Saturday |
//!
//! With five fields, a day field that starts with `*` (also `*/2`) does not count as restricted: then both must match, as
//! in the classical cron. With six or seven, `0 0 12 * * *`, with `*` in both day fields, is accepted although Quartz refuses
//! it. What Quartz accepts means the same here, except while clocks change, and except `L-3W`, which is refused.
//!
//! Both know lists (`1,15`), ranges (`9-17`, and `22-2` or `FRI-MON` over the end), steps (`*/5`, `9-17/2`), the names of
//! months and weekdays (`JAN`, `MON`), and
//! - `L` in the day of month: the last day; `L-3`: three days before it; `LW`: the last day from Monday to Friday;
//! - `15W`: the day from Monday to Friday that is closest to the 15th, within the same month (`31W` skips shorter ones);
//! - `6L` in the day of week: the last such weekday of the month; `6#3`: the third one.
//!
//! `@yearly`, `@annually`, `@monthly`, `@weekly`, `@daily`, `@midnight` and `@hourly` stand for five fields. Years run
//! from 1970 to 2199.
//!
//! # When clocks change
//!
//! An expression is an *interval* if its seconds, minutes or hours hold a `*` or a step; otherwise it has *fixed times*
//! (lists and ranges of numbers included).
//!
//! - **Spring, local times that do not exist.** An interval has no occurrences there: in real time it goes on as if
//!   nothing had happened, because no real time is missing. A fixed time in the gap is due at the first instant after the gap,
//!   so that the job of a day is not lost; several of them in one gap are one occurrence.
//! - **Autumn, local times that happen twice.** An interval goes on by elapsed time, through both passes. A fixed time is
//!   due once, in the first pass.
//!
//! `0 30 2 * * ?` in Berlin runs once every day of the year, at 03:00 on the day without a 02:30. `0 0/30 * * * ?` runs
//! every 30 minutes of real time, all year. An interval within certain hours, `0 0/30 2 * * ?`, does not run on the day
//! without these hours, and twice as often on the day that has them twice: give such a job fixed times.
//!
//! # Cost
//!
//! An expression is compiled into bit sets of about 200 bytes, in some 15 µs. The next occurrence takes 0.2 to 1 µs (measured
//! on a busy machine; every second in UTC and once a year in Berlin are the ends). It is bounded for any expression, because
//! the search goes month by month to the end of 2199 at most: what never matches is refused within 50 µs.

mod calendar;
mod days;
mod parse;
mod zone;

use super::{CronProblem, ScheduleError};
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The longest expression in bytes.
pub const EXPRESSION_MAX_BYTES: usize = 512;

/// Due when the wall clock of a time zone matches a cron expression. The [module](self) says what it may hold.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "RawCron", into = "RawCron")]
pub struct CronSchedule {
    expression: Arc<str>,
    calendar: calendar::Calendar,
    zone: TimeZone,
}

impl CronSchedule {
    /// Due when `expression` matches the wall clock of `zone`, by its name in the IANA database. In JSON, the zone is UTC
    /// if it is missing.
    ///
    /// # Errors
    /// The expression is wrong or never matches, or the zone is unknown.
    pub fn new(expression: &str, zone: &str) -> Result<Self, ScheduleError> {
        let wrong = |problem| ScheduleError::Cron { expression: shorten(expression), problem };
        if expression.len() > EXPRESSION_MAX_BYTES {
            return Err(wrong(CronProblem::TooLong { length: expression.len() }));
        }
        let calendar = parse::parse(expression).map_err(wrong)?;
        let zone = TimeZone::get(zone).map_err(|_| ScheduleError::UnknownZone { zone: shorten(zone) })?;
        let words: Vec<&str> = expression.split_ascii_whitespace().collect();
        let schedule = Self { expression: words.join(" ").into(), calendar, zone };
        match schedule.first_from(0) {
            Some(_) => Ok(schedule),
            None => Err(wrong(CronProblem::NeverMatches)),
        }
    }

    /// The expression as it was given, with single spaces.
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// The name of the time zone.
    #[must_use]
    pub fn zone(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// Whether its occurrences go by elapsed time while clocks change, rather than once per local time.
    #[must_use]
    pub fn is_interval(&self) -> bool {
        self.calendar.is_interval
    }

    pub(super) fn first_from(&self, from_ms: u64) -> Option<u64> {
        let from_s = i64::try_from(from_ms.div_ceil(1_000)).ok()?;
        let due_s = if self.calendar.is_interval {
            zone::first_by_elapsed_time(&self.calendar, &self.zone, from_s)
        } else {
            zone::first_by_local_time(&self.calendar, &self.zone, from_s)
        }?;
        u64::try_from(due_s).ok()?.checked_mul(1_000)
    }
}

impl PartialEq for CronSchedule {
    fn eq(&self, other: &Self) -> bool {
        self.expression == other.expression && self.zone() == other.zone()
    }
}

impl Eq for CronSchedule {}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCron {
    expression: String,
    #[serde(default = "utc")]
    zone: String,
}

impl TryFrom<RawCron> for CronSchedule {
    type Error = ScheduleError;

    fn try_from(raw: RawCron) -> Result<Self, ScheduleError> {
        Self::new(&raw.expression, &raw.zone)
    }
}

impl From<CronSchedule> for RawCron {
    fn from(cron: CronSchedule) -> Self {
        Self { zone: cron.zone().to_owned(), expression: cron.expression.as_ref().to_owned() }
    }
}

fn utc() -> String {
    "UTC".to_owned()
}

/// What was given, short enough for an error.
fn shorten(text: &str) -> String {
    let mut end = text.len().min(EXPRESSION_MAX_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
