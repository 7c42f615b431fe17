//! The Kafka driver on a real broker: the contract, and what it promises beyond.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod kafka;
