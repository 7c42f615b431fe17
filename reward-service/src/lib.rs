//! Grants rewards: each order number once (I1), inside budgets (I4), into the ledger or a downstream system.
//!
//! - [`RewardService::start`] starts the threads that write the ledger, one on a file, several on a database;
//!   calls of many callers share a transaction (group commit), and are answered after its commit.
//! - [`RewardHandle`] implements what callers code against, here or over a wire:
//!   [`Rewards`](windfall_contract::rewards::Rewards) for consumers, and
//!   [`Accounts`](windfall_contract::accounts::Accounts) for wallets.
//! - A [`Connector`](windfall_contract::connector::Connector) is what a downstream system offers. An order is reserved
//!   in the ledger before the downstream is asked, and posted when it has paid; if an answer is lost in between, it is
//!   asked again with the same key.
//! - Money goes out by [`withdraw`](windfall_contract::accounts::Accounts::withdraw): it is held, paid by
//!   [`RewardOptions::payout`], and ended, once for each id.
//!   [`Resumer`] asks about withdrawals whose callers do not ask again.
//! - [`AsyncGrants`] takes events now and has them granted later: budget reserved, event queued, then accepted.
//! - `rpc` (feature `rpc`) is the service over gRPC.
//! - A ledger that went back in time is noticed by its mark, which [`MarkKeeper`] keeps outside of its database; until a
//!   person has accepted it, nothing is paid out.
//! - What finally fails is archived in the transaction that decides it (I2); [`RewardHandle::replay`] grants
//!   from there again, audited.
//!
//! Not here: limits, fuses, and when to ask again; the consumer has those. Tables and SQL; the ledger has them.
//!
//! ```
//! use windfall_proto::event::EventRef;
//! use windfall_contract::rewards::{GrantReply, Rewards};
//! use windfall_ledger::{Ledger, LedgerOptions, Unbudgeted};
//! use windfall_contract::Clock;
//! use windfall_reward_service::{RewardOptions, RewardService};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let folder = tempfile::tempdir()?;
//! // Without budgets; as a rule the live rules set them, and what none covers is refused.
//! let options = LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() };
//! let ledger = Ledger::open(folder.path().join("ledger.db"), &options)?;
//! let rewards = RewardService::start(RewardOptions::default(), ledger, vec![], None, Clock::system())?;
//!
//! let event = EventRef {
//!     trade_no: "spring-2027/rain/000001/42",
//!     user_id: 42,
//!     activity: "spring-2027",
//!     scene: "red-packet-rain",
//!     bonus_type: "cash",
//!     amount: 888,
//!     ..Default::default()
//! };
//! let mut bytes = Vec::new();
//! event.encode([], &mut bytes);
//! let events = [bytes.into()];
//! assert_eq!(rewards.grant_batch("cash", &events).await, [GrantReply::Credited]);
//! assert_eq!(rewards.grant_batch("cash", &events).await, [GrantReply::AlreadyCredited]);
//! rewards.close();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod acknowledge;
mod acts;
mod async_grant;
mod claims;
mod connector;
mod decide;
mod decode;
mod external;
mod fence;
mod grant;
mod handle;
mod inbox;
mod job;
mod mark_check;
mod mark_keeper;
mod mark_places;
mod options;
mod outbox;
mod payouts;
mod reading;
mod replay;
mod resume;
#[cfg(feature = "rpc")]
pub mod rpc;
mod send_to_credit;
mod service;
mod stats;
mod traced;
mod withdraw;
mod writer;

pub use acknowledge::{AcknowledgeError, PaidOut};
pub use acts::{ActAnswer, ActError};
pub use async_grant::{
    AckMode, AsyncGrantOptions, AsyncGrantReply, AsyncGrants, EventQueue, NotQueued, ReleaseError, SceneSteps,
};
pub use fence::{RulesInForce, RunningRules};
pub use handle::{CallError, Fuses, RewardHandle};
pub use mark_keeper::{LedgerMarkStats, MarkKeeper};
pub use options::{ConnectorOptions, GrantObserver, Payer, RewardOptions};
pub use outbox::{Again, Rewritten};
pub use replay::{ReplayError, Replayed};
pub use resume::{ResumeOptions, Resumed, Resumer};
pub use send_to_credit::{SEND_TO_CREDIT_BOUNDS_MS, SendToCredit};
pub use service::{RewardService, StartError};
pub use stats::{OTHER, RewardStats, TypeStats};
