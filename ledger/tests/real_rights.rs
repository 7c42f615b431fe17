//! The users of `deploy/postgres/roles.sql`: what each can do with its rights, and what it cannot.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use tokio_postgres::error::SqlState;
use windfall_conformance::ledger::{self, Fixture, Place};
use windfall_ledger::{
    Attempt, Auditor, Beat, Close, Closed, Compared, Guard, Ledger, LedgerReader, ListCopies, Listing,
    OpenError, Order, OrderOutcome, PostgresOptions, Reopened, Sealer, TakeCopies, Unbudgeted,
};
use windfall_servers::{PostgresOptions as ServerOptions, Private};

const ROLES: &str = include_str!("../../deploy/postgres/roles.sql");
/// The line of it that names the schema.
const PLACE: &str = "place text := 'windfall';";
/// One user a group, as the file's comment makes them, and one of none, as anybody else in the database.
const USERS: &str = "
    CREATE ROLE windfall_migrate LOGIN PASSWORD 'rain' IN ROLE windfall_owner;
    ALTER ROLE windfall_migrate SET role = 'windfall_owner';
    CREATE ROLE windfall_rewards LOGIN PASSWORD 'rain' IN ROLE windfall_writer;
    CREATE ROLE windfall_seal LOGIN PASSWORD 'rain' IN ROLE windfall_sealer;
    CREATE ROLE windfall_audit LOGIN PASSWORD 'rain' IN ROLE windfall_auditor;
    CREATE ROLE windfall_look LOGIN PASSWORD 'rain' IN ROLE windfall_reader;
    CREATE ROLE windfall_tokens LOGIN PASSWORD 'rain';";

struct Database {
    server: Private,
    next: AtomicU32,
}

/// A ledger that each kind of process reaches as its own user.
struct OfUsers {
    root: String,
    schema: String,
}

fn run(url: &str, sql: &str) -> Result<(), tokio_postgres::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
        let io = tokio::spawn(connection);
        let done = client.batch_execute(sql).await;
        drop(client);
        io.await.unwrap()?;
        done
    })
}

fn rows(url: &str, sql: &str) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        let io = tokio::spawn(connection);
        let rows = client.query(sql, &[]).await.unwrap();
        drop(client);
        io.await.unwrap().unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    })
}

impl Database {
    fn start() -> Self {
        let own = Self { server: Private::start(ServerOptions::default()).unwrap(), next: AtomicU32::new(0) };
        run(own.server.url(), ROLES).unwrap();
        run(own.server.url(), USERS).unwrap();
        own
    }

    /// A ledger that was prepared as the deployment does it.
    fn prepared(&self) -> Result<OfUsers, OpenError> {
        let schema = format!("ledger_{}", self.next.fetch_add(1, Relaxed));
        let place = OfUsers { root: self.server.url().to_owned(), schema };
        place.make_roles();
        place.prepare()?;
        Ok(place)
    }
}

impl Fixture for Database {
    fn fresh(&self) -> Result<Box<dyn Place>, Box<dyn Error>> {
        Ok(Box::new(self.prepared()?))
    }
}

impl OfUsers {
    fn url(&self, user: &str) -> String {
        let (_, at) = self.root.split_once('@').unwrap();
        format!("postgres://{user}:rain@{at}")
    }

    fn options(&self) -> PostgresOptions {
        PostgresOptions {
            schema: self.schema.clone(),
            idle_in_transaction_timeout_ms: 600_000,
            statement_timeout_ms: 60_000,
            unbudgeted: Unbudgeted::Allow,
            ..PostgresOptions::default()
        }
    }

    fn make_roles(&self) {
        assert!(ROLES.contains(PLACE));
        run(&self.root, &ROLES.replace(PLACE, &format!("place text := '{}';", self.schema))).unwrap();
    }

    fn prepare(&self) -> Result<i64, OpenError> {
        Ledger::prepare(&self.url("windfall_migrate"), &self.options(), Arc::new(Guard::default()))
    }

