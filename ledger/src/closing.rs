//! Closed activities: what the ledger gives nothing more for. An activity that is over is closed, its rows are exported
//! ([`orders_of_activity`](crate::LedgerReader::orders_of_activity)), and its orders are detached, so that the tables stay as large as what goes on needs.
//!
//! An order counts once, also after its row has gone (I1): a closed activity credits nothing, whoever asks, so a repeat of an order
//! that was detached is refused. The database refuses such an order, too, by a trigger, also from a process that
//! does not know of closed activities. Transfers stay: they are the proof of what was paid, and users' statements.
//!
//! The auditor takes a transfer from before the close as right where its order was detached, since nothing is left to compare it with. So
//! orders are detached when it has compared all of these transfers, and seals cover them ([`Unproven`]).

use crate::contract::Transaction;
use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::model::{Attempt, Order, OrderOutcome};
use crate::rows_of::{OrderRow, RowsPage, TransferRow};
use std::collections::BTreeSet;
use std::fmt;
use windfall_contract::accounts::{Reason, Status, StoredOrder};

/// An activity that is to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Close<'a> {
    /// The activity.
    pub activity: &'a str,
    /// Who closes it.
    pub operator: &'a str,
    /// Why the activity is closed.
    pub reason: &'a str,
    /// The present time, in Unix milliseconds.
    pub time_ms: i64,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// It is closed from now on. Every transaction that granted something of it has ended.
    Now,
    /// It was closed before.
    Before,
    /// No order and no budget of it is known. Nothing was changed.
    Unknown,
    /// So many of its orders wait for their payers or their events: end these first. Nothing was changed.
    Reserved {
        /// How many, counted up to 1,000.
        orders: u64,
    },
}

/// What became of an activity that is to be open again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reopened {
    /// It is open from now on.
    Now,
    /// It was not closed.
    WasOpen,
    /// Its orders were detached, or some of them: it stays closed, or they would be credited again.
    Detached,
}

/// A closed activity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedActivity {
    /// The activity.
    pub activity: String,
    /// Who closed it.
    pub operator: String,
    /// Why it was closed.
    pub reason: String,
    /// When, in Unix milliseconds.
    pub closed_ms: i64,
    /// Its orders' way out of the ledger, once that has begun.
    pub detached: Option<Detached>,
}

/// Orders that were exported, and leave the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detached {
    /// The number of orders.
    pub orders: u64,
    /// The export that has them: the checksum of its manifest.
    pub export: String,
    /// When it began, in Unix milliseconds.
    pub began_ms: i64,
    /// When the last one had gone; `None` while some may be there.
    pub done_ms: Option<i64>,
}

/// What an export has of one budget key's orders. Reconciliation compares it with their transfers from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct DetachedBudget {
    /// The budget key.
    pub budget: i64,
    /// The number of orders.
    pub orders: i64,
    /// The number of those that were credited.
    pub credited: i64,
    /// What these got, in the smallest unit.
    pub amount: i64,
}

/// Orders that are to be detached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Detach<'a> {
    /// Their activity, which is closed.
    pub activity: &'a str,
    /// When it was closed, as the export has it: one that was opened since has other orders, perhaps.
    pub closed_ms: i64,
    /// The checksum of the manifest of the export that has them.
    pub export: &'a str,
    /// What the export has of each budget key.
    pub budgets: &'a [DetachedBudget],
    /// Detach them without asking what the auditor has read. It is noted behind the reason of the close.
    pub accept_unaudited: bool,
    /// Detach them without asking what is sealed. It is noted behind the reason of the close.
    pub accept_unsealed: bool,
    /// The present time, in Unix milliseconds.
    pub time_ms: i64,
}

impl Detach<'_> {
    /// What is noted behind the reason of the close.
    pub(crate) fn note(&self) -> &'static str {
        match (self.accept_unaudited, self.accept_unsealed) {
            (false, false) => "",
            (true, false) => "; detached with --accept-unaudited",
            (false, true) => "; detached with --accept-unsealed",
            (true, true) => "; detached with --accept-unaudited and --accept-unsealed",
        }
    }
}

/// Transfers from before the close that are compared with no order, or are in no seal. Each is counted up to 1,000, and 0 where nobody
/// asked. The text says what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unproven {
    /// How many the auditor has not read. Once their orders have gone it takes them as right.
    pub unread: u64,
    /// How many are in no seal.
    pub unsealed: u64,
}

impl Unproven {
    /// Whether nothing is missing.
    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl fmt::Display for Unproven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unread, unsealed } = self;
        if *unread > 0 {
            write!(
                f,
                "{unread} transfers from before the close (counted up to 1,000) were not read by the auditor, and without their orders it would \
                 take them as right: run the auditor until it has read them, and detach again. Only where the fleet runs no auditor, name \
                 --accept-unaudited"
            )?;
        }
        if *unread > 0 && *unsealed > 0 {
            f.write_str(". ")?;
        }
        if *unsealed > 0 {
            write!(
                f,
                "{unsealed} transfers from before the close (counted up to 1,000) are in no seal: run windfall ledger seal, and detach again. \
                 Only where the ledger is not sealed, name --accept-unsealed"
            )?;
        }
        Ok(())
    }
}

