//! Changes a rules file with an actor and a reason, keeps every change, and rolls back.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::change::{
    Actor, Change, ChangeRules, History, ReadError, Remarks, SetError, Written, check_base, check_remarks,
    plan, rollback_reason, validate,
};
use crate::document::version_of;
use crate::proposal::{
    Gate, Last, Proposal, Proposals, check_processes, check_reports, check_second, check_unmoved,
    find_repeat, gate, needs_last, next_number, note_refused, read_proposal,
};
use crate::status::{FORGET_AFTER_MS, ProcessStatus, file_name};
use crate::watch::read_bounded;

const LOCK_TRIES: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// A rules file with its history: `rules.toml`, `rules.toml.history/00000007.toml`, `rules.toml.lock`, what
/// processes report, in `rules.toml.status/`, and what waits for approval, in `rules.toml.proposals/00000003.toml`.
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
        self.set_by(new_text, Actor::said(who), why, now_ms)
    }

    /// As [`ChangeRules::rollback`].
    ///
    /// # Errors
    /// [`SetError`].
    pub fn rollback(&self, version: u64, who: &str, why: &str, now_ms: u64) -> Result<Written, SetError> {
        self.rollback_by(version, Actor::said(who), why, now_ms)
    }

    /// As [`ChangeRules::history`].
    ///
    /// # Errors
    /// [`ReadError`] where the directory cannot be read; damaged files are listed in the result.
    pub fn history(&self) -> Result<History, ReadError> {
        let mut history = History { changes: Vec::new(), unreadable: Vec::new() };
        for (_, path) in self.entries()? {
            match read_change(&path) {
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
        check_remarks(remarks.by.who, remarks.why)?;
        let target = self.target();
        let _lock = lock(&beside(&target, ".lock"))?;
        let before = self.document()?;
        check(before.as_deref().and_then(version_of))?;
        self.make(&target, before, text()?, remarks)
    }

    /// The document, where there is one.
    fn document(&self) -> Result<Option<String>, ReadError> {
        match self.show() {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a change, or proposes it where it has to wait. The lock is held.
    fn make(
        &self,
        target: &Path,
        before: Option<String>,
        text: String,
        remarks: Remarks<'_>,
    ) -> Result<Written, SetError> {
        let newest_version = self.entries()?.pop().map(|(version, _)| version);
        let change = match plan(before, newest_version, text, remarks, self.known_brokers.as_deref())? {
            Ok(change) => change,
            Err(version) => return Ok(Written::Unchanged { version }),
        };
        let last = if needs_last(&change) { Last::of(self.history()?) } else { Last::Nothing };
        match gate(&change, &last) {
            Gate::Waits if remarks.approved_by.is_none() => {
                return Err(SetError::Waits { number: self.propose(target, change, remarks.by_force)? });
            }
            Gate::Begins => check_processes(&self.reports()?, remarks.now_ms)?,
            Gate::Waits | Gate::Open => {}
        }
        self.write(target, &change)?;
        Ok(Written::Changed { version: change.version })
    }

    /// Keeps a change until it is approved. The lock is held.
    fn propose(&self, target: &Path, change: Change, by_force: bool) -> Result<u64, SetError> {
        let directory = proposals_of(target);
        let failed = |path: &Path| {
            let place = name(path);
            |source| SetError::Io { what: "cannot write", place, source }
        };
        let kept = self.kept_proposals(change.at_ms)?;
        for number in &kept.over {
            let path = proposal_path(target, *number);
            fs::remove_file(&path).map_err(failed(&path))?;
        }
        let counter = directory.join("next");
        let next = match fs::read_to_string(&counter) {
            Ok(text) => text.trim().parse().unwrap_or(1),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 1,
            Err(error) => {
                return Err(SetError::Io { what: "cannot read", place: name(&counter), source: error });
            }
        };
        let number = next_number(&kept, next);
        let proposal = Proposal::of(change, number, by_force);
        if let Some(number) = find_repeat(&kept, &proposal)? {
            return Ok(number);
        }
        let path = proposal_path(target, number);
        let text = toml::to_string(&proposal).map_err(|error| failed(&path)(io::Error::other(error)))?;
        fs::create_dir_all(&directory).map_err(failed(&directory))?;
        sync_directory_of(&directory).map_err(failed(&directory))?;
        // The counter first: a number that was lost is none that two proposals have.
        write_whole(&counter, number.saturating_add(1).to_string().as_bytes()).map_err(failed(&counter))?;
        write_whole(&path, text.as_bytes()).map_err(failed(&path))?;
        Ok(number)
    }

    /// Every proposal that is kept.
    fn kept_proposals(&self, now_ms: u64) -> Result<Proposals, ReadError> {
        let target = self.target();
        let mut kept = Proposals::default();
        for (number, path) in numbered(&proposals_of(&target))? {
            // A file with another name is none of the store's.
            if path != proposal_path(&target, number) {
                continue;
            }
            let read = match fs::read_to_string(&path) {
                Ok(text) => read_proposal(number, &text),
                // It has ended just now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => Err(error),
            };
            kept.add(number, read.map_err(|source| ReadError { place: name(&path), source }), now_ms);
        }
        Ok(kept)
    }

    fn replace(
        &self,
        new_text: &str,
        by: Actor<'_>,
        why: &str,
        now_ms: u64,
        by_force: bool,
    ) -> Result<Written, SetError> {
        let based_on = validate(new_text, self.known_brokers.as_deref())?.version;
        let check = |current| check_base(based_on, current);
        let remarks = Remarks { by_force, ..Remarks::of(by, why, now_ms) };
        self.change(check, || Ok(new_text.to_owned()), remarks)
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
        numbered(&beside(&self.target(), ".history"))
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

    fn set_by(&self, new_text: &str, by: Actor<'_>, why: &str, now_ms: u64) -> Result<Written, SetError> {
        self.replace(new_text, by, why, now_ms, false)
    }

    fn force_by(&self, new_text: &str, by: Actor<'_>, why: &str, now_ms: u64) -> Result<Written, SetError> {
        self.replace(new_text, by, why, now_ms, true)
    }

    fn rollback_by(&self, version: u64, by: Actor<'_>, why: &str, now_ms: u64) -> Result<Written, SetError> {
        let why = rollback_reason(version, why);
        let text = || self.history()?.text_of(version).ok_or(SetError::UnknownVersion(version));
        self.change(|_| Ok(()), text, Remarks::of(by, &why, now_ms))
    }

    fn history(&self) -> Result<History, ReadError> {
        self.history()
    }

    fn proposals(&self, now_ms: u64) -> Result<Proposals, ReadError> {
        self.kept_proposals(now_ms)
    }

    fn approve(&self, number: u64, by: Actor<'_>, now_ms: u64) -> Result<Written, SetError> {
        check_remarks(by.who, "approved")?;
        let target = self.target();
        let _lock = lock(&beside(&target, ".lock"))?;
        let proposal = self.kept_proposals(now_ms)?.find(number)?;
        check_second(&proposal, by.caller)?;
        let before = self.document()?;
        check_unmoved(&proposal, before.as_deref().and_then(version_of))?;
        check_reports(&proposal, before.as_deref(), &self.reports()?, now_ms)?;
        let text = proposal.text_at(before.as_deref(), now_ms);
        let proposer = Actor { who: &proposal.who, caller: proposal.caller.as_deref() };
        let approved_by = Some(by.who);
        let remarks = Remarks { approved_by, ..Remarks::of(proposer, &proposal.why, now_ms) };
        let written = self.make(&target, before, text, remarks)?;
        // If this process dies before it, the proposal stays, made from rules that are there no more, and expires.
        remove_proposal(&target, number)?;
        Ok(written)
    }

    fn refuse(&self, number: u64, by: Actor<'_>, now_ms: u64) -> Result<(), SetError> {
        check_remarks(by.who, "refused")?;
        let target = self.target();
        let _lock = lock(&beside(&target, ".lock"))?;
        let proposal = self.kept_proposals(now_ms)?.find_refused(number)?;
        remove_proposal(&target, number)?;
        note_refused(number, proposal.as_ref(), by);
        Ok(())
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

fn proposals_of(target: &Path) -> PathBuf {
    beside(target, ".proposals")
}

/// The file of a proposal, whose name sorts like its number.
fn proposal_path(target: &Path, number: u64) -> PathBuf {
    proposals_of(target).join(format!("{number:08}.toml"))
}

/// Takes a proposal away that has ended.
fn remove_proposal(target: &Path, number: u64) -> Result<(), SetError> {
    let path = proposal_path(target, number);
    let gone = fs::remove_file(&path).and_then(|()| sync_directory_of(&path));
    gone.map_err(|source| SetError::Io { what: "cannot remove", place: name(&path), source })
}

/// The files `N.toml` of a directory, by their numbers; none where the directory is not there.
fn numbered(directory: &Path) -> Result<Vec<(u64, PathBuf)>, ReadError> {
    let failed = |source| ReadError { place: name(directory), source };
    let listing = match fs::read_dir(directory) {
        Ok(listing) => listing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut entries = Vec::new();
    for file in listing {
        let path = file.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(number) = name.strip_suffix(".toml").and_then(|stem| stem.parse().ok()) {
            entries.push((number, path));
        }
    }
    entries.sort();
    Ok(entries)
}

fn read_change(path: &Path) -> Result<Change, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    toml::from_str(&text).map_err(|error| error.message().to_owned())
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
