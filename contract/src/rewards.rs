//! What the reward service answers. These are the types within a process; the messages of `grant.proto` carry the same
//! over a wire.

use async_trait::async_trait;
use bytes::Bytes;

/// The answer to one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrantReply {
    /// Credited by this call, durably.
    Credited,
    /// Credited by an earlier call with the same user, activity, scene, type and amount.
    AlreadyCredited,
    /// The order number exists with another user, activity, scene, type or amount. Never credited; archived.
    Conflict,
    /// Rejected for this reason: final and archived.
    Rejected(Rejection),
    /// Not decided. Ask again with the same bytes, after `after_ms` at the earliest.
    Retry {
        /// The least wait.
        after_ms: u64,
        /// What it waits for.
        reason: RetryReason,
    },
}

impl GrantReply {
    /// Whether the event was credited, by this call or an earlier one.
    pub const fn is_credited(&self) -> bool {
        matches!(self, Self::Credited | Self::AlreadyCredited)
    }

    /// Whether the answer is final, so that nothing more happens to the event.
    pub const fn is_final(&self) -> bool {
        !matches!(self, Self::Retry { .. })
    }
}

/// Why an event will never be credited as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Rejection {
    /// The bytes are not a valid event of this type.
    #[error("malformed")]
    Malformed,
    /// The event belongs to an app that the service does not take. A replay decides it anew.
    #[error("foreign_app")]
    ForeignApp,
    /// The budget has no room left.
    #[error("budget_exhausted")]
    BudgetExhausted,
    /// No budget covers its activity, scene and type. A replay credits it once there is one.
    #[error("unbudgeted")]
    Unbudgeted,
    /// Its amount is above the cap of one order of its type. A replay credits it once the cap is raised.
    #[error("over_order_cap")]
    OverOrderCap,
    /// The cap of its type over all activities has no room left. A replay credits it once the cap is raised.
    #[error("over_type_cap")]
    OverTypeCap,
    /// No connector takes this bonus type.
    #[error("unknown_type")]
    UnknownType,
    /// The downstream refused for good.
    #[error("downstream_refused")]
    DownstreamRefused,
    /// Too many failed grants; the consumer gave up. Replay it when the downstream is well.
    #[error("max_failures")]
    MaxFailures,
    /// The record made a consumer panic, again and again and alone. Its bytes are kept complete, to be inspected.
    #[error("quarantined")]
    Quarantined,
    /// The record's signature was missing or wrong: nobody knows who wrote it. Its bytes are kept complete, and a replay
    /// grants them only if they are verified by then.
    #[error("unverified")]
    Unverified,
    /// The order number exists with another user, activity, scene, type or amount.
    #[error("conflict")]
    Conflict,
    /// An operator gave up waiting for its event. A replay decides it anew.
    #[error("released")]
    Released,
    /// Its activity is closed. A replay grants it only if the activity was opened again.
    #[error("activity_closed")]
    ActivityClosed,
}

/// Why an event was not decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RetryReason {
    /// The downstream asked to come again. Counts as a failed grant.
    #[error("downstream_retry")]
    DownstreamRetry,
    /// The downstream did not answer: credited or not, nobody knows. Counts as a failed grant.
    #[error("downstream_timeout")]
    DownstreamTimeout,
    /// The downstream has no room, or is left alone for a while: this event was not paid by this call. It does not count
    /// as a failed grant, and says nothing about the service or about other types.
    #[error("downstream_busy")]
    DownstreamBusy,
    /// Too many calls are in flight. Windfall causes that itself, so it does not count as a failed grant.
    #[error("busy")]
    Busy,
    /// Windfall's own store cannot answer, so it does not count as a failed grant.
    #[error("store_unavailable")]
    StoreUnavailable,
    /// No queue took the event that is to be granted later. Windfall causes that itself, so it does not count as a
    /// failed grant.
    #[error("queue_unavailable")]
    QueueUnavailable,
    /// The service runs older rules than its ledger has seen, or the budgets of its rules are not set yet. Windfall causes
    /// that itself, so it does not count as a failed grant.
    #[error("old_rules")]
    OldRules,
    /// An operator has paused the type; it does not count as a failed grant.
    #[error("paused")]
    Paused,
}

impl RetryReason {
    /// Whether it counts towards `max_failures`. What is not the event's fault never archives it.
    pub const fn is_failure(self) -> bool {
        matches!(self, Self::DownstreamRetry | Self::DownstreamTimeout)
    }
}

/// A failed event that the archive keeps, to be inspected or replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// The event's bytes, or a whole record's where it could not be cut into events.
    pub payload: Bytes,
    /// Why it failed.
    pub rejection: Rejection,
    /// More about the failure, for a reader.
    pub detail: String,
}

/// The archive did not take it. It must not be finished: keep it in flight and try again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the failure archive is unavailable: {0}")]
pub struct ArchiveUnavailable(pub String);

/// Grants rewards.
#[async_trait]
pub trait Rewards: Send + Sync {
    /// Grants events of one bonus type: one reply for each event, in order. A batch that fails as a whole is answered
    /// with `Retry` for each event. The outcome of a cancelled call is unknown: ask again with the same bytes.
    async fn grant_batch(&self, bonus_type: &str, events: &[Bytes]) -> Vec<GrantReply>;

    /// Archives events that finally failed; they are stored durably when it returns. An event of which a late copy has
    /// been credited meanwhile is not archived: it has ended. What a downstream may have paid keeps its budget reserved
    /// until a replay has asked it.
    ///
    /// # Errors
    /// [`ArchiveUnavailable`]: nothing, or an unknown part, was archived. Repeating it archives nothing twice.
    async fn archive(&self, failed: &[Failed]) -> Result<(), ArchiveUnavailable>;
}
