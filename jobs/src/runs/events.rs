//! What becomes of a run when something happened to it.

use super::{LEASE_MS, Outcome, Run, RunNumber, RunState};
use crate::definition::{Delivery, JobSpec};

const MESSAGE_MAX_BYTES: usize = 1_000;

/// How an attempt to send a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    /// The executor has it, and is going to report it.
    Accepted,
    /// It is over already.
    Finished(Reported),
    /// It was certainly not sent: nobody could be reached.
    NotSent(String),
    /// The other side does not take it.
    Refused(String),
    /// Nobody knows whether it was sent.
    Unknown(String),
    /// The other side was called and does not take it now, and that is nobody's failure: it is sent again in a moment, in the same
    /// attempt.
    Later(String),
}

/// How an executor says that a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reported {
    /// It succeeded.
    Succeeded(String),
    /// It failed.
    Failed(String),
    /// The executor ended it, because it took too long.
    TimedOut(String),
    /// It was ended because somebody asked for it; it is not tried again.
    Killed(String),
}

/// An executor's report of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Which run.
    pub run: RunNumber,
    /// Which attempt it is about. A failure or a time-out of another attempt than the run's present one is passed over.
    pub attempt: Option<u32>,
    /// The [time](Run::sent_ms) with which the attempt was sent, in place of its number.
    pub sent_ms: Option<u64>,
    /// How it ended.
    pub how: Reported,
}

/// What becomes of a run whose time has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WokenRun {
    /// Its time has not come: it was changed meanwhile.
    Not,
    /// It is sent, after this was written.
    Send(Run),
    /// It goes on otherwise, after this was written.
    Goes(Run),
    /// It is forgotten.
    Forget,
}

/// The wait after a run was put off for the first time; it doubles, up to the longest one.
const LATER_FIRST_MS: u64 = 1_000;
const LATER_MOST_MS: u64 = 10_000;
/// How often in a row a run is put off: about a day. Then its attempt has failed, so that somebody sees it.
const LATER_MAX: u32 = 8_640;
/// How long a report of a run is waited for that was sent without an answer, before it is sent again.
const UNANSWERED_MS: u64 = 20_000;
const UNANSWERED_MAX: u32 = 10;
/// How long a report is waited for after a run's time-out: executors end what takes too long themselves, and report it then.
const GRACE_MS: u64 = 10_000;
/// How long a report is waited for of a run that may take as long as it needs: its executor may have died with it.
const ENDLESS_MS: u64 = 30 * 86_400_000;

/// A run after an attempt to send it, under the lease of this number. `None`: what happened meanwhile is newer, and stays.
pub fn sent(
    run: &Run,
    spec: &JobSpec,
    lease: u32,
    sent: &Sent,
    executor: Option<&str>,
    now_ms: u64,
) -> Option<Run> {
    if !run.is_leased_as(lease) {
        // Somebody else has taken it over, or has heard of it. What was done is done; any other news is of an attempt that does
        // not count any more.
        let after = match sent {
            Sent::Finished(how @ (Reported::Succeeded(_) | Reported::Killed(_))) => {
                reported(run, spec, None, how, now_ms)
            }
            _ => None,
        };
        // Where its report has overtaken the answer to the call, only who has it is still to be noted.
        let has_it = matches!(sent, Sent::Accepted | Sent::Finished(_) | Sent::Unknown(_));
        let is_ours = lease != 0 && run.lease == lease;
        let executor =
            executor.filter(|executor| has_it && is_ours && run.executor.as_deref() != Some(*executor));
        return match executor {
            Some(executor) => {
                Some(Run { executor: Some(executor.to_owned()), ..after.unwrap_or_else(|| run.clone()) })
            }
            None => after,
        };
    }
    if let Sent::Later(message) = sent {
        return Some(later(Run { was_called: true, ..run.clone() }, spec, message, now_ms));
    }
    let run = Run { executor: executor.map(str::to_owned), postponed: 0, was_called: false, ..run.clone() };
    let until_ms = now_ms.saturating_add(match spec.timeout_s {
        0 => ENDLESS_MS,
        timeout_s => u64::from(timeout_s) * 1_000 + GRACE_MS,
    });
    Some(match sent {
        Sent::Accepted => Run { state: RunState::Running { until_ms }, unanswered: 0, ..run },
        Sent::Finished(reported) => ended(run, spec, reported, now_ms),
        Sent::NotSent(message) | Sent::Refused(message) | Sent::Later(message) => {
            failed(run, spec, Outcome::Failed, message, now_ms)
        }
        // It may go there now: its report is waited for, but not so long where it may be sent again.
        Sent::Unknown(message) => {
            let until_ms = match spec.delivery {
                Delivery::AtLeastOnce => until_ms.min(now_ms.saturating_add(UNANSWERED_MS)),
                Delivery::AtMostOnce => until_ms,
            };
            let unanswered = run.unanswered.saturating_add(1);
            Run { state: RunState::Running { until_ms }, message: cut(message), unanswered, ..run }
        }
    })
}

/// A run that is put off before anybody is called for it, under the lease of this number. `None`: what happened meanwhile is newer,
/// and stays.
pub fn put_off(run: &Run, spec: &JobSpec, lease: u32, message: &str, now_ms: u64) -> Option<Run> {
    run.is_leased_as(lease).then(|| later(run.clone(), spec, message, now_ms))
}

