//! Token store.
pub mod contract;
