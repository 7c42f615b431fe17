//! Seals in a ledger's file. A transfer's place is its number: one writer draws the numbers under the file's write lock, so
//! whatever can be read is final, and nothing comes in front of it any more.

use super::{position, schema};
use crate::chain::{self, Names, Page, Row, Seal, Unsealed, stored_hash};
use crate::contract::{Chain, Read};
use crate::error::{LedgerError, OpenError};
use crate::guard::Guard;
use crate::seal_error::SealError;
use rusqlite::{Connection, OptionalExtension, params};
use std::path::Path;
use std::sync::Arc;

const ROWS: &str = "SELECT id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference \
    FROM transfers";
const SEALS: &str = "SELECT id, from_at, to_at, rows, sealed_ms, previous, content, names, hash FROM seals";

/// A connection that seals, beside the one that writes.
#[derive(Debug)]
pub(crate) struct SqliteSealer {
    db: Connection,
    guard: Option<Arc<Guard>>,
}

pub(crate) fn open(path: &Path) -> Result<SqliteSealer, OpenError> {
    Ok(SqliteSealer { db: schema::open_sealer(path)?, guard: None })
}

impl Chain for SqliteSealer {
    fn seal(&mut self, after: i64, rows_max: usize, now_ms: i64) -> Result<Option<Seal>, SealError> {
        let last = last_seal(&self.db)?;
        if last.as_ref().map_or(0, |last| last.id) != after {
            return Ok(None);
        }
        let from_at = last.as_ref().map_or(i64::MIN, |last| last.to_at);
        // Read and hashed without the write lock: what is there is final.
        let limit = i64::try_from(rows_max).unwrap_or(i64::MAX - 1) + 1;
        let mut rows = rows(&self.db, from_at, i64::MAX, limit)?;
        let Some(newest) = rows.last().map(|row| row.at) else { return Ok(None) };
        let more = rows.len() > rows_max;
        let Some(to_at) = chain::cut(&mut rows, more, newest.saturating_add(1)) else { return Ok(None) };
        let salts = chain::salts(rows.len())?;
        let names = names(&self.db, &rows)?;
        let (seal, pages) = Seal::of(last.as_ref(), to_at, &rows, &names, &salts, now_ms);
        let immediate = rusqlite::TransactionBehavior::Immediate;
        let tx = self.db.transaction_with_behavior(immediate).map_err(LedgerError::from)?;
        if last_seal(&tx)?.map(|now| now.id) != last.map(|last| last.id) {
            return Ok(None);
        }
        insert(&tx, &seal, &pages)?;
        tx.commit().map_err(LedgerError::from)?;
        Ok(Some(seal))
    }

    fn read(&self) -> &dyn Read {
        &self.db
    }

    fn guard_by(&mut self, guard: Arc<Guard>) -> Result<(), OpenError> {
        self.guard = Some(guard);
        Ok(())
    }

    fn look(&mut self) -> Result<(), LedgerError> {
        self.guard.as_ref().map_or(Ok(()), |guard| position::look(&self.db, guard))
    }
}

