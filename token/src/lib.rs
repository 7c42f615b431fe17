//! Bonus tokens: what a user holds as proof of a reward.
//!
//! A token is a text that only this system can make and read: a `BonusToken`, signed, sealed with
//! XAES-256-GCM, in base64url. The wallet forces a credit on a token only if it opens, belongs to the caller and
//! equals the one that the token store holds (I7).
//!
//! - [`KeyRing`] opens and verifies; [`KeyRing::minter`] gives a [`Minter`] for one tenant.
//! - [`TokenFields`] is what a token says.
//! - [`KeyFile`] is the key ring on disk, as an operator changes it: create, add, promote, retire, destroy;
//!   [`KeyRingFile`] is the same file as a running process follows it.
//!
//! Not here: the token store, and the check of arguments (`windfall_proto::order`). Beside the key file, nothing
//! here does I/O or reads a clock.
//!
//! # The text
//! `version(1) | key id(4) | nonce(24) | AES-256-GCM(BonusToken ‖ signature) | tag(16)` in canonical base64url
//! without padding, at most [`TEXT_MAX_BYTES`] long.
//!
//! - The key id alone fixes the key and its algorithms; nothing is tried in turn.
//! - Sealing: XAES-256-GCM (<https://c2sp.org/XAES-256-GCM>). The nonce's first half picks a derived key, which a
//!   thread keeps for 1 s or 2^20 tokens while it counts in the second half. Associated data:
//!   `"bonus-token" ‖ version ‖ key id ‖ tenant`, numbers big-endian.
//! - Signature over domain ‖ version, key id, nonce ‖ `BonusToken` bytes, where the domain is
//!   `"windfall bonus token signature\0" ‖ length of the tenant (8) ‖ tenant ‖ zeros up to a multiple of 64`:
//!   HMAC-SHA256 cut to 128 bits (RFC 2104) or Ed25519 (RFC 8032), as the key says.
//!
//! ```
//! use windfall_token::{Illegal, KeyRing, StoreAnswer, TokenFields, Verdict};
//!
//! let ring = KeyRing::ephemeral()?;
//! let minter = ring.minter("acme")?;
//! let fields = TokenFields {
//!     trade_no: "spring-2027:rain:1:42",
//!     user_id: 42,
//!     activity: "spring-2027",
//!     scene: "red-packet-rain",
//!     bonus_type: "cash",
//!     amount: 888,
//!     ..Default::default()
//! };
//! let text = minter.mint(&fields, 1_800_000_000_000)?;
//!
//! assert_eq!(ring.open(text.as_bytes(), "acme", 42)?.amount, 888);
//! assert_eq!(ring.open(text.as_bytes(), "acme", 43), Err(Illegal));
//! assert!(matches!(ring.verify(&text, StoreAnswer::Held(&text), "acme", 42), Verdict::Valid(_)));
//! assert_eq!(ring.verify(&text, StoreAnswer::Absent, "acme", 42), Verdict::Unknown);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod fields;
mod follow;
mod fork;
mod key;
mod keyfile;
mod mint;
mod nonce;
mod open;
#[cfg(test)]
mod published;
mod ring;
#[cfg(feature = "sabotage")]
pub mod sabotage;
mod signature;
#[cfg(test)]
mod test_vectors;
mod text;
mod xaes;

pub use fields::TokenFields;
pub use follow::KeyRingFile;
pub use key::{Algorithm, KeyId, KeyInfo, State, UnknownAlgorithm};
pub use keyfile::{ChangeError, KeyFile, KeyFileError};
pub use mint::{MintError, Minter};
pub use open::{Illegal, Reason, StoreAnswer, Verdict};
pub use ring::{KeyRing, NoPrimary};
pub use text::TEXT_MAX_BYTES;
