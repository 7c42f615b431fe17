//! Outcomes are written as soon as they can be, and no other ones wait for those that cannot.

use crate::JobsOptions;
use crate::book::definition_key;
use crate::runs::{Outcome, Report, Reported, Run, RunNumber, RunState, Sent};
use crate::settling::{SETTLE_MAX, settle};
use crate::testing::{Call, DAILY, Fault, Fleet, TO_APP, eventually, sleep_ms};
use crate::transition::{Became, Event, Happened};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::mpsc;
use windfall_contract::due::Shard;

/// Two jobs with a run each, which its executor never answers.
async fn two_runs(fleet: &Fleet) -> [(crate::definition::JobNumber, RunNumber, u64, Run); 2] {
    fleet.answer(|_, _| (10_000_000, Sent::Accepted));
    let mut runs = Vec::new();
    for name in ["first", "second"] {
        let job = fleet.put(name, DAILY, TO_APP, "").await;
        let run = fleet.run(name).await;
        eventually(|| fleet.calls_of(run) == 1).await;
        let entry = fleet.store.entry(Shard(0), &crate::book::run_key(run)).unwrap();
        let kept = crate::book::kept::<Run>(&entry).unwrap();
        // Of a version that nobody remembers, so that the job is read.
        runs.push((job, run, kept.version, Run { version: 99, ..kept.is }));
    }
    runs.try_into().unwrap()
}

