//! What a signature covers: every byte of a record, its tenant, its queue and its key.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::path::PathBuf;
use windfall_proto::record::{self, Head};
use windfall_signing::{
    KeyFile, LiveRing, QueueTag, Refused, Ring, SIGNATURE_BYTES, Signer, UNSIGNED_ORIGIN, Verified, Verifier,
};

const TENANT: &str = "acme";

/// A key file with keys 1 (`gateway`), 2 (`mall`) and 3 (`consumer`, which may copy), all of them primary.
struct Keys {
    _folder: tempfile::TempDir,
    path: PathBuf,
    ring: LiveRing,
}

impl Keys {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signing.toml");
        let mut file = KeyFile::create(&path, "gateway", false, 1).unwrap();
        assert_eq!(file.add("mall", false, 2).unwrap(), 2);
        assert_eq!(file.add("consumer", true, 3).unwrap(), 3);
        [2, 3].into_iter().for_each(|id| file.promote(id).unwrap());
        let ring = LiveRing::new(Ring::load(&path).unwrap());
        Self { _folder: folder, path, ring }
    }

    fn change(&self, change: impl FnOnce(&mut KeyFile)) {
        change(&mut KeyFile::open(&self.path).unwrap());
        self.ring.replace(Ring::load(&self.path).unwrap(), None).unwrap();
    }

    fn sign(&self, sender: &str, record: &[u8]) -> Vec<u8> {
        Signer::new(&self.ring, sender, TENANT).unwrap().sign_record(record, cash()).unwrap()
    }

    fn verify(&self, record: &[u8]) -> Result<Verified, Refused> {
        Verifier::new(&self.ring, TENANT).verify(record, |queue| queue == cash())
    }
}

fn cash() -> QueueTag {
    QueueTag::of("cash")
}

fn head(count: u32) -> Head<'static> {
    Head { bonus_type: "cash", attempt: 0, failures: 0, not_before_ms: 1_800_000_000_000, count }
}

fn unsigned() -> Vec<u8> {
    record::build(head(2), [b"one event".as_slice(), b"another event"])
}

fn copy(origin: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    Head { attempt: 1, ..head(1) }.encode(&mut bytes);
    record::put_origin(&mut bytes, origin);
    record::push_event(&mut bytes, b"one event");
    bytes
}

/// The vector of docs/signed-records.md, which a program in another language made, put together from BLAKE3 as that page
/// says.
#[test]
fn the_signature_is_what_the_page_says() {
    let secret = [7_u8; 32];
    let of_events = blake3::derive_key("windfall signed record v1: events", &secret);
    let of_record = blake3::derive_key("windfall signed record v1: record", &secret);
    let record = unsigned();
    let parts = record::signed_parts(&record).unwrap();
    let tag = &blake3::derive_key("windfall signed record v1: queue", b"cash")[..8];
    let prefix = [&[1, 0, 0, 0, 9], tag].concat();
    let covered = [
        &prefix,
        &4_u32.to_be_bytes()[..],
        b"acme",
        &u32::try_from(parts.head.len()).unwrap().to_be_bytes(),
        parts.head,
        blake3::keyed_hash(&of_events, parts.events).as_bytes(),
    ]
    .concat();
    let code = blake3::keyed_hash(&of_record, &covered);
    let signature = [&prefix, &code.as_bytes()[..16]].concat();
    assert_eq!(signature.len(), SIGNATURE_BYTES);
    assert_eq!(hex(&record), VECTOR_RECORD);
    assert_eq!(hex(&signature), VECTOR_SIGNATURE);

    // A ring with that secret verifies it.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("signing.toml");
    let body = "\n[[key]]\nid = 9\nsender = \"gateway\"\nmay_copy = false\nstate = \"primary\"\n\
                has_signed = true\ncreated_ms = 1\nsecret = \"BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=\"\n";
    let title = "# Windfall signing keys. They are secret: chmod 600, and change the file with \
                 `windfall signing` alone.\n";
    windfall_key_file::write_new(&path, &windfall_key_file::text::seal(title, body)).unwrap();
    let ring = LiveRing::new(Ring::load(&path).unwrap());
    let signed = Signer::new(&ring, "gateway", "acme").unwrap().sign_record(&record, cash()).unwrap();
    assert_eq!(record::signed_parts(&signed).unwrap().signature, Some(&signature[..]));
    assert_eq!(Verifier::new(&ring, "acme").verify(&signed, |_| true), Ok(Verified { key: 9, origin: 9 }));
}

const VECTOR_RECORD: &str =
    "0a04636173682080a0f1c2b134280232096f6e65206576656e74320d616e6f74686572206576656e74";
