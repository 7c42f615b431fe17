//! The comparison of a statement, step by step: first its lines with the ledger, then the ledger's payments with its lines.

use super::conditions::{GIVEN, taken_back};
use super::model::{PayerStatement, PayerStatementError, PayerTotals};
use super::stored::{COMPARED, FIRST, LEDGER, LINES, Stored, TIMES, UPLOADING, find, subject};
use super::upload::{ORDER, WITHDRAWAL, not_whole};
use super::walk;
use crate::audit::db::{AuditDb, Row, Value};
use crate::audit::differences::{DifferenceKind, Found, note_each};
use crate::audit::increment::FOUND_MAX;
use crate::audit::model::AuditLimits;
use crate::error::LedgerError;
use crate::model::{CREDITED, REJECTED, RESERVED};
use crate::withdrawal::WithdrawalStatus;

/// What a line is: the codes of the statement below.
const AGREES: i64 = 0;
const REPEATED: i64 = 1;
const UNKNOWN: i64 = 2;
const ANOTHER: i64 = 3;
const PAID_RETURNED: i64 = 4;
const IN_FLIGHT: i64 = 5;
const RETURNED_PAID: i64 = 6;

/// Takes the next step.
pub(super) fn step(
    db: &dyn AuditDb,
    limits: AuditLimits,
    id: i64,
    totals: &PayerTotals,
    now_ms: i64,
) -> Result<PayerStatement, PayerStatementError> {
    let mut own = find(db, id)?;
    if own.stage == UPLOADING {
        if let Some(what) = not_whole(&own.statement, totals) {
            return Err(PayerStatementError::NotWhole { what });
        }
        let at_ms = own.statement.to_ms.saturating_add(own.statement.margin_ms);
        if now_ms < at_ms {
            return Err(PayerStatementError::TooEarly { at_ms });
        }
        (own.stage, own.place) = (LINES, 0);
    }
    let found = match own.stage {
        LINES => lines(db, limits, &mut own)?,
        TIMES => {
            walk::read_times(db, limits, &mut own)?;
            Vec::new()
        }
        LEDGER => walk::payments(db, limits, &mut own)?,
        // Compared: a call that was made again after a lost answer.
        _ => return Ok(own.statement),
    };
    keep(db, &mut own, found, now_ms)?;
    let compared_ms = (own.stage == COMPARED).then_some(now_ms);
    store(db, &own, compared_ms)?;
    Ok(find(db, id)?.statement)
}

fn store(db: &dyn AuditDb, own: &Stored, compared_ms: Option<i64>) -> Result<(), LedgerError> {
    let int = |count: u64| Value::Int(i64::try_from(count).unwrap_or(i64::MAX));
    let compared = compared_ms.map_or(String::new(), |at_ms| format!(", compared_ms = {at_ms}"));
    let sql = format!(
        "UPDATE audit_statements SET stage = $1, place = $2, end_place = $3, covered_ms = $4, low_ms = $5, \
         differences = $6, unclear = $7{compared} WHERE id = $8"
    );
    let params = [
        Value::Int(own.stage),
        Value::Int(own.place),
        Value::Int(own.end_place),
        Value::Int(own.covered_ms),
        Value::Int(own.low_ms),
        int(own.statement.differences),
        int(own.statement.unclear),
        Value::Int(own.statement.id),
    ];
    db.execute(&sql, &params)?;
    Ok(())
}

/// Notes what was found, with the statement. Of one statement no more differences are listed than of one look of the auditor: a
/// wrong file must not fill the table.
fn keep(db: &dyn AuditDb, own: &mut Stored, mut found: Vec<Found>, now_ms: i64) -> Result<(), LedgerError> {
    let statement = &mut own.statement;
    let room = FOUND_MAX.saturating_sub(usize::try_from(statement.differences).unwrap_or(usize::MAX));
    if found.len() > room {
        found.truncate(room);
        found.push(Found::new(
            DifferenceKind::MoreThanListed,
            format!(
                "statement of payer \"{}\" from {} to {}",
                statement.payer, statement.from_ms, statement.to_ms
            ),
            format!("more of statement {} differs than is listed; mend these first", statement.id),
        ));
    }
    let insert = "INSERT INTO audit_statement_differences (statement, difference) VALUES ($1, $2) \
                  ON CONFLICT (statement, difference) DO NOTHING";
    for difference in note_each(db, &found, now_ms)? {
        statement.differences += db.execute(insert, &[Value::Int(statement.id), Value::Int(difference)])?;
    }
    Ok(())
}

