//! The sweep: users' accounts, orders and withdrawals, page after page in the order of their keys, again and again. Where it is
//! stands in the position's row.

use super::db::{AuditDb, Row, Value, one};
use super::differences::{DifferenceKind, Found};
use super::increment::{FOUND_MAX, sides};
use super::model::AuditLimits;
use super::sides::{more, sides_detail, with_tail};
use crate::error::LedgerError;
use crate::journal::{CLEARING, DIRECT, PAYOUT, USER};
use crate::key::number_of;
use crate::withdrawal::WithdrawalStatus;

/// The stages of a sweep: what is swept.
const ACCOUNTS: i64 = 0;
const ORDERS: i64 = 1;
const WITHDRAWALS: i64 = 2;

/// A page that was swept.
struct Page {
    /// The number of its rows, as the table has them.
    rows: u64,
    /// The last key, `None` where the stage has ended.
    last: Option<Key>,
}

/// The key of a row: the bonus type and the holder of an account, the key and the budget key of an order, a withdrawal's key.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    text: String,
    first: i64,
    second: i64,
}

impl Key {
    /// In front of all others.
    fn first(stage: i64) -> Self {
        let least = if stage == ACCOUNTS { i64::MIN } else { 0 };
        Self { text: String::new(), first: least, second: least }
    }
}

/// Sweeps the next page, and notes where the sweep is. Returns the number of rows of the page, and whether it was the last one.
pub(super) fn next(
    db: &dyn AuditDb,
    limits: AuditLimits,
    at: i64,
    now_ms: i64,
    found: &mut Vec<Found>,
) -> Result<(u64, bool), LedgerError> {
    let row = one(
        db,
        "SELECT sweep_stage, sweep_first, sweep_second, sweep_text, sweep_began_ms, sweeps, swept_ms FROM audit_position",
        &[],
    )?;
    let (stage, sweeps, swept_ms) = (row[0].int()?, row[5].int()?, row[6].int()?);
    let began_ms = Some(row[4].int()?).filter(|began_ms| *began_ms != 0).unwrap_or(now_ms);
    let stored = Key { first: row[1].int()?, second: row[2].int()?, text: row[3].text().to_owned() };
    let is_begun = stored != Key { first: 0, second: 0, text: String::new() };
    let after = if is_begun { stored } else { Key::first(stage) };
    let page = match stage {
        ORDERS => orders(db, limits.order_rows, &after, found)?,
        WITHDRAWALS => withdrawals(db, limits.order_rows, &after, found)?,
        _ => accounts(db, limits.account_rows, at, &after, found)?,
    };
    let is_last = page.last.is_none() && stage == WITHDRAWALS;
    let (stage, key, sweeps, began_ms, swept_ms) = match (&page.last, stage) {
        (Some(last), stage) => (stage, last.clone(), sweeps, began_ms, swept_ms),
        (None, WITHDRAWALS) => (ACCOUNTS, Key::first(ORDERS), sweeps.saturating_add(1), now_ms, now_ms),
        (None, stage) => (stage + 1, Key::first(ORDERS), sweeps, began_ms, swept_ms),
    };
    db.execute(
        "UPDATE audit_position SET sweep_stage = $1, sweep_first = $2, sweep_second = $3, sweep_text = $4, \
         sweep_began_ms = $5, sweeps = $6, swept_ms = $7",
        &[
            Value::Int(stage),
            Value::Int(key.first),
            Value::Int(key.second),
            Value::Text(&key.text),
            Value::Int(began_ms),
            Value::Int(sweeps),
            Value::Int(swept_ms),
        ],
    )?;
    Ok((page.rows, is_last))
}

