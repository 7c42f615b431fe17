//! What the scheduler reads back: entries of slots, dead letters, adds that wait in a queue, and the far tier's rows, log
//! and manifests.

use bytes::Bytes;
use windfall_contract::due::{SlotEntry, TaskId};

/// The hour whose rows are read.
const HOUR: u32 = 500_000;
/// The bytes that a dead letter keeps of what its target said last.
const REASON_MAX_BYTES: usize = 1_000;

/// The first byte says what the others are read as, some of them under a checksum that fits: what is read is written as it
/// was, or, where a number may be written in more than one way, read again as the same.
pub fn record(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    let bytes = Bytes::copy_from_slice(rest);
    match kind % 8 {
        0 => {
            if let Ok(entry) = SlotEntry::decode(&bytes) {
                assert_eq!(entry.encode(), bytes);
            }
        }
        1 => dead_letter(&bytes),
        2 => queued(&bytes),
        3 => queued(&sealed(&bytes)),
        4 => {
            let Some(read) = windfall_far::fuzzing::rows(bytes.clone(), HOUR) else { return };
            assert!(read.0.len() <= bytes.len(), "{bytes:x?}");
            assert_eq!(windfall_far::fuzzing::rows(read.0.clone(), HOUR), Some(read));
        }
        5 => {
            let Some(read) = windfall_far::fuzzing::entries(bytes) else { return };
            assert_eq!(windfall_far::fuzzing::entries(read.0.clone()), Some(read));
        }
        6 => manifest(&bytes),
        _ => manifest(&sealed(&bytes).repeat(2)),
    }
}

/// With the CRC-32C behind it.
fn sealed(bytes: &Bytes) -> Bytes {
    Bytes::from([&bytes[..], &crc32c::crc32c(bytes).to_be_bytes()].concat())
}

fn dead_letter(bytes: &Bytes) {
    let Ok(id) = "0012-01c3a2f0-0000002a".parse::<TaskId>() else { return };
    let Some(dead) = windfall_slots::fuzzing::dead_letter(id, bytes.clone()) else { return };
    let written = windfall_slots::fuzzing::dead_letter_bytes(&dead);
    assert!(written == bytes || dead.reason.len() > REASON_MAX_BYTES, "{dead:?}");
    let again = windfall_slots::fuzzing::dead_letter(id, written);
    assert!(again.is_some_and(|again| again.record == dead.record && dead.reason.starts_with(&again.reason)));
}

fn queued(bytes: &Bytes) {
    if let Some(written) = windfall_scheduler::fuzzing::queued_add(bytes) {
        assert_eq!(written, bytes);
    }
}

fn manifest(bytes: &[u8]) {
    if let Some(written) = windfall_far::fuzzing::manifest(bytes) {
        assert_eq!(windfall_far::fuzzing::manifest(&written), Some(written));
    }
}
