//! Drains a topic: reads its records, grants their events as fast as the limits allow, and commits how far it is.
//!
//! For: the role `consumer` of the binary, one [`spawn`] a topic. Not for: knowing what a grant does (that is the
//! reward service), which queue a copy takes (that is the [`Outlet`]), or when a delayed event fires (a record
//! that is not due waits here a little and otherwise goes round through its queue).
//!
//! # The way of a record
//! 1. **Fetch.** As much as the lanes can take; see *Pace*.
//! 2. **Window** ([`window`]). The record gets a ticket. The committed offset of a partition never passes a
//!    record whose ticket is not finished (I3), and the ticket is finished when each of its events is credited,
//!    archived, or stored elsewhere: in a queue, acknowledged, or in the [`salvage`] file, synced.
//! 3. **Lane.** One a bonus type, bounded to what the type may pass within `hold_max`. Records that are not due
//!    wait in a delay room beside them.
//! 4. **Grant.** Lanes are served by priority. What the limiter admits is cut off the front, in parts of a record
//!    where it must be, and granted in batches across records, several calls at a time.
//! 5. **Settle.** Event by event. What was not decided goes back to a queue as a copy: attempt + 1, a delay that
//!    doubles, and failures + 1 only if the grant itself failed. Copies of events with the same past travel
//!    together, so requeues stay packed.
//!
//! # Rules
//! - **Nothing is archived for a limit or a fuse.** Only failed grants, more than `max_failures` of them, or a
//!   type that stays unknown for as many tries.
//! - **Fuses.** `pause`: held in its lane until the head-of-line deadline or until the lane is full, then
//!   requeued. `divert`: requeued at once; what waited in the lane too.
//! - **Head of line.** A record older than `deadline` goes back: what waits as it is, what is in a grant call as
//!   copies. The late answer is not waited for (the order number makes the copy harmless), and a call nobody
//!   waits for is cancelled.
//! - **Pace.** A lane that is a quarter of the topic or more holds the fetch back when it is full, so that a busy
//!   downstream costs no requeues. A partition that holds nothing but records for a full lane is paused. When a
//!   limit or a fuse is what holds the lane back, and another type has nothing left to do, the fetch goes on and
//!   the overflow is requeued, at most `churn_per_s` records a second.
//! - **In hand.** At most `in_hand_max` events in calls; half of it is split among the types, so a type whose
//!   downstream hangs leaves the others theirs.
//! - **Fleet** ([`Gate`]). The share of each limit is the partitions owned ÷ all. Lowered before a revoked
//!   partition can go. An instance that has not polled within the session time-out admits nothing, and its
//!   partitions no longer count for the other topics of its process.
//! - **Priority across topics.** Within a topic, cash asks first. Two topics of one process share the global
//!   bucket as they ask.
//!
//! # What if we die here?
//! Everything in memory is a copy of something uncommitted: after a crash it is delivered again and granted
//! again under its order number. Copies are written before their originals are finished, so a crash between the
//! two leaves both, never none. Nothing else is kept on disk but the salvage file.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use windfall_contract::Clock;
//! use windfall_consumer::{Done, Gate, Options, Outlet, Parts, RequeueOutcome, Requeued, Salvage, spawn};
//! # use async_trait::async_trait;
//! # use bytes::Bytes;
//! # use windfall_contract::rules::{Fuse, Limit, Limits, Pacing, Rules, TypeLimit};
//! # use windfall_limiter::{Limiter, Now};
//! # use windfall_proto::{event::EventRef, record};
//! # use windfall_contract::broker::{Change, Commit, CommitError, Consumer, Epoch, Fetch, InRecord, PollError, Polled};
//! # use windfall_contract::rewards::{ArchiveUnavailable, Failed, GrantReply, Rewards};
//! # struct OneRecord(Option<Bytes>);
//! # #[async_trait]
//! # impl Consumer for OneRecord {
//! #     async fn poll(&mut self, fetch: Fetch) -> Result<Polled, PollError> {
//! #         let Some(payload) = self.0.take() else {
//! #             tokio::time::sleep(fetch.wait).await;
//! #             return Ok(Polled::default());
//! #         };
//! #         let assigned = Change::Assigned { partition: 0, epoch: Epoch(1), next_offset: 0 };
//! #         let record = InRecord { partition: 0, epoch: Epoch(1), offset: 0, key: Bytes::new(), payload };
//! #         Ok(Polled { changes: vec![assigned], records: vec![record] })
//! #     }
//! #     async fn commit(&mut self, _: &[Commit]) -> Result<(), CommitError> { Ok(()) }
//! #     fn pause(&mut self, _: u32, _: bool) {}
//! #     fn partitions(&self) -> u32 { 1 }
//! #     async fn close(self: Box<Self>) {}
//! # }
//! # struct Yes;
//! # #[async_trait]
//! # impl Rewards for Yes {
//! #     async fn grant_batch(&self, _: &str, events: &[Bytes]) -> Vec<GrantReply> {
//! #         vec![GrantReply::Credited; events.len()]
//! #     }
//! #     async fn archive(&self, _: &[Failed]) -> Result<(), ArchiveUnavailable> { Ok(()) }
//! # }
//! # let limit = Limit { rate_per_s: 1_000_000, burst: 1_000 };
//! # let cash = TypeLimit { limit, fuse: Fuse::Closed, priority: 0 };
//! # let live_rules = Arc::new(Rules {
//! #     version: 1, bonus_types: vec!["cash".into()], topics: Default::default(), queues: Default::default(),
//! #     routes: vec![], limits: Limits { global: limit, types: [("cash".into(), cash)].into() }, budgets: vec![],
//! #     pacing: Pacing::default(), revocations: Default::default(),
//! # });
//! # let mut event = Vec::new();
//! # EventRef { trade_no: "rain-1", ..Default::default() }.encode([], &mut event);
//! # let head = record::Head { bonus_type: "cash", attempt: 0, failures: 0, not_before_ms: 0, count: 1 };
//! # let source = OneRecord(Some(record::build(head, [event.as_slice()]).into()));
//! # let rewards = Yes;
//! # let dir = tempfile::tempdir()?;
//!
//! /// No queue takes copies: they wait in the salvage file.
//! struct NoQueue;
//! impl Outlet for NoQueue {
//!     fn requeue(&self, _: Requeued, done: Done) {
//!         done(RequeueOutcome::Refused);
//!     }
//! }
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
//! # runtime.block_on(async {
//! let clock: Clock = Clock::system();
//! let now = Now(clock.monotonic_ns());
//! let limiter = Limiter::new(windfall_contract::rules::Limit { rate_per_s: 0, burst: 1 }, now);
//! let consumer = spawn(
//!     Parts {
//!         topic: "rain-a".into(),
//!         source: Box::new(source),
//!         rewards: Arc::new(rewards),
//!         outlet: Arc::new(NoQueue),
//!         salvage: Arc::new(Salvage::open(dir.path(), 64 << 20)?),
//!         gate: Arc::new(Gate::new(Arc::new(limiter), now)),
//!         rules: Arc::new(move || Arc::clone(&live_rules)),
//!         clock,
//!     },
//!     Options::default(),
//! );
//! while consumer.stats().credited.get() == 0 {
//!     tokio::time::sleep(Duration::from_millis(1)).await;
//! }
//! let report = consumer.drain(Duration::from_secs(5)).await?;
//! assert!(report.is_clean());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod archive;
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

pub use consumer::{ConsumerHandle, Crashed, DrainReport, Parts, RulesNow, spawn};
pub use gate::{Gate, Member};
pub use options::Options;
pub use requeue::{Done, Outlet, RequeueOutcome, Requeued};
pub use salvage::Salvage;
pub use stats::{Cause, ConsumerStats, Count, TypeStats};
