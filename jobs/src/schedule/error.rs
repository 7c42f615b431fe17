//! What may be wrong with a schedule.

use super::interval::{INTERVAL_MAX_MS, INTERVAL_MIN_MS};
use super::times::TIMES_MAX;
use super::{END_OF_TIME_MS, cron};
use thiserror::Error;

/// Why a schedule is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ScheduleError {
    /// The cron expression is wrong.
    #[error("cron expression \"{expression}\": {problem}")]
    Cron {
        /// The expression, cut to the longest that is allowed.
        expression: String,
        /// What is wrong with it.
        problem: CronProblem,
    },
    /// The time zone is not in the IANA database.
    #[error("\"{zone}\" is not a time zone of the IANA database, such as Asia/Shanghai or UTC")]
    UnknownZone {
        /// The name that was given.
        zone: String,
    },
    /// An interval is too short or too long.
    #[error(
        "{option} is {value_ms}, but must be between {INTERVAL_MIN_MS} and {INTERVAL_MAX_MS} milliseconds"
    )]
    Interval {
        /// The name of the option.
        option: &'static str,
        /// Its value.
        value_ms: u64,
    },
    /// A time lies beyond the end of time.
    #[error(
        "{option} holds {time_ms}, but must be Unix milliseconds before {END_OF_TIME_MS} (the year 2200)"
    )]
    Time {
        /// The name of the option.
        option: &'static str,
        /// The time that was given.
        time_ms: u64,
    },
    /// The list of times is empty.
    #[error("times_ms is empty, so the job would never be due")]
    NoTimes,
    /// The list of times is too long.
    #[error("times_ms holds {count} times, but at most {TIMES_MAX} are allowed")]
    TooManyTimes {
        /// How many times were given.
        count: usize,
    },
}

/// What is wrong with a cron expression.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CronProblem {
    /// It is longer than allowed.
    #[error("it has {length} bytes, but at most {} are allowed", cron::EXPRESSION_MAX_BYTES)]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// It has too few or too many fields.
    #[error(
        "it has {count} fields, but must have 5 (minute, hour, day of month, month, day of week), 6 (a second before \
         them) or 7 (a year after those)"
    )]
    FieldCount {
        /// How many fields it has.
        count: usize,
    },
    /// It is a nickname that is unknown.
    #[error("it is none of @yearly, @annually, @monthly, @weekly, @daily, @midnight and @hourly")]
    Nickname,
    /// One item of a field is wrong.
    #[error("\"{item}\" in the field {field}: {problem}")]
    Item {
        /// The name of the field.
        field: &'static str,
        /// The item of the field's list.
        item: String,
        /// What is wrong with it.
        problem: ItemProblem,
    },
    /// Both day fields have a question mark.
    #[error(
        "day of month and day of week are both \"?\", but only one of them may be: write \"*\" for every day"
    )]
    NoDay,
    /// With six or seven fields, both day fields are restricted.
    #[error(
        "day of month and day of week are both restricted, but with 6 or 7 fields one of them must be \"?\" or \"*\""
    )]
    BothDays,
    /// No time matches.
    #[error("no time from 1970 to 2199 matches it")]
    NeverMatches,
}

/// What is wrong with an item of a field.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ItemProblem {
    /// The field or the list has an empty item.
    #[error("an item of the list is missing")]
    Empty,
    /// It is no number and no name that the field knows.
    #[error("\"{value}\" is neither a number from {low} to {high} nor a name that this field knows")]
    Value {
        /// The part of the item.
        value: String,
        /// The lowest number of the field.
        low: u32,
        /// The highest number of the field.
        high: u32,
    },
    /// The step is no number, or too large.
    #[error("the step after \"/\" must be a number from 1 to {max}")]
    Step {
        /// The largest step of the field.
        max: u32,
    },
    /// A step counts from a single number, which only six and seven fields allow.
    #[error("with 5 fields a step needs a range or \"*\" before it: write {start}-{high}/{step}")]
    StepWithoutRange {
        /// The number before the step.
        start: u32,
        /// The highest number of the field.
        high: u32,
        /// The step.
        step: u32,
    },
    /// Years run backwards.
    #[error("the range ends before it starts")]
    Backwards,
    /// `*` or `?` is one of several items.
    #[error("\"*\" and \"?\" must stand alone")]
    NotAlone,
    /// `L` without a weekday.
    #[error("with 5 fields \"L\" needs a weekday before it, such as 5L for the last Friday of the month")]
    LastOfWhat,
    /// A weekday's number within the month is out of bounds.
    #[error("the number after \"#\" must be from 1 to 5")]
    Nth,
    /// The days before the last day of the month are out of bounds.
    #[error("the number after \"L-\" must be from 1 to 30")]
    BeforeLast,
}
