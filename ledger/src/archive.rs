//! The failure archive: what finally failed, with its bytes, until a person deals with it.

use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::tx::Tx;
use rusqlite::{Connection, OptionalExtension, Row, params};
use sha2::{Digest, Sha256};

/// Something to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveEntry<'a> {
    /// Its order number, where it could be read.
    pub trade_no: Option<&'a str>,
    /// The event's bytes, or a whole record's.
    pub payload: &'a [u8],
    /// Why, as one word (`budget_exhausted`). With the bytes it makes the entry unique.
    pub reason: &'a str,
    /// More about it, for a person.
    pub detail: &'a str,
    /// When; Unix milliseconds.
    pub time_ms: i64,
}

/// Something that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archived {
    /// Its number; grows with time.
    pub id: i64,
    /// Its order number, where it could be read.
    pub trade_no: Option<String>,
    /// The bytes.
    pub payload: Vec<u8>,
    /// Why.
    pub reason: String,
    /// More about it.
    pub detail: String,
    /// When it was archived; Unix milliseconds.
    pub time_ms: i64,
    /// The latest replay.
    pub replay: Option<Replay>,
}

/// One replay of an archived event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// When; Unix milliseconds.
    pub time_ms: i64,
    /// Who asked for it.
    pub actor: String,
    /// What came of it, as one word (`credited`).
    pub outcome: String,
}

/// Which entries to list. The default lists the first 100.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveFilter {
    /// Only this reason.
    pub reason: Option<String>,
    /// Only this order number.
    pub trade_no: Option<String>,
    /// Only what was never replayed with a final outcome: not `credited`, not `already_credited`.
    pub open: bool,
    /// Only entries with a larger number: the last one of the page before; 0 for the first page.
    pub after: i64,
    /// Entries at most, 1 to 10,000.
    pub limit: u32,
}

impl Default for ArchiveFilter {
    fn default() -> Self {
        Self { reason: None, trade_no: None, open: false, after: 0, limit: 100 }
    }
}

impl Tx<'_> {
    /// Archives entries; the same bytes for the same reason are kept once. Answers how many were new.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn archive(&mut self, entries: &[ArchiveEntry<'_>]) -> Result<usize, LedgerError> {
        self.run(|tx| {
            let mut statement = tx.ledger.db.prepare_cached(
                "INSERT INTO archive (hash, reason, trade_no, payload, detail, time_ms) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (hash, reason) DO NOTHING",
            )?;
            let mut new = 0;
            for entry in entries {
                let hash = Sha256::digest(entry.payload);
                new += statement.execute(params![
                    hash.as_slice(),
                    entry.reason,
                    entry.trade_no,
                    entry.payload,
                    entry.detail,
                    entry.time_ms
                ])?;
            }
            Ok(new)
        })
    }

    /// Records a replay of an entry: on the entry, and for good in the audit. False where there is no such
    /// entry.
    ///
    /// # Errors
    /// [`LedgerError`]; the transaction is lost.
    pub fn mark_replayed(&mut self, id: i64, replay: &Replay) -> Result<bool, LedgerError> {
        self.run(|tx| {
            let db = &tx.ledger.db;
            let Replay { time_ms, actor, outcome } = replay;
            let changed = db
                .prepare_cached(
                    "UPDATE archive SET replayed_ms = ?2, actor = ?3, outcome = ?4 WHERE id = ?1",
                )?
                .execute(params![id, time_ms, actor, outcome])?;
            if changed == 1 {
                db.prepare_cached(
                    "INSERT INTO replays (archive_id, actor, time_ms, outcome) VALUES (?1, ?2, ?3, ?4)",
                )?
                .execute(params![id, actor, time_ms, outcome])?;
            }
            Ok(changed == 1)
        })
    }
}

impl Ledger {
    /// A page of the archive, oldest first.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn archive_list(&self, filter: &ArchiveFilter) -> Result<Vec<Archived>, LedgerError> {
        list(&self.db, filter)
    }

    /// One entry, `None` where there is no such.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn archived(&self, id: i64) -> Result<Option<Archived>, LedgerError> {
        let sql = format!("SELECT {COLUMNS} FROM archive WHERE id = ?1");
        Ok(self.db.prepare_cached(&sql)?.query_row([id], read).optional()?)
    }

    /// Every replay of an entry, oldest first.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn replays(&self, archive_id: i64) -> Result<Vec<Replay>, LedgerError> {
        let mut statement = self.db.prepare_cached(
            "SELECT time_ms, actor, outcome FROM replays WHERE archive_id = ?1 ORDER BY id",
        )?;
        let rows = statement.query_map([archive_id], |row| {
            Ok(Replay { time_ms: row.get(0)?, actor: row.get(1)?, outcome: row.get(2)? })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

const COLUMNS: &str = "id, trade_no, payload, reason, detail, time_ms, replayed_ms, actor, outcome";

pub(crate) fn list(db: &Connection, filter: &ArchiveFilter) -> Result<Vec<Archived>, LedgerError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM archive WHERE id > ?1 AND (?2 IS NULL OR reason = ?2) \
         AND (?3 IS NULL OR trade_no = ?3) \
         AND (NOT ?4 OR outcome IS NULL OR outcome NOT IN ('credited', 'already_credited')) \
         ORDER BY id LIMIT ?5"
    );
    let mut statement = db.prepare_cached(&sql)?;
    let limit = filter.limit.clamp(1, 10_000);
    let rows = statement
        .query_map(params![filter.after, filter.reason, filter.trade_no, filter.open, limit], read)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn read(row: &Row<'_>) -> Result<Archived, rusqlite::Error> {
    let replay = match (row.get(6)?, row.get(7)?, row.get(8)?) {
        (Some(time_ms), Some(actor), Some(outcome)) => Some(Replay { time_ms, actor, outcome }),
        _ => None,
    };
    Ok(Archived {
        id: row.get(0)?,
        trade_no: row.get(1)?,
        payload: row.get(2)?,
        reason: row.get(3)?,
        detail: row.get(4)?,
        time_ms: row.get(5)?,
        replay,
    })
}
