//! The token store is a weak dependency. // I8

use crate::stage::{Stage, comes_back, one_queue, request, wait_until};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use windfall_sdk::SdkOptions;

#[test]
fn every_token_reaches_the_store() {
    let stage = Stage::open(SdkOptions::default(), &one_queue());
    let mut expected = std::collections::BTreeMap::new();
    for number in 0..3_000 {
        let trade_no = format!("o-{number}");
        let reply = stage.sdk.send_bonus(&request(&trade_no, number % 7 + 1)).unwrap();
        expected.insert((number % 7 + 1, format!("{trade_no} spring")), reply.token);
    }
    stage.sdk.close_blocking(Duration::from_secs(60));
    assert_eq!(*stage.tokens.held.lock(), expected);
    let stats = stage.sdk.stats();
    assert_eq!((stats.tokens_written, stats.tokens_waiting, stats.tokens_dropped), (3_000, 0, 0));
}

#[test]
fn sends_go_on_while_the_store_is_down_and_are_counted() {
    let options = SdkOptions { tokens_waiting_max: 100, shards: 1, ..SdkOptions::default() };
    let stage = Stage::open(options, &one_queue());
    stage.tokens.is_down.store(true, SeqCst);
    for number in 0..1_000 {
        stage.sdk.send_bonus(&request(&format!("o-{number}"), 1)).unwrap();
    }
    stage.wait_for_events(1_000);
    wait_until("a failure was counted", || stage.sdk.stats().token_store_failures > 0);
    let down = stage.sdk.stats();
    assert!(down.tokens_waiting <= 200, "the buffer and what is in hand: {down:?}");
    assert!(down.tokens_dropped >= 800, "{down:?}");

    stage.tokens.is_down.store(false, SeqCst);
    wait_until("what waited is written", || stage.sdk.stats().tokens_waiting == 0);
    stage.sdk.send_bonus(&request("later", 1)).unwrap();
    wait_until("and new ones too", || stage.tokens.held.lock().contains_key(&(1, "later spring".into())));
    let up = stage.sdk.stats();
    assert_eq!(up.tokens_written + up.tokens_dropped, 1_001, "{up:?}");
}

/// I8, I9: calls take what they take; what the store would have been given is counted.
#[test]
fn a_store_that_hangs_delays_no_call_and_what_it_misses_is_counted() {
    let options =
        SdkOptions { tokens_waiting_max: 100, tokens_batch: 10, shards: 1, ..SdkOptions::default() };
    let stage = Stage::open(options, &one_queue());
    stage.tokens.hangs.store(true, SeqCst);
    let sdk = stage.sdk.clone();
    // The store is let go after them. With its time-out of 500 ms for each batch they would take four minutes.
    comes_back("a call waits for the token store", move || {
        for number in 0..5_000 {
            sdk.send_bonus(&request(&format!("o-{number}"), 1)).unwrap();
        }
    });
    stage.wait_for_events(5_000);
    wait_until("a time-out was counted", || stage.sdk.stats().token_store_failures > 0);
    let down = stage.sdk.stats();
    assert!(down.tokens_dropped >= 4_800 && down.tokens_waiting <= 200, "{down:?}");
    stage.tokens.hangs.store(false, SeqCst);
    wait_until("what waited is written", || stage.sdk.stats().tokens_waiting == 0);
    let up = stage.sdk.stats();
    assert_eq!(up.tokens_written + up.tokens_dropped, 5_000, "{up:?}");
}

/// A thousand batches and a time-out each would be more than three minutes.
#[test]
fn close_does_not_wait_for_a_store_that_hangs() {
    let stage = Stage::open(
        SdkOptions { tokens_timeout_ms: 200, tokens_batch: 1, ..SdkOptions::default() },
        &one_queue(),
    );
    stage.tokens.hangs.store(true, SeqCst);
    for number in 0..1_000 {
        stage.sdk.send_bonus(&request(&format!("o-{number}"), 1)).unwrap();
    }
    let sdk = stage.sdk.clone();
    let report =
        comes_back("the close waits for tokens", move || sdk.close_blocking(Duration::from_secs(600)));
    assert_eq!(report.packs_left, 0, "events do not wait for tokens");
    let stats = stage.sdk.stats();
    assert_eq!((stats.tokens_dropped, stats.tokens_waiting), (1_000, 0));
}
