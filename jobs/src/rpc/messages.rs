//! Jobs, runs and executors as callers see them.

use super::spec::{wire_of, wrong};
use crate::definition::{ChangeNote, Definition};
use crate::runs::{Cause, Outcome, Report, Reported, RunNumber, RunState};
use crate::{ExecutorView, JobView, JobsError, RunView};
use windfall_proto::v1;

pub(super) fn job(view: &JobView) -> v1::Job {
    let JobView { number, definition, state, missing_children } = view;
    v1::Job {
        name: definition.name.to_string(),
        number: number.0,
        version: definition.version,
        spec: Some(wire_of(&definition.spec)),
        paused: definition.is_paused,
        next_ms: state.next_ms.unwrap_or(0),
        last_ms: state.last_ms.unwrap_or(0),
        missed: state.missed,
        change: Some(change(&definition.change)),
        missing_children: missing_children.iter().map(ToString::to_string).collect(),
    }
}

pub(super) fn version(definition: &Definition) -> v1::JobVersion {
    v1::JobVersion {
        version: definition.version,
        spec: Some(wire_of(&definition.spec)),
        paused: definition.is_paused,
        change: Some(change(&definition.change)),
    }
}

fn change(note: &ChangeNote) -> v1::JobChange {
    v1::JobChange { at_ms: note.at_ms, by: note.by.clone(), why: note.why.clone() }
}

pub(super) fn run(view: &RunView) -> v1::JobRun {
    let RunView { number, run } = view;
    let (cause, parent_run) = match run.cause {
        Cause::Schedule => (v1::JobRunCause::Schedule, 0),
        Cause::Call => (v1::JobRunCause::Call, 0),
        Cause::Parent(parent) => (v1::JobRunCause::Parent, parent.0),
    };
    let (state, at_ms, outcome) = match run.state {
        RunState::Starting { until_ms, .. } => (v1::JobRunState::Starting, until_ms, None),
        RunState::Running { until_ms } => (v1::JobRunState::Running, until_ms, None),
        RunState::Retrying { at_ms } => (v1::JobRunState::Retrying, at_ms, None),
        RunState::Ended { at_ms, outcome } => (v1::JobRunState::Ended, at_ms, Some(outcome)),
    };
    let outcome = outcome.map_or(v1::JobRunOutcome::Unspecified, |outcome| match outcome {
        Outcome::Succeeded => v1::JobRunOutcome::Succeeded,
        Outcome::Failed => v1::JobRunOutcome::Failed,
        Outcome::TimedOut => v1::JobRunOutcome::TimedOut,
        Outcome::Missed => v1::JobRunOutcome::Missed,
        Outcome::Killed => v1::JobRunOutcome::Killed,
    });
    v1::JobRun {
        run: number.0,
        job: run.job.0,
        job_version: run.version,
        occurrence_id: run.occurrence_id(*number),
        due_ms: run.due_ms,
        cause: cause.into(),
        parent_run,
        attempt: run.attempt,
        part_index: run.part.map_or(0, |part| part.index),
        part_total: run.part.map_or(0, |part| part.total),
        state: state.into(),
        outcome: outcome.into(),
        at_ms,
        executor: run.executor.clone().unwrap_or_default(),
        message: run.message.clone(),
        params: run.params.clone(),
    }
}

pub(super) fn executor(view: ExecutorView) -> v1::RegisteredExecutor {
    let ExecutorView { app, address, since_ms, until_ms } = view;
    v1::RegisteredExecutor { app, address, since_ms, until_ms: until_ms.unwrap_or(0) }
}

pub(super) fn report(report: v1::RunReport) -> Result<Report, JobsError> {
    let v1::RunReport { run, result, message, attempt } = report;
    let how = reported(result, message)
        .ok_or_else(|| wrong("reports", format!("the run {run} has the result {result}, which is none")))?;
    let attempt = (attempt != 0).then_some(attempt);
    Ok(Report { run: RunNumber(run), attempt, sent_ms: None, how })
}

