//! The key ring on disk: who may read it, what becomes of it when things break, and the one way of a key's life.
#![allow(clippy::unwrap_used)]

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use tempfile::TempDir;
use windfall_token::{
    Algorithm, ChangeError, Illegal, KeyFile, KeyFileError, KeyId, KeyInfo, KeyRing, NoPrimary, Reason,
    State, TokenFields,
};

const NOW_MS: u64 = 1_800_000_000_000;
const FIELDS: TokenFields<'_> = TokenFields {
    trade_no: "rain-1",
    user_id: 42,
    app_id: "",
    activity: "spring",
    scene: "rain",
    bonus_type: "cash",
    amount: 888,
    award_time_ms: 1,
    description: "",
};

/// A folder, and the path of a key file in it that is not there yet.
fn place() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.toml");
    (folder, path)
}

fn create(path: &Path, algorithm: Algorithm) -> KeyFile {
    KeyFile::create(path, algorithm, NOW_MS).unwrap()
}

fn mint(ring: &KeyRing) -> String {
    ring.minter("acme").unwrap().mint(&FIELDS, NOW_MS).unwrap()
}

fn opens(ring: &KeyRing, text: &str) -> bool {
    ring.open(text.as_bytes(), "acme", 42).is_ok()
}

fn states(file: &KeyFile) -> Vec<(u32, State)> {
    file.list().into_iter().map(|key| (key.id.0, key.state)).collect()
}

/// Overwrites the file with what its owner alone can read.
fn put(path: &Path, text: &[u8]) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn a_new_file_mints_at_once_and_is_its_owners_alone() {
    for algorithm in [Algorithm::HmacSha256, Algorithm::Ed25519] {
        let (folder, path) = place();
        let file = create(&path, algorithm);
        let first =
            KeyInfo { id: KeyId(1), algorithm, state: State::Primary, has_minted: true, created_ms: NOW_MS };
        assert_eq!(file.list(), [first]);
        for entry in fs::read_dir(folder.path()).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{:?}", entry.path());
        }
        let (ring, other) = (KeyRing::load(&path).unwrap(), KeyRing::load(&path).unwrap());
        assert!(opens(&other, &mint(&ring)));
        assert_eq!(ring.keys().collect::<Vec<_>>(), [first]);
    }
}

#[test]
fn a_file_that_others_can_touch_is_refused_with_the_line_that_helps() {
    let (_folder, path) = place();
    drop(create(&path, Algorithm::HmacSha256));
    for mode in [0o640, 0o620, 0o610, 0o604, 0o602, 0o601, 0o644, 0o666, 0o777] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let refused = KeyRing::load(&path).unwrap_err();
        assert!(matches!(refused, KeyFileError::Exposed { mode: found, .. } if found == mode), "{refused}");
        assert!(refused.to_string().contains(&format!("chmod 600 '{}'", path.display())), "{refused}");
        assert!(matches!(KeyFile::open(&path), Err(KeyFileError::Exposed { .. })));
    }
    for mode in [0o600, 0o400] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        assert!(KeyRing::load(&path).is_ok());
    }
}

#[test]
fn a_file_that_was_cut_or_altered_anywhere_is_refused() {
    let (_folder, path) = place();
    let mut file = create(&path, Algorithm::HmacSha256);
    file.add(Algorithm::Ed25519, NOW_MS).unwrap();
    drop(file);
    let text = fs::read(&path).unwrap();
    for len in 0..text.len() {
        put(&path, &text[..len]);
        let refused = KeyRing::load(&path).unwrap_err();
        assert!(matches!(refused, KeyFileError::Damaged { .. }), "cut to {len}: {refused}");
    }
    for at in 0..text.len() {
        let mut other = text.clone();
        other[at] ^= 0x01;
        put(&path, &other);
        let refused = KeyRing::load(&path).unwrap_err();
        assert!(matches!(refused, KeyFileError::Damaged { .. }), "byte {at}: {refused}");
    }
    for other in [&b""[..], b"\n", b"[[key]]\n", &[0xff; 100], &text.repeat(2), &vec![b'#'; 2 << 20]] {
        put(&path, other);
        assert!(matches!(KeyFile::open(&path), Err(KeyFileError::Damaged { .. })));
        assert_eq!(fs::read(&path).unwrap(), other, "a refused file was changed");
    }
    put(&path, &text);
    assert!(KeyRing::load(&path).is_ok());
}

