//! Jobs over gRPC and HTTP: the calls of users, and executors that are called over gRPC.
//!
//! - [`JobsService`] offers `windfall.v1.Jobs` over [`Jobs`](crate::Jobs). Who calls decides whose jobs a call may touch, and
//!   under which name a change is noted.
//! - [`GrpcExecutors`] calls executors that implement `windfall.v1.Executor`.

mod address;
mod batches;

mod executors;
mod messages;
mod service;
mod spec;
mod status;

pub use executors::{GrpcExecutors, GrpcOptions};
pub use service::JobsService;
