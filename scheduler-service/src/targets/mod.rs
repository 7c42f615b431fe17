//! Where timers go.

mod bonus;
mod deliveries;
mod topic;

pub use bonus::BonusTarget;
pub use topic::{TopicChecks, TopicOptions, TopicTarget, refusal};
