//! The ledger in PostgreSQL.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::sync::atomic::{AtomicU32, Ordering};
use windfall_conformance::ledger::{self, Fixture, Place};
use windfall_contract::accounts::Withdrawal;
use windfall_ledger::{
    HoldOutcome, Ledger, LedgerReader, OpenError, Order, OrderOutcome, PostgresOptions, Unbudgeted, Writers,
};
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
        Ok(Box::new(self.schema()?))
    }
}

impl Schemas {
    fn schema(&self) -> Result<Schema, std::time::SystemTimeError> {
        let nth = self.next.fetch_add(1, Ordering::Relaxed);
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed()?.as_millis();
        let name = format!("ledger_{}_{since}_{nth}", std::process::id());
        Ok(Schema { url: self.url.clone(), name })
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
    ledger::run(&Schemas::shared());
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn any_number_of_writers() {
    let place = Schemas::shared().fresh().unwrap();
    assert_eq!(place.open(Unbudgeted::Allow).unwrap().writers(), Writers::Many);
}

fn run(place: &Schema, sql: &str) -> Result<(), tokio_postgres::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&place.url, tokio_postgres::NoTls).await?;
        let io = tokio::spawn(connection);
        let done = client.batch_execute(&format!("SET search_path = {}; {sql}", place.name)).await;
        drop(client);
        io.await.unwrap()?;
        done
    })
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_schema_of_version_1_is_brought_up_and_a_reader_says_what_to_do() {
    let place = Schemas::shared().schema().unwrap();
    let order = Order {
        trade_no: "a",
        user_id: 7,
        activity: "spring",
        scene: "rain",
        bonus_type: "cash",
        amount: 10,
        time_ms: 1_000,
    };
    place.open(Unbudgeted::Allow).unwrap().apply(&[order]).unwrap();
    // What version 2 made is taken away again.
    run(
        &place,
        "DROP TABLE withdrawals, withdrawal_moves, rules_version; DROP INDEX orders_reserved; ALTER TABLE accounts DROP CONSTRAINT accounts_not_below_0; \
         ALTER TABLE programs DROP COLUMN strict; ALTER TABLE orders DROP COLUMN payer; ALTER TABLE budget_shards DROP COLUMN careful; \
         DELETE FROM schema_version WHERE version > 1",
    )
    .unwrap();
    let refused = place.reader().map(drop).unwrap_err().to_string();
    assert!(refused.contains("version 1") && refused.contains("start a writer"), "{refused}");
    // One that cannot finish leaves version 1 whole.
    run(&place, "CREATE TABLE withdrawal_moves (x int)").unwrap();
    assert!(place.open(Unbudgeted::Allow).is_err());
    run(
        &place,
        "DROP TABLE withdrawal_moves; SELECT 1 / (count(*) - 1) FROM schema_version WHERE version > 1",
    )
    .unwrap();
    // Several at once: one does it, the others wait.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| place.open(Unbudgeted::Allow).map(drop).unwrap());
        }
    });
    let mut ledger = place.open(Unbudgeted::Allow).unwrap();
    assert_eq!(ledger.apply(&[order]).unwrap(), [OrderOutcome::AlreadyCredited]);
    let take = Withdrawal { id: "w".into(), user_id: 7, bonus_type: "cash".into(), amount: 4 };
    assert_eq!(ledger.transact(|tx| tx.hold(&[(&take, "")], 2_000)).unwrap(), [HoldOutcome::Held]);
    let found = place.reader().unwrap().reconcile().unwrap();
    assert!(found.is_clean(), "{found:?}");
    // Whatever the code does, the database itself pays nothing out that is not there, and nothing twice.
    assert!(run(&place, "UPDATE accounts SET balance = -1 WHERE kind = 0").is_err());
    let twice = "INSERT INTO withdrawal_moves SELECT 99, user_id, asset, amount, 0, 1, 0, withdrawal FROM withdrawal_moves";
    assert!(run(&place, twice).is_err());
}
