//! Rules change while events flow.

use crate::stage::{Mood, Stage, request, rules, wait_until};
use std::collections::BTreeSet;
use std::time::Duration;
use windfall_sdk::{SdkOptions, SendError, TopicState};

fn topics(stage: &Stage) -> BTreeSet<String> {
    stage.records().into_iter().map(|(topic, _)| topic).collect()
}

#[test]
fn the_ratio_moves_users_to_the_other_side() {
    let stage = Stage::open(SdkOptions::default(), &rules(1, &[("q", 100)], &[("*", "q")]));
    stage.sdk.send_bonus(&request("o-1", 7)).unwrap();
    stage.wait_for_events(1);
    stage.change_rules(&rules(2, &[("q", 0)], &[("*", "q")]));
    stage.sdk.send_bonus(&request("o-2", 7)).unwrap();
    stage.wait_for_events(2);
    let sides: Vec<_> =
        stage.records().into_iter().map(|(topic, batch)| (topic, batch.events[0].trade_no.clone())).collect();
    assert_eq!(sides, [("q-a".into(), "o-1".into()), ("q-b".into(), "o-2".into())]);
}

#[test]
fn a_new_queue_takes_over_and_a_removed_route_refuses() {
    let stage = Stage::open(SdkOptions::default(), &rules(1, &[("q", 100)], &[("*", "q")]));
    stage.change_rules(&rules(2, &[("q", 100), ("new", 100)], &[("spring", "new"), ("*", "q")]));
    stage.sdk.send_bonus(&request("o-1", 1)).unwrap();
    stage.wait_for_events(1);
    assert_eq!(topics(&stage), ["new-a".to_owned()].into());
    stage.change_rules(&rules(3, &[("q", 100)], &[("autumn", "q")]));
    assert!(matches!(stage.sdk.send_bonus(&request("o-2", 1)), Err(SendError::NoRoute { .. })));
}

/// A queue goes while its events gather: they are routed anew, and where no route takes them they wait for one.
#[test]
fn events_of_a_queue_that_goes_are_not_lost() {
    let options = SdkOptions { linger_ms: 300, ..SdkOptions::default() };
    let stage = Stage::open(options, &rules(1, &[("q", 100)], &[("*", "q")]));
    stage.sdk.send_bonus(&request("o-1", 1)).unwrap();
    stage.change_rules(&rules(2, &[("other", 100)], &[("*", "other")]));
    stage.wait_for_events(1);
    assert_eq!(topics(&stage), ["other-a".to_owned()].into());

    stage.sdk.send_bonus(&request("o-2", 1)).unwrap();
    stage.change_rules(&rules(3, &[("third", 100)], &[("autumn", "third")]));
    wait_until("it waits, visibly", || stage.sdk.stats().packs_waiting == 1);
    assert_eq!(stage.sdk.stats().packs_in_flight, 1);
    stage.change_rules(&rules(4, &[("third", 100)], &[("*", "third")]));
    stage.wait_for_events(2);
    assert_eq!(stage.arrived(), ["o-1", "o-2"]);
    wait_until("nothing waits", || stage.sdk.stats().packs_in_flight == 0);
}

/// Opening a new topic hangs: the new rules are in force at once, and events take the other topic of the queue.
#[test]
fn a_broker_that_is_slow_to_open_a_topic_stops_nobody() {
    let stage = Stage::open(SdkOptions::default(), &rules(1, &[("q", 100)], &[("*", "q")]));
    let door = stage.a.door.lock();
    stage.apply_rules(&rules(2, &[("new", 100)], &[("*", "new")]));
    for number in 0..50 {
        stage.sdk.send_bonus(&request(&format!("o-{number}"), 1)).unwrap();
    }
    stage.wait_for_events(50);
    assert_eq!(topics(&stage), ["new-b".to_owned()].into());
    let opening = stage.sdk.topics().into_iter().find(|topic| topic.topic == "new-a").unwrap();
    assert_eq!((opening.broker.as_str(), opening.state), ("a", TopicState::Opening));
    drop(door);
    wait_until("the new topic is ready", || {
        stage.sdk.topics().iter().any(|topic| topic.topic == "new-a" && topic.state == TopicState::Ready)
    });
    stage.sdk.send_bonus(&request("o-50", 1)).unwrap();
    stage.wait_for_events(51);
    assert!(topics(&stage).contains("new-a"));
}

/// The rules drop a queue while both its brokers are away: what waits for it takes the route of now.
#[test]
fn events_of_a_queue_that_goes_while_its_brokers_are_away_take_the_route_of_now() {
    let stage =
        Stage::with_brokers(SdkOptions::default(), &rules(1, &[("q", 100)], &[("*", "q")]), Mood::Refuse);
    for number in 0..300 {
        stage.sdk.send_bonus(&request(&format!("o-{number:03}"), 1)).unwrap();
    }
    wait_until("the fan-out has them", || stage.fanout.stats().pending_records >= 2);
    stage.change_rules(&rules(2, &[("other", 100)], &[("autumn", "other")]));
    wait_until("they wait for a route", || stage.sdk.stats().packs_waiting >= 2);
    for broker in [&stage.a, &stage.b] {
        *broker.mood.lock() = Mood::Store;
    }
    stage.change_rules(&rules(3, &[("other", 100)], &[("*", "other")]));
    stage.wait_for_events(300);
    assert!(topics(&stage).iter().all(|topic| topic.starts_with("other-")));
    assert_eq!(stage.arrived().len(), 300);
    wait_until("nothing waits", || stage.sdk.stats().packs_in_flight == 0);
}

#[test]
fn under_changes_every_ok_arrives() {
    let stage = Stage::open(
        SdkOptions { linger_ms: 20, ..SdkOptions::default() },
        &rules(1, &[("q0", 100)], &[("*", "q0")]),
    );
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..3)
            .map(|thread| {
                let sdk = stage.sdk.clone();
                scope.spawn(move || {
                    for number in 0..1_500 {
                        let trade_no = format!("o-{thread}-{number}");
                        while sdk.send_bonus(&request(&trade_no, number + 1)).is_err() {
                            std::thread::yield_now();
                        }
                        if number % 20 == 0 {
                            std::thread::sleep(Duration::from_millis(5));
                        }
                    }
                })
            })
            .collect();
        let mut version = 1;
        while !senders.iter().all(|sender| sender.is_finished()) {
            version += 1;
            let name = format!("q{}", version % 3);
            *stage.b.mood.lock() = if version % 2 == 0 { Mood::Refuse } else { Mood::Store };
            let ratio = u8::try_from(version % 100).unwrap();
            stage.change_rules(&rules(version, &[(&name, ratio)], &[("*", &name)]));
        }
    });
    *stage.b.mood.lock() = Mood::Store;
    assert_eq!(stage.sdk.close_blocking(Duration::from_secs(60)).packs_left, 0);
    let arrived = stage.arrived();
    assert_eq!(arrived.len(), 4_500);
    assert!(arrived.is_sorted_by(|a, b| a < b), "each exactly once");
}
