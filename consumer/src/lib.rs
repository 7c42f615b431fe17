//! Drains a topic: window, lanes, dispatch, requeue, commit

mod archive;
mod clock;
mod consumer;
mod cycle;
mod dispatch;
mod gate;
mod going_back;
mod granting;
mod held;
mod intake;
mod lanes;
mod options;
mod partitions;
mod requeue;
mod room;
#[cfg(feature = "sabotage")]
pub mod sabotage;
pub mod salvage;
mod stats;
mod sweep;
mod sync;
pub mod window;

pub use clock::{Clock, SystemClock};
pub use consumer::{ConsumerHandle, Crashed, DrainReport, Parts, RulesNow, spawn};
pub use gate::Gate;
pub use options::Options;
pub use requeue::{Done, Outlet, RequeueOutcome, Requeued};
pub use salvage::Salvage;
pub use stats::{Cause, ConsumerStats, Count, TypeStats};
