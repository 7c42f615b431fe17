//! Tests of schedules.

mod json;
mod misfire;

use super::{
    At, CronSchedule, END_OF_TIME_MS, FixedDelay, FixedRate, INTERVAL_MAX_MS, INTERVAL_MIN_MS, Schedule,
    ScheduleError, TIMES_MAX, Times,
};
use proptest::prelude::*;

#[test]
fn a_fixed_rate_is_anchored_at_its_start() {
    let schedule = Schedule::FixedRate(FixedRate::new(60_000, 5_500).unwrap());
    assert_eq!(schedule.occurrences_between(0, 200_000, 10), [5_500, 65_500, 125_500, 185_500]);
    assert_eq!(schedule.next_after(5_499), Some(5_500));
    assert_eq!(schedule.next_after(5_500), Some(65_500));
    assert_eq!(schedule.next_after(65_501), Some(125_500));
    assert_eq!(schedule.next_after(END_OF_TIME_MS), None);
    assert_eq!(schedule.next_after(u64::MAX - 1), None);
    assert_eq!(schedule.next_after_end(0), None);
}

#[test]
fn a_fixed_delay_counts_from_the_end_of_a_run() {
    let schedule = Schedule::FixedDelay(FixedDelay::new(60_000).unwrap());
    assert_eq!(schedule.next_after_end(1_234), Some(61_234));
    assert_eq!(schedule.next_after_end(u64::MAX), None);
    assert_eq!(schedule.next_after_end(END_OF_TIME_MS - 1), None);
    assert_eq!(schedule.next_after(0), None);
    assert!(schedule.occurrences_between(0, u64::MAX, 10).is_empty());
}

#[test]
fn one_off_jobs_are_due_once() {
    let schedule = Schedule::At(At::new(7_000).unwrap());
    assert_eq!(schedule.next_after(6_999), Some(7_000));
    assert_eq!(schedule.next_after(7_000), None);
    assert_eq!(schedule.occurrences_after(0).collect::<Vec<_>>(), [7_000]);
    assert_eq!(Schedule::At(At::new(0).unwrap()).occurrences_between(0, 1, 9), [0]);
}

#[test]
fn times_are_sorted_and_due_once_each() {
    let schedule = Schedule::Times(Times::new(vec![9_000, 3_000, 9_000, 5_000]).unwrap());
    assert_eq!(schedule.occurrences_after(0).collect::<Vec<_>>(), [3_000, 5_000, 9_000]);
    assert_eq!(schedule.next_after(5_000), Some(9_000));
    assert_eq!(schedule.next_after(9_000), None);
}

#[test]
fn nonsense_is_refused() {
    assert_eq!(Times::new(Vec::new()), Err(ScheduleError::NoTimes));
    assert_eq!(Times::new(vec![1; TIMES_MAX + 1]), Err(ScheduleError::TooManyTimes { count: TIMES_MAX + 1 }));
    assert!(Times::new(vec![1; TIMES_MAX]).is_ok());
    let micros = 1_767_225_600_000_000;
    let time = |option| ScheduleError::Time { option, time_ms: micros };
    assert_eq!(Times::new(vec![1, micros]), Err(time("times_ms")));
    assert_eq!(At::new(micros), Err(time("time_ms")));
    assert_eq!(FixedRate::new(60_000, micros), Err(time("start_ms")));
    for value_ms in [0, INTERVAL_MIN_MS - 1, INTERVAL_MAX_MS + 1, u64::MAX] {
        assert_eq!(
            FixedRate::new(value_ms, 0),
            Err(ScheduleError::Interval { option: "every_ms", value_ms })
        );
        assert_eq!(FixedDelay::new(value_ms), Err(ScheduleError::Interval { option: "delay_ms", value_ms }));
    }
}

fn any_schedule() -> impl Strategy<Value = Schedule> {
    let expressions = vec![
        "* * * * * ?",
        "0/7 * 1-3 * * ?",
        "0 30 2 * * ?",
        "0 */20 2 * * ?",
        "15,45 1-3 * * *",
        "0 0 0 L * ?",
        "0 0 12 ? * MON#5",
        "*/5 * 1 * 0",
    ];
    let zones = vec!["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"];
    let cron = (prop::sample::select(expressions), prop::sample::select(zones))
        .prop_map(|(expression, zone)| Schedule::Cron(CronSchedule::new(expression, zone).unwrap()));
    let rate = (INTERVAL_MIN_MS..10_000_000, 0..2_000_000_000_000_u64)
        .prop_map(|(every_ms, start_ms)| Schedule::FixedRate(FixedRate::new(every_ms, start_ms).unwrap()));
    let times = prop::collection::vec(0..2_000_000_000_000_u64, 1..50)
        .prop_map(|times_ms| Schedule::Times(Times::new(times_ms).unwrap()));
    prop_oneof![4 => cron, 1 => rate, 1 => times]
}

proptest! {
    #[test]
    fn occurrences_are_strictly_later_and_none_is_left_out(
        schedule in any_schedule(),
        after_ms in 1_300_000_000_000..1_900_000_000_000_u64,
        steps in prop::collection::vec(1..7_200_000_u64, 20),
    ) {
        let mut now_ms = after_ms;
        for step_ms in steps {
            let Some(next_ms) = schedule.next_after(now_ms) else { break };
            prop_assert!(next_ms > now_ms);
            // From anywhere before the next occurrence, it is still the next one.
            let between_ms = (now_ms + step_ms).min(next_ms - 1);
            prop_assert_eq!(schedule.next_after(between_ms), Some(next_ms));
            now_ms = if step_ms % 2 == 0 { next_ms } else { between_ms };
        }
    }

    #[test]
    fn a_fixed_rate_never_drifts(
        every_ms in INTERVAL_MIN_MS..=INTERVAL_MAX_MS,
        start_ms in 0..END_OF_TIME_MS,
        after_ms in 0..END_OF_TIME_MS,
    ) {
        let schedule = Schedule::FixedRate(FixedRate::new(every_ms, start_ms).unwrap());
        let Some(next_ms) = schedule.next_after(after_ms) else { return Ok(()) };
        prop_assert!(next_ms > after_ms && next_ms >= start_ms);
        prop_assert_eq!((next_ms - start_ms) % every_ms, 0);
        prop_assert!(next_ms == start_ms || next_ms - every_ms <= after_ms);
    }

    #[test]
    fn times_never_repeat(times_ms in prop::collection::vec(1..1_000_u64, 1..200)) {
        let schedule = Schedule::Times(Times::new(times_ms.clone()).unwrap());
        let due: Vec<u64> = schedule.occurrences_after(0).collect();
        let expected: Vec<u64> = times_ms.into_iter().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
        prop_assert_eq!(due, expected);
    }
}
