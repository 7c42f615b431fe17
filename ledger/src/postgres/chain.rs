//! Seals in PostgreSQL. A transfer's place is the number of its transaction, since its own number says nothing about when it
//! was committed.
//!
//! ## Why a sealed range is final
//! All transactions below the oldest one that runs (`pg_snapshot_xmin`) have ended, and their rows are seen by a later
//! statement, or will never be. A later transaction gets a higher number: also after a crash, since the seal's own
//! transaction has a number that is not below the end of its range, and is on disk.
//!
//! Two sealers at once: an advisory lock lets one of them work; the unique numbers and beginnings of seals let one of two
//! commit, whatever becomes of that lock.

use super::address::Address;
use super::budget_keys::{cell, text};
use super::link::{Link, Purpose};
use super::options::PostgresOptions;
use super::position;
use super::session::Session;
use crate::chain::{self, Names, Page, Row, Seal, Unsealed, stored_hash};
use crate::contract::{Chain, Read};
use crate::error::{LedgerError, OpenError};
use crate::guard::Guard;
use crate::seal_error::SealError;
use std::sync::Arc;

const LOCK: &str =
    "SELECT pg_try_advisory_xact_lock(hashtextextended('windfall seals ' || current_schema(), 0))";
const HORIZON: &str = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint";
pub(super) const SYSTEM: &str = "SELECT system_identifier FROM pg_control_system()";
const SEALED_ON: &str = "SELECT system FROM seals ORDER BY id DESC LIMIT 1";
const RANGE: &str = "SELECT tx, id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference \
    FROM transfers WHERE tx >= $1 AND tx < $2 ORDER BY tx, id LIMIT $3";
const UNSEALED: &str = "SELECT count(*), min(time_ms) FROM transfers WHERE tx >= $1";
const AHEAD: &str = "SELECT tx, id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference \
    FROM transfers WHERE tx >= greatest($1, (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint)) \
    ORDER BY tx, id LIMIT 1000";
const ONE: &str = "SELECT tx, id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference \
    FROM transfers WHERE id = $1";

/// A connection that seals.
#[derive(Debug)]
pub(crate) struct PgSealer {
    link: Link,
    accepts_cluster: bool,
}

pub(crate) fn open(url: &str, options: &PostgresOptions) -> Result<PgSealer, OpenError> {
    Ok(PgSealer { link: Link::connect(Address::new(url, options)?, Purpose::Seal)?, accepts_cluster: false })
}

impl Chain for PgSealer {
    fn seal(&mut self, after: i64, rows_max: usize, now_ms: i64) -> Result<Option<Seal>, SealError> {
        let session = self.link.session()?;
        // Another connection than the one that was looked at: this server is compared as such by the next call.
        if session.went_back() {
            let why = "its connection leads to a server that went back in time";
            return Err(LedgerError::Unavailable(why.into()).into());
        }
        let system = cluster(&session, self.accepts_cluster)?;
        session.batch("BEGIN")?;
        match seal(&session, after, rows_max, now_ms, system) {
            Ok(Some(seal)) => Ok(session.commit(None).map(|()| Some(seal))?),
            other => {
                session.roll_back();
                Ok(other?)
            }
        }
    }

    fn accept_cluster(&mut self) {
        self.accepts_cluster = true;
    }

    fn read(&self) -> &dyn Read {
        &self.link
    }

    fn guard_by(&mut self, guard: Arc<Guard>) -> Result<(), OpenError> {
        self.link.guard_by(guard)
    }

    fn look(&mut self) -> Result<(), LedgerError> {
        let Some(guard) = &self.link.address.guard else { return Ok(()) };
        position::look(&*self.link.session()?, guard).map(drop)
    }
}

