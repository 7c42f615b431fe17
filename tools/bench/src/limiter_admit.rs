//! `limiter.admit`: one event admitted through its type's bucket and the global one, by the caller's clock. Beside
//! it governor's `check_n` on one bucket, whose clock stands still: less work than ours.

use crate::measure::{Row, Unit, ns_a_call};
use anyhow::{Context, Result, ensure};
use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};
use std::hint::black_box;
use std::num::NonZeroU32;
use windfall_limiter::{Fuse, Limit, Limiter, Now, TypeLimit};

/// The time between two calls; the limit refills faster than they take.
const STEP_NS: u64 = 20;
const TYPES: usize = 8;

pub fn measure(name: &'static str) -> Result<Row> {
    let limit = Limit { rate_per_s: Limit::RATE_PER_S_MAX, burst: Limit::BURST_MAX };
    let limiter = Limiter::new(limit, Now(0));
    let rule = TypeLimit { limit, fuse: Fuse::Closed, priority: 0 };
    let rules: Vec<_> = (0..TYPES).map(|n| (format!("type-{n}"), rule)).collect();
    limiter.apply(limit, &rules, Now(0));
    let id = limiter.type_id("type-3");
    let mut now = Now(1_000_000_000);
    let mut admit = |calls| {
        let mut granted = 0;
        for _ in 0..calls {
            now.0 += STEP_NS;
            granted += u64::from(limiter.admit(black_box(id), black_box(1), now).granted);
        }
        ensure!(granted == calls, "{granted} of {calls} were admitted");
        Ok(())
    };

    // A burst that all calls together do not use up.
    let rate = NonZeroU32::new(100_000_000).context("not zero")?;
    let quota = Quota::per_second(rate).allow_burst(NonZeroU32::MAX);
    let bucket = RateLimiter::direct_with_clock(quota, FakeRelativeClock::default());
    let mut check_n = |calls| {
        let mut granted = 0;
        for _ in 0..calls {
            granted += u64::from(matches!(bucket.check_n(black_box(NonZeroU32::MIN)), Ok(Ok(()))));
        }
        ensure!(granted == calls, "{granted} of {calls} passed governor");
        Ok(())
    };

    let [ours_ns, governor_ns] = ns_a_call([&mut admit, &mut check_n])?;
    Ok(Row::new(name, ours_ns, Unit::NsACall, Some(governor_ns)))
}
