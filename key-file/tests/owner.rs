//! Who owns a key file after it was replaced.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use windfall_key_file::{Lock, exposed_mode, replace, write_new};

/// A service's user, whom nobody needs to have in `/etc/passwd`.
const SERVICE: u32 = 10_001;

fn owner_and_mode(path: &Path) -> (u32, u32, u32) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.uid(), metadata.gid(), metadata.mode() & 0o777)
}

/// Root rotated keys, and the service could not read its own key file after that.
#[test]
fn a_file_that_root_replaces_stays_its_owners() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.toml");
    let lock_path = folder.path().join("keys.toml.lock");
    let lock = Lock::take(&path).unwrap();
    write_new(&path, "one").unwrap();
    drop(lock);
    let (uid, gid, mode) = owner_and_mode(&path);
    assert_eq!(mode, 0o600);

    // Only root can give a file away; for anybody else it stays their own in any case.
    let is_root = chown(&path, Some(SERVICE), Some(SERVICE)).is_ok();
    let expected = if is_root { (SERVICE, SERVICE) } else { (uid, gid) };
    let lock = Lock::take(&path).unwrap();
    replace(&path, "two").unwrap();
    drop(lock);
    assert_eq!(owner_and_mode(&path), (expected.0, expected.1, 0o600));
    assert_eq!(fs::read_to_string(&path).unwrap(), "two");
    assert_eq!(owner_and_mode(&lock_path), (expected.0, expected.1, 0o600));
}

/// Who owns the folder would be given whatever the link in place of the lock leads to.
#[test]
fn a_link_in_place_of_the_lock_gives_nothing_away() {
    let folder = tempfile::tempdir().unwrap();
    let (path, others) = (folder.path().join("keys.toml"), folder.path().join("others"));
    fs::write(&path, "one").unwrap();
    if chown(&path, Some(SERVICE), Some(SERVICE)).is_err() {
        return eprintln!("only root can give a file away");
    }
    let lock_path = folder.path().join("keys.toml.lock");
    for (content, link) in [("", "symbolic"), ("hush", "symbolic"), ("", "hard"), ("hush", "none")] {
        fs::write(&others, content).unwrap();
        match link {
            "symbolic" => std::os::unix::fs::symlink(&others, &lock_path).unwrap(),
            "hard" => fs::hard_link(&others, &lock_path).unwrap(),
            _ => fs::write(&lock_path, content).unwrap(),
        }
        drop(Lock::take(&path).unwrap());
        assert_eq!(owner_and_mode(&others).0, 0, "{link} {content:?}");
        assert_eq!(owner_and_mode(&lock_path).0, 0, "{link} {content:?}");
        fs::remove_file(&lock_path).unwrap();
    }
}

#[test]
fn a_file_that_is_read_only_stays_so_and_one_that_is_open_to_others_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.toml");
    let _lock = Lock::take(&path).unwrap();
    write_new(&path, "one").unwrap();
    for (before, after) in [(0o400, 0o400), (0o600, 0o600), (0o644, 0o600), (0o440, 0o400)] {
        fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
        replace(&path, "two").unwrap();
        assert_eq!(owner_and_mode(&path).2, after, "it was {before:o}");
    }
}

#[test]
fn a_secret_is_exposed_where_anybody_reads_it_or_others_than_its_owner_change_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    fs::write(&path, "hush").unwrap();
    for (mode, is_exposed) in [
        (0o600, false),
        (0o400, false),
        (0o440, false),
        (0o640, false),
        (0o660, true),
        (0o644, true),
        (0o602, true),
    ] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let found = exposed_mode(&fs::metadata(&path).unwrap());
        assert_eq!(found, is_exposed.then_some(mode), "{mode:o}");
    }
}