#[test]
fn a_newer_format_is_refused_by_its_number() {
    let (_folder, path) = place();
    drop(create(&path, Algorithm::HmacSha256));
    let text = fs::read_to_string(&path).unwrap();
    // The rest of a newer format may be anything.
    for newer in
        [text.replace("format = 1", "format = 2"), text[..text.find("1\n").unwrap()].to_owned() + "17\n%"]
    {
        put(&path, newer.as_bytes());
        let refused = KeyRing::load(&path).unwrap_err();
        assert!(matches!(refused, KeyFileError::NewerFormat { .. }), "{refused}");
        assert!(refused.to_string().contains("use a newer release"), "{refused}");
        assert!(matches!(KeyFile::open(&path), Err(KeyFileError::NewerFormat { .. })));
    }
}

#[test]
fn a_missing_file_and_a_second_create_say_what_to_do() {
    let (_folder, path) = place();
    let missing = KeyRing::load(&path).unwrap_err();
    assert!(missing.to_string().contains("windfall keys new"), "{missing}");
    assert!(matches!(KeyFile::open(&path), Err(KeyFileError::Missing { .. })));

    drop(create(&path, Algorithm::HmacSha256));
    let text = fs::read(&path).unwrap();
    let again = KeyFile::create(&path, Algorithm::HmacSha256, NOW_MS);
    assert!(matches!(again, Err(KeyFileError::Exists { .. })));
    assert_eq!(fs::read(&path).unwrap(), text, "keys were replaced");
    let nowhere = KeyFile::create(&path.join("deeper"), Algorithm::HmacSha256, NOW_MS);
    assert!(matches!(nowhere, Err(KeyFileError::Io { .. })));
}

/// A rotation as it goes in a fleet: at no step does a process that has loaded the file one step ago fail to open
/// what the newest one mints.
#[test]
fn a_rotation_leaves_no_process_behind() {
    let (_folder, path) = place();
    let mut file = create(&path, Algorithm::HmacSha256);
    let old = mint(&KeyRing::load(&path).unwrap());
    let mut loaded = vec![KeyRing::load(&path).unwrap()];
    let id = file.add(Algorithm::Ed25519, NOW_MS + 1).unwrap();
    assert_eq!(id, KeyId(2));
    let mut step = |file: &KeyFile, expected: &[(u32, State)]| {
        assert_eq!(states(file), expected);
        let newest = KeyRing::load(&path).unwrap();
        let text = mint(&newest);
        assert!(opens(&newest, &text) && opens(loaded.last().unwrap(), &text), "{expected:?}");
        loaded.push(newest);
    };
    step(&file, &[(1, State::Primary), (2, State::Pending)]);
    assert_eq!(file.promote(id).unwrap(), State::VerifyOnly);
    step(&file, &[(1, State::Primary), (2, State::VerifyOnly)]);
    assert_eq!(file.promote(id).unwrap(), State::Primary);
    step(&file, &[(1, State::VerifyOnly), (2, State::Primary)]);
    let ring = KeyRing::load(&path).unwrap();
    assert_eq!(ring.minter("acme").unwrap().key(), id);
    assert!(opens(&ring, &old), "tokens of the retired key still open");

    file.destroy(KeyId(1)).unwrap();
    step(&file, &[(1, State::Destroyed), (2, State::Primary)]);
    let ring = KeyRing::load(&path).unwrap();
    assert_eq!(ring.open(old.as_bytes(), "acme", 42), Err(Illegal));
    let reason = Reason::KeyState { key: KeyId(1), state: State::Destroyed };
    assert_eq!(ring.diagnose(old.as_bytes(), "acme", None), Err(reason));

    // Nothing of the destroyed key is left but its number, which is never given again.
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches("seal_secret").count(), 1);
    assert_eq!(file.add(Algorithm::HmacSha256, NOW_MS).unwrap(), KeyId(3));
}

/// A pending key opens nothing: a token of it can only come from somebody who should not have it yet.
#[test]
fn a_pending_key_opens_nothing() {
    let (_folder, path) = place();
    let mut file = create(&path, Algorithm::HmacSha256);
    let id = file.add(Algorithm::HmacSha256, NOW_MS).unwrap();
    let before = KeyRing::load(&path).unwrap();
    file.promote(id).unwrap();
    file.promote(id).unwrap();
    let text = mint(&KeyRing::load(&path).unwrap());
    assert_eq!(before.open(text.as_bytes(), "acme", 42), Err(Illegal));
    let reason = Reason::KeyState { key: id, state: State::Pending };
    assert_eq!(before.diagnose(text.as_bytes(), "acme", None), Err(reason));
}

