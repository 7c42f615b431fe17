//! The key file, and what an operator may do to it.

mod document;

use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::{Algorithm, KeyId, KeyInfo, KeyRing, State, ring::RingKey, signature::SigningMaterial};
pub use windfall_key_file::KeyFileError;
use windfall_key_file::{self as disk, Lock, random_secret};

/// The number of keys in a file at most, destroyed ones included.
const KEYS_MAX: usize = 1000;
/// The command that makes a key file.
const MAKE: &str = "windfall keys new";

/// A change that was refused. Nothing has changed, in the file or in memory, except as `File` says.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// There is no such key.
    #[error("there is no key {0} in this file")]
    UnknownKey(KeyId),
    /// The key's state does not allow the change.
    #[error("cannot {action} key {id}: it is {state}; {instead}")]
    WrongState {
        /// What was asked.
        action: &'static str,
        /// The key.
        id: KeyId,
        /// Its state.
        state: State,
        /// What to do.
        instead: &'static str,
    },
    /// The file has a thousand keys.
    #[error("the file is full; begin a new one")]
    Full,
    /// The file has an HMAC key, with which a verifier could also mint.
    #[error("key {0} is an HMAC key, which has no copy for verifiers alone; destroy it or use ed25519")]
    NoVerifierCopy(KeyId),
    /// Reading, drawing or writing failed.
    #[error(transparent)]
    File(#[from] KeyFileError),
}

/// A key file, open for changes: what `windfall keys` works on.
///
/// Held under a lock file next to it, so that of two writers one is refused. Each change is saved as a whole
/// before it returns: written aside, synced, renamed. Running processes see it when they load it again.
pub struct KeyFile {
    path: PathBuf,
    entries: Vec<Entry>,
    _lock: Lock,
}

/// A key as it is in the file.
#[derive(Clone)]
struct Entry {
    info: KeyInfo,
    /// The key's secrets; `None` once it is destroyed.
    secrets: Option<Secrets>,
}

/// A key's secrets; they zeroize themselves.
#[derive(Clone)]
pub(crate) struct Secrets {
    /// XAES-256-GCM's input key.
    pub(crate) seal: Zeroizing<[u8; 32]>,
    /// HMAC's key or Ed25519's seed; none in a verifier's copy.
    pub(crate) signing: Option<Zeroizing<[u8; 32]>>,
    /// Ed25519's public key, in a verifier's copy alone.
    pub(crate) public: Option<[u8; 32]>,
}

impl Secrets {
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        Ok(Self { seal: random_secret()?, signing: Some(random_secret()?), public: None })
    }
}

pub(crate) fn load(path: &Path) -> Result<KeyRing, KeyFileError> {
    let mut keys = Vec::new();
    for entry in read(path)? {
        let key = RingKey::new(entry.info, entry.secrets.as_ref());
        keys.push(key.ok_or_else(|| KeyFileError::damaged(path, "a public key that is none"))?);
    }
    Ok(KeyRing::from_keys(keys))
}

fn read(path: &Path) -> Result<Vec<Entry>, KeyFileError> {
    let text = disk::read(path, MAKE)?;
    document::read(&text).map_err(|refused| KeyFileError::refused(path, &refused))
}

impl KeyFile {
    /// Makes a key file with one key, primary at once: nobody has tokens yet that others could not verify.
    ///
    /// # Errors
    /// [`KeyFileError`]; a file that is there is never replaced.
    pub fn create(path: &Path, algorithm: Algorithm, now_ms: u64) -> Result<Self, KeyFileError> {
        let lock = Lock::take(path)?;
        let info =
            KeyInfo { id: KeyId(1), algorithm, state: State::Primary, has_minted: true, created_ms: now_ms };
        let secrets = Some(Secrets::random().map_err(KeyFileError::NoRandomness)?);
        let entries = vec![Entry { info, secrets }];
        disk::write_new(path, &document::write(&entries))?;
        Ok(Self { path: path.to_owned(), entries, _lock: lock })
    }

    /// Opens a key file for changes, and keeps other writers out until it is dropped.
    ///
    /// # Errors
    /// [`KeyFileError`].
    pub fn open(path: &Path) -> Result<Self, KeyFileError> {
        // A link stays a link: what it names is replaced.
        let path = disk::real_path(path, MAKE)?;
        let lock = Lock::take(&path)?;
        let entries = read(&path)?;
        if entries.iter().any(|entry| entry.secrets.as_ref().is_some_and(|it| it.signing.is_none())) {
            return Err(KeyFileError::VerifierCopy { path });
        }
        Ok(Self { path, entries, _lock: lock })
    }

