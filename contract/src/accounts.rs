//! What wallets ask the reward service for: a user's balances and movements, the state of orders, and withdrawals.

use async_trait::async_trait;

/// Money that a user takes out. With the user, `id` is the idempotency key: the same withdrawal may be asked for again and
/// again, and is paid once; the same id of another user is another withdrawal. It is the one request between the wire and SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withdrawal {
    /// The caller's idempotency key, one for each withdrawal of this user: 1 to 128 visible ASCII characters.
    pub id: String,
    /// The user whose balance it leaves.
    pub user_id: i64,
    /// The bonus type that goes out.
    pub bonus_type: String,
    /// The amount in the type's smallest unit, at least 1.
    pub amount: i64,
}

/// What became of a withdrawal. It is the one answer between SQL and the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WithdrawalOutcome {
    /// Paid by this call.
    Paid,
    /// Paid by an earlier call with the same id.
    AlreadyPaid,
    /// The money has left the balance and waits for a front end, which pays it out elsewhere and then acknowledges it.
    ToPayOut,
    /// A front end has acknowledged that it paid it out. Nobody pays because of this answer.
    PaidOut,
    /// The money is held, and the payout has not said whether it paid: ask again with the same id.
    Pending {
        /// The least wait.
        after_ms: u64,
    },
    /// The payout refused for good, and the money is back on the balance. Final for this id.
    Refused(String),
    /// The balance is too small. Nothing was kept; the id may be used again.
    Short {
        /// The balance that there is.
        balance: i64,
    },
    /// The user's id was used for another type or amount; before schema version 6 also another user's. Nothing was changed.
    Conflict,
    /// Two operators have frozen the user. Nothing was kept; the id may be used again when they have thawed the user.
    Frozen,
}

/// Why an order was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The budget had no room.
    BudgetExhausted,
    /// No budget covered it, and the service refuses such orders.
    Unbudgeted,
    /// Its amount is above what one order of its type may have.
    OverOrderCap,
    /// What its type may give out over all activities had no room.
    OverTypeCap,
    /// The downstream refused for good.
    DownstreamRefused,
    /// An operator ended a reservation whose event did not come.
    Released,
    /// Its activity is closed: nothing more is given for it.
    ActivityClosed,
}

/// Where an order stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// Its budget is held; a downstream decides, or its event is awaited.
    Reserved,
    /// Paid.
    Credited,
    /// Not paid, for this reason. A replay may still credit it.
    Rejected(Reason),
}

/// The name of an order: its number counts within its activity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderName {
    /// The campaign.
    pub activity: String,
    /// The order number.
    pub trade_no: String,
}

/// An order as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredOrder {
    /// The key that the ledger stores it under, which sorts like the order number and never changes.
    pub key: String,
    /// The order number, which counts within its activity.
    pub trade_no: String,
    /// The user whom it pays.
    pub user_id: i64,
    /// The campaign.
    pub activity: String,
    /// The scene within the campaign.
    pub scene: String,
    /// The bonus type.
    pub bonus_type: String,
    /// In the smallest unit.
    pub amount: i64,
    /// Where it stands.
    pub status: Status,
    /// The downstream that it is reserved for, or was; empty: none, or one that schema version 1 did not note.
    pub payer: String,
    /// When the ledger first saw it; Unix milliseconds.
    pub created_ms: i64,
    /// When it was credited or rejected; `None` while reserved.
    pub decided_ms: Option<i64>,
}

/// Which way a line of an account goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlowKind {
    /// A bonus, credited.
    Credit,
    /// Money that left for a withdrawal, whether it is paid out by now or not.
    Withdrawal,
    /// A withdrawal that was refused: its money is back.
    Return,
    /// A bonus that its downstream has paid. No balance contains it.
    Settled,
    /// A bonus that two operators took back from the balance, or money that they took from it.
    TakenBack,
    /// A bonus that its downstream had paid, and has got back. No balance contained it.
    SettledTakenBack,
}

/// One line of a user's account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowLine {
    /// Number of the transfer; grows with time.
    pub transfer: i64,
    /// Which way it goes.
    pub kind: FlowKind,
    /// The order that it paid, or the withdrawal's id.
    pub trade_no: String,
    /// The bonus type.
    pub bonus_type: String,
    /// Who paid: the campaign. Empty with withdrawals.
    pub activity: String,
    /// In the smallest unit, always positive.
    pub amount: i64,
    /// When it was made, in Unix milliseconds.
    pub time_ms: i64,
}

/// A page of a user's movements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowPage {
    /// The movements, newest first.
    pub lines: Vec<FlowLine>,
    /// The cursor behind which the next page begins; empty: that was the last.
    pub next: String,
}

/// The ledger could not be asked, or did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccountsError {
    /// An argument is wrong; asking again does not help.
    #[error("{0}")]
    Invalid(String),
    /// Nothing was decided, or nobody knows: ask again with the same id.
    #[error("the ledger cannot answer: {what}")]
    Unavailable {
        /// Why the ledger gave no answer.
        what: String,
        /// The least wait.
        after_ms: u64,
    },
}

/// Reads and empties accounts. Granting is [`Rewards`](crate::rewards::Rewards).
#[async_trait]
pub trait Accounts: Send + Sync {
    /// A user's balances by bonus type, in the order of the types; none where there is no account.
    ///
    /// # Errors
    /// [`AccountsError`].
    async fn balances(&self, user_id: i64) -> Result<Vec<(String, i64)>, AccountsError>;

    /// A page of a user's movements, newest first, at most `limit` of them, of which there may be none: from the newest on, or
    /// behind the page that has returned the cursor `after`, where that is not empty.
    ///
    /// # Errors
    /// [`AccountsError`]: `Invalid` where no page of this user has returned the cursor.
    async fn flow(&self, user_id: i64, after: &str, limit: usize) -> Result<FlowPage, AccountsError>;

    /// Orders as they stand: one answer for each, in order, `None` where it is not known.
    ///
    /// # Errors
    /// [`AccountsError`].
    async fn orders(&self, names: &[OrderName]) -> Result<Vec<Option<StoredOrder>>, AccountsError>;

    /// Withdraws once for each user and id.
    ///
    /// # Errors
    /// [`AccountsError`]: whether it is held or paid, nobody knows; ask again with the same id.
    async fn withdraw(&self, withdrawal: &Withdrawal) -> Result<WithdrawalOutcome, AccountsError>;
}
