//! `windfall ledger prepare`: makes all tables as their owner, and gives the groups of `deploy/postgres/roles.sql` their rights
//! on them, so that no process needs a right to make any.

use super::link::{Address, Link, Purpose};
use super::options::PostgresOptions;
use super::session::Session;
use super::shape::Shape;
use super::{acts, copies, schema};
use crate::audit;
use crate::error::OpenError;
use crate::guard::Guard;
use std::sync::Arc;

/// The rights of the groups, on the tables as they are.
const GRANTS: &str = include_str!("grants.sql");

pub(crate) fn prepare(url: &str, postgres: &PostgresOptions, guard: Arc<Guard>) -> Result<i64, OpenError> {
    let address = Address::new(url, postgres)?;
    let place = address.place.clone();
    let mut guarded = address.clone();
    guarded.guard = Some(guard);
    // As a writer, which makes what is missing; with a guard, also the tables of the mark.
    let mut link = Link::connect(guarded, Purpose::Write)?;
    let session = link.held().map_err(|error| schema::refused(&place, error))?;
    make_more(session, &address, session.shape() != Shape::Three)?;
    grant(session, &place)?;
    schema::version(session, &address)?.ok_or_else(|| schema::absent(&address))
}

/// Makes the tables that no version of the schema has, so that no process has to: those of copies, and where the ledger has a
/// journal those of operators' acts and of the auditor.
pub(super) fn make_more(session: &Session, address: &Address, has_journal: bool) -> Result<(), OpenError> {
    let schema = &address.options.schema;
    let begin =
        format!("BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('windfall ledger {schema}', 0));");
    let journal =
        if has_journal { format!("{}{}", acts::TABLES, audit::tables(true)) } else { String::new() };
    let make = format!("{begin} {}{journal} COMMIT", copies::TABLES);
    // A transaction that failed is still open on it.
    session.open_batch(&make, &address.place).inspect_err(|_| session.give_up())
}

/// Gives the groups their rights on the tables as they are. Needs their owner.
pub(super) fn grant(session: &Session, place: &str) -> Result<(), OpenError> {
    session.open_batch(GRANTS, place)
}
