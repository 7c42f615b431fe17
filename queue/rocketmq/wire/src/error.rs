//! What can go wrong with a call, and what to do next.

use crate::proto::Code;
use tonic::Status;

/// A call did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The call was not sent, because there is no connection. Certainly nothing happened.
    #[error("{place} cannot be reached: {what}")]
    NotSent {
        /// The address.
        place: String,
        /// What the system says.
        what: String,
    },
    /// The call was sent and no answer came, or one that leaves the outcome open: it may have happened or not.
    #[error("no certain answer from {place}: {what}")]
    Unknown {
        /// The address.
        place: String,
        /// What is known.
        what: String,
    },
    /// The server refuses. Certainly nothing happened.
    #[error("{place} refuses ({code}): {what}")]
    Refused {
        /// The address.
        place: String,
        /// The protocol's status code; gRPC's own codes are those below 100.
        code: i32,
        /// The server's words.
        what: String,
        /// What to do about it.
        next: Next,
    },
}

/// What to do after a call that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Make the same call again after a pause; nothing happened.
    Retry,
    /// The server has forgotten this client's settings: they are being sent again. Make the same call after that.
    Resync,
    /// Something has to be set up or changed first: topic, group, credentials or version. The same call fails until
    /// then.
    Reconfigure,
    /// This request will never be taken.
    GiveUp,
    /// It may have happened. The same call may make it happen twice.
    AskAgain,
}

impl CallError {
    /// What to do next.
    pub fn next(&self) -> Next {
        match self {
            Self::NotSent { .. } => Next::Retry,
            Self::Unknown { .. } => Next::AskAgain,
            Self::Refused { next, .. } => *next,
        }
    }

    /// Whether certainly nothing happened.
    pub fn nothing_happened(&self) -> bool {
        self.next() != Next::AskAgain
    }

    /// The protocol's status code, if there was one.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::NotSent { .. } | Self::Unknown { .. } => None,
        }
    }

    /// The error of a status that is not OK. Codes that are not known yet are judged by their class.
    pub(crate) fn from_code(place: &str, code: i32, what: &str) -> Self {
        match next_of(code, what) {
            Next::AskAgain => {
                Self::Unknown { place: place.into(), what: format!("the server answers {code}: {what}") }
            }
            next => Self::Refused { place: place.into(), code, what: what.into(), next },
        }
    }

    /// The error of a call that gRPC itself ended.
    pub(crate) fn from_grpc(place: &str, status: &Status) -> Self {
        let place = place.to_owned();
        if was_not_sent(status) {
            return Self::NotSent { place, what: causes(status) };
        }
        // The proxy has a code for this, and does not use it where it reads a client's settings.
        if status.code() == tonic::Code::InvalidArgument && status.message().contains("group not found") {
            return Self::from_code(&place, Code::ConsumerGroupNotFound as i32, status.message());
        }
        let next = match status.code() {
            tonic::Code::Unauthenticated | tonic::Code::PermissionDenied | tonic::Code::Unimplemented => {
                Next::Reconfigure
            }
            tonic::Code::InvalidArgument | tonic::Code::OutOfRange => Next::GiveUp,
            _ => return Self::Unknown { place, what: causes(status) },
        };
        Self::Refused { place, code: status.code() as i32, what: status.message().into(), next }
    }

    pub(crate) fn unknown(place: &str, what: impl Into<String>) -> Self {
        Self::Unknown { place: place.into(), what: what.into() }
    }
}

fn next_of(code: i32, what: &str) -> Next {
    // The proxy's null pointer where a client's settings are gone comes as an internal error.
    if code == Code::UnrecognizedClientType as i32
        || what.contains("settings\" is null")
        || what.contains("settings is null")
    {
        return Next::Resync;
    }
    match Code::try_from(code) {
        Ok(Code::Unauthorized | Code::Forbidden) => Next::Reconfigure,
        Ok(Code::TopicNotFound | Code::ConsumerGroupNotFound | Code::NotFound) => Next::Reconfigure,
        Ok(Code::NotImplemented | Code::Unsupported | Code::VersionUnsupported) => Next::Reconfigure,
        Ok(Code::TooManyRequests) => Next::Retry,
        Ok(Code::RequestTimeout) => Next::AskAgain,
        // The store checks a record's size before it writes it, and has no code of its own for that.
        Ok(Code::InternalServerError) if what.contains("message is illegal") => Next::GiveUp,
        _ => match code {
            40_100..=40_199 | 40_300..=40_499 => Next::Reconfigure,
            42_900..=42_999 => Next::Retry,
            40_000..=49_999 => Next::GiveUp,
            50_100..=50_199 | 50_500..=50_599 => Next::Reconfigure,
            // Stored but not yet synced or copied, timed out on the way, or a code that nobody knows yet.
            _ => Next::AskAgain,
        },
    }
}

/// Whether the connection could not even be made.
fn was_not_sent(status: &Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

fn causes(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    if text.is_empty() { format!("{:?}", status.code()) } else { text }
}

/// The options make no sense; names the option and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OptionsError(pub(crate) String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_says_what_next() {
        let next = |code| CallError::from_code("here", code, "").next();
        assert_eq!(next(40_015), Next::Resync);
        assert_eq!(next(40_402), Next::Reconfigure);
        assert_eq!(next(40_100), Next::Reconfigure);
        assert_eq!(next(40_013), Next::GiveUp);
        assert_eq!(next(42_900), Next::Retry);
        // Stored in memory, and the disk or the replica did not answer in time: nobody knows.
        for code in [50_001, 50_002, 50_400, 50_401, 50_402, 40_800] {
            assert_eq!(next(code), Next::AskAgain, "{code}");
        }
        // Codes of tomorrow, and nonsense.
        for (code, expected) in
            [(40_099, Next::GiveUp), (42_999, Next::Retry), (77_777, Next::AskAgain), (-1, Next::AskAgain)]
        {
            assert_eq!(next(code), expected, "{code}");
        }
        let null =
            "Cannot invoke \"apache.rocketmq.v2.Settings.getSubscription()\" because \"settings\" is null";
        assert_eq!(CallError::from_code("here", 50_001, null).next(), Next::Resync);
    }

    #[test]
    fn grpc_codes_too() {
        let next = |status: Status| CallError::from_grpc("here", &status).next();
        assert_eq!(next(Status::unauthenticated("who?")), Next::Reconfigure);
        assert_eq!(next(Status::deadline_exceeded("late")), Next::AskAgain);
        assert_eq!(next(Status::unavailable("reset")), Next::AskAgain);
        assert_eq!(next(Status::unimplemented("old")), Next::Reconfigure);
        assert_eq!(next(Status::invalid_argument("no body")), Next::GiveUp);
        let absent = Status::invalid_argument("process client telemetryCommand failed. group not found: g");
        let absent = CallError::from_grpc("here", &absent);
        assert_eq!((absent.next(), absent.code()), (Next::Reconfigure, Some(40_403)));
    }
}
