//! `send_bonus` over a wire, for activity services that cannot link the SDK.
//!
//! - [`Gateway`] offers `windfall.v1.Send` over one [`SendBonus`] per tenant: an SDK, whose tokens are bound to that
//!   tenant's app. The caller's key decides which tenant it is; the request cannot.
//! - [`status`] says how an error of the SDK looks over the wire, the only place that does.
//!
//! A call costs what the SDK's costs, microseconds, and waits for no network (I9). When it answers OK the event
//! survives the death of this process (I2), if the SDK's spool is one that does. With a spool that is synced for each
//! call, a call also waits for the disk, on a thread of the runtime: give such a gateway a process of its own.
//!
//! Not here: the caller's key and role, limits on bodies and streams (`windfall-edge`).
//!
//! ```
//! use std::collections::BTreeMap;
//! use windfall_sdk::rpc::Gateway;
//! use windfall_proto::send::{SendBonus, SendError};
//! # use windfall_proto::v1::{SendBonusReply, SendBonusRequest};
//! # struct Sdk;
//! # #[async_trait::async_trait]
//! # impl SendBonus for Sdk {
//! #     async fn send_bonus(&self, _: SendBonusRequest) -> Result<SendBonusReply, SendError> { Err(SendError::Closed)
//! }
//! #     async fn send_bonus_batch(&self, _: Vec<SendBonusRequest>) -> Vec<Result<SendBonusReply, SendError>> { vec![]
//! }
//! # }
//! # let (sdk_of_acme, sdk_of_globex) = (Sdk, Sdk);
//! let sdks = BTreeMap::from([("acme".to_owned(), sdk_of_acme), ("globex".to_owned(), sdk_of_globex)]);
//! let service = windfall_proto::v1::send_server::SendServer::new(Gateway::new(sdks));
//! # drop(service);
//! ```
//!
//! [`SendBonus`]: windfall_proto::send::SendBonus

mod service;
mod status;

pub use service::{BATCH_MAX, Gateway};
pub use status::status;
