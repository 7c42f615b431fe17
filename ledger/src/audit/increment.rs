//! An increment: a closed range of the journal is added to the sums, and its transfers are compared with their orders.

use super::db::{AuditDb, Value, one};
use super::differences::{DifferenceKind, Found, note};
use super::{AuditError, AuditLimits, Increment};
use crate::error::LedgerError;
use crate::journal::{
    BUDGET, CLEARING, DIRECT, FUNDING, PAYOUT, PENDING, POST, REVERSAL, SETTLEMENT, USER, VOID,
};
use crate::key::{ACT, number_of};
use crate::reconcile::{act_of_transfer, activity_of_transfer, done_acts, moved_by_acts};

/// `audit_sums.kind` of what a budget key gave; its own number is that of the budget's account.
pub(super) const USED: i64 = BUDGET;
/// … of what is pending of it.
pub(super) const RESERVED: i64 = 3;
/// … and of what funded it.
pub(super) const FUNDED: i64 = 4;

/// … and of what the transfers of an act moved, whose number is the holder; it has no asset.
const ACTED: i64 = 5;

/// The differences of a kind that are noted one by one in an increment or a comparison; what is beyond is one more.
pub(super) const FOUND_MAX: usize = 1_000;

/// What transfers of `source` move, by account: users', payers', payouts', and the three sums of budget keys. Each row
/// has a kind, an asset, a holder and an amount. The rows of an account that is spread over several are one.
pub(super) fn sides(source: &str) -> String {
    let moves = format!("kind IN ({DIRECT}, {POST}, {REVERSAL})");
    let account = |side: &str, sign: &str| {
        format!(
            "SELECT CASE WHEN {side} < {SETTLEMENT} THEN {SETTLEMENT} ELSE {side} END AS kind, asset,
                CASE WHEN {side} IN ({CLEARING}, {PAYOUT}) THEN 0 ELSE {side}_holder END AS holder, {sign}amount AS amount
            FROM {source} WHERE {moves} AND {side} <= {USER}"
        )
    };
    format!(
        "{} UNION ALL {}
        UNION ALL SELECT {USED}, asset, debit_holder, amount FROM {source}
            WHERE debit = {BUDGET} AND credit <> {FUNDING} AND {moves}
        UNION ALL SELECT {USED}, asset, credit_holder, -amount FROM {source}
            WHERE credit = {BUDGET} AND debit <> {FUNDING} AND {moves}
        UNION ALL SELECT {RESERVED}, asset, debit_holder, CASE kind WHEN {PENDING} THEN amount ELSE -amount END FROM {source}
            WHERE debit = {BUDGET} AND credit <> {FUNDING} AND kind IN ({PENDING}, {POST}, {VOID})
        UNION ALL SELECT {FUNDED}, asset, credit_holder, amount FROM {source} WHERE debit = {FUNDING} AND credit = {BUDGET}
        UNION ALL SELECT {FUNDED}, asset, debit_holder, -amount FROM {source} WHERE debit = {BUDGET} AND credit = {FUNDING}",
        account("debit", "-"),
        account("credit", "")
    )
}

/// The columns of a transfer that audits read.
pub(super) const COLUMNS: &str =
    "id, kind, asset, debit, debit_holder, credit, credit_holder, amount, reference";

/// The range from $1 up to $2, as a table of the statement.
fn range(place: &str) -> String {
    format!(
        "WITH moved AS MATERIALIZED (SELECT {COLUMNS} FROM transfers WHERE {place} >= $1 AND {place} < $2)"
    )
}

fn add_to_sums(place: &str) -> String {
    format!(
        "{} INSERT INTO audit_sums (kind, asset, holder, amount)
        SELECT kind, asset, holder, CAST(sum(amount) AS bigint) FROM ({}) AS sides
        GROUP BY kind, asset, holder HAVING sum(amount) <> 0 ORDER BY kind, asset, holder
        ON CONFLICT (kind, asset, holder) DO UPDATE SET amount = audit_sums.amount + excluded.amount",
        range(place),
        sides("moved")
    )
}

fn add_to_pending(place: &str) -> String {
    let change = format!("sum(CASE kind WHEN {PENDING} THEN amount ELSE -amount END)");
    format!(
        "INSERT INTO audit_pending (program, reference, amount)
        SELECT debit_holder, reference, CAST({change} AS bigint) FROM transfers
        WHERE {place} >= $1 AND {place} < $2 AND kind IN ({PENDING}, {POST}, {VOID})
        GROUP BY debit_holder, reference HAVING {change} <> 0
        ON CONFLICT (program, reference) DO UPDATE SET amount = audit_pending.amount + excluded.amount"
    )
}

