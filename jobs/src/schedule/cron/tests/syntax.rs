//! What expressions mean, and which are refused.

use super::{cron, dates, next};
use crate::schedule::{CronProblem, CronSchedule, ItemProblem, ScheduleError};

const NEW_YEAR: &str = "2026-01-01T00:00:00[UTC]";

fn problem(expression: &str) -> CronProblem {
    match CronSchedule::new(expression, "UTC") {
        Err(ScheduleError::Cron { problem, .. }) => problem,
        other => panic!("{expression}: {other:?}"),
    }
}

fn item_problem(expression: &str) -> (&'static str, ItemProblem) {
    match problem(expression) {
        CronProblem::Item { field, problem, .. } => (field, problem),
        other => panic!("{expression}: {other:?}"),
    }
}

#[test]
fn five_fields_are_read_as_unix_does() {
    let sunday = ["2026-01-04 Sun 00:00:00", "2026-01-11 Sun 00:00:00"];
    for weekday in ["0", "7", "SUN", "sun", "7-7"] {
        assert_eq!(dates(&format!("0 0 * * {weekday}"), NEW_YEAR, 2), sunday);
    }
    // Both day fields are restricted: either matches.
    let either = ["2026-01-05 Mon 00:00:00", "2026-01-12 Mon 00:00:00", "2026-01-13 Tue 00:00:00"];
    assert_eq!(dates("0 0 13 * 1", NEW_YEAR, 3), either);
    // A star at the start does not restrict, so both match: odd days that are Mondays.
    assert_eq!(dates("0 0 */2 * 1", NEW_YEAR, 2), ["2026-01-05 Mon 00:00:00", "2026-01-19 Mon 00:00:00"]);
    assert_eq!(
        dates("0 0 * * 5-1", NEW_YEAR, 5),
        [
            "2026-01-02 Fri 00:00:00",
            "2026-01-03 Sat 00:00:00",
            "2026-01-04 Sun 00:00:00",
            "2026-01-05 Mon 00:00:00",
            "2026-01-09 Fri 00:00:00",
        ]
    );
    assert_eq!(dates("0 0 * * 5-7", NEW_YEAR, 3), dates("0 0 * * FRI-SUN", NEW_YEAR, 3));
    assert_eq!(dates("30 4 1,15 * ?", NEW_YEAR, 2), ["2026-01-01 Thu 04:30:00", "2026-01-15 Thu 04:30:00"]);
    assert_eq!(dates("@weekly", NEW_YEAR, 1), ["2026-01-04 Sun 00:00:00"]);
    assert_eq!(dates("@midnight", NEW_YEAR, 1), ["2026-01-02 Fri 00:00:00"]);
}

