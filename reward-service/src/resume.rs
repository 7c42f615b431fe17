//! Asks about held withdrawals whose callers do not ask again, because they have died or lost interest. The money is
//! held until the payer has given its answer, so the service has to ask.

use crate::claims::Claims;
use crate::decide::name;
use crate::handle::{CallError, RewardHandle};
use futures_util::stream::{self, StreamExt};
use std::time::Duration;
use windfall_contract::accounts::{AccountsError, WithdrawalOutcome};
use windfall_ledger::{HeldFor, StoredWithdrawal};

/// The number of withdrawals that payers are asked about at once: waiting callers go first.
const AT_ONCE: usize = 8;

/// The result of asking again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resumed {
    /// Withdrawals that were paid, now or before, and have ended.
    pub paid: u32,
    /// Withdrawals that were refused, and given back.
    pub refused: u32,
    /// Withdrawals that are still held: the payer has not decided, is not configured, or is being asked by another
    /// call.
    pub pending: u32,
    /// Withdrawals for which the ledger could not be asked, or did not confirm the end.
    pub failed: u32,
    /// The key of the last one that was looked at, where there may be more: go on after it. `None` if there are no more.
    pub next_after: Option<String>,
}

/// How often held withdrawals are asked about, and which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeOptions {
    /// The time between two passes, 100 to 3,600,000 ms. Default 5,000.
    pub period_ms: u64,
    /// The least age of the withdrawals asked about, so that a caller has time to ask by itself. Default 30,000 ms.
    pub older_than_ms: u64,
    /// The number of withdrawals in one pass, 1 to 10,000; the next pass goes on behind them. Default 256.
    pub limit: u32,
}

impl Default for ResumeOptions {
    fn default() -> Self {
        Self { period_ms: 5_000, older_than_ms: 30_000, limit: 256 }
    }
}

impl RewardHandle {
    /// Withdrawals of these that have been held for at least this long, sorted by their keys: those after the key `after`, 1 to 10,000
    /// of them.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn held(
        &self,
        which: HeldFor,
        older_than_ms: u64,
        after: &str,
        limit: u32,
    ) -> Result<Vec<StoredWithdrawal>, CallError> {
        let age = i64::try_from(older_than_ms).unwrap_or(i64::MAX);
        // As old as that, not older: 0 lists what is held in this very millisecond.
        let before_ms = self.inner.clock.wall_ms().saturating_sub(age).saturating_add(1);
        let after = after.to_owned();
        self.read(move |reader| reader.held_withdrawals(which, before_ms, &after, limit)).await
    }

    /// Asks the payers of withdrawals that have been held for at least this long, sorted by their keys after `after`, and
    /// ends them as the payers decide. A payer is asked with the key that it knows, so it pays none twice (I1), even if
    /// another call asks meanwhile. If this is cancelled, withdrawals that were not ended are held as before.
    ///
    /// # Errors
    /// [`CallError`]: nothing was asked.
    pub async fn resume_held(
        &self,
        older_than_ms: u64,
        after: &str,
        limit: u32,
    ) -> Result<Resumed, CallError> {
        let limit = limit.clamp(1, 10_000);
        let held = self.held(HeldFor::Downstream, older_than_ms, after, limit).await?;
        let is_full = held.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        let next_after = held.last().filter(|_| is_full).map(|one| one.key.clone());
        let mut done = Resumed { next_after, ..Resumed::default() };
        let mut asking = stream::iter(held.into_iter().map(|one| self.resume(one))).buffer_unordered(AT_ONCE);
        while let Some(answer) = asking.next().await {
            match answer {
                Ok(WithdrawalOutcome::Paid | WithdrawalOutcome::AlreadyPaid) => done.paid += 1,
                Ok(WithdrawalOutcome::Refused(_)) => done.refused += 1,
                Ok(_) => done.pending += 1,
                Err(error) => {
                    tracing::warn!(%error, "a held withdrawal could not be ended; it is asked about again");
                    done.failed += 1;
                }
            }
        }
        Ok(done)
    }

    async fn resume(&self, listed: StoredWithdrawal) -> Result<WithdrawalOutcome, AccountsError> {
        let later = WithdrawalOutcome::Pending { after_ms: self.inner.options.busy_retry_ms };
        let mut claims = Claims::new(&self.inner.in_flight);
        if !claims.claim_withdrawal(name(&listed.withdrawal)) {
            return Ok(later);
        }
        // It was listed before it was claimed: it may have ended since.
        self.pay_out(&listed.withdrawal).await
    }
}

/// Asks about held withdrawals again and again. It spawns no task: the caller that runs it owns it, and ends it by
/// dropping the future, at any moment.
#[derive(Clone)]
pub struct Resumer {
    rewards: RewardHandle,
    options: ResumeOptions,
    after: String,
}

impl Resumer {
    /// Makes it on this reward service.
    pub const fn new(rewards: RewardHandle, options: ResumeOptions) -> Self {
        Self { rewards, options, after: String::new() }
    }

    /// Runs one pass over the next withdrawals, from the first again when the last was reached. So withdrawals that
    /// stay held do not hold up others.
    ///
    /// # Errors
    /// [`CallError`]: nothing was asked; the next pass does it.
    pub async fn pass(&mut self) -> Result<Resumed, CallError> {
        let ResumeOptions { older_than_ms, limit, .. } = self.options;
        let done = self.rewards.resume_held(older_than_ms, &self.after, limit).await?;
        self.after = done.next_after.clone().unwrap_or_default();
        Ok(done)
    }

    /// Runs one pass per period, until the reward service is closed.
    pub async fn run(mut self) {
        let period = Duration::from_millis(self.options.period_ms.clamp(100, 3_600_000));
        loop {
            tokio::time::sleep(period).await;
            match self.pass().await {
                Ok(Resumed { paid: 0, refused: 0, pending: 0, failed: 0, .. }) => {}
                Ok(Resumed { paid, refused, pending: 0, failed: 0, .. }) => {
                    tracing::info!(paid, refused, "withdrawals that nobody asked about have ended");
                }
                Ok(Resumed { paid, refused, pending, failed, .. }) => {
                    tracing::warn!(paid, refused, pending, failed, "withdrawals are held still");
                }
                Err(CallError::Closed) => {
                    tracing::warn!("nobody asks about held withdrawals any more: the ledger is closed");
                    return;
                }
                Err(error) => tracing::warn!(%error, "held withdrawals were not asked about; next time"),
            }
        }
    }
}
