//! Follows a key file: a ring that an operator has changed is taken over while the process runs.

use crate::ring::{LiveRing, NoPrimary, Ring};
use std::path::{Path, PathBuf};
use windfall_key_file::KeyFileError;
use zeroize::Zeroizing;

/// What a process does with a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingUse {
    /// It signs what it sends; an export of its sender's keys is enough.
    Sends,
    /// It also verifies the archived records of all senders, when these are replayed.
    Replays,
    /// It verifies the records of all senders, and signs copies of them.
    Consumes,
}

/// A key file, and the ring in force that was read from it.
#[derive(Debug)]
pub struct RingFile {
    path: PathBuf,
    /// Who signs with it.
    sender: String,
    used: RingUse,
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
    /// The records of all other senders would be refused.
    #[error("it has the key of {0:?} alone, and a process that verifies records needs the whole file")]
    OneSender(String),
    /// What a consumer requeues would be refused.
    #[error(
        "the primary key of {0:?} may sign no copies, which a process that consumes does; promote one that may: windfall \
         signing add --may-copy --sender"
    )]
    NoCopies(String),
}

impl RingUse {
    fn check(self, ring: &Ring, sender: &str) -> Result<(), OpenRingError> {
        ring.primary(sender)?;
        match (self, ring.copy_for()) {
            (Self::Consumes | Self::Replays, Some(only)) => Err(OpenRingError::OneSender(only.to_owned())),
            (Self::Consumes, None) if !ring.may_copy(sender) => {
                Err(OpenRingError::NoCopies(sender.to_owned()))
            }
            _ => Ok(()),
        }
    }
}

impl RingFile {
    /// Reads a key file that a process begins with. `sender` is who signs with it.
    ///
    /// # Errors
    /// [`OpenRingError`].
    pub fn open(path: &Path, sender: &str, used: RingUse) -> Result<Self, OpenRingError> {
        // First: a file that is replaced between the two is read again at the next look.
        let digest = digest_of(path);
        let ring = Ring::load(path)?;
        used.check(&ring, sender)?;
        let (path, sender) = (path.to_owned(), sender.to_owned());
        Ok(Self { path, sender, used, ring: LiveRing::new(ring), digest, told: None })
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
        match self.take_over().map_err(|error| error.to_string()) {
            Ok(()) => {
                (self.digest, self.told) = (digest, None);
                Some(Ok(()))
            }
            // Tried again at each look: its mode may be mended, which the file's bytes do not show.
            Err(why) => (self.told.replace(why.clone()).as_ref() != Some(&why)).then_some(Err(why)),
        }
    }

    fn take_over(&self) -> Result<(), OpenRingError> {
        let ring = Ring::load(&self.path)?;
        self.used.check(&ring, &self.sender)?;
        Ok(self.ring.replace(ring, Some(&self.sender))?)
    }
}

fn digest_of(path: &Path) -> Option<blake3::Hash> {
    std::fs::read(path).ok().map(|bytes| blake3::hash(&Zeroizing::new(bytes)))
}
