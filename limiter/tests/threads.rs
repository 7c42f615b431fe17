//! Many threads on one limiter: their sum keeps the limits.
//!
//! All state is behind one lock, so an interleaving of calls is an order of whole calls, with clock readings that
//! may come out of order; the random histories in `i5.rs` cover these. What is left to show is that the lock is there.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use windfall_limiter::{Fuse, Limit, Limiter, Now, TypeLimit};

const THREADS: usize = 4;
const CALLS: u64 = 200_000;
/// Virtual time that passes between two calls.
const STEP_NS: u64 = 500;

fn rules(rate_per_s: u64, burst: u32) -> Vec<(String, TypeLimit)> {
    let rule = TypeLimit { limit: Limit { rate_per_s, burst }, fuse: Fuse::Closed, priority: 0 };
    ["cash", "coin"].map(|name| (name.to_owned(), rule)).to_vec()
}

/// Runs admits of both types on all threads, `meddle` after each; returns what passed of each and the time.
fn race(limiter: &Limiter, meddle: impl Fn(u64, Now) + Sync) -> ([u64; 2], u64) {
    let (clock_ns, start) = (AtomicU64::new(0), Barrier::new(THREADS));
    let passed = [AtomicU64::new(0), AtomicU64::new(0)];
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let kind = thread % 2;
            let id = limiter.type_id(["cash", "coin"][kind]);
            let (clock_ns, passed, start, meddle) = (&clock_ns, &passed[kind], &start, &meddle);
            scope.spawn(move || {
                start.wait();
                for call in 0..CALLS {
                    let now = Now(clock_ns.fetch_add(STEP_NS, Ordering::Relaxed) + STEP_NS);
                    let wanted = u32::try_from(1 + call % 7).unwrap();
                    let granted = limiter.admit(id, wanted, now).granted;
                    passed.fetch_add(u64::from(granted), Ordering::Relaxed);
                    meddle(call, now);
                }
            });
        }
    });
    (passed.map(AtomicU64::into_inner), clock_ns.into_inner())
}

#[test]
fn the_sum_of_all_threads_is_what_the_rates_earn() {
    let global = Limit { rate_per_s: 900_000, burst: 5_000 };
    let limiter = Limiter::new(global, Now(0));
    limiter.apply(global, &rules(600_000, 5_000), Now(0));
    let (passed, ns) = race(&limiter, |_, _| ());
    let earned = |rate_per_s: u64| rate_per_s * ns / 1_000_000_000;
    assert!(passed[0] <= earned(600_000) && passed[1] <= earned(600_000), "{passed:?} in {ns} ns");
    let all = passed[0] + passed[1];
    assert!(all <= earned(900_000), "{all} passed, {} earned", earned(900_000));
    // The scheduler may run one type's threads before the other's; then that type's own rate is all that passes.
    assert!(all >= earned(600_000) * 9 / 10, "{all} passed, {} earned", earned(600_000));
}

#[test]
fn changes_made_beside_them_grant_nothing() {
    let high = Limit { rate_per_s: 900_000, burst: 5_000 };
    let limiter = Limiter::new(high, Now(0));
    limiter.apply(high, &rules(900_000, 5_000), Now(0));
    let (passed, ns) = race(&limiter, |call, now| {
        if call.is_multiple_of(10) {
            let rate_per_s = if call.is_multiple_of(20) { 450_000 } else { 900_000 };
            limiter.apply(Limit { rate_per_s, burst: 4_000 }, &rules(rate_per_s, 4_000), now);
        }
    });
    let all = passed[0] + passed[1];
    let earned = |rate_per_s: u64| rate_per_s * ns / 1_000_000_000;
    assert!(all <= earned(900_000), "{all} passed, {} to {} earned", earned(450_000), earned(900_000));
    assert!(
        all >= earned(450_000) * 9 / 10,
        "{all} passed, {} to {} earned",
        earned(450_000),
        earned(900_000)
    );
}
