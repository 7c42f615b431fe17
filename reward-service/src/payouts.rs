//! What is stopped while the ledger does not hold its mark: everything by which money leaves the house, and as a rule
//! grants, too.
//!
//! A ledger that went back in time lacks withdrawals that were paid and orders that were settled: it would pay them a
//! second time, to whoever asks under another id. Nothing is decided or archived meanwhile; callers ask again, and payers
//! are asked again with the same key afterwards.

use crate::handle::RewardHandle;
use crate::job::{Answer, Decision, How, Job};
use windfall_contract::accounts::AccountsError;
use windfall_contract::rewards::{GrantReply, RetryReason};
use windfall_ledger::Guard;

/// The least wait of what is stopped: a person has to reconcile, or a server has to come back.
pub(crate) const STOPPED_RETRY_MS: u64 = 1_000;
pub(crate) const STOPPED: &str =
    "payouts are stopped: the ledger went back in time, or its mark cannot be read";

/// What a transaction may decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Whether grants that the ledger itself pays are stopped.
    pub grants_stop: bool,
    /// Whether everything that leaves the house is stopped.
    pub payouts_stop: bool,
}

impl Standing {
    /// The standing of a transaction on a database that was found to be back in time or not, when it began.
    pub fn of(guard: Option<&Guard>, went_back: bool, grant_when_back: bool) -> Self {
        let is_back = went_back || guard.is_some_and(Guard::is_back);
        let payouts_stop = is_back || guard.is_some_and(Guard::stops_payouts);
        Self { grants_stop: is_back && !grant_when_back, payouts_stop }
    }

    /// Answers the grants that are stopped: they are to be asked for again.
    pub fn refuse(self, jobs: &[Job], answers: &mut [Answer]) {
        if !self.payouts_stop {
            return;
        }
        for (job, answer) in jobs.iter().zip(answers) {
            if let Job::Grant(grant) = job
                && (self.grants_stop || matches!(grant.how, How::Reserve(..)))
            {
                *answer = Answer::Decisions(vec![Decision::Reply(stopped()); grant.events.len()]);
            }
        }
    }
}

/// The reply to a grant that is stopped.
pub(crate) const fn stopped() -> GrantReply {
    GrantReply::Retry { after_ms: STOPPED_RETRY_MS, reason: RetryReason::StoreUnavailable }
}

impl RewardHandle {
    /// Whether nothing is paid out, because the ledger went back in time or its mark could not be read yet.
    pub fn payouts_stopped(&self) -> bool {
        self.guard().is_some_and(|guard| guard.stops_payouts())
    }

    /// An error where nothing is paid out.
    pub(crate) fn check_payouts(&self) -> Result<(), AccountsError> {
        match self.payouts_stopped() {
            true => Err(AccountsError::Unavailable { what: STOPPED.into(), after_ms: STOPPED_RETRY_MS }),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_that_went_back_stops_payouts_and_grants_unless_an_option_asks_for_them() {
        let guard = Guard::default();
        let of = |went_back, grant| {
            let Standing { grants_stop, payouts_stop } = Standing::of(Some(&guard), went_back, grant);
            (grants_stop, payouts_stop)
        };
        assert_eq!(of(false, false), (false, false));
        assert_eq!(of(true, false), (true, true));
        assert_eq!(of(true, true), (false, true));
        // Nobody can know: nothing leaves the house, and grants go on.
        let blind = Guard::new(vec![None]);
        let standing = Standing::of(Some(&blind), false, false);
        assert_eq!((standing.grants_stop, standing.payouts_stop), (false, true));
        assert_eq!(Standing::of(None, false, false), Standing { grants_stop: false, payouts_stop: false });
    }
}
