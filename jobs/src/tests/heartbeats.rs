//! Runs of apps whose executors could not say that they live.

use crate::JobsOptions;
use crate::runs::{Outcome, Run, RunNumber, RunState};
use crate::testing::{DAILY, Fault, Fleet, TO_APP, eventually, sleep_ms};

fn options() -> JobsOptions {
    JobsOptions { executor_ttl_ms: 30_000, ..JobsOptions::default() }
}

/// A fleet with a job, of which the store was away for so long that its executor is not registered any more.
async fn after_an_outage(more: &str) -> Fleet {
    let fleet = Fleet::start(1, options()).await;
    fleet.put("job", DAILY, TO_APP, more).await;
    for _ in 0..4 {
        fleet.register("app", "x").await;
        sleep_ms(8_000).await;
    }
    fleet.store.fault(|_, _| Fault::Fails);
    sleep_ms(60_000).await;
    fleet.store.heal();
    sleep_ms(2_000).await;
    assert_eq!((fleet.core().executors.len(), fleet.store.count(b"e/")), (0, 0));
    fleet
}

async fn waits(fleet: &Fleet, run: RunNumber) {
    sleep_ms(5_000).await;
    let (waiting, _) = fleet.stored(run).unwrap();
    assert!(matches!(waiting.state, RunState::Retrying { .. }) && waiting.attempt == 1, "{waiting:?}");
    assert!(waiting.postponed > 0 && fleet.calls_of(run) == 0);
}

async fn ends(fleet: &Fleet, run: RunNumber) -> (Outcome, Run) {
    eventually(|| fleet.stored(run).unwrap().0.is_over()).await;
    let (ended, _) = fleet.stored(run).unwrap();
    let RunState::Ended { outcome, .. } = ended.state else { panic!("{ended:?}") };
    (outcome, ended)
}

#[tokio::test(start_paused = true)]
async fn what_is_caught_up_with_after_an_outage_waits_for_the_executors_and_is_sent_once() {
    for delivery in ["at_least_once", "at_most_once"] {
        let fleet = after_an_outage(&format!(r#", "delivery": "{delivery}""#)).await;
        let run = fleet.run("job").await;
        waits(&fleet, run).await;
        fleet.register("app", "x").await;
        assert_eq!(ends(&fleet, run).await.0, Outcome::Succeeded, "{delivery}");
        sleep_ms(60_000).await;
        assert_eq!(fleet.calls_of(run), 1, "{delivery}");
    }
}

#[tokio::test(start_paused = true)]
async fn executors_that_do_not_come_back_are_not_waited_for_for_ever() {
    let fleet = after_an_outage("").await;
    let run = fleet.run("job").await;
    waits(&fleet, run).await;
    let (outcome, ended) = ends(&fleet, run).await;
    assert_eq!(outcome, Outcome::Failed);
    assert_eq!(ended.message, "no executor is registered for the app `app`");
    // All of that was one attempt, and the next run fails at once.
    assert_eq!(ended.attempt, 1);
    let next = fleet.run("job").await;
    sleep_ms(500).await;
    assert!(fleet.stored(next).unwrap().0.is_over());
}

#[tokio::test(start_paused = true)]
async fn a_process_that_starts_waits_for_executors_that_no_process_has_heard_of() {
    let mut fleet = Fleet::start(1, options()).await;
    fleet.put("job", DAILY, TO_APP, "").await;
    sleep_ms(35_000).await;
    let lost = fleet.run("job").await;
    sleep_ms(500).await;
    assert!(fleet.stored(lost).unwrap().0.is_dead(), "this process would have heard of executors");
    fleet.restart(options()).await;
    let run = fleet.run("job").await;
    waits(&fleet, run).await;
    fleet.register("app", "x").await;
    assert_eq!(ends(&fleet, run).await.0, Outcome::Succeeded);
}
