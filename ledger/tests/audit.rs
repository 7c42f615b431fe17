//! The auditor finds each kind of damage, done by hand through a raw connection, and nothing in a sound ledger.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use windfall_contract::accounts::{Reason, Withdrawal};
use windfall_ledger::{
    ActOutcome, Attempt, AuditLimits, AuditProgress, Auditor, BudgetSet, Compared, Deed, DifferenceState,
    Ended, FileAnchor, Increment, Ledger, LedgerOptions, Operator, Order, OrderId, Proposal, Proposed,
    Sealer, StoredAct, Unbudgeted, WithdrawalId,
};

const LIMITS: AuditLimits =
    AuditLimits { increment_rows: 3, tail_rows_max: 1_000, account_rows: 1, order_rows: 2 };

fn ledger(path: &Path) -> Ledger {
    let options = LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() };
    Ledger::open(path, &options).unwrap()
}

fn order<'a>(trade_no: &'a str, user_id: i64, bonus_type: &'a str) -> Order<'a> {
    Order { trade_no, user_id, activity: "spring", scene: "rain", bonus_type, amount: 10, time_ms: 1 }
}

const fn id(trade_no: &str) -> OrderId<'_> {
    OrderId { activity: "spring", trade_no }
}

/// A bit of everything: budgets, a combined one and a cap; credits, orders that wait, are posted and released; withdrawals.
fn fill(ledger: &mut Ledger) {
    let budget =
        |activity, scene, bonus_type, shards| BudgetSet { activity, scene, bonus_type, total: 200, shards };
    ledger
        .set_budgets(&[
            budget("spring", "rain", "cash", 2),
            budget("spring", "*", "cash", 1),
            budget("*", "*", "coin", 1),
        ])
        .unwrap();
    ledger.apply(&[order("a", 1, "cash"), order("b", 2, "cash"), order("c", 1, "coin")]).unwrap();
    let mut tx = ledger.begin().unwrap();
    tx.reserve(
        &[order("d", 3, "cash"), order("e", 3, "cash"), order("f", 3, "cash")],
        &["bank"; 3],
        Attempt::Normal,
    )
    .unwrap();
    tx.commit().unwrap();
    let mut tx = ledger.begin().unwrap();
    tx.post(&[id("e")], 2).unwrap();
    tx.release(&[(id("f"), Reason::Released)], 2).unwrap();
    tx.commit().unwrap();
    let out = |id: &str, amount| Withdrawal { id: id.into(), user_id: 2, bonus_type: "cash".into(), amount };
    let mut tx = ledger.begin().unwrap();
    tx.hold(&[(&out("u", 1), ""), (&out("v", 2), ""), (&out("w", 3), "")], 1).unwrap();
    tx.pay_out(&[WithdrawalId { user_id: 2, id: "w" }], 1).unwrap();
    tx.give_back(&[(WithdrawalId { user_id: 2, id: "u" }, "no account")], 1).unwrap();
    tx.commit().unwrap();
}

/// Reads what is closed, compares, and sweeps all.
fn audit(auditor: &mut Auditor) -> AuditProgress {
    while auditor.increment(7).unwrap() != Increment::default() {}
    assert!(matches!(auditor.compare(7).unwrap(), Compared::Done { .. }));
    while !matches!(auditor.sweep(7).unwrap(), Compared::Done { is_last: true, .. }) {}
    auditor.progress().unwrap()
}

#[test]
fn a_sound_ledger_has_no_difference_however_it_is_cut_into_ranges() {
    for increment_rows in [1, 2, 5, 100] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let mut ledger = ledger(&path);
        fill(&mut ledger);
        let mut auditor = Auditor::open(&path).unwrap().with_limits(AuditLimits { increment_rows, ..LIMITS });
        // Nothing is in the sums yet: all is tail.
        assert!(matches!(auditor.compare(5).unwrap(), Compared::Done { differences: 0, .. }));
        let first = auditor.increment(6).unwrap();
        assert!(first.transfers > 0 && first.differences == 0);
        assert!(matches!(auditor.compare(6).unwrap(), Compared::Done { differences: 0, .. }));
        let progress = audit(&mut auditor);
        assert!(progress.is_clean(), "{progress:?}");
        assert_eq!((progress.tail, progress.sweeps, progress.oldest_unread_ms), (0, 1, None));
        ledger.apply(&[order("x", 9, "cash")]).unwrap();
        assert_eq!(auditor.progress().unwrap().tail, 1);
        drop(auditor);
        // Another auditor goes on where that one was.
        let mut auditor = Auditor::open(&path).unwrap();
        assert_eq!(auditor.increment(8).unwrap(), Increment { transfers: 1, ..Increment::default() });
        assert!(audit(&mut auditor).is_clean());
        assert!(ledger.reconcile().unwrap().is_clean());
    }
}