const VECTOR_SIGNATURE: &str = "010000000953e498b6362f1f6ec92796ff3e9e7673d0f4bb07187342ee";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_signed_record_is_verified_and_read_as_before() {
    let keys = Keys::new();
    let signed = keys.sign("gateway", &unsigned());
    assert_eq!(keys.verify(&signed), Ok(Verified { key: 1, origin: 1 }));
    let (read, events) = record::split(&signed).unwrap();
    assert_eq!((read, events.filter(Result::is_ok).count()), (head(2), 2));
    // Signed again for the same queue, it is the same; the old signature leaves nothing behind.
    assert_eq!(keys.sign("gateway", &signed), signed);
}

#[test]
fn no_bit_of_it_can_be_flipped() {
    let keys = Keys::new();
    let signed = keys.sign("gateway", &unsigned());
    for bit in 0..signed.len() * 8 {
        let mut flipped = signed.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(keys.verify(&flipped).is_err(), "bit {bit} of {signed:02x?}");
    }
}

#[test]
fn nothing_can_be_cut_off_or_added() {
    let keys = Keys::new();
    let signed = keys.sign("gateway", &unsigned());
    for len in 0..signed.len() {
        assert!(keys.verify(&signed[..len]).is_err(), "cut to {len}");
    }
    let mut longer = signed.clone();
    record::push_event(&mut longer, b"one more event");
    assert_eq!(keys.verify(&longer), Err(Refused::Forged { key: 1 }));
    for at in 0..=signed.len() {
        let mut with_a_byte = signed.clone();
        with_a_byte.insert(at, 0);
        assert!(keys.verify(&with_a_byte).is_err(), "a byte at {at}");
    }
}

/// The head's fields in another order, or an event in another place, are other bytes, whatever a decoder makes of them.
#[test]
fn no_field_can_be_moved() {
    let keys = Keys::new();
    let signed = keys.sign("gateway", &unsigned());
    let parts = record::signed_parts(&signed).unwrap();
    let signature = parts.signature.unwrap();
    let put = |head: &[u8], events: &[u8]| {
        let mut out = head.to_vec();
        record::put_signature(&mut out, signature);
        out.extend_from_slice(events);
        out
    };
    assert_eq!(put(parts.head, parts.events), signed);
    // The type's field goes behind the others.
    let type_bytes = 2 + "cash".len();
    let turned = [&parts.head[type_bytes..], &parts.head[..type_bytes]].concat();
    assert_eq!(record::split(&put(&turned, parts.events)).unwrap().0, head(2), "it reads as before");
    assert_eq!(keys.verify(&put(&turned, parts.events)), Err(Refused::Forged { key: 1 }));
    // The events change places.
    let first = record::framed_len("one event".len());
    let swapped = [&parts.events[first..], &parts.events[..first]].concat();
    assert_eq!(keys.verify(&put(parts.head, &swapped)), Err(Refused::Forged { key: 1 }));
    // A field of the head is said twice, and the last one counts.
    let again = [parts.head, &[0x10, 0x05]].concat();
    assert_eq!(record::split(&put(&again, parts.events)).unwrap().0.attempt, 5);
    assert_eq!(keys.verify(&put(&again, parts.events)), Err(Refused::Forged { key: 1 }));
    // The signature goes to the front, where it would not cover the head.
    let mut front = Vec::new();
    record::put_signature(&mut front, signature);
    front.extend_from_slice(parts.head);
    front.extend_from_slice(parts.events);
    assert!(matches!(keys.verify(&front), Err(Refused::Malformed(_))));
    // It is taken away.
    assert_eq!(keys.verify(&[parts.head, parts.events].concat()), Err(Refused::Unsigned));
}

#[test]
fn it_counts_for_its_queue_and_its_tenant_alone() {
    let keys = Keys::new();
    let signed = keys.sign("gateway", &unsigned());
    let gifts = Verifier::new(&keys.ring, TENANT).verify(&signed, |queue| queue == QueueTag::of("gifts"));
    assert_eq!(gifts, Err(Refused::WrongQueue { key: 1 }));
    for tenant in ["", "acm", "acme2", "other"] {
        let other = Verifier::new(&keys.ring, tenant).verify(&signed, |_| true);
        assert_eq!(other, Err(Refused::Forged { key: 1 }), "{tenant}");
    }
    let both = Verifier::of_tenants(&keys.ring, ["other", TENANT]);
    assert_eq!(both.verify(&signed, |_| true), Ok(Verified { key: 1, origin: 1 }));
    let none = Verifier::of_tenants(&keys.ring, []);
    assert_eq!(none.verify(&signed, |_| true), Err(Refused::Forged { key: 1 }));
    // The tag of another queue, put into the signature.
    let mut moved = signed.clone();
    let at = signed.windows(8).position(|bytes| *bytes == cash().0).unwrap();
    moved[at..at + 8].copy_from_slice(&QueueTag::of("gifts").0);
    let moved = Verifier::new(&keys.ring, TENANT).verify(&moved, |_| true);
    assert_eq!(moved, Err(Refused::Forged { key: 1 }));
}

