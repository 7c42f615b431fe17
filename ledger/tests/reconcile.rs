//! Reconciliation finds each kind of damage, done by hand through a raw connection.
#![allow(clippy::unwrap_used)]

use windfall_contract::accounts::Withdrawal;
use windfall_ledger::{
    Attempt, Auditor, BudgetSet, Close, Detach, DetachBegun, DetachedBudget, DifferenceState, Ledger,
    LedgerOptions, LedgerReader, Order, Reconciliation, Unbudgeted, WithdrawalId,
};

fn damaged_by(sql: &str) -> (Reconciliation, Vec<u32>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let mut ledger =
        Ledger::open(&path, &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() })
            .unwrap();
    let order = |trade_no, user_id, bonus_type| Order {
        trade_no,
        user_id,
        activity: "spring",
        scene: "rain",
        bonus_type,
        amount: 10,
        time_ms: 1,
    };
    ledger
        .set_budgets(&[BudgetSet {
            activity: "spring",
            scene: "rain",
            bonus_type: "cash",
            total: 100,
            shards: 2,
        }])
        .unwrap();
    ledger.apply(&[order("a", 1, "cash"), order("b", 2, "cash"), order("c", 1, "coin")]).unwrap();
    let mut tx = ledger.begin().unwrap();
    tx.reserve(&[order("d", 3, "cash")], &["bank"], Attempt::Normal).unwrap();
    tx.commit().unwrap();
    let out = |id: &str, amount| Withdrawal { id: id.into(), user_id: 2, bonus_type: "cash".into(), amount };
    let mut tx = ledger.begin().unwrap();
    tx.hold(&[(&out("v", 2), ""), (&out("w", 3), "")], 1).unwrap();
    tx.pay_out(&[WithdrawalId { user_id: 2, id: "w" }], 1).unwrap();
    tx.commit().unwrap();
    drop(ledger);
    let clean = LedgerReader::open(&path).unwrap().reconcile().unwrap();
    assert!(clean.is_clean(), "{clean:?}");
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute_batch("PRAGMA ignore_check_constraints = ON").unwrap();
    raw.execute_batch("DROP TRIGGER transfers_no_update; DROP TRIGGER transfers_no_delete; DROP TRIGGER transfers_no_replace").unwrap();
    raw.execute_batch(sql).unwrap();
    drop(raw);
    let reader = LedgerReader::open(&path).unwrap();
    let credits = reader.orders().unwrap().map(|line| line.unwrap().credits).collect();
    (reader.reconcile().unwrap(), credits)
}

