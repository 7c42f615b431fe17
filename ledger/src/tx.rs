//! One transaction on the ledger: all of it is stored, or none.

use crate::archive::{ArchiveEntry, Replay};
use crate::closed_orders;
use crate::contract::Transaction;
use crate::error::LedgerError;
use crate::key::{OrderId, WithdrawalId};
use crate::model::{Attempt, Awaits, BudgetRaised, BudgetSet, Finish, Order, OrderOutcome};
use crate::withdrawal::HoldOutcome;
use std::collections::BTreeMap;
use windfall_contract::accounts::Withdrawal;
use windfall_contract::accounts::{Reason, StoredOrder};

/// A transaction. Nothing is stored before [`Tx::commit`]; one that is dropped has changed nothing. After any error it
/// cannot be committed: repeat all of it.
#[derive(Debug)]
pub struct Tx<'l> {
    inner: Box<dyn Transaction + 'l>,
    failed: bool,
}

impl<'l> Tx<'l> {
    pub(crate) fn new(inner: Box<dyn Transaction + 'l>) -> Self {
        Self { inner, failed: false }
    }

    /// Runs one step. After a failed one nothing more runs, so that no half of a batch can be committed.
    pub(crate) fn run<T>(
        &mut self,
        step: impl FnOnce(&mut (dyn Transaction + 'l)) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        if self.failed {
            return Err(LedgerError::Poisoned);
        }
        let done = step(self.inner.as_mut());
        self.failed = done.is_err();
        done
    }

    /// Credits orders that the ledger itself pays: one outcome for each order, in order. Repeats within the batch are
    /// answered as if they came one after another.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn apply(&mut self, batch: &[Order<'_>], attempt: Attempt) -> Result<Vec<OrderOutcome>, LedgerError> {
        self.run(|tx| closed_orders::split(tx, batch, attempt, |tx, open, _| tx.apply(open, attempt)))
    }

    /// Holds the budget of orders that a downstream decides: one of `payers` for each order. [`OrderOutcome::Reserved`]
    /// says to ask; so does a repeat, until the order has ended by [`Tx::post`] or [`Tx::release`].
    /// [`StoredOrder::payer`] names the downstream to ask, and [`StoredOrder::key`] the key to ask it with: those that were
    /// given first, since it may have paid, whatever a repeat gives. An order that [`Tx::promise`] holds belongs to the downstream from then on.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn reserve(
        &mut self,
        batch: &[Order<'_>],
        payers: &[&str],
        attempt: Attempt,
    ) -> Result<Vec<OrderOutcome>, LedgerError> {
        self.run(|tx| {
            if payers.len() != batch.len() || payers.iter().any(|payer| payer.contains('\0')) {
                let what = "each reserved order has one payer, whose name must not contain NUL";
                return Err(LedgerError::Invalid(what.into()));
            }
            closed_orders::split(tx, batch, attempt, |tx, open, places| match places {
                None => tx.reserve(open, payers, attempt),
                Some(places) => {
                    let payers: Vec<&str> = places.iter().map(|at| payers[*at]).collect();
                    tx.reserve(open, &payers, attempt)
                }
            })
        })
    }

    /// Holds the budget of orders that the ledger itself pays when their event comes: [`Tx::apply`] then credits
    /// them from what is held, once. [`OrderOutcome::Reserved`] says that it is held, now or since before.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn promise(
        &mut self,
        batch: &[Order<'_>],
        attempt: Attempt,
    ) -> Result<Vec<OrderOutcome>, LedgerError> {
        self.run(|tx| closed_orders::split(tx, batch, attempt, |tx, open, _| tx.promise(open, attempt)))
    }

