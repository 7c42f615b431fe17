//! The traits between Windfall's parts, and the types that they share. This crate does no I/O, starts no threads and
//! reads no clock.
//!
//! An implementation depends on this crate and never on another implementation: the consumer knows [`rewards`] and
//! not the ledger, a wallet knows [`accounts`] and [`verifier`] and neither SQL nor Redis, a sender knows [`broker`]
//! and no broker's client. Each contract has a conformance suite that every implementation passes.
//!
//! | module | what it says | implemented by | used by |
//! |---|---|---|---|
//! | [`broker`] | producers and consumers of topics | `queue/*` | SDK, consumer |
//! | [`tokens`] | the token store | `store` | SDK, token service |
//! | [`verifier`] | listing and verifying tokens | token service | wallet |
//! | [`rewards`] | granting and archiving events | reward service, its gRPC client | consumer, wallet |
//! | [`accounts`] | balances, flow, orders, withdrawals | reward service, its gRPC client | wallet, token service |
//! | [`connector`] | a downstream system that pays | `connectors` | reward service |
//! | [`due`] | the slot store and the targets of due tasks | `slots`, `scheduler` | `scheduler` |
//! | [`entries`] | a store of versioned entries that change in groups and are woken at a time | `jobs` | `jobs` |
//! | [`task_queue`] | the store of jobs that consumers pull | `task-queue` | `task-queue` |
//! | [`long_delays`] | events that are due long after now | the scheduler's client | consumer |
//! | [`rules`] | the live rules after validation | `config` parses and follows them | everybody |
//!
//! [`Clock`] is the one clock that callers inject, [`breaker::Breaker`] the one circuit breaker; [`metrics`] is where a
//! number that operators see is declared.
//!
//! ```
//! use windfall_contract::Clock;
//! use windfall_contract::breaker::{Breaker, Pass};
//! use windfall_contract::rules::{Fuse, Limit, Ratio};
//!
//! let clock = Clock::from_sources(|| 5_000_000, || 1_800_000_000_000);
//! let mut breaker = Breaker::new(1, 1_000_000);
//! breaker.failed(clock.monotonic_ns());
//! assert_eq!(breaker.ask(clock.monotonic_ns()), Pass::OpenUntil(6_000_000));
//!
//! assert_eq!(Fuse::default(), Fuse::Closed);
//! assert!(Ratio::new(101).is_none());
//! assert!(Limit { rate_per_s: 300_000, burst: 3_000 }.rate_per_s <= Limit::RATE_PER_S_MAX);
//! ```

pub mod accounts;
pub mod asserted;
pub mod breaker;
pub mod broker;
mod clock;
pub mod connector;
pub mod due;
pub mod entries;
pub mod finished;
mod fnv;
pub mod long_delays;
pub mod metrics;
mod revocations;
pub mod rewards;
pub mod rules;
mod staged;
pub mod task_queue;
pub mod tokens;
pub mod verifier;

pub use clock::Clock;
pub use fnv::fnv1a;
