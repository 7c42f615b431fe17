//! The far tier of due tasks: those that are due in hours to months wait on disk or in an object store, at next to no
//! memory, and are loaded into the slot store ahead of their time.
//!
//! For: [`FarTier`] takes tasks without a key, finds, changes and cancels them by their id, and loads them near. Not for:
//! firing (the dispatcher reads the slot store alone), and who may call.
//!
//! # How a task goes its way
//!
//! 1. **Log.** [`FarTier::add`] gives each task a number in the hour in which it is due, and with it its id: shard,
//!    minute, and an index from the upper half of the range ([`FAR_INDEX`](windfall_contract::due::FAR_INDEX)), which no
//!    slot's list reaches. Ok follows the append to the [`FarLog`], never an object. The task is in memory as well.
//! 2. **Segment.** Where `flush_bytes` are in memory, they are put aside, a new part of the log is begun with all
//!    figures that are in no row (a checkpoint, synced), and the rows become one segment, sorted by hour, shard, minute
//!    and number. The manifest that names it also says from where on the log counts; then the earlier parts go.
//! 3. **Merge.** Segments with many hours are merged into segments of one hour each, and many of an hour into one: few
//!    and large. The newest row of an id counts. A cancel is a row without a payload.
//! 4. **Near.** Half a horizon before it begins an hour is closed: no task is added to it and none changes any more.
//!    So each batch of up to 1,000 tasks has the same tasks however often it is sent. It is noted in the log (synced),
//!    stored by [`SlotStore::load`](windfall_contract::due::SlotStore::load), and noted as loaded.
//! 5. **Over.** An hour that is near as a whole is loaded no more. Its segments are kept for `keep_ms` after it has
//!    passed, so that its tasks can be fired again ([`PastTasks`](windfall_contract::due::PastTasks)), and then deleted. A
//!    task that is cancelled or changed near until then gets another row here too, before that is answered: so it is never
//!    fired again as it was.
//!    While the object store is away and memory is full, hours that are over make room, and are not kept any longer.
//!
//! A task that gets another time goes near at once, in a batch of its own, wherever that time lies; it costs the memory
//! of a near task from then on. A task with a key is not taken: keys are unique among near tasks, so a keyed task is
//! added near, and costs there what a near task costs.
//!
//! # What holds when it dies
//!
//! | it dies | what is there | afterwards |
//! |---|---|---|
//! | within an append | a torn end of the log, which was not acknowledged | it is cut off when the log is opened |
//! | behind an append | the task, unacknowledged | its caller does not know, as after any lost answer |
//! | with a new part begun | the log before and behind it; the manifest counts both | it is read from the old place on |
//! | behind a segment, before its manifest | an object that nobody names | it is deleted later, or at the next start |
//! | behind the manifest | the segment counts, and so does the log behind it | earlier parts and objects go later |
//! | behind a batch was noted | perhaps the batch, near | it is sent again with its number, and passed over if it is there |
//! | behind an hour was over | its segments | they are deleted when they have been kept for long enough |
//! | behind a cancel near, before its row here | a cancel that was not acknowledged | a backfill may fire the task again |
//!
//! The slot store keeps the number of the last batch of each log and shard. So a batch is passed over also when its
//! tasks have fired or were cancelled and their slot is gone, and a log that was restored from a backup, and goes back in
//! time, is refused instead of firing what was cancelled since.
//!
//! **Segments that do not answer.** The log alone says which numbers are taken and which tasks are near. So a process may
//! begin with it ([`FarTier::start`]), take tasks, and open the segments later ([`FarTier::attach`]).
//!
//! **Damage.** Each frame of the log, each block of a segment, each index and the manifest has a CRC-32C; index and
//! manifest are there twice. A damaged block is said and counted, its tasks are passed over, and its object is kept. A
//! log with a damaged frame before whole ones is refused.
//!
//! **One process.** A log belongs to one process, which a lock on its folder ensures; a folder or bucket belongs to one log;
//! and so do the far timers of a slot store that several processes share, which the store itself says
//! ([`FarSlots::start_shared`]). Of a fleet one process keeps the far tier, and the others ask it ([`FarElsewhere`]).
//!
//! **Memory and disk.** A task with 64 bytes of payload takes some 75 bytes in a segment and 90 in the log until it is in
//! one. In memory there are the tasks that are in no segment yet (`memory_bytes_max`), 32 bytes for each block of 64 KiB,
//! and the figures of each hour. While an hour is loaded its tasks count near and here.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! use object_store::local::LocalFileSystem;
//! use std::sync::Arc;
//! use windfall_contract::Clock;
//! use windfall_contract::due::{NewRecord, Route, Shard, SlotStore};
//! use windfall_far::{FarFound, FarOptions, FarTier, FileLog};
//! use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};
//!
//! # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let clock = Clock::system();
//! let near = EmbeddedSlots::open(&dir.path().join("slots"), &EmbeddedSlotsOptions::default(), clock.clone())?;
//! std::fs::create_dir(dir.path().join("far"))?;
//! let objects = Arc::new(LocalFileSystem::new_with_prefix(dir.path().join("far"))?.with_fsync(true));
//! let log = Box::new(FileLog::open(&dir.path().join("log"))?);
//! let far = FarTier::open(FarOptions::default(), log, objects, clock.clone()).await?;
//! let loader = tokio::spawn({
//!     let (far, near) = (far.clone(), near.clone());
//!     async move { far.run(near).await }
//! });
//!
//! let tenant = near.tenant("marketing").await?;
//! let route = Route { tenant, target: near.target(tenant, "reminders").await? };
//! let due_ms = clock.unix_ms() + 30 * 24 * 3_600_000;
//! assert!(far.takes(due_ms));
//! let task = NewRecord { due_ms, route, key: None, payload: "coupon 7".into() };
//! let added = far.add(Shard(3), vec![task]).await?;
//! let id = added[0].expect("its hour is far away");
//! assert!(matches!(far.get(tenant, id).await?, FarFound::Here(found) if found.id == id));
//! loader.abort();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod add;
mod change;
mod compactor;
mod entry;
mod fail_points;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod list;
mod loader;
mod log;
mod look;
mod manifest;
mod merge;
mod options;
mod past;
mod probe;
mod replay;
mod row;
mod s3;
mod segment;
mod shared;
mod slots;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod tier;
mod turns;

