//! The spill log: durable, bounded, replayed, and no worse for a torn end.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;
use windfall_consumer::spill_log::{SpillError, SpillLog, SpillOpenError, SpillStats, inspect};
use windfall_consumer::{RequeueOutcome, RequeueRecord};

fn record(n: u32, payload_bytes: usize) -> RequeueRecord {
    RequeueRecord {
        bonus_type: "cash".into(),
        activity: "spring".into(),
        scene: "rain".into(),
        first_user_id: -1,
        key: format!("order-{n}1").into_bytes(),
        payload: vec![b'x'; payload_bytes],
        events: n,
    }
}

fn taken(spill_log: &SpillLog) -> Vec<RequeueRecord> {
    spill_log.take(100).unwrap().into_iter().map(|(_, record)| record).collect()
}

fn log(dir: &Path) -> std::path::PathBuf {
    dir.join("salvage.log")
}

#[test]
fn what_was_appended_is_there_for_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let records: Vec<_> = (1..4).map(|n| record(n, 100)).collect();
    SpillLog::open(dir.path(), 1 << 20).unwrap().append(&records).unwrap();
    let spill_log = SpillLog::open(dir.path(), 1 << 20).unwrap();
    assert_eq!(spill_log.pending(), 3);
    assert_eq!(taken(&spill_log), records);
    assert!(taken(&spill_log).is_empty(), "an entry is taken by one replay at a time");
}

#[test]
fn the_file_is_cut_when_all_is_stored_and_refused_ones_wait_again() {
    let dir = tempfile::tempdir().unwrap();
    let spill_log = SpillLog::open(dir.path(), 1 << 20).unwrap();
    spill_log.append(&[record(1, 10), record(2, 10)]).unwrap();
    let ids: Vec<_> = spill_log.take(10).unwrap().into_iter().map(|(id, _)| id).collect();
    spill_log.settle(ids[0], RequeueOutcome::Stored).unwrap();
    spill_log.settle(ids[1], RequeueOutcome::Refused).unwrap();
    assert_eq!(spill_log.pending(), 1);
    let (id, again) = spill_log.take(10).unwrap().pop().unwrap();
    assert_eq!(again, record(2, 10));
    spill_log.settle(id, RequeueOutcome::Stored).unwrap();
    assert_eq!(std::fs::metadata(log(dir.path())).unwrap().len(), 8);
    drop(spill_log);
    assert_eq!(SpillLog::open(dir.path(), 1 << 20).unwrap().pending(), 0);
}

#[test]
fn a_full_file_refuses_all_or_nothing_and_is_rewritten_when_half_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let spill_log = SpillLog::open(dir.path(), 10_000).unwrap();
    for n in 0..9 {
        spill_log.append(&[record(n, 1_000)]).unwrap();
    }
    let two = [record(9, 500), record(10, 500)];
    assert!(matches!(spill_log.append(&two), Err(SpillError::Full { max: 10_000, .. })));
    assert_eq!(spill_log.pending(), 9);
    for (id, record) in spill_log.take(9).unwrap() {
        // The first stays, so that the file cannot just be cut.
        let stored = if record.events == 0 { RequeueOutcome::Refused } else { RequeueOutcome::Stored };
        spill_log.settle(id, stored).unwrap();
    }
    spill_log.append(&two).unwrap();
    drop(spill_log);
    let spill_log = SpillLog::open(dir.path(), 10_000).unwrap();
    assert_eq!(taken(&spill_log), [record(0, 1_000), record(9, 500), record(10, 500)]);
}

#[test]
fn wherever_a_write_was_cut_whole_entries_survive() {
    let dir = tempfile::tempdir().unwrap();
    SpillLog::open(dir.path(), 1 << 20).unwrap().append(&[record(1, 20), record(2, 20)]).unwrap();
    let whole = std::fs::read(log(dir.path())).unwrap();
    let first_ends = 8 + (whole.len() - 8) / 2;
    for cut in (0..whole.len()).filter(|cut| cut % 5 == 0 || cut.abs_diff(first_ends) < 2) {
        std::fs::write(log(dir.path()), &whole[..cut]).unwrap();
        let spill_log = SpillLog::open(dir.path(), 1 << 20).unwrap();
        assert_eq!(spill_log.pending(), usize::from(cut >= first_ends), "cut at {cut}");
        spill_log.append(&[record(3, 5)]).unwrap();
        drop(spill_log);
        let spill_log = SpillLog::open(dir.path(), 1 << 20).unwrap();
        assert_eq!(taken(&spill_log).last(), Some(&record(3, 5)), "cut at {cut}");
    }
}

#[test]
fn a_flipped_bit_is_never_replayed_and_the_bytes_are_kept_for_a_person() {
    let dir = tempfile::tempdir().unwrap();
    SpillLog::open(dir.path(), 1 << 20).unwrap().append(&[record(1, 20), record(2, 20)]).unwrap();
    let mut bytes = std::fs::read(log(dir.path())).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(log(dir.path()), &bytes).unwrap();
    let spill_log = SpillLog::open(dir.path(), 1 << 20).unwrap();
    assert_eq!(taken(&spill_log), [record(1, 20)]);
    let kept = std::fs::read(dir.path().join("salvage.damaged")).unwrap();
    assert_eq!(kept, bytes[8 + (bytes.len() - 8) / 2..]);
}

