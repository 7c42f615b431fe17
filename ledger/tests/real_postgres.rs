//! The ledger in PostgreSQL.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod old;

use old::{Dialect, GIVEN_BACK, HELD_OF_SETTLED, check, goes_on, ledger_of};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use windfall_conformance::ledger::{self, Fixture, Place};
use windfall_contract::accounts::Withdrawal;
use windfall_ledger::{
    Anchor, Auditor, FileAnchor, Guard, HoldOutcome, Ledger, LedgerReader, MigrateOptions, Migrated,
    OpenError, Order, OrderOutcome, PostgresOptions, SealError, Sealer, Tampering, Unbudgeted, Verified,
    Writers,
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
        // A test may be away from its transaction for longer than a service, and the server from the test, where the machine is busy.
        let idle_in_transaction_timeout_ms = 600_000;
        PostgresOptions {
            schema: self.name.clone(),
            idle_in_transaction_timeout_ms,
            statement_timeout_ms: 60_000,
            ..PostgresOptions::default()
        }
    }

    /// Whatever else is connected to the server of all tests.
    fn migrate(&self) -> Result<Migrated, OpenError> {
        let options = MigrateOptions { watch_ms: 0, despite_connections: true, ..MigrateOptions::default() };
        Ledger::migrate(&self.url, &self.options(), options, &Guard::default(), &|_| {})
    }
}

impl Place for Schema {
    fn open(&self, unbudgeted: Unbudgeted) -> Result<Ledger, OpenError> {
        Ledger::connect(&self.url, &PostgresOptions { unbudgeted, ..self.options() })
    }

    fn reader(&self) -> Result<LedgerReader, OpenError> {
        LedgerReader::connect(&self.url, &self.options())
    }

    fn sealer(&self) -> Result<Sealer, OpenError> {
        Sealer::connect(&self.url, &self.options())
    }

