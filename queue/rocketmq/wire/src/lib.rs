//! A thin client of RocketMQ 5's gRPC v2 protocol: sends in batches, receives by pop, acknowledges in batches,
//! extends what is still being worked on, and comes back by itself after the proxy was gone.
//!
//! - [`Client`]: one member: a producer of topics or a consumer of one group. Its calls have deadlines and answer with
//!   [`CallError`], whose [`next`](CallError::next) says what to do.
//! - `session`: the telemetry stream behind a client. The proxy forgets a client's settings when that stream ends, so
//!   they are sent again each time; nothing is received before they were echoed.
//! - [`admin`]: the few requests of the older remoting protocol that gRPC v2 lacks: topics, groups, positions.
//! - [`proto`]: the generated stubs; `proto/` holds only what is used here.
//!
//! It knows nothing of its user: no queueing, no retries of its own, no dispatch. A caller decides what an unknown
//! outcome means to it. Transactions, FIFO consumption and filters other than "all" are not here.
//!
//! # Send, receive, acknowledge
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use windfall_rocketmq_wire::{AckEntry, Client, ClientOptions, OutMessage, Receive, Role};
//!
//! let options = ClientOptions { endpoints: vec!["127.0.0.1:8081".into()], ..ClientOptions::default() };
//! let producer = Client::open(&options, Role::Producer { topics: vec!["orders".into()] })?;
//! let receipts = producer.send_batch("orders", vec![OutMessage::new("paid")]).await?;
//! assert!(receipts.into_iter().all(|receipt| receipt.is_ok()));
//!
//! let consumer = Client::open(&options, Role::Consumer { group: "shipping".into(), topics: vec!["orders".into()] })?;
//! consumer.ready(Duration::from_secs(10)).await?;
//! let mut acks = Vec::new();
//! let receive = Receive { topic: "orders".into(), ..Receive::default() };
//! consumer.receive(&receive, |message| acks.push(AckEntry::of(&message))).await?;
//! for done in consumer.ack("orders", &acks).await? {
//!     done?;
//! }
//! # Ok(())
//! # }
//! ```

pub mod admin;
mod client;
mod connection;
mod error;
mod handle;
mod identity;
mod message;
mod options;
mod request;
mod session;

pub use self::client::{AckEntry, Client, Receipt, Receive, Route};
pub use self::error::{CallError, Next, OptionsError};
pub use self::message::{Body, InMessage, MAX_INFLATED_BYTES, OutMessage};
pub use self::options::{ClientOptions, Credentials, Role};
pub use self::session::Granted;

/// The generated stubs and messages, as the protocol names them.
pub mod proto {
    #![allow(missing_docs, clippy::all, clippy::pedantic, clippy::restriction)] // generated
    #![allow(rustdoc::all)]
    tonic::include_proto!("apache.rocketmq.v2");
    /// The descriptors of all of the above, to be compared with the published ones.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
}
