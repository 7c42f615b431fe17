//! Runs that go to a target of the scheduler.

use crate::JobsOptions;
use crate::runs::{Outcome, RunNumber, RunState};
use crate::testing::{DAILY, Fleet, eventually, sleep_ms};
use windfall_contract::due::{Fired, Firing};

const TO_HOOK: &str = r#"{"target": {"name": "hook"}}"#;
const ONCE: &str = r#", "params": "p", "timeout_s": 5, "delivery": "at_most_once""#;
const OFTEN: &str = r#", "params": "p", "timeout_s": 5"#;

fn fired(fleet: &Fleet) -> Vec<Firing> {
    fleet.target.fired.lock().clone()
}

fn outcome_of(fleet: &Fleet, run: RunNumber) -> Option<Outcome> {
    match fleet.stored(run).unwrap().0.state {
        RunState::Ended { outcome, .. } => Some(outcome),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_target_answers_ends_a_run_puts_it_off_or_leaves_it_unknown() {
    let answer = |nth: usize| -> fn(String) -> Fired {
        [Fired::Failed, Fired::Refused, Fired::Unknown, Fired::Away, Fired::Busy][nth]
    };
    // How often it is handed over within a minute, and how it has ended by then.
    for (nth, more, times, outcome) in [
        (0, OFTEN, 1..=1, Some(Outcome::Failed)),
        (1, OFTEN, 1..=1, Some(Outcome::Failed)),
        // Nobody knows whether it came: it is sent again, or not.
        (2, OFTEN, 3..=4, None),
        (2, ONCE, 1..=1, Some(Outcome::TimedOut)),
        // A target says so, too, where it does not know whether it has it.
        (3, OFTEN, 6..=12, None),
        (3, ONCE, 1..=1, Some(Outcome::TimedOut)),
        (4, OFTEN, 6..=12, None),
        (4, ONCE, 6..=12, None),
    ] {
        let fleet = Fleet::start(1, JobsOptions::default()).await;
        fleet.put("job", DAILY, TO_HOOK, more).await;
        fleet.target.answer(move |_| answer(nth)("a test wants it".into()));
        let run = fleet.run("job").await;
        sleep_ms(60_000).await;
        let count = fired(&fleet).len();
        assert!(times.contains(&count), "{nth}, {more}: {count} times");
        assert_eq!(outcome_of(&fleet, run), outcome, "{nth}, {more}");
        fleet.target.answer(|_| Fired::Done);
        if outcome.is_none() {
            eventually(|| outcome_of(&fleet, run) == Some(Outcome::Succeeded)).await;
        }
        assert!(fired(&fleet).iter().all(|firing| firing.attempt == 1 && &firing.payload[..] == b"p"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_target_knows_a_run_that_comes_again_and_not_one_that_somebody_runs_again() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    fleet.put("job", DAILY, TO_HOOK, r#", "retries": {"fixed": {"max": 1, "wait_ms": 0}}"#).await;
    fleet.target.answer(|_| Fired::Failed("no".into()));
    let run = fleet.run("job").await;
    eventually(|| outcome_of(&fleet, run) == Some(Outcome::Failed)).await;
    fleet.target.answer(|_| Fired::Done);
    fleet.jobs.run_again("t", run).await.unwrap();
    eventually(|| outcome_of(&fleet, run) == Some(Outcome::Succeeded)).await;
    let fired = fired(&fleet);
    let [first, second, again] = &fired[..] else { panic!("{fired:?}") };
    assert!(first.key.is_some() && first.key == second.key && first.key != again.key, "{fired:?}");
    assert!(first.id == second.id && first.id == again.id && &*first.tenant == "t");
    assert_eq!((first.attempt, second.attempt, again.attempt), (1, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_target_that_this_process_does_not_have_and_one_that_panics_take_nothing_with_them() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    fleet.put("nowhere", DAILY, r#"{"target": {"name": "none"}}"#, "").await;
    let run = fleet.run("nowhere").await;
    eventually(|| outcome_of(&fleet, run) == Some(Outcome::Failed)).await;
    let why = fleet.stored(run).unwrap().0.message;
    assert!(why.contains("no target `none`"), "{why}");
    fleet.put("job", DAILY, TO_HOOK, ONCE).await;
    fleet.target.answer(|_| panic!("a test wants it"));
    let run = fleet.run("job").await;
    eventually(|| outcome_of(&fleet, run).is_some()).await;
    // It may have been handed over before.
    assert_eq!((outcome_of(&fleet, run), fleet.jobs.stats().panics.get()), (Some(Outcome::TimedOut), 1));
}