pub use change::FarChanged;
pub use log::{FRAME_MAX_BYTES, FarLog, FileLog, LogError};
pub use look::FarFound;
pub use options::{FarOptions, OutOfRange};
pub use s3::{S3Options, S3OptionsError};
pub use shared::{FarElsewhere, FarKeeper, FarNamedPage};
pub use slots::FarSlots;
pub use stats::{FarGauges, FarStats, FarTenantGauges};
pub use tier::FarTier;

/// The far tier could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenFarError {
    /// An option is out of its range.
    #[error(transparent)]
    Invalid(#[from] OutOfRange),
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The object store has no answer; try again later.
    #[error("the object store of the far tier: {0}")]
    Objects(#[from] object_store::Error),
    /// The segments were written from another log. That log has what they do not have; open it instead.
    #[error("the segments were written from the far log {theirs:016x}, and this is {ours:016x}")]
    OtherLog {
        /// The log that was to be opened.
        ours: u64,
        /// The one that belongs to the segments.
        theirs: u64,
    },
    /// The manifest cannot be read. Restore it, or the one before it, which may name segments that are gone.
    #[error("{place} is damaged: {what}")]
    Damaged {
        /// What was opened.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// There were segments, and nothing says any more which of them count. Restore the folder `manifest`; nothing was
    /// deleted.
    #[error("{place} has no manifest, but it, or the log, has tasks")]
    NoManifest {
        /// The object store.
        place: String,
    },
    /// The object store replaces an object that is there, though it was asked not to: manifests of two processes would
    /// overwrite each other. Use another one.
    #[error("{place} cannot keep far timers: {what}")]
    Overwrites {
        /// The object store.
        place: String,
        /// What it did.
        what: String,
    },
    /// A thread of the runtime could not be used.
    #[error(transparent)]
    Store(#[from] windfall_contract::due::StoreError),
}

impl OpenFarError {
    /// Whether waiting may mend it. A folder without a manifest may be one whose disk is not there yet.
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::Objects(_) | Self::Store(_) | Self::NoManifest { .. })
    }
}
