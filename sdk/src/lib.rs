//! The SDK that an activity service links.
//!
//! Three layers: the typed helpers of a scene ([`RedPacketRain`], [`CardDraw`], [`Fireworks`]), which build the
//! order number and fix what does not change; the general [`Sdk::send_bonus`], which takes the very request that
//! an RPC would carry; and [`Sdk::builder`] and [`Sdk::close`]. This crate re-exports whatever these name, so that it
//! is the only dependency that a caller needs.
//!
//! A call checks its arguments, mints the token, copies the event into the spool and returns: microseconds, no
//! network, no disk. From then on the event survives the death of the process (I2). The pump gathers events of one
//! queue, side and type into packs and sends them through the virtual queue; a pack leaves the spool when a broker has
//! acknowledged it. With a signing key ([`SdkBuilder::signing_file`]) the pump signs each pack for its queue; without one, consumers
//! on real brokers archive its records, unless they accept unsigned ones by name. Where no queue
//! takes a pack it waits there until the rules have one that does. Brokers may be away, at the start as well: calls
//! succeed as long as the spool has room. Tokens go to the token store on the side, which may be down (I8).
//!
//! Drivers are features: `kafka`, `rocketmq`, `embedded` (a broker and a token store on files of this process) and
//! `redis` (a token store). None is on by default, and none that is off is built. The feature `rpc` has the SDK's gRPC
//! service.
//!
//! Not here: granting, verifying tokens, reading queues.
//!
#![cfg_attr(feature = "kafka", doc = "```no_run")]
#![cfg_attr(not(feature = "kafka"), doc = "```ignore")]
//! use windfall_sdk::{Prize, RedPacketRain, Sdk, User};
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let sdk = Sdk::builder("windfall")
//!         .rules_file("rules.toml") // queues and routes, followed as they change
//!         .keys_file("keys.toml") // made by: windfall keys new
//!         .kafka("a", "localhost:9092") // elsewhere: kafka_with, and TLS
//!         .kafka("b", "localhost:9192")
//!         .spool_dir("spool") // events wait here until a broker has them
//!         .build()?;
//!     let rain = RedPacketRain::new(&sdk, "spring-2027", "cash")?;
//!     let reply = rain.send(1, User::id(42), 0, Prize { amount: 888, description: "red packet" })?;
//!     println!("{}", reply.token); // the user's proof; the event survives this process from here on
//!     sdk.close_blocking(std::time::Duration::from_secs(10));
//!     Ok(())
//! }
//! ```

pub mod brokers;
mod builder;
mod error;
mod lane;
mod minting;
mod options;
mod plan;
mod pump;
mod reward;
#[cfg(feature = "rpc")]
pub mod rpc;
mod scenes;
mod sdk;
mod signing;
mod stats;
mod threads;
mod tokens;
mod unrouted;

pub use builder::SdkBuilder;
pub use error::{BuildError, InitError};
pub use options::{
    DESCRIPTION_MAX_BYTES, DEVICE_ID_MAX_BYTES, EXTENSION_ENTRIES_MAX, EXTENSION_KEY_MAX_BYTES,
    EXTENSION_VALUE_MAX_BYTES, SdkOptions, SpoolDurability, SpoolMode,
};
pub use reward::User;
pub use scenes::{CardDraw, Fireworks, Prize, RedPacketRain};
pub use sdk::{Inherited, Sdk, SdkCloseReport, SdkParts};
pub use stats::SdkStats;

pub use windfall_config as config;
pub use windfall_config::{FileSource, LiveRules};
pub use windfall_contract as contract;
pub use windfall_contract::Clock;
pub use windfall_contract::tokens::TokenStore;
pub use windfall_proto as proto;
pub use windfall_proto::send::{SendBonus, SendError};
pub use windfall_proto::v1::{SendBonusReply, SendBonusRequest};
pub use windfall_queue_virtual::{Fanout, FanoutOptions, TopicState, TopicStatus};
pub use windfall_signing::{LiveRing, OpenRingError, RingFile, Signer};
pub use windfall_spool::OpenError as SpoolError;
#[cfg(any(feature = "embedded", feature = "redis"))]
pub use windfall_store as store;
pub use windfall_token::{KeyFileError, KeyRing, NoPrimary};