/// How an executor says that a run ended; `None`, where it does not.
pub(super) fn reported(result: i32, message: String) -> Option<Reported> {
    Some(match v1::RunResult::try_from(result).ok()? {
        v1::RunResult::Unspecified => return None,
        v1::RunResult::Succeeded => Reported::Succeeded(message),
        v1::RunResult::Failed => Reported::Failed(message),
        v1::RunResult::TimedOut => Reported::TimedOut(message),
        v1::RunResult::Killed => Reported::Killed(message),
    })
}

/// A size of a page or a batch, within 1 and `max`; 0 stands for `default`.
pub(super) fn size(field: &'static str, size: u32, default: usize, max: usize) -> Result<usize, JobsError> {
    match usize::try_from(size) {
        Ok(0) => Ok(default),
        Ok(size) if size <= max => Ok(size),
        _ => Err(wrong(field, format!("at most {max}, not {size}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::JobNumber;
    use crate::runs::{Part, Run};

    #[test]
    fn each_state_and_end_of_a_run_is_told() {
        let plain = Run {
            job: JobNumber(7),
            tenant: "shop".into(),
            version: 2,
            due_ms: 1_000,
            cause: Cause::Schedule,
            attempt: 1,
            part: None,
            params: None,
            state: RunState::Starting { until_ms: 5, is_sending: false },
            executor: None,
            message: String::new(),
            unanswered: 0,
            postponed: 0,
            was_called: false,
            lease: 0,
            again: 0,
            children: Vec::new(),
        };
        let told = |run: Run| super::run(&RunView { number: RunNumber(9), run });
        let starting = told(plain.clone());
        assert_eq!(
            (starting.state(), starting.outcome()),
            (v1::JobRunState::Starting, v1::JobRunOutcome::Unspecified)
        );
        assert_eq!((starting.occurrence_id.as_str(), starting.part_total), ("7-1000", 0));
        for (outcome, shown) in [
            (Outcome::Succeeded, v1::JobRunOutcome::Succeeded),
            (Outcome::Failed, v1::JobRunOutcome::Failed),
            (Outcome::TimedOut, v1::JobRunOutcome::TimedOut),
            (Outcome::Missed, v1::JobRunOutcome::Missed),
            (Outcome::Killed, v1::JobRunOutcome::Killed),
        ] {
            let ended = told(Run { state: RunState::Ended { at_ms: 8, outcome }, ..plain.clone() });
            assert_eq!((ended.state(), ended.outcome(), ended.at_ms), (v1::JobRunState::Ended, shown, 8));
        }
        let part = told(Run {
            cause: Cause::Parent(RunNumber(3)),
            part: Some(Part { index: 1, total: 4 }),
            executor: Some("http://a:1".into()),
            ..plain
        });
        assert_eq!((part.cause(), part.parent_run), (v1::JobRunCause::Parent, 3));
        assert_eq!((part.part_index, part.part_total, part.executor.as_str()), (1, 4, "http://a:1"));
    }

    #[test]
    fn a_report_without_a_result_is_refused() {
        let with = |result| report(v1::RunReport { run: 4, result, message: "m".into(), attempt: 0 });
        let told = |attempt, how| Ok(Report { run: RunNumber(4), attempt, sent_ms: None, how });
        assert_eq!(with(1), told(None, Reported::Succeeded("m".into())));
        assert_eq!(with(4), told(None, Reported::Killed("m".into())));
        let second = report(v1::RunReport { run: 4, result: 2, message: "m".into(), attempt: 2 });
        assert_eq!(second, told(Some(2), Reported::Failed("m".into())));
        for none in [0, 9] {
            assert!(with(none).unwrap_err().to_string().contains("the run 4"));
        }
        assert_eq!((size("limit", 0, 100, 1_000), size("limit", 7, 100, 1_000)), (Ok(100), Ok(7)));
        assert!(size("limit", 1_001, 100, 1_000).is_err());
    }
}
