//! Books that lie in a file as they grow: each event is written as a line of JSON before it counts, so that what a run promised
//! outlives every process of the run, and the judge reads the same file again.

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

/// What a sequence of events comes to.
pub trait EventBook: Default {
    /// What may happen.
    type Event: Serialize + DeserializeOwned;

    /// This has happened.
    fn apply(&mut self, event: Self::Event);
}

/// A book and its file, which has one writer.
#[derive(Debug)]
pub struct Writing<B> {
    book: B,
    file: File,
    path: PathBuf,
    failed: Option<String>,
}

impl<B: EventBook> Writing<B> {
    /// Begins the book in this file.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create_new(true).append(true).open(path);
        let file = file.with_context(|| format!("the journal {} cannot be written", path.display()))?;
        Ok(Self { book: B::default(), file, path: path.to_owned(), failed: None })
    }

    /// Writes an event. That it cannot be written is kept for [`Self::check`]: a caller in the middle of a call goes on.
    pub fn note(&mut self, event: B::Event) {
        let line = serde_json::to_string(&event).map_err(anyhow::Error::from);
        let written = line.and_then(|line| Ok(self.file.write_all(format!("{line}\n").as_bytes())?));
        if let Err(error) = written {
            self.failed.get_or_insert_with(|| error.to_string());
        }
        self.book.apply(event);
    }

    /// The book as it is.
    pub const fn book(&self) -> &B {
        &self.book
    }

    /// Fails if an event could not be written.
    pub fn check(&self) -> Result<()> {
        match &self.failed {
            Some(why) => bail!("the journal {} cannot be written: {why}", self.path.display()),
            None => Ok(()),
        }
    }
}

/// The book in this file. A torn last line was not written: what it would have said has not happened yet.
pub fn read<B: EventBook>(path: &Path) -> Result<B> {
    let file = File::open(path).with_context(|| format!("the journal {} cannot be read", path.display()))?;
    let (mut reader, mut line, mut book) = (BufReader::new(file), String::new(), B::default());
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 || !line.ends_with('\n') {
            return Ok(book);
        }
        let event = serde_json::from_str(&line);
        book.apply(event.with_context(|| format!("{} has the line {line:?}", path.display()))?);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq)]
    struct Sum(u64);

    impl EventBook for Sum {
        type Event = u64;

        fn apply(&mut self, event: u64) {
            self.0 += event;
        }
    }

    #[test]
    fn what_was_written_is_read_again_and_a_torn_line_was_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("book");
        let mut writing = Writing::<Sum>::open(&path).unwrap();
        writing.note(3);
        writing.note(4);
        writing.file.write_all(b"5").unwrap();
        writing.check().unwrap();
        assert_eq!((writing.book(), read::<Sum>(&path).unwrap()), (&Sum(7), Sum(7)));
    }
}
