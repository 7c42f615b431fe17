//! What wallets ask the reward service for: what a user has, and to pay it out.

use async_trait::async_trait;
use windfall_ledger::{FlowLine, StoredOrder};

/// Money that a user takes out. `id` is the idempotency key: the same withdrawal may be asked for again and again,
/// and is paid once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithdrawOrder {
    /// The caller's, once a withdrawal: 1 to 128 visible ASCII characters.
    pub id: String,
    /// Whose balance.
    pub user_id: i64,
    /// The bonus type, the asset that goes out.
    pub bonus_type: String,
    /// In the smallest unit, at least 1.
    pub amount: i64,
}

/// What became of a withdrawal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Withdrawn {
    /// Paid by this call.
    Paid,
    /// Paid by an earlier call with the same id.
    AlreadyPaid,
    /// The money is held, and the payout has not said whether it paid: ask again with the same id.
    Pending {
        /// The least wait.
        after_ms: u64,
    },
    /// The payout refused for good, and the money is back on the balance. Final for this id.
    Refused(String),
    /// The balance is too small. Nothing was kept; the id may be used again.
    Short {
        /// What there is.
        balance: i64,
    },
    /// The id was used for another user, type or amount. Nothing was changed.
    Conflict,
}

/// The ledger could not be asked, or did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccountsError {
    /// An argument is wrong. Final.
    #[error("{0}")]
    Invalid(String),
    /// Nothing was decided, or nobody knows: ask again with the same id.
    #[error("the ledger cannot answer: {what}")]
    Unavailable {
        /// Why.
        what: String,
        /// The least wait.
        after_ms: u64,
    },
}

/// Reads and empties accounts. Granting is [`Rewards`](crate::contract::Rewards).
#[async_trait]
pub trait Accounts: Send + Sync {
    /// A user's balances by bonus type, in the order of the types; none where there is no account.
    ///
    /// # Errors
    /// [`AccountsError`].
    async fn balances(&self, user_id: i64) -> Result<Vec<(String, i64)>, AccountsError>;

    /// A user's newest movements, newest first, at most `limit`.
    ///
    /// # Errors
    /// [`AccountsError`].
    async fn flow(&self, user_id: i64, limit: usize) -> Result<Vec<FlowLine>, AccountsError>;

    /// Orders as they stand: one answer a number, in order, `None` where it is not known.
    ///
    /// # Errors
    /// [`AccountsError`].
    async fn orders(&self, trade_nos: &[String]) -> Result<Vec<Option<StoredOrder>>, AccountsError>;

    /// Pays out once an id.
    ///
    /// # Errors
    /// [`AccountsError`]: whether it is held or paid, nobody knows; ask again with the same id.
    async fn withdraw(&self, order: &WithdrawOrder) -> Result<Withdrawn, AccountsError>;
}
