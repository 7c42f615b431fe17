//! The ledger's position: its beats, its lineages, and what persons have accepted ([`crate::mark`]). Every function that
//! it asks of the server may be called by any user.
//!
//! Why a beat that was answered is never ahead of what a synchronous standby has: its commit is answered when the standby
//! has it. A beat that is read was committed before it could be read, and other transactions see a commit only after
//! the standby has it. The position in the write-ahead log that stands in the row was read before the commit. (Whoever
//! ends the wait of a commit by hand makes it visible on the primary alone. Others have seen it then, so a standby without
//! it is behind, and is noticed.)
//!
//! A reader only compares: it must not wait for a standby, a full disk or rights. What is missing is made by writers.

use super::budget_keys::cell;
use super::session::Session;
use crate::error::LedgerError;
use crate::guard::Guard;
use crate::guarded::{Acceptance, Accepted, Beat, not_accepted};
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
    accepted bigint NOT NULL,
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
    " END FROM ledger_position p, pg_control_system() s, pg_is_in_recovery() AS r(is_standby) WHERE p.one"
);
/// Where the server is, for a database in which the tables are missing.
const READ_SERVER: &str = concat!(
    "SELECT s.system_identifier, CASE WHEN r.is_standby THEN NULL ELSE ",
    timeline!(),
    " END, CASE WHEN r.is_standby THEN NULL ELSE ",
    wal!(),
    " END FROM pg_control_system() s, pg_is_in_recovery() AS r(is_standby)"
);
const LINEAGES: &str = "SELECT id, first_beat FROM ledger_lineages";

/// Counts a beat, unless another process is at it, or the server is another one than that of the lineage.
const BEAT: &str = concat!(
    "WITH own AS (SELECT one FROM ledger_position WHERE one AND lineage = $1 AND started = pg_postmaster_start_time() \
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
    " WHERE one AND lineage = $1 RETURNING *) \
     INSERT INTO ledger_lineages (id, first_beat, system, timeline, wal, started) \
     SELECT lineage, beat, system, timeline, wal, started FROM moved"
);

/// Begins a generation, in a lineage of its own, with the note of who accepts it: all in one statement.
const ACCEPT: &str = concat!(
    "WITH moved AS (UPDATE ledger_position SET generation = $6::bigint, lineage = gen_random_uuid()::text, \
     beat = beat + 1, ",
    set_server!(),
    " WHERE one AND generation = $1::bigint RETURNING *), \
     line AS (INSERT INTO ledger_lineages (id, first_beat, system, timeline, wal, started) \
     SELECT lineage, beat, system, timeline, wal, started FROM moved), \
     note AS (INSERT INTO ledger_acceptances (generation, accepted, actor, reason, lost, time_ms) \
     SELECT generation, $1::bigint, $2, $3, $4, $5::bigint FROM moved) \
     SELECT generation, lineage, beat, system, timeline, wal FROM moved"
);
const ACCEPTED: &str = "SELECT actor, reason, time_ms FROM ledger_acceptances WHERE accepted = $1 \
     ORDER BY generation DESC LIMIT 1";

