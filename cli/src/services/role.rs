//! What each role needs and mounts.

use std::fmt;

/// A role of the binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// All of them.
    Serve,
    /// Lists and verifies tokens.
    TokenService,
    /// Grants over a wire, and the archive.
    RewardService,
    /// Drains the topics into the ledger and downstream systems.
    Consumer,
    /// Balances, flow and withdrawals.
    Wallet,
    /// Takes rewards from those who cannot link the SDK.
    SdkGateway,
}

impl Role {
    /// As on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Serve => "serve",
            Self::TokenService => "token-service",
            Self::RewardService => "reward-service",
            Self::Consumer => "consumer",
            Self::Wallet => "wallet",
            Self::SdkGateway => "sdk-gateway",
        }
    }

    fn is(self, own: Self) -> bool {
        self == own || self == Self::Serve
    }

    /// Sends rewards: an SDK a tenant.
    pub fn sends(self) -> bool {
        self.is(Self::SdkGateway)
    }

    /// Reads topics.
    pub fn consumes(self) -> bool {
        self.is(Self::Consumer)
    }

    /// Serves grants and the archive.
    pub fn serves_grants(self) -> bool {
        self.is(Self::RewardService)
    }

    /// Serves tokens.
    pub fn serves_tokens(self) -> bool {
        self.is(Self::TokenService)
    }

    /// Serves wallets.
    pub fn serves_wallets(self) -> bool {
        self.is(Self::Wallet)
    }

    /// Writes the ledger.
    pub fn grants(self) -> bool {
        self.consumes() || self.serves_grants() || self.serves_wallets()
    }

    /// Judges tokens.
    pub fn judges_tokens(self) -> bool {
        self.serves_tokens() || self.serves_wallets()
    }

    /// Writes to queues.
    pub fn queues(self) -> bool {
        self.sends() || self.consumes() || self.serves_grants()
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
