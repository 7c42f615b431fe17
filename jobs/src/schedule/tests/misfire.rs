//! Which occurrence is started, and which are skipped.

use crate::schedule::{
    At, COUNTED_MAX, CronSchedule, Decision, FIRE_ALL_MAX, FireAllLimit, FixedDelay, FixedRate, Misfire,
    Schedule, due_now,
};
use proptest::prelude::*;

const MINUTE_MS: u64 = 60_000;
const THRESHOLD_MS: u64 = 5_000;

fn every_minute() -> Schedule {
    Schedule::FixedRate(FixedRate::new(MINUTE_MS, 0).unwrap())
}

fn every_second() -> Schedule {
    Schedule::Cron(CronSchedule::new("* * * * * ?", "Europe/Berlin").unwrap())
}

fn fire_all(limit: u32) -> Misfire {
    Misfire::FireAll(FireAllLimit::new(limit).unwrap())
}

fn decide(
    schedule: &Schedule,
    last_ms: u64,
    now_ms: u64,
    misfire: Misfire,
) -> (Option<u64>, u64, Option<u64>) {
    let Decision { start_ms, missed, next_ms } = due_now(schedule, last_ms, now_ms, misfire, THRESHOLD_MS);
    (start_ms, missed, next_ms)
}

#[test]
fn what_is_not_late_is_started_whatever_the_strategy() {
    for misfire in [Misfire::DoNothing, Misfire::FireOnceNow, fire_all(3)] {
        let decide = |last_ms, now_ms| decide(&every_minute(), last_ms, now_ms, misfire);
        assert_eq!(decide(60_000, 119_999), (None, 0, Some(120_000)));
        assert_eq!(decide(60_000, 120_000), (Some(120_000), 0, Some(180_000)));
        assert_eq!(decide(60_000, 125_000), (Some(120_000), 0, Some(180_000)));
        // The clock went back: nothing starts again.
        assert_eq!(decide(120_000, 50_000), (None, 0, Some(180_000)));
    }
}

#[test]
fn do_nothing_skips_what_was_missed() {
    let decide = |last_ms, now_ms| decide(&every_minute(), last_ms, now_ms, Misfire::DoNothing);
    assert_eq!(decide(60_000, 125_001), (None, 1, Some(180_000)));
    assert_eq!(decide(0, 10 * MINUTE_MS + 30_000), (None, 10, Some(11 * MINUTE_MS)));
    // The tenth is on time.
    assert_eq!(decide(0, 10 * MINUTE_MS + 3_000), (Some(10 * MINUTE_MS), 9, Some(11 * MINUTE_MS)));
}

#[test]
fn fire_once_now_starts_one_for_all_that_were_missed() {
    let decide = |last_ms, now_ms| decide(&every_minute(), last_ms, now_ms, Misfire::FireOnceNow);
    assert_eq!(decide(60_000, 125_001), (Some(120_000), 0, Some(180_000)));
    assert_eq!(decide(0, 10 * MINUTE_MS + 30_000), (Some(10 * MINUTE_MS), 9, Some(11 * MINUTE_MS)));
    // The one that is on time stands for the others.
    assert_eq!(decide(0, 10 * MINUTE_MS + 3_000), (Some(10 * MINUTE_MS), 9, Some(11 * MINUTE_MS)));
}

#[test]
fn fire_all_starts_each_of_the_latest() {
    let now_ms = 10 * MINUTE_MS + 30_000;
    let mut last_ms = 0;
    let mut started = Vec::new();
    let mut missed = 0;
    loop {
        let decision = due_now(&every_minute(), last_ms, now_ms, fire_all(3), THRESHOLD_MS);
        missed += decision.missed;
        let Some(start_ms) = decision.start_ms else { break };
        started.push(start_ms / MINUTE_MS);
        last_ms = start_ms;
    }
    assert_eq!((started, missed), (vec![8, 9, 10], 7));
    assert_eq!(decide(&every_minute(), 0, 2 * MINUTE_MS + 9_000, fire_all(9)).0, Some(MINUTE_MS));
}

