//! Key files, which operators copy, edit and restore from backups.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use tempfile::TempDir;
use windfall_key_file::text;
use windfall_signing::Ring;
use windfall_token::{Algorithm, KeyFile, KeyRing};

struct Known {
    _folder: TempDir,
    path: PathBuf,
    /// The first lines of both kinds of file.
    titles: [String; 2],
}

fn known() -> Option<&'static Known> {
    static KNOWN: OnceLock<Option<Known>> = OnceLock::new();
    KNOWN.get_or_init(make).as_ref()
}

/// `None` where the machine has no room for a file or no randomness.
fn make() -> Option<Known> {
    let folder = tempfile::tempdir().ok()?;
    let (tokens, signing) = (folder.path().join("tokens.toml"), folder.path().join("signing.toml"));
    drop(KeyFile::create(&tokens, Algorithm::HmacSha256, 1).ok()?);
    drop(windfall_signing::KeyFile::create(&signing, "gateway", false, 1).ok()?);
    let title = |path| Some(format!("{}\n", fs::read_to_string(path).ok()?.lines().next()?));
    let titles = [title(tokens)?, title(signing)?];
    Some(Known { path: folder.path().join("fuzzed.toml"), _folder: folder, titles })
}

/// A file with these bytes, or with these bytes under a frame that fits them, so that what is behind the digest is read,
/// too. What is read has a number for each key, and none twice.
pub fn text(data: &[u8]) {
    let (Some(known), Some((mode, rest))) = (known(), data.split_first()) else { return };
    let title = &known.titles[usize::from(mode & 1)];
    let body = String::from_utf8_lossy(rest);
    let content = if mode & 2 == 0 { rest.to_vec() } else { text::seal(title, &body).as_bytes().to_vec() };
    let written = fs::write(&known.path, content)
        .and_then(|()| fs::set_permissions(&known.path, Permissions::from_mode(0o600)));
    if written.is_err() {
        return;
    }
    if let Ok(ring) = KeyRing::load(&known.path) {
        let ids: Vec<u32> = ring.keys().map(|key| key.id.0).collect();
        assert!(!ids.is_empty() && ids.is_sorted_by(|a, b| a < b) && ids[0] > 0, "{ids:?}");
        assert!(mode & 1 == 0 || mode & 2 == 0, "a file of signing keys is read as one of tokens' keys");
    }
    if Ring::load(&known.path).is_ok() {
        assert!(mode & 1 == 1 || mode & 2 == 0, "a file of tokens' keys is read as one of signing keys");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_check_compares_with_is_there() {
        assert!(known().is_some());
    }
}
