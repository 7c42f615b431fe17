//! Errors of the scheduler, as they go over the wire.

use tonic::{Code, Status};
use windfall_contract::due::StoreError;
use windfall_edge::retry_later;
use windfall_proto::v1::TimerFailure;
use windfall_scheduler::{AddError, TimersError};

/// A push to the store takes milliseconds.
const BUSY_RETRY_MS: u64 = 50;
/// Another instance, or the next one.
const CLOSING_RETRY_MS: u64 = 500;
/// A record is taken from the queue within a moment, and a broker that is away is asked again soon.
const QUEUE_RETRY_MS: u64 = 1_000;
/// Waiting tasks are counted every few seconds, and become fewer as they fire.
const QUOTA_RETRY_MS: u64 = 5_000;

/// A code, what is told, and how long to wait where nothing was done and the same call may succeed later.
struct Answer(Code, String, Option<u64>);

/// The status of an add that failed. A hint when to come again is our word that nothing was stored.
pub(super) fn add_status(error: &AddError) -> Status {
    of_add(error).into_status()
}

/// The same, of one timer of a batch.
pub(super) fn add_failure(error: &AddError) -> TimerFailure {
    of_add(error).into_failure()
}

/// The status of another call that failed.
pub(super) fn timers_status(error: &TimersError) -> Status {
    of_timers(error).into_status()
}

/// The same, of one timer of a batch.
pub(super) fn timers_failure(error: &TimersError) -> TimerFailure {
    of_timers(error).into_failure()
}

fn of_add(error: &AddError) -> Answer {
    let what = error.to_string();
    match error {
        AddError::UnknownTenant(tenant) => no_tenant(tenant),
        AddError::UnknownTarget(target) => {
            let what =
                format!("timer.target: the tenant has no target `{target}`; its options name the targets");
            Answer(Code::InvalidArgument, what, None)
        }
        AddError::PayloadTooLong(_) => Answer(Code::InvalidArgument, format!("timer.payload: {what}"), None),
        AddError::DueTooFar(_) => Answer(Code::InvalidArgument, format!("timer.due_ms: {what}"), None),
        AddError::TooMany(_) => Answer(Code::InvalidArgument, what, None),
        AddError::QuotaWaiting { .. } => Answer(
            Code::ResourceExhausted,
            format!("{what}; cancel some, wait until some have fired, or have `waiting_max` raised"),
            Some(QUOTA_RETRY_MS),
        ),
        AddError::QuotaRate { retry_after_ms } => {
            Answer(Code::ResourceExhausted, what, Some((*retry_after_ms).max(1)))
        }
        AddError::Store(error) => of_store(
            error,
            "the timer may be stored or not; with a key it can be added again without a doubt",
        ),
        AddError::KeyMissing => Answer(Code::InvalidArgument, format!("timer.key: {what}"), None),
        AddError::NoQueue => no_queue(),
        AddError::QueueAway(_) => Answer(Code::Unavailable, what, Some(QUEUE_RETRY_MS)),
        AddError::QueueUnknown(why) => {
            tracing::warn!(why, "the queue of adds was asked in vain");
            let what = "the queue of adds has not answered: the timer may be written or not; add it again under its key";
            Answer(Code::Unavailable, what.into(), None)
        }
        AddError::Busy => Answer(Code::ResourceExhausted, what, Some(BUSY_RETRY_MS)),
        AddError::Closing => Answer(Code::Unavailable, what, Some(CLOSING_RETRY_MS)),
    }
}

fn of_timers(error: &TimersError) -> Answer {
    let what = error.to_string();
    match error {
        TimersError::UnknownTenant(tenant) => no_tenant(tenant),
        TimersError::PayloadTooLong(_) => Answer(Code::InvalidArgument, format!("payload: {what}"), None),
        TimersError::DueTooFar(_) => Answer(Code::InvalidArgument, format!("due_ms: {what}"), None),
        TimersError::NothingToChange | TimersError::TooMany(_) => Answer(Code::InvalidArgument, what, None),
        TimersError::Store(error) => of_store(error, "make the same call again"),
        TimersError::NoQueue => no_queue(),
        TimersError::NoRoomForMark => Answer(
            Code::ResourceExhausted,
            format!("{what}; wait until some have fired, or have `waiting_max` raised"),
            Some(QUOTA_RETRY_MS),
        ),
        TimersError::Busy => Answer(Code::ResourceExhausted, what, Some(BUSY_RETRY_MS)),
        TimersError::Closing => Answer(Code::Unavailable, what, Some(CLOSING_RETRY_MS)),
    }
}

