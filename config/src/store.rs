//! Changes a rules file with who and why, keeps every change, and rolls back.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::document::{version_of, with_version};
use crate::refusal::Refusal;
use crate::rules::Rules;
use crate::watch::read_bounded;

const LOCK_TRIES: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_millis(25);
/// Bytes of `who` and of `why` at most.
const REMARK_MAX_BYTES: usize = 4096;

/// A rules file with its history: `rules.toml`, `rules.toml.history/00000007.toml`, `rules.toml.lock`.
///
/// Holds nothing open; several processes may have one on the same file.
#[derive(Debug, Clone)]
pub struct RulesStore {
    path: PathBuf,
    known_brokers: Option<Vec<String>>,
}

/// One change that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The version it made.
    pub version: u64,
    /// When, ms since 1970.
    pub at_ms: u64,
    /// Who made it.
    pub who: String,
    /// Why.
    pub why: String,
    /// The whole document before it; `None` for the first.
    pub before: Option<String>,
    /// The whole document after it.
    pub after: String,
}

impl Change {
    /// Whether it began where `earlier` ended. Where it did not, the file was changed outside in between, or
    /// the machine died before `earlier` took effect; `before` has what was there.
    pub fn follows(&self, earlier: &Self) -> bool {
        self.before.as_deref() == Some(&earlier.after)
    }
}

/// Every change that was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// By version, oldest first.
    pub changes: Vec<Change>,
    /// Files that could not be read, with the reason.
    pub unreadable: Vec<(PathBuf, String)>,
}

/// What a change came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The file has this new version.
    Changed {
        /// The new version.
        version: u64,
    },
    /// The file said that already, to the byte; nothing was written.
    Unchanged {
        /// The version it has.
        version: u64,
    },
}