#[test]
fn six_and_seven_fields_are_read_as_quartz_does() {
    assert_eq!(dates("0 0 12 ? * 1", NEW_YEAR, 1), ["2026-01-04 Sun 12:00:00"]);
    assert_eq!(dates("0 0 12 ? * SAT", NEW_YEAR, 1), ["2026-01-03 Sat 12:00:00"]);
    assert_eq!(dates("0 0 12 ? * L", NEW_YEAR, 1), ["2026-01-03 Sat 12:00:00"]);
    assert_eq!(dates("0 0 12 ? * 6#3", NEW_YEAR, 2), ["2026-01-16 Fri 12:00:00", "2026-02-20 Fri 12:00:00"]);
    assert_eq!(dates("0 0 12 ? * 6L", NEW_YEAR, 2), ["2026-01-30 Fri 12:00:00", "2026-02-27 Fri 12:00:00"]);
    assert_eq!(dates("0 0 12 ? * FRIL", NEW_YEAR, 1), ["2026-01-30 Fri 12:00:00"]);
    assert_eq!(dates("0 0 0 L * ?", NEW_YEAR, 2), ["2026-01-31 Sat 00:00:00", "2026-02-28 Sat 00:00:00"]);
    assert_eq!(dates("0 0 0 L-3 * ?", NEW_YEAR, 2), ["2026-01-28 Wed 00:00:00", "2026-02-25 Wed 00:00:00"]);
    assert_eq!(dates("0 0 0 LW * ?", NEW_YEAR, 2), ["2026-01-30 Fri 00:00:00", "2026-02-27 Fri 00:00:00"]);
    // The 15th of February is a Sunday; the 1st of August is a Saturday, and its closest weekday stays in August.
    assert_eq!(dates("0 0 0 15W * ?", NEW_YEAR, 2), ["2026-01-15 Thu 00:00:00", "2026-02-16 Mon 00:00:00"]);
    assert_eq!(dates("0 0 0 1W 8 ?", NEW_YEAR, 1), ["2026-08-03 Mon 00:00:00"]);
    assert_eq!(dates("0 0 0 31W 5 ?", NEW_YEAR, 1), ["2026-05-29 Fri 00:00:00"]);
    assert_eq!(dates("0 0 0 1 1 ? 2030", NEW_YEAR, 2), ["2030-01-01 Tue 00:00:00"]);
    assert_eq!(dates("0 0 0 1 1 ? 2026/2", NEW_YEAR, 1), ["2028-01-01 Sat 00:00:00"]);
    assert_eq!(
        dates("5/20 59 23 ? DEC-JAN *", "2026-01-31T23:59:24[UTC]", 3),
        ["2026-01-31 Sat 23:59:25", "2026-01-31 Sat 23:59:45", "2026-12-01 Tue 23:59:05"]
    );
    assert_eq!(
        dates("0 0 22-2/2 1 1 ?", NEW_YEAR, 3),
        ["2026-01-01 Thu 02:00:00", "2026-01-01 Thu 22:00:00", "2027-01-01 Fri 00:00:00"]
    );
    assert_eq!(dates("0 0 12 * * *", NEW_YEAR, 1), ["2026-01-01 Thu 12:00:00"]);
}

#[test]
fn leap_days_are_found_over_the_year_2100() {
    let after = "2096-03-01T00:00:00[UTC]";
    assert_eq!(dates("0 0 0 29 2 ?", after, 1), ["2104-02-29 Fri 00:00:00"]);
    assert_eq!(dates("0 0 29 2 */7", "2026-01-01T00:00:00[UTC]", 1), ["2032-02-29 Sun 00:00:00"]);
}

#[test]
fn time_ends_with_the_year_2199() {
    assert_eq!(dates("0 0 31 12 *", "2199-12-30T00:00:00[UTC]", 2), ["2199-12-31 Tue 00:00:00"]);
    assert_eq!(cron("* * * * * ?", "UTC").next_after(u64::MAX), None);
    assert_eq!(cron("* * * * * ?", "UTC").next_after(u64::MAX - 1), None);
    assert_eq!(cron("* * * * * ?", "Asia/Shanghai").next_after(0), Some(1_000));
    assert_eq!(cron("0 0 0 1 1 ? 2020", "UTC").next_after(1_700_000_000_000), None);
}

#[test]
fn an_occurrence_is_strictly_later() {
    let schedule = cron("* * * * * ?", "UTC");
    assert_eq!(schedule.next_after(999), Some(1_000));
    assert_eq!(schedule.next_after(1_000), Some(2_000));
    assert_eq!(schedule.occurrences_between(0, 3_000, 9), [0, 1_000, 2_000]);
    assert_eq!(schedule.occurrences_between(1, 3_001, 1), [1_000]);
    assert_eq!(next("0 0 * * *", "2026-01-01T23:59:59.999[UTC]", 1), ["2026-01-02 Fri 00:00:00 +00:00"]);
}

#[test]
fn what_never_matches_is_refused() {
    for expression in
        ["0 0 0 30 2 ?", "0 0 31 4,6,9,11 *", "0 0 0 30W 2 ?", "0 0 0 29 2 ? 2027", "0 0 0 L-30 2 ?"]
    {
        assert_eq!(problem(expression), CronProblem::NeverMatches, "{expression}");
    }
}

