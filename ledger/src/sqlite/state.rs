//! The state of a transaction on the file: the connection, the budget keys that it knows, and what it has changed so
//! far. The steps stand in files of their own, the order in which they run in `tx`.

use super::budget_keys::BudgetKeys;
use crate::budget::Shards;
use crate::error::LedgerError;
use crate::model::Unbudgeted;
use rusqlite::Connection;
use std::collections::{BTreeMap, BTreeSet};

/// A connection that writes, with its cache of budget keys.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(super) db: Connection,
    pub(super) unbudgeted: Unbudgeted,
    pub(super) budget_keys: BudgetKeys,
    /// Whether orders may be stored under their numbers alone, since before version 6, or withdrawals under their ids.
    pub(super) has_bare: bool,
    /// The closed activities. Nobody else closes one while the file is open.
    pub(super) closed: BTreeSet<String>,
}

impl Connected {
    pub fn new(db: Connection, unbudgeted: Unbudgeted, has_bare: bool, closed: BTreeSet<String>) -> Self {
        Self { db, unbudgeted, budget_keys: BudgetKeys::default(), has_bare, closed }
    }
}

/// A transaction that holds the file's write lock.
#[derive(Debug)]
pub(crate) struct SqliteTx<'l> {
    pub(super) ledger: &'l mut Connected,
    pub(super) next_transfer: i64,
    /// Shards of the budget keys that this transaction touched, written once at its end.
    pub(super) shards: BTreeMap<i64, Shards>,
    /// The largest amount of one order, by type.
    pub(super) order_caps: BTreeMap<String, i64>,
    /// The tenant in the keys that payers of withdrawals are given.
    pub(super) tenant: String,
    pub(super) committed: bool,
}

impl<'l> SqliteTx<'l> {
    pub(crate) fn begin(ledger: &'l mut Connected) -> Result<Self, LedgerError> {
        // The write lock at once: no later statement can find that another connection was faster.
        ledger.db.execute_batch("BEGIN IMMEDIATE")?;
        let (shards, order_caps) = (BTreeMap::new(), BTreeMap::new());
        let tenant = String::new();
        let mut tx = Self { ledger, next_transfer: 0, shards, order_caps, tenant, committed: false };
        // Read anew each time: nobody knows whether a commit that failed is there after all.
        tx.next_transfer = tx
            .ledger
            .db
            .prepare_cached("SELECT coalesce(max(id), 0) + 1 FROM transfers")?
            .query_row([], |row| row.get(0))?;
        Ok(tx)
    }
}

impl Drop for SqliteTx<'_> {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        // Names and budget keys that this transaction made are gone with it.
        self.ledger.budget_keys.clear();
        // A failed statement may have ended the transaction already.
        if !self.ledger.db.is_autocommit()
            && let Err(error) = self.ledger.db.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "the ledger could not roll a transaction back");
        }
    }
}
