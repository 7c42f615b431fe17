//! What every implementation of a contract must show, as checks that its tests run.
//!
//! Each module is one suite: it states the sentences of a contract as checks, and a crate that implements the
//! contract takes this crate as a dev-dependency, describes how its implementation is opened (a fixture) and runs
//! them. A fake passes the same checks as the real thing, so tests that use fakes tell the truth.
//!
//! - [`broker`]: what producers and consumers of topics must do (`windfall_contract::broker`).
//!
//! No crate of the product depends on this one, except in its tests.

pub mod broker;