/// Transfers that paid an order which does not say so. An order is found by its key and its budget key. What acts of operators
/// move is no payment of an order.
fn wrong_payments(place: &str) -> String {
    format!(
        "{} SELECT t.id, t.reference, t.amount, n.name,
            CASE WHEN o.order_key IS NULL OR o.status <> 1 THEN 0 WHEN o.paid_by <> t.id THEN 1 ELSE 2 END
        FROM moved t LEFT JOIN orders o ON o.order_key = t.reference AND o.program = t.debit_holder
        LEFT JOIN names n ON n.id = t.asset
        LEFT JOIN names p ON t.credit <= {SETTLEMENT} AND p.id = t.credit_holder
        WHERE t.debit = {BUDGET} AND t.credit <> {FUNDING} AND t.kind IN ({DIRECT}, {POST})
            AND t.reference NOT LIKE '{ACT}%' AND (o.order_key IS NULL OR o.status <> 1 OR o.paid_by <> t.id OR t.amount <> o.amount
                OR (t.credit = {USER} AND t.credit_holder <> o.user_id)
                OR (t.credit <= {SETTLEMENT} AND coalesce(p.name, '') <> o.payer))
        ORDER BY t.id LIMIT {}",
        range(place),
        FOUND_MAX + 1
    )
}

/// What only acts move, of the range: each transfer with the name of its act.
fn acted(place: &str) -> String {
    format!(
        "{}, acted AS MATERIALIZED (SELECT t.id, t.asset, t.amount, t.reference, {} AS about FROM moved t {} WHERE {})",
        range(place),
        act_of_transfer(),
        activity_of_transfer(),
        moved_by_acts()
    )
}

fn add_to_acts(place: &str) -> String {
    format!(
        "{} INSERT INTO audit_sums (kind, asset, holder, amount)
        SELECT {ACTED}, 0, d.act, CAST(sum(t.amount) AS bigint) FROM acted t JOIN ({}) d ON d.about = t.about
        GROUP BY d.act ORDER BY d.act
        ON CONFLICT (kind, asset, holder) DO UPDATE SET amount = audit_sums.amount + excluded.amount",
        acted(place),
        done_acts()
    )
}

/// Transfers that only acts make, and no done act stands for them with their amount, or not for them alone. An act ends in the
/// transaction that makes its transfer, so it is seen whenever that is.
fn without_act(place: &str, has_acts: bool) -> String {
    let wrong = if has_acts {
        format!(
            "LEFT JOIN ({}) d ON d.about = t.about
            LEFT JOIN audit_sums s ON s.kind = {ACTED} AND s.asset = 0 AND s.holder = d.act
            WHERE d.act IS NULL OR d.amount <> t.amount OR s.amount <> d.amount",
            done_acts()
        )
    } else {
        String::new()
    };
    format!(
        "{} SELECT t.id, t.reference, t.amount, n.name FROM acted t LEFT JOIN names n ON n.id = t.asset {wrong}
        ORDER BY t.id LIMIT {}",
        acted(place),
        FOUND_MAX + 1
    )
}

fn moves_without_withdrawal(place: &str) -> String {
    format!(
        "SELECT t.id, t.reference, t.amount FROM transfers t LEFT JOIN withdrawals w ON w.withdrawal_key = t.reference
        WHERE t.{place} >= $1 AND t.{place} < $2 AND (t.debit = {CLEARING} OR t.credit = {CLEARING}) AND w.withdrawal_key IS NULL
        ORDER BY t.id LIMIT {}",
        FOUND_MAX + 1
    )
}

/// The end of the next range, `None` where nothing is closed.
pub(super) fn range_end(
    db: &dyn AuditDb,
    at: i64,
    horizon: i64,
    rows: u32,
) -> Result<Option<i64>, LedgerError> {
    let place = db.place();
    let params = [Value::Int(at), Value::Int(horizon)];
    let sql = |offset: u32| {
        format!(
            "SELECT {place} FROM transfers WHERE {place} >= $1 AND {place} < $2 ORDER BY {place} LIMIT 1 OFFSET {offset}"
        )
    };
    let first = db.rows(&sql(0), &params)?;
    let Some(first) = first.first().map(|row| row[0].int()).transpose()? else { return Ok(None) };
    Ok(Some(match db.rows(&sql(rows), &params)?.first().map(|row| row[0].int()).transpose()? {
        // All rows of one transaction belong together.
        Some(last) => last.max(first.saturating_add(1)),
        None => horizon,
    }))
}

