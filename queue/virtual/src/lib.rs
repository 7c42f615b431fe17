//! Virtual queues: a master and a backup topic on different brokers, as one place to send to.
//!
//! A [`Fanout`] owns every producer of a process (a topic's producer serves all queues that use it), sends each
//! [`Parcel`] to the topic that its user's id picks, at once to the other one if the first refuses, and goes on
//! trying, in turn and with backoff, until a broker has it or the parcel's patience ends. A breaker a topic keeps
//! a dead broker from costing time. Deliveries of all producers come back on one channel, the fan-out's own sink.
//!
//! A parcel stays the caller's: the fan-out borrows its bytes for each try, so an SDK can hold them in its spool
//! and a consumer in memory.
//!
//! What is sent twice: a record whose answer did not come in time is sent to the other topic as well. Its order
//! numbers make the copy harmless (I1); leaving it unsent would not be (I2).

mod fanout;
mod flight;
mod health;
mod topology;

pub use fanout::{CloseReport, Fanout, FanoutOptions, FanoutStats, TopicStats};
pub use topology::{QueueId, Side};

use std::time::Duration;

/// A record on its way, owned by whoever made it.
pub trait Parcel: Send {
    /// Its partition key.
    fn key(&self) -> &[u8];

    /// Its bytes; the same at every call.
    fn payload(&self) -> &[u8];

    /// How long to try before it is given back as [`Undelivered::PatienceOver`]. `None`: until `close`.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// A broker has stored it. Called once, from a driver's thread: be quick, do not block.
    fn delivered(self: Box<Self>);

    /// It was given up; it may or may not be stored somewhere. Called once, in place of `delivered`.
    fn undelivered(self: Box<Self>, why: Undelivered);
}

/// Why a parcel was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Undelivered {
    /// The fan-out was closed first.
    #[error("closed before a broker had it")]
    Closed,
    /// No topic took it for as long as it was ready to wait.
    #[error("no topic took it in time")]
    PatienceOver,
    /// It is larger than every topic takes.
    #[error("larger than any of its topics takes")]
    TooLarge,
    /// The fan-out already carries as many parcels as it may.
    #[error("the fan-out is full")]
    Full,
    /// None of the queues named exists in the rules in force.
    #[error("no such queue")]
    NoQueue,
}
