//! What becomes of a run when something happened to it.

use super::{LEASE_MS, Outcome, Run, RunState};
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
    /// It was not sent, and that is nobody's failure: it is sent again in a moment, in the same attempt.
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

const SENT_LATER_MS: u64 = 1_000;
/// How long a report of a run is waited for that was sent without an answer, before it is sent again.
const UNANSWERED_MS: u64 = 20_000;
const UNANSWERED_MAX: u32 = 10;

/// A run after an attempt to send it. `None`: what happened meanwhile is newer, and stays.
pub fn sent(run: &Run, spec: &JobSpec, sent: &Sent, executor: Option<&str>, now_ms: u64) -> Option<Run> {
    if !matches!(run.state, RunState::Starting { .. }) {
        return None;
    }
    let run = Run { executor: executor.map(str::to_owned), ..run.clone() };
    let until_ms = now_ms.saturating_add(u64::from(spec.timeout_s) * 1_000);
    Some(match sent {
        Sent::Accepted => Run { state: RunState::Running { until_ms }, unanswered: 0, ..run },
        Sent::Finished(reported) => ended(run, spec, reported, now_ms),
        Sent::NotSent(message) | Sent::Refused(message) => {
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
        Sent::Later(message) => {
            let at_ms = now_ms.saturating_add(SENT_LATER_MS);
            // The attempt that comes is this one once more.
            let attempt = run.attempt.saturating_sub(1);
            Run { state: RunState::Retrying { at_ms }, attempt, message: cut(message), ..run }
        }
    })
}

/// A run after its executor's report. `None`: it was over before, and stays as it is.
pub fn reported(run: &Run, spec: &JobSpec, reported: &Reported, now_ms: u64) -> Option<Run> {
    (!run.is_over()).then(|| ended(run.clone(), spec, reported, now_ms))
}

/// A run whose time to wake has come.
pub fn woken(run: &Run, spec: Option<&JobSpec>, now_ms: u64) -> WokenRun {
    let starting = RunState::Starting { until_ms: now_ms.saturating_add(LEASE_MS), is_sending: false };
    if run.is_over() {
        return WokenRun::Forget;
    }
    let Some(spec) = spec else { return WokenRun::Forget };
    match run.state {
        RunState::Starting { until_ms, .. } | RunState::Running { until_ms } if until_ms > now_ms => {
            WokenRun::Not
        }
        RunState::Retrying { at_ms } if at_ms > now_ms => WokenRun::Not,
        RunState::Retrying { .. } => {
            let attempt = run.attempt.saturating_add(1);
            WokenRun::Send(Run { state: starting, attempt, unanswered: 0, ..run.clone() })
        }
        // Whoever was to send it is gone.
        RunState::Starting { is_sending: true, .. } if spec.delivery == Delivery::AtMostOnce => {
            let message = "the process that was to send it has ended: nobody knows whether it was sent";
            WokenRun::Goes(over(run.clone(), Outcome::Missed, message, now_ms))
        }
        RunState::Starting { .. } if run.unanswered < UNANSWERED_MAX => WokenRun::Send(Run {
            state: starting,
            unanswered: run.unanswered.saturating_add(1),
            ..run.clone()
        }),
        RunState::Starting { .. } => {
            let message = format!("{UNANSWERED_MAX} processes that were to send it have ended");
            WokenRun::Goes(failed(run.clone(), spec, Outcome::Failed, &message, now_ms))
        }
        // Nobody has acknowledged it: this attempt was perhaps never made.
        RunState::Running { .. }
            if spec.delivery == Delivery::AtLeastOnce && (1..UNANSWERED_MAX).contains(&run.unanswered) =>
        {
            WokenRun::Send(Run { state: starting, ..run.clone() })
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
            Run { state: RunState::Retrying { at_ms }, message: cut(message), ..run }
        }
        _ => over(run, outcome, message, now_ms),
    }
}

fn over(run: Run, outcome: Outcome, message: &str, now_ms: u64) -> Run {
    Run { state: RunState::Ended { at_ms: now_ms, outcome }, message: cut(message), ..run }
}

/// The beginning of a message.
fn cut(message: &str) -> String {
    let end = (0..=message.len().min(MESSAGE_MAX_BYTES)).rev().find(|end| message.is_char_boundary(*end));
    message[..end.unwrap_or(0)].to_owned()
}
