//! Minting: the path that every reward takes, so it allocates nothing but the text.

use std::{cell::RefCell, fmt, sync::Arc};

use crate::{
    KeyId, TEXT_MAX_BYTES, TokenFields,
    fork::ProcessMark,
    nonce::NonceSource,
    ring::LiveKey,
    signature::MessageSigner,
    text,
    xaes::{Subkey, TAG_BYTES},
};

/// Mints tokens for one tenant with one key. Cheap to clone, callable from any thread.
///
/// Each thread keeps a derived key for at most 1 s or 2^20 tokens. That cache and its count live in the thread. A process
/// that was forked notices, and draws anew before its first token.
#[derive(Clone)]
pub struct Minter(Arc<Tenant>);

struct Tenant {
    key: KeyId,
    live: Arc<LiveKey>,
    signer: MessageSigner,
    associated: Vec<u8>,
    domain: Vec<u8>,
}

/// No token was minted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MintError {
    /// The fields do not fit a token text. Final: shorten them.
    #[error("the fields take {len} bytes; a token carries at most {max}")]
    TooLarge {
        /// The bytes that the encoded fields take.
        len: usize,
        /// The bytes that fit.
        max: usize,
    },
    /// The operating system gave no randomness for a nonce. Try again.
    #[error("no randomness for a nonce: {0}")]
    NoRandomness(getrandom::Error),
}

impl Minter {
    pub(crate) fn new(key: KeyId, live: &Arc<LiveKey>, tenant: &str) -> Option<Self> {
        let domain = text::signature_domain(tenant);
        Some(Self(Arc::new(Tenant {
            key,
            live: Arc::clone(live),
            signer: live.signing.signer(&domain)?,
            associated: text::associated_data(key, tenant),
            domain,
        })))
    }

    /// The key that it mints with.
    pub fn key(&self) -> KeyId {
        self.0.key
    }

    /// Mints a token: its text. `now_ms` is the caller's clock, and only ages the derived key.
    ///
    /// # Errors
    /// [`MintError`].
    #[inline]
    pub fn mint(&self, fields: &TokenFields<'_>, now_ms: u64) -> Result<String, MintError> {
        let mut out = String::new();
        self.mint_into(fields, now_ms, &mut out)?;
        Ok(out)
    }

    /// Mints a token and appends its text to `out`, which stays as it was on an error.
    ///
    /// # Errors
    /// [`MintError`].
    pub fn mint_into(
        &self,
        fields: &TokenFields<'_>,
        now_ms: u64,
        out: &mut String,
    ) -> Result<(), MintError> {
        let max = text::RAW_MAX_BYTES - text::HEADER_BYTES - self.0.signer.signature_len() - TAG_BYTES;
        let len = fields.encoded_len();
        if len > max {
            return Err(MintError::TooLarge { len, max });
        }
        DESK.try_with(|desk| desk.borrow_mut().mint(&self.0, fields, now_ms, out))
            // Only while the thread ends and its desk is gone already.
            .unwrap_or_else(|_| Desk::new().mint(&self.0, fields, now_ms, out))
    }
}

impl fmt::Debug for Minter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Minter").field("key", &self.0.key).finish_non_exhaustive()
    }
}

/// Derived keys that a thread keeps at once; with more minters in turn on one thread, each use derives anew.
const SLOTS_MAX: usize = 8;

thread_local! {
    static DESK: RefCell<Desk> = const { RefCell::new(Desk::new()) };
}

/// A thread's buffer and its slots of derived keys.
struct Desk {
    /// The process whose nonces the slots count.
    process: ProcessMark,
    slots: Vec<Slot>,
    scratch: Vec<u8>,
}

/// A derived key and the count that goes with it.
struct Slot {
    instance: u64,
    nonces: NonceSource,
    subkey: Option<Subkey>,
}

impl Desk {
    const fn new() -> Self {
        Self { process: ProcessMark::NONE, slots: Vec::new(), scratch: Vec::new() }
    }

    fn mint(
        &mut self,
        tenant: &Tenant,
        fields: &TokenFields<'_>,
        now_ms: u64,
        out: &mut String,
    ) -> Result<(), MintError> {
        let process = ProcessMark::current();
        if self.process != process {
            // A copy of the process that counted: both would seal other texts with the same nonces.
            self.slots.clear();
            self.process = process;
        }
        let index = self.slot(tenant.live.instance, now_ms);
        let slot = &mut self.slots[index];
        let nonce = slot.nonces.next(now_ms).map_err(MintError::NoRandomness)?;
        if nonce.renewed {
            slot.subkey = None;
        }
        let subkey = slot.subkey.get_or_insert_with(|| tenant.live.seal.subkey(&nonce.prefix));

        // domain | header | payload | signature | tag; what follows the domain is the token.
        let scratch = &mut self.scratch;
        scratch.clear();
        scratch.reserve(tenant.domain.len() + TEXT_MAX_BYTES);
        scratch.extend_from_slice(&tenant.domain);
        text::put_header(scratch, tenant.key, &nonce.prefix, &nonce.count);
        let sealed_at = scratch.len();
        fields.encode(scratch);
        tenant.signer.append(scratch, tenant.domain.len());
        let sealed = &mut scratch[sealed_at..];
        let len = sealed.len();
        let tag = subkey
            .seal(&nonce.count, &tenant.associated, sealed)
            .map_err(|_| MintError::TooLarge { len, max: text::RAW_MAX_BYTES })?;
        scratch.extend_from_slice(&tag);
        text::append(&scratch[tenant.domain.len()..], out);
        Ok(())
    }

    /// The slot of this key, made if there is none.
    #[inline]
    fn slot(&mut self, instance: u64, now_ms: u64) -> usize {
        if let Some(index) = self.slots.iter().position(|slot| slot.instance == instance) {
            return index;
        }
        // Keys that are out of use leave here, at the latest when the thread ends. // I9
        self.slots.retain(|slot| !slot.nonces.is_spent(now_ms));
        if self.slots.len() == SLOTS_MAX {
            self.slots.remove(0);
        }
        self.slots.push(Slot { instance, nonces: NonceSource::new(), subkey: None });
        self.slots.len() - 1
    }
}
