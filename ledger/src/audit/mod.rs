//! Reconciliation of a ledger in use: beside its writers, in short steps, without a moment of it being held.
//!
//! [`LedgerReader::reconcile`](crate::LedgerReader::reconcile) reads everything at one moment. On a large ledger that takes long,
//! and meanwhile the database cannot clean old rows away. The auditor reads each transfer once, keeps what it has read as sums, and
//! compares these with what the ledger keeps.
//!
//! ## What is kept
//! - **The position**: all transfers at places below it are in the sums. A place is what the chain of seals counts by
//!   ([`crate::Sealer`]): a transfer's number in a file, its transaction's number in PostgreSQL.
//! - **The sums**, by account: what was moved to it less what was moved from it; by budget key: what it gave (`used`), what is
//!   pending of it, and what funded it; and what is pending by order, for orders of which something is. In PostgreSQL what large
//!   ranges add to users' accounts is kept in rows of many accounts each (`audit_packed`), beside `audit_sums`: the sum of an account is
//!   that of all that both have of it.
//! - **Differences**, as rows that nobody deletes, and how far the sweeps have come.
//!
//! They are tables of the ledger's own database (`audit_…`), made where they are missing: a restored or stale database has the
//! position and the sums that belong to its rows.
//!
//! ## Increments ([`Auditor::increment`])
//! A range begins at the position and ends where nothing can come in front of it any more: in PostgreSQL at the oldest
//! transaction that runs (`pg_snapshot_xmin`). All transactions below it have ended, so a later statement sees their rows, or
//! nobody ever will. One transaction adds the range to the sums, notes what is wrong with its transfers, and moves the position:
//! all of it happens or none, and one auditor at a time does so. So each transfer is in the sums exactly once, and the sums are those of
//! all transfers below the position, however they were cut into ranges, and whoever died meanwhile.
//!
//! A transfer that paid an order is compared with the order when its range is read. A writer commits both in one transaction, so
//! the order is seen whenever the transfer is. A credited order never changes, and it names one transfer; so what was right once
//! stays right, and no two transfers are right for one order.
//!
//! Where the database says where rows lie, the orders of a large range are read together, from the pages around some of them. An
//! order that was read there, and says in each column what the transfer says, is the same row that its key would lead to; each
//! transfer without such a one is compared with the order of its key. So which pages are read decides what it costs, and not what is
//! found.
//!
//! ## Comparisons ([`Auditor::compare`], [`Auditor::sweep`])
//! Balances move while one looks. But whatever moves a balance writes its transfer in the same transaction, and a statement
//! sees one moment. So in each moment, for each account,
//!
//! > balance = sum of all transfers that are seen = sum below the position + sum of those that are seen at or above it
//!
//! One statement reads all three: the balance, the sum that is kept, and the transfers from the position on (the **tail**). The
//! position is read by the same statement, and sums and position change in one transaction; rows below the position were
//! committed before it moved, so all of them are seen. If the two sides differ, then they differ in the ledger: there is no moment
//! at which a sound ledger looks wrong (no false alarm), for whatever a writer has in flight is seen on both sides or on neither.
//! The same holds for budgets, for reserved orders against what is pending, and for withdrawals and orders against their transfers.
//!
//! What is small (the accounts of payers and payouts, budgets, reserved orders) is compared as a whole each time. Users'
//! accounts, orders and withdrawals are swept in pages, by key, again and again; the place of the sweep is stored. A key that is
//! new in front of it is compared by the next sweep. So a difference that stays is found: by the increment that reads its transfer,
//! or by the next sweep over its key (none is missed for good).
//!
//! While the tail is long (the first time over an old ledger, or while a transaction stays open for hours), a comparison would
//! read all of it; nothing is compared then ([`Compared::Behind`]), and the progress says so.
//!
//! ## Payers' statements
//! What payers say that they paid is compared with orders and withdrawals; [`statements`] has the argument.
//!
//! ## What is not found here
//! A row below the position that is changed or taken away later, as long as it is no order's own: the sums have it already.
//! `windfall ledger verify` finds these by the seals. A row that is put below the position by hand, with a place of long ago:
//! `verify` finds it, too.

mod compare;
mod db;
mod differences;
mod increment;
mod progress;
mod statements;
mod sweep;
mod tables;

pub(crate) use db::{AuditDb, Cell, Value};
#[cfg(feature = "postgres")]
pub(crate) use db::{add_to_sums, one, sums_of_users};
pub use differences::{Difference, DifferenceKind, DifferenceState};
#[cfg(feature = "postgres")]
pub(crate) use increment::pays_order;
pub use progress::AuditProgress;
pub use statements::{
    BadPayerStatement, NewPayerStatement, PayerLine, PayerStatement, PayerStatementError,
    PayerStatementState, PayerSum, PayerTotals,
};
pub(crate) use tables::SETS as TABLE_SETS;

use crate::error::{LedgerError, OpenError};
use crate::guard::Guard;
use std::path::Path;
use std::sync::Arc;

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

/// Audits a ledger. Any number may run, over any number of processes, beside any number of writers: one at a time works.
#[derive(Debug)]
pub struct Auditor {
    db: Box<dyn AuditDb>,
    limits: AuditLimits,
    guard: Option<Arc<Guard>>,
}

