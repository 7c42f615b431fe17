//! Withdrawals that a front end pays out elsewhere (`payout = "ledger"`): a list of those that nobody has acknowledged, and
//! acknowledgements.
//!
//! A withdrawal is held until its front end says how the payout ended. A front end that dies between the payout and the
//! acknowledgement finds it in the list again, and asks its bank again under the same key; one that dies before the payout
//! finds it there, too. So nothing is forgotten, and the bank's idempotency keeps it from being paid twice (I1).

use crate::handle::RewardHandle;
use crate::job::{End, Job};
use windfall_contract::accounts::AccountsError;
use windfall_ledger::{FRONT_END, Finish, HeldFor, StoredWithdrawal, WithdrawalId};

/// How a front end ended a payout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PaidOut {
    /// The money has arrived elsewhere.
    Paid,
    /// The money will never arrive there, for this reason, and goes back to the balance.
    Refused(String),
}

/// An acknowledgement that was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AcknowledgeError {
    /// The user has no such withdrawal.
    #[error("the user has no such withdrawal")]
    Unknown,
    /// It is not the front end's to pay.
    #[error("no front end pays this withdrawal out, but {}", if .0.is_empty() { "a payer that was not noted; two operators settle it" } else { .0 })]
    OtherPayer(String),
    /// It has ended the other way. Where money arrived that was given back, the archive has an entry.
    #[error("the withdrawal has ended the other way: {}", if *.is_paid { "it was paid" } else { "its money was given back" })]
    Otherwise {
        /// Whether it was paid.
        is_paid: bool,
    },
    /// An argument is wrong, or nobody knows whether it is noted: ask again.
    #[error(transparent)]
    Accounts(#[from] AccountsError),
}

impl RewardHandle {
    /// Withdrawals that a front end has to pay out and that nobody has acknowledged, held for at least this long, sorted by
    /// their keys: those after the key `after`, 1 to 10,000 of them.
    ///
    /// # Errors
    /// [`AccountsError`]; also while payouts are stopped, for a ledger that went back in time lists what was acknowledged.
    pub async fn to_pay_out(
        &self,
        older_than_ms: u64,
        after: &str,
        limit: u32,
    ) -> Result<Vec<StoredWithdrawal>, AccountsError> {
        self.check_payouts()?;
        let found = self.held(HeldFor::FrontEnd, older_than_ms, after, limit).await;
        let found = found.map_err(|error| self.read_failed(error))?;
        // A reader that has connected anew has compared its server with the mark meanwhile.
        self.check_payouts()?;
        Ok(found)
    }

    /// Notes how a front end ended a payout: `true`, or `false` where it was noted so before. Two calls at once end it once.
    ///
    /// # Errors
    /// [`AcknowledgeError`].
    pub async fn acknowledge(
        &self,
        user_id: i64,
        id: &str,
        result: PaidOut,
    ) -> Result<bool, AcknowledgeError> {
        self.check_payouts()?;
        let id = id.to_owned();
        let own = id.clone();
        let stored = self.read(move |reader| reader.withdrawal(WithdrawalId { user_id, id: &own })).await;
        let stored = stored.map_err(|error| self.read_failed(error))?.ok_or(AcknowledgeError::Unknown)?;
        // A withdrawal's payer never changes.
        if stored.payer != FRONT_END {
            return Err(AcknowledgeError::OtherPayer(stored.payer));
        }
        let (is_paid, refused) = match result {
            PaidOut::Paid => (true, None),
            PaidOut::Refused(why) => (false, Some(why)),
        };
        match self.ask_writer(|reply| Job::End(End { user_id, id, refused, reply })).await? {
            Finish::Done => Ok(true),
            Finish::Before => Ok(false),
            Finish::Otherwise => Err(AcknowledgeError::Otherwise { is_paid: !is_paid }),
            Finish::Unknown => Err(AcknowledgeError::Unknown),
        }
    }
}
