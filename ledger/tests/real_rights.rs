//! The users of `deploy/postgres/roles.sql`: what each can do with its rights, and what it cannot.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use tokio_postgres::error::SqlState;
use windfall_conformance::ledger::{self, Fixture, Place};
use windfall_contract::accounts::Withdrawal;
use windfall_ledger::{
    ArchiveEntry, Attempt, Auditor, Beat, Close, Closed, Compared, Deed, Finish, Guard, HoldOutcome, Ledger,
    LedgerError, LedgerReader, ListCopies, Listing, OpenError, Operator, Order, OrderOutcome,
    PostgresOptions, Proposal, Proposed, Reopened, Replay, Sealer, TakeCopies, Unbudgeted, WithdrawalId,
};
use windfall_servers::{PostgresOptions as ServerOptions, Private};

const ROLES: &str = include_str!("../../deploy/postgres/roles.sql");
/// The line of it that names the schema.
const PLACE: &str = "place text := 'windfall';";
/// One user a group, as the file's comment makes them, and one of none, as anybody else in the database.
const USERS: &str = "
    CREATE ROLE windfall_migrate LOGIN PASSWORD 'rain' IN ROLE windfall_owner;
    ALTER ROLE windfall_migrate SET role = 'windfall_owner';
    CREATE ROLE windfall_serve LOGIN PASSWORD 'rain' IN ROLE windfall_writer;
    CREATE ROLE windfall_consumer LOGIN PASSWORD 'rain' IN ROLE windfall_granter;
    CREATE ROLE windfall_wallet LOGIN PASSWORD 'rain' IN ROLE windfall_payer;
    CREATE ROLE windfall_rewards LOGIN PASSWORD 'rain' IN ROLE windfall_rewarder;
    CREATE ROLE windfall_seal LOGIN PASSWORD 'rain' IN ROLE windfall_sealer;
    CREATE ROLE windfall_audit LOGIN PASSWORD 'rain' IN ROLE windfall_auditor;
    CREATE ROLE windfall_look LOGIN PASSWORD 'rain' IN ROLE windfall_reader;
    CREATE ROLE windfall_tokens LOGIN PASSWORD 'rain';";

/// The user of a process that does all kinds of work.
const EVERYTHING: &str = "windfall_serve";
/// Words in the names of those checks of the ledger's contract in which operators act.
const ACTS: &[&str] = &[
    "act ",
    "act,",
    "acts ",
    "reversed",
    "reverse ",
    "adjustment",
    "frozen",
    "freeze",
    "correction",
    "audits replays",
];
/// Words in the names of those in which withdrawals are held.
const WITHDRAWALS: &[&str] = &[
    "withdraw",
    "the same id",
    "reader that is kept",
    "statement",
    "cursor",
    "passes over",
    "reversed once",
    "every wrong order",
    "two corrections",
];

struct Database {
    server: Private,
    next: AtomicU32,
}

