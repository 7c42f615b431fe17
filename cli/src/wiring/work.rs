//! The work of a process, and the parts that it needs.

/// The work of a process, of all that can be wired.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Sends rewards by an SDK of its own.
    pub sends: bool,
    /// Reads topics.
    pub consumes: bool,
    /// Answers grants and serves the archive.
    pub serves_grants: bool,
    /// Lists and verifies tokens.
    pub serves_tokens: bool,
    /// Serves balances, movements and withdrawals.
    pub serves_wallets: bool,
}

impl Work {
    /// Whether it writes the ledger.
    pub const fn grants(self) -> bool {
        self.consumes || self.serves_grants || self.serves_wallets
    }

    /// Whether it verifies tokens.
    pub const fn verifies_tokens(self) -> bool {
        self.serves_tokens || self.serves_wallets
    }

    /// Whether it needs the key ring.
    pub const fn needs_keys(self) -> bool {
        self.sends || self.verifies_tokens()
    }

    /// Whether it writes to queues.
    pub const fn queues(self) -> bool {
        self.sends || self.consumes || self.serves_grants
    }
}