/// What no seal has come to is counted, with the time of the first of it; also where nothing was ever sealed.
#[test]
fn what_is_in_no_seal_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let mut ledger = ledger(&path);
    let mut auditor = Auditor::open(&path).unwrap();
    let mut unsealed = || {
        let progress = auditor.progress().unwrap();
        (progress.unsealed, progress.oldest_unsealed_ms)
    };
    assert_eq!(unsealed(), (0, None));
    ledger.apply(&[order("a", 1, "cash"), order("b", 2, "cash")]).unwrap();
    assert_eq!(unsealed(), (2, Some(1)));
    let mut anchor = FileAnchor::new(folder.path().join("anchor"));
    let mut sealer = Sealer::open(&path).unwrap();
    assert!(sealer.seal(&mut anchor, 5).unwrap().is_some());
    assert_eq!(unsealed(), (0, None));
    ledger.apply(&[Order { time_ms: 7, ..order("c", 1, "cash") }]).unwrap();
    assert_eq!(unsealed(), (1, Some(7)));
}

/// A difference and the damage that makes it. The ledger was audited before.
const DAMAGE: [(&str, &str); 20] = [
    ("wrong_balance", "UPDATE accounts SET balance = balance + 1 WHERE kind = 0 AND holder = 1"),
    ("wrong_balance", "DELETE FROM accounts WHERE kind = 0 AND holder = 2"),
    ("wrong_balance", "INSERT INTO accounts VALUES (0, 3, 77, 5, 0)"),
    ("wrong_balance", "UPDATE accounts SET balance = balance + 1 WHERE kind = -1"),
    ("wrong_balance", "UPDATE accounts SET balance = balance - 1 WHERE kind = -3"),
    ("overdrawn", "UPDATE accounts SET balance = -1 WHERE kind = 0 AND holder = 2"),
    (
        "order_without_transfer",
        "INSERT INTO orders SELECT 'z', 1, program, 10, 1, 0, 999, 1, 0, '' FROM orders WHERE order_key = 'a spring'",
    ),
    ("order_without_transfer", "DELETE FROM transfers WHERE reference = 'a spring'"),
    (
        "transfer_without_order",
        "INSERT INTO transfers SELECT 99, 0, asset, debit, debit_holder, 0, 3, 10, 0, 1, 'nobody' FROM transfers WHERE reference = 'a spring'",
    ),
    (
        "transfer_without_order",
        "INSERT INTO transfers SELECT 99, 0, asset, debit, debit_holder, 0, 3, amount, 0, 1, reference FROM transfers \
         WHERE reference = 'd spring'",
    ),
    (
        "double_credit",
        "INSERT INTO transfers SELECT 99, kind, asset, debit, debit_holder, credit, credit_holder, amount, id, 1, reference \
         FROM transfers WHERE reference = 'a spring'",
    ),
    (
        "transfer_without_act",
        "INSERT INTO transfers SELECT 99, 0, asset, 1, 1, 0, 1, 5, 0, 1, 'gift' FROM transfers WHERE reference = 'a spring'; \
         UPDATE accounts SET balance = balance + 5 WHERE kind = 0 AND holder = 1 \
         AND asset = (SELECT asset FROM transfers WHERE id = 99)",
    ),
    ("budget_over", "UPDATE budget_shards SET total = 0"),
    ("wrong_total", "UPDATE budget_shards SET total = total + 1 WHERE shard = 0"),
    ("wrong_used", "UPDATE budget_shards SET used = used + 1 WHERE shard = 0"),
    ("wrong_reserved", "UPDATE budget_shards SET reserved = 0"),
    ("wrong_pending", "UPDATE orders SET status = 2 WHERE order_key = 'd spring'"),
    ("wrong_pending", "UPDATE orders SET status = 0 WHERE order_key = 'f spring'"),
    ("wrong_withdrawal", "UPDATE withdrawals SET status = 1 WHERE withdrawal_key = 'v 2'"),
    ("wrong_withdrawal", "DELETE FROM transfers WHERE reference = 'v 2'"),
];

/// Damage to what was not read yet.
const FRESH_DAMAGE: [(&str, &str); 3] = [
    ("transfer_mismatch", "UPDATE orders SET user_id = 7 WHERE order_key = 'a spring'"),
    ("transfer_mismatch", "UPDATE transfers SET amount = 11 WHERE reference = 'a spring'"),
    ("movement_without_withdrawal", "DELETE FROM withdrawals WHERE withdrawal_key = 'v 2'"),
];

fn damage(path: &Path, sql: &str) {
    let raw = rusqlite::Connection::open(path).unwrap();
    raw.execute_batch("PRAGMA ignore_check_constraints = ON").unwrap();
    raw.execute_batch(
        "DROP TRIGGER transfers_no_update; DROP TRIGGER transfers_no_delete; DROP TRIGGER transfers_no_replace",
    )
    .unwrap();
    raw.execute_batch(sql).unwrap();
}

#[test]
fn each_kind_of_damage_is_found_behind_the_position_and_before_it() {
    let cases = DAMAGE
        .iter()
        .map(|case| (case, true))
        .chain(DAMAGE.iter().chain(&FRESH_DAMAGE).map(|case| (case, false)));
    for ((kind, sql), is_read) in cases {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        fill(&mut ledger(&path));
        let mut auditor = Auditor::open(&path).unwrap().with_limits(LIMITS);
        if is_read {
            assert!(audit(&mut auditor).is_clean());
        }
        damage(&path, sql);
        let progress = audit(&mut auditor);
        assert!(progress.open.contains_key(*kind), "{sql}, read {is_read}: {:?}", progress.open);
        let first = auditor.differences(None, 0, 1_000).unwrap();
        // The same difference is the same row, however often it is seen.
        audit(&mut auditor);
        assert_eq!(auditor.differences(None, 0, 1_000).unwrap().len(), first.len(), "{sql}");
    }
}

