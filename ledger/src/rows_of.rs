//! All rows of one activity, in pages, as an export keeps them. Of a closed activity no order changes any more, so pages that are
//! read one after another make a whole without a transaction over all of them.

use crate::error::LedgerError;
use crate::journal::{BUDGET, CLEARING, DIRECT, FUNDING, PAYOUT, PENDING, POST, REVERSAL, USER, VOID};
use windfall_contract::accounts::StoredOrder;

/// An order of the activity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderRow {
    /// The order.
    pub order: StoredOrder,
    /// The budget key that pays.
    pub budget: i64,
    /// The number of the transfer that paid it; 0 for none.
    pub paid_by: i64,
}

/// A transfer of a budget or the funding of the activity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferRow {
    /// The number.
    pub id: i64,
    /// What it does, as one word: `direct`, `pending`, `post`, `void`, `reversal`.
    pub kind: &'static str,
    /// The bonus type.
    pub bonus_type: String,
    /// The account that gives, as one word: `user`, `funding`, `budget`, `clearing`, `payout`, `settlement`.
    pub debit: &'static str,
    /// Whose it is: the user, the activity's number, the budget key, or the payer's number.
    pub debit_holder: i64,
    /// The account that gets.
    pub credit: &'static str,
    /// Whose that is.
    pub credit_holder: i64,
    /// The amount in the smallest unit.
    pub amount: i64,
    /// The order's key, or the name of an act; empty where a budget was set.
    pub reference: String,
    /// The transfer before it in the user's statement; 0 for none.
    pub prev: i64,
    /// When it was made; Unix milliseconds.
    pub time_ms: i64,
    /// Its place in the chain of seals: the number of its transaction in PostgreSQL, its own in a file.
    pub place: i64,
}

/// A page of rows. A page may be empty, and others come behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowsPage<R> {
    /// The rows.
    pub rows: Vec<R>,
    /// Where the next page begins; `None` behind the last one.
    pub next: Option<String>,
    /// How much of the table was read by now, in thousandths.
    pub read_per_mille: u32,
}

/// How much of a table was read, in thousandths.
pub(crate) fn per_mille(read: i64, of: i64) -> u32 {
    let share = i128::from(read.max(0)) * 1_000 / i128::from(of.max(1));
    u32::try_from(share).unwrap_or(1_000).min(1_000)
}

/// The word for a kind of transfer.
pub(crate) fn kind_word(kind: i64) -> Result<&'static str, LedgerError> {
    Ok(match kind {
        DIRECT => "direct",
        PENDING => "pending",
        POST => "post",
        VOID => "void",
        REVERSAL => "reversal",
        other => return Err(LedgerError::Damaged(format!("a transfer is of the unknown kind {other}"))),
    })
}

/// The word for a kind of account.
pub(crate) const fn account_word(kind: i64) -> &'static str {
    match kind {
        USER => "user",
        FUNDING => "funding",
        BUDGET => "budget",
        CLEARING => "clearing",
        PAYOUT => "payout",
        _ => "settlement",
    }
}
