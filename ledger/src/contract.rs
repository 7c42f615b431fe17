//! The traits that a database implements to hold a ledger. [`Ledger`](crate::Ledger), [`Tx`](crate::Tx) and
//! [`LedgerReader`](crate::LedgerReader) are the front, and say what each step means; the suite of
//! `windfall-conformance` checks it on every database.

use crate::acts::steps::{ActReads, ActSteps, CorrectionReads, CorrectionSteps};
use crate::archive::{ArchiveEntry, ArchiveFilter, Archived, Replay};
use crate::chain::{Names, Page, Row, Seal, Unsealed};
use crate::closing::{ClosingReads, ClosingSteps};
use crate::copies::{CopyKey, ListCopies, Listing, TakeCopies, TakenCopies, WrittenCopy};
use crate::error::{LedgerError, OpenError};
use crate::guard::Guard;
use crate::guarded::{Acceptance, Accepted, Beat};
use crate::held::HeldByTime;
use crate::key::{OrderId, WithdrawalId};
use crate::model::{
    Attempt, Awaits, BudgetRaised, BudgetSet, BudgetState, Finish, Order, OrderLine, OrderOutcome,
    ReservedOrder, Settlement, WhichBudgets, Writers,
};
use crate::reconcile::Reconciliation;
use crate::seal_error::SealError;
use crate::statement_reads::StatementReads;
use crate::withdrawal::{Held, HeldFor, HoldOutcome, StoredWithdrawal};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use windfall_contract::accounts::{FlowLine, Reason, StoredOrder};

/// A connection that writes.
pub(crate) trait Store: Debug + Send + ClosingSteps {
    /// Begins a transaction, on a new connection if the last one was lost.
    fn begin(&mut self) -> Result<Box<dyn Transaction + '_>, LedgerError>;

    /// Reads what is committed.
    fn read(&self) -> &dyn Read;

    /// How many connections may write at once.
    fn writers(&self) -> Writers;

    /// One more connection to the same ledger.
    fn another(&self) -> Result<Box<dyn Store>, OpenError>;

    /// A connection that reads what is committed at each read, and may be kept.
    fn reader(&self) -> Result<Box<dyn Read + Send>, OpenError>;

    /// Compares every connection that is made from now on with the guard's marks.
    fn guard_by(&mut self, guard: Arc<Guard>) -> Result<(), OpenError>;

    fn guard(&self) -> Option<Arc<Guard>>;

    fn beat(&mut self, count: bool) -> Result<Option<Beat>, LedgerError>;

    fn accept(&mut self, acceptance: &Acceptance) -> Result<Accepted, LedgerError>;

    fn list_copies(&mut self, how: &ListCopies) -> Result<Listing, LedgerError>;

    fn copy_keys(&mut self) -> Result<Vec<CopyKey>, LedgerError>;

