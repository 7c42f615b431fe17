//! Measures an uncontended admit beside governor's `check_n`.
//!
//! `cargo run --release -p windfall-limiter --example admit`: prints nanoseconds per call, the median and the fastest
//! of many short runs; on a busy machine the fastest is the one that was not interrupted.
#![allow(clippy::cast_precision_loss, clippy::unwrap_used, reason = "a measurement, not the product")]

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Instant;

use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};
use windfall_limiter::{Fuse, Limit, Limiter, Now, Share, TypeLimit};

const CALLS: u64 = 200_000;
const RUNS: usize = 101;

fn main() {
    let plenty = Limit { rate_per_s: Limit::RATE_PER_S_MAX, burst: Limit::BURST_MAX };
    let scarce = Limit { rate_per_s: 1_000, burst: 100 };
    let third = Share::new(5, 16).unwrap();
    report("granted whole", plenty, Share::ALL, 1, 20);
    report("granted whole, 5 of 16 partitions", plenty, third, 1, 40);
    report("granted in part or not at all", scarce, Share::ALL, 64, 20);
    report("in part or not at all, 5 of 16", scarce, third, 64, 20);

    let clock = FakeRelativeClock::default();
    let quota = Quota::per_second(NonZeroU32::new(100_000_000).unwrap());
    let governor = RateLimiter::direct_with_clock(quota, clock);
    let one = NonZeroU32::new(1).unwrap();
    line("governor check_n, one bucket", measure(|_| black_box(governor.check_n(black_box(one))).is_ok()));
}

fn report(name: &str, limit: Limit, share: Share, wanted: u32, step_ns: u64) {
    let limiter = Limiter::new(limit, Now(0));
    let rule = TypeLimit { limit, fuse: Fuse::Closed, priority: 0 };
    let rules: Vec<_> = (0..8).map(|n| (format!("type-{n}"), rule)).collect();
    limiter.apply(limit, &rules, Now(0));
    limiter.set_share(share, Now(0));
    let id = limiter.type_id("type-3");
    let mut now = 0;
    line(
        name,
        measure(|_| {
            now += step_ns;
            black_box(limiter.admit(black_box(id), black_box(wanted), Now(now))).granted > 0
        }),
    );
}

fn line(name: &str, (median_ns, fastest_ns, granted): (f64, f64, u64)) {
    println!(
        "{name:36} {median_ns:6.1} ns median {fastest_ns:6.1} ns fastest, {granted} of {CALLS} passed something"
    );
}

fn measure(mut call: impl FnMut(u64) -> bool) -> (f64, f64, u64) {
    let mut runs: Vec<(f64, u64)> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            let granted = (0..CALLS).map(|n| u64::from(call(n))).sum();
            (start.elapsed().as_nanos() as f64 / CALLS as f64, granted)
        })
        .collect();
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    (runs[RUNS / 2].0, runs[0].0, runs[RUNS / 2].1)
}
