//! The upgrade from version 5, in which an order number counts over all activities and a withdrawal's id over all users.

use super::*;

/// A ledger of version 5, with the budget that its processes take from.
pub(super) fn of_version_5() -> Schema {
    let place = Schema::of_version_3();
    place.migrate(0).unwrap();
    let back = "ALTER TABLE orders RENAME COLUMN order_key TO trade_no; \
        ALTER TABLE withdrawals RENAME COLUMN withdrawal_key TO id; ALTER TABLE withdrawals DROP COLUMN payer_key; \
        DROP TABLE bare_orders; DROP INDEX withdrawals_asked, withdrawals_to_pay_out; \
        DELETE FROM schema_version WHERE version = 6";
    place.run(back);
    drop(place.with_budget());
    assert!(place.is_true("(SELECT max(version) = 5 FROM schema_version)"));
    place
}

/// What the release before sends for orders and withdrawals, as it stands in its source.
const OF_VERSION_5: [&str; 9] = [
    "INSERT INTO orders (trade_no, user_id, program, amount, paid_by, created_ms, payer, status, reason, took_ms) \
     SELECT w.*, $8::smallint, $9::smallint, $10::bigint FROM unnest($1::text[], $2::bigint[], $3::bigint[], \
     $4::bigint[], $5::bigint[], $6::bigint[], $7::text[]) AS w \
     ON CONFLICT (trade_no) DO NOTHING RETURNING trade_no",
    "SELECT o.trade_no, o.user_id, o.amount, o.status, o.reason, o.created_ms, p.id, \
     p.activity, p.asset, p.budgeted, o.payer FROM orders o JOIN programs p ON p.id = o.program \
     WHERE o.trade_no = ANY($1) ORDER BY o.trade_no FOR NO KEY UPDATE OF o",
    "UPDATE orders o SET status = w.status, reason = w.reason, paid_by = w.transfer, took_ms = w.took_ms, \
     payer = coalesce(w.payer, o.payer) \
     FROM unnest($1::text[], $2::smallint[], $3::smallint[], $4::bigint[], $5::bigint[], $6::text[]) \
     AS w(trade_no, status, reason, transfer, took_ms, payer) WHERE o.trade_no = w.trade_no",
    "SELECT o.trade_no, o.user_id, a.name, s.name, b.name, o.amount, o.status, o.reason, o.created_ms, \
     o.took_ms, o.payer FROM orders o JOIN programs p ON p.id = o.program JOIN names a ON a.id = p.activity \
     JOIN names s ON s.id = p.scene JOIN names b ON b.id = p.asset WHERE o.trade_no = ANY($1)",
    "SELECT o.trade_no, o.user_id, n.name, o.amount, o.status, o.reason, \
     EXISTS (SELECT 1 FROM transfers t WHERE t.id = o.paid_by AND t.reference = o.trade_no) \
     FROM orders o JOIN programs p ON p.id = o.program JOIN names n ON n.id = p.asset \
     WHERE o.trade_no > $1 ORDER BY o.trade_no LIMIT $2",
    "INSERT INTO withdrawals (id, user_id, asset, amount, created_ms, payer, status, reason) \
     SELECT w.*, $7::smallint, '' \
     FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[]) AS w \
     ON CONFLICT (id) DO NOTHING RETURNING id",
    "SELECT w.id, w.user_id, n.name, w.amount, w.status, w.reason, w.created_ms, w.decided_ms, w.asset, w.payer \
     FROM withdrawals w JOIN names n ON n.id = w.asset WHERE w.id = ANY($1) ORDER BY w.id FOR NO KEY UPDATE OF w",
    "DELETE FROM withdrawals WHERE id = ANY($1)",
    "UPDATE withdrawals w SET status = v.status, reason = v.reason, decided_ms = $4::bigint \
     FROM unnest($1::text[], $2::smallint[], $3::text[]) AS v(id, status, reason) WHERE w.id = v.id",
];

