//! The data directory of a demo: the options that it was started with, and the lock on it.

use super::backends::Backends;
use crate::place;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

/// The format of a data directory; a newer one is refused.
const FORMAT: u32 = 2;
const MANIFEST: &str = "demo.toml";
/// There once everything that was sent has arrived; gone while a resumed demo is at work.
const FINISHED: &str = "finished";

/// The options that a demo was started with; written before anything else, so that `--resume` goes on with the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The format of the directory.
    pub format: u32,
    /// The number of rewards.
    pub rewards: u64,
    /// The number of users that they are spread over.
    pub users: u64,
    /// The seed of the rain and its troubles.
    pub seed: u64,
    /// The seconds over which the calls are spread; 0 for as fast as possible.
    pub seconds_of_rain: u64,
    /// Whether nothing is broken on purpose.
    pub calm: bool,
    /// Real brokers and stores in place of embedded ones; format 1 had none.
    #[serde(default)]
    pub backends: Backends,
}

impl Manifest {
    /// Reads the manifest of a directory, also while another process uses it.
    pub fn read(path: &Path) -> Result<Self> {
        let file = path.join(MANIFEST);
        let text = std::fs::read_to_string(&file).with_context(|| {
            format!(
                "{} is not the data directory of a demo ({} cannot be read)",
                path.display(),
                file.display()
            )
        })?;
        #[derive(Deserialize)]
        struct Versioned {
            format: u32,
        }
        let Versioned { format } =
            toml::from_str(&text).with_context(|| format!("{} is damaged", file.display()))?;
        if format > FORMAT {
            bail!(
                "{} has format {format}; this build knows {FORMAT}: use the version of windfall that wrote it",
                path.display()
            );
        }
        toml::from_str(&text).with_context(|| format!("{} is damaged", file.display()))
    }
}

/// An open data directory. While it lives, no other process may use it.
pub struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Makes a new one in an empty or absent directory.
    pub fn create(path: &Path, manifest: &Manifest) -> Result<Self> {
        std::fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))?;
        let own = Self::lock(path)?;
        let manifest = Manifest { format: FORMAT, ..manifest.clone() };
        if own.file(MANIFEST).exists() {
            bail!(
                "{} holds an earlier demo: go on with it by --resume, check it by `windfall reconcile`, or delete it",
                path.display()
            );
        }
        if let Some(dir) = place::rules(path).parent() {
            std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        let text = toml::to_string(&manifest).context("the manifest cannot be written")?;
        // Whole or not at all: a kill in between must not leave a directory that is neither new nor a demo's.
        let draft = own.file("demo.toml.new");
        std::fs::write(&draft, text)
            .and_then(|()| std::fs::rename(&draft, own.file(MANIFEST)))
            .with_context(|| format!("the directory {} cannot be written to", path.display()))?;
        Ok(own)
    }

    /// Opens the directory of an earlier demo.
    pub fn open(path: &Path) -> Result<(Self, Manifest)> {
        let manifest = Manifest::read(path)?;
        Ok((Self::lock(path)?, manifest))
    }

    /// Takes a directory that exists for this process alone, whatever is in it.
    pub fn lock(path: &Path) -> Result<Self> {
        let file = path.join("LOCK");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&file)
            .with_context(|| format!("the directory {} cannot be written to", path.display()))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => bail!("{} is in use by another process", path.display()),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("the file {} cannot be locked", file.display()))
            }
        }
    }

    /// Notes that nothing is in flight any more.
    pub fn finish(&self) -> Result<()> {
        std::fs::write(self.file(FINISHED), "").context("it cannot be noted that the demo is finished")
    }

    /// Notes that something may be in flight.
    pub fn begin(&self) -> Result<()> {
        match std::fs::remove_file(self.file(FINISHED)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).context("it cannot be noted that the demo goes on")
            }
            _ => Ok(()),
        }
    }

    /// Whether all that was sent has arrived.
    pub fn is_finished(&self) -> bool {
        self.file(FINISHED).exists()
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            format: 0,
            rewards: 1,
            users: 1,
            seed: 1,
            seconds_of_rain: 0,
            calm: true,
            backends: Backends::default(),
        }
    }

    #[test]
    fn one_process_at_a_time_and_no_second_demo_on_top() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let first = DataDir::create(&path, &manifest()).unwrap();
        let second = DataDir::open(&path).map(|_| ()).unwrap_err().to_string();
        assert!(second.contains("in use"), "{second}");
        drop(first);
        assert!(DataDir::open(&path).is_ok());
        let again = DataDir::create(&path, &manifest()).map(|_| ()).unwrap_err().to_string();
        assert!(again.contains("--resume"), "{again}");
    }

    #[test]
    fn a_newer_format_and_a_foreign_directory_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let foreign = DataDir::open(dir.path()).map(|_| ()).unwrap_err().to_string();
        assert!(foreign.contains("not the data directory"), "{foreign}");
        std::fs::write(dir.path().join(MANIFEST), "format = 99\nnew_key = 1\n").unwrap();
        let newer = DataDir::open(dir.path()).map(|_| ()).unwrap_err().to_string();
        assert!(newer.contains("format 99"), "{newer}");
    }
}
