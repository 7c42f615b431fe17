//! What a load needs: a rate of rewards, what the downstream systems take, and what waits how long, turned into counts of
//! servers, bytes and seconds.
//!
//! This crate is for `windfall plan`. It computes, and neither reads nor writes anything: files and arguments are the
//! binary's, so that a plan is the same on every machine. It is not the place that measures (`tools/bench` does), and
//! nothing of it runs in a service.
//!
//! - [`Inputs`] say what is wanted. Nonsense is refused with all that is wrong in it.
//! - [`Costs`] is the table of what one event, token, order or timer costs. Each names where it comes from: a row of
//!   docs/benchmarks.md, a measurement of docs/capacity.md, or an assumption that the reader should replace. A file of
//!   one's own (`windfall-bench … --json`) replaces rows by name.
//! - [`Plan`] has the [`Figure`]s: each with its formula and the names of its costs. A figure that leaves the range in
//!   which its cost was measured says that it is extrapolated.
//! - [`sim`] follows the backlog by discrete events, with the product's own limiter. `tests/closed_forms.rs` holds it
//!   against fluid limits, and `tests/reproduces.rs` against measured runs of the demo.
//! - [`svg`] draws the backlog.
//! - The feature `args` has the options of the command, so that the page is tested without the binary.
//!
//! # Example
//! ```
//! use windfall_plan::{Costs, Inputs, Plan, TypeInput};
//!
//! let cash = TypeInput { rate_per_s: Some(300_000), ..TypeInput::new("cash") };
//! let inputs = Inputs { rewards_per_s: 3_500_000, for_s: 180, types: vec![cash], ..Inputs::default() };
//! let plan = Plan::new(&inputs, &Costs::default())?;
//! // 630 million rewards at 300,000 per second take 35 minutes from the first send.
//! let cash = &plan.drains[0];
//! assert!((cash.fluid_s - 2_100.0).abs() < 1.0);
//! assert!((cash.simulated_s / cash.fluid_s - 1.0).abs() < 0.02);
//! # Ok::<(), windfall_plan::PlanError>(())
//! ```

#[cfg(feature = "args")]
mod args;
mod costs;
mod figure;
mod inputs;
mod numbers;
mod plan;
pub mod sim;
mod sizing;
pub mod svg;
mod text;

#[cfg(feature = "args")]
pub use args::PlanArgs;
pub use costs::{Basis, Cost, CostError, Costs, Key};
pub use figure::Figure;
pub use inputs::{Inputs, PlanError, TypeInput};
pub use plan::{Drain, Plan};
