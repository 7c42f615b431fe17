//! Verifying records.

use crate::key::KeyState;
use crate::mac::{Covered, MAC_BYTES, QueueTag};
use crate::ring::LiveRing;
use crate::sign::{ADD_SIGNATURE_BYTES, PREFIX_BYTES, VERSION};
use std::sync::Arc;
use windfall_proto::record::{self, SignedParts};
use windfall_proto::wire::Malformed;

/// The origin of a copy whose original nobody had signed: it came in where unsigned records are accepted. No key has this
/// number.
pub const UNSIGNED_ORIGIN: u32 = u32::MAX;

/// Verifies records of one tenant, or of a few, with the ring in force. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Verifier {
    ring: LiveRing,
    tenants: Arc<[Box<str>]>,
    takes_unsigned_origins: bool,
}

/// Who signed a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified {
    /// The number of the key that signed it.
    pub key: u32,
    /// The number of the key that signed its original; `key` where it is no copy; [`UNSIGNED_ORIGIN`] where nobody had signed
    /// it.
    pub origin: u32,
}

/// Why a record is refused. Nothing of it may be granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is no record: its head cannot be read.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// It has no signature.
    #[error("it is not signed")]
    Unsigned,
    /// Its signature has a form that this release does not know.
    #[error("its signature has version {version}, this release knows 1")]
    Version {
        /// The version in the signature.
        version: u8,
    },
    /// The ring has no key of this number.
    #[error("it names key {key}, which the ring does not have")]
    UnknownKey {
        /// The key that the signature names.
        key: u32,
    },
    /// The key was destroyed.
    #[error("it names key {key}, which is destroyed")]
    DestroyedKey {
        /// The key that the signature names.
        key: u32,
    },
    /// The key did not sign these bytes for this tenant.
    #[error("key {key} did not sign it as it is")]
    Forged {
        /// The key that the signature names.
        key: u32,
    },
    /// It was signed for a queue that this topic does not belong to.
    #[error("key {key} signed it for another queue")]
    WrongQueue {
        /// The key that signed it.
        key: u32,
    },
    /// It names an origin, and its key may sign no copies.
    #[error("key {key} signed it as a copy of a record of key {origin}, and may sign none")]
    NoCopier {
        /// The key that signed it.
        key: u32,
        /// The origin that it names.
        origin: u32,
    },
    /// The ring has no key of the number that its original was signed with.
    #[error("it is a copy of a record of key {origin}, which the ring does not have")]
    UnknownOrigin {
        /// The origin that it names.
        origin: u32,
    },
    /// The key that its original was signed with was destroyed.
    #[error("it is a copy of a record of key {origin}, which is destroyed")]
    OriginGone {
        /// The origin that it names.
        origin: u32,
    },
    /// Nobody had signed its original, and none of this verifier's topics accepts such records.
    #[error("it is a copy, made with key {key}, of a record that nobody had signed")]
    UnsignedOrigin {
        /// The key that signed the copy.
        key: u32,
    },
}

impl Refused {
    /// Every reason's name in metrics.
    pub const NAMES: [&'static str; 11] = [
        "malformed",
        "unsigned",
        "version",
        "unknown_key",
        "destroyed_key",
        "forged",
        "wrong_queue",
        "no_copier",
        "unknown_origin",
        "origin_gone",
        "unsigned_origin",
    ];

    /// Its name in metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::Unsigned => "unsigned",
            Self::Version { .. } => "version",
            Self::UnknownKey { .. } => "unknown_key",
            Self::DestroyedKey { .. } => "destroyed_key",
            Self::Forged { .. } => "forged",
            Self::WrongQueue { .. } => "wrong_queue",
            Self::NoCopier { .. } => "no_copier",
            Self::UnknownOrigin { .. } => "unknown_origin",
            Self::OriginGone { .. } => "origin_gone",
            Self::UnsignedOrigin { .. } => "unsigned_origin",
        }
    }

    /// The number of the key that the ring lacks, where that is the reason: a sender may have a newer ring than this
    /// process, so the record may be a good one.
    pub const fn lacks(&self) -> Option<u32> {
        match *self {
            Self::UnknownKey { key } => Some(key),
            Self::UnknownOrigin { origin } => Some(origin),
            _ => None,
        }
    }
}

impl Verifier {
    /// A verifier of records of this tenant.
    pub fn new(ring: &LiveRing, tenant: &str) -> Self {
        Self::of_tenants(ring, [tenant])
    }

