//! Order rows; each statement handles a whole batch.

use super::budget_keys::{BudgetKey, BudgetKeys, cell, text};
use super::session::Session;
use super::shape::Shape;
use crate::decision::Known;
use crate::error::LedgerError;
use crate::key::{OrderId, is_bare};
use crate::model::{Awaits, Order};
use crate::model::{CREDITED, REJECTED, RESERVED, reason_code, status_of_columns};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use tokio_postgres::types::ToSql;
use windfall_contract::accounts::Status;

/// A stored order, as far as a decision needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The key that it is stored under.
    pub key: String,
    pub known: Known,
    pub created_ms: i64,
    /// The budget key that pays: its activity, scene and bonus type.
    pub budget_key: BudgetKey,
}

/// The key that an order has in tables of this shape, if it is made there: its number alone before version 6.
pub(crate) fn key_of<'a>(shape: Shape, id: OrderId<'a>) -> Cow<'a, str> {
    match shape {
        Shape::Keyed => id.key().into(),
        Shape::Three | Shape::Journal => id.trade_no.into(),
    }
}

/// The keys that these orders may be stored under.
pub(crate) fn candidates<'a>(shape: Shape, ids: impl Iterator<Item = OrderId<'a>>) -> Vec<Cow<'a, str>> {
    let mut keys = BTreeSet::new();
    for id in ids {
        keys.insert(key_of(shape, id));
        keys.insert(Cow::Borrowed(id.trade_no));
    }
    keys.into_iter().collect()
}

/// The status, reason and time of a decision, as columns.
fn columns(status: Status, awaits: Awaits, took_ms: i64) -> (i16, i16, Option<i64>) {
    let small = |code: i64| i16::try_from(code).unwrap_or(i16::MAX);
    match status {
        Status::Reserved => (small(RESERVED), small(awaits.code()), None),
        Status::Credited => (small(CREDITED), 0, Some(took_ms)),
        Status::Rejected(reason) => (small(REJECTED), small(reason_code(reason)), Some(took_ms)),
    }
}

/// Before version 6, where a number alone is the key.
const INSERT: &str = "INSERT INTO orders \
    (order_key, user_id, program, amount, paid_by, created_ms, payer, status, reason, took_ms) \
    SELECT w.*, $8::smallint, $9::smallint, $10::bigint FROM unnest($1::text[], $2::bigint[], $3::bigint[], \
    $4::bigint[], $5::bigint[], $6::bigint[], $7::text[]) AS w \
    ON CONFLICT (order_key) DO NOTHING RETURNING order_key";
/// An order may be stored under its number alone (I1). Nobody makes such rows any more, so they are all seen.
const INSERT_KEYED: &str = "INSERT INTO orders \
    (order_key, user_id, program, amount, paid_by, created_ms, payer, status, reason, took_ms) \
    SELECT w.key, w.user_id, w.program, w.amount, w.paid_by, w.created_ms, w.payer, $8::smallint, $9::smallint, $10::bigint \
    FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[], \
    $11::text[], $12::bigint[]) AS w(key, user_id, program, amount, paid_by, created_ms, payer, number, activity) \
    WHERE NOT (EXISTS (SELECT 1 FROM bare_orders) AND (SELECT p.activity = w.activity FROM orders l \
    JOIN programs p ON p.id = l.program WHERE l.order_key = w.number) IS TRUE) \
    ON CONFLICT (order_key) DO NOTHING RETURNING order_key";

