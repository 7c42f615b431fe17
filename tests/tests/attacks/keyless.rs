//! Those who have no key: what they cost has a bound.

use super::{SEND, Target, WALLET, code, reward};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use windfall_tests::keyless::{ATTACKS, Siege};

/// How long each attack goes on.
const SIEGE: Duration = Duration::from_secs(2);

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
