//! Reads a ledger without writing it, for checks that must not trust the writer.

use crate::acts::model::{ActFilter, StoredAct};
use crate::acts::selection::{Selection, Survey};
use crate::anchor::Anchor;
use crate::archive::{ArchiveFilter, Archived, Replay};
use crate::closing::ClosedActivity;
use crate::contract::{Lines, Read};
use crate::error::{LedgerError, OpenError};
use crate::held::{self, HeldByTime, HeldCursor, HeldPage};
use crate::key::{OrderId, WithdrawalId};
use crate::model::{Awaits, BudgetState, OrderLine, ReservedOrder, Settlement, WhichBudgets};
use crate::reconcile::Reconciliation;
use crate::rows_of::{OrderRow, RowsPage, TransferRow};
use crate::verify::{self, Verified, VerifyError};
use crate::withdrawal::{HeldFor, StoredWithdrawal, WithdrawalStatus};
use std::fmt;
use std::path::Path;
use windfall_contract::accounts::{FlowLine, StoredOrder};

/// A reader on its own connection. Opened by [`LedgerReader::open`] or `connect` it sees one moment of the ledger,
/// that of its first read; while it is open old versions of rows cannot be cleaned away, so do not keep it. One of
/// [`Ledger::reader`](crate::Ledger::reader) sees with each read what is committed by then, and may be kept.
#[derive(Debug)]
pub struct LedgerReader {
    pub(crate) read: Box<dyn Read + Send>,
}

impl LedgerReader {
    pub(crate) fn new(read: Box<dyn Read + Send>) -> Self {
        Self { read }
    }

