//! Due tasks: what is to happen at a time.
//!
//! For: [`Timers`] stores, moves, cancels and lists the tasks of tenants, within their quotas, many calls by one push
//! to a [`SlotStore`](windfall_contract::due::SlotStore). [`AddQueue`] takes tasks into it that were written to a queue first,
//! so that their adds succeed while the store is away. [`Dispatcher`] owns a part of the store's shards, together
//! with the other instances, and hands each task to its [`Target`](windfall_contract::due::Target) when the store's
//! clock has reached its time (I10): never early, never after an acknowledged cancel, at least once, and again only
//! where a crash or a lost lease leaves open whether the target has it.
//!
//! Not for: where tasks lie (the drivers of the slot store), what becomes of them at their target, and who may call.
//!
//! ```
//! # use async_trait::async_trait;
//! # use std::{collections::BTreeMap, sync::Arc, time::Duration};
//! # use windfall_contract::Clock;
//! # use windfall_contract::due::{Fired, Firing, SlotStore, Target};
//! # use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};
//! use windfall_scheduler::{
//!     Class, DispatchOptions, Dispatcher, NewTask, TargetRules, TenantRules, Tenants, Timers, TimersOptions,
//! };
//!
//! /// Prints what is due.
//! struct Printer;
//!
//! #[async_trait]
//! impl Target for Printer {
//!     async fn fire(&self, batch: Vec<Firing>) -> Vec<Fired> {
//!         batch.iter().for_each(|task| println!("{}: {:?}", task.id, task.payload));
//!         vec![Fired::Done; batch.len()]
//!     }
//! }
//!
//! # let dir = tempfile::tempdir()?;
//! # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let clock = Clock::system();
//! let store: Arc<dyn SlotStore> =
//!     EmbeddedSlots::open(dir.path(), &EmbeddedSlotsOptions::default(), clock.clone())?;
//! let targets = BTreeMap::from([("printer".to_owned(), TargetRules::default())]);
//! let rules = TenantRules { waiting_max: 1_000, adds_per_s: 1_000, class: Class::Normal, targets };
//! let tenants = Arc::new(Tenants(BTreeMap::from([("calls".to_owned(), rules)])));
//!
//! let timers = Timers::start(TimersOptions::default(), Arc::clone(&tenants), Arc::clone(&store), clock.clone());
//! let printer: Arc<dyn Target> = Arc::new(Printer);
//! let targets = BTreeMap::from([(("calls".to_owned(), "printer".to_owned()), printer)]);
//! let options = DispatchOptions::default();
//! let dispatcher = Dispatcher::start(options, tenants, store, targets, "instance-1".into(), clock.clone());
//!
//! let due_ms = clock.unix_ms() + 100;
//! let task = NewTask { target: "printer".into(), due_ms, key: None, payload: "call 7 hangs".into() };
//! let added = timers.add("calls", vec![task]).await;
//! assert!(added[0].is_ok());
//! while dispatcher.stats().done.get() == 0 {
//!     tokio::time::sleep(Duration::from_millis(10)).await;
//! }
//! timers.close().await;
//! dispatcher.drain(Duration::from_secs(5)).await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod add_queue;
mod backfill;
mod caught;
mod dispatch;
mod fail_points;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod options;
mod stats;
mod task;
mod tenants;
mod timers;

pub use add_queue::{
    ADD_SIGNATURE_BYTES, AddQueue, AddQueueOptions, AddQueueParts, AddQueueStats, AddSignatures, NotVerified,
    NotWritten, QueueTopic, QueueWriter, SetAside, SetAsideTimer, read_set_aside,
};
pub use backfill::{
    BackfillError, BackfillParts, BackfillRequest, BackfillState, BackfillStatus, Backfills,
    RATE_DEFAULT_PER_S, RATE_MAX_PER_S, WAITING_MAX,
};
pub use dispatch::{Dispatcher, Drained};
pub use options::{DispatchOptions, OutOfRange, TimersOptions};
pub use stats::{BackfillStats, Count, DispatchStats, Lateness, TargetStats, TenantStats};
pub use task::{Accept, AddError, DeadView, NewTask, TaskView, TimersError};
pub use tenants::{CatchUp, Class, InvalidTenant, Retry, TargetRules, TenantRules, Tenants};
pub use timers::{Timers, TimersStats};

/// Points at which tests let a dispatcher stand still, panic or die.
#[cfg(feature = "sabotage")]
pub mod sabotage {
    pub use crate::fail_points::{FailPoint, abort_at, disarm, freeze, is_reached, panic_at, stop_at, thaw};
}

/// Tasks that one call adds or names at most.
pub const CALL_TASKS_MAX: usize = 1_000;
