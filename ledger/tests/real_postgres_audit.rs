//! The auditor on PostgreSQL, beside writers, and against damage done by hand.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use windfall_contract::accounts::{Reason, Withdrawal};
use windfall_ledger::{
    ActOutcome, Attempt, AuditError, AuditLimits, AuditProgress, Auditor, BudgetSet, Compared, Deed, Ended,
    FileAnchor, Finish, Increment, Ledger, LedgerReader, Operator, Order, OrderId, PostgresOptions, Proposal,
    Proposed, Sealer, StoredAct, Tx, WithdrawalId,
};
use windfall_servers::Servers;

const LIMITS: AuditLimits =
    AuditLimits { increment_rows: 50, tail_rows_max: 100_000, account_rows: 7, order_rows: 50 };

struct Place {
    url: String,
    options: PostgresOptions,
    _servers: Servers,
}

impl Place {
    fn new(name: &str) -> Self {
        let servers = Servers::from_env_or_start(&["postgres"]).unwrap();
        let url = servers.server("postgres").unwrap().url().to_owned();
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
        let schema = format!("{name}_{}_{since}", std::process::id());
        let options =
            PostgresOptions { schema, idle_in_transaction_timeout_ms: 600_000, ..PostgresOptions::default() };
        Self { url, options, _servers: servers }
    }

    fn ledger(&self) -> Ledger {
        Ledger::connect(&self.url, &self.options).unwrap()
    }

    fn auditor(&self) -> Auditor {
        Auditor::connect(&self.url, &self.options).unwrap().with_limits(LIMITS)
    }

    fn run(&self, sql: &str) -> Result<u64, tokio_postgres::Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&self.url, tokio_postgres::NoTls).await?;
            let io = tokio::spawn(connection);
            client.batch_execute(&format!("SET search_path = {}", self.options.schema)).await?;
            let mut changed = 0;
            for statement in sql.split(';').filter(|one| !one.trim().is_empty()) {
                changed = client.execute(statement, &[]).await?;
            }
            drop(client);
            io.await.unwrap()?;
            Ok(changed)
        })
    }
}

const BUDGET_KEY: &str = "(SELECT id FROM programs WHERE scene = (SELECT id FROM names WHERE name = 'rain'))";
const BONUS_TYPE: &str = "(SELECT id FROM names WHERE name = 'cash')";

impl Place {
    /// Puts orders and their transfers into the tables, as if they had been credited, each to the user of its number from `user` on.
    fn make(&self, from: u64, to: u64, user: u64) {
        let numbers = format!("generate_series({from}, {}) n", to - 1);
        let id = "1000000000 + n";
        let holder = format!("1000 + n - {from} + {user}");
        let sql = format!(
            "INSERT INTO orders (user_id, program, amount, paid_by, created_ms, took_ms, status, reason, order_key, payer) \
             SELECT {holder}, {BUDGET_KEY}, 3, {id}, 1, 0, 1, 0, 'made/' || n, '' FROM {numbers}; \
             INSERT INTO transfers (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference) \
             SELECT {id}, 0, {BONUS_TYPE}, 2, {BUDGET_KEY}, 0, {holder}, 3, 0, 1, 'made/' || n FROM {numbers}; \
             INSERT INTO accounts (kind, asset, holder, balance, last, before) \
             SELECT 0, {BONUS_TYPE}, {holder}, 3, {id}, 0 FROM {numbers} \
             ON CONFLICT (kind, asset, holder) DO UPDATE SET balance = accounts.balance + 3"
        );
        self.run(&sql).unwrap();
    }

    /// The number of rows that a query has.
    fn count(&self, query: &str) -> u64 {
        self.run(&format!("CREATE TEMPORARY TABLE counted AS {query}")).unwrap()
    }
}

fn budgets(ledger: &mut Ledger) {
    let budget =
        |scene, shards| BudgetSet { activity: "spring", scene, bonus_type: "cash", total: 1_000_000, shards };
    ledger.set_budgets(&[budget("rain", 4), budget("*", 4)]).unwrap();
}

fn order(trade_no: &str, user_id: i64) -> Order<'_> {
    Order { trade_no, user_id, activity: "spring", scene: "rain", bonus_type: "cash", amount: 3, time_ms: 1 }
}

