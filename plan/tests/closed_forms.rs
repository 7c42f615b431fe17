//! The simulation against what can be computed by hand, where limits, sizes and seeds are whatever they are.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use proptest::prelude::*;
use windfall_plan::sim::{LedgerModel, Outcome, Pacing, Scenario, TypeLoad, fluid, simulate};

fn one_type(name: &str, events: u64, limit_per_s: u64) -> TypeLoad {
    let burst = u32::try_from(limit_per_s / 20 + 1).unwrap();
    TypeLoad {
        name: name.into(),
        events,
        topics: vec![(0, 1.0)],
        limit: Some((limit_per_s, burst)),
        priority: 1,
        connector_ms: None,
    }
}

/// A ledger that never matters.
fn scenario(load_s: f64, types: Vec<TypeLoad>) -> Scenario {
    Scenario {
        seed: 1,
        load_s,
        types,
        global: None,
        pack_events: 64,
        path_ms: 5.0,
        pacing: Pacing { in_flight_max: 100_000, ..Pacing::default() },
        ledger: LedgerModel {
            writers: 8,
            transaction_events_max: 10_000,
            transaction_ms: 0.5,
            event_us: 0.5,
        },
        sample_s: 0.5,
        end_s: 10_000.0,
    }
}

fn run(scenario: &Scenario) -> Outcome {
    let outcome = simulate(scenario);
    let sent: u64 = scenario.types.iter().map(|one| one.events).sum();
    let credited: u64 = outcome.types.iter().map(|one| one.credited).sum();
    assert_eq!(credited, sent, "nothing is lost and nothing is credited twice");
    outcome
}

/// backlog = (in − out) · t while the load lasts, and falls by out · t behind it.
#[test]
fn a_backlog_grows_and_falls_as_a_fluid_does() {
    let (come, pass, load_s) = (20_000.0, 5_000.0, 20.0);
    let scenario = scenario(load_s, vec![one_type("cash", 400_000, 5_000)]);
    let outcome = run(&scenario);
    for (at_s, waits) in outcome.sampled_s.iter().zip(&outcome.types[0].backlog) {
        let expected = (come * at_s.min(load_s) - pass * at_s).max(0.0);
        let waits = f64::from(u32::try_from(*waits).unwrap());
        assert!((waits - expected).abs() < 0.02 * 300_000.0, "{at_s} s: {waits}, not {expected}");
    }
    let last_s = outcome.last_credit_s.unwrap();
    assert!((last_s - 80.0).abs() < 0.8, "{last_s}");
    // Sent at t, credited at 4 t: ages rise evenly from 0 to 60 s.
    let cash = &outcome.types[0];
    assert!((cash.age_p50_s - 30.0).abs() < 0.6 && (cash.age_p99_s - 59.4).abs() < 0.9, "{cash:?}");
}

#[test]
fn below_the_limit_nothing_waits() {
    let outcome = run(&scenario(20.0, vec![one_type("cash", 60_000, 5_000)]));
    let cash = &outcome.types[0];
    assert!(cash.backlog_max < 1_000 && cash.age_p99_s < 0.3, "{cash:?}");
    assert!((outcome.last_credit_s.unwrap() - 20.0).abs() < 0.3);
}

#[test]
fn a_ledger_without_limits_takes_what_its_writers_take() {
    let mut scenario = scenario(5.0, vec![TypeLoad { limit: None, ..one_type("cash", 400_000, 1) }]);
    // 4 writers, 1,000 events in 20 ms + 1,000 · 80 µs = 100 ms each: 40,000 per second.
    scenario.ledger =
        LedgerModel { writers: 4, transaction_events_max: 1_000, transaction_ms: 20.0, event_us: 80.0 };
    let outcome = run(&scenario);
    let last_s = outcome.last_credit_s.unwrap();
    assert!((last_s - 10.0).abs() < 0.5, "{last_s}");
    assert!(outcome.ledger_busy > 0.95, "{}", outcome.ledger_busy);
    assert!((fluid(&scenario)[0].0 - 10.0).abs() < 1e-6);
}

