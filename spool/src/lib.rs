//! The in-flight buffer of a sender: the events for which `send_bonus` has returned Ok and that no broker has
//! acknowledged yet.
//!
//! It is a memory-mapped file. An event is copied in and published with one release store before the caller
//! hears Ok, so `kill -9` at any instant loses nothing (I2): the kernel keeps the pages, and the next start
//! finds them. Appending an event makes no system call.
//!
//! # How it is used
//! [`Spool::open`] gives a spool and what earlier processes left in it. [`Spool::claim`] hands out an empty
//! [`OpenPack`], [`OpenPack::append`] stores events in it, [`OpenPack::seal`] makes it a [`SealedPack`] whose
//! [`payload`](SealedPack::payload) is one slice, which is sent as it is. [`SealedPack::free`], once a broker has
//! acknowledged the pack, is the only way its bytes go away.
//!
//! ```
//! use windfall_spool::{Spool, SpoolOptions};
//!
//! let root = tempfile::tempdir()?;
//! let options = SpoolOptions::default();
//! let (spool, left) = Spool::open(root.path(), &options)?;
//! assert!(left.packs.is_empty());
//!
//! let mut pack = spool.claim(b"cash-queue")?;
//! pack.append(b"an event")?; // from here on it survives the death of this process
//! drop((pack, spool)); // as if killed
//!
//! let (_spool, left) = Spool::open(root.path(), &options)?;
//! let again = left.packs.into_iter().next().ok_or("nothing recovered")?;
//! assert_eq!((again.label(), again.events()), (&b"cash-queue"[..], &b"an event"[..]));
//! let sealed = again.seal(b"head:");
//! assert_eq!(sealed.payload(), b"head:an event");
//! sealed.free(); // the broker has it
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it promises
//! - **Bounded** (I9): a fixed number of slots. When none is free, `claim` returns [`SpoolFull`] at once; nothing
//!   here waits for room.
//! - **Preallocated**: a full disk is [`OpenError::DiskFull`] at the start and no signal later. This holds on
//!   file systems that write in place (ext4, XFS, tmpfs). A copy-on-write file system may need room even to
//!   overwrite: keep the spool elsewhere.
//! - **Checksummed**: an entry whose checksum does not match is skipped and counted ([`Recovered::torn_entries`]),
//!   never handed out.
//! - **At least once**: a pack that was acknowledged but not yet freed is handed out again after a crash, and so
//!   is everything if a start dies while it recovers. Order numbers make that harmless (I1).
//!
//! # What it is not
//! No network, no retries, no protobuf: bytes in, bytes out. It survives the death of the process; that of the
//! machine only with [`Durability::Machine`]. It is not for network file systems, because `flock` decides who owns a
//! directory.
//!
//! The file's bytes are described in [`format`](mod@format), directories and their life in `directory.rs`.

mod directory;
mod error;
pub mod format;
mod instance;
mod options;
mod pack;
mod recovery;
mod region;
#[cfg(feature = "sabotage")]
pub mod sabotage;
mod spool;
mod sync;

pub use error::{NoRoom, OpenError, SpoolFull};
pub use format::{HEAD_MAX_BYTES, LABEL_MAX_BYTES};
pub use options::{Durability, SpoolOptions};
pub use pack::{OpenPack, RecoveredPack, SealedPack};
pub use spool::{Recovered, Spool, Unrecovered, Usage};
pub use sync::{NotSynced, Stored};