/// What a writer does, again and again: credits, orders that wait, are posted or released, withdrawals of each end.
fn work(ledger: &mut Ledger, writer: u64, nth: u64) {
    let user = |at: u64| i64::try_from(1 + (writer * 7 + nth + at) % 20).unwrap();
    let names: Vec<String> = (0..12).map(|at| format!("{writer}/{nth:06}/{at}")).collect();
    let orders: Vec<Order<'_>> = (0..).zip(&names).map(|(at, name)| order(name, user(at))).collect();
    ledger.apply(&orders[..6]).unwrap();
    ledger.transact(|tx: &mut Tx<'_>| tx.reserve(&orders[6..], &["bank"; 6], Attempt::Normal)).unwrap();
    let held: Vec<OrderId<'_>> = orders[6..].iter().map(Order::id).collect();
    ledger.transact(|tx: &mut Tx<'_>| tx.post(&held[..3], 2)).unwrap();
    ledger.transact(|tx: &mut Tx<'_>| tx.release(&[(held[3], Reason::Released)], 2)).unwrap();
    let out = Withdrawal {
        id: format!("out/{}", names[0]),
        user_id: user(0),
        bonus_type: "cash".into(),
        amount: 1,
    };
    ledger.transact(|tx: &mut Tx<'_>| tx.hold(&[(&out, "")], 3)).unwrap();
    let id = WithdrawalId { user_id: out.user_id, id: &out.id };
    let ended: Vec<Finish> = match nth % 3 {
        0 => ledger.transact(|tx: &mut Tx<'_>| tx.pay_out(&[id], 4)).unwrap(),
        1 => ledger.transact(|tx: &mut Tx<'_>| tx.give_back(&[(id, "no")], 4)).unwrap(),
        _ => vec![Finish::Done],
    };
    assert_eq!(ended.len(), 1);
}

fn patient<T>(mut step: impl FnMut() -> Result<T, AuditError>) -> T {
    loop {
        match step() {
            Err(AuditError::Busy) => std::thread::yield_now(),
            other => return other.unwrap(),
        }
    }
}

/// Reads what is final, compares, and sweeps all.
fn audit(auditor: &mut Auditor) -> AuditProgress {
    let started = Instant::now();
    // Another transaction of the server, such as that of an autovacuum, may be open for a while: nothing behind it is final.
    while patient(|| auditor.increment(7)) != Increment::default() || auditor.progress().unwrap().tail > 0 {
        assert!(started.elapsed() < Duration::from_secs(120));
    }
    assert!(matches!(patient(|| auditor.compare(7)), Compared::Done { .. }));
    while !matches!(patient(|| auditor.sweep(7)), Compared::Done { is_last: true, .. }) {}
    auditor.progress().unwrap()
}

/// The auditor never reports a difference that is none: four writers work all the while, two auditors look at every moment
/// that they find, and one of them is given up and begun anew again and again.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn beside_writers_nothing_is_reported_and_all_is_read() {
    let place = Place::new("audit_writers");
    budgets(&mut place.ledger());
    let (is_over, steps) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (place, is_over) = (&place, &is_over);
            scope.spawn(move || {
                let mut ledger = place.ledger();
                let mut nth = 0;
                while !is_over.load(Ordering::Relaxed) {
                    work(&mut ledger, writer, nth);
                    nth += 1;
                }
                assert!(nth > 3, "writer {writer} has worked");
            });
        }
        for which in 0..2 {
            let (place, is_over, steps) = (&place, &is_over, &steps);
            scope.spawn(move || {
                let mut auditor = place.auditor();
                while !is_over.load(Ordering::Relaxed) {
                    for step in 0..6 {
                        let found = match step {
                            0 => auditor.increment(5).map(|done| done.differences),
                            1 => auditor.compare(5).map(differences),
                            _ => auditor.sweep(5).map(differences),
                        };
                        match found {
                            Ok(found) => assert_eq!(found, 0, "{:?}", auditor.differences(None, 0, 10)),
                            Err(AuditError::Busy) => continue,
                            Err(error) => panic!("{error}"),
                        }
                        steps.fetch_add(1, Ordering::Relaxed);
                    }
                    if which == 1 {
                        auditor = place.auditor();
                    }
                }
            });
        }
        std::thread::sleep(Duration::from_secs(8));
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(steps.into_inner() > 20);
    let mut auditor = place.auditor();
    let progress = audit(&mut auditor);
    assert!(progress.is_clean() && progress.sweeps > 0 && progress.tail == 0, "{progress:?}");
    let whole = LedgerReader::connect(&place.url, &place.options).unwrap().reconcile().unwrap();
    assert!(whole.is_clean(), "{whole:?}");
    // Each transfer once, however many auditors there were.
    let transfers = place.run("CREATE TEMPORARY TABLE all_of_them AS SELECT id FROM transfers").unwrap();
    assert_eq!(progress.transfers, transfers);
}

fn differences(compared: Compared) -> u64 {
    match compared {
        Compared::Done { differences, .. } => differences,
        Compared::Behind => 0,
    }
}

/// Transactions of several rows, which are never divided: what is left says whether to go on, and not the number of rows.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_range_that_ends_before_what_is_final_says_that_there_is_more() {
    let place = Place::new("audit_more");
    let mut ledger = place.ledger();
    budgets(&mut ledger);
    for nth in 0..5 {
        let numbers: Vec<String> = (0..4).map(|row| format!("{nth}/{row}")).collect();
        let orders: Vec<Order<'_>> = numbers.iter().map(|number| order(number, nth)).collect();
        ledger.apply(&orders).unwrap();
    }
    // Other transactions of the server may be open for a while.
    let all_final = "CREATE TEMPORARY TABLE final AS SELECT 1 WHERE (SELECT max(tx) FROM transfers) \
        < pg_snapshot_xmin(pg_current_snapshot())::text::bigint";
    let started = Instant::now();
    while place.run(all_final).unwrap() == 0 {
        assert!(started.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut auditor =
        place.auditor().with_limits(AuditLimits { increment_rows: 6, ..AuditLimits::default() });
    let (mut steps, mut transfers) = (0, 0);
    loop {
        let done = patient(|| auditor.increment(7));
        (steps, transfers) = (steps + 1, transfers + done.transfers);
        if !done.has_more {
            break;
        }
        assert!(done.transfers > 0, "{done:?}");
    }
    assert!(steps > 3 && transfers >= 20, "{transfers} in {steps}");
    assert_eq!(auditor.progress().unwrap().tail, 0);
}

/// A transaction that is open for long: nothing behind it is final, balances agree all the same, and what it did counts when it
/// has ended.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_transaction_that_stays_open_holds_the_position_up_and_nothing_else() {
    let place = Place::new("audit_open");
    let mut ledger = place.ledger();
    budgets(&mut ledger);
    // Of another activity, so that nobody waits for its locks.
    let winter =
        BudgetSet { activity: "winter", scene: "rain", bonus_type: "cash", total: 1_000_000, shards: 1 };
    ledger.set_budgets(&[winter]).unwrap();
    let mut slow = place.ledger();
    let mut tx = slow.begin().unwrap();
    tx.apply(&[Order { activity: "winter", ..order("slow", 99) }], Attempt::Normal).unwrap();
    work(&mut ledger, 1, 1);
    let mut auditor = place.auditor();
    while patient(|| auditor.increment(5)) != Increment::default() {}
    assert!(auditor.progress().unwrap().tail > 0, "what came behind it is not final");
    assert_eq!(differences(patient(|| auditor.compare(5))), 0);
    tx.commit().unwrap();
    assert_eq!(differences(patient(|| auditor.compare(5))), 0);
    let progress = audit(&mut auditor);
    assert!(progress.is_clean() && progress.tail == 0, "{progress:?}");
}

/// What no seal has come to is counted, and what is sealed is not.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn what_is_in_no_seal_is_counted() {
    let place = Place::new("audit_unsealed");
    let mut ledger = place.ledger();
    budgets(&mut ledger);
    let mut auditor = place.auditor();
    let before = auditor.progress().unwrap().unsealed;
    ledger.apply(&[order("a", 1)]).unwrap();
    let progress = auditor.progress().unwrap();
    assert_eq!((progress.unsealed, progress.oldest_unsealed_ms.is_some()), (before + 1, true));
    let folder = tempfile::tempdir().unwrap();
    let mut anchor = FileAnchor::new(folder.path().join("anchor"));
    let mut sealer = Sealer::connect(&place.url, &place.options).unwrap();
    let started = Instant::now();
    // Another transaction of the server may be open for a while: nothing behind it is final.
    while auditor.progress().unwrap().unsealed > 0 {
        sealer.seal(&mut anchor, 5).unwrap();
        assert!(started.elapsed() < Duration::from_secs(120));
    }
    assert_eq!(auditor.progress().unwrap().oldest_unsealed_ms, None);
}

/// Performs an act of two operators.
fn act(ledger: &mut Ledger, deed: &Deed) {
    let by = |name: &str| Operator { name: name.into(), actor: String::new() };
    let proposal = Proposal {
        deed: deed.clone(),
        reason: "why".into(),
        evidence: "ticket".into(),
        operator: by("ann"),
        time_ms: 1,
        expires_ms: 9,
    };
    let Proposed::Now(act) = ledger.transact(|tx| tx.propose_act(&proposal)).unwrap() else { panic!("new") };
    let ended = ledger.transact(|tx| tx.approve_act(act.id, &by("bob"), 2)).unwrap();
    let Ended::Now(StoredAct { end: Some(end), .. }) = ended else { panic!("{ended:?}") };
    assert_eq!(end.outcome, ActOutcome::Done, "{end:?}");
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn what_acts_move_has_its_act_and_what_says_so_without_one_is_found() {
    let place = Place::new("audit_acts");
    let mut ledger = place.ledger();
    budgets(&mut ledger);
    for trade_no in ["a", "b"] {
        ledger.transact(|tx| tx.apply(&[order(trade_no, 9)], Attempt::Normal)).unwrap();
    }
    let forge = |columns: &str, source: &str| {
        let sql = format!(
            "INSERT INTO transfers (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, \
             reference) SELECT {columns} FROM transfers WHERE {source} LIMIT 1"
        );
        assert_eq!(place.run(&sql).unwrap(), 1, "{sql}");
    };
    let mut auditor = place.auditor();
    forge("-7, 0, asset, 1, 1, 0, 9, 5, 0, 1, 'gift'", "debit = 2");
    assert_eq!(audit(&mut auditor).open["transfer_without_act"], 1, "there is no table of acts");
    let (activity, scene, bonus_type) = ("spring".to_owned(), "rain".to_owned(), "cash".to_owned());
    for (scene, to_user) in [(String::new(), true), (scene.clone(), true), (scene, false)] {
        let (activity, bonus_type) = (activity.clone(), bonus_type.clone());
        act(&mut ledger, &Deed::Adjust { user_id: 9, activity, scene, bonus_type, amount: 1, to_user });
    }
    act(&mut ledger, &Deed::Reverse { activity, trade_no: "a".into(), take_what_is_there: false, keep: 0 });
    assert_eq!(audit(&mut auditor).open["transfer_without_act"], 1, "acts are sound");
    forge("-8, 0, asset, 1, 1, 0, 9, 5, 0, 1, 'another gift'", "debit = 2");
    forge("-9, kind, asset, debit, debit_holder, credit, credit_holder, amount, 0, 1, reference", "kind = 4");
    forge("-10, 0, asset, debit, debit_holder, credit, credit_holder, amount, 0, 1, ' act x'", "kind = 4");
    assert_eq!(audit(&mut auditor).open["transfer_without_act"], 4);
    assert!(ledger.reconcile().unwrap().wrong_acts >= 4);
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn what_is_changed_by_hand_is_found() {
    let cases = [
        ("wrong_balance", "UPDATE accounts SET balance = balance + 1 WHERE kind = 0 AND holder = 9"),
        ("wrong_balance", "UPDATE accounts SET balance = balance + 1 WHERE kind <= -3"),
        ("wrong_used", "UPDATE budget_shards SET used = used + 1 WHERE shard = 0"),
        ("wrong_reserved", "UPDATE budget_shards SET reserved = reserved + 1 WHERE shard = 1"),
        (
            "order_without_transfer",
            "INSERT INTO orders (user_id, program, amount, paid_by, created_ms, took_ms, status, reason, order_key, payer) \
             SELECT user_id, program, amount, 7, created_ms, took_ms, 1, 0, 'forged', '' FROM orders WHERE status = 1 LIMIT 1",
        ),
        (
            "transfer_without_order",
            "INSERT INTO transfers (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, \
             reference) SELECT -7, 0, asset, debit, debit_holder, 0, 9, 5, 0, 1, 'forged' FROM transfers \
             WHERE debit = 2 LIMIT 1",
        ),
        (
            "double_credit",
            "INSERT INTO transfers (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, \
             reference) SELECT -7, kind, asset, debit, debit_holder, credit, credit_holder, amount, 0, 1, reference \
             FROM transfers WHERE debit = 2 AND kind = 0 LIMIT 1",
        ),
        ("wrong_withdrawal", "UPDATE withdrawals SET status = 0 WHERE status = 1"),
        ("wrong_pending", "UPDATE orders SET status = 2 WHERE status = 0"),
    ];
    for (kind, sql) in cases {
        let place = Place::new("audit_hand");
        let mut ledger = place.ledger();
        budgets(&mut ledger);
        for nth in 0..3 {
            work(&mut ledger, 1, nth);
        }
        let mut auditor = place.auditor();
        assert!(audit(&mut auditor).is_clean(), "before: {kind}");
        assert!(place.run(sql).unwrap() > 0, "{sql}");
        let progress = audit(&mut auditor);
        assert!(progress.open.contains_key(kind), "{kind}: {:?}", progress.open);
        assert!(
            place.run("DELETE FROM audit_differences").is_err()
                && place.run("TRUNCATE audit_differences").is_err()
        );
    }
}

/// Tables that were loaded into another cluster: its ranges cannot be told from new ones.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn transfers_ahead_of_all_transactions_are_refused() {
    let place = Place::new("audit_ahead");
    let mut ledger = place.ledger();
    budgets(&mut ledger);
    work(&mut ledger, 1, 1);
    place
        .run(
            "INSERT INTO transfers (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, \
             reference, tx) SELECT -7, 0, asset, debit, debit_holder, 0, 9, 5, 0, 1, 'restored', 1000000000000 \
             FROM transfers WHERE debit = 2 LIMIT 1",
        )
        .unwrap();
    let mut auditor = place.auditor();
    let refused = auditor.increment(5).unwrap_err();
    assert!(matches!(refused, AuditError::Ahead { transfer: -7, place: 1_000_000_000_000 }), "{refused}");
}

/// Reads what is final, in ranges of the default size.
fn read_all(auditor: &mut Auditor) {
    let started = Instant::now();
    while patient(|| auditor.increment(5)) != Increment::default() || auditor.progress().unwrap().tail > 0 {
        assert!(started.elapsed() < Duration::from_secs(120));
    }
}

/// The orders of a large range are read where they lie; whatever is wrong with one of them is found all the same.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn each_wrong_order_of_a_large_range_is_found() {
    let place = Place::new("audit_near");
    let mut ledger = place.ledger();
    budgets(&mut ledger);
    work(&mut ledger, 1, 0);
    place.make(0, 6_000, 0);
    // Two that a payer paid, the second of them another one than its order says.
    place
        .run(&format!(
            "INSERT INTO orders (user_id, program, amount, paid_by, created_ms, took_ms, status, reason, order_key, payer) \
             SELECT 1, {BUDGET_KEY}, 3, 900000000 + n, 1, 0, 1, 0, 'paid/' || n, CASE n WHEN 1 THEN 'bank' ELSE 'mint' END \
             FROM generate_series(1, 2) n; \
             INSERT INTO transfers (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference) \
             SELECT 900000000 + n, 2, {BONUS_TYPE}, 2, {BUDGET_KEY}, -3, (SELECT id FROM names WHERE name = 'bank'), 3, 0, 1, 'paid/' || n \
             FROM generate_series(1, 2) n"
        ))
        .unwrap();
    for (change, trade_no) in [
        ("amount = 4", 11),
        ("user_id = user_id + 1", 1_012),
        ("status = 2", 2_013),
        ("paid_by = 7", 3_014),
        ("program = program + 1", 4_015),
    ] {
        let sql = format!("UPDATE orders SET {change} WHERE order_key = 'made/{trade_no}'");
        assert_eq!(place.run(&sql).unwrap(), 1);
    }
    assert_eq!(place.run("DELETE FROM orders WHERE order_key = 'made/5016'").unwrap(), 1);
    let mut auditor = place.auditor().with_limits(AuditLimits::default());
    read_all(&mut auditor);
    let open = auditor.progress().unwrap().open;
    let expected = [("double_credit", 1), ("transfer_mismatch", 3), ("transfer_without_order", 3)];
    assert_eq!(open, expected.map(|(kind, count)| (kind.to_owned(), count)).into());
}

/// What large ranges add to users' accounts is tidied up by the sweep, page by page, whatever is added while it is on its way, and at
/// each moment the sums are those of the journal.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn what_large_ranges_add_is_in_the_sums_at_each_moment() {
    const LEFT: &str = "SELECT holder, sum(amount) FROM (
            SELECT credit_holder AS holder, amount FROM transfers WHERE credit = 0 AND kind IN (0, 2, 4)
            UNION ALL SELECT debit_holder, -amount FROM transfers WHERE debit = 0 AND kind IN (0, 2, 4)
            UNION ALL SELECT holder, -amount FROM audit_sums WHERE kind = 0
            UNION ALL SELECT e.holder, -e.amount FROM audit_packed, unnest(holders, amounts) AS e(holder, amount)
        ) AS sides GROUP BY holder HAVING sum(amount) <> 0";
    let place = Place::new("audit_packed");
    let mut ledger = place.ledger();
    budgets(&mut ledger);
    for nth in 0..3 {
        work(&mut ledger, 1, nth);
    }
    place.make(0, 6_000, 0);
    let limits = AuditLimits { account_rows: 700, ..AuditLimits::default() };
    let mut auditor = place.auditor().with_limits(limits);
    read_all(&mut auditor);
    assert!(place.count("SELECT 1 FROM audit_packed") > 20);
    let mut pages = 0;
    // Ranges come while the sweep is between two pages, and each lies on both sides of it.
    for (from, user) in [(6_000, 0), (12_000, 3_000), (18_000, 1_500), (24_000, 0)] {
        for _ in 0..3 {
            assert!(matches!(patient(|| auditor.sweep(5)), Compared::Done { differences: 0, .. }));
            assert_eq!(place.count(LEFT), 0);
            pages += 1;
        }
        place.make(from, from + 6_000, user);
        assert!(matches!(patient(|| auditor.sweep(5)), Compared::Done { differences: 0, .. }));
        read_all(&mut auditor);
        assert_eq!(place.count(LEFT), 0);
    }
    assert!(pages == 12 && place.count("SELECT 1 FROM audit_packed") > 0);
    let progress = audit(&mut auditor);
    assert!(progress.open.keys().all(|kind| kind == "wrong_used"), "{progress:?}");
    audit(&mut auditor);
    assert_eq!(place.count(LEFT), 0);
    // In one page all of them: about as many rows as 9,000 accounts need, of more than a hundred that were added.
    let mut auditor = place.auditor().with_limits(AuditLimits::default());
    audit(&mut auditor);
    assert!(place.count("SELECT 1 FROM audit_packed") <= 64);
    assert_eq!(place.count(LEFT), 0);
    assert_eq!(
        place.run("UPDATE accounts SET balance = balance + 1 WHERE kind = 0 AND holder = 4000").unwrap(),
        1
    );
    assert_eq!(audit(&mut auditor).open.get("wrong_balance"), Some(&1));
}

/// Says how long an increment takes: transfers each of a user and an order of its own, which is the worst case. A test has few
/// of them; `WINDFALL_AUDIT_ROWS=5000000` measures.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn increments_and_sweeps_read_each_row_once() {
    let rows: u64 = std::env::var("WINDFALL_AUDIT_ROWS").map_or(20_000, |rows| rows.parse().unwrap());
    let place = Place::new("audit_measure");
    let mut ledger = place.ledger();
    budgets(&mut ledger);
    ledger.apply(&[order("first", 1)]).unwrap();
    for from in (0..rows).step_by(100_000) {
        place.make(from, rows.min(from + 100_000), 0);
    }
    place.run("ANALYZE orders; ANALYZE transfers; ANALYZE accounts").unwrap();
    let mut auditor = place.auditor().with_limits(AuditLimits::default());
    let (mut read, mut longest) = (0, Duration::ZERO);
    let mut million = Instant::now();
    loop {
        let began = Instant::now();
        let step = patient(|| auditor.increment(5));
        longest = longest.max(began.elapsed());
        if step.transfers == 0 {
            break;
        }
        let before = read / 1_000_000;
        read += step.transfers;
        if read / 1_000_000 > before {
            println!("{read} transfers: the last million in {:.1?}", million.elapsed());
            million = Instant::now();
        }
    }
    println!("{read} transfers; the longest step took {longest:.2?}");
    // With the first order, and what funded two budgets.
    assert_eq!(read, rows + 3);
    let (mut swept, began) = (0, Instant::now());
    let mut longest = Duration::ZERO;
    loop {
        let page = Instant::now();
        let Compared::Done { rows, is_last, .. } = patient(|| auditor.sweep(5)) else {
            panic!("it is behind")
        };
        longest = longest.max(page.elapsed());
        swept += rows;
        if is_last {
            break;
        }
    }
    // The order and the account of each, and the accounts of the budgets.
    assert!((2 * rows + 2..2 * rows + 100).contains(&swept), "{swept}");
    println!(
        "{swept} accounts, orders and withdrawals swept in {:.1?}; the longest page took {longest:.2?}",
        began.elapsed()
    );
    let began = Instant::now();
    // What was put into the tables by hand is in no budget.
    assert!(matches!(patient(|| auditor.compare(5)), Compared::Done { .. }));
    println!("compared what is small in {:.2?}", began.elapsed());
}
