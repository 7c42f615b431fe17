//! Money that leaves a user's account: held, then paid or given back.

use crate::error::LedgerError;
use crate::key::{WithdrawalId, is_number};
use crate::model::Finish;
use windfall_contract::accounts::{Withdrawal, WithdrawalOutcome};

/// The payer of withdrawals that a front end pays out elsewhere and then acknowledges. The reward service refuses a connector of
/// this name.
pub const FRONT_END: &str = "front end";

/// A withdrawal to hold, and its payer: a downstream's name, or [`FRONT_END`].
/// The payer of the first call stays.
pub(crate) type Held<'a> = (&'a Withdrawal, &'a str);

/// Checks a withdrawal. It is parsed at the edge, so this fails only where the calling code is wrong; the database must
/// not be the first to notice.
pub(crate) fn check((withdrawal, payer): Held<'_>) -> Result<(), LedgerError> {
    let Withdrawal { id, bonus_type, amount, .. } = withdrawal;
    if *amount < 1
        || !is_number(id)
        || bonus_type.is_empty()
        || [bonus_type, payer].iter().any(|one| one.contains('\0'))
    {
        return Err(LedgerError::Invalid(format!(
            "withdrawal {id:?} of {amount} {bonus_type:?}: id and bonus type must not be empty, nothing may contain \
             NUL, nor the id a space, the amount must be at least 1"
        )));
    }
    Ok(())
}

/// The name of a withdrawal.
pub(crate) fn id_of(withdrawal: &Withdrawal) -> WithdrawalId<'_> {
    WithdrawalId { user_id: withdrawal.user_id, id: &withdrawal.id }
}

/// The key that the payer of a withdrawal is given which is held now. The word keeps it apart
/// from the keys of orders, and the spaces from those of withdrawals that were held before version 6.
pub(crate) fn payer_key(id: WithdrawalId<'_>, tenant: &str) -> String {
    format!("withdrawal {tenant} {} {}", id.user_id, id.id)
}

/// The key that the payer of a withdrawal was given which was held before version 6.
pub(crate) fn bare_payer_key(id: &str) -> String {
    format!("withdrawal {id}")
}

/// The outcome of holding a withdrawal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldOutcome {
    /// The money has left the user's balance now, and waits in the clearing account: pay it out.
    Held,
    /// The money has been held since an earlier call, which has not ended it. Only the payer of that call knows whether
    /// it was paid out.
    HeldBefore {
        /// The payer's name, or [`FRONT_END`].
        payer: String,
    },
    /// Decided: paid before, refused before, too little money, or a conflict.
    Decided(WithdrawalOutcome),
}

/// Which held withdrawals are listed, by who pays them out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeldFor {
    /// All of them.
    Anybody,
    /// Those that a downstream pays: its answer is awaited. Those of an unknown payer are among them.
    Downstream,
    /// Those that a front end pays out: its acknowledgement is awaited.
    FrontEnd,
}

impl HeldFor {
    /// The condition, written as it stands in an index of its own.
    pub(crate) const fn sql(self) -> &'static str {
        match self {
            Self::Anybody => "",
            Self::Downstream => "AND payer <> 'front end' ",
            Self::FrontEnd => "AND payer = 'front end' ",
        }
    }
}

/// Where a withdrawal stands. Stored as a number: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WithdrawalStatus {
    /// The money is in the clearing account; the payer decides.
    Held,
    /// Paid out.
    Paid,
    /// Refused, and the money was given back.
    Refused,
}

impl WithdrawalStatus {
    pub(crate) const fn code(self) -> i64 {
        match self {
            Self::Held => 0,
            Self::Paid => 1,
            Self::Refused => 2,
        }
    }

    pub(crate) const fn of_code(code: i64) -> Option<Self> {
        match code {
            0 => Some(Self::Held),
            1 => Some(Self::Paid),
            2 => Some(Self::Refused),
            _ => None,
        }
    }
}

/// A withdrawal as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredWithdrawal {
    /// The key by which it is listed, and by which the journal refers to it.
    pub key: String,
    /// The key that its payer is given, for ever.
    pub payer_key: String,
    /// What was asked for.
    pub withdrawal: Withdrawal,
    /// Where it stands.
    pub status: WithdrawalStatus,
    /// The payer: a downstream's name, or [`FRONT_END`]. Empty: the ledger itself, which paid at once before there were
    /// acknowledgements; or one that schema version 1 did not note.
    pub payer: String,
    /// Why it was refused; empty otherwise.
    pub reason: String,
    /// When it was held; Unix milliseconds.
    pub created_ms: i64,
    /// When it was paid or refused; `None` while held.
    pub decided_ms: Option<i64>,
}

impl StoredWithdrawal {
    /// The answer to a request with this id, which pays once and for the same request only.
    pub(crate) fn answer(&self, asked: &Withdrawal) -> HoldOutcome {
        if self.withdrawal != *asked {
            return HoldOutcome::Decided(WithdrawalOutcome::Conflict);
        }
        match self.status {
            WithdrawalStatus::Held => HoldOutcome::HeldBefore { payer: self.payer.clone() },
            WithdrawalStatus::Paid if self.payer == FRONT_END => {
                HoldOutcome::Decided(WithdrawalOutcome::PaidOut)
            }
            WithdrawalStatus::Paid => HoldOutcome::Decided(WithdrawalOutcome::AlreadyPaid),
            WithdrawalStatus::Refused => {
                HoldOutcome::Decided(WithdrawalOutcome::Refused(self.reason.clone()))
            }
        }
    }
}

/// How a held withdrawal ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End<'a> {
    Paid,
    Refused(&'a str),
}

impl<'a> End<'a> {
    pub const fn status(self) -> WithdrawalStatus {
        match self {
            Self::Paid => WithdrawalStatus::Paid,
            Self::Refused(_) => WithdrawalStatus::Refused,
        }
    }

    pub const fn reason(self) -> &'a str {
        match self {
            Self::Paid => "",
            Self::Refused(reason) => reason,
        }
    }

    /// The outcome of ending a withdrawal of this status in this way.
    pub fn finish(self, status: WithdrawalStatus) -> Finish {
        if status == WithdrawalStatus::Held {
            Finish::Done
        } else if status == self.status() {
            Finish::Before
        } else {
            Finish::Otherwise
        }
    }
}
