//! One starter at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::{Error, process, say};

/// A first start of everything on a slow machine, fetching included.
const LOCK_TIMEOUT: Duration = Duration::from_secs(600);

/// Takes the lock of a file; the answer holds it until it is dropped, or its process ends.
pub(crate) fn acquire(path: &Path) -> Result<File, Error> {
    let failed = || Error::io(format!("lock {}", path.display()));
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(failed())?;
    let end = Instant::now() + LOCK_TIMEOUT;
    let mut told = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(failed()(error)),
            Err(TryLockError::WouldBlock) if Instant::now() >= end => {
                return Err(Error::Locked { path: path.to_owned(), waited_s: LOCK_TIMEOUT.as_secs() });
            }
            Err(TryLockError::WouldBlock) => {}
        }
        if !told {
            say(&format!("waiting for another start, which holds {}", path.display()));
            told = true;
        }
        thread::sleep(process::POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_by_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = acquire(&path).unwrap();
        let second = thread::spawn({
            let path = path.clone();
            move || acquire(&path).map(|_| Instant::now())
        });
        thread::sleep(Duration::from_millis(200));
        let freed = Instant::now();
        drop(held);
        assert!(second.join().unwrap().unwrap() >= freed);
    }
}