#[test]
fn every_step_that_is_not_on_the_way_is_refused_and_changes_nothing() {
    type Step = fn(&mut KeyFile, KeyId) -> Result<(), ChangeError>;
    let promote: Step = |file, id| file.promote(id).map(|_| ());
    let (retire, destroy): (Step, Step) = (KeyFile::retire, KeyFile::destroy);
    let cases: &[(&str, &[Step], Step)] = &[
        ("retire pending", &[], retire),
        ("destroy pending", &[], destroy),
        ("retire what has minted nothing", &[promote], retire),
        ("promote primary", &[promote, promote], promote),
        ("destroy primary", &[promote, promote], destroy),
        ("promote retired", &[promote, promote, retire], promote),
        ("retire retired", &[promote, promote, retire], retire),
        ("promote destroyed", &[promote, destroy], promote),
        ("retire destroyed", &[promote, destroy], retire),
        ("destroy destroyed", &[promote, promote, retire, destroy], destroy),
    ];
    for (what, way, wrong) in cases {
        let (_folder, path) = place();
        let mut file = create(&path, Algorithm::HmacSha256);
        let id = file.add(Algorithm::HmacSha256, NOW_MS).unwrap();
        for step in *way {
            step(&mut file, id).unwrap();
        }
        let (text, keys) = (fs::read(&path).unwrap(), file.list());
        let refused = wrong(&mut file, id).unwrap_err();
        assert!(matches!(refused, ChangeError::WrongState { .. }), "{what}: {refused}");
        assert!(refused.to_string().contains("cannot"), "{what}: {refused}");
        assert!(matches!(wrong(&mut file, KeyId(9)), Err(ChangeError::UnknownKey(KeyId(9)))));
        assert_eq!((fs::read(&path).unwrap(), file.list()), (text, keys), "{what} changed something");
    }
}

#[test]
fn with_the_primary_retired_nothing_is_minted() {
    let (_folder, path) = place();
    let mut file = create(&path, Algorithm::HmacSha256);
    file.retire(KeyId(1)).unwrap();
    let refused = KeyRing::load(&path).unwrap().minter("acme").unwrap_err();
    assert_eq!(refused, NoPrimary::None);
}

#[test]
fn of_two_writers_one_is_refused_and_no_change_is_lost() {
    let (_folder, path) = place();
    let file = create(&path, Algorithm::HmacSha256);
    assert!(matches!(KeyFile::open(&path), Err(KeyFileError::InUse { .. })));
    let again = KeyFile::create(&path, Algorithm::HmacSha256, NOW_MS);
    assert!(matches!(again, Err(KeyFileError::InUse { .. })));
    // Readers are not in the way, nor in theirs.
    assert!(KeyRing::load(&path).is_ok());
    drop(file);

    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut added = 0;
                while added < 5 {
                    match KeyFile::open(&path) {
                        Ok(mut file) => {
                            file.add(Algorithm::HmacSha256, NOW_MS).unwrap();
                            added += 1;
                        }
                        Err(KeyFileError::InUse { .. }) => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                    assert!(KeyRing::load(&path).is_ok(), "a reader saw half a file");
                }
            });
        }
    });
    let ids: Vec<_> = KeyFile::open(&path).unwrap().list().iter().map(|key| key.id.0).collect();
    assert_eq!(ids, (1..=16).collect::<Vec<_>>());
}

#[test]
fn a_save_that_fails_changes_nothing_and_what_a_crash_left_is_no_harm() {
    let (folder, path) = place();
    let mut file = create(&path, Algorithm::HmacSha256);
    let text = fs::read(&path).unwrap();
    let aside = folder.path().join("keys.toml.tmp");

    fs::create_dir(&aside).unwrap();
    let refused = file.add(Algorithm::HmacSha256, NOW_MS).unwrap_err();
    assert!(matches!(refused, ChangeError::File(KeyFileError::Io { .. })), "{refused}");
    assert_eq!(states(&file), [(1, State::Primary)]);
    assert_eq!(fs::read(&path).unwrap(), text);

    // A crash in the middle of a save leaves half a file aside, perhaps with open permissions.
    fs::remove_dir(&aside).unwrap();
    fs::write(&aside, &text[..20]).unwrap();
    fs::set_permissions(&aside, Permissions::from_mode(0o666)).unwrap();
    assert!(KeyRing::load(&path).is_ok());
    file.add(Algorithm::HmacSha256, NOW_MS).unwrap();
    assert_eq!(KeyRing::load(&path).unwrap().keys().count(), 2);
    assert!(!aside.exists());
}

