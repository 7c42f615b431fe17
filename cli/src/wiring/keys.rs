//! Follows the key ring's file where tokens are judged: a key that operators add is known here before any gateway mints
//! with it.

use super::background::{Background, Tasks};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use windfall_token::KeyRing;

/// The pause between two looks at the file.
const EVERY: Duration = Duration::from_secs(5);

/// The last state of a file that was seen.
struct Seen {
    path: PathBuf,
    /// The digest of the ring that was taken over.
    digest: Option<[u8; 32]>,
    /// The logged reason why a file could not be read, so that it is logged once.
    told: Option<String>,
}

/// Follows the file that a ring was just read from. `take` takes over a changed ring.
pub fn follow(
    tasks: &Tasks,
    path: &Path,
    take: impl Fn(KeyRing) -> Result<(), String> + Send + Sync + 'static,
) -> Background {
    let (path, take) = (path.to_owned(), Arc::new(take));
    tasks.spawn("keys", move || {
        let mut seen = Seen { path: path.clone(), digest: None, told: None };
        let take = Arc::clone(&take);
        async move {
            loop {
                let looked = tokio::task::spawn_blocking(move || (seen.look(), seen)).await;
                let (changed, back) = match looked {
                    Ok(looked) => looked,
                    Err(died) if died.is_panic() => std::panic::resume_unwind(died.into_panic()),
                    // The runtime ends.
                    Err(_) => return,
                };
                seen = back;
                match changed {
                    None => {}
                    Some(Ok(ring)) => match take(ring) {
                        Ok(()) => tracing::info!("the key ring is taken over"),
                        Err(error) => tracing::warn!(error, "the keys so far stay"),
                    },
                    Some(Err(error)) => {
                        tracing::warn!(error, "the key ring cannot be read; the keys so far stay");
                    }
                }
                tokio::time::sleep(EVERY).await;
            }
        }
    })
}

impl Seen {
    /// The ring, where the file is another one than at the last look. What cannot be read is told once.
    fn look(&mut self) -> Option<Result<KeyRing, String>> {
        let digest = std::fs::read(&self.path).ok().map(|bytes| Sha256::digest(&bytes).into());
        if digest.is_some() && digest == self.digest {
            self.told = None;
            return None;
        }
        match KeyRing::load(&self.path) {
            Ok(ring) => {
                (self.digest, self.told) = (digest, None);
                Some(Ok(ring))
            }
            // Tried again at each look: its mode may be mended, which the file's bytes do not show.
            Err(error) => {
                let error = error.to_string();
                (self.told.replace(error.clone()).as_ref() != Some(&error)).then_some(Err(error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use windfall_token::{Algorithm, KeyFile};

    #[test]
    fn a_ring_is_read_when_it_changes_and_a_broken_one_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let mut seen = Seen { path: path.clone(), digest: None, told: None };
        assert!(matches!(seen.look(), Some(Err(_))), "none there");
        assert!(seen.look().is_none());
        KeyFile::create(&path, Algorithm::HmacSha256, 1).unwrap();
        assert!(matches!(seen.look(), Some(Ok(_))));
        assert!(seen.look().is_none());
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert!(matches!(seen.look(), Some(Err(_))));
        assert!(seen.look().is_none());
        std::fs::write(&path, whole).unwrap();
        assert!(seen.look().is_none(), "it is in force");
        // Another one, for all to see, and then as it should be.
        std::fs::remove_file(&path).unwrap();
        KeyFile::create(&path, Algorithm::HmacSha256, 2).unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        assert!(matches!(seen.look(), Some(Err(_))));
        mode(0o600);
        assert!(matches!(seen.look(), Some(Ok(_))));
        assert!(seen.look().is_none());
    }
}
