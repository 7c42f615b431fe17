//! The ledger's position: its beats, its lineages, and what persons have accepted ([`crate::mark`]). Every function that
//! it asks of PostgreSQL may be called by any user.
//!
//! Why a beat that was answered is never ahead of what a synchronous standby has: its commit is answered when the standby
//! has it. A beat that is read was committed before it could be read, and other transactions see a commit only after
//! the standby has it. The position in the write-ahead log that stands in the row was read before the commit. (Whoever
//! ends the wait of a commit by hand makes it visible on the primary alone. Others have seen it then, so a standby without
//! it is behind, and is noticed.)
//!
//! A reader only compares: it must not wait for a standby, a full disk or rights. What is missing is made by writers.

use super::budget_keys::cell;
use super::position_sql::{ACCEPTED, IS_THERE, LINEAGES, MISS, Sql, WITH_LOG, WITHOUT_LOG};
use super::session::Session;
use crate::error::LedgerError;
use crate::guard::Guard;
use crate::guarded::{Acceptance, Accepted, Beat, not_accepted, not_as_shown};
use crate::mark::{Lineage, Mark, Position, ServerPosition};

/// Whether the tables of the position are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tables {
    There,
    Missing {
        /// Whether this user may make them.
        may_make: bool,
    },
}

/// What was read, and whether the present start of the server is that of the lineage.
pub(super) struct Found {
    position: Position,
    is_same_server: bool,
    tables: Tables,
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

/// The statements for the server behind this connection.
fn sql(session: &Session) -> &'static Sql {
    match session.hides_log() {
        true => &WITHOUT_LOG,
        false => &WITH_LOG,
    }
}

