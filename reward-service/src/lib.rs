//! Grants rewards: each order number once, inside budgets, into the ledger or a downstream system.
//!
//! - [`contract`] is what callers code against.
//! - [`RewardService::start`] runs it; [`RewardHandle`] implements [`contract::Rewards`].
//! - [`Connector`] is what a downstream system offers.

mod breaker;
mod connector;
pub mod contract;
mod decode;
mod external;
mod inbox;
mod options;
mod service;
mod stats;
mod writer;

pub use connector::{Connector, PayAnswer, PayOrder};
pub use options::{Clock, ConnectorOptions, GrantObserver, Payer, RewardOptions, system_clock};
pub use service::{CallError, RewardHandle, RewardService, StartError};
pub use stats::{OTHER, RewardStats, TypeStats};
pub use windfall_ledger as ledger;
#[cfg(feature = "sabotage")]
pub use windfall_ledger::sabotage;
