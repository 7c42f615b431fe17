//! A virtual queue over real brokers, whose master stands still for 10 s.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod failover;
