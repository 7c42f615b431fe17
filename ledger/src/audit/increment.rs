//! An increment: a closed range of the journal is added to the sums, and its transfers are compared with their orders.

use super::db::{AuditDb, Value, add_to_sums, one};
use super::differences::{DifferenceKind, Found, note};
use super::model::{AuditError, AuditLimits, Increment};
use crate::error::LedgerError;
use crate::journal::{
    BUDGET, CLEARING, DIRECT, FUNDING, PAYOUT, PENDING, POST, REVERSAL, SETTLEMENT, USER, VOID,
};
use crate::key::{ACT, number_of};
use crate::reconcile::{act_of_transfer, activity_of_transfer, done_acts, moved_by_acts, of_detached};

/// `audit_sums.kind` of what a budget key gave; its own number is that of the budget's account.
pub(super) const USED: i64 = BUDGET;
/// … of what is pending of it.
pub(super) const RESERVED: i64 = 3;
/// … and of what funded it.
pub(super) const FUNDED: i64 = 4;

/// … and of what the transfers of an act moved, whose number is the holder; it has no bonus type.
const ACTED: i64 = 5;

/// The differences of a kind that are noted one by one in an increment or a comparison; what is beyond is one more.
pub(super) const FOUND_MAX: usize = 1_000;

/// What transfers of `source` move, by account: users', payers', payouts', and the three sums of budget keys. Each row
/// has a kind, a bonus type (in the column `asset`), a holder and an amount. The rows of an account that is spread over several are one.
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

/// What a payment is whose order says so.
const RIGHT: i64 = 3;

/// The condition of a transfer `t` that paid an order. What acts of operators move is no payment of an order.
pub(crate) fn pays_order() -> String {
    format!(
        "t.debit = {BUDGET} AND t.credit <> {FUNDING} AND t.kind IN ({DIRECT}, {POST}) AND t.reference NOT LIKE '{ACT}%'"
    )
}

/// What a range has, so that nobody looks for what it has not.
#[derive(Debug, Clone, Copy)]
struct Contents {
    rows: i64,
    payments: i64,
    pending: i64,
    movements: i64,
    acted: i64,
}

impl Contents {
    fn read(db: &dyn AuditDb, params: &[Value<'_>; 2]) -> Result<Self, LedgerError> {
        let place = db.place();
        let sql = format!(
            "SELECT count(*), count(*) FILTER (WHERE {}), count(*) FILTER (WHERE t.kind IN ({PENDING}, {POST}, {VOID})),
                count(*) FILTER (WHERE t.debit = {CLEARING} OR t.credit = {CLEARING}), count(*) FILTER (WHERE {})
            FROM transfers t WHERE {place} >= $1 AND {place} < $2",
            pays_order(),
            moved_by_acts()
        );
        let row = one(db, &sql, params)?;
        Ok(Self {
            rows: row[0].int()?,
            payments: row[1].int()?,
            pending: row[2].int()?,
            movements: row[3].int()?,
            acted: row[4].int()?,
        })
    }
}

/// What the transfers of the range add to the sums of all that is no user's account. There are few of them, so the range is read
/// once, as the few sums of transfers that are alike.
fn added_to_others(place: &str) -> String {
    let holder = |side: &str| format!("CASE WHEN {side} = {USER} THEN 0 ELSE {side}_holder END");
    format!(
        "WITH moved AS MATERIALIZED (
            SELECT kind, asset, debit, {} AS debit_holder, credit, {} AS credit_holder, CAST(sum(amount) AS bigint) AS amount
            FROM transfers WHERE {place} >= $1 AND {place} < $2 GROUP BY 1, 2, 3, 4, 5, 6
        ) SELECT kind, asset, holder, CAST(sum(amount) AS bigint) AS amount FROM ({}) AS sides WHERE kind <> {USER}
        GROUP BY kind, asset, holder HAVING sum(amount) <> 0 ORDER BY kind, asset, holder",
        holder("debit"),
        holder("credit"),
        sides("moved")
    )
}