fn done(number: RunNumber, version: u64, run: &Run) -> Event {
    let how = Sent::Finished(Reported::Succeeded(String::new()));
    let happened = Happened::Sent { how, executor: None, lease: run.lease };
    Event { number, happened, read: Some((version, run.clone())) }
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_cannot_be_written_holds_up_no_other_one() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    let [first, second] = two_runs(&fleet).await;
    let (settling, settled) = mpsc::channel(SETTLE_MAX);
    let settler = tokio::spawn(settle(Arc::clone(fleet.core()), settled));
    let key = definition_key(first.0);
    fleet.store.fault(move |_, call| match call {
        Call::Read(_) if call.touches(key.as_bytes()) => Fault::Fails,
        _ => Fault::None,
    });
    settling.send(done(first.1, first.2, &first.3)).await.unwrap();
    sleep_ms(1_000).await;
    settling.send(done(second.1, second.2, &second.3)).await.unwrap();
    sleep_ms(1_000).await;
    assert!(fleet.stored(second.1).unwrap().0.is_over(), "it waits for the other one");
    assert!(!fleet.stored(first.1).unwrap().0.is_over());
    fleet.store.heal();
    sleep_ms(2_000).await;
    assert!(fleet.stored(first.1).unwrap().0.is_over());
    drop(settling);
    settler.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_can_never_be_written_is_tried_once() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    let [first, _] = two_runs(&fleet).await;
    let key = definition_key(first.0);
    let change = crate::book::change(
        key.clone(),
        windfall_contract::entries::Expect::Anything,
        windfall_contract::entries::To::Put { value: "what is this?".into(), wake_ms: None },
    );
    let group = crate::book::group(vec![change]);
    windfall_contract::entries::EntryStore::apply(&*fleet.store, Shard(0), &[group]).await.unwrap();
    let reads = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&reads);
    fleet.store.fault(move |_, call| {
        if matches!(call, Call::Read(_)) && call.touches(key.as_bytes()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Fault::None
    });
    let (settling, settled) = mpsc::channel(SETTLE_MAX);
    settling.send(done(first.1, first.2, &first.3)).await.unwrap();
    drop(settling);
    settle(Arc::clone(fleet.core()), settled).await;
    assert_eq!(reads.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn an_outcome_whose_answer_is_lost_is_written_once() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    fleet.put("job", DAILY, TO_APP, r#", "retries": {"fixed": {"max": 5, "wait_ms": 3600000}}"#).await;
    fleet.answer(|_, _| (100, Sent::Refused("no".into())));
    let run = fleet.run("job").await;
    sleep_ms(50).await;
    let lost = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&lost);
    fleet.store.fault(move |_, call| match call {
        Call::Apply(_) if call.touches(b"r/") && count.fetch_add(1, Ordering::Relaxed) == 0 => {
            Fault::AnswerLost
        }
        _ => Fault::None,
    });
    sleep_ms(10_000).await;
    let (waiting, _) = fleet.stored(run).unwrap();
    assert!(lost.load(Ordering::Relaxed) > 0 && waiting.attempt == 1, "{waiting:?}");
    assert!(matches!(waiting.state, RunState::Retrying { .. }));
    assert_eq!(fleet.calls_of(run), 1);
}

#[tokio::test(start_paused = true)]
async fn news_of_a_lease_that_is_over_does_not_touch_the_one_that_follows() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    let [(_, number, version, run), _] = two_runs(&fleet).await;
    let run = Run { version: 1, ..run };
    let taken = Run { lease: run.lease + 1, unanswered: 1, ..run.clone() };
    let write = crate::book::put_run(
        number,
        windfall_contract::entries::Expect::Version(version),
        &taken,
        fleet.core().options.keep(),
    );
    fleet.core().apply(Shard(0), &[crate::book::group(write)]).await.unwrap();
    let news = |how: Sent| {
        let happened = Happened::Sent { how, executor: None, lease: run.lease };
        vec![Event { number, happened, read: Some((version, run.clone())) }]
    };
    for how in [
        Sent::Accepted,
        Sent::Later("no place".into()),
        Sent::Refused("no".into()),
        Sent::Finished(Reported::Failed("no".into())),
    ] {
        let became = fleet.core().happened(Shard(0), news(how)).await;
        assert!(matches!(became[..], [Became::Stays]));
        assert!(fleet.stored(number).unwrap().0.is_leased_as(run.lease + 1));
    }
    let how = Sent::Finished(Reported::Succeeded(String::new()));
    let became = fleet.core().happened(Shard(0), news(how)).await;
    assert!(matches!(became[..], [Became::Written(None)]));
    let (ended, _) = fleet.stored(number).unwrap();
    assert!(matches!(ended.state, RunState::Ended { outcome: Outcome::Succeeded, .. }));
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_panics_takes_no_other_one_with_it() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    let [first, second] = two_runs(&fleet).await;
    let key = definition_key(first.0);
    fleet.store.fault(move |_, call| match call {
        Call::Read(_) if call.touches(key.as_bytes()) => Fault::Panics,
        _ => Fault::None,
    });
    let (settling, settled) = mpsc::channel(SETTLE_MAX);
    for (_, number, version, run) in [&first, &second] {
        settling.send(done(*number, *version, run)).await.unwrap();
    }
    drop(settling);
    settle(Arc::clone(fleet.core()), settled).await;
    assert!(fleet.stored(second.1).unwrap().0.is_over());
    assert!(!fleet.stored(first.1).unwrap().0.is_over());
    assert_eq!(fleet.jobs.stats().panics.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_has_a_run_is_noted_though_its_report_has_overtaken_the_answer() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    fleet.put("job", DAILY, TO_APP, "").await;
    fleet.answer(|_, _| (1_000, Sent::Accepted));
    let run = fleet.run("job").await;
    sleep_ms(500).await;
    let how = Reported::Succeeded("done".into());
    fleet.jobs.report("t", vec![Report { run, attempt: Some(1), sent_ms: None, how }]).await.unwrap();
    let (ended, wake_ms) = fleet.stored(run).unwrap();
    assert!(ended.is_over() && ended.executor.is_none(), "{ended:?}");
    sleep_ms(2_000).await;
    let noted = Run { executor: Some("x".into()), ..ended };
    assert_eq!(fleet.stored(run).unwrap(), (noted, wake_ms));
    assert_eq!(fleet.jobs.stats().succeeded.get(), 1, "it ended once");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_succeeds_after_it_was_given_up_is_no_dead_run_and_starts_its_children_once() {
    for is_full in [false, true] {
        let fleet = Fleet::start(1, JobsOptions::default()).await;
        fleet.put("child", DAILY, TO_APP, "").await;
        fleet.put("job", DAILY, TO_APP, r#", "timeout_s": 5, "children": ["child"]"#).await;
        fleet.answer(|_, _| (0, Sent::Accepted));
        let run = fleet.run("job").await;
        // It waits in its executor's queue, behind others.
        eventually(|| fleet.stored(run).unwrap().0.is_dead()).await;
        assert_eq!(fleet.jobs.dead_runs("t", None, 10).await.unwrap().len(), 1);
        fleet.store.set_full(is_full);
        for _ in 0..2 {
            let how = Reported::Succeeded("done".into());
            fleet.jobs.report("t", vec![Report { run, attempt: Some(1), sent_ms: None, how }]).await.unwrap();
        }
        let (ended, _) = fleet.stored(run).unwrap();
        assert!(matches!(ended.state, RunState::Ended { outcome: Outcome::Succeeded, .. }), "{ended:?}");
        assert!(fleet.jobs.dead_runs("t", None, 10).await.unwrap().is_empty(), "it is listed as dead");
        fleet.store.set_full(false);
        eventually(|| fleet.calls().len() == 2).await;
        sleep_ms(60_000).await;
        assert_eq!((fleet.calls().len(), fleet.calls_of(run)), (2, 1), "its child is started once");
        let stats = fleet.jobs.stats();
        assert_eq!((stats.timed_out.get(), stats.succeeded.get()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_success_counts_though_another_attempt_has_failed_in_the_same_batch() {
    for is_first in [true, false] {
        let fleet = Fleet::start(1, JobsOptions::default()).await;
        fleet.put("job", DAILY, TO_APP, "").await;
        fleet.answer(|_, _| (0, Sent::Accepted));
        let run = fleet.run("job").await;
        eventually(|| fleet.calls().len() == 1).await;
        let report = |attempt, how| Report { run, attempt: Some(attempt), sent_ms: None, how };
        let mut reports =
            vec![report(1, Reported::Succeeded("done".into())), report(2, Reported::Failed("no".into()))];
        if !is_first {
            reports.reverse();
        }
        fleet.jobs.report("t", reports).await.unwrap();
        let (ended, _) = fleet.stored(run).unwrap();
        assert!(matches!(ended.state, RunState::Ended { outcome: Outcome::Succeeded, .. }), "{ended:?}");
    }
}
