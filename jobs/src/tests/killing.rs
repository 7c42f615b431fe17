//! Runs that somebody ends, or of which somebody reads the log: whoever has a run is asked, and nobody else.

use crate::book::{change, definition_key, group};
use crate::definition::JobNumber;
use crate::executors::LogCall;
use crate::runs::{Outcome, Report, Reported, RunNumber, RunState, Sent};
use crate::testing::{Call, DAILY, Fault, Fleet, TO_APP, Trouble, eventually, name, sleep_ms};
use crate::{JobsError, JobsOptions};
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use windfall_contract::due::Shard;
use windfall_contract::entries::{Expect, To};

const RETRIED: &str = r#", "retries": {"fixed": {"max": 3, "wait_ms": 0}}"#;

/// A fleet whose executors take runs and do not report them, and a job that is tried again.
async fn fleet_with_job() -> (Fleet, JobNumber) {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    let job = fleet.put("job", DAILY, TO_APP, RETRIED).await;
    fleet.answer(|_, _| (0, Sent::Accepted));
    (fleet, job)
}

async fn running(fleet: &Fleet) -> RunNumber {
    let run = fleet.run("job").await;
    eventually(|| is_running(fleet, run, 1)).await;
    run
}

fn is_running(fleet: &Fleet, run: RunNumber, attempt: u32) -> bool {
    let (run, _) = fleet.stored(run).unwrap();
    run.attempt == attempt && matches!(run.state, RunState::Running { .. })
}

fn outcome_of(fleet: &Fleet, run: RunNumber) -> Option<Outcome> {
    match fleet.stored(run).unwrap().0.state {
        RunState::Ended { outcome, .. } => Some(outcome),
        _ => None,
    }
}

