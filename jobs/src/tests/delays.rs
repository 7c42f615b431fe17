//! Jobs with a fixed delay that are changed while their run goes: the next occurrence follows from its end.

use crate::JobsOptions;
use crate::book::{change, group, job_run_key, kept, put_run, state_key};
use crate::definition::{ChangeNote, JobNumber};
use crate::occurrences::Occurrence;
use crate::runs::{JobState, Outcome, Report, Reported, Run, RunNumber, RunState, Sent};
use crate::testing::{Call, Fault, Fleet, TO_APP, eventually, name, sleep_ms};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use windfall_contract::due::{Fired, Shard};
use windfall_contract::entries::{CALL_MAX, Expect, To};

const DELAY_MS: u64 = 60_000;
const DELAYED: &str = r#"{"fixed_delay": {"delay_ms": 60000}}"#;

/// A fleet with a job whose first run goes.
async fn going() -> (Fleet, JobNumber, RunNumber) {
    going_by(DELAYED).await
}

/// The same with a job of another schedule.
async fn going_by(schedule: &str) -> (Fleet, JobNumber, RunNumber) {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    let job = fleet.put("job", schedule, TO_APP, "").await;
    fleet.answer(|_, _| (0, Sent::Accepted));
    let next_ms = state(&fleet, job).next_ms.unwrap();
    sleep_ms(next_ms - fleet.clock.unix_ms()).await;
    fire_next(&fleet, job).await;
    eventually(|| fleet.calls().len() == 1).await;
    sleep_ms(1_000).await;
    let run = RunNumber(fleet.calls()[0].run);
    (fleet, job, run)
}

fn state(fleet: &Fleet, job: JobNumber) -> JobState {
    kept(&fleet.store.entry(Shard(0), &state_key(job)).unwrap()).unwrap().is
}

async fn fire_next(fleet: &Fleet, job: JobNumber) {
    let JobState { version, next_ms, .. } = state(fleet, job);
    let occurrence = Occurrence { job, version, due_ms: next_ms.unwrap() };
    assert_eq!(fleet.fire(&[occurrence]).await, [Fired::Done]);
}

async fn pause(fleet: &Fleet, is_paused: bool) {
    fleet.jobs.set_paused("t", &name("job"), is_paused, ChangeNote::default()).await.unwrap();
}

async fn end(fleet: &Fleet, run: RunNumber) {
    let how = Reported::Succeeded(String::new());
    fleet.jobs.report("t", vec![Report { run, attempt: None, sent_ms: None, how }]).await.unwrap();
}

