//! Every refusal names its field and keeps nothing.

use crate::stage::{Mood, Stage, one_queue, request};
use std::time::Duration;
use windfall_proto::order::Invalid;
use windfall_proto::v1::{Bonus, SendBonusRequest, User};
use windfall_sdk::{
    CardDraw, DESCRIPTION_MAX_BYTES, DEVICE_ID_MAX_BYTES, EXTENSION_ENTRIES_MAX, EXTENSION_KEY_MAX_BYTES,
    EXTENSION_VALUE_MAX_BYTES, Prize, RedPacketRain, SdkOptions, SendError, User as SdkUser,
};

fn with(edit: impl FnOnce(&mut SendBonusRequest)) -> SendBonusRequest {
    let mut request = request("o-1", 1);
    edit(&mut request);
    request
}

fn with_user(edit: impl FnOnce(&mut User)) -> SendBonusRequest {
    with(|request| edit(request.user.as_mut().unwrap()))
}

fn with_bonus(edit: impl FnOnce(&mut Bonus)) -> SendBonusRequest {
    with(|request| edit(request.bonus.as_mut().unwrap()))
}

fn with_extension(key: &str, value: &str) -> SendBonusRequest {
    with(|request| drop(request.extension.insert(key.into(), value.into())))
}

#[test]
fn a_bad_field_is_named_and_nothing_is_kept() {
    let stage = Stage::open(SdkOptions::default(), &one_queue());
    let long = |bytes: usize| "x".repeat(bytes);
    let bad = [
        ("trade_no", with(|r| r.trade_no.clear())),
        ("trade_no", with(|r| r.trade_no = long(2048))),
        ("trade_no", with(|r| r.trade_no = long(129))),
        ("trade_no", with(|r| r.trade_no = "a\nb".into())),
        ("trade_no", with(|r| r.trade_no = "a\0".into())),
        ("trade_no", with(|r| r.trade_no = "红包-1".into())),
        ("user", with(|r| r.user = None)),
        ("user.user_id", with_user(|user| user.user_id = 0)),
        ("user.user_id", with_user(|user| user.user_id = -1)),
        ("user.user_id", with_user(|user| user.user_id = i64::MIN)),
        ("user.device_id", with_user(|user| user.device_id = long(DEVICE_ID_MAX_BYTES + 1))),
        ("user.device_id", with_user(|user| user.device_id = "\u{1b}[2J".into())),
        ("activity", with(|r| r.activity.clear())),
        ("activity", with(|r| r.activity = long(65))),
        ("scene", with(|r| r.scene.clear())),
        ("scene", with(|r| r.scene = "a b".into())),
        ("bonus", with(|r| r.bonus = None)),
        ("bonus.type", with_bonus(|bonus| bonus.r#type.clear())),
        ("bonus.type", with_bonus(|bonus| bonus.r#type = "Cash".into())),
        ("bonus.amount", with_bonus(|bonus| bonus.amount = 0)),
        ("bonus.amount", with_bonus(|bonus| bonus.amount = -888)),
        ("bonus.amount", with_bonus(|bonus| bonus.amount = i64::MAX)),
        ("bonus.amount", with_bonus(|bonus| bonus.amount = 1 << 53)),
        ("bonus.description", with_bonus(|bonus| bonus.description = long(DESCRIPTION_MAX_BYTES + 1))),
        ("award_time_ms", with(|r| r.award_time_ms = -1)),
        ("trace_id", with(|r| r.trace_id = vec![1; 15])),
        ("extension key", with_extension("", "v")),
        ("extension key", with_extension(&long(EXTENSION_KEY_MAX_BYTES + 1), "v")),
        ("extension value", with_extension("k", &long(EXTENSION_VALUE_MAX_BYTES + 1))),
        (
            "extension",
            with(|r| {
                r.extension = (0..=EXTENSION_ENTRIES_MAX).map(|n| (n.to_string(), String::new())).collect();
            }),
        ),
    ];
    for (named, request) in bad {
        match stage.sdk.send_bonus(&request) {
            Err(error @ SendError::Invalid { field, .. }) => {
                assert_eq!(field, named, "{request:?}");
                assert!(error.to_string().starts_with(named), "{error}");
                assert!(!error.is_worth_retrying());
            }
            other => panic!("{named}: {other:?}"),
        }
    }
    let other_app = with_user(|user| user.app_id = "other".into());
    assert!(
        matches!(stage.sdk.send_bonus(&other_app), Err(SendError::OtherApp { named, .. }) if named == "other")
    );
    let nowhere = with(|r| r.activity = "autumn".into());
    match stage.sdk.send_bonus(&nowhere) {
        Err(error @ SendError::NoRoute { .. }) => assert!(error.to_string().contains("autumn"), "{error}"),
        other => panic!("{other:?}"),
    }
    let unknown_type = with_bonus(|bonus| bonus.r#type = "yacht".into());
    assert!(
        matches!(stage.sdk.send_bonus(&unknown_type), Err(SendError::NoRoute { bonus_type, .. }) if bonus_type == "yacht")
    );

    let stats = stage.sdk.stats();
    assert_eq!((stats.sent, stats.spool_slots.0, stats.tokens_waiting), (0, 0, 0));
    stage.sdk.close_blocking(Duration::from_secs(60));
    assert!(stage.events().is_empty() && stage.tokens.held.lock().is_empty());
}

/// All texts at their longest fit, with packs of one, too.
#[test]
fn whatever_passes_the_checks_fits_a_pack() {
    for pack_events_max in [1, 256] {
        let options = SdkOptions { pack_events_max, ..SdkOptions::default() };
        let stage = Stage::open(options, &crate::stage::rules(1, &[("q", 100)], &[("*", "q")]));
        let mut widest = request(&"t".repeat(128), i64::MAX);
        widest.activity = "a".repeat(64);
        widest.scene = "s".repeat(64);
        widest.award_time_ms = windfall_contract::Clock::system().wall_ms();
        widest.trace_id = vec![7; 16];
        widest.user.as_mut().unwrap().device_id = "d".repeat(DEVICE_ID_MAX_BYTES);
        widest.bonus.as_mut().unwrap().description = "x".repeat(DESCRIPTION_MAX_BYTES);
        widest.extension = (0..EXTENSION_ENTRIES_MAX)
            .map(|n| (format!("{n:0EXTENSION_KEY_MAX_BYTES$}"), "v".repeat(EXTENSION_VALUE_MAX_BYTES)))
            .collect();
        stage.sdk.send_bonus(&widest).unwrap();
        stage.wait_for_events(1);
        assert_eq!(stage.events()[0].extension, widest.extension);
        stage.end();
    }
}

/// A stolen key must not put off the award time of its rewards: tokens of an activity are revoked by it.
#[test]
fn an_award_time_lies_no_further_ahead_than_clocks_may_differ() {
    let clock = windfall_contract::Clock::from_unix_ms(|| 1_800_000_000_000);
    let now_ms = clock.wall_ms();
    let open = |options: SdkOptions| Stage::with_clock(options, &one_queue(), Mood::Store, clock.clone());
    let at = |award_time_ms| with(|request| request.award_time_ms = award_time_ms);
    let stage = open(SdkOptions::default());
    for award_time_ms in [now_ms + 300_001, now_ms + 31 * 86_400_000, i64::MAX] {
        match stage.sdk.send_bonus(&at(award_time_ms)) {
            Err(SendError::Invalid { field: "award_time_ms", why: Invalid::Range { value, max } }) => {
                assert_eq!((value, max), (award_time_ms, now_ms + 300_000));
            }
            other => panic!("{award_time_ms}: {other:?}"),
        }
    }
    assert_eq!((stage.sdk.stats().sent, stage.sdk.stats().spool_slots.0), (0, 0));
    for award_time_ms in [1, now_ms - 31 * 86_400_000, now_ms, now_ms + 300_000] {
        stage.sdk.send_bonus(&at(award_time_ms)).unwrap();
    }
    let none_ahead = open(SdkOptions { award_time_ahead_max_ms: 0, ..SdkOptions::default() });
    none_ahead.sdk.send_bonus(&at(now_ms)).unwrap();
    assert!(none_ahead.sdk.send_bonus(&at(now_ms + 1)).is_err());
    stage.break_off();
    none_ahead.break_off();
}

#[test]
fn a_scene_refuses_what_it_could_never_send() {
    let stage = Stage::open(SdkOptions::default(), &one_queue());
    assert!(matches!(
        RedPacketRain::new(&stage.sdk, "", "cash"),
        Err(SendError::Invalid { field: "activity", .. })
    ));
    assert!(matches!(
        RedPacketRain::new(&stage.sdk, "spring", "CASH"),
        Err(SendError::Invalid { field: "bonus.type", .. })
    ));
    assert!(matches!(CardDraw::new(&stage.sdk, "autumn", "cash"), Err(SendError::NoRoute { .. })));
    let rain = RedPacketRain::new(&stage.sdk, "spring", "cash").unwrap();
    let refused = rain.send(1, SdkUser::id(0), 0, Prize::of(1));
    assert!(matches!(refused, Err(SendError::Invalid { field: "user.user_id", .. })));
    let refused = rain.send(1, SdkUser::id(1), 0, Prize::of(0));
    assert!(matches!(refused, Err(SendError::Invalid { field: "bonus.amount", .. })));
    assert_eq!(stage.sdk.stats().sent, 0);
}

#[test]
fn a_batch_answers_each_in_order() {
    let stage = Stage::open(SdkOptions::default(), &one_queue());
    let answers = stage.sdk.send_bonus_batch(&[request("o-1", 1), request("", 1), request("o-2", 2)]);
    assert!(answers[0].is_ok() && answers[1].is_err() && answers[2].is_ok());
    stage.wait_for_events(2);
    assert_eq!(stage.arrived(), ["o-1", "o-2"]);
}
