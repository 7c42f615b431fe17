//! What rules would have done with the traffic of the last hour: who would have waited, and how long.
//!
//! The model treats rewards as a fluid, sample by sample. The token bucket and the fuse of a type limit how much of it passes; the
//! global bucket then limits all types, in the order of their priorities. The model assumes that the ledger and the payers keep
//! up, and that budgets suffice. The rules in force are replayed, too, so that two runs of the same model are compared, and not
//! the model with what happened. From what passes of a type, `budgets` works out when its budgets would end.

mod budgets;
mod traffic;

pub(crate) use budgets::{Replayed, ends};
pub(crate) use traffic::{METRICS, Traffic};

use serde::Serialize;
use windfall_contract::rules::{Fuse, Limit, Limits};

/// The traffic behind a forecast: that of the last so many seconds.
const RECENT_S: f64 = 300.0;
/// The shortest time of which a peak is told.
const PEAK_S: f64 = 10.0;

/// What becomes of one type.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    /// Events that came.
    came: f64,
    /// Events that passed.
    passed: f64,
    /// Events per second in the ten seconds in which the most came.
    came_max_per_s: f64,
    /// Events that waited at once, at most.
    waiting_max: f64,
    /// How long an event waited at most, in seconds, as far as the hour shows.
    waited_max_s: f64,
    /// Events that wait at the end.
    waiting: f64,
    /// After how many more seconds none would wait, with the traffic of the last minutes; none: never.
    drained_s: Option<f64>,
}

struct Lane<'t> {
    name: &'t str,
    came: &'t [f64],
    limit: Limit,
    is_open: bool,
    priority: u8,
    bucket: Bucket,
    passed: f64,
    /// The first sample by which more had come than has passed.
    head: usize,
    waiting_max: f64,
    waited_max_s: f64,
}

/// A token bucket as a fluid.
struct Bucket {
    tokens: f64,
    limit: Limit,
}

impl Bucket {
    /// A rate of 0 admits nothing, not even a burst.
    fn new(limit: Limit) -> Self {
        Self { tokens: if limit.rate_per_s == 0 { 0.0 } else { f64::from(limit.burst) }, limit }
    }

    /// What may pass within this time.
    fn fill(&mut self, passed_s: f64) -> f64 {
        self.tokens += rate(self.limit) * passed_s;
        self.tokens
    }

    fn take(&mut self, taken: f64) {
        self.tokens = (self.tokens - taken).max(0.0);
    }

    /// What was not taken is kept up to the burst.
    fn spill(&mut self) {
        self.tokens = self.tokens.min(f64::from(self.limit.burst));
    }
}

/// What these limits do with the traffic: an outcome for each type that came. A type that the rules do not name passes nothing.
pub(crate) fn replay(traffic: &Traffic, limits: &Limits) -> Vec<Outcome> {
    let mut lanes: Vec<Lane<'_>> =
        traffic.came.iter().map(|(name, came)| Lane::new(name, came, limits)).collect();
    let mut ranks: Vec<usize> = (0..lanes.len()).collect();
    ranks.sort_by_key(|at| lanes[*at].priority);
    let mut all = Bucket::new(limits.global);
    let mut before_s = 0.0;
    for (at, now_s) in traffic.at_s.iter().copied().enumerate() {
        let step_s = now_s - before_s;
        before_s = now_s;
        let mut left = all.fill(step_s);
        for rank in &ranks {
            let passed = lanes[*rank].step(at, step_s, left);
            left -= passed;
            all.take(passed);
        }
        all.spill();
        lanes.iter_mut().for_each(|lane| lane.look(at, &traffic.at_s));
    }
    let mut left = rate(limits.global);
    let mut outcomes = vec![None; lanes.len()];
    for rank in ranks {
        let lane = &lanes[rank];
        let recent = recent_per_s(lane.came, &traffic.at_s);
        let most = if lane.is_open { rate(lane.limit).min(left) } else { 0.0 };
        // What is not waited for goes to the types behind.
        left -= if lane.waiting() >= 1.0 { most } else { recent.min(most) };
        outcomes[rank] = Some(lane.outcome(&traffic.at_s, most - recent));
    }
    outcomes.into_iter().flatten().collect()
}

impl<'t> Lane<'t> {
    fn new(name: &'t str, came: &'t [f64], limits: &Limits) -> Self {
        let nothing = Limit { rate_per_s: 0, burst: 1 };
        let own = limits.types.get(name);
        let limit = own.map_or(nothing, |own| own.limit);
        Self {
            name,
            came,
            limit,
            is_open: own.is_some_and(|own| own.fuse == Fuse::Closed),
            priority: own.map_or(u8::MAX, |own| own.priority),
            bucket: Bucket::new(limit),
            passed: 0.0,
            head: 0,
            waiting_max: 0.0,
            waited_max_s: 0.0,
        }
    }

