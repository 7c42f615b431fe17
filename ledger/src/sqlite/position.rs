//! The position of a ledger in a file: its beats, its lineages, and what persons have accepted ([`crate::mark`]). A file
//! has no server; each time that it is opened under a guard, a lineage begins. So a copy that is older than the mark is
//! noticed, if the mark is kept elsewhere than the file.

use crate::error::LedgerError;
use crate::guard::Guard;
use crate::guarded::{Acceptance, Accepted, Beat, not_accepted, not_as_shown};
use crate::mark::{Lineage, Mark, Position, ServerPosition};
use rusqlite::{Connection, OptionalExtension, Row, params};

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS ledger_position (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    generation INTEGER NOT NULL,
    lineage TEXT NOT NULL,
    beat INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS ledger_lineages (
    id TEXT NOT NULL PRIMARY KEY,
    first_beat INTEGER NOT NULL UNIQUE
) STRICT;
CREATE TABLE IF NOT EXISTS ledger_acceptances (
    generation INTEGER NOT NULL PRIMARY KEY,
    accepted INTEGER NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT NOT NULL,
    lost TEXT NOT NULL,
    time_ms INTEGER NOT NULL
) STRICT;
INSERT INTO ledger_position (one, generation, lineage, beat) VALUES (1, 1, lower(hex(randomblob(16))), 1)
    ON CONFLICT (one) DO NOTHING;
INSERT INTO ledger_lineages (id, first_beat) SELECT lineage, beat FROM ledger_position WHERE true
    ON CONFLICT (id) DO NOTHING;
";

const READ: &str = "SELECT generation, lineage, beat FROM ledger_position";
const COUNT: &str = "UPDATE ledger_position SET beat = beat + 1 RETURNING generation, lineage, beat";
const BEGIN_LINEAGE: &str = "UPDATE ledger_position SET generation = ?1, \
    lineage = lower(hex(randomblob(16))), beat = beat + 1 RETURNING generation, lineage, beat";

fn mark(row: &Row<'_>) -> Result<Mark, rusqlite::Error> {
    let server = ServerPosition { system: "file".into(), ..ServerPosition::default() };
    Ok(Mark { generation: row.get(0)?, lineage: row.get(1)?, beat: row.get(2)?, server })
}

fn read(db: &Connection) -> Result<Position, LedgerError> {
    let last = db.prepare_cached(READ)?.query_row([], mark)?;
    let lineages = db
        .prepare_cached("SELECT id, first_beat FROM ledger_lineages")?
        .query_map([], |row| Ok(Lineage { id: row.get(0)?, first_beat: row.get(1)? }))?
        .collect::<Result<_, _>>()?;
    Ok(Position { server: last.server.clone(), last, lineages, missed: None })
}

/// Begins a lineage in this generation, in the caller's transaction.
fn begin_lineage(db: &Connection, generation: i64) -> Result<Mark, LedgerError> {
    let now = db.query_row(BEGIN_LINEAGE, [generation], mark)?;
    db.execute(
        "INSERT INTO ledger_lineages (id, first_beat) VALUES (?1, ?2)",
        params![now.lineage, now.beat],
    )?;
    Ok(now)
}

/// Compares the file with the guard's marks. Returns whether it went back in time.
fn judge(db: &Connection, guard: &Guard) -> Result<bool, LedgerError> {
    // Before the file is read: they are committed by then.
    let marks = guard.marks();
    Ok(guard.judge(&marks, &read(db)?))
}

/// Compares a file that was just opened, and begins its lineage.
pub(super) fn open(db: &Connection, guard: &Guard) -> Result<(), LedgerError> {
    let tx = db.unchecked_transaction()?;
    tx.execute_batch(TABLES)?;
    tx.commit()?;
    if !judge(db, guard)? {
        let tx = db.unchecked_transaction()?;
        let generation = read(&tx)?.last.generation;
        begin_lineage(&tx, generation)?;
        tx.commit()?;
    }
    Ok(())
}

/// Compares, and counts a beat where `count` asks for it.
pub(super) fn beat(db: &Connection, guard: &Guard, count: bool) -> Result<Option<Beat>, LedgerError> {
    if judge(db, guard)? {
        return Ok(None);
    }
    let made = if count {
        // In a transaction: without one, the row would be here before its commit, whose failure nobody would be told of.
        let tx = db.unchecked_transaction()?;
        let made = tx.prepare_cached(COUNT)?.query_row([], mark)?;
        tx.commit()?;
        made
    } else {
        db.prepare_cached(READ)?.query_row([], mark)?
    };
    guard.advance(&made);
    Ok(Some(Beat { mark: made, is_counted: count }))
}

pub(super) fn accept(
    db: &Connection,
    guard: &Guard,
    acceptance: &Acceptance,
) -> Result<Accepted, LedgerError> {
    let Acceptance { generation, actor, reason, lost, time_ms, .. } = acceptance;
    let is_back = judge(db, guard)?;
    let tx = db.unchecked_transaction()?;
    let before = tx
        .query_row(
            "SELECT actor, reason, time_ms FROM ledger_acceptances WHERE accepted = ?1 ORDER BY generation DESC LIMIT 1",
            [generation],
            |row| Ok(Accepted::Before { actor: row.get(0)?, reason: row.get(1)?, time_ms: row.get(2)? }),
        )
        .optional()?;
    let position = read(&tx)?;
    let now = position.last.generation;
    if now != *generation || !is_back {
        return before.ok_or_else(|| not_accepted(now, *generation));
    }
    if !position.is_as_shown(acceptance) {
        return Err(not_as_shown(&position.last));
    }
    let made = begin_lineage(&tx, guard.next_generation(&position))?;
    tx.execute(
        "INSERT INTO ledger_acceptances (generation, accepted, actor, reason, lost, time_ms) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![made.generation, generation, actor, reason, lost, time_ms],
    )?;
    tx.commit()?;
    tracing::warn!(actor, reason, lost, ledger = %made, "a person has accepted the ledger as it is; marks of before are given up");
    guard.advance(&made);
    judge(db, guard)?;
    Ok(Accepted::Now { ledger: made, time_ms: *time_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_whose_commit_fails_is_no_mark() {
        let db = Connection::open_in_memory().unwrap();
        let guard = Guard::new(vec![Some(None)]);
        open(&db, &guard).unwrap();
        let first = beat(&db, &guard, true).unwrap().unwrap().mark;
        // A key that is looked for at the commit, and is not there: the update itself goes well.
        db.execute_batch(
            "PRAGMA foreign_keys = ON;
             CREATE TABLE parents (id INTEGER PRIMARY KEY);
             CREATE TABLE children (id INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED);
             CREATE TRIGGER fails AFTER UPDATE ON ledger_position BEGIN INSERT INTO children VALUES (7); END",
        )
        .unwrap();
        assert!(beat(&db, &guard, true).is_err());
        assert_eq!(guard.state().mark, Some(first.clone()));
        assert_eq!(read(&db).unwrap().last, first);
        db.execute_batch("DROP TRIGGER fails").unwrap();
        let next = beat(&db, &guard, true).unwrap().unwrap().mark;
        assert_eq!(next.beat, first.beat + 1);
        assert!(!guard.stops_payouts());
    }
}
