//! Options, and the limits that callers do not see; those that they do see are in the contract.

use serde::Deserialize;

/// Tokens that are read at once where not every one of them will be on the page.
pub(crate) const SCAN: usize = 500;
/// Reads of the store for one page at most: it reckons with all of a user's tokens each time.
pub(crate) const READS_MAX: usize = 4;
/// Tokens that are opened without letting others run: some 0.1 ms with HMAC keys, some 3 ms with Ed25519.
pub(crate) const OPENED_AT_A_TIME: usize = 32;

/// How a [`KeyRingVerifier`](crate::KeyRingVerifier) works.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenOptions {
    /// A store that takes longer is taken for down. 1 to 60,000; default 500.
    pub store_timeout_ms: u64,
}

impl Default for TokenOptions {
    fn default() -> Self {
        Self { store_timeout_ms: 500 }
    }
}

impl TokenOptions {
    /// The first option that is out of its range, with what is allowed.
    pub(crate) fn out_of_range(&self) -> Option<String> {
        (!(1..=60_000).contains(&self.store_timeout_ms))
            .then(|| format!("store_timeout_ms = {}: 1 to 60000 is allowed", self.store_timeout_ms))
    }
}