/// A rules file could not be read, or its history.
#[derive(Debug, thiserror::Error)]
#[error("{path} cannot be read: {source}")]
pub struct ReadError {
    /// The file or directory.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// A change was not made.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// The document does not validate; correct it. Nothing was written.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The document was made from another version than the file has, so that it would undo a change that it
    /// has not seen. Merge the two and set the result. Nothing was written.
    #[error(
        "the document carries version {based_on}, but the file is at version {current}: take over what has \
         changed, leave `version = {current}` in it (set raises it), and set it again"
    )]
    Conflict {
        /// The version in the document.
        based_on: u64,
        /// The file's version.
        current: u64,
    },
    /// Another one is changing the file; try again. Nothing was written.
    #[error("{0} is locked by another change; try again")]
    Locked(PathBuf),
    /// `who` or `why` is empty or longer than 4096 bytes. Nothing was written.
    #[error("say {0}: 1 to 4096 bytes; every change is kept with who made it and why")]
    Remark(&'static str),
    /// No such version in the history. Nothing was written.
    #[error("the history has no version {0}")]
    UnknownVersion(u64),
    /// Reading or writing failed. Where writing had begun the change may have been made: look at the file's
    /// version before trying again.
    #[error("{what} {path}: {source}; look at the file's version before trying again")]
    Io {
        /// What failed.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl From<ReadError> for SetError {
    fn from(error: ReadError) -> Self {
        Self::Io { what: "cannot read", path: error.path, source: error.source }
    }
}

impl RulesStore {
    /// `known_brokers` are those of the static options, as in [`Rules::parse`].
    pub fn new(path: impl Into<PathBuf>, known_brokers: Option<Vec<String>>) -> Self {
        Self { path: path.into(), known_brokers }
    }

    /// The document as it stands, valid or not; what is not UTF-8 is replaced by `U+FFFD`.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn show(&self) -> Result<String, ReadError> {
        read_bounded(&self.path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .map_err(|source| ReadError { path: self.path.clone(), source })
    }

    /// Replaces the document, as a whole or not at all. `now_ms` is ms since 1970.
    ///
    /// `new_text` carries the version that it was made from, as [`RulesStore::show`] gave it; it is written
    /// with the next one. So of two changes made from the same version the second is a [`SetError::Conflict`],
    /// and no change is lost. Where there is no document yet, or none that can be read, any version is taken.
    ///
    /// # Errors
    /// [`SetError`] says for each case whether anything was written.
    pub fn set(&self, new_text: &str, who: &str, why: &str, now_ms: u64) -> Result<Written, SetError> {
        let based_on = self.validate(new_text)?.version;
        let check = |current: Option<u64>| match current {
            Some(current) if current != based_on => Err(SetError::Conflict { based_on, current }),
            _ => Ok(()),
        };
        self.change(check, || Ok(new_text.to_owned()), who, why, now_ms)
    }

    /// Writes the document of an earlier version as a new one. `now_ms` is ms since 1970.
    ///
    /// # Errors
    /// [`SetError`], [`SetError::Refused`] too: a document of old may name a broker that is gone.
    pub fn rollback(&self, version: u64, who: &str, why: &str, now_ms: u64) -> Result<Written, SetError> {
        let why =
            if why.is_empty() { why.to_owned() } else { format!("rollback to version {version}: {why}") };
        let text = || self.history()?.text_of(version).ok_or(SetError::UnknownVersion(version));
        self.change(|_| Ok(()), text, who, &why, now_ms)
    }

    /// Every change that was made by [`RulesStore::set`] and [`RulesStore::rollback`].
    ///
    /// # Errors
    /// [`ReadError`] where the directory cannot be read; damaged files are listed in the result.
    pub fn history(&self) -> Result<History, ReadError> {
        let mut history = History { changes: Vec::new(), unreadable: Vec::new() };
        for (_, path) in self.entries()? {
            let change = fs::read_to_string(&path)
                .map_err(|error| error.to_string())
                .and_then(|text| toml::from_str::<Change>(&text).map_err(|error| error.message().to_owned()));
            match change {
                Ok(change) => history.changes.push(change),
                Err(reason) => history.unreadable.push((path, reason)),
            }
        }
        Ok(history)
    }

    fn change(
        &self,
        check: impl FnOnce(Option<u64>) -> Result<(), SetError>,
        text: impl FnOnce() -> Result<String, SetError>,
        who: &str,
        why: &str,
        now_ms: u64,
    ) -> Result<Written, SetError> {
        for (what, remark) in [("who", who), ("why", why)] {
            if remark.trim().is_empty() || remark.len() > REMARK_MAX_BYTES {
                return Err(SetError::Remark(what));
            }
        }
        let target = self.target();
        let _lock = lock(&beside(&target, ".lock"))?;
        let before = match self.show() {
            Ok(text) => Some(text),
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        let current = before.as_deref().and_then(version_of);
        check(current)?;
        let text = text()?;
        // Above everything that ever was, so that processes take it whatever they run.
        let newest = self.entries()?.last().map(|(version, _)| *version);
        let version = match current.max(newest) {
            Some(newest) => newest.saturating_add(1),
            None => version_of(&text).unwrap_or(1),
        };
        if let (Some(before), Some(current)) = (&before, current)
            && with_version(&text, current).as_ref() == Some(before)
        {
            return Ok(Written::Unchanged { version: current });
        }
        let after = with_version(&text, version).unwrap_or(text);
        self.validate(&after)?;
        let change =
            Change { version, at_ms: now_ms, who: who.to_owned(), why: why.to_owned(), before, after };
        self.write(&target, &change)?;
        Ok(Written::Changed { version })
    }

    /// The history first: a change without its who and why must not be, a who and why without its change is
    /// seen in the next one's `before`.
    fn write(&self, target: &Path, change: &Change) -> Result<(), SetError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            |source| SetError::Io { what: "cannot write", path, source }
        };
        let directory = beside(target, ".history");
        let entry = directory.join(format!("{:08}.toml", change.version));
        let text = toml::to_string(change).map_err(|error| failed(&entry)(io::Error::other(error)))?;
        fs::create_dir_all(&directory).map_err(failed(&directory))?;
        sync_directory_of(&directory).map_err(failed(&directory))?;
        write_whole(&entry, text.as_bytes()).map_err(failed(&entry))?;
        write_whole(target, change.after.as_bytes()).map_err(failed(target))
    }

    /// The history's files by version.
    fn entries(&self) -> Result<Vec<(u64, PathBuf)>, ReadError> {
        let directory = beside(&self.target(), ".history");
        let failed = |source| ReadError { path: directory.clone(), source };
        let listing = match fs::read_dir(&directory) {
            Ok(listing) => listing,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut entries = Vec::new();
        for file in listing {
            let path = file.map_err(failed)?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if let Some(version) = name.strip_suffix(".toml").and_then(|stem| stem.parse().ok()) {
                entries.push((version, path));
            }
        }
        entries.sort();
        Ok(entries)
    }

    fn validate(&self, text: &str) -> Result<Rules, Refusal> {
        let known: Option<Vec<&str>> =
            self.known_brokers.as_ref().map(|known| known.iter().map(String::as_str).collect());
        Rules::parse(text, known.as_deref())
    }

    /// The file itself where the path is a link: a rename onto the link would cut it.
    fn target(&self) -> PathBuf {
        fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone())
    }
}

impl History {
    /// The document of a version: what a change left, or what the next one found after a change outside.
    fn text_of(&self, version: u64) -> Option<String> {
        let made = self.changes.iter().find(|change| change.version == version).map(|change| &change.after);
        let found = || {
            let before = self.changes.iter().filter_map(|change| change.before.as_ref());
            before.into_iter().find(|before| version_of(before) == Some(version))
        };
        made.or_else(found).cloned()
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Held until the file is dropped; the system frees it if its owner dies.
fn lock(path: &Path) -> Result<File, SetError> {
    let failed = |source| SetError::Io { what: "cannot lock", path: path.to_owned(), source };
    let file = File::options().create(true).append(true).open(path).map_err(failed)?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
    }
    Err(SetError::Locked(path.to_owned()))
}

/// A reader sees the old file or the new one, and after a power cut so does the next start.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // One name is enough under the lock, and what a killed writer left is overwritten.
    let draft = beside(path, ".new");
    let write = || {
        let mut file = File::create(&draft)?;
        if let Ok(old) = fs::metadata(path) {
            file.set_permissions(old.permissions())?;
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    if let Err(error) = write() {
        // Half a draft helps nobody; if it cannot go either, the next writer overwrites it.
        fs::remove_file(&draft).ok();
        return Err(error);
    }
    sync_directory_of(path)
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}
