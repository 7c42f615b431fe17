//! Events that are due long after now, and the service that keeps them until then, so that no consumer has to.

use async_trait::async_trait;
use bytes::Bytes;

/// An event that its sender wants to be granted at a later time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelayedEvent {
    /// When it is due, in Unix milliseconds.
    pub due_ms: u64,
    /// The event's bytes.
    pub event: Bytes,
}

/// The event is not known to be stored: hand it over again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not handed over: {0}")]
pub struct NotHandedOver(pub String);

/// Keeps events that are due long after now, and sends them to a queue again when they are due, as the same order.
#[async_trait]
pub trait LongDelays: Send + Sync {
    /// Whether it would come back as the same order. What is refused here must not be handed over.
    ///
    /// # Errors
    /// Why not; it will never be otherwise.
    fn check(&self, delayed: &DelayedEvent) -> Result<(), String>;

    /// Takes events: one answer for each, in order. After `Ok` the event is stored durably and comes back by itself, so
    /// that whoever had it may forget it. Handing the same event over again is harmless, whether the first time succeeded,
    /// failed or was not answered. A call that is dropped may have stored any of them.
    ///
    /// `together`: so many of the events come in one record, which whoever has it may forget only as a whole. Where the
    /// service can never have room for so many, it stores none of the call, and says what an operator has to change.
    async fn hand_over(&self, events: &[DelayedEvent], together: usize) -> Vec<Result<(), NotHandedOver>>;
}