/// Inserts the orders at `firsts`, which are sorted by their keys, as if all went well: `transfers` pay them.
/// Returns the new ones.
///
/// READ COMMITTED suffices: the unique index decides. Where another transaction works on the same order, this
/// statement waits for its end; if it commits, the order belongs to it, and [`read`], a later statement with a later
/// snapshot, finds it; if it rolls back, this transaction inserts the order. All writers insert in the order of the
/// keys, so two that share several wait for each other in one direction.
pub(crate) fn insert(
    session: &Session,
    (batch, keys): (&[Order<'_>], &[Cow<'_, str>]),
    budget_keys: &[BudgetKey],
    firsts: &[usize],
    transfers: &[i64],
    as_if: (Status, Awaits),
    payers: &[&str],
) -> Result<Vec<bool>, LedgerError> {
    let orders = || firsts.iter().map(|at| &batch[*at]);
    let keys: Vec<&str> = firsts.iter().map(|at| &*keys[*at]).collect();
    let users: Vec<i64> = orders().map(|order| order.user_id).collect();
    let own: Vec<i64> = firsts.iter().map(|at| budget_keys[*at].id).collect();
    let amounts: Vec<i64> = orders().map(|order| order.amount).collect();
    let created: Vec<i64> = orders().map(|order| order.time_ms).collect();
    let payers: Vec<&str> = firsts.iter().map(|at| payers.get(*at).copied().unwrap_or("")).collect();
    let (status, reason, took_ms) = columns(as_if.0, as_if.1, 0);
    let params: [&(dyn ToSql + Sync); 10] =
        [&keys, &users, &own, &amounts, &transfers, &created, &payers, &status, &reason, &took_ms];
    let rows = if session.shape() == Shape::Keyed {
        let numbers: Vec<&str> = orders().map(|order| order.trade_no).collect();
        let activities: Vec<i64> = firsts.iter().map(|at| budget_keys[*at].activity).collect();
        let more: [&(dyn ToSql + Sync); 2] = [&numbers, &activities];
        session.query(INSERT_KEYED, &[&params[..], &more[..]].concat())?
    } else {
        session.query(INSERT, &params)?
    };
    if rows.len() == firsts.len() {
        return Ok(vec![true; firsts.len()]);
    }
    let mut new = vec![false; firsts.len()];
    for row in &rows {
        let key = text(row, 0)?;
        let at = keys.binary_search(&key).map_err(|_| {
            LedgerError::Damaged(format!("order {key} was stored, but not by this statement"))
        })?;
        new[at] = true;
    }
    Ok(new)
}

/// An order as it was read: the key that it would have now, its activity, and what is stored.
pub(crate) type Found = (String, String, Stored);

