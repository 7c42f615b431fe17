//! Configuration.
mod bounds;
mod document;
mod live;
mod nearest;
mod refusal;
pub mod rules;

pub use live::{Applied, Applier, LiveRules, Noted, Status};
pub use refusal::{Fault, Problem, Refusal};
pub use rules::Rules;
