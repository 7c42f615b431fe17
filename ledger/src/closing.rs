//! Closed activities: what the ledger gives nothing more for. An activity that is over is closed, its rows are exported
//! ([`orders_of_activity`](crate::LedgerReader::orders_of_activity)), and its orders are detached, so that the tables stay as large as what goes on needs.
//!
//! An order counts once, also after its row has gone (I1): a closed activity credits nothing, whoever asks, so a repeat of an order
//! that was detached is refused. The database refuses such an order, too, by a trigger, also from a process that
//! does not know of closed activities. Transfers stay: they are the proof of what was paid, and users' statements.
//!
//! The auditor takes a transfer from before the close as right where its order was detached, since nothing is left to compare it with. So
//! orders are detached when it has compared all of these transfers, and seals cover them ([`Unproven`]).

use crate::error::LedgerError;
use crate::model::Order;
use crate::rows_of::{OrderRow, RowsPage, TransferRow};
use std::collections::BTreeSet;
use std::fmt;

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

pub(crate) fn not_begun(activity: &str) -> LedgerError {
    LedgerError::Invalid(format!("detaching the orders of activity {activity} has not begun"))
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