#[test]
fn every_second_within_the_threshold_loses_none() {
    let mut last_ms = 1_767_225_600_000;
    let now_ms = last_ms + 5_000;
    let mut started = 0;
    while let Some(start_ms) =
        due_now(&every_second(), last_ms, now_ms, Misfire::DoNothing, THRESHOLD_MS).start_ms
    {
        assert_eq!(start_ms, last_ms + 1_000);
        last_ms = start_ms;
        started += 1;
    }
    assert_eq!(started, 5);
}

#[test]
fn an_outage_of_a_year_is_decided_at_once() {
    let last_ms = 1_767_225_600_000;
    let now_ms = last_ms + 365 * 86_400_000 + 500;
    let none = Some(now_ms - 500 - 5_000 + 1_000);
    assert_eq!(decide(&every_second(), last_ms, now_ms, Misfire::DoNothing).0, none);
    let (start_ms, missed, _) = decide(&every_second(), last_ms, now_ms, fire_all(FIRE_ALL_MAX));
    assert_eq!(start_ms, Some(now_ms - 500 - 5_000 - 999_000));
    assert_eq!(missed, COUNTED_MAX - u64::from(FIRE_ALL_MAX));
    // Once a year, thrice.
    let yearly = Schedule::Cron(CronSchedule::new("@yearly", "UTC").unwrap());
    let now_ms = last_ms + 3 * 365 * 86_400_000 + 40 * 86_400_000;
    assert_eq!(
        decide(&yearly, last_ms, now_ms, Misfire::FireOnceNow),
        (Some(1_861_920_000_000), 2, Some(1_893_456_000_000))
    );
}

#[test]
fn a_one_off_job_that_was_missed_depends_on_the_strategy() {
    let once = Schedule::At(At::new(100_000).unwrap());
    assert_eq!(decide(&once, 0, 104_000, Misfire::DoNothing), (Some(100_000), 0, None));
    assert_eq!(decide(&once, 0, 200_000, Misfire::DoNothing), (None, 1, None));
    assert_eq!(decide(&once, 0, 200_000, Misfire::FireOnceNow), (Some(100_000), 0, None));
    assert_eq!(decide(&once, 100_000, 200_000, Misfire::FireOnceNow), (None, 0, None));
}

#[test]
fn a_fixed_delay_is_never_missed() {
    let delay = Schedule::FixedDelay(FixedDelay::new(10_000).unwrap());
    assert_eq!(decide(&delay, 5_000, 14_999, Misfire::DoNothing), (None, 0, Some(15_000)));
    assert_eq!(decide(&delay, 5_000, 99_000, Misfire::DoNothing), (Some(15_000), 0, None));
}

proptest! {
    /// Whatever the strategy: each occurrence up to now is started or counted as missed, none twice, and none early.
    #[test]
    fn every_occurrence_is_decided_once(
        outages_ms in prop::collection::vec(0..400_000_u64, 1..20),
        misfire in prop::sample::select(vec![Misfire::DoNothing, Misfire::FireOnceNow, fire_all(2), fire_all(50)]),
        every_ms in 1_000..90_000_u64,
    ) {
        let schedule = Schedule::FixedRate(FixedRate::new(every_ms, 77).unwrap());
        let (mut last_ms, mut now_ms, mut started, mut missed) = (100, 100, 0, 0);
        for outage_ms in outages_ms {
            now_ms += outage_ms;
            loop {
                let decision = due_now(&schedule, last_ms, now_ms, misfire, THRESHOLD_MS);
                missed += decision.missed;
                if let Some(start_ms) = decision.start_ms {
                    prop_assert!(start_ms > last_ms && start_ms <= now_ms);
                    started += 1;
                    last_ms = start_ms;
                } else if decision.missed > 0 {
                    last_ms = now_ms;
                }
                if decision.next_ms.is_none_or(|next_ms| next_ms > now_ms) {
                    break;
                }
            }
            let due = schedule.occurrences_between(101, now_ms + 1, usize::MAX).len() as u64;
            prop_assert_eq!(started + missed, due);
        }
    }
}
