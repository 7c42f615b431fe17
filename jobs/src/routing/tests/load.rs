//! `least_loaded`, in a simulation with a clock of its own.

use super::{addresses, is_even, router};
use crate::routing::load::{FAILURE_MS, MEMORY_MS};
use crate::routing::{Choice, Request, Router, Strategy};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

/// What becomes of a run.
#[derive(Clone, Copy)]
enum Outcome {
    AnsweredAfter(u64),
    FailedAfter(u64),
}

/// A run every 10 ms, and its outcome.
struct Simulation {
    router: Router,
    alive: Vec<Arc<str>>,
    now_ms: u64,
    /// When runs end, with the executor, when they were sent, and whether they fail.
    ends: BinaryHeap<Reverse<(u64, usize, u64, bool)>>,
}

impl Simulation {
    fn new(executors: usize) -> Self {
        Self { router: router(), alive: addresses(executors), now_ms: 1_000_000, ends: BinaryHeap::new() }
    }

    fn choose(&self) -> usize {
        let request = Request { job: 1, key: None, strategy: Strategy::LeastLoaded, now_ms: self.now_ms };
        match self.router.choose(&request, &self.alive) {
            Choice::One { address, .. } => self.alive.iter().position(|alive| *alive == address).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// How many runs each executor gets.
    fn run(&mut self, for_ms: u64, outcome: impl Fn(usize) -> Outcome) -> Vec<u64> {
        let mut counts = vec![0; self.alive.len()];
        let until_ms = self.now_ms + for_ms;
        while self.now_ms < until_ms {
            self.end_runs();
            let at = self.choose();
            counts[at] += 1;
            self.router.sent(&self.alive[at], self.now_ms);
            let (after_ms, fails) = match outcome(at) {
                Outcome::AnsweredAfter(after_ms) => (after_ms, false),
                Outcome::FailedAfter(after_ms) => (after_ms, true),
            };
            self.ends.push(Reverse((self.now_ms + after_ms, at, self.now_ms, fails)));
            self.now_ms += 10;
        }
        counts
    }

    fn end_runs(&mut self) {
        while let Some(Reverse((end_ms, at, sent_ms, fails))) = self.ends.pop() {
            if end_ms > self.now_ms {
                self.ends.push(Reverse((end_ms, at, sent_ms, fails)));
                return;
            }
            let (address, took_ms) = (&self.alive[at], end_ms - sent_ms);
            if fails {
                self.router.failed(address, took_ms, end_ms);
            } else {
                self.router.answered(address, took_ms, end_ms);
            }
        }
    }
}

#[test]
fn equals_share_evenly() {
    let mut simulation = Simulation::new(10);
    let counts = simulation.run(100_000, |_| Outcome::AnsweredAfter(25));
    let counts: BTreeMap<_, _> = simulation.alive.iter().cloned().zip(counts).collect();
    assert!(is_even(&counts), "{counts:?}");
}

#[test]
fn a_slow_one_is_avoided_and_tried_again_later() {
    for executors in [2, 10] {
        let mut simulation = Simulation::new(executors);
        let slow = |at| Outcome::AnsweredAfter(if at == 0 { 2_000 } else { 20 });
        simulation.run(20_000, slow);
        let total = 30_000;
        let counts = simulation.run(total * 10, slow);
        // Its fair share would be 30,000 of 2 executors, or 3,000 of 10, runs.
        assert!((1..150).contains(&counts[0]), "{counts:?}");
        // It has become quick, and is used again as the others are.
        simulation.run(120_000, |_| Outcome::AnsweredAfter(20));
        let counts = simulation.run(100_000, |_| Outcome::AnsweredAfter(20));
        assert!(counts[0] > 10_000 / executors as u64 / 2, "{counts:?}");
    }
}

#[test]
fn one_that_hangs_is_avoided_until_its_runs_have_failed() {
    let mut simulation = Simulation::new(3);
    let hangs = |at| if at == 0 { Outcome::FailedAfter(60_000) } else { Outcome::AnsweredAfter(20) };
    let counts = simulation.run(50_000, hangs);
    assert!((1..5).contains(&counts[0]), "{counts:?}");
    // After the time-outs it is tried again, by few runs.
    let counts = simulation.run(300_000, hangs);
    assert!((1..30).contains(&counts[0]), "{counts:?}");
    let counts = simulation.run(300_000, |_| Outcome::AnsweredAfter(20));
    assert!(counts[0] > 5_000, "{counts:?}");
}

#[test]
fn one_that_refuses_at_once_is_not_the_fastest() {
    let mut simulation = Simulation::new(3);
    let refuses = |at| if at == 0 { Outcome::FailedAfter(1) } else { Outcome::AnsweredAfter(50) };
    let counts = simulation.run(100_000, refuses);
    assert!((1..100).contains(&counts[0]), "{counts:?}");
}

#[test]
fn one_without_a_measurement_gets_twice_the_share_at_most() {
    let mut simulation = Simulation::new(10);
    simulation.run(10_000, |_| Outcome::AnsweredAfter(100));
    simulation.router.forget(&simulation.alive[0]);
    // It never answers within this time, so it looks as quick as can be, but for its runs in flight.
    let mut newcomer = 0;
    for _ in 0..1_000 {
        newcomer += u64::from(simulation.choose() == 0);
    }
    assert!((150..250).contains(&newcomer), "{newcomer}");
}

#[test]
fn runs_in_flight_are_counted_until_they_end() {
    let router = router();
    router.sent("a", 0);
    router.sent("a", 0);
    assert_eq!(router.in_flight("a"), 2);
    router.answered("a", 10, 10);
    router.failed("a", FAILURE_MS, MEMORY_MS);
    assert_eq!(router.in_flight("a"), 0);
    // An answer that comes after a restart, or twice.
    router.answered("a", 10, 10);
    assert_eq!(router.in_flight("a"), 0);
    router.sent("a", 0);
    router.forget("a");
    assert_eq!(router.in_flight("a"), 0);
}
