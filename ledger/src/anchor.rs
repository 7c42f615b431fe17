//! Where the chain's head is kept outside the database, so that whoever rewrites the database as a whole is noticed.

use crate::chain::{Head, hex};
use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A place outside the database that keeps heads of the chain, oldest first, and forgets none.
pub trait Anchor: Debug {
    /// Every head that was kept, without those that a person has given up.
    ///
    /// # Errors
    /// [`AnchorError`].
    fn heads(&self) -> Result<Vec<Head>, AnchorError>;

    /// How often heads were given up.
    ///
    /// # Errors
    /// [`AnchorError`].
    fn losses(&self) -> Result<u64, AnchorError>;

    /// Keeps a head durably.
    ///
    /// # Errors
    /// [`AnchorError`]: keep it again.
    fn keep(&mut self, head: Head) -> Result<(), AnchorError>;

    /// Gives up durably what is behind this head, which stays the last one: a person says that the database has lost it.
    ///
    /// # Errors
    /// [`AnchorError`]: give it up again.
    fn give_up(&mut self, last: Head) -> Result<(), AnchorError>;
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

/// An anchor in a file of one line for each head: the seal's number and its hash. A line that begins with `lost` gives up
/// the heads behind the one that it names; their lines stay. Keep the file on another machine's disk than the database, or
/// copy it there.
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
    fn read(&self, file: &mut File) -> Result<Kept, AnchorError> {
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|error| self.failed(error))?;
        let complete = text.rfind('\n').map_or(0, |end| end + 1);
        let mut kept = Kept { complete: complete as u64, ..Kept::default() };
        for (nth, line) in text[..complete].lines().enumerate() {
            let wrong =
                || self.failed(format!("line {} is not a seal's number and hash: restore the file", nth + 1));
            let lost = line.strip_prefix(LOST);
            let head = head(lost.unwrap_or(line)).ok_or_else(wrong)?;
            if lost.is_none() {
                kept.heads.push(head);
                continue;
            }
            match kept.heads.iter().rposition(|one| *one == head) {
                Some(last) => kept.heads.truncate(last + 1),
                // Every chain begins with it, also one whose anchor was begun later.
                None if head == Head::NONE => kept.heads = vec![head],
                None => return Err(wrong()),
            }
            kept.losses += 1;
        }
        Ok(kept)
    }

    fn read_all(&self) -> Result<Kept, AnchorError> {
        match File::open(&self.path) {
            Ok(mut file) => self.read(&mut file),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Kept::default()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Appends the line that `line` makes of what was kept; none where it makes none.
    fn append(&self, line: impl FnOnce(&[Head]) -> Option<String>) -> Result<(), AnchorError> {
        let options =
            || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&self.path);
        let mut file = options().map_err(|error| self.failed(error))?;
        // Two sealers write one line after the other.
        file.lock().map_err(|error| self.failed(error))?;
        let Kept { heads, complete, .. } = self.read(&mut file)?;
        let Some(line) = line(&heads) else { return Ok(()) };
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

/// What a file holds.
#[derive(Debug, Default)]
struct Kept {
    heads: Vec<Head>,
    losses: u64,
    /// The bytes of its complete lines.
    complete: u64,
}

/// The beginning of a line that gives up heads.
const LOST: &str = "lost ";

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
        Ok(self.read_all()?.heads)
    }

    fn losses(&self) -> Result<u64, AnchorError> {
        Ok(self.read_all()?.losses)
    }

    fn keep(&mut self, head: Head) -> Result<(), AnchorError> {
        self.append(|heads| {
            let is_kept = heads.last().is_some_and(|last| *last == head || last.seal > head.seal);
            (!is_kept).then(|| format!("{} {}\n", head.seal, hex(&head.hash)))
        })
    }

    fn give_up(&mut self, last: Head) -> Result<(), AnchorError> {
        self.append(|heads| {
            let is_last = heads.last() == Some(&last);
            (!is_last).then(|| format!("{LOST}{} {}\n", last.seal, hex(&last.hash)))
        })
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
        // What is given up is not held any more, and its lines stay.
        anchor.give_up(one).unwrap();
        anchor.give_up(one).unwrap();
        let other = Head { seal: 2, hash: [3; 32] };
        anchor.keep(other).unwrap();
        assert_eq!((anchor.heads().unwrap(), anchor.losses().unwrap()), (vec![one, other], 1));
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 4);
        std::fs::write(&path, "hello\n").unwrap();
        assert!(anchor.heads().unwrap_err().to_string().contains("line 1"));
    }
}