    fn auditor(&self) -> Result<Auditor, OpenError> {
        Auditor::connect(&self.url, &self.options())
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
    make(&place, 1);
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
    assert_eq!(place.migrate().unwrap(), Migrated { from: 3, to: 6 });
    let take = Withdrawal { id: "w".into(), user_id: 7, bonus_type: "cash".into(), amount: 4 };
    assert_eq!(ledger.transact(|tx| tx.hold(&[(&take, "")], 2_000)).unwrap(), [HoldOutcome::Held]);
    let found = place.reader().unwrap().reconcile().unwrap();
    assert!(found.is_clean(), "{found:?}");
    // Whatever the code does, the database itself pays nothing out that is not there, and nothing twice.
    assert!(run(&place, "UPDATE accounts SET balance = -1 WHERE kind = 0").is_err());
    let twice = "INSERT INTO transfers (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference) \
        SELECT 99, kind, asset, debit, debit_holder, credit, credit_holder, amount, 0, 1, reference FROM transfers \
        WHERE reference = 'w 7'";
    assert!(run(&place, twice).is_err());
}

/// The tables of an older version, with data.
fn make(place: &Schema, version: i64) {
    let tables = ledger_of(version, Dialect::Postgres);
    let versions = "CREATE TABLE schema_version (version bigint PRIMARY KEY, \
        applied timestamptz NOT NULL DEFAULT clock_timestamp()); \
        INSERT INTO schema_version (version) SELECT generate_series(1, ";
    run(place, &format!("CREATE SCHEMA {}; {versions}{version}); {tables}", place.name)).unwrap();
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn each_version_is_brought_up() {
    let schemas = Schemas::shared();
    for version in 1..=5 {
        let place = schemas.schema().unwrap();
        make(&place, version);
        if version == 5 {
            // As it is until the migration, beside processes of that version.
            check(version, false, &mut place.open(Unbudgeted::Allow).unwrap(), || place.reader().unwrap());
        }
        assert_eq!(place.migrate().unwrap(), Migrated { from: version, to: 6 });
        for _ in 0..2 {
            let mut ledger = place.open(Unbudgeted::Allow).unwrap();
            check(version, true, &mut ledger, || place.reader().unwrap());
        }
        goes_on(&mut place.open(Unbudgeted::Allow).unwrap(), || place.reader().unwrap());
    }
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_migration_that_dies_changes_nothing_and_can_be_started_again() {
    let schemas = Schemas::shared();
    for version in 1..=3 {
        let place = schemas.schema().unwrap();
        make(&place, version);
        // It fails at its last steps, when everything is copied.
        run(&place, "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN END $$")
            .unwrap();
        assert!(place.migrate().is_err());
        let same = format!(
            "SELECT user_id FROM transfers; SELECT 1 / (max(version) = {version})::int FROM schema_version"
        );
        run(&place, &format!("{same}; DROP FUNCTION refuse_change")).unwrap();
        place.migrate().unwrap();
        check(version, true, &mut place.open(Unbudgeted::Allow).unwrap(), || place.reader().unwrap());
    }
}

/// What is given back must not be withdrawn again: its payer has paid it.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_held_withdrawal_of_settled_money_has_to_end_first() {
    let place = Schemas::shared().schema().unwrap();
    make(&place, 3);
    run(&place, HELD_OF_SETTLED).unwrap();
    let refused = place.migrate().unwrap_err().to_string();
    assert!(refused.contains("withdrawals are held"), "{refused}");
    run(&place, GIVEN_BACK).unwrap();
    place.migrate().unwrap();
    let ledger = place.open(Unbudgeted::Allow).unwrap();
    assert_eq!(ledger.balance(6, "cash").unwrap(), 0);
    let found = place.reader().unwrap().reconcile().unwrap();
    assert!(found.is_clean(), "{found:?}");
}

/// What the migration makes is one transaction, however many orders are held; their places are not.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn what_was_migrated_is_sealed_in_parts() {
    let place = Schemas::shared().schema().unwrap();
    make(&place, 3);
    place.migrate().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut anchor = FileAnchor::new(folder.path().join("anchor"));
    let mut sealer = place.sealer().unwrap().with_rows_max(4);
    let mut rows = Vec::new();
    while let Some(seal) = sealer.seal(&mut anchor, 5_000).unwrap() {
        rows.push(seal.rows);
    }
    assert_eq!(rows, [4, 4, 4, 4, 3]);
    assert!(place.reader().unwrap().verify(Some(&anchor)).unwrap().is_clean());
}

/// While a long read keeps the migration from its locks, older processes still write.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_migration_that_waits_for_its_locks_lets_writers_through() {
    let place = Schemas::shared().schema().unwrap();
    make(&place, 3);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reader = runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&place.url, tokio_postgres::NoTls).await.unwrap();
        drop(tokio::spawn(connection));
        client
    });
    let read = format!("SET search_path = {}; BEGIN; LOCK TABLE orders IN ACCESS SHARE MODE", place.name);
    runtime.block_on(reader.batch_execute(&read)).unwrap();
    std::thread::scope(|scope| {
        // It may give up while the machine is busy; below it is begun again.
        let opened = scope.spawn(|| place.migrate());
        let waits = "SELECT 1 / count(*) FROM pg_locks WHERE relation = 'orders'::regclass AND NOT granted";
        while run(&place, waits).is_err() && !opened.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let write = "SET lock_timeout = '60s'; UPDATE orders SET took_ms = 9 WHERE transfer = 8";
        run(&place, write).unwrap();
        runtime.block_on(reader.batch_execute("COMMIT")).unwrap();
        let ended = opened.join().unwrap();
        assert!(ended.as_ref().err().is_none_or(OpenError::may_pass), "{ended:?}");
    });
    place.migrate().unwrap();
    check(3, true, &mut place.open(Unbudgeted::Allow).unwrap(), || place.reader().unwrap());
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn the_journal_refuses_changes_and_older_writers() {
    let place = Schemas::shared().schema().unwrap();
    make(&place, 3);
    place.migrate().unwrap();
    for change in
        ["UPDATE transfers SET amount = amount", "DELETE FROM transfers WHERE id = 1", "TRUNCATE transfers"]
    {
        let refused = run(&place, change).unwrap_err();
        let what = refused.as_db_error().map(|error| error.message().to_owned()).unwrap_or_default();
        assert!(what.contains("only ever appended"), "{what}");
    }
    // What versions 2 and 3 do to hold or take budget, to credit, to hand over and to end. The type has no budget, so
    // version 2 could take one.
    let older = [
        "WITH taken AS (UPDATE budget_shards SET reserved = reserved + 1 WHERE program = 1 AND shard = 0) \
         INSERT INTO orders (trade_no, user_id, program, amount, transfer, created_ms, status, reason, took_ms) \
         VALUES ('z', 1, 1, 1, 0, 1, 0, 0, NULL) ON CONFLICT (trade_no) DO NOTHING RETURNING trade_no",
        "INSERT INTO orders (trade_no, user_id, program, amount, transfer, created_ms, payer, status, reason, took_ms) \
         VALUES ('z', 1, 1, 1, 0, 1, 'bank', 0, 0, NULL) ON CONFLICT (trade_no) DO NOTHING RETURNING trade_no",
        "UPDATE orders o SET status = 0, reason = 0, transfer = 0, took_ms = NULL WHERE o.trade_no = 'r'",
        "UPDATE orders o SET status = 0, reason = 0, transfer = 0, took_ms = NULL, payer = coalesce('new', o.payer) \
         WHERE o.trade_no = 'p'",
        "UPDATE budget_shards h SET used = h.used + 1 WHERE h.program = 1 AND NOT h.careful",
        "INSERT INTO budget_shards (program, shard, total, used, reserved) VALUES (2, 0, 90, 25, 0) \
         ON CONFLICT (program, shard) DO UPDATE SET total = excluded.total",
        "INSERT INTO transfers (id, trade_no, user_id, program, amount, prev, time_ms) VALUES (99, 'z', 1, 1, 1, 0, 1)",
        "INSERT INTO withdrawal_moves (id, withdrawal, kind, user_id, asset, amount, prev, time_ms) \
         VALUES (99, 'z', 0, 1, 1, 1, 0, 1)",
    ];
    for statement in older {
        let refused = run(&place, statement).unwrap_err();
        let code = refused.code().map(|code| code.code().to_owned()).unwrap_or_default();
        assert!(
            ["42703", "42P01", "23502"].contains(&code.as_str()),
            "a name must be unknown, or missing: {statement}: {refused:?}"
        );
    }
}

