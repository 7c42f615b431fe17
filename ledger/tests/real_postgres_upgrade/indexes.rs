//! Indexes of large tables are built while everybody writes, before the migration takes its locks.

use super::from_5::of_version_5;
use super::*;
use std::sync::Mutex;
use windfall_ledger::IndexProgress;

/// What keeps a build from its end, and what it is doing then: a transaction that has written the table, so that the index is there and
/// knows no row yet; and one that sees an older moment, so that the index is complete but for being declared valid.
const WRITER: (&str, &str) =
    ("BEGIN; LOCK TABLE withdrawals IN ROW EXCLUSIVE MODE", "waiting for writers before build");
const READER: (&str, &str) = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT version FROM schema_version",
    "waiting for old snapshots",
);
const BOTH_VALID: &str = "(SELECT count(*) = 2 FROM pg_index WHERE indisvalid AND indexrelid IN \
    (to_regclass('withdrawals_asked'), to_regclass('withdrawals_to_pay_out')))";

/// A transaction that is open until this is dropped.
struct Open {
    _client: tokio_postgres::Client,
    _runtime: tokio::runtime::Runtime,
}

impl Open {
    fn begin(place: &Schema, (sql, _): (&str, &str)) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let (client, connection) =
                tokio_postgres::connect(&place.url, tokio_postgres::NoTls).await.unwrap();
            drop(tokio::spawn(connection));
            client.batch_execute(&format!("SET search_path = {}; {sql}", place.name)).await.unwrap();
            client
        });
        Self { _client: client, _runtime: runtime }
    }
}

