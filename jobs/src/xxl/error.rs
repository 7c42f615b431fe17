//! Why a call to an executor did not succeed, and what to do next.

use super::address::ExecutorAddress;

/// A call did not succeed. What it says of a run is what the caller may do next.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Certainly not delivered: another executor may be tried, or this one again.
    #[error("nothing was sent to {address}: {reason}")]
    NotSent {
        /// The executor.
        address: ExecutorAddress,
        /// Why nothing was sent.
        reason: String,
    },
    /// The executor answered that it does not do it. Another executor may be tried; not so after [`Refusal::Repeated`],
    /// which says that an earlier call with the same number is there.
    #[error("{address} refused ({code}): {msg}")]
    Refused {
        /// The executor.
        address: ExecutorAddress,
        /// The protocol's code, or that of HTTP where the answer was none of the protocol.
        code: i32,
        /// The start of what it said.
        msg: String,
        /// What that means.
        refusal: Refusal,
    },
    /// No answer, or none that can be read: the executor may have it, and may report a result. To try it on another
    /// executor is to risk that it runs twice.
    #[error("it is unknown whether {address} has it: {reason}")]
    Unknown {
        /// The executor.
        address: ExecutorAddress,
        /// Why there is no answer that can be read.
        reason: String,
    },
}

/// What an executor's refusal means. The jars fix the words, and know no codes for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// A run of this number waits in the executor already: an earlier call, whose answer was lost, has come through.
    Repeated,
    /// Another run of the job goes or waits, and the block strategy discards the new one.
    Blocked,
    /// The answer to an idle beat: a run of the job goes or waits.
    Busy,
    /// The executor has no handler of this name.
    NoHandler,
    /// The executor has another access token.
    WrongToken,
    /// The executor has no such path: it speaks another generation of the protocol, or is none.
    NoSuchCall,
    /// Anything else.
    Other,
}

impl Refusal {
    /// Reads the words of the jars (2.4 and 3.3 have the same).
    pub(super) fn of(msg: &str) -> Self {
        if msg.starts_with("repeate trigger job") {
            Self::Repeated
        } else if msg.starts_with("block strategy effect") {
            Self::Blocked
        } else if msg.starts_with("job thread is running or has trigger queue") {
            Self::Busy
        } else if msg.starts_with("job handler [") && msg.ends_with("] not found.") {
            Self::NoHandler
        } else if msg.starts_with("The access token is wrong") {
            Self::WrongToken
        } else if msg.starts_with("invalid request, uri-mapping(") && msg.ends_with(") not found.") {
            Self::NoSuchCall
        } else {
            Self::Other
        }
    }
}

impl CallError {
    /// Whether the executor certainly does not have the run.
    pub const fn is_certain(&self) -> bool {
        match self {
            Self::NotSent { .. } => true,
            Self::Refused { refusal, .. } => !matches!(refusal, Refusal::Repeated),
            Self::Unknown { .. } => false,
        }
    }

    /// What a refusal means; None where there was none.
    pub const fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Refused { refusal, .. } => Some(*refusal),
            Self::NotSent { .. } | Self::Unknown { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_jars_are_understood() {
        for (msg, refusal) in [
            ("repeate trigger job, logId:7", Refusal::Repeated),
            ("block strategy effect：Discard Later", Refusal::Blocked),
            ("job thread is running or has trigger queue.", Refusal::Busy),
            ("job handler [echo] not found.", Refusal::NoHandler),
            ("The access token is wrong.", Refusal::WrongToken),
            ("invalid request, uri-mapping(/run) not found.", Refusal::NoSuchCall),
            ("request error:java.lang.NullPointerException", Refusal::Other),
            ("request error: invalid request, uri-mapping(/run) not found.", Refusal::Other),
            ("", Refusal::Other),
        ] {
            assert_eq!(Refusal::of(msg), refusal, "{msg}");
        }
    }

    #[test]
    fn only_what_is_certain_may_be_tried_elsewhere() {
        let address = ExecutorAddress::parse("http://10.0.0.1:1").unwrap();
        let refused =
            |refusal| CallError::Refused { address: address.clone(), code: 500, msg: "".into(), refusal };
        assert!(refused(Refusal::Blocked).is_certain() && refused(Refusal::Other).is_certain());
        assert!(!refused(Refusal::Repeated).is_certain());
        assert!(CallError::NotSent { address: address.clone(), reason: "".into() }.is_certain());
        assert!(!CallError::Unknown { address, reason: "".into() }.is_certain());
    }
}