    /// The keys, in the order of their numbers.
    pub fn list(&self) -> Vec<KeyInfo> {
        self.entries.iter().map(|entry| entry.info).collect()
    }

    /// Adds a pending key. Next: let every process load the file, then [`promote`](Self::promote).
    ///
    /// # Errors
    /// [`ChangeError::Full`], [`ChangeError::File`].
    pub fn add(&mut self, algorithm: Algorithm, now_ms: u64) -> Result<KeyId, ChangeError> {
        let secrets = Some(Secrets::random().map_err(KeyFileError::NoRandomness)?);
        self.change(|entries| {
            let last = entries.last().map_or(0, |entry| entry.info.id.0);
            let id =
                KeyId(last.checked_add(1).filter(|_| entries.len() < KEYS_MAX).ok_or(ChangeError::Full)?);
            let info =
                KeyInfo { id, algorithm, state: State::Pending, has_minted: false, created_ms: now_ms };
            entries.push(Entry { info, secrets });
            Ok(id)
        })
    }

    /// Takes a key one step on: pending → verify-only → primary, and returns its new state. The primary key so
    /// far becomes verify-only in the same change.
    ///
    /// Between the two steps every process must have loaded the file, or some cannot open what others mint.
    ///
    /// # Errors
    /// [`ChangeError`]: a key that has minted is not promoted again; add a new one.
    pub fn promote(&mut self, id: KeyId) -> Result<State, ChangeError> {
        self.change(|entries| {
            let info = find(entries, id)?.info;
            let refused =
                |instead| ChangeError::WrongState { action: "promote", id, state: info.state, instead };
            match info.state {
                State::Pending => {
                    find(entries, id)?.info.state = State::VerifyOnly;
                    Ok(State::VerifyOnly)
                }
                State::VerifyOnly if info.has_minted => Err(refused("it was primary before; add a new key")),
                State::VerifyOnly => {
                    let primaries = entries.iter_mut().filter(|entry| entry.info.state == State::Primary);
                    primaries.for_each(|entry| entry.info.state = State::VerifyOnly);
                    let entry = find(entries, id)?;
                    entry.info.state = State::Primary;
                    entry.info.has_minted = true;
                    Ok(State::Primary)
                }
                State::Primary => Err(refused("there is no step after that but retire")),
                State::Destroyed => Err(refused("add a new key")),
            }
        })
    }

    /// Makes the primary key verify-only. Nothing can be minted until another one is promoted; to rotate, promote
    /// that other one, which retires this one in the same change.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub fn retire(&mut self, id: KeyId) -> Result<(), ChangeError> {
        self.change(|entries| {
            let entry = find(entries, id)?;
            let instead = match entry.info.state {
                State::Primary => {
                    entry.info.state = State::VerifyOnly;
                    return Ok(());
                }
                State::Pending => "it has minted nothing; promote it, or promote and then destroy it",
                State::VerifyOnly if entry.info.has_minted => {
                    "it is retired already; destroy is the next step"
                }
                State::VerifyOnly => "it has minted nothing; promote or destroy it",
                State::Destroyed => "there is no way back",
            };
            Err(ChangeError::WrongState { action: "retire", id, state: entry.info.state, instead })
        })
    }

    /// Erases a verify-only key's secrets: its tokens are illegal from then on, wherever the file is loaded. Its
    /// number stays taken. Backups and freed disk blocks are out of reach.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub fn destroy(&mut self, id: KeyId) -> Result<(), ChangeError> {
        self.change(|entries| {
            let entry = find(entries, id)?;
            let instead = match entry.info.state {
                State::VerifyOnly => {
                    entry.info.state = State::Destroyed;
                    entry.secrets = None;
                    return Ok(());
                }
                State::Pending => "promote it to verify-only first",
                State::Primary => "retire it first, and wait until its tokens are credited",
                State::Destroyed => "there is nothing left of it",
            };
            Err(ChangeError::WrongState { action: "destroy", id, state: entry.info.state, instead })
        })
    }

    /// Writes a copy that can verify and cannot mint: sealing keys and public keys, no signing secrets.
    ///
    /// # Errors
    /// [`ChangeError::NoVerifierCopy`] where an HMAC key is alive; [`ChangeError::File`].
    pub fn export_verifier(&self, path: &Path) -> Result<(), ChangeError> {
        let mut copies = self.entries.clone();
        for Entry { info, secrets } in &mut copies {
            let Some(secrets) = secrets else { continue };
            let public = match (info.algorithm, secrets.signing.take()) {
                (Algorithm::Ed25519, Some(secret)) => SigningMaterial::ed25519(&secret).public_bytes(),
                _ => None,
            };
            secrets.public = Some(public.ok_or(ChangeError::NoVerifierCopy(info.id))?);
        }
        let _lock = Lock::take(path)?;
        Ok(disk::write_new(path, &document::write(&copies))?)
    }

    /// Applies a change to a copy, saves it, and only then takes it over.
    fn change<T>(
        &mut self,
        change: impl FnOnce(&mut Vec<Entry>) -> Result<T, ChangeError>,
    ) -> Result<T, ChangeError> {
        let mut entries = self.entries.clone();
        let changed = change(&mut entries)?;
        disk::replace(&self.path, &document::write(&entries))?;
        self.entries = entries;
        Ok(changed)
    }
}