/// A run that was not sent, and that is sent later in the same attempt.
fn later(run: Run, spec: &JobSpec, message: &str, now_ms: u64) -> Run {
    let before = run.postponed;
    if before >= LATER_MAX {
        let message = format!("it was put off {before} times, and never sent; at last: {message}");
        return failed(run, spec, Outcome::Failed, &message, now_ms);
    }
    let wait_ms = LATER_MOST_MS.min(LATER_FIRST_MS << before.min(10));
    let state = RunState::Retrying { at_ms: now_ms.saturating_add(wait_ms) };
    Run { state, postponed: before + 1, message: cut(message), ..run }
}

/// A run after its executor's report, which may say of which attempt it is. `None`: it was over before, or the attempt had failed
/// before, and it stays as it is. What was done is done, so that a run which was only given up may still succeed.
pub fn reported(
    run: &Run,
    spec: &JobSpec,
    attempt: Option<u32>,
    reported: &Reported,
    now_ms: u64,
) -> Option<Run> {
    let is_waiting = matches!(run.state, RunState::Retrying { .. }) && run.postponed == 0;
    let has_failed = is_waiting || attempt.is_some_and(|attempt| attempt != run.attempt);
    match reported {
        // It was given up, and has succeeded all the same, as one that has waited in its executor's queue for long.
        Reported::Succeeded(_) if run.was_given_up() => Some(ended(run.clone(), spec, reported, now_ms)),
        _ if run.is_over() => None,
        Reported::Failed(_) | Reported::TimedOut(_) if has_failed => None,
        _ => Some(ended(run.clone(), spec, reported, now_ms)),
    }
}

/// A run that somebody ends, whatever its job says. `None`: it is over.
pub fn killed(run: &Run, message: &str, now_ms: u64) -> Option<Run> {
    (!run.is_over()).then(|| over(run.clone(), Outcome::Killed, message, now_ms))
}

/// A run whose time to wake has come. Where it is to be sent, it gets the lease of this number.
pub fn woken(run: &Run, spec: Option<&JobSpec>, lease: u32, now_ms: u64) -> WokenRun {
    if run.is_over() {
        return WokenRun::Forget;
    }
    let Some(spec) = spec else { return WokenRun::Forget };
    let taken = || Run {
        state: RunState::Starting { until_ms: now_ms.saturating_add(LEASE_MS), is_sending: false },
        lease,
        ..run.clone()
    };
    match run.state {
        RunState::Starting { until_ms, .. } | RunState::Running { until_ms } if until_ms > now_ms => {
            WokenRun::Not
        }
        RunState::Retrying { at_ms } if at_ms > now_ms => WokenRun::Not,
        // It was not sent in this attempt, or nobody knows: it is the same one.
        RunState::Retrying { .. } if run.postponed > 0 => WokenRun::Send(taken()),
        RunState::Retrying { .. } => {
            let attempt = run.attempt.saturating_add(1);
            WokenRun::Send(Run { attempt, unanswered: 0, ..taken() })
        }
        // Whoever was to send it is gone.
        RunState::Starting { is_sending: true, .. } if spec.delivery == Delivery::AtMostOnce => {
            let message = "the process that was to send it has ended: nobody knows whether it was sent";
            WokenRun::Goes(over(run.clone(), Outcome::Missed, message, now_ms))
        }
        RunState::Starting { .. } if run.unanswered < UNANSWERED_MAX => {
            WokenRun::Send(Run { unanswered: run.unanswered.saturating_add(1), ..taken() })
        }
        RunState::Starting { .. } => {
            let message = format!("{UNANSWERED_MAX} processes that were to send it have ended");
            WokenRun::Goes(failed(run.clone(), spec, Outcome::Failed, &message, now_ms))
        }
        // Nobody has acknowledged it: this attempt was perhaps never made.
        RunState::Running { .. }
            if spec.delivery == Delivery::AtLeastOnce && (1..UNANSWERED_MAX).contains(&run.unanswered) =>
        {
            WokenRun::Send(taken())
        }
        RunState::Running { .. } => {
            let message = match run.message.as_str() {
                "" => "it was not reported within its time-out".to_owned(),
                before => format!("it was not reported within its time-out; before: {before}"),
            };
            WokenRun::Goes(failed(run.clone(), spec, Outcome::TimedOut, &message, now_ms))
        }
        RunState::Ended { .. } => WokenRun::Forget,
    }
}

fn ended(run: Run, spec: &JobSpec, reported: &Reported, now_ms: u64) -> Run {
    match reported {
        Reported::Succeeded(message) => over(run, Outcome::Succeeded, message, now_ms),
        Reported::Failed(message) => failed(run, spec, Outcome::Failed, message, now_ms),
        Reported::TimedOut(message) => failed(run, spec, Outcome::TimedOut, message, now_ms),
        Reported::Killed(message) => over(run, Outcome::Killed, message, now_ms),
    }
}

fn failed(run: Run, spec: &JobSpec, outcome: Outcome, message: &str, now_ms: u64) -> Run {
    match spec.retries.wait_ms_after(run.attempt) {
        Some(wait_ms) if spec.delivery == Delivery::AtLeastOnce => {
            let at_ms = now_ms.saturating_add(wait_ms);
            let state = RunState::Retrying { at_ms };
            Run { state, message: cut(message), postponed: 0, was_called: false, ..run }
        }
        _ => over(run, outcome, message, now_ms),
    }
}

fn over(run: Run, outcome: Outcome, message: &str, now_ms: u64) -> Run {
    let state = RunState::Ended { at_ms: now_ms, outcome };
    Run { state, message: cut(message), was_called: false, ..run }
}

/// The beginning of a message.
fn cut(message: &str) -> String {
    let end = (0..=message.len().min(MESSAGE_MAX_BYTES)).rev().find(|end| message.is_char_boundary(*end));
    message[..end.unwrap_or(0)].to_owned()
}
