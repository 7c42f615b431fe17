//! The other direction: payments of the payer by the ledger, in the order of their places, against the lines of statements.

use super::conditions::{GIVEN, taken_back};
use super::model::PayerStatementError;
use super::stored::{COMPARED, FIRST, LEDGER, Stored, subject};
use super::upload::{ORDER, WITHDRAWAL};
use crate::audit::db::{AuditDb, Value, one};
use crate::audit::differences::{DifferenceKind, Found};
use crate::audit::increment::{FOUND_MAX, range_end};
use crate::audit::model::{AuditError, AuditLimits};
use crate::error::LedgerError;
use crate::journal::{BUDGET, CLEARING, DIRECT, PAYOUT, POST, SETTLEMENT};
use crate::key::number_of;
use crate::model::CREDITED;
use crate::withdrawal::WithdrawalStatus;

/// How many statements of the payer, one in front of the other, are followed to the beginning of what they cover together.
const COVERED_MAX: usize = 100;

/// Notes the times of the next closed range of transfers. When all are noted that are closed now, the ledger's payments come.
pub(super) fn read_times(
    db: &dyn AuditDb,
    limits: AuditLimits,
    own: &mut Stored,
) -> Result<(), PayerStatementError> {
    is_this_cluster(db)?;
    let at = closed(db)?;
    // Read before the rows, as in an increment.
    let horizon = db.horizon()?;
    let end = range_end(db, at, horizon, limits.account_rows)?;
    let place = db.place();
    if let Some(to) = end {
        let sql = format!(
            "INSERT INTO audit_times (from_at, to_at, min_ms, max_ms) SELECT CAST($1 AS bigint), CAST($2 AS bigint), \
             min(time_ms), max(time_ms) FROM transfers WHERE {place} >= $3 AND {place} < $4"
        );
        db.execute(&sql, &[at, to, at, to].map(Value::Int))?;
    }
    // Behind it there may always be more: writers go on.
    if end.is_none_or(|to| to >= horizon) {
        let last = one(db, &format!("SELECT max({place}) FROM transfers"), &[])?[0].int_or_none()?;
        own.end_place = last.map_or(FIRST, |last| last.saturating_add(1));
        (own.covered_ms, own.low_ms) = covered(db, own)?;
        (own.stage, own.place) = (LEDGER, FIRST);
    }
    Ok(())
}

/// The place up to which the times of transfers are noted.
fn closed(db: &dyn AuditDb) -> Result<i64, LedgerError> {
    one(db, "SELECT coalesce(max(to_at), $1) FROM audit_times", &[Value::Int(FIRST)])?[0].int()
}

/// Refuses a ledger whose transactions are numbered anew: its new transfers may have places of long ago.
fn is_this_cluster(db: &dyn AuditDb) -> Result<(), AuditError> {
    if let Some((transfer, place)) = db.ahead()? {
        return Err(AuditError::Ahead { transfer, place });
    }
    let known = one(db, "SELECT cluster FROM audit_position", &[])?[0].int()?;
    let cluster = db.cluster()?;
    if cluster != 0 && known != cluster {
        let why = "the auditor has not read this server's transfers yet: compare again in a minute";
        return Err(LedgerError::Unavailable(why.into()).into());
    }
    Ok(())
}

/// From when on the payer's statements speak without a gap up to the end of this one, and the time of the first payment that
/// this one claims.
fn covered(db: &dyn AuditDb, own: &Stored) -> Result<(i64, i64), LedgerError> {
    let statement = &own.statement;
    let (mut from_ms, mut low_ms) = (statement.from_ms, statement.from_ms);
    let sql = "SELECT min(from_ms), max(margin_ms) FROM audit_statements \
               WHERE payer = $1 AND compared_ms IS NOT NULL AND from_ms < $2 AND to_ms >= $3";
    for nth in 0..COVERED_MAX {
        let params = [Value::Text(&statement.payer), Value::Int(from_ms), Value::Int(from_ms)];
        let row = one(db, sql, &params)?;
        let Some(before_ms) = row[0].int_or_none()? else { break };
        if nth == 0 {
            // What those in front of it left open for their margin.
            let margin_ms = row[1].int_or_none()?.unwrap_or(0).max(statement.margin_ms);
            low_ms = low_ms.saturating_sub(margin_ms);
        }
        from_ms = before_ms;
    }
    Ok((from_ms, low_ms))
}