impl std::fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyFile").field("path", &self.path).field("keys", &self.list()).finish()
    }
}

fn find(entries: &mut [Entry], id: KeyId) -> Result<&mut Entry, ChangeError> {
    entries.iter_mut().find(|entry| entry.info.id == id).ok_or(ChangeError::UnknownKey(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full file still fits what is read, so that no change makes a file that cannot be opened again.
    #[test]
    fn a_full_file_takes_no_more_and_still_opens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let key = |id| {
            let info = KeyInfo {
                id: KeyId(id),
                algorithm: Algorithm::HmacSha256,
                state: State::VerifyOnly,
                has_minted: false,
                created_ms: u64::MAX / 2,
            };
            Entry { info, secrets: Some(Secrets::random().unwrap()) }
        };
        let last = u32::MAX;
        let entries: Vec<_> = (0..1000).rev().map(|n| key(last - n)).collect();
        disk::write_new(&path, &document::write(&entries)).unwrap();

        let mut file = KeyFile::open(&path).unwrap();
        assert!(matches!(file.add(Algorithm::HmacSha256, 0), Err(ChangeError::Full)));
        assert_eq!((file.list().len(), KeyRing::load(&path).unwrap().keys().count()), (KEYS_MAX, KEYS_MAX));
    }

    /// What a digest alone cannot tell: a file that is whole and makes no sense.
    #[test]
    fn a_ring_that_contradicts_itself_is_refused() {
        let key = |id, state, has_minted, with_secrets: bool| {
            let info =
                KeyInfo { id: KeyId(id), algorithm: Algorithm::HmacSha256, state, has_minted, created_ms: 0 };
            Entry { info, secrets: with_secrets.then(|| Secrets::random().unwrap()) }
        };
        let public_hmac = |mut entry: Entry| {
            let secrets = entry.secrets.as_mut().unwrap();
            secrets.signing = None;
            secrets.public = Some([1; 32]);
            entry
        };
        let primary = || key(1, State::Primary, true, true);
        assert!(document::read(&document::write(&[primary()])).is_ok());
        let bad: [(&str, Vec<Entry>); 10] = [
            ("no key", vec![]),
            ("key 0", vec![key(0, State::Primary, true, true)]),
            ("a number twice", vec![primary(), key(1, State::Pending, false, true)]),
            ("numbers out of order", vec![key(2, State::Pending, false, true), primary()]),
            ("two primaries", vec![primary(), key(2, State::Primary, true, true)]),
            ("a pending key that has minted", vec![key(1, State::Pending, true, true)]),
            ("a primary key that has not", vec![key(1, State::Primary, false, true)]),
            ("a primary key without secrets", vec![key(1, State::Primary, true, false)]),
            ("a destroyed key with secrets", vec![key(1, State::Destroyed, true, true)]),
            ("a public HMAC key", vec![public_hmac(primary())]),
        ];
        for (what, entries) in bad {
            let refused = document::read(&document::write(&entries));
            assert!(matches!(refused, Err(document::Refused::Damaged(_))), "{what}");
        }
    }
}
