//! `windfall ledger prepare`: makes all tables as their owner, and gives the groups of `deploy/postgres/roles.sql` their rights
//! on them, so that no process needs a right to make any.

use super::address::Address;
use super::link::{Link, Purpose};
use super::options::PostgresOptions;
use super::session::Session;
use super::shape::Shape;
use super::{act_tables, copies, schema};
use crate::audit::tables::SETS as TABLE_SETS;
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
    grant(session, &address)?;
    schema::version(session, &address)?.ok_or_else(|| schema::absent(&address))
}

/// Makes the tables that no version of the schema has, so that no process has to: those of copies, and where the ledger has a
/// journal those of operators' acts and of the auditor.
pub(super) fn make_more(session: &Session, address: &Address, has_journal: bool) -> Result<(), OpenError> {
    make_set(session, address, &["order_copies", "order_copies_listing"], copies::TABLES)?;
    // Also where the tables were there before: since then others may have been allowed to append transfers.
    alone(session, address, copies::GRANTS)?;
    if has_journal {
        make_set(
            session,
            address,
            &["acts", "act_ends", "correction_pages", "frozen_users"],
            act_tables::TABLES,
        )?;
        for set in TABLE_SETS {
            make_set(session, address, set.names, &set.sql(true))?;
        }
    }
    Ok(())
}

/// Makes a set of tables, unless all of them are there: to look again whether an index is there takes a lock that writers wait
/// for, so each set has a transaction of its own.
fn make_set(session: &Session, address: &Address, names: &[&str], tables: &str) -> Result<(), OpenError> {
    let place = &address.place;
    let are_there = names.iter().map(|name| format!("to_regclass('{name}') IS NOT NULL"));
    let asked = format!("SELECT {}", are_there.collect::<Vec<_>>().join(" AND "));
    let rows = session.query_stored(&asked).map_err(|error| schema::refused(place, error))?;
    if rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)) {
        return Ok(());
    }
    alone(session, address, tables)
}

/// Runs statements in a transaction, beside none that makes tables or gives rights.
fn alone(session: &Session, address: &Address, sql: &str) -> Result<(), OpenError> {
    let schema = &address.options.schema;
    let all = format!(
        "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('windfall ledger {schema}', 0)); {sql} COMMIT"
    );
    // A transaction that failed is still open on it.
    session.open_batch(&all, &address.place).inspect_err(|_| session.give_up())
}

/// Gives the groups their rights on the tables as they are. Needs their owner.
pub(super) fn grant(session: &Session, address: &Address) -> Result<(), OpenError> {
    alone(session, address, GRANTS)
}
