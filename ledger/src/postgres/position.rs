//! The ledger's position: its beats, its lineages, and what persons have accepted ([`crate::mark`]). Every function that
//! it asks of the server may be called by any user.
//!
//! Why a beat that was answered is never ahead of what a synchronous standby has: its commit is answered when the standby
//! has it. A beat that is read was committed before it could be read, and other transactions see a commit only after
//! the standby has it. The position in the write-ahead log that stands in the row was read before the commit.

use super::budget_keys::cell;
use super::session::Session;
use crate::error::LedgerError;
use crate::guard::Guard;
use crate::guarded::{Acceptance, Accepted};
use crate::mark::{Lineage, Mark, Position, ServerPosition};

/// The timeline that the server writes. The one of its last checkpoint stays the old one for a while after a promotion.
macro_rules! timeline {
    () => {
        "('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint"
    };
}
macro_rules! wal {
    () => {
        "pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
    };
}
/// The columns of the server, as an update sets them.
macro_rules! set_server {
    () => {
        concat!(
            "system = (SELECT system_identifier FROM pg_control_system()), timeline = ",
            timeline!(),
            ", wal = ",
            wal!(),
            ", started = pg_postmaster_start_time()"
        )
    };
}

const IS_THERE: &str = "SELECT to_regclass('ledger_acceptances') IS NOT NULL";

