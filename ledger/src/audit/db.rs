//! What a database offers to an auditor. The statements are the same on every database.

use super::model::AuditError;
use crate::error::{LedgerError, OpenError};
use crate::guard::Guard;
use crate::journal::USER;
use std::fmt::Debug;
use std::sync::Arc;

/// A parameter of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Int(i64),
    Text(&'a str),
}

/// A value of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cell {
    Null,
    Int(i64),
    Text(String),
}

impl Cell {
    pub fn int(&self) -> Result<i64, LedgerError> {
        match self {
            Self::Int(value) => Ok(*value),
            other => Err(LedgerError::Damaged(format!("a number is {other:?} in the auditor's tables"))),
        }
    }

    pub fn int_or_none(&self) -> Result<Option<i64>, LedgerError> {
        if *self == Self::Null { Ok(None) } else { self.int().map(Some) }
    }

    /// The text, empty where there is none.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Null | Self::Int(_) => "",
        }
    }
}

pub(crate) type Row = Vec<Cell>;

/// A connection that audits. Statements have parameters `$1` and so on, each used in order at first.
pub(crate) trait AuditDb: Debug + Send {
    /// The column of `transfers` that is a row's place.
    fn place(&self) -> &'static str;

    /// Connects where the connection was lost, and makes the tables where they are missing.
    fn ready(&mut self) -> Result<(), AuditError>;

    /// Begins a transaction, each statement of which sees what is committed when it begins. False where another auditor has
    /// the lock.
    fn begin(&mut self) -> Result<bool, AuditError>;

    fn commit(&mut self) -> Result<(), LedgerError>;

    fn roll_back(&mut self);

    fn rows(&self, sql: &str, params: &[Value<'_>]) -> Result<Vec<Row>, LedgerError>;

    /// Returns how many rows were changed.
    fn execute(&self, sql: &str, params: &[Value<'_>]) -> Result<u64, LedgerError>;

    /// The same for a statement whose joins have many rows on both sides, whatever the database expects of them.
    fn rows_hashed(&self, sql: &str, params: &[Value<'_>]) -> Result<Vec<Row>, LedgerError> {
        self.rows(sql, params)
    }

    /// A query of orders that lie where those lie that were paid from the place `$1` up to `$2`, `count` of them: nearly all of
    /// these, and maybe others. None where to look at each by its key costs no more.
    fn orders_near(&self, _range: &[Value<'_>; 2], _count: i64) -> Result<Option<String>, LedgerError> {
        Ok(None)
    }

    /// Adds amounts to the sums of users' accounts: what `added` selects from the place `$1` up to `$2`, of a range of `count` transfers.
    fn add_to_users(&self, added: &str, range: &[Value<'_>; 2], _count: i64) -> Result<(), LedgerError> {
        self.execute(&add_to_sums(&sums_of_users(added)), range)?;
        Ok(())
    }

    /// A query of what is kept of sums of users' accounts outside of `audit_sums`, as rows of that: all that is of a page of so many
    /// accounts, and maybe more. Its parameters are the key, a bonus type and a holder, behind which the page begins, and where it has an end
    /// its last key. None where there is nothing.
    fn packed_sums(&self, _page: &[Value<'_>], _accounts: u64) -> Result<Option<String>, LedgerError> {
        Ok(None)
    }

    /// Forgets all sums.
    fn clear_sums(&self) -> Result<(), LedgerError> {
        self.execute("DELETE FROM audit_sums", &[])?;
        self.execute("DELETE FROM audit_pending", &[])?;
        Ok(())
    }

    /// The first place at which something may still come.
    fn horizon(&self) -> Result<i64, LedgerError>;

    /// The identifier of the database cluster, 0 where there is none or the server does not tell it.
    fn cluster(&self) -> Result<i64, LedgerError>;

    /// A transfer at a place that no transaction has reached: its number and its place.
    fn ahead(&self) -> Result<Option<(i64, i64)>, LedgerError>;

    /// Whether the tables of operators' acts are there.
    fn has_acts(&self) -> Result<bool, LedgerError>;

    /// Whether those of closed activities are there.
    fn has_closed(&self) -> Result<bool, LedgerError>;

    fn guard_by(&mut self, guard: Arc<Guard>) -> Result<(), OpenError>;

    /// Compares the ledger with its marks now.
    fn look(&mut self) -> Result<(), LedgerError>;
}

/// The sums of what was added to users' accounts, for [`add_to_sums`].
pub(crate) fn sums_of_users(added: &str) -> String {
    format!(
        "SELECT {USER}, asset, holder, CAST(sum(amount) AS bigint) FROM ({added}) AS added
        GROUP BY asset, holder HAVING sum(amount) <> 0 ORDER BY asset, holder"
    )
}

/// Adds rows to `audit_sums`.
pub(crate) fn add_to_sums(rows: &str) -> String {
    format!(
        "INSERT INTO audit_sums (kind, asset, holder, amount) {rows}
        ON CONFLICT (kind, asset, holder) DO UPDATE SET amount = audit_sums.amount + excluded.amount"
    )
}

/// The one row of a statement.
pub(crate) fn one(db: &dyn AuditDb, sql: &str, params: &[Value<'_>]) -> Result<Row, LedgerError> {
    let missing = || LedgerError::Damaged("a row is missing in the auditor's tables".into());
    db.rows(sql, params)?.into_iter().next().ok_or_else(missing)
}
