//! The roles: services that other teams call. A process has one of them, or all.
//!
//! [`options`] is what a process is told, [`parts`] opens what the options name and hands it to the one wiring
//! ([`crate::wiring`]), [`role`] is the work of each role, [`mod@run`] the life of a process from its start to the last
//! drained record; [`metrics`], [`connectors`] and [`dev`] are what their names say.

mod auditor;
mod budget_burn;
mod connectors;
mod console;
pub mod dev;
mod fake;
mod jobs;
mod long_delays;
mod metrics;
mod options;
mod parts;
mod polled_metrics;
mod role;
mod rules_report;
mod run;
mod scheduler;
mod signing;
mod staged_watch;
mod task_queue;
mod undecided;

pub use fake::{FakeArgs, fake_downstream};
pub use options::ServiceOptions;
pub use role::Role;
pub use run::{ServeArgs, ServiceArgs, run, serve};
