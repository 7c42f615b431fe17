//! Cron and one-off jobs on the scheduler, routed to executors.

pub mod routing;
pub mod schedule;
pub mod store;
pub mod xxl;