/// The identifier of the database cluster, where its server tells it. The last seal must have been made on the same one,
/// as far as that is known: another cluster may number its transactions anew, and new transfers would then lie inside
/// ranges that are sealed.
fn cluster(session: &Session, accepts: bool) -> Result<Option<i64>, SealError> {
    let here: i64 = match one(session, SYSTEM) {
        Ok(here) => here,
        Err(error) if position::hides_log(&error) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let rows = session.query(SEALED_ON, &[])?;
    let before: Option<i64> = rows.first().map(|row| cell(row, 0)).transpose()?.flatten();
    match before {
        Some(before) if before != here && !accepts => Err(SealError::Moved { before, here }),
        _ => Ok(Some(here)),
    }
}

/// Seals in the present transaction, which reads anew with each statement.
fn seal(
    session: &Session,
    after: i64,
    rows_max: usize,
    now_ms: i64,
    system: Option<i64>,
) -> Result<Option<Seal>, LedgerError> {
    if !one::<bool>(session, LOCK)? {
        return Ok(None);
    }
    let last = last_seal(session)?;
    if last.as_ref().map_or(0, |last| last.id) != after {
        return Ok(None);
    }
    let from_at = last.as_ref().map_or(i64::MIN, |last| last.to_at);
    let horizon: i64 = one(session, HORIZON)?;
    if horizon < from_at {
        return Err(LedgerError::Damaged(format!(
            "transactions below {from_at} are sealed, but this server is at {horizon}: the ledger was moved to another \
             server, whose new transfers cannot be told from sealed ones"
        )));
    }
    let limit = i64::try_from(rows_max).unwrap_or(i64::MAX - 1).saturating_add(1);
    let mut own = rows(session, from_at, horizon, limit)?;
    let Some(first) = own.first().map(|row| row.at) else { return Ok(None) };
    let more = own.len() > rows_max;
    let to_at = match chain::cut(&mut own, more, horizon) {
        Some(to_at) => to_at,
        // One transaction is never divided, however many rows it has.
        None => {
            own = rows(session, first, first.saturating_add(1), i64::MAX)?;
            first.saturating_add(1)
        }
    };
    let salts = chain::salts(own.len())?;
    let (seal, pages) = Seal::of(last.as_ref(), to_at, &own, &names(session, &own)?, &salts, now_ms);
    insert(session, &seal, &pages, system)?;
    Ok(Some(seal))
}

fn one<T: for<'r> tokio_postgres::types::FromSql<'r>>(
    session: &Session,
    sql: &'static str,
) -> Result<T, LedgerError> {
    let rows = session.query(sql, &[])?;
    cell(rows.first().ok_or_else(|| LedgerError::Sql("an answer is missing".into()))?, 0)
}

fn insert(session: &Session, seal: &Seal, pages: &[Page], system: Option<i64>) -> Result<(), LedgerError> {
    session.execute(
        "INSERT INTO seals (id, from_at, to_at, rows, sealed_ms, previous, content, names, hash, system) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        &[
            &seal.id,
            &seal.from_at,
            &seal.to_at,
            &seal.rows,
            &seal.sealed_ms,
            &seal.previous.as_slice(),
            &seal.content.as_slice(),
            &seal.names.as_slice(),
            &seal.hash.as_slice(),
            &system,
        ],
    )?;
    for (nth, page) in (0_i64..).zip(pages) {
        session.execute(
            "INSERT INTO seal_pages (seal, page, ids, guards, hashes) VALUES ($1, $2, $3, $4, $5)",
            &[&seal.id, &nth, &page.ids, &page.guards, &page.hashes],
        )?;
    }
    Ok(())
}

fn read_seal(row: &tokio_postgres::Row) -> Result<Seal, LedgerError> {
    let id: i64 = cell(row, 0)?;
    let hash = |at: usize| stored_hash(cell::<&[u8]>(row, at)?, &format!("seal {id}"));
    Ok(Seal {
        id,
        from_at: cell(row, 1)?,
        to_at: cell(row, 2)?,
        rows: cell(row, 3)?,
        sealed_ms: cell(row, 4)?,
        previous: hash(5)?,
        content: hash(6)?,
        names: hash(7)?,
        hash: hash(8)?,
    })
}

