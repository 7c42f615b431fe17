//! The failure archive's rows.

use crate::archive::{ArchiveEntry, ArchiveFilter, Archived, Replay};
use crate::error::LedgerError;
use rusqlite::{Connection, OptionalExtension, Row, params};
use sha2::{Digest, Sha256};

pub(crate) fn insert(db: &Connection, entries: &[ArchiveEntry<'_>]) -> Result<usize, LedgerError> {
    let mut statement = db.prepare_cached(
        "INSERT INTO archive (hash, reason, trade_no, payload, detail, time_ms) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (hash, reason) DO NOTHING",
    )?;
    let mut new = 0;
    for entry in entries {
        let hash = Sha256::digest(entry.payload);
        new += statement.execute(params![
            hash.as_slice(),
            &*entry.reason,
            entry.trade_no,
            entry.payload,
            &*entry.detail,
            entry.time_ms
        ])?;
    }
    Ok(new)
}

pub(crate) fn id_of(db: &Connection, payload: &[u8], reason: &str) -> Result<Option<i64>, LedgerError> {
    let hash = Sha256::digest(payload);
    Ok(db
        .prepare_cached("SELECT id FROM archive WHERE hash = ?1 AND reason = ?2")?
        .query_row(params![hash.as_slice(), reason], |row| row.get(0))
        .optional()?)
}

pub(crate) fn mark_replayed(db: &Connection, id: i64, replay: &Replay) -> Result<bool, LedgerError> {
    let Replay { time_ms, actor, outcome } = replay;
    let changed = db
        .prepare_cached("UPDATE archive SET replayed_ms = ?2, actor = ?3, outcome = ?4 WHERE id = ?1")?
        .execute(params![id, time_ms, actor, outcome])?;
    if changed == 1 {
        db.prepare_cached(
            "INSERT INTO replays (archive_id, actor, time_ms, outcome) VALUES (?1, ?2, ?3, ?4)",
        )?
        .execute(params![id, actor, time_ms, outcome])?;
    }
    Ok(changed == 1)
}

pub(crate) fn one(db: &Connection, id: i64) -> Result<Option<Archived>, LedgerError> {
    let sql = format!("SELECT {COLUMNS} FROM archive WHERE id = ?1");
    Ok(db.prepare_cached(&sql)?.query_row([id], read).optional()?)
}

pub(crate) fn replays(db: &Connection, archive_id: i64) -> Result<Vec<Replay>, LedgerError> {
    let mut statement =
        db.prepare_cached("SELECT time_ms, actor, outcome FROM replays WHERE archive_id = ?1 ORDER BY id")?;
    let rows = statement.query_map([archive_id], |row| {
        Ok(Replay { time_ms: row.get(0)?, actor: row.get(1)?, outcome: row.get(2)? })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
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
