//! The options, and the limits that callers do not see; those that they see are in the contract.

use serde::Deserialize;

/// The number of tokens that are read at once where not every one of them will be on the page.
pub(crate) const SCAN: usize = 500;
/// The number of reads of the store for one page at most: each read costs the store work for all of a user's tokens.
pub(crate) const READS_MAX: usize = 4;
/// The number of tokens that are opened without letting other tasks run: some 0.1 ms with HMAC keys, some 3 ms with
/// Ed25519.
pub(crate) const OPENED_AT_A_TIME: usize = 32;

/// How a [`KeyRingVerifier`](crate::KeyRingVerifier) works.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenOptions {
    /// The time in ms after which a store without an answer counts as down. 1 to 60,000; default 500.
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
