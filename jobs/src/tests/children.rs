//! Children of runs, and runs that are begun while their jobs change.

use crate::book::{Following, following_key};
use crate::definition::{ChangeNote, JobSpec};
use crate::runs::{Cause, Outcome, Reported, RunNumber, RunState, Sent};
use crate::testing::{Call, DAILY, Fault, Fleet, START_MS, TO_APP, eventually, name, sleep_ms, spec};
use crate::{JobsError, JobsOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use windfall_contract::due::Shard;
use windfall_contract::entries::{EntryStore, Expect};

async fn parent_and_child(fleet: &Fleet) -> (String, String) {
    let (parent, child) = (fleet.name_in(0), fleet.name_in(1));
    fleet.put(&child, DAILY, r#"{"executor": {"app": "app", "handler": "child"}}"#, "").await;
    fleet.put(&parent, DAILY, TO_APP, &format!(r#", "children": ["{child}"]"#)).await;
    (parent, child)
}

fn children(fleet: &Fleet) -> usize {
    fleet.calls().iter().filter(|call| call.handler == "child").count()
}

#[tokio::test(start_paused = true)]
async fn a_child_whose_shard_is_away_holds_up_nothing_of_its_parent_and_runs_later_once() {
    let fleet = Fleet::start(2, JobsOptions::default()).await;
    let (parent, _) = parent_and_child(&fleet).await;
    fleet.store.fault(|shard, _| if shard == Shard(1) { Fault::After(3_000) } else { Fault::None });
    let run = fleet.run(&parent).await;
    sleep_ms(1_000).await;
    let (ended, _) = fleet.stored(run).unwrap();
    assert!(matches!(ended.state, RunState::Ended { outcome: Outcome::Succeeded, .. }), "{ended:?}");
    fleet.store.fault(|shard, _| if shard == Shard(1) { Fault::Fails } else { Fault::None });
    // Other runs of the parent's shard go on.
    let other = fleet.run(&parent).await;
    sleep_ms(30_000).await;
    assert!(fleet.stored(other).unwrap().0.is_over());
    assert_eq!((fleet.calls_of(run), fleet.calls_of(other)), (1, 1), "a parent was sent twice");
    fleet.store.heal();
    eventually(|| children(&fleet) == 2).await;
    sleep_ms(60_000).await;
    assert_eq!((children(&fleet), fleet.store.count(b"f/")), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_full_store_keeps_that_a_parent_has_succeeded_and_starts_its_children_later() {
    let fleet = Fleet::start(2, JobsOptions::default()).await;
    let (parent, _) = parent_and_child(&fleet).await;
    fleet.answer(|_, call| match call.handler.as_str() {
        "child" => (0, Sent::Finished(Reported::Succeeded(String::new()))),
        _ => (1_000, Sent::Finished(Reported::Succeeded(String::new()))),
    });
    let run = fleet.run(&parent).await;
    sleep_ms(500).await;
    fleet.store.set_full(true);
    sleep_ms(100_000).await;
    let (ended, _) = fleet.stored(run).unwrap();
    assert!(matches!(ended.state, RunState::Ended { outcome: Outcome::Succeeded, .. }), "{ended:?}");
    assert_eq!((fleet.calls_of(run), fleet.jobs.stats().sent_again.get()), (1, 0));
    assert_eq!((ended.children.len(), children(&fleet), fleet.jobs.stats().succeeded.get()), (1, 0, 1));
    fleet.store.set_full(false);
    eventually(|| children(&fleet) == 1).await;
    sleep_ms(60_000).await;
    assert_eq!((children(&fleet), fleet.store.count(b"f/")), (1, 0));
    let (ended, _) = fleet.stored(run).unwrap();
    assert!(ended.children.is_empty(), "{ended:?}");
    assert_eq!((fleet.calls_of(run), fleet.jobs.stats().succeeded.get()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn however_many_parents_wait_for_a_childs_shard_their_own_goes_on() {
    let fleet = Fleet::start(2, JobsOptions::default()).await;
    let (parent, child) = parent_and_child(&fleet).await;
    fleet.put(&parent, DAILY, TO_APP, r#", "retries": {"fixed": {"max": 1, "wait_ms": 100}}"#).await;
    fleet.answer(|_, call| match (call.handler.as_str(), call.attempt) {
        ("h", 1) => (0, Sent::Refused("no".into())),
        _ => (0, Sent::Finished(Reported::Succeeded(String::new()))),
    });
    fleet.store.fault(|shard, _| if shard == Shard(1) { Fault::After(60_000) } else { Fault::None });
    let wake_ms = Some(fleet.clock.unix_ms());
    let waiting = |number: u64| {
        let following = Following {
            tenant: "t".into(),
            children: vec![crate::testing::name(&child)],
            until_ms: u64::MAX,
            tries: 0,
        };
        let key = following_key(RunNumber((1 << 40) + (number << 10)));
        crate::book::group(vec![crate::book::put(key, Expect::Absent, &following, wake_ms)])
    };
    let groups: Vec<_> = (0..3_000).map(waiting).collect();
    fleet.store.apply(Shard(0), &groups).await.unwrap();
    let run = fleet.run(&parent).await;
    sleep_ms(3_000).await;
    let (ended, _) = fleet.stored(run).unwrap();
    assert!(matches!(ended.state, RunState::Ended { outcome: Outcome::Succeeded, .. }), "{ended:?}");
    fleet.store.heal();
    eventually(|| fleet.store.count(b"f/") == 0).await;
    assert_eq!(fleet.store.count(b"c/"), 3_000);
}

#[tokio::test(start_paused = true)]
async fn a_child_whose_start_is_not_answered_is_started_once() {
    let fleet = Fleet::start(2, JobsOptions::default()).await;
    let (parent, _) = parent_and_child(&fleet).await;
    let lost = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&lost);
    fleet.store.fault(move |_, call| match call {
        Call::Apply(_) if call.touches(b"c/") && count.fetch_add(1, Ordering::Relaxed) == 0 => {
            Fault::AnswerLost
        }
        _ => Fault::None,
    });
    fleet.run(&parent).await;
    sleep_ms(60_000).await;
    assert!(lost.load(Ordering::Relaxed) > 0);
    assert_eq!(children(&fleet), 1);
    assert_eq!(fleet.store.count(b"c/"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_changed_while_it_is_started_is_started_all_the_same() {
    let fleet = Fleet::start(2, JobsOptions::default()).await;
    let (parent, child) = parent_and_child(&fleet).await;
    let conflicts = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&conflicts);
    // Each run meets a change of its job three times.
    fleet.store.fault(move |_, call| match call {
        Call::Apply(groups)
            if call.touches(b"i/") && groups.len() == 1 && count.fetch_add(1, Ordering::Relaxed) % 4 < 3 =>
        {
            Fault::Conflict
        }
        _ => Fault::None,
    });
    let run = fleet.jobs.run("t", &crate::testing::name(&parent), None).await.unwrap();
    eventually(|| children(&fleet) == 1).await;
    let started = fleet.calls().into_iter().find(|call| call.handler == "child").unwrap();
    let (started, _) = fleet.stored(crate::runs::RunNumber(started.run)).unwrap();
    assert_eq!(started.cause, Cause::Parent(run));
    // Always in the way: the answer says so, and is not that there is no such job.
    fleet.store.fault(|_, call| match call {
        Call::Apply(_) if call.touches(b"i/") => Fault::Conflict,
        _ => Fault::None,
    });
    let refused = fleet.jobs.run("t", &crate::testing::name(&child), None).await;
    assert_eq!(refused, Err(JobsError::Contended));
}

#[tokio::test(start_paused = true)]
async fn it_is_known_that_a_child_was_started_for_as_long_as_its_parent_is_kept() {
    let options = JobsOptions { keep_succeeded_ms: 20 * 86_400_000, ..JobsOptions::default() };
    let fleet = Fleet::start(2, options).await;
    let (parent, child) = parent_and_child(&fleet).await;
    let run = fleet.run(&parent).await;
    eventually(|| children(&fleet) == 1).await;
    let (shard, job) = fleet.core().number_of("t", &crate::testing::name(&child)).await.unwrap().unwrap();
    let mark = fleet.store.entry(shard, &crate::book::child_key(run, job)).unwrap();
    assert!(mark.wake_ms.unwrap() >= START_MS + 20 * 86_400_000);
}

/// Puts a job with these children: those that are not there.
async fn put_with(fleet: &Fleet, job: &str, children: &[&str]) -> Result<Vec<String>, JobsError> {
    let spec = with_children(children);
    let put = fleet.jobs.put("t", &name(job), &spec, None, ChangeNote::default()).await?;
    Ok(put.missing_children.iter().map(ToString::to_string).collect())
}

fn with_children(children: &[&str]) -> JobSpec {
    spec(DAILY, TO_APP, &format!(r#", "children": {children:?}"#))
}

fn is_circle<T>(put: &Result<T, JobsError>) -> bool {
    matches!(put, Err(JobsError::WrongField { field: "spec.children", .. }))
}

#[tokio::test(start_paused = true)]
async fn a_job_that_would_start_itself_is_refused_and_a_missing_child_is_named() {
    let fleet = Fleet::start(2, JobsOptions::default()).await;
    assert!(is_circle(&put_with(&fleet, "a", &["a"]).await));
    assert_eq!(put_with(&fleet, "a", &["b"]).await, Ok(vec!["b".to_owned()]));
    assert_eq!(put_with(&fleet, "b", &["c", "d"]).await.map(|missing| missing.len()), Ok(2));
    // Only the job's own children are told: those of its children were told to whoever put these.
    assert_eq!(put_with(&fleet, "e", &["a"]).await, Ok(Vec::new()));
    for way in ["a", "b", "c"] {
        assert!(is_circle(&put_with(&fleet, "c", &[way]).await), "{way}");
    }
    assert!(fleet.jobs.get("t", &name("c")).await.is_err(), "what is refused is not made");
    assert_eq!(put_with(&fleet, "c", &[]).await, Ok(Vec::new()));
    assert!(is_circle(&put_with(&fleet, "c", &["e"]).await), "a change may not make a circle either");
    // Several ways to one job are none.
    assert_eq!(put_with(&fleet, "d", &["c"]).await, Ok(Vec::new()));
    assert_eq!(put_with(&fleet, "b", &["c", "d"]).await, Ok(Vec::new()));
    // Jobs of another tenant are other jobs.
    let other = fleet.jobs.put("u", &name("c"), &with_children(&["a"]), None, ChangeNote::default()).await;
    assert_eq!(other.map(|view| view.missing_children), Ok(vec![name("a")]));
    let many = [("x", &["y"][..]), ("y", &["x"]), ("p", &["q"]), ("q", &[])];
    let many = many.map(|(job, children)| (name(job), with_children(children)));
    let made = fleet.jobs.put_new("t", &many, &ChangeNote::default()).await;
    assert_eq!(made.iter().map(is_circle).collect::<Vec<_>>(), [true, true, false, false]);
    assert!(made[2].is_ok() && made[3].is_ok(), "{made:?}");
}

#[tokio::test(start_paused = true)]
async fn children_that_are_not_run_are_counted() {
    let fleet = Fleet::start(2, JobsOptions::default()).await;
    fleet.put("job", DAILY, TO_APP, r#", "children": ["nobody"]"#).await;
    fleet.run("job").await;
    let lost = || fleet.jobs.stats().children_lost.get();
    eventually(|| lost() == 1).await;
    // One that could not be started for a day.
    let child = fleet.name_in(1);
    fleet.put(&child, DAILY, TO_APP, "").await;
    fleet.store.fault(|shard, _| if shard == Shard(1) { Fault::Fails } else { Fault::None });
    let now_ms = fleet.clock.unix_ms();
    let following =
        Following { tenant: "t".into(), children: vec![name(&child)], until_ms: now_ms + 5_000, tries: 0 };
    let put = crate::book::put(following_key(RunNumber(1 << 40)), Expect::Absent, &following, Some(now_ms));
    fleet.store.apply(Shard(0), &[crate::book::group(vec![put])]).await.unwrap();
    sleep_ms(60_000).await;
    assert_eq!((lost(), fleet.store.count(b"f/")), (2, 0));
}
