//! Payers' statements against a ledger in a file.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod payers;

use payers::{LIMITS, Place};
use windfall_ledger::{Auditor, Ledger, LedgerOptions, Unbudgeted};

fn with_place(test: impl FnOnce(Place<'_>)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let options = LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() };
    let ledger = Ledger::open(&path, &options).unwrap();
    let auditor = || Auditor::open(&path).unwrap().with_limits(LIMITS);
    let raw = |sql: &str| rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    test(Place { ledger, auditor: &auditor, raw: &raw });
}

macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            with_place(payers::$name);
        })*
    };
}

tests!(
    a_payer_that_agrees_has_no_difference,
    each_kind_of_difference_is_found,
    statements_that_meet_leave_no_gap,
    a_refused_order_that_is_paid_later_is_the_next_statements,
    what_nobody_can_claim_is_counted,
    what_operators_did_is_known,
    a_statement_is_compared_only_as_a_whole,
    a_wrong_file_does_not_fill_the_table,
    tables_are_made_beside_those_of_the_release_before,
    days_of_a_payer_with_another_clock_agree,
    writers_do_not_hold_a_comparison_up,
);
