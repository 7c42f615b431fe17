//! I5 over random histories: every window of every history is held against what the limits in force allow.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::time::Duration;

use proptest::prelude::*;
use windfall_limiter::{Admission, Fuse, Limit, Limiter, Now, Share, TypeId, TypeLimit, Wait};

/// All shares here are multiples of 1/120, so that the books below are whole numbers: an event is `EVENT` grains.
const OF: u32 = 120;
const EVENT: i128 = OF as i128 * 1_000_000_000;
const TYPES: usize = 3;
const GLOBAL: usize = TYPES;
const PLENTY: Limit = Limit { rate_per_s: Limit::RATE_PER_S_MAX, burst: Limit::BURST_MAX };

#[derive(Debug, Clone)]
enum Op {
    Advance(u64),
    /// An admit by a clock that is behind.
    AdmitLate(usize, u32, u64),
    Admit(usize, u32),
    Global(Limit),
    /// `None` takes the type out of the rules.
    Type(usize, Option<TypeLimit>),
    /// The same rules again.
    Again,
    Share(u32, u32),
}

fn limit() -> impl Strategy<Value = Limit> {
    let rate_per_s = prop_oneof![
        1 => Just(0),
        2 => 1_u64..10,
        3 => 10_u64..5_000,
        2 => 5_000_u64..2_000_000,
        1 => Just(Limit::RATE_PER_S_MAX),
    ];
    let burst = prop_oneof![2 => 1_u32..4, 3 => 4_u32..500, 1 => Just(Limit::BURST_MAX)];
    (rate_per_s, burst).prop_map(|(rate_per_s, burst)| Limit { rate_per_s, burst })
}

fn rule() -> impl Strategy<Value = TypeLimit> {
    let fuse = prop_oneof![6 => Just(Fuse::Closed), 1 => Just(Fuse::Pause), 1 => Just(Fuse::Divert)];
    (limit(), fuse).prop_map(|(limit, fuse)| TypeLimit { limit, fuse, priority: 0 })
}

fn share() -> impl Strategy<Value = (u32, u32)> {
    let of = prop_oneof![3 => Just(1_u32), 1 => Just(2), 1 => Just(3), 1 => Just(8), 1 => Just(OF)];
    of.prop_flat_map(|of| (0..=of, Just(of)))
}

fn advance_ns() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => 0_u64..1_000,
        4 => 1_000_u64..20_000_000,
        2 => 20_000_000_u64..2_000_000_000,
        1 => 2_000_000_000_u64..100_000_000_000_000,
    ]
}

fn wanted() -> impl Strategy<Value = u32> {
    prop_oneof![3 => 0_u32..5, 3 => 5_u32..300, 1 => Just(u32::MAX)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => advance_ns().prop_map(Op::Advance),
        12 => (0..TYPES, wanted()).prop_map(|(kind, wanted)| Op::Admit(kind, wanted)),
        2 => (0..TYPES, wanted(), advance_ns()).prop_map(|(kind, wanted, by)| Op::AdmitLate(kind, wanted, by)),
        1 => limit().prop_map(Op::Global),
        1 => Just(Op::Global(PLENTY)),
        3 => (0..TYPES, prop::option::weighted(0.9, rule())).prop_map(|(kind, rule)| Op::Type(kind, rule)),
        2 => Just(Op::Again),
        2 => share().prop_map(|(owned, of)| Op::Share(owned, of)),
    ]
}

/// What the rules, the share and the clock are: the operator's side of a history.
struct World {
    limiter: Limiter,
    ids: Vec<TypeId>,
    now_ns: u64,
    /// The latest time that the limiter was told: time counts when it is seen.
    seen_ns: u64,
    global: Limit,
    rules: Vec<Option<TypeLimit>>,
    share: (u32, u32),
}

impl World {
    fn new(global: Limit, rules: Vec<Option<TypeLimit>>) -> Self {
        let now_ns = 77;
        let limiter = Limiter::new(global, Now(now_ns));
        let ids = (0..TYPES).map(|kind| limiter.type_id(&kind.to_string())).collect();
        let mut world = Self { limiter, ids, now_ns, global, rules, share: (1, 1), seen_ns: now_ns };
        world.apply();
        world
    }