#[test]
fn each_kind_of_damage_is_found() {
    type Field = fn(&Reconciliation) -> u64;
    let cases: [(&str, &str, Field); 26] = [
        ("a transfer is gone", "DELETE FROM transfers WHERE reference = 'a spring'", |found| {
            found.orders_without_transfer
        }),
        ("an order is gone", "DELETE FROM orders WHERE order_key = 'a spring'", |found| {
            found.transfers_without_order
        }),
        (
            "a reserved order has a transfer",
            "INSERT INTO transfers SELECT 99, 0, asset, debit, debit_holder, 0, 3, amount, 0, 1, reference FROM transfers \
             WHERE reference = 'd spring'",
            |found| found.transfers_without_order,
        ),
        (
            "a second transfer",
            "INSERT INTO transfers SELECT 99, kind, asset, debit, debit_holder, credit, credit_holder, amount, id, 1, reference FROM transfers \
             WHERE reference = 'a spring'",
            |found| found.double_credits,
        ),
        ("another amount", "UPDATE transfers SET amount = 11 WHERE reference = 'a spring'", |found| {
            found.mismatched_transfers
        }),
        ("another user", "UPDATE orders SET user_id = 7 WHERE order_key = 'a spring'", |found| {
            found.mismatched_transfers
        }),
        ("a balance", "UPDATE accounts SET balance = balance + 1 WHERE kind = 0 AND holder = 1", |found| {
            found.wrong_balances
        }),
        ("an account is gone", "DELETE FROM accounts WHERE kind = 0 AND holder = 2", |found| {
            found.unbalanced_bonus_types
        }),
        ("a budget over its total", "UPDATE budget_shards SET total = 0", |found| found.budgets_over),
        ("used", "UPDATE budget_shards SET used = used + 1 WHERE shard = 0", |found| found.wrong_used),
        ("reserved", "UPDATE budget_shards SET reserved = 0", |found| found.wrong_reserved),
        ("a withdrawal is gone", "DELETE FROM withdrawals WHERE withdrawal_key = 'v 2'", |found| {
            found.moves_without_withdrawal
        }),
        ("a hold is gone", "DELETE FROM transfers WHERE reference = 'v 2'", |found| found.wrong_withdrawals),
        (
            "paid by its status alone",
            "UPDATE withdrawals SET status = 1 WHERE withdrawal_key = 'v 2'",
            |found| found.wrong_withdrawals,
        ),
        (
            "paid and given back",
            "DROP INDEX transfers_withdrawal_once; INSERT INTO transfers \
             SELECT 99, 0, asset, -1, 0, 0, 2, amount, 0, 1, reference FROM transfers \
             WHERE reference = 'w 2' AND credit = -2",
            |found| found.wrong_withdrawals,
        ),
        (
            "another amount withdrawn",
            "UPDATE withdrawals SET amount = 1 WHERE withdrawal_key = 'w 2'",
            |found| found.wrong_withdrawals,
        ),
        ("a clearing account", "UPDATE accounts SET balance = balance + 1 WHERE kind = -1", |found| {
            found.wrong_balances
        }),
        ("what is pending is gone", "DELETE FROM transfers WHERE reference = 'd spring'", |found| {
            found.wrong_pending
        }),
        (
            "a payer has settled twice",
            "UPDATE transfers SET kind = 2 WHERE reference = 'd spring'",
            |found| found.wrong_balances,
        ),
        (
            "a budget that nobody funded",
            "UPDATE budget_shards SET total = total + 1 WHERE shard = 0",
            |found| found.wrong_totals,
        ),
        ("funded twice", "UPDATE transfers SET amount = 200 WHERE debit = 1", |found| found.wrong_totals),
        ("an account below 0", "UPDATE accounts SET balance = -1 WHERE kind = 0 AND holder = 2", |found| {
            found.overdrawn
        }),
        (
            "a forged gift from a funding account, whose balance is raised",
            "INSERT INTO transfers SELECT 99, 0, asset, 1, 1, 0, 1, 5, 0, 1, 'gift' FROM transfers WHERE reference = 'a spring'; \
             UPDATE accounts SET balance = balance + 5 WHERE kind = 0 AND holder = 1 \
             AND asset = (SELECT asset FROM transfers WHERE id = 99)",
            |found| found.wrong_acts,
        ),
        (
            "a forged gift from a funding account, whose balance is raised",
            "INSERT INTO transfers SELECT 99, 0, asset, 1, 1, 0, 1, 5, 0, 1, 'gift' FROM transfers WHERE reference = 'a spring'; \
             UPDATE accounts SET balance = balance + 5 WHERE kind = 0 AND holder = 1 \
             AND asset = (SELECT asset FROM transfers WHERE id = 99)",
            |found| found.unbalanced_bonus_types,
        ),
        (
            "a forged return to a budget, which has given out less",
            "INSERT INTO transfers SELECT 99, 0, asset, 0, 1, 2, debit_holder, 5, 0, 1, 'return' FROM transfers \
             WHERE reference = 'a spring'; \
             UPDATE accounts SET balance = balance - 5 WHERE kind = 0 AND holder = 1 \
             AND asset = (SELECT asset FROM transfers WHERE id = 99); UPDATE budget_shards SET used = used - 5 WHERE shard = 0",
            |found| found.wrong_acts,
        ),
        (
            "a forged return to a budget, which has given out less",
            "INSERT INTO transfers SELECT 99, 0, asset, 0, 1, 2, debit_holder, 5, 0, 1, 'return' FROM transfers \
             WHERE reference = 'a spring'; \
             UPDATE accounts SET balance = balance - 5 WHERE kind = 0 AND holder = 1 \
             AND asset = (SELECT asset FROM transfers WHERE id = 99); UPDATE budget_shards SET used = used - 5 WHERE shard = 0",
            |found| found.wrong_used,
        ),
    ];
    for (name, sql, field) in cases {
        let (found, _) = damaged_by(sql);
        assert!(field(&found) > 0, "{name}: {found:?}");
        assert!(!found.is_clean(), "{name}");
    }
}