/// The lines of a page with what the ledger has under their keys, as a table `page`. The page is from behind $2 up to $3, the payer
/// is $4. The first line of a key is the first entry of its index, whatever the database expects. What was paid from the period's
/// end `to_ms` on, after an order was refused and replayed, the next statement speaks of.
fn page(taken_back: &str, to_ms: i64) -> String {
    let paid = WithdrawalStatus::Paid.code();
    let (refused, held) = (WithdrawalStatus::Refused.code(), WithdrawalStatus::Held.code());
    format!(
        "WITH seen AS (
            SELECT l.line, l.key, l.bonus_type, l.amount, l.returned, o.payer AS order_payer, w.payer AS withdrawal_payer,
                coalesce(o.amount, w.amount) AS has_amount,
                CASE WHEN o.order_key IS NOT NULL THEN b.name ELSE d.name END AS has_type,
                CASE WHEN o.order_key IS NULL AND w.withdrawal_key IS NULL THEN -1
                    WHEN o.payer = $4 OR w.payer = $4 THEN 1 ELSE 0 END AS is_own,
                CASE WHEN o.status = {CREDITED} OR w.status = {paid} THEN {CREDITED}
                    WHEN o.status = {REJECTED} OR w.status = {refused} THEN {REJECTED}
                    WHEN o.status = {RESERVED} OR w.status = {held} THEN {RESERVED} END AS status,
                CASE WHEN l.returned = 1 AND o.status = {CREDITED} AND {taken_back} THEN 1 ELSE 0 END AS is_taken_back,
                CASE WHEN l.returned = 1 AND o.status = {CREDITED}
                    AND (SELECT t.time_ms FROM transfers t WHERE t.id = o.paid_by) >= {to_ms} THEN 1 ELSE 0 END AS is_paid_later,
                (SELECT r.line FROM audit_statement_lines r WHERE r.ledger_key = l.ledger_key AND r.statement >= l.statement
                    AND +r.statement <= l.statement AND r.what = l.what AND r.key = l.key ORDER BY r.statement, r.line LIMIT 1) AS first
            FROM audit_statement_lines l
            LEFT JOIN orders o ON l.what = {ORDER} AND o.order_key = l.ledger_key
            LEFT JOIN programs p ON p.id = o.program
            LEFT JOIN names a ON a.id = p.activity LEFT JOIN names b ON b.id = p.asset
            LEFT JOIN withdrawals w ON l.what = {WITHDRAWAL} AND w.withdrawal_key = l.ledger_key AND {GIVEN} = l.key
            LEFT JOIN names d ON d.id = w.asset
            WHERE l.statement = $1 AND l.line > $2 AND l.line <= $3
        ), page AS (
            SELECT line, key, bonus_type, amount, returned, order_payer, withdrawal_payer, has_amount, has_type, status, first,
                CASE WHEN first < line THEN {REPEATED} WHEN is_own = -1 THEN {UNKNOWN}
                    WHEN is_own = 0 AND returned = 0 THEN {ANOTHER} WHEN is_own = 0 THEN {AGREES}
                    WHEN status = {RESERVED} THEN {IN_FLIGHT}
                    WHEN returned = 0 AND status = {REJECTED} THEN {PAID_RETURNED}
                    WHEN returned = 1 AND status = {CREDITED} AND is_taken_back = 0 AND is_paid_later = 0 THEN {RETURNED_PAID}
                    ELSE {AGREES} END AS what,
                CASE WHEN first = line AND is_own = 1 AND (amount <> has_amount OR bonus_type <> coalesce(has_type, ''))
                    THEN 1 ELSE 0 END AS differs
            FROM seen
        )"
    )
}