/// Reads the next range, in the caller's transaction.
pub(super) fn run(db: &dyn AuditDb, limits: AuditLimits, now_ms: i64) -> Result<Increment, AuditError> {
    if let Some((transfer, place)) = db.ahead()? {
        return Err(AuditError::Ahead { transfer, place });
    }
    let position = one(db, "SELECT at, cluster, transfers FROM audit_position", &[])?;
    let (mut at, known, transfers) = (position[0].int()?, position[1].int()?, position[2].int()?);
    let cluster = db.cluster()?;
    if known != 0 && cluster != 0 && known != cluster {
        // Its transactions may be numbered anew. Everything is read again.
        tracing::warn!(known, cluster, "the ledger is on another database cluster; the auditor begins anew");
        db.execute("DELETE FROM audit_sums", &[])?;
        db.execute("DELETE FROM audit_pending", &[])?;
        db.execute("DELETE FROM audit_times", &[])?;
        at = -9_000_000_000_000_000_000;
    }
    // Read before the rows: what was in flight before is below it, and committed by now.
    let horizon = db.horizon()?;
    let end = range_end(db, at, horizon, limits.increment_rows)?;
    let to = end.unwrap_or(at);
    let params = [Value::Int(at), Value::Int(to)];
    // Not told by the number of rows: a transaction is never divided, so a range may have fewer of them than its limit.
    let mut done = Increment { has_more: to > at && to < horizon, ..Increment::default() };
    if to > at {
        let place = db.place();
        let count = format!("SELECT count(*) FROM transfers WHERE {place} >= $1 AND {place} < $2");
        let rows = one(db, &count, &params)?[0].int()?;
        done.transfers = u64::try_from(rows).unwrap_or(0);
        db.execute(&add_to_sums(place), &params)?;
        db.execute(&add_to_pending(place), &params)?;
        db.execute("DELETE FROM audit_pending WHERE amount = 0", &[])?;
        let has_acts = db.has_acts()?;
        if has_acts {
            db.execute(&add_to_acts(place), &params)?;
        }
        let found = find(db, &params, has_acts)?;
        done.differences = note(db, &found, now_ms)?;
    }
    let read = transfers.saturating_add(i64::try_from(done.transfers).unwrap_or(i64::MAX));
    db.execute(
        "UPDATE audit_position SET at = $1, cluster = $2, transfers = $3, read_ms = $4",
        &[Value::Int(to), Value::Int(cluster), Value::Int(read), Value::Int(now_ms)],
    )?;
    Ok(done)
}

fn find(db: &dyn AuditDb, params: &[Value<'_>; 2], has_acts: bool) -> Result<Vec<Found>, LedgerError> {
    let place = db.place();
    let mut found = Vec::new();
    let payments = db.rows(&wrong_payments(place), params)?;
    for row in &payments {
        let (id, amount) = (row[0].int()?, row[2].int()?);
        let (order, bonus_type) = (number_of(row[1].text()), row[3].text());
        let (kind, what) = match row[4].int()? {
            0 => (
                DifferenceKind::TransferWithoutOrder,
                "there is no credited order of this number in its activity",
            ),
            1 => (DifferenceKind::DoubleCredit, "its order names another transfer"),
            _ => (DifferenceKind::TransferMismatch, "its order has another user, amount or payer"),
        };
        let detail = format!("{amount} {bonus_type} for order {order}: {what}");
        found.push(Found::new(kind, format!("transfer {id}"), detail));
    }
    let moves = db.rows(&moves_without_withdrawal(place), params)?;
    for row in &moves {
        let detail =
            format!("{} for withdrawal {}, which does not exist", row[2].int()?, number_of(row[1].text()));
        let subject = format!("transfer {}", row[0].int()?);
        found.push(Found::new(DifferenceKind::MovementWithoutWithdrawal, subject, detail));
    }
    let acted = db.rows(&without_act(place, has_acts), params)?;
    for row in &acted {
        let (id, amount, reference, bonus_type) =
            (row[0].int()?, row[2].int()?, row[1].text(), row[3].text());
        let detail = format!(
            "{amount} {bonus_type}, reference {:?}: no act of two operators stands for it, or it has another transfer, too",
            reference.trim()
        );
        found.push(Found::new(DifferenceKind::TransferWithoutAct, format!("transfer {id}"), detail));
    }
    if [&payments, &moves, &acted].iter().any(|rows| rows.len() > FOUND_MAX) {
        let [Value::Int(from), Value::Int(to)] = params else { return Ok(found) };
        let subject = format!("transfers from place {from} up to {to}");
        let detail = "more of them are wrong than are listed; mend these first".to_owned();
        found.push(Found::new(DifferenceKind::MoreThanListed, subject, detail));
    }
    Ok(found)
}
