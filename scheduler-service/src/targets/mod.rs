//! Where timers go.

mod away;
mod bonus;
mod deliveries;
mod far_jobs;
mod jobs;
mod topic;

pub use bonus::BonusTarget;
pub use far_jobs::FarJobTarget;
pub use jobs::{JobTarget, JobTargetOptions};
pub use topic::{TopicChecks, TopicOptions, TopicTarget, refusal};