/// Whatever a process of the release before has prepared, it does nothing with two orders of one number.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn a_process_of_version_5_can_do_nothing_with_orders_after_the_migration() {
    let place = of_version_5();
    let old = place.older(0);
    let planned = old.planned_of(&OF_VERSION_5);
    place.migrate(0).unwrap();
    for (sql, statement) in &planned {
        assert!(old.refuses(statement), "{sql}");
    }
}

/// Before the migration a number is one order, as for the processes beside it; from then on it is one in each activity. What
/// its payer was given stays what it was.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn an_order_that_is_reserved_before_the_migration_is_asked_for_with_the_same_key_after_it() {
    let place = of_version_5();
    let mut new = place.ledger();
    let autumn = |trade_no, user_id, amount| Order { activity: "autumn", ..order(trade_no, user_id, amount) };
    let reserve = |ledger: &mut Ledger, orders: &[Order<'_>]| {
        ledger.transact(|tx| tx.reserve(orders, &vec!["bank"; orders.len()], Attempt::Normal)).unwrap()
    };
    assert_eq!(reserve(&mut new, &[order("r", 1, 5), order("b", 1, 5)]), [OrderOutcome::Reserved; 2]);
    assert_eq!(
        new.apply(&[autumn("r", 2, 7)]).unwrap(),
        [OrderOutcome::Conflict],
        "an older process would say so"
    );
    assert_eq!(new.apply(&[order("a", 7, 30)]).unwrap(), [OrderOutcome::Credited]);
    let hold = |ledger: &mut Ledger, withdrawals: &[Withdrawal]| {
        let held = |tx: &mut windfall_ledger::Tx<'_>| {
            tx.name_tenant("acme");
            tx.hold(&withdrawals.iter().map(|one| (one, "bank")).collect::<Vec<_>>(), 2_000)
        };
        ledger.transact(held).unwrap()
    };
    assert_eq!(hold(&mut new, &[cash("w", 7, 3)]), [HoldOutcome::Held]);
    let keys = |of: &str, trade_no: &str| {
        let id = OrderId { activity: of, trade_no };
        place.reader().unwrap().order(id).unwrap().map(|order| payer_key(&order))
    };
    let payers_keys = || {
        let held = place.reader().unwrap().held_withdrawals(HeldFor::Anybody, 9_000, "", 9).unwrap();
        held.into_iter().map(|one| one.payer_key).collect::<Vec<_>>()
    };
    assert_eq!((keys("spring", "r"), keys("autumn", "r")), (Some("r".into()), None));
    // What is in the way of an order is told, so that nobody waits for it.
    let in_the_way = || {
        let names = ["spring", "autumn", "winter"].map(|activity| OrderId { activity, trade_no: "r" });
        let found = place.reader().unwrap().orders_of(&names).unwrap();
        found.into_iter().map(|order| order.map(|order| order.activity)).collect::<Vec<_>>()
    };
    assert_eq!(in_the_way(), [Some("spring".into()), Some("spring".into()), Some("spring".into())]);
    assert_eq!(payers_keys(), ["withdrawal w"]);
    assert_eq!(place.migrate(0).unwrap(), Migrated { from: 5, to: 6 });
    assert_eq!(in_the_way(), [Some("spring".into()), None, None]);
    place.reconcile();
    // The same connection goes on.
    let batch = [order("r", 1, 5), autumn("r", 2, 7), order("r", 1, 6), autumn("r", 2, 8)];
    let (held, conflict) = (OrderOutcome::Reserved, OrderOutcome::Conflict);
    assert_eq!(
        until_done(|| new.transact(|tx| tx.reserve(&batch, &["shop"; 4], Attempt::Normal))),
        [held, held, conflict, conflict]
    );
    assert_eq!(keys("spring", "r"), Some("r".into()), "its payer may have paid under it");
    assert_eq!(keys("autumn", "r"), Some("order autumn r".into()));
    let before = HoldOutcome::HeldBefore { payer: "bank".into() };
    assert_eq!(hold(&mut new, &[cash("w", 7, 3)]), [before]);
    assert_eq!(new.apply(&[autumn("c", 8, 9)]).unwrap(), [OrderOutcome::Credited]);
    assert_eq!(hold(&mut new, &[cash("w", 8, 4), cash("v", 7, 1)]), [HoldOutcome::Held, HoldOutcome::Held]);
    let mut now = payers_keys();
    now.sort();
    assert_eq!(now, ["withdrawal acme 7 v", "withdrawal acme 8 w", "withdrawal w"]);
    // Each ends by itself.
    let done = new.transact(|tx| {
        let autumns = OrderId { activity: "autumn", trade_no: "r" };
        let refused = [(id("r"), windfall_contract::accounts::Reason::DownstreamRefused)];
        Ok((
            tx.release(&refused, 3_000)?,
            tx.post(&[autumns, id("b")], 3_000)?,
            tx.pay_out(&[out(8, "w")], 3_000)?,
        ))
    });
    assert_eq!(done.unwrap(), (vec![Finish::Done], vec![Finish::Done; 2], vec![Finish::Done]));
    // What was stored under its number alone is not credited a second time, and may be replayed.
    let again = [order("a", 7, 30), autumn("a", 7, 30)];
    assert_eq!(new.apply(&again).unwrap(), [OrderOutcome::AlreadyCredited, OrderOutcome::Credited]);
    let replayed = new.transact(|tx| tx.apply(&[order("r", 1, 5)], Attempt::Replay)).unwrap();
    assert_eq!(replayed, [OrderOutcome::Credited]);
    assert_eq!((new.balance(1, "cash").unwrap(), new.balance(7, "cash").unwrap()), (5, 56));
    place.reconcile();
}

