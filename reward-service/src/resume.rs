//! Withdrawals that nobody asks about again: their caller has died, or has lost interest. The money is held until their
//! payer has said what became of it, so somebody has to ask.

use crate::claims::Claims;
use crate::handle::{CallError, RewardHandle};
use crate::withdraw::payout_key;
use futures_util::stream::{self, StreamExt};
use std::time::Duration;
use windfall_contract::accounts::{AccountsError, WithdrawalOutcome};
use windfall_ledger::{StoredWithdrawal, WithdrawalStatus};

/// Payers are asked about so many at once: callers who wait go first.
const AT_ONCE: usize = 8;

/// What asking again came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resumed {
    /// Paid, now or before, and ended so.
    pub paid: u32,
    /// Refused, and given back.
    pub refused: u32,
    /// Still held: the payer has not said, is not configured, or another call is asking it.
    pub pending: u32,
    /// The ledger could not be asked, or did not say that it is ended.
    pub failed: u32,
    /// The last id that was looked at, where there may be more: go on after it. `None`: these were all.
    pub next_after: Option<String>,
}

/// How often, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeOptions {
    /// Between two passes, 100 to 3,600,000 ms. Default 5,000.
    pub period_ms: u64,
    /// Only what is held for so long: its caller is given time to ask by itself. Default 30,000.
    pub older_than_ms: u64,
    /// Withdrawals a pass, 1 to 10,000; the next pass goes on behind them. Default 256.
    pub limit: u32,
}

impl Default for ResumeOptions {
    fn default() -> Self {
        Self { period_ms: 5_000, older_than_ms: 30_000, limit: 256 }
    }
}

impl RewardHandle {
    /// Withdrawals that have been held for at least so long, by id, only ids after `after`; 1 to 10,000 of them.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn held(
        &self,
        older_than_ms: u64,
        after: &str,
        limit: u32,
    ) -> Result<Vec<StoredWithdrawal>, CallError> {
        let age = i64::try_from(older_than_ms).unwrap_or(i64::MAX);
        // As old as that, not older: 0 lists what is held in this very millisecond.
        let before_ms = self.inner.clock.wall_ms().saturating_sub(age).saturating_add(1);
        let after = after.to_owned();
        self.read(move |reader| reader.held_withdrawals(before_ms, &after, limit)).await
    }

    /// Asks the payers of withdrawals that have been held for at least so long, by id, only ids after `after`, and ends
    /// them as the payers say. A payer is asked with the key that it knows: it pays none twice (I1), whoever else asks
    /// meanwhile. Cancelled, what was not ended is held as before.
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
        let held = self.held(older_than_ms, after, limit).await?;
        let is_full = held.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        let next_after = held.last().filter(|_| is_full).map(|one| one.withdrawal.id.clone());
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
        if !claims.claim(&payout_key(&listed.withdrawal.id)) {
            return Ok(later);
        }
        // It was listed before it was claimed: it may have ended since.
        let id = listed.withdrawal.id.clone();
        let read = self.read(move |reader| reader.withdrawal(&id)).await;
        let Some(stored) = read.map_err(|error| self.read_failed(error))? else {
            return Err(self.unavailable("the withdrawal has vanished from the ledger"));
        };
        match stored.status {
            WithdrawalStatus::Held => {}
            WithdrawalStatus::Paid => return Ok(WithdrawalOutcome::AlreadyPaid),
            WithdrawalStatus::Refused => return Ok(WithdrawalOutcome::Refused(stored.reason)),
        }
        self.pay_out(&stored.payer, &stored.withdrawal).await
    }
}

/// Asks about held withdrawals again and again. Spawns nothing: whoever runs it owns it, and ends it by dropping the
/// future, at any moment.
#[derive(Clone)]
pub struct Resumer {
    rewards: RewardHandle,
    options: ResumeOptions,
    after: String,
}

impl Resumer {
    /// On this reward service.
    pub const fn new(rewards: RewardHandle, options: ResumeOptions) -> Self {
        Self { rewards, options, after: String::new() }
    }

    /// One pass: the next so many, from the first again when the last was reached. So some that stay held hold up no
    /// other.
    ///
    /// # Errors
    /// [`CallError`]: nothing was asked; the next pass does it.
    pub async fn pass(&mut self) -> Result<Resumed, CallError> {
        let ResumeOptions { older_than_ms, limit, .. } = self.options;
        let done = self.rewards.resume_held(older_than_ms, &self.after, limit).await?;
        self.after = done.next_after.clone().unwrap_or_default();
        Ok(done)
    }

    /// A pass each period, until the reward service is closed.
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