fn insert(db: &Connection, seal: &Seal, pages: &[Page]) -> Result<(), LedgerError> {
    db.prepare_cached(
        "INSERT INTO seals (id, from_at, to_at, rows, sealed_ms, previous, content, names, hash) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?
    .execute(params![
        seal.id,
        seal.from_at,
        seal.to_at,
        seal.rows,
        seal.sealed_ms,
        seal.previous,
        seal.content,
        seal.names,
        seal.hash
    ])?;
    let mut statement = db.prepare_cached(
        "INSERT INTO seal_pages (seal, page, ids, guards, hashes) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    for (nth, page) in (0_i64..).zip(pages) {
        statement.execute(params![seal.id, nth, page.ids, page.guards, page.hashes])?;
    }
    Ok(())
}

fn read_seal(row: &rusqlite::Row<'_>) -> Result<(Seal, [Vec<u8>; 4]), rusqlite::Error> {
    let zeros = [0; 32];
    let seal = Seal {
        id: row.get(0)?,
        from_at: row.get(1)?,
        to_at: row.get(2)?,
        rows: row.get(3)?,
        sealed_ms: row.get(4)?,
        previous: zeros,
        content: zeros,
        names: zeros,
        hash: zeros,
    };
    Ok((seal, [row.get(5)?, row.get(6)?, row.get(7)?, row.get(8)?]))
}

fn with_hashes((seal, [previous, content, names, hash]): (Seal, [Vec<u8>; 4])) -> Result<Seal, LedgerError> {
    let of = |bytes: &[u8]| stored_hash(bytes, &format!("seal {}", seal.id));
    let (previous, content, names, hash) = (of(&previous)?, of(&content)?, of(&names)?, of(&hash)?);
    Ok(Seal { previous, content, names, hash, ..seal })
}

pub(crate) fn seals(db: &Connection, after: i64, limit: u32) -> Result<Vec<Seal>, LedgerError> {
    let mut statement = db.prepare_cached(&format!("{SEALS} WHERE id > ?1 ORDER BY id LIMIT ?2"))?;
    let found = statement.query_map(params![after, limit], read_seal)?.collect::<Result<Vec<_>, _>>()?;
    found.into_iter().map(with_hashes).collect()
}

pub(crate) fn last_seal(db: &Connection) -> Result<Option<Seal>, LedgerError> {
    let found = db
        .prepare_cached(&format!("{SEALS} ORDER BY id DESC LIMIT 1"))?
        .query_row([], read_seal)
        .optional()?;
    found.map(with_hashes).transpose()
}

pub(crate) fn pages(db: &Connection, seal: i64) -> Result<Vec<Page>, LedgerError> {
    let mut statement =
        db.prepare_cached("SELECT ids, guards, hashes FROM seal_pages WHERE seal = ?1 ORDER BY page")?;
    let pages = statement
        .query_map([seal], |row| Ok(Page { ids: row.get(0)?, guards: row.get(1)?, hashes: row.get(2)? }))?;
    Ok(pages.collect::<Result<_, _>>()?)
}

fn row(row: &rusqlite::Row<'_>) -> Result<Row, rusqlite::Error> {
    let id = row.get(0)?;
    Ok(Row {
        at: id,
        id,
        kind: row.get(1)?,
        bonus_type: row.get(2)?,
        debit: row.get(3)?,
        debit_holder: row.get(4)?,
        credit: row.get(5)?,
        credit_holder: row.get(6)?,
        amount: row.get(7)?,
        prev: row.get(8)?,
        time_ms: row.get(9)?,
        reference: row.get(10)?,
    })
}

pub(crate) fn rows(db: &Connection, from_at: i64, to_at: i64, limit: i64) -> Result<Vec<Row>, LedgerError> {
    let sql = format!("{ROWS} WHERE id >= ?1 AND id < ?2 ORDER BY id LIMIT ?3");
    let mut statement = db.prepare_cached(&sql)?;
    let rows = statement.query_map([from_at, to_at, limit], row)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// What the numbers in rows stand for.
pub(crate) fn names(db: &Connection, rows: &[Row]) -> Result<Names, LedgerError> {
    let mut names = Names::of(rows);
    let mut budget_key = db.prepare_cached("SELECT activity, scene, asset FROM programs WHERE id = ?1")?;
    for id in names.budget_key_ids() {
        let found =
            budget_key.query_row([id], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?])).optional()?;
        if let Some(found) = found {
            names.set_budget_key(id, found);
        }
    }
    let mut name = db.prepare_cached("SELECT name FROM names WHERE id = ?1")?;
    for id in names.name_ids() {
        if let Some(found) = name.query_row([id], |row| row.get(0)).optional()? {
            names.set_name(id, found);
        }
    }
    Ok(names)
}

/// What is behind the last seal. The next seal reaches to the file's last row, so none is ahead of it.
pub(crate) fn unsealed(db: &Connection, from_at: i64) -> Result<Unsealed, LedgerError> {
    let mut statement = db.prepare_cached("SELECT count(*), min(time_ms) FROM transfers WHERE id >= ?1")?;
    let (rows, oldest_ms) =
        statement.query_row([from_at], |row| Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get(1)?)))?;
    Ok(Unsealed { rows, oldest_ms, ahead: Vec::new() })
}

pub(crate) fn one(db: &Connection, id: i64) -> Result<Option<Row>, LedgerError> {
    Ok(db.prepare_cached(&format!("{ROWS} WHERE id = ?1"))?.query_row([id], row).optional()?)
}
