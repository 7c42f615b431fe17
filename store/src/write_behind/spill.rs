//! A file for the tokens that memory has no room for: as many chunks as there are places in it, without a name, so that
//! it goes with the process.
//!
//! A place is [`SLOT_BYTES`] long and is free again when nobody has its [`Slot`] any more. Places that were never written
//! take no disk.

use super::chunks::text;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// The bytes of a place. A chunk of larger tokens, of 514 bytes on average, stays in memory.
pub(super) const SLOT_BYTES: usize = 128 << 10;

/// The file. It is made with the first write.
pub(super) struct SpillFile {
    dir: PathBuf,
    shared: Arc<Shared>,
}

/// A place in the file, and the bytes that were written there.
#[derive(Debug)]
pub(super) struct Slot {
    number: u32,
    bytes: usize,
    file: Arc<File>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    file: Mutex<Option<Arc<File>>>,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    free: BTreeSet<u32>,
    /// The first place that was never used.
    end: u32,
}

impl SpillFile {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir, shared: Arc::default() }
    }

    /// Writes bytes to a free place. Blocks.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<Arc<Slot>, Error> {
        if bytes.len() > SLOT_BYTES {
            return Err(Error::new(ErrorKind::FileTooLarge, "a chunk is larger than its place"));
        }
        // Both at once: between them the file could be given back.
        let (file, number) = {
            let mut file = self.shared.file.lock();
            let made = match &*file {
                Some(made) => Arc::clone(made),
                None => Arc::clone(file.insert(Arc::new(tempfile::tempfile_in(&self.dir)?))),
            };
            (made, self.shared.places.lock().take())
        };
        let slot = Slot { number, bytes: bytes.len(), file, shared: Arc::clone(&self.shared) };
        // Where this fails, the place is free again as the slot is dropped.
        slot.file.write_all_at(bytes, slot.at(0))?;
        Ok(Arc::new(slot))
    }

    /// Gives the disk back if no place is in use. Blocks.
    pub(super) fn shrink(&self) {
        let mut file = self.shared.file.lock();
        let mut places = self.shared.places.lock();
        if places.free.len() < places.end as usize {
            return;
        }
        *places = Places::default();
        // A new file comes with the next write; this one goes with its last handle.
        let last = file.take();
        drop((file, places));
        drop(last);
    }

    /// Whether there is something to shrink.
    pub(super) fn is_unused(&self) -> bool {
        let places = self.shared.places.lock();
        places.end > 0 && places.free.len() == places.end as usize
    }

    #[cfg(test)]
    pub(super) fn slots_in_use(&self) -> usize {
        let places = self.shared.places.lock();
        places.end as usize - places.free.len()
    }
}

impl Slot {
    /// What was written. Blocks.
    pub(super) fn read(&self) -> Result<Bytes, Error> {
        self.read_range(0..self.bytes).map(Bytes::from)
    }

    /// The text of the packed token at a range of what was written. Blocks.
    pub(super) fn read_text(&self, range: Range<usize>) -> Result<Box<str>, Error> {
        self.read_range(range).map(|packed| text(&packed))
    }

    fn read_range(&self, range: Range<usize>) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; range.len()];
        self.file.read_exact_at(&mut bytes, self.at(range.start))?;
        Ok(bytes)
    }

    fn at(&self, byte: usize) -> u64 {
        u64::from(self.number) * SLOT_BYTES as u64 + byte as u64
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shared.places.lock().free.insert(self.number);
    }
}

impl Places {
    /// The first free place, so that the file stays short.
    fn take(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            self.end += 1;
            self.end - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_when_nobody_has_it_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let file = SpillFile::new(dir.path().into());
        let one = file.write(b"one").unwrap();
        let two = file.write(b"two").unwrap();
        assert_eq!((one.read().unwrap(), two.read().unwrap()), ("one".into(), "two".into()));
        drop(one);
        let three = file.write(b"three").unwrap();
        assert_eq!((three.number, &*two.read().unwrap()), (0, &b"two"[..]));
        assert!(!file.is_unused());
        drop((two, three));
        assert!(file.is_unused());
        file.shrink();
        assert!(!file.is_unused());
        assert_eq!(&*file.write(b"four").unwrap().read().unwrap(), b"four");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "it has no name");
    }

    #[test]
    fn what_has_no_room_is_refused_and_takes_no_place() {
        let dir = tempfile::tempdir().unwrap();
        let file = SpillFile::new(dir.path().into());
        assert!(file.write(&vec![7; SLOT_BYTES + 1]).is_err());
        let gone = SpillFile::new(dir.path().join("gone"));
        assert!(gone.write(b"one").is_err());
        assert_eq!((file.slots_in_use(), gone.slots_in_use()), (0, 0));
    }
}