#[test]
fn a_directory_in_use_and_a_foreign_file_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let open = SpillLog::open(dir.path(), 1 << 20).unwrap();
    assert!(matches!(SpillLog::open(dir.path(), 1 << 20), Err(SpillOpenError::InUse(_))));
    drop(open);
    std::fs::write(log(dir.path()), b"WFSALV99 of a newer version").unwrap();
    assert!(matches!(SpillLog::open(dir.path(), 1 << 20), Err(SpillOpenError::Unknown(_))));
}

#[test]
fn what_a_second_damage_cuts_off_does_not_replace_what_the_first_did() {
    let dir = tempfile::tempdir().unwrap();
    let mut cut = Vec::new();
    for end in [b"first".as_slice(), b"second"] {
        SpillLog::open(dir.path(), 1 << 20).unwrap().append(&[record(1, 100)]).unwrap();
        let mut bytes = std::fs::read(log(dir.path())).unwrap();
        bytes.extend_from_slice(end);
        std::fs::write(log(dir.path()), bytes).unwrap();
        SpillLog::open(dir.path(), 1 << 20).unwrap();
        cut.extend_from_slice(end);
    }
    assert_eq!(std::fs::read(dir.path().join("salvage.damaged")).unwrap(), cut);
}

/// The file as it is with these frames, each of them damaged by a change of the byte at this place in it.
fn with_damage(dir: &Path, records: &[RequeueRecord], damage: &[(usize, usize)]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for record in records {
        let one = tempfile::tempdir().unwrap();
        SpillLog::open(one.path(), 1 << 20).unwrap().append(std::slice::from_ref(record)).unwrap();
        frames.push(std::fs::read(log(one.path())).unwrap()[8..].to_vec());
    }
    for (frame, place) in damage {
        frames[*frame][*place] ^= 0x40;
    }
    let mut bytes = b"WFSALV01".to_vec();
    frames.iter().for_each(|frame| bytes.extend_from_slice(frame));
    std::fs::write(log(dir), bytes).unwrap();
    frames
}

#[test]
fn a_damaged_frame_costs_that_frame_alone_wherever_the_damage_is() {
    let records: Vec<_> = (1..6).map(|n| record(n, 30)).collect();
    let size = with_damage(tempfile::tempdir().unwrap().path(), &records, &[])[1].len();
    for place in 0..size {
        let dir = tempfile::tempdir().unwrap();
        let frames = with_damage(dir.path(), &records, &[(1, place), (3, size - 1 - place)]);
        let looked = inspect(dir.path()).unwrap();
        assert_eq!((looked.records.len(), looked.damaged_frames), (3, 2), "byte {place}");
        assert!(!looked.is_in_use);
        let spill_log = SpillLog::open(dir.path(), 1 << 20).unwrap();
        assert_eq!(spill_log.stats(), SpillStats { pending: 3, damaged: 2 }, "byte {place}");
        assert!(inspect(dir.path()).unwrap().is_in_use);
        let whole = [records[0].clone(), records[2].clone(), records[4].clone()];
        assert_eq!(taken(&spill_log), whole, "byte {place}");
        spill_log.append(&[record(7, 5)]).unwrap();
        let kept = std::fs::read(dir.path().join("salvage.damaged")).unwrap();
        assert_eq!(kept, [&frames[1][..], &frames[3]].concat(), "byte {place}");
        drop(spill_log);
        let spill_log = SpillLog::open(dir.path(), 1 << 20).unwrap();
        assert_eq!(spill_log.stats(), SpillStats { pending: 4, damaged: 0 }, "the damage is told once");
    }
}

#[test]
fn a_frame_that_is_damaged_while_the_file_is_open_does_not_stop_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let spill_log = SpillLog::open(dir.path(), 1 << 20).unwrap();
    let records: Vec<_> = (1..4).map(|n| record(n, 30)).collect();
    spill_log.append(&records).unwrap();
    let mut bytes = std::fs::read(log(dir.path())).unwrap();
    bytes[8 + 20] ^= 1;
    std::fs::write(log(dir.path()), &bytes).unwrap();
    assert_eq!(taken(&spill_log), records[1..]);
    assert_eq!(spill_log.stats(), SpillStats { pending: 2, damaged: 1 });
}

#[test]
fn what_is_stored_leaves_the_file_when_it_is_asked_to() {
    let dir = tempfile::tempdir().unwrap();
    let spill_log = SpillLog::open(dir.path(), 1 << 20).unwrap();
    spill_log.append(&[record(1, 10), record(2, 10), record(3, 10)]).unwrap();
    for (id, record) in spill_log.take(10).unwrap() {
        let is_stored = record.events == 2;
        let outcome = if is_stored { RequeueOutcome::Stored } else { RequeueOutcome::Refused };
        spill_log.settle(id, outcome).unwrap();
    }
    spill_log.forget_stored().unwrap();
    assert_eq!(inspect(dir.path()).unwrap().records, [record(1, 10), record(3, 10)]);
    assert_eq!(taken(&spill_log), [record(1, 10), record(3, 10)]);
}
