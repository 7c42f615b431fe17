//! Those who have no key, and names that never come again: both cost memory that has a bound.

use super::{GRANT_BATCH, SEND, Target, WALLET, code, reward};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use windfall_tests::keyless::{ATTACKS, Siege};

/// How long each attack goes on.
const SIEGE: Duration = Duration::from_secs(2);
/// More than three times what is kept of names at a time.
const NAMES: usize = 200_000;
const BATCH: usize = 1_000;

#[test]
fn who_has_no_key_takes_little_memory_and_the_others_go_on() {
    let mut target = Target::start("", &[], "");
    let quiet = p99(&target);
    for attack in ATTACKS {
        let stop = AtomicBool::new(false);
        let siege = Siege { address: target.service.address, sources: 4, stop: &stop };
        let beside = thread::scope(|scope| {
            let waged = scope.spawn(|| attack.wage(&siege));
            let beside = p99(&target);
            stop.store(true, Ordering::Relaxed);
            assert!(waged.join().unwrap().connections > 0, "{}", attack.name);
            beside
        });
        println!("{}: p99 of good calls {beside:?}, {quiet:?} without it", attack.name);
        target.within_memory(attack.name);
    }
    target.still_serves();
    let refused = target.post("nobody", None, SEND, &reward("keyless:1", 42, 1));
    assert_eq!(code(&refused), (401, "UNAUTHENTICATED"));
    target.stop(&[]);
}

/// Of calls that must all be answered, for a while.
fn p99(target: &Target) -> Duration {
    let until = Instant::now() + SIEGE;
    let mut times = Vec::new();
    while Instant::now() < until {
        let began = Instant::now();
        assert_eq!(target.post("wallet-front", 42, WALLET, &json!({})).status, 200);
        times.push(began.elapsed());
    }
    times.sort_unstable();
    times[(times.len() - 1) * 99 / 100]
}

/// Each order is of a bonus type, an activity and a scene of its own, by a caller that may grant.
#[test]
fn names_that_never_come_again_take_little_memory() {
    let target = Target::start("", &[], "");
    for begin in (0..NAMES).step_by(BATCH) {
        let event = |nth: usize| -> Value {
            let mut event = reward(&format!("name:{nth}"), 42, 1);
            event["bonus"]["type"] = json!(format!("t{nth}"));
            event["activity"] = json!(format!("a{nth}"));
            event["scene"] = json!(format!("s{nth}"));
            event
        };
        let events: Vec<_> = (begin..begin + BATCH).map(event).collect();
        let granted = target.ok("grants", None, GRANT_BATCH, &json!({"events": events}));
        assert_eq!(granted["replies"].as_array().map(Vec::len), Some(BATCH), "{granted}");
    }
    target.within_memory("names");
    target.stop(&[]);
}