/// What was read, and whether the present start of the server is that of the lineage.
pub(super) struct Found {
    position: Position,
    is_same_server: bool,
    has_tables: bool,
    /// Whether it went back in time.
    is_back: bool,
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
fn make_tables(session: &Session, schema: &str) -> Result<(), LedgerError> {
    let sql = format!(
        "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('windfall ledger {schema}', 0)); {TABLES} COMMIT"
    );
    // A transaction that failed is still open on it.
    session.batch(&sql).inspect_err(|_| session.give_up())
}

fn server(
    row: &tokio_postgres::Row,
    system: usize,
    session: &Session,
) -> Result<ServerPosition, LedgerError> {
    let (timeline, wal): (Option<i64>, Option<i64>) = (cell(row, system + 1)?, cell(row, system + 2)?);
    let (Some(timeline), Some(wal)) = (timeline, wal) else {
        // It lags behind the mark as a matter of course, and is written by nobody.
        session.give_up();
        return Err(LedgerError::ReadOnly);
    };
    Ok(ServerPosition { system: cell::<i64>(row, system)?.to_string(), timeline, wal })
}

fn has_tables(session: &Session) -> Result<bool, LedgerError> {
    session.query(IS_THERE, &[])?.first().map_or(Ok(false), |row| cell(row, 0))
}

/// The last beat.
fn last(session: &Session) -> Result<Mark, LedgerError> {
    let rows = session.query(READ, &[])?;
    mark(rows.first().ok_or_else(vanished)?)
}

fn read(session: &Session) -> Result<Found, LedgerError> {
    if !has_tables(session)? {
        let rows = session.query(READ_SERVER, &[])?;
        let server = server(rows.first().ok_or_else(vanished)?, 0, session)?;
        // It has been in no lineage, so it holds no mark.
        let last = Mark { generation: 1, lineage: "none".into(), beat: 0, server: server.clone() };
        let position = Position { last, lineages: Vec::new(), server };
        return Ok(Found { position, is_same_server: false, has_tables: false, is_back: false });
    }
    let rows = session.query(READ, &[])?;
    let row = rows.first().ok_or_else(vanished)?;
    let last = mark(row)?;
    let server = server(row, 7, session)?;
    let is_same_server = cell::<bool>(row, 6)?
        && (&server.system, server.timeline) == (&last.server.system, last.server.timeline);
    let lineages = session
        .query(LINEAGES, &[])?
        .iter()
        .map(|row| Ok(Lineage { id: cell(row, 0)?, first_beat: cell(row, 1)? }))
        .collect::<Result<_, LedgerError>>()?;
    let position = Position { last, lineages, server };
    Ok(Found { position, is_same_server, has_tables: true, is_back: false })
}

/// Compares the database behind this connection with the guard's marks, and notes in the session whether it went back
/// in time. It writes nothing.
pub(super) fn look(session: &Session, guard: &Guard) -> Result<Found, LedgerError> {
    // Before the database is read: they are committed by then.
    let marks = guard.marks();
    let found = read(session)?;
    let is_back = guard.judge(&marks, &found.position);
    session.looked(is_back);
    Ok(Found { is_back, ..found })
}

/// The same on a connection that writes: if the database holds the marks, the tables are made where they are missing, and
/// a lineage begins where the server is another one than before. Returns the last beat, unless the ledger went back.
pub(super) fn follow(session: &Session, guard: &Guard, schema: &str) -> Result<Option<Mark>, LedgerError> {
    let found = look(session, guard)?;
    if found.is_back {
        return Ok(None);
    }
    if !found.has_tables {
        make_tables(session, schema)?;
        return last(session).map(Some);
    }
    let before = found.position.last;
    if found.is_same_server {
        return Ok(Some(before));
    }
    session.execute(BEGIN_LINEAGE, &[&before.lineage])?;
    let now = last(session)?;
    tracing::info!(from = %before, to = %now, "the ledger's server was started again or is another one; it holds the mark");
    Ok(Some(now))
}

/// Counts a beat where `count` asks for it, and returns the mark. Where another process counts at this moment, the last
/// beat is the mark: it is older, which is no harm, and says nothing of what this process has committed since.
pub(super) fn beat(
    session: &Session,
    guard: &Guard,
    schema: &str,
    count: bool,
) -> Result<Option<Beat>, LedgerError> {
    let Some(mut made) = follow(session, guard, schema)? else { return Ok(None) };
    let mut is_counted = false;
    if count && let Some(row) = session.query(BEAT, &[&made.lineage])?.first() {
        made = mark(row)?;
        is_counted = true;
    }
    guard.advance(&made);
    Ok(Some(Beat { mark: made, is_counted }))
}

pub(super) fn accept(
    session: &Session,
    guard: &Guard,
    schema: &str,
    acceptance: &Acceptance,
) -> Result<Accepted, LedgerError> {
    let Acceptance { generation, actor, reason, lost, time_ms } = acceptance;
    let mut found = look(session, guard)?;
    if found.is_back && !found.has_tables {
        // A database from before the tables may be what is left.
        make_tables(session, schema)?;
        found = look(session, guard)?;
    }
    let now = found.position.last.generation;
    if now != *generation || !found.is_back {
        return accepted_before(session, found.has_tables, *generation, now);
    }
    let next = guard.next_generation(now);
    let rows = session.query(ACCEPT, &[generation, actor, reason, lost, time_ms, &next])?;
    let Some(row) = rows.first() else {
        // Another process was faster.
        let now = last(session)?.generation;
        return accepted_before(session, true, *generation, now);
    };
    let made = mark(row)?;
    tracing::warn!(actor, reason, lost, ledger = %made, "a person has accepted the ledger as it is; marks of before are given up");
    guard.advance(&made);
    look(session, guard)?;
    Ok(Accepted::Now { ledger: made, time_ms: *time_ms })
}

/// The answer where nothing is accepted now: who has accepted this generation before, if anybody has.
fn accepted_before(
    session: &Session,
    has_tables: bool,
    asked: i64,
    now: i64,
) -> Result<Accepted, LedgerError> {
    let rows = if has_tables { session.query(ACCEPTED, &[&asked])? } else { Vec::new() };
    let row = rows.first().ok_or_else(|| not_accepted(now, asked))?;
    Ok(Accepted::Before { actor: cell(row, 0)?, reason: cell(row, 1)?, time_ms: cell(row, 2)? })
}