pub(crate) fn seals(session: &Session, after: i64, limit: u32) -> Result<Vec<Seal>, LedgerError> {
    let rows = session.query(
        "SELECT id, from_at, to_at, rows, sealed_ms, previous, content, names, hash FROM seals WHERE id > $1 \
         ORDER BY id LIMIT $2",
        &[&after, &i64::from(limit)],
    )?;
    rows.iter().map(read_seal).collect()
}

pub(crate) fn last_seal(session: &Session) -> Result<Option<Seal>, LedgerError> {
    let rows = session.query(
        "SELECT id, from_at, to_at, rows, sealed_ms, previous, content, names, hash FROM seals ORDER BY id DESC LIMIT 1",
        &[],
    )?;
    rows.first().map(read_seal).transpose()
}

pub(crate) fn pages(session: &Session, seal: i64) -> Result<Vec<Page>, LedgerError> {
    let rows = session
        .query("SELECT ids, guards, hashes FROM seal_pages WHERE seal = $1 ORDER BY page", &[&seal])?;
    rows.iter()
        .map(|row| Ok(Page { ids: cell(row, 0)?, guards: cell(row, 1)?, hashes: cell(row, 2)? }))
        .collect()
}

fn read_row(row: &tokio_postgres::Row) -> Result<Row, LedgerError> {
    let small = |at: usize| Ok::<_, LedgerError>(i64::from(cell::<i16>(row, at)?));
    Ok(Row {
        at: cell(row, 0)?,
        id: cell(row, 1)?,
        kind: small(2)?,
        bonus_type: cell(row, 3)?,
        debit: small(4)?,
        debit_holder: cell(row, 5)?,
        credit: small(6)?,
        credit_holder: cell(row, 7)?,
        amount: cell(row, 8)?,
        prev: cell(row, 9)?,
        time_ms: cell(row, 10)?,
        reference: cell(row, 11)?,
    })
}

pub(crate) fn rows(session: &Session, from_at: i64, to_at: i64, limit: i64) -> Result<Vec<Row>, LedgerError> {
    session.query(RANGE, &[&from_at, &to_at, &limit])?.iter().map(read_row).collect()
}

/// What the numbers in rows stand for.
pub(crate) fn names(session: &Session, rows: &[Row]) -> Result<Names, LedgerError> {
    let mut names = Names::of(rows);
    let budget_keys = session.query(
        "SELECT id, activity, scene, asset FROM programs WHERE id = ANY($1)",
        &[&names.budget_key_ids()],
    )?;
    for row in &budget_keys {
        names.set_budget_key(cell(row, 0)?, [cell(row, 1)?, cell(row, 2)?, cell(row, 3)?]);
    }
    for row in &session.query("SELECT id, name FROM names WHERE id = ANY($1)", &[&names.name_ids()])? {
        names.set_name(cell(row, 0)?, text(row, 1)?.to_owned());
    }
    Ok(names)
}

/// What is behind the last seal. A row of a transaction that this statement's snapshot does not know yet was not written
/// by one.
pub(crate) fn unsealed(session: &Session, from_at: i64) -> Result<Unsealed, LedgerError> {
    let counted = session.query(UNSEALED, &[&from_at])?;
    let counted = counted.first().ok_or_else(|| LedgerError::Sql("an answer is missing".into()))?;
    let ahead = session.query(AHEAD, &[&from_at])?.iter().map(read_row).collect::<Result<_, _>>()?;
    Ok(Unsealed { rows: cell::<i64>(counted, 0)?.unsigned_abs(), oldest_ms: cell(counted, 1)?, ahead })
}

pub(crate) fn by_id(session: &Session, id: i64) -> Result<Option<Row>, LedgerError> {
    session.query(ONE, &[&id])?.first().map(read_row).transpose()
}
