//! One queue's brokers are away: the others keep their room.

use crate::stage::{Stage, request, rules, wait_until};
use std::time::{Duration, Instant};
use windfall_proto::v1::{Bonus, SendBonusRequest};
use windfall_sdk::{Sdk, SdkOptions, SendError};

/// Events of `autumn` take the queue `up`, those of `spring` the queue `down`.
fn two_queues() -> String {
    rules(1, &[("down", 50), ("up", 50)], &[("spring", "down"), ("autumn", "up")])
}

fn to(activity: &str, trade_no: &str, bonus_type: &str, user_id: i64) -> SendBonusRequest {
    let bonus = Some(Bonus { r#type: bonus_type.into(), amount: 1, description: String::new() });
    SendBonusRequest { activity: activity.into(), bonus, ..request(trade_no, user_id) }
}

#[derive(Debug)]
struct Sent {
    taken: usize,
    refused: Vec<SendError>,
    p99: Duration,
}

/// Sends 25 rewards each millisecond.
fn send_for(sdk: &Sdk, activity: &str, name: &str, time: Duration) -> Sent {
    let began = Instant::now();
    let (mut refused, mut took) = (Vec::new(), Vec::new());
    let mut number = 0;
    while began.elapsed() < time {
        for _ in 0..25 {
            number += 1;
            let asked = to(activity, &format!("{name}-{number}"), "cash", number);
            let called = Instant::now();
            refused.extend(sdk.send_bonus(&asked).err());
            took.push(called.elapsed());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    took.sort();
    let p99 = took[took.len() * 99 / 100];
    Sent { taken: took.len() - refused.len(), refused, p99 }
}

/// The packs of a queue whose brokers were both away used to fill the spool, so that nothing at all was taken.
#[test]
fn a_queue_whose_brokers_are_both_away_refuses_none_of_the_others() {
    let options = SdkOptions { spool_bytes: 8 << 20, ..SdkOptions::default() };
    let stage = Stage::open(options, &two_queues());
    let both = |name: &str| {
        std::thread::scope(|scope| {
            let sdk = &stage.sdk;
            let (down, up) = (format!("{name}-down"), format!("{name}-up"));
            let down = scope.spawn(move || send_for(sdk, "spring", &down, Duration::from_secs(2)));
            let up = send_for(sdk, "autumn", &up, Duration::from_secs(2));
            (down.join().unwrap(), up)
        })
    };
    let (down, well) = both("well");
    assert_eq!((down.refused.len(), well.refused.len()), (0, 0));
    for broker in [&stage.a, &stage.b] {
        broker.hung_topics.lock().extend(["down-a".to_owned(), "down-b".to_owned()]);
    }
    // Until its share is spent, however slow this machine is.
    let is_spent = (0..30).any(|round| {
        let (filled, up) = both(&format!("filling-{round}"));
        assert_eq!(up.refused, []);
        !filled.refused.is_empty()
    });
    assert!(is_spent, "its share was never spent");
    let (down, up) = both("spent");
    assert_eq!(up.refused, [], "sends to the other queue are never refused");
    assert!(down.refused.len() > down.taken);
    for refused in &down.refused {
        assert_eq!(*refused, SendError::QueueFull { queue: "down".into() });
        assert!(refused.is_worth_retrying());
    }
    println!(
        "p99 of a send beside a queue that is well: {:?}, and beside one that is spent: {:?}",
        well.p99, up.p99
    );
    let slots = stage.sdk.stats().spool_slots;
    assert!(slots.0 < slots.1 * 9 / 10, "{slots:?}");

    for broker in [&stage.a, &stage.b] {
        broker.hung_topics.lock().clear();
    }
    wait_until("what waited is away", || stage.sdk.stats().packs_in_flight == 0);
    stage.end();
}

/// Coins fill the queue's share; cash has a part of its own.
#[test]
fn cash_is_taken_when_other_types_have_spent_their_share() {
    let options = SdkOptions { spool_bytes: 4 << 20, shards: 1, ..SdkOptions::default() };
    let stage = Stage::open(options, &rules(1, &[("q", 100)], &[("*", "q")]));
    stage.a.hung_topics.lock().insert("q-a".into());
    stage.b.hung_topics.lock().insert("q-b".into());
    let fill = |bonus_type: &str| {
        (0..).find_map(|number| {
            let asked = to("spring", &format!("{bonus_type}-{number}"), bonus_type, 1);
            stage.sdk.send_bonus(&asked).err().map(|error| (number, error))
        })
    };
    assert_eq!(fill("coin").unwrap().1, SendError::QueueFull { queue: "q".into() });
    let (taken, refused) = fill("cash").unwrap();
    assert!(taken > 500, "{taken}");
    assert_eq!(refused, SendError::SpoolFull);
    stage.break_off();
}