/// Performs an act of two operators.
fn act(ledger: &mut Ledger, deed: Deed) -> i64 {
    let by = |name: &str| Operator { name: name.into(), actor: String::new() };
    let proposal = Proposal {
        deed,
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
    act.id
}

#[test]
fn what_acts_move_has_its_act_and_what_says_so_without_one_is_found() {
    let forgeries = [
        "INSERT INTO transfers SELECT 99, 0, asset, debit, debit_holder, credit, credit_holder, amount, 0, 1, reference \
         FROM transfers WHERE reference = ' act 1'",
        "INSERT INTO transfers SELECT 99, 0, asset, debit, debit_holder, credit, credit_holder, amount, 0, 1, ' act 77' \
         FROM transfers WHERE reference = ' act 1'",
        "INSERT INTO transfers SELECT 99, 4, asset, debit, debit_holder, credit, credit_holder, amount, 0, 1, 'b spring' \
         FROM transfers WHERE kind = 4 LIMIT 1",
        "INSERT INTO transfers SELECT 99, 0, asset, debit, debit_holder, credit, credit_holder, amount, 0, 1, 'b spring' \
         FROM transfers WHERE kind = 4 LIMIT 1",
    ];
    for (increment_rows, forgery) in [1, 2, 100].iter().flat_map(|rows| forgeries.map(|sql| (*rows, sql))) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let mut ledger = ledger(&path);
        fill(&mut ledger);
        let text = |text: &str| text.to_owned();
        let adjust = |scene: &str, to_user| Deed::Adjust {
            user_id: 1,
            activity: text("spring"),
            scene: text(scene),
            bonus_type: text("cash"),
            amount: 4,
            to_user,
        };
        assert_eq!(act(&mut ledger, adjust("", true)), 1);
        act(&mut ledger, adjust("", false));
        act(&mut ledger, adjust("rain", true));
        act(&mut ledger, adjust("rain", false));
        for trade_no in ["a", "e"] {
            let (activity, trade_no) = (text("spring"), text(trade_no));
            act(&mut ledger, Deed::Reverse { activity, trade_no, take_what_is_there: false, keep: 0 });
        }
        let mut auditor = Auditor::open(&path).unwrap().with_limits(AuditLimits { increment_rows, ..LIMITS });
        let progress = audit(&mut auditor);
        assert!(progress.is_clean(), "{progress:?}: {:?}", auditor.differences(None, 0, 9));
        assert!(ledger.reconcile().unwrap().is_clean());
        damage(&path, forgery);
        let progress = audit(&mut auditor);
        assert_eq!(progress.open.get("transfer_without_act"), Some(&1), "{forgery}: {:?}", progress.open);
        assert!(ledger.reconcile().unwrap().wrong_acts > 0, "{forgery}");
    }
}

#[test]
fn a_difference_is_acknowledged_and_resolved_by_people_and_never_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    fill(&mut ledger(&path));
    let mut auditor = Auditor::open(&path).unwrap().with_limits(LIMITS);
    damage(&path, "UPDATE accounts SET balance = balance + 1 WHERE kind = 0 AND holder = 1 AND balance = 10");
    assert_eq!(audit(&mut auditor).open["wrong_balance"], 2);
    let found = auditor.differences(Some(DifferenceState::Open), 0, 10).unwrap();
    assert_eq!(found[0].subject, "account of user 1, cash");
    assert_eq!(found[0].detail, "the ledger keeps 11; its transfers say 10");
    let id = found[0].id;
    assert!(auditor.acknowledge(id, " ", "why", 9).is_err() && auditor.resolve(id, "ann", "", 9).is_err());
    assert!(auditor.acknowledge(id, "ann", "looking", 9).unwrap());
    let progress = audit(&mut auditor);
    assert_eq!((progress.open["wrong_balance"], progress.acknowledged["wrong_balance"]), (1, 1));
    assert!(auditor.resolve(id, "bob", "typed by hand, put back", 10).unwrap());
    assert!(!auditor.resolve(id, "bob", "again", 11).unwrap(), "once");
    let resolved = auditor.differences(Some(DifferenceState::Resolved), 0, 10).unwrap();
    assert_eq!(resolved[0].acknowledged, Some(("ann".into(), 9, "looking".into())));
    assert_eq!(resolved[0].resolved, Some(("bob".into(), 10, "typed by hand, put back".into())));
    // It was not put back: it is found again, and is a new one.
    let progress = audit(&mut auditor);
    assert_eq!((progress.open["wrong_balance"], progress.resolved), (2, 1));
    let raw = rusqlite::Connection::open(&path).unwrap();
    assert!(raw.execute("DELETE FROM audit_differences", []).is_err());
}