/// Writers of this build go on while the tables are migrated; an order of a number is credited once in its activity,
/// whichever tables each of them has found.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn the_keys_change_under_the_load_of_writers() {
    let place = of_version_5();
    let first = place.ledger();
    let names: Vec<String> = (0..200).map(|nth| format!("both/{nth:03}")).collect();
    let is_migrated = AtomicBool::new(false);
    let (rounds, credited) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3_usize {
            let (mut ledger, names) = (first.another().unwrap(), &names);
            let (is_migrated, rounds, credited) = (&is_migrated, &rounds, &credited);
            scope.spawn(move || {
                loop {
                    let last = is_migrated.load(Ordering::SeqCst);
                    for part in 0..10 {
                        let part = &names[(part * [1, 3, 7][thread] % 10) * 20..][..20];
                        let batch: Vec<Order<'_>> = part.iter().map(|name| order(name, 1, 1)).collect();
                        for outcome in until_done(|| ledger.apply(&batch)) {
                            credited
                                .fetch_add(u64::from(outcome == OrderOutcome::Credited), Ordering::SeqCst);
                            assert!(matches!(
                                outcome,
                                OrderOutcome::Credited | OrderOutcome::AlreadyCredited
                            ));
                        }
                        // Taken before the migration, it is another's; from then on it is an order of its own.
                        let other = [Order { activity: "autumn", ..order(&part[thread], 2, 1) }];
                        let outcome = until_done(|| ledger.apply(&other))[0];
                        assert!(!last || outcome != OrderOutcome::Conflict);
                        rounds.fetch_add(1, Ordering::SeqCst);
                    }
                    if last {
                        return;
                    }
                }
            });
        }
        while rounds.load(Ordering::SeqCst) < 12 {
            std::thread::sleep(Duration::from_millis(2));
        }
        while let Err(error) = place.migrate(0) {
            assert!(error.may_pass(), "{error}");
        }
        is_migrated.store(true, Ordering::SeqCst);
    });
    place.reconcile();
    // A commit whose answer was lost is counted by nobody.
    assert!(credited.into_inner() <= 200);
    let reader = place.reader().unwrap();
    assert_eq!(reader.balances(1).unwrap()[0].1, 200, "I1");
    assert_eq!(reader.balances(2).unwrap()[0].1, 30, "each once, in its activity");
}