/// Reads the orders under these keys. `lock`: another transaction that would decide on them anew has to wait, in the order
/// of the keys, and what is read is the latest version. Without it they are as of now: enough to answer a repeat,
/// since a credited order stays credited, and every other answer was true at that moment.
///
/// The payers' names are looked up by themselves: of a row that was waited for PostgreSQL takes the latest version, but
/// joins it with what the statement saw in other tables before.
pub(crate) fn read(
    session: &Session,
    budget_keys: &mut BudgetKeys,
    keys: &[Cow<'_, str>],
    lock: bool,
) -> Result<Vec<Found>, LedgerError> {
    const READ: &str = "SELECT o.order_key, o.user_id, o.amount, o.status, o.reason, o.created_ms, p.id, \
        p.activity, p.asset, p.budgeted, o.payer, a.name FROM orders o JOIN programs p ON p.id = o.program \
        JOIN names a ON a.id = p.activity WHERE o.order_key = ANY($1)";
    const LOCK: &str = "SELECT o.order_key, o.user_id, o.amount, o.status, o.reason, o.created_ms, p.id, \
        p.activity, p.asset, p.budgeted, o.payer, a.name FROM orders o JOIN programs p ON p.id = o.program \
        JOIN names a ON a.id = p.activity WHERE o.order_key = ANY($1) ORDER BY o.order_key FOR NO KEY UPDATE OF o";
    let keys: Vec<&str> = keys.iter().map(|key| &**key).collect();
    let rows = session.query(if lock { LOCK } else { READ }, &[&keys])?;
    let payers = rows.iter().map(|row| text(row, 10)).collect::<Result<Vec<&str>, _>>()?;
    let payers = budget_keys.payers(session, &payers)?;
    let mut found = Vec::with_capacity(rows.len());
    for (row, payer) in rows.iter().zip(payers) {
        let (key, activity) = (text(row, 0)?.to_owned(), text(row, 11)?.to_owned());
        let (status, reason): (i16, i16) = (cell(row, 3)?, cell(row, 4)?);
        let status = status_of_columns(i64::from(status), i64::from(reason))
            .ok_or_else(|| LedgerError::Damaged(format!("order {key} has an unknown status")))?;
        let budget_key = BudgetKey {
            id: cell(row, 6)?,
            activity: cell(row, 7)?,
            bonus_type: cell(row, 8)?,
            budgeted: cell(row, 9)?,
            shards: 1,
        };
        let known = Known {
            user_id: cell(row, 1)?,
            budget_key: budget_key.id,
            amount: cell(row, 2)?,
            status,
            promised: status == Status::Reserved && i64::from(reason) == Awaits::Event.code(),
            payer,
        };
        let own = match is_bare(&key) {
            true => key_of(session.shape(), OrderId { activity: &activity, trade_no: &key }).into_owned(),
            false => key.clone(),
        };
        found.push((own, activity, Stored { key, known, created_ms: cell(row, 5)?, budget_key }));
    }
    Ok(found)
}

/// What was read, by the keys that orders would have now.
pub(crate) fn by_key(found: Vec<Found>) -> HashMap<String, Stored> {
    found.into_iter().map(|(key, _, stored)| (key, stored)).collect()
}

/// Orders that change their status.
#[derive(Debug, Default)]
pub(crate) struct Changes<'a> {
    keys: Vec<String>,
    statuses: Vec<i16>,
    reasons: Vec<i16>,
    transfers: Vec<i64>,
    took_ms: Vec<Option<i64>>,
    /// The payers; `None` leaves a payer as it is.
    payers: Vec<Option<&'a str>>,
}

impl<'a> Changes<'a> {
    /// Adds an order. `transfer` is the number of the transfer that paid it, 0 for none. `awaits` counts for reserved
    /// orders.
    pub fn push(&mut self, key: &str, status: Status, awaits: Awaits, transfer: i64, took_ms: i64) {
        self.push_for(key, status, awaits, transfer, took_ms, None);
    }

    /// Adds an order that is reserved for this downstream from now on.
    pub fn push_for(
        &mut self,
        key: &str,
        status: Status,
        awaits: Awaits,
        transfer: i64,
        took_ms: i64,
        payer: Option<&'a str>,
    ) {
        let (status, reason, took_ms) = columns(status, awaits, took_ms);
        self.keys.push(key.to_owned());
        self.statuses.push(status);
        self.reasons.push(reason);
        self.transfers.push(transfer);
        self.took_ms.push(took_ms);
        self.payers.push(payer);
    }

    /// Writes the changes. Each order was inserted or locked by this transaction, so nothing is waited for here.
    pub fn write(self, session: &Session) -> Result<(), LedgerError> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let changed = session.execute(
            "UPDATE orders o SET status = w.status, reason = w.reason, paid_by = w.transfer, took_ms = w.took_ms, \
             payer = coalesce(w.payer, o.payer) \
             FROM unnest($1::text[], $2::smallint[], $3::smallint[], $4::bigint[], $5::bigint[], $6::text[]) \
             AS w(order_key, status, reason, transfer, took_ms, payer) WHERE o.order_key = w.order_key",
            &[&self.keys, &self.statuses, &self.reasons, &self.transfers, &self.took_ms, &self.payers],
        )?;
        if usize::try_from(changed) == Ok(self.keys.len()) {
            return Ok(());
        }
        Err(LedgerError::Damaged(format!(
            "{} orders were to change, {changed} did: some have vanished",
            self.keys.len()
        )))
    }
}
