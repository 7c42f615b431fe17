//! How events become records.

use crate::stage::{Mood, Stage, one_queue, request, rules, standing_clock, wait_until};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use windfall_proto::v1::{BonusEventBatch, SendBonusRequest};
use windfall_sdk::{InitError, Sdk, SdkOptions, SdkParts, SpoolMode};

/// Packs of one lane on one thread: nothing closes them but their size, unless a test sets the linger.
fn patient() -> SdkOptions {
    SdkOptions { linger_ms: 1_000, shards: 1, ..SdkOptions::default() }
}

fn batches(stage: &Stage) -> Vec<BonusEventBatch> {
    stage.records().into_iter().map(|(_, batch)| batch).collect()
}

#[test]
fn a_full_pack_goes_at_once() {
    // Nothing of the linger passes before the test moves the clock.
    let (now_ms, clock) = standing_clock();
    let stage = Stage::with_clock(patient(), &one_queue(), Mood::Store, clock);
    for number in 0..513 {
        stage.sdk.send_bonus(&request(&format!("o-{number}"), 1)).unwrap();
    }
    stage.wait_for_events(512);
    wait_until("both packs are acknowledged", || stage.fanout.stats().pending_records == 0);
    let sizes: Vec<_> = batches(&stage).iter().map(|batch| batch.count).collect();
    assert_eq!(sizes, [256, 256]);
    now_ms.fetch_add(1_000, SeqCst);
    stage.wait_for_events(513);
    for batch in batches(&stage) {
        assert_eq!(batch.count as usize, batch.events.len());
        assert_eq!(
            (batch.r#type.as_str(), batch.attempt, batch.failures, batch.not_before_ms),
            ("cash", 0, 0, 0)
        );
    }
}

#[test]
fn a_lonely_event_waits_for_the_linger_and_no_longer() {
    let (now_ms, clock) = standing_clock();
    let options = SdkOptions { linger_ms: 80, ..patient() };
    let stage = Stage::with_clock(options, &one_queue(), Mood::Store, clock);
    stage.sdk.send_bonus(&request("o-1", 1)).unwrap();
    now_ms.fetch_add(79, SeqCst);
    // The pump looks at it many times meanwhile.
    std::thread::sleep(Duration::from_millis(100));
    assert!(stage.arrived().is_empty(), "it was sent before its linger was over");
    now_ms.fetch_add(1, SeqCst);
    stage.wait_for_events(1);
}

#[test]
fn a_pack_holds_at_most_64_kib() {
    let (_, clock) = standing_clock();
    let stage = Stage::with_clock(patient(), &one_queue(), Mood::Store, clock);
    let large = |number: u32| -> SendBonusRequest {
        let mut request = request(&format!("o-{number}"), 1);
        request.extension = (0..16).map(|n| (n.to_string(), "v".repeat(512))).collect();
        request
    };
    for number in 0..20 {
        stage.sdk.send_bonus(&large(number)).unwrap();
    }
    stage.sdk.close_blocking(Duration::from_secs(60));
    assert_eq!(stage.arrived().len(), 20);
    assert!(stage.a.records.lock().iter().all(|(_, bytes)| bytes.len() <= (64 << 10) + 96));
    let sizes: Vec<_> = batches(&stage).iter().map(|batch| batch.count).collect();
    assert_eq!(sizes, [7, 7, 6], "8.4 KiB each");
}

#[test]
fn a_pack_of_one_is_there_for_foreign_readers() {
    let stage = Stage::open(SdkOptions { pack_events_max: 1, ..SdkOptions::default() }, &one_queue());
    for number in 0..100 {
        stage.sdk.send_bonus(&request(&format!("o-{number}"), 1)).unwrap();
    }
    stage.wait_for_events(100);
    assert!(batches(&stage).iter().all(|batch| batch.count == 1));
    assert_eq!(stage.records().len(), 100);
}

#[test]
fn a_record_is_of_one_type_and_one_side() {
    let stage = Stage::open(SdkOptions::default(), &rules(1, &[("q", 50)], &[("*", "q")]));
    for user_id in 1..=200 {
        for bonus_type in ["cash", "coin"] {
            let mut request = request(&format!("o-{user_id}-{bonus_type}"), user_id);
            request.bonus.as_mut().unwrap().r#type = bonus_type.into();
            stage.sdk.send_bonus(&request).unwrap();
        }
    }
    stage.wait_for_events(400);
    for (topic, batch) in stage.records() {
        for event in batch.events {
            assert_eq!(event.bonus.unwrap().r#type, batch.r#type);
            let side = if event.user.unwrap().user_id % 100 < 50 { "q-a" } else { "q-b" };
            assert_eq!(topic, side);
        }
    }
}

#[test]
fn options_out_of_range_are_named() {
    for (options, named) in [
        (SdkOptions { linger_ms: 1_001, ..SdkOptions::default() }, "linger_ms"),
        (SdkOptions { pack_events_max: 0, ..SdkOptions::default() }, "pack_events_max"),
        (SdkOptions { pack_events_max: 257, ..SdkOptions::default() }, "pack_events_max"),
        (SdkOptions { shards: 0, ..SdkOptions::default() }, "shards"),
        (SdkOptions { spool_bytes: 1, ..SdkOptions::default() }, "spool_bytes"),
        (
            SdkOptions { not_before_ahead_max_ms: 31_536_000_001, ..SdkOptions::default() },
            "not_before_ahead_max_ms",
        ),
        (
            SdkOptions { award_time_ahead_max_ms: 86_400_001, ..SdkOptions::default() },
            "award_time_ahead_max_ms",
        ),
        (SdkOptions { mint_after_ms: 86_400_001, ..SdkOptions::default() }, "mint_after_ms"),
        (SdkOptions { tokens_waiting_max: 0, ..SdkOptions::default() }, "tokens_waiting_max"),
        (SdkOptions { tokens_batch: 0, ..SdkOptions::default() }, "tokens_batch"),
        (SdkOptions { tokens_timeout_ms: 0, ..SdkOptions::default() }, "tokens_timeout_ms"),
        (SdkOptions { app_id: String::new(), ..SdkOptions::default() }, "app_id"),
    ] {
        let stage = Stage::open(SdkOptions::default(), &one_queue());
        let parts = SdkParts {
            spool: SpoolMode::LossyMemory,
            keys: stage.ring.clone(),
            signer: None,
            rules: windfall_config::LiveRules::fixed(
                windfall_config::parse_rules(&one_queue(), None).unwrap(),
            ),
            fanout: stage.fanout.clone(),
            tokens: None,
            clock: windfall_contract::Clock::system(),
        };
        match Sdk::init(options, parts) {
            Err(InitError::Option(text)) => assert!(text.starts_with(named), "{text}"),
            other => panic!("{named}: {:?}", other.map(|(_, inherited)| inherited)),
        }
    }
}
