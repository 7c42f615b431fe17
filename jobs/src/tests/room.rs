//! Runs for which there is no room, or no place for a call.

use crate::JobsOptions;
use crate::definition::Priority;
use crate::occurrences::Occurrence;
use crate::outbox::Door;
use crate::runs::{Reported, RunState, Sent};
use crate::testing::{Call, DAILY, Fault, Fleet, START_MS, TO_APP, eventually, sleep_ms};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use windfall_contract::due::{Fired, Shard};

#[tokio::test(start_paused = true)]
async fn runs_that_wait_for_a_call_for_minutes_are_not_dead() {
    let fleet = Fleet::start(1, JobsOptions { calls_max: 1, ..JobsOptions::default() }).await;
    fleet.put("job", DAILY, TO_APP, "").await;
    let is_slow = Arc::new(AtomicBool::new(true));
    let slow = Arc::clone(&is_slow);
    fleet.answer(move |_, _| match slow.load(Ordering::Relaxed) {
        true => (40_000, Sent::Finished(Reported::Succeeded(String::new()))),
        false => (0, Sent::Finished(Reported::Succeeded(String::new()))),
    });
    let mut runs = Vec::new();
    for _ in 0..20 {
        runs.push(fleet.run("job").await);
    }
    // Three runs are sent meanwhile; each of the others waits far longer than a lease.
    sleep_ms(119_000).await;
    for run in &runs {
        let (is, _) = fleet.stored(*run).unwrap();
        assert_eq!(is.unanswered, 0, "it is taken for sent: {is:?}");
    }
    assert_eq!((fleet.jobs.stats().failed.get(), fleet.jobs.stats().sent_again.get()), (0, 0));
    is_slow.store(false, Ordering::Relaxed);
    eventually(|| runs.iter().all(|run| fleet.stored(*run).unwrap().0.is_over())).await;
    assert!(runs.iter().all(|run| fleet.calls_of(*run) == 1));
    assert_eq!(fleet.jobs.stats().succeeded.get(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_put_off_comes_back_less_and_less_often_in_the_same_attempt() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    fleet.put("job", DAILY, TO_APP, "").await;
    fleet.answer(|_, _| (0, Sent::Later("not now".into())));
    let run = fleet.run("job").await;
    sleep_ms(100_000).await;
    let (is, _) = fleet.stored(run).unwrap();
    assert!((8..=14).contains(&fleet.calls_of(run)), "{} calls", fleet.calls_of(run));
    assert!(matches!(is.state, RunState::Retrying { .. }) && is.postponed > 7, "{is:?}");
    assert!(fleet.calls().iter().all(|call| call.attempt == 1));
    fleet.answer(|_, _| (0, Sent::Accepted));
    eventually(|| matches!(fleet.stored(run).unwrap().0.state, RunState::Running { .. })).await;
    let (is, _) = fleet.stored(run).unwrap();
    assert_eq!((is.attempt, is.postponed), (1, 0));
    assert_eq!((fleet.jobs.stats().retried.get(), fleet.jobs.stats().sent_again.get()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_hangs_keeps_room_for_its_own_occurrences_alone() {
    let fleet = Fleet::start(2, JobsOptions::default()).await;
    let mut occurrences = Vec::new();
    for shard in [0, 1] {
        let job = fleet.put(&fleet.name_in(shard), DAILY, TO_APP, "").await;
        // Most of them are of versions that are over.
        let count = if shard == 0 { 4 } else { 1 };
        occurrences.extend((0..count).map(|at| Occurrence { job, version: 7, due_ms: START_MS + at }));
    }
    fleet.store.fault(|shard, _| if shard == Shard(1) { Fault::After(20_000) } else { Fault::None });
    let free = || {
        let room = fleet.core().outbox.try_reserve(Door::First(Priority::Normal), usize::MAX);
        room.map_or(0, |room| room.len())
    };
    let all = free();
    let fire = fleet.fire(&occurrences);
    let look = async {
        sleep_ms(5_000).await;
        free()
    };
    let (fired, meanwhile) = tokio::join!(fire, look);
    assert!(fired.iter().all(|fired| *fired == Fired::Done), "{fired:?}");
    assert_eq!((meanwhile, free()), (all - 1, all));
}

#[tokio::test(start_paused = true)]
async fn a_door_without_room_is_no_other_ones_door() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    let job = fleet.put("job", r#"{"fixed_rate": {"every_ms": 1000}}"#, TO_APP, "").await;
    let due_ms = fleet.jobs.get("t", &crate::testing::name("job")).await.unwrap().state.next_ms.unwrap();
    let occurrence = Occurrence { job, version: 1, due_ms };
    let bulk = fleet.core().outbox.try_reserve(Door::First(Priority::Bulk), usize::MAX);
    let again = fleet.core().outbox.try_reserve(Door::Again, usize::MAX);
    let normal = fleet.core().outbox.try_reserve(Door::First(Priority::Normal), usize::MAX);
    let fired = fleet.fire(&[occurrence]).await;
    assert!(matches!(fired[..], [Fired::Busy(_)]), "{fired:?}");
    assert_eq!(fleet.store.count(b"r/"), 0, "nothing is begun without room");
    drop(normal);
    assert_eq!(fleet.fire(&[occurrence]).await, [Fired::Done]);
    eventually(|| fleet.calls().len() == 1).await;
    drop((bulk, again));
}

#[tokio::test(start_paused = true)]
async fn parts_of_a_broadcast_obey_the_bound_of_calls() {
    let fleet = Fleet::start(1, JobsOptions { calls_max: 4, ..JobsOptions::default() }).await;
    for at in 0..20 {
        fleet.jobs.register("t", "all", &format!("x{at}")).await.unwrap();
    }
    sleep_ms(2_000).await;
    let to = r#"{"executor": {"app": "all", "handler": "h", "routing": "sharding_broadcast"}}"#;
    fleet.put("job", DAILY, to, "").await;
    let open = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = Arc::clone(&open);
    fleet.answer(move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
        (1_500, Sent::Finished(Reported::Succeeded(String::new())))
    });
    fleet.run("job").await;
    sleep_ms(1_000).await;
    assert!((1..=4).contains(&open.load(Ordering::Relaxed)), "{open:?}");
    eventually(|| fleet.jobs.stats().succeeded.get() == 20).await;
    let calls = fleet.calls();
    let places: std::collections::BTreeSet<u32> = calls.iter().map(|call| call.part.index).collect();
    assert_eq!((places.len(), calls.len()), (20, 20));
}

#[tokio::test(start_paused = true)]
async fn a_broadcast_that_cannot_be_written_is_sent_later() {
    for fault in [Fault::Fails, Fault::AnswerLost] {
        let fleet = Fleet::start(1, JobsOptions::default()).await;
        for at in 0..3 {
            fleet.jobs.register("t", "all", &format!("x{at}")).await.unwrap();
        }
        sleep_ms(2_000).await;
        let to = r#"{"executor": {"app": "all", "handler": "h", "routing": "sharding_broadcast"}}"#;
        fleet.put("job", DAILY, to, r#", "delivery": "at_most_once""#).await;
        let splits = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&splits);
        fleet.store.fault(move |_, call| match call {
            // The parts, and what was the run.
            Call::Apply(groups)
                if groups.len() == 2 && call.touches(b"i/") && count.fetch_add(1, Ordering::Relaxed) == 0 =>
            {
                fault
            }
            _ => Fault::None,
        });
        fleet.run("job").await;
        eventually(|| fleet.jobs.stats().succeeded.get() == 3).await;
        assert!(splits.load(Ordering::Relaxed) > 0);
        assert_eq!((fleet.calls().len(), fleet.jobs.stats().missed.get()), (3, 0), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_panics_gives_its_place_to_the_next_one() {
    let fleet = Fleet::start(1, JobsOptions { calls_max: 2, ..JobsOptions::default() }).await;
    let failover = r#"{"executor": {"app": "app", "handler": "h", "routing": "failover"}}"#;
    fleet.put("job", DAILY, failover, "").await;
    *fleet.executors.beat_ms.lock() = 1_000;
    fleet.answer(|_, call| {
        assert_ne!(call.params, "panic", "a test wants it");
        (0, Sent::Finished(Reported::Succeeded(String::new())))
    });
    let name = crate::testing::name("job");
    fleet.jobs.run("t", &name, Some("panic".into())).await.unwrap();
    let next = fleet.run("job").await;
    sleep_ms(2_500).await;
    assert!(fleet.stored(next).unwrap().0.is_over(), "{:?}", fleet.stored(next));
    assert_eq!(fleet.jobs.stats().panics.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn how_late_a_run_starts_is_counted_when_its_call_begins() {
    let fleet = Fleet::start(1, JobsOptions { calls_max: 1, ..JobsOptions::default() }).await;
    let mut occurrences = Vec::new();
    for name in ["first", "second"] {
        let job = fleet.put(name, r#"{"fixed_rate": {"every_ms": 60000}}"#, TO_APP, "").await;
        let next_ms = fleet.jobs.get("t", &crate::testing::name(name)).await.unwrap().state.next_ms;
        occurrences.push(Occurrence { job, version: 1, due_ms: next_ms.unwrap() });
    }
    fleet.answer(|_, _| (8_000, Sent::Finished(Reported::Succeeded(String::new()))));
    sleep_ms(occurrences[0].due_ms - fleet.clock.unix_ms()).await;
    assert_eq!(fleet.fire(&occurrences).await, [Fired::Done, Fired::Done]);
    let stats = fleet.jobs.stats();
    eventually(|| stats.succeeded.get() == 2).await;
    let late: Vec<u64> = stats.lateness.iter().map(crate::stats::Count::get).collect();
    // One was put off while the other one went; each is counted once.
    assert_eq!((stats.started.get(), late.iter().sum::<u64>(), late[0]), (2, 2, 1), "{late:?}");
    assert!((8_000..30_000).contains(&stats.lateness_sum_ms.get()));
}

#[tokio::test(start_paused = true)]
async fn while_calls_are_short_urgent_jobs_go_first_and_bulk_ones_keep_their_floor() {
    let fleet = Fleet::start(1, JobsOptions { calls_max: 1, ..JobsOptions::default() }).await;
    for (job, priority) in [("first", "normal"), ("bulk", "bulk"), ("normal", "normal"), ("urgent", "urgent")]
    {
        let to = format!(r#"{{"executor": {{"app": "app", "handler": "{job}"}}}}"#);
        fleet.put(job, DAILY, &to, &format!(r#", "priority": "{priority}""#)).await;
    }
    fleet.answer(|_, call| {
        let after_ms = if call.handler == "first" { 1_000 } else { 0 };
        (after_ms, Sent::Finished(Reported::Succeeded(String::new())))
    });
    fleet.run("first").await;
    eventually(|| fleet.calls().len() == 1).await;
    // While its call is open, the others wait, those that matter least for longest.
    for job in ["bulk", "normal", "urgent"] {
        for _ in 0..30 {
            fleet.run(job).await;
        }
    }
    assert_eq!(fleet.calls().len(), 1);
    eventually(|| fleet.jobs.stats().succeeded.get() == 91).await;
    let order: Vec<String> = fleet.calls().into_iter().skip(1).map(|call| call.handler).collect();
    assert_eq!(order[0], "urgent");
    let of = |job: &str| order[..26].iter().filter(|handler| *handler == job).count();
    // Two rounds of 8, 4 and 1.
    let (urgent, normal, bulk) = (of("urgent"), of("normal"), of("bulk"));
    assert!((15..=18).contains(&urgent) && (6..=9).contains(&normal) && (1..=3).contains(&bulk), "{order:?}");
}