    fn as_user(&self, user: &str, sql: &str) -> Result<(), tokio_postgres::Error> {
        run(&self.url(user), &format!("SET search_path = {}; {sql}", self.schema))
    }

    /// Asserts that the server refuses it for want of a right, and for no other reason.
    fn is_refused(&self, user: &str, sql: &str) {
        let refused = self.as_user(user, sql).unwrap_err();
        assert_eq!(refused.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{user}: {sql}: {refused:?}");
    }

    /// When copies are due.
    fn due_times(&self) -> Vec<String> {
        rows(&self.root, &format!("SELECT next_write_ms::text FROM {}.order_copies", self.schema))
    }
}

impl Place for OfUsers {
    fn open(&self, unbudgeted: Unbudgeted) -> Result<Ledger, OpenError> {
        let options = PostgresOptions { unbudgeted, ..self.options() };
        // With the mark, as processes have it.
        Ledger::connect(&self.url("windfall_rewards"), &options)?.guarded(Arc::new(Guard::default()))
    }

    fn reader(&self) -> Result<LedgerReader, OpenError> {
        LedgerReader::connect(&self.url("windfall_look"), &self.options())
    }

    fn owner(&self) -> Result<Option<Ledger>, OpenError> {
        Ledger::connect(&self.url("windfall_migrate"), &self.options()).map(Some)
    }

    fn sealer(&self) -> Result<Sealer, OpenError> {
        Sealer::connect(&self.url("windfall_seal"), &self.options())
    }

    fn auditor(&self) -> Result<Auditor, OpenError> {
        Auditor::connect(&self.url("windfall_audit"), &self.options())
    }
}

fn order(trade_no: &str) -> Order<'_> {
    Order {
        trade_no,
        user_id: 7,
        activity: "spring-2027",
        scene: "rain",
        bonus_type: "cash",
        amount: 5,
        time_ms: 1,
    }
}

