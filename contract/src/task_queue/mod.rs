//! Task queues that consumers pull from: jobs wait in a [`JobStore`] until they are due, are taken under a lease, and are
//! over when they are acknowledged.
//!
//! A store is divided into shards, and so is each of its queues. A job lies in one shard from its publishing to its end,
//! and its [`JobId`] says in which one. What the store does in one call is done whole or not at all, in one shard: above
//! all it takes a job and leases it in one step, so that a caller that dies loses nothing.

mod far;
mod ids;
mod names;
mod record;
mod store;
mod tokens;

pub use far::{DoubtfulJobs, FarJob, FarTimers, FarTimersError, PublishedFar};
pub use ids::{InvalidJobId, JobId};
pub use names::{InvalidName, QueueName};
pub use record::{
    Attributes, HeldRecord, HeldState, JobRecord, RECORD_HEAD_BYTES, RecordError, TOMBSTONE, encode_tail,
};
pub use store::{
    FoundJob, JobStore, JobStoreError, Lease, NewJobs, OnceJob, OnceMark, QueueCounts, Swept, Take, TakenJob,
    TakenJobs, Tended,
};
pub use tokens::{QueueTokens, RateLimit, TokenRecord};

/// The bytes of a job's body at most.
pub const BODY_MAX_BYTES: usize = 1 << 20;
/// The bytes of a namespace's or a queue's name at most.
pub const NAME_MAX_BYTES: usize = 255;
/// The shards of a store at most.
pub const SHARDS_MAX: u16 = 256;
/// The jobs that one call of a store takes at most.
pub const TAKE_MAX: usize = 1_000;
/// The bytes of bodies after which a call takes no more jobs.
pub const TAKE_BYTES_MAX: usize = 4 << 20;
/// About how many queues one call of a store names.
pub const QUEUES_PAGE: usize = 1_000;
/// How long a mark is kept at least that keeps a job from being published twice.
pub const ONCE_KEPT_MS: u64 = 3_600_000;
/// How long after a far job was due a deletion of it is remembered at least, where its timer may still fire.
pub const FAR_REMOVAL_KEPT_MS: u64 = 168 * ONCE_KEPT_MS;
/// How many deletions of far jobs a store remembers at a time, where its options say nothing else.
pub const FAR_REMOVALS_MAX: u64 = 1_000_000;
/// The seconds that a job lives where its publisher says nothing.
pub const TTL_DEFAULT_S: u32 = 86_400;

/// The time from which a delayed job is ready, in Unix milliseconds: not before it is due, and so late at most that jobs
/// which are due at about the same time share one list: a tenth of a second, or a second where they wait for ten minutes
/// and more.
pub const fn ready_ms(published_ms: u64, delay_s: u32) -> u64 {
    if delay_s == 0 {
        return published_ms;
    }
    let due_ms = published_ms + delay_s as u64 * 1_000;
    let step_ms = if delay_s < 600 { 100 } else { 1_000 };
    due_ms.div_ceil(step_ms) * step_ms
}
