//! Cron and one-off jobs on the scheduler, routed to executors.

mod api;
mod book;
mod core;
pub mod definition;
pub mod executors;
mod occurrences;
mod options;
pub mod routing;
#[cfg(feature = "rpc")]
pub mod rpc;
pub mod runs;
pub mod schedule;
mod sending;
mod stats;
pub mod store;
mod store_clock;
mod tending;
mod transition;
pub mod xxl;

pub use api::{ExecutorView, JobView, Jobs, JobsError, JobsParts, RunView};
pub use options::{JobsOptions, OutOfRange};
pub use stats::{Count, JobsStats, LATENESS_BUCKETS_MS};
