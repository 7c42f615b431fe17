//! The message authentication code: keyed BLAKE3 over a record's parts.

use zeroize::{Zeroize, ZeroizeOnDrop};

/// Bytes of a code.
pub(crate) const MAC_BYTES: usize = 16;

const OF_EVENTS: &str = "windfall signed record v1: events";
const OF_RECORD: &str = "windfall signed record v1: record";
const OF_QUEUE: &str = "windfall signed record v1: queue";
/// What separates adds of timers from records of events: no code of the one is ever a code of the other.
const OF_ADDS: &str = "windfall signed add of a timer v1";

/// What a signature says of the virtual queue that its record was written to: eight bytes that follow from its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueTag(pub [u8; 8]);

impl QueueTag {
    /// The tag of the queue of this name.
    pub fn of(name: &str) -> Self {
        let derived = blake3::derive_key(OF_QUEUE, name.as_bytes());
        let mut tag = [0; 8];
        tag.copy_from_slice(&derived[..8]);
        Self(tag)
    }
}

/// The working part of a key. It zeroizes itself.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct MacKey {
    of_events: [u8; 32],
    of_record: [u8; 32],
    of_adds: [u8; 32],
}

/// What a code covers.
pub(crate) struct Covered<'a> {
    /// The signature's bytes before the code.
    pub prefix: &'a [u8],
    pub tenant: &'a str,
    pub head: &'a [u8],
    pub digest: &'a Digest,
}

impl MacKey {
    pub fn new(secret: &[u8; 32]) -> Self {
        let derived = |context| blake3::derive_key(context, secret);
        Self { of_events: derived(OF_EVENTS), of_record: derived(OF_RECORD), of_adds: derived(OF_ADDS) }
    }

    /// The digest of a record's events. They are hashed by themselves: from their first byte on, all lanes of the
    /// processor's vectors have work, which a few bytes before them would spoil.
    pub fn digest(&self, events: &[u8]) -> Digest {
        Digest(blake3::keyed_hash(&self.of_events, events))
    }

    /// The code of a record.
    pub fn code(&self, covered: &Covered<'_>) -> Code {
        let mut hasher = blake3::Hasher::new_keyed(&self.of_record);
        hasher.update(covered.prefix);
        for part in [covered.tenant.as_bytes(), covered.head] {
            // Both are far shorter; of a longer one the signer and the verifier would say the same length.
            let len = u32::try_from(part.len()).unwrap_or(u32::MAX);
            hasher.update(&len.to_be_bytes()).update(part);
        }
        Code(hasher.update(covered.digest.0.as_bytes()).finalize())
    }

    /// The code of an add of a timer, which names its store and its tenant itself.
    pub fn code_of_add(&self, key: u32, add: &[u8]) -> Code {
        let mut hasher = blake3::Hasher::new_keyed(&self.of_adds);
        Code(hasher.update(&key.to_be_bytes()).update(add).finalize())
    }
}

/// The keyed digest of a record's events.
pub(crate) struct Digest(blake3::Hash);

/// A code. It is compared in constant time.
pub(crate) struct Code(blake3::Hash);

impl Code {
    pub fn bytes(&self) -> &[u8] {
        &self.0.as_bytes()[..MAC_BYTES]
    }

    pub fn is(&self, presented: &[u8; MAC_BYTES]) -> bool {
        // The crate compares 32 bytes in constant time; those that are not presented are the true code's own.
        let mut whole = *self.0.as_bytes();
        whole[..MAC_BYTES].copy_from_slice(presented);
        self.0 == blake3::Hash::from_bytes(whole)
    }
}
