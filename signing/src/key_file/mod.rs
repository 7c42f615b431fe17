//! The key file of signing keys, and what an operator may do to it.

mod document;

use crate::key::{KeyInfo, KeyState, UnusableName, check_sender};
use crate::mac::MacKey;
use crate::ring::{Ring, RingKey};
use crate::verify::UNSIGNED_ORIGIN;
use std::fmt;
use std::path::{Path, PathBuf};
use windfall_key_file::{self as disk, KeyFileError, Lock, random_secret};
use zeroize::Zeroizing;

/// The number of keys in a file at most, destroyed ones included.
const KEYS_MAX: usize = 1000;
/// The command that makes a key file.
const MAKE: &str = "windfall signing new";

/// A change that was refused. Nothing has changed, in the file or in memory, except as `File` says.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// There is no such key.
    #[error("there is no key {0} in this file")]
    UnknownKey(u32),
    /// There is no key of this sender.
    #[error("there is no key of the sender {0:?} in this file")]
    UnknownSender(String),
    /// The sender has no primary key.
    #[error("the sender {0:?} has no primary key to export; promote one first: windfall signing promote")]
    NoPrimary(String),
    /// No sender can have that name.
    #[error(transparent)]
    Name(#[from] UnusableName),
    /// The key's state does not allow the change.
    #[error("cannot {action} key {id}: it is {state}; {instead}")]
    WrongState {
        /// What was asked.
        action: &'static str,
        /// The key.
        id: u32,
        /// Its state.
        state: KeyState,
        /// What to do.
        instead: &'static str,
    },
    /// The file has a thousand keys.
    #[error("the file is full; begin a new one")]
    Full,
    /// Reading, drawing or writing failed.
    #[error(transparent)]
    File(#[from] KeyFileError),
}

/// A key file, open for changes: what `windfall signing` works on.
///
/// Held under a lock file next to it, so that of two writers one is refused. Each change is saved as a whole before it
/// returns: written aside, synced, renamed. Running processes take it over within seconds.
pub struct KeyFile {
    path: PathBuf,
    entries: Vec<Entry>,
    _lock: Lock,
}

/// A key as it is in the file.
#[derive(Clone)]
struct Entry {
    info: KeyInfo,
    /// `None` once it is destroyed.
    secret: Option<Zeroizing<[u8; 32]>>,
}

/// The content of a file.
struct Content {
    entries: Vec<Entry>,
    /// The sender whose keys alone are here, in an exported copy.
    copy_for: Option<String>,
}

pub(crate) fn load(path: &Path) -> Result<Ring, KeyFileError> {
    let key =
        |Entry { info, secret }: Entry| RingKey { info, mac: secret.map(|secret| MacKey::new(&secret)) };
    let Content { entries, copy_for } = read(path)?;
    Ok(Ring::from_keys(entries.into_iter().map(key), copy_for))
}

fn read(path: &Path) -> Result<Content, KeyFileError> {
    let text = disk::read(path, MAKE)?;
    document::read(&text).map_err(|refused| KeyFileError::refused(path, &refused))
}

impl KeyFile {
    /// Makes a key file with one key of a sender, primary at once: nobody else has a ring yet that does not know it.
    ///
    /// # Errors
    /// [`ChangeError`]; a file that is there is never replaced.
    pub fn create(path: &Path, sender: &str, may_copy: bool, now_ms: u64) -> Result<Self, ChangeError> {
        check_sender(sender)?;
        let lock = Lock::take(path)?;
        let mut entry = new_entry(1, sender, may_copy, now_ms)?;
        (entry.info.state, entry.info.has_signed) = (KeyState::Primary, true);
        let entries = vec![entry];
        disk::write_new(path, &document::write(&entries, None))?;
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
        let content = read(&path)?;
        if content.copy_for.is_some() {
            return Err(KeyFileError::VerifierCopy { path });
        }
        Ok(Self { path, entries: content.entries, _lock: lock })
    }

    /// The keys, in the order of their numbers.
    pub fn list(&self) -> Vec<KeyInfo> {
        self.entries.iter().map(|entry| entry.info.clone()).collect()
    }

    /// Adds a key that verifies, and does not sign yet. Next: give the file to every consumer, then
    /// [`promote`](Self::promote).
    ///
    /// # Errors
    /// [`ChangeError::Name`], [`ChangeError::Full`], [`ChangeError::File`].
    pub fn add(&mut self, sender: &str, may_copy: bool, now_ms: u64) -> Result<u32, ChangeError> {
        check_sender(sender)?;
        self.change(|entries| {
            let last = entries.last().map_or(0, |entry| entry.info.id);
            let id = last
                .checked_add(1)
                .filter(|id| *id < UNSIGNED_ORIGIN && entries.len() < KEYS_MAX)
                .ok_or(ChangeError::Full)?;
            entries.push(new_entry(id, sender, may_copy, now_ms)?);
            Ok(id)
        })
    }

    /// Makes a key its sender's primary one. The primary key so far becomes verify-only in the same change.
    ///
    /// Every consumer must have taken over the file with the key before a sender does, or it refuses what the key signs.
    ///
    /// # Errors
    /// [`ChangeError`]: a key that has signed is not promoted again; add a new one.
    pub fn promote(&mut self, id: u32) -> Result<(), ChangeError> {
        self.change(|entries| {
            let info = find(entries, id)?.info.clone();
            let refused =
                |instead| ChangeError::WrongState { action: "promote", id, state: info.state, instead };
            match info.state {
                KeyState::VerifyOnly if info.has_signed => {
                    return Err(refused("it was primary before; add a new key"));
                }
                KeyState::VerifyOnly => {}
                KeyState::Primary => return Err(refused("there is no step after that but retire")),
                KeyState::Destroyed => return Err(refused("add a new key")),
            }
            let copies =
                |own: &Entry| own.info.sender == info.sender && own.info.has_signed && own.info.may_copy;
            if !info.may_copy && entries.iter().any(copies) {
                return Err(refused("its sender signs copies, and it may sign none; add one that may"));
            }
            let is_old = |own: &KeyInfo| own.state == KeyState::Primary && own.sender == info.sender;
            for entry in entries.iter_mut().filter(|entry| is_old(&entry.info)) {
                entry.info.state = KeyState::VerifyOnly;
            }
            let entry = find(entries, id)?;
            (entry.info.state, entry.info.has_signed) = (KeyState::Primary, true);
            Ok(())
        })
    }

    /// Makes a primary key verify-only. Its sender can sign nothing until another key is promoted; to rotate, promote that
    /// other one, which retires this one in the same change.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub fn retire(&mut self, id: u32) -> Result<(), ChangeError> {
        self.change(|entries| {
            let entry = find(entries, id)?;
            let instead = match entry.info.state {
                KeyState::Primary => {
                    entry.info.state = KeyState::VerifyOnly;
                    return Ok(());
                }
                KeyState::VerifyOnly if entry.info.has_signed => {
                    "it is retired already; destroy is the next step"
                }
                KeyState::VerifyOnly => "it has signed nothing; promote or destroy it",
                KeyState::Destroyed => "there is no way back",
            };
            Err(ChangeError::WrongState { action: "retire", id, state: entry.info.state, instead })
        })
    }

    /// Erases a verify-only key's secret: what it signed, and copies of that, are refused from then on, wherever the file is
    /// loaded. Its number stays taken. Backups and freed disk blocks are out of reach.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub fn destroy(&mut self, id: u32) -> Result<(), ChangeError> {
        self.change(|entries| {
            let entry = find(entries, id)?;
            let instead = match entry.info.state {
                KeyState::VerifyOnly => {
                    entry.info.state = KeyState::Destroyed;
                    entry.secret = None;
                    return Ok(());
                }
                KeyState::Primary => "retire it first, and wait until what it signed is granted",
                KeyState::Destroyed => "there is nothing left of it",
            };
            Err(ChangeError::WrongState { action: "destroy", id, state: entry.info.state, instead })
        })
    }

    /// Writes a copy that has this sender's primary key alone, for a process that sends and verifies nothing. Its next key is
    /// not in it: whoever steals the copy must not have the key that is promoted against him. An earlier copy at that place
    /// is replaced.
    ///
    /// # Errors
    /// [`ChangeError::UnknownSender`], [`ChangeError::NoPrimary`], [`ChangeError::File`]: a file that is no such copy is never replaced.
    pub fn export(&self, sender: &str, path: &Path) -> Result<(), ChangeError> {
        let of_sender = |entry: &&Entry| entry.info.sender == sender;
        if !self.entries.iter().any(|entry| of_sender(&entry)) {
            return Err(ChangeError::UnknownSender(sender.to_owned()));
        }
        let is_primary = |entry: &&Entry| of_sender(entry) && entry.info.state == KeyState::Primary;
        let own: Vec<Entry> = self.entries.iter().filter(is_primary).cloned().collect();
        if own.is_empty() {
            return Err(ChangeError::NoPrimary(sender.to_owned()));
        }
        let _lock = Lock::take(path)?;
        let text = document::write(&own, Some(sender));
        match read(path) {
            Err(KeyFileError::Missing { .. }) => Ok(disk::write_new(path, &text)?),
            Ok(old) if old.copy_for.as_deref() == Some(sender) => Ok(disk::replace(path, &text)?),
            Ok(_) => Err(KeyFileError::Exists { path: path.to_owned() }.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Applies a change to a copy, saves it, and only then takes it over.
    fn change<T>(
        &mut self,
        change: impl FnOnce(&mut Vec<Entry>) -> Result<T, ChangeError>,
    ) -> Result<T, ChangeError> {
        let mut entries = self.entries.clone();
        let changed = change(&mut entries)?;
        disk::replace(&self.path, &document::write(&entries, None))?;
        self.entries = entries;
        Ok(changed)
    }
}

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyFile").field("path", &self.path).field("keys", &self.list()).finish()
    }
}

fn new_entry(id: u32, sender: &str, may_copy: bool, now_ms: u64) -> Result<Entry, KeyFileError> {
    let info = KeyInfo {
        id,
        sender: sender.to_owned(),
        may_copy,
        state: KeyState::VerifyOnly,
        has_signed: false,
        created_ms: now_ms,
    };
    Ok(Entry { info, secret: Some(random_secret().map_err(KeyFileError::NoRandomness)?) })
}

fn find(entries: &mut [Entry], id: u32) -> Result<&mut Entry, ChangeError> {
    entries.iter_mut().find(|entry| entry.info.id == id).ok_or(ChangeError::UnknownKey(id))
}
