//! Configuration: the static options of a process, and the live rules of a fleet.
//!
//! **Live rules** are one versioned document (TOML; `samples/rules.toml` describes every key): topics and
//! queues, routes, limits and fuses, budgets, pacing.
//! - [`Rules`](windfall_contract::rules::Rules) is a consistent document; [`parse_rules`] is the only way from text to
//!   it. A document that does not validate as a whole changes nothing (I6): the [`Refusal`] names every problem with
//!   its key, its line, what was found and what is allowed.
//! - [`LiveRules`] is the handle that all other code holds: the rules that run now, swapped as a whole, with
//!   the version and the refusals in its [`Status`].
//! - [`FileSource`] watches a file for it and applies a change within 1 s. If the file goes away, what runs
//!   goes on (I8). Another source offers its candidates to an [`Applier`] in the same way.
//! - [`RulesStore`] changes the file for an operator: each change is checked, atomic and numbered, with an actor and a
//!   reason, and any version can be rolled back to ([`ChangeRules`]).
//! - [`Proposal`] is a change that waits for a second person, where the rules ask for one; [`ChangeRules::approve`] makes it.
//! - [`RulesEdit`] is one change to a document's text, which leaves the rest as it is; [`differences`] says what differs
//!   between two documents.
//! - [`stage()`] has some processes try a change of limits or pacing, within [`Guards`](windfall_contract::rules::Guards);
//!   [`promote`] makes it for all, and [`abort`] takes it back.
//! - `etcd`, with the feature of that name, has source and store for rules in etcd, with a copy on disk for starts
//!   without it. Both pass the suite of `windfall-conformance`.
//!
//! **Static options** are each component's own struct, in its own crate; [`load`] fills any of them from a
//! file with the environment laid over it.
//!
//! Not here: what limits, routes or budgets do (`windfall-limiter`, `windfall-queue-virtual`, the reward service), and
//! any other state: nothing is written but the rules file, its history, and what waits for approval.
//!
//! ```
//! use windfall_config::{Applied, LiveRules};
//!
//! # fn main() -> Result<(), windfall_config::Refusal> {
//! let text = include_str!("../samples/rules.toml");
//! let (live, applier) = LiveRules::adjustable(windfall_config::parse_rules(text, Some(&["a", "b"]))?, None);
//! let route = live.current().route("spring-2027", "card-draw", "coin").map(|route| route.queue.clone());
//! assert_eq!(route.as_deref(), Some("gifts"));
//!
//! // A change is a document with a higher version.
//! let next = text.replace("version = 1\n", "version = 2\n").replace("ratio = 50", "ratio = 0");
//! assert_eq!(applier.apply(next.as_bytes(), 0)?, Applied::Swapped { from: 1, to: 2 });
//!
//! // One mistake anywhere, and nothing changes.
//! let bad = next.replace("version = 2\n", "version = 3\n").replace("ratio = 0", "ratio = 101");
//! assert!(applier.apply(bad.as_bytes(), 0).is_err());
//! assert_eq!((live.status().version, live.status().refusals), (2, 1));
//! # Ok(())
//! # }
//! ```

mod bounds;
mod change;
mod difference;
mod document;
#[cfg(feature = "etcd")]
pub mod etcd;
mod findings;
mod live;
mod nearest;
mod options;
mod proposal;
mod reader;
mod refusal;
mod stage;
mod status;
mod store;
mod watch;

pub use change::{
    Actor, Change, ChangeRules, History, REMARK_MAX_BYTES, ReadError, SetError, Written, check_remarks,
};
pub use difference::{Difference, differences, rules_json};
pub use document::{Bucket, EditError, RulesEdit, parse_rules, parse_rules_bytes, rules_text};
pub use live::{Applied, Applier, LiveRules, Noted, Status};
pub use options::{OptionsError, Place, load};
pub use proposal::{PROPOSAL_VALID_MS, PROPOSALS_MAX, Proposal, Proposals};
pub use refusal::{Fault, Problem, Refusal};
pub use stage::{
    PROMOTE_WITHIN_MS, StageError, StageFor, StagedStatus, Trial, Triers, abort, promote, shortened_reasons,
    stage, standing_json, trial,
};
pub use status::{ProcessStatus, REPORT_EVERY_MS, RefusedVersion, SILENT_AFTER_MS};
pub use store::RulesStore;
pub use watch::{FileSource, OpenError, WatchOptions};