/// The number of rows of a page that ends a stage.
fn rest(db: &dyn AuditDb, sql: &str, params: &[Value<'_>]) -> Result<u64, LedgerError> {
    Ok(u64::try_from(one(db, sql, params)?[0].int()?).unwrap_or(0))
}

/// Compares accounts with their transfers. Sums and transfers of accounts that are not there count, too: they lie between two keys.
fn accounts(
    db: &dyn AuditDb,
    limit: u32,
    at: i64,
    after: &Key,
    found: &mut Vec<Found>,
) -> Result<Page, LedgerError> {
    let mut params = vec![Value::Int(after.first), Value::Int(after.second)];
    let of_page = format!("accounts WHERE kind = {USER} AND (asset, holder) > ($1, $2)");
    let end =
        format!("SELECT asset, holder FROM {of_page} ORDER BY asset, holder LIMIT 1 OFFSET {}", limit - 1);
    let last = match db.rows(&end, &params)?.first() {
        Some(row) => Some(Key { first: row[0].int()?, second: row[1].int()?, text: String::new() }),
        None => None,
    };
    let rows = match &last {
        Some(_) => u64::from(limit),
        None => rest(db, &format!("SELECT count(*) FROM {of_page}"), &params)?,
    };
    if let Some(last) = &last {
        params.extend([Value::Int(last.first), Value::Int(last.second)]);
    }
    let upper = if last.is_some() { "AND (asset, holder) <= ($3, $4)" } else { "" };
    let keys = format!("(asset, holder) > ($1, $2) {upper}");
    let packed = db.packed_sums(&params, rows)?.map_or_else(String::new, |packed| {
        format!("UNION ALL SELECT asset, holder, 0, amount FROM ({packed}) AS packed WHERE {keys}")
    });
    let page = format!("kind = {USER} AND {keys}");
    let sql = format!(
        "{}, wrong AS (
            SELECT asset, holder, CAST(sum(kept) AS bigint) AS kept, CAST(sum(moved) AS bigint) AS moved FROM (
                SELECT asset, holder, balance AS kept, 0 AS moved FROM accounts WHERE {page}
                UNION ALL SELECT asset, holder, 0, amount FROM audit_sums WHERE {page}
                {packed}
                UNION ALL SELECT asset, holder, 0, amount FROM ({}) AS sides WHERE {page}
            ) AS both_sides GROUP BY asset, holder HAVING sum(kept) <> sum(moved) OR sum(kept) < 0
        ) SELECT w.holder, w.kept, w.moved, n.name FROM wrong w LEFT JOIN names n ON n.id = w.asset
        ORDER BY w.asset, w.holder LIMIT {}",
        with_tail(db.place(), at),
        sides("tail"),
        FOUND_MAX + 1
    );
    let wrong = db.rows(&sql, &params)?;
    for row in wrong.iter().take(FOUND_MAX) {
        let subject = format!("account of user {}, {}", row[0].int()?, row[3].text());
        let (kept, moved) = (row[1].int()?, row[2].int()?);
        if kept != moved {
            let detail = sides_detail(kept, moved);
            found.push(Found::new(DifferenceKind::WrongBalance, subject.clone(), detail));
        }
        if kept < 0 {
            found.push(Found::new(DifferenceKind::Overdrawn, subject, format!("the balance is {kept}")));
        }
    }
    more(found, &wrong, "users' accounts");
    Ok(Page { rows, last })
}

/// Compares credited orders with the transfers that they name.
fn orders(db: &dyn AuditDb, limit: u32, after: &Key, found: &mut Vec<Found>) -> Result<Page, LedgerError> {
    let from = vec![Value::Text(&after.text), Value::Int(after.first)];
    let end = format!(
        "SELECT order_key, program FROM orders WHERE (order_key, program) > ($1, $2) ORDER BY order_key, program \
         LIMIT 1 OFFSET {}",
        limit - 1
    );
    let last = match db.rows(&end, &from)?.first() {
        Some(row) => Some(Key { text: row[0].text().to_owned(), first: row[1].int()?, second: 0 }),
        None => None,
    };
    let rows = match &last {
        Some(_) => u64::from(limit),
        None => rest(db, "SELECT count(*) FROM orders WHERE (order_key, program) > ($1, $2)", &from)?,
    };
    let mut params = from;
    if let Some(last) = &last {
        params.extend([Value::Text(&last.text), Value::Int(last.first)]);
    }
    let upper = if last.is_some() { "AND (o.order_key, o.program) <= ($3, $4)" } else { "" };
    let sql = format!(
        "SELECT o.order_key, o.paid_by, o.amount, a.name FROM orders o
        LEFT JOIN transfers t ON t.id = o.paid_by AND t.reference = o.order_key
        LEFT JOIN programs p ON p.id = o.program LEFT JOIN names a ON a.id = p.activity
        WHERE o.status = 1 AND t.id IS NULL AND (o.order_key, o.program) > ($1, $2) {upper}
        ORDER BY o.order_key, o.program LIMIT {}",
        FOUND_MAX + 1
    );
    let wrong = db.rows(&sql, &params)?;
    for row in wrong.iter().take(FOUND_MAX) {
        let subject = format!("order {} of {}", number_of(row[0].text()), row[3].text());
        let detail =
            format!("it is credited with {}; there is no transfer {} of it", row[2].int()?, row[1].int()?);
        found.push(Found::new(DifferenceKind::OrderWithoutTransfer, subject, detail));
    }
    more(found, &wrong, "orders");
    Ok(Page { rows, last })
}

