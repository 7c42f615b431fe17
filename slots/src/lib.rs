//! Slot stores: where due tasks wait for their time, by shard and minute.
//!
//! - [`contract`](windfall_contract::due): what every driver offers.
//! - [`embedded`]: a driver on files inside the process.
//! - `redis`, with the feature of that name: a driver on Redis 7 and Redis Cluster.
//!
//! This crate decides neither who fires a task nor where it goes; `windfall-scheduler` does.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! use windfall_contract::Clock;
//! use windfall_contract::due::{Added, NewRecord, Route, Shard, SlotStore};
//! use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! # runtime.block_on(async {
//! let store = EmbeddedSlots::open(dir.path(), &EmbeddedSlotsOptions::default(), Clock::system())?;
//! let tenant = store.tenant("calls").await?;
//! let route = Route { tenant, target: store.target(tenant, "hang-up").await? };
//! let task = NewRecord { due_ms: 1_900_000_000_000, route, key: None, payload: "call 7".into() };
//! let added = store.add(Shard(3), &[task]).await?;
//! assert!(matches!(added[..], [Added::Stored(id)] if id.shard == Shard(3)));
//! assert_eq!(store.counts(Shard(3)).await?[&tenant], 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod checks;
mod dead_letter;
pub mod embedded;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "redis")]
pub mod redis;
