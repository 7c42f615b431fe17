//! The ledger in PostgreSQL.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::sync::atomic::{AtomicU32, Ordering};
use windfall_ledger::conformance::{self, Fixture, Place};
use windfall_ledger::{Ledger, LedgerReader, OpenError, PostgresOptions, Unbudgeted, Writers};
use windfall_servers::Servers;

/// Schemas of this run, in the shared server.
struct Schemas {
    url: String,
    next: AtomicU32,
}

struct Schema {
    url: String,
    name: String,
}

impl Schemas {
    fn shared() -> Self {
        let servers = Servers::from_env_or_start(&["postgres"]).unwrap();
        Self { url: servers.server("postgres").unwrap().url().to_owned(), next: AtomicU32::new(0) }
    }
}

impl Fixture for Schemas {
    fn fresh(&self) -> Result<Box<dyn Place>, Box<dyn std::error::Error>> {
        let nth = self.next.fetch_add(1, Ordering::Relaxed);
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed()?.as_millis();
        let name = format!("ledger_{}_{since}_{nth}", std::process::id());
        Ok(Box::new(Schema { url: self.url.clone(), name }))
    }
}

impl Schema {
    fn options(&self) -> PostgresOptions {
        PostgresOptions { schema: self.name.clone(), ..PostgresOptions::default() }
    }
}

impl Place for Schema {
    fn open(&self, unbudgeted: Unbudgeted) -> Result<Ledger, OpenError> {
        Ledger::connect(&self.url, &PostgresOptions { unbudgeted, ..self.options() })
    }

    fn reader(&self) -> Result<LedgerReader, OpenError> {
        LedgerReader::connect(&self.url, &self.options())
    }
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn it_passes_the_suite() {
    conformance::run(&Schemas::shared());
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn any_number_of_writers() {
    let place = Schemas::shared().fresh().unwrap();
    assert_eq!(place.open(Unbudgeted::Allow).unwrap().writers(), Writers::Many);
}
