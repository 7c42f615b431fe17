//! Money that leaves a user's account: held, then paid or given back.

use crate::error::LedgerError;

/// A withdrawal to hold. The caller has checked it: `id` and `asset` not empty, `amount` at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Withdrawal<'a> {
    /// The idempotency key: the same withdrawal may be asked for again and again.
    pub id: &'a str,
    /// Whose balance.
    pub user_id: i64,
    /// The asset that goes out, a bonus type.
    pub asset: &'a str,
    /// In the asset's smallest unit, at least 1.
    pub amount: i64,
    /// Who is to be asked to pay it: a downstream's name; empty: the ledger itself. Kept from the first call.
    pub payer: &'a str,
    /// Now; Unix milliseconds.
    pub time_ms: i64,
}

impl Withdrawal<'_> {
    /// Parsed at the edge, so this fails only where the code in front is wrong; the database must not find out.
    pub(crate) fn check(&self) -> Result<(), LedgerError> {
        let Self { id, asset, amount, payer, .. } = *self;
        if amount < 1
            || id.is_empty()
            || asset.is_empty()
            || [id, asset, payer].iter().any(|one| one.contains('\0'))
        {
            return Err(LedgerError::Invalid(format!(
                "withdrawal {id:?} of {amount} {asset:?}: id and asset must not be empty, nothing may contain NUL, \
                 the amount must be at least 1"
            )));
        }
        Ok(())
    }
}

/// What became of holding a withdrawal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldOutcome {
    /// The money has left the user's balance now, and waits in the clearing account: pay it out.
    Held,
    /// The same since an earlier call, which has not ended it: whether it was paid out, its payer knows, and none
    /// but the one that was to be asked then.
    HeldBefore {
        /// That one; empty: the ledger itself.
        payer: String,
    },
    /// Paid out by an earlier call. Nothing moved.
    Paid,
    /// Given back by an earlier call, for this reason; final for this id. Nothing moved.
    Refused(String),
    /// The balance is too small. Nothing is kept; the id may be used again.
    Short {
        /// What there is.
        balance: i64,
    },
    /// The id exists with another user, asset or amount. Nothing moved.
    Conflict,
}

/// Where a withdrawal stands. Stored as a number: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WithdrawalStatus {
    /// In the clearing account; its payer decides.
    Held,
    /// Paid out.
    Paid,
    /// Given back.
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
    /// Its id.
    pub id: String,
    /// Whose.
    pub user_id: i64,
    /// The asset.
    pub asset: String,
    /// In the smallest unit.
    pub amount: i64,
    /// Where it stands.
    pub status: WithdrawalStatus,
    /// Who is asked to pay it: a downstream's name; empty: the ledger itself.
    pub payer: String,
    /// Why it was refused; else empty.
    pub reason: String,
    /// When it was held; Unix milliseconds.
    pub created_ms: i64,
    /// When it was paid or refused; `None` while held.
    pub decided_ms: Option<i64>,
}

impl StoredWithdrawal {
    /// The answer to a withdrawal under this id: once, and never another one.
    pub(crate) fn answer(&self, asked: &Withdrawal<'_>) -> HoldOutcome {
        if (self.user_id, self.asset.as_str(), self.amount) != (asked.user_id, asked.asset, asked.amount) {
            return HoldOutcome::Conflict;
        }
        match self.status {
            WithdrawalStatus::Held => HoldOutcome::HeldBefore { payer: self.payer.clone() },
            WithdrawalStatus::Paid => HoldOutcome::Paid,
            WithdrawalStatus::Refused => HoldOutcome::Refused(self.reason.clone()),
        }
    }
}

/// `withdrawal_moves.kind`: from the user's account to clearing.
pub(crate) const HOLD: i64 = 0;
/// From clearing to payout.
pub(crate) const PAY: i64 = 1;
/// From clearing back to the user's account.
pub(crate) const RETURN: i64 = 2;

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

    pub const fn kind(self) -> i64 {
        match self {
            Self::Paid => PAY,
            Self::Refused(_) => RETURN,
        }
    }

    /// What ending it this way says about one that stands there.
    pub fn finish(self, status: WithdrawalStatus) -> crate::Finish {
        if status == WithdrawalStatus::Held {
            crate::Finish::Done
        } else if status == self.status() {
            crate::Finish::Before
        } else {
            crate::Finish::Otherwise
        }
    }
}
