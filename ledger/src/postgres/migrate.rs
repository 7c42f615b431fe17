//! `windfall ledger migrate`: brings the tables to the newest version when no process of an older version is left. Why that is sound whatever this
//! command sees stands in [`shape`](super::shape); what it looks for here spares people a process that can grant nothing.

use super::address::{Address, NAME, marked_as};
use super::budget_keys::cell;
use super::indexes::{self, IndexProgress};
use super::options::PostgresOptions;
use super::session::Session;
use super::shape::{FIVE, KNOWN, THREE};
use super::{position, prepare, schema};
use crate::error::{LedgerError, OpenError};
use crate::guard::Guard;
use std::time::{Duration, Instant};

/// The pause between two looks at the server's connections.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Connections of older versions; a name of theirs has no version behind it, or an older one.
const OLDER: &str = "SELECT pid, \
    CASE WHEN client_addr IS NOT NULL THEN host(client_addr) WHEN usename = current_user THEN 'this host' \
    ELSE 'a host that only its own user may know' END, application_name FROM pg_stat_activity \
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = ANY($1) ORDER BY pid";

/// How a ledger of an older version is migrated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigrateOptions {
    /// How long no process of an older version may be connected before. A process that runs is connected, or tries to be
    /// every few seconds.
    pub watch_ms: u64,
    /// Whether it migrates although such processes are connected, as those of another ledger in the same database may be.
    pub despite_connections: bool,
    /// How long the copy may take under the locks, while nobody grants. Where it takes longer, nothing is changed.
    pub longest_ms: u64,
}

impl Default for MigrateOptions {
    fn default() -> Self {
        Self { watch_ms: 30_000, despite_connections: false, longest_ms: 600_000 }
    }
}

/// What a migration has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migrated {
    /// The version that it found.
    pub from: i64,
    /// The version that it left, the same where nothing was to be done.
    pub to: i64,
}

pub(crate) fn migrate(
    url: &str,
    postgres: &PostgresOptions,
    options: MigrateOptions,
    guard: &Guard,
    tell: &dyn Fn(&IndexProgress),
) -> Result<Migrated, OpenError> {
    let address = Address::new(url, postgres)?;
    let session = Session::open(&address, false)?;
    let found = match schema::version(&session, &address)? {
        Some(KNOWN) => return Ok(Migrated { from: KNOWN, to: KNOWN }),
        Some(found) => found,
        None => return Err(schema::absent(&address)),
    };
    holds_marks(&session, &address, guard)?;
    let watch_time = Duration::from_millis(options.watch_ms);
    if !options.despite_connections {
        watch(&session, &address, watch_time)?;
    }
    // Who writes goes on meanwhile. It may take hours, in which an older process may have come back.
    let began = Instant::now();
    if indexes::build(&session, &address, found, KNOWN, tell)? && !options.despite_connections {
        watch(&session, &address, watch_time.min(began.elapsed()))?;
    }
    // Once more under the locks: another process may have noted meanwhile that the ledger lacks something.
    let longest = Duration::from_millis(options.longest_ms);
    let from = schema::bring_up(&session, &address, longest, || holds_marks(&session, &address, guard))?;
    // The server would come to it within a minute or so, and plan without it until then.
    if from <= THREE
        && let Err(error) = session.batch("ANALYZE transfers")
    {
        tracing::warn!(%error, "{}: the journal is made, and was not analysed", address.place);
    }
    // Until then whoever could append to the old tables appends to the new ones, and a trigger refuses the rest.
    let more = prepare::make_more(&session, &address, true);
    if let Err(error) = more.and_then(|()| prepare::grant(&session, &address)) {
        tracing::warn!(%error, "{}: it is migrated; run windfall ledger prepare for the rights on it", address.place);
    }
    Ok(Migrated { from, to: KNOWN })
}

/// Refuses a ledger that went back in time: it may not be the one that stays, and what payers have paid since is not in it.
fn holds_marks(session: &Session, address: &Address, guard: &Guard) -> Result<(), OpenError> {
    position::look(session, guard).map_err(|error| schema::refused(&address.place, error))?;
    match guard.why_stopped() {
        None => Ok(()),
        Some(why) => Err(OpenError::Invalid(format!(
            "{}: {why}; nothing was changed. Bring back the server that has everything, or accept this ledger as \
             docs/restore.md says, and start this again",
            address.place
        ))),
    }
}

/// Refuses while a process of an older version is connected, or comes within this time.
fn watch(session: &Session, address: &Address, time: Duration) -> Result<(), OpenError> {
    let began = Instant::now();
    loop {
        let older = older(session, address).map_err(|error| OpenError::Unreachable {
            path: address.place.clone(),
            what: error.to_string(),
        })?;
        if !older.is_empty() {
            return Err(OpenError::Invalid(format!(
                "{}: processes of older versions are connected, and nothing was migrated: {}; end them, and start this \
                 again",
                address.place,
                older.join(", ")
            )));
        }
        let left = time.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(LOOK_EVERY));
    }
}

fn older(session: &Session, address: &Address) -> Result<Vec<String>, LedgerError> {
    let names = [NAME, &address.older_name];
    let marked = names.iter().flat_map(|name| (FIVE - 1..KNOWN).map(|version| marked_as(name, version)));
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).chain(marked).collect();
    let rows = session.query(OLDER, &[&names])?;
    rows.iter()
        .map(|row| {
            let (pid, host, name): (i32, String, String) = (cell(row, 0)?, cell(row, 1)?, cell(row, 2)?);
            Ok(format!("{name} from {host} (backend {pid})"))
        })
        .collect()
}
