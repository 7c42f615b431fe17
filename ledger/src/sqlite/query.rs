//! Reads what is stored.

use crate::error::LedgerError;
use crate::journal::{BUDGET, USER, flow_kind};
use crate::key::{OrderId, keys_of, number_of};
use crate::model::status_of_columns;
use crate::model::{Awaits, BudgetState, ReservedOrder, Settlement, WhichBudgets};
use crate::reconcile::SETTLEMENTS;
use crate::statement_reads::AccountEnd;
use rusqlite::{Connection, OptionalExtension, Row, params};
use windfall_contract::accounts::{FlowLine, Status, StoredOrder};

pub(crate) fn balance(db: &Connection, user_id: i64, bonus_type: &str) -> Result<i64, LedgerError> {
    let found = db
        .prepare_cached(
            "SELECT a.balance FROM names n JOIN accounts a ON a.asset = n.id \
             WHERE n.name = ?1 AND a.kind = ?2 AND a.holder = ?3",
        )?
        .query_row(params![bonus_type, USER, user_id], |row| row.get(0))
        .optional()?;
    Ok(found.unwrap_or(0))
}

/// A user's accounts, by bonus type.
pub(super) fn accounts(db: &Connection, user_id: i64) -> Result<Vec<AccountEnd>, LedgerError> {
    // The key starts with kind and bonus type: one look-up per bonus type, of which there are few.
    let mut statement = db.prepare_cached(
        "SELECT a.asset, n.name, a.balance, a.last FROM (SELECT DISTINCT asset FROM programs) p \
         JOIN accounts a ON a.kind = ?1 AND a.asset = p.asset AND a.holder = ?2 \
         JOIN names n ON n.id = a.asset ORDER BY n.name",
    )?;
    let rows = statement.query_map([USER, user_id], |row| {
        Ok(AccountEnd {
            bonus_type_id: row.get(0)?,
            bonus_type: row.get(1)?,
            balance: row.get(2)?,
            last: row.get(3)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(crate) fn balances(db: &Connection, user_id: i64) -> Result<Vec<(String, i64)>, LedgerError> {
    Ok(accounts(db, user_id)?.into_iter().map(|account| (account.bonus_type, account.balance)).collect())
}

/// Walks the chains of a user's accounts together, always from the newest line, by time and then by number.
pub(crate) fn flow(db: &Connection, user_id: i64, limit: usize) -> Result<Vec<FlowLine>, LedgerError> {
    let mut statement = db.prepare_cached(
        "SELECT t.reference, t.amount, coalesce(n.name, ''), t.time_ms, t.prev, t.debit, t.credit FROM transfers t \
         LEFT JOIN programs p ON t.debit = ?2 AND p.id = t.debit_holder LEFT JOIN names n ON n.id = p.activity \
         WHERE t.id = ?1",
    )?;
    let mut line_of = |bonus_type: &str, transfer: i64| -> Result<Option<(FlowLine, i64)>, LedgerError> {
        if transfer == 0 {
            return Ok(None);
        }
        let found = statement
            .query_row([transfer, BUDGET], |row| {
                let line = FlowLine {
                    transfer,
                    kind: flow_kind(row.get(5)?, row.get(6)?),
                    trade_no: number_of(row.get_ref(0)?.as_str()?).to_owned(),
                    bonus_type: bonus_type.to_owned(),
                    activity: row.get(2)?,
                    amount: row.get(1)?,
                    time_ms: row.get(3)?,
                };
                Ok((line, row.get::<_, i64>(4)?))
            })
            .optional()?;
        let (line, prev) = found.ok_or_else(|| {
            LedgerError::Damaged(format!("transfer {transfer} of user {user_id} is missing"))
        })?;
        if prev >= transfer {
            return Err(LedgerError::Damaged(format!("transfer {transfer} follows itself")));
        }
        Ok(Some((line, prev)))
    };
    let mut heads = Vec::new();
    for account in accounts(db, user_id)? {
        heads.extend(line_of(&account.bonus_type, account.last)?);
    }
    let mut lines = Vec::new();
    while lines.len() < limit {
        let newest = heads.iter().enumerate().max_by_key(|(_, (line, _))| (line.time_ms, line.transfer));
        let Some(at) = newest.map(|(at, _)| at) else { break };
        let (line, prev) = heads.swap_remove(at);
        heads.extend(line_of(&line.bonus_type, prev)?);
        lines.push(line);
    }
    Ok(lines)
}

pub(crate) fn order(db: &Connection, id: OrderId<'_>) -> Result<Option<StoredOrder>, LedgerError> {
    match under(db, &id.key())? {
        // Stored under its number alone, since before version 6.
        None => Ok(under(db, id.trade_no)?.filter(|order| {
            (order.activity.as_str(), order.trade_no.as_str()) == (id.activity, id.trade_no)
        })),
        found => Ok(found),
    }
}

/// The orders with this number, in the order of their keys.
pub(crate) fn orders_of_number(db: &Connection, trade_no: &str) -> Result<Vec<StoredOrder>, LedgerError> {
    let (from, below) = keys_of(trade_no);
    let keys = db
        .prepare_cached(
            "SELECT order_key FROM orders WHERE order_key = ?1 OR (order_key >= ?2 AND order_key < ?3) \
             ORDER BY order_key",
        )?
        .query_map(params![trade_no, from, below], |row| row.get(0))?
        .collect::<Result<Vec<String>, _>>()?;
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        found.extend(under(db, &key)?);
    }
    Ok(found)
}

/// The order that is stored under this key.
pub(super) fn under(db: &Connection, key: &str) -> Result<Option<StoredOrder>, LedgerError> {
    let mut statement = db.prepare_cached(
        "SELECT o.order_key, o.user_id, a.name, s.name, b.name, o.amount, o.status, o.reason, o.created_ms, o.took_ms, o.payer \
         FROM orders o JOIN programs p ON p.id = o.program JOIN names a ON a.id = p.activity \
         JOIN names s ON s.id = p.scene JOIN names b ON b.id = p.asset WHERE o.order_key = ?1",
    )?;
    let mut rows = statement.query([key])?;
    rows.next()?.map(stored).transpose()
}

/// The order of a row whose first columns are those of [`under`].
pub(super) fn stored(row: &Row<'_>) -> Result<StoredOrder, LedgerError> {
    let key: String = row.get(0)?;
    let status = status_of_columns(row.get(6)?, row.get(7)?)
        .ok_or_else(|| LedgerError::Damaged(format!("order {key} has an unknown status")))?;
    let (created_ms, took_ms): (i64, Option<i64>) = (row.get(8)?, row.get(9)?);
    Ok(StoredOrder {
        trade_no: number_of(&key).to_owned(),
        key,
        user_id: row.get(1)?,
        activity: row.get(2)?,
        scene: row.get(3)?,
        bonus_type: row.get(4)?,
        amount: row.get(5)?,
        status,
        payer: row.get(10)?,
        created_ms,
        decided_ms: took_ms.map(|took_ms| created_ms.saturating_add(took_ms)),
    })
}

/// The status is written as it stands in the index, so that SQLite uses the index.
const RESERVED: &str = "SELECT order_key, reason FROM orders WHERE status = 0 AND created_ms < ?1 AND order_key > ?2 \
    AND (?4 IS NULL OR reason = ?4) ORDER BY order_key LIMIT ?3";

pub(crate) fn reserved(
    db: &Connection,
    awaits: Option<Awaits>,
    before_ms: i64,
    after: &str,
    limit: u32,
) -> Result<Vec<ReservedOrder>, LedgerError> {
    let mut statement = db.prepare_cached(RESERVED)?;
    let found = statement
        .query_map(params![before_ms, after, limit, awaits.map(Awaits::code)], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?
        .collect::<Result<Vec<(String, i64)>, _>>()?;
    let mut reserved = Vec::with_capacity(found.len());
    for (key, reason) in found {
        // One that has ended between the two reads is not reserved any more.
        if let Some(order) = under(db, &key)?.filter(|order| order.status == Status::Reserved) {
            reserved.push(ReservedOrder { order, awaits: Awaits::of_code(reason) });
        }
    }
    Ok(reserved)
}

pub(crate) fn budgets(db: &Connection, which: WhichBudgets) -> Result<Vec<BudgetState>, LedgerError> {
    let which = match which {
        WhichBudgets::All => "a.name <> '' OR p.budgeted",
        WhichBudgets::Set => "p.budgeted",
    };
    // Few of the keys have a budget, so they come first.
    let mut statement = db.prepare_cached(&format!(
        "SELECT CASE a.name WHEN '' THEN '*' ELSE a.name END, CASE s.name WHEN '' THEN '*' ELSE s.name END, CASE b.name WHEN '' THEN '*' ELSE b.name END, \
         p.budgeted, sum(h.total), sum(h.used), sum(h.reserved), CASE WHEN p.strict THEN 0 ELSE count(*) END \
         FROM programs p CROSS JOIN budget_shards h ON h.program = p.id JOIN names a ON a.id = p.activity \
         JOIN names s ON s.id = p.scene JOIN names b ON b.id = p.asset \
         WHERE {which} GROUP BY p.id, a.name, s.name, b.name, p.budgeted, p.strict ORDER BY a.name, s.name, b.name",
    ))?;
    let rows = statement.query_map([], |row| {
        let budgeted: bool = row.get(3)?;
        let total: i64 = row.get(4)?;
        Ok(BudgetState {
            activity: row.get(0)?,
            scene: row.get(1)?,
            bonus_type: row.get(2)?,
            total: budgeted.then_some(total),
            used: row.get(5)?,
            reserved: row.get(6)?,
            shards: row.get(7)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(crate) fn settlements(db: &Connection) -> Result<Vec<Settlement>, LedgerError> {
    let mut statement = db.prepare_cached(SETTLEMENTS)?;
    let rows = statement.query_map([], |row| {
        Ok(Settlement { payer: row.get(0)?, bonus_type: row.get(1)?, amount: row.get(2)? })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(crate) fn quick_check(db: &Connection) -> Result<(), LedgerError> {
    let answer: String = db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if answer == "ok" { Ok(()) } else { Err(LedgerError::Damaged(answer)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ledger, LedgerOptions};

    #[test]
    fn reserved_orders_are_found_without_those_that_have_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        drop(Ledger::open(&path, &LedgerOptions::default()).unwrap());
        let db = Connection::open(&path).unwrap();
        let plan: String = db
            .prepare(&format!("EXPLAIN QUERY PLAN {RESERVED}"))
            .unwrap()
            .query_row(params![1, "", 1, None::<i64>], |row| row.get(3))
            .unwrap();
        assert!(plan.contains("orders_reserved"), "{plan}");
    }
}