#[test]
fn one_sender_cannot_pass_for_another() {
    let keys = Keys::new();
    let mut taken = keys.sign("mall", &unsigned());
    let number = taken.windows(6).position(|bytes| *bytes == [29, 1, 0, 0, 0, 2]).unwrap() + 5;
    for (key, refused) in [(1, Refused::Forged { key: 1 }), (77, Refused::UnknownKey { key: 77 })] {
        taken[number] = key;
        assert_eq!(keys.verify(&taken), Err(refused));
    }
    // A ring with the sender's keys alone cannot sign as another one.
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("mall.toml");
    KeyFile::open(&keys.path).unwrap().export("mall", &copy).unwrap();
    let own = LiveRing::new(Ring::load(&copy).unwrap());
    assert!(Signer::new(&own, "gateway", TENANT).is_err());
    let signed = Signer::new(&own, "mall", TENANT).unwrap().sign_record(&unsigned(), cash()).unwrap();
    assert_eq!(keys.verify(&signed), Ok(Verified { key: 2, origin: 2 }));
}

#[test]
fn a_signature_of_a_newer_version_says_so() {
    let keys = Keys::new();
    let parts = unsigned();
    let parts = record::signed_parts(&parts).unwrap();
    for (signature, version) in [(vec![2; 40], 2), (vec![1; 28], 1), (vec![1; 30], 1), (vec![], 0)] {
        let mut record = parts.head.to_vec();
        record::put_signature(&mut record, &signature);
        record.extend_from_slice(parts.events);
        assert_eq!(keys.verify(&record), Err(Refused::Version { version }), "{signature:?}");
    }
}

#[test]
fn a_retired_key_verifies_until_it_is_destroyed() {
    let keys = Keys::new();
    let old = keys.sign("gateway", &unsigned());
    keys.change(|file| assert_eq!(file.add("gateway", false, 4).unwrap(), 4));
    assert_eq!(Signer::new(&keys.ring, "gateway", TENANT).unwrap().key(), Some(1));
    keys.change(|file| file.promote(4).unwrap());
    let new = keys.sign("gateway", &unsigned());
    assert_eq!(keys.verify(&new), Ok(Verified { key: 4, origin: 4 }));
    assert_eq!(keys.verify(&old), Ok(Verified { key: 1, origin: 1 }));
    // What waited is signed anew before it is sent.
    assert_eq!(keys.verify(&keys.sign("gateway", &old)), Ok(Verified { key: 4, origin: 4 }));
    keys.change(|file| file.destroy(1).unwrap());
    assert_eq!(keys.verify(&old), Err(Refused::DestroyedKey { key: 1 }));
    assert_eq!(keys.verify(&new), Ok(Verified { key: 4, origin: 4 }));
}

#[test]
fn a_copy_names_its_origin_and_only_some_keys_may_sign_one() {
    let keys = Keys::new();
    let of_gateway = keys.sign("consumer", &copy(1));
    assert_eq!(keys.verify(&of_gateway), Ok(Verified { key: 3, origin: 1 }));
    assert_eq!(keys.verify(&keys.sign("consumer", &copy(0))), Ok(Verified { key: 3, origin: 3 }));
    assert_eq!(keys.verify(&keys.sign("mall", &copy(2))), Ok(Verified { key: 2, origin: 2 }));
    assert_eq!(keys.verify(&keys.sign("mall", &copy(1))), Err(Refused::NoCopier { key: 2, origin: 1 }));
    assert_eq!(keys.verify(&keys.sign("consumer", &copy(50))), Err(Refused::UnknownOrigin { origin: 50 }));
    // A copy of what nobody had signed is no better than that, but for those who accept it by name.
    let of_nobody = keys.sign("consumer", &copy(UNSIGNED_ORIGIN));
    assert_eq!(keys.verify(&of_nobody), Err(Refused::UnsignedOrigin { key: 3 }));
    let accepting = Verifier::new(&keys.ring, "acme").with_unsigned_origins();
    let taken = accepting.verify(&of_nobody, |_| true);
    assert_eq!(taken, Ok(Verified { key: 3, origin: UNSIGNED_ORIGIN }));
    let refused = accepting.verify(&keys.sign("mall", &copy(UNSIGNED_ORIGIN)), |_| true);
    assert_eq!(refused, Err(Refused::NoCopier { key: 2, origin: UNSIGNED_ORIGIN }));
    // A key that leaked is destroyed, and copies of what it signed are refused, too.
    keys.change(|file| file.retire(1).unwrap());
    assert_eq!(keys.verify(&of_gateway), Ok(Verified { key: 3, origin: 1 }));
    keys.change(|file| file.destroy(1).unwrap());
    assert_eq!(keys.verify(&of_gateway), Err(Refused::OriginGone { origin: 1 }));
}

