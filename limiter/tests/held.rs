//! Tokens that come back: they make up for events that needed none, and no window passes more for it.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use proptest::prelude::*;
use std::sync::Arc;
use windfall_limiter::{Fuse, Held, Limit, Limiter, Now, Share, TypeId, TypeLimit};

const MS_NS: u64 = 1_000_000;
const WIDE: Limit = Limit { rate_per_s: 1_000_000, burst: 1_000_000 };

fn limiter(limit: Limit) -> (Arc<Limiter>, TypeId) {
    let limiter = Arc::new(Limiter::new(WIDE, Now(0)));
    let id = limiter.type_id("coin");
    let rule = TypeLimit { limit, fuse: Fuse::Closed, priority: 0 };
    limiter.apply(WIDE, &[("coin".into(), rule)], Now(0));
    (limiter, id)
}

fn ms(ms: u64) -> Now {
    Now(ms * MS_NS)
}

#[test]
fn what_comes_back_may_pass_again() {
    let (limiter, id) = limiter(Limit { rate_per_s: 10, burst: 10 });
    assert_eq!(limiter.admit(id, 99, ms(10_000)).granted, 10);
    let held = limiter.hold(id, 10, ms(10_000));
    assert_eq!(limiter.admit(id, 99, ms(10_000)).granted, 0);
    held.give_back(7, ms(10_001));
    assert_eq!(limiter.admit(id, 99, ms(10_001)).granted, 5, "half of the burst is what has room");
}

#[test]
fn what_is_held_has_its_place_in_the_bucket_until_it_is_given_up() {
    let (limiter, id) = limiter(Limit { rate_per_s: 10, burst: 10 });
    assert_eq!(limiter.admit(id, 99, ms(10_000)).granted, 10);
    let held = limiter.hold(id, 8, ms(10_000));
    // An hour fills the rest alone.
    assert_eq!(limiter.admit(id, 99, ms(3_600_000)).granted, 5);
    drop(held);
    assert_eq!(limiter.admit(id, 99, ms(3_600_000)).granted, 0, "they were spent");
    assert_eq!(limiter.admit(id, 99, ms(7_200_000)).granted, 10, "and their room is free");
}

#[test]
fn a_smaller_share_gets_no_more_back_than_it_may_hold() {
    let (limiter, id) = limiter(Limit { rate_per_s: 10, burst: 10 });
    assert_eq!(limiter.admit(id, 99, ms(10_000)).granted, 10);
    let held = limiter.hold(id, 10, ms(10_000));
    limiter.set_share(Share::new(1, 5).unwrap(), ms(10_000));
    held.give_back(10, ms(10_000));
    assert_eq!(limiter.admit(id, 99, ms(10_000)).granted, 0, "its room is gone");
    limiter.set_share(Share::ALL, ms(10_000));
    assert_eq!(limiter.admit(id, 99, ms(20_000)).granted, 10);
}

#[test]
fn what_lost_its_room_does_not_take_that_of_a_later_call() {
    let (limiter, id) = limiter(Limit { rate_per_s: 10, burst: 10 });
    assert_eq!(limiter.admit(id, 99, ms(10_000)).granted, 10);
    let first = limiter.hold(id, 10, ms(10_000));
    limiter.set_share(Share::NONE, ms(10_000));
    limiter.set_share(Share::ALL, ms(10_000));
    assert_eq!(limiter.admit(id, 99, ms(20_000)).granted, 10);
    let second = limiter.hold(id, 10, ms(20_000));
    first.give_back(10, ms(20_000));
    assert_eq!(limiter.admit(id, 99, ms(20_000)).granted, 0);
    second.give_back(2, ms(20_000));
    assert_eq!(limiter.admit(id, 99, ms(20_000)).granted, 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    /// Each step: time passes, some are admitted and held, and of the oldest call that is out some were not needed. In no
    /// window more are used than `rate · Δ + burst`.
    #[test]
    fn no_window_uses_more_than_the_limit(
        rate_per_s in 1..200_u64,
        burst in 1..60_u32,
        steps in prop::collection::vec((0..400_u64, 0..80_u32, 0..80_u32, 0..80_u32, 0..20_u32), 1..120),
    ) {
        let (limiter, id) = limiter(Limit { rate_per_s, burst });
        let mut out: Vec<(u32, Held)> = Vec::new();
        // When how many were admitted that were used in the end; what is out counts as used.
        let mut used: Vec<(u64, u32)> = Vec::new();
        let mut at_ms = 0;
        let mut calls = 0;
        for (pause_ms, wanted, hold, unused, share) in steps {
            at_ms += pause_ms;
            // Now and then the instance has a smaller share for a moment.
            if share < 3 {
                limiter.set_share(Share::new(share, 4).unwrap(), ms(at_ms));
                limiter.set_share(Share::ALL, ms(at_ms));
            }
            let granted = limiter.admit(id, wanted, ms(at_ms)).granted;
            used.push((at_ms, granted));
            let held = hold.min(granted);
            out.push((held, limiter.hold(id, held, ms(at_ms))));
            if unused % 3 > 0 {
                let (held, call) = out.remove(0);
                let unused = unused.min(held);
                call.give_back(unused, ms(at_ms));
                used[calls].1 -= unused.min(used[calls].1);
                calls += 1;
            }
        }
        for first in 0..used.len() {
            let mut sum = 0_u64;
            for last in first..used.len() {
                sum += u64::from(used[last].1);
                let bound = rate_per_s * (used[last].0 - used[first].0) / 1_000 + u64::from(burst) + 1;
                prop_assert!(sum <= bound, "{sum} in {} to {} ms", used[first].0, used[last].0);
            }
        }
    }
}