    /// An order as this transaction sees it, `None` where it is not known.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn order(&mut self, id: OrderId<'_>) -> Result<Option<StoredOrder>, LedgerError> {
        Ok(self.orders(&[id])?.pop().flatten())
    }

    /// Orders as this transaction sees them: one answer for each, in order.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn orders(&mut self, ids: &[OrderId<'_>]) -> Result<Vec<Option<StoredOrder>>, LedgerError> {
        self.run(|tx| tx.orders(ids))
    }

    /// An order and, where it is reserved, what it waits for: locked until this transaction ends. `None` where it is not known.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn lock_order(&mut self, id: OrderId<'_>) -> Result<Option<(StoredOrder, Awaits)>, LedgerError> {
        self.run(|tx| tx.lock_order(id))
    }

    /// The downstream has paid: credits reserved orders. Repeating it moves nothing.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn post(&mut self, ids: &[OrderId<'_>], time_ms: i64) -> Result<Vec<Finish>, LedgerError> {
        self.run(|tx| tx.post(ids, time_ms))
    }

    /// The downstream has refused for good, or an operator gives up waiting: rejects reserved orders and gives their
    /// budget back. Repeating it moves nothing.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn release(
        &mut self,
        refused: &[(OrderId<'_>, Reason)],
        time_ms: i64,
    ) -> Result<Vec<Finish>, LedgerError> {
        self.run(|tx| tx.release(refused, time_ms))
    }

    /// The tenant in the keys that payers of withdrawals are given, which this transaction holds from now on.
    pub fn name_tenant(&mut self, tenant: &str) {
        self.inner.name_tenant(tenant);
    }

    /// Moves money of users to the clearing accounts, once for each user and id: one outcome for each withdrawal, in order,
    /// repeats as if they came one after another. Beside each stands its payer: a downstream's name, or the empty name
    /// for the ledger itself; the payer of the first call stays. No balance goes below 0. What this transaction
    /// credited before counts.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn hold(
        &mut self,
        batch: &[(&Withdrawal, &str)],
        time_ms: i64,
    ) -> Result<Vec<HoldOutcome>, LedgerError> {
        self.run(|tx| tx.hold(batch, time_ms))
    }

    /// Held withdrawals were paid: their money moves from clearing to payout. Repeating it moves nothing.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn pay_out(&mut self, ids: &[WithdrawalId<'_>], time_ms: i64) -> Result<Vec<Finish>, LedgerError> {
        self.run(|tx| tx.pay_out(ids, time_ms))
    }

    /// Held withdrawals were refused for good, and certainly not paid: their money moves back to the users. Each
    /// has its reason. Repeating it moves nothing.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn give_back(
        &mut self,
        refused: &[(WithdrawalId<'_>, &str)],
        time_ms: i64,
    ) -> Result<Vec<Finish>, LedgerError> {
        self.run(|tx| tx.give_back(refused, time_ms))
    }

    /// The newest version of the rules that was noted, 0 where none was; as this transaction saw it at its beginning.
    /// Asking costs nothing, and locks nothing.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn rules_version(&mut self) -> Result<u64, LedgerError> {
        Ok(self.run(|tx| tx.rules_version())?.cast_unsigned())
    }

    /// Takes note of the version of the rules that is run, or whose budgets are about to be set, unless a newer one was
    /// noted before. Returns the newest: where it is not the one that was given, set and grant nothing. Other
    /// transactions that note a version wait until this one ends, so do it first.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn raise_rules_version(&mut self, version: u64) -> Result<u64, LedgerError> {
        let asked = i64::try_from(version)
            .map_err(|_| LedgerError::Invalid(format!("rules version {version} is beyond 63 bits")))?;
        Ok(self.run(|tx| tx.raise_rules_version(asked))?.cast_unsigned())
    }

    /// Notes a version of the rules in place of the newest one, even a lower one, for an operator who has restored
    /// older rules on purpose. Returns the version that stood there, 0 for none.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn replace_rules_version(&mut self, version: u64) -> Result<u64, LedgerError> {
        // Locks it, so that the answer is the one that is replaced.
        let before = self.raise_rules_version(0)?;
        let asked = i64::try_from(version)
            .map_err(|_| LedgerError::Invalid(format!("rules version {version} is beyond 63 bits")))?;
        self.run(|tx| tx.set_rules_version(asked))?;
        Ok(before)
    }

    /// From now on this transaction gives no order more than the amount that stands at its type; types that are not
    /// named have no such cap. What is given already, or held, is not looked at again.
    pub fn cap_orders(&mut self, largest: &BTreeMap<String, i64>) {
        self.inner.cap_orders(largest);
    }

    /// Lifts the caps of all types but these. A cap that is set again later counts what was given out meanwhile.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn lift_caps(&mut self, keep: &[&str]) -> Result<(), LedgerError> {
        self.run(|tx| tx.lift_caps(keep))
    }

    /// Sets budgets; those not named stay as they are. A total is never set below what is used and reserved
    /// (I4); where that was asked for, the answer says so. What the budget key gave out before counts.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn set_budgets(&mut self, budgets: &[BudgetSet<'_>]) -> Result<Vec<BudgetRaised>, LedgerError> {
        self.run(|tx| tx.set_budgets(budgets))
    }

    /// Archives entries; the same bytes for the same reason are kept once. Returns how many were new.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn archive(&mut self, entries: &[ArchiveEntry<'_>]) -> Result<usize, LedgerError> {
        self.run(|tx| tx.archive(entries))
    }

    /// The number of the entry with these bytes for this reason; there is one at most.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn archived_as(&mut self, payload: &[u8], reason: &str) -> Result<Option<i64>, LedgerError> {
        self.run(|tx| tx.archived_as(payload, reason))
    }

    /// Records a replay of an entry: on the entry, and for good in the audit. Returns false where there is no such
    /// entry.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn mark_replayed(&mut self, id: i64, replay: &Replay) -> Result<bool, LedgerError> {
        self.run(|tx| tx.mark_replayed(id, replay))
    }

    /// Whether the ledger that this transaction works on is known to have gone back in time: nothing that leaves the
    /// house may be decided by it.
    pub fn went_back(&self) -> bool {
        self.inner.went_back()
    }

    /// Makes everything durable. Until it returns Ok, nothing may be answered.
    ///
    /// # Errors
    /// [`LedgerError`]: nothing is stored, or nobody knows. Repeat the whole transaction.
    pub fn commit(self) -> Result<(), LedgerError> {
        if self.failed {
            return Err(LedgerError::Poisoned);
        }
        self.inner.commit()
    }
}