/// Writers, readers and sealers do all that the contract of the ledger asks, each by its own user.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn each_user_can_do_its_work() {
    ledger::run(&Database::start());
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn no_user_can_do_more_than_its_work() {
    let database = Database::start();
    let place = database.prepared().unwrap();
    let mut ledger = place.open(Unbudgeted::Allow).unwrap();
    assert_eq!(ledger.apply(&[order("a")]).unwrap(), [OrderOutcome::Credited]);
    let Ok(Some(Beat { is_counted, .. })) = ledger.beat(true) else { panic!("the mark is kept") };
    assert!(is_counted);

    // The token service, and whoever else has a user in this database.
    for table in ["orders", "accounts", "transfers", "archive", "schema_version"] {
        place.is_refused("windfall_tokens", &format!("SELECT * FROM {}.{table}", place.schema));
    }
    place.is_refused("windfall_tokens", &format!("CREATE TABLE {}.mine (id bigint)", place.schema));

    // Who grants cannot change what was written, nor the tables, nor what proves that nothing was changed.
    for sql in [
        "UPDATE transfers SET amount = amount + 1",
        "DELETE FROM transfers",
        "TRUNCATE transfers",
        "DROP TRIGGER transfers_append_only ON transfers",
        "ALTER TABLE transfers DISABLE TRIGGER ALL",
        "ALTER TABLE orders ADD COLUMN more bigint",
        "ALTER TABLE orders OWNER TO windfall_rewards",
        "DROP TABLE orders",
        "CREATE TABLE mine (id bigint)",
        "DELETE FROM orders",
        "DELETE FROM accounts",
        "TRUNCATE accounts",
        "UPDATE replays SET outcome = ''",
        "DELETE FROM archive",
        "DELETE FROM ledger_position",
        "UPDATE ledger_lineages SET first_beat = 0",
        "DELETE FROM ledger_acceptances",
        "UPDATE ledger_acceptances SET actor = ''",
        "INSERT INTO schema_version (version) VALUES (99)",
        "INSERT INTO seals (id, from_at, to_at, rows, sealed_ms, previous, content, names, hash) \
         VALUES (1, 0, 1, 0, 0, '', '', '', '')",
        "DELETE FROM seal_pages",
        "DELETE FROM bare_orders",
        "INSERT INTO bare_orders VALUES (true)",
        "UPDATE acts SET reason = ''",
        "DELETE FROM act_ends",
        "UPDATE audit_position SET at = 0",
        "DELETE FROM audit_differences",
        "INSERT INTO audit_sums VALUES (0, 0, 0, 0)",
        "SET ROLE windfall_owner",
    ] {
        place.is_refused("windfall_rewards", sql);
    }
    // Nor which activities are closed, from the moment in which the first one is.
    let mut owner = place.owner().unwrap().unwrap();
    let close = Close { activity: "spring-2027", operator: "ann", reason: "over", time_ms: 1 };
    assert!(ledger.close_activity(&close).unwrap_err().to_string().contains("windfall_owner"));
    assert_eq!(owner.close_activity(&close).unwrap(), Closed::Now);
    for sql in [
        "DELETE FROM closed_activities",
        "UPDATE closed_activities SET closed_ms = 0",
        "INSERT INTO closed_activities VALUES (1, '', '', 0, 0)",
        "INSERT INTO detached_budgets VALUES (1, 1, 0, 0, 0)",
        "DROP TRIGGER orders_refuse_closed ON orders",
    ] {
        place.is_refused("windfall_rewards", sql);
    }
    // The database refuses its orders, also those of a program that knows nothing of closed activities, and whatever tables it makes.
    let forged = "CREATE TEMP TABLE closed_activities (activity bigint); \
        INSERT INTO orders (order_key, user_id, program, amount, paid_by, created_ms, status, reason) \
        SELECT 'forged', 7, id, 5, 1, 1, 1, 0 FROM programs";
    let refused = place.as_user("windfall_rewards", forged).unwrap_err();
    assert_eq!(refused.code().map(SqlState::code), Some("WF001"), "{refused:?}");
    let anew = place.as_user("windfall_rewards", "UPDATE orders SET reason = 1").unwrap_err();
    assert_eq!(anew.code().map(SqlState::code), Some("WF001"), "{anew:?}");
    // Where the triggers do not work, nothing is closed and no order goes.
    place.as_user("windfall_migrate", "ALTER TABLE orders DISABLE TRIGGER orders_refuse_closed").unwrap();
    assert!(owner.close_activity(&close).unwrap_err().to_string().contains("disabled"));
    place.as_user("windfall_migrate", "ALTER TABLE orders ENABLE TRIGGER orders_refuse_closed").unwrap();
    place.prepare().unwrap();
    place.is_refused("windfall_rewards", "DELETE FROM closed_activities");
    assert_eq!(owner.reopen_activity("spring-2027").unwrap(), Reopened::Now);
    drop(owner);
    // Who looks changes nothing.
    let tables = rows(
        &place.root,
        &format!("SELECT tablename::text FROM pg_tables WHERE schemaname = '{}'", place.schema),
    );
    assert!(tables.len() > 10, "{tables:?}");
    for table in &tables {
        place.as_user("windfall_look", &format!("SELECT * FROM {table}")).unwrap();
        place.is_refused("windfall_look", &format!("INSERT INTO {table} DEFAULT VALUES"));
        place.is_refused("windfall_look", &format!("DELETE FROM {table}"));
        place.is_refused("windfall_look", &format!("TRUNCATE {table}"));
        if !matches!(table.as_str(), "seals" | "seal_pages") {
            place.is_refused("windfall_seal", &format!("INSERT INTO {table} DEFAULT VALUES"));
        }
        place.is_refused("windfall_seal", &format!("DELETE FROM {table}"));
        if !table.starts_with("audit_") {
            place.is_refused("windfall_audit", &format!("INSERT INTO {table} DEFAULT VALUES"));
        }
        if !matches!(table.as_str(), "audit_sums" | "audit_packed" | "audit_pending" | "audit_times") {
            place.is_refused("windfall_audit", &format!("DELETE FROM {table}"));
        }
    }
    place.is_refused("windfall_look", "SELECT nextval('transfer_blocks')");
    assert_eq!(ledger.apply(&[order("b")]).unwrap(), [OrderOutcome::Credited], "nothing of it did harm");
}

