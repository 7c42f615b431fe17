//! The ring of signing keys: immutable and cheap to clone; and the one in force, which is replaced while it is used.

use crate::key::{KeyInfo, KeyState, UnusableName, check_sender};
use crate::key_file;
use crate::mac::MacKey;
use arc_swap::ArcSwap;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use windfall_key_file::{KeyFileError, random_secret};

/// The keys that a process signs and verifies records with.
///
/// Immutable: after a change of the key file, load it again and [replace](LiveRing::replace). Secrets are zeroized when
/// the last clone is gone, and never show in `Debug`.
#[derive(Clone)]
pub struct Ring(Arc<Keys>);

struct Keys {
    /// The sender whose keys alone are here, in an exported copy.
    copy_for: Option<String>,
    by_id: BTreeMap<u32, RingKey>,
    /// The number of each sender's primary key.
    primaries: BTreeMap<String, u32>,
}

/// A key of the ring, with the secret that it works with.
pub(crate) struct RingKey {
    pub info: KeyInfo,
    /// `None` once it is destroyed.
    pub mac: Option<MacKey>,
}

/// A sender has no key to sign with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the ring has no primary key of the sender {sender:?}; add and promote one: windfall signing add --sender"
)]
pub struct NoPrimary {
    /// The sender.
    pub sender: String,
}

impl Ring {
    /// Loads a key file.
    ///
    /// # Errors
    /// [`KeyFileError`]: not there, readable by others, damaged, of a newer version.
    pub fn load(path: &Path) -> Result<Self, KeyFileError> {
        key_file::load(path)
    }

    /// A ring with one fresh primary key of this sender, which may sign copies: for tests, examples and demos.
    ///
    /// # Errors
    /// The operating system has no randomness.
    ///
    /// # Panics
    /// The name cannot be a sender's.
    pub fn ephemeral(sender: &str) -> Result<Self, getrandom::Error> {
        assert_eq!(check_sender(sender), Ok::<(), UnusableName>(()));
        let info = KeyInfo {
            id: 1,
            sender: sender.to_owned(),
            may_copy: true,
            state: KeyState::Primary,
            has_signed: true,
            created_ms: 0,
        };
        let mac = Some(MacKey::new(&*random_secret()?));
        Ok(Self::from_keys([RingKey { info, mac }], None))
    }

    pub(crate) fn from_keys(keys: impl IntoIterator<Item = RingKey>, copy_for: Option<String>) -> Self {
        let by_id: BTreeMap<u32, RingKey> = keys.into_iter().map(|key| (key.info.id, key)).collect();
        let primary = |key: &RingKey| key.info.state == KeyState::Primary;
        let of_sender = |key: &RingKey| (key.info.sender.clone(), key.info.id);
        let primaries = by_id.values().filter(|key| primary(key)).map(of_sender).collect();
        Self(Arc::new(Keys { copy_for, by_id, primaries }))
    }

    /// The keys, in the order of their numbers.
    pub fn keys(&self) -> impl Iterator<Item = &KeyInfo> {
        self.0.by_id.values().map(|key| &key.info)
    }

    /// The number of the key that this sender signs with.
    ///
    /// # Errors
    /// [`NoPrimary`].
    pub fn primary(&self, sender: &str) -> Result<u32, NoPrimary> {
        let id = self.0.primaries.get(sender).copied();
        id.ok_or_else(|| NoPrimary { sender: sender.to_owned() })
    }

    /// The highest number of a key, 0 where there is none. A destroyed key keeps its number.
    pub fn highest(&self) -> u32 {
        self.0.by_id.last_key_value().map_or(0, |(id, _)| *id)
    }

    /// The sender whose keys alone it has, where it was exported.
    pub fn copy_for(&self) -> Option<&str> {
        self.0.copy_for.as_deref()
    }

    /// Whether this sender's primary key may sign records that name another key as their origin.
    pub fn may_copy(&self, sender: &str) -> bool {
        self.primary(sender).ok().and_then(|id| self.key(id)).is_some_and(|key| key.info.may_copy)
    }

    pub(crate) fn key(&self, id: u32) -> Option<&RingKey> {
        self.0.by_id.get(&id)
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ring ")?;
        f.debug_list().entries(self.keys()).finish()
    }
}

/// The ring in force, shared by all that sign and verify in a process.
#[derive(Debug, Clone)]
pub struct LiveRing(Arc<InForce>);

#[derive(Debug)]
struct InForce {
    ring: ArcSwap<Ring>,
    /// How often it was replaced.
    changes: AtomicU64,
    /// Whether a record named a key that the ring does not have, and nobody has looked for a newer ring since.
    lacks_a_key: AtomicBool,
}

impl LiveRing {
    /// Begins with this ring.
    pub fn new(ring: Ring) -> Self {
        let (changes, lacks_a_key) = (AtomicU64::new(0), AtomicBool::new(false));
        Self(Arc::new(InForce { ring: ArcSwap::from_pointee(ring), changes, lacks_a_key }))
    }

    /// Takes over another ring, from the next record on.
    ///
    /// `sender` is who signs with it, if anyone does.
    ///
    /// # Errors
    /// [`NoPrimary`]: the sender could not sign with it. The ring so far stays.
    pub fn replace(&self, ring: Ring, sender: Option<&str>) -> Result<(), NoPrimary> {
        if let Some(sender) = sender {
            ring.primary(sender)?;
        }
        self.0.ring.store(Arc::new(ring));
        self.0.changes.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// The ring in force.
    pub fn current(&self) -> Arc<Ring> {
        self.0.ring.load_full()
    }

    /// How often it was replaced. What is verified after this number was read is verified by that ring or a later one.
    pub fn changes(&self) -> u64 {
        self.0.changes.load(Ordering::Acquire)
    }

    /// Whether a record named a key that the ring does not have, since this was asked last: there may be a newer ring.
    pub fn take_lack(&self) -> bool {
        self.0.lacks_a_key.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn note_lack(&self) {
        if !self.0.lacks_a_key.load(Ordering::Relaxed) {
            self.0.lacks_a_key.store(true, Ordering::Relaxed);
        }
    }
}