/// What was paid before an activity was closed needs no order once these are detached; whatever is paid behind is found.
#[test]
fn a_credit_behind_a_detached_activity_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let options = LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() };
    let mut ledger = Ledger::open(&path, &options).unwrap();
    let (activity, scene, bonus_type) = ("spring", "rain", "cash");
    let order =
        |trade_no| Order { trade_no, user_id: 1, activity, scene, bonus_type, amount: 10, time_ms: 1 };
    ledger.apply(&[order("a"), order("b")]).unwrap();
    ledger.close_activity(&Close { activity, operator: "ann", reason: "over", time_ms: 5 }).unwrap();
    let rows = ledger.reader().unwrap().orders_of_activity(activity, "").unwrap().rows;
    let budgets = [DetachedBudget { budget: rows[0].budget, orders: 2, credited: 2, amount: 20 }];
    // The auditor below reads each copy from its beginning.
    let (accept_unaudited, accept_unsealed) = (true, true);
    let detach = Detach {
        activity,
        closed_ms: 5,
        export: "e",
        budgets: &budgets,
        accept_unaudited,
        accept_unsealed,
        time_ms: 6,
    };
    assert_eq!(ledger.begin_detach(&detach).unwrap(), DetachBegun::Now);
    assert_eq!(ledger.detach_step(activity, "", 7).unwrap().orders, 2);
    drop(ledger);
    let count = |sql: &str| {
        let copies = tempfile::tempdir().unwrap();
        let copy = copies.path().join("copy.db");
        std::fs::copy(&path, &copy).unwrap();
        let raw = rusqlite::Connection::open(&copy).unwrap();
        raw.execute_batch("DROP TRIGGER transfers_no_update; DROP TRIGGER transfers_no_delete").unwrap();
        raw.execute_batch(sql).unwrap();
        drop(raw);
        let found = LedgerReader::open(&copy).unwrap().reconcile().unwrap();
        let mut auditor = Auditor::open(&copy).unwrap();
        while auditor.increment(10).unwrap().has_more {}
        let differences = auditor.differences(Some(DifferenceState::Open), 0, 100).unwrap();
        (found.transfers_without_order, found.wrong_detached, differences.len())
    };
    assert_eq!(count(""), (0, 0, 0));
    let paid_again = "INSERT INTO transfers SELECT 99, kind, asset, debit, debit_holder, credit, credit_holder, amount, id, 1, \
        reference FROM transfers WHERE reference = 'a spring'";
    assert_eq!(count(paid_again), (1, 0, 1), "with the number of an order that has gone");
    let other_amount = "UPDATE transfers SET amount = 11 WHERE reference = 'a spring'";
    assert_eq!(count(other_amount), (0, 1, 0));
    let gone = "DELETE FROM transfers WHERE reference = 'a spring'";
    assert_eq!(count(gone), (0, 1, 0));
    let raw = rusqlite::Connection::open(&path).unwrap();
    for refused in [
        "DELETE FROM closed_activities",
        "UPDATE detached_budgets SET credited = 3",
        "DELETE FROM detached_budgets",
    ] {
        assert!(raw.execute_batch(refused).is_err(), "{refused}");
    }
    let forged = "INSERT INTO orders (order_key, user_id, program, amount, status, reason, paid_by, created_ms, payer) \
        SELECT 'a spring', 1, id, 10, 1, 0, 9, 1, '' FROM programs";
    let refused = raw.execute_batch(forged).unwrap_err().to_string();
    assert!(refused.contains("the activity is closed"), "by a build that does not know it, too: {refused}");
}

#[test]
fn credits_are_counted_from_the_transfers() {
    let none = damaged_by("DELETE FROM transfers WHERE reference = 'a spring'").1;
    assert_eq!(none, [0, 1, 1, 0]);
    let copy = "INSERT INTO transfers SELECT 90 + id, kind, asset, debit, debit_holder, credit, credit_holder, amount, \
        0, 1, reference FROM transfers WHERE reference IN ('a spring', 'b spring')";
    assert_eq!(damaged_by(copy).1, [2, 2, 1, 0]);
    let other = "UPDATE transfers SET reference = 'b spring' WHERE reference = 'a spring'";
    assert_eq!(damaged_by(other).1, [0, 2, 1, 0]);
    let open = "INSERT INTO transfers SELECT 99, 0, asset, debit, debit_holder, 0, 3, amount, 0, 1, reference FROM transfers \
        WHERE reference = 'd spring'";
    assert_eq!(damaged_by(open).1, [1, 1, 1, 1]);
}