/// The auditor, and what each process does to the tables that no version of the schema has, with no right to make them.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn auditors_audit_and_writers_list_copies() {
    let database = Database::start();
    let place = database.prepared().unwrap();
    let mut ledger = place.open(Unbudgeted::Allow).unwrap();
    assert_eq!(ledger.apply(&[order("a")]).unwrap(), [OrderOutcome::Credited]);
    ledger.transact(|tx| tx.promise(&[order("b")], Attempt::Normal)).unwrap();
    let how = ListCopies { now_ms: 100, after_ms: 1, pause_ms: 1, ahead_ms: 1_000, limit: 9 };
    assert_eq!(ledger.list_copies(&how).unwrap(), Listing::Page(1));
    let programs: Vec<i64> = ledger.copy_keys().unwrap().iter().map(|key| key.program).collect();
    let which = TakeCopies { programs: &programs, due_ms: 100, lease_ends_ms: 200, limit: 9 };
    assert_eq!(ledger.take_copies(&which).unwrap().orders.len(), 1);
    place.as_user("windfall_migrate", "UPDATE order_copies SET next_write_ms = 900000").unwrap();
    assert_eq!(ledger.list_copies(&ListCopies { now_ms: 110, ..how }).unwrap(), Listing::Page(1));
    assert_eq!(place.due_times(), ["110"], "a clock that was ahead has set it");
    let mut auditor = Auditor::connect(&place.url("windfall_audit"), &place.options()).unwrap();
    while auditor.increment(7).unwrap().transfers > 0 {}
    assert!(matches!(auditor.compare(7).unwrap(), Compared::Done { differences: 0, .. }));
    assert!(matches!(auditor.sweep(7).unwrap(), Compared::Done { differences: 0, .. }));
    assert!(auditor.progress().unwrap().transfers > 0);
}

/// Who lists copies does not undo what another process notes after the page was read.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_due_time_that_is_too_far_ahead_is_set_back_unless_it_was_set_since() {
    let database = Database::start();
    let place = database.prepared().unwrap();
    let mut ledger = place.open(Unbudgeted::Allow).unwrap();
    ledger.transact(|tx| tx.promise(&[order("a")], Attempt::Normal)).unwrap();
    let how = ListCopies { now_ms: 100, after_ms: 1, pause_ms: 1, ahead_ms: 1_000, limit: 9 };
    assert_eq!(ledger.list_copies(&how).unwrap(), Listing::Page(1));
    place.as_user("windfall_migrate", "UPDATE order_copies SET next_write_ms = 900000").unwrap();
    let is_noting = format!(
        "SELECT query FROM pg_stat_activity WHERE query LIKE '%{}%pg_sleep%' AND wait_event = 'PgSleep'",
        place.schema
    );
    std::thread::scope(|scope| {
        let note = "BEGIN; UPDATE order_copies SET next_write_ms = 500; SELECT pg_sleep(2); COMMIT";
        let noting = scope.spawn(|| place.as_user("windfall_migrate", note));
        while rows(&place.root, &is_noting).is_empty() {
            assert!(!noting.is_finished(), "it was not seen");
        }
        assert_eq!(ledger.list_copies(&ListCopies { now_ms: 110, ..how }).unwrap(), Listing::Page(1));
        noting.join().unwrap().unwrap();
    });
    assert_eq!(place.due_times(), ["500"]);
}

