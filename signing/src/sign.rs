//! Signing records.

use crate::mac::{Covered, MAC_BYTES, QueueTag};
use crate::ring::{LiveRing, NoPrimary, Ring};
use std::sync::Arc;
use windfall_proto::record;
use windfall_proto::wire::Malformed;

/// The format of the signature.
pub(crate) const VERSION: u8 = 1;
/// The signature's bytes before the code: version, key number, tag of the queue.
pub(crate) const PREFIX_BYTES: usize = 1 + 4 + 8;
/// The bytes of a signature.
pub const SIGNATURE_BYTES: usize = PREFIX_BYTES + MAC_BYTES;
/// The bytes of the signature of an add of a timer: key number (4), code (16).
pub const ADD_SIGNATURE_BYTES: usize = 4 + MAC_BYTES;

/// Signs records as one sender, with its primary key in the ring in force. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Signer {
    ring: LiveRing,
    sender: Arc<str>,
    tenant: Arc<str>,
}

/// A signature, and the key that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// The content of the record's signature field.
    pub bytes: [u8; SIGNATURE_BYTES],
    /// The number of the key.
    pub key: u32,
}

impl Signer {
    /// A signer of this sender's records for a tenant.
    ///
    /// # Errors
    /// [`NoPrimary`].
    pub fn new(ring: &LiveRing, sender: &str, tenant: &str) -> Result<Self, NoPrimary> {
        ring.current().primary(sender)?;
        Ok(Self { ring: ring.clone(), sender: sender.into(), tenant: tenant.into() })
    }

    /// The same sender, for another tenant.
    pub fn for_tenant(&self, tenant: &str) -> Self {
        Self { tenant: tenant.into(), ..self.clone() }
    }

    /// The number of the key that signs now. A record that was signed by another one is signed anew before it is sent
    /// again: that key may be gone.
    pub fn key(&self) -> Option<u32> {
        self.ring.current().primary(&self.sender).ok()
    }

    /// The signature of a record with this head and these framed events, for a queue.
    ///
    /// # Errors
    /// [`NoPrimary`], which a [replaced](LiveRing::replace) ring never causes if it was checked for this sender.
    pub fn sign(&self, queue: QueueTag, head: &[u8], events: &[u8]) -> Result<Signature, NoPrimary> {
        let ring = self.ring.current();
        let key = ring.primary(&self.sender)?;
        let code = sign(&ring, key, &self.tenant, queue, head, events);
        code.ok_or_else(|| NoPrimary { sender: self.sender.to_string() })
    }

    /// The signature of an add of a timer: the bytes of the add have to name the store that it is for.
    ///
    /// # Errors
    /// [`NoPrimary`], as in [`sign`](Self::sign).
    pub fn sign_add(&self, add: &[u8]) -> Result<[u8; ADD_SIGNATURE_BYTES], NoPrimary> {
        let ring = self.ring.current();
        let key = ring.primary(&self.sender)?;
        let mac = ring.key(key).and_then(|entry| entry.mac.as_ref());
        let mac = mac.ok_or_else(|| NoPrimary { sender: self.sender.to_string() })?;
        let mut signature = [0; ADD_SIGNATURE_BYTES];
        signature[..4].copy_from_slice(&key.to_be_bytes());
        signature[4..].copy_from_slice(mac.code_of_add(key, add).bytes());
        Ok(signature)
    }

    /// A whole record, signed for a queue. A signature that it has is replaced: the caller has made the record itself, or
    /// has verified it.
    ///
    /// # Errors
    /// [`SignError`].
    pub fn sign_record(&self, bytes: &[u8], queue: QueueTag) -> Result<Vec<u8>, SignError> {
        let parts = record::signed_parts(bytes)?;
        let signature = self.sign(queue, parts.head, parts.events)?;
        let field = record::signature_field_len(SIGNATURE_BYTES);
        let mut signed = Vec::with_capacity(parts.head.len() + field + parts.events.len());
        signed.extend_from_slice(parts.head);
        record::put_signature(&mut signed, &signature.bytes);
        signed.extend_from_slice(parts.events);
        Ok(signed)
    }
}

/// A record that could not be signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The bytes are no record.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// There is no key.
    #[error(transparent)]
    NoPrimary(#[from] NoPrimary),
}

fn sign(
    ring: &Ring,
    key: u32,
    tenant: &str,
    queue: QueueTag,
    head: &[u8],
    events: &[u8],
) -> Option<Signature> {
    let mac = ring.key(key)?.mac.as_ref()?;
    let mut bytes = [0; SIGNATURE_BYTES];
    bytes[0] = VERSION;
    bytes[1..5].copy_from_slice(&key.to_be_bytes());
    bytes[5..PREFIX_BYTES].copy_from_slice(&queue.0);
    let (prefix, code) = bytes.split_at_mut(PREFIX_BYTES);
    let digest = mac.digest(events);
    code.copy_from_slice(mac.code(&Covered { prefix, tenant, head, digest: &digest }).bytes());
    Some(Signature { bytes, key })
}
