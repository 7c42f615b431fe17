//! Where timers go.

mod away;
mod bonus;
mod deliveries;
mod jobs;
mod topic;

pub use bonus::BonusTarget;
pub use jobs::{JobTarget, JobTargetOptions};
pub use topic::{TopicChecks, TopicOptions, TopicTarget, refusal};
