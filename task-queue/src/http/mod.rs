//! The two APIs over HTTP: the queue API and the admin API.

mod admin;
mod answers;
mod api;
mod body;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod request;
mod server;
mod written;

pub use server::{Closed, PoolParts, StartError, TaskQueues, start};
