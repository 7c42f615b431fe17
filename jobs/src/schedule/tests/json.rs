//! The stored form of schedules.

use crate::schedule::{FireAllLimit, Misfire, Schedule};

#[test]
fn each_schedule_has_one_stable_form() {
    let forms = [
        r#"{"cron":{"expression":"0 0/5 * * * ?","zone":"Asia/Shanghai"}}"#,
        r#"{"fixed_rate":{"every_ms":60000,"start_ms":1767225600000}}"#,
        r#"{"fixed_delay":{"delay_ms":60000}}"#,
        r#"{"at":{"time_ms":1767225600000}}"#,
        r#"{"times":{"times_ms":[1767225600000,1767225660000]}}"#,
    ];
    for form in forms {
        let schedule: Schedule = serde_json::from_str(form).unwrap();
        assert_eq!(serde_json::to_string(&schedule).unwrap(), form);
    }
}

#[test]
fn what_may_be_left_out_has_a_default() {
    let read = |text| serde_json::from_str::<Schedule>(text).unwrap();
    assert_eq!(
        read(r#"{"cron": {"expression": " @hourly  "}}"#),
        read(r#"{"cron": {"expression": "@hourly", "zone": "utc"}}"#)
    );
    assert_eq!(
        read(r#"{"fixed_rate": {"every_ms": 1000}}"#),
        read(r#"{"fixed_rate": {"every_ms": 1000, "start_ms": 0}}"#)
    );
}

#[test]
fn what_is_wrong_is_refused_with_a_reason() {
    let cases = [
        (r#"{"cron": {"expression": "0 0 0 30 2 ?"}}"#, "no time from 1970 to 2199 matches it"),
        (r#"{"cron": {"expression": "@daily", "zone": "Mars/Base"}}"#, "is not a time zone"),
        (r#"{"cron": {"expression": "@daily", "timezone": "UTC"}}"#, "unknown field `timezone`"),
        (r#"{"times": {"times_ms": []}}"#, "times_ms is empty"),
        (r#"{"fixed_rate": {"every_ms": 10}}"#, "between 1000 and 31622400000 milliseconds"),
        (r#"{"at": {"time_ms": 1767225600000000}}"#, "must be Unix milliseconds"),
    ];
    for (text, reason) in cases {
        let error = serde_json::from_str::<Schedule>(text).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn misfire_strategies_have_both_names() {
    let read = |text| serde_json::from_str::<Misfire>(text).unwrap();
    assert_eq!(read(r#""DO_NOTHING""#), Misfire::DoNothing);
    assert_eq!(read(r#""do_nothing""#), Misfire::DoNothing);
    assert_eq!(read(r#""FIRE_ONCE_NOW""#), Misfire::FireOnceNow);
    assert_eq!(read(r#"{"fire_all":{"limit":3}}"#), Misfire::FireAll(FireAllLimit::new(3).unwrap()));
    assert_eq!(serde_json::to_string(&Misfire::FireOnceNow).unwrap(), r#""fire_once_now""#);
    assert!(serde_json::from_str::<Misfire>(r#"{"fire_all":{"limit":0}}"#).is_err());
    assert!(serde_json::from_str::<Misfire>(r#"{"fire_all":{"limit":1001}}"#).is_err());
}
