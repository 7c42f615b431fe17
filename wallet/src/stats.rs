//! The counters of a wallet.

use crate::look::{LookError, View};
use crate::withdraw::{Receipt, WithdrawError};
use std::sync::atomic::Ordering::Relaxed;
use windfall_contract::accounts::WithdrawalOutcome;
use windfall_contract::declare_metrics;

declare_metrics! {
    /// Counters since the start.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct WalletStats counted by Counters {
        counter "windfall_wallet_looks_total" ["outcome"]
        "Calls that ask for a wallet, by outcome; `incomplete`: rewards on their way may be missing in the answer" {
            /// Wallets shown with all that belongs to them.
            pub looks_complete: u64 as "complete",
            /// Wallets shown, with rewards on their way that may be missing.
            pub looks_incomplete: u64 as "incomplete",
            /// Wallets that could not be shown.
            pub looks_failed: u64 as "failed",
        }
        counter "windfall_withdrawals_total" ["answer"] "Withdrawals, by answer" {
            /// Withdrawals paid.
            pub paid: u64 as "paid",
            /// Withdrawals that had been paid before.
            pub already_paid: u64 as "already_paid",
            /// Withdrawals that a front end is to pay out and to acknowledge.
            pub to_pay_out: u64 as "to_pay_out",
            /// Withdrawals that a front end has acknowledged as paid out.
            pub paid_out: u64 as "paid_out",
            /// Withdrawals whose payout has not answered.
            pub pending: u64 as "pending",
            /// Withdrawals that the payout refused.
            pub refused: u64 as "refused",
            /// Withdrawals that the balance was too small for.
            pub short: u64 as "short",
            /// Withdrawals whose id was taken.
            pub taken: u64 as "taken",
            /// Withdrawals of users whom two operators have frozen.
            pub frozen: u64 as "frozen",
            /// Withdrawals without an answer.
            pub unanswered: u64 as "unanswered",
            /// Withdrawals with wrong arguments, or that the ledger takes none of.
            pub invalid: u64 as "invalid",
        }
        counter "windfall_forced_tokens_total" ["state"]
        "Tokens whose credit a withdrawal asked for before their event arrived, and those that were credited by that" {
            /// Tokens whose credit was asked for.
            pub forced: u64 as "asked",
            /// Tokens that were credited that way.
            pub forced_credited: u64 as "credited",
        }
    }
}

impl Counters {
    pub(crate) fn looked(&self, view: &Result<View, LookError>) {
        match view {
            Ok(view) => {
                let counter =
                    if view.tokens_complete { &self.looks_complete } else { &self.looks_incomplete };
                counter.fetch_add(1, Relaxed);
            }
            Err(_) => drop(self.looks_failed.fetch_add(1, Relaxed)),
        }
    }

    pub(crate) fn withdrew(&self, receipt: &Result<Receipt, WithdrawError>) {
        let counter = match receipt {
            Ok(Receipt { outcome: WithdrawalOutcome::Paid, .. }) => &self.paid,
            Ok(Receipt { outcome: WithdrawalOutcome::AlreadyPaid, .. }) => &self.already_paid,
            Ok(Receipt { outcome: WithdrawalOutcome::ToPayOut, .. }) => &self.to_pay_out,
            Ok(Receipt { outcome: WithdrawalOutcome::PaidOut, .. }) => &self.paid_out,
            Ok(Receipt { outcome: WithdrawalOutcome::Pending { .. }, .. }) => &self.pending,
            Ok(Receipt { outcome: WithdrawalOutcome::Refused(_), .. }) => &self.refused,
            Ok(Receipt { outcome: WithdrawalOutcome::Short { .. }, .. }) => &self.short,
            Ok(Receipt { outcome: WithdrawalOutcome::Conflict, .. }) => &self.taken,
            Ok(Receipt { outcome: WithdrawalOutcome::Frozen, .. }) => &self.frozen,
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