const fn cash(trade_no: &str) -> Order<'_> {
    Order {
        trade_no,
        user_id: 7,
        activity: "spring",
        scene: "rain",
        bonus_type: "cash",
        amount: 10,
        time_ms: 1_000,
    }
}

/// Seals what is final, until that is so many transfers: other transactions of the server may be open for a while.
fn seal_up_to(place: &Schema, anchor: &mut dyn Anchor, transfers: u64) -> Verified {
    let (mut sealer, began) = (place.sealer().unwrap().with_rows_max(4), Instant::now());
    loop {
        while sealer.seal(anchor, 5_000).unwrap().is_some() {}
        let found = place.reader().unwrap().verify(Some(&*anchor)).unwrap();
        assert!(found.is_clean(), "{found:?}");
        if found.transfers >= transfers {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "{found:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_range_waits_for_transactions_that_are_still_open() {
    let place = Schemas::shared().schema().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut anchor = FileAnchor::new(folder.path().join("anchor"));
    let mut early = place.open(Unbudgeted::Allow).unwrap();
    early.apply(&[cash("first")]).unwrap();
    seal_up_to(&place, &mut anchor, 1);
    let mut late = early.another().unwrap();
    // It has its number, and is not committed.
    let mut tx = early.begin().unwrap();
    tx.apply(&[cash("early")], windfall_ledger::Attempt::Normal).unwrap();
    // Of another activity, so that it waits for no budget's row of the one that is open.
    late.apply(&[Order { activity: "winter", ..cash("late") }]).unwrap();
    let mut sealer = place.sealer().unwrap();
    assert_eq!(sealer.seal(&mut anchor, 5_000).unwrap(), None, "the early one would be in front of it");
    let found = place.reader().unwrap().verify(Some(&anchor)).unwrap();
    assert_eq!((found.transfers, found.unsealed, found.oldest_unsealed_ms), (1, 1, Some(1_000)));
    tx.commit().unwrap();
    assert_eq!(seal_up_to(&place, &mut anchor, 3).transfers, 3);
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn each_kind_of_tampering_is_found_and_named() {
    use Tampering::{Added, Anchor, Chain, Changed, Commitments, Missing, Names};
    let schemas = Schemas::shared();
    let of = |name: &str| format!("(SELECT id FROM transfers WHERE reference = '{name} spring')");
    let copy = "INSERT INTO transfers (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, \
        reference, tx) SELECT -5, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, 'new', tx \
        FROM transfers WHERE reference = 'order/3 spring'";
    let ahead = copy.replace("-5", "-6").replace("'new', tx", "'new', 9000000000000000000");
    let cases: [(&str, String, Tampering, bool); 11] = [
        (
            "an amount",
            "UPDATE transfers SET amount = 11 WHERE reference = 'order/3 spring'".into(),
            Changed,
            true,
        ),
        (
            "a user",
            "UPDATE transfers SET credit_holder = 9 WHERE reference = 'order/3 spring'".into(),
            Changed,
            true,
        ),
        (
            "a place",
            "UPDATE transfers SET tx = tx + 1000000 WHERE reference = 'order/3 spring'".into(),
            Changed,
            true,
        ),
        ("a row that is gone", format!("DELETE FROM transfers WHERE id = {}", of("order/3")), Missing, true),
        ("a row that was added", copy.into(), Added, true),
        ("a row that no seal would ever come to", ahead, Added, true),
        ("commitments", "UPDATE seal_pages SET hashes = ids WHERE seal = 2".into(), Commitments, false),
        ("a name", "UPDATE names SET name = 'coin' WHERE name = 'cash'".into(), Names, false),
        ("a seal", "UPDATE seals SET rows = 3 WHERE id = 2".into(), Chain, false),
        (
            "a seal that is gone",
            "DELETE FROM seal_pages WHERE seal = 2; DELETE FROM seals WHERE id = 2".into(),
            Chain,
            false,
        ),
        ("the end of the chain", "TRUNCATE seals, seal_pages".into(), Anchor, false),
    ];
    for (name, sql, tampering, is_named) in cases {
        let place = schemas.schema().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut anchor = FileAnchor::new(folder.path().join("anchor"));
        let mut ledger = place.open(Unbudgeted::Allow).unwrap();
        let names: Vec<String> = (0..10).map(|nth| format!("order/{nth}")).collect();
        for name in &names {
            ledger.apply(&[cash(name)]).unwrap();
        }
        assert_eq!(seal_up_to(&place, &mut anchor, 10).transfers, 10);
        for sealed in [
            "UPDATE seals SET rows = 0",
            "DELETE FROM seal_pages",
            "UPDATE seal_pages SET hashes = ids",
            "UPDATE seal_pages SET guards = guards",
        ] {
            assert!(run(&place, sealed).is_err(), "{sealed}");
        }
        // Whoever is the database's owner gets past its triggers.
        let off = ["transfers", "seals", "seal_pages"]
            .map(|table| format!("ALTER TABLE {table} DISABLE TRIGGER USER;"));
        run(&place, &format!("{} {sql}", off.concat())).unwrap();
        let found = place.reader().unwrap().verify(Some(&anchor)).unwrap();
        let own = |one: &&windfall_ledger::Finding| one.tampering == tampering;
        let finding = found.findings.iter().find(own).unwrap_or_else(|| panic!("{name}: {found:?}"));
        assert_eq!(finding.transfer.is_some(), is_named, "{name}: {found:?}");
        assert!(!is_named || finding.what.contains(&finding.transfer.unwrap().to_string()), "{finding}");
    }
}

/// The last seal's cluster is changed here in place of the server.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_ledger_that_was_moved_to_another_cluster_is_sealed_on_by_name_alone() {
    let place = Schemas::shared().schema().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut anchor = FileAnchor::new(folder.path().join("anchor"));
    let mut ledger = place.open(Unbudgeted::Allow).unwrap();
    ledger.apply(&[cash("order/1")]).unwrap();
    assert_eq!(seal_up_to(&place, &mut anchor, 1).transfers, 1);
    run(
        &place,
        "ALTER TABLE seals DISABLE TRIGGER USER; UPDATE seals SET system = system + 1; \
         ALTER TABLE seals ENABLE TRIGGER USER",
    )
    .unwrap();
    ledger.apply(&[cash("order/2")]).unwrap();
    let refused = place.sealer().unwrap().seal(&mut anchor, 5_000).unwrap_err();
    assert!(matches!(refused, SealError::Moved { before, here } if before == here + 1), "{refused}");
    // Nobody has to wait for the range to be final: it is refused either way.
    let (mut sealer, began) = (place.sealer().unwrap().with_accepted_cluster(), Instant::now());
    while sealer.seal(&mut anchor, 5_000).unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(60), "the second transfer is never final");
        std::thread::sleep(Duration::from_millis(20));
    }
    ledger.apply(&[cash("order/3")]).unwrap();
    assert!(seal_up_to(&place, &mut anchor, 3).is_clean());
}