/// The next range of places that may have payments of the period: `None` behind the last one.
fn next_range(
    db: &dyn AuditDb,
    limits: AuditLimits,
    own: &Stored,
) -> Result<Option<(i64, i64)>, LedgerError> {
    let sql = "SELECT from_at, to_at FROM audit_times WHERE to_at > $1 AND from_at < $2 AND max_ms >= $3 AND min_ms < $4 \
               ORDER BY from_at LIMIT 1";
    let params = [own.place, own.end_place, own.low_ms, own.statement.to_ms].map(Value::Int);
    if let Some(row) = db.rows(sql, &params)?.first() {
        // It may have been closed while a part of it was read already.
        return Ok(Some((row[0].int()?.max(own.place), row[1].int()?)));
    }
    // What is not closed: read without knowing its times.
    let from = own.place.max(closed(db)?);
    Ok(range_end(db, from, own.end_place, limits.order_rows)?.map(|to| (from, to)))
}

/// The payments of the payer in a range of places, from $1 up to $2, whose times are from $3 up to $4; the payer is $5.
fn paid(db: &dyn AuditDb) -> Result<String, LedgerError> {
    let place = db.place();
    let taken_back = taken_back(db)?;
    let is_paid = WithdrawalStatus::Paid.code();
    let within =
        format!("t.{place} >= $1 AND t.{place} < $2 AND t.time_ms >= $3 AND t.time_ms < $4 AND t.amount > 0");
    Ok(format!(
        "WITH paid AS MATERIALIZED (
            SELECT t.id, t.time_ms, t.amount, t.asset, {ORDER} AS what, o.order_key AS ledger_key, '' AS given, o.created_ms,
                a.name AS activity, CASE WHEN {taken_back} THEN 1 ELSE 0 END AS is_taken_back
            FROM transfers t JOIN orders o ON o.order_key = t.reference AND o.paid_by = t.id
            LEFT JOIN programs p ON p.id = o.program LEFT JOIN names a ON a.id = p.activity
            WHERE {within} AND t.debit = {BUDGET} AND t.credit <= {SETTLEMENT} AND t.kind IN ({DIRECT}, {POST})
                AND o.status = {CREDITED} AND o.payer = $5
            UNION ALL
            SELECT t.id, t.time_ms, t.amount, t.asset, {WITHDRAWAL}, w.withdrawal_key, {GIVEN}, w.created_ms, '', 0
            FROM transfers t JOIN withdrawals w ON w.withdrawal_key = t.reference
            WHERE {within} AND t.debit = {CLEARING} AND t.credit = {PAYOUT} AND t.kind = {DIRECT}
                AND w.status = {is_paid} AND w.payer = $5
        )"
    ))
}

/// The payments of the table above that no statement of the payer lists which speaks of them: this one, $6, those that were
/// compared and begin before $7, and end behind $8. What an earlier one lists as returned may have been paid since: an order that
/// its payer had refused is asked for again when it is replayed. The plus makes SQLite look a line up by its key.
const LACKING: &str = ", lacking AS (
    SELECT * FROM paid p WHERE is_taken_back = 0 AND NOT EXISTS (
        SELECT 1 FROM audit_statement_lines l JOIN audit_statements s ON s.id = +l.statement
        WHERE l.ledger_key = p.ledger_key AND l.what = p.what AND (p.what = 0 OR l.key = p.given)
            AND (s.id = $6 OR (l.returned = 0 AND s.payer = $5 AND s.compared_ms IS NOT NULL AND s.from_ms < $7 AND s.to_ms > $8)))
)";

