//! Changes a rules file with an actor and a reason, keeps every change, and rolls back.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::change::{
    Change, ChangeRules, History, ReadError, Remarks, SetError, Written, check_base, check_remarks, plan,
    rollback_reason, validate,
};
use crate::document::version_of;
use crate::status::{FORGET_AFTER_MS, ProcessStatus, file_name};
use crate::watch::read_bounded;

const LOCK_TRIES: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// A rules file with its history: `rules.toml`, `rules.toml.history/00000007.toml`, `rules.toml.lock`, and what
/// processes report, in `rules.toml.status/`.
///
/// Holds nothing open; several processes may have one on the same file.
#[derive(Debug, Clone)]
pub struct RulesStore {
    path: PathBuf,
    known_brokers: Option<Vec<String>>,
}

impl RulesStore {
    /// `known_brokers` are those of the static options, as in [`parse_rules`](crate::parse_rules).
    pub fn new(path: impl Into<PathBuf>, known_brokers: Option<Vec<String>>) -> Self {
        Self { path: path.into(), known_brokers }
    }

    /// As [`ChangeRules::show`].
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn show(&self) -> Result<String, ReadError> {
        read_bounded(&self.path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .map_err(|source| ReadError { place: name(&self.path), source })
    }

    /// As [`ChangeRules::set`].
    ///
    /// # Errors
    /// [`SetError`].
    pub fn set(&self, new_text: &str, who: &str, why: &str, now_ms: u64) -> Result<Written, SetError> {
        let based_on = validate(new_text, self.known_brokers.as_deref())?.version;
        let check = |current| check_base(based_on, current);
        self.change(check, || Ok(new_text.to_owned()), Remarks { who, why, now_ms })
    }

    /// As [`ChangeRules::rollback`].
    ///
    /// # Errors
    /// [`SetError`].
    pub fn rollback(&self, version: u64, who: &str, why: &str, now_ms: u64) -> Result<Written, SetError> {
        let why = rollback_reason(version, why);
        let text = || self.history()?.text_of(version).ok_or(SetError::UnknownVersion(version));
        self.change(|_| Ok(()), text, Remarks { who, why: &why, now_ms })
    }

    /// As [`ChangeRules::history`].
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
                Err(reason) => history.unreadable.push((name(&path), reason)),
            }
        }
        Ok(history)
    }

    fn change(
        &self,
        check: impl FnOnce(Option<u64>) -> Result<(), SetError>,
        text: impl FnOnce() -> Result<String, SetError>,
        remarks: Remarks<'_>,
    ) -> Result<Written, SetError> {
        check_remarks(remarks.who, remarks.why)?;
        let target = self.target();
        let _lock = lock(&beside(&target, ".lock"))?;
        let before = match self.show() {
            Ok(text) => Some(text),
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        check(before.as_deref().and_then(version_of))?;
        let newest = self.entries()?.last().map(|(version, _)| *version);
        match plan(before, newest, text()?, remarks, self.known_brokers.as_deref())? {
            Ok(change) => {
                self.write(&target, &change)?;
                Ok(Written::Changed { version: change.version })
            }
            Err(version) => Ok(Written::Unchanged { version }),
        }
    }

    /// The history first: a change without its who and why must not be, a who and why without its change is
    /// seen in the next one's `before`.
    fn write(&self, target: &Path, change: &Change) -> Result<(), SetError> {
        let failed = |path: &Path| {
            let place = name(path);
            |source| SetError::Io { what: "cannot write", place, source }
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
        let failed = |source| ReadError { place: name(&directory), source };
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

    /// Where processes report what they run.
    fn status_directory(&self) -> PathBuf {
        beside(&self.target(), ".status")
    }

    /// The file itself where the path is a link: a rename onto the link would cut it.
    fn target(&self) -> PathBuf {
        fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone())
    }
}

impl ChangeRules for RulesStore {
    fn show(&self) -> Result<String, ReadError> {
        self.show()
    }

    fn set(&self, new_text: &str, who: &str, why: &str, now_ms: u64) -> Result<Written, SetError> {
        self.set(new_text, who, why, now_ms)
    }

    fn rollback(&self, version: u64, who: &str, why: &str, now_ms: u64) -> Result<Written, SetError> {
        self.rollback(version, who, why, now_ms)
    }

    fn history(&self) -> Result<History, ReadError> {
        self.history()
    }

    fn report(&self, status: &ProcessStatus) -> Result<(), ReadError> {
        let directory = self.status_directory();
        let path = directory.join(file_name(&status.process) + ".json");
        let failed = |source| ReadError { place: name(&path), source };
        let text = serde_json::to_vec(status).map_err(|error| failed(io::Error::other(error)))?;
        fs::create_dir_all(&directory).map_err(failed)?;
        // Not synced: a report of before a power cut is of no use.
        let draft = beside(&path, ".new");
        fs::write(&draft, text).and_then(|()| fs::rename(&draft, &path)).map_err(failed)?;
        let is_old = |old: &ProcessStatus| status.at_ms.saturating_sub(old.at_ms) > FORGET_AFTER_MS;
        self.reports()?.iter().filter(|old| is_old(old)).try_for_each(|old| self.withdraw(&old.process))
    }

    fn reports(&self) -> Result<Vec<ProcessStatus>, ReadError> {
        let directory = self.status_directory();
        let failed = |source| ReadError { place: name(&directory), source };
        let listing = match fs::read_dir(&directory) {
            Ok(listing) => listing,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut reports = Vec::new();
        for file in listing {
            let path = file.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                // One that ends just now takes its report with it.
                reports.extend(fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()));
            }
        }
        reports.sort_by(|one: &ProcessStatus, other| one.process.cmp(&other.process));
        Ok(reports)
    }

    fn withdraw(&self, process: &str) -> Result<(), ReadError> {
        let path = self.status_directory().join(file_name(process) + ".json");
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(ReadError { place: name(&path), source: error })
            }
            _ => Ok(()),
        }
    }
}

/// A path as messages have it.
fn name(path: &Path) -> String {
    path.display().to_string()
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Held until the file is dropped; the system frees it if its owner dies.
fn lock(path: &Path) -> Result<File, SetError> {
    let failed = |source| SetError::Io { what: "cannot lock", place: name(path), source };
    let file = File::options().create(true).append(true).open(path).map_err(failed)?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
    }
    Err(SetError::Locked(name(path)))
}

/// A reader sees the old file or the new one, and after a power cut so does the next start.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
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
