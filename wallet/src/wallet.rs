//! The wallet's handle.

use crate::options::{RETRY_MS, WalletOptions};
use crate::stats::{Counters, WalletStats};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::accounts::{Accounts, AccountsError};
use windfall_contract::rewards::Rewards;
use windfall_contract::verifier::TokenVerifier;

/// The parts that a [`Wallet`] is wired to.
pub struct WalletParts {
    /// Verifies tokens.
    pub verifier: Arc<dyn TokenVerifier>,
    /// Credits pending rewards.
    pub rewards: Arc<dyn Rewards>,
    /// Reads balances and orders, and pays out.
    pub accounts: Arc<dyn Accounts>,
}

/// The owner of a wallet, from the call's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User<'a> {
    /// The app of the service that calls.
    pub tenant: &'a str,
    /// The end user.
    pub user_id: i64,
}

/// The wallet could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// An option is out of its range. Correct it.
    #[error("option {0}")]
    Option(String),
}

/// Users' wallets. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Wallet(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) verifier: Arc<dyn TokenVerifier>,
    pub(crate) rewards: Arc<dyn Rewards>,
    pub(crate) accounts: Arc<dyn Accounts>,
    pub(crate) counters: Counters,
    ledger_timeout: Duration,
    pub(crate) grant_timeout: Duration,
    payout_timeout: Duration,
}

impl Wallet {
    /// Opens the wallet. Nothing is asked yet.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: WalletOptions, parts: WalletParts) -> Result<Self, OpenError> {
        if let Some(wrong) = options.out_of_range() {
            return Err(OpenError::Option(wrong));
        }
        Ok(Self(Arc::new(Inner {
            verifier: parts.verifier,
            rewards: parts.rewards,
            accounts: parts.accounts,
            counters: Counters::default(),
            ledger_timeout: Duration::from_millis(options.ledger_timeout_ms),
            grant_timeout: Duration::from_millis(options.grant_timeout_ms),
            payout_timeout: Duration::from_millis(options.payout_timeout_ms),
        })))
    }

    /// Counters since the start.
    pub fn stats(&self) -> WalletStats {
        self.0.counters.read()
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }
}

impl fmt::Debug for Wallet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wallet").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Inner {
    /// Reads the ledger within the time-out.
    pub(crate) async fn read<T>(
        &self,
        reading: impl Future<Output = Result<T, AccountsError>>,
    ) -> Result<T, AccountsError> {
        within(self.ledger_timeout, reading).await
    }

    /// Makes a payout. Without an answer its outcome is unknown.
    pub(crate) async fn pay<T>(
        &self,
        paying: impl Future<Output = Result<T, AccountsError>>,
    ) -> Result<T, AccountsError> {
        within(self.payout_timeout, paying).await
    }
}

async fn within<T>(
    limit: Duration,
    asking: impl Future<Output = Result<T, AccountsError>>,
) -> Result<T, AccountsError> {
    tokio::time::timeout(limit, asking).await.unwrap_or_else(|_| {
        let what = format!("no answer within {} ms", limit.as_millis());
        Err(AccountsError::Unavailable { what, after_ms: RETRY_MS })
    })
}
