//! The gRPC statuses of the SDK's errors. The client (`windfall-client`) reads them back.

use tonic::{Code, Status};
use windfall_edge::retry_later;
use windfall_proto::send::SendError;
use windfall_proto::v1::SendBonusFailure;

/// The retry hint for a full spool: long enough for a pack to leave, short enough for a user who waits.
const SPOOL_FULL_RETRY_MS: u64 = 20;
/// The retry hint for a full queue: both its brokers are away or behind, which lasts longer than sending a pack.
const QUEUE_FULL_RETRY_MS: u64 = 250;
/// The retry hint where an operator must change keys or routes.
const OPERATOR_RETRY_MS: u64 = 1_000;

/// The status of an error. A retry hint also promises that nothing was taken.
pub fn status(error: &SendError) -> Status {
    match answer(error) {
        (code, Some(after_ms)) => retry_later(code, error.to_string(), after_ms),
        (code, None) => Status::new(code, error.to_string()),
    }
}

/// The failure of one request of a batch.
pub(crate) fn failure(error: &SendError) -> SendBonusFailure {
    SendBonusFailure {
        code: answer(error).0.into(),
        message: error.to_string(),
        retryable: error.is_worth_retrying(),
    }
}

/// The code, and how long to wait where the same call may succeed later.
const fn answer(error: &SendError) -> (Code, Option<u64>) {
    match error {
        SendError::Invalid { .. } => (Code::InvalidArgument, None),
        SendError::OtherApp { .. } => (Code::PermissionDenied, None),
        // An operator adds the route; it is for the caller to say how long to try.
        SendError::NoRoute { .. } => (Code::FailedPrecondition, Some(OPERATOR_RETRY_MS)),
        SendError::SpoolFull | SendError::Busy(_) => (Code::ResourceExhausted, Some(SPOOL_FULL_RETRY_MS)),
        SendError::QueueFull { .. } => (Code::ResourceExhausted, Some(QUEUE_FULL_RETRY_MS)),
        SendError::Mint(_) => (Code::Unavailable, Some(OPERATOR_RETRY_MS)),
        // This instance is going; another one, or its successor, takes it.
        SendError::Closed => (Code::Unavailable, Some(SPOOL_FULL_RETRY_MS)),
        SendError::Refused(_) => (Code::InvalidArgument, None),
        // The outcome is not known, so there is no hint: it would promise that nothing was taken.
        SendError::Unanswered(_) => (Code::Unavailable, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_edge::RETRY_AFTER_MS;
    use windfall_proto::order::Invalid;

    #[test]
    fn what_is_worth_retrying_says_when_and_what_is_not_does_not() {
        let errors = [
            SendError::invalid("trade_no", Invalid::Empty),
            SendError::OtherApp { named: "a".into(), own: "b".into() },
            SendError::NoRoute { activity: "a".into(), scene: "s".into(), bonus_type: "t".into() },
            SendError::SpoolFull,
            SendError::QueueFull { queue: "q".into() },
            SendError::Mint("m".into()),
            SendError::Refused("r".into()),
            SendError::Busy("b".into()),
        ];
        for error in errors {
            let status = status(&error);
            assert_eq!(status.metadata().contains_key(RETRY_AFTER_MS), error.is_worth_retrying(), "{error}");
            assert_eq!(status.message(), error.to_string());
            assert_eq!(failure(&error).code, i32::from(status.code()));
            assert_eq!(failure(&error).retryable, error.is_worth_retrying());
        }
        let unknown = status(&SendError::Unanswered("u".into()));
        assert!(unknown.code() == Code::Unavailable && !unknown.metadata().contains_key(RETRY_AFTER_MS));
    }
}