    fn apply(&mut self) {
        self.seen_ns = self.seen_ns.max(self.now_ns);
        let rules = self.rules.iter().enumerate();
        let rules: Vec<_> = rules.filter_map(|(kind, rule)| Some((kind.to_string(), (*rule)?))).collect();
        self.limiter.apply(self.global, &rules, Now(self.now_ns));
    }

    /// Does it; says what was asked and what came of it where it was an admit.
    fn step(&mut self, op: &Op) -> Option<(usize, u32, Admission)> {
        match *op {
            Op::Advance(by) => self.now_ns += by,
            Op::Admit(kind, wanted) => return Some((kind, wanted, self.admit(kind, wanted, self.now_ns))),
            Op::AdmitLate(kind, wanted, by) => {
                return Some((kind, wanted, self.admit(kind, wanted, self.now_ns.saturating_sub(by))));
            }
            Op::Global(limit) => {
                self.global = limit;
                self.apply();
            }
            Op::Type(kind, rule) => {
                self.rules[kind] = rule;
                self.apply();
            }
            Op::Again => self.apply(),
            Op::Share(owned, of) => {
                self.share = (owned, of);
                self.seen_ns = self.seen_ns.max(self.now_ns);
                self.limiter.set_share(Share::new(owned, of).unwrap(), Now(self.now_ns));
            }
        }
        None
    }

    fn admit(&mut self, kind: usize, wanted: u32, now_ns: u64) -> Admission {
        self.seen_ns = self.seen_ns.max(now_ns);
        self.limiter.admit(self.ids[kind], wanted, Now(now_ns))
    }

    fn limit_of(&self, stream: usize) -> Option<Limit> {
        if stream == GLOBAL { Some(self.global) } else { self.rules[stream].map(|rule| rule.limit) }
    }

    /// Grains a nanosecond.
    fn rate(&self, stream: usize) -> i128 {
        let rate = self.limit_of(stream).map_or(0, |limit| limit.rate_per_s);
        i128::from(rate) * i128::from(self.share.0 * (OF / self.share.1))
    }

    /// This instance's burst, in grains. What a type without a rule had stays with it, so that is no bound there.
    fn burst(&self, stream: usize) -> i128 {
        let burst = self.limit_of(stream).map_or(Limit::BURST_MAX, |limit| limit.burst);
        let part = i128::from(burst) * EVENT * i128::from(self.share.0) / i128::from(self.share.1);
        if self.share.0 == 0 { 0 } else { part.max(EVENT) }
    }

    fn may_pass(&self, kind: usize) -> bool {
        self.rules[kind].is_some_and(|rule| rule.fuse == Fuse::Closed)
            && self.rate(kind) > 0
            && self.rate(GLOBAL) > 0
    }
}

/// The books of one stream (a type, or all of them) after a step, in grains.
#[derive(Clone, Copy)]
struct Line {
    earned: i128,
    admitted: i128,
    burst: i128,
}

