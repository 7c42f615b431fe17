//! A downstream system that pays: what it is asked, and what it answers.

use async_trait::async_trait;

/// What a downstream is asked to pay. `trade_no` is the idempotency key: the same one may be asked for again
/// and again, and must be paid once. It names the activity as well, so it is not the order number alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayOrder<'a> {
    /// The idempotency key.
    pub trade_no: &'a str,
    /// The user who gets it.
    pub user_id: i64,
    /// The campaign.
    pub activity: &'a str,
    /// The scene within the campaign.
    pub scene: &'a str,
    /// The bonus type.
    pub bonus_type: &'a str,
    /// In the smallest unit.
    pub amount: i64,
}

/// What a downstream answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PayAnswer {
    /// Paid by this call, durably.
    Paid,
    /// Paid by an earlier call with the same key.
    AlreadyPaid,
    /// The downstream is over its rate: ask again. This is not the order's fault and is never counted against it.
    Busy {
        /// The least wait.
        after_ms: u64,
    },
    /// The payment failed and certainly nothing was paid: ask again.
    Retry {
        /// The least wait.
        after_ms: u64,
    },
    /// It will never pay this order, and has not.
    Refused(String),
    /// Whether it was paid is not known: ask again with the same key.
    Unknown,
}

/// A downstream system that pays a kind of bonus.
#[async_trait]
pub trait Connector: Send + Sync {
    /// The connector's name in options and logs.
    fn name(&self) -> &str;

    /// Asks for one payment. The outcome of a call that is dropped before it answers is unknown.
    async fn pay(&self, order: PayOrder<'_>) -> PayAnswer;
}
