//! The roles: services that other teams call, one a process or all in one.
//!
//! [`options`] is what a process is told, [`parts`] what it opens ([`opening`]), [`role`] what a role mounts, [`mod@run`] its life from
//! the start to the last drained record; [`following`], [`metrics`] and [`dev`] are what their names say.

mod connectors;
mod dev;
mod fake;
mod following;
mod keys;
mod later;
mod metrics;
mod opening;
mod options;
mod parts;
mod role;
mod run;
mod slow;

pub use fake::{FakeArgs, fake_downstream};
pub use role::Role;
pub use run::{ServeArgs, ServiceArgs, run, serve};