#[test]
fn the_global_limit_goes_to_the_first_priority_and_leaves_a_floor() {
    let cash = TypeLoad { priority: 0, limit: None, ..one_type("cash", 100_000, 1) };
    let coin = TypeLoad { topics: vec![(1, 1.0)], limit: None, ..one_type("coin", 40_000, 1) };
    let mut scenario = scenario(10.0, vec![cash, coin]);
    scenario.global = Some((8_000, 800));
    let outcome = run(&scenario);
    assert!((outcome.last_credit_s.unwrap() - 17.5).abs() < 0.4, "{outcome:?}");
    // A twentieth of what cash gets is left to coin, so that cash takes 100,000 ÷ (8,000 · 20/21) = 13.1 s.
    assert!((outcome.types[0].last_credit_s.unwrap() - 13.1).abs() < 0.4, "{:?}", outcome.types[0]);
}

/// A small slow type in the topic of a fast one goes back to the topic's end, and stops nothing.
#[test]
fn a_slow_type_does_not_hold_up_what_comes_behind_it() {
    let badge = one_type("badge", 40_000, 200);
    let cash = one_type("cash", 200_000, 50_000);
    let mut scenario = scenario(10.0, vec![badge, cash]);
    scenario.pacing.lane_events_max = 5_000;
    let outcome = run(&scenario);
    let (badge, cash) = (&outcome.types[0], &outcome.types[1]);
    assert!(badge.requeued > 0 && cash.requeued == 0, "{badge:?}");
    assert!(cash.last_credit_s.unwrap() < 15.0, "{cash:?}");
    assert!((badge.last_credit_s.unwrap() - 200.0).abs() < 4.0, "{badge:?}");
}

#[test]
fn a_connector_is_written_twice_and_answered_once() {
    let badge = TypeLoad { connector_ms: Some(100.0), ..one_type("badge", 1_000, 1_000) };
    let outcome = run(&scenario(1.0, vec![badge]));
    let age_s = outcome.types[0].age_p50_s;
    assert!((0.1..0.4).contains(&age_s), "{age_s}");
}

#[test]
fn what_cannot_end_is_given_up() {
    let mut scenario = scenario(1.0, vec![one_type("badge", 100_000, 1)]);
    scenario.end_s = 50.0;
    let outcome = simulate(&scenario);
    assert_eq!((outcome.last_credit_s, outcome.types[0].last_credit_s), (None, None));
    assert!(outcome.types[0].credited <= 51);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Types in topics of their own, below the ledger's capacity: each drains at its own limit.
    #[test]
    fn each_type_drains_at_its_limit(
        loads in prop::collection::vec((1_000_u64..200_000, 200_u64..50_000), 1..5),
        load_s in 1.0..30.0,
        seed in any::<u64>(),
    ) {
        let types = loads.iter().enumerate().map(|(topic, &(events, limit))| {
            TypeLoad { topics: vec![(2 * topic, 0.9), (2 * topic + 1, 0.1)], ..one_type(&topic.to_string(), events, limit) }
        });
        let scenario = Scenario { seed, end_s: 1e6, ..scenario(load_s, types.collect()) };
        let outcome = run(&scenario);
        prop_assert_eq!(&outcome, &simulate(&scenario), "the seed decides everything");
        for ((one, (fluid_s, backlog)), limit) in outcome.types.iter().zip(fluid(&scenario)).zip(loads) {
            let last_s = one.last_credit_s.unwrap();
            // A look every 10 ms, a path of some ms, and a batch at the end.
            prop_assert!((last_s - fluid_s).abs() < 0.03 * fluid_s + 0.4, "{last_s} not {fluid_s}: {limit:?}");
            let most = f64::from(u32::try_from(one.backlog_max).unwrap());
            prop_assert!(most <= backlog * 1.05 + 20_000.0, "{most} not {backlog}");
        }
    }
}
