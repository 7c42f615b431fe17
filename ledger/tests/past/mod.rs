//! What the tests of ledgers that went back in time share.
#![allow(dead_code, clippy::unwrap_used)] // not every test needs all of it; a test fails by panicking

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_ledger::{
    Beat, Guard, Ledger, LedgerError, Mark, MarkFile, MarkStore, Order, OrderOutcome, PostgresOptions,
    Unbudgeted,
};
use windfall_servers::{PostgresOptions as ServerOptions, Private};

pub const PATIENCE: Duration = Duration::from_secs(90);

pub fn options() -> PostgresOptions {
    PostgresOptions { connect_timeout_ms: 3_000, unbudgeted: Unbudgeted::Allow, ..PostgresOptions::default() }
}

/// Several hosts without a synchronous standby, which these tests ask for by name.
pub fn unsafe_options() -> PostgresOptions {
    PostgresOptions { failover_without_synchronous_standby: true, ..options() }
}

/// A server with settings of its own.
pub fn server(settings: &[(&str, &str)]) -> Private {
    let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Private::start(ServerOptions { settings, ..ServerOptions::default() }).unwrap()
}

/// One address for both.
pub fn both(one: &Private, other: &Private) -> String {
    let other = other.address("main").unwrap();
    let (before, after) = one.url().rsplit_once('/').unwrap();
    format!("{before},{other}/{after}?target_session_attrs=read-write")
}

/// What a process does at its start: it reads the mark, and opens the ledger.
pub fn open(url: &str, options: &PostgresOptions, file: &Path) -> (Ledger, Arc<Guard>) {
    let guard = Arc::new(Guard::new(vec![Some(MarkFile::new(file).load().unwrap())]));
    let ledger = Ledger::connect_when_used(url, options).unwrap().guarded(Arc::clone(&guard)).unwrap();
    (ledger, guard)
}

/// Counts a beat, and writes the mark out.
pub fn beat(ledger: &mut Ledger, file: &Path) -> Option<Mark> {
    let until = Instant::now() + PATIENCE;
    loop {
        match ledger.beat(true) {
            Ok(Some(Beat { mark, .. })) => {
                let file = MarkFile::new(file);
                assert!(file.replace(file.load().unwrap().as_ref(), &mark).unwrap());
                return Some(mark);
            }
            Ok(None) => return None,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub fn credit(ledger: &mut Ledger, trade_no: &str) -> Result<OrderOutcome, LedgerError> {
    let order = Order {
        trade_no,
        user_id: 7,
        activity: "spring-2027",
        scene: "rain",
        bonus_type: "cash",
        amount: 5,
        time_ms: 1,
    };
    Ok(ledger.apply(&[order])?[0])
}

/// Credits an order, whatever the server goes through.
pub fn credit_at_last(ledger: &mut Ledger, trade_no: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        match credit(ledger, trade_no) {
            Ok(outcome) => {
                assert!(matches!(outcome, OrderOutcome::Credited | OrderOutcome::AlreadyCredited));
                return;
            }
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub fn query(url: &str, sql: &str) -> Result<Vec<tokio_postgres::Row>, tokio_postgres::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
        let driver = tokio::spawn(connection);
        let mut rows = Vec::new();
        for sql in sql.split(';').filter(|sql| !sql.trim().is_empty()) {
            rows = client.query(sql, &[]).await?;
        }
        drop(client);
        driver.await.unwrap()?;
        Ok(rows)
    })
}

/// Waits until a standby has everything that its primary has.
pub fn wait_for_standby(primary: &Private, standby: &Private) {
    let until = Instant::now() + PATIENCE;
    let lsn = query(primary.url(), "SELECT pg_current_wal_flush_lsn()::text").unwrap();
    let lsn: String = lsn[0].get(0);
    let sql = format!("SELECT coalesce(pg_last_wal_replay_lsn() >= '{lsn}'::pg_lsn, false)");
    while !query(standby.url(), &sql).is_ok_and(|rows| rows[0].get(0)) {
        assert!(Instant::now() < until, "the standby does not follow");
        std::thread::sleep(Duration::from_millis(50));
    }
}
