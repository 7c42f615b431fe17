//! The roles of the binary, and the work of each.

use crate::wiring::Work;
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
    /// Takes rewards from services that cannot link the SDK.
    SdkGateway,
    /// Keeps timers, and fires them.
    Scheduler,
    /// Keeps jobs for consumers that pull them.
    TaskQueue,
    /// Shows the fleet to operators, in a browser.
    Console,
    /// Reconciles the ledger, all the time.
    Auditor,
}

impl Role {
    /// The role's name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Serve => "serve",
            Self::TokenService => "token-service",
            Self::RewardService => "reward-service",
            Self::Consumer => "consumer",
            Self::Wallet => "wallet",
            Self::SdkGateway => "sdk-gateway",
            Self::Scheduler => "scheduler",
            Self::TaskQueue => "task-queue",
            Self::Console => "console",
            Self::Auditor => "auditor",
        }
    }

    /// What a process of this role does.
    pub const fn work(self) -> Work {
        const NOTHING: Work = Work {
            sends: false,
            consumes: false,
            serves_grants: false,
            serves_tokens: false,
            serves_wallets: false,
            schedules: false,
        };
        match self {
            Self::Serve => Work {
                sends: true,
                consumes: true,
                serves_grants: true,
                serves_tokens: true,
                serves_wallets: true,
                schedules: true,
            },
            Self::TokenService => Work { serves_tokens: true, ..NOTHING },
            Self::RewardService => Work { serves_grants: true, ..NOTHING },
            Self::Consumer => Work { consumes: true, ..NOTHING },
            Self::Wallet => Work { serves_wallets: true, ..NOTHING },
            Self::SdkGateway => Work { sends: true, ..NOTHING },
            Self::Scheduler => Work { schedules: true, ..NOTHING },
            // They run on nothing that is wired: `services/task_queue.rs`, `console.rs` and `auditor.rs` start them.
            Self::TaskQueue | Self::Console | Self::Auditor => NOTHING,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