/// Compares a page of lines.
fn lines(db: &dyn AuditDb, limits: AuditLimits, own: &mut Stored) -> Result<Vec<Found>, LedgerError> {
    let id = own.statement.id;
    let all = i64::try_from(own.statement.lines).unwrap_or(i64::MAX);
    let last = own.place.saturating_add(i64::from(limits.order_rows)).min(all);
    let page = page(taken_back(db)?, own.statement.to_ms);
    let payer = own.statement.payer.clone();
    let params = [Value::Int(id), Value::Int(own.place), Value::Int(last), Value::Text(&payer)];
    let sql = format!(
        "{page} SELECT line, key, bonus_type, amount, returned, order_payer, withdrawal_payer, has_amount, has_type, status, \
         first, what, differs FROM page WHERE what <> {AGREES} OR differs = 1 ORDER BY line LIMIT {}",
        FOUND_MAX + 1
    );
    let mut found = Vec::new();
    for row in &db.rows(&sql, &params)? {
        found.extend(of_line(own, row)?);
    }
    let sql = format!(
        "{page} SELECT bonus_type, count(*), CAST(sum(amount) AS bigint) FROM page \
         WHERE what = {AGREES} AND differs = 0 AND returned = 0 GROUP BY bonus_type"
    );
    let update = "UPDATE audit_statement_sums SET agreed_lines = agreed_lines + $1, agreed_amount = agreed_amount + $2 \
                  WHERE statement = $3 AND bonus_type = $4";
    for row in &db.rows(&sql, &params)? {
        let (rows, amount) = (Value::Int(row[1].int()?), Value::Int(row[2].int()?));
        db.execute(update, &[rows, amount, Value::Int(id), Value::Text(row[0].text())])?;
    }
    own.place = last;
    if last >= all {
        (own.stage, own.place) = (TIMES, FIRST);
    }
    Ok(found)
}

/// What differs in a line: how it ended, and what was paid.
fn of_line(own: &Stored, row: &Row) -> Result<Vec<Found>, LedgerError> {
    let (line, key, returned) = (row[0].int()?, row[1].text(), row[4].int()? == 1);
    let payer = if row[5].text().is_empty() { row[6].text() } else { row[5].text() };
    let has = match (row[7].int_or_none()?, row[9].int_or_none()?) {
        (Some(amount), Some(status)) => {
            let status = match status {
                CREDITED => "as paid",
                REJECTED => "as not paid, for good",
                _ => "as waiting for its payer",
            };
            format!("the ledger has {amount} {} {status}", row[8].text())
        }
        _ => "the ledger does not know this key".to_owned(),
    };
    let says = format!(
        "line {line} of statement {} says {} {} {}",
        own.statement.id,
        row[3].int()?,
        row[2].text(),
        if returned { "returned" } else { "paid" }
    );
    let (kind, detail) = match row[11].int()? {
        REPEATED => {
            let first = row[10].int_or_none()?.unwrap_or_default();
            (Some(DifferenceKind::PayerRepeated), format!("{says}; line {first} has the same key"))
        }
        UNKNOWN => (Some(DifferenceKind::PayerKeyUnknown), format!("{says}; {has}")),
        ANOTHER if payer.is_empty() => {
            (Some(DifferenceKind::PayerIsAnother), format!("{says}; {has}, by no payer"))
        }
        ANOTHER => (Some(DifferenceKind::PayerIsAnother), format!("{says}; {has}, by the payer \"{payer}\"")),
        PAID_RETURNED => (Some(DifferenceKind::PayerPaidReturned), format!("{says}; {has}")),
        IN_FLIGHT => (Some(DifferenceKind::PayerInFlight), format!("{says}; {has}")),
        RETURNED_PAID => (Some(DifferenceKind::PayerReturnedPaid), format!("{says}; {has}")),
        _ => (None, String::new()),
    };
    let mut found: Vec<Found> =
        kind.into_iter().map(|kind| Found::new(kind, subject(own, key), detail.clone())).collect();
    if row[12].int()? == 1 {
        found.push(Found::new(DifferenceKind::PayerMismatch, subject(own, key), format!("{says}; {has}")));
    }
    Ok(found)
}
