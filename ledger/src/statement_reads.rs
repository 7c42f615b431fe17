//! What a user's statement is made from, and the reads that give it.

use crate::error::LedgerError;
use crate::journal::Account;
use crate::withdrawal::StoredWithdrawal;

/// The end of a user's account.
#[derive(Debug)]
pub(crate) struct AccountEnd {
    pub bonus_type_id: i64,
    pub bonus_type: String,
    pub balance: i64,
    /// Its newest transfer; 0: it has none.
    pub last: i64,
}

/// A transfer in an account's chain.
#[derive(Debug)]
pub(crate) struct ChainRow {
    pub id: i64,
    pub reference: String,
    /// The campaign whose budget paid it; otherwise empty.
    pub activity: String,
    pub amount: i64,
    pub time_ms: i64,
    pub debit: Account,
    pub credit: Account,
    /// The transfer before it; 0: it is the first.
    pub prev: i64,
    /// What it does, as a number.
    pub kind: i64,
}

/// The reads that a walk needs of a database.
pub(crate) trait StatementReads {
    /// A user's accounts at one moment, sorted by bonus type.
    fn accounts(&self, user_id: i64) -> Result<Vec<AccountEnd>, LedgerError>;

    /// A chain of this bonus type from this transfer back, at most so many. Where a transfer is missing it ends.
    fn chain(&self, bonus_type_id: i64, from: i64, steps: usize) -> Result<Vec<ChainRow>, LedgerError>;

    /// The withdrawals under these keys, in any order.
    fn withdrawals(&self, keys: &[String]) -> Result<Vec<StoredWithdrawal>, LedgerError>;
}
