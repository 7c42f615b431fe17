//! Jobs from their definition to the ends of their runs, on embedded stores, with executors that do as they are told.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test may panic")]

mod fixture;

use fixture::{Fleet, eventually, note, spec};
use std::collections::BTreeSet;
use std::time::Duration;
use windfall_jobs::definition::JobName;
use windfall_jobs::runs::{Outcome, Report, Reported, RunState, Sent};

fn name(name: &str) -> JobName {
    JobName::new(name).unwrap()
}

const EVERY_SECOND: &str = r#"{"cron": {"expression": "* * * * * ?"}}"#;

#[tokio::test(flavor = "multi_thread")]
async fn each_second_of_a_cron_is_run_once_in_order() {
    let fleet = Fleet::start().await;
    fleet.register("app", &["x", "y"]).await;
    let job = spec(EVERY_SECOND, r#"{"executor": {"app": "app", "handler": "h", "routing": "round"}}"#, "");
    fleet.jobs().put("t", &name("cron"), &job, Some(0), note()).await.unwrap();
    eventually(|| async { fleet.calls().len() >= 4 }).await;
    let calls = fleet.calls();
    let due: Vec<u64> = calls.iter().map(|call| call.call.due_ms).collect();
    let distinct: BTreeSet<u64> = due.iter().copied().collect();
    assert_eq!(distinct.len(), due.len(), "an occurrence was run twice: {due:?}");
    assert!(due.iter().all(|due_ms| due_ms % 1_000 == 0));
    let ids: BTreeSet<_> = calls.iter().map(|call| call.call.occurrence_id.clone()).collect();
    assert_eq!(ids.len(), calls.len());
    let addresses: BTreeSet<_> = calls.iter().map(|call| call.address.clone()).collect();
    assert_eq!(addresses.len(), 2, "they go round");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_job_starts_nothing_and_goes_on_later() {
    let fleet = Fleet::start().await;
    fleet.register("app", &["x"]).await;
    let job = spec(EVERY_SECOND, r#"{"executor": {"app": "app", "handler": "h"}}"#, "");
    fleet.jobs().put("t", &name("p"), &job, None, note()).await.unwrap();
    eventually(|| async { !fleet.calls().is_empty() }).await;
    let paused = fleet.jobs().set_paused("t", &name("p"), true, note()).await.unwrap();
    assert_eq!((paused.definition.version, paused.state.next_ms), (2, None));
    let last_ms = fleet.jobs().get("t", &name("p")).await.unwrap().state.last_ms;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let begun_after = fleet.calls().iter().filter(|call| Some(call.call.due_ms) > last_ms).count();
    assert_eq!(begun_after, 0, "what was paused was begun");
    // Again the same call: nothing changes.
    assert_eq!(fleet.jobs().set_paused("t", &name("p"), true, note()).await.unwrap().definition.version, 2);
    fleet.jobs().set_paused("t", &name("p"), false, note()).await.unwrap();
    eventually(|| async { fleet.calls().iter().any(|call| Some(call.call.due_ms) > last_ms) }).await;
    let versions = fleet.jobs().versions("t", &name("p")).await.unwrap();
    assert_eq!(versions.iter().map(|version| version.version).collect::<Vec<_>>(), [1, 2, 3]);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_run_is_tried_again_and_then_dead_until_somebody_runs_it_again() {
    let fleet = Fleet::start().await;
    fleet.register("app", &["x"]).await;
    fleet.answer(|call| match call.attempt {
        1 => Sent::Finished(Reported::Failed("no".into())),
        _ => Sent::Refused("never".into()),
    });
    let more = r#", "retries": {"fixed": {"max": 1, "wait_ms": 50}}"#;
    let job = spec(
        r#"{"fixed_rate": {"every_ms": 86400000}}"#,
        r#"{"executor": {"app": "app", "handler": "h"}}"#,
        more,
    );
    fleet.jobs().put("t", &name("f"), &job, None, note()).await.unwrap();
    let run = fleet.jobs().run("t", &name("f"), Some("by hand".into())).await.unwrap();
    eventually(|| async { fleet.jobs().find_run("t", run).await.unwrap().run.is_over() }).await;
    let ended = fleet.jobs().find_run("t", run).await.unwrap().run;
    assert!(matches!(ended.state, RunState::Ended { outcome: Outcome::Failed, .. }), "{ended:?}");
    let calls = fleet.calls();
    assert_eq!(calls.iter().map(|call| call.call.attempt).collect::<Vec<_>>(), [1, 2]);
    assert!(calls.iter().all(|call| call.call.params == "by hand"));
    assert_eq!(calls[0].call.occurrence_id, calls[1].call.occurrence_id);

    assert_eq!(fleet.jobs().dead_runs("t", None, 10).await.unwrap().len(), 1);
    assert_eq!(fleet.jobs().dead_runs("other", None, 10).await.unwrap().len(), 0);
    assert!(fleet.jobs().find_run("other", run).await.is_err(), "another tenant sees nothing of it");
    fleet.answer(|_| Sent::Accepted);
    fleet.jobs().run_again("t", run).await.unwrap();
    assert_eq!(fleet.jobs().dead_runs("t", None, 10).await.unwrap().len(), 0);
    eventually(|| async { fleet.calls().len() == 3 }).await;
    fleet
        .jobs()
        .report(
            "t",
            vec![Report { run, attempt: None, sent_ms: None, how: Reported::Succeeded("done".into()) }],
        )
        .await
        .unwrap();
    // A report that comes again changes nothing.
    fleet
        .jobs()
        .report("t", vec![Report { run, attempt: None, sent_ms: None, how: Reported::Failed("late".into()) }])
        .await
        .unwrap();
    let ended = fleet.jobs().find_run("t", run).await.unwrap().run;
    assert!(matches!(ended.state, RunState::Ended { outcome: Outcome::Succeeded, .. }), "{ended:?}");
    assert_eq!(fleet.jobs().runs("t", &name("f"), None, 10).await.unwrap().len(), 1);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broadcast_is_one_run_for_each_executor() {
    let fleet = Fleet::start().await;
    let addresses: Vec<String> = (0..120).map(|number| format!("x{number:03}")).collect();
    fleet.register("app", &addresses.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let to = r#"{"executor": {"app": "app", "handler": "h", "routing": "sharding_broadcast"}}"#;
    let job = spec(r#"{"fixed_rate": {"every_ms": 86400000}}"#, to, "");
    fleet.jobs().put("t", &name("b"), &job, None, note()).await.unwrap();
    fleet.jobs().run("t", &name("b"), None).await.unwrap();
    eventually(|| async { fleet.calls().len() == 120 }).await;
    let calls = fleet.calls();
    let parts: BTreeSet<(u32, String)> =
        calls.iter().map(|call| (call.call.part.index, call.address.clone())).collect();
    assert_eq!(parts, (0..120).zip(addresses).collect());
    assert!(calls.iter().all(|call| call.call.part.total == 120));
    let runs: BTreeSet<u64> = calls.iter().map(|call| call.call.run).collect();
    assert_eq!(runs.len(), 120, "each is reported by its own number");
    eventually(|| async { fleet.jobs().stats().succeeded.get() == 120 }).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_executor_is_reached_the_next_one_is_and_a_silent_one_is_not_doubled() {
    let fleet = Fleet::start().await;
    fleet.register("app", &["a", "b"]).await;
    fleet.answer_at(|address, _| match address {
        "a" => Sent::NotSent("refused".into()),
        _ => Sent::Unknown("silence".into()),
    });
    let to = r#"{"executor": {"app": "app", "handler": "h", "routing": "first"}}"#;
    let more = r#", "delivery": "at_most_once", "timeout_s": 2"#;
    let job = spec(r#"{"fixed_rate": {"every_ms": 86400000}}"#, to, more);
    fleet.jobs().put("t", &name("s"), &job, None, note()).await.unwrap();
    let run = fleet.jobs().run("t", &name("s"), None).await.unwrap();
    eventually(|| async { fleet.jobs().find_run("t", run).await.unwrap().run.is_over() }).await;
    let ended = fleet.jobs().find_run("t", run).await.unwrap().run;
    assert!(matches!(ended.state, RunState::Ended { outcome: Outcome::TimedOut, .. }), "{ended:?}");
    let order: Vec<String> = fleet.calls().into_iter().map(|call| call.address).collect();
    assert_eq!(order, ["a", "b"], "nobody else was asked after the silent one");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_delay_counts_from_the_report() {
    let fleet = Fleet::start().await;
    fleet.register("app", &["x"]).await;
    fleet.answer(|_| Sent::Accepted);
    let to = r#"{"executor": {"app": "app", "handler": "h"}}"#;
    let job = spec(r#"{"fixed_delay": {"delay_ms": 1000}}"#, to, "");
    fleet.jobs().put("t", &name("d"), &job, None, note()).await.unwrap();
    for round in 1..=3 {
        eventually(|| async { fleet.calls().len() == round }).await;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert_eq!(fleet.calls().len(), round, "the next one came before the report");
        let run = windfall_jobs::runs::RunNumber(fleet.calls()[round - 1].call.run);
        fleet
            .jobs()
            .report(
                "t",
                vec![Report { run, attempt: None, sent_ms: None, how: Reported::Succeeded(String::new()) }],
            )
            .await
            .unwrap();
    }
    eventually(|| async { fleet.calls().len() == 4 }).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn children_run_once_for_each_success_of_their_parent() {
    let fleet = Fleet::start().await;
    fleet.register("app", &["x"]).await;
    let to = r#"{"executor": {"app": "app", "handler": "child"}}"#;
    let daily = r#"{"fixed_rate": {"every_ms": 86400000}}"#;
    fleet.jobs().put("t", &name("child"), &spec(daily, to, ""), None, note()).await.unwrap();
    let to = r#"{"executor": {"app": "app", "handler": "parent"}}"#;
    let more = r#", "children": ["child", "is-not-there"]"#;
    fleet.jobs().put("t", &name("parent"), &spec(daily, to, more), None, note()).await.unwrap();
    fleet.answer(|call| match call.handler.as_str() {
        "parent" => Sent::Accepted,
        _ => Sent::Finished(Reported::Succeeded(String::new())),
    });
    let run = fleet.jobs().run("t", &name("parent"), None).await.unwrap();
    eventually(|| async { fleet.calls().len() == 1 }).await;
    for _ in 0..2 {
        fleet
            .jobs()
            .report(
                "t",
                vec![Report { run, attempt: None, sent_ms: None, how: Reported::Succeeded(String::new()) }],
            )
            .await
            .unwrap();
    }
    eventually(|| async { fleet.calls().len() == 2 }).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(fleet.calls().iter().filter(|call| call.call.handler == "child").count(), 1);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_one_off_jobs_are_made_by_few_calls_and_repeats_make_nothing() {
    let fleet = Fleet::start().await;
    fleet.register("app", &["x"]).await;
    let to = r#"{"executor": {"app": "app", "handler": "h", "routing": "least_loaded"}}"#;
    let at_ms = fleet.now_ms() + 1_500;
    let once = spec(&format!(r#"{{"at": {{"time_ms": {at_ms}}}}}"#), to, "");
    let jobs: Vec<_> = (0..500).map(|number| (name(&format!("once-{number}")), once.clone())).collect();
    let first = fleet.jobs().put_new("t", &jobs, &note()).await;
    let numbers: BTreeSet<u64> = first.iter().map(|made| made.as_ref().unwrap().0).collect();
    assert_eq!(numbers.len(), 500);
    let again = fleet.jobs().put_new("t", &jobs, &note()).await;
    assert_eq!(again, first, "the same call once more");
    eventually(|| async { fleet.calls().len() >= 500 }).await;
    eventually(|| async { fleet.jobs().stats().succeeded.get() == 500 }).await;
    assert_eq!(fleet.calls().len(), 500);
    let mut all = Vec::new();
    loop {
        let (names, more) = fleet.jobs().names("t", all.last(), 64).await.unwrap();
        all.extend(names);
        if !more {
            break;
        }
    }
    let distinct: BTreeSet<_> = all.iter().collect();
    assert_eq!((all.len(), distinct.len()), (500, 500), "pages show each job once");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_dies_leaves_every_occurrence_to_another_one() {
    let mut fleet = Fleet::start().await;
    fleet.register("app", &["x"]).await;
    let to = r#"{"executor": {"app": "app", "handler": "h"}}"#;
    let more = r#", "misfire": {"fire_all": {"limit": 1000}}"#;
    let job = spec(EVERY_SECOND, to, more);
    fleet.jobs().put("t", &name("crash"), &job, None, note()).await.unwrap();
    for _ in 0..3 {
        let before = fleet.calls().len();
        eventually(|| async { fleet.calls().len() > before }).await;
        fleet.crash_and_restart().await;
    }
    let before = fleet.calls().len();
    eventually(|| async { fleet.calls().len() > before + 1 }).await;
    let due: BTreeSet<u64> = fleet.calls().iter().map(|call| call.call.due_ms / 1_000).collect();
    let (first, last) = (*due.first().unwrap(), *due.last().unwrap());
    assert_eq!(due.len() as u64, last - first + 1, "occurrences were lost: {due:?}");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_begun_at_most_once_is_reported_as_missed_after_a_crash() {
    let mut fleet = Fleet::start().await;
    fleet.register("app", &["x"]).await;
    // The process dies while it waits for the executor.
    fleet.hang();
    let to = r#"{"executor": {"app": "app", "handler": "h"}}"#;
    let daily = r#"{"fixed_rate": {"every_ms": 86400000}}"#;
    let once = spec(daily, to, r#", "delivery": "at_most_once""#);
    fleet.jobs().put("t", &name("once"), &once, None, note()).await.unwrap();
    fleet.jobs().put("t", &name("often"), &spec(daily, to, ""), None, note()).await.unwrap();
    let once = fleet.jobs().run("t", &name("once"), None).await.unwrap();
    let often = fleet.jobs().run("t", &name("often"), None).await.unwrap();
    eventually(|| async { fleet.calls().len() == 2 }).await;
    fleet.answer(|_| Sent::Finished(Reported::Succeeded(String::new())));
    fleet.crash_and_restart().await;
    eventually(|| async { fleet.jobs().find_run("t", often).await.unwrap().run.is_over() }).await;
    eventually(|| async { fleet.jobs().find_run("t", once).await.unwrap().run.is_over() }).await;
    let once_state = fleet.jobs().find_run("t", once).await.unwrap().run.state;
    let often_state = fleet.jobs().find_run("t", often).await.unwrap().run.state;
    assert!(matches!(once_state, RunState::Ended { outcome: Outcome::Missed, .. }), "{once_state:?}");
    assert!(matches!(often_state, RunState::Ended { outcome: Outcome::Succeeded, .. }), "{often_state:?}");
    let of = |run: windfall_jobs::runs::RunNumber| {
        fleet.calls().iter().filter(|call| call.call.run == run.0).count()
    };
    assert_eq!((of(once), of(often)), (1, 2));
    fleet.stop().await;
}
