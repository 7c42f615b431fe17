//! Executors of XXL-JOB: what they are sent, and what they report.

use crate::JobsOptions;
use crate::executors::{ExecutorCalls, LogCall, RunCall, XxlAdmin, XxlExecutors};
use crate::runs::{Outcome, RunNumber, RunState, Sent};
use crate::testing::{DAILY, Fleet, TO_APP, eventually, sleep_ms};
use crate::xxl::fake::{FakeExecutor, FakeOptions};
use crate::xxl::{AddressRules, Admin, AppName, HandleCode, RunResult};
use std::collections::BTreeMap;

const RETRIED: &str = r#", "retries": {"fixed": {"max": 5, "wait_ms": 0}}"#;

/// A result of a run, with the time that its executor got with it.
fn result(run: RunNumber, sent_ms: u64, handle_code: HandleCode) -> RunResult {
    RunResult {
        run: i64::try_from(run.0).unwrap(),
        log_date_time_ms: i64::try_from(sent_ms).unwrap(),
        handle_code,
        message: String::new(),
        at_ms: 1,
    }
}

fn is_running(fleet: &Fleet, run: RunNumber, attempt: u32) -> bool {
    let (run, _) = fleet.stored(run).unwrap();
    run.attempt == attempt && matches!(run.state, RunState::Running { .. })
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_is_reported_once_more_ends_no_later_attempt() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    fleet.put("job", DAILY, TO_APP, RETRIED).await;
    fleet.answer(|_, _| (0, Sent::Accepted));
    let admin = XxlAdmin::new(fleet.jobs.clone(), "t".into());
    let run = fleet.run("job").await;
    eventually(|| is_running(&fleet, run, 1)).await;
    let first = result(run, fleet.calls()[0].sent_ms, HandleCode::Failure);
    admin.report(vec![first.clone()]).await.unwrap();
    eventually(|| is_running(&fleet, run, 2)).await;
    // Our answer came too late for the executor, which has kept its report in a file, and comes with it again and again.
    for _ in 0..3 {
        admin.report(vec![first.clone()]).await.unwrap();
        sleep_ms(2_000).await;
        assert!(is_running(&fleet, run, 2), "{:?}", fleet.stored(run));
    }
    // Also together with the report of the attempt that goes, whichever comes first.
    let second = result(run, fleet.calls()[1].sent_ms, HandleCode::Timeout);
    admin.report(vec![second.clone(), first.clone()]).await.unwrap();
    eventually(|| is_running(&fleet, run, 3)).await;
    admin.report(vec![first.clone(), second]).await.unwrap();
    sleep_ms(2_000).await;
    assert!(is_running(&fleet, run, 3));
    // A run that a process of the version before has sent: what it sent says nothing of the attempt.
    let (stored, _) = fleet.stored(run).unwrap();
    admin.report(vec![result(run, stored.due_ms, HandleCode::Failure)]).await.unwrap();
    eventually(|| is_running(&fleet, run, 4)).await;
    // What was done is done, in whichever attempt.
    admin.report(vec![RunResult { handle_code: HandleCode::Success, ..first }]).await.unwrap();
    let (ended, _) = fleet.stored(run).unwrap();
    assert!(matches!(ended.state, RunState::Ended { outcome: Outcome::Succeeded, .. }), "{ended:?}");
    assert_eq!(fleet.calls_of(run), 4);
}

#[tokio::test]
async fn a_run_and_its_log_carry_the_time_of_the_attempt() {
    let fake = FakeExecutor::start(FakeOptions::new(AppName::parse("mails").unwrap())).await.unwrap();
    let rules = AddressRules::parse(&["127.0.0.1"]).unwrap();
    let calls = XxlExecutors::new(&BTreeMap::new(), &rules, None).unwrap().of("t", "mails").unwrap();
    let address = fake.executor().address.to_string();
    let call = RunCall {
        run: 1_024,
        job: 7,
        occurrence_id: "7-5".into(),
        handler: "send".into(),
        params: String::new(),
        block: crate::definition::Block::SerialExecution,
        timeout_s: 5,
        due_ms: 1_800_000_000_000,
        sent_ms: 1_800_000_000_002,
        attempt: 2,
        part: crate::runs::Part { index: 0, total: 1 },
    };
    assert_eq!(calls.run(&address, call.clone()).await, Sent::Accepted);
    assert_eq!(fake.runs()[0].log_date_time_ms, 1_800_000_000_002);
    let log = LogCall { run: call.run, due_ms: call.due_ms, sent_ms: call.sent_ms, from_line: 1 };
    let lines = calls.log(&address, log).await.unwrap();
    assert_eq!((lines.text.as_str(), lines.next_line), ("begun\nended\n", 3));
    fake.close().await;
}
