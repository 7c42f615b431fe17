//! Why the buckets are our own: what governor does where I5 asks for something else. A test that fails here after
//! an update says that a reason is gone.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::FakeRelativeClock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::InMemoryState;
use governor::{Quota, RateLimiter};

fn n(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

#[test]
fn a_swapped_limiter_grants_a_fresh_burst() {
    let clock = FakeRelativeClock::default();
    let mut passed = 0;
    for rate in [100, 101, 100] {
        let swapped = RateLimiter::direct_with_clock(Quota::per_second(n(rate)), clock.clone());
        while swapped.check().is_ok() {
            passed += 1;
        }
    }
    assert_eq!(passed, 301, "in no time at all");
}

#[test]
fn a_reused_state_denies_for_the_processs_uptime() {
    let clock = FakeRelativeClock::default();
    let first: RateLimiter<_, _, _, NoOpMiddleware<Nanos>> =
        RateLimiter::new(Quota::per_second(n(10)), InMemoryState::default(), clock.clone());
    let uptime = Duration::from_secs(100 * 86_400);
    clock.advance(uptime);
    assert!(first.check().is_ok());
    let second: RateLimiter<_, _, _, NoOpMiddleware<Nanos>> =
        RateLimiter::new(Quota::per_second(n(10)), first.into_state_store(), clock.clone());
    clock.advance(uptime / 2);
    assert!(second.check().is_err());
}

#[test]
fn a_rate_between_two_whole_nanoseconds_is_passed() {
    let clock = FakeRelativeClock::default();
    let quota = Quota::per_second(n(60_000_000)).allow_burst(n(1));
    let limiter = RateLimiter::direct_with_clock(quota, clock.clone());
    let mut passed = 0;
    for _ in 0..1_000_000 {
        clock.advance(Duration::from_nanos(1));
        passed += u32::from(limiter.check().is_ok());
    }
    assert_eq!(passed, 62_500, "in a millisecond; the rate allows 60,001");
}

#[test]
fn more_than_the_burst_is_an_error_and_a_part_is_never_granted() {
    let limiter = RateLimiter::direct_with_clock(Quota::per_second(n(10)), FakeRelativeClock::default());
    assert!(limiter.check_n(n(11)).is_err());
    assert!(limiter.check_n(n(4)).unwrap().is_ok());
    assert!(limiter.check_n(n(7)).unwrap().is_err(), "6 are left, and none of them is granted");
}

#[test]
fn no_quota_says_nothing_may_pass() {
    assert!(NonZeroU32::new(0).is_none());
    assert!(Quota::with_period(Duration::ZERO).is_none());
    let slowest = Quota::with_period(Duration::from_secs(500 * 365 * 86_400)).unwrap();
    let limiter = RateLimiter::direct_with_clock(slowest, FakeRelativeClock::default());
    assert!(limiter.check().is_ok());
}
