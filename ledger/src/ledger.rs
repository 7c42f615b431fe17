//! The one writer of a ledger.

use crate::error::{LedgerError, OpenError};
use crate::model::{
    Attempt, BudgetRaised, BudgetSet, BudgetState, FlowLine, Order, OrderOutcome, StoredOrder,
};
use crate::programs::Programs;
use crate::schema::{self, LedgerOptions, WriterLock};
use crate::tx::Tx;
use crate::{query, reconcile::Reconciliation};
use rusqlite::Connection;
use std::path::Path;

/// A ledger, opened for writing. One at a time a file, over all processes.
#[derive(Debug)]
pub struct Ledger {
    pub(crate) db: Connection,
    pub(crate) options: LedgerOptions,
    pub(crate) programs: Programs,
    _lock: WriterLock,
}

impl Ledger {
    /// Opens the ledger of this file, and makes it where there is none.
    ///
    /// # Errors
    /// [`OpenError`]; nothing was changed.
    pub fn open(path: impl AsRef<Path>, options: &LedgerOptions) -> Result<Self, OpenError> {
        let (db, lock) = schema::open_writer(path.as_ref(), options)?;
        Ok(Self { db, options: options.clone(), programs: Programs::default(), _lock: lock })
    }

    /// Begins a transaction. Nothing of it is stored before [`Tx::commit`]; dropped, it never was.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn begin(&mut self) -> Result<Tx<'_>, LedgerError> {
        Tx::begin(self)
    }

    /// Credits a batch in one transaction: one outcome an order, in order, durable when this returns.
    ///
    /// # Errors
    /// [`LedgerError`]: repeat the whole batch.
    pub fn apply(&mut self, batch: &[Order<'_>]) -> Result<Vec<OrderOutcome>, LedgerError> {
        let mut tx = self.begin()?;
        let outcomes = tx.apply(batch, Attempt::Normal)?;
        tx.commit()?;
        Ok(outcomes)
    }

    /// Sets budgets in one transaction; those not named stay as they are. A total is never set below what is
    /// used and reserved (I4); where it was asked to be, the answer says so.
    ///
    /// # Errors
    /// [`LedgerError`]: no budget was changed, or nobody knows; set them again.
    pub fn set_budgets(&mut self, budgets: &[BudgetSet<'_>]) -> Result<Vec<BudgetRaised>, LedgerError> {
        let mut tx = self.begin()?;
        let raised = tx.set_budgets(budgets)?;
        tx.commit()?;
        Ok(raised)
    }

    /// Every activity, scene and type that ever had an order or a budget, with what it gave out.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn budgets(&self) -> Result<Vec<BudgetState>, LedgerError> {
        query::budgets(&self.db)
    }

    /// A user's balance of an asset, 0 where there is no such account.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn balance(&self, user_id: i64, asset: &str) -> Result<i64, LedgerError> {
        query::balance(&self.db, user_id, asset)
    }

    /// A user's newest transfers over all assets, newest first, at most `limit`.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn flow(&self, user_id: i64, limit: usize) -> Result<Vec<FlowLine>, LedgerError> {
        query::flow(&self.db, user_id, limit)
    }

    /// An order, `None` where it is not known.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn order(&self, trade_no: &str) -> Result<Option<StoredOrder>, LedgerError> {
        query::order(&self.db, trade_no)
    }

    /// Compares orders, transfers, accounts and budgets with each other. Reads every row.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn reconcile(&self) -> Result<Reconciliation, LedgerError> {
        crate::reconcile::reconcile(&self.db)
    }

    /// Reads every page and compares it with its structure. `Ok` says that the file is sound.
    ///
    /// # Errors
    /// [`LedgerError::Damaged`] with the first finding.
    pub fn check(&self) -> Result<(), LedgerError> {
        query::quick_check(&self.db)
    }
}