fn check_windows(stream: usize, lines: &[Line]) -> Result<(), TestCaseError> {
    for (start, from) in lines.iter().enumerate() {
        for (end, to) in lines.iter().enumerate().skip(start) {
            let (admitted, earned) = (to.admitted - from.admitted, to.earned - from.earned);
            prop_assert!(
                admitted <= from.burst + earned,
                "stream {stream}: steps {start} to {end} passed {admitted} grains, {earned} earned, burst {}",
                from.burst
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, ..ProptestConfig::default() })]

    /// Windows begin anywhere, so right after each change too: the new rate and burst hold from there on. And as
    /// buckets start empty, a history as a whole passes no more than it earned: no change granted a burst.
    #[test]
    fn no_window_of_any_history_passes_more_than_the_limits_in_force(
        global in prop_oneof![Just(PLENTY), limit()],
        rules in prop::collection::vec(prop::option::weighted(0.8, rule()), TYPES),
        ops in prop::collection::vec(op(), 1..160),
    ) {
        let mut world = World::new(global, rules);
        let line = |world: &World, stream| Line { earned: 0, admitted: 0, burst: world.burst(stream) };
        let mut books: Vec<Vec<Line>> = (0..=TYPES).map(|stream| vec![line(&world, stream)]).collect();
        for op in &ops {
            let rates: Vec<i128> = (0..=TYPES).map(|stream| world.rate(stream)).collect();
            let before_ns = world.seen_ns;
            let answer = world.step(op);
            if let Some((kind, wanted, admission)) = answer {
                prop_assert!(admission.granted <= wanted);
                prop_assert_eq!(admission.wait != Wait::Never, world.may_pass(kind));
                prop_assert!(world.may_pass(kind) || admission.granted == 0);
            }
            for (stream, lines) in books.iter_mut().enumerate() {
                let mut line = *lines.last().unwrap();
                line.earned += rates[stream] * i128::from(world.seen_ns - before_ns);
                line.burst = world.burst(stream);
                if let Some((kind, _, admission)) = answer && (stream == kind || stream == GLOBAL) {
                    line.admitted += i128::from(admission.granted) * EVENT;
                }
                prop_assert!(line.admitted <= line.earned, "stream {} passed what it never earned", stream);
                lines.push(line);
            }
        }
        for (stream, lines) in books.iter().enumerate() {
            check_windows(stream, lines)?;
        }
    }

    /// The wait is exact: nothing passes a nanosecond earlier, at least one event passes then.
    #[test]
    fn after_any_history_one_event_passes_when_the_wait_is_over_and_none_before(
        global in prop_oneof![Just(PLENTY), limit()],
        rules in prop::collection::vec(prop::option::weighted(0.8, rule()), TYPES),
        ops in prop::collection::vec(op(), 1..60),
        kind in 0..TYPES,
        late_ns in prop_oneof![Just(0), advance_ns()],
    ) {
        let replay = || {
            let mut world = World::new(global, rules.clone());
            for op in &ops {
                world.step(op);
            }
            world
        };
        let mut world = replay();
        // A clock that is behind waits for itself too.
        world.now_ns = world.now_ns.saturating_sub(late_ns);
        let asked_ns = world.now_ns;
        let first = world.admit(kind, u32::MAX, asked_ns);
        if let Wait::For(wait) = first.wait {
            let wait_ns = u64::try_from(wait.as_nanos()).unwrap();
            prop_assert!(wait > Duration::ZERO, "all that passed was asked for");
            let mut early = replay();
            prop_assert_eq!(early.admit(kind, u32::MAX, asked_ns), first);
            prop_assert_eq!(early.admit(kind, 1, asked_ns + wait_ns - 1).granted, 0);
            prop_assert!(world.admit(kind, 1, asked_ns + wait_ns).granted == 1);
        }
    }

    /// Whatever changes every few milliseconds, demand gets what the rate earns, but for the one event that is
    /// not yet whole (and is lost with the last partition).
    #[test]
    fn frequent_changes_starve_nobody(
        by_type in any::<bool>(),
        steps in prop::collection::vec(
            (1_u64..5_000_000, prop::option::of(1_u64..100_000), prop::option::weighted(0.3, share())),
            300..900,
        ),
    ) {
        // A burst that holds more than a step earns: what a full bucket sheds is not starvation.
        let scarce = |rate_per_s: u64| Limit { rate_per_s, burst: u32::try_from(rate_per_s / 100).unwrap() + 240 };
        let change = |world: &mut World, limit| {
            let (global, own) = if by_type { (PLENTY, limit) } else { (limit, PLENTY) };
            world.global = global;
            world.rules[0] = Some(TypeLimit { limit: own, fuse: Fuse::Closed, priority: 0 });
            world.apply();
        };
        let mut world = World::new(PLENTY, vec![None; TYPES]);
        change(&mut world, scarce(3));
        let scarce_stream = if by_type { 0 } else { GLOBAL };
        let (mut earned, mut admitted, mut lost) = (0_i128, 0_i128, 0_i128);
        for (advance_ns, rate_per_s, share) in steps {
            earned += world.rate(scarce_stream) * i128::from(advance_ns);
            world.now_ns += advance_ns;
            admitted += i128::from(world.admit(0, u32::MAX, world.now_ns).granted) * EVENT;
            match rate_per_s {
                Some(rate_per_s) => change(&mut world, scarce(rate_per_s)),
                None => world.apply(),
            }
            if let Some((owned, of)) = share {
                world.step(&Op::Share(owned, of));
                // A grain of a change of share is at most 1/10^9 event; here: EVENT / 10^9.
                lost += if owned == 0 { EVENT } else { i128::from(OF) };
            }
        }
        prop_assert!(admitted > earned - lost - EVENT, "{} of {} grains passed", admitted, earned);
        prop_assert!(admitted <= earned);
    }
}
