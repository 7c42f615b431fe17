//! The Kafka driver on a real broker: the contract, and what it promises beyond.
#![cfg(feature = "kafka")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod failover;
mod kafka;