/// A ledger that each kind of process reaches as its own user.
struct OfUsers {
    root: String,
    schema: String,
    /// Who writes it where a check opens it.
    writer: &'static str,
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
        self.prepared_for(EVERYTHING)
    }

    /// The same, which checks write as this user.
    fn prepared_for(&self, writer: &'static str) -> Result<OfUsers, OpenError> {
        let schema = format!("ledger_{}", self.next.fetch_add(1, Relaxed));
        let place = OfUsers { root: self.server.url().to_owned(), schema, writer };
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

impl OfUsers {
    /// Opens it as a process with this user does, with the mark.
    fn open_as(&self, user: &str, unbudgeted: Unbudgeted) -> Result<Ledger, OpenError> {
        let options = PostgresOptions { unbudgeted, ..self.options() };
        Ledger::connect(&self.url(user), &options)?.guarded(Arc::new(Guard::default()))
    }
}

impl Place for OfUsers {
    fn open(&self, unbudgeted: Unbudgeted) -> Result<Ledger, OpenError> {
        self.open_as(self.writer, unbudgeted)
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

/// The user of each process does that part of it which is the work of the process: all of it, which takes minutes.
#[test]
#[ignore = "needs real servers: ./dev test --long runs it"]
fn each_process_can_do_its_work() {
    each_process_does_one_of(1);
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn each_process_can_do_a_sixth_of_its_work() {
    each_process_does_one_of(6);
}

fn each_process_does_one_of(checks: usize) {
    let database = Database::start();
    let parts: [(&'static str, &[&[&str]]); 3] = [
        ("windfall_consumer", &[ACTS, WITHDRAWALS]),
        ("windfall_wallet", &[ACTS]),
        ("windfall_rewards", &[WITHDRAWALS]),
    ];
    for (user, others) in parts {
        let is_own = |name: &str| !others.iter().copied().flatten().any(|word| name.contains(*word));
        let own: Vec<_> = ledger::CHECKS.iter().filter(|(name, _)| is_own(name)).collect();
        assert!(own.len() > 40 && own.len() < ledger::CHECKS.len(), "{user}: {} checks", own.len());
        for (name, check) in own.into_iter().step_by(checks) {
            let place = database.prepared_for(user).unwrap();
            check(&place).unwrap_or_else(|error| panic!("{user}: {name}: {error}"));
            eprintln!("passed: {user}: {name}");
        }
    }
}

fn freeze(time_ms: i64) -> Proposal {
    Proposal {
        deed: Deed::Freeze { user_id: 7 },
        reason: "stolen".into(),
        evidence: "a letter".into(),
        operator: Operator { name: "ann".into(), actor: String::new() },
        time_ms,
        expires_ms: time_ms + 1_000,
    }
}

/// Whether the server has refused it for want of a right.
fn is_for_want_of_a_right(error: &LedgerError) -> bool {
    matches!(error, LedgerError::Sql(what) if what.ends_with("(42501)"))
}

/// What operators decide is written by the process that serves their calls, and by no other: with the password of a consumer or
/// a wallet nobody is a second operator. And each of the three writes what is its own.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn only_the_process_of_the_operators_decides_for_them() {
    let database = Database::start();
    let place = database.prepared().unwrap();
    let [consumer, wallet, rewards] = ["windfall_consumer", "windfall_wallet", "windfall_rewards"];
    let open = |user: &str| place.open_as(user, Unbudgeted::Allow).unwrap();

    // All three grant, archive, note the rules and count beats.
    for (user, trade_no, version) in [(consumer, "a", 3), (wallet, "b", 4), (rewards, "c", 5)] {
        let mut ledger = open(user);
        assert_eq!(ledger.apply(&[order(trade_no)]).unwrap(), [OrderOutcome::Credited], "{user}");
        assert_eq!(ledger.note_rules_version(version - 1, version).unwrap(), version, "{user}");
        let Ok(Some(Beat { is_counted, .. })) = ledger.beat(true) else { panic!("{user}: the mark is kept") };
        assert!(is_counted, "{user}");
        let entry = ArchiveEntry {
            trade_no: Some(trade_no),
            payload: trade_no.as_bytes(),
            reason: "bad".into(),
            detail: "".into(),
            time_ms: 1,
        };
        let archived = ledger.transact(|tx| tx.archive(std::slice::from_ref(&entry))).unwrap();
        assert_eq!(archived, 1, "{user}");
    }
    // The wallet holds a withdrawal, and whoever asks its payer ends it.
    for (id, ends) in [("x", consumer), ("y", wallet), ("z", rewards)] {
        let asked = Withdrawal { id: id.into(), user_id: 7, bonus_type: "cash".into(), amount: 1 };
        for other in [consumer, rewards] {
            let refused = open(other).transact(|tx| tx.hold(&[(&asked, "bank")], 2)).unwrap_err();
            assert!(is_for_want_of_a_right(&refused), "{other}: {refused}");
        }
        let held = open(wallet).transact(|tx| tx.hold(&[(&asked, "bank")], 2)).unwrap();
        assert_eq!(held, [HoldOutcome::Held]);
        let paid = open(ends).transact(|tx| tx.pay_out(&[WithdrawalId { user_id: 7, id }], 3)).unwrap();
        assert_eq!(paid, [Finish::Done], "{ends}");
    }
    // Whoever serves the operators writes what they decide.
    let replay = Replay { time_ms: 5, actor: "ann".into(), outcome: "credited".into() };
    for other in [consumer, wallet] {
        let refused = open(other).transact(|tx| tx.propose_act(&freeze(5))).unwrap_err();
        assert!(is_for_want_of_a_right(&refused), "{other}: {refused}");
        let refused = open(other).transact(|tx| tx.mark_replayed(1, &replay)).unwrap_err();
        assert!(is_for_want_of_a_right(&refused), "{other}: {refused}");
    }
    let act = match open(rewards).transact(|tx| tx.propose_act(&freeze(5))).unwrap() {
        Proposed::Now(act) => act,
        other => panic!("{other:?}"),
    };
    let bob = Operator { name: "bob".into(), actor: String::new() };
    for other in [consumer, wallet] {
        let refused = open(other).transact(|tx| tx.approve_act(act.id, &bob, 6)).unwrap_err();
        assert!(is_for_want_of_a_right(&refused), "{other}: {refused}");
    }
    open(rewards).transact(|tx| tx.approve_act(act.id, &bob, 6)).unwrap();
    assert!(open(rewards).transact(|tx| tx.mark_replayed(1, &replay)).unwrap());
    let accept = "BEGIN; UPDATE ledger_position SET generation = generation + 1, missed = NULL; \
        INSERT INTO ledger_acceptances VALUES (2, 1, 'ann', 'reconciled', '', 1); ROLLBACK";
    place.as_user(rewards, accept).unwrap();

    // Table by table: what each of them may add to and take away from.
    let tables = rows(
        &place.root,
        &format!("SELECT tablename::text FROM pg_tables WHERE schemaname = '{}'", place.schema),
    );
    let granted =
        "names transfers archive ledger_lineages programs orders accounts rules_version budget_shards";
    let decided = "acts act_ends correction_pages replays ledger_acceptances frozen_users order_copies \
        order_copies_listing";
    let rights = [
        (consumer, granted.to_owned(), "budget_shards"),
        (wallet, format!("{granted} withdrawals"), "budget_shards withdrawals"),
        (
            rewards,
            format!("{granted} {decided}"),
            "budget_shards frozen_users order_copies order_copies_listing",
        ),
    ];
    for (user, adds_to, takes_from) in rights {
        for table in &tables {
            place.as_user(user, &format!("SELECT * FROM {table}")).unwrap();
            place.is_refused(user, &format!("TRUNCATE {table}"));
            if !adds_to.split_whitespace().any(|own| own == table) {
                place.is_refused(user, &format!("INSERT INTO {table} DEFAULT VALUES"));
            }
            if !takes_from.split_whitespace().any(|own| own == table) {
                place.is_refused(user, &format!("DELETE FROM {table}"));
            }
        }
        for sql in [
            "UPDATE transfers SET amount = amount + 1",
            "UPDATE withdrawals SET amount = 1",
            "UPDATE withdrawals SET payer = ''",
            "UPDATE acts SET reason = ''",
            "UPDATE act_ends SET outcome = 1",
            "UPDATE frozen_users SET act = 0",
            "UPDATE replays SET outcome = ''",
            "SET ROLE windfall_owner",
            "SET ROLE windfall_writer",
        ] {
            place.is_refused(user, sql);
        }
    }
    for other in [consumer, wallet] {
        for sql in [
            "UPDATE archive SET outcome = 'credited'",
            "UPDATE ledger_position SET generation = 2",
            "UPDATE order_copies SET next_write_ms = 0",
            "SET ROLE windfall_rewarder",
        ] {
            place.is_refused(other, sql);
        }
    }
}

/// A deployment whose users are all in `windfall_writer` goes on, and each process is given less while it runs.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_user_of_the_old_group_is_given_less_while_its_process_runs() {
    let database = Database::start();
    let place = database.prepared().unwrap();
    run(&place.root, "CREATE ROLE before LOGIN PASSWORD 'rain' IN ROLE windfall_writer").unwrap();
    let mut ledger = place.open_as("before", Unbudgeted::Allow).unwrap();
    assert_eq!(ledger.apply(&[order("a")]).unwrap(), [OrderOutcome::Credited]);
    assert!(matches!(ledger.transact(|tx| tx.propose_act(&freeze(5))).unwrap(), Proposed::Now(_)));
    run(&place.root, "GRANT windfall_granter TO before; REVOKE windfall_writer FROM before").unwrap();
    assert_eq!(ledger.apply(&[order("b")]).unwrap(), [OrderOutcome::Credited]);
    let refused = ledger.transact(|tx| tx.propose_act(&freeze(9_000))).unwrap_err();
    assert!(is_for_want_of_a_right(&refused), "{refused}");
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
        "ALTER TABLE orders OWNER TO windfall_serve",
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
        place.is_refused("windfall_serve", sql);
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
        place.is_refused("windfall_serve", sql);
    }
    // The database refuses its orders, also those of a program that knows nothing of closed activities, and whatever tables it makes.
    let forged = "CREATE TEMP TABLE closed_activities (activity bigint); \
        INSERT INTO orders (order_key, user_id, program, amount, paid_by, created_ms, status, reason) \
        SELECT 'forged', 7, id, 5, 1, 1, 1, 0 FROM programs";
    let refused = place.as_user("windfall_serve", forged).unwrap_err();
    assert_eq!(refused.code().map(SqlState::code), Some("WF001"), "{refused:?}");
    let anew = place.as_user("windfall_serve", "UPDATE orders SET reason = 1").unwrap_err();
    assert_eq!(anew.code().map(SqlState::code), Some("WF001"), "{anew:?}");
    // Where the triggers do not work, nothing is closed and no order goes.
    place.as_user("windfall_migrate", "ALTER TABLE orders DISABLE TRIGGER orders_refuse_closed").unwrap();
    assert!(owner.close_activity(&close).unwrap_err().to_string().contains("disabled"));
    place.as_user("windfall_migrate", "ALTER TABLE orders ENABLE TRIGGER orders_refuse_closed").unwrap();
    place.prepare().unwrap();
    place.is_refused("windfall_serve", "DELETE FROM closed_activities");
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
    // Lost events are looked for by the process that takes asynchronous grants.
    let place = database.prepared_for("windfall_rewards").unwrap();
    let mut ledger = place.open(Unbudgeted::Allow).unwrap();
    assert_eq!(ledger.apply(&[order("a")]).unwrap(), [OrderOutcome::Credited]);
    ledger.transact(|tx| tx.promise(&[order("b")], Attempt::Normal)).unwrap();
    let how = ListCopies { now_ms: 100, after_ms: 1, pause_ms: 1, ahead_ms: 1_000, limit: 9 };
    assert_eq!(ledger.list_copies(&how).unwrap(), Listing::Page(1));
    let budget_keys: Vec<i64> = ledger.copy_keys().unwrap().iter().map(|key| key.budget_key).collect();
    let which = TakeCopies { budget_keys: &budget_keys, due_ms: 100, lease_ends_ms: 200, limit: 9 };
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
    place.as_user("windfall_serve", use_it).unwrap();
    assert!(place.as_user("windfall_serve", "UPDATE deeds SET what = 'b'").is_err(), "its trigger");
    place.as_user("windfall_look", "SELECT * FROM outbox, deeds").unwrap();
    place.is_refused("windfall_look", "INSERT INTO outbox (what) VALUES ('a')");
    place.is_refused("windfall_tokens", &format!("SELECT * FROM {}.outbox", place.schema));
    place.prepare().unwrap();
    place.as_user("windfall_serve", use_it).unwrap();
    place.is_refused("windfall_serve", "UPDATE deeds SET what = 'b'");
    place.is_refused("windfall_serve", "DELETE FROM deeds");
}

/// A fleet whose one user owns the ledger goes on while its processes are given users of their own.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_ledger_that_one_user_owns_is_handed_over_while_it_is_used() {
    let database = Database::start();
    let schema = "ledger_old".to_owned();
    let place = OfUsers { root: database.server.url().to_owned(), schema, writer: EVERYTHING };
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
    place.is_refused("windfall_serve", "DELETE FROM transfers");
    assert_eq!(own.apply(&[order("e")]).unwrap(), [OrderOutcome::Credited]);
}
