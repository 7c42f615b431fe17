//! Those who have no key: what they cost has a bound.

use super::{SEND, Target, WALLET, code, reward};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use windfall_tests::keyless::{ATTACKS, Attack, Siege};

/// The times that each attack is waged, with a quiet time before each: what else the machine does falls on both.
const WINDOWS: usize = 3;
/// How long each of them goes on.
const SIEGE: Duration = Duration::from_secs(1);
/// How long the quiet before it is.
const QUIET: Duration = Duration::from_millis(500);
/// The p99 of good calls beside an attack is at most so many times that without it.
const SLOWER_MAX: u32 = 5;
/// Below this nothing is said: there a machine is measured on which others work, too.
const UNNOTICED: Duration = Duration::from_millis(250);

#[test]
fn who_has_no_key_takes_little_memory_and_the_others_go_on() {
    let mut target = Target::start("", &[], "");
    for attack in ATTACKS {
        let mut cost = Cost::of(&attack, &target);
        if cost.is_too_much() {
            println!("{}: {cost:?}; once more", attack.name);
            cost = Cost::of(&attack, &target);
        }
        println!("{}: p99 of good calls {:?}, {:?} without it", attack.name, cost.beside, cost.quiet);
        assert!(!cost.is_too_much(), "{}: good calls wait for it, twice: {cost:?}", attack.name);
        target.within_memory(attack.name);
    }
    target.still_serves();
    let refused = target.post("nobody", None, SEND, &reward("keyless:1", 42, 1));
    assert_eq!(code(&refused), (401, "UNAUTHENTICATED"));
    target.stop(&[]);
}

/// What good callers pay for an attack: the median over some windows of the p99 of their calls.
#[derive(Debug)]
struct Cost {
    quiet: Duration,
    beside: Duration,
}

impl Cost {
    /// Quiet and attack take turns.
    fn of(attack: &Attack, target: &Target) -> Self {
        let (mut quiet, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..WINDOWS {
            quiet.push(p99(target, QUIET));
            beside.push(besieged(attack, target));
        }
        Self { quiet: median(quiet), beside: median(beside) }
    }

    fn is_too_much(&self) -> bool {
        self.beside > UNNOTICED && self.beside > self.quiet * SLOWER_MAX
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The p99 of good calls while an attack goes on.
fn besieged(attack: &Attack, target: &Target) -> Duration {
    let stop = AtomicBool::new(false);
    let siege = Siege { address: target.service.address, sources: 4, stop: &stop };
    thread::scope(|scope| {
        let waged = scope.spawn(|| attack.wage(&siege));
        let beside = p99(target, SIEGE);
        stop.store(true, Ordering::Relaxed);
        assert!(waged.join().unwrap().connections > 0, "{}", attack.name);
        beside
    })
}

#[test]
fn an_attack_costs_too_much_where_good_calls_take_long_and_far_longer_than_without_it() {
    let is_too_much = |quiet_ms: u64, beside_ms: u64| {
        let (quiet, beside) = (Duration::from_millis(quiet_ms), Duration::from_millis(beside_ms));
        Cost { quiet, beside }.is_too_much()
    };
    assert!(is_too_much(10, 251) && is_too_much(50, 251));
    assert!(!is_too_much(10, 250), "nobody notices");
    assert!(!is_too_much(60, 300), "the machine is slow anyway");
    let ms = |times: &[u64]| median(times.iter().map(|ms| Duration::from_millis(*ms)).collect());
    assert_eq!(ms(&[900, 1, 5]), Duration::from_millis(5));
}

/// Of calls that must all be answered, for a while.
fn p99(target: &Target, during: Duration) -> Duration {
    let until = Instant::now() + during;
    let mut times = Vec::new();
    while Instant::now() < until {
        let began = Instant::now();
        assert_eq!(target.post("wallet-front", 42, WALLET, &json!({})).status, 200);
        times.push(began.elapsed());
    }
    times.sort_unstable();
    times[(times.len() - 1) * 99 / 100]
}
