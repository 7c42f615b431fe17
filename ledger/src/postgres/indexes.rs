//! Indexes that a version of the tables has on tables that may be large by then. They are built before the version comes, while processes
//! of older versions and of this one write.
//!
//! - `CREATE INDEX CONCURRENTLY` locks no writer out. It is no part of a transaction, so it is done before the one that makes the
//!   version, on the tables as the older version has them. That transaction finds the index there ([`make`]), and refuses one that is
//!   not valid: a version is never recorded before its indexes are valid.
//! - A build that dies leaves an index that is not valid. Whoever builds next drops it, and builds it anew. One that is
//!   valid stays, and is not built again.
//! - Two at once: one has the turn, an advisory lock of the connection that builds, which ends with it. The other asks for it in
//!   short statements: one that waited for the lock would hold a snapshot, and the build waits for those, so both would wait for ever.
//!   For the same reason nobody builds under the lock of those that make tables ([`schema`](super::schema)), for which others do wait.
//! - An older process does not know these indexes, and the database keeps them up for it. They stay where the version does not come.

use super::address::Address;
use super::session::{Session, open_error};
use crate::error::OpenError;
use std::fmt;
use std::time::{Duration, Instant};

/// The pause between two questions for the turn.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// What ends sooner is not told of; the pause between two that are told.
const TELL_EVERY: Duration = Duration::from_secs(2);
/// What is said where the server says nothing, as while it drops an index.
const UNKNOWN: &str = "the server does not say how far it is";

/// The indexes, in the order of their versions. None of them is unique: such an index refuses rows of writers before it is valid. An index
/// needs nothing but what the version before it has: one on a column that is new belongs into the version after that.
static INDEXES: [Index; 3] = [
    Index { version: 3, name: "orders_reserved", table: "orders", on: "(trade_no) WHERE status = 0" },
    // Front ends may leave very many of theirs, and nobody who looks for others' may have to pass them.
    Index {
        version: 6,
        name: "withdrawals_asked",
        table: "withdrawals",
        on: "(id) WHERE status = 0 AND payer <> 'front end'",
    },
    Index {
        version: 6,
        name: "withdrawals_to_pay_out",
        table: "withdrawals",
        on: "(id) WHERE status = 0 AND payer = 'front end'",
    },
];

struct Index {
    /// The version that has it.
    version: i64,
    name: &'static str,
    table: &'static str,
    /// What of the table it holds, by the names that the version before has.
    on: &'static str,
}

impl Index {
    fn create(&self, how: &str) -> String {
        let Self { name, table, on, .. } = self;
        format!("CREATE INDEX {how} {name} ON {table} {on}")
    }
}

/// How far the building of an index is. Writers go on meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexProgress {
    /// The index.
    pub index: &'static str,
    /// What is being done, in the server's own words (`pg_stat_progress_create_index.phase`).
    pub phase: String,
    /// The blocks that this phase has read.
    pub blocks_done: i64,
    /// The blocks that this phase reads; 0 where it reads none.
    pub blocks_total: i64,
    /// The backend whose transaction the build waits for; 0 for none.
    pub waits_for: i64,
}

impl IndexProgress {
    /// How much of its blocks this phase has read; `None` where it reads none.
    pub fn percent(&self) -> Option<i64> {
        let reads = self.waits_for == 0 && self.blocks_total > 0;
        reads.then(|| self.blocks_done.saturating_mul(100) / self.blocks_total)
    }
}

impl fmt::Display for IndexProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, phase, blocks_done, blocks_total, waits_for } = self;
        write!(f, "index {index}: {phase}")?;
        if let Some(percent) = self.percent() {
            write!(f, ", {blocks_done} of {blocks_total} blocks, {percent} %")?;
        }
        if *waits_for != 0 {
            write!(f, "; it waits until the transaction of backend {waits_for} ends")?;
        }
        Ok(())
    }
}

/// Builds the indexes of the versions above `found`, up to `goal`, that are not there or not valid, on tables that are there. Says
/// whether there were any. `session` is one that writes, without an open transaction; after an error it is of no more use.
pub(crate) fn build(
    session: &Session,
    address: &Address,
    found: i64,
    goal: i64,
    tell: &dyn Fn(&IndexProgress),
) -> Result<bool, OpenError> {
    let mut wanted = Vec::new();
    for index in INDEXES.iter().filter(|index| index.version > found && index.version <= goal) {
        let (table, is_valid) = find(session, address, index)?;
        if let (Some(table), None | Some(false)) = (table, is_valid) {
            wanted.push((index, table));
        }
    }
    let Some(&(first, first_table)) = wanted.first() else { return Ok(false) };
    let place = &address.place;
    let mut watch = Watch { address, tell, told: Instant::now(), session: None };
    // It takes as long as it takes, since nobody waits for it. When this process dies, the server gives up (from version 14 on).
    session.open_batch(
        "SET statement_timeout = 0; SET lock_timeout = 0; \
         SELECT set_config('client_connection_check_interval', '1s', false) \
         WHERE current_setting('server_version_num')::int >= 140000",
        place,
    )?;
    let turn = format!("hashtextextended('windfall indexes {}', 0)", address.options.schema);
    let ask = format!("SELECT pg_try_advisory_lock({turn})");
    while !has_turn(session, address, &ask)? {
        watch.look(first, first_table);
        std::thread::sleep(ASK_EVERY);
    }
    for &(index, table) in &wanted {
        // Another process may have built it before this one's turn, or may have been killed over it.
        let is_valid = find(session, address, index)?.1;
        let mut run =
            |sql: &str| session.open_batch_long(sql, place, TELL_EVERY, || watch.look(index, table));
        match is_valid {
            Some(true) => continue,
            Some(false) => run(&format!("DROP INDEX CONCURRENTLY {}", index.name))?,
            None => {}
        }
        run(&index.create("CONCURRENTLY"))?;
    }
    let (statement_ms, lock_ms) = (address.options.statement_timeout_ms, address.options.lock_timeout_ms);
    session.open_batch(
        &format!(
            "SET statement_timeout = {statement_ms}; SET lock_timeout = {lock_ms}; SELECT pg_advisory_unlock({turn})"
        ),
        place,
    )?;
    Ok(true)
}

