//! The SDK over brokers that hang, refuse and come back, with a spool that outlives the process.
#![allow(clippy::unwrap_used)] // tests

mod building;
mod calls;
mod delayed;
mod keys;
mod orders;
mod packing;
mod panics;
mod refusals;
mod repeats;
mod rules;
mod shares;
mod signed;
mod spool;
mod stage;
mod tokens;
