//! Drains a topic: reads its records, grants their events as fast as the limits allow, and commits its position.
//!
//! This crate is for the role `consumer` of the binary, which calls [`spawn`] once per topic. It is not the place
//! that knows what a grant does (that is the reward service), which queue an event goes back to (that is the
//! [`RequeueSink`]), or what keeps an event for days (a record that is not due waits here for a while and otherwise goes
//! round through its queue, or is handed over to [`LongDelays`](windfall_contract::long_delays::LongDelays)). It knows
//! brokers and rewards by their contracts alone.
//! # The path of a record
//! 1. **Fetch.** A poll brings as many records as the lanes can take; see *Pace*. Where [`Parts::signatures`] has keys, each
//!    is verified before anything of it is looked at (I12).
//! 2. **Window** ([`window`]). The record gets a ticket. The committed offset of a partition never passes a
//!    record whose ticket is not finished (I3), and the ticket is finished when each of its events is credited,
//!    archived, or stored elsewhere: in a queue that has acknowledged it, or in the [`spill_log`], synced.
//! 3. **Lane.** There is one bounded lane per bonus type. Records that are not due wait in a delay queue beside the
//!    lanes.
//! 4. **Grant.** Lanes are served by priority. What the limiter admits is cut off the front, in parts of a record
//!    where it must be, and granted in batches across records, in several calls at a time.
//! 5. **Settle.** Events are settled one by one. An event that was not decided waits in its lane and is asked for
//!    again. Only an event whose own grant failed goes back to a queue: with attempt + 1, failures + 1 and a delay that
//!    doubles. Events with the same past travel together, so requeued records stay packed.
//! # The owner of each rule
//! Each rule has one file that owns its state, in fields that no other file writes. That file takes values, and returns
//! what it has decided. `flow` and the files below it own the state of no rule: they hand a record from one owner to the next
//! and do what was decided. `dispatch` is the loop around them.
//!
//! | rule | owner |
//! |---|---|
//! | who may bring a record in, and what waits for a key that this process does not have yet | `signatures`, `late_keys` |
//! | what came in by a key that is destroyed since | `key_gone` |
//! | whether a record that arrives comes in, may wait for a key, or is archived | `arrival` |
//! | which records are in flight, where each waits and since when, and when one is finished | `in_flight` |
//! | what waits for its limit, and how much may | `lane`, `lanes` |
//! | what was asked for, was not decided, and waits in its lane to be asked for again | `ask_again` |
//! | what follows a grant that was not decided | `undecided` |
//! | whether the reward service and the downstream of each type answer, and so which types could flow | `health` |
//! | which records go back at their deadline, and which wait on | `head_of_line` |
//! | what waits for its due time | `delay_queue` |
//! | what is due long after now, and is handed over to the service of long delays | `hand_over` |
//! | which grant calls are open, and who waits for their answers | `grant_calls` |
//! | what goes back to a queue, packed how, and when it is due again | `retry_state`, `outbox`, `requeue_delay` |
//! | what waits on disk when no queue takes it, and its replay | [`spill_log`], `replay` |
//! | what is archived | `archive` |
//! | windows, commits and pauses of the partitions owned | `partition`, `partitions`, [`window`] |
//! | how much is fetched | `pace` |
//! | whether the session is over, and what share of the limits is ours | `liveness`, `membership`, `shared_limiter` |
//! | turns with the broker | `broker_link` |
//! | how a consumer ends | `drain` |
//! | how it begins, and begins anew after a panic | [`Supervisor`], `dispatch/restart` |
//! | which record made it panic | `probation` |
//!
//! # Rules
//! - **Nothing is archived for a limit or a fuse.** An event is archived only after more than `max_failures` failed
//!   grants, or when its type stays unknown for as many tries.
//! - **Waiting is not copying.** What waits for a limit, a fuse, its due time or a downstream waits in memory within
//!   bounds, and beyond them in the broker. While no type could flow, nothing is written back: in an outage all of it
//!   stays where it is, a few events of each type are asked for every second, and the first decision opens the lane.
//! - **Failures.** A grant has failed if the downstream says no to the event, or leaves it without an answer while it
//!   decides others of its type. Where nothing of a type is decided, a time-out is unknown and no failure; after five
//!   such calls the type's breaker is open, and what the downstream says no to is counted but waits in place.
//! - **Fuses.** With `pause` an event is held in its lane like one that waits for a limit. With `divert` it is requeued
//!   at once, and so is what waited in the lane.
//! - **Head of line.** A record whose own work is older than `deadline` goes back if it holds up work that is done: if
//!   its type is granted nothing while another one is, or if its own grant is not decided while others of its type are.
//!   The late answer is not waited for (the order number makes a second grant harmless), and a call whose answer no
//!   record waits for is cancelled. A window that can take no more gives back its oldest records if any type could
//!   flow.
//! - **Pace.** A lane that is a quarter of the topic or more holds the fetch back when it has what passes within
//!   `hold_max`. A partition that holds nothing but records for such a lane is paused. When a limit, a fuse or a
//!   downstream holds the lane back, and another type that could flow has nothing left to do, the fetch goes on: into
//!   memory up to `lane_events_max` and `lane_bytes_max`, and beyond them the overflow is requeued, at most
//!   `churn_per_s` records per second and each once per its delay. When copies come round and nothing else comes
//!   with them, the next look comes half a minute later.
//! - **Due times.** A record that is not due is not written back for its age. It goes back once at most, where the
//!   delay queue is full and a type could flow. A due time further ahead than any delay (`requeue_delay_max`, or ten
//!   minutes where a downstream asks for more) was set by a wrong clock: it is brought back to that bound, and counted.
//!   An event whose sender wants it to be granted later says so itself. Where [`Parts::long_delays`] names a service, it
//!   is handed over as soon as it comes, in calls that are repeated until they are answered with yes, and is finished here
//!   only then (I3). Meanwhile it waits as any other record, its due time unchanged.
//! - **In flight.** At most `in_hand_max` events are in calls; half of that number is split among the types, so a type
//!   whose downstream hangs leaves the others their part.
//! - **Fleet** ([`SharedLimiter`]). The share of each limit is the partitions owned ÷ those of all topics that the
//!   rules name, draining ones too; for 15 seconds after a change of the topics, the smaller part counts. It is
//!   lowered before a revoked partition can go. An instance that has not polled within the session time-out admits
//!   nothing, and its partitions no longer count for the other topics of its process.
//! - **Priority across topics.** While the global limit is short, the limiter that all topics of a process share serves
//!   the lower priority number first, whichever topic asks. A type that waits longer than 200 ms gets one event in 20
//!   of those that pass before it.
//!
//! # Panics
//! A [`Supervisor`] opens the broker's consumer, for as long as that takes, and starts the loop again after a panic,
//! with the same source, so that no other member of the group is given what made it panic. The records that were in
//! flight are let in again in groups that each further panic halves. A record that is alone in flight at two panics is
//! archived whole, with the reason `quarantined`, and the others go on. After [`Options::panics_max`] panics in a row
//! without progress the supervisor gives up, and its process should end.
//! # What a crash leaves
//! Everything in memory is a copy of something uncommitted: after a crash it is delivered again and granted
//! again under its order number. What goes back is stored before its original is finished, so a crash between the
//! two leaves both, never none. Nothing else is kept on disk but the spill log.
//!
//! # Example
//! A requeue sink without any queue, so that what goes back waits in the spill log:
//!
//! ```
//! use windfall_consumer::{Done, RequeueOutcome, RequeueRecord, RequeueSink, SpillLog};
//!
//! struct NoQueue;
//! impl RequeueSink for NoQueue {
//!     fn requeue(&self, _record: RequeueRecord, done: Done) {
//!         done(RequeueOutcome::Refused);
//!     }
//! }
//!
//! let dir = tempfile::tempdir()?;
//! let spill_log = SpillLog::open(dir.path(), 64 << 20)?;
//! assert_eq!(spill_log.pending(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Start, watch and drain; the code that wires a process supplies the [`Parts`]:
//!
//! ```
//! use std::time::Duration;
//! use windfall_consumer::{Crashed, DrainReport, Options, Parts, spawn};
//!
//! async fn drain_after(parts: Parts, events: u64) -> Result<DrainReport, Crashed> {
//!     let consumer = spawn(parts, Options::default());
//!     while consumer.stats().credited.get() < events {
//!         tokio::time::sleep(Duration::from_millis(10)).await;
//!     }
//!     consumer.drain(Duration::from_secs(5)).await
//! }
//! ```
//!
//! `examples/consume.rs` is a whole program on the embedded broker.

