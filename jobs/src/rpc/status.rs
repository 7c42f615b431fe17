//! Errors about jobs, as they go over the wire.

use crate::JobsError;
use tonic::{Code, Status};
use windfall_contract::entries::EntryError;
use windfall_edge::retry_later;
use windfall_proto::v1::JobFailure;

/// Whoever changes the job meanwhile is done within a moment.
const CONTENDED_RETRY_MS: u64 = 50;

/// The status of a call that failed. A hint when to come again is our word that nothing was done.
pub(super) fn status(error: &JobsError) -> Status {
    let (code, what) = of(error);
    match error {
        JobsError::Contended => retry_later(code, what, CONTENDED_RETRY_MS),
        _ => Status::new(code, what),
    }
}

/// The same, of one job of a batch.
pub(super) fn failure(error: &JobsError) -> JobFailure {
    let (code, message) = of(error);
    JobFailure { code: code.into(), message }
}

fn of(error: &JobsError) -> (Code, String) {
    let what = error.to_string();
    match error {
        JobsError::UnknownJob(_) | JobsError::UnknownRun(_) => (Code::NotFound, what),
        JobsError::WrongSpec(_) => (Code::InvalidArgument, format!("spec: {what}")),
        JobsError::WrongName(_) | JobsError::WrongField { .. } => (Code::InvalidArgument, what),
        JobsError::OtherVersion { .. }
        | JobsError::NeverDue
        | JobsError::NoExecutor
        | JobsError::Refused { .. }
        | JobsError::JobRemoved
        | JobsError::NotOver => (Code::FailedPrecondition, what),
        JobsError::TooManyJobs { .. } => (Code::ResourceExhausted, what),
        JobsError::Executor { .. } | JobsError::Contended => (Code::Unavailable, what),
        JobsError::NotScheduled(error) => {
            tracing::warn!(%error, "the occurrence of a job could not be added");
            let what = "the job is kept, but its next occurrence is not scheduled yet: make the same call again, so that it \
                        is not late";
            (Code::Unavailable, what.into())
        }
        JobsError::Store(error) => {
            // What exactly happened is for operators.
            match error {
                EntryError::Unavailable(what) => tracing::warn!(what, "the store of jobs was asked in vain"),
                EntryError::Unusable(what) => tracing::error!(what, "the store of jobs cannot be used"),
            }
            (Code::Unavailable, "the store of jobs has not answered: make the same call again".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_edge::RETRY_AFTER_MS;

    #[test]
    fn each_error_says_what_to_do_next_and_nothing_of_the_store() {
        let away = EntryError::Unavailable("connection refused".into());
        let field = JobsError::WrongField { field: "params", what: "too long".into() };
        let executor = JobsError::Executor { address: "http://a:1".into(), why: "gone".into() };
        for (error, code, is_hinted) in [
            (JobsError::UnknownJob("a".into()), Code::NotFound, false),
            (JobsError::UnknownRun(7), Code::NotFound, false),
            (JobsError::OtherVersion { is: 2, expected: 1 }, Code::FailedPrecondition, false),
            (field, Code::InvalidArgument, false),
            (JobsError::NeverDue, Code::FailedPrecondition, false),
            (JobsError::NoExecutor, Code::FailedPrecondition, false),
            (JobsError::NotOver, Code::FailedPrecondition, false),
            (JobsError::TooManyJobs { jobs_max: 7 }, Code::ResourceExhausted, false),
            (executor, Code::Unavailable, false),
            (
                JobsError::Refused { address: "a".into(), why: "no logs".into() },
                Code::FailedPrecondition,
                false,
            ),
            (JobsError::Store(away), Code::Unavailable, false),
            (JobsError::Contended, Code::Unavailable, true),
        ] {
            let told = status(&error);
            assert_eq!(told.code(), code, "{error}");
            assert_eq!(told.metadata().get(RETRY_AFTER_MS).is_some(), is_hinted, "{error}");
            assert!(!told.message().contains("connection refused"), "{told}");
            assert_eq!(failure(&error).code, i32::from(code));
        }
    }
}
