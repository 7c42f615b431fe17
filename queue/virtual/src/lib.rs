//! Virtual queues: a master and a backup topic on different brokers, as one place to send to.
//!
//! A [`Fanout`] owns every producer of a process: a topic has one producer, which serves all queues that use the topic.
//! The fan-out sends each [`PendingRecord`] to the topic that the user's id picks. If that topic refuses the record, it
//! goes to the other topic at once; if an answer fails or does not come, the fan-out tries the topics in turn, with
//! backoff, until a broker has stored the record or the record's patience is over. Each topic has a breaker, so that a
//! dead broker costs no time. The reports of all producers come back on one sink, the fan-out's own.
//!
//! A pending record stays its caller's: the fan-out borrows its bytes for each try, so an SDK can keep them in its spool
//! and a consumer in memory.
//!
//! A record may be stored twice: one whose answer did not come in time is sent to the other topic as well. The order
//! numbers in it make the second copy harmless (I1); a record that is not sent again would be lost (I2).
//!
//! Each topic has an outbox, which connects in the background: neither [`Fanout::open`] nor [`Fanout::apply`] waits for a
//! broker, and a topic that cannot be opened holds up no other one. [`Fanout::topics`] says how each outbox is doing. The
//! outbox of a topic that the rules name no longer stays until the outcome of every record that it holds is known.
//!
//! - `options`: all limits and time-outs. `topology`: which queues and topics the rules name. `outbox`: the states of a
//!   topic. `opener`: the threads that open and close producers. `health`: the breaker of a topic. `in_flight`: what is
//!   sent and what waits. `shares`: which queue may take how much of the room. `sending`: the rules by which a record goes from one topic to the next.
//!
//! Not here: what a record holds, and how a queue is read. Queues and topics come from the live rules; brokers are given
//! by name, whatever their driver.
//!
//! # Send a record
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::Arc;
//! use std::time::Duration;
//! use windfall_contract::Clock;
//! use windfall_contract::broker::Broker;
//! use windfall_contract::rules::Rules;
//! use windfall_queue_virtual::{Fanout, FanoutOptions, PendingRecord, Undelivered};
//!
//! /// A pack of events of one user's.
//! struct Pack(Vec<u8>);
//!
//! impl PendingRecord for Pack {
//!     fn key(&self) -> &[u8] {
//!         b"order-1"
//!     }
//!     fn payload(&self) -> &[u8] {
//!         &self.0
//!     }
//!     fn delivered(self: Box<Self>) {
//!         println!("a broker has stored it");
//!     }
//!     fn undelivered(self: Box<Self>, why: Undelivered) {
//!         println!("nobody has it: {why}");
//!     }
//! }
//!
//! fn send(
//!     rules: &Rules,
//!     brokers: BTreeMap<String, Arc<dyn Broker>>,
//! ) -> Result<(), Box<dyn std::error::Error>> {
//!     let fanout = Fanout::open(rules, brokers, FanoutOptions::default(), Clock::system())?;
//!     let queue = fanout.queue("cash").ok_or("the rules have no such queue")?;
//!     let side = fanout.side(queue, 42).ok_or("the rules have this queue no more")?;
//!     fanout.submit(&[(queue, side)], Box::new(Pack(b"events".to_vec())));
//!     assert_eq!(fanout.close(Duration::from_secs(5)).undelivered, 0);
//!     Ok(())
//! }
//! ```

mod fanout;
mod health;
mod in_flight;
mod opener;
mod options;
mod outbox;
mod pending;
mod sending;
mod shares;
mod stats;
mod supervise;
mod topology;

pub use fanout::Fanout;
pub use options::FanoutOptions;
pub use pending::{PendingRecord, Undelivered};
pub use shares::{Place, Shares};
pub use stats::{CloseReport, FanoutStats, TopicState, TopicStats, TopicStatus};
pub use supervise::{PANICS_IN_A_ROW_MAX, ThreadHealth};
pub use topology::{QueueId, Side};