impl Auditor {
    /// Opens the ledger of this file. Its writer may have it open.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Ok(Self::of(Box::new(crate::sqlite::open_audit(path.as_ref())?)))
    }

    /// Connects to a ledger on PostgreSQL, which must have its journal.
    ///
    /// # Errors
    /// [`OpenError`].
    #[cfg(feature = "postgres")]
    pub fn connect(url: &str, options: &crate::PostgresOptions) -> Result<Self, OpenError> {
        Ok(Self::of(Box::new(crate::postgres::open_audit(url, options)?)))
    }

    fn of(db: Box<dyn AuditDb>) -> Self {
        Self { db, limits: AuditLimits::default(), guard: None }
    }

    /// The same with these limits; what is out of range is brought into it.
    #[must_use]
    pub fn with_limits(self, limits: AuditLimits) -> Self {
        let limits = AuditLimits {
            increment_rows: limits.increment_rows.clamp(1, 1_000_000),
            tail_rows_max: limits.tail_rows_max.clamp(1, 10_000_000),
            account_rows: limits.account_rows.clamp(1, 1_000_000),
            order_rows: limits.order_rows.clamp(1, 1_000_000),
        };
        Self { limits, ..self }
    }

    /// The same under this guard: while the ledger does not hold the guard's marks, nothing is audited.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn guarded(mut self, guard: Arc<Guard>) -> Result<Self, OpenError> {
        self.db.guard_by(Arc::clone(&guard))?;
        self.guard = Some(guard);
        Ok(self)
    }

    /// Refuses a ledger that went back in time.
    fn look(&mut self) -> Result<(), AuditError> {
        let Some(guard) = &self.guard else { return Ok(()) };
        self.db.look()?;
        guard.why_stopped().map_or(Ok(()), |why| Err(AuditError::WentBack { why }))
    }

    /// Runs steps in one transaction, which holds the auditors' lock.
    fn transact<T, E: From<AuditError>>(
        &mut self,
        steps: impl FnOnce(&dyn AuditDb, AuditLimits) -> Result<T, E>,
    ) -> Result<T, E> {
        self.look()?;
        if !self.db.begin()? {
            self.db.roll_back();
            return Err(AuditError::Busy.into());
        }
        match steps(&*self.db, self.limits) {
            Ok(done) => {
                self.db.commit().map_err(AuditError::from)?;
                Ok(done)
            }
            Err(error) => {
                self.db.roll_back();
                Err(error)
            }
        }
    }

    /// Reads the next range, adds it to the sums, and notes what is wrong in it. No transfers say that all of what is closed by
    /// now was read.
    ///
    /// # Errors
    /// [`AuditError`]; after [`LedgerError::Unknown`] the range may have been read or not, and both are correct.
    pub fn increment(&mut self, now_ms: i64) -> Result<Increment, AuditError> {
        self.transact(|db, limits| increment::run(db, limits, now_ms))
    }

    /// Compares what is small with the sums: budgets, reserved orders, and the accounts of payers and payouts.
    ///
    /// # Errors
    /// [`AuditError`]; nothing was noted, or nobody knows: compare again.
    pub fn compare(&mut self, now_ms: i64) -> Result<Compared, AuditError> {
        self.transact(|db, limits| compare::run(db, limits, now_ms))
    }

    /// Compares the next page of the sweep over users' accounts, orders and withdrawals.
    ///
    /// # Errors
    /// [`AuditError`]; nothing was noted, or nobody knows: the page is compared again.
    pub fn sweep(&mut self, now_ms: i64) -> Result<Compared, AuditError> {
        self.transact(|db, limits| compare::page(db, limits, now_ms))
    }

    /// How far it has come.
    ///
    /// # Errors
    /// [`AuditError`].
    pub fn progress(&mut self) -> Result<AuditProgress, AuditError> {
        self.db.ready()?;
        progress::read(&*self.db, self.limits)
    }

    /// Differences with numbers above `after`, in order; `state` asks for some of them alone.
    ///
    /// # Errors
    /// [`AuditError`].
    pub fn differences(
        &mut self,
        state: Option<DifferenceState>,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Difference>, AuditError> {
        self.db.ready()?;
        differences::list(&*self.db, state, None, after, limit)
    }

    /// Notes that a person knows of a difference and is at it: it stays open, and its alert ends. Returns whether there is such a
    /// difference that is not resolved.
    ///
    /// # Errors
    /// [`AuditError`].
    pub fn acknowledge(&mut self, id: i64, actor: &str, note: &str, now_ms: i64) -> Result<bool, AuditError> {
        self.db.ready()?;
        differences::acknowledge(&*self.db, id, actor, note, now_ms)
    }

    /// Notes that a difference was mended or explained. If it is found again, it is a new one. Returns whether there is such a
    /// difference that was not resolved before.
    ///
    /// # Errors
    /// [`AuditError`].
    pub fn resolve(&mut self, id: i64, actor: &str, note: &str, now_ms: i64) -> Result<bool, AuditError> {
        self.db.ready()?;
        differences::resolve(&*self.db, id, actor, note, now_ms)
    }
}
