//! Tests of cron expressions.

mod clocks;
mod oracle;
mod speed;
mod syntax;

use super::CronSchedule;
use crate::schedule::Schedule;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

fn cron(expression: &str, zone: &str) -> Schedule {
    Schedule::Cron(CronSchedule::new(expression, zone).unwrap())
}

/// Unix milliseconds of a local time with its zone, such as `2026-03-29T01:59:59[Europe/Berlin]`.
fn at(text: &str) -> u64 {
    u64::try_from(text.parse::<Zoned>().unwrap().timestamp().as_millisecond()).unwrap()
}

/// The next occurrences as local times with their offsets.
fn next(expression: &str, after: &str, count: usize) -> Vec<String> {
    let after: Zoned = after.parse().unwrap();
    let zone = after.time_zone().clone();
    let schedule = cron(expression, zone.iana_name().unwrap());
    let after_ms = u64::try_from(after.timestamp().as_millisecond()).unwrap();
    schedule.occurrences_after(after_ms).take(count).map(|due_ms| local(due_ms, &zone)).collect()
}

fn local(due_ms: u64, zone: &TimeZone) -> String {
    let due = Timestamp::from_millisecond(i64::try_from(due_ms).unwrap()).unwrap();
    due.to_zoned(zone.clone()).strftime("%Y-%m-%d %a %H:%M:%S %:z").to_string()
}

/// The same without the offset.
fn dates(expression: &str, after: &str, count: usize) -> Vec<String> {
    next(expression, after, count).iter().map(|text| text[..23].to_owned()).collect()
}