    /// Passes what may pass up to this sample, of `left` at most.
    fn step(&mut self, at: usize, step_s: f64, left: f64) -> f64 {
        let own = self.bucket.fill(step_s);
        let passes =
            if self.is_open { (self.came[at] - self.passed).min(own).min(left).max(0.0) } else { 0.0 };
        self.bucket.take(passes);
        self.bucket.spill();
        self.passed += passes;
        passes
    }

    fn look(&mut self, at: usize, at_s: &[f64]) {
        let waiting = self.came[at] - self.passed;
        self.waiting_max = self.waiting_max.max(waiting);
        while self.head < at && self.came[self.head] <= self.passed + 0.5 {
            self.head += 1;
        }
        // Less than one event is what rounding leaves.
        if waiting >= 1.0 {
            self.waited_max_s = self.waited_max_s.max(at_s[at] - at_s[self.head]);
        }
    }

    fn waiting(&self) -> f64 {
        self.came.last().copied().unwrap_or_default() - self.passed
    }

    fn outcome(&self, at_s: &[f64], gains_per_s: f64) -> Outcome {
        let waiting = self.waiting();
        Outcome {
            name: self.name.to_owned(),
            came: self.came.last().copied().unwrap_or_default(),
            passed: self.passed,
            came_max_per_s: peak_per_s(self.came, at_s),
            waiting_max: self.waiting_max,
            waited_max_s: self.waited_max_s,
            waiting: if waiting < 1.0 { 0.0 } else { waiting },
            drained_s: match (waiting < 1.0, gains_per_s > 0.0) {
                (true, _) => Some(0.0),
                (false, true) => Some(waiting / gains_per_s),
                (false, false) => None,
            },
        }
    }
}

/// What came per second where the most came. Lags are asked for every few seconds, so that a second alone says little.
fn peak_per_s(came: &[f64], at_s: &[f64]) -> f64 {
    let mut from = 0;
    let mut peak = 0.0_f64;
    for at in 0..came.len().min(at_s.len()) {
        while from + 1 < at && at_s[at] - at_s[from + 1] >= PEAK_S {
            from += 1;
        }
        let passed_s = at_s[at] - at_s[from];
        if passed_s >= PEAK_S {
            peak = peak.max((came[at] - came[from]) / passed_s);
        }
    }
    peak
}

/// What came per second in the last minutes.
fn recent_per_s(came: &[f64], at_s: &[f64]) -> f64 {
    let (Some(end), Some(end_s)) = (came.last(), at_s.last()) else { return 0.0 };
    let from = at_s.partition_point(|at_s| *at_s < end_s - RECENT_S);
    let passed_s = end_s - at_s[from];
    if passed_s > 0.0 { (end - came[from]) / passed_s } else { 0.0 }
}

