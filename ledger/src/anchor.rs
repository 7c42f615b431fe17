//! Where the chain's head is kept outside the database, so that whoever rewrites the database as a whole is noticed.

use crate::chain::{Head, hex};
use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A place outside the database that keeps heads of the chain, oldest first, and forgets none.
pub trait Anchor: Debug {
    /// Every head that was kept.
    ///
    /// # Errors
    /// [`AnchorError`].
    fn heads(&self) -> Result<Vec<Head>, AnchorError>;

    /// Keeps a head durably.
    ///
    /// # Errors
    /// [`AnchorError`]: keep it again.
    fn keep(&mut self, head: Head) -> Result<(), AnchorError>;
}

/// An anchor cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("the anchor {place}: {what}")]
pub struct AnchorError {
    /// Where the anchor is.
    pub place: String,
    /// What is wrong, and what to do.
    pub what: String,
}

/// An anchor in a file of one line for each head: the seal's number and its hash. Keep it on another machine's disk than
/// the database, or copy it there.
#[derive(Debug)]
pub struct FileAnchor {
    path: PathBuf,
}

impl FileAnchor {
    /// The anchor in this file, which need not exist yet.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self { path: path.as_ref().to_owned() }
    }

    fn failed(&self, what: impl ToString) -> AnchorError {
        AnchorError { place: self.path.display().to_string(), what: what.to_string() }
    }

    /// Reads the complete lines. One that its writer has died on was never kept.
    fn read(&self, file: &mut File) -> Result<(Vec<Head>, u64), AnchorError> {
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|error| self.failed(error))?;
        let complete = text.rfind('\n').map_or(0, |end| end + 1);
        let heads = text[..complete].lines().enumerate().map(|(nth, line)| {
            head(line).ok_or_else(|| {
                self.failed(format!("line {} is not a seal's number and hash: restore the file", nth + 1))
            })
        });
        Ok((heads.collect::<Result<_, _>>()?, complete as u64))
    }
}

fn head(line: &str) -> Option<Head> {
    let (seal, text) = line.split_once(' ')?;
    let mut hash = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    Some(Head { seal: seal.parse().ok()?, hash })
}

impl Anchor for FileAnchor {
    fn heads(&self) -> Result<Vec<Head>, AnchorError> {
        match File::open(&self.path) {
            Ok(mut file) => Ok(self.read(&mut file)?.0),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn keep(&mut self, head: Head) -> Result<(), AnchorError> {
        let options =
            || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&self.path);
        let mut file = options().map_err(|error| self.failed(error))?;
        // Two sealers write one line after the other.
        file.lock().map_err(|error| self.failed(error))?;
        let (heads, complete) = self.read(&mut file)?;
        match heads.last() {
            Some(last) if *last == head || last.seal > head.seal => return Ok(()),
            _ => {}
        }
        let line = format!("{} {}\n", head.seal, hex(&head.hash));
        let written = file
            .set_len(complete)
            .and_then(|()| file.seek(SeekFrom::Start(complete)))
            .and_then(|_| file.write_all(line.as_bytes()))
            .and_then(|()| file.sync_all());
        written.map_err(|error| self.failed(error))?;
        // The name of a new file is durable only with its folder.
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let synced = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
        synced.map_err(|error| self.failed(error))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn a_line_that_its_writer_died_on_was_never_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("anchor");
        let mut anchor = FileAnchor::new(&path);
        assert_eq!(anchor.heads().unwrap(), []);
        let (one, two) = (Head { seal: 1, hash: [1; 32] }, Head { seal: 2, hash: [2; 32] });
        anchor.keep(one).unwrap();
        anchor.keep(one).unwrap();
        let mut torn = std::fs::read(&path).unwrap();
        torn.extend(b"2 0202");
        std::fs::write(&path, torn).unwrap();
        assert_eq!(anchor.heads().unwrap(), [one]);
        anchor.keep(two).unwrap();
        anchor.keep(one).unwrap();
        assert_eq!(anchor.heads().unwrap(), [one, two]);
        std::fs::write(&path, "hello\n").unwrap();
        assert!(anchor.heads().unwrap_err().to_string().contains("line 1"));
    }
}
