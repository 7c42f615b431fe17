//! A pack's life, and what each kind of restart finds.

#![allow(clippy::unwrap_used, reason = "a test, its helpers included")]

mod files;

use files::{instances, left, only_instance, packs, small, snapshot};
use std::fs;
use windfall_spool::{Durability, HEAD_MAX_BYTES, LABEL_MAX_BYTES, NoRoom, Spool, SpoolFull, SpoolOptions};

/// One in a mapped file, which Miri has not, and one in memory.
fn both() -> Vec<(Spool, tempfile::TempDir)> {
    let (mapped, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut both = vec![(Spool::memory(&small()), memory)];
    if !cfg!(miri) {
        let (spool, _) = Spool::open(mapped.path(), &small()).unwrap();
        both.insert(0, (spool, mapped));
    }
    both
}

#[test]
fn head_and_events_are_one_slice() {
    for (spool, _root) in both() {
        let mut pack = spool.claim(b"queue/cash").unwrap();
        assert!(pack.is_empty());
        pack.append(b"one").unwrap();
        pack.append(b"").unwrap();
        pack.append(b"three").unwrap();
        assert_eq!((pack.count(), pack.bytes(), pack.label()), (3, 8, &b"queue/cash"[..]));
        let sealed = pack.seal(b"head:");
        assert_eq!(sealed.payload(), b"head:onethree");
        assert_eq!(sealed.events(), b"onethree");
        assert_eq!((sealed.count(), sealed.label()), (3, &b"queue/cash"[..]));
    }
}

#[test]
fn heads_of_any_length_fit() {
    for (spool, _root) in both() {
        for len in [0, 1, HEAD_MAX_BYTES, HEAD_MAX_BYTES + 1, 1000] {
            let head = vec![b'h'; len];
            let mut pack = spool.claim(b"").unwrap();
            pack.append(b"event").unwrap();
            let sealed = pack.seal(&head);
            assert_eq!(sealed.payload(), [&head[..], b"event"].concat());
            assert_eq!(sealed.events(), b"event");
            sealed.free();
        }
    }
}

#[test]
fn a_sealed_pack_takes_another_head() {
    for (spool, _root) in both() {
        let mut pack = spool.claim(b"").unwrap();
        pack.append(b"one").unwrap();
        pack.append(b"two").unwrap();
        let mut sealed = pack.seal(b"head:");
        // Longer and shorter ones, those for which the room is too small among them.
        for len in [0, 5, HEAD_MAX_BYTES, HEAD_MAX_BYTES + 1, 3, 1000, 1000, 7] {
            let head = vec![b'h'; len];
            sealed = sealed.with_head(&head);
            assert_eq!(sealed.payload(), [&head[..], b"onetwo"].concat(), "a head of {len} bytes");
            assert_eq!((sealed.events(), sealed.count()), (&b"onetwo"[..], 2));
        }
        sealed.free();
    }
}

#[test]
fn no_room_changes_nothing() {
    for (spool, _root) in both() {
        let mut pack = spool.claim(b"by bytes").unwrap();
        assert_eq!(pack.append(&[0; 1025]), Err(NoRoom));
        assert!(pack.is_empty());
        pack.append(&[1; 1000]).unwrap();
        assert_eq!(pack.append(&[2; 25]), Err(NoRoom));
        pack.append(&[3; 24]).unwrap();
        assert_eq!(pack.seal(&[]).events(), [vec![1; 1000], vec![3; 24]].concat());

        let mut pack = spool.claim(b"by events").unwrap();
        for event in [b"a", b"b", b"c", b"d"] {
            pack.append(event).unwrap();
        }
        assert_eq!(pack.append(b"e"), Err(NoRoom));
        assert_eq!(pack.seal(&[]).events(), b"abcd");
    }
}

#[test]
fn a_full_spool_says_so_at_once_and_takes_again_after_a_free() {
    for (spool, _root) in both() {
        let slots = spool.usage().slots;
        let mut sealed: Vec<_> = (0..slots)
            .map(|index| {
                let mut pack = spool.claim(b"").unwrap();
                pack.append(&index.to_le_bytes()).unwrap();
                pack.seal(&[])
            })
            .collect();
        assert_eq!(spool.claim(b"").unwrap_err(), SpoolFull);
        let usage = spool.usage();
        assert_eq!(usage.slots_in_use, slots);
        assert!(usage.bytes_in_use <= usage.bytes && usage.bytes <= 256 << 10);
        sealed.swap_remove(7).free();
        assert_eq!(spool.usage().slots_in_use, slots - 1);
        drop(spool.claim(b"").unwrap());
        drop(spool.claim(b"an empty one dropped gave its slot back").unwrap());
        drop(sealed.pop().unwrap());
        assert_eq!(spool.usage().slots_in_use, slots - 1, "one dropped without free did not");
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no files")]
fn the_next_start_finds_what_was_not_freed_whatever_state_it_was_in() {
    let root = tempfile::tempdir().unwrap();
    let (spool, _) = Spool::open(root.path(), &small()).unwrap();
    let label = [b'l'; LABEL_MAX_BYTES];
    let mut open = spool.claim(&label).unwrap();
    open.append(b"open1").unwrap();
    let mut sealed = spool.claim(b"sealed").unwrap();
    sealed.append(b"a").unwrap();
    sealed.append(b"b").unwrap();
    let sealed = sealed.seal(b"head");
    let mut freed = spool.claim(b"freed").unwrap();
    freed.append(b"gone").unwrap();
    freed.seal(&[]).free();
    let empty = spool.claim(b"empty").unwrap();

    let expected = vec![(label.to_vec(), b"open1".to_vec()), (b"sealed".to_vec(), b"ab".to_vec())];
    let crash = snapshot(root.path());
    assert_eq!(left(crash.path(), &small()), expected);
    assert_eq!(left(crash.path(), &small()), expected, "and again, as nothing was freed");
    drop((open, sealed, empty, spool));
    assert_eq!(left(root.path(), &small()), expected);
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no files")]
fn a_recovered_pack_is_sealed_sent_and_freed_like_any_other() {
    let root = tempfile::tempdir().unwrap();
    let (spool, _) = Spool::open(root.path(), &small()).unwrap();
    for name in [b"first", b"other"] {
        let mut pack = spool.claim(name).unwrap();
        pack.append(name).unwrap();
    }
    drop(spool);
    let (spool, mut recovered) = Spool::open(root.path(), &small()).unwrap();
    assert_eq!((recovered.torn_entries, recovered.adopted_instances), (0, 1));
    assert_eq!(spool.usage().slots_in_use, 2);
    let sealed = recovered.packs.remove(0).seal(b"head:");
    assert_eq!((sealed.payload(), sealed.count()), (&b"head:first"[..], 1));
    sealed.free();
    assert_eq!(spool.usage().slots_in_use, 1);
    // New packs do not touch what is still waiting.
    for _ in 0..spool.usage().slots - 1 {
        spool.claim(b"new").unwrap().append(b"new").unwrap();
    }
    assert_eq!(spool.claim(b"").unwrap_err(), SpoolFull);
    assert_eq!(packs(&recovered), [(b"other".to_vec(), b"other".to_vec())]);
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no files")]
fn a_restart_takes_the_directory_over_so_a_crash_loop_leaves_no_trail() {
    let root = tempfile::tempdir().unwrap();
    let first = {
        let (spool, _) = Spool::open(root.path(), &small()).unwrap();
        spool.claim(b"").unwrap().append(b"kept").unwrap();
        only_instance(root.path())
    };
    for _ in 0..5 {
        assert_eq!(left(root.path(), &small()), [(vec![], b"kept".to_vec())]);
        assert_eq!(only_instance(root.path()), first);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no files")]
fn what_another_geometry_left_is_adopted_and_its_directory_goes_with_the_last_pack() {
    let root = tempfile::tempdir().unwrap();
    let (spool, _) = Spool::open(root.path(), &small()).unwrap();
    let old = only_instance(root.path());
    for event in [b"a", b"b"] {
        spool.claim(b"").unwrap().append(event).unwrap();
    }
    drop(spool);
    let larger = SpoolOptions { slot_bytes: 2 << 10, ..small() };
    let (spool, recovered) = Spool::open(root.path(), &larger).unwrap();
    assert_eq!(instances(root.path()).len(), 2);
    assert_eq!(spool.usage().slots_in_use, 0, "the new file is all free");
    let [a, b] = <[_; 2]>::try_from(recovered.packs).unwrap();
    let a = a.seal(b"h");
    assert_eq!(a.payload(), b"ha");
    a.free();
    assert!(old.exists());
    // Its owner lives, so nobody else adopts it.
    assert!(left(root.path(), &larger).is_empty());
    b.seal(&[]).free();
    assert!(!old.exists());
    drop(spool);
    assert!(left(root.path(), &larger).is_empty());
    assert_eq!(instances(root.path()).len(), 1, "an empty one too many is deleted");
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no files")]
fn a_second_crash_during_recovery_loses_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (spool, _) = Spool::open(root.path(), &small()).unwrap();
    for event in [b"a", b"b", b"c"] {
        spool.claim(b"").unwrap().append(event).unwrap();
    }
    drop(spool);
    let larger = SpoolOptions { slot_bytes: 2 << 10, ..small() };
    let (spool, mut recovered) = Spool::open(root.path(), &larger).unwrap();
    recovered.packs.remove(1).seal(&[]).free();
    let mut again = spool.claim(b"").unwrap();
    again.append(b"new").unwrap();
    let crash = snapshot(root.path());
    let mut found = left(crash.path(), &larger);
    found.sort();
    assert_eq!(found.iter().map(|(_, events)| &events[..]).collect::<Vec<_>>(), [&b"a"[..], b"c", b"new"]);
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no files")]
fn directories_made_or_deleted_halfway_are_cleared_and_strangers_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let husk = |name: &str, files: &[&str]| {
        let path = root.path().join(name);
        fs::create_dir(&path).unwrap();
        for file in files {
            fs::write(path.join(file), b"").unwrap();
        }
        path
    };
    let husks = [
        husk("instance-0000000000000001", &[]),
        husk("instance-0000000000000002", &["lock"]),
        husk("instance-0000000000000003", &["lock", "spool.new"]),
        husk("instance-0000000000000004", &["spool.new"]),
    ];
    let strangers =
        [husk("lost+found", &[]), husk("instance-of-mine", &["lock"]), husk("instance-00000000000000", &[])];
    assert!(left(root.path(), &small()).is_empty());
    assert!(husks.iter().all(|path| !path.exists()));
    assert!(strangers.iter().all(|path| path.exists()));
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no files")]
fn machine_durability_stores_the_same() {
    let root = tempfile::tempdir().unwrap();
    let options = SpoolOptions { durability: Durability::Machine, ..small() };
    let (spool, _) = Spool::open(root.path(), &options).unwrap();
    let mut pack = spool.claim(b"").unwrap();
    for event in [b"a", b"b", b"c"] {
        pack.append(event).unwrap();
    }
    drop((pack, spool));
    assert_eq!(left(root.path(), &options), [(vec![], b"abc".to_vec())]);
}

#[test]
fn packs_of_many_threads_do_not_mix() {
    let (spool, root) = both().remove(0);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let spool = &spool;
            scope.spawn(move || {
                for round in (if cfg!(miri) { 480 } else { 0 })..500_u16 {
                    let mut pack = spool.claim(&[thread]).unwrap();
                    let event = [thread, round.to_le_bytes()[0], round.to_le_bytes()[1]];
                    for _ in 0..4 {
                        pack.append(&event).unwrap();
                    }
                    let sealed = pack.seal(&[thread; 3]);
                    assert_eq!(sealed.payload(), [vec![thread; 3], event.repeat(4)].concat());
                    assert_eq!(sealed.label(), [thread]);
                    if round < 490 {
                        sealed.free();
                    }
                }
            });
        }
    });
    assert_eq!(spool.usage().slots_in_use, 40);
    drop(spool);
    if cfg!(miri) {
        return;
    }
    let found = left(root.path(), &small());
    assert_eq!(found.len(), 40);
    for (label, events) in found {
        assert_eq!(events.len(), 12);
        assert!(events.chunks(3).all(|event| event[0] == label[0] && event == &events[..3]));
    }
}
