//! The upgrade of a ledger in PostgreSQL from version 3: old and new processes side by side, then the migration.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

#[path = "real_postgres_upgrade/from_5.rs"]
mod from_5;
#[path = "real_postgres_upgrade/indexes.rs"]
mod indexes;
mod older;
mod past;

use older::{Done, OlderProcess};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use windfall_conformance::ledger::{CHECKS, Place};
use windfall_contract::accounts::{FlowKind, Status, Withdrawal};
use windfall_ledger::{
    Attempt, Auditor, BudgetSet, Finish, Guard, HeldFor, HoldOutcome, Ledger, LedgerError, LedgerReader,
    MigrateOptions, Migrated, OpenError, Order, OrderId, OrderOutcome, PostgresOptions, Reconciliation,
    Sealer, Settlement, Unbudgeted, WithdrawalId, payer_key,
};
use windfall_servers::Servers;

/// A schema of this run, in the shared server.
struct Schema {
    url: String,
    name: String,
}

impl Schema {
    /// The tables of version 3, empty.
    fn of_version_3() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let servers = Servers::from_env_or_start(&["postgres"]).unwrap();
        let url = servers.server("postgres").unwrap().url().to_owned();
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
        let name = format!("upgrade_{}_{since}_{nth}", std::process::id());
        let schema = Self { url, name };
        let tables = past::tables_of_version_3();
        schema.run(&format!("CREATE SCHEMA {0}; SET search_path = {0}; {tables}", schema.name));
        schema
    }

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

    /// The address with a name for its connections, by which the server knows this test's.
    fn named(&self) -> String {
        let sign = if self.url.contains('?') { '&' } else { '?' };
        format!("{}{sign}application_name={}", self.url, self.name)
    }

    fn migrate(&self, watch_ms: u64) -> Result<Migrated, OpenError> {
        let options = MigrateOptions { watch_ms, despite_connections: false, ..MigrateOptions::default() };
        Ledger::migrate(&self.named(), &self.options(), options, &Guard::default(), &|_| {})
    }

    fn older(&self, row: i64) -> OlderProcess {
        OlderProcess::connect(&self.url, &self.name, row)
    }

    fn ledger(&self) -> Ledger {
        self.open(Unbudgeted::Allow).unwrap()
    }

    /// A new process, which has set the budget that older ones take from.
    fn with_budget(&self) -> Ledger {
        let mut ledger = self.ledger();
        let budget = BudgetSet {
            activity: "spring",
            scene: "rain",
            bonus_type: "cash",
            total: 1_000_000_000,
            shards: 4,
        };
        ledger.set_budgets(&[budget]).unwrap();
        ledger
    }

    fn reconcile(&self) -> Reconciliation {
        let found = self.reader().unwrap().reconcile().unwrap();
        assert!(found.is_clean(), "{found:?}");
        found
    }

    fn is_true(&self, condition: &str) -> bool {
        self.try_run(&format!("SELECT 1 / ({condition})::int")).is_ok()
    }

    fn run(&self, sql: &str) {
        self.try_run(sql).unwrap();
    }

    fn try_run(&self, sql: &str) -> Result<(), tokio_postgres::Error> {
        past::run(&self.url, &format!("SET search_path = {}; {sql}", self.name))
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

fn order(trade_no: &str, user_id: i64, amount: i64) -> Order<'_> {
    Order { trade_no, user_id, activity: "spring", scene: "rain", bonus_type: "cash", amount, time_ms: 1_000 }
}

fn id(trade_no: &str) -> OrderId<'_> {
    OrderId { activity: "spring", trade_no }
}

fn out(user_id: i64, id: &str) -> WithdrawalId<'_> {
    WithdrawalId { user_id, id }
}

fn cash(id: &str, user_id: i64, amount: i64) -> Withdrawal {
    Withdrawal { id: id.into(), user_id, bonus_type: "cash".into(), amount }
}