/// The next write of a run meets this.
fn fault_of_next_write(fleet: &Fleet, fault: Fault) {
    let is_over = AtomicBool::new(false);
    fleet.store.fault(move |_, call| match call {
        Call::Apply(_) if call.touches(b"r/") && !is_over.swap(true, Ordering::Relaxed) => fault,
        _ => Fault::None,
    });
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_ended_is_named_to_its_executor_and_is_not_tried_again() {
    let (fleet, job) = fleet_with_job().await;
    let [first, second] = [running(&fleet).await, running(&fleet).await];
    assert_eq!(fleet.jobs.kill("other", second, "me").await, Err(JobsError::UnknownRun(second.0)));
    assert_eq!(fleet.jobs.kill("t", second, "me").await, Ok(true));
    assert_eq!(*fleet.executors.kills.lock(), [("x".to_owned(), job.0, second.0)]);
    // The same call once more asks nobody: at an executor that knows no runs it would end another one.
    assert_eq!(fleet.jobs.kill("t", second, "me").await, Ok(false));
    assert_eq!(fleet.executors.kills.lock().len(), 1);
    sleep_ms(2_000).await;
    assert_eq!((outcome_of(&fleet, second), outcome_of(&fleet, first)), (Some(Outcome::Killed), None));
    assert_eq!((fleet.calls_of(first), fleet.calls_of(second)), (1, 1));
    assert_eq!(fleet.jobs.stats().killed.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_by_itself_meanwhile_is_not_ended_at_its_executor() {
    let (fleet, _) = fleet_with_job().await;
    let run = running(&fleet).await;
    fault_of_next_write(&fleet, Fault::After(10_000));
    let ends = async {
        sleep_ms(1_000).await;
        let how = Reported::Succeeded(String::new());
        fleet.jobs.report("t", vec![Report { run, attempt: None, sent_ms: None, how }]).await.unwrap();
    };
    let (killed, ()) = tokio::join!(fleet.jobs.kill("t", run, "me"), ends);
    assert_eq!((killed, outcome_of(&fleet, run)), (Ok(false), Some(Outcome::Succeeded)));
    assert!(fleet.executors.kills.lock().is_empty(), "the job's next run there is ended");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_goes_to_another_executor_meanwhile_is_ended_there() {
    let (fleet, job) = fleet_with_job().await;
    fleet.register("app", "y").await;
    let run = running(&fleet).await;
    fault_of_next_write(&fleet, Fault::After(10_000));
    let moves = async {
        sleep_ms(1_000).await;
        let how = Reported::Failed(String::new());
        fleet.jobs.report("t", vec![Report { run, attempt: Some(1), sent_ms: None, how }]).await.unwrap();
        eventually(|| is_running(&fleet, run, 2)).await;
    };
    let (killed, ()) = tokio::join!(fleet.jobs.kill("t", run, "me"), moves);
    assert_eq!((killed, outcome_of(&fleet, run)), (Ok(true), Some(Outcome::Killed)));
    let called: Vec<String> =
        fleet.executors.calls.lock().iter().map(|(address, _)| address.clone()).collect();
    assert!(called.len() == 2 && called[0] != called[1], "{called:?}");
    assert_eq!(*fleet.executors.kills.lock(), [(called[1].clone(), job.0, run.0)]);
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_end_was_written_without_an_answer_is_ended_at_its_executor() {
    let (fleet, job) = fleet_with_job().await;
    let run = running(&fleet).await;
    fault_of_next_write(&fleet, Fault::AnswerLost);
    assert_eq!(fleet.jobs.kill("t", run, "me").await, Ok(true));
    assert_eq!(outcome_of(&fleet, run), Some(Outcome::Killed));
    assert_eq!(*fleet.executors.kills.lock(), [("x".to_owned(), job.0, run.0)]);
}

/// The executor was not asked, and never would have been: the next call found that the run was over.
#[tokio::test(start_paused = true)]
async fn a_run_whose_end_cannot_be_read_for_a_moment_is_ended_at_its_executor() {
    let (fleet, job) = fleet_with_job().await;
    let run = running(&fleet).await;
    let (is_written, reads) = (AtomicBool::new(false), AtomicU32::new(0));
    fleet.store.fault(move |_, call| match call {
        Call::Apply(_) if call.touches(b"r/") && !is_written.swap(true, Ordering::Relaxed) => {
            Fault::AnswerLost
        }
        Call::Read(_) if call.touches(b"r/") && is_written.load(Ordering::Relaxed) => {
            if reads.fetch_add(1, Ordering::Relaxed) < 2 { Fault::Fails } else { Fault::None }
        }
        _ => Fault::None,
    });
    assert_eq!(fleet.jobs.kill("t", run, "me").await, Ok(true));
    assert_eq!(outcome_of(&fleet, run), Some(Outcome::Killed));
    assert_eq!(*fleet.executors.kills.lock(), [("x".to_owned(), job.0, run.0)]);
}

#[tokio::test(start_paused = true)]
async fn a_run_is_not_waited_for_for_ever_where_the_store_stays_away() {
    let (fleet, _) = fleet_with_job().await;
    let run = running(&fleet).await;
    let is_asked = AtomicBool::new(false);
    fleet.store.fault(move |_, call| match call {
        Call::Apply(_) if call.touches(b"r/") => {
            is_asked.store(true, Ordering::Relaxed);
            Fault::Fails
        }
        Call::Read(_) if is_asked.load(Ordering::Relaxed) => Fault::Fails,
        _ => Fault::None,
    });
    assert!(matches!(fleet.jobs.kill("t", run, "me").await, Err(JobsError::Store(_))));
    assert!(fleet.executors.kills.lock().is_empty());
    fleet.store.heal();
    assert_eq!(
        (fleet.jobs.kill("t", run, "me").await, outcome_of(&fleet, run)),
        (Ok(true), Some(Outcome::Killed))
    );
}

#[tokio::test(start_paused = true)]
async fn a_run_of_a_job_that_cannot_be_read_is_ended_too() {
    let (mut fleet, job) = fleet_with_job().await;
    let run = running(&fleet).await;
    let to = To::Put { value: Bytes::from_static(b"what is this?"), wake_ms: None };
    let unreadable = change(definition_key(job), Expect::Anything, to);
    fleet.core().apply(Shard(0), &[group(vec![unreadable])]).await.unwrap();
    // A process that has not read the job before.
    fleet.restart(JobsOptions::default()).await;
    assert_eq!(fleet.jobs.kill("t", run, "me").await, Ok(true));
    assert_eq!(outcome_of(&fleet, run), Some(Outcome::Killed));
    assert_eq!(*fleet.executors.kills.lock(), [("x".to_owned(), job.0, run.0)]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_waits_for_its_next_attempt_is_ended_and_nobody_is_asked() {
    let (fleet, _) = fleet_with_job().await;
    fleet.answer(|_, _| (0, Sent::Later("full".into())));
    let run = fleet.run("job").await;
    eventually(|| fleet.stored(run).unwrap().0.postponed > 0).await;
    assert_eq!(fleet.jobs.kill("t", run, "me").await, Ok(true));
    sleep_ms(30_000).await;
    assert_eq!((outcome_of(&fleet, run), fleet.executors.kills.lock().len()), (Some(Outcome::Killed), 0));
}

#[tokio::test(start_paused = true)]
async fn a_run_of_a_job_that_was_removed_is_ended_too() {
    let (fleet, job) = fleet_with_job().await;
    let run = running(&fleet).await;
    assert!(fleet.jobs.remove("t", &name("job")).await.unwrap());
    assert_eq!(fleet.jobs.kill("t", run, "me").await, Ok(true));
    assert_eq!(outcome_of(&fleet, run), Some(Outcome::Killed));
    assert_eq!(*fleet.executors.kills.lock(), [("x".to_owned(), job.0, run.0)]);
}

#[tokio::test(start_paused = true)]
async fn the_log_of_a_run_is_read_from_the_executor_that_has_it() {
    let (fleet, _) = fleet_with_job().await;
    let run = running(&fleet).await;
    let read = fleet.jobs.log("t", run, 3).await.unwrap();
    assert_eq!((read.text.as_str(), read.next_line, read.is_end), ("line 3\n", 4, false));
    let call = fleet.calls()[0].clone();
    let asked = LogCall { run: run.0, due_ms: call.due_ms, sent_ms: call.sent_ms, from_line: 3 };
    assert_eq!(*fleet.executors.logs.lock(), [("x".to_owned(), asked)]);
    assert_eq!(fleet.jobs.log("other", run, 1).await, Err(JobsError::UnknownRun(run.0)));
    fleet.executors.troubles.lock().insert("x".into(), Trouble::Dead);
    let away = JobsError::Executor { address: "x".into(), why: "nobody listens".into() };
    assert_eq!(fleet.jobs.log("t", run, 1).await, Err(away));
    fleet.answer(|_, _| (0, Sent::Later("full".into())));
    fleet.executors.troubles.lock().clear();
    let waiting = fleet.run("job").await;
    eventually(|| fleet.stored(waiting).unwrap().0.postponed > 0).await;
    assert_eq!(fleet.jobs.log("t", waiting, 1).await, Err(JobsError::NoExecutor));
}
