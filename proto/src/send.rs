//! The one call of activity services: in process by the SDK, over a wire by a client of the gateway.

use crate::order::Invalid;
use crate::v1::{SendBonusReply, SendBonusRequest};
use async_trait::async_trait;

/// Takes rewards. The SDK implements it, and so does the client of the gateway: which of them is a matter of the
/// constructor.
#[async_trait]
pub trait SendBonus: Send + Sync {
    /// Sends a reward. When it returns Ok, the event is on its way and survives the death of the process that took
    /// it (I2); the reply holds the user's token.
    ///
    /// Calling again with the same request is harmless: the order number credits once (I1).
    ///
    /// # Errors
    /// [`SendError`] says what to do next.
    async fn send_bonus(&self, request: SendBonusRequest) -> Result<SendBonusReply, SendError>;

    /// Sends several rewards and returns one answer for each request, in order. Some may be taken and others not.
    async fn send_bonus_batch(
        &self,
        requests: Vec<SendBonusRequest>,
    ) -> Vec<Result<SendBonusReply, SendError>>;
}

/// A reward was not taken: nothing of it is kept, no token was given. The exception is
/// [`SendError::Unanswered`], where nobody knows.
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
    /// The spool has no room: brokers take events slower than they come, or (with a spool that is synced) its disk
    /// fails. Call again in a moment.
    #[error("the spool is full: brokers take events slower than they come; call again in a moment")]
    SpoolFull,
    /// The queue's share of the spool is spent: its brokers take events slower than they come, or are away. Other
    /// queues go on. Call again in a moment.
    #[error(
        "the share of the spool that queue `{queue}` may take is spent: its brokers take events slower than they come; call again in a moment"
    )]
    QueueFull {
        /// The virtual queue, as the rules name it.
        queue: String,
    },
    /// No token could be made. The key ring or the system's randomness is at fault.
    #[error("no token could be minted: {0}")]
    Mint(String),
    /// `close` was called.
    #[error("the SDK is closed")]
    Closed,
    /// A gateway refused for good, in these words. Final: mend the call, or the caller's rights.
    #[error("refused: {0}")]
    Refused(String),
    /// A gateway cannot take it now, in these words. Call again in a moment.
    #[error("not now: {0}")]
    Busy(String),
    /// A gateway did not answer: taken or not, nobody knows. Call again with the same request.
    #[error("no answer: {0}; call again with the same request")]
    Unanswered(String),
}

impl SendError {
    /// A wrong argument.
    pub const fn invalid(field: &'static str, why: Invalid) -> Self {
        Self::Invalid { field, why }
    }

    /// Whether the same call may succeed later.
    pub const fn is_worth_retrying(&self) -> bool {
        matches!(
            self,
            Self::SpoolFull
                | Self::QueueFull { .. }
                | Self::NoRoute { .. }
                | Self::Mint(_)
                | Self::Busy(_)
                | Self::Unanswered(_)
        )
    }
}