/// These ask for the journal's own (seals, settlement accounts, statements, and acts), or that an order counts within its activity, and a
/// withdrawal within its user.
const NEED_MORE: [&str; 44] = [
    "the pages of a wallet's movements are the statement's lines",
    "a statement's pages hold each line once, with the balance after it",
    "a cursor of a statement leads to the same lines, whatever comes later",
    "a cursor that a caller has made up leads to the user's own lines alone",
    "a statement and its balances as they were at a time",
    "a user's withdrawals by status, in pages",
    "writers at once move an account: its statement follows its chain",
    "lines of several accounts are in the order of their times",
    "a page of withdrawals of one status looks a bounded number up",
    "a call passes over a bounded number of lines",
    "the same order number in another activity is another order",
    "two activities with the same order numbers, held and ended at once",
    "the same id of another user is another withdrawal",
    "writers at once credit the same order numbers of two activities once each",
    "a reservation ends once and either way",
    "many reservations in one call",
    "what a payer paid is settled with it, and never withdrawn",
    "writers at once hand promised orders over once",
    "writers at once end a reservation once",
    "an act is done once, in time, and by two operators",
    "an act that was done is never done again, and one that came to nothing is proposed anew",
    "an order that waits for its payer is settled or released by an act, once",
    "a held withdrawal is settled by an act, once",
    "an act is about the order of its activity, and the withdrawal of its user, alone",
    "a credited order is reversed once, never below 0, and never credited again",
    "what a payer paid is reversed from its settlement",
    "an adjustment moves money between a user and a budget or a funding",
    "no withdrawal of a frozen user is held, and grants go on",
    "writers at once approve an act once, and reverse an order once",
    "writers at once freeze users and hold withdrawals: nothing is held behind",
    "a correction takes every wrong order back once, and each of them is an act",
    "a correction takes no more than was approved, and none that could not be is proposed",
    "writers at once carry two corrections out: each order is taken back once",
    "random acts among grants and withdrawals: each thing once, all sums zero",
    "a closed activity gives nothing more, and others go on",
    "a closed activity is opened again while its orders are there",
    "the rows of a closed activity are read as a whole, and its orders go",
    "orders go when their transfers were audited and sealed, or by name",
    "orders that an export lacks are noticed when they have gone",
    "writers at once grant what is being closed: nothing comes behind",
    "a place that is none is refused, and an activity that is none has no rows",
    "each transfer is sealed once, in ranges of whole transactions",
    "writers and sealers at once: each transfer is sealed once, and the chain is whole",
    "a race of all that moves money, acts of operators and withdrawals among it, with lost answers",
];

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn this_build_keeps_every_promise_in_tables_of_version_3() {
    let mut left = 0;
    for (name, check) in CHECKS.iter().filter(|(name, _)| !NEED_MORE.contains(name)) {
        let place = Schema::of_version_3();
        if let Err(error) = check(&place) {
            panic!("{name}: {error}");
        }
        assert!(place.is_true("(SELECT max(version) = 3 FROM schema_version)"), "{name}");
        assert_eq!(place.migrate(0).unwrap(), Migrated { from: 3, to: 6 }, "{name}");
        place.reconcile();
        left += 1;
    }
    assert_eq!(left, CHECKS.len() - NEED_MORE.len());
}

