//! Order rows; each statement handles a whole batch.

use super::budget_keys::{BudgetKey, BudgetKeys, cell, text};
use super::session::Session;
use crate::decision::Known;
use crate::error::LedgerError;
use crate::model::{Awaits, Order};
use crate::model::{CREDITED, REJECTED, RESERVED, reason_code, status_of_columns};
use std::collections::HashMap;
use windfall_contract::accounts::Status;

/// A stored order, as far as a decision needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    pub known: Known,
    pub created_ms: i64,
    /// The budget key that pays: its activity, scene and bonus type.
    pub budget_key: BudgetKey,
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

/// Inserts the orders at `firsts`, which are sorted by order number, as if all went well: `transfers` pay them.
/// Returns the new ones.
///
/// READ COMMITTED suffices: the unique index decides. Where another transaction works on the same order, this
/// statement waits for its end; if it commits, the order belongs to it, and [`read`], a later statement with a later
/// snapshot, finds it; if it rolls back, this transaction inserts the order. All writers insert in the order of the
/// numbers, so two that share several wait for each other in one direction.
pub(crate) fn insert(
    session: &Session,
    batch: &[Order<'_>],
    budget_keys: &[BudgetKey],
    firsts: &[usize],
    transfers: &[i64],
    as_if: (Status, Awaits),
    payers: &[&str],
) -> Result<Vec<bool>, LedgerError> {
    let orders = || firsts.iter().map(|at| &batch[*at]);
    let trade_nos: Vec<&str> = orders().map(|order| order.trade_no).collect();
    let users: Vec<i64> = orders().map(|order| order.user_id).collect();
    let own: Vec<i64> = firsts.iter().map(|at| budget_keys[*at].id).collect();
    let amounts: Vec<i64> = orders().map(|order| order.amount).collect();
    let created: Vec<i64> = orders().map(|order| order.time_ms).collect();
    let payers: Vec<&str> = firsts.iter().map(|at| payers.get(*at).copied().unwrap_or("")).collect();
    let (status, reason, took_ms) = columns(as_if.0, as_if.1, 0);
    let rows = session.query(
        "INSERT INTO orders \
         (trade_no, user_id, program, amount, paid_by, created_ms, payer, status, reason, took_ms) \
         SELECT w.*, $8::smallint, $9::smallint, $10::bigint FROM unnest($1::text[], $2::bigint[], $3::bigint[], \
         $4::bigint[], $5::bigint[], $6::bigint[], $7::text[]) AS w \
         ON CONFLICT (trade_no) DO NOTHING RETURNING trade_no",
        &[&trade_nos, &users, &own, &amounts, &transfers, &created, &payers, &status, &reason, &took_ms],
    )?;
    if rows.len() == firsts.len() {
        return Ok(vec![true; firsts.len()]);
    }
    let mut new = vec![false; firsts.len()];
    for row in &rows {
        let trade_no = text(row, 0)?;
        let at = trade_nos.binary_search(&trade_no).map_err(|_| {
            LedgerError::Damaged(format!("order {trade_no} was stored, but not by this statement"))
        })?;
        new[at] = true;
    }
    Ok(new)
}

/// Reads stored orders. `lock`: another transaction that would decide on them anew has to wait, in the order of
/// the numbers, and what is read is the latest version. Without it they are as of now: enough to answer a repeat,
/// since a credited order stays credited, and every other answer was true at that moment.
///
/// The payers' names are looked up by themselves: of a row that was waited for PostgreSQL takes the latest version, but
/// joins it with what the statement saw in other tables before.
pub(crate) fn read<'a>(
    session: &Session,
    budget_keys: &mut BudgetKeys,
    trade_nos: &[&'a str],
    lock: bool,
) -> Result<HashMap<&'a str, Stored>, LedgerError> {
    const READ: &str = "SELECT o.trade_no, o.user_id, o.amount, o.status, o.reason, o.created_ms, p.id, \
        p.activity, p.asset, p.budgeted, o.payer FROM orders o JOIN programs p ON p.id = o.program \
        WHERE o.trade_no = ANY($1)";
    const LOCK: &str = "SELECT o.trade_no, o.user_id, o.amount, o.status, o.reason, o.created_ms, p.id, \
        p.activity, p.asset, p.budgeted, o.payer FROM orders o JOIN programs p ON p.id = o.program \
        WHERE o.trade_no = ANY($1) ORDER BY o.trade_no FOR NO KEY UPDATE OF o";
    let mut names: HashMap<&str, &'a str> = HashMap::with_capacity(trade_nos.len());
    names.extend(trade_nos.iter().map(|trade_no| (*trade_no, *trade_no)));
    let rows = session.query(if lock { LOCK } else { READ }, &[&trade_nos])?;
    let payers = rows.iter().map(|row| text(row, 10)).collect::<Result<Vec<&str>, _>>()?;
    let payers = budget_keys.payers(session, &payers)?;
    let mut found = HashMap::with_capacity(rows.len());
    for (row, payer) in rows.iter().zip(payers) {
        let trade_no = text(row, 0)?;
        let (status, reason): (i16, i16) = (cell(row, 3)?, cell(row, 4)?);
        let status = status_of_columns(i64::from(status), i64::from(reason))
            .ok_or_else(|| LedgerError::Damaged(format!("order {trade_no} has an unknown status")))?;
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
        let stored = Stored { known, created_ms: cell(row, 5)?, budget_key };
        if let Some(own) = names.get(trade_no) {
            found.insert(*own, stored);
        }
    }
    Ok(found)
}

/// Orders that change their status.
#[derive(Debug, Default)]
pub(crate) struct Changes<'a> {
    trade_nos: Vec<&'a str>,
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
    pub fn push(&mut self, trade_no: &'a str, status: Status, awaits: Awaits, transfer: i64, took_ms: i64) {
        self.push_for(trade_no, status, awaits, transfer, took_ms, None);
    }

    /// Adds an order that is reserved for this downstream from now on.
    pub fn push_for(
        &mut self,
        trade_no: &'a str,
        status: Status,
        awaits: Awaits,
        transfer: i64,
        took_ms: i64,
        payer: Option<&'a str>,
    ) {
        let (status, reason, took_ms) = columns(status, awaits, took_ms);
        self.trade_nos.push(trade_no);
        self.statuses.push(status);
        self.reasons.push(reason);
        self.transfers.push(transfer);
        self.took_ms.push(took_ms);
        self.payers.push(payer);
    }

    /// Writes the changes. Each order was inserted or locked by this transaction, so nothing is waited for here.
    pub fn write(self, session: &Session) -> Result<(), LedgerError> {
        if self.trade_nos.is_empty() {
            return Ok(());
        }
        let changed = session.execute(
            "UPDATE orders o SET status = w.status, reason = w.reason, paid_by = w.transfer, took_ms = w.took_ms, \
             payer = coalesce(w.payer, o.payer) \
             FROM unnest($1::text[], $2::smallint[], $3::smallint[], $4::bigint[], $5::bigint[], $6::text[]) \
             AS w(trade_no, status, reason, transfer, took_ms, payer) WHERE o.trade_no = w.trade_no",
            &[&self.trade_nos, &self.statuses, &self.reasons, &self.transfers, &self.took_ms, &self.payers],
        )?;
        if usize::try_from(changed) == Ok(self.trade_nos.len()) {
            return Ok(());
        }
        Err(LedgerError::Damaged(format!(
            "{} orders were to change, {changed} did: some have vanished",
            self.trade_nos.len()
        )))
    }
}
