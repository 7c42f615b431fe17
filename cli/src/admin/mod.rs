//! Commands for operators: keys, signing keys, the ledger, rules, tokens, the failure archive, salvage files, running services,
//! timers, jobs, capacity; and `top`, which shows all of it live.

pub mod access;
mod acts;
pub mod archive;
mod ask;
pub mod backfill;
mod correct;
pub mod find;
pub mod jobs;
pub mod keys;
pub mod ledger;
mod ledger_mark;
pub mod operate;
mod payouts;
pub mod plan;
pub mod reconcile;
pub mod rules;
pub mod salvage;
pub mod schedule;
pub mod shell;
pub mod signing;
mod statement;
pub mod token;
#[cfg(feature = "top")]
pub mod top;
pub mod topics;

use std::time::{SystemTime, UNIX_EPOCH};

/// The present time in Unix milliseconds.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A time in the form `2027-02-06T12:00:00Z`.
fn utc(ms: u64) -> String {
    let (days, seconds) = (ms / 86_400_000, ms / 1_000 % 86_400);
    // Days to a civil date after Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    #[test]
    fn times_read_as_people_write_them() {
        assert_eq!(super::utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(super::utc(951_782_400_000), "2000-02-29T00:00:00Z");
        assert_eq!(super::utc(1_801_915_199_000), "2027-02-06T11:59:59Z");
    }
}
