//! A ledger in PostgreSQL that goes back in time around its migration: each connection finds the tables that there are, and
//! nothing is migrated or sealed of a ledger that nobody has accepted.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod past;

use past::{
    PATIENCE, acceptance, ahead, beat, both, credit, credit_at_last, open, options, query, run, server,
    tables_of_version_3, unsafe_options, wait_for_standby,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_ledger::{
    Accepted, FileAnchor, Guard, Ledger, LedgerReader, MigrateOptions, Migrated, OpenError, OrderOutcome,
    SealError, Sealer,
};
use windfall_servers::{PostgresOptions as ServerOptions, Private};

/// Makes the empty tables of version 3.
fn make_version_3(url: &str) {
    run(url, &format!("CREATE SCHEMA windfall; SET search_path = windfall; {}", tables_of_version_3()))
        .unwrap();
}

fn migrate(url: &str, guard: &Guard) -> Result<Migrated, OpenError> {
    let all = MigrateOptions { watch_ms: 0, despite_connections: false, ..MigrateOptions::default() };
    Ledger::migrate(url, &unsafe_options(), all, guard, &|_| {})
}

fn version(url: &str) -> i64 {
    query(url, "SELECT max(version) FROM windfall.schema_version").unwrap()[0].get(0)
}

fn number(url: &str, sql: &str) -> i64 {
    query(url, sql).unwrap()[0].get(0)
}

/// Ends all connections of this build, as a restart of the server does.
fn disconnect(url: &str) {
    let all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'windfall-ledger%'";
    query(url, all).unwrap();
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_stale_standby_of_before_the_migration_is_noticed_and_neither_migrated_nor_sealed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mark");
    let primary = server(&[]);
    make_version_3(primary.url());
    let standby = Private::start(ServerOptions::standby_of(primary.url())).unwrap();
    let url = both(&primary, &standby);
    let (mut ledger, guard) = open(&url, &unsafe_options(), &file);
    assert_eq!(credit(&mut ledger, "o/1").unwrap(), OrderOutcome::Credited);
    let first = beat(&mut ledger, &file).unwrap();
    wait_for_standby(&primary, &standby);
    standby.kill().unwrap();
    // The journal is on the primary alone.
    assert_eq!(migrate(&url, &guard).unwrap(), Migrated { from: 3, to: 6 });
    assert_eq!(credit(&mut ledger, "o/2").unwrap(), OrderOutcome::Credited);
    let mut anchor = FileAnchor::new(folder.path().join("anchor"));
    let sealer = Sealer::connect(&url, &unsafe_options()).unwrap();
    let mut sealer = sealer.guarded(Arc::clone(&guard)).unwrap();
    assert!(sealer.seal(&mut anchor, 1_000).unwrap().is_some());
    let lost = beat(&mut ledger, &file).unwrap();
    assert!(lost.beat > first.beat && lost.lineage == first.lineage, "{first} {lost}");
    primary.kill().unwrap();
    standby.start().unwrap();
    standby.promote().unwrap();

    assert_eq!(beat(&mut ledger, &file), None);
    assert!(ledger.begin().unwrap().went_back() && guard.stops_payouts());
    // Who grants all the same, and who reads, takes the tables that there are.
    credit_at_last(&mut ledger, "o/3");
    assert_eq!(ledger.reader().unwrap().balances(7).unwrap(), [("cash".to_owned(), 10)]);
    let refused = migrate(&url, &guard).unwrap_err().to_string();
    assert!(refused.contains("went back in time") && refused.contains("nothing was changed"), "{refused}");
    // By what is noted in the ledger, where the command has no mark.
    let refused = migrate(&url, &Guard::new(vec![Some(None)])).unwrap_err().to_string();
    assert!(refused.contains("went back in time"), "{refused}");
    let refused = sealer.seal(&mut anchor, 2_000).unwrap_err().to_string();
    assert!(refused.contains("no journal"), "{refused}");
    assert_eq!(version(standby.url()), 3);

    assert!(matches!(ledger.accept(&acceptance(1, &guard)).unwrap(), Accepted::Now { .. }));
    assert_eq!(migrate(&url, &guard).unwrap(), Migrated { from: 3, to: 6 });
    credit_at_last(&mut ledger, "o/2");
    assert_eq!(ledger.balance(7, "cash").unwrap(), 15);
    assert!(ledger.reconcile().unwrap().is_clean());
    assert_eq!(beat(&mut ledger, &file).unwrap().generation, 2);
    // The seal was lost with the primary.
    assert!(matches!(sealer.seal(&mut anchor, 3_000), Err(SealError::Gone { seal: 1 })));
    assert!(sealer.with_accepted_loss(1).seal(&mut anchor, 3_000).unwrap().is_some());
    let found = LedgerReader::connect(&url, &unsafe_options()).unwrap().verify(Some(&anchor)).unwrap();
    assert!(found.is_clean() && found.losses == 1, "{found:?}");
}

/// Such servers speak PostgreSQL's protocol, and say that they do not support the question.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_ledger_of_version_3_is_marked_and_compared_also_where_the_server_hides_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mark");
    let origin = server(&[]);
    make_version_3(origin.url());
    run(
        origin.url(),
        "ALTER FUNCTION pg_catalog.pg_current_wal_insert_lsn() RENAME TO insert_lsn; \
         CREATE FUNCTION pg_catalog.pg_current_wal_insert_lsn() RETURNS pg_lsn LANGUAGE plpgsql AS \
         $$ BEGIN RAISE EXCEPTION 'it is not supported' USING ERRCODE = '0A000'; END $$",
    )
    .unwrap();
    let (mut ledger, guard) = open(origin.url(), &options(), &file);
    assert_eq!(credit(&mut ledger, "o/1").unwrap(), OrderOutcome::Credited);
    let mark = beat(&mut ledger, &file).unwrap();
    assert_eq!((mark.server.timeline, mark.server.wal), (0, 0));
    assert_eq!(beat(&mut ledger, &file).unwrap().beat, mark.beat + 1);
    assert!(!ledger.begin().unwrap().went_back() && !guard.stops_payouts());
    guard.learn(0, Some(ahead(1)));
    let until = Instant::now() + PATIENCE;
    while !ledger.begin().unwrap().went_back() {
        assert!(Instant::now() < until, "the transaction is not told");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(version(origin.url()), 3);
    let accepted = ledger.accept(&acceptance(1, &guard)).unwrap();
    assert!(matches!(accepted, Accepted::Now { .. }), "{accepted:?}");
    assert_eq!(migrate(origin.url(), &guard).unwrap(), Migrated { from: 3, to: 6 });
    let after = beat(&mut ledger, &file).unwrap();
    assert!(after.beat > mark.beat && after.generation == 2);
    assert!(!ledger.begin().unwrap().went_back());
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn nothing_is_sealed_of_a_ledger_that_went_back_until_a_person_accepts_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut anchor = FileAnchor::new(folder.path().join("anchor"));
    let origin = server(&[]);
    let guarded = |places| {
        let guard = Arc::new(Guard::new(places));
        let ledger = Ledger::connect(origin.url(), &options()).unwrap().guarded(Arc::clone(&guard)).unwrap();
        let sealer = Sealer::connect(origin.url(), &options()).unwrap().guarded(Arc::clone(&guard)).unwrap();
        (ledger, sealer, guard)
    };
    let (mut ledger, mut sealer, _) = guarded(vec![Some(None)]);
    credit_at_last(&mut ledger, "o/1");
    assert!(sealer.seal(&mut anchor, 1_000).unwrap().is_some());
    let mut went_back =
        |sealer: &mut Sealer| matches!(sealer.seal(&mut anchor, 2_000), Err(SealError::WentBack { .. }));
    // A place that was not read may have any mark.
    let (_, mut blind, _) = guarded(vec![None]);
    assert!(went_back(&mut blind));
    let (mut knowing, mut its_sealer, guard) = guarded(vec![Some(Some(ahead(1)))]);
    assert_eq!(knowing.beat(true).unwrap(), None);
    credit_at_last(&mut ledger, "o/2");
    assert!(went_back(&mut its_sealer));
    assert!(went_back(&mut sealer), "by what is noted in the ledger, and on the connection that it has");
    assert_eq!(number(origin.url(), "SELECT count(*) FROM windfall.seals"), 1);
    assert!(matches!(knowing.accept(&acceptance(1, &guard)).unwrap(), Accepted::Now { .. }));
    assert!(sealer.seal(&mut anchor, 3_000).unwrap().is_some());
    assert!(its_sealer.seal(&mut anchor, 3_000).unwrap().is_none(), "nothing is left");
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_connection_takes_older_tables_that_were_loaded_meanwhile_and_makes_none_where_there_were_some() {
    let folder = tempfile::tempdir().unwrap();
    let mut anchor = FileAnchor::new(folder.path().join("anchor"));
    let origin = server(&[]);
    let mut ledger = Ledger::connect(origin.url(), &options()).unwrap();
    let mut sealer = Sealer::connect(origin.url(), &options()).unwrap();
    credit_at_last(&mut ledger, "o/1");
    query(origin.url(), "DROP SCHEMA windfall CASCADE").unwrap();
    disconnect(origin.url());
    for _ in 0..3 {
        assert!(ledger.begin().is_err() && sealer.seal(&mut anchor, 1_000).is_err());
    }
    assert_eq!(number(origin.url(), "SELECT count(*) FROM pg_namespace WHERE nspname = 'windfall'"), 0);
    make_version_3(origin.url());
    credit_at_last(&mut ledger, "o/2");
    assert_eq!(ledger.balance(7, "cash").unwrap(), 5);
    assert!(sealer.seal(&mut anchor, 1_000).unwrap_err().to_string().contains("no journal"));
    // A journal, and version 3 again, under connections that stay.
    migrate(origin.url(), &Guard::default()).unwrap();
    assert_eq!(credit(&mut ledger, "o/3").unwrap(), OrderOutcome::Credited);
    query(origin.url(), "DROP SCHEMA windfall CASCADE").unwrap();
    make_version_3(origin.url());
    credit_at_last(&mut ledger, "o/4");
    assert_eq!(ledger.balance(7, "cash").unwrap(), 5);
}