/// Whoever is allowed to append transfers writes the tables of copies after the next `windfall ledger prepare`, also where they
/// were there before.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_writer_who_comes_later_lists_copies_too() {
    let database = Database::start();
    let place = database.prepared().unwrap();
    run(&place.root, "CREATE ROLE late LOGIN PASSWORD 'rain'").unwrap();
    let allow =
        format!("GRANT USAGE ON SCHEMA {} TO late; GRANT SELECT, INSERT ON transfers TO late", place.schema);
    place.as_user("windfall_migrate", &allow).unwrap();
    let list = "UPDATE order_copies_listing SET next_ms = next_ms; DELETE FROM order_copies";
    place.is_refused("late", list);
    place.prepare().unwrap();
    place.as_user("late", list).unwrap();
}

/// A table that a release adds can be written by its processes as soon as its owner has made it, and what is only appended to
/// cannot be changed once `windfall ledger prepare` has run.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn tables_that_are_made_later_have_the_rights_too() {
    let database = Database::start();
    let place = database.prepared().unwrap();
    let make = "CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what text); \
        CREATE TABLE deeds (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what text); \
        CREATE TRIGGER deeds_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON deeds \
        FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()";
    place.as_user("windfall_migrate", make).unwrap();
    let use_it = "INSERT INTO outbox (what) VALUES ('a'); UPDATE outbox SET what = 'b'; DELETE FROM outbox; \
        INSERT INTO deeds (what) VALUES ('a')";
    place.as_user("windfall_rewards", use_it).unwrap();
    assert!(place.as_user("windfall_rewards", "UPDATE deeds SET what = 'b'").is_err(), "its trigger");
    place.as_user("windfall_look", "SELECT * FROM outbox, deeds").unwrap();
    place.is_refused("windfall_look", "INSERT INTO outbox (what) VALUES ('a')");
    place.is_refused("windfall_tokens", &format!("SELECT * FROM {}.outbox", place.schema));
    place.prepare().unwrap();
    place.as_user("windfall_rewards", use_it).unwrap();
    place.is_refused("windfall_rewards", "UPDATE deeds SET what = 'b'");
    place.is_refused("windfall_rewards", "DELETE FROM deeds");
}

/// A fleet whose one user owns the ledger goes on while its processes are given users of their own.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_ledger_that_one_user_owns_is_handed_over_while_it_is_used() {
    let database = Database::start();
    let schema = "ledger_old".to_owned();
    let place = OfUsers { root: database.server.url().to_owned(), schema };
    let old = "CREATE ROLE fleet LOGIN PASSWORD 'rain'; GRANT CREATE ON DATABASE postgres TO fleet";
    run(&place.root, old).unwrap();
    let connect = || Ledger::connect(&place.url("fleet"), &place.options());
    let guarded = |ledger: Ledger| ledger.guarded(Arc::new(Guard::default()));
    let mut before = guarded(connect().unwrap()).unwrap();
    assert_eq!(before.apply(&[order("a")]).unwrap(), [OrderOutcome::Credited]);
    place.make_roles();
    place.prepare().unwrap();
    assert_eq!(before.apply(&[order("b")]).unwrap(), [OrderOutcome::Credited], "it is still connected");
    let mut again = guarded(connect().unwrap()).unwrap();
    assert_eq!(again.apply(&[order("c")]).unwrap(), [OrderOutcome::Credited], "it may connect again");
    let mut own = place.open(Unbudgeted::Allow).unwrap();
    let all = [order("a"), order("b"), order("c"), order("d")];
    let outcomes = own.apply(&all).unwrap();
    assert_eq!(outcomes[..3], [OrderOutcome::AlreadyCredited; 3]);
    assert_eq!(outcomes[3], OrderOutcome::Credited);
    // Twice is once.
    place.make_roles();
    place.prepare().unwrap();
    run(&place.root, "REVOKE windfall_owner FROM fleet").unwrap();
    place.is_refused("fleet", &format!("SELECT * FROM {}.orders", place.schema));
    place.is_refused("windfall_rewards", "DELETE FROM transfers");
    assert_eq!(own.apply(&[order("e")]).unwrap(), [OrderOutcome::Credited]);
}