/// What each transfer of the range adds to users' accounts.
fn added_to_users(place: &str) -> String {
    let of = |side: &str, sign: &str| {
        format!(
            "SELECT asset, {side}_holder AS holder, {sign}amount AS amount FROM transfers
            WHERE {place} >= $1 AND {place} < $2 AND {side} = {USER} AND kind IN ({DIRECT}, {POST}, {REVERSAL})"
        )
    };
    format!("{} UNION ALL {}", of("credit", ""), of("debit", "-"))
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

/// Transfers that paid an order which does not say so. An order is found by its key and its budget key.
///
/// Each order is looked at by its key, except those that `near` selects, which are right. The look is an expression and no join, so
/// that no database comes to read all orders for it.
fn wrong_payments(place: &str, near: Option<&str>, has_closed: bool) -> String {
    // What has gone with its activity is not missing.
    let absent = if has_closed {
        format!("CASE WHEN {} THEN {RIGHT} ELSE 0 END", of_detached("place"))
    } else {
        "0".to_owned()
    };
    let payer = "coalesce((SELECT p.name FROM names p WHERE p.id = t.credit_holder), '')";
    let unlike = format!(
        "t.amount <> o.amount OR (t.credit = {USER} AND t.credit_holder <> o.user_id)
            OR (t.credit <= {SETTLEMENT} AND o.payer <> {payer})"
    );
    let but_near = near.map_or_else(String::new, |near| {
        format!(
            "AND NOT EXISTS (SELECT 1 FROM ({near}) AS o WHERE o.paid_by = t.id AND o.order_key = t.reference
                AND o.program = t.debit_holder AND o.status = 1 AND NOT ({unlike}))"
        )
    });
    format!(
        "WITH suspect AS MATERIALIZED (
            SELECT id, asset, debit_holder, credit, credit_holder, amount, reference, {place} AS place FROM transfers t
            WHERE {place} >= $1 AND {place} < $2 AND {} {but_near}
        ), judged AS (
            SELECT t.id, t.asset, t.amount, t.reference, coalesce((
                SELECT CASE WHEN o.status <> 1 THEN 0 WHEN o.paid_by <> t.id THEN 1 WHEN {unlike} THEN 2 ELSE {RIGHT} END
                FROM orders o WHERE o.order_key = t.reference AND o.program = t.debit_holder
            ), {absent}) AS verdict FROM suspect t
        )
        SELECT j.id, j.reference, j.amount, n.name, j.verdict FROM judged j LEFT JOIN names n ON n.id = j.asset
        WHERE j.verdict <> {RIGHT} ORDER BY j.id LIMIT {}",
        pays_order(),
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
        db.clear_sums()?;
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
        let contents = Contents::read(db, &params)?;
        done.transfers = u64::try_from(contents.rows).unwrap_or(0);
        let place = db.place();
        db.execute(&add_to_sums(&added_to_others(place)), &params)?;
        db.add_to_users(&added_to_users(place), &params, contents.rows)?;
        if contents.pending > 0 {
            db.execute(&add_to_pending(place), &params)?;
            db.execute("DELETE FROM audit_pending WHERE amount = 0", &[])?;
        }
        let found = find(db, &params, contents)?;
        done.differences = note(db, &found, now_ms)?;
    }
    let read = transfers.saturating_add(i64::try_from(done.transfers).unwrap_or(i64::MAX));
    db.execute(
        "UPDATE audit_position SET at = $1, cluster = $2, transfers = $3, read_ms = $4",
        &[Value::Int(to), Value::Int(cluster), Value::Int(read), Value::Int(now_ms)],
    )?;
    Ok(done)
}

/// Compares the transfers of the range with what they belong to.
fn find(db: &dyn AuditDb, params: &[Value<'_>; 2], contents: Contents) -> Result<Vec<Found>, LedgerError> {
    let mut found = Vec::new();
    let mut is_more = false;
    if contents.payments > 0 {
        is_more |= payments(db, params, contents.payments, &mut found)?;
    }
    if contents.movements > 0 {
        is_more |= movements(db, params, &mut found)?;
    }
    if contents.acted > 0 {
        is_more |= acted_without(db, params, &mut found)?;
    }
    if is_more {
        let [Value::Int(from), Value::Int(to)] = params else { return Ok(found) };
        let subject = format!("transfers from place {from} up to {to}");
        let detail = "more of them are wrong than are listed; mend these first".to_owned();
        found.push(Found::new(DifferenceKind::MoreThanListed, subject, detail));
    }
    Ok(found)
}

/// Returns whether more are wrong than are listed, as the next two do.
fn payments(
    db: &dyn AuditDb,
    params: &[Value<'_>; 2],
    count: i64,
    found: &mut Vec<Found>,
) -> Result<bool, LedgerError> {
    let near = db.orders_near(params, count)?;
    let sql = wrong_payments(db.place(), near.as_deref(), db.has_closed()?);
    let rows = if near.is_some() { db.rows_hashed(&sql, params)? } else { db.rows(&sql, params)? };
    for row in &rows {
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
    Ok(rows.len() > FOUND_MAX)
}

fn movements(db: &dyn AuditDb, params: &[Value<'_>; 2], found: &mut Vec<Found>) -> Result<bool, LedgerError> {
    let rows = db.rows(&moves_without_withdrawal(db.place()), params)?;
    for row in &rows {
        let detail =
            format!("{} for withdrawal {}, which does not exist", row[2].int()?, number_of(row[1].text()));
        let subject = format!("transfer {}", row[0].int()?);
        found.push(Found::new(DifferenceKind::MovementWithoutWithdrawal, subject, detail));
    }
    Ok(rows.len() > FOUND_MAX)
}

/// Adds what acts moved to their sums, and finds what no act stands for.
fn acted_without(
    db: &dyn AuditDb,
    params: &[Value<'_>; 2],
    found: &mut Vec<Found>,
) -> Result<bool, LedgerError> {
    let place = db.place();
    let has_acts = db.has_acts()?;
    if has_acts {
        db.execute(&add_to_acts(place), params)?;
    }
    let rows = db.rows(&without_act(place, has_acts), params)?;
    for row in &rows {
        let (id, amount, reference, bonus_type) =
            (row[0].int()?, row[2].int()?, row[1].text(), row[3].text());
        let detail = format!(
            "{amount} {bonus_type}, reference {:?}: no act of two operators stands for it, or it has another transfer, too",
            reference.trim()
        );
        found.push(Found::new(DifferenceKind::TransferWithoutAct, format!("transfer {id}"), detail));
    }
    Ok(rows.len() > FOUND_MAX)
}
