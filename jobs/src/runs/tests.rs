//! What becomes of occurrences and runs, case by case.

use super::*;
use crate::definition::{ChangeNote, Definition, JobName, JobNumber, JobSpec};

const KEEP: Keep = Keep { succeeded_ms: 1_000, failed_ms: 10_000 };
const JOB: JobNumber = JobNumber(7);
const NOW: u64 = 1_800_000_000_000;
const HOUR_MS: u64 = 3_600_000;

fn spec(more: &str) -> JobSpec {
    let json = format!(
        r#"{{"destination": {{"executor": {{"app": "a", "handler": "h"}}}},
             "schedule": {{"fixed_rate": {{"every_ms": 1000, "start_ms": 0}}}}{more}}}"#
    );
    serde_json::from_str(&json).unwrap()
}

fn definition(spec: JobSpec) -> Definition {
    let (tenant, name) = ("t".to_owned(), JobName::new("job").unwrap());
    Definition { tenant, name, version: 3, change: ChangeNote::default(), is_paused: false, spec }
}

fn state(definition: &Definition) -> JobState {
    JobState::of(definition, None, NOW)
}

fn at(ms: u64) -> Now {
    Now { ms, misfire_ms: MISFIRE_MS }
}

fn begun(definition: &Definition, state: &JobState, due_ms: u64, now_ms: u64) -> (JobState, Option<Run>) {
    match begin(JOB, definition, state, 3, due_ms, KEEP, at(now_ms)) {
        Begin::Now { state, run } => (state, run),
        other => panic!("{other:?}"),
    }
}

fn run(spec: &JobSpec) -> Run {
    let definition = definition(spec.clone());
    let run = begun(&definition, &state(&definition), NOW + 1_000, NOW + 1_000).1.unwrap();
    Run { lease: 71, ..run }
}

/// A process takes the run, with the lease of the next number.
fn woken(run: &Run, spec: Option<&JobSpec>, now_ms: u64) -> WokenRun {
    super::woken(run, spec, run.lease + 1, now_ms)
}

/// News of the sending that goes.
fn tell(run: &Run, spec: &JobSpec, how: &Sent, executor: Option<&str>, now_ms: u64) -> Option<Run> {
    sent(run, spec, run.lease, how, executor, now_ms)
}

/// A report that does not say its attempt.
fn reported(run: &Run, spec: &JobSpec, how: &Reported, now_ms: u64) -> Option<Run> {
    super::reported(run, spec, None, how, now_ms)
}

#[test]
fn an_occurrence_is_decided_once_and_the_next_one_follows() {
    let definition = definition(spec(""));
    let first = state(&definition);
    assert_eq!(first.next_ms, Some(NOW + 1_000));
    let (second, run) = begun(&definition, &first, NOW + 1_000, NOW + 1_003);
    let run = run.unwrap();
    assert_eq!((run.due_ms, run.attempt, run.cause), (NOW + 1_000, 1, Cause::Schedule));
    assert_eq!(run.state, RunState::Starting { until_ms: NOW + 1_003 + LEASE_MS, is_sending: false });
    assert_eq!((second.last_ms, second.next_ms), (Some(NOW + 1_000), Some(NOW + 2_000)));

    // Its due task fires again: nothing starts, and the next occurrence is named, so that its due task can be added.
    let again = begin(JOB, &definition, &second, 3, NOW + 1_000, KEEP, at(NOW + 1_500));
    assert_eq!(again, Begin::Before { next_ms: Some(NOW + 2_000) });
}

#[test]
fn an_occurrence_of_another_version_is_dropped() {
    let definition = definition(spec(""));
    let state = state(&definition);
    assert_eq!(begin(JOB, &definition, &state, 2, NOW + 1_000, KEEP, at(NOW + 1_000)), Begin::Stale);
    let paused = Definition { is_paused: true, ..definition };
    assert_eq!(begin(JOB, &paused, &state, 3, NOW + 1_000, KEEP, at(NOW + 1_000)), Begin::Stale);
    assert_eq!(JobState::of(&paused, None, NOW).next_ms, None);
}