fn no_queue() -> Answer {
    let what = "no adds of timers are taken by a queue here; add [scheduler.queue] to the options, or leave out accept";
    Answer(Code::FailedPrecondition, what.into(), None)
}

/// A timer that was added by the queue, and that the store does not know yet.
pub(super) fn not_there_yet() -> Status {
    let what = "no timer of this key is in the store: its add is still on its way in the queue, or it is over and gone";
    retry_later(Code::Unavailable, what, QUEUE_RETRY_MS)
}

fn no_tenant(tenant: &str) -> Answer {
    let what = format!(
        "no timers are kept here for the tenant `{tenant}`; add [scheduler.tenants.{tenant}] to the options"
    );
    Answer(Code::FailedPrecondition, what, None)
}

/// Nobody knows what was done, so there is no hint.
fn of_store(error: &StoreError, next: &str) -> Answer {
    // What exactly happened is for operators.
    match error {
        StoreError::Unavailable(what) => tracing::warn!(what, "the slot store was asked in vain"),
        StoreError::Unusable(what) => tracing::error!(what, "the slot store cannot be used"),
    }
    Answer(Code::Unavailable, format!("the timers' store has not answered: {next}"), None)
}

impl Answer {
    fn into_status(self) -> Status {
        match self {
            Self(code, what, Some(after_ms)) => retry_later(code, what, after_ms),
            Self(code, what, None) => Status::new(code, what),
        }
    }

    fn into_failure(self) -> TimerFailure {
        let Self(code, message, after_ms) = self;
        TimerFailure { code: code.into(), message, retry_after_ms: after_ms.unwrap_or(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_edge::RETRY_AFTER_MS;

    fn hint(status: &Status) -> Option<u64> {
        status.metadata().get(RETRY_AFTER_MS)?.to_str().ok()?.parse().ok()
    }

    #[test]
    fn only_what_certainly_stored_nothing_says_when_to_come_again() {
        let away = StoreError::Unavailable("connection refused".into());
        for (error, code, after_ms) in [
            (AddError::UnknownTenant("t".into()), Code::FailedPrecondition, None),
            (AddError::UnknownTarget("t".into()), Code::InvalidArgument, None),
            (AddError::PayloadTooLong(70_000), Code::InvalidArgument, None),
            (AddError::DueTooFar(u64::MAX), Code::InvalidArgument, None),
            (AddError::QuotaWaiting { waiting: 2, max: 1 }, Code::ResourceExhausted, Some(QUOTA_RETRY_MS)),
            (AddError::QuotaRate { retry_after_ms: 70 }, Code::ResourceExhausted, Some(70)),
            (AddError::QuotaRate { retry_after_ms: 0 }, Code::ResourceExhausted, Some(1)),
            (AddError::Store(away.clone()), Code::Unavailable, None),
            (AddError::KeyMissing, Code::InvalidArgument, None),
            (AddError::NoQueue, Code::FailedPrecondition, None),
            (AddError::QueueAway("full".into()), Code::Unavailable, Some(QUEUE_RETRY_MS)),
            (AddError::QueueUnknown("connection refused".into()), Code::Unavailable, None),
            (AddError::Busy, Code::ResourceExhausted, Some(BUSY_RETRY_MS)),
            (AddError::Closing, Code::Unavailable, Some(CLOSING_RETRY_MS)),
        ] {
            let status = add_status(&error);
            assert_eq!((status.code(), hint(&status)), (code, after_ms), "{error}");
            let failure = add_failure(&error);
            assert_eq!(
                (failure.code, failure.retry_after_ms),
                (code.into(), after_ms.unwrap_or(0)),
                "{error}"
            );
            assert!(!failure.message.contains("connection refused"), "{}", failure.message);
        }
        for (error, code, after_ms) in [
            (TimersError::UnknownTenant("t".into()), Code::FailedPrecondition, None),
            (TimersError::NothingToChange, Code::InvalidArgument, None),
            (TimersError::Store(away), Code::Unavailable, None),
            (TimersError::NoQueue, Code::FailedPrecondition, None),
            (TimersError::NoRoomForMark, Code::ResourceExhausted, Some(QUOTA_RETRY_MS)),
            (TimersError::Busy, Code::ResourceExhausted, Some(BUSY_RETRY_MS)),
        ] {
            let status = timers_status(&error);
            assert_eq!((status.code(), hint(&status)), (code, after_ms), "{error}");
            assert_eq!(timers_failure(&error).retry_after_ms, after_ms.unwrap_or(0));
        }
    }
}
