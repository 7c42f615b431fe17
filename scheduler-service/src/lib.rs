//! The scheduler as its users see it: the calls that add, change and cancel timers, and the targets that timers go to.
//!
//! - [`TimersService`] offers `windfall.v1.Timers` over a [`Timers`](windfall_scheduler::Timers). Who calls decides whose
//!   timers a call may touch.
//! - [`BackfillsService`] offers operators `windfall.v1.Backfills`.
//! - [`TopicTarget`] writes a timer to a topic, as a [`FiredTimer`](windfall_proto::v1::FiredTimer).
//! - [`BonusTarget`] sends a reward at its time, once for each order number.
//! - [`JobTarget`] publishes a timer to a task queue, from which consumers pull it.
//! - [`FarJobTimers`] keeps jobs of a task queue that are due much later, and [`FarJobTarget`] publishes them then.
//! - The target that calls an HTTP address stands with the other signed HTTP requests: `windfall_connectors::HttpCallback`.
//!
//! Not here: when a timer fires, how often it is tried, and in which order (`windfall-scheduler`); where timers lie (the
//! slot stores); the caller's key and role (`windfall-edge`).
//!
//! ```
//! use bytes::Bytes;
//! use std::sync::Arc;
//! use windfall_contract::due::{Fired, Firing, Target};
//! use windfall_proto::send::{SendBonus, SendError};
//! use windfall_scheduler_service::BonusTarget;
//! # use windfall_proto::v1::{SendBonusReply, SendBonusRequest};
//! # struct Sdk;
//! # #[async_trait::async_trait]
//! # impl SendBonus for Sdk {
//! #     async fn send_bonus(&self, _: SendBonusRequest) -> Result<SendBonusReply, SendError> { Ok(Default::default()) }
//! #     async fn send_bonus_batch(&self, _: Vec<SendBonusRequest>) -> Vec<Result<SendBonusReply, SendError>> { vec![] }
//! # }
//! # let sdk = Sdk;
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let target = BonusTarget::new(sdk);
//! let payload = r#"{"trade_no": "thanks/42", "user": {"user_id": 42}, "activity": "spring", "scene": "thanks",
//!                   "bonus": {"type": "coin", "amount": 5}}"#;
//! let fired = target.fire(vec![Firing {
//!     id: "0001-01c3a2f0-00000000".parse()?,
//!     tenant: "marketing".into(),
//!     key: None,
//!     due_ms: 1_795_345_200_000,
//!     attempt: 1,
//!     payload: Bytes::from(payload),
//! }]);
//! assert_eq!(fired.await, [Fired::Done]);
//! # Ok::<(), windfall_contract::due::InvalidTask>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod backfills;
mod cursor;
mod far_jobs;
mod rpc;
mod targets;

pub use backfills::BackfillsService;
pub use cursor::{InvalidCursor, ListCursor};
pub use far_jobs::{FAR_JOBS_TENANT, FarJobTimers};
pub use rpc::{BATCH_MAX, PAGE_DEFAULT, PAGE_MAX, TimersService};
pub use targets::{
    BonusTarget, FarJobTarget, JobTarget, JobTargetOptions, TopicChecks, TopicOptions, TopicTarget, refusal,
};
