//! Follows a key file: a ring that an operator has changed is taken over while the process runs.

use crate::KeyRing;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// A key file, and what was seen of it last. It is compared by its bytes: whether a file is written in place, renamed over
/// the old one, or is behind a link that now leads elsewhere, as where Kubernetes mounts a Secret, makes no difference.
#[derive(Debug)]
pub struct KeyRingFile {
    path: PathBuf,
    /// The digest of the ring that was taken over last, while it is in force as a whole.
    digest: Option<[u8; 32]>,
    /// The reason why the file could not be taken over at the last look, so that it is told once.
    told: Option<String>,
}

impl KeyRingFile {
    /// A file of which nothing was seen yet: the first look hands out its ring.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), digest: None, told: None }
    }

    /// Hands the ring to `take` where the file is another one than the last that it took. A ring that cannot be read, or that
    /// `take` refuses, is tried again at each look until it is taken or the file is another one; each reason is told once in a
    /// row. A file that is again as it was is handed out only where `take` has refused another one since, of which it may have
    /// taken a part. `None`: there is nothing new to tell. Blocks for the disk.
    pub fn look(&mut self, take: impl FnOnce(KeyRing) -> Result<(), String>) -> Option<Result<(), String>> {
        // Before and after: of a file that is replaced meanwhile nobody knows which of the two was loaded.
        let digest = digest_of(&self.path);
        if digest.is_some() && digest == self.digest {
            self.told = None;
            return None;
        }
        // What failed may succeed although the bytes stay the same: a mode is mended, or the system has randomness again.
        let loaded = KeyRing::load(&self.path).map_err(|error| error.to_string());
        let taken = loaded.and_then(|ring| {
            // Whoever refuses a ring may have taken it in part, so the last one is no longer in force as a whole.
            self.digest = None;
            take(ring)
        });
        match taken {
            Ok(()) => {
                let is_same = digest_of(&self.path) == digest;
                (self.digest, self.told) = (digest.filter(|_| is_same), None);
                Some(Ok(()))
            }
            Err(error) => (self.told.replace(error.clone()).as_ref() != Some(&error)).then_some(Err(error)),
        }
    }
}

fn digest_of(path: &Path) -> Option<[u8; 32]> {
    std::fs::read(path).ok().map(|bytes| Sha256::digest(Zeroizing::new(bytes).as_slice()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, KeyFile, KeyId};
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// A look whose ring is taken.
    fn look(seen: &mut KeyRingFile) -> Option<Result<KeyRing, String>> {
        let mut taken = None;
        let looked = seen.look(|ring| {
            taken = Some(ring);
            Ok(())
        })?;
        Some(looked.map(|()| taken.unwrap()))
    }

    /// Nobody but the taker knows why it refused, and the file's bytes do not show when it would not any more.
    #[test]
    fn a_ring_that_was_refused_is_offered_again_and_each_reason_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let mut file = KeyFile::create(&path, Algorithm::HmacSha256, 1).unwrap();
        let mut seen = KeyRingFile::new(&path);
        assert!(matches!(look(&mut seen), Some(Ok(_))));
        file.add(Algorithm::HmacSha256, 2).unwrap();
        let offered = std::cell::Cell::new(0);
        let refuse = |why: &'static str| {
            |ring: KeyRing| {
                assert_eq!(ring.keys().count(), 2);
                offered.set(offered.get() + 1);
                Err(why.to_owned())
            }
        };
        assert_eq!(seen.look(refuse("one reason")), Some(Err("one reason".into())));
        assert_eq!(seen.look(refuse("one reason")), None);
        assert_eq!(seen.look(refuse("another")), Some(Err("another".into())));
        assert_eq!(seen.look(refuse("one reason")), Some(Err("one reason".into())));
        assert_eq!(offered.get(), 4);
        assert_eq!(look(&mut seen).unwrap().unwrap().keys().count(), 2);
        assert!(look(&mut seen).is_none());
    }

    /// The ring that was put back was never taken, so whoever had the refused one in part kept it until a restart.
    #[test]
    fn a_ring_that_is_put_back_after_another_was_refused_is_taken_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let mut file = KeyFile::create(&path, Algorithm::HmacSha256, 1).unwrap();
        let mut seen = KeyRingFile::new(&path);
        assert!(matches!(look(&mut seen), Some(Ok(_))));
        let before = std::fs::read(&path).unwrap();
        file.add(Algorithm::HmacSha256, 2).unwrap();
        assert_eq!(seen.look(|_| Err("only a part took it".into())), Some(Err("only a part took it".into())));
        std::fs::write(&path, before).unwrap();
        assert_eq!(look(&mut seen).unwrap().unwrap().keys().count(), 1);
        assert!(look(&mut seen).is_none());
    }

    #[test]
    fn a_ring_is_read_when_it_changes_and_a_broken_one_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let mut seen = KeyRingFile::new(&path);
        assert!(matches!(look(&mut seen), Some(Err(_))), "none there");
        assert!(look(&mut seen).is_none());
        KeyFile::create(&path, Algorithm::HmacSha256, 1).unwrap();
        assert!(matches!(look(&mut seen), Some(Ok(_))));
        assert!(look(&mut seen).is_none());
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert!(matches!(look(&mut seen), Some(Err(_))));
        assert!(look(&mut seen).is_none());
        std::fs::write(&path, whole).unwrap();
        assert!(look(&mut seen).is_none(), "it is in force");
        // Another one, for all to see, and then as it should be.
        std::fs::remove_file(&path).unwrap();
        KeyFile::create(&path, Algorithm::HmacSha256, 2).unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        assert!(matches!(look(&mut seen), Some(Err(_))));
        mode(0o600);
        assert!(matches!(look(&mut seen), Some(Ok(_))));
        assert!(look(&mut seen).is_none());
    }

    /// As Kubernetes replaces what it mounts: a link to a folder is swapped, and the file's own name never changes.
    #[test]
    fn a_ring_behind_a_link_that_is_swapped_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for version in ["..1", "..2"] {
            std::fs::create_dir(at(version)).unwrap();
        }
        let mut file = KeyFile::create(&at("..1/keys.toml"), Algorithm::HmacSha256, 1).unwrap();
        symlink("..1", at("..data")).unwrap();
        symlink("..data/keys.toml", at("keys.toml")).unwrap();
        let mut seen = KeyRingFile::new(at("keys.toml"));
        assert_eq!(look(&mut seen).unwrap().unwrap().keys().count(), 1);
        file.add(Algorithm::HmacSha256, 2).unwrap();
        assert_eq!(look(&mut seen).unwrap().unwrap().keys().count(), 2, "a change of the file itself");
        std::fs::copy(at("..1/keys.toml"), at("..2/keys.toml")).unwrap();
        KeyFile::open(&at("..2/keys.toml")).unwrap().promote(KeyId(2)).unwrap();
        assert!(look(&mut seen).is_none(), "nothing leads there yet");
        symlink("..2", at("..data_tmp")).unwrap();
        std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
        let ring = look(&mut seen).unwrap().unwrap();
        assert!(ring.keys().any(|key| key.id == KeyId(2) && key.state == crate::State::VerifyOnly));
        assert!(look(&mut seen).is_none());
    }
}
