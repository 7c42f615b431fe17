//! The ledger: a file or PostgreSQL.

use super::Driver;
use crate::place;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;
#[cfg(feature = "postgres")]
use windfall_ledger::PostgresOptions;
use windfall_ledger::{Auditor, Guard, Ledger, LedgerOptions, LedgerReader, Sealer, Unbudgeted};
use windfall_tls::TlsOptions;

/// How a ledger that older versions wrote is migrated.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Migration {
    /// Look out for processes of older versions for so many seconds before anything is changed
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    watch_s: u64,
    /// Go on though such processes are connected: they belong to another ledger in the same database
    #[arg(long)]
    despite_connections: bool,
    /// Let the copy take so many minutes, in which nobody grants; where it takes longer, nothing is changed. The indexes that are
    /// built before, while everybody grants, have no limit
    #[arg(long, value_name = "MINUTES", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_440))]
    longest_min: u64,
}

/// The database that keeps orders and balances.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum LedgerAt {
    /// A file in the data directory, for one process alone.
    #[default]
    File,
    /// A PostgreSQL database.
    Postgres(PostgresAt),
}

/// The address of the database.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "the driver alone reads it"))]
#[serde(deny_unknown_fields)]
pub struct PostgresAt {
    /// `postgres://user:password@host:port/database`.
    pub url: String,
    /// The schema that holds the tables. Default `windfall`.
    #[serde(default = "default_schema")]
    pub schema: String,
    /// TLS to the server; the certificate is verified in full, its name too. `sslmode=verify-full` in the address alone is
    /// TLS with the defaults. Default: none, which only a server on this machine is reached without.
    #[serde(default)]
    pub tls: Option<TlsOptions>,
    /// Whether plain text may leave this machine. Default false.
    #[serde(default)]
    pub plaintext: bool,
    /// Whether the address may name several hosts although the server waits for no synchronous standby: a fail-over then
    /// loses rewards that were answered as credited. Default false: a process does not start with a new ledger, or with
    /// one that has no mark. With one that has a mark it starts, and the log and a gauge tell of it.
    #[serde(default)]
    pub failover_without_synchronous_standby: bool,
}

fn default_schema() -> String {
    "windfall".into()
}

impl LedgerAt {
    /// Refuses what cannot be opened as it is asked for. Connects to nothing.
    pub fn check(&self) -> Result<()> {
        self.driver().map_or(Ok(()), Driver::check)?;
        #[cfg(feature = "postgres")]
        if let Self::Postgres(at) = self {
            at.options().check_address(&at.url)?;
        }
        Ok(())
    }

    /// The driver that it needs.
    pub const fn driver(&self) -> Option<Driver> {
        match self {
            Self::File => None,
            Self::Postgres(_) => Some(Driver::Postgres),
        }
    }

    /// Opens it for writing. Blocks.
    pub fn open(&self, data: &Path, unbudgeted: Unbudgeted) -> Result<Ledger> {
        match self {
            Self::File => {
                let options = LedgerOptions { unbudgeted, ..LedgerOptions::default() };
                Ledger::open(place::ledger(data), &options).context("the ledger cannot be opened")
            }
            Self::Postgres(at) => at.open(unbudgeted).context("the ledger in PostgreSQL cannot be opened"),
        }
    }

    /// Opens it for writing, also where its database is away: it is opened then when it is back, and until then nothing
    /// is granted. Blocks.
    pub fn open_or_wait(&self, data: &Path, unbudgeted: Unbudgeted) -> Result<Ledger> {
        match (self, self.open(data, unbudgeted)) {
            (Self::Postgres(at), Err(error)) if super::may_pass(&error) => at.open_when_used(unbudgeted),
            (_, opened) => opened,
        }
    }

    /// Opens it for sealing, beside the processes that write it. Blocks.
    pub fn open_sealer(&self, data: &Path) -> Result<Sealer> {
        match self {
            Self::File => Ok(Sealer::open(place::ledger(data))?),
            Self::Postgres(at) => at.open_sealer(),
        }
        .context("the ledger cannot be opened for sealing")
    }

    /// Opens it for auditing, beside the processes that write it. Blocks.
    pub fn open_auditor(&self, data: &Path) -> Result<Auditor> {
        match self {
            Self::File => Ok(Auditor::open(place::ledger(data))?),
            Self::Postgres(at) => at.open_auditor(),
        }
        .context("the ledger cannot be opened for auditing")
    }

    /// Brings one that older versions wrote to the newest version, if it holds the guard's marks; `None` where its process does that
    /// when it opens it. `tell` is told in words how far it is, where that takes long. Blocks.
    pub fn migrate(&self, how: Migration, guard: &Guard, tell: &dyn Fn(&str)) -> Result<Option<(i64, i64)>> {
        match self {
            Self::File => Ok(None),
            Self::Postgres(at) => at.migrate(how, guard, tell).map(Some),
        }
        .context("the ledger cannot be migrated")
    }

