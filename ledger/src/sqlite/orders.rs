//! Order rows: insert on conflict do nothing, read back what was there, compare.

use super::rows::insert_rows;
use crate::error::LedgerError;
use crate::model::{Awaits, Order, OrderOutcome};
use crate::model::{CREDITED, REJECTED, RESERVED, reason_code, status_of_columns};
use rusqlite::{Connection, OptionalExtension, params};
use windfall_contract::accounts::Status;

/// The state of a stored order that a decision needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub user_id: i64,
    pub budget_key: i64,
    pub amount: i64,
    pub status: Status,
    /// Whether it is reserved for its event, with which the ledger pays it.
    pub promised: bool,
    /// Whether it is reserved for a downstream that is known.
    pub has_payer: bool,
    pub created_ms: i64,
    pub transfer: i64,
}

impl Row {
    /// The answer to an order under this number, of this budget key, which is one activity, scene and bonus type (I1).
    pub fn answer(&self, order: &Order<'_>, budget_key: i64) -> OrderOutcome {
        if (self.user_id, self.amount, self.budget_key) != (order.user_id, order.amount, budget_key) {
            return OrderOutcome::Conflict;
        }
        match self.status {
            Status::Reserved => OrderOutcome::Reserved,
            Status::Credited => OrderOutcome::AlreadyCredited,
            Status::Rejected(reason) => OrderOutcome::Rejected(reason),
        }
    }
}

/// The number of rows that one insert statement writes at most.
const CHUNK: usize = 64;
const COLUMNS: usize = 9;

/// Inserts orders as credited, the n-th with transfer `first_transfer + n`. Returns `None` for each that is
/// new and the stored row for each that was there (I1).
pub(crate) fn insert_credited(
    db: &Connection,
    batch: &[Order<'_>],
    budget_keys: &[i64],
    firsts: &[usize],
    first_transfer: i64,
) -> Result<Vec<Option<Row>>, LedgerError> {
    let mut found = Vec::with_capacity(firsts.len());
    let mut transfer = first_transfer;
    let head = "INSERT INTO orders \
        (trade_no, user_id, program, amount, status, reason, transfer, created_ms, took_ms) VALUES ";
    for chunk in firsts.chunks(CHUNK) {
        let new = insert_rows(
            db,
            head,
            COLUMNS,
            " ON CONFLICT (trade_no) DO NOTHING",
            chunk.len(),
            |row, bind| {
                let (at, order) = (chunk[row], &batch[chunk[row]]);
                bind.text(order.trade_no)?;
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
                let row = find(db, batch[*at].trade_no)?;
                // A transfer of this very statement: it was inserted by it.
                found.push(row.filter(|row| row.transfer < first_transfer));
            }
        }
        transfer += i64::try_from(chunk.len()).unwrap_or(0);
    }
    Ok(found)
}

/// Reads one order.
pub(crate) fn find(db: &Connection, trade_no: &str) -> Result<Option<Row>, LedgerError> {
    let read = db
        .prepare_cached(
            "SELECT user_id, program, amount, status, reason, transfer, created_ms, payer <> '' \
             FROM orders WHERE trade_no = ?1",
        )?
        .query_row([trade_no], |row| {
            let status = status_of_columns(row.get(3)?, row.get(4)?);
            let promised = status == Some(Status::Reserved) && row.get::<_, i64>(4)? == Awaits::Event.code();
            let has_payer = row.get(7)?;
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, status, promised, has_payer, row.get(5)?, row.get(6)?))
        })
        .optional()?;
    let Some((user_id, budget_key, amount, status, promised, has_payer, transfer, created_ms)) = read else {
        return Ok(None);
    };
    let status =
        status.ok_or_else(|| LedgerError::Damaged(format!("order {trade_no} has an unknown status")))?;
    Ok(Some(Row { user_id, budget_key, amount, status, promised, has_payer, created_ms, transfer }))
}

/// Inserts one order that is not credited.
pub(crate) fn insert_open(
    db: &Connection,
    order: &Order<'_>,
    budget_key: i64,
    status: Status,
    awaits: Awaits,
    payer: &str,
) -> Result<(), LedgerError> {
    let (status, reason, took_ms) = columns(status, awaits, Some(0));
    db.prepare_cached(
        "INSERT INTO orders (trade_no, user_id, program, amount, status, reason, transfer, created_ms, took_ms, payer) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, ?8, ?9)",
    )?
    .execute(params![
        order.trade_no,
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
pub(crate) fn set_awaits(
    db: &Connection,
    trade_no: &str,
    awaits: Awaits,
    payer: &str,
) -> Result<(), LedgerError> {
    db.prepare_cached("UPDATE orders SET reason = ?2, payer = ?4 WHERE trade_no = ?1 AND status = ?3")?
        .execute(params![trade_no, awaits.code(), RESERVED, payer])?;
    Ok(())
}

/// Moves an order to another status; one that is reserved waits for its payer. `transfer` is the number of the transfer
/// that paid it, 0 for none.
pub(crate) fn set_status(
    db: &Connection,
    trade_no: &str,
    status: Status,
    transfer: i64,
    took_ms: i64,
) -> Result<(), LedgerError> {
    let (status, reason, took_ms) = columns(status, Awaits::Payer, Some(took_ms));
    let changed = db
        .prepare_cached(
            "UPDATE orders SET status = ?2, reason = ?3, transfer = ?4, took_ms = ?5 WHERE trade_no = ?1",
        )?
        .execute(params![trade_no, status, reason, transfer, took_ms])?;
    if changed == 1 { Ok(()) } else { Err(LedgerError::Damaged(format!("order {trade_no} has vanished"))) }
}

fn columns(status: Status, awaits: Awaits, took_ms: Option<i64>) -> (i64, i64, Option<i64>) {
    match status {
        Status::Reserved => (RESERVED, awaits.code(), None),
        Status::Credited => (CREDITED, 0, took_ms),
        Status::Rejected(reason) => (REJECTED, reason_code(reason), took_ms),
    }
}
