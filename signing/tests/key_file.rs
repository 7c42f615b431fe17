//! The key file on disk: its changes, its copies, and what is refused.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use windfall_signing::{
    ChangeError, KeyFile, KeyFileError, KeyState, OpenRingError, Ring, RingFile, RingUse,
};

fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("signing.toml");
    (folder, path)
}

fn states(path: &Path) -> Vec<(u32, String, KeyState)> {
    Ring::load(path).unwrap().keys().map(|key| (key.id, key.sender.clone(), key.state)).collect()
}

#[test]
fn a_key_is_rotated_without_a_moment_in_which_nobody_can_sign() {
    let (_folder, path) = place();
    let mut file = KeyFile::create(&path, "gateway", false, 1).unwrap();
    file.add("gateway", false, 2).unwrap();
    file.add("consumer", true, 3).unwrap();
    let own = |id, sender: &str, state| (id, sender.to_owned(), state);
    let [primary, verifies] = [KeyState::Primary, KeyState::VerifyOnly];
    let now = [own(1, "gateway", primary), own(2, "gateway", verifies), own(3, "consumer", verifies)];
    assert_eq!(states(&path), now);
    file.promote(2).unwrap();
    file.promote(3).unwrap();
    let now = [own(1, "gateway", verifies), own(2, "gateway", primary), own(3, "consumer", primary)];
    assert_eq!(states(&path), now, "another sender's key stays what it is");
    assert!(matches!(file.promote(1), Err(ChangeError::WrongState { .. })), "a key signs once in its life");
    assert!(matches!(file.destroy(2), Err(ChangeError::WrongState { .. })), "it signs");
    file.destroy(1).unwrap();
    assert!(matches!(file.destroy(1), Err(ChangeError::WrongState { .. })));
    assert!(matches!(file.promote(9), Err(ChangeError::UnknownKey(9))));
    assert_eq!(file.add("gateway", false, 4).unwrap(), 4, "the number of a destroyed key is not used again");
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches("secret = ").count(), 3);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_file_that_was_changed_by_hand_or_cut_is_refused() {
    let (_folder, path) = place();
    drop(KeyFile::create(&path, "gateway", false, 1).unwrap());
    let whole = std::fs::read(&path).unwrap();
    for len in 0..whole.len() {
        std::fs::write(&path, &whole[..len]).unwrap();
        assert!(matches!(Ring::load(&path), Err(KeyFileError::Damaged { .. })), "cut to {len}");
    }
    let text = String::from_utf8(whole.clone()).unwrap();
    for (from, to) in [("gateway", "mall"), ("false", "true"), ("primary", "destroyed")] {
        std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
        assert!(matches!(Ring::load(&path), Err(KeyFileError::Damaged { .. })), "{from} to {to}");
    }
    std::fs::write(&path, text.replacen("format = 1", "format = 2", 1)).unwrap();
    assert!(matches!(Ring::load(&path), Err(KeyFileError::NewerFormat { format: 2, .. })));
    std::fs::write(&path, &whole).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(Ring::load(&path), Err(KeyFileError::Exposed { mode: 0o640, .. })));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(Ring::load(&path), Err(KeyFileError::Missing { .. })));
}

/// A ring of tokens is no ring of signing keys, though both are called key rings.
#[test]
fn another_kind_of_ring_is_refused() {
    let (_folder, path) = place();
    let text = windfall_key_file::text::seal("# Windfall key ring.\n", "\n[[key]]\nid = 1\n");
    windfall_key_file::write_new(&path, &text).unwrap();
    assert!(matches!(Ring::load(&path), Err(KeyFileError::Damaged { .. })));
}

#[test]
fn a_copy_has_the_keys_of_one_sender_and_is_not_changed() {
    let (folder, path) = place();
    let mut file = KeyFile::create(&path, "gateway", false, 1).unwrap();
    file.add("mall", false, 2).unwrap();
    let copy = folder.path().join("mall.toml");
    assert!(matches!(file.export("mall", &copy), Err(ChangeError::NoPrimary(_))));
    file.promote(2).unwrap();
    // Neither the next key nor the last one: whoever has the copy has what signs now, and no more.
    file.add("mall", false, 3).unwrap();
    file.export("mall", &copy).unwrap();
    assert_eq!(states(&copy), [(2, "mall".to_owned(), KeyState::Primary)]);
    assert!(matches!(KeyFile::open(&copy), Err(KeyFileError::VerifierCopy { .. })));
    // It is exported again after a change.
    file.promote(3).unwrap();
    file.export("mall", &copy).unwrap();
    assert_eq!(states(&copy), [(3, "mall".to_owned(), KeyState::Primary)]);
    assert!(matches!(file.export("nobody", &copy), Err(ChangeError::UnknownSender(_))));
    // Another sender's copy is not overwritten by mistake, and the original even less.
    let exists = |refused| matches!(refused, Err(ChangeError::File(KeyFileError::Exists { .. })));
    assert!(exists(file.export("gateway", &copy)));
    drop(file);
    let other = folder.path().join("other.toml");
    let second = KeyFile::create(&other, "mall", false, 1).unwrap();
    assert!(exists(second.export("mall", &path)));
}

