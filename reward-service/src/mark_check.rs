//! Whether a transaction may give anything up: not while the ledger does not hold its mark.

use crate::payouts::STOPPED;
use windfall_ledger::{Guard, LedgerError, Tx};

/// An error where the ledger does not hold its mark, or nobody knows whether it does.
pub(crate) fn check_mark(tx: &Tx<'_>, guard: Option<&Guard>) -> Result<(), LedgerError> {
    if tx.went_back() || guard.is_some_and(Guard::stops_payouts) {
        return Err(LedgerError::Unavailable(STOPPED.into()));
    }
    Ok(())
}