#[expect(clippy::cast_precision_loss, reason = "rates are below 2^53")]
fn rate(limit: Limit) -> f64 {
    limit.rate_per_s as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_contract::rules::TypeLimit;

    const OPEN: Fuse = Fuse::Closed;

    /// How many come in each second.
    type PerSecond = fn(usize) -> f64;

    /// An hour in which so many of each type came.
    fn hour(types: &[(&str, PerSecond)]) -> Traffic {
        let came = types.iter().map(|(name, per_s)| {
            let mut sum = 0.0;
            let add = |second| {
                sum += if second == 0 { 0.0 } else { per_s(second) };
                sum
            };
            ((*name).to_owned(), (0..3_601).map(add).collect())
        });
        Traffic { at_s: (0..3_601_u16).map(f64::from).collect(), came: came.collect(), ..Traffic::default() }
    }

    fn limits(global: u64, types: &[(&str, u64, Fuse, u8)]) -> Limits {
        let limit = |rate_per_s| Limit { rate_per_s, burst: 1 };
        let own = |(name, rate, fuse, priority): &(&str, u64, Fuse, u8)| {
            ((*name).to_owned(), TypeLimit { limit: limit(*rate), fuse: *fuse, priority: *priority })
        };
        Limits { global: limit(global), types: types.iter().map(own).collect() }
    }

    fn about(found: f64, expected: f64) -> bool {
        (found - expected).abs() <= 2.0 + expected / 500.0
    }

    #[test]
    fn what_comes_faster_than_its_limit_waits_as_long_as_arithmetic_says() {
        let traffic = hour(&[("cash", |_| 100.0)]);
        let [one] = &replay(&traffic, &limits(1_000, &[("cash", 50, OPEN, 0)]))[..] else { panic!() };
        assert_eq!((one.came, one.came_max_per_s, one.drained_s), (360_000.0, 100.0, None));
        // Half of it has passed, so that the last one to pass came after half of the hour.
        assert!(about(one.waiting, 180_000.0) && about(one.waiting_max, 180_000.0), "{one:?}");
        assert!(about(one.waited_max_s, 1_800.0), "{one:?}");

        let [one] = &replay(&traffic, &limits(1_000, &[("cash", 101, OPEN, 0)]))[..] else { panic!() };
        assert_eq!((one.waiting, one.waited_max_s, one.drained_s), (0.0, 0.0, Some(0.0)));
    }

    #[test]
    fn a_burst_drains_by_what_the_limit_leaves() {
        let traffic = hour(&[("cash", |second| if second <= 60 { 1_000.0 } else { 10.0 })]);
        let [one] = &replay(&traffic, &limits(10_000, &[("cash", 110, OPEN, 0)]))[..] else { panic!() };
        // 60,000 come within a minute, of which 6,600 pass; then 100 more pass per second than come.
        assert!(about(one.waiting_max, 53_400.0), "{one:?}");
        // The last one of the minute passes when 60,000 have: after 545 s.
        assert!(about(one.waited_max_s, 545.0 - 60.0), "{one:?}");
        assert_eq!(one.waiting, 0.0);
        let [one] = &replay(&traffic, &limits(10_000, &[("cash", 20, OPEN, 0)]))[..] else { panic!() };
        // 96,000 - 72,000 wait still, and 10 more pass per second than come.
        assert!(one.drained_s.is_some_and(|after_s| about(after_s, (95_400.0 - 72_000.0) / 10.0)), "{one:?}");
    }

    #[test]
    fn cash_goes_first_where_the_limit_of_all_binds() {
        let traffic = hour(&[("badge", |_| 100.0), ("cash", |_| 100.0)]);
        let both = [("badge", 1_000, OPEN, 1), ("cash", 1_000, OPEN, 0)];
        let [badge, cash] = &replay(&traffic, &limits(150, &both))[..] else { panic!() };
        assert_eq!((&*badge.name, &*cash.name, cash.waiting), ("badge", "cash", 0.0));
        assert!(about(badge.waiting, 180_000.0), "{badge:?}");
        assert_eq!(badge.drained_s, None);
    }

    #[test]
    fn a_fuse_and_rules_that_do_not_name_a_type_let_nothing_through() {
        let traffic = hour(&[("badge", |_| 10.0), ("cash", |_| 10.0), ("coupon", |_| 10.0)]);
        let shut = limits(1_000, &[("badge", 100, Fuse::Divert, 1), ("cash", 100, Fuse::Pause, 0)]);
        let mut without_rate = limits(1_000, &[("badge", 0, OPEN, 1), ("cash", 0, OPEN, 0)]);
        for own in without_rate.types.values_mut() {
            own.limit.burst = 1_000_000;
        }
        let mut without_global = limits(0, &[("badge", 100, OPEN, 1), ("cash", 100, OPEN, 0)]);
        without_global.global.burst = 1_000_000;
        let all = [&shut, &without_rate, &without_global].map(|limits| replay(&traffic, limits));
        for one in all.iter().flatten() {
            assert_eq!((one.waiting, one.waited_max_s, one.drained_s), (36_000.0, 3_599.0, None), "{one:?}");
        }
    }

    /// Whatever comes: more leave lets nobody wait longer, and what came has passed or waits.
    #[test]
    fn a_higher_limit_lets_nobody_wait_longer() {
        for seed in 1..40_u64 {
            let mut state = seed;
            let mut random = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                f64::from(u32::try_from(state >> 40).unwrap()) / f64::from(1_u32 << 24)
            };
            let mut sum = 0.0;
            let came: Vec<f64> = (0..600)
                .map(|_| {
                    sum += if random() < 0.1 { random() * 5_000.0 } else { random() * 50.0 };
                    sum
                })
                .collect();
            let at_s = (0..600_u16).map(f64::from).collect();
            let traffic = Traffic { at_s, came: [("cash".to_owned(), came)].into(), ..Traffic::default() };
            let mut before: Option<Outcome> = None;
            for rate in [10, 50, 200, 1_000, 10_000] {
                let [one] = &replay(&traffic, &limits(100_000, &[("cash", rate, OPEN, 0)]))[..] else {
                    panic!()
                };
                assert!(
                    one.waiting <= one.waiting_max && one.waiting_max <= one.came,
                    "seed {seed}: {one:?}"
                );
                if let Some(before) = &before {
                    assert!(one.waiting_max <= before.waiting_max, "seed {seed}: {one:?} after {before:?}");
                    assert!(one.waited_max_s <= before.waited_max_s, "seed {seed}: {one:?} after {before:?}");
                }
                before = Some(one.clone());
            }
        }
    }
}