    /// Opens the ledger of this file for reading. A writer may have it open, or may have died.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Ok(Self { read: Box::new(crate::sqlite::open_reader(path.as_ref())?) })
    }

    /// Connects to a ledger on PostgreSQL for reading; nothing is created. See
    /// [`Ledger::connect`](crate::Ledger::connect) for the address.
    ///
    /// # Errors
    /// [`OpenError`].
    #[cfg(feature = "postgres")]
    pub fn connect(url: &str, options: &crate::PostgresOptions) -> Result<Self, OpenError> {
        Ok(Self { read: Box::new(crate::postgres::open_reader(url, options)?) })
    }

    /// Every order, by order number, read in pages.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn orders(&self) -> Result<OrderLines<'_>, LedgerError> {
        Ok(OrderLines { lines: self.read.lines()? })
    }

    /// A user's balances by bonus type.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn balances(&self, user_id: i64) -> Result<Vec<(String, i64)>, LedgerError> {
        self.read.balances(user_id)
    }

    /// A user's newest movements, newest first, at most `limit`.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn flow(&self, user_id: i64, limit: usize) -> Result<Vec<FlowLine>, LedgerError> {
        self.read.flow(user_id, limit)
    }

    /// An order, `None` where it is not known.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn order(&self, id: OrderId<'_>) -> Result<Option<StoredOrder>, LedgerError> {
        Ok(self.read.orders(&[id])?.pop().flatten().filter(|order| order.activity == id.activity))
    }

    /// Orders by name: one answer for each, in order, `None` where it is not known. In PostgreSQL before schema version 6 a
    /// number is one order's: then the answer may be an order of another activity, with which this one is a conflict.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn orders_of(&self, ids: &[OrderId<'_>]) -> Result<Vec<Option<StoredOrder>>, LedgerError> {
        self.read.orders(ids)
    }

    /// The orders with this number, one for each activity that has it.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn orders_of_number(&self, trade_no: &str) -> Result<Vec<StoredOrder>, LedgerError> {
        self.read.orders_of_number(trade_no)
    }

    /// Acts of operators, by number.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn acts(&self, filter: &ActFilter) -> Result<Vec<StoredAct>, LedgerError> {
        self.read.acts(filter)
    }

    /// An act, `None` where there is none of this number.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn act(&self, id: i64) -> Result<Option<StoredAct>, LedgerError> {
        self.read.act(id)
    }

    /// What a part of the ledger has of a selection of orders of which this much is kept, from behind a place on: empty at first,
    /// then what the part before says comes next.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`] for a selection that cannot be, or a place that is none.
    pub fn survey(&self, which: &Selection, keep: i64, after: &str) -> Result<Survey, LedgerError> {
        match which.wrong(keep) {
            Some(why) => Err(LedgerError::Invalid(why)),
            None => self.read.survey(which, keep, after),
        }
    }

    /// The act that froze a user, and when; `None`: the user is not frozen.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn frozen(&self, user_id: i64) -> Result<Option<(i64, i64)>, LedgerError> {
        self.read.frozen(user_id)
    }

    /// Orders that were reserved before `before_ms` and still are, sorted by [`StoredOrder::key`]: those after the key
    /// `after`, 1 to 10,000 of them. `awaits` asks for those that wait for this alone. Reads the index of reserved orders.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn reserved(
        &self,
        awaits: Option<Awaits>,
        before_ms: i64,
        after: &str,
        limit: u32,
    ) -> Result<Vec<ReservedOrder>, LedgerError> {
        self.read.reserved(awaits, before_ms, after, limit.clamp(1, 10_000))
    }

    /// A withdrawal, `None` where it is not known.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn withdrawal(&self, id: WithdrawalId<'_>) -> Result<Option<StoredWithdrawal>, LedgerError> {
        self.read.withdrawal(id)
    }

    /// Withdrawals that were held before `before_ms` and still are, sorted by [`StoredWithdrawal::key`]: those after the
    /// key `after`, 1 to 10,000 of them.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn held_withdrawals(
        &self,
        which: HeldFor,
        before_ms: i64,
        after: &str,
        limit: u32,
    ) -> Result<Vec<StoredWithdrawal>, LedgerError> {
        self.read.held_withdrawals(which, before_ms, after, limit.clamp(1, 10_000))
    }

    /// A page of the withdrawals of all users that are held. It costs a look at each one that is held, of this page or not, and
    /// a look-up of each one that it has.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn held_page(&self, which: &HeldByTime) -> Result<HeldPage, LedgerError> {
        let which = HeldByTime { limit: which.limit.clamp(1, held::PAGE_MAX), ..which.clone() };
        let mut withdrawals = self.read.held_by_time(&which)?;
        let is_full = withdrawals.len() >= usize::try_from(which.limit).unwrap_or(usize::MAX);
        let next = withdrawals.last().filter(|_| is_full).map(HeldCursor::at);
        // One that has ended between two reads is not held any more.
        withdrawals.retain(|one| one.status == WithdrawalStatus::Held);
        Ok(HeldPage { withdrawals, next })
    }

    /// The activities that are closed, by name.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn closed_activities(&self) -> Result<Vec<ClosedActivity>, LedgerError> {
        self.read.closed_activities()
    }

    /// A page of the orders of an activity, from behind a place on: empty at first, then what the page before says. Each order is on
    /// one page, if none of them changes meanwhile: close the activity first.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn orders_of_activity(&self, activity: &str, after: &str) -> Result<RowsPage<OrderRow>, LedgerError> {
        self.read.orders_of_activity(activity, after)
    }

    /// The same for the transfers of its budgets and its funding.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn transfers_of_activity(
        &self,
        activity: &str,
        after: &str,
    ) -> Result<RowsPage<TransferRow>, LedgerError> {
        self.read.transfers_of_activity(activity, after)
    }

    /// Every activity, scene and type, with what it gave out.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn budgets(&self) -> Result<Vec<BudgetState>, LedgerError> {
        self.read.budgets(WhichBudgets::All)
    }

    /// The budgets that were set, with what they gave out. Those who may grant make a row of [`budgets`](Self::budgets) by each new
    /// name; they make none of these.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn set_budgets(&self) -> Result<Vec<BudgetState>, LedgerError> {
        self.read.budgets(WhichBudgets::Set)
    }

    /// What downstreams have paid, by their names and the bonus types.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn settlements(&self) -> Result<Vec<Settlement>, LedgerError> {
        self.read.settlements()
    }

    /// A page of the archive, oldest first.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn archive_list(&self, filter: &ArchiveFilter) -> Result<Vec<Archived>, LedgerError> {
        self.read.archive_list(filter)
    }

    /// One entry of the archive; `None` where there is no such entry.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn archived(&self, id: i64) -> Result<Option<Archived>, LedgerError> {
        self.read.archived(id)
    }

    /// Every replay of an entry, oldest first.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn replays(&self, archive_id: i64) -> Result<Vec<Replay>, LedgerError> {
        self.read.replays(archive_id)
    }

    /// Compares orders, transfers, accounts and budgets with each other. Reads every row.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn reconcile(&self) -> Result<Reconciliation, LedgerError> {
        self.read.reconcile()
    }

    /// Compares every sealed transfer with its seal, and the chain with its anchor. Reads everything that is sealed.
    ///
    /// # Errors
    /// [`VerifyError`].
    pub fn verify(&self, anchor: Option<&dyn Anchor>) -> Result<Verified, VerifyError> {
        verify::verify(self.read.as_ref(), anchor)
    }

    /// Reads every page and compares it with its structure.
    ///
    /// # Errors
    /// [`LedgerError::Damaged`] with the first finding.
    pub fn check(&self) -> Result<(), LedgerError> {
        self.read.check()
    }
}

/// Iterates over orders, by order number. Ends after the first error.
pub struct OrderLines<'r> {
    lines: Lines<'r>,
}

impl fmt::Debug for OrderLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderLines").finish_non_exhaustive()
    }
}

impl Iterator for OrderLines<'_> {
    type Item = Result<OrderLine, LedgerError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.lines.next()
    }
}
