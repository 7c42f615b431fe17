//! When the events of reserved orders are written again ([`crate::copies`]), in a file: one process writes it, so whatever is
//! due is its own.

use super::query;
use crate::copies::{CopyKey, ListCopies, Listing, LostOrder, TakeCopies, TakenCopies, WrittenCopy};
use crate::error::LedgerError;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use windfall_contract::accounts::Status;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS order_copies (
    program INTEGER NOT NULL,
    reference TEXT NOT NULL,
    next_write_ms INTEGER NOT NULL,
    PRIMARY KEY (program, reference)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS order_copies_due ON order_copies (program, next_write_ms);
CREATE TABLE IF NOT EXISTS order_copies_listing (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    next_ms INTEGER NOT NULL,
    reference TEXT NOT NULL,
    program INTEGER NOT NULL
) STRICT;
INSERT INTO order_copies_listing (one, next_ms, reference, program) VALUES (1, 0, '', 0) ON CONFLICT (one) DO NOTHING;
";

/// The end of a page.
type Last = (String, i64);

/// The write lock at once: a sealer may have it.
fn begin(db: &Connection) -> Result<Transaction<'_>, LedgerError> {
    Ok(Transaction::new_unchecked(db, TransactionBehavior::Immediate)?)
}

pub(super) fn list(db: &Connection, how: &ListCopies) -> Result<Listing, LedgerError> {
    let ListCopies { now_ms, after_ms, pause_ms, ahead_ms, limit } = *how;
    let is_there = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'order_copies_listing')";
    if !db.prepare_cached(is_there)?.query_row([], |row| row.get::<_, bool>(0))? {
        let tx = begin(db)?;
        tx.execute_batch(TABLES)?;
        tx.commit()?;
    }
    let tx = begin(db)?;
    let (next_ms, reference, budget_key): (i64, String, i64) = tx
        .prepare_cached("SELECT next_ms, reference, program FROM order_copies_listing")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    // One that is further away was set by a clock that was ahead.
    if next_ms > now_ms && next_ms <= now_ms.saturating_add(pause_ms) {
        return Ok(Listing::NotNow);
    }
    let page: Vec<(String, i64, i64)> = tx
        .prepare_cached(
            "SELECT order_key, program, created_ms FROM orders WHERE status = 0 AND created_ms <= ?1 \
             AND (order_key, program) > (?2, ?3) ORDER BY order_key, program LIMIT ?4",
        )?
        .query_map(params![now_ms.saturating_sub(after_ms), reference, budget_key, limit], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?
        .collect::<Result<_, _>>()?;
    for (reference, budget_key, created_ms) in &page {
        let age_ms = i64::try_from(now_ms.abs_diff(*created_ms)).unwrap_or(i64::MAX);
        let far_ms = now_ms.saturating_add(ahead_ms).saturating_add(age_ms.saturating_mul(2));
        tx.prepare_cached(
            "INSERT INTO order_copies (program, reference, next_write_ms) VALUES (?1, ?2, ?3) \
             ON CONFLICT (program, reference) DO UPDATE SET next_write_ms = ?5 \
             WHERE next_write_ms > ?4",
        )?
        .execute(params![
            budget_key,
            reference,
            created_ms.saturating_add(after_ms),
            far_ms,
            now_ms
        ])?;
    }
    let is_full = page.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
    let last: Option<Last> = page.last().filter(|_| is_full).map(|last| (last.0.clone(), last.1));
    let next_ms = if is_full { now_ms } else { now_ms.saturating_add(pause_ms) };
    let (reference, budget_key) = last.unwrap_or_default();
    tx.prepare_cached("UPDATE order_copies_listing SET next_ms = ?1, reference = ?2, program = ?3")?
        .execute(params![next_ms, reference, budget_key])?;
    tx.commit()?;
    Ok(Listing::Page(page.len() as u64))
}

pub(super) fn keys(db: &Connection) -> Result<Vec<CopyKey>, LedgerError> {
    let mut statement = db.prepare_cached(
        "SELECT p.id, a.name, s.name, b.name FROM programs p JOIN names a ON a.id = p.activity \
         JOIN names s ON s.id = p.scene JOIN names b ON b.id = p.asset \
         WHERE EXISTS (SELECT 1 FROM order_copies c WHERE c.program = p.id) ORDER BY p.id",
    )?;
    let rows = statement.query_map([], |row| {
        Ok(CopyKey {
            budget_key: row.get(0)?,
            activity: row.get(1)?,
            scene: row.get(2)?,
            bonus_type: row.get(3)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn take(db: &Connection, which: &TakeCopies<'_>) -> Result<TakenCopies, LedgerError> {
    let tx = begin(db)?;
    let mut taken = TakenCopies::default();
    for budget_key in which.budget_keys {
        let left = u64::from(which.limit).saturating_sub(taken.due);
        let due: Vec<String> = tx
            .prepare_cached(
                "SELECT reference FROM order_copies WHERE program = ?1 AND next_write_ms <= ?2 \
                 ORDER BY next_write_ms LIMIT ?3",
            )?
            .query_map(params![budget_key, which.due_ms, i64::try_from(left).unwrap_or(i64::MAX)], |row| {
                row.get(0)
            })?
            .collect::<Result<_, _>>()?;
        taken.due += due.len() as u64;
        for reference in due {
            let is_reserved = tx
                .prepare_cached("SELECT 1 FROM orders WHERE order_key = ?1 AND program = ?2 AND status = 0")?
                .query_row(params![reference, budget_key], |_| Ok(()))
                .optional()?
                .is_some();
            let order =
                query::under(&tx, &reference)?.filter(|own| is_reserved && own.status == Status::Reserved);
            match order {
                Some(order) => {
                    tx.prepare_cached(
                        "UPDATE order_copies SET next_write_ms = ?1 WHERE program = ?2 AND reference = ?3",
                    )?
                    .execute(params![which.lease_ends_ms, budget_key, reference])?;
                    taken.orders.push(LostOrder { budget_key: *budget_key, order });
                }
                None => {
                    tx.prepare_cached("DELETE FROM order_copies WHERE program = ?1 AND reference = ?2")?
                        .execute(params![budget_key, reference])?;
                }
            }
        }
    }
    tx.commit()?;
    Ok(taken)
}

pub(super) fn note(db: &Connection, written: &[WrittenCopy<'_>]) -> Result<(), LedgerError> {
    let tx = begin(db)?;
    for one in written {
        tx.prepare_cached(
            "UPDATE order_copies SET next_write_ms = ?1 WHERE program = ?2 AND reference = ?3",
        )?
        .execute(params![one.next_write_ms, one.budget_key, one.key])?;
    }
    tx.commit()?;
    Ok(())
}