#[test]
fn a_ring_without_a_key_to_sign_with_is_not_taken_over() {
    let keys = Keys::new();
    let signer = Signer::new(&keys.ring, "gateway", TENANT).unwrap();
    let mut file = KeyFile::open(&keys.path).unwrap();
    file.retire(1).unwrap();
    let without = Ring::load(&keys.path).unwrap();
    assert!(keys.ring.replace(without.clone(), Some("gateway")).is_err());
    assert_eq!(signer.key(), Some(1), "the ring so far stays");
    // A process that only verifies takes it over.
    keys.ring.replace(without, None).unwrap();
    assert_eq!(signer.key(), None);
    assert!(signer.sign_record(&unsigned(), cash()).is_err());
}

/// A sender has a newer ring: whoever follows the file is told to look, once for all records.
#[test]
fn a_key_that_the_ring_lacks_is_noted() {
    let keys = Keys::new();
    let verifier = Verifier::new(&keys.ring, TENANT);
    assert!(!keys.ring.take_lack());
    let newer = {
        let mut file = KeyFile::open(&keys.path).unwrap();
        let id = file.add("gateway", false, 9).unwrap();
        file.promote(id).unwrap();
        let ring = LiveRing::new(Ring::load(&keys.path).unwrap());
        Signer::new(&ring, "gateway", TENANT).unwrap().sign_record(&unsigned(), cash()).unwrap()
    };
    for refused in [&newer, &keys.sign("consumer", &copy(4))] {
        for _ in 0..3 {
            assert_eq!(verifier.verify(refused, |_| true).unwrap_err().lacks(), Some(4));
        }
        assert!(keys.ring.take_lack() && !keys.ring.take_lack());
    }
    for other in [&unsigned(), &keys.sign("mall", &copy(1)), &keys.sign("mall", &unsigned())] {
        assert!(verifier.verify(other, |_| false).is_err_and(|refused| refused.lacks().is_none()));
    }
    assert!(!keys.ring.take_lack(), "another ring would make none of them good");
    let before = verifier.ring_changes();
    keys.ring.replace(Ring::load(&keys.path).unwrap(), None).unwrap();
    assert_eq!((verifier.ring_changes(), verifier.verify(&newer, |_| true).unwrap().key), (before + 1, 4));
}

proptest! {
    #[test]
    fn what_is_signed_is_verified(
        events in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3_000), 1..40),
        tenant in "[a-z]{1,20}",
        queue in "[a-z]{1,20}",
        attempt: u32,
        origin in prop_oneof![Just(0_u32), Just(1)],
    ) {
        let ring = LiveRing::new(Ring::ephemeral("gateway").unwrap());
        let count = u32::try_from(events.len()).unwrap();
        let mut bytes = Vec::new();
        Head { attempt, ..head(count) }.encode(&mut bytes);
        record::put_origin(&mut bytes, origin);
        events.iter().for_each(|event| record::push_event(&mut bytes, event));
        let queue = QueueTag::of(&queue);
        let signed = Signer::new(&ring, "gateway", &tenant).unwrap().sign_record(&bytes, queue).unwrap();
        let verified = Verifier::new(&ring, &tenant).verify(&signed, |own| own == queue);
        prop_assert_eq!(verified, Ok(Verified { key: 1, origin: 1 }));
        let (_, read) = record::split(&signed).unwrap();
        let read: Vec<Vec<u8>> = read.map(|range| signed[range.unwrap()].to_vec()).collect();
        prop_assert_eq!(read, events);
    }

    #[test]
    fn any_bytes_are_refused(bytes: Vec<u8>) {
        let ring = LiveRing::new(Ring::ephemeral("gateway").unwrap());
        prop_assert!(Verifier::new(&ring, TENANT).verify(&bytes, |_| true).is_err());
    }

    #[test]
    fn any_change_of_a_few_bytes_is_refused(at in 0_usize..200, to: [u8; 3]) {
        let ring = LiveRing::new(Ring::ephemeral("gateway").unwrap());
        let signer = Signer::new(&ring, "gateway", TENANT).unwrap();
        let signed = signer.sign_record(&unsigned(), cash()).unwrap();
        let mut changed = signed.clone();
        let at = at % (changed.len() - to.len());
        changed[at..at + to.len()].copy_from_slice(&to);
        if changed != signed {
            prop_assert!(Verifier::new(&ring, TENANT).verify(&changed, |_| true).is_err());
        }
    }
}
