//! Payers' statements, as messages.

use crate::service::AuditCallError;
use std::time::Duration;
use tonic::Status;
use windfall_ledger::{
    AuditError, LedgerError, NewPayerStatement, PayerLine, PayerStatement, PayerStatementError,
    PayerStatementState, PayerSum, PayerTotals,
};
use windfall_proto::v1;

/// How long a call compares, about: the caller is told how far it has come.
pub(crate) const COMPARE_FOR: Duration = Duration::from_secs(1);

const MARGIN_DEFAULT_S: u32 = 3_600;

/// What is answered where the auditor cannot.
pub(crate) fn refusal(error: &AuditCallError) -> Status {
    match error {
        AuditCallError::Audit(error) => of_audit(error),
        AuditCallError::Busy => Status::resource_exhausted(error.to_string()),
        AuditCallError::Closed | AuditCallError::Away(_) => Status::unavailable(error.to_string()),
    }
}

fn of_audit(error: &AuditError) -> Status {
    match error {
        AuditError::Ledger(LedgerError::Invalid(_)) => Status::invalid_argument(error.to_string()),
        AuditError::Ledger(LedgerError::NotMigrated(_)) => Status::failed_precondition(error.to_string()),
        _ => Status::unavailable(error.to_string()),
    }
}

/// What is answered where a statement was refused.
pub(crate) fn statement_refusal(error: &PayerStatementError) -> Status {
    let what = error.to_string();
    match error {
        PayerStatementError::Audit(error) => of_audit(error),
        PayerStatementError::Bad(_) => Status::invalid_argument(what),
        PayerStatementError::NotFound(_) => Status::not_found(what),
        PayerStatementError::OtherUpload | PayerStatementError::OtherLine(_) => Status::already_exists(what),
        PayerStatementError::OutOfPlace { .. } => Status::out_of_range(what),
        PayerStatementError::Ended(_)
        | PayerStatementError::NotWhole { .. }
        | PayerStatementError::TooEarly { .. } => Status::failed_precondition(what),
    }
}

/// A statement to begin, which this actor uploads.
pub(crate) fn new_statement(
    request: &v1::BeginPayerStatementRequest,
    actor: &str,
) -> Result<NewPayerStatement, Status> {
    let margin_ms = i64::from(request.margin_s.unwrap_or(MARGIN_DEFAULT_S)) * 1_000;
    let period_ms = request.from_ms..request.to_ms;
    NewPayerStatement::new(&request.upload, &request.payer, period_ms, margin_ms, actor)
        .map_err(|why| Status::invalid_argument(why.to_string()))
}

/// The lines of a batch.
pub(crate) fn lines(request: &v1::AppendPayerLinesRequest) -> Result<Vec<PayerLine>, Status> {
    (request.first_line..)
        .zip(&request.lines)
        .map(|(number, line)| {
            PayerLine::new(&line.key, &line.bonus_type, line.amount, line.is_returned)
                .map_err(|why| Status::invalid_argument(format!("line {number}: {why}")))
        })
        .collect()
}

/// What a statement is said to have.
pub(crate) fn totals(request: &v1::ComparePayerStatementRequest) -> PayerTotals {
    let paid = request.paid.iter();
    PayerTotals {
        lines: request.lines,
        paid: paid.map(|sum| (sum.bonus_type.clone(), (sum.lines, sum.amount))).collect(),
    }
}

fn sum(sum: PayerSum) -> v1::PayerSum {
    v1::PayerSum {
        bonus_type: sum.bonus_type,
        lines: sum.paid.0,
        amount: sum.paid.1,
        returned_lines: sum.returned.0,
        returned_amount: sum.returned.1,
        agreed_lines: sum.agreed.0,
        agreed_amount: sum.agreed.1,
        ledger_payments: sum.in_ledger.0,
        ledger_amount: sum.in_ledger.1,
    }
}

/// A statement as it is answered.
pub(crate) fn message(statement: PayerStatement) -> v1::PayerStatement {
    let state = match statement.state {
        PayerStatementState::Uploading => v1::PayerStatementState::Uploading,
        PayerStatementState::Comparing => v1::PayerStatementState::Comparing,
        PayerStatementState::Compared => v1::PayerStatementState::Compared,
    };
    v1::PayerStatement {
        id: statement.id,
        payer: statement.payer,
        from_ms: statement.from_ms,
        to_ms: statement.to_ms,
        margin_s: u32::try_from(statement.margin_ms / 1_000).unwrap_or(u32::MAX),
        actor: statement.actor,
        begun_ms: statement.begun_ms,
        lines: statement.lines,
        compared_lines: statement.compared_lines,
        state: state.into(),
        differences: statement.differences,
        unclear: statement.unclear,
        compared_ms: statement.compared_ms.unwrap_or(0),
        sums: statement.sums.into_iter().map(sum).collect(),
    }
}