fn wait_until(place: &Schema, condition: &str) {
    let began = Instant::now();
    while !place.is_true(condition) {
        assert!(began.elapsed() < Duration::from_secs(300), "{condition}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_building((_, phase): (&str, &str)) -> String {
    format!(
        "(SELECT count(*) = 1 FROM pg_stat_progress_create_index \
         WHERE relid = 'withdrawals'::regclass AND phase = '{phase}')"
    )
}

fn has_version(place: &Schema, version: i64) -> bool {
    place.is_true(&format!("(SELECT max(version) = {version} FROM schema_version)"))
}

/// The indexes of the two tables, without the schema's name.
fn indexes(place: &Schema) -> Vec<String> {
    let sql = format!(
        "SELECT replace(indexdef, schemaname || '.', '') FROM pg_indexes \
         WHERE schemaname = '{}' AND tablename IN ('orders', 'withdrawals') ORDER BY 1",
        place.name
    );
    past::query(&place.url, &sql).unwrap().iter().map(|row| row.get(0)).collect()
}

fn held(ledger: &mut Ledger, id: &str) -> Vec<HoldOutcome> {
    ledger.transact(|tx| tx.hold(&[(&cash(id, 1, 1), "bank")], 2_000)).unwrap()
}

/// If the table were locked while an index is built, each writer would give up at its lock's time-out.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn old_and_new_processes_write_while_indexes_are_built() {
    for (nth, hold) in [WRITER, READER].into_iter().enumerate() {
        let place = Schema::of_version_3();
        let mut new = place.with_budget();
        let mut old = place.older(3);
        assert_eq!(old.credit("a", 1, 10), Done::Yes);
        std::thread::scope(|scope| {
            let open = Open::begin(&place, hold);
            let migrates = scope.spawn(|| place.migrate(0).unwrap());
            wait_until(&place, &is_building(hold));
            assert_eq!(old.hold("w-old", 1, 2), Done::Yes);
            assert_eq!(held(&mut new, "w-new"), [HoldOutcome::Held]);
            assert_eq!(old.end("w-old", true), Done::Yes);
            assert_eq!(new.apply(&[order("b", 1, 5)]).unwrap(), [OrderOutcome::Credited]);
            assert!(place.is_true(&is_building(hold)), "it still waits");
            assert!(has_version(&place, 3) && !place.is_true(BOTH_VALID));
            drop(open);
            assert_eq!(migrates.join().unwrap(), Migrated { from: 3, to: 6 });
        });
        assert!(place.is_true(BOTH_VALID));
        let listed = place.reader().unwrap().held_withdrawals(HeldFor::Downstream, 9_000, "", 9).unwrap();
        assert_eq!(listed.iter().map(|one| one.withdrawal.id.as_str()).collect::<Vec<_>>(), ["w-new"]);
        place.reconcile();
        // Whoever begins today has the same indexes.
        let fresh = Schema { url: place.url.clone(), name: format!("{}_fresh{nth}", place.name) };
        drop(fresh.ledger());
        assert_eq!(indexes(&place), indexes(&fresh));
    }
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_build_that_is_killed_is_begun_anew() {
    for hold in [WRITER, READER] {
        let place = of_version_5();
        let mut new = place.ledger();
        new.apply(&[order("a", 1, 10)]).unwrap();
        std::thread::scope(|scope| {
            let _open = Open::begin(&place, hold);
            let migrates = scope.spawn(|| place.migrate(0));
            wait_until(&place, &is_building(hold));
            let kill = "(SELECT count(pg_terminate_backend(pid)) = 1 FROM pg_stat_progress_create_index \
                WHERE relid = 'withdrawals'::regclass)";
            assert!(place.is_true(kill));
            let error = migrates.join().unwrap().unwrap_err();
            assert!(error.may_pass(), "{error}");
        });
        let left = "(SELECT count(*) = 1 FROM pg_index WHERE indexrelid = to_regclass('withdrawals_asked') \
            AND NOT indisvalid)";
        assert!(place.is_true(left) && has_version(&place, 5));
        // It is in nobody's way.
        assert_eq!(held(&mut new, "w"), [HoldOutcome::Held]);
        assert_eq!(place.migrate(0).unwrap(), Migrated { from: 5, to: 6 });
        assert!(place.is_true(BOTH_VALID));
        place.reconcile();
    }
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn an_index_that_was_built_before_is_not_built_again() {
    let place = of_version_5();
    place.run(
        "CREATE INDEX withdrawals_asked ON withdrawals (id) WHERE status = 0 AND payer <> 'front end'; \
         CREATE TABLE noted AS SELECT 'withdrawals_asked'::regclass::oid AS built",
    );
    assert_eq!(place.migrate(0).unwrap(), Migrated { from: 5, to: 6 });
    assert!(place.is_true(BOTH_VALID));
    assert!(place.is_true("(SELECT built = 'withdrawals_asked'::regclass::oid FROM noted)"));
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn of_two_that_build_at_once_one_waits_for_the_other() {
    let place = of_version_5();
    std::thread::scope(|scope| {
        let open = Open::begin(&place, READER);
        let both = [(); 2].map(|()| scope.spawn(|| place.migrate(0).unwrap().from));
        wait_until(&place, &is_building(READER));
        // The build would wait for a statement of the other one's that waited for it, so that has none.
        let asks = format!(
            "(SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '{}/6' \
             AND query LIKE 'SELECT pg_try_advisory_lock%')",
            place.name
        );
        wait_until(&place, &asks);
        assert!(place.is_true(&is_building(READER)), "one alone builds");
        drop(open);
        let mut found = both.map(|one| one.join().unwrap());
        found.sort_unstable();
        assert_eq!(found, [5, 6]);
    });
    assert!(place.is_true(BOTH_VALID));
    place.reconcile();
}

/// The deployment's user acts in the role of its group, to which the server shows nothing of the user's own connections.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn how_far_a_build_is_is_told_to_a_user_that_acts_as_its_group() {
    let place = of_version_5();
    let schema = &place.name;
    let (group, user) = (format!("group_{schema}"), format!("user_{schema}"));
    place.run(&format!(
        "CREATE ROLE {group} NOLOGIN; CREATE ROLE {user} LOGIN PASSWORD 'rain' IN ROLE {group}; \
         ALTER ROLE {user} SET role = '{group}'; ALTER SCHEMA {schema} OWNER TO {group}; \
         DO $$ DECLARE one record; BEGIN \
             FOR one IN SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' LOOP \
                 EXECUTE format('ALTER TABLE {schema}.%I OWNER TO {group}', one.tablename); \
             END LOOP; \
         END $$"
    ));
    let url = place.named().replacen("windfall:", &format!("{user}:"), 1);
    assert!(url.contains(&user), "{url}");
    let told = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let open = Open::begin(&place, WRITER);
        let migrates = scope.spawn(|| {
            let options = MigrateOptions { watch_ms: 0, ..MigrateOptions::default() };
            let tell = |progress: &IndexProgress| told.lock().unwrap().push(progress.clone());
            Ledger::migrate(&url, &place.options(), options, &Guard::default(), &tell).unwrap()
        });
        let began = Instant::now();
        let waits = |one: &IndexProgress| {
            (one.index, one.phase.as_str()) == ("withdrawals_asked", WRITER.1) && one.waits_for > 0
        };
        while !told.lock().unwrap().iter().any(waits) {
            assert!(began.elapsed() < Duration::from_secs(300), "{told:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(open);
        assert_eq!(migrates.join().unwrap(), Migrated { from: 5, to: 6 });
    });
    assert!(place.is_true(BOTH_VALID));
}
