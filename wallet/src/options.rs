//! Options and limits, all in one place.

use serde::Deserialize;

/// Movements of one answer at most.
pub const FLOW_MAX: usize = 500;
/// Movements where the caller does not say.
pub(crate) const FLOW_DEFAULT: usize = 50;
/// Tokens of the store that are reckoned with at most, beside those that the front end brings. A user has 500 in one
/// activity; of one with more the answer says that it is incomplete, and the rest comes in their turn.
pub const HELD_MAX: usize = 2_000;
/// Events in one grant.
pub(crate) const GRANT_EVENTS: usize = 500;
/// How often balances are read again because rewards arrived while they were read.
pub(crate) const LOOKS_MAX: usize = 3;
/// How often a withdrawal that is short credits what is on its way, while others take from the same balance.
pub(crate) const FORCES_MAX: usize = 4;
/// The least wait that an answer without one of its own asks for.
pub(crate) const RETRY_MS: u64 = 200;

/// How long a wallet waits.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WalletOptions {
    /// For a read of the ledger. 1 to 60,000; default 2,000.
    pub ledger_timeout_ms: u64,
    /// For a forced credit; without an answer nobody knows, and the withdrawal goes on with what is there. 1 to
    /// 60,000; default 2,000.
    pub grant_timeout_ms: u64,
    /// For a withdrawal's payout; without an answer nobody knows, and asking again with the same id settles it. 1 to
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
