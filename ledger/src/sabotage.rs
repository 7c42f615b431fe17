//! Switches that break promises on purpose, so that tests can prove that the independent check notices.
//! Compiled in by the feature `sabotage` alone; they act on the whole process.

use std::sync::atomic::{AtomicBool, Ordering};

static DEDUPE_OFF: AtomicBool = AtomicBool::new(false);
static BUDGET_CHECK_OFF: AtomicBool = AtomicBool::new(false);

/// Breaks I1: a repeated order moves the balance again, by a second transfer.
pub fn skip_dedupe(on: bool) {
    DEDUPE_OFF.store(on, Ordering::Relaxed);
}

/// Breaks I4: budgets are counted but not enforced. A ledger in a file that is made while this is on lacks the table's
/// CHECK, and keeps lacking it.
pub fn skip_budget_check(on: bool) {
    BUDGET_CHECK_OFF.store(on, Ordering::Relaxed);
}

pub(crate) fn dedupe_is_off() -> bool {
    DEDUPE_OFF.load(Ordering::Relaxed)
}

pub(crate) fn budget_check_is_off() -> bool {
    BUDGET_CHECK_OFF.load(Ordering::Relaxed)
}
