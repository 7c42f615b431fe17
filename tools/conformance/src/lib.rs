//! What every implementation of a contract must show, as checks that its tests run.
//!
//! Each module is one suite: it states the sentences of a contract as checks. A crate that implements the contract
//! takes this crate as a dev-dependency, says in a `Fixture` how its implementation is opened, and calls `run`. A
//! fake passes the same checks as the real thing, so tests that use a fake tell the truth.
//!
//! | suite | contract | feature |
//! |---|---|---|
//! | [`broker`] | producers and consumers of topics, `windfall_contract::broker` | – |
//! | [`entries`] | stores of versioned entries that change in groups, `windfall_contract::entries` | – |
//! | [`slots`] | slot stores of due tasks, `windfall_contract::due` | – |
//! | [`task_queue`] | stores of jobs that consumers pull, `windfall_contract::task_queue` | – |
//! | [`tokens`] | token stores, `windfall_contract::tokens` | – |
//! | `rules` | homes of the live rules: changed by operators, followed by processes | `rules` |
//! | `ledger` | the databases below the ledger | `ledger` |
//!
//! `redis_nodes` (feature `redis`) is no suite: the drivers' tests on real servers share it.
//!
//! No crate of the product depends on this one, except in its tests. The suites of rules and of the ledger speak the
//! vocabulary of `windfall-config` and `windfall-ledger`; they are features, so that a driver's tests build neither.
//!
//! # A suite on an implementation
//! ```no_run
//! use std::sync::Arc;
//! use windfall_conformance::tokens::{self, Fixture};
//! use windfall_contract::tokens::TokenStore;
//!
//! /// How the store under test is opened.
//! struct Mine;
//!
//! #[async_trait::async_trait]
//! impl Fixture for Mine {
//!     fn name(&self) -> &str {
//!         "mine"
//!     }
//!
//!     async fn open(&self) -> Result<Arc<dyn TokenStore>, String> {
//!         # unreachable!("this example is compiled, not run")
//!         // … opens the store, again with the same data after the last handle was dropped.
//!     }
//! }
//!
//! # async fn test() {
//! let failed = tokens::run(&Mine).await;
//! assert!(failed.is_empty(), "{failed:#?}");
//! # }
//! ```

pub mod broker;
pub mod entries;
#[cfg(feature = "ledger")]
pub mod ledger;
#[cfg(feature = "redis")]
pub mod redis_nodes;
#[cfg(feature = "rules")]
pub mod rules;
pub mod slots;
pub mod task_queue;
pub mod tokens;
