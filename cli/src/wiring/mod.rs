//! The one wiring of a process: SDK, queues, consumers, reward service, token verifier, wallet, scheduler, and the tasks that
//! keep them at the rules, budgets and keys in force.
//!
//! Nothing here knows an address or an options file. Whoever starts a process gives [`Parts`] (brokers, stores, ledger,
//! connectors, live rules), says by [`Work`] what the process does, and gets a running [`Wiring`]. `services` opens the
//! parts that an options file names; `demo` opens parts that it can break. What runs on them is the same.

mod add_queue;
mod async_grants;
mod background;
mod budgets;
mod consuming;
#[cfg_attr(not(feature = "roles"), path = "jobs_absent.rs")]
mod jobs;
mod keys;
mod ledger_mark;
mod parts;
mod queues;
mod readiness;
mod requeue;
mod running;
mod scheduling;
mod signing;
mod token_drop;
mod topic_consumer;
pub mod topic_life;
mod work;

pub use add_queue::{AddQueuePart, AddTopic};
pub use background::{Background, Hopeless, Tasks};
pub use consuming::Consuming;
#[cfg(feature = "roles")]
pub use jobs::ReadXxlStats;
pub use jobs::{JobsPart, RunningJobs};
pub use parts::{Brokers, Options, Parts};
pub use queues::{lag, open as open_queues};
pub use readiness::connect;
pub use requeue::RequeueToQueues;
pub use running::Wiring;
pub use scheduling::{Scheduling, SchedulingOptions, TargetPart};
pub use signing::{AcceptedByName, Signing, SigningKeys, SigningOptions};
pub use work::Work;

/// The consumer group of the reward service.
pub const GROUP: &str = "reward";
