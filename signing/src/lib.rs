//! Signed records: only a holder of a sender's key can bring an event into a queue that is granted (I12).
//!
//! A sender signs each record with a key of its own, and a consumer verifies the record before it looks at any event.
//! The signature covers the key's number, the tenant, the virtual queue, the head and all bytes of the events, so the same
//! bytes may reach the master or the backup topic of their queue, and no other.
//!
//! - [`Ring`] is the keys of all senders, or of one; [`LiveRing`] is the ring in force, which is replaced while it is used.
//! - [`Signer`] signs with the primary key of one sender.
//! - [`Verifier`] says by which key a record was signed, or why it is [`Refused`].
//! - [`RingFile`] follows a ring on disk while a process runs.
//! - [`KeyFile`] is a ring on disk, as an operator changes it: create, add, promote, retire, destroy, export.
//!
//! Not here: what happens to a record that is refused (`consumer`), and who reads the file again (`cli`). Beside the key
//! file, nothing here does I/O or reads a clock.
//!
//! # The signature
//! Field 7 of the record's head, the last one before the events, [`SIGNATURE_BYTES`] long; numbers are big-endian:
//! `version (1) = 1 | key number (4) | tag of the queue (8) | MAC (16)`.
//!
//! - Tag of the queue: the first 8 bytes of `derive_key("windfall signed record v1: queue", name of the queue)`.
//! - Keys: `K_events` and `K_record` are `derive_key("windfall signed record v1: events", secret)` and the same with
//!   `record` in place of `events`, of a key's 32 secret bytes.
//! - `digest = keyed_hash(K_events, events)`, where the events are all bytes behind the signature.
//! - MAC: the first 16 bytes of `keyed_hash(K_record, version ‖ key number ‖ tag ‖ length of the tenant (4) ‖ tenant ‖
//!   length of the head (4) ‖ head ‖ digest)`, where the head is all bytes before the signature.
//!
//! `derive_key` and `keyed_hash` are BLAKE3's. It needs no nonce, so many processes may sign with one key and none of them
//! keeps a counter over a restart; a nonce that repeats under GMAC gives the key away.
//!
//! An add of a timer, which waits in the scheduler's queue of adds, is signed by the same keys and never by the same code:
//! `key number (4) | MAC (16)`, where the MAC is the first 16 bytes of `keyed_hash(K_adds, key number ‖ add)` and `K_adds` is
//! `derive_key("windfall signed add of a timer v1", secret)`. The bytes of an add name its store and its tenant.
//!
//! ```
//! use windfall_proto::record::{self, Head};
//! use windfall_signing::{LiveRing, QueueTag, Refused, Ring, Signer, Verifier};
//!
//! let ring = LiveRing::new(Ring::ephemeral("gateway")?);
//! let signer = Signer::new(&ring, "gateway", "acme")?;
//! let head = Head { bonus_type: "cash", attempt: 0, failures: 0, not_before_ms: 0, count: 1 };
//! let record = record::build(head, [b"event".as_slice()]);
//! let signed = signer.sign_record(&record, QueueTag::of("cash"))?;
//!
//! let verifier = Verifier::new(&ring, "acme");
//! assert_eq!(verifier.verify(&signed, |queue| queue == QueueTag::of("cash"))?.key, 1);
//! assert_eq!(verifier.verify(&signed, |queue| queue == QueueTag::of("gifts")), Err(Refused::WrongQueue { key: 1 }));
//! assert_eq!(verifier.verify(&record, |_| true), Err(Refused::Unsigned));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod follow;
mod key;
mod key_file;
mod mac;
mod ring;
mod sign;
mod verify;

pub use follow::{OpenRingError, RingFile, RingUse};
pub use key::{KeyInfo, KeyState, SENDER_MAX_BYTES, UnusableName, check_sender};
pub use key_file::{ChangeError, KeyFile};
pub use mac::QueueTag;
pub use ring::{LiveRing, NoPrimary, Ring};
pub use sign::{ADD_SIGNATURE_BYTES, SIGNATURE_BYTES, SignError, Signature, Signer};
pub use verify::{Refused, UNSIGNED_ORIGIN, Verified, Verifier};
pub use windfall_key_file::KeyFileError;
