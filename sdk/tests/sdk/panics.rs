//! Panics of the SDK's threads: they start again, are counted, and nothing that got Ok is forgotten.

use crate::stage::{Mood, Stage, one_queue, request, rules, wait_until};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use windfall_contract::Clock;
use windfall_sdk::SdkOptions;

/// How often the clock is still to panic, by the name of the thread that reads it.
type Panics = Arc<Mutex<BTreeMap<&'static str, u64>>>;

fn clock(panics: &Panics) -> Clock {
    let (own, time, wall) = (Arc::clone(panics), Clock::system(), Clock::system());
    let monotonic_ns = move || {
        let thread = std::thread::current();
        let is_due = |left: &mut u64| {
            let due = *left > 0;
            *left = left.saturating_sub(1);
            due
        };
        let due = thread.name().is_some_and(|name| own.lock().get_mut(name).is_some_and(is_due));
        assert!(!due, "scripted");
        time.monotonic_ns()
    };
    Clock::from_sources(monotonic_ns, move || wall.unix_ms())
}

fn send(stage: &Stage, from: u32, to: u32) {
    for number in from..to {
        stage.sdk.send_bonus(&request(&format!("o-{number:04}"), 1)).unwrap();
    }
}

fn all_arrived(stage: &Stage, count: usize) {
    let arrived = || stage.arrived().into_iter().collect::<BTreeSet<_>>().len() == count;
    wait_until("everything has arrived", arrived);
    wait_until("nothing is in flight", || stage.sdk.stats().packs_in_flight == 0);
}

#[test]
fn each_thread_starts_again_after_a_panic_and_nothing_is_forgotten() {
    let panics = Panics::default();
    let stage = Stage::with_clock(SdkOptions::default(), &one_queue(), Mood::Store, clock(&panics));
    for (at, thread) in (0..).zip(["windfall-pump", "windfall-rules", "windfall-fanout"]) {
        panics.lock().insert(thread, 2);
        send(&stage, at * 100, at * 100 + 100);
        wait_until("it has panicked", || panics.lock()[thread] == 0);
    }
    all_arrived(&stage, 300);
    stage.change_rules(&rules(2, &[("new", 100)], &[("*", "new")]));
    send(&stage, 300, 310);
    all_arrived(&stage, 310);
    stage.tokens.panics.store(1, SeqCst);
    send(&stage, 310, 320);
    wait_until("the store has panicked", || stage.tokens.panics.load(SeqCst) == 0);
    send(&stage, 320, 330);
    wait_until("tokens are written again", || {
        let stats = stage.sdk.stats();
        stats.tokens_waiting == 0 && stats.tokens_written + stats.tokens_dropped == 330
    });
    assert!(stage.tokens.held.lock().contains_key(&(1, "o-0329 spring".into())));
    all_arrived(&stage, 330);
    let stats = stage.sdk.stats();
    assert_eq!((stats.pump_panics, stats.rules_panics, stats.failing_threads), (2, 2, 0));
    assert_eq!(stats.tokens_panics, 1);
    assert_eq!(stage.fanout.stats().retry_panics, 2);
    stage.end();
}

#[test]
fn a_pump_that_always_panics_is_reported_and_calls_are_still_taken() {
    let panics = Panics::default();
    let stage = Stage::with_clock(SdkOptions::default(), &one_queue(), Mood::Store, clock(&panics));
    panics.lock().insert("windfall-pump", u64::MAX);
    send(&stage, 0, 500);
    wait_until("it is reported", || stage.sdk.stats().failing_threads == 1);
    send(&stage, 500, 1_000);
    panics.lock().clear();
    all_arrived(&stage, 1_000);
    stage.end();
}

/// What a driver had in its hand when it panicked is sent again, by the other topic or the same one.
#[test]
fn a_driver_that_panics_in_send_loses_nothing() {
    let stage = Stage::open(SdkOptions::default(), &one_queue());
    *stage.a.mood.lock() = Mood::Panic;
    send(&stage, 0, 1_000);
    all_arrived(&stage, 1_000);
    *stage.b.mood.lock() = Mood::Panic;
    send(&stage, 1_000, 1_500);
    std::thread::sleep(Duration::from_millis(100));
    assert!(stage.fanout.stats().driver_panics > 0);
    for broker in [&stage.a, &stage.b] {
        *broker.mood.lock() = Mood::Store;
    }
    all_arrived(&stage, 1_500);
    let stats = stage.sdk.stats();
    assert_eq!((stats.pump_panics, stats.spool_slots.0), (0, 0));
    stage.end();
}
