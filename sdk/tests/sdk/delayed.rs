//! Rewards that are not to be granted before a time.

use crate::stage::{Mood, Stage, on_file, one_queue, request, wait_until};
use std::time::{SystemTime, UNIX_EPOCH};
use windfall_proto::order::Invalid;
use windfall_proto::v1::SendBonusRequest;
use windfall_sdk::{SdkOptions, SendError};

fn now_ms() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

fn later(trade_no: &str, not_before_ms: i64) -> SendBonusRequest {
    SendBonusRequest { not_before_ms, ..request(trade_no, 1) }
}

/// Number of events and due time of each record, in the order of the first event's number.
fn records(stage: &Stage) -> Vec<(String, u32, i64)> {
    let of = |(_, batch): (String, windfall_proto::v1::BonusEventBatch)| {
        (batch.events[0].trade_no.clone(), batch.count, batch.not_before_ms)
    };
    let mut all: Vec<_> = stage.records().into_iter().map(of).collect();
    all.sort();
    all
}

#[test]
fn a_reward_for_later_travels_alone_and_its_record_says_when() {
    let options = SdkOptions { linger_ms: 1_000, shards: 1, ..SdkOptions::default() };
    let stage = Stage::open(options, &one_queue());
    let due_ms = now_ms() + 200_000;
    stage.sdk.send_bonus(&request("o-1", 1)).unwrap();
    let reply = stage.sdk.send_bonus(&later("o-2", due_ms)).unwrap();
    stage.sdk.send_bonus(&later("o-3", due_ms)).unwrap();
    // Its time has passed: it is like any other.
    stage.sdk.send_bonus(&later("o-4", 1)).unwrap();
    assert!(stage.ring.open(reply.token.as_bytes(), "windfall", 1).is_ok(), "the token is there at once");
    stage.wait_for_events(4);
    let one = |trade_no: &str, count, due_ms| (trade_no.to_owned(), count, due_ms);
    assert_eq!(records(&stage), [one("o-1", 2, 0), one("o-2", 1, due_ms), one("o-3", 1, due_ms)]);
    let mut own: Vec<_> =
        stage.events().into_iter().map(|event| (event.trade_no, event.not_before_ms)).collect();
    own.sort();
    assert_eq!(own.iter().map(|(_, due_ms)| *due_ms).collect::<Vec<_>>(), [0, due_ms, due_ms, 1]);
}

#[test]
fn a_time_too_far_ahead_is_refused_and_keeps_nothing() {
    let stage = Stage::open(SdkOptions::default(), &one_queue());
    for not_before_ms in [-1, now_ms() + 310_000, i64::MAX] {
        match stage.sdk.send_bonus(&later("o-1", not_before_ms)) {
            Err(SendError::Invalid { field: "not_before_ms", why: Invalid::Range { value, .. } }) => {
                assert_eq!(value, not_before_ms);
            }
            other => panic!("{not_before_ms}: {other:?}"),
        }
    }
    assert_eq!((stage.sdk.stats().sent, stage.sdk.stats().spool_slots.0), (0, 0));
    let wider = SdkOptions { not_before_ahead_max_ms: 86_400_000, ..SdkOptions::default() };
    let stage = Stage::open(wider, &one_queue());
    stage.sdk.send_bonus(&later("o-1", now_ms() + 86_000_000)).unwrap();
    stage.wait_for_events(1);
}

/// The next process finds events in the spool without their record's head.
#[test]
fn a_reward_for_later_that_an_earlier_process_left_is_still_one_for_later() {
    let root = tempfile::tempdir().unwrap();
    let due_ms = now_ms() + 200_000;
    let stage = Stage::with_brokers(on_file(root.path()), &one_queue(), Mood::Refuse);
    stage.sdk.send_bonus(&request("o-1", 1)).unwrap();
    stage.sdk.send_bonus(&later("o-2", due_ms)).unwrap();
    stage.break_off();
    let stage = Stage::open(on_file(root.path()), &one_queue());
    assert_eq!(stage.inherited.events, 2, "{:?}", stage.inherited);
    stage.wait_for_events(2);
    assert_eq!(records(&stage), [("o-1".to_owned(), 1, 0), ("o-2".to_owned(), 1, due_ms)]);
    wait_until("all are away", || stage.sdk.stats().packs_in_flight == 0);
    stage.end();
}
