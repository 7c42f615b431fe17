//! Our engine compared with the crate `croner`, on random expressions, times and zones.
//!
//! Left out is where the two differ on purpose: lists and ranges of times while clocks change (for croner they are
//! intervals), `L` as a weekday, `L-3`, and ranges over the end.

use super::cron;
use crate::schedule::CronSchedule;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Timestamp;
use proptest::prelude::*;

const ZONES: [&str; 6] =
    ["UTC", "Asia/Shanghai", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago"];

/// A field of a time of day that is one number.
fn number(low: u32, high: u32) -> impl Strategy<Value = String> {
    (low..=high).prop_map(|value| value.to_string())
}

/// A field with lists, ranges and steps.
fn field(low: u32, high: u32) -> impl Strategy<Value = String> {
    let range =
        (low..=high, low..=high).prop_map(|(one, other)| format!("{}-{}", one.min(other), one.max(other)));
    let item = prop_oneof![number(low, high), range.clone()];
    prop_oneof![
        3 => Just("*".to_owned()),
        3 => number(low, high),
        1 => prop::collection::vec(item, 1..4).prop_map(|items| items.join(",")),
        1 => (2..=high).prop_map(|step| format!("*/{step}")),
        1 => (range, 1..=high).prop_map(|(range, step)| format!("{range}/{step}")),
    ]
}

fn day_of_month() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => field(1, 31),
        1 => (1..=31_u32).prop_map(|day| format!("{day}W")),
        1 => prop::sample::select(vec!["L", "LW"]).prop_map(str::to_owned),
    ]
}

fn weekday(low: u32) -> impl Strategy<Value = String> {
    prop_oneof![
        3 => field(low, low + 6),
        1 => (low..=low + 6, 1..=5_u32).prop_map(|(day, nth)| format!("{day}#{nth}")),
        1 => (low..=low + 6).prop_map(|day| format!("{day}L")),
        1 => prop::sample::select(vec!["MON", "TUE-FRI", "SAT"]).prop_map(str::to_owned),
    ]
}

/// A second, minute and hour that are all numbers, or one of which has a star.
fn times() -> impl Strategy<Value = [String; 3]> {
    prop_oneof![
        (number(0, 59), number(0, 59), number(0, 23))
            .prop_map(|(second, minute, hour)| [second, minute, hour]),
        (field(0, 59), field(0, 59), Just("*".to_owned()))
            .prop_map(|(second, minute, hour)| [second, minute, hour]),
        (Just("*/7".to_owned()), field(0, 59), field(0, 23))
            .prop_map(|(second, minute, hour)| [second, minute, hour]),
    ]
}

fn quartz() -> impl Strategy<Value = String> {
    let days = prop_oneof![
        day_of_month().prop_map(|day| (day, "?".to_owned())),
        weekday(1).prop_map(|weekday| ("?".to_owned(), weekday)),
    ];
    let year = prop_oneof![3 => Just(String::new()), 1 => Just(" 2026-2040/3".to_owned())];
    (times(), days, field(1, 12), year).prop_map(|([second, minute, hour], (day, weekday), month, year)| {
        format!("{second} {minute} {hour} {day} {month} {weekday}{year}")
    })
}

fn unix() -> impl Strategy<Value = String> {
    (times(), day_of_month(), field(1, 12), weekday(0)).prop_map(
        |([_, minute, hour], day, month, weekday)| format!("{minute} {hour} {day} {month} {weekday}"),
    )
}

/// Whether croner takes the expression for one of fixed times exactly if we do.
fn is_alike(expression: &str) -> bool {
    let words: Vec<&str> = expression.split(' ').collect();
    let times = if words.len() == 5 { &words[..2] } else { &words[..3] };
    let is_interval = times.iter().any(|word| word.contains(['*', '/']));
    is_interval || times.iter().all(|word| word.parse::<u32>().is_ok())
}

fn croner(expression: &str) -> croner::Cron {
    let words: Vec<&str> = expression.split(' ').collect();
    let parser = if words.len() == 5 {
        let both = words[2].starts_with('*') || words[4].starts_with('*');
        CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).dom_and_dow(both).build()
    } else {
        CronParser::builder().seconds(Seconds::Required).alternative_weekdays(true).build()
    };
    parser.parse(expression).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn croner_finds_the_same_occurrences(
        expression in prop_oneof![quartz(), unix()],
        zone in prop::sample::select(ZONES.to_vec()),
        // Around a change of the clock as often as anywhere.
        start_s in prop_oneof![
            1_767_225_600_i64..1_893_456_000,
            1_774_742_400_i64..1_774_756_800,
            1_792_886_400_i64..1_792_900_800,
            1_775_311_200_i64..1_775_325_600,
        ],
    ) {
        prop_assume!(is_alike(&expression));
        if CronSchedule::new(&expression, zone).is_err() {
            // Nothing else is refused than what never matches.
            let start = Timestamp::UNIX_EPOCH.in_tz(zone).unwrap();
            let found = croner(&expression).find_next_occurrence(&start, false);
            prop_assert!(found.is_err(), "{expression} is refused");
            return Ok(());
        }
        let ours = cron(&expression, zone);
        let theirs = croner(&expression);
        let mut now = Timestamp::from_second(start_s).unwrap().in_tz(zone).unwrap();
        for _ in 0..20 {
            let now_ms = u64::try_from(now.timestamp().as_millisecond()).unwrap();
            let expected = theirs.find_next_occurrence(&now, false).ok().filter(|due| due.year() < 2200);
            let expected_ms = expected.as_ref().map(|due| u64::try_from(due.timestamp().as_millisecond()).unwrap());
            prop_assert_eq!(ours.next_after(now_ms), expected_ms, "{} in {} after {}", expression, zone, now);
            let Some(due) = expected else { break };
            now = due;
        }
    }
}
