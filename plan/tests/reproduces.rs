//! The simulation against measured runs of the demo on the machine of docs/benchmarks.md, within 15 %: time to drain, and where
//! a limit decides, ages and the backlog at each second. docs/capacity.md says how the runs were made; `measured/measure.py` makes them.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use serde::Deserialize;
use std::collections::BTreeMap;
use windfall_plan::sim::{LedgerModel, Outcome, Pacing, Scenario, TypeLoad, simulate};

/// What a simulated figure may differ from the measured one.
const WITHIN: f64 = 0.15;

/// A run of the demo: of several, the one whose time to drain is the median.
#[derive(Debug, Deserialize)]
struct Measured {
    name: String,
    /// `RATE,BURST[,PRIORITY]`, by type or `global`.
    limits: BTreeMap<String, String>,
    rewards: u64,
    rain_s: f64,
    types: BTreeMap<String, MeasuredType>,
}

#[derive(Debug, Deserialize)]
struct MeasuredType {
    orders: u64,
    last_credit_s: f64,
    age_p50_s: f64,
    age_p99_s: f64,
    backlog_each_s: Vec<u64>,
}

fn measured(text: &str) -> Measured {
    let run: Measured = serde_json::from_str(text).unwrap();
    assert_eq!(run.types.values().map(|one| one.orders).sum::<u64>(), run.rewards, "{}", run.name);
    run
}

/// The demo as a scenario: its rules (`cli/src/demo/rules.rs`), with the run's limits, and this many microseconds per reward
/// in the ledger's only writer.
fn demo(run: &Measured, event_us: f64) -> Scenario {
    let numbers = |limit: &str| limit.split(',').map(|one| one.parse::<u64>().unwrap()).collect::<Vec<_>>();
    let narrow = |number: u64| u32::try_from(number).unwrap();
    let types = run.types.iter().map(|(name, one)| {
        let own = match (run.limits.get(name), name.as_str()) {
            (Some(limit), _) => numbers(limit),
            (None, "cash") => vec![1_000_000, 100_000, 0],
            (None, "badge") => vec![2_000, 200, 2],
            (None, _) => vec![500_000, 50_000, 1],
        };
        TypeLoad {
            name: name.clone(),
            events: one.orders,
            topics: if name == "cash" { vec![(0, 0.9), (1, 0.1)] } else { vec![(2, 0.9), (3, 0.1)] },
            limit: Some((own[0], narrow(own[1]))),
            priority: u8::try_from(own.get(2).copied().unwrap_or(1)).unwrap(),
            connector_ms: (name == "badge").then_some(5.0),
        }
    });
    let global = run.limits.get("global").map_or(vec![1_000_000, 100_000], |limit| numbers(limit));
    Scenario {
        seed: 2027,
        load_s: run.rain_s,
        types: types.collect(),
        global: Some((global[0], narrow(global[1]))),
        pack_events: 8,
        path_ms: 8.0,
        pacing: Pacing {
            lane_events_max: 32_768,
            hold_max_ms: 2_000,
            grant_batch: 2_000,
            in_flight_max: 16_384,
            requeue_delay_ms: 200,
            ..Pacing::default()
        },
        ledger: LedgerModel { writers: 1, transaction_events_max: 8_192, transaction_ms: 1.0, event_us },
        sample_s: 1.0,
        end_s: 600.0,
    }
}

/// Pairs of figures, of which those that differ too much are told all at once.
#[derive(Default)]
struct Comparison {
    lines: Vec<String>,
    is_off: bool,
}

impl Comparison {
    /// Below `least` the machine's own scatter is larger than 15 %.
    fn near(&mut self, what: &str, simulated: f64, measured: f64, least: f64) {
        let is_off = (simulated - measured).abs() > (measured * WITHIN).max(least);
        self.is_off |= is_off;
        let mark = if is_off { "  OFF" } else { "" };
        self.lines.push(format!("{what:<28} simulated {simulated:>10.3}, measured {measured:>10.3}{mark}"));
    }

    fn check(self, run: &Measured) {
        println!("{}\n{}", run.name, self.lines.join("\n"));
        assert!(!self.is_off, "{}: more than 15 % off\n{}", run.name, self.lines.join("\n"));
    }
}

fn real(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}

/// Compares all of it with the measured run, and each of these types.
fn compare(run: &Measured, outcome: &Outcome, types: &[&str]) -> Comparison {
    let mut all = Comparison::default();
    all.near("all, last credit", outcome.last_credit_s.unwrap(), last_credit_s(run), 0.2);
    for simulated in outcome.types.iter().filter(|one| types.contains(&one.name.as_str())) {
        let one = &run.types[&simulated.name];
        let what = |figure: &str| format!("{}, {figure}", simulated.name);
        all.near(&what("last credit"), simulated.last_credit_s.unwrap(), one.last_credit_s, 0.2);
        all.near(&what("age p50"), simulated.age_p50_s, one.age_p50_s, 0.3);
        all.near(&what("age p99"), simulated.age_p99_s, one.age_p99_s, 0.3);
        // In parts of the largest backlog: near the end of a drain each is a difference of large numbers.
        let most = one.backlog_each_s.iter().copied().max().unwrap_or(0);
        let least = (WITHIN * real(most)).max(600.0);
        for (at, (own, theirs)) in simulated.backlog.iter().zip(&one.backlog_each_s).enumerate() {
            all.near(&what(&format!("backlog at {} s", at + 1)), real(*own), real(*theirs), least);
        }
    }
    all
}

fn last_credit_s(run: &Measured) -> f64 {
    run.types.values().map(|one| one.last_credit_s).fold(0.0, f64::max)
}

/// Microseconds per reward of the ledger's writer that a run says, if the ledger alone limits it.
fn event_us(run: &Measured) -> f64 {
    last_credit_s(run) * 1e6 / real(run.rewards)
}

#[test]
fn limits_of_types() {
    let run = measured(include_str!("measured/type_limits.json"));
    let types: Vec<&str> = run.types.keys().map(String::as_str).collect();
    compare(&run, &simulate(&demo(&run, 15.0)), &types).check(&run);
}

/// Cash goes first and is reproduced; how the types behind it share its floors is not.
#[test]
fn the_global_limit_with_priorities() {
    let run = measured(include_str!("measured/global_limit.json"));
    compare(&run, &simulate(&demo(&run, 15.0)), &["cash"]).check(&run);
}

/// Twice the rewards of the run that says what one of them costs. Runs of the same load differ by a factor of up to 1.8 here, because all
/// parts share two cores; so the time to drain is compared, and no single second.
#[test]
fn the_ledger_at_its_limit() {
    let calibration = measured(include_str!("measured/ledger_calibration.json"));
    let run = measured(include_str!("measured/ledger_bound.json"));
    let outcome = simulate(&demo(&run, event_us(&calibration)));
    compare(&run, &outcome, &[]).check(&run);
}