/// Whether orders may be detached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DetachBegun {
    /// From now on.
    Now,
    /// It has begun before, by the same export: go on.
    Before,
    /// Their activity is not closed, or was opened and closed again since it was exported. Nothing was changed.
    NotClosed,
    /// It has begun before by another export, which has these orders. Nothing was changed.
    OtherExport {
        /// The checksum of that one's manifest.
        export: String,
    },
    /// The auditor has not read all transfers from before the close, or they are not all sealed. Nothing was changed.
    Unproven(Unproven),
}

/// A step in which orders were detached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetachStep {
    /// The number of orders that went.
    pub orders: u64,
    /// The place to go on from; `None` when all have gone.
    pub next: Option<String>,
}

/// What a database does about closed activities, each in a transaction of its own.
pub(crate) trait ClosingSteps {
    fn close(&mut self, which: &Close<'_>) -> Result<Closed, LedgerError>;

    fn reopen(&mut self, activity: &str) -> Result<Reopened, LedgerError>;

    fn begin_detach(&mut self, which: &Detach<'_>) -> Result<DetachBegun, LedgerError>;

    fn detach_step(&mut self, activity: &str, after: &str, time_ms: i64) -> Result<DetachStep, LedgerError>;
}

/// What a database says about them.
pub(crate) trait ClosingReads {
    fn closed_activities(&self) -> Result<Vec<ClosedActivity>, LedgerError>;

    fn orders_of_activity(&self, activity: &str, after: &str) -> Result<RowsPage<OrderRow>, LedgerError>;

    fn transfers_of_activity(
        &self,
        activity: &str,
        after: &str,
    ) -> Result<RowsPage<TransferRow>, LedgerError>;
}

impl Ledger {
    /// Closes an activity: the ledger credits and reserves none of its orders from now on. A repeat of an order that was
    /// credited answers so while its row is there.
    ///
    /// In PostgreSQL it waits for the transactions that have written orders, with new ones behind it, for two seconds at a time.
    /// Only the owner of the tables may do it, and every process has to be of a release that knows closed activities: an older one
    /// repeats what the database refuses it, without end.
    ///
    /// # Errors
    /// [`LedgerError`]: nothing was changed, or nobody knows; close it again.
    pub fn close_activity(&mut self, which: &Close<'_>) -> Result<Closed, LedgerError> {
        check_name(which.activity)?;
        self.store.close(which)
    }

    /// Opens a closed activity again, if none of its orders was detached.
    ///
    /// # Errors
    /// [`LedgerError`]: nothing was changed, or nobody knows; open it again.
    pub fn reopen_activity(&mut self, activity: &str) -> Result<Reopened, LedgerError> {
        check_name(activity)?;
        self.store.reopen(activity)
    }

    /// Notes that the orders of a closed activity leave the ledger, and which export has them. The caller has compared the
    /// export with the orders. The auditor must have read every transfer from before the close, and a seal must cover each, unless the
    /// caller accepts otherwise by name.
    ///
    /// # Errors
    /// [`LedgerError`]: nothing was changed, or nobody knows; ask again.
    pub fn begin_detach(&mut self, which: &Detach<'_>) -> Result<DetachBegun, LedgerError> {
        check_name(which.activity)?;
        self.store.begin_detach(which)
    }

    /// Deletes a part of the orders of an activity whose detaching has begun, from behind a place on: empty at first, then what the
    /// step before says comes next. With the last of them it notes that all have gone. It may be begun anew at any time.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`] where detaching has not begun; after every other error do the step again.
    pub fn detach_step(
        &mut self,
        activity: &str,
        after: &str,
        time_ms: i64,
    ) -> Result<DetachStep, LedgerError> {
        check_name(activity)?;
        self.store.detach_step(activity, after, time_ms)
    }
}

fn check_name(activity: &str) -> Result<(), LedgerError> {
    if activity.is_empty() || activity.contains('\0') {
        return Err(LedgerError::Invalid(
            "the name of an activity must not be empty, nor contain NUL".into(),
        ));
    }
    Ok(())
}

pub(crate) fn not_begun(activity: &str) -> LedgerError {
    LedgerError::Invalid(format!("detaching the orders of activity {activity} has not begun"))
}

/// Hands the orders of open activities to `run`, and answers those of closed ones by what is stored. The places of the former in the batch
/// are given where there are any of the latter.
pub(crate) fn split<'t, 'o>(
    tx: &mut (dyn Transaction + 't),
    batch: &[Order<'o>],
    attempt: Attempt,
    run: impl FnOnce(
        &mut (dyn Transaction + 't),
        &[Order<'o>],
        Option<&[usize]>,
    ) -> Result<Vec<OrderOutcome>, LedgerError>,
) -> Result<Vec<OrderOutcome>, LedgerError> {
    let closed = tx.closed(batch)?;
    if closed.is_empty() {
        return run(tx, batch, None);
    }
    batch.iter().try_for_each(Order::check)?;
    let is_closed = |order: &Order<'_>| closed.contains(order.activity);
    let places: Vec<usize> = (0..batch.len()).filter(|at| !is_closed(&batch[*at])).collect();
    let open: Vec<Order<'o>> = places.iter().map(|at| batch[*at]).collect();
    let mut decided = run(tx, &open, Some(&places))?.into_iter();
    let ids: Vec<_> = batch.iter().filter(|order| is_closed(order)).map(Order::id).collect();
    let mut stored = tx.orders(&ids)?.into_iter();
    let mut outcomes = Vec::with_capacity(batch.len());
    for order in batch {
        let outcome = match is_closed(order) {
            true => stored.next().map(|stored| answer(stored.as_ref(), order, attempt)),
            false => decided.next(),
        };
        outcomes.push(outcome.ok_or_else(|| LedgerError::Damaged("an answer is missing".into()))?);
    }
    Ok(outcomes)
}

/// The answer to an order of a closed activity.
fn answer(stored: Option<&StoredOrder>, order: &Order<'_>, attempt: Attempt) -> OrderOutcome {
    let Some(stored) = stored else { return OrderOutcome::Rejected(Reason::ActivityClosed) };
    let same = (stored.user_id, stored.amount) == (order.user_id, order.amount)
        && (&*stored.activity, &*stored.scene, &*stored.bonus_type)
            == (order.activity, order.scene, order.bonus_type);
    match stored.status {
        _ if !same => OrderOutcome::Conflict,
        Status::Credited => OrderOutcome::AlreadyCredited,
        Status::Reserved => OrderOutcome::Reserved,
        Status::Rejected(reason) if attempt == Attempt::Normal => OrderOutcome::Rejected(reason),
        Status::Rejected(_) => OrderOutcome::Rejected(Reason::ActivityClosed),
    }
}

/// Those of the known activities that orders of this batch are of.
pub(crate) fn among(known: &BTreeSet<String>, batch: &[Order<'_>]) -> BTreeSet<String> {
    if known.is_empty() {
        return BTreeSet::new();
    }
    let mut last = "";
    let mut found = BTreeSet::new();
    for order in batch {
        // Orders of one activity come together.
        if order.activity != last && known.contains(order.activity) {
            found.insert(order.activity.to_owned());
        }
        last = order.activity;
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const ORDER: Order<'_> = Order {
        trade_no: "a",
        user_id: 7,
        activity: "spring",
        scene: "rain",
        bonus_type: "cash",
        amount: 10,
        time_ms: 1,
    };

    fn stored(status: Status) -> StoredOrder {
        StoredOrder {
            key: "a spring".into(),
            trade_no: "a".into(),
            user_id: 7,
            activity: "spring".into(),
            scene: "rain".into(),
            bonus_type: "cash".into(),
            amount: 10,
            status,
            payer: String::new(),
            created_ms: 1,
            decided_ms: None,
        }
    }

    #[test]
    fn nothing_that_asks_for_money_gets_it() {
        let closed = OrderOutcome::Rejected(Reason::ActivityClosed);
        let refused = Status::Rejected(Reason::BudgetExhausted);
        for attempt in [Attempt::Normal, Attempt::Replay] {
            assert_eq!(answer(None, &ORDER, attempt), closed);
            let known = |status| answer(Some(&stored(status)), &ORDER, attempt);
            assert_eq!(known(Status::Credited), OrderOutcome::AlreadyCredited);
            assert_eq!(known(Status::Reserved), OrderOutcome::Reserved);
            let again = match attempt {
                Attempt::Normal => OrderOutcome::Rejected(Reason::BudgetExhausted),
                Attempt::Replay => closed,
            };
            assert_eq!(known(refused), again);
            for other in [
                Order { user_id: 8, ..ORDER },
                Order { amount: 11, ..ORDER },
                Order { scene: "cards", ..ORDER },
                Order { bonus_type: "coin", ..ORDER },
            ] {
                assert_eq!(answer(Some(&stored(Status::Credited)), &other, attempt), OrderOutcome::Conflict);
            }
        }
    }

    #[test]
    fn what_is_missing_is_named_with_what_to_do() {
        let said = |unread, unsealed| Unproven { unread, unsealed }.to_string();
        let (audit, seal) = ("run the auditor", "run windfall ledger seal");
        assert!(said(2, 0).contains(audit) && !said(2, 0).contains(seal), "{}", said(2, 0));
        assert!(!said(0, 3).contains(audit) && said(0, 3).contains(seal), "{}", said(0, 3));
        assert!(said(2, 3).contains(audit) && said(2, 3).contains(seal), "{}", said(2, 3));
        assert!(Unproven::default().is_empty() && said(0, 0).is_empty());
    }

    #[test]
    fn only_what_is_known_to_be_closed_is_asked_for() {
        let known: BTreeSet<String> = ["autumn".to_owned(), "spring".to_owned()].into();
        let batch = [ORDER, Order { activity: "winter", ..ORDER }, ORDER];
        assert_eq!(among(&known, &batch), ["spring".to_owned()].into());
        assert!(among(&BTreeSet::new(), &batch).is_empty());
    }
}
