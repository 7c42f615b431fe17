//! The handle that audits a ledger, whatever database holds it.

use super::db::AuditDb;
use super::differences::{self, Difference, DifferenceState};
use super::model::{AuditError, AuditLimits, Compared, Increment};
use super::progress::{self, AuditProgress};
use super::{compare, increment};
use crate::error::OpenError;
use crate::guard::Guard;
use std::path::Path;
use std::sync::Arc;

/// Audits a ledger. Any number may run, over any number of processes, beside any number of writers: one at a time works.
#[derive(Debug)]
pub struct Auditor {
    pub(super) db: Box<dyn AuditDb>,
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
    pub(super) fn transact<T, E: From<AuditError>>(
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
    /// [`AuditError`]; after [`LedgerError::Unknown`](crate::LedgerError::Unknown) the range may have been read or not, and both are correct.
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
