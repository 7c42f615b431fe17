//! The backlog by discrete events: send, queue, lanes under limits, grants in batches, ledger.
//!
//! An event is something that happens to a pack of rewards or a batch of grants, never to a single reward, so that a festival of
//! 630 million rewards takes seconds. Time is simulated; the seed decides every random choice, and equal scenarios have
//! equal outcomes on every machine.
//!
//! What is the product's own here: the limiter (`windfall-limiter`, with its buckets, its precedence and its floors).
//! What is modelled after the product:
//! - **Send.** Packs of a type come at its rate, at random moments around it, and are in their topic `path_ms` later.
//! - **Fetch.** A topic is read in order. A pack goes to its type's lane while the lane has room. If the pack in front
//!   does not fit: where another type of the topic has an empty lane and could pass, it is requeued to the end of the topic
//!   after a delay, at most `churn_per_s` times per second; else the fetch waits.
//! - **Lanes.** By priority, the limiter says how many events of a lane pass; at most `in_flight_max` are in calls, of
//!   which each type has a part for itself.
//! - **Ledger.** A writer takes what waits, up to a transaction's size; a transaction takes a fixed time and a time per
//!   event. What a connector pays is written twice, with the connector's answer in between.
//!
//! Left out, because it does not move the backlog of a healthy system: commits, partitions, the spool, tokens, and faults
//! of every kind.

mod fluid;
mod outcome;
mod random;
mod run;
mod scenario;
mod topic;

pub use fluid::fluid;
pub use outcome::{Outcome, TypeOutcome};
pub use run::simulate;
pub use scenario::{LedgerModel, Pacing, Scenario, TypeLoad};
