//! Where marks are kept: the contract, and the file.

use crate::mark::Mark;
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A place outside of the ledger's database that keeps its mark. Calls block.
pub trait MarkStore: Debug + Send + Sync {
    /// The name of the place in messages.
    fn place(&self) -> String;

    /// The least pause between two marks of one lineage, ms: where each one that is written costs more than the newest one is
    /// worth.
    fn pause_ms(&self) -> u64 {
        0
    }

    /// The mark that is kept; `None` where there is none yet, or it was lost.
    ///
    /// # Errors
    /// [`MarkStoreError`]: nobody knows whether there is one; ask again.
    fn load(&self) -> Result<Option<Mark>, MarkStoreError>;

    /// Replaces what [`MarkStore::load`] has returned. False where another process was faster: load anew.
    ///
    /// # Errors
    /// [`MarkStoreError`]: the old one or the new one is there.
    fn replace(&self, old: Option<&Mark>, new: &Mark) -> Result<bool, MarkStoreError>;
}

/// A mark could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the ledger's mark in {place}: {what}")]
pub struct MarkStoreError {
    /// The file, or the key in etcd.
    pub place: String,
    /// What happened, and what to do.
    pub what: String,
    /// Whether it may pass by itself. A mark that is there and is not understood does not.
    pub may_pass: bool,
}

/// A mark in a file, which several processes may share. The file is replaced as a whole, so that it always holds one mark
/// or another; a crash of the machine leaves an older one at worst.
#[derive(Debug, Clone)]
pub struct MarkFile {
    path: PathBuf,
}

impl MarkFile {
    /// The mark in this file; nothing is read or made yet. The folder must be there.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn with(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(suffix);
        name.into()
    }

    fn failed(&self, what: impl ToString) -> MarkStoreError {
        MarkStoreError { place: self.place(), what: what.to_string(), may_pass: true }
    }

    fn write(&self, mark: &Mark) -> io::Result<()> {
        let next = self.with(".next");
        let mut file = File::create(&next)?;
        file.write_all(serde_json::to_string_pretty(mark)?.as_bytes())?;
        // Without it, a crash of the machine could leave an empty file under the name.
        file.sync_all()?;
        fs::rename(next, &self.path)
    }
}

impl MarkStore for MarkFile {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn load(&self) -> Result<Option<Mark>, MarkStoreError> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            // A folder that is missing is a mistake in the options, or a disk that is not mounted.
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_dir_of(&self.path) => {
                return Ok(None);
            }
            Err(error) => return Err(self.failed(error)),
        };
        serde_json::from_slice(&text).map(Some).map_err(|error| {
            let what = format!("it is not understood ({error}); reconcile the ledger, then remove the file");
            MarkStoreError { may_pass: false, ..self.failed(what) }
        })
    }

    fn replace(&self, old: Option<&Mark>, new: &Mark) -> Result<bool, MarkStoreError> {
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(self.with(".lock"));
        let lock = lock.map_err(|error| self.failed(error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(self.failed(error)),
        }
        if self.load()?.as_ref() != old {
            return Ok(false);
        }
        self.write(new).map_err(|error| self.failed(error))?;
        Ok(true)
    }
}

fn is_dir_of(path: &Path) -> bool {
    path.parent().is_none_or(|folder| folder.as_os_str().is_empty() || folder.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mark::ServerPosition;

    fn mark(beat: i64) -> Mark {
        Mark { generation: 1, lineage: "a".into(), beat, server: ServerPosition::default() }
    }

    #[test]
    fn a_mark_is_replaced_by_one_of_two_that_read_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) =
            (MarkFile::new(folder.path().join("mark")), MarkFile::new(folder.path().join("mark")));
        assert_eq!(one.load(), Ok(None));
        assert_eq!(one.replace(None, &mark(1)), Ok(true));
        assert_eq!(other.replace(None, &mark(2)), Ok(false), "it has not read the first one");
        assert_eq!(other.load(), Ok(Some(mark(1))));
        assert_eq!(other.replace(Some(&mark(1)), &mark(2)), Ok(true));
        assert_eq!(one.load(), Ok(Some(mark(2))));
    }

    #[test]
    fn a_file_that_is_no_mark_and_a_missing_folder_are_errors_and_a_lost_file_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        fs::write(&path, "{").unwrap();
        let damaged = MarkFile::new(&path).load().unwrap_err();
        assert!(!damaged.may_pass);
        let damaged = damaged.to_string();
        assert!(damaged.contains("remove the file") && damaged.contains("mark"), "{damaged}");
        assert!(MarkFile::new(&path).replace(None, &mark(1)).is_err());
        fs::remove_file(&path).unwrap();
        assert_eq!(MarkFile::new(&path).load(), Ok(None));
        assert!(MarkFile::new(folder.path().join("missing/mark")).load().unwrap_err().may_pass);
    }
}
