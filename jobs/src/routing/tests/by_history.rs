//! Strategies that remember who had earlier runs.

use super::{addresses, choose, is_even, router, shares, without};
use crate::routing::{Router, RouterOptions, Strategy};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

#[test]
fn round_takes_one_after_the_other() {
    let alive = addresses(5);
    let router = router();
    let (first, fallbacks) = choose(&router, Strategy::Round, 1, &alive);
    let start = alive.iter().position(|address| *address == first).unwrap();
    assert_eq!(fallbacks[0], alive[(start + 1) % 5]);
    for passed in 1..20 {
        assert_eq!(choose(&router, Strategy::Round, 1, &alive).0, alive[(start + passed) % 5]);
    }
}

#[test]
fn round_goes_on_fairly_when_executors_leave_and_come() {
    let alive = addresses(5);
    let router = router();
    while choose(&router, Strategy::Round, 1, &alive).0 != alive[2] {}
    // Who had the last run leaves; then somebody before it comes back.
    let fewer = without(&alive, &alive[2]);
    assert_eq!(choose(&router, Strategy::Round, 1, &fewer).0, alive[3]);
    assert_eq!(choose(&router, Strategy::Round, 1, &alive).0, alive[4]);
    assert_eq!(choose(&router, Strategy::Round, 1, &alive).0, alive[0]);
    let counts = shares(&router, Strategy::Round, 1, &fewer, 40);
    assert!(counts.len() == 4 && counts.values().all(|count| *count == 10), "{counts:?}");
}

#[test]
fn the_first_runs_of_many_jobs_are_spread() {
    let alive = addresses(10);
    for strategy in [Strategy::Round, Strategy::LeastFrequentlyUsed, Strategy::LeastRecentlyUsed] {
        let router = router();
        let mut counts = BTreeMap::new();
        for job in 0..10_000 {
            *counts.entry(choose(&router, strategy, job, &alive).0).or_default() += 1;
        }
        assert!(is_even(&counts), "{strategy}: {counts:?}");
    }
}

#[test]
fn least_frequently_used_is_exact() {
    let alive = addresses(7);
    let router = router();
    let counts = shares(&router, Strategy::LeastFrequentlyUsed, 1, &alive, 700);
    assert!(counts.values().all(|count| *count == 100), "{counts:?}");
    // A job of its own.
    let counts = shares(&router, Strategy::LeastFrequentlyUsed, 2, &alive, 7);
    assert!(counts.len() == 7 && counts.values().all(|count| *count == 1), "{counts:?}");
}

#[test]
fn a_newcomer_gets_its_share_of_the_least_frequently_used_and_no_more() {
    let alive = addresses(5);
    let router = router();
    let fewer = without(&alive, &alive[1]);
    shares(&router, Strategy::LeastFrequentlyUsed, 1, &fewer, 1_000);
    let counts = shares(&router, Strategy::LeastFrequentlyUsed, 1, &alive, 50);
    assert!(counts.values().all(|count| *count == 10), "{counts:?}");
    // Who was away for long does not catch up either.
    shares(&router, Strategy::LeastFrequentlyUsed, 1, &fewer, 1_000);
    let counts = shares(&router, Strategy::LeastFrequentlyUsed, 1, &alive, 50);
    assert!(counts.values().all(|count| *count == 10), "{counts:?}");
}

#[test]
fn least_recently_used_takes_who_waited_longest() {
    let alive = addresses(5);
    let router = router();
    let order: Vec<Arc<str>> =
        (0..5).map(|_| choose(&router, Strategy::LeastRecentlyUsed, 1, &alive).0).collect();
    assert_eq!(order.iter().collect::<HashSet<_>>().len(), 5);
    for passed in 5..20 {
        let (address, fallbacks) = choose(&router, Strategy::LeastRecentlyUsed, 1, &alive);
        assert_eq!(address, order[passed % 5]);
        assert_eq!(fallbacks[0], order[(passed + 1) % 5]);
    }
}

#[test]
fn a_newcomer_is_the_least_recently_used_once() {
    let alive = addresses(5);
    let router = router();
    let fewer = without(&alive, &alive[1]);
    shares(&router, Strategy::LeastRecentlyUsed, 1, &fewer, 103);
    assert_eq!(choose(&router, Strategy::LeastRecentlyUsed, 1, &alive).0, alive[1]);
    let counts = shares(&router, Strategy::LeastRecentlyUsed, 1, &alive, 4);
    assert!(counts.len() == 4 && !counts.contains_key(&alive[1]), "{counts:?}");
}

#[test]
fn another_strategy_starts_anew() {
    let alive = addresses(5);
    let router = router();
    for strategy in [
        Strategy::LeastFrequentlyUsed,
        Strategy::LeastRecentlyUsed,
        Strategy::Round,
        Strategy::LeastRecentlyUsed,
        Strategy::LeastFrequentlyUsed,
    ] {
        let counts = shares(&router, strategy, 1, &alive, 10);
        assert!(counts.len() == 5 && counts.values().all(|count| *count == 2), "{strategy}: {counts:?}");
    }
}

#[test]
fn the_memory_of_jobs_is_bounded_and_keeps_what_is_used() {
    let options = RouterOptions { history_entries_max: 6_400, executors_max: 6_400 };
    let router = Router::new(options, 42);
    let alive = addresses(4);
    let mut expected = Vec::new();
    for job in 0..50_000 {
        choose(&router, Strategy::LeastRecentlyUsed, 1_000_000 + job, &alive);
        // A job that runs all the time is never forgotten.
        if job % 3 == 0 {
            expected.push(choose(&router, Strategy::Round, 7, &alive).0);
        }
    }
    assert!(expected.windows(4).all(|run| run.iter().collect::<HashSet<_>>().len() == 4));
    assert!(router.history_entries() <= 6_400);
    for number in 0..50_000 {
        router.sent(&format!("http://{number}"), 0);
    }
    assert!(router.executors() <= 6_400);
    assert_eq!(router.in_flight("http://49999"), 1);
}

#[test]
fn threads_share_the_runs_of_a_job_exactly() {
    let alive = addresses(8);
    let router = router();
    let counts: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| shares(&router, Strategy::LeastFrequentlyUsed, 1, &alive, 1_000)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut total = BTreeMap::<Arc<str>, u64>::new();
    for (address, count) in counts.into_iter().flatten() {
        *total.entry(address).or_default() += count;
    }
    assert!(total.values().all(|count| *count == 500), "{total:?}");
}