/// Set for the child alone: the server, the schema and the anchor.
const CHILD: &str = "WINDFALL_TEST_SEAL_POSTGRES";

/// Does nothing unless the test below started it as a child.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn child_that_gets_killed() {
    let Ok(place) = std::env::var(CHILD) else { return };
    let [url, name, anchor] = place.split('\n').collect::<Vec<_>>()[..] else { panic!("{place}") };
    let place = Schema { url: url.into(), name: name.into() };
    let (mut sealer, mut anchor) = (place.sealer().unwrap().with_rows_max(3), FileAnchor::new(anchor));
    // Another sealer, whose connection the server has not given up yet, may be at it.
    // It never comes to an end by itself: it is alive when it is killed.
    loop {
        sealer.seal(&mut anchor, 5_000).unwrap();
    }
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_sealer_that_is_killed_leaves_a_chain_that_goes_on() {
    let place = Schemas::shared().schema().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("anchor");
    let mut anchor = FileAnchor::new(&path);
    let mut ledger = place.open(Unbudgeted::Allow).unwrap();
    let names: Vec<String> = (0..900).map(|nth| format!("order/{nth:04}")).collect();
    for part in names.chunks(3) {
        ledger.apply(&part.iter().map(|name| cash(name)).collect::<Vec<_>>()).unwrap();
    }
    let mut sealed_before = 0;
    for more in [2, 5, 20, 60] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_gets_killed", "--nocapture", "--include-ignored"])
            .env(CHILD, format!("{}\n{}\n{}", place.url, place.name, path.display()))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // It is killed in the middle of its work, whenever that is on this machine. The first head is the beginning.
        let (goal, began) = (anchor.heads().unwrap().len() + more, Instant::now());
        while anchor.heads().unwrap().len() < goal {
            assert_eq!(child.try_wait().unwrap(), None, "it ended by itself");
            assert!(began.elapsed() < Duration::from_secs(120), "it does not seal");
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success());
        let found = place.reader().unwrap().verify(Some(&anchor)).unwrap();
        assert!(found.is_clean(), "{found:?}");
        assert!(found.seals > sealed_before, "{found:?}");
        sealed_before = found.seals;
        // On a machine that was busy elsewhere too little may be left for the next one.
        if sealed_before > 200 {
            break;
        }
    }
    assert_eq!(seal_up_to(&place, &mut anchor, 900).transfers, 900, "each transfer is sealed once");
}
