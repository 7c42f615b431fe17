//! gRPC clients of Windfall's services.
//!
//! - [`GatewayClient`] sends rewards through a gateway and implements [`SendBonus`], as the SDK does: moving from one
//!   to the other is a change of the constructor.
//! - [`TokensClient`], [`WalletClient`], [`PayoutsClient`], [`RewardsClient`], [`ArchiveClient`], [`TimersClient`],
//!   [`JobsClient`], [`BackfillsClient`] and [`AuditsClient`] are the other services' calls, each with an error that says what to do next.
//! - [`TimerDelays`] keeps events that a consumer is to grant long after now, as timers that send them as rewards.
//! - [`FiredIds`] is for the other end of a timer: it recognises a timer that is delivered again.
//! - [`ClientOptions`]: the endpoints, the key or certificate, the time-outs and the number of attempts.
//!
//! Channels connect when they are first needed and again when they break. A call that got no answer is repeated, at
//! another endpoint if there is one: almost every call here may be repeated, since orders and withdrawals count
//! once. The exceptions are a replay from the archive, each of which is recorded with its actor; a timer that is added
//! without a key; and the end of timers that were given up.
//! A call that is not answered in time is [`Unanswered`](SendError::Unanswered): whether it was taken is not known, and
//! the same call again settles it.
//!
//! ```
//! use windfall_client::{ClientOptions, GatewayClient, SendBonus, SendError};
//! use windfall_proto::v1::{Bonus, SendBonusRequest, User};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let options = ClientOptions { endpoints: vec!["http://127.0.0.1:1".into()], attempts: 1, ..Default::default() };
//! let sender: Box<dyn SendBonus> = Box::new(GatewayClient::open(options)?);
//!
//! let request = SendBonusRequest {
//!     trade_no: "spring-2027/rain/0000000001/cash/42/0".into(),
//!     user: Some(User { user_id: 42, ..Default::default() }),
//!     activity: "spring-2027".into(),
//!     scene: "red-packet-rain".into(),
//!     bonus: Some(Bonus { r#type: "cash".into(), amount: 888, ..Default::default() }),
//!     ..Default::default()
//! };
//! // Nobody listens there.
//! let sent = sender.send_bonus(request).await;
//! assert!(matches!(sent, Err(error @ SendError::Unanswered(_)) if error.is_worth_retrying()));
//! # Ok::<(), windfall_client::OpenError>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod acts;
mod archive;
mod audits;
mod backfills;
mod error;
mod gateway;
mod jobs;
mod link;
mod long_delays;
mod options;
mod payouts;
mod repeats;
mod rewards;
mod timers;
mod tokens;
mod user;
mod wallet;

pub use acts::ActsClient;
pub use archive::ArchiveClient;
pub use audits::AuditsClient;
pub use backfills::BackfillsClient;
pub use error::{CallError, WithdrawError};
pub use gateway::GatewayClient;
pub use jobs::JobsClient;
pub use long_delays::{TimerDelays, TimerDelaysOptions};
pub use options::{ClientOptions, OpenError};
pub use payouts::PayoutsClient;
pub use repeats::{FiredIds, Seen};
pub use rewards::RewardsClient;
pub use timers::TimersClient;
pub use tokens::TokensClient;
pub use user::EndUser;
pub use wallet::WalletClient;
pub use windfall_proto::send::{SendBonus, SendError};
