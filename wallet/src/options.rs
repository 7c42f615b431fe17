//! The options and limits, all in one place.

use serde::Deserialize;

/// The number of movements in one answer at most.
pub const FLOW_MAX: usize = 500;
/// The number of movements where the caller names none.
pub(crate) const FLOW_DEFAULT: usize = 50;
/// The bytes of a cursor: three numbers for each of a user's bonus types.
pub(crate) const CURSOR_MAX_BYTES: usize = 65_536;
/// The number of the store's tokens that are read at most, beside those that the front end sends. A user has at most
/// 500 in one activity. For a user with more, the answer says that it is incomplete; the rest appears as these are
/// credited.
pub const HELD_MAX: usize = 2_000;
/// The number of events in one grant.
pub(crate) const GRANT_EVENTS: usize = 500;
/// How often balances are read again because rewards arrived while they were read.
pub(crate) const LOOKS_MAX: usize = 3;
/// How often a withdrawal that is short credits pending rewards, while others take from the same balance.
pub(crate) const FORCES_MAX: usize = 4;
/// The least wait that an answer without one of its own asks for.
pub(crate) const RETRY_MS: u64 = 200;

/// The time-outs of a wallet.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WalletOptions {
    /// The time-out of a read of the ledger. 1 to 60,000; default 2,000.
    pub ledger_timeout_ms: u64,
    /// The time-out of a forced credit; without an answer the outcome is unknown, and the withdrawal goes on with the
    /// balance that is there. 1 to
    /// 60,000; default 2,000.
    pub grant_timeout_ms: u64,
    /// The time-out of a withdrawal's payout; without an answer the outcome is unknown, and asking again with the same
    /// id settles it. 1 to
    /// 60,000; default 5,000.
    pub payout_timeout_ms: u64,
}

impl Default for WalletOptions {
    fn default() -> Self {
        Self { ledger_timeout_ms: 2_000, grant_timeout_ms: 2_000, payout_timeout_ms: 5_000 }
    }
}

impl WalletOptions {
    /// The first option that is out of its range, with what is allowed.
    pub(crate) fn out_of_range(&self) -> Option<String> {
        let all = [
            ("ledger_timeout_ms", self.ledger_timeout_ms),
            ("grant_timeout_ms", self.grant_timeout_ms),
            ("payout_timeout_ms", self.payout_timeout_ms),
        ];
        let wrong = all.into_iter().find(|(_, value)| !(1..=60_000).contains(value));
        wrong.map(|(name, value)| format!("{name} = {value}: 1 to 60000 is allowed"))
    }
}
