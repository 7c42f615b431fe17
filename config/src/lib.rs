//! Configuration.
pub mod rules;
