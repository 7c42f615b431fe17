//! Order rows: insert on conflict do nothing, read back what was there, compare.

use super::rows::insert_rows;
use super::state::Connected;
use crate::decision::Known;
use crate::error::LedgerError;
use crate::key::OrderId;
use crate::model::{Awaits, Order};
use crate::model::{CREDITED, REJECTED, RESERVED, reason_code, status_of_columns};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};
use windfall_contract::accounts::Status;

/// A stored order, as far as a decision needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    /// The key that it is stored under.
    pub key: String,
    pub known: Known,
    pub created_ms: i64,
    pub transfer: i64,
}

/// The number of rows that one insert statement writes at most.
const CHUNK: usize = 64;
const COLUMNS: usize = 9;

/// Inserts orders under their keys as credited, the n-th with transfer `first_transfer + n`. Returns `None` for each that is
/// new and the stored row for each that was there (I1). None of them is stored under its number alone.
pub(crate) fn insert_credited(
    db: &Connection,
    batch: &[Order<'_>],
    keys: &[String],
    budget_keys: &[i64],
    firsts: &[usize],
    first_transfer: i64,
) -> Result<Vec<Option<Row>>, LedgerError> {
    let mut found = Vec::with_capacity(firsts.len());
    let mut transfer = first_transfer;
    let head = "INSERT INTO orders \
        (order_key, user_id, program, amount, status, reason, paid_by, created_ms, took_ms) VALUES ";
    for chunk in firsts.chunks(CHUNK) {
        let new = insert_rows(
            db,
            head,
            COLUMNS,
            " ON CONFLICT (order_key) DO NOTHING",
            chunk.len(),
            |row, bind| {
                let (at, order) = (chunk[row], &batch[chunk[row]]);
                bind.text(&keys[at])?;
                bind.int(order.user_id)?;
                bind.int(budget_keys[at])?;
                bind.int(order.amount)?;
                bind.int(CREDITED)?;
                bind.int(0)?;
                bind.int(transfer + i64::try_from(row).unwrap_or(0))?;
                bind.int(order.time_ms)?;
                bind.int(0)
            },
        )?;
        if new == chunk.len() {
            found.extend(std::iter::repeat_n(None, chunk.len()));
        } else {
            for at in chunk {
                let row = find_key(db, &keys[*at])?;
                // A transfer of this very statement: it was inserted by it.
                found.push(row.filter(|row| row.transfer < first_transfer));
            }
        }
        transfer += i64::try_from(chunk.len()).unwrap_or(0);
    }
    Ok(found)
}

/// Reads one order, under whichever key it is stored.
pub(super) fn find(ledger: &Connected, id: OrderId<'_>) -> Result<Option<Row>, LedgerError> {
    match find_key(&ledger.db, &id.key())? {
        None if ledger.has_bare => find_bare(&ledger.db, id),
        found => Ok(found),
    }
}

/// Reads an order that is stored under its number alone.
pub(crate) fn find_bare(db: &Connection, id: OrderId<'_>) -> Result<Option<Row>, LedgerError> {
    let statement = db.prepare_cached(
        "SELECT o.user_id, o.program, o.amount, o.status, o.reason, o.paid_by, o.created_ms, o.payer <> '', \
         (SELECT n.id FROM names n WHERE n.name = o.payer) FROM orders o JOIN programs p ON p.id = o.program \
         JOIN names a ON a.id = p.activity WHERE o.order_key = ?1 AND a.name = ?2 AND instr(o.order_key, ' ') = 0",
    )?;
    read(statement, id.trade_no, params![id.trade_no, id.activity])
}

fn find_key(db: &Connection, key: &str) -> Result<Option<Row>, LedgerError> {
    let statement = db.prepare_cached(
        "SELECT o.user_id, o.program, o.amount, o.status, o.reason, o.paid_by, o.created_ms, o.payer <> '', \
         (SELECT n.id FROM names n WHERE n.name = o.payer) FROM orders o WHERE o.order_key = ?1",
    )?;
    read(statement, key, params![key])
}

fn read(
    mut statement: CachedStatement<'_>,
    key: &str,
    params: &[&dyn rusqlite::ToSql],
) -> Result<Option<Row>, LedgerError> {
    let read = statement
        .query_row(params, |row| {
            let status = status_of_columns(row.get(3)?, row.get(4)?);
            let promised = status == Some(Status::Reserved) && row.get::<_, i64>(4)? == Awaits::Event.code();
            let (has_payer, payer): (bool, Option<i64>) = (row.get(7)?, row.get(8)?);
            let payer = payer.filter(|_| has_payer);
            let known = Known {
                user_id: row.get(0)?,
                budget_key: row.get(1)?,
                amount: row.get(2)?,
                status: status.unwrap_or(Status::Reserved),
                promised,
                payer,
            };
            let is_sound = status.is_some() && has_payer == payer.is_some();
            let key = key.to_owned();
            Ok((Row { key, known, transfer: row.get(5)?, created_ms: row.get(6)? }, is_sound))
        })
        .optional()?;
    match read {
        // A payer without a name would look like none, and another one would be asked (I1).
        Some((_, false)) => Err(LedgerError::Damaged(format!("order {key} has an unknown status or payer"))),
        Some((row, true)) => Ok(Some(row)),
        None => Ok(None),
    }
}

/// Inserts one order that is not credited.
pub(crate) fn insert_open(
    db: &Connection,
    key: &str,
    order: &Order<'_>,
    budget_key: i64,
    status: Status,
    awaits: Awaits,
    payer: &str,
) -> Result<(), LedgerError> {
    let (status, reason, took_ms) = columns(status, awaits, Some(0));
    db.prepare_cached(
        "INSERT INTO orders (order_key, user_id, program, amount, status, reason, paid_by, created_ms, took_ms, payer) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, ?8, ?9)",
    )?
    .execute(params![
        key,
        order.user_id,
        budget_key,
        order.amount,
        status,
        reason,
        order.time_ms,
        took_ms,
        payer
    ])?;
    Ok(())
}

/// Changes what a reserved order waits for, and its payer.
pub(crate) fn set_awaits(db: &Connection, key: &str, awaits: Awaits, payer: &str) -> Result<(), LedgerError> {
    db.prepare_cached("UPDATE orders SET reason = ?2, payer = ?4 WHERE order_key = ?1 AND status = ?3")?
        .execute(params![key, awaits.code(), RESERVED, payer])?;
    Ok(())
}

/// Moves an order to another status; one that is reserved waits for its payer. `transfer` is the number of the transfer
/// that paid it, 0 for none; no `payer` leaves the one that is stored.
pub(crate) fn set_status(
    db: &Connection,
    key: &str,
    status: Status,
    transfer: i64,
    took_ms: i64,
    payer: Option<&str>,
) -> Result<(), LedgerError> {
    let (status, reason, took_ms) = columns(status, Awaits::Payer, Some(took_ms));
    let changed = db
        .prepare_cached(
            "UPDATE orders SET status = ?2, reason = ?3, paid_by = ?4, took_ms = ?5, payer = coalesce(?6, payer) \
             WHERE order_key = ?1",
        )?
        .execute(params![key, status, reason, transfer, took_ms, payer])?;
    if changed == 1 { Ok(()) } else { Err(LedgerError::Damaged(format!("order {key} has vanished"))) }
}

fn columns(status: Status, awaits: Awaits, took_ms: Option<i64>) -> (i64, i64, Option<i64>) {
    match status {
        Status::Reserved => (RESERVED, awaits.code(), None),
        Status::Credited => (CREDITED, 0, took_ms),
        Status::Rejected(reason) => (REJECTED, reason_code(reason), took_ms),
    }
}
