//! Looks at shards get on, whatever lies there.

use crate::JobsOptions;
use crate::book::{definition_key, push_run};
use crate::definition::JobNumber;
use crate::outbox::Door;
use crate::runs::{JobState, Outcome, RunState, Sent};
use crate::testing::{Call, DAILY, Fault, Fleet, START_MS, TO_APP, eventually, sleep_ms};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use windfall_contract::due::Shard;
use windfall_contract::entries::{EntryStore, Expect, To};

#[tokio::test(start_paused = true)]
async fn an_ended_run_that_is_kept_for_longer_by_now_gets_its_new_time() {
    let short = JobsOptions { keep_succeeded_ms: 20_000, ..JobsOptions::default() };
    let mut fleet = Fleet::start(1, short).await;
    fleet.put("job", DAILY, TO_APP, "").await;
    let run = fleet.run("job").await;
    eventually(|| fleet.stored(run).unwrap().0.is_over()).await;
    let (ended, wake_ms) = fleet.stored(run).unwrap();
    let RunState::Ended { at_ms, .. } = ended.state else { panic!("{ended:?}") };
    assert_eq!(wake_ms, at_ms + 20_000);
    let long = JobsOptions { keep_succeeded_ms: 600_000, ..short };
    fleet.restart(long).await;
    sleep_ms(30_000).await;
    assert_eq!(fleet.stored(run).unwrap(), (ended, at_ms + 600_000));
    assert_eq!(fleet.jobs.stats().succeeded.get(), 0, "it ended once");
    sleep_ms(600_000).await;
    assert_eq!(fleet.stored(run), None);
}