#[test]
fn mistakes_are_named() {
    assert_eq!(problem(""), CronProblem::FieldCount { count: 0 });
    assert_eq!(problem("* * * *"), CronProblem::FieldCount { count: 4 });
    assert_eq!(problem("* * * * * * * *"), CronProblem::FieldCount { count: 8 });
    assert_eq!(problem("@often"), CronProblem::Nickname);
    assert_eq!(problem("0 0 0 ? * ?"), CronProblem::NoDay);
    assert_eq!(problem("0 0 0 13 * FRI"), CronProblem::BothDays);
    assert_eq!(problem(&"1,".repeat(300)), CronProblem::TooLong { length: 600 });
    let value = |value: &str, low, high| ItemProblem::Value { value: value.to_owned(), low, high };
    assert_eq!(item_problem("60 * * * *"), ("minute", value("60", 0, 59)));
    assert_eq!(item_problem("* 24 * * *"), ("hour", value("24", 0, 23)));
    assert_eq!(item_problem("* * 0 * *"), ("day of month", value("0", 1, 31)));
    assert_eq!(item_problem("* * * MONJAN *"), ("month", value("MONJAN", 1, 12)));
    assert_eq!(item_problem("* * * * 8"), ("day of week", value("8", 0, 7)));
    assert_eq!(item_problem("0 0 0 ? * 0"), ("day of week", value("0", 1, 7)));
    assert_eq!(item_problem("0 0 0 ? * * 2200"), ("year", value("2200", 1970, 2199)));
    assert_eq!(item_problem("? * * * *"), ("minute", value("?", 0, 59)));
    assert_eq!(item_problem("+5 * * * *"), ("minute", value("+5", 0, 59)));
    assert_eq!(item_problem("1-2-3 * * * *"), ("minute", value("2-3", 0, 59)));
    assert_eq!(item_problem("* * * * ä"), ("day of week", value("ä", 0, 7)));
    assert_eq!(item_problem("1,,2 * * * *"), ("minute", ItemProblem::Empty));
    assert_eq!(item_problem("1- * * * *"), ("minute", ItemProblem::Empty));
    assert_eq!(item_problem("*,5 * * * *"), ("minute", ItemProblem::NotAlone));
    assert_eq!(item_problem("*/0 * * * *"), ("minute", ItemProblem::Step { max: 60 }));
    assert_eq!(item_problem("*/61 * * * *"), ("minute", ItemProblem::Step { max: 60 }));
    assert_eq!(item_problem("*/5/5 * * * *"), ("minute", ItemProblem::Step { max: 60 }));
    let step = ItemProblem::StepWithoutRange { start: 5, high: 59, step: 15 };
    assert_eq!(item_problem("5/15 * * * *"), ("minute", step));
    assert_eq!(item_problem("0 0 0 1 1 ? 2030-2020"), ("year", ItemProblem::Backwards));
    assert_eq!(item_problem("* * * * L"), ("day of week", ItemProblem::LastOfWhat));
    assert_eq!(item_problem("* * * * 1#6"), ("day of week", ItemProblem::Nth));
    assert_eq!(item_problem("* * * * 1#"), ("day of week", ItemProblem::Nth));
    assert_eq!(item_problem("* * L-31 * *"), ("day of month", ItemProblem::BeforeLast));
    assert_eq!(item_problem("* * W * *"), ("day of month", ItemProblem::Empty));
}

#[test]
fn an_error_says_what_is_wrong_and_where() {
    let error = CronSchedule::new("0 0 25 * * ?", "UTC").unwrap_err().to_string();
    assert_eq!(
        error,
        "cron expression \"0 0 25 * * ?\": \"25\" in the field hour: \"25\" is neither a number from 0 to 23 nor a name \
         that this field knows"
    );
    let error = CronSchedule::new("* * * * *", "Europe/Atlantis").unwrap_err();
    assert_eq!(error, ScheduleError::UnknownZone { zone: "Europe/Atlantis".to_owned() });
    let error = CronSchedule::new("* * * * *", "").unwrap_err();
    assert_eq!(error, ScheduleError::UnknownZone { zone: String::new() });
}
