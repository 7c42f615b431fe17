//! What the signature of an add of a timer covers: every byte of it, and its key.

#![allow(clippy::unwrap_used)]

use windfall_proto::record::{self, Head};
use windfall_signing::{ADD_SIGNATURE_BYTES, KeyFile, LiveRing, QueueTag, Refused, Ring, Signer, Verifier};

const ADD: &[u8] = b"WT\x02 an add of a timer";

/// A key file with the primary keys 1 (`scheduler`) and 2 (`gateway`).
struct Keys {
    folder: tempfile::TempDir,
    ring: LiveRing,
}

impl Keys {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signing.toml");
        let mut file = KeyFile::create(&path, "scheduler", false, 1).unwrap();
        assert_eq!(file.add("gateway", false, 2).unwrap(), 2);
        file.promote(2).unwrap();
        let ring = LiveRing::new(Ring::load(&path).unwrap());
        Self { folder, ring }
    }

    fn change(&self, change: impl FnOnce(&mut KeyFile)) {
        let path = self.folder.path().join("signing.toml");
        change(&mut KeyFile::open(&path).unwrap());
        self.ring.replace(Ring::load(&path).unwrap(), None).unwrap();
    }

    fn signer(&self, sender: &str) -> Signer {
        Signer::new(&self.ring, sender, "acme").unwrap()
    }

    fn verify(&self, add: &[u8], signature: &[u8; ADD_SIGNATURE_BYTES]) -> Result<u32, Refused> {
        Verifier::new(&self.ring, "another tenant").verify_add(add, signature)
    }
}

#[test]
fn an_add_is_verified_by_its_key_and_no_byte_of_it_can_be_changed() {
    let keys = Keys::new();
    let signature = keys.signer("gateway").sign_add(ADD).unwrap();
    assert_eq!(keys.verify(ADD, &signature), Ok(2));
    for at in 0..ADD.len() {
        let mut changed = ADD.to_vec();
        changed[at] ^= 1;
        assert_eq!(keys.verify(&changed, &signature), Err(Refused::Forged { key: 2 }), "{at}");
    }
    for at in 4..ADD_SIGNATURE_BYTES {
        let mut changed = signature;
        changed[at] ^= 1;
        assert_eq!(keys.verify(ADD, &changed), Err(Refused::Forged { key: 2 }), "{at}");
    }
    // Another key's number.
    let mut other = signature;
    other[3] = 1;
    assert_eq!(keys.verify(ADD, &other), Err(Refused::Forged { key: 1 }));
    let longer = [ADD, &[0]].concat();
    assert_eq!(keys.verify(&longer, &signature), Err(Refused::Forged { key: 2 }));
}

#[test]
fn a_key_that_the_ring_lacks_is_asked_for_and_a_destroyed_one_is_refused() {
    let keys = Keys::new();
    let signature = keys.signer("scheduler").sign_add(ADD).unwrap();
    let mut unknown = signature;
    unknown[3] = 9;
    assert!(!keys.ring.take_lack());
    assert_eq!(keys.verify(ADD, &unknown), Err(Refused::UnknownKey { key: 9 }));
    assert!(keys.ring.take_lack());
    keys.change(|file| {
        assert_eq!(file.add("scheduler", false, 3).unwrap(), 3);
        file.promote(3).unwrap();
    });
    assert_eq!(keys.verify(ADD, &signature), Ok(1), "a retired key verifies");
    keys.change(|file| file.destroy(1).unwrap());
    assert_eq!(keys.verify(ADD, &signature), Err(Refused::DestroyedKey { key: 1 }));
    assert!(!keys.ring.take_lack());
}

/// The code is the one of the page, and not that of a record of events with the same bytes.
#[test]
fn the_code_is_what_the_page_says_and_no_code_of_a_record() {
    let keys = Keys::new();
    let head = Head { bonus_type: "cash", attempt: 0, failures: 0, not_before_ms: 0, count: 1 };
    let bytes = record::build(head, [b"event".as_slice()]);
    let signed = keys.signer("gateway").sign_record(&bytes, QueueTag::of("timers")).unwrap();
    let parts = record::signed_parts(&signed).unwrap();
    let of_record = parts.signature.unwrap();
    let of_add = keys.signer("gateway").sign_add(&bytes).unwrap();
    assert_ne!(of_record[of_record.len() - 16..], of_add[4..]);

    let secret = [7_u8; 32];
    let path = keys.folder.path().join("vector.toml");
    let body = "\n[[key]]\nid = 9\nsender = \"gateway\"\nmay_copy = false\nstate = \"primary\"\n\
                has_signed = true\ncreated_ms = 1\nsecret = \"BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=\"\n";
    let title = "# Windfall signing keys. They are secret: chmod 600, and change the file with \
                 `windfall signing` alone.\n";
    windfall_key_file::write_new(&path, &windfall_key_file::text::seal(title, body)).unwrap();
    let ring = LiveRing::new(Ring::load(&path).unwrap());
    let of_adds = blake3::derive_key("windfall signed add of a timer v1", &secret);
    let code = blake3::keyed_hash(&of_adds, &[&[0, 0, 0, 9], ADD].concat());
    let expected = [&[0, 0, 0, 9], &code.as_bytes()[..16]].concat();
    assert_eq!(Signer::new(&ring, "gateway", "acme").unwrap().sign_add(ADD).unwrap()[..], expected);
}
