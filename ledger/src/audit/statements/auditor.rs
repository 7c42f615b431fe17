//! What an auditor offers of payers' statements.

use super::model::{NewPayerStatement, PayerLine, PayerStatement, PayerStatementError, PayerTotals};
use super::{compare, stored, upload};
use crate::audit::auditor::Auditor;
use crate::audit::db::AuditDb;
use crate::audit::differences::{self, Difference, DifferenceState};
use crate::audit::model::{AuditError, AuditLimits};
use std::time::Duration;

/// How often a step is tried while another auditor is at work, with [`BUSY_PAUSE`] in between.
const BUSY_TRIES: u32 = 40;
const BUSY_PAUSE: Duration = Duration::from_millis(50);

impl Auditor {
    /// Runs a step of a statement. Another auditor of the ledger may be at work for the moment of a step of its own.
    fn statement_step<T>(
        &mut self,
        step: impl Fn(&dyn AuditDb, AuditLimits) -> Result<T, PayerStatementError>,
    ) -> Result<T, PayerStatementError> {
        let mut tries = 1;
        loop {
            match self.transact(&step) {
                Err(PayerStatementError::Audit(AuditError::Busy)) if tries < BUSY_TRIES => {
                    tries += 1;
                    std::thread::sleep(BUSY_PAUSE);
                }
                other => return other,
            }
        }
    }

    /// Begins a statement, or finds the one that began under the same name of an upload.
    ///
    /// # Errors
    /// [`PayerStatementError`]; after [`LedgerError::Unknown`](crate::LedgerError::Unknown) begin it again.
    pub fn begin_payer_statement(
        &mut self,
        new: &NewPayerStatement,
        now_ms: i64,
    ) -> Result<PayerStatement, PayerStatementError> {
        self.statement_step(|db, _| upload::begin(db, new, now_ms))
    }

    /// Appends a batch of lines, of which the first has this number, counted from 1. A batch that is there already is not
    /// appended again. Returns the number of the line that comes next.
    ///
    /// # Errors
    /// [`PayerStatementError`]; after [`LedgerError::Unknown`](crate::LedgerError::Unknown) append the batch again.
    pub fn append_payer_lines(
        &mut self,
        statement: i64,
        first_line: u64,
        lines: &[PayerLine],
    ) -> Result<u64, PayerStatementError> {
        self.statement_step(|db, _| upload::append(db, statement, first_line, lines))
    }

    /// Takes the next step of the comparison of a statement that is there as a whole: call it until the statement is compared.
    ///
    /// # Errors
    /// [`PayerStatementError`]; the step was not taken, or nobody knows: take the next one.
    pub fn compare_payer_statement(
        &mut self,
        statement: i64,
        totals: &PayerTotals,
        now_ms: i64,
    ) -> Result<PayerStatement, PayerStatementError> {
        self.statement_step(|db, limits| compare::step(db, limits, statement, totals, now_ms))
    }

    /// Statements with numbers below `before`, of all payers or of one, newest first.
    ///
    /// # Errors
    /// [`AuditError`].
    pub fn payer_statements(
        &mut self,
        payer: Option<&str>,
        before: i64,
        limit: u32,
    ) -> Result<Vec<PayerStatement>, AuditError> {
        self.db.ready()?;
        stored::list(&*self.db, payer, before, limit)
    }

    /// Differences that the comparison of a statement has found, otherwise like [`Auditor::differences`].
    ///
    /// # Errors
    /// [`AuditError`].
    pub fn payer_differences(
        &mut self,
        statement: i64,
        state: Option<DifferenceState>,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Difference>, AuditError> {
        self.db.ready()?;
        differences::list(&*self.db, state, Some(statement), after, limit)
    }
}
