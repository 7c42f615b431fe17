//! A ledger in a file of each older version is brought to the newest, completely or not at all.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod old;

use old::{Dialect, GIVEN_BACK, HELD_OF_SETTLED, check, goes_on, is_not_held_again, ledger_of};
use rusqlite::Connection;
use std::path::Path;
use windfall_ledger::{Ledger, LedgerOptions, LedgerReader, Unbudgeted};

/// "Wfal".
const APPLICATION_ID: i64 = 0x5766_616c;

fn make(path: &Path, version: i64) {
    let tables = ledger_of(version, Dialect::Sqlite);
    let marks = format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version};");
    Connection::open(path).unwrap().execute_batch(&format!("{tables} {marks}")).unwrap();
}

fn open(path: &Path) -> Result<Ledger, windfall_ledger::OpenError> {
    Ledger::open(path, &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() })
}

#[test]
fn each_version_is_brought_up() {
    for version in 1..=5 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        make(&path, version);
        let refused = LedgerReader::open(&path).map(drop).unwrap_err().to_string();
        assert!(refused.contains(&format!("version {version}")), "{refused}");
        for _ in 0..2 {
            let mut ledger = open(&path).unwrap();
            check(version, true, &mut ledger, || LedgerReader::open(&path).unwrap());
        }
        goes_on(&mut open(&path).unwrap(), || LedgerReader::open(&path).unwrap());
    }
}

/// An adjustment credits a user without an order, and the user may withdraw what it credited.
#[test]
fn withdrawals_of_a_ledger_without_orders_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    make(&path, 5);
    Connection::open(&path).unwrap().execute_batch("DELETE FROM orders").unwrap();
    for _ in 0..2 {
        is_not_held_again(&mut open(&path).unwrap());
    }
}

#[test]
fn a_migration_that_dies_changes_nothing_and_can_be_started_again() {
    for version in 1..=3 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        make(&path, version);
        let raw = Connection::open(&path).unwrap();
        // It fails at its last steps, when everything is copied.
        raw.execute_batch("CREATE TABLE decoy (x); CREATE TRIGGER transfers_no_delete BEFORE DELETE ON decoy BEGIN SELECT 1; END")
            .unwrap();
        assert!(open(&path).is_err());
        let found: i64 = raw.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
        let old: i64 = raw.query_row("SELECT count(user_id) FROM transfers", [], |row| row.get(0)).unwrap();
        assert_eq!((found, old), (version, if version == 3 { 7 } else { 2 }));
        raw.execute_batch("DROP TABLE decoy").unwrap();
        drop(raw);
        check(version, true, &mut open(&path).unwrap(), || LedgerReader::open(&path).unwrap());
    }
}

/// What is given back must not be withdrawn again: its payer has paid it.
#[test]
fn a_held_withdrawal_of_settled_money_has_to_end_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    make(&path, 3);
    let raw = Connection::open(&path).unwrap();
    raw.execute_batch(HELD_OF_SETTLED).unwrap();
    let refused = open(&path).map(drop).unwrap_err().to_string();
    assert!(refused.contains("withdrawals are held"), "{refused}");
    raw.execute_batch(GIVEN_BACK).unwrap();
    drop(raw);
    let mut ledger = open(&path).unwrap();
    assert_eq!(ledger.balance(6, "cash").unwrap(), 0);
    let found = LedgerReader::open(&path).unwrap().reconcile().unwrap();
    assert!(found.is_clean(), "{found:?}");
    goes_on(&mut ledger, || LedgerReader::open(&path).unwrap());
}

#[test]
fn the_journal_refuses_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    make(&path, 3);
    drop(open(&path).unwrap());
    let raw = Connection::open(&path).unwrap();
    let row = "kind, asset, debit, debit_holder, credit, credit_holder, amount, 0, time_ms, reference FROM transfers";
    let (same, held) = (
        format!("INSERT OR REPLACE INTO transfers SELECT id, {row} WHERE id = 1"),
        format!("INSERT OR REPLACE INTO transfers SELECT 99, {row} WHERE reference = 'held' AND credit = -1"),
    );
    let changes: [&str; 4] =
        ["UPDATE transfers SET amount = amount", "DELETE FROM transfers WHERE id = 1", &same, &held];
    for change in changes {
        let refused = raw.execute_batch(change).unwrap_err().to_string();
        assert!(refused.contains("only ever appended"), "{refused}");
    }
}
