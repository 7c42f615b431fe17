//! The key ring, which mints and opens tokens: immutable and cheap to clone.

use std::{
    fmt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    Algorithm, KeyFileError, KeyId, KeyInfo, State,
    keyfile::{self, Secrets},
    mint::Minter,
    signature::SigningMaterial,
    xaes::SealKey,
};

/// The keys that a process mints and opens tokens with.
///
/// Immutable: after a change of the key file, load it again and swap. Secrets are zeroized when the last clone
/// and the last [`Minter`] are gone, and never show in `Debug`.
#[derive(Clone)]
pub struct KeyRing(Arc<[RingKey]>);

/// There is no key to mint with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoPrimary {
    /// No key of the ring is primary.
    #[error("the key ring has no primary key; promote one: windfall keys promote ID")]
    None,
    /// The ring is a verifier's copy.
    #[error("primary key {0} is here without its signing secret: this is a verifier's copy of the ring")]
    VerifierCopy(KeyId),
}

/// A key of the ring, with the secrets that it works with.
pub(crate) struct RingKey {
    pub(crate) info: KeyInfo,
    /// The key's working parts; `None` while it is pending, and once it is destroyed.
    pub(crate) live: Option<Arc<LiveKey>>,
}

/// The working parts of a key that opens tokens.
pub(crate) struct LiveKey {
    /// Distinguishes this load of this key from every other one in the process, for caches.
    pub(crate) instance: u64,
    pub(crate) seal: SealKey,
    pub(crate) signing: SigningMaterial,
}

impl LiveKey {
    fn new(algorithm: Algorithm, secrets: &Secrets) -> Option<Self> {
        static INSTANCES: AtomicU64 = AtomicU64::new(0);
        let signing = match (algorithm, &secrets.signing, &secrets.public) {
            (Algorithm::HmacSha256, Some(secret), _) => SigningMaterial::hmac(secret),
            (Algorithm::Ed25519, Some(secret), _) => SigningMaterial::ed25519(secret),
            (Algorithm::Ed25519, None, Some(public)) => SigningMaterial::ed25519_public(public)?,
            _ => return None,
        };
        let seal = SealKey::new(&secrets.seal);
        Some(Self { instance: INSTANCES.fetch_add(1, Ordering::Relaxed), seal, signing })
    }
}

impl RingKey {
    /// `None` where the secrets do not make a key of this algorithm.
    pub(crate) fn new(info: KeyInfo, secrets: Option<&Secrets>) -> Option<Self> {
        let live = match (info.state, secrets) {
            (State::Pending | State::Destroyed, _) => None,
            (State::VerifyOnly | State::Primary, secrets) => {
                Some(Arc::new(LiveKey::new(info.algorithm, secrets?)?))
            }
        };
        Some(Self { info, live })
    }
}

impl KeyRing {
    /// Loads a key file.
    ///
    /// # Errors
    /// [`KeyFileError`]: not there, readable by others, damaged, of a newer version.
    pub fn load(path: &Path) -> Result<Self, KeyFileError> {
        keyfile::load(path)
    }

    /// A ring with one fresh primary HMAC key that nobody else has: for tests, examples and demos.
    ///
    /// # Errors
    /// The operating system has no randomness.
    pub fn ephemeral() -> Result<Self, getrandom::Error> {
        Self::ephemeral_of(Algorithm::HmacSha256)
    }

    /// Like [`ephemeral`](Self::ephemeral), with a key of this algorithm.
    ///
    /// # Errors
    /// The operating system has no randomness.
    pub fn ephemeral_of(algorithm: Algorithm) -> Result<Self, getrandom::Error> {
        let secrets = Secrets::random()?;
        let info =
            KeyInfo { id: KeyId(1), algorithm, state: State::Primary, has_minted: true, created_ms: 0 };
        Ok(Self::from_keys(RingKey::new(info, Some(&secrets)).into_iter().collect()))
    }

    pub(crate) fn from_keys(keys: Vec<RingKey>) -> Self {
        Self(keys.into())
    }

    /// The keys, in the order of their numbers.
    pub fn keys(&self) -> impl Iterator<Item = KeyInfo> + '_ {
        self.0.iter().map(|key| key.info)
    }

    /// A minter for one tenant, with the primary key.
    ///
    /// # Errors
    /// [`NoPrimary`].
    pub fn minter(&self, tenant: &str) -> Result<Minter, NoPrimary> {
        let primary = self.0.iter().find(|key| key.info.state == State::Primary).ok_or(NoPrimary::None)?;
        let live = primary.live.as_ref().ok_or(NoPrimary::None)?;
        Minter::new(primary.info.id, live, tenant).ok_or(NoPrimary::VerifierCopy(primary.info.id))
    }

    /// A minter for one tenant with this key, primary or not; `None` where the ring has no such key, or not what it would
    /// mint with. For a sender that goes on with a key until whoever judges tokens has the primary one.
    pub fn minter_with(&self, id: KeyId, tenant: &str) -> Option<Minter> {
        Minter::new(id, self.key(id)?.live.as_ref()?, tenant)
    }

    pub(crate) fn key(&self, id: KeyId) -> Option<&RingKey> {
        self.0.iter().find(|key| key.info.id == id)
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyRing ")?;
        f.debug_list().entries(self.keys()).finish()
    }
}
