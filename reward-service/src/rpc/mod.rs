//! The reward service over gRPC: [`RewardsService`] for callers that grant, [`PayoutsService`] for front ends that pay
//! withdrawals out, [`ArchiveService`] and [`ActsService`] for operators.
//!
//! Mount them behind `windfall-edge`, which checks keys and roles and says who calls. A caller grants nothing of
//! another app than its own, and sees nothing of another one's archive.
//!
//! ```
//! use tonic::Request;
//! use windfall_edge::{Call, Caller, Role};
//! use windfall_proto::v1::rewards_server::Rewards as _;
//! use windfall_proto::v1::{Bonus, BonusEvent, GrantOutcome, GrantRequest, User};
//! use windfall_ledger::{Ledger, LedgerOptions, Unbudgeted};
//! use windfall_reward_service::rpc::RewardsService;
//! use windfall_contract::Clock;
//! use windfall_reward_service::{RewardOptions, RewardService};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let folder = tempfile::tempdir()?;
//! let ledger = Ledger::open(folder.path().join("ledger.db"), &LedgerOptions { unbudgeted: Unbudgeted::Allow,
//! ..LedgerOptions::default() })?; let rewards = RewardService::start(RewardOptions::default(), ledger, vec![], None,
//! Clock::system())?; let service = RewardsService::new(rewards.clone());
//!
//! let event = BonusEvent {
//!     trade_no: "spring-2027/rain/000001/42".into(),
//!     user: Some(User { user_id: 42, ..User::default() }),
//!     activity: "spring-2027".into(),
//!     scene: "red-packet-rain".into(),
//!     bonus: Some(Bonus { r#type: "cash".into(), amount: 888, ..Bonus::default() }),
//!     ..BonusEvent::default()
//! };
//! let mut request = Request::new(GrantRequest { event: Some(event) });
//! // The edge does this.
//! let caller = Caller { name: "rain".into(), tenant: "shop".into(), roles: [Role::Grant].into(), timers_of: Default::default() };
//! request.extensions_mut().insert(Call { caller, user_id: None, trace_id: None });
//! let reply = service.grant(request).await?.into_inner();
//! assert_eq!(reply.outcome(), GrantOutcome::Credited);
//! rewards.close();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod acts;
mod archive;
mod events;
mod ledger_mark;
mod page;
mod payouts;
mod rewards;
mod statement;
mod status;

pub use acts::ActsService;
pub use archive::ArchiveService;
pub use payouts::PayoutsService;
pub use rewards::RewardsService;