    /// A verifier of records of any of these tenants. Each one more costs a short code per refused record.
    pub fn of_tenants<'t>(ring: &LiveRing, tenants: impl IntoIterator<Item = &'t str>) -> Self {
        let tenants = tenants.into_iter().map(Box::from).collect();
        Self { ring: ring.clone(), tenants, takes_unsigned_origins: false }
    }

    /// The same verifier, which says of copies of records that nobody had signed who made them, in place of refusing them.
    #[must_use]
    pub fn with_unsigned_origins(self) -> Self {
        Self { takes_unsigned_origins: true, ..self }
    }

    /// Says by which key a record was signed. `may_carry` says whether the topic that the record was read from belongs to
    /// the queue that it was signed for.
    ///
    /// It decodes no event, and does the same work whether the record is refused for its code or taken.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn verify(
        &self,
        bytes: &[u8],
        may_carry: impl FnOnce(QueueTag) -> bool,
    ) -> Result<Verified, Refused> {
        let verified = self.judge(bytes, may_carry);
        if verified.is_err_and(|refused| refused.lacks().is_some()) {
            self.ring.note_lack();
        }
        verified
    }

    /// Says by which key an add of a timer was signed, whatever tenant this verifies records of: an add names its own.
    ///
    /// # Errors
    /// [`Refused`]: the key is not known, is destroyed, or did not sign these bytes.
    pub fn verify_add(&self, add: &[u8], signature: &[u8; ADD_SIGNATURE_BYTES]) -> Result<u32, Refused> {
        let verified = self.judge_add(add, signature);
        if verified.is_err_and(|refused| refused.lacks().is_some()) {
            self.ring.note_lack();
        }
        verified
    }

    /// How often the ring in force was replaced.
    pub fn ring_changes(&self) -> u64 {
        self.ring.changes()
    }

    /// The highest number of a key in the ring in force. Numbers are given in order, and none twice.
    pub fn highest_key(&self) -> u32 {
        self.ring.current().highest()
    }

    fn judge_add(&self, add: &[u8], signature: &[u8; ADD_SIGNATURE_BYTES]) -> Result<u32, Refused> {
        let [a, b, c, d, code @ ..] = signature;
        let key = u32::from_be_bytes([*a, *b, *c, *d]);
        let ring = self.ring.current();
        let entry = ring.key(key).ok_or(Refused::UnknownKey { key })?;
        let mac = entry.mac.as_ref().ok_or(Refused::DestroyedKey { key })?;
        if mac.code_of_add(key, add).is(code) { Ok(key) } else { Err(Refused::Forged { key }) }
    }

    fn judge(&self, bytes: &[u8], may_carry: impl FnOnce(QueueTag) -> bool) -> Result<Verified, Refused> {
        let parts = record::signed_parts(bytes)?;
        let (prefix, code) = presented(&parts)?;
        let (key, queue) = (key_of(prefix), queue_of(prefix));
        let ring = self.ring.current();
        let entry = ring.key(key).ok_or(Refused::UnknownKey { key })?;
        let mac = entry.mac.as_ref().ok_or(Refused::DestroyedKey { key })?;
        let digest = mac.digest(parts.events);
        let is_of =
            |tenant: &str| mac.code(&Covered { prefix, tenant, head: parts.head, digest: &digest }).is(code);
        if !self.tenants.iter().any(|tenant| is_of(tenant)) {
            return Err(Refused::Forged { key });
        }
        // What follows is about bytes that the key's holder wrote.
        if !may_carry(queue) {
            return Err(Refused::WrongQueue { key });
        }
        if parts.origin == 0 || parts.origin == key {
            return Ok(Verified { key, origin: key });
        }
        let origin = parts.origin;
        if !entry.info.may_copy {
            return Err(Refused::NoCopier { key, origin });
        }
        if origin == UNSIGNED_ORIGIN {
            let taken = Ok(Verified { key, origin });
            return if self.takes_unsigned_origins { taken } else { Err(Refused::UnsignedOrigin { key }) };
        }
        match ring.key(origin).map(|entry| entry.info.state) {
            None => Err(Refused::UnknownOrigin { origin }),
            Some(KeyState::Destroyed) => Err(Refused::OriginGone { origin }),
            Some(_) => Ok(Verified { key, origin }),
        }
    }
}

/// The bytes of the signature before the code, and the code.
fn presented<'a>(parts: &SignedParts<'a>) -> Result<(&'a [u8; PREFIX_BYTES], &'a [u8; MAC_BYTES]), Refused> {
    let signature = parts.signature.ok_or(Refused::Unsigned)?;
    let version = signature.first().copied().unwrap_or(0);
    let split = || {
        let (prefix, code) = signature.split_first_chunk::<PREFIX_BYTES>()?;
        Some((prefix, <&[u8; MAC_BYTES]>::try_from(code).ok()?))
    };
    split().filter(|_| version == VERSION).ok_or(Refused::Version { version })
}

fn key_of(prefix: &[u8; PREFIX_BYTES]) -> u32 {
    let [_, a, b, c, d, ..] = *prefix;
    u32::from_be_bytes([a, b, c, d])
}

fn queue_of(prefix: &[u8; PREFIX_BYTES]) -> QueueTag {
    let mut tag = [0; 8];
    tag.copy_from_slice(&prefix[5..]);
    QueueTag(tag)
}
