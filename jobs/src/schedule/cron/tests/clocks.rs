//! What happens when clocks change, on real zones.
//!
//! In 2026, Berlin goes from 02:00 to 03:00 on 29 March and from 03:00 to 02:00 on 25 October, New York from 02:00 to
//! 03:00 on 8 March and from 02:00 to 01:00 on 1 November, Lord Howe Island, by half an hour, from 02:00 to 01:30 on 5
//! April and from 02:00 to 02:30 on 4 October.

use super::{at, cron, next};
use crate::schedule::CronSchedule;

#[test]
fn a_fixed_time_that_does_not_exist_is_due_when_the_gap_ends() {
    assert_eq!(
        next("0 30 2 * * ?", "2026-03-28T00:00:00[Europe/Berlin]", 3),
        [
            "2026-03-28 Sat 02:30:00 +01:00",
            "2026-03-29 Sun 03:00:00 +02:00",
            "2026-03-30 Mon 02:30:00 +02:00"
        ]
    );
    assert_eq!(
        next("30 2 * * *", "2026-03-08T01:59:59[America/New_York]", 2),
        ["2026-03-08 Sun 03:00:00 -04:00", "2026-03-09 Mon 02:30:00 -04:00"]
    );
    assert_eq!(
        next("15 2 * * *", "2026-10-04T00:00:00[Australia/Lord_Howe]", 2),
        ["2026-10-04 Sun 02:30:00 +11:00", "2026-10-05 Mon 02:15:00 +11:00"]
    );
    // Midnight is in the gap.
    assert_eq!(
        next("0 0 * * *", "2026-04-23T12:00:00[Africa/Cairo]", 2),
        ["2026-04-24 Fri 01:00:00 +03:00", "2026-04-25 Sat 00:00:00 +03:00"]
    );
}

#[test]
fn several_fixed_times_in_one_gap_are_one_occurrence() {
    assert_eq!(
        next("0 0,20,40 2,3 * * ?", "2026-03-29T00:00:00[Europe/Berlin]", 4),
        [
            "2026-03-29 Sun 03:00:00 +02:00",
            "2026-03-29 Sun 03:20:00 +02:00",
            "2026-03-29 Sun 03:40:00 +02:00",
            "2026-03-30 Mon 02:00:00 +02:00"
        ]
    );
}

#[test]
fn a_gap_of_a_whole_day_ends_on_the_next() {
    // Samoa had no 30 December 2011.
    assert_eq!(
        next("30 12 30 12 *", "2011-12-29T00:00:00[Pacific/Apia]", 2),
        ["2011-12-31 Sat 00:00:00 +14:00", "2012-12-30 Sun 12:30:00 +14:00"]
    );
}

#[test]
fn a_fixed_time_that_happens_twice_is_due_the_first_time() {
    assert_eq!(
        next("0 30 2 * * ?", "2026-10-24T12:00:00[Europe/Berlin]", 2),
        ["2026-10-25 Sun 02:30:00 +02:00", "2026-10-26 Mon 02:30:00 +01:00"]
    );
    assert_eq!(
        next("30 1 * * *", "2026-10-31T12:00:00[America/New_York]", 2),
        ["2026-11-01 Sun 01:30:00 -04:00", "2026-11-02 Mon 01:30:00 -05:00"]
    );
    assert_eq!(
        next("45 1 * * *", "2026-04-05T00:00:00[Australia/Lord_Howe]", 2),
        ["2026-04-05 Sun 01:45:00 +11:00", "2026-04-06 Mon 01:45:00 +10:30"]
    );
    // Lists and ranges are fixed times too.
    assert_eq!(
        next("0 15,45 1-3 * * ?", "2026-10-25T01:30:00+02:00[Europe/Berlin]", 4),
        [
            "2026-10-25 Sun 01:45:00 +02:00",
            "2026-10-25 Sun 02:15:00 +02:00",
            "2026-10-25 Sun 02:45:00 +02:00",
            "2026-10-25 Sun 03:15:00 +01:00",
        ]
    );
}

#[test]
fn a_search_from_the_second_pass_does_not_go_back() {
    assert_eq!(
        next("0 30 2 * * ?", "2026-10-25T02:10:00+01:00[Europe/Berlin]", 1),
        ["2026-10-26 Mon 02:30:00 +01:00"]
    );
    assert_eq!(
        next("0 0-59 2,3 * * ?", "2026-10-25T02:10:00+01:00[Europe/Berlin]", 1),
        ["2026-10-25 Sun 03:00:00 +01:00"]
    );
}

#[test]
fn an_interval_goes_on_by_elapsed_time() {
    let ends = [
        ("2026-03-29T00:00:00[Europe/Berlin]", "2026-03-29T06:00:00[Europe/Berlin]", 10),
        ("2026-10-25T00:00:00[Europe/Berlin]", "2026-10-25T06:00:00[Europe/Berlin]", 14),
        ("2026-03-08T00:00:00[America/New_York]", "2026-03-08T06:00:00[America/New_York]", 10),
        ("2026-11-01T00:00:00[America/New_York]", "2026-11-01T06:00:00[America/New_York]", 14),
        ("2026-04-05T00:00:00[Australia/Lord_Howe]", "2026-04-05T06:00:00[Australia/Lord_Howe]", 13),
        ("2026-10-04T00:00:00[Australia/Lord_Howe]", "2026-10-04T06:00:00[Australia/Lord_Howe]", 11),
    ];
    for (from, to, expected) in ends {
        let zone = &from[20..from.len() - 1];
        let due = cron("0 0/30 * * * ?", zone).occurrences_between(at(from), at(to), 100);
        assert_eq!(due.len(), expected, "{from}");
        assert!(due.is_sorted_by(|one, next| next - one == 1_800_000), "{from}");
    }
}

#[test]
fn an_interval_within_hours_is_lost_or_doubled() {
    assert_eq!(
        next("*/30 2 * * *", "2026-03-28T12:00:00[Europe/Berlin]", 2),
        ["2026-03-30 Mon 02:00:00 +02:00", "2026-03-30 Mon 02:30:00 +02:00"]
    );
    assert_eq!(
        next("*/30 2 * * *", "2026-10-24T12:00:00[Europe/Berlin]", 5),
        [
            "2026-10-25 Sun 02:00:00 +02:00",
            "2026-10-25 Sun 02:30:00 +02:00",
            "2026-10-25 Sun 02:00:00 +01:00",
            "2026-10-25 Sun 02:30:00 +01:00",
            "2026-10-26 Mon 02:00:00 +01:00",
        ]
    );
}

#[test]
fn what_is_only_ever_due_in_a_gap_never_matches_unless_it_is_a_fixed_time() {
    assert!(CronSchedule::new("0 */10 2 29 3 ? 2026", "Europe/Berlin").is_err());
    assert!(CronSchedule::new("0 10 2 29 3 ? 2026", "Europe/Berlin").is_ok());
}

#[test]
fn each_day_has_one_occurrence_of_a_fixed_time_whatever_the_zone() {
    for zone in
        ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Casablanca"]
    {
        for hour in 0..24 {
            let schedule = cron(&format!("0 30 {hour} * * ?"), zone);
            let from_ms = at(&format!("2026-01-01T00:00:00[{zone}]"));
            let to_ms = at(&format!("2031-01-01T00:00:00[{zone}]"));
            assert_eq!(schedule.occurrences_between(from_ms, to_ms, 10_000).len(), 1_826, "{hour} in {zone}");
        }
    }
}
