//! The limits and the answers of an auditor's steps.

use crate::error::LedgerError;

/// Why nothing was audited.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The ledger could not be read or written: audit again later.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The auditor's tables are missing, and this user may not make them.
    #[error("the auditor's tables are missing in the ledger; grant its user CREATE on the schema, once")]
    NoTables,
    /// Another auditor is at work.
    #[error("another auditor is at work on this ledger")]
    Busy,
    /// The ledger has transfers at places that no transaction has reached: it was loaded into another cluster.
    #[error(
        "transfer {transfer} is at the place {place}, which no transaction of this server has reached: the ledger was loaded \
         into another PostgreSQL cluster, and its ranges cannot be told from new ones. Run windfall ledger verify, which compares what is sealed"
    )]
    Ahead {
        /// The transfer's number.
        transfer: i64,
        /// Its place.
        place: i64,
    },
    /// The ledger went back in time, or nobody can know yet whether it did.
    #[error("{why}; nothing is audited until that has ended, as docs/restore.md says")]
    WentBack {
        /// From where to where it went, or what could not be read.
        why: String,
    },
}

/// The limits of an auditor's steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditLimits {
    /// The number of transfers of an increment, about: a transaction is never divided. 1 to 1,000,000; default 100,000.
    pub increment_rows: u32,
    /// The longest tail with which balances are compared. 1 to 10,000,000; default 500,000.
    pub tail_rows_max: u32,
    /// The number of accounts of a page of the sweep. 1 to 1,000,000; default 50,000.
    pub account_rows: u32,
    /// The number of orders, or withdrawals, of a page of the sweep. 1 to 1,000,000; default 20,000.
    pub order_rows: u32,
}

impl Default for AuditLimits {
    fn default() -> Self {
        Self { increment_rows: 100_000, tail_rows_max: 500_000, account_rows: 50_000, order_rows: 20_000 }
    }
}

/// An increment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Increment {
    /// The number of transfers that were read.
    pub transfers: u64,
    /// The number of differences that were noted.
    pub differences: u64,
    /// Whether more transfers are final than were read: go on at once.
    pub has_more: bool,
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compared {
    /// Compared.
    Done {
        /// The number of accounts, orders or withdrawals of the sweep's page.
        rows: u64,
        /// The number of differences that were noted.
        differences: u64,
        /// Whether a whole sweep has ended with this page.
        is_last: bool,
    },
    /// More transfers are at the position and above it than are compared with: go on with increments. Where these find nothing to
    /// read, a transaction is open for long.
    Behind,
}