    fn take_copies(&mut self, which: &TakeCopies<'_>) -> Result<TakenCopies, LedgerError>;

    fn note_copies(&mut self, written: &[WrittenCopy<'_>]) -> Result<(), LedgerError>;
}

/// A transaction. The front calls nothing more after a step that failed, and drops it: rolled back.
pub(crate) trait Transaction: Debug + ActSteps + CorrectionSteps {
    /// The activities of these orders that are closed. It costs next to nothing while none is known to be.
    fn closed(&mut self, batch: &[Order<'_>]) -> Result<BTreeSet<String>, LedgerError>;

    /// Orders of open activities, as are those of the next two.
    fn apply(&mut self, batch: &[Order<'_>], attempt: Attempt) -> Result<Vec<OrderOutcome>, LedgerError>;

    /// One payer for each order; the front has counted them.
    fn reserve(
        &mut self,
        batch: &[Order<'_>],
        payers: &[&str],
        attempt: Attempt,
    ) -> Result<Vec<OrderOutcome>, LedgerError>;

    fn promise(&mut self, batch: &[Order<'_>], attempt: Attempt) -> Result<Vec<OrderOutcome>, LedgerError>;

    fn orders(&mut self, ids: &[OrderId<'_>]) -> Result<Vec<Option<StoredOrder>>, LedgerError>;

    fn post(&mut self, ids: &[OrderId<'_>], time_ms: i64) -> Result<Vec<Finish>, LedgerError>;

    fn release(
        &mut self,
        refused: &[(OrderId<'_>, Reason)],
        time_ms: i64,
    ) -> Result<Vec<Finish>, LedgerError>;

    /// The tenant in the keys that payers of withdrawals are given.
    fn name_tenant(&mut self, tenant: &str);

    fn hold(&mut self, batch: &[Held<'_>], time_ms: i64) -> Result<Vec<HoldOutcome>, LedgerError>;

    fn pay_out(&mut self, ids: &[WithdrawalId<'_>], time_ms: i64) -> Result<Vec<Finish>, LedgerError>;

    fn give_back(
        &mut self,
        refused: &[(WithdrawalId<'_>, &str)],
        time_ms: i64,
    ) -> Result<Vec<Finish>, LedgerError>;

    fn rules_version(&mut self) -> Result<i64, LedgerError>;

    fn raise_rules_version(&mut self, version: i64) -> Result<i64, LedgerError>;

    fn set_rules_version(&mut self, version: i64) -> Result<(), LedgerError>;

    /// The largest amount of one order, by type.
    fn cap_orders(&mut self, largest: &BTreeMap<String, i64>);

    fn lift_caps(&mut self, keep: &[&str]) -> Result<(), LedgerError>;

    fn set_budgets(&mut self, budgets: &[BudgetSet<'_>]) -> Result<Vec<BudgetRaised>, LedgerError>;

    fn archive(&mut self, entries: &[ArchiveEntry<'_>]) -> Result<usize, LedgerError>;

    fn archived_as(&mut self, payload: &[u8], reason: &str) -> Result<Option<i64>, LedgerError>;

    fn mark_replayed(&mut self, id: i64, replay: &Replay) -> Result<bool, LedgerError>;

    /// Whether the database was behind a mark when its connection was made or looked at.
    fn went_back(&self) -> bool;

    fn commit(self: Box<Self>) -> Result<(), LedgerError>;
}

/// A connection that seals ranges of the journal.
pub(crate) trait Chain: Debug + Send {
    /// Seals one range of what is closed, of about so many rows, behind seal `after`, 0 for none. `None` where there is
    /// none, or another sealer is at it or was faster: a seal is made only when the one before it is anchored.
    fn seal(&mut self, after: i64, rows_max: usize, now_ms: i64) -> Result<Option<Seal>, SealError>;

    /// Goes on sealing on another database cluster than that of the last seal. Nothing to a ledger in a file.
    fn accept_cluster(&mut self) {}

    /// Reads what is committed.
    fn read(&self) -> &dyn Read;

    /// Compares the ledger with the guard's marks from now on.
    fn guard_by(&mut self, guard: Arc<Guard>) -> Result<(), OpenError>;

    /// Compares it now.
    fn look(&mut self) -> Result<(), LedgerError>;
}

/// An iterator over orders.
pub(crate) type Lines<'r> = Box<dyn Iterator<Item = Result<OrderLine, LedgerError>> + 'r>;

/// The reads that a ledger offers.
pub(crate) trait Read: Debug + ActReads + CorrectionReads + ClosingReads + StatementReads {
    fn lines(&self) -> Result<Lines<'_>, LedgerError>;

    fn balance(&self, user_id: i64, bonus_type: &str) -> Result<i64, LedgerError>;

    fn balances(&self, user_id: i64) -> Result<Vec<(String, i64)>, LedgerError>;

    fn flow(&self, user_id: i64, limit: usize) -> Result<Vec<FlowLine>, LedgerError>;

    /// One answer for each. In PostgreSQL before version 6 it may be an order of another activity, which has the number.
    fn orders(&self, ids: &[OrderId<'_>]) -> Result<Vec<Option<StoredOrder>>, LedgerError>;

    /// The orders with this number, of every activity.
    fn orders_of_number(&self, trade_no: &str) -> Result<Vec<StoredOrder>, LedgerError>;

    /// Those that wait for this alone, where something is named.
    fn reserved(
        &self,
        awaits: Option<Awaits>,
        before_ms: i64,
        after: &str,
        limit: u32,
    ) -> Result<Vec<ReservedOrder>, LedgerError>;

    fn withdrawal(&self, id: WithdrawalId<'_>) -> Result<Option<StoredWithdrawal>, LedgerError>;

    fn held_withdrawals(
        &self,
        which: HeldFor,
        before_ms: i64,
        after: &str,
        limit: u32,
    ) -> Result<Vec<StoredWithdrawal>, LedgerError>;

    /// As many as it has, of one moment or not: some may have ended by the time that they are read.
    fn held_by_time(&self, which: &HeldByTime) -> Result<Vec<StoredWithdrawal>, LedgerError>;

    fn budgets(&self, which: WhichBudgets) -> Result<Vec<BudgetState>, LedgerError>;

    fn settlements(&self) -> Result<Vec<Settlement>, LedgerError>;

    fn archive_list(&self, filter: &ArchiveFilter) -> Result<Vec<Archived>, LedgerError>;

    fn archived(&self, id: i64) -> Result<Option<Archived>, LedgerError>;

    fn replays(&self, archive_id: i64) -> Result<Vec<Replay>, LedgerError>;

    /// Seals behind this one, in order.
    fn seals(&self, after: i64, limit: u32) -> Result<Vec<Seal>, LedgerError>;

    fn last_seal(&self) -> Result<Option<Seal>, LedgerError>;

    /// The commitments of a seal, in order.
    fn seal_pages(&self, seal: i64) -> Result<Vec<Page>, LedgerError>;

    /// The transfers from this place up to that one, without it.
    fn sealed_rows(&self, from_at: i64, to_at: i64) -> Result<Vec<Row>, LedgerError>;

    /// What lies from this place on, which is not sealed.
    fn unsealed(&self, from_at: i64) -> Result<Unsealed, LedgerError>;

    /// What the numbers in these transfers stand for.
    fn names_of(&self, rows: &[Row]) -> Result<Names, LedgerError>;

    /// A transfer by its number.
    fn row(&self, id: i64) -> Result<Option<Row>, LedgerError>;

    fn reconcile(&self) -> Result<Reconciliation, LedgerError>;

    fn check(&self) -> Result<(), LedgerError>;
}
