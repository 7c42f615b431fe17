//! Runs that are being sent stay with whoever sends them.

use crate::JobsOptions;
use crate::book::{Kept, group, put_run, run_key};
use crate::leasing::{Fresh, fresh};
use crate::outbox::Ticket;
use crate::runs::{Outcome, Reported, Run, RunState, Sent};
use crate::testing::{Call, DAILY, Fault, Fleet, TO_APP, eventually, sleep_ms};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use windfall_contract::due::Shard;
use windfall_contract::entries::Expect;

/// The executor takes runs after a while.
async fn slow_fleet(answer_ms: u64) -> Fleet {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    fleet.put("job", DAILY, TO_APP, "").await;
    fleet.answer(move |_, _| (answer_ms, Sent::Accepted));
    fleet
}

fn is_running(fleet: &Fleet, run: crate::runs::RunNumber) -> bool {
    matches!(fleet.stored(run).unwrap().0.state, RunState::Running { .. })
}

#[tokio::test(start_paused = true)]
async fn a_run_stays_ours_while_executors_are_probed() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    let failover = r#"{"executor": {"app": "app", "handler": "h", "routing": "failover"}}"#;
    fleet.put("job", DAILY, failover, "").await;
    *fleet.executors.beat_ms.lock() = 15_000;
    let run = fleet.run("job").await;
    eventually(|| fleet.stored(run).unwrap().0.is_over()).await;
    sleep_ms(60_000).await;
    assert_eq!((fleet.calls_of(run), fleet.jobs.stats().sent_again.get()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_gives_no_run_away() {
    for outage_ms in [1_500, 5_000, 10_000] {
        let fleet = slow_fleet(20_000).await;
        let run = fleet.run("job").await;
        sleep_ms(1_000).await;
        // Reads are answered all the while.
        fleet.store.fault(|_, call| match call {
            Call::Apply(_) => Fault::Fails,
            _ => Fault::None,
        });
        sleep_ms(outage_ms).await;
        fleet.store.heal();
        eventually(|| is_running(&fleet, run)).await;
        sleep_ms(5_000).await;
        assert_eq!((fleet.calls_of(run), fleet.jobs.stats().sent_again.get()), (1, 0), "{outage_ms} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_waits_for_the_store_is_written_before_its_run_is_taken_for_abandoned() {
    let fleet = slow_fleet(3_000).await;
    let run = fleet.run("job").await;
    sleep_ms(1_000).await;
    fleet.store.fault(|_, call| match call {
        Call::Apply(_) => Fault::Fails,
        _ => Fault::None,
    });
    sleep_ms(10_000).await;
    fleet.store.heal();
    eventually(|| is_running(&fleet, run)).await;
    assert_eq!((fleet.calls_of(run), fleet.jobs.stats().sent_again.get()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_owner_is_gone_is_taken_over_after_an_outage_without_any_other_change() {
    let mut fleet = slow_fleet(1_000_000).await;
    let run = fleet.run("job").await;
    eventually(|| fleet.calls_of(run) == 1).await;
    fleet.jobs.close(std::time::Duration::ZERO).await;
    fleet.answer(|_, _| (0, Sent::Accepted));
    fleet.store.fault(|_, call| match call {
        Call::Apply(_) => Fault::Fails,
        _ => Fault::None,
    });
    fleet.restart(JobsOptions::default()).await;
    sleep_ms(10_000).await;
    fleet.store.heal();
    eventually(|| is_running(&fleet, run)).await;
    assert_eq!(fleet.calls_of(run), 2);
}

#[tokio::test(start_paused = true)]
async fn a_full_store_keeps_no_run_from_being_taken_over() {
    let mut fleet = slow_fleet(1_000_000).await;
    let run = fleet.run("job").await;
    eventually(|| fleet.calls_of(run) == 1).await;
    fleet.jobs.close(std::time::Duration::ZERO).await;
    fleet.answer(|_, _| (0, Sent::Accepted));
    fleet.store.set_full(true);
    fleet.restart(JobsOptions::default()).await;
    let name = crate::testing::name("job");
    for _ in 0..100 {
        // There is no room for another one.
        assert!(fleet.jobs.run("t", &name, None).await.is_err());
        sleep_ms(100).await;
    }
    assert!(is_running(&fleet, run), "{:?}", fleet.stored(run));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_is_lost_gives_no_run_away() {
    let fleet = slow_fleet(20_000).await;
    let run = fleet.run("job").await;
    sleep_ms(1_000).await;
    let lost = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&lost);
    fleet.store.fault(move |_, call| match call {
        Call::Apply(_) if call.touches(b"r/") && count.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) => {
            Fault::AnswerLost
        }
        _ => Fault::None,
    });
    eventually(|| is_running(&fleet, run)).await;
    assert!(lost.load(Ordering::Relaxed) > 4);
    sleep_ms(5_000).await;
    assert_eq!((fleet.calls_of(run), fleet.jobs.stats().sent_again.get()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_taken_while_a_renewal_hangs() {
    let fleet = slow_fleet(2_000).await;
    let run = fleet.run("job").await;
    sleep_ms(1_000).await;
    // The renewal after 1.5 s takes effect after the answer, and is answered after it.
    let first = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&first);
    fleet.store.fault(move |_, call| match call {
        Call::Apply(_) if call.touches(b"r/") && count.fetch_add(1, Ordering::Relaxed) == 0 => {
            Fault::After(60_000)
        }
        _ => Fault::None,
    });
    sleep_ms(1_500).await;
    assert!(first.load(Ordering::Relaxed) > 1 && is_running(&fleet, run), "{:?}", fleet.stored(run));
    sleep_ms(10_000).await;
    assert_eq!(fleet.calls_of(run), 1);
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_of_the_store_runs_are_left_to_those_that_send_them() {
    let fleet = slow_fleet(20_000).await;
    let run = fleet.run("job").await;
    sleep_ms(1_000).await;
    fleet.store.fault(|_, _| Fault::Fails);
    sleep_ms(10_000).await;
    fleet.store.heal();
    eventually(|| is_running(&fleet, run)).await;
    sleep_ms(5_000).await;
    assert_eq!((fleet.calls_of(run), fleet.jobs.stats().sent_again.get()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn after_the_store_has_hung_runs_are_left_to_those_that_send_them() {
    let fleet = slow_fleet(20_000).await;
    let run = fleet.run("job").await;
    sleep_ms(1_000).await;
    // As if the process was stopped for a while: nothing fails, and nothing goes on.
    let clock = fleet.clock.clone();
    let until_ms = clock.unix_ms() + 8_000;
    fleet.store.fault(move |_, _| match until_ms.saturating_sub(clock.unix_ms()) {
        0 => Fault::None,
        left_ms => Fault::After(left_ms),
    });
    eventually(|| is_running(&fleet, run)).await;
    sleep_ms(5_000).await;
    assert_eq!((fleet.calls_of(run), fleet.jobs.stats().sent_again.get()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_run_of_a_process_that_is_gone_is_sent_by_another_one() {
    let mut fleet = slow_fleet(1_000_000).await;
    let run = fleet.run("job").await;
    eventually(|| fleet.calls_of(run) == 1).await;
    // It ends without a word.
    fleet.jobs.close(std::time::Duration::ZERO).await;
    let (before, _) = fleet.stored(run).unwrap();
    fleet.answer(|_, _| (0, Sent::Accepted));
    fleet.restart(JobsOptions::default()).await;
    eventually(|| is_running(&fleet, run)).await;
    let (after, _) = fleet.stored(run).unwrap();
    assert_eq!(fleet.calls_of(run), 2);
    assert!(before.lease != 0 && after.lease != 0 && before.lease != after.lease);
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_at_most_once_and_was_not_sent_is_not_missed() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    fleet.put("job", DAILY, TO_APP, r#", "delivery": "at_most_once""#).await;
    fleet.answer(|_, _| (0, Sent::Finished(Reported::Succeeded(String::new()))));
    // The note that it is being sent is written, and its answer is lost.
    let lost = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&lost);
    fleet.store.fault(move |_, call| match call {
        Call::Apply(_)
            if call.touches(b"r/") && !call.touches(b"i/") && count.fetch_add(1, Ordering::Relaxed) == 0 =>
        {
            Fault::AnswerLost
        }
        _ => Fault::None,
    });
    let run = fleet.run("job").await;
    eventually(|| fleet.stored(run).unwrap().0.is_over()).await;
    let (ended, _) = fleet.stored(run).unwrap();
    assert!(matches!(ended.state, RunState::Ended { outcome: Outcome::Succeeded, .. }), "{ended:?}");
    assert!(lost.load(Ordering::Relaxed) > 0);
    assert_eq!(fleet.calls_of(run), 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_takeover_is_not_answered_is_sent_all_the_same() {
    let mut fleet = slow_fleet(1_000_000).await;
    let run = fleet.run("job").await;
    eventually(|| fleet.calls_of(run) == 1).await;
    fleet.jobs.close(std::time::Duration::ZERO).await;
    fleet.answer(|_, _| (0, Sent::Accepted));
    fleet.restart(JobsOptions::default()).await;
    let lost = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&lost);
    fleet.store.fault(move |_, call| match call {
        Call::Apply(_) if call.touches(b"r/") && count.fetch_add(1, Ordering::Relaxed) == 0 => {
            Fault::AnswerLost
        }
        _ => Fault::None,
    });
    eventually(|| lost.load(Ordering::Relaxed) > 0).await;
    sleep_ms(1_000).await;
    assert!(is_running(&fleet, run), "{:?}", fleet.stored(run));
    assert_eq!((fleet.calls_of(run), fleet.jobs.stats().sent_again.get()), (2, 1));
}

/// Runs of one job in each shard, which have waited for a while to be sent.
async fn waiting(fleet: &Fleet, shards: u16) -> Vec<Ticket> {
    fleet.answer(|_, _| (10_000_000, Sent::Accepted));
    let mut tickets = Vec::new();
    for shard in 0..shards {
        let name = fleet.name_in(shard);
        let job = fleet.put(&name, DAILY, TO_APP, "").await;
        let number = fleet.run(&name).await;
        eventually(|| fleet.calls_of(number) == 1).await;
        let entry = fleet.store.entry(Shard(shard), &run_key(number)).unwrap();
        let Kept { version, is: run } = crate::book::kept(&entry).unwrap();
        let definition = fleet.core().latest_definition(Shard(shard), job).await.unwrap().unwrap().is;
        tickets.push(Ticket { number, run, version, definition, begun_ns: 0 });
    }
    tickets
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_renewal_has_waited_for_another_shard_is_put_off() {
    let fleet = Fleet::start(2, JobsOptions::default()).await;
    let tickets = waiting(&fleet, 2).await;
    fleet.store.fault(|shard, call| match call {
        Call::Apply(_) if shard == Shard(1) => Fault::After(3_000),
        _ => Fault::None,
    });
    let Fresh { ready, later } = fresh(fleet.core(), tickets).await;
    assert_eq!((ready.len(), later.len()), (0, 2), "too little is left of their leases");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_changed_again_and_again_does_not_count_as_renewed() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    let tickets = waiting(&fleet, 1).await;
    sleep_ms(10_000).await;
    fleet.store.fault(|_, call| match call {
        Call::Apply(_) if call.touches(b"r/") => Fault::Conflict,
        _ => Fault::None,
    });
    let Fresh { ready, later } = fresh(fleet.core(), tickets).await;
    assert_eq!((ready.len(), later.len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_a_process_of_an_earlier_version_has_taken_is_not_sent_by_its_owner_before() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    let tickets = waiting(&fleet, 1).await;
    let number = tickets[0].number;
    // It writes what it knows of a run, and knows no number of a lease.
    let (stored, _) = fleet.stored(number).unwrap();
    let theirs = Run { lease: 0, ..stored };
    let write = put_run(number, Expect::Anything, &theirs, fleet.core().options.keep());
    fleet.core().apply(Shard(0), &[group(write)]).await.unwrap();
    let Fresh { ready, later } = fresh(fleet.core(), tickets).await;
    assert_eq!((ready.len(), later.len()), (0, 0));
}
