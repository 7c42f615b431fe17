//! Due tasks: what is to happen at a time.
//!
//! For: [`Timers`] stores, moves, cancels and lists the tasks of tenants, within their quotas, many calls by one push
//! to a [`SlotStore`](windfall_contract::due::SlotStore). [`Dispatcher`] owns a part of the store's shards, together
//! with the other instances, and hands each task to its [`Target`](windfall_contract::due::Target) when the store's
//! clock has reached its time (I10): never early, never after an acknowledged cancel, at least once, and again only
//! where a crash or a lost lease leaves open whether the target has it.
//!
//! Not for: where tasks lie (the drivers of the slot store), what becomes of them at their target, and who may call.

mod caught;
mod dispatch;
mod fail_points;
mod options;
mod stats;
mod task;
mod tenants;
mod timers;

pub use dispatch::{Dispatcher, Drained};
pub use options::{DispatchOptions, OutOfRange, TimersOptions};
pub use stats::{Count, DispatchStats, Lateness, TargetStats, TenantStats};
pub use task::{AddError, DeadView, NewTask, TaskView, TimersError};
pub use tenants::{Class, InvalidTenant, Retry, TargetRules, TenantRules, Tenants};
pub use timers::{Timers, TimersStats};

/// Points at which tests let a dispatcher stand still, panic or die.
#[cfg(feature = "sabotage")]
pub mod sabotage {
    pub use crate::fail_points::{FailPoint, abort_at, disarm, freeze, is_reached, panic_at, stop_at, thaw};
}

/// Tasks that one call adds or names at most.
pub const CALL_TASKS_MAX: usize = 1_000;