/// The next occurrence comes the delay after this moment, and is run.
async fn follows_from_now(fleet: &Fleet, job: JobNumber) {
    let next_ms = state(fleet, job).next_ms.unwrap();
    let now_ms = fleet.clock.unix_ms();
    assert!(
        (now_ms + DELAY_MS - 1_000..=now_ms + DELAY_MS + 1_000).contains(&next_ms),
        "{next_ms} at {now_ms}"
    );
    sleep_ms(DELAY_MS + 1_000).await;
    fire_next(fleet, job).await;
    eventually(|| fleet.calls().len() == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_while_the_run_goes_starts_no_other_one_beside_it() {
    let (fleet, job, run) = going().await;
    fleet.put("job", DELAYED, TO_APP, r#", "params": "new""#).await;
    sleep_ms(2 * DELAY_MS).await;
    let is = state(&fleet, job);
    assert_eq!((is.version, is.next_ms, fleet.calls().len()), (2, None, 1));
    end(&fleet, run).await;
    follows_from_now(&fleet, job).await;
    assert_eq!(fleet.calls()[1].params, "new");
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_is_over_before_the_run_ends_changes_nothing() {
    let (fleet, job, run) = going().await;
    pause(&fleet, true).await;
    pause(&fleet, false).await;
    assert_eq!(state(&fleet, job).next_ms, None);
    sleep_ms(DELAY_MS).await;
    end(&fleet, run).await;
    follows_from_now(&fleet, job).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_run_ended_while_it_was_paused_goes_on_with_the_delay() {
    let (fleet, job, run) = going().await;
    pause(&fleet, true).await;
    end(&fleet, run).await;
    sleep_ms(DELAY_MS).await;
    assert_eq!(state(&fleet, job).next_ms, None);
    pause(&fleet, false).await;
    follows_from_now(&fleet, job).await;
}

#[tokio::test(start_paused = true)]
async fn runs_behind_the_last_one_are_not_read_where_it_is_over() {
    let (fleet, job, run) = going().await;
    pause(&fleet, true).await;
    end(&fleet, run).await;
    // More runs of the job than one call reads, all with lower numbers.
    let numbers = 1..=u64::try_from(CALL_MAX).unwrap();
    assert!(run.0 > *numbers.end());
    let mark = |number| {
        let to = To::Put { value: Bytes::new(), wake_ms: None };
        group(vec![change(job_run_key(job, RunNumber(number)), Expect::Anything, to)])
    };
    fleet.core().apply(Shard(0), &numbers.map(mark).collect::<Vec<_>>()).await.unwrap();
    let scans = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&scans);
    fleet.store.fault(move |_, call| {
        if matches!(call, Call::Scan(_)) && call.touches(b"i/") {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Fault::None
    });
    pause(&fleet, false).await;
    assert_eq!(scans.load(Ordering::Relaxed), 1);
    follows_from_now(&fleet, job).await;
}

/// Processes take their numbers in blocks, so that a run which began later may have a lower number.
#[tokio::test(start_paused = true)]
async fn a_run_that_goes_is_found_behind_earlier_ones_with_higher_numbers() {
    let (fleet, job, run) = going().await;
    let (going, _) = fleet.stored(run).unwrap();
    let due_ms = going.due_ms - DELAY_MS;
    let ended = RunState::Ended { at_ms: due_ms, outcome: Outcome::Succeeded };
    let earlier = Run { due_ms, state: ended, ..going };
    let number = RunNumber(run.0 + (5_000 << 10));
    let write = put_run(number, Expect::Absent, &earlier, fleet.core().options.keep());
    fleet.core().apply(Shard(0), &[group(write)]).await.unwrap();
    pause(&fleet, true).await;
    pause(&fleet, false).await;
    assert_eq!(state(&fleet, job).next_ms, None, "another run would go beside it");
    end(&fleet, run).await;
    follows_from_now(&fleet, job).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_goes_on_at_the_moment_in_which_its_run_ends_does_not_stop_for_good() {
    // What of both is on its way to the store while the other one is done: the versions of a job, or the run.
    for slow in [b"v/", b"r/"] {
        let (fleet, job, run) = going().await;
        pause(&fleet, true).await;
        let is_first = Arc::new(AtomicBool::new(true));
        let first = Arc::clone(&is_first);
        fleet.store.fault(move |_, call| match call {
            Call::Apply(_) if call.touches(slow) && first.swap(false, Ordering::Relaxed) => Fault::After(500),
            _ => Fault::None,
        });
        let goes_on = async {
            if slow == b"r/" {
                sleep_ms(100).await;
            }
            pause(&fleet, false).await;
        };
        let ends = async {
            if slow == b"v/" {
                sleep_ms(100).await;
            }
            end(&fleet, run).await;
        };
        tokio::join!(goes_on, ends);
        assert!(!is_first.load(Ordering::Relaxed));
        follows_from_now(&fleet, job).await;
    }
}

/// Nothing follows from the end of a run that has begun by another schedule: the job waited for that without end.
#[tokio::test(start_paused = true)]
async fn a_job_that_got_its_delay_while_its_run_goes_does_not_stop_for_good_when_it_is_paused_meanwhile() {
    let (fleet, job, run) = going_by(r#"{"fixed_rate": {"every_ms": 60000}}"#).await;
    fleet.put("job", DELAYED, TO_APP, "").await;
    pause(&fleet, true).await;
    pause(&fleet, false).await;
    follows_from_now(&fleet, job).await;
    sleep_ms(1_000).await;
    end(&fleet, run).await;
    assert_eq!(state(&fleet, job).next_ms, None, "the run by the delay goes");
    end(&fleet, RunNumber(fleet.calls()[1].run)).await;
    assert!(state(&fleet, job).next_ms.is_some());
}
