//! Reward service.
pub mod contract;
