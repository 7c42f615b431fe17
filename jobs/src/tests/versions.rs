//! Runs of jobs that are changed meanwhile: a run follows the version with which it began.

use crate::JobsOptions;
use crate::definition::Delivery;
use crate::runs::{Outcome, Reported, RunNumber, RunState, Sent};
use crate::testing::{DAILY, Fleet, eventually, sleep_ms};
use windfall_contract::due::Shard;

fn to(handler: &str) -> String {
    format!(r#"{{"executor": {{"app": "app", "handler": "{handler}"}}}}"#)
}

fn more(params: &str, delivery: Delivery) -> String {
    match delivery {
        Delivery::AtMostOnce => {
            format!(r#", "params": "{params}", "timeout_s": 5, "delivery": "at_most_once""#)
        }
        Delivery::AtLeastOnce => format!(
            r#", "params": "{params}", "timeout_s": 5, "retries": {{"fixed": {{"max": 1, "wait_ms": 10000}}}}"#
        ),
    }
}

/// More versions than are kept, the last one with this handler.
async fn change_often(fleet: &Fleet, delivery: Delivery) {
    for at in 0..95 {
        fleet.put("job", DAILY, &to("new"), &more(&format!("new {at}"), delivery)).await;
    }
}

fn outcome_of(fleet: &Fleet, run: RunNumber) -> Option<Outcome> {
    match fleet.stored(run).unwrap().0.state {
        RunState::Ended { outcome, .. } => Some(outcome),
        _ => None,
    }
}

fn handlers(fleet: &Fleet) -> Vec<(String, String)> {
    fleet.calls().into_iter().map(|call| (call.handler, call.params)).collect()
}

fn pair(handler: &str, params: &str) -> (String, String) {
    (handler.to_owned(), params.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_run_is_tried_again_as_its_job_was_and_run_again_as_its_job_is() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    fleet.put("job", DAILY, &to("old"), &more("old", Delivery::AtLeastOnce)).await;
    fleet.answer(|_, _| (0, Sent::Refused("no".into())));
    let run = fleet.run("job").await;
    eventually(|| fleet.calls().len() == 1).await;
    fleet.put("job", DAILY, &to("new"), &more("new", Delivery::AtLeastOnce)).await;
    eventually(|| outcome_of(&fleet, run).is_some()).await;
    assert_eq!(handlers(&fleet), [pair("old", "old"), pair("old", "old")]);
    assert_eq!(fleet.stored(run).unwrap().0.version, 1);
    fleet.answer(|_, _| (0, Sent::Finished(Reported::Succeeded(String::new()))));
    fleet.jobs.run_again("t", run).await.unwrap();
    eventually(|| outcome_of(&fleet, run) == Some(Outcome::Succeeded)).await;
    assert_eq!(handlers(&fleet)[2..], [pair("new", "new")]);
    assert_eq!(fleet.stored(run).unwrap().0.version, 2);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_may_have_been_sent_once_is_not_sent_again_because_its_job_was_changed() {
    for is_forgotten in [false, true] {
        let fleet = Fleet::start(1, JobsOptions::default()).await;
        fleet.put("job", DAILY, &to("old"), &more("old", Delivery::AtMostOnce)).await;
        fleet.answer(|_, _| (0, Sent::Unknown("silence".into())));
        let run = fleet.run("job").await;
        eventually(|| matches!(fleet.stored(run).unwrap().0.state, RunState::Running { .. })).await;
        fleet.put("job", DAILY, &to("new"), &more("new", Delivery::AtLeastOnce)).await;
        if is_forgotten {
            change_often(&fleet, Delivery::AtLeastOnce).await;
        }
        sleep_ms(100_000).await;
        assert_eq!((fleet.calls_of(run), outcome_of(&fleet, run)), (1, Some(Outcome::TimedOut)));
    }
}

/// What is noted of a call that has ended was noted as if the run had begun by the version of that moment.
#[tokio::test(start_paused = true)]
async fn a_run_that_may_be_sent_once_is_not_sent_again_where_its_version_is_forgotten_during_the_call() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    let job = fleet.put("job", DAILY, &to("old"), &more("old", Delivery::AtMostOnce)).await;
    fleet.answer(|_, _| (10_000, Sent::Unknown("silence".into())));
    let run = fleet.run("job").await;
    eventually(|| fleet.calls_of(run) == 1).await;
    change_often(&fleet, Delivery::AtLeastOnce).await;
    // As another run of the job does: this process does not remember the old version any more.
    assert!(fleet.core().latest_definition(Shard(0), job).await.unwrap().is_some());
    let (going, _) = fleet.stored(run).unwrap();
    assert!(matches!(going.state, RunState::Starting { .. }), "the call is over: {going:?}");
    sleep_ms(100_000).await;
    assert_eq!((fleet.calls_of(run), outcome_of(&fleet, run)), (1, Some(Outcome::TimedOut)));
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_version_is_forgotten_goes_on_as_its_job_is() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    fleet.put("job", DAILY, &to("old"), &more("old", Delivery::AtLeastOnce)).await;
    fleet.answer(|_, call| match call.attempt {
        1 => (0, Sent::Refused("no".into())),
        _ => (0, Sent::Finished(Reported::Succeeded(String::new()))),
    });
    let run = fleet.run("job").await;
    eventually(|| matches!(fleet.stored(run).unwrap().0.state, RunState::Retrying { .. })).await;
    change_often(&fleet, Delivery::AtLeastOnce).await;
    eventually(|| outcome_of(&fleet, run) == Some(Outcome::Succeeded)).await;
    assert_eq!(handlers(&fleet), [pair("old", "old"), pair("new", "new 94")]);
    assert_eq!(fleet.stored(run).unwrap().0.version, 96);
}
