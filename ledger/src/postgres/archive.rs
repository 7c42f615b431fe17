//! The failure archive's rows.

use super::budget_keys::{cell, text};
use super::session::Session;
use crate::archive::{ArchiveEntry, ArchiveFilter, Archived, Replay};
use crate::error::LedgerError;
use sha2::{Digest, Sha256};
use tokio_postgres::Row;

/// Free text, which may come from anywhere, without NUL characters, which PostgreSQL cannot store.
fn plain(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Inserts entries; the same bytes for the same reason are kept once: the unique index decides, and waits for
/// another transaction that works on them.
pub(crate) fn insert(session: &Session, entries: &[ArchiveEntry<'_>]) -> Result<usize, LedgerError> {
    if entries.is_empty() {
        return Ok(0);
    }
    let hashes: Vec<Vec<u8>> = entries.iter().map(|entry| Sha256::digest(entry.payload).to_vec()).collect();
    let reasons: Vec<String> = entries.iter().map(|entry| plain(&entry.reason)).collect();
    let trade_nos: Vec<Option<String>> = entries.iter().map(|entry| entry.trade_no.map(plain)).collect();
    let payloads: Vec<&[u8]> = entries.iter().map(|entry| entry.payload).collect();
    let details: Vec<String> = entries.iter().map(|entry| plain(&entry.detail)).collect();
    let times: Vec<i64> = entries.iter().map(|entry| entry.time_ms).collect();
    let new = session.execute(
        "INSERT INTO archive (hash, reason, trade_no, payload, detail, time_ms) \
         SELECT * FROM unnest($1::bytea[], $2::text[], $3::text[], $4::bytea[], $5::text[], $6::bigint[]) \
         ON CONFLICT (hash, reason) DO NOTHING",
        &[&hashes, &reasons, &trade_nos, &payloads, &details, &times],
    )?;
    Ok(usize::try_from(new).unwrap_or(usize::MAX))
}

pub(crate) fn id_of(session: &Session, payload: &[u8], reason: &str) -> Result<Option<i64>, LedgerError> {
    let (hash, reason) = (Sha256::digest(payload).to_vec(), plain(reason));
    let rows = session.query("SELECT id FROM archive WHERE hash = $1 AND reason = $2", &[&hash, &reason])?;
    rows.first().map(|row| cell(row, 0)).transpose()
}

pub(crate) fn mark_replayed(session: &Session, id: i64, replay: &Replay) -> Result<bool, LedgerError> {
    let (actor, outcome) = (plain(&replay.actor), plain(&replay.outcome));
    let changed = session.execute(
        "UPDATE archive SET replayed_ms = $2, actor = $3, outcome = $4 WHERE id = $1",
        &[&id, &replay.time_ms, &actor, &outcome],
    )?;
    if changed == 1 {
        session.execute(
            "INSERT INTO replays (archive_id, actor, time_ms, outcome) VALUES ($1, $2, $3, $4)",
            &[&id, &actor, &replay.time_ms, &outcome],
        )?;
    }
    Ok(changed == 1)
}

pub(crate) fn list(session: &Session, filter: &ArchiveFilter) -> Result<Vec<Archived>, LedgerError> {
    let limit = i64::from(filter.limit.clamp(1, 10_000));
    let rows = session.query(
        "SELECT id, trade_no, payload, reason, detail, time_ms, replayed_ms, actor, outcome FROM archive \
         WHERE id > $1 AND ($2::text IS NULL OR reason = $2) AND ($3::text IS NULL OR trade_no = $3) \
         AND (NOT $4::boolean OR outcome IS NULL OR outcome NOT IN ('credited', 'already_credited')) \
         ORDER BY id LIMIT $5",
        &[&filter.after, &filter.reason, &filter.trade_no, &filter.open, &limit],
    )?;
    rows.iter().map(entry).collect()
}

pub(crate) fn one(session: &Session, id: i64) -> Result<Option<Archived>, LedgerError> {
    let rows = session.query(
        "SELECT id, trade_no, payload, reason, detail, time_ms, replayed_ms, actor, outcome FROM archive \
         WHERE id = $1",
        &[&id],
    )?;
    rows.first().map(entry).transpose()
}

fn entry(row: &Row) -> Result<Archived, LedgerError> {
    let replay = match (cell(row, 6)?, cell(row, 7)?, cell(row, 8)?) {
        (Some(time_ms), Some(actor), Some(outcome)) => Some(Replay { time_ms, actor, outcome }),
        _ => None,
    };
    Ok(Archived {
        id: cell(row, 0)?,
        trade_no: cell(row, 1)?,
        payload: cell(row, 2)?,
        reason: cell(row, 3)?,
        detail: cell(row, 4)?,
        time_ms: cell(row, 5)?,
        replay,
    })
}

pub(crate) fn replays(session: &Session, archive_id: i64) -> Result<Vec<Replay>, LedgerError> {
    let rows = session.query(
        "SELECT time_ms, actor, outcome FROM replays WHERE archive_id = $1 ORDER BY id",
        &[&archive_id],
    )?;
    rows.iter()
        .map(|row| {
            let (actor, outcome) = (text(row, 1)?.to_owned(), text(row, 2)?.to_owned());
            Ok(Replay { time_ms: cell(row, 0)?, actor, outcome })
        })
        .collect()
}