/// `ledger_position` has one row, which every beat updates in place; `wal` was read before the commit that wrote it.
const TABLES: &str = concat!(
    r#"
CREATE TABLE IF NOT EXISTS ledger_position (
    one boolean NOT NULL PRIMARY KEY CHECK (one),
    generation bigint NOT NULL,
    lineage text COLLATE "C" NOT NULL,
    beat bigint NOT NULL,
    system bigint NOT NULL,
    timeline bigint NOT NULL,
    wal bigint NOT NULL,
    started timestamptz NOT NULL
) WITH (fillfactor = 10);
CREATE TABLE IF NOT EXISTS ledger_lineages (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    first_beat bigint NOT NULL UNIQUE,
    system bigint NOT NULL,
    timeline bigint NOT NULL,
    wal bigint NOT NULL,
    started timestamptz NOT NULL,
    began timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE IF NOT EXISTS ledger_acceptances (
    generation bigint NOT NULL PRIMARY KEY,
    actor text NOT NULL,
    reason text NOT NULL,
    lost text NOT NULL,
    time_ms bigint NOT NULL
);
WITH first AS (
    INSERT INTO ledger_position (one, generation, lineage, beat, system, timeline, wal, started)
    SELECT true, 1, gen_random_uuid()::text, 1, system_identifier, "#,
    timeline!(),
    ", ",
    wal!(),
    r#", pg_postmaster_start_time() FROM pg_control_system() ON CONFLICT (one) DO NOTHING RETURNING *)
INSERT INTO ledger_lineages (id, first_beat, system, timeline, wal, started)
    SELECT lineage, beat, system, timeline, wal, started FROM first;
"#
);

/// The last beat, whether this very start of the server has committed it, and where the server is now. A standby has no
/// position to write at.
const READ: &str = concat!(
    "SELECT p.generation, p.lineage, p.beat, p.system, p.timeline, p.wal, p.started = pg_postmaster_start_time(), \
     s.system_identifier, CASE WHEN r.is_standby THEN NULL ELSE ",
    timeline!(),
    " END, CASE WHEN r.is_standby THEN NULL ELSE ",
    wal!(),
    " END FROM ledger_position p, pg_control_system() s, pg_is_in_recovery() AS r(is_standby)"
);
const LINEAGES: &str = "SELECT id, first_beat FROM ledger_lineages";

/// Counts a beat, unless another process is at it, or the server is another one than that of the lineage.
const BEAT: &str = concat!(
    "WITH own AS (SELECT one FROM ledger_position WHERE lineage = $1 AND started = pg_postmaster_start_time() \
     AND timeline = ",
    timeline!(),
    " FOR UPDATE SKIP LOCKED) UPDATE ledger_position p SET beat = p.beat + 1, ",
    set_server!(),
    " FROM own WHERE p.one = own.one \
     RETURNING p.generation, p.lineage, p.beat, p.system, p.timeline, p.wal"
);

/// Begins a lineage on another server, unless another process has done so.
const BEGIN_LINEAGE: &str = concat!(
    "WITH moved AS (UPDATE ledger_position SET lineage = gen_random_uuid()::text, beat = beat + 1, ",
    set_server!(),
    " WHERE lineage = $1 RETURNING *) \
     INSERT INTO ledger_lineages (id, first_beat, system, timeline, wal, started) \
     SELECT lineage, beat, system, timeline, wal, started FROM moved"
);

/// Begins a generation, in a lineage of its own, with the note of who accepts it: all in one statement.
const ACCEPT: &str = concat!(
    "WITH moved AS (UPDATE ledger_position SET generation = generation + 1, lineage = gen_random_uuid()::text, \
     beat = beat + 1, ",
    set_server!(),
    " WHERE generation = $1 RETURNING *), \
     line AS (INSERT INTO ledger_lineages (id, first_beat, system, timeline, wal, started) \
     SELECT lineage, beat, system, timeline, wal, started FROM moved), \
     note AS (INSERT INTO ledger_acceptances (generation, actor, reason, lost, time_ms) \
     SELECT generation, $2, $3, $4, $5::bigint FROM moved) \
     SELECT generation, lineage, beat, system, timeline, wal FROM moved"
);
const ACCEPTED: &str = "SELECT actor, reason, time_ms FROM ledger_acceptances WHERE generation = $1";

/// What was read, and whether the present start of the server is that of the lineage.
struct Found {
    position: Position,
    is_same_server: bool,
}

fn mark(row: &tokio_postgres::Row) -> Result<Mark, LedgerError> {
    let server = ServerPosition {
        system: cell::<i64>(row, 3)?.to_string(),
        timeline: cell(row, 4)?,
        wal: cell(row, 5)?,
    };
    Ok(Mark { generation: cell(row, 0)?, lineage: cell(row, 1)?, beat: cell(row, 2)?, server })
}

fn vanished() -> LedgerError {
    LedgerError::Damaged("the table ledger_position has no row".into())
}

/// Makes the tables where they are missing. Many processes may do so at once.
pub(super) fn make_tables(session: &Session, schema: &str) -> Result<(), LedgerError> {
    let there = session.query(IS_THERE, &[])?;
    if there.first().map_or(Ok(false), |row| cell(row, 0))? {
        return Ok(());
    }
    let sql = format!(
        "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('windfall ledger {schema}', 0)); {TABLES} COMMIT"
    );
    // A transaction that failed is still open on it.
    session.batch(&sql).inspect_err(|_| session.give_up())
}

fn read(session: &Session) -> Result<Found, LedgerError> {
    let rows = session.query(READ, &[])?;
    let row = rows.first().ok_or_else(vanished)?;
    let last = mark(row)?;
    let (timeline, wal): (Option<i64>, Option<i64>) = (cell(row, 8)?, cell(row, 9)?);
    let (Some(timeline), Some(wal)) = (timeline, wal) else {
        // It lags behind the mark as a matter of course, and is written by nobody.
        session.give_up();
        return Err(LedgerError::ReadOnly);
    };
    let server = ServerPosition { system: cell::<i64>(row, 7)?.to_string(), timeline, wal };
    let is_same_server = cell::<bool>(row, 6)?
        && (&server.system, server.timeline) == (&last.server.system, last.server.timeline);
    let lineages = session
        .query(LINEAGES, &[])?
        .iter()
        .map(|row| Ok(Lineage { id: cell(row, 0)?, first_beat: cell(row, 1)? }))
        .collect::<Result<_, LedgerError>>()?;
    Ok(Found { position: Position { last, lineages, server }, is_same_server })
}

/// Compares the database behind this connection with the guard's marks. If it holds them, and the server is another one
/// than before, a lineage begins. Returns the last beat, unless the ledger went back in time.
pub(super) fn look(session: &Session, guard: &Guard) -> Result<Option<Mark>, LedgerError> {
    // Before the database is read: they are committed by then.
    let marks = guard.marks();
    let found = read(session)?;
    let is_back = guard.judge(&marks, &found.position);
    session.set_went_back(is_back);
    if is_back {
        return Ok(None);
    }
    if found.is_same_server {
        return Ok(Some(found.position.last));
    }
    let before = &found.position.last;
    session.execute(BEGIN_LINEAGE, &[&before.lineage])?;
    let rows = session.query(READ, &[])?;
    let now = mark(rows.first().ok_or_else(vanished)?)?;
    tracing::info!(from = %before, to = %now, "the ledger's server was started again or is another one; it holds the mark");
    Ok(Some(now))
}

/// Counts a beat where `count` asks for it, and returns the mark. Where another process counts at this moment, the last
/// beat is the mark: it is older, which is no harm.
pub(super) fn beat(session: &Session, guard: &Guard, count: bool) -> Result<Option<Mark>, LedgerError> {
    let Some(mut made) = look(session, guard)? else { return Ok(None) };
    if count && let Some(row) = session.query(BEAT, &[&made.lineage])?.first() {
        made = mark(row)?;
    }
    guard.advance(&made);
    Ok(Some(made))
}

pub(super) fn accept(
    session: &Session,
    guard: &Guard,
    acceptance: &Acceptance,
) -> Result<Accepted, LedgerError> {
    let Acceptance { generation, actor, reason, lost, time_ms } = acceptance;
    let rows = session.query(ACCEPT, &[generation, actor, reason, lost, time_ms])?;
    let Some(row) = rows.first() else {
        let next = generation.saturating_add(1);
        let before = session.query(ACCEPTED, &[&next])?;
        let Some(row) = before.first() else {
            let now = read(session)?.position.last.generation;
            let what = format!("the ledger's generation is {now}, not {generation}; look again");
            return Err(LedgerError::Invalid(what));
        };
        let (actor, reason, time_ms) = (cell(row, 0)?, cell(row, 1)?, cell(row, 2)?);
        return Ok(Accepted::Before { actor, reason, time_ms });
    };
    let now = mark(row)?;
    tracing::warn!(actor, reason, lost, ledger = %now, "a person has accepted the ledger as it is; marks of before are given up");
    guard.advance(&now);
    look(session, guard)?;
    Ok(Accepted::Now { ledger: now, time_ms: *time_ms })
}