mod archive;
mod arrival;
mod ask_again;
mod broker_link;
mod caught;
mod consumer;
mod delay_queue;
mod dispatch;
mod drain;
mod flow;
mod grant_calls;
mod hand_over;
mod head_of_line;
mod health;
mod in_flight;
mod key_gone;
mod lane;
mod lanes;
mod late_keys;
mod liveness;
mod membership;
mod options;
mod outbox;
mod pace;
mod partition;
mod partitions;
mod parts;
mod probation;
mod record_head;
mod replay;
mod requeue;
mod requeue_calls;
mod requeue_delay;
mod retry_state;
#[cfg(feature = "sabotage")]
pub mod sabotage;
mod shared_limiter;
mod signatures;
pub mod spill_log;
mod stage;
mod stats;
mod supervisor;
mod sync;
mod topology;
mod undecided;
mod units;
mod watchdog;
pub mod window;

pub use consumer::{ConsumerHandle, Crashed, spawn};
pub use drain::DrainReport;
pub use options::{Options, OutOfRange};
pub use parts::{Parts, RulesNow};
pub use requeue::{Done, RequeueOutcome, RequeueRecord, RequeueSink};
pub use shared_limiter::{Member, SharedLimiter};
pub use signatures::{Signatures, Unsigned};
pub use spill_log::SpillLog;
pub use stats::{Cause, ConsumerStats, Count, TypeStats};
pub use supervisor::{OpenSource, Opening, SupervisedParts, Supervisor, SupervisorState};
