//! Why a reward was not taken, and what to do next.

use windfall_proto::order::Invalid;

/// A reward was not taken: nothing of it is kept, no token was given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// An argument is wrong. Final: mend the call.
    #[error("{field} {why}")]
    Invalid {
        /// The request's field.
        field: &'static str,
        /// What is wrong with it.
        why: Invalid,
    },
    /// The request names another app than the one this SDK was opened for. Final.
    #[error("user.app_id is `{named}`; this SDK was opened for `{own}`")]
    OtherApp {
        /// The app that the request names.
        named: String,
        /// The app of the options.
        own: String,
    },
    /// The rules in force send this nowhere. Add a route, then call again.
    #[error(
        "no route takes activity `{activity}`, scene `{scene}`, type `{bonus_type}`; add one to the live rules"
    )]
    NoRoute {
        /// The request's activity.
        activity: String,
        /// The request's scene.
        scene: String,
        /// The request's bonus type.
        bonus_type: String,
    },
    /// The spool has no room: brokers take events slower than they come, or (with [`SpoolMode::Machine`]) its disk
    /// fails. Call again in a moment.
    ///
    /// [`SpoolMode::Machine`]: crate::SpoolMode::Machine
    #[error("the spool is full: brokers take events slower than they come; call again in a moment")]
    SpoolFull,
    /// No token could be made. The key ring or the system's randomness is at fault.
    #[error("no token could be minted: {0}")]
    Mint(String),
    /// `close` was called.
    #[error("the SDK is closed")]
    Closed,
}

impl SendError {
    pub(crate) const fn invalid(field: &'static str, why: Invalid) -> Self {
        Self::Invalid { field, why }
    }

    /// Whether the same call may succeed later.
    pub const fn is_worth_retrying(&self) -> bool {
        matches!(self, Self::SpoolFull | Self::NoRoute { .. } | Self::Mint(_))
    }
}

/// The SDK could not start.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// An option is out of its range.
    #[error("option {0}")]
    Option(String),
    /// The key ring has no key to mint with.
    #[error(transparent)]
    Keys(#[from] windfall_token::NoPrimary),
    /// The spool cannot be opened.
    #[error(transparent)]
    Spool(#[from] windfall_spool::OpenError),
    /// A thread could not be started.
    #[error("a thread cannot be started: {0}")]
    Thread(#[from] std::io::Error),
}