#[tokio::test(start_paused = true)]
async fn what_needs_no_room_goes_on_where_there_is_none() {
    let options = JobsOptions { keep_succeeded_ms: 20_000, ..JobsOptions::default() };
    let fleet = Fleet::start(1, options).await;
    fleet.put("job", DAILY, TO_APP, r#", "timeout_s": 5"#).await;
    let to_forget = fleet.run("job").await;
    sleep_ms(1_000).await;
    fleet.answer(|_, _| (0, Sent::Accepted));
    let to_time_out = fleet.run("job").await;
    sleep_ms(1_000).await;
    let room = fleet.core().outbox.try_reserve(Door::Again, usize::MAX).unwrap();
    sleep_ms(30_000).await;
    assert_eq!(fleet.stored(to_forget), None);
    let (ended, _) = fleet.stored(to_time_out).unwrap();
    assert!(matches!(ended.state, RunState::Ended { outcome: Outcome::TimedOut, .. }), "{ended:?}");
    drop(room);
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_job_cannot_be_read_is_left_alone_for_a_while() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    let job = fleet.put("job", DAILY, TO_APP, r#", "retries": {"fixed": {"max": 3, "wait_ms": 1000}}"#).await;
    fleet.answer(|_, _| (0, Sent::Refused("no".into())));
    let run = fleet.run("job").await;
    sleep_ms(500).await;
    write(&fleet, job, b"what is this?").await;
    sleep_ms(10_000).await;
    let (waiting, wake_ms) = fleet.stored(run).unwrap();
    assert!(matches!(waiting.state, RunState::Retrying { .. }), "{waiting:?}");
    assert!(wake_ms >= fleet.clock.unix_ms() + 45_000, "it is looked at again and again");
    assert!(fleet.jobs.stats().unreadable.get() < 3);
}

async fn write(fleet: &Fleet, job: JobNumber, value: &'static [u8]) {
    let to = To::Put { value: Bytes::from_static(value), wake_ms: None };
    let change = crate::book::change(definition_key(job), Expect::Anything, to);
    fleet.store.apply(fleet.shard_of(job.0), &[crate::book::group(vec![change])]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_full_store_forgets_what_is_over_and_lists_dead_runs_later() {
    let options = JobsOptions { keep_succeeded_ms: 20_000, ..JobsOptions::default() };
    let fleet = Fleet::start(1, options).await;
    fleet.put("job", DAILY, TO_APP, r#", "timeout_s": 5"#).await;
    let to_forget = fleet.run("job").await;
    sleep_ms(500).await;
    fleet.answer(|_, _| (0, Sent::Accepted));
    let to_die = fleet.run("job").await;
    sleep_ms(1_000).await;
    fleet.store.set_full(true);
    // Both are found by one look.
    let at_ms = fleet.clock.unix_ms() + 30_000;
    for run in [to_forget, to_die] {
        let (is, _) = fleet.stored(run).unwrap();
        let push = push_run(run, Expect::Anything, &is, at_ms);
        fleet.store.apply(Shard(0), &[crate::book::group(vec![push])]).await.unwrap();
    }
    sleep_ms(40_000).await;
    assert_eq!(fleet.stored(to_forget), None, "it needs no room, and makes some");
    assert!(fleet.stored(to_die).unwrap().0.is_over());
    assert_eq!((fleet.store.count(b"x/"), fleet.jobs.stats().timed_out.get()), (0, 1));
    fleet.store.set_full(false);
    eventually(|| fleet.store.count(b"x/") == 1).await;
    let (ended, wake_ms) = fleet.stored(to_die).unwrap();
    assert_eq!((wake_ms, fleet.jobs.stats().timed_out.get()), (ended.wake_ms(options.keep()), 1));
}

#[tokio::test(start_paused = true)]
async fn a_full_store_sends_runs_that_are_there() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    fleet.put("job", DAILY, TO_APP, r#", "timeout_s": 5"#).await;
    fleet.answer(|_, _| (0, Sent::Later("not now".into())));
    let to_send = fleet.run("job").await;
    sleep_ms(500).await;
    let target = fleet.stored(to_send).unwrap();
    assert!(matches!(target.0.state, RunState::Retrying { .. }), "{target:?}");
    fleet.answer(|_, _| (0, Sent::Accepted));
    let to_die = fleet.run("job").await;
    sleep_ms(200).await;
    fleet.store.set_full(true);
    let at_ms = fleet.clock.unix_ms() + 16_000;
    for run in [to_send, to_die] {
        let (is, _) = fleet.stored(run).unwrap();
        let push = push_run(run, Expect::Anything, &is, at_ms);
        fleet.store.apply(Shard(0), &[crate::book::group(vec![push])]).await.unwrap();
    }
    sleep_ms(20_000).await;
    let (sent, _) = fleet.stored(to_send).unwrap();
    assert!(matches!(sent.state, RunState::Running { .. }), "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn executors_of_a_shard_that_answers_are_known_whatever_others_do() {
    let fleet = Fleet::start(2, JobsOptions::default()).await;
    let shard = fleet.core().book.shard_of_app("t", "app");
    let app_of = |shard: Shard| {
        let mut names = (0..).map(|at| format!("app-{at}"));
        names.find(|name| fleet.core().book.shard_of_app("t", name) == shard).unwrap()
    };
    let (away, there) = (app_of(shard), app_of(Shard(1 - shard.0)));
    fleet.store.fault(move |of, call| match call {
        Call::Scan(_) if of == shard => Fault::Fails,
        _ => Fault::None,
    });
    fleet.register(&away, "y").await;
    fleet.register(&there, "z").await;
    let addresses = |app: &str| {
        let app = crate::executors::App { tenant: "t".into(), app: app.into() };
        fleet.core().executors_of(&app).unwrap().len()
    };
    assert_eq!((addresses("app"), addresses(&away), addresses(&there)), (1, 0, 1));
    fleet.store.heal();
    sleep_ms(2_000).await;
    assert_eq!((addresses("app"), addresses(&away), addresses(&there)), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_look_that_panics_is_not_the_last_one() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    fleet.put("job", DAILY, TO_APP, r#", "timeout_s": 1"#).await;
    fleet.answer(|_, _| (0, Sent::Accepted));
    let run = fleet.run("job").await;
    sleep_ms(500).await;
    let panics = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&panics);
    fleet.store.fault(move |_, call| match call {
        Call::Woken if count.fetch_add(1, Ordering::Relaxed) < 2 => Fault::Panics,
        _ => Fault::None,
    });
    eventually(|| fleet.stored(run).unwrap().0.is_over()).await;
    assert_eq!(fleet.jobs.stats().panics.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_job_with_an_old_run_that_still_goes_is_not_forgotten() {
    let options = JobsOptions { keep_failed_ms: 10_000, ..JobsOptions::default() };
    let fleet = Fleet::start(1, options).await;
    let at_ms = START_MS + 20_000;
    let once = format!(r#"{{"at": {{"time_ms": {at_ms}}}}}"#);
    let job = fleet.put("once", &once, TO_APP, r#", "timeout_s": 3000"#).await;
    fleet.answer(|_, call| match call.params.as_str() {
        "old" => (0, Sent::Accepted),
        _ => (0, Sent::Finished(crate::runs::Reported::Succeeded(String::new()))),
    });
    let name = crate::testing::name("once");
    fleet.jobs.run("t", &name, Some("old".into())).await.unwrap();
    // More than a page of them is newer.
    for _ in 0..1_100 {
        fleet.jobs.run("t", &name, Some("new".into())).await.unwrap();
        sleep_ms(1).await;
    }
    let occurrence = crate::occurrences::Occurrence { job, version: 1, due_ms: at_ms };
    sleep_ms(30_000).await;
    fleet.fire(&[occurrence]).await;
    sleep_ms(60_000).await;
    assert!(fleet.store.entry(Shard(0), &definition_key(job)).is_some(), "its run still goes");
    sleep_ms(8_000_000).await;
    assert!(fleet.store.entry(Shard(0), &definition_key(job)).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_look_that_has_much_to_do_keeps_no_run_from_being_taken_over() {
    let mut fleet = Fleet::start(1, JobsOptions::default()).await;
    fleet.put("job", DAILY, TO_APP, "").await;
    fleet.answer(|_, _| (1_000_000, Sent::Accepted));
    let run = fleet.run("job").await;
    eventually(|| fleet.calls_of(run) == 1).await;
    fleet.jobs.close(std::time::Duration::ZERO).await;
    fleet.answer(|_, _| (0, Sent::Accepted));
    // In each second there is another job to be forgotten, which takes longer than a look may be silent.
    let now_ms = fleet.clock.unix_ms();
    let ended = |number: u64| {
        let forget_ms = Some(now_ms + number * 1_000);
        let state = JobState {
            version: 1,
            next_ms: None,
            last_ms: None,
            missed: 0,
            forget_ms,
            tenant: "t".into(),
            name: crate::testing::name("gone"),
        };
        let key = crate::book::state_key(JobNumber((1 << 40) + (number << 10)));
        crate::book::group(vec![crate::book::put(key, Expect::Absent, &state, forget_ms)])
    };
    let groups: Vec<_> = (0..60).map(ended).collect();
    fleet.store.apply(Shard(0), &groups).await.unwrap();
    fleet.store.fault(|_, call| match call {
        Call::Scan(prefix) if prefix.starts_with(b"i/") => Fault::After(1_500),
        _ => Fault::None,
    });
    fleet.restart(JobsOptions::default()).await;
    sleep_ms(15_000).await;
    assert!(fleet.store.count(b"s/") > 10, "there still is much to do");
    let (sent, _) = fleet.stored(run).unwrap();
    assert!(matches!(sent.state, RunState::Running { .. }), "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn an_occurrence_that_is_only_late_is_not_found_to_be_missing() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    fleet.put("job", r#"{"fixed_rate": {"every_ms": 60000}}"#, TO_APP, "").await;
    *fleet.slots.knows_all.lock() = true;
    sleep_ms(120_000).await;
    assert_eq!(fleet.jobs.stats().overdue_found.get(), 0);
    *fleet.slots.knows_all.lock() = false;
    sleep_ms(35_000).await;
    assert!(fleet.jobs.stats().overdue_found.get() > 0);
}

#[tokio::test(start_paused = true)]
async fn executors_of_a_shard_are_known_at_once_though_another_one_answers_slowly() {
    let fleet = Fleet::start(2, JobsOptions::default()).await;
    let shard = fleet.core().book.shard_of_app("t", "app");
    let mut names = (0..).map(|at| format!("app-{at}"));
    let there = names.find(|name| fleet.core().book.shard_of_app("t", name) != shard).unwrap();
    fleet.store.fault(move |of, call| match call {
        Call::Scan(_) if of == shard => Fault::After(30_000),
        _ => Fault::None,
    });
    sleep_ms(2_000).await;
    fleet.register(&there, "z").await;
    let app = crate::executors::App { tenant: "t".into(), app: there };
    assert_eq!(fleet.core().executors_of(&app).unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_occurrence_that_was_decided_during_the_look_is_not_added_again() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    fleet.put("job", r#"{"fixed_rate": {"every_ms": 60000}}"#, TO_APP, "").await;
    let added = || fleet.slots.added.lock().len();
    let before = added();
    fleet.store.fault(|_, call| match call {
        Call::Apply(_) if call.touches(b"s/") => Fault::Conflict,
        _ => Fault::None,
    });
    sleep_ms(120_000).await;
    assert_eq!(added(), before, "it would fire in vain");
    fleet.store.heal();
    sleep_ms(35_000).await;
    assert!(added() > before);
}

#[tokio::test(start_paused = true)]
async fn an_overdue_occurrence_is_added_though_nobody_knows_whether_its_state_was_written() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    fleet.put("job", r#"{"fixed_rate": {"every_ms": 60000}}"#, TO_APP, "").await;
    let before = fleet.slots.added.lock().len();
    fleet.store.fault(|_, call| match call {
        Call::Apply(_) if call.touches(b"s/") => Fault::AnswerLost,
        _ => Fault::None,
    });
    sleep_ms(66_000).await;
    assert!(fleet.slots.added.lock().len() > before);
}

#[tokio::test(start_paused = true)]
async fn definitions_that_cannot_be_read_together_hold_up_their_own_jobs_alone() {
    let mut fleet = Fleet::start(1, JobsOptions::default()).await;
    let mut jobs = Vec::new();
    for job in ["one", "two", "three"] {
        jobs.push(fleet.put(job, r#"{"fixed_rate": {"every_ms": 60000}}"#, TO_APP, "").await);
    }
    fleet.restart(JobsOptions::default()).await;
    *fleet.slots.knows_all.lock() = true;
    fleet.store.fault(|_, call| match call {
        Call::Read(keys) if call.touches(b"d/") && keys.len() > 1 => Fault::Fails,
        _ => Fault::None,
    });
    let next = |job: &JobNumber| {
        let state = fleet.store.entry(Shard(0), &crate::book::state_key(*job)).unwrap();
        let JobState { version, next_ms, .. } = crate::book::kept::<JobState>(&state).unwrap().is;
        crate::occurrences::Occurrence { job: *job, version, due_ms: next_ms.unwrap() }
    };
    let due: Vec<_> = jobs.iter().map(next).collect();
    sleep_ms(60_000).await;
    fleet.fire(&due).await;
    eventually(|| fleet.calls().len() == 3).await;
}

#[tokio::test(start_paused = true)]
async fn runs_that_succeeded_are_kept_for_a_shorter_time_where_many_are_made() {
    let options = JobsOptions { succeeded_max: 10_000, ..JobsOptions::default() };
    let fleet = Fleet::start(1, options).await;
    fleet.put("job", DAILY, TO_APP, "").await;
    let kept_ms = |run| {
        let (ended, wake_ms) = fleet.stored(run).unwrap();
        let RunState::Ended { at_ms, .. } = ended.state else { panic!("{ended:?}") };
        wake_ms - at_ms
    };
    let first = fleet.run("job").await;
    sleep_ms(1_000).await;
    assert_eq!(kept_ms(first), options.keep_succeeded_ms);
    // Ten thousand runs each second, of which somebody else made the most.
    sleep_ms(60_000).await;
    fleet.core().book.numbers(Shard(0), 600_000).await.unwrap();
    let second = fleet.run("job").await;
    sleep_ms(1_000).await;
    assert_eq!(kept_ms(second), 60_000);
    sleep_ms(62_000).await;
    assert_eq!(fleet.stored(second), None);
    assert!(fleet.stored(first).is_some(), "one that has its time keeps it");
}
