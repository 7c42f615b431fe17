//! With a promise switched off, reconciliation reports the damage. A check that stays green here is broken.
#![cfg(feature = "sabotage")]
#![allow(clippy::unwrap_used)]

use std::path::Path;
use windfall_ledger::{
    BudgetSet, Ledger, LedgerOptions, LedgerReader, Order, OrderOutcome, Unbudgeted, sabotage,
};

/// Makes a ledger with a budget, and writes behind its back that more than the budget was given out.
fn goes_over_budget(path: &Path) -> rusqlite::Result<usize> {
    let mut ledger =
        Ledger::open(path, &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() })
            .unwrap();
    let cash = BudgetSet { activity: "spring", scene: "rain", bonus_type: "cash", total: 15, shards: 1 };
    ledger.set_budgets(&[cash]).unwrap();
    drop(ledger);
    rusqlite::Connection::open(path).unwrap().execute("UPDATE budget_shards SET used = total + 1", [])
}

/// One test, since the switches act on the whole process.
#[test]
fn each_broken_promise_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    // Compiled in and switched off, the schema is the real one: the file itself refuses more than the budget (I4).
    assert!(goes_over_budget(&folder.path().join("sound.db")).is_err());
    sabotage::skip_budget_check(true);
    assert_eq!(goes_over_budget(&folder.path().join("broken.db")), Ok(1));
    let path = folder.path().join("ledger.db");
    let mut ledger =
        Ledger::open(&path, &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() })
            .unwrap();
    sabotage::skip_budget_check(false);
    let order = |trade_no| Order {
        trade_no,
        user_id: 1,
        activity: "spring",
        scene: "rain",
        bonus_type: "cash",
        amount: 10,
        time_ms: 1,
    };
    let cash = BudgetSet { activity: "spring", scene: "rain", bonus_type: "cash", total: 15, shards: 2 };
    ledger.set_budgets(&[cash]).unwrap();
    ledger.apply(&[order("a")]).unwrap();
    assert!(ledger.reconcile().unwrap().is_clean());

    sabotage::skip_budget_check(true);
    assert_eq!(ledger.apply(&[order("b")]).unwrap(), [OrderOutcome::Credited]);
    sabotage::skip_budget_check(false);
    let found = ledger.reconcile().unwrap();
    assert_eq!((found.budgets_over, found.double_credits), (1, 0), "{found:?}");

    sabotage::skip_dedupe(true);
    assert_eq!(ledger.apply(&[order("a")]).unwrap(), [OrderOutcome::Credited]);
    sabotage::skip_dedupe(false);
    assert_eq!(ledger.balance(1, "cash").unwrap(), 30);
    let reader = LedgerReader::open(&path).unwrap();
    assert_eq!(reader.reconcile().unwrap().double_credits, 1);
    let credits: Vec<_> = reader.orders().unwrap().map(|line| line.unwrap().credits).collect();
    assert_eq!(credits, [2, 1]);
}
