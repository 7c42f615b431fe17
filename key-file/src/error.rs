//! Why a key file could not be read or written.

use crate::text::Refused;
use std::path::{Path, PathBuf};

/// A key file that could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// There is no such file.
    #[error("there is no key file {}; make one: {make}", path.display())]
    Missing {
        /// The key file.
        path: PathBuf,
        /// The command that makes one.
        make: &'static str,
    },
    /// `create` does not replace keys.
    #[error("{} exists already; a key file is never replaced", path.display())]
    Exists {
        /// The key file.
        path: PathBuf,
    },
    /// Others than the owner may read or write the file.
    #[error(
        "{} is open to others than its owner (mode {mode:03o}); run: chmod 600 '{}'",
        path.display(),
        path.display()
    )]
    Exposed {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another process is changing the file.
    #[error("{} is being changed by another process; try again when it is done", path.display())]
    InUse {
        /// The key file.
        path: PathBuf,
    },
    /// The file is not as it was written: it is cut, altered, or not a key file.
    #[error("{} is damaged or no key file ({what}); restore it from a backup", path.display())]
    Damaged {
        /// The key file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The file was written by a newer release.
    #[error("{} has format {format}, this release knows 1; use a newer release", path.display())]
    NewerFormat {
        /// The key file.
        path: PathBuf,
        /// Its format.
        format: u64,
    },
    /// The file is a copy without some of the secrets.
    #[error("{} is a copy without some of the secrets; change the original and export it again", path.display())]
    VerifierCopy {
        /// The key file.
        path: PathBuf,
    },
    /// The operating system refused. After a failed write, open the file again to see what it holds.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The file that it was done to.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The operating system gave no randomness for a key.
    #[error("no randomness for a key: {0}")]
    NoRandomness(getrandom::Error),
}

impl KeyFileError {
    /// The file at `path` is not as it was written.
    pub fn damaged(path: &Path, what: &'static str) -> Self {
        Self::Damaged { path: path.to_owned(), what }
    }

    /// The text of the file at `path` was refused.
    pub fn refused(path: &Path, refused: &Refused) -> Self {
        match *refused {
            Refused::Damaged(what) => Self::damaged(path, what),
            Refused::Newer(format) => Self::NewerFormat { path: path.to_owned(), format },
        }
    }
}