/// Makes the tables where they are missing. Many processes may do so at once.
fn make_tables(session: &Session, schema: &str) -> Result<(), LedgerError> {
    let tables = sql(session).tables;
    let sql = format!(
        "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('windfall ledger {schema}', 0)); {tables} COMMIT"
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

fn tables(session: &Session) -> Result<Tables, LedgerError> {
    let rows = session.query(IS_THERE, &[])?;
    let row = rows.first().ok_or_else(vanished)?;
    match cell(row, 0)? {
        true => Ok(Tables::There),
        false => Ok(Tables::Missing { may_make: cell(row, 1)? }),
    }
}

/// The last beat.
fn last(session: &Session) -> Result<Mark, LedgerError> {
    let rows = session.query(sql(session).read, &[])?;
    mark(rows.first().ok_or_else(vanished)?)
}

/// Whether the server says by this error that nobody, or not this user, may ask for its write-ahead log: the feature is
/// not supported, there is no such function, or its use is not granted.
pub(super) fn hides_log(error: &LedgerError) -> bool {
    matches!(error, LedgerError::Sql(what) if ["(0A000)", "(42883)", "(42501)"].iter().any(|code| what.ends_with(code)))
}

/// Asks the server where it is, once a connection; one that does not say so is asked no more.
fn learn_log(session: &Session, guard: &Guard) -> Result<(), LedgerError> {
    if session.log_is_known() {
        return Ok(());
    }
    match session.query(WITH_LOG.read_server, &[]) {
        Ok(_) => session.set_log(false),
        Err(error) if hides_log(&error) => {
            if guard.is_news("log") {
                tracing::warn!(
                    %error,
                    "the ledger's server does not say where its write-ahead log is, so the mark rests on beats and on \
                     starts of the server alone"
                );
            }
            session.set_log(true);
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

fn read(session: &Session, guard: &Guard) -> Result<Found, LedgerError> {
    learn_log(session, guard)?;
    let tables = tables(session)?;
    if tables != Tables::There {
        let rows = session.query(sql(session).read_server, &[])?;
        let server = server(rows.first().ok_or_else(vanished)?, 0, session)?;
        // It has been in no lineage, so it holds no mark.
        let last = Mark { generation: 1, lineage: "none".into(), beat: 0, server: server.clone() };
        let position = Position { last, lineages: Vec::new(), server, missed: None };
        return Ok(Found { position, is_same_server: false, tables, is_back: false });
    }
    let rows = session.query(sql(session).read, &[])?;
    let row = rows.first().ok_or_else(vanished)?;
    let last = mark(row)?;
    let server = server(row, 7, session)?;
    let is_same_server = cell::<bool>(row, 6)?
        && (&server.system, server.timeline) == (&last.server.system, last.server.timeline);
    let missed =
        cell::<Option<String>>(row, 10)?.map(|text| serde_json::from_str(&text)).transpose().map_err(
            |error| LedgerError::Damaged(format!("ledger_position.missed is not understood: {error}")),
        )?;
    let lineages = session
        .query(LINEAGES, &[])?
        .iter()
        .map(|row| Ok(Lineage { id: cell(row, 0)?, first_beat: cell(row, 1)? }))
        .collect::<Result<_, LedgerError>>()?;
    let position = Position { last, lineages, server, missed };
    Ok(Found { position, is_same_server, tables, is_back: false })
}

/// Compares the database behind this connection with the guard's marks, and notes in the session whether it went back
/// in time. It writes nothing.
pub(super) fn look(session: &Session, guard: &Guard) -> Result<Found, LedgerError> {
    // Before the database is read: they are committed by then.
    let marks = guard.marks();
    let found = read(session, guard)?;
    let is_back = guard.judge(&marks, &found.position);
    session.looked(is_back);
    Ok(Found { is_back, ..found })
}

/// The same on a connection that writes: if the database holds the marks, the tables are made where they are missing, and
/// a lineage begins where the server is another one than before. Returns the last beat, unless the ledger went back, or
/// this user may not make the tables. If it went back, the mark is noted in it.
pub(super) fn follow(session: &Session, guard: &Guard, schema: &str) -> Result<Option<Mark>, LedgerError> {
    let found = look(session, guard)?;
    if found.is_back {
        let noted = tell_others(session, guard, schema, &found);
        // Nothing is paid out by this process as it is. Of a connection that was lost, the next use tells.
        if let Err(error) = noted
            && guard.is_news("missed")
        {
            tracing::error!(
                %error,
                "the mark that the ledger lacks could not be noted in it: processes without that mark may pay out"
            );
        }
        return Ok(None);
    }
    guard.set_unmarkable(matches!(found.tables, Tables::Missing { may_make: false }));
    match found.tables {
        Tables::There => {}
        Tables::Missing { may_make: true } => {
            make_tables(session, schema)?;
            return last(session).map(Some);
        }
        Tables::Missing { may_make: false } => {
            // No mark is known, so this ledger was not guarded before either: it goes on as it did.
            if guard.is_news("tables") {
                tracing::error!(
                    "the tables of the ledger's mark are missing, and the user may not make them: a ledger that goes back \
                     in time is not noticed. Grant the user CREATE on the schema {schema} once"
                );
            }
            return Ok(None);
        }
    }
    let before = found.position.last;
    if found.is_same_server {
        return Ok(Some(before));
    }
    session.execute(sql(session).begin_lineage, &[&before.lineage])?;
    let now = last(session)?;
    tracing::info!(from = %before, to = %now, "the ledger's server was started again or is another one; it holds the mark");
    Ok(Some(now))
}

/// Notes in a ledger that went back which mark it lacks, so that every process stops, also those that have an old mark or
/// none. A note of a newer one stays.
fn tell_others(session: &Session, guard: &Guard, schema: &str, found: &Found) -> Result<(), LedgerError> {
    let Some(behind) = guard.state().behind else { return Ok(()) };
    let position = &found.position;
    // It may be what another connection has found at another server meanwhile.
    if position.holds(&behind.mark).is_ok() {
        return Ok(());
    }
    let stays = |missed: &Mark| position.holds(missed).is_err() && !behind.mark.is_after(missed);
    if position.missed.as_ref().is_some_and(stays) {
        return Ok(());
    }
    match found.tables {
        Tables::There => {}
        Tables::Missing { may_make: true } => make_tables(session, schema)?,
        Tables::Missing { may_make: false } => return Err(may_not_make(schema)),
    }
    let text =
        serde_json::to_string(&behind.mark).map_err(|error| LedgerError::Invalid(error.to_string()))?;
    session.execute(MISS, &[&text, &position.last.generation])?;
    if found.tables != Tables::There {
        // A person is to be shown where the ledger is now, to accept it.
        look(session, guard)?;
    }
    Ok(())
}

fn may_not_make(schema: &str) -> LedgerError {
    LedgerError::Sql(format!(
        "the tables of the ledger's mark are missing, and the user may not make them; grant it CREATE on the schema {schema}"
    ))
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
    if count && let Some(row) = session.query(sql(session).beat, &[&made.lineage])?.first() {
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
    let Acceptance { generation, actor, reason, lost, time_ms, .. } = acceptance;
    let found = look(session, guard)?;
    let now = found.position.last.generation;
    if now != *generation || !found.is_back {
        return accepted_before(session, found.tables, *generation, now);
    }
    if !found.position.is_as_shown(acceptance) {
        return Err(not_as_shown(&found.position.last));
    }
    match found.tables {
        Tables::There => {}
        // A database from before the tables may be what is left.
        Tables::Missing { may_make: true } => make_tables(session, schema)?,
        Tables::Missing { may_make: false } => return Err(may_not_make(schema)),
    }
    let next = guard.next_generation(&found.position);
    let rows = session.query(sql(session).accept, &[generation, actor, reason, lost, time_ms, &next])?;
    let Some(row) = rows.first() else {
        // Another process was faster.
        let now = last(session)?.generation;
        return accepted_before(session, Tables::There, *generation, now);
    };
    let made = mark(row)?;
    tracing::warn!(actor, reason, lost, ledger = %made, "a person has accepted the ledger as it is; marks of before are given up");
    guard.advance(&made);
    look(session, guard)?;
    Ok(Accepted::Now { ledger: made, time_ms: *time_ms })
}

/// The answer where nothing is accepted now: who has accepted this generation before, if anybody has.
fn accepted_before(session: &Session, tables: Tables, asked: i64, now: i64) -> Result<Accepted, LedgerError> {
    let rows = match tables {
        Tables::There => session.query(ACCEPTED, &[&asked])?,
        Tables::Missing { .. } => Vec::new(),
    };
    let row = rows.first().ok_or_else(|| not_accepted(now, asked))?;
    Ok(Accepted::Before { actor: cell(row, 0)?, reason: cell(row, 1)?, time_ms: cell(row, 2)? })
}
