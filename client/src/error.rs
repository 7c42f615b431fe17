//! Reads a gRPC status in one place, and says what to do next.

use crate::link::retry_after_ms;
use tonic::{Code, Status};
use windfall_proto::send::SendError;
use windfall_proto::v1::{SendBonusFailure, SendBonusRequest};

/// Metadata of a refusal whose code has several reasons.
const REASON: &str = "reason";

/// The reason of a withdrawal's FAILED_PRECONDITION that is not about the balance.
const USER_FROZEN: &str = "user_frozen";

/// A call was not answered with a result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Mend the call.
    #[error("refused: {0}")]
    Refused(String),
    /// Mend the key, its roles, or the user's token.
    #[error("not allowed: {0}")]
    Denied(String),
    /// There is no such thing.
    #[error("not found: {0}")]
    NotFound(String),
    /// The server cannot do it now, and nothing was done. Call again after `after_ms` at the earliest.
    #[error("not now: {what}")]
    Busy {
        /// The server's message.
        what: String,
        /// The least wait.
        after_ms: u64,
    },
    /// Whether it was done is not known. Make the same call again.
    #[error("no answer: {0}; make the same call again")]
    Unanswered(String),
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        let what = status.message().to_owned();
        match status.code() {
            Code::Unauthenticated | Code::PermissionDenied => Self::Denied(what),
            Code::NotFound => Self::NotFound(what),
            Code::ResourceExhausted => {
                Self::Busy { what, after_ms: retry_after_ms(&status).unwrap_or_default() }
            }
            Code::InvalidArgument
            | Code::OutOfRange
            | Code::FailedPrecondition
            | Code::AlreadyExists
            | Code::Unimplemented => Self::Refused(what),
            _ => match retry_after_ms(&status) {
                Some(after_ms) => Self::Busy { what, after_ms },
                None => Self::Unanswered(what),
            },
        }
    }
}

/// A withdrawal was not answered with an outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WithdrawError {
    /// Mend the call.
    #[error("refused: {0}")]
    Refused(String),
    /// Mend the key, its roles, or the user's token.
    #[error("not allowed: {0}")]
    Denied(String),
    /// The balance is too small. Nothing was kept; the id may be used again.
    #[error("too little: {0}")]
    Short(String),
    /// Two operators have frozen the user. Nothing was kept; the id may be used again when they have thawed the user.
    #[error("the user is frozen: {0}")]
    Frozen(String),
    /// The id was used for another user, type or amount. Take another one.
    #[error("the id is taken: {0}")]
    Taken(String),
    /// Whether it was paid or held is not known. Ask again with the same id, after `after_ms` at the earliest.
    #[error("no answer: {what}; ask again with the same id")]
    Unanswered {
        /// What happened.
        what: String,
        /// The least wait.
        after_ms: u64,
    },
}

impl From<Status> for WithdrawError {
    fn from(status: Status) -> Self {
        let what = status.message().to_owned();
        match status.code() {
            Code::InvalidArgument | Code::OutOfRange | Code::NotFound | Code::Unimplemented => {
                Self::Refused(what)
            }
            Code::Unauthenticated | Code::PermissionDenied => Self::Denied(what),
            Code::FailedPrecondition if is_of_frozen_user(&status) => Self::Frozen(what),
            Code::FailedPrecondition => Self::Short(what),
            Code::AlreadyExists => Self::Taken(what),
            _ => Self::Unanswered { what, after_ms: retry_after_ms(&status).unwrap_or_default() },
        }
    }
}

/// Services of earlier releases name no reason, for a frozen user neither.
fn is_of_frozen_user(status: &Status) -> bool {
    status.metadata().get(REASON).is_some_and(|reason| reason == USER_FROZEN)
}

/// What the status of a request's call means for it.
pub(crate) fn send_error(request: &SendBonusRequest, status: &Status) -> SendError {
    // A hint is the gateway's word that nothing was taken; without it an UNAVAILABLE may be anybody's, at any time.
    of_code(request, status.code(), status.message(), retry_after_ms(status).is_some())
}

/// What the failure of one request of an answered batch means for it: nothing was taken.
pub(crate) fn send_failure(request: &SendBonusRequest, failure: &SendBonusFailure) -> SendError {
    let error = of_code(request, Code::from_i32(failure.code), &failure.message, true);
    match (failure.retryable, error.is_worth_retrying()) {
        // The gateway knows best, and a later one may know more.
        (true, false) => SendError::Busy(failure.message.clone()),
        (false, true) => SendError::Refused(failure.message.clone()),
        _ => error,
    }
}

fn of_code(request: &SendBonusRequest, code: Code, message: &str, is_certain: bool) -> SendError {
    let message = message.to_owned();
    match code {
        Code::InvalidArgument
        | Code::OutOfRange
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::Unimplemented => SendError::Refused(message),
        Code::FailedPrecondition => SendError::NoRoute {
            activity: request.activity.clone(),
            scene: request.scene.clone(),
            bonus_type: request.bonus.as_ref().map(|bonus| bonus.r#type.clone()).unwrap_or_default(),
        },
        Code::ResourceExhausted => SendError::Busy(message),
        _ if is_certain => SendError::Busy(message),
        _ => SendError::Unanswered(message),
    }
}