    /// Makes the tables of one in PostgreSQL, and the rights on them; `None` for one in a file. Blocks.
    pub fn prepare(&self, guard: Arc<Guard>) -> Result<Option<i64>> {
        match self {
            Self::File => Ok(None),
            Self::Postgres(at) => at.prepare(guard).map(Some),
        }
        .context("the ledger cannot be prepared")
    }

    /// Opens it for many reads, one after the other: in PostgreSQL each sees what is committed by then, and none holds back the
    /// cleaning of old rows. Blocks.
    pub fn open_kept_reader(&self, data: &Path) -> Result<LedgerReader> {
        // A first connection that writes would make the tables where there are none.
        drop(self.open_reader(data)?);
        let opened = match self {
            Self::File => LedgerReader::open(place::ledger(data)),
            Self::Postgres(at) => at.open_when_used(Unbudgeted::Refuse)?.reader(),
        };
        opened.context("the ledger cannot be read")
    }

    /// Opens it for reading alone. Blocks.
    pub fn open_reader(&self, data: &Path) -> Result<LedgerReader> {
        match self {
            Self::File => Ok(LedgerReader::open(place::ledger(data))?),
            Self::Postgres(at) => at.open_reader(),
        }
        .context("the ledger cannot be read")
    }
}

#[cfg(feature = "postgres")]
impl PostgresAt {
    fn options(&self) -> PostgresOptions {
        PostgresOptions {
            schema: self.schema.clone(),
            tls: self.tls.clone(),
            plaintext: self.plaintext,
            failover_without_synchronous_standby: self.failover_without_synchronous_standby,
            ..PostgresOptions::default()
        }
    }

    fn open(&self, unbudgeted: Unbudgeted) -> Result<Ledger> {
        Ok(Ledger::connect(&self.url, &PostgresOptions { unbudgeted, ..self.options() })?)
    }

    fn open_when_used(&self, unbudgeted: Unbudgeted) -> Result<Ledger> {
        Ok(Ledger::connect_when_used(&self.url, &PostgresOptions { unbudgeted, ..self.options() })?)
    }

    fn open_sealer(&self) -> Result<Sealer> {
        Ok(Sealer::connect(&self.url, &self.options())?)
    }

    fn open_auditor(&self) -> Result<Auditor> {
        Ok(Auditor::connect(&self.url, &self.options())?)
    }

    fn migrate(&self, how: Migration, guard: &Guard, tell: &dyn Fn(&str)) -> Result<(i64, i64)> {
        let options = windfall_ledger::MigrateOptions {
            watch_ms: how.watch_s.saturating_mul(1_000),
            despite_connections: how.despite_connections,
            longest_ms: how.longest_min.saturating_mul(60_000),
        };
        let tell = |progress: &windfall_ledger::IndexProgress| tell(&progress.to_string());
        let done = Ledger::migrate(&self.url, &self.options(), options, guard, &tell)?;
        Ok((done.from, done.to))
    }

    fn prepare(&self, guard: Arc<Guard>) -> Result<i64> {
        Ok(Ledger::prepare(&self.url, &self.options(), guard)?)
    }

    fn open_reader(&self) -> Result<LedgerReader> {
        Ok(LedgerReader::connect(&self.url, &self.options())?)
    }

    /// The name of the ledger, whatever server it is on: its database and its schema.
    #[cfg(feature = "etcd")]
    pub fn ledger_name(&self) -> Result<String> {
        Ok(self.options().ledger_name(&self.url)?)
    }
}

#[cfg(not(feature = "postgres"))]
impl PostgresAt {
    fn open(&self, _unbudgeted: Unbudgeted) -> Result<Ledger> {
        Driver::Postgres.absent()
    }

    fn open_when_used(&self, _unbudgeted: Unbudgeted) -> Result<Ledger> {
        Driver::Postgres.absent()
    }

    fn open_sealer(&self) -> Result<Sealer> {
        Driver::Postgres.absent()
    }

    fn open_auditor(&self) -> Result<Auditor> {
        Driver::Postgres.absent()
    }

    fn migrate(&self, _how: Migration, _guard: &Guard, _tell: &dyn Fn(&str)) -> Result<(i64, i64)> {
        Driver::Postgres.absent()
    }

    fn prepare(&self, _guard: Arc<Guard>) -> Result<i64> {
        Driver::Postgres.absent()
    }

    fn open_reader(&self) -> Result<LedgerReader> {
        Driver::Postgres.absent()
    }

    #[cfg(feature = "etcd")]
    pub fn ledger_name(&self) -> Result<String> {
        Driver::Postgres.absent()
    }
}