/// The withdrawals of a page whose movements are not held once, and paid or given back once or not at all, as their status says.
fn wrong_withdrawals(upper: &str) -> String {
    let (paid, refused) = (WithdrawalStatus::Paid.code(), WithdrawalStatus::Refused.code());
    let (hold, pay) = (format!("m.credit = {CLEARING}"), format!("m.credit = {PAYOUT}"));
    let back = format!("m.credit = {USER}");
    let count = |what: &str| format!("sum(CASE WHEN {what} THEN 1 ELSE 0 END)");
    format!(
        "SELECT w.withdrawal_key, w.status, w.user_id FROM withdrawals w LEFT JOIN transfers m ON m.reference = w.withdrawal_key
             AND (m.debit = {CLEARING} OR m.credit = {CLEARING})
         WHERE w.withdrawal_key > $1 {upper} GROUP BY w.withdrawal_key, w.status, w.user_id HAVING {} <> 1
             OR {} <> CASE WHEN w.status = {paid} THEN 1 ELSE 0 END
             OR {} <> CASE WHEN w.status = {refused} THEN 1 ELSE 0 END
             OR sum(CASE WHEN m.asset <> w.asset OR m.amount <> w.amount OR m.kind <> {DIRECT}
                 OR NOT ({hold} AND m.debit = {USER} AND m.debit_holder = w.user_id
                     OR {back} AND m.credit_holder = w.user_id OR {pay}) THEN 1 ELSE 0 END) > 0
         ORDER BY w.withdrawal_key LIMIT {}",
        count(&hold),
        count(&pay),
        count(&back),
        FOUND_MAX + 1
    )
}

fn withdrawals(
    db: &dyn AuditDb,
    limit: u32,
    after: &Key,
    found: &mut Vec<Found>,
) -> Result<Page, LedgerError> {
    let mut params = vec![Value::Text(&after.text)];
    let end = format!(
        "SELECT withdrawal_key FROM withdrawals WHERE withdrawal_key > $1 ORDER BY withdrawal_key LIMIT 1 OFFSET {}",
        limit - 1
    );
    let ends = db.rows(&end, &params)?;
    let last = ends.first().map(|row| Key { text: row[0].text().to_owned(), first: 0, second: 0 });
    let rows = match &last {
        Some(_) => u64::from(limit),
        None => rest(db, "SELECT count(*) FROM withdrawals WHERE withdrawal_key > $1", &params)?,
    };
    if let Some(last) = &last {
        params.push(Value::Text(&last.text));
    }
    let sql = wrong_withdrawals(if last.is_some() { "AND w.withdrawal_key <= $2" } else { "" });
    let wrong: Vec<Row> = db.rows(&sql, &params)?;
    for row in wrong.iter().take(FOUND_MAX) {
        let detail = format!("its status is {}, and its movements are others", row[1].int()?);
        found.push(Found::new(
            DifferenceKind::WrongWithdrawal,
            format!("withdrawal {} of user {}", number_of(row[0].text()), row[2].int()?),
            detail,
        ));
    }
    more(found, &wrong, "withdrawals");
    Ok(Page { rows, last })
}
