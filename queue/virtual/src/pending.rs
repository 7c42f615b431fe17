//! A record that waits to be stored, and why it may be given up.

use std::time::Duration;

/// A record that a fan-out is to deliver. It stays the caller's: the fan-out borrows its bytes for each try.
///
/// A fan-out whose own thread panics drops the record in its hand, and neither `delivered` nor `undelivered` is called: an
/// owner that must not forget it notices that in `Drop`.
pub trait PendingRecord: Send {
    /// The record's partition key.
    fn key(&self) -> &[u8];

    /// The record's bytes; they are the same at every call.
    fn payload(&self) -> &[u8];

    /// How long to try before the record is given back as [`Undelivered::PatienceOver`]. `None`: until `close`.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Whether its bonus type has priority 0 (cash): some of the fan-out's room is kept for such records.
    fn is_first(&self) -> bool {
        false
    }

    /// A broker has stored the record. Called once, from a driver's thread: be quick, do not block.
    fn delivered(self: Box<Self>);

    /// The record was given up; it may or may not be stored somewhere. Called once, in place of `delivered`.
    fn undelivered(self: Box<Self>, why: Undelivered);
}

/// Why a record was given up.
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
    /// The fan-out already carries as many records as it may, or as it may of this queue.
    #[error("the queue's share of the fan-out is spent")]
    Full,
    /// None of the queues named exists in the rules in force.
    #[error("no such queue")]
    NoQueue,
}