/// What the one kind has begun, the other ends, and finds again.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn old_and_new_processes_continue_each_others_work() {
    let place = Schema::of_version_3();
    let mut new = place.with_budget();
    let mut old = place.older(3);
    assert_eq!(old.credit("a", 1, 10), Done::Yes);
    assert_eq!(
        new.apply(&[order("a", 1, 10), order("b", 1, 5)]).unwrap(),
        [OrderOutcome::AlreadyCredited, OrderOutcome::Credited]
    );
    assert_eq!(old.credit("b", 1, 5), Done::Before);
    assert_eq!(new.balance(1, "cash").unwrap(), 15);
    // Reserved by one, ended by the other.
    for (trade_no, credited) in [("paid", true), ("refused", false)] {
        assert_eq!(old.reserve(trade_no, 2, 7, "bank"), Done::Yes);
        let ends = new.transact(|tx| {
            if credited {
                tx.post(&[id(trade_no)], 2_000)
            } else {
                tx.release(&[(id(trade_no), windfall_contract::accounts::Reason::DownstreamRefused)], 2_000)
            }
        });
        assert_eq!(ends.unwrap(), [Finish::Done]);
        assert_eq!(old.finish(trade_no, credited), Done::Before);
        let own = format!("new-{trade_no}");
        new.transact(|tx| tx.reserve(&[order(&own, 2, 7)], &["shop"], Attempt::Normal)).unwrap();
        assert_eq!(old.finish(&own, credited), Done::Yes);
        let again = new.transact(|tx| tx.post(&[id(&own)], 2_000)).unwrap();
        assert_eq!(again, [if credited { Finish::Before } else { Finish::Otherwise }]);
    }
    // Held by one, ended by the other.
    assert_eq!(old.hold("w1", 1, 4), Done::Yes);
    assert_eq!(new.transact(|tx| tx.give_back(&[(out(1, "w1"), "no")], 2_000)).unwrap(), [Finish::Done]);
    assert_eq!(new.transact(|tx| tx.hold(&[(&cash("w2", 1, 3), "")], 2_000)).unwrap(), [HoldOutcome::Held]);
    assert_eq!(old.end("w2", true), Done::Yes);
    assert_eq!(old.hold("w2", 1, 3), Done::Before);
    assert_eq!(new.transact(|tx| tx.hold(&[(&cash("w3", 1, 2), "")], 2_000)).unwrap(), [HoldOutcome::Held]);
    let flow = place.reader().unwrap().flow(1, 99).unwrap();
    let kinds: Vec<_> = flow.iter().map(|line| (line.kind, line.amount)).collect();
    use FlowKind::{Credit, Return, Withdrawal};
    let expected =
        [(Withdrawal, 2), (Withdrawal, 3), (Return, 4), (Withdrawal, 4), (Credit, 5), (Credit, 10)];
    assert_eq!(kinds, expected);
    assert_eq!(new.balance(1, "cash").unwrap(), 10);
    let before = place.reconcile();
    new.check().unwrap();
    drop(old);
    place.migrate(0).unwrap();
    let after = place.reconcile();
    assert_eq!((before.orders, before.transfers), (after.orders, after.transfers));
    // The same connection goes on, and so does a reader that is kept.
    assert_eq!(new.apply(&[order("a", 1, 10), order("c", 1, 1)]).unwrap()[1], OrderOutcome::Credited);
    assert_eq!(new.balance(1, "cash").unwrap(), 11);
    assert_eq!(new.transact(|tx| tx.pay_out(&[out(1, "w3")], 3_000)).unwrap(), [Finish::Done]);
    let paid = |payer: &str| Settlement { payer: payer.into(), bonus_type: "cash".into(), amount: 7 };
    assert_eq!(place.reader().unwrap().settlements().unwrap(), [paid("bank"), paid("shop")]);
    assert_eq!(new.balance(2, "cash").unwrap(), 0, "payers paid it");
    place.reconcile();
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_process_of_version_3_can_do_nothing_after_the_migration() {
    let place = Schema::of_version_3();
    let mut new = place.with_budget();
    let mut old = place.older(3);
    assert_eq!(old.credit("a", 1, 10), Done::Yes);
    assert_eq!(old.reserve("r", 1, 5, "bank"), Done::Yes);
    assert_eq!(old.hold("w", 1, 4), Done::Yes);
    let planned = old.planned();
    place.migrate(0).unwrap();
    let before = place.reconcile();
    for (sql, statement) in &planned {
        assert!(old.refuses(statement), "{sql}");
    }
    assert_eq!(old.credit("b", 1, 10), Done::Refused);
    assert_eq!(old.credit("a", 1, 10), Done::Refused, "not even a repeat is answered");
    assert_eq!(old.reserve("s", 1, 5, "bank"), Done::Refused);
    assert_eq!([true, false].map(|credited| old.finish("r", credited)), [Done::Refused; 2]);
    assert_eq!(old.hold("v", 1, 1), Done::Refused);
    assert_eq!([true, false].map(|paid| old.end("w", paid)), [Done::Refused; 2]);
    assert_eq!(place.reconcile(), before);
    assert_eq!(until_done(|| new.order(id("r"))).unwrap().status, Status::Reserved);
    assert_eq!(new.transact(|tx| tx.post(&[id("r")], 2_000)).unwrap(), [Finish::Done]);
    assert_eq!(new.transact(|tx| tx.pay_out(&[out(1, "w")], 2_000)).unwrap(), [Finish::Done]);
    place.reconcile();
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_user_with_rights_on_the_tables_alone_grants_and_seals_after_the_migration_too() {
    let place = Schema::of_version_3();
    drop(place.with_budget());
    let (schema, user) = (&place.name, format!("plain_{}", place.name));
    place.run(&format!(
        "CREATE ROLE {user} LOGIN PASSWORD 'rain'; GRANT USAGE ON SCHEMA {schema} TO {user}; \
         GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {user}; GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {user}"
    ));
    let url = place.url.replacen("windfall:", &format!("{user}:"), 1);
    assert!(url.contains(&user), "{url}");
    let mut plain = Ledger::connect(&url, &place.options()).unwrap();
    assert_eq!(plain.apply(&[order("before", 1, 5)]).unwrap(), [OrderOutcome::Credited]);
    place.migrate(0).unwrap();
    let credited = until_done(|| plain.apply(&[order("after", 1, 5)]));
    assert!(matches!(credited[..], [OrderOutcome::Credited | OrderOutcome::AlreadyCredited]));
    Sealer::connect(&url, &place.options()).unwrap();
    assert!(place.is_true(&format!("has_table_privilege('{user}', 'bare_orders', 'SELECT')")));
    for table in ["transfers", "seals", "seal_pages"] {
        let may = |what: &str| place.is_true(&format!("has_table_privilege('{user}', '{table}', '{what}')"));
        assert!(may("SELECT") && may("INSERT") && !may("UPDATE") && !may("TRUNCATE"), "{table}");
    }
    place.reconcile();
}

/// The orders that all processes try: credited by the ledger, or reserved and ended.
const ORDERS: usize = 240;

struct Plan {
    trade_no: String,
    user: i64,
    amount: i64,
    payer: Option<bool>,
}

fn plan() -> Vec<Plan> {
    (0..ORDERS)
        .map(|nth| {
            let user = i64::try_from(nth % 7).unwrap();
            let payer = (nth % 3 == 1).then_some(nth.is_multiple_of(2));
            // Who got money from a payer withdraws nothing here.
            let (user, amount) = if payer.is_some() { (100 + user, 5) } else { (user, 1 + user) };
            Plan { trade_no: format!("both/{nth:04}"), user, amount, payer }
        })
        .collect()
}

/// Repeats a transaction that another one, or the migration, was in the way of. An answer that is lost is asked again.
fn until_done<T>(mut step: impl FnMut() -> Result<T, LedgerError>) -> T {
    let began = Instant::now();
    loop {
        match step() {
            Ok(done) => return done,
            Err(LedgerError::Contended(_) | LedgerError::Unavailable(_) | LedgerError::Unknown(_)) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(began.elapsed() < Duration::from_secs(300));
    }
}

/// What a new process does. Returns what it has credited.
fn new_work(ledger: &mut Ledger, plan: &[Plan], at: usize) -> i64 {
    let one = &plan[at];
    let own = [order(&one.trade_no, one.user, one.amount)];
    let Some(credited) = one.payer else {
        let outcome = until_done(|| ledger.apply(&own));
        let withdrawal = cash(&format!("out/{at}"), one.user, 1);
        if until_done(|| ledger.transact(|tx| tx.hold(&[(&withdrawal, "")], 2_000))) == [HoldOutcome::Held] {
            let ids = [out(one.user, &withdrawal.id)];
            until_done(|| {
                ledger.transact(|tx| match at % 2 {
                    0 => tx.pay_out(&ids, 3_000),
                    _ => tx.give_back(&[(ids[0], "no")], 3_000),
                })
            });
        }
        return if outcome == [OrderOutcome::Credited] { one.amount } else { 0 };
    };
    until_done(|| ledger.transact(|tx| tx.reserve(&own, &["bank"], Attempt::Normal)));
    let reason = windfall_contract::accounts::Reason::DownstreamRefused;
    until_done(|| {
        ledger.transact(|tx| match credited {
            true => tx.post(&[id(&one.trade_no)], 2_000),
            false => tx.release(&[(id(&one.trade_no), reason)], 2_000),
        })
    });
    0
}

/// What an old process does, until it is refused. Returns false then.
fn old_work(old: &mut OlderProcess, plan: &[Plan], at: usize) -> bool {
    let one = &plan[at];
    let steps = match one.payer {
        None => {
            let id = format!("old-out/{at}");
            [
                old.credit(&one.trade_no, one.user, one.amount),
                old.hold(&id, one.user, 1),
                old.end(&id, at.is_multiple_of(2)),
            ]
        }
        Some(credited) => {
            let reserved = old.reserve(&one.trade_no, one.user, one.amount, "bank");
            [reserved, old.finish(&one.trade_no, credited), Done::Before]
        }
    };
    !steps.contains(&Done::Refused)
}

/// Old and new processes work on the same orders, withdrawals and accounts; in the middle of it the journal is made.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn the_journal_is_made_under_the_load_of_old_and_new_processes() {
    let place = Schema::of_version_3();
    let first = place.with_budget();
    let plan = plan();
    let (by_old, is_made, new_done) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2_usize {
            let (mut ledger, plan, is_made, new_done) =
                (first.another().unwrap(), &plan, &is_made, &new_done);
            scope.spawn(move || {
                // All orders in an order of its own, again and again until the journal is made, then once more.
                loop {
                    let last = is_made.load(Ordering::SeqCst);
                    for nth in 0..ORDERS {
                        new_work(&mut ledger, plan, (nth * [7, 11][thread] + thread) % ORDERS);
                        new_done.fetch_add(1, Ordering::SeqCst);
                    }
                    if last {
                        return;
                    }
                }
            });
            let (place, by_old) = (&place, &by_old);
            scope.spawn(move || {
                let mut old = place.older(i64::try_from(thread).unwrap());
                // Also orders of its own, so that it has work for as long as it may.
                let mut own = 0_u64;
                loop {
                    for nth in 0..ORDERS {
                        let at = (nth * [13, 17][thread] + 5 * thread) % ORDERS;
                        let trade_no = format!("old/{thread}/{own}");
                        match old.credit(&trade_no, 50, 1) {
                            Done::Yes => by_old.fetch_add(1, Ordering::SeqCst),
                            Done::Before => panic!("{trade_no} was there"),
                            Done::Refused => return,
                        };
                        own += 1;
                        if !old_work(&mut old, plan, at) {
                            return;
                        }
                    }
                }
            });
        }
        // In the middle of the first round the tables of version 3 are sound at every moment.
        while new_done.load(Ordering::SeqCst) < 60 || by_old.load(Ordering::SeqCst) < 60 {
            std::thread::sleep(Duration::from_millis(2));
        }
        for _ in 0..3 {
            place.reconcile();
        }
        // It may give up while the machine is busy.
        while let Err(error) = place.migrate(0) {
            assert!(error.may_pass(), "{error}");
        }
        is_made.store(true, Ordering::SeqCst);
    });
    place.reconcile();
    let reader = place.reader().unwrap();
    let (mut users, mut settled) = (std::collections::BTreeMap::new(), 0);
    for one in &plan {
        let stored = reader.order(id(&one.trade_no)).unwrap().unwrap();
        match one.payer {
            Some(false) => assert!(matches!(stored.status, Status::Rejected(_)), "{stored:?}"),
            Some(true) => settled += one.amount,
            None => *users.entry(one.user).or_insert(0) += one.amount,
        }
        assert!(one.payer == Some(false) || stored.status == Status::Credited, "{stored:?}");
    }
    assert_eq!(reader.settlements().unwrap().iter().map(|one| one.amount).sum::<i64>(), settled);
    assert_eq!(reader.balances(50).unwrap()[0].1, i64::try_from(by_old.load(Ordering::SeqCst)).unwrap());
    for (user, credited) in users {
        // Each credit once, and what was paid out is gone.
        let flow = reader.flow(user, 100_000).unwrap();
        let sum =
            |kind: FlowKind| flow.iter().filter(|one| one.kind == kind).map(|one| one.amount).sum::<i64>();
        assert_eq!(sum(FlowKind::Credit), credited, "user {user}");
        let balance = reader.balances(user).unwrap()[0].1;
        assert_eq!(credited - sum(FlowKind::Withdrawal) + sum(FlowKind::Return), balance, "user {user}");
    }
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_migration_that_is_killed_changes_nothing() {
    let place = Schema::of_version_3();
    let mut new = place.with_budget();
    let mut old = place.older(3);
    assert_eq!(old.credit("a", 1, 10), Done::Yes);
    let before = place.reconcile();
    // It gets no further than to its locks while this transaction is open, and is killed there.
    let mut tx = new.begin().unwrap();
    tx.apply(&[order("b", 1, 5)], Attempt::Normal).unwrap();
    std::thread::scope(|scope| {
        let migrates = scope.spawn(|| place.migrate(0));
        let kill = format!(
            "(SELECT count(pg_terminate_backend(pid)) = 1 FROM pg_stat_activity WHERE application_name = '{}/6' \
             AND wait_event_type = 'Lock')",
            place.name
        );
        while !place.is_true(&kill) {
            assert!(!migrates.is_finished(), "it must wait");
            std::thread::sleep(Duration::from_millis(2));
        }
        let error = migrates.join().unwrap().unwrap_err();
        assert!(error.may_pass(), "{error}");
    });
    tx.commit().unwrap();
    assert_eq!(place.reconcile().orders, before.orders + 1);
    assert_eq!(old.credit("c", 1, 1), Done::Yes);
    assert_eq!(place.migrate(0).unwrap(), Migrated { from: 3, to: 6 });
    assert_eq!(new.balance(1, "cash").unwrap(), 16);
    place.reconcile();
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn of_two_migrations_at_once_one_does_the_work() {
    let place = Schema::of_version_3();
    let mut new = place.with_budget();
    new.apply(&[order("a", 1, 10)]).unwrap();
    let mut found: Vec<i64> = std::thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| place.migrate(0).unwrap()));
        both.map(|one| one.join().unwrap().from).to_vec()
    });
    found.sort_unstable();
    assert_eq!(found, [3, 6]);
    assert_eq!(place.migrate(0).unwrap(), Migrated { from: 6, to: 6 });
    place.reconcile();
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn it_refuses_while_an_older_process_is_connected_or_comes() {
    let place = Schema::of_version_3();
    let new = place.with_budget();
    // A connection of this build is none of an older one.
    let own = Ledger::connect(&place.named(), &place.options()).unwrap();
    let connect = || OlderProcess::connect(&place.named(), &place.name, 3);
    let old = connect();
    let refused = place.migrate(0).unwrap_err();
    assert!(
        matches!(refused, OpenError::Invalid(_)) && refused.to_string().contains(&place.name),
        "{refused}"
    );
    drop(old);
    std::thread::scope(|scope| {
        let watches = scope.spawn(|| place.migrate(3_600_000));
        let mut old = connect();
        assert!(watches.join().unwrap().is_err());
        assert_eq!(old.credit("a", 1, 10), Done::Yes, "nothing was changed");
    });
    // The server may need a moment to see that a connection has ended.
    while place.migrate(0).is_err() {
        std::thread::sleep(Duration::from_millis(20));
    }
    drop((new, own));
    place.reconcile();
}
