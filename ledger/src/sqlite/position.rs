//! The position of a ledger in a file: its beats, its lineages, and what persons have accepted ([`crate::mark`]). A file
//! has no server; each time that it is opened under a guard, a lineage begins. So a copy that is older than the mark is
//! noticed, if the mark is kept elsewhere than the file.

use crate::error::LedgerError;
use crate::guard::Guard;
use crate::guarded::{Acceptance, Accepted, Beat, not_accepted};
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
    Ok(Position { server: last.server.clone(), last, lineages })
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
        db.prepare_cached("UPDATE ledger_position SET beat = beat + 1 RETURNING generation, lineage, beat")?
            .query_row([], mark)?
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
    let Acceptance { generation, actor, reason, lost, time_ms } = acceptance;
    let is_back = judge(db, guard)?;
    let tx = db.unchecked_transaction()?;
    let before = tx
        .query_row(
            "SELECT actor, reason, time_ms FROM ledger_acceptances WHERE accepted = ?1 ORDER BY generation DESC LIMIT 1",
            [generation],
            |row| Ok(Accepted::Before { actor: row.get(0)?, reason: row.get(1)?, time_ms: row.get(2)? }),
        )
        .optional()?;
    let now = read(&tx)?.last.generation;
    if now != *generation || !is_back {
        return before.ok_or_else(|| not_accepted(now, *generation));
    }
    let made = begin_lineage(&tx, guard.next_generation(now))?;
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