/// Compares the payments of the next range with the lines.
pub(super) fn payments(
    db: &dyn AuditDb,
    limits: AuditLimits,
    own: &mut Stored,
) -> Result<Vec<Found>, PayerStatementError> {
    is_this_cluster(db)?;
    let Some((from, to)) = next_range(db, limits, own)? else {
        own.stage = COMPARED;
        return Ok(Vec::new());
    };
    own.place = to;
    let paid = paid(db)?;
    let statement = &own.statement;
    let payer = statement.payer.clone();
    let params = [
        Value::Int(from),
        Value::Int(to),
        Value::Int(own.low_ms),
        Value::Int(statement.to_ms),
        Value::Text(&payer),
        Value::Int(statement.id),
        Value::Int(statement.from_ms),
        Value::Int(own.covered_ms),
    ];
    let (from_ms, end_ms) = (statement.from_ms, statement.to_ms.saturating_sub(statement.margin_ms));
    let made_ms = own.covered_ms.saturating_add(statement.margin_ms);
    let sql = format!(
        "{paid}{LACKING} SELECT p.what, p.ledger_key, p.given, p.activity, p.amount, n.name, p.time_ms FROM lacking p
         LEFT JOIN names n ON n.id = p.asset WHERE p.time_ms < {end_ms} AND p.created_ms >= {made_ms}
         ORDER BY p.id LIMIT {}",
        FOUND_MAX + 1
    );
    let mut found = Vec::new();
    for row in &db.rows(&sql, &params)? {
        let key = match row[0].int()? {
            WITHDRAWAL => row[2].text().to_owned(),
            _ => of_order(row[1].text(), row[3].text()),
        };
        let detail = format!(
            "the ledger says {} {} paid, at {} (Unix milliseconds); statement {} does not list it",
            row[4].int()?,
            row[5].text(),
            row[6].int()?,
            statement.id
        );
        found.push(Found::new(DifferenceKind::PayerLacks, subject(own, &key), detail));
    }
    let sql = format!(
        "{paid}{LACKING} SELECT count(*) FROM lacking WHERE time_ms < {end_ms} AND created_ms < {made_ms}"
    );
    let unclear = one(db, &sql, &params)?[0].int()?;
    own.statement.unclear += u64::try_from(unclear).unwrap_or(0);
    add(
        db,
        own.statement.id,
        &format!(
            "{paid} SELECT n.name, count(*), CAST(sum(p.amount) AS bigint) FROM paid p
         JOIN names n ON n.id = p.asset WHERE p.time_ms >= {from_ms} GROUP BY n.name"
        ),
        &params[..5],
    )?;
    Ok(found)
}

/// The key that the payer of an order was given.
fn of_order(ledger_key: &str, activity: &str) -> String {
    match number_of(ledger_key) {
        number if number == ledger_key => number.to_owned(),
        number => format!("order {activity} {number}"),
    }
}

/// Adds what the ledger says to the statement's sums.
fn add(db: &dyn AuditDb, id: i64, sql: &str, params: &[Value<'_>]) -> Result<(), LedgerError> {
    let insert = "INSERT INTO audit_statement_sums (statement, bonus_type, lines, amount, returned_lines, returned_amount, \
                  agreed_lines, agreed_amount, ledger_rows, ledger_amount) VALUES ($1, $2, 0, 0, 0, 0, 0, 0, $3, $4) \
                  ON CONFLICT (statement, bonus_type) DO UPDATE SET \
                  ledger_rows = audit_statement_sums.ledger_rows + excluded.ledger_rows, \
                  ledger_amount = audit_statement_sums.ledger_amount + excluded.ledger_amount";
    for row in &db.rows(sql, params)? {
        let (rows, amount) = (Value::Int(row[1].int()?), Value::Int(row[2].int()?));
        db.execute(insert, &[Value::Int(id), Value::Text(row[0].text()), rows, amount])?;
    }
    Ok(())
}
