//! Plans as a whole: what they answer, what they warn of, and what they refuse.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use windfall_plan::{Basis, Costs, Inputs, Plan, TypeInput};

fn plan(inputs: Inputs, downstream: &[&str]) -> Plan {
    let types = downstream.iter().map(|one| one.parse::<TypeInput>().unwrap()).collect();
    Plan::new(&Inputs { types, ..inputs }, &Costs::default()).unwrap()
}

fn small() -> Inputs {
    Inputs { rewards_per_s: 50_000, for_s: 20, headroom: 1.0, ..Inputs::default() }
}

fn value(plan: &Plan, name: &str) -> f64 {
    plan.figures.iter().find(|figure| figure.name == name).unwrap_or_else(|| panic!("{name}")).value
}

#[test]
fn each_figure_says_where_it_comes_from() {
    let inputs = Inputs { timers: 1_000_000, wallet_reads_per_s: 1_000, ..small() };
    let plan = plan(inputs, &["cash=20000,share=90", "badge=500,connector"]);
    for figure in &plan.figures {
        assert!(figure.value.is_finite() && figure.value >= 0.0, "{figure:?}");
        assert!(!figure.formula.is_empty() && !figure.part.is_empty(), "{figure:?}");
        for cost in &figure.costs {
            let row = plan.costs.iter().find(|row| row.name == *cost).unwrap();
            assert!(figure.basis >= row.basis, "a figure is known no better than its costs: {figure:?}");
        }
    }
    assert!(plan.costs.iter().all(|cost| !cost.source.is_empty()));
    assert_eq!(plan.to_string(), plan.clone().to_string());
    assert!(plan.costs.iter().any(|cost| cost.basis == Basis::Assumed));
}

#[test]
fn a_connector_is_written_twice_and_a_ledger_takes_what_was_measured() {
    let ours = plan(small(), &["cash=30000,share=90", "badge=500,connector"]);
    assert!((value(&ours, "orders written per second") - 31_000.0).abs() < 1e-6);
    assert!((value(&ours, "ledgers (PostgreSQL primaries)") - 1.0).abs() < 1e-9);
    // 200,000 per second without limits need three ledgers of 97,100, and say what that means.
    let fast = plan(Inputs { rewards_per_s: 200_000, for_s: 5, ..small() }, &["cash=all"]);
    assert!((value(&fast, "ledgers (PostgreSQL primaries)") - 3.0).abs() < 1e-9);
    assert!(fast.notes.iter().any(|note| note.contains("cannot split one ledger")), "{:?}", fast.notes);
    // With one ledger the backlog is the ledger's: 1,000,000 ÷ 97,100.
    let one = plan(Inputs { rewards_per_s: 200_000, for_s: 5, ledgers: Some(1), ..small() }, &["cash=all"]);
    assert!((one.drains[0].simulated_s - 10.3).abs() < 0.3, "{:?}", one.drains[0].simulated_s);
    assert!(one.bottlenecks[0].contains("the ledgers"), "{:?}", one.bottlenecks);
}

#[test]
fn a_backlog_that_outlasts_the_brokers_is_told() {
    let inputs = Inputs { retention_days: 1, ..small() };
    let plan = plan(inputs, &["cash=10"]);
    assert!(plan.notes.iter().any(|note| note.contains("would delete rewards")), "{:?}", plan.notes);
}

#[test]
fn more_headroom_never_needs_less() {
    let servers = |headroom| {
        let inputs =
            Inputs { rewards_per_s: 3_000_000, for_s: 2, headroom, timers: 10_000_000_000, ..small() };
        let plan = plan(inputs, &["cash=300000"]);
        ["brokers of each of two clusters", "ledgers (PostgreSQL primaries)", "Redis masters for tokens"]
            .map(|name| value(&plan, name))
    };
    let (tight, wide) = (servers(1.0), servers(2.0));
    for (tight, wide) in tight.into_iter().zip(wide) {
        assert!(wide > tight, "{wide} {tight}");
    }
}

#[test]
fn nonsense_is_refused() {
    let refused = Plan::new(&Inputs { rewards_per_s: 0, ..small() }, &Costs::default()).unwrap_err();
    assert!(refused.to_string().contains("rewards-per-s is 0"), "{refused}");
    assert!(refused.to_string().contains("--downstream"), "{refused}");
}