/// Makes the indexes of a version in the open transaction, which brings that version, on tables as the version before has them. Those
/// of tables with rows were built before, and one that is not valid is refused.
pub(crate) fn make(session: &Session, address: &Address, version: i64) -> Result<(), OpenError> {
    for index in INDEXES.iter().filter(|index| index.version == version) {
        // Asked first: to make one that is there would lock the table, and then lock it harder.
        match find(session, address, index)?.1 {
            Some(true) => {}
            None => session.open_batch(&index.create(""), &address.place)?,
            Some(false) => {
                return Err(OpenError::Invalid(format!(
                    "{}: somebody else is building the index {}, which is not valid yet; start this again when that has ended",
                    address.place, index.name
                )));
            }
        }
    }
    Ok(())
}

/// The number of an index's table, if it is there, and whether the index is valid, if that is there.
fn find(
    session: &Session,
    address: &Address,
    index: &Index,
) -> Result<(Option<i64>, Option<bool>), OpenError> {
    let Index { name, table, .. } = index;
    let sql = format!(
        "SELECT t.oid::bigint, i.indisvalid FROM (SELECT to_regclass('{table}')::oid AS oid) t \
         LEFT JOIN pg_index i ON i.indrelid = t.oid AND i.indexrelid = to_regclass('{name}')::oid"
    );
    let rows = session.open_query(&sql, &address.place)?;
    let Some(row) = rows.first() else { return Ok((None, None)) };
    let failed = |error: tokio_postgres::Error| open_error(&address.place, &error);
    Ok((row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?))
}

fn has_turn(session: &Session, address: &Address, ask: &str) -> Result<bool, OpenError> {
    let rows = session.open_query(ask, &address.place)?;
    let got = rows.first().map(|row| row.try_get::<_, bool>(0)).transpose();
    Ok(got.map_err(|error| open_error(&address.place, &error))?.unwrap_or(false))
}

/// Tells how far a build is that takes longer than a moment, this process' own or that of another one, for which it waits.
struct Watch<'a> {
    address: &'a Address,
    tell: &'a dyn Fn(&IndexProgress),
    told: Instant,
    /// A second connection: the first one is busy with the build.
    session: Option<Session>,
}

impl Watch<'_> {
    fn look(&mut self, index: &Index, table: i64) {
        if self.told.elapsed() < TELL_EVERY {
            return;
        }
        self.told = Instant::now();
        let unknown = || IndexProgress {
            index: index.name,
            phase: UNKNOWN.into(),
            blocks_done: 0,
            blocks_total: 0,
            waits_for: 0,
        };
        // The build goes on whether or not it can be watched.
        let progress = self.ask(index.name, table).unwrap_or_else(unknown);
        (self.tell)(&progress);
    }

    fn ask(&mut self, index: &'static str, table: i64) -> Option<IndexProgress> {
        if self.session.as_ref().is_none_or(Session::is_broken) {
            let session = Session::open(self.address, false).ok()?;
            // A user that takes a group's role when it connects is shown nothing of its own connections in that role.
            session.batch("SET ROLE NONE").ok()?;
            self.session = Some(session);
        }
        let sql = format!(
            "SELECT phase, coalesce(blocks_done, 0), coalesce(blocks_total, 0), coalesce(current_locker_pid, 0) \
             FROM pg_stat_progress_create_index WHERE datname = current_database() AND relid = {table}"
        );
        let rows = self.session.as_ref()?.query_stored(&sql).ok()?;
        let row = rows.first()?;
        Some(IndexProgress {
            index,
            phase: row.try_get(0).ok()?,
            blocks_done: row.try_get(1).ok()?,
            blocks_total: row.try_get(2).ok()?,
            waits_for: row.try_get(3).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_in_words() {
        let mut progress = IndexProgress {
            index: "withdrawals_asked",
            phase: "building index: scanning table".into(),
            blocks_done: 500,
            blocks_total: 2_000,
            waits_for: 0,
        };
        assert_eq!(
            progress.to_string(),
            "index withdrawals_asked: building index: scanning table, 500 of 2000 blocks, 25 %"
        );
        // The server leaves the numbers of the phase before in place.
        progress.phase = "waiting for old snapshots".into();
        progress.waits_for = 77;
        assert_eq!(
            progress.to_string(),
            "index withdrawals_asked: waiting for old snapshots; it waits until the transaction of backend 77 ends"
        );
        assert_eq!(IndexProgress { blocks_total: 0, waits_for: 0, ..progress }.percent(), None);
    }
}
