//! Orders as they are stored.

use super::budget_keys::{cell, text};
use super::orders as rows;
use super::session::Session;
use super::shape::Shape;
use crate::error::LedgerError;
use crate::key::{OrderId, keys_of, number_of};
use crate::model::status_of_columns;
use std::collections::HashMap;
use tokio_postgres::Row;
use windfall_contract::accounts::{Status, StoredOrder};

/// Orders as they stand: one answer for each, in order.
pub(crate) fn orders(
    session: &Session,
    ids: &[OrderId<'_>],
) -> Result<Vec<Option<StoredOrder>>, LedgerError> {
    let found = candidates(session, ids)?;
    let mut by_id = HashMap::with_capacity(found.len());
    for order in &found {
        by_id.insert(OrderId { activity: &order.activity, trade_no: &order.trade_no }, order);
    }
    Ok(ids.iter().map(|id| by_id.get(id).map(|order| (*order).clone())).collect())
}

/// Orders as they stand, or what stands in their way: before version 6 a number is one order's, whatever its activity.
pub(super) fn orders_or_namesakes(
    session: &Session,
    ids: &[OrderId<'_>],
) -> Result<Vec<Option<StoredOrder>>, LedgerError> {
    if session.shape() == Shape::Keyed {
        return orders(session, ids);
    }
    let found = candidates(session, ids)?;
    let by_number: HashMap<&str, &StoredOrder> =
        found.iter().map(|order| (order.trade_no.as_str(), order)).collect();
    Ok(ids.iter().map(|id| by_number.get(id.trade_no).map(|order| (*order).clone())).collect())
}

/// The orders under the keys that these may have.
fn candidates(session: &Session, ids: &[OrderId<'_>]) -> Result<Vec<StoredOrder>, LedgerError> {
    let keys = rows::candidates(session.shape(), ids.iter().copied());
    let keys: Vec<&str> = keys.iter().map(|key| &**key).collect();
    let rows = session.query(
        "SELECT o.order_key, o.user_id, a.name, s.name, b.name, o.amount, o.status, o.reason, o.created_ms, \
         o.took_ms, o.payer FROM orders o JOIN programs p ON p.id = o.program JOIN names a ON a.id = p.activity \
         JOIN names s ON s.id = p.scene JOIN names b ON b.id = p.asset WHERE o.order_key = ANY($1)",
        &[&keys],
    )?;
    rows.iter().map(order).collect()
}

/// The orders with this number, in the order of their keys.
pub(super) fn orders_of_number(session: &Session, trade_no: &str) -> Result<Vec<StoredOrder>, LedgerError> {
    let (from, below) = keys_of(trade_no);
    let rows = session.query(
        "SELECT o.order_key, o.user_id, a.name, s.name, b.name, o.amount, o.status, o.reason, o.created_ms, \
         o.took_ms, o.payer FROM orders o JOIN programs p ON p.id = o.program JOIN names a ON a.id = p.activity \
         JOIN names s ON s.id = p.scene JOIN names b ON b.id = p.asset \
         WHERE o.order_key = $1 OR (o.order_key >= $2 AND o.order_key < $3) ORDER BY o.order_key",
        &[&trade_no, &from, &below],
    )?;
    rows.iter().map(order).collect()
}

pub(super) fn order(row: &Row) -> Result<StoredOrder, LedgerError> {
    let key = text(row, 0)?.to_owned();
    let status = status(row, 6, &key)?;
    let (created_ms, took_ms): (i64, Option<i64>) = (cell(row, 8)?, cell(row, 9)?);
    Ok(StoredOrder {
        trade_no: number_of(&key).to_owned(),
        key,
        user_id: cell(row, 1)?,
        activity: cell(row, 2)?,
        scene: cell(row, 3)?,
        bonus_type: cell(row, 4)?,
        amount: cell(row, 5)?,
        status,
        payer: cell(row, 10)?,
        created_ms,
        decided_ms: took_ms.map(|took_ms| created_ms.saturating_add(took_ms)),
    })
}

pub(super) fn status(row: &Row, at: usize, key: &str) -> Result<Status, LedgerError> {
    let (status, reason): (i16, i16) = (cell(row, at)?, cell(row, at + 1)?);
    status_of_columns(i64::from(status), i64::from(reason))
        .ok_or_else(|| LedgerError::Damaged(format!("order {key} has an unknown status")))
}
