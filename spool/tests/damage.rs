//! A file that somebody or something has changed: nothing made up, nothing before the damage lost, no panic.

#![allow(clippy::unwrap_used, reason = "a test, its helpers included")]

mod files;

use files::{instances, left, only_instance, packs, small};
use proptest::prelude::*;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use windfall_spool::Spool;

const SLOT_BYTES: u64 = 4096;
const EVENTS: [&[u8]; 4] = [b"first event", b"second", b"the third one", b"4"];

/// A spool with four events in its first slot and nothing else.
fn one_pack(root: &Path) -> (PathBuf, File) {
    let (spool, _) = Spool::open(root, &small()).unwrap();
    let mut pack = spool.claim(b"label").unwrap();
    EVENTS.iter().for_each(|event| pack.append(event).unwrap());
    drop((pack, spool));
    let path = only_instance(root).join("spool");
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    (path, file)
}

#[test]
fn any_byte_of_a_slot_flipped_costs_at_most_what_it_touches() {
    let root = tempfile::tempdir().unwrap();
    let (_, file) = one_pack(root.path());
    let mut touched = 0;
    for at in SLOT_BYTES..2 * SLOT_BYTES {
        for mask in [1 << (at % 8), 0xFF] {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ mask], at).unwrap();
            let (spool, recovered) = Spool::open(root.path(), &small()).unwrap();
            let [pack] = &recovered.packs[..] else { panic!("byte {at}: {recovered:?}") };
            assert_eq!(pack.label(), b"label", "byte {at}");
            // What is there is a subsequence of the events.
            let mut rest = pack.events();
            let mut missing = Vec::new();
            for (index, event) in EVENTS.iter().enumerate() {
                match rest.strip_prefix(*event) {
                    Some(behind) => rest = behind,
                    None => missing.push(index),
                }
            }
            assert!(rest.is_empty(), "byte {at} made an event up: {recovered:?}");
            assert_eq!(pack.count() as usize + missing.len(), EVENTS.len());
            // At most the damaged entry and the one that begins where it ends.
            assert!(
                missing.len() <= 2 && missing.last().is_none_or(|last| last - missing[0] < 2),
                "byte {at}"
            );
            assert!(recovered.torn_entries >= missing.len() as u64, "byte {at}");
            touched += usize::from(!missing.is_empty());
            drop((spool, recovered));
            file.write_all_at(&byte, at).unwrap();
        }
    }
    let bytes_that_matter = EVENTS.concat().len() + EVENTS.len() * 8;
    assert_eq!(touched, 2 * bytes_that_matter, "those of events and of their entry words");
}

#[test]
fn any_byte_of_the_header_flipped_is_healed_by_its_copy() {
    let root = tempfile::tempdir().unwrap();
    let (_, file) = one_pack(root.path());
    for at in 0..64 {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x55], at).unwrap();
        assert_eq!(left(root.path(), &small()), [(b"label".to_vec(), EVENTS.concat())], "byte {at}");
        file.write_all_at(&byte, at).unwrap();
    }
}

#[test]
fn a_file_without_any_header_is_set_aside_and_reported() {
    type Damage = fn(&File);
    let wipe: Damage = |file| {
        let len = file.metadata().unwrap().len();
        file.write_all_at(&[0; 64], 0).unwrap();
        file.write_all_at(&[0; 64], len - 4096).unwrap();
    };
    let cut: Damage = |file| file.set_len(10_000).unwrap();
    let empty: Damage = |file| file.set_len(0).unwrap();
    for damage in [wipe, cut, empty] {
        let root = tempfile::tempdir().unwrap();
        let (path, file) = one_pack(root.path());
        damage(&file);
        let (_spool, recovered) = Spool::open(root.path(), &small()).unwrap();
        assert!(recovered.packs.is_empty());
        let [report] = &recovered.unrecovered[..] else { panic!("{recovered:?}") };
        assert!(report.path.to_str().unwrap().ends_with(".damaged"), "{report:?}");
        assert!(report.path.join("spool").exists() && !path.exists());
        // It stays there, and does not come up again.
        let (_other, recovered) = Spool::open(root.path(), &small()).unwrap();
        assert!(recovered.unrecovered.is_empty());
        assert!(report.path.exists());
    }
}

/// It used to keep every process of the older release from starting, though its events need nothing but the newer one.
#[test]
fn a_file_of_a_newer_version_is_left_aside_and_named_and_the_others_go_on() {
    let root = tempfile::tempdir().unwrap();
    let (path, file) = one_pack(root.path());
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0).unwrap();
    header[8] = 2;
    let check = crc32c::crc32c_append(crc32c::crc32c(&header[..12]), &header[16..]);
    header[12..16].copy_from_slice(&check.to_le_bytes());
    file.write_all_at(&header, 0).unwrap();
    let before = fs::read(&path).unwrap();
    for _ in 0..2 {
        let (spool, recovered) = Spool::open(root.path(), &small()).unwrap();
        assert!(recovered.packs.is_empty());
        let [report] = &recovered.unrecovered[..] else { panic!("{recovered:?}") };
        assert!(report.path == path && report.reason.contains("format 2"), "{report:?}");
        let mut pack = spool.claim(b"label").unwrap();
        pack.append(b"event").unwrap();
        pack.seal(b"").free();
        assert_eq!(fs::read(&path).unwrap(), before);
        // Nobody holds its lock, so that the newer release can take it over while this one runs.
        let lock = File::open(path.with_file_name("lock")).unwrap();
        lock.try_lock().unwrap();
    }
    assert_eq!(instances(root.path()).len(), 2);
    header[8] = 1;
    let check = crc32c::crc32c_append(crc32c::crc32c(&header[..12]), &header[16..]);
    header[12..16].copy_from_slice(&check.to_le_bytes());
    file.write_all_at(&header, 0).unwrap();
    assert_eq!(left(root.path(), &small()), [(b"label".to_vec(), EVENTS.concat())], "nothing of it was lost");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_damage_anywhere_never_makes_an_event_up(
        damage in prop::collection::vec((0_u64..16 * 1024, prop::collection::vec(any::<u8>(), 1..200)), 1..6),
    ) {
        let root = tempfile::tempdir().unwrap();
        let (_, file) = one_pack(root.path());
        for (at, bytes) in &damage {
            file.write_all_at(bytes, *at).unwrap();
        }
        let (_spool, recovered) = Spool::open(root.path(), &small()).unwrap();
        for (label, events) in packs(&recovered) {
            prop_assert!(label.is_empty() || label == b"label");
            let rest = EVENTS.iter().fold(&events[..], |rest, event| rest.strip_prefix(*event).unwrap_or(rest));
            prop_assert!(rest.is_empty(), "made up: {rest:?}");
        }
    }
}
