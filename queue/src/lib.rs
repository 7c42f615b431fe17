//! Queues.
pub mod contract;