#[test]
fn a_link_stays_a_link() {
    let (folder, path) = place();
    drop(create(&path, Algorithm::HmacSha256));
    let link = folder.path().join("link.toml");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let mut file = KeyFile::open(&link).unwrap();
    file.add(Algorithm::HmacSha256, NOW_MS).unwrap();
    assert!(link.is_symlink() && !path.is_symlink());
    assert_eq!(KeyRing::load(&path).unwrap().keys().count(), 2);
    // The lock is the file's, not the name's.
    assert!(matches!(KeyFile::open(&path), Err(KeyFileError::InUse { .. })));
}

#[test]
fn a_verifiers_copy_verifies_and_cannot_mint() {
    let (folder, path) = place();
    let mut file = create(&path, Algorithm::Ed25519);
    let pending = file.add(Algorithm::Ed25519, NOW_MS).unwrap();
    let ring = KeyRing::load(&path).unwrap();
    let copy = folder.path().join("verifier.toml");
    file.export_verifier(&copy).unwrap();

    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&copy).unwrap();
    assert!(!text.contains("signing_secret"));
    let verifier = KeyRing::load(&copy).unwrap();
    assert!(opens(&verifier, &mint(&ring)));
    assert_eq!(verifier.minter("acme").unwrap_err(), NoPrimary::VerifierCopy(KeyId(1)));
    assert_eq!(verifier.keys().collect::<Vec<_>>(), file.list());
    assert!(matches!(KeyFile::open(&copy), Err(KeyFileError::VerifierCopy { .. })));
    let again = file.export_verifier(&copy);
    assert!(matches!(again, Err(ChangeError::File(KeyFileError::Exists { .. }))));

    // One HMAC key that is alive, and there is no such copy.
    let hmac = file.add(Algorithm::HmacSha256, NOW_MS).unwrap();
    let refused = file.export_verifier(&folder.path().join("other.toml"));
    assert!(matches!(refused, Err(ChangeError::NoVerifierCopy(id)) if id == hmac));
    assert!(!folder.path().join("other.toml").exists());
    assert_eq!(file.list()[1].id, pending);
}

#[test]
fn secrets_never_show_in_debug_or_in_errors() {
    let (_folder, path) = place();
    let mut file = create(&path, Algorithm::HmacSha256);
    let id = file.add(Algorithm::Ed25519, NOW_MS).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let secrets: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("_secret"))
        .filter_map(|line| line.split('"').nth(1))
        .collect();
    assert_eq!(secrets.len(), 4);

    let ring = KeyRing::load(&path).unwrap();
    let mut shown = vec![
        format!("{ring:?} {ring:#?}"),
        format!("{file:?} {file:#?}"),
        format!("{:?}", ring.minter("acme").unwrap()),
        format!("{:?}", file.destroy(id)),
    ];
    drop(file);
    // A secret in the wrong place: the parser would quote its line.
    for (from, to) in [("seal_secret", "unknown"), ("id = 1", "id = \"x\""), ("= \"", "= ")] {
        put(&path, text.replace(from, to).as_bytes());
        let refused = KeyRing::load(&path).unwrap_err();
        shown.push(format!("{refused} {refused:?}"));
    }
    for secret in secrets {
        use base64::Engine;
        let bytes = base64::engine::general_purpose::STANDARD.decode(secret).unwrap();
        let hex: String = bytes[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let decimal = bytes[..4].iter().map(u8::to_string).collect::<Vec<_>>().join(",");
        for shown in &shown {
            let shown = shown.replace(char::is_whitespace, "");
            assert!(!shown.contains(&secret[..8]) && !shown.to_lowercase().contains(&hex), "{shown}");
            assert!(!shown.contains(&decimal), "{shown}");
        }
    }
    assert!(shown[0].contains("Primary"), "{}", shown[0]);
}