#[test]
fn of_two_writers_one_is_refused() {
    let (_folder, path) = place();
    let first = KeyFile::create(&path, "gateway", false, 1).unwrap();
    assert!(matches!(KeyFile::open(&path), Err(KeyFileError::InUse { .. })));
    drop(first);
    KeyFile::open(&path).unwrap();
    let again = KeyFile::create(&path, "gateway", false, 1);
    assert!(matches!(again, Err(ChangeError::File(KeyFileError::Exists { .. }))));
}

#[test]
fn a_sender_has_a_plain_name() {
    let (_folder, path) = place();
    for name in ["", "a b", "a\"\nstate", "ä", &"x".repeat(65)] {
        assert!(matches!(KeyFile::create(&path, name, false, 1), Err(ChangeError::Name(_))), "{name:?}");
    }
    assert!(!path.exists());
    KeyFile::create(&path, &"x".repeat(64), false, 1).unwrap();
}

/// Secrets never show where a ring or a file is logged.
#[test]
fn debug_shows_no_secret() {
    let (_folder, path) = place();
    let file = KeyFile::create(&path, "gateway", false, 1).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let secret = text.lines().find_map(|line| line.strip_prefix("secret = \"")).unwrap();
    let secret = secret.trim_end_matches('"');
    for shown in [format!("{file:?}"), format!("{:?}", Ring::load(&path).unwrap())] {
        assert!(shown.contains("gateway") && !shown.contains(secret), "{shown}");
    }
}

#[test]
fn a_changed_file_is_taken_over_and_a_broken_one_is_told_once() {
    let (_folder, path) = place();
    assert!(matches!(
        RingFile::open(&path, "gateway", RingUse::Sends),
        Err(OpenRingError::File(KeyFileError::Missing { .. }))
    ));
    let mut file = KeyFile::create(&path, "gateway", false, 1).unwrap();
    let nobody = RingFile::open(&path, "nobody", RingUse::Sends);
    assert!(matches!(nobody, Err(OpenRingError::NoPrimary(_))), "{nobody:?}");
    let mut followed = RingFile::open(&path, "gateway", RingUse::Sends).unwrap();
    let ring = followed.ring().clone();
    let primary = || ring.current().primary("gateway").unwrap();
    assert_eq!((followed.look(), primary()), (None, 1));
    file.add("gateway", false, 2).unwrap();
    file.promote(2).unwrap();
    assert_eq!((followed.look(), primary()), (Some(Ok(())), 2));
    assert_eq!(followed.look(), None);
    // Half a file, a file for all to see, and no file: the ring so far stays, and the log has one line each.
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert!(matches!(followed.look(), Some(Err(_))));
    assert_eq!((followed.look(), primary()), (None, 2));
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(followed.look(), None, "it is in force");
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(followed.look(), Some(Err(_))));
    assert_eq!((followed.look(), primary()), (None, 2));
    windfall_key_file::write_new(&path, std::str::from_utf8(&whole).unwrap()).unwrap();
    assert_eq!(followed.look(), None);
    file.add("gateway", false, 3).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(followed.look(), Some(Err(_))));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(followed.look(), Some(Ok(())));
    // A ring that the sender could not sign with is not taken over: it goes on with the key so far.
    file.retire(2).unwrap();
    assert!(matches!(followed.look(), Some(Err(_))));
    assert_eq!((followed.look(), primary()), (None, 2));
    file.promote(3).unwrap();
    assert_eq!((followed.look(), primary()), (Some(Ok(())), 3));
}

/// A consumer with a sender's export would refuse all other senders, and one whose key may sign no copies would have all that
/// it requeues refused: neither starts so, nor takes such a file over.
#[test]
fn a_consumer_needs_the_whole_file_and_a_key_that_may_copy() {
    let (folder, path) = place();
    let mut file = KeyFile::create(&path, "gateway", false, 1).unwrap();
    let no_copies = RingFile::open(&path, "gateway", RingUse::Consumes);
    assert!(matches!(no_copies, Err(OpenRingError::NoCopies(_))), "{no_copies:?}");
    let id = file.add("consumer", true, 2).unwrap();
    file.promote(id).unwrap();
    let copy = folder.path().join("consumer.toml");
    file.export("consumer", &copy).unwrap();
    let one_sender = RingFile::open(&copy, "consumer", RingUse::Consumes);
    assert!(matches!(one_sender, Err(OpenRingError::OneSender(_))), "{one_sender:?}");
    assert!(RingFile::open(&copy, "consumer", RingUse::Sends).is_ok());
    let replays = |path: &Path, sender| RingFile::open(path, sender, RingUse::Replays);
    assert!(matches!(replays(&copy, "consumer"), Err(OpenRingError::OneSender(_))));
    assert!(replays(&path, "gateway").is_ok(), "it signs no copies");

    let mut followed = RingFile::open(&path, "consumer", RingUse::Consumes).unwrap();
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, std::fs::read(&copy).unwrap()).unwrap();
    assert!(matches!(followed.look(), Some(Err(_))));
    assert_eq!(followed.ring().current().keys().count(), 2, "the ring so far stays");
    std::fs::write(&path, whole).unwrap();
    assert_eq!(followed.look(), None);
    // Its next key may not lack the right, or its running consumers would not follow.
    let next = file.add("consumer", false, 3).unwrap();
    assert!(matches!(file.promote(next), Err(ChangeError::WrongState { .. })));
    let next = file.add("consumer", true, 4).unwrap();
    file.promote(next).unwrap();
    assert_eq!(followed.look(), Some(Ok(())));
}
