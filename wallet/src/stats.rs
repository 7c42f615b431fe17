//! What was counted.

use crate::look::{LookError, View};
use crate::withdraw::{Receipt, WithdrawError};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use windfall_contract::accounts::WithdrawalOutcome;

/// Counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WalletStats {
    /// Wallets shown.
    pub looks: u64,
    /// Of these, with rewards on their way that may be missing.
    pub looks_incomplete: u64,
    /// Wallets that could not be shown.
    pub looks_failed: u64,
    /// Withdrawals paid.
    pub paid: u64,
    /// Withdrawals that had been paid before.
    pub already_paid: u64,
    /// Withdrawals whose payout has not answered.
    pub pending: u64,
    /// Withdrawals that the payout refused.
    pub refused: u64,
    /// Withdrawals that the balance was too small for.
    pub short: u64,
    /// Withdrawals whose id was taken.
    pub taken: u64,
    /// Withdrawals without an answer.
    pub unanswered: u64,
    /// Withdrawals with wrong arguments, or that the ledger takes none of.
    pub invalid: u64,
    /// Tokens whose credit was asked for.
    pub forced: u64,
    /// Tokens that were credited that way.
    pub forced_credited: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    looks: AtomicU64,
    looks_incomplete: AtomicU64,
    looks_failed: AtomicU64,
    paid: AtomicU64,
    already_paid: AtomicU64,
    pending: AtomicU64,
    refused: AtomicU64,
    short: AtomicU64,
    taken: AtomicU64,
    unanswered: AtomicU64,
    invalid: AtomicU64,
    forced: AtomicU64,
    forced_credited: AtomicU64,
}

impl Counters {
    pub(crate) fn read(&self) -> WalletStats {
        WalletStats {
            looks: self.looks.load(Relaxed),
            looks_incomplete: self.looks_incomplete.load(Relaxed),
            looks_failed: self.looks_failed.load(Relaxed),
            paid: self.paid.load(Relaxed),
            already_paid: self.already_paid.load(Relaxed),
            pending: self.pending.load(Relaxed),
            refused: self.refused.load(Relaxed),
            short: self.short.load(Relaxed),
            taken: self.taken.load(Relaxed),
            unanswered: self.unanswered.load(Relaxed),
            invalid: self.invalid.load(Relaxed),
            forced: self.forced.load(Relaxed),
            forced_credited: self.forced_credited.load(Relaxed),
        }
    }

    pub(crate) fn looked(&self, view: &Result<View, LookError>) {
        match view {
            Ok(view) => {
                self.looks.fetch_add(1, Relaxed);
                self.looks_incomplete.fetch_add(u64::from(!view.tokens_complete), Relaxed);
            }
            Err(_) => drop(self.looks_failed.fetch_add(1, Relaxed)),
        }
    }

    pub(crate) fn withdrew(&self, receipt: &Result<Receipt, WithdrawError>) {
        let counter = match receipt {
            Ok(Receipt { outcome: WithdrawalOutcome::Paid, .. }) => &self.paid,
            Ok(Receipt { outcome: WithdrawalOutcome::AlreadyPaid, .. }) => &self.already_paid,
            Ok(Receipt { outcome: WithdrawalOutcome::Pending { .. }, .. }) => &self.pending,
            Ok(Receipt { outcome: WithdrawalOutcome::Refused(_), .. }) => &self.refused,
            Ok(Receipt { outcome: WithdrawalOutcome::Short { .. }, .. }) => &self.short,
            Ok(Receipt { outcome: WithdrawalOutcome::Conflict, .. }) => &self.taken,
            Err(WithdrawError::Unanswered { .. }) => &self.unanswered,
            Err(WithdrawError::Invalid { .. } | WithdrawError::Tokens(_) | WithdrawError::Refused(_)) => {
                &self.invalid
            }
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn forced(&self, asked: usize, credited: u32) {
        self.forced.fetch_add(u64::try_from(asked).unwrap_or(u64::MAX), Relaxed);
        self.forced_credited.fetch_add(credited.into(), Relaxed);
    }
}
