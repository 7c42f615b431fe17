//! One transaction on the ledger: all of it is stored, or none.

use crate::budget::Shards;
use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::model::{Attempt, Finish, Order, OrderOutcome, Reason, StoredOrder};
use crate::moves::Moves;
use crate::query;
use std::collections::BTreeMap;

/// A transaction. Nothing is stored before [`Tx::commit`]; dropped, it never was. After any error it cannot be
/// committed: repeat all of it.
#[derive(Debug)]
pub struct Tx<'l> {
    pub(crate) ledger: &'l mut Ledger,
    pub(crate) next_transfer: i64,
    /// Shards of the programs that this transaction touched, written once at its end.
    pub(crate) shards: BTreeMap<i64, Shards>,
    failed: bool,
    committed: bool,
}

impl<'l> Tx<'l> {
    pub(crate) fn begin(ledger: &'l mut Ledger) -> Result<Self, LedgerError> {
        // The write lock at once: no later statement can find that another connection was faster.
        ledger.db.execute_batch("BEGIN IMMEDIATE")?;
        let mut tx =
            Self { ledger, next_transfer: 0, shards: BTreeMap::new(), failed: false, committed: false };
        // Read anew each time: nobody knows whether a commit that failed is there after all.
        tx.next_transfer = tx
            .ledger
            .db
            .prepare_cached("SELECT coalesce(max(id), 0) + 1 FROM transfers")?
            .query_row([], |row| row.get(0))?;
        Ok(tx)
    }

    /// Makes everything durable. Until it returns Ok, nothing may be answered.
    ///
    /// # Errors
    /// [`LedgerError`]: nothing is stored, or nobody knows. Repeat the whole transaction.
    pub fn commit(mut self) -> Result<(), LedgerError> {
        self.run(|tx| {
            tx.write_shards()?;
            Ok(tx.ledger.db.execute_batch("COMMIT")?)
        })?;
        self.committed = true;
        Ok(())
    }

    /// Runs one step. After a failed one nothing more runs, so that no half of a batch can be committed.
    pub(crate) fn run<T>(
        &mut self,
        step: impl FnOnce(&mut Self) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        if self.failed {
            return Err(LedgerError::Poisoned);
        }
        let done = step(self);
        self.failed = done.is_err();
        done
    }

    /// Credits orders that the ledger itself pays: one outcome an order, in order. Repeats within the batch are
    /// answered as if they came one after another.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn apply(&mut self, batch: &[Order<'_>], attempt: Attempt) -> Result<Vec<OrderOutcome>, LedgerError> {
        self.run(|tx| match attempt {
            Attempt::Normal => tx.credit(batch, attempt),
            // A rejected order that comes twice may be decided anew by its second occurrence: one by one.
            Attempt::Replay => {
                let each = batch.chunks(1).map(|one| tx.credit(one, attempt));
                Ok(each.collect::<Result<Vec<_>, _>>()?.concat())
            }
        })
    }

    /// Holds the budget of orders that a downstream decides. [`OrderOutcome::Reserved`] says to ask it; so does
    /// a repeat, until the order has ended by [`Tx::post`] or [`Tx::release`].
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn reserve(
        &mut self,
        batch: &[Order<'_>],
        attempt: Attempt,
    ) -> Result<Vec<OrderOutcome>, LedgerError> {
        self.run(|tx| batch.iter().map(|order| tx.reserve_one(order, attempt)).collect())
    }

    /// An order as this transaction sees it, `None` where it is not known.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn order(&mut self, trade_no: &str) -> Result<Option<StoredOrder>, LedgerError> {
        self.run(|tx| query::order(&tx.ledger.db, trade_no))
    }

    /// The downstream has paid: credits reserved orders. Repeating it moves nothing.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn post(&mut self, trade_nos: &[&str], time_ms: i64) -> Result<Vec<Finish>, LedgerError> {
        self.run(|tx| {
            let mut moves = Moves::default();
            let mut done = Vec::with_capacity(trade_nos.len());
            for trade_no in trade_nos {
                done.push(tx.post_one(trade_no, time_ms, &mut moves)?);
            }
            moves.write(&tx.ledger.db)?;
            Ok(done)
        })
    }

    /// The downstream has refused for good: rejects reserved orders and gives their budget back. Repeating it
    /// moves nothing.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn release(&mut self, refused: &[(&str, Reason)], time_ms: i64) -> Result<Vec<Finish>, LedgerError> {
        self.run(|tx| {
            refused.iter().map(|(trade_no, reason)| tx.release_one(trade_no, *reason, time_ms)).collect()
        })
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        // Names and programs that this transaction made are gone with it.
        self.ledger.programs.clear();
        // A failed statement may have ended the transaction already.
        if !self.ledger.db.is_autocommit()
            && let Err(error) = self.ledger.db.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "the ledger could not roll a transaction back");
        }
    }
}
