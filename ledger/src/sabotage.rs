//! Switches that break promises on purpose, so that tests can prove that the independent check notices.
//! Compiled in by the feature `sabotage` alone; they act on the whole process.

use std::sync::atomic::{AtomicBool, Ordering};

static DEDUPE_OFF: AtomicBool = AtomicBool::new(false);
static BUDGET_CHECK_OFF: AtomicBool = AtomicBool::new(false);
static REVERSALS_FORGET_BUDGETS: AtomicBool = AtomicBool::new(false);
static REVERSES_TWICE: AtomicBool = AtomicBool::new(false);
static SEALS_SKIP_A_ROW: AtomicBool = AtomicBool::new(false);

/// Breaks I1: a repeated order moves the balance again, by a second transfer.
pub fn skip_dedupe(on: bool) {
    DEDUPE_OFF.store(on, Ordering::Relaxed);
}

/// Breaks I4: budgets are counted but not enforced. A ledger in a file that is made while this is on lacks the table's
/// CHECK, and keeps lacking it.
pub fn skip_budget_check(on: bool) {
    BUDGET_CHECK_OFF.store(on, Ordering::Relaxed);
}

/// Breaks the sums of budgets: what two operators take back from a user reaches the budget's account in the journal, and not the budget.
/// Of a ledger in a file.
pub fn forget_budgets_of_reversals(on: bool) {
    REVERSALS_FORGET_BUDGETS.store(on, Ordering::Relaxed);
}

/// Breaks that an order is reversed once: a second act of two operators takes it back again.
pub fn reverse_twice(on: bool) {
    REVERSES_TWICE.store(on, Ordering::Relaxed);
}

/// Breaks the chain: a seal leaves the last transfer of its range out.
pub fn skip_a_row_of_seals(on: bool) {
    SEALS_SKIP_A_ROW.store(on, Ordering::Relaxed);
}

pub(crate) fn reversals_forget_budgets() -> bool {
    REVERSALS_FORGET_BUDGETS.load(Ordering::Relaxed)
}

pub(crate) fn reverses_twice() -> bool {
    REVERSES_TWICE.load(Ordering::Relaxed)
}

pub(crate) fn seals_skip_a_row() -> bool {
    SEALS_SKIP_A_ROW.load(Ordering::Relaxed)
}

pub(crate) fn dedupe_is_off() -> bool {
    DEDUPE_OFF.load(Ordering::Relaxed)
}

pub(crate) fn budget_check_is_off() -> bool {
    BUDGET_CHECK_OFF.load(Ordering::Relaxed)
}
