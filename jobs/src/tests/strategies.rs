//! Which executors get runs while some of them come, go, hang or are busy, by strategy.

use crate::JobsOptions;
use crate::routing::Strategy;
use crate::runs::{Outcome, Reported, RunNumber, RunState, Sent};
use crate::testing::{DAILY, Fleet, Trouble, eventually, name, sleep_ms};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// No executor is in trouble.
const WELL: &[(&str, Trouble)] = &[];

/// A fleet with executors of the app `many`.
async fn fleet_with(executors: &[&str]) -> Fleet {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    for address in executors {
        fleet.register("many", address).await;
    }
    fleet
}

fn to_many(strategy: Strategy) -> String {
    format!(r#"{{"executor": {{"app": "many", "handler": "h", "routing": "{strategy}"}}}}"#)
}

fn set_troubles(fleet: &Fleet, troubles: &[(&str, Trouble)]) {
    let troubles = troubles.iter().map(|(address, trouble)| ((*address).to_owned(), *trouble));
    *fleet.executors.troubles.lock() = troubles.collect();
}

/// Runs the job of this name once: who was called for it, in order, and how long it took until the first executor was.
async fn called_for_run(fleet: &Fleet, job: &str) -> (RunNumber, Vec<String>, u64) {
    fleet.executors.calls.lock().clear();
    let begun_ms = fleet.clock.unix_ms();
    let run = fleet.run(job).await;
    eventually(|| !fleet.executors.calls.lock().is_empty() || outcome_of(fleet, run).is_some()).await;
    let took_ms = fleet.clock.unix_ms() - begun_ms;
    eventually(|| outcome_of(fleet, run).is_some()).await;
    (run, addresses_called(fleet), took_ms)
}

fn addresses_called(fleet: &Fleet) -> Vec<String> {
    fleet.executors.calls.lock().iter().map(|(address, _)| address.clone()).collect()
}

fn outcome_of(fleet: &Fleet, run: RunNumber) -> Option<Outcome> {
    match fleet.stored(run).unwrap().0.state {
        RunState::Ended { outcome, .. } => Some(outcome),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn failover_and_busyover_take_the_first_that_is_well_and_wait_for_nobody_behind_it() {
    use Strategy::{Busyover, Failover};
    use Trouble::{Busy, Dead, Hung};
    let fleet = fleet_with(&["a", "b", "c"]).await;
    for delivery in ["at_least_once", "at_most_once"] {
        for strategy in [Failover, Busyover] {
            let more = format!(r#", "delivery": "{delivery}""#);
            fleet.put(&format!("{strategy}-{delivery}"), DAILY, &to_many(strategy), &more).await;
        }
        for (strategy, troubles, taken, most_ms) in [
            (Failover, WELL, Some("a"), 100),
            (Failover, &[("a", Dead)], Some("b"), 100),
            (Failover, &[("a", Busy)], Some("a"), 100),
            // Who comes behind the first good one does not count.
            (Failover, &[("b", Hung), ("c", Hung)], Some("a"), 100),
            (Failover, &[("a", Dead), ("c", Hung)], Some("b"), 100),
            // Those that hang cost one time-out together.
            (Failover, &[("a", Hung)], Some("b"), 2_100),
            (Failover, &[("a", Hung), ("b", Hung)], Some("c"), 2_400),
            (Failover, &[("a", Dead), ("b", Dead), ("c", Dead)], None, 100),
            (Failover, &[("a", Hung), ("b", Dead), ("c", Hung)], None, 2_400),
            (Busyover, WELL, Some("a"), 100),
            (Busyover, &[("a", Busy)], Some("b"), 100),
            (Busyover, &[("a", Busy), ("b", Dead)], Some("c"), 100),
            (Busyover, &[("a", Busy), ("c", Hung)], Some("b"), 100),
            (Busyover, &[("a", Hung), ("b", Busy)], Some("c"), 2_400),
            (Busyover, &[("a", Busy), ("b", Busy), ("c", Busy)], None, 100),
        ] {
            set_troubles(&fleet, troubles);
            let (run, called, took_ms) = called_for_run(&fleet, &format!("{strategy}-{delivery}")).await;
            let what = format!("{strategy}, {delivery}, {troubles:?}: {called:?} after {took_ms} ms");
            assert_eq!(called, Vec::from_iter(taken), "{what}");
            assert!(took_ms <= most_ms, "{what}");
            let outcome = if taken.is_some() { Outcome::Succeeded } else { Outcome::Failed };
            assert_eq!(outcome_of(&fleet, run), Some(outcome), "{what}");
            assert_eq!(fleet.stored(run).unwrap().0.executor.as_deref(), taken, "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_the_first_good_executor_certainly_did_not_get_goes_to_the_next_one_at_once() {
    let fleet = fleet_with(&["a", "b", "c", "d", "e"]).await;
    let done = || (0, Sent::Finished(Reported::Succeeded(String::new())));
    for strategy in [Strategy::Failover, Strategy::Busyover] {
        for delivery in ["at_least_once", "at_most_once"] {
            let (job, more) = (format!("{strategy}-{delivery}"), format!(r#", "delivery": "{delivery}""#));
            fleet.put(&job, DAILY, &to_many(strategy), &more).await;
            set_troubles(&fleet, &[("b", Trouble::Dead)]);
            // It answers its beat, and has no place for a run.
            fleet.answer(move |address, _| match address {
                "a" => (0, Sent::NotSent("no call ended".into())),
                _ => done(),
            });
            let (run, called, _) = called_for_run(&fleet, &job).await;
            assert_eq!(
                (called, outcome_of(&fleet, run)),
                (vec!["a".into(), "c".into()], Some(Outcome::Succeeded))
            );
            assert_eq!(fleet.stored(run).unwrap().0.executor.as_deref(), Some("c"));
            // No run goes from one executor to the next without end.
            set_troubles(&fleet, &[]);
            fleet.answer(|_, _| (0, Sent::NotSent("no call ended".into())));
            let (run, called, _) = called_for_run(&fleet, &job).await;
            assert_eq!(
                (called, outcome_of(&fleet, run)),
                (["a", "b", "c", "d"].map(String::from).into(), Some(Outcome::Failed))
            );
            // One that may have it is not asked behind its back.
            fleet.answer(|_, _| (0, Sent::Refused("busy".into())));
            let (_, called, _) = called_for_run(&fleet, &job).await;
            assert_eq!(called, ["a"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_of_a_broadcast_that_did_not_reach_its_executor_goes_to_another_one_at_once() {
    let fleet = fleet_with(&["a", "b", "c"]).await;
    fleet.put("all", DAILY, &to_many(Strategy::ShardingBroadcast), "").await;
    set_troubles(&fleet, &[("b", Trouble::Dead)]);
    fleet.run("all").await;
    eventually(|| fleet.jobs.stats().succeeded.get() == 3).await;
    let calls = fleet.executors.calls.lock().clone();
    let done: BTreeSet<(u32, &str)> = calls
        .iter()
        .filter(|(address, _)| address != "b")
        .map(|(address, call)| (call.part.index, address.as_str()))
        .collect();
    assert_eq!(done, BTreeSet::from([(0, "a"), (1, "c"), (2, "c")]));
    assert_eq!((calls.len(), fleet.jobs.stats().failed.get()), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn a_part_whose_executor_leaves_before_it_is_sent_goes_to_one_that_is_there() {
    let fleet = fleet_with(&["a", "b", "c"]).await;
    let more = r#", "retries": {"fixed": {"max": 1, "wait_ms": 10000}}"#;
    fleet.put("all", DAILY, &to_many(Strategy::ShardingBroadcast), more).await;
    let is_ready = Arc::new(AtomicBool::new(false));
    let ready = Arc::clone(&is_ready);
    fleet.answer(move |_, _| match ready.load(Ordering::Relaxed) {
        true => (0, Sent::Finished(Reported::Succeeded(String::new()))),
        false => (0, Sent::Refused("not now".into())),
    });
    fleet.run("all").await;
    eventually(|| fleet.calls().len() == 3).await;
    fleet.jobs.unregister("t", "many", "c").await.unwrap();
    is_ready.store(true, Ordering::Relaxed);
    eventually(|| fleet.jobs.stats().succeeded.get() == 3).await;
    let second: BTreeSet<(u32, String)> = fleet.executors.calls.lock()[3..]
        .iter()
        .map(|(address, call)| (call.part.index, address.clone()))
        .collect();
    assert_eq!(second, BTreeSet::from([(0, "a".into()), (1, "b".into()), (2, "a".into())]));
}

#[tokio::test(start_paused = true)]
async fn with_each_strategy_executors_that_come_go_die_or_hang_lose_no_run() {
    use Strategy::{
        ConsistentHash, First, Last, LeastFrequentlyUsed, LeastLoaded, LeastRecentlyUsed, Random, Round,
    };
    // Whether one that comes gets runs: `0` is the first of all addresses.
    for (strategy, newcomer_has_runs) in [
        (First, true),
        (Last, false),
        (Round, true),
        (Random, true),
        (ConsistentHash, true),
        (LeastFrequentlyUsed, true),
        (LeastRecentlyUsed, true),
        (LeastLoaded, true),
    ] {
        let fleet = fleet_with(&["a", "b", "c"]).await;
        fleet.put("job", DAILY, &to_many(strategy), "").await;
        for dead in ["a", "b", "c"] {
            set_troubles(&fleet, &[(dead, Trouble::Dead)]);
            let called = run_many(&fleet, 20).await;
            // Each was sent to somebody who is well at last, and to nobody twice.
            let reached = called.iter().filter(|address| *address != dead).count();
            assert_eq!(reached, 20, "{strategy}, {dead} is dead: {called:?}");
        }
        for hung in ["a", "b", "c"] {
            set_troubles(&fleet, &[(hung, Trouble::Hung)]);
            fleet.executors.calls.lock().clear();
            let before = fleet.jobs.stats().succeeded.get();
            start_many(&fleet, 20).await;
            // Its heartbeats end.
            sleep_ms(30_000).await;
            fleet.jobs.unregister("t", "many", hung).await.unwrap();
            eventually(|| fleet.jobs.stats().succeeded.get() == before + 20).await;
            set_troubles(&fleet, &[]);
            fleet.register("many", hung).await;
        }
        fleet.jobs.unregister("t", "many", "b").await.unwrap();
        sleep_ms(2_000).await;
        let called = run_many(&fleet, 20).await;
        assert!(called.len() == 20 && !called.contains(&"b".to_owned()), "{strategy}: {called:?}");
        fleet.register("many", "0").await;
        let called = run_many(&fleet, 100).await;
        assert_eq!(called.len(), 100, "{strategy}: {called:?}");
        assert_eq!(called.contains(&"0".to_owned()), newcomer_has_runs, "{strategy}: {called:?}");
        let stats = fleet.jobs.stats();
        assert_eq!((stats.failed.get(), stats.timed_out.get(), stats.missed.get()), (0, 0, 0), "{strategy}");
    }
}

async fn start_many(fleet: &Fleet, count: u64) {
    for at in 0..count {
        fleet.jobs.run("t", &name("job"), Some(format!("params {at}"))).await.unwrap();
    }
}

/// Runs the job so often, each time with other parameters: who was called.
async fn run_many(fleet: &Fleet, count: u64) -> Vec<String> {
    fleet.executors.calls.lock().clear();
    let before = fleet.jobs.stats().succeeded.get();
    start_many(fleet, count).await;
    eventually(|| fleet.jobs.stats().succeeded.get() == before + count).await;
    addresses_called(fleet)
}