#[test]
fn a_job_that_was_changed_decides_nothing_twice() {
    let definition = definition(spec(""));
    let (after, _) = begun(&definition, &state(&definition), NOW + 1_000, NOW + 1_000);
    let changed = JobState::of(&definition, Some((&definition, &after)), NOW + 500);
    assert_eq!(changed.next_ms, Some(NOW + 2_000), "the clock went back, and what is decided stays decided");
}

#[test]
fn after_a_long_outage_the_misfire_strategy_decides() {
    let every = |more: &str, every_ms: u64| {
        let mut spec = spec(more);
        let json = format!(r#"{{"fixed_rate": {{"every_ms": {every_ms}}}}}"#);
        spec.schedule = serde_json::from_str(&json).unwrap();
        definition(spec)
    };
    // An hour after its time, with nothing since.
    let nothing = every(r#", "misfire": "do_nothing""#, 2 * HOUR_MS);
    let first = state(&nothing);
    let due_ms = first.next_ms.unwrap();
    let (after, run) = begun(&nothing, &first, due_ms, due_ms + HOUR_MS);
    assert_eq!((run, after.missed), (None, 1));
    assert_eq!(after.next_ms, Some(due_ms + 2 * HOUR_MS));

    let once = every(r#", "misfire": "fire_once_now""#, 2 * HOUR_MS);
    let (after, run) = begun(&once, &first, due_ms, due_ms + HOUR_MS);
    assert_eq!((run.map(|run| run.due_ms), after.missed), (Some(due_ms), 0));

    // Of those of each second, those count as on time that a fail-over may have delayed.
    let seconds = every("", 1_000);
    let (after, run) = begun(&seconds, &state(&seconds), NOW + 1_000, NOW + 60_500);
    assert_eq!(run.map(|run| run.due_ms), Some(NOW + 46_000));
    assert_eq!((after.next_ms, after.missed), (Some(NOW + 47_000), 45));
}

#[test]
fn a_fixed_delay_waits_for_the_end_and_is_never_left_out() {
    let mut delayed = spec("");
    delayed.schedule = serde_json::from_str(r#"{"fixed_delay": {"delay_ms": 5000}}"#).unwrap();
    let definition = definition(delayed);
    let first = state(&definition);
    assert_eq!(first.next_ms, Some(NOW + 5_000));
    let (after, run) = begun(&definition, &first, NOW + 5_000, NOW + 3_600_000);
    assert!(run.is_some());
    assert_eq!((after.next_ms, after.forget_ms), (None, None), "the next one follows from the end");
}

#[test]
fn a_job_without_another_occurrence_is_forgotten_in_time() {
    let mut once = spec("");
    once.schedule = serde_json::from_str(&format!(r#"{{"at": {{"time_ms": {}}}}}"#, NOW + 10)).unwrap();
    let definition = definition(once);
    let (after, run) = begun(&definition, &state(&definition), NOW + 10, NOW + 20);
    assert!(run.is_some());
    assert_eq!((after.next_ms, after.forget_ms), (None, Some(NOW + 20 + KEEP.failed_ms)));
    assert_eq!(after.wake_ms(10), after.forget_ms);
}

#[test]
fn a_state_that_changes_each_second_moves_its_look_every_few_seconds() {
    let definition = definition(spec(""));
    let mut now = state(&definition);
    let mut looks = Vec::new();
    for second in 1..=20 {
        let due_ms = NOW + second * 1_000;
        let (after, _) = begun(&definition, &now, due_ms, due_ms);
        let (next_ms, look_ms) = (after.next_ms.unwrap(), after.wake_ms(0).unwrap());
        assert!((5_000..10_000).contains(&(look_ms - next_ms)), "{look_ms} for {next_ms}");
        looks.push(look_ms);
        now = after;
    }
    looks.dedup();
    assert!(looks.len() <= 5, "{looks:?}");
}

#[test]
fn where_occurrences_come_late_they_are_looked_for_later() {
    let definition = definition(spec(""));
    let (after, _) = begun(&definition, &state(&definition), NOW + 1_000, NOW + 9_000);
    let look_after_ms = |state: &JobState, late_ms| state.wake_ms(late_ms).unwrap() - state.next_ms.unwrap();
    for taken_over in [0, 1_000, 5_000, 6_000] {
        assert!(
            (5_000..10_000).contains(&look_after_ms(&after, taken_over)),
            "a takeover alone is late by so much"
        );
    }
    for late_ms in [6_001, 8_000, 9_500] {
        let look_ms = look_after_ms(&after, late_ms);
        assert!(look_ms > late_ms + 4_000, "as late as that it still comes by itself: {look_ms}");
        assert!(
            look_ms < MISFIRE_MS,
            "one whose due task is lost is found before it counts as missed: {look_ms}"
        );
    }
    assert!(look_after_ms(&after, u64::MAX) < 40_000);
    // The next one of a job that is seldom due has nothing to do with how late this one was.
    let tomorrow = JobState { next_ms: after.last_ms.map(|last_ms| last_ms + 86_400_000), ..after };
    assert_eq!(look_after_ms(&tomorrow, 30_000), 5_000);
}

#[test]
fn an_occurrence_that_is_overdue_is_looked_for_twice_before_it_counts_as_missed() {
    for first_late_ms in [5_000, 7_000, 9_900] {
        let again_ms = JobState::looked_for_again_ms(NOW, NOW + first_late_ms) - NOW;
        assert!(again_ms < MISFIRE_MS, "{first_late_ms}: {again_ms}");
    }
    assert_eq!(JobState::looked_for_again_ms(NOW, NOW + 12_000), NOW + 24_000);
    assert_eq!(JobState::looked_for_again_ms(NOW, NOW + 600_000), NOW + 630_000);
}

#[test]
fn a_run_that_was_accepted_waits_for_its_report() {
    let spec = spec(r#", "timeout_s": 10"#);
    let accepted = tell(&run(&spec), &spec, &Sent::Accepted, Some("x"), NOW).unwrap();
    assert_eq!(
        accepted.state,
        RunState::Running { until_ms: NOW + 20_000 },
        "ten seconds more than its time-out"
    );
    assert_eq!(accepted.executor.as_deref(), Some("x"));
    // Its answer comes once more, after its end: nothing changes.
    let ended = reported(&accepted, &spec, &Reported::Succeeded("ok".into()), NOW + 5).unwrap();
    assert_eq!(ended.state, RunState::Ended { at_ms: NOW + 5, outcome: Outcome::Succeeded });
    assert_eq!(tell(&ended, &spec, &Sent::Accepted, Some("x"), NOW + 6), None);
    assert_eq!(reported(&ended, &spec, &Reported::Failed("no".into()), NOW + 7), None);
    assert_eq!(ended.wake_ms(KEEP), NOW + 5 + KEEP.succeeded_ms);
}

#[test]
fn a_report_that_overtakes_the_answer_to_the_call_is_kept() {
    let spec = spec("");
    let ended = reported(&run(&spec), &spec, &Reported::Succeeded(String::new()), NOW).unwrap();
    assert!(ended.is_over());
    let noted = tell(&ended, &spec, &Sent::Accepted, Some("x"), NOW + 5).unwrap();
    assert_eq!(noted, Run { executor: Some("x".into()), ..ended.clone() }, "only who had it is news");
    assert_eq!(tell(&noted, &spec, &Sent::Accepted, Some("x"), NOW + 5), None);
    assert_eq!(tell(&ended, &spec, &Sent::NotSent("nobody".into()), Some("x"), NOW + 5), None);
    assert_eq!(sent(&ended, &spec, 5, &Sent::Accepted, Some("x"), NOW + 5), None, "another sending");
}

#[test]
fn a_failure_of_an_attempt_that_is_over_does_not_end_the_next_one() {
    let spec = spec(r#", "retries": {"fixed": {"max": 3, "wait_ms": 0}}"#);
    let first = tell(&run(&spec), &spec, &Sent::Refused("busy".into()), Some("x"), NOW).unwrap();
    let WokenRun::Send(second) = woken(&first, Some(&spec), NOW) else { panic!("{first:?}") };
    let running = tell(&second, &spec, &Sent::Accepted, Some("y"), NOW).unwrap();
    for stale in [Reported::Failed("late".into()), Reported::TimedOut("late".into())] {
        assert_eq!(super::reported(&running, &spec, Some(1), &stale, NOW), None);
        assert!(super::reported(&running, &spec, Some(2), &stale, NOW).is_some());
        assert!(super::reported(&running, &spec, None, &stale, NOW).is_some());
    }
    let done = Reported::Succeeded(String::new());
    assert!(super::reported(&running, &spec, Some(1), &done, NOW).is_some_and(|run| run.is_over()));
}

#[test]
fn a_run_that_was_given_up_succeeds_all_the_same_where_it_was_done() {
    let spec = spec(r#", "timeout_s": 10"#);
    let running = tell(&run(&spec), &spec, &Sent::Accepted, Some("x"), NOW).unwrap();
    let WokenRun::Goes(timed_out) = woken(&running, Some(&spec), NOW + 20_000) else { panic!("{running:?}") };
    let ended = |outcome| Run { state: RunState::Ended { at_ms: NOW, outcome }, ..running.clone() };
    for given_up in [timed_out, ended(Outcome::Missed)] {
        assert!(given_up.is_dead());
        assert_eq!(reported(&given_up, &spec, &Reported::Failed("late".into()), NOW + 20_001), None);
        let done = reported(&given_up, &spec, &Reported::Succeeded("done".into()), NOW + 20_001).unwrap();
        let (at_ms, outcome) = (NOW + 20_001, Outcome::Succeeded);
        assert_eq!((done.state, done.message.as_str()), (RunState::Ended { at_ms, outcome }, "done"));
    }
    for known in [Outcome::Failed, Outcome::Killed, Outcome::Succeeded] {
        assert_eq!(reported(&ended(known), &spec, &Reported::Succeeded(String::new()), NOW + 5), None);
    }
}

#[test]
fn a_run_without_a_time_out_is_waited_for_for_a_month() {
    let spec = spec(r#", "timeout_s": 0"#);
    assert_eq!(spec.check(), Ok(()));
    let running = tell(&run(&spec), &spec, &Sent::Accepted, Some("x"), NOW).unwrap();
    assert_eq!(running.state, RunState::Running { until_ms: NOW + 720 * HOUR_MS });
    // Of a call without an answer nobody knows whether it came: it is sent again as soon as any other.
    let unsure = tell(&run(&spec), &spec, &Sent::Unknown("silence".into()), Some("x"), NOW).unwrap();
    assert_eq!(unsure.state, RunState::Running { until_ms: NOW + 20_000 });
}

#[test]
fn an_attempt_is_known_by_the_time_that_it_was_sent_with() {
    let first = run(&spec(""));
    let second = Run { attempt: 2, ..first.clone() };
    let again = Run { again: 1, ..first.clone() };
    let last = Run { attempt: 101, ..again.clone() };
    let times: std::collections::BTreeSet<u64> = [&first, &second, &again, &last].map(Run::sent_ms).into();
    assert_eq!(times.len(), 4);
    assert!(
        times.iter().all(|sent_ms| (1..1_000).contains(&(sent_ms - first.due_ms))),
        "its day is the run's"
    );
    assert_eq!((second.attempt_of(first.sent_ms()), second.attempt_of(second.sent_ms())), (Some(1), Some(2)));
    assert_eq!(again.attempt_of(again.sent_ms()), Some(1));
    assert_eq!(again.attempt_of(first.sent_ms()), Some(0), "it was started again since");
    // A process of an earlier version has sent it, or the executor shows no time, or one that nobody has sent.
    for unknown in [first.due_ms, 0, second.sent_ms() + 1, u64::MAX] {
        assert_eq!(second.attempt_of(unknown), None, "{unknown}");
    }
}

#[test]
fn retries_are_spent_one_by_one() {
    let spec = spec(r#", "retries": {"exponential": {"max": 2, "first_ms": 100, "max_ms": 150}}"#);
    let mut now = run(&spec);
    for (attempt, wait_ms) in [(1, 100), (2, 150)] {
        assert_eq!(now.attempt, attempt);
        now = tell(&now, &spec, &Sent::Refused("busy".into()), None, NOW).unwrap();
        assert_eq!(now.state, RunState::Retrying { at_ms: NOW + wait_ms });
        assert_eq!(woken(&now, Some(&spec), NOW + wait_ms - 1), WokenRun::Not);
        let WokenRun::Send(next) = woken(&now, Some(&spec), NOW + wait_ms) else { panic!("{now:?}") };
        now = next;
    }
    let dead = tell(&now, &spec, &Sent::NotSent("nobody".into()), None, NOW).unwrap();
    assert_eq!(dead.state, RunState::Ended { at_ms: NOW, outcome: Outcome::Failed });
    assert_eq!(dead.message, "nobody");
}

#[test]
fn a_run_that_is_not_reported_is_timed_out_and_retried() {
    let spec = spec(r#", "timeout_s": 10, "retries": {"fixed": {"max": 1, "wait_ms": 0}}"#);
    let running = tell(&run(&spec), &spec, &Sent::Accepted, Some("x"), NOW).unwrap();
    assert_eq!(woken(&running, Some(&spec), NOW + 19_999), WokenRun::Not);
    let WokenRun::Goes(retrying) = woken(&running, Some(&spec), NOW + 20_000) else { panic!() };
    assert_eq!(retrying.state, RunState::Retrying { at_ms: NOW + 20_000 });
    // Its report comes after all. That it has failed is known; that it has succeeded is news.
    for late in [Reported::Failed("late".into()), Reported::TimedOut("late".into())] {
        assert_eq!(reported(&retrying, &spec, &late, NOW + 20_001), None);
    }
    assert!(reported(&retrying, &spec, &Reported::Succeeded(String::new()), NOW).unwrap().is_over());
}

#[test]
fn where_nobody_knows_whether_it_was_sent_delivery_decides() {
    let often = spec(r#", "timeout_s": 60"#);
    let unsure = tell(&run(&often), &often, &Sent::Unknown("silence".into()), Some("x"), NOW).unwrap();
    assert_eq!(unsure.state, RunState::Running { until_ms: NOW + 20_000 });
    let WokenRun::Send(again) = woken(&unsure, Some(&often), NOW + 20_000) else { panic!("{unsure:?}") };
    assert_eq!((again.attempt, again.unanswered), (1, 1), "the same attempt once more");

    let once = spec(r#", "timeout_s": 60, "delivery": "at_most_once""#);
    let unsure = tell(&run(&once), &once, &Sent::Unknown("silence".into()), Some("x"), NOW).unwrap();
    assert_eq!(unsure.state, RunState::Running { until_ms: NOW + 70_000 });
    let WokenRun::Goes(ended) = woken(&unsure, Some(&once), NOW + 70_000) else { panic!("{unsure:?}") };
    assert_eq!(ended.state, RunState::Ended { at_ms: NOW + 70_000, outcome: Outcome::TimedOut });
}

#[test]
fn a_run_whose_process_is_gone_is_sent_again_or_missed() {
    let (often, once) = (spec(""), spec(r#", "delivery": "at_most_once""#));
    let over_ms = NOW + 1_000 + LEASE_MS;
    assert_eq!(woken(&run(&often), Some(&often), over_ms - 1), WokenRun::Not);
    let WokenRun::Send(again) = woken(&run(&often), Some(&often), over_ms) else { panic!() };
    assert_eq!((again.attempt, again.due_ms), (1, NOW + 1_000));
    assert!(matches!(woken(&run(&once), Some(&once), over_ms), WokenRun::Send(_)), "it was not sent yet");
    let sending = Run { state: RunState::Starting { until_ms: over_ms, is_sending: true }, ..run(&once) };
    let WokenRun::Goes(missed) = woken(&sending, Some(&once), over_ms) else { panic!() };
    assert!(matches!(missed.state, RunState::Ended { outcome: Outcome::Missed, .. }));
}

#[test]
fn an_occurrence_id_is_the_same_in_every_attempt() {
    let spec = spec(r#", "retries": {"fixed": {"max": 1, "wait_ms": 0}}"#);
    let first = run(&spec);
    let failed = tell(&first, &spec, &Sent::NotSent(String::new()), None, NOW).unwrap();
    let WokenRun::Send(second) = woken(&failed, Some(&spec), NOW) else { panic!() };
    assert_eq!(first.occurrence_id(RunNumber(9)), second.occurrence_id(RunNumber(9)));
    let part = Run { part: Some(Part { index: 1, total: 2 }), ..first.clone() };
    assert_ne!(first.occurrence_id(RunNumber(9)), part.occurrence_id(RunNumber(10)));
}

#[test]
fn a_target_knows_a_run_by_its_key_until_somebody_starts_it_again() {
    let spec = spec(r#", "retries": {"fixed": {"max": 1, "wait_ms": 0}}"#);
    let first = run(&spec);
    let failed = tell(&first, &spec, &Sent::NotSent(String::new()), None, NOW).unwrap();
    let WokenRun::Send(second) = woken(&failed, Some(&spec), NOW) else { panic!() };
    assert_eq!(first.target_key(RunNumber(9)), second.target_key(RunNumber(9)));
    let again = Run { again: 1, ..first.clone() };
    assert_ne!(first.target_key(RunNumber(9)), again.target_key(RunNumber(9)));
    assert_eq!(first.occurrence_id(RunNumber(9)), again.occurrence_id(RunNumber(9)));
}

#[test]
fn a_run_of_a_removed_job_is_forgotten() {
    assert_eq!(woken(&run(&spec("")), None, NOW + 1_000 + LEASE_MS), WokenRun::Forget);
}

#[test]
fn long_messages_are_cut_at_a_letter() {
    let spec = spec("");
    let long = "红".repeat(1_000);
    let ended = reported(&run(&spec), &spec, &Reported::Failed(long), NOW).unwrap();
    assert_eq!(ended.message.chars().count(), 333);
}

#[test]
fn a_clock_that_lags_behind_the_schedulers_stops_no_chain() {
    let definition = definition(spec(""));
    let (after, run) = begun(&definition, &state(&definition), NOW + 1_000, NOW + 990);
    assert!(run.is_some_and(|run| run.due_ms == NOW + 1_000));
    assert_eq!(after.next_ms, Some(NOW + 2_000));
}

#[test]
fn a_one_off_job_that_is_late_runs_all_the_same() {
    let mut once = spec("");
    once.schedule = serde_json::from_str(&format!(r#"{{"at": {{"time_ms": {}}}}}"#, NOW + 10)).unwrap();
    let definition = definition(once);
    let (_, run) = begun(&definition, &state(&definition), NOW + 10, NOW + 86_400_000);
    assert!(run.is_some_and(|run| run.due_ms == NOW + 10));
}

#[test]
fn a_change_of_something_else_keeps_what_is_due() {
    let before = definition(spec(""));
    let is = state(&before);
    let after = Definition { version: 4, ..definition(spec(r#", "alarm_email": "a@b""#)) };
    assert_eq!(JobState::of(&after, Some((&before, &is)), NOW + 60_000).next_ms, Some(NOW + 1_000));
    let mut other = spec("");
    other.schedule = serde_json::from_str(r#"{"fixed_rate": {"every_ms": 5000}}"#).unwrap();
    let after = Definition { version: 4, ..definition(other) };
    assert!(JobState::of(&after, Some((&before, &is)), NOW + 60_000).next_ms > Some(NOW + 60_000));
}

#[test]
fn what_is_due_when_a_job_is_changed_or_paused_is_counted_as_left_out() {
    let before = definition(spec(""));
    let is = JobState { missed: 7, ..state(&before) };
    let mut other = spec("");
    other.schedule = serde_json::from_str(r#"{"fixed_rate": {"every_ms": 5000}}"#).unwrap();
    let other = Definition { version: 4, ..definition(other) };
    let paused = Definition { version: 4, is_paused: true, ..before.clone() };
    for after in [&other, &paused] {
        let changed = |now_ms| JobState::of(after, Some((&before, &is)), now_ms).missed;
        assert_eq!((changed(NOW + 999), changed(NOW + 1_000), changed(NOW + 3_500)), (7, 8, 10));
        assert_eq!(changed(NOW + 86_400_000), 7 + crate::schedule::COUNTED_MAX);
    }
    let kept = Definition { version: 4, ..before.clone() };
    assert_eq!(JobState::of(&kept, Some((&before, &is)), NOW + 3_500).missed, 7, "it is decided later");
    // A job that was paused has nothing that is due.
    let still = JobState::of(&paused, Some((&before, &is)), NOW + 500);
    assert_eq!(JobState::of(&kept, Some((&paused, &still)), NOW + 60_000).missed, 7);
}

#[test]
fn processes_that_die_with_a_run_again_and_again_do_not_get_it_for_ever() {
    let spec = spec("");
    let (mut now, mut sent) = (run(&spec), 0);
    let ended = loop {
        match woken(&now, Some(&spec), NOW + 86_400_000 * (sent + 1)) {
            WokenRun::Send(run) => (now, sent) = (run, sent + 1),
            WokenRun::Goes(run) => break run,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(sent, 10);
    assert!(matches!(ended.state, RunState::Ended { outcome: Outcome::Failed, .. }));
}

#[test]
fn a_run_that_is_put_off_stays_in_its_attempt_and_is_given_up_after_a_day() {
    let spec = spec(r#", "retries": {"fixed": {"max": 1, "wait_ms": 5}}"#);
    let later = Sent::Later("no place".into());
    let (mut now, mut waits, mut at_ms) = (Run { unanswered: 2, ..run(&spec) }, Vec::new(), NOW);
    let failed = loop {
        let before_ms = at_ms;
        let off = tell(&now, &spec, &later, None, at_ms).unwrap();
        match off.state {
            RunState::Retrying { at_ms: next_ms } if off.postponed > 0 => at_ms = next_ms,
            _ => break off,
        }
        waits.push(at_ms - before_ms);
        let WokenRun::Send(again) = woken(&off, Some(&spec), at_ms) else { panic!("{off:?}") };
        assert_eq!((again.attempt, again.unanswered, again.lease), (1, 2, now.lease + 1));
        now = again;
    };
    assert_eq!(waits[..5], [1_000, 2_000, 4_000, 8_000, 10_000]);
    assert!((86_000_000..87_000_000).contains(&(at_ms - NOW)));
    assert_eq!((failed.state, failed.postponed), (RunState::Retrying { at_ms: at_ms + 5 }, 0));
    let WokenRun::Send(second) = woken(&failed, Some(&spec), at_ms + 5) else { panic!("{failed:?}") };
    assert_eq!((second.attempt, second.unanswered), (2, 0));
}

#[test]
fn each_process_that_takes_a_run_has_a_lease_of_its_own() {
    let spec = spec("");
    let first = run(&spec);
    let WokenRun::Send(second) = woken(&first, Some(&spec), NOW + 1_000 + LEASE_MS) else { panic!() };
    assert!(first.is_leased_as(71) && second.is_leased_as(72) && !second.is_leased_as(71));
    // News of the first one, which is over.
    let of_first = |how: Sent| sent(&second, &spec, 71, &how, Some("x"), NOW);
    assert_eq!(of_first(Sent::Accepted), None);
    assert_eq!(of_first(Sent::Later(String::new())), None);
    assert_eq!(of_first(Sent::NotSent(String::new())), None);
    assert_eq!(of_first(Sent::Finished(Reported::Failed(String::new()))), None);
    assert!(of_first(Sent::Finished(Reported::Succeeded(String::new()))).is_some_and(|run| run.is_over()));
    // An end that comes after the answer of another sending counts as well.
    let running = tell(&second, &spec, &Sent::Accepted, Some("y"), NOW).unwrap();
    let ended =
        sent(&running, &spec, 71, &Sent::Finished(Reported::Succeeded(String::new())), Some("x"), NOW);
    assert!(ended.is_some_and(|run| run.is_over()));
}

#[test]
fn a_run_that_a_process_of_an_earlier_version_has_taken_is_nobody_elses() {
    let once = spec(r#", "delivery": "at_most_once""#);
    let ours = run(&once);
    let mut as_stored = serde_json::to_value(&ours).unwrap();
    as_stored.as_object_mut().unwrap().remove("lease");
    let theirs: Run = serde_json::from_value(as_stored).unwrap();
    assert!(ours.is_leased_as(71) && !theirs.is_leased_as(71) && !theirs.is_leased_as(0));
    let later = Sent::Later("no place".into());
    assert_eq!(sent(&theirs, &once, 71, &later, None, NOW), None);
    assert_eq!(sent(&theirs, &once, 0, &later, None, NOW), None);
}

#[test]
fn whether_a_run_was_called_is_known_as_long_as_it_is_put_off() {
    let spec = spec(r#", "retries": {"fixed": {"max": 1, "wait_ms": 5}}"#);
    let taken = |off: &Run| match woken(off, Some(&spec), NOW + HOUR_MS) {
        WokenRun::Send(run) => run,
        other => panic!("{other:?}"),
    };
    let put_off = |run: &Run| put_off(run, &spec, run.lease, "no place", NOW).unwrap();
    let first = run(&spec);
    assert_eq!(super::put_off(&first, &spec, first.lease + 1, "no place", NOW), None);
    let uncalled = put_off(&first);
    assert_eq!((uncalled.postponed, uncalled.was_called), (1, false));
    let called = tell(&taken(&uncalled), &spec, &Sent::Later("full".into()), None, NOW).unwrap();
    let off_again = put_off(&taken(&called));
    assert_eq!((off_again.postponed, off_again.was_called), (3, true));
    let failed = tell(&taken(&off_again), &spec, &Sent::NotSent("no".into()), None, NOW).unwrap();
    assert!(!failed.was_called, "the next attempt was not called");
    let accepted = tell(&taken(&off_again), &spec, &Sent::Accepted, None, NOW).unwrap();
    // Most entries do not become longer, and those of earlier versions are read.
    for run in [first, uncalled, failed, accepted] {
        let stored = serde_json::to_string(&run).unwrap();
        assert!(!stored.contains("was_called"), "{stored}");
        assert_eq!(serde_json::from_str::<Run>(&stored).unwrap(), run);
    }
    let stored = serde_json::to_string(&called).unwrap();
    assert_eq!(serde_json::from_str::<Run>(&stored).unwrap(), called);
}
