//! Follows a key file: a ring that an operator has changed is taken over while the process runs.

use crate::ring::{LiveRing, NoPrimary, Ring};
use std::path::{Path, PathBuf};
use windfall_key_file::KeyFileError;
use zeroize::Zeroizing;

/// A key file, and the ring in force that was read from it.
#[derive(Debug)]
pub struct RingFile {
    path: PathBuf,
    /// Who signs with it, if anyone does.
    sender: Option<String>,
    ring: LiveRing,
    /// The digest of the file that was taken over.
    digest: Option<blake3::Hash>,
    /// The reason why the file was not taken over at the last look, so that it is told once.
    told: Option<String>,
}

/// A key file that a process cannot begin with.
#[derive(Debug, thiserror::Error)]
pub enum OpenRingError {
    /// It cannot be read.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// The sender could not sign with it.
    #[error(transparent)]
    NoPrimary(#[from] NoPrimary),
}

impl RingFile {
    /// Reads a key file that a process begins with. `sender` is who signs with it, if anyone does.
    ///
    /// # Errors
    /// [`OpenRingError`].
    pub fn open(path: &Path, sender: Option<&str>) -> Result<Self, OpenRingError> {
        // First: a file that is replaced between the two is read again at the next look.
        let digest = digest_of(path);
        let ring = Ring::load(path)?;
        if let Some(sender) = sender {
            ring.primary(sender)?;
        }
        let sender = sender.map(str::to_owned);
        Ok(Self { path: path.to_owned(), sender, ring: LiveRing::new(ring), digest, told: None })
    }

    /// The ring in force.
    pub const fn ring(&self) -> &LiveRing {
        &self.ring
    }

    /// Takes over the file if it is another one than at the last look, and says so: `Ok` if it was taken over, and
    /// otherwise, once, why not. The ring so far stays then, and the file is read again at the next look. Blocks for the
    /// disk.
    pub fn look(&mut self) -> Option<Result<(), String>> {
        let digest = digest_of(&self.path);
        if digest.is_some() && digest == self.digest {
            self.told = None;
            return None;
        }
        let taken = Ring::load(&self.path).map_err(|error| error.to_string()).and_then(|ring| {
            self.ring.replace(ring, self.sender.as_deref()).map_err(|error| error.to_string())
        });
        match taken {
            Ok(()) => {
                (self.digest, self.told) = (digest, None);
                Some(Ok(()))
            }
            // Tried again at each look: its mode may be mended, which the file's bytes do not show.
            Err(why) => (self.told.replace(why.clone()).as_ref() != Some(&why)).then_some(Err(why)),
        }
    }
}

fn digest_of(path: &Path) -> Option<blake3::Hash> {
    std::fs::read(path).ok().map(|bytes| blake3::hash(&Zeroizing::new(bytes)))
}
