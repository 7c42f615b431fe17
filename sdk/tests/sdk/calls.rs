//! What a call gives and what it sends.

use crate::stage::{Stage, one_queue, request};
use prost::Message;
use std::collections::BTreeSet;
use std::time::Duration;
use windfall_proto::v1::{BonusEvent, BonusToken};
use windfall_sdk::{CardDraw, Fireworks, Prize, RedPacketRain, SdkOptions, SendError, User};

#[test]
fn the_event_is_the_request_and_when_it_was_first_sent() {
    let stage = Stage::open(SdkOptions::default(), &one_queue());
    let mut sent = request("o-1", 7);
    sent.user.as_mut().unwrap().device_id = "phone".into();
    sent.award_time_ms = 1_700_000_000_000;
    sent.trace_id = (0..16).collect();
    sent.extension = [("shard".to_owned(), "eu".to_owned())].into();
    stage.sdk.send_bonus(&sent).unwrap();
    stage.wait_for_events(1);
    let event = stage.events().remove(0);
    assert!(event.first_sent_ms > 1_700_000_000_000, "{}", event.first_sent_ms);

    let mut user = sent.user.clone().unwrap();
    user.app_id = "windfall".into();
    let expected = BonusEvent {
        trade_no: sent.trade_no.clone(),
        user: Some(user),
        activity: sent.activity.clone(),
        scene: sent.scene.clone(),
        bonus: sent.bonus.clone(),
        award_time_ms: sent.award_time_ms,
        first_sent_ms: event.first_sent_ms,
        trace_id: sent.trace_id.clone(),
        extension: sent.extension.clone(),
        not_before_ms: 0,
    };
    assert_eq!(event, expected);
    let (_, bytes) = stage.a.records.lock()[0].clone();
    let at = bytes.len() - expected.encoded_len();
    assert_eq!(bytes[at..], expected.encode_to_vec(), "byte for byte");
}

#[test]
fn the_token_opens_and_says_what_the_event_says() {
    let stage = Stage::open(SdkOptions::default(), &one_queue());
    let reply = stage.sdk.send_bonus(&request("o-1", 7)).unwrap();
    stage.wait_for_events(1);
    let event = stage.events().remove(0);
    let bonus = event.bonus.unwrap();
    let token = stage.ring.open(reply.token.as_bytes(), "windfall", 7).unwrap();
    assert_eq!(event.award_time_ms, event.first_sent_ms, "won at the moment of the call");
    let expected = BonusToken {
        trade_no: event.trade_no,
        user_id: 7,
        app_id: "windfall".into(),
        activity: event.activity,
        scene: event.scene,
        bonus_type: bonus.r#type,
        amount: bonus.amount,
        award_time_ms: event.award_time_ms,
        description: bonus.description,
    };
    assert_eq!(token, expected);
    assert!(stage.ring.open(reply.token.as_bytes(), "windfall", 8).is_err());
}

#[test]
fn order_numbers_of_the_helpers_are_unique_and_sort_by_round() {
    let stage = Stage::open(SdkOptions::default(), &one_queue());
    let sdk = &stage.sdk;
    let rain = RedPacketRain::new(sdk, "spring", "cash").unwrap();
    let coins = RedPacketRain::new(sdk, "spring", "coin").unwrap();
    let draw = CardDraw::new(sdk, "spring", "cash").unwrap();
    let show = Fireworks::new(sdk, "spring", "cash").unwrap();
    let mut seen = BTreeSet::new();
    let mut made = 0;
    // Pairs that would meet if numbers were put together without a mark between them.
    for round in [0, 1, 9, 10, 11, 99, 100, u32::MAX] {
        for user_id in [1, 11, 111, i64::MAX] {
            for number in [0, 1, 11, u32::MAX] {
                let all = [
                    rain.trade_no(round, user_id, number),
                    coins.trade_no(round, user_id, number),
                    draw.trade_no(round, user_id, number),
                    show.trade_no(round, user_id, number),
                ];
                made += all.len();
                seen.extend(all);
            }
        }
    }
    assert_eq!(seen.len(), made);
    let rounds = [0, 1, 2, 9, 10, 100, 4_000_000_000];
    let numbers: Vec<_> = rounds.map(|round| rain.trade_no(round, 999 - i64::from(round % 7), 0)).into();
    assert!(numbers.is_sorted(), "{numbers:?}");

    let prize = Prize { amount: 5, description: "five" };
    rain.send(3, User { user_id: 42, device_id: "phone" }, 1, prize).unwrap();
    stage.wait_for_events(1);
    let event = stage.events().remove(0);
    assert_eq!(event.trade_no, rain.trade_no(3, 42, 1));
    assert_eq!((event.activity.as_str(), event.scene.as_str()), ("spring", RedPacketRain::SCENE));
    assert_eq!(event.user.unwrap().device_id, "phone");
}

#[test]
fn many_threads_at_once_every_ok_arrives_exactly_once() {
    let stage = Stage::open(SdkOptions::default(), &one_queue());
    let (threads, each) = (8, 3_000);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let sdk = stage.sdk.clone();
            scope.spawn(move || {
                for number in 0..each {
                    let request = request(&format!("o-{thread}-{number}"), number + 1);
                    while let Err(error) = sdk.send_bonus(&request) {
                        assert_eq!(error, SendError::SpoolFull);
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert_eq!(stage.sdk.close_blocking(Duration::from_secs(60)).packs_left, 0);
    let mut expected: Vec<_> =
        (0..threads).flat_map(|thread| (0..each).map(move |number| format!("o-{thread}-{number}"))).collect();
    expected.sort();
    assert_eq!(stage.arrived(), expected);
    assert_eq!(stage.sdk.stats().sent, expected.len() as u64);
}

/// Senders race `close`: what got Ok arrives, what did not is told so.
#[test]
fn an_ok_before_close_arrives_whoever_closes_meanwhile() {
    for _ in 0..20 {
        let stage = Stage::open(SdkOptions::default(), &one_queue());
        let mut taken: Vec<String> = std::thread::scope(|scope| {
            let senders: Vec<_> = (0..4)
                .map(|thread| {
                    let sdk = stage.sdk.clone();
                    scope.spawn(move || {
                        (0..)
                            .map(|number| format!("o-{thread}-{number}"))
                            .take_while(|trade_no| match sdk.send_bonus(&request(trade_no, 1)) {
                                Ok(_) => true,
                                Err(error) => {
                                    assert!(
                                        matches!(error, SendError::Closed | SendError::SpoolFull),
                                        "{error}"
                                    );
                                    false
                                }
                            })
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(3));
            assert_eq!(stage.sdk.close_blocking(Duration::from_secs(60)).packs_left, 0);
            senders.into_iter().flat_map(|sender| sender.join().unwrap()).collect()
        });
        taken.sort();
        assert_eq!(stage.arrived(), taken);
        assert_eq!(stage.sdk.send_bonus(&request("late", 1)), Err(SendError::Closed));
        stage.fanout.close(Duration::from_secs(1));
    }
}

/// The last handle stops the threads; what was taken still reaches the fan-out.
#[test]
fn a_dropped_sdk_hands_over_what_it_has() {
    let stage = Stage::open(SdkOptions { linger_ms: 1_000, ..SdkOptions::default() }, &one_queue());
    stage.sdk.send_bonus(&request("o-1", 1)).unwrap();
    let Stage { sdk, fanout, a, .. } = stage;
    drop(sdk);
    fanout.close(Duration::from_secs(5));
    assert_eq!(a.records.lock().len(), 1);
}
