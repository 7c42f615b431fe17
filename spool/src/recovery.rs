//! Reads what a slot still holds after its owner is gone. `format.rs` has the argument why this loses nothing.
#![allow(unsafe_code, reason = "the bytes of a mapped file are written and read in place")]

use crate::format::{CLAIM_BYTES, CLAIM_HEAD_BYTES, CLAIMS_AT, Claim, DIRECTORY_AT, ENTRY_BYTES, Entry};
use crate::format::{Generation, State};
use crate::options::Geometry;
use crate::pack::Events;
use crate::region::Region;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The contents of a slot.
pub(crate) enum Contents {
    /// No event for which a caller got Ok.
    Nothing { torn_entries: u64 },
    /// Events.
    Pack { generation: Generation, label: Range<usize>, count: u32, events: Events, torn_entries: u64 },
    /// The slot is perhaps used, but its state and both claim records are damaged.
    Unreadable,
}

/// Reads a slot of a file that nobody else has open.
pub(crate) fn read_slot(region: &Region, geometry: Geometry, slot: u32) -> Contents {
    let at = geometry.slot_at(slot);
    let state = State::decode(u64::from_le(region.word(at).load(Ordering::Acquire)));
    if let State::Free(_) = state {
        return Contents::Nothing { torn_entries: 0 };
    }
    let claims = CLAIMS_AT.map(|claim_at| {
        let start = at + claim_at;
        // SAFETY: the file is locked by us, and no slot of it was handed out yet.
        let bytes = unsafe { region.bytes(start..start + CLAIM_BYTES) };
        Claim::decode(bytes).map(|claim| (claim, start + CLAIM_HEAD_BYTES))
    });
    let claim = claims.into_iter().flatten().next();
    let label = claim.as_ref().map_or(at..at, |(claim, start)| *start..start + claim.label_bytes);
    let generation = match (state, claim) {
        (State::Used(generation), _) | (_, Some((Claim { generation, .. }, _))) => generation,
        (State::New, None) => return Contents::Nothing { torn_entries: 0 },
        (_, None) => return Contents::Unreadable,
    };
    let Directory { found, torn_entries } = read_directory(region, geometry, slot, generation);
    let Ok(count @ 1..) = u32::try_from(found.len()) else {
        return Contents::Nothing { torn_entries };
    };
    Contents::Pack { generation, label, count, events: gather(region, geometry, slot, &found), torn_entries }
}

struct Directory {
    /// The places of the intact events, from the slot's first event byte.
    found: Vec<Range<usize>>,
    torn_entries: u64,
}

fn read_directory(region: &Region, geometry: Geometry, slot: u32, generation: Generation) -> Directory {
    let at = geometry.slot_at(slot);
    let data_at = at + geometry.data_at();
    let seed = generation.seed(slot);
    let mut found = Vec::new();
    let mut torn_entries = 0;
    // Words that are not of this use: torn if an entry follows them, else the first of them is a damaged end.
    let mut strange = 0;
    let mut start = 0;
    for index in 0..geometry.slot_events {
        let word_at = at + DIRECTORY_AT + index as usize * ENTRY_BYTES;
        let word = u64::from_le(region.word(word_at).load(Ordering::Acquire));
        if word == Entry::END {
            break;
        }
        let entry = Entry::from_word(word);
        let event = start..entry.end();
        start = event.end;
        if !entry.is_of(generation) {
            strange += 1;
            continue;
        }
        let in_bounds = event.start <= event.end && event.end <= geometry.slot_bytes as usize;
        let checks = in_bounds && {
            // SAFETY: the file is locked by us, and no slot of it was handed out yet.
            let bytes = unsafe { region.bytes(data_at + event.start..data_at + event.end) };
            Entry::crc_of(seed, index, bytes) == entry.crc()
        };
        if checks {
            torn_entries += std::mem::take(&mut strange);
            found.push(event);
        } else {
            torn_entries += 1;
        }
    }
    Directory { found, torn_entries: torn_entries + u64::from(strange > 0) }
}

fn gather(region: &Region, geometry: Geometry, slot: u32, found: &[Range<usize>]) -> Events {
    let data_at = geometry.slot_at(slot) + geometry.data_at();
    let mut end = 0;
    if found.iter().all(|event| std::mem::replace(&mut end, event.end) == event.start) {
        return Events::InPlace { end };
    }
    let events = found.iter().flat_map(|event| {
        // SAFETY: the file is locked by us, and no slot of it was handed out yet.
        unsafe { region.bytes(data_at + event.start..data_at + event.end) }
    });
    Events::Copied(events.copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::Instance;
    use crate::options::{Durability, SpoolOptions};
    use crate::pack::OpenPack;
    use std::sync::Arc;

    /// One slot in memory, read as a start would read it from a file.
    struct OneSlot(Arc<Instance>);

    impl OneSlot {
        fn new() -> Self {
            let options = SpoolOptions { slot_bytes: 1024, slot_events: 4, ..SpoolOptions::default() };
            let geometry = Geometry { slots: 1, ..options.clamped_geometry() };
            let region = Region::heap(usize::try_from(geometry.file_bytes()).unwrap());
            Self(Arc::new(Instance::home(region, geometry, Durability::Process, None, &[])))
        }

        fn claim(&self) -> OpenPack {
            OpenPack::new(self.0.claim(b"label").unwrap())
        }

        fn store_word(&self, at_in_slot: usize, word: u64) {
            self.0
                .region
                .word(self.0.geometry.slot_at(0) + at_in_slot)
                .store(word.to_le(), Ordering::Relaxed);
        }

        fn word(&self, at_in_slot: usize) -> u64 {
            u64::from_le(self.0.region.word(self.0.geometry.slot_at(0) + at_in_slot).load(Ordering::Relaxed))
        }

        /// Label, events and torn entries.
        fn read(&self) -> (Vec<u8>, Vec<u8>, u64) {
            match read_slot(&self.0.region, self.0.geometry, 0) {
                Contents::Nothing { torn_entries } => (vec![], vec![], torn_entries),
                Contents::Unreadable => panic!("readable"),
                Contents::Pack { label, events, torn_entries, .. } => {
                    let data_at = self.0.geometry.slot_at(0) + self.0.geometry.data_at();
                    let events = match events {
                        Events::InPlace { end } => self.bytes(data_at..data_at + end),
                        Events::Copied(bytes) => bytes.into_vec(),
                    };
                    (self.bytes(label), events, torn_entries)
                }
            }
        }

        fn bytes(&self, range: Range<usize>) -> Vec<u8> {
            // SAFETY: this test has one thread, and no pack writes meanwhile.
            unsafe { self.0.region.bytes(range) }.to_vec()
        }
    }

    const NOTHING: (Vec<u8>, Vec<u8>, u64) = (vec![], vec![], 0);

    fn holds(events: &[u8], torn_entries: u64) -> (Vec<u8>, Vec<u8>, u64) {
        (b"label".to_vec(), events.to_vec(), torn_entries)
    }

    const fn entry_at(index: usize) -> usize {
        DIRECTORY_AT + index * ENTRY_BYTES
    }

    #[test]
    fn killed_between_any_two_stores_of_an_append_nothing_is_lost_or_made_up() {
        let slot = OneSlot::new();
        assert_eq!(slot.read(), NOTHING, "never used");
        let mut pack = slot.claim();
        assert_eq!(slot.read(), NOTHING, "claimed");
        pack.append(b"one").unwrap();
        assert_eq!(slot.read(), holds(b"one", 0));
        // The next append, undone store by store.
        pack.append(b"two").unwrap();
        slot.store_word(entry_at(1), Entry::END);
        assert_eq!(slot.read(), holds(b"one", 0), "bytes copied, not published");
        pack.seal(b"head").free();
        assert_eq!(slot.read(), NOTHING, "freed");
    }

    #[test]
    fn killed_between_any_two_stores_of_a_claim_the_slot_stays_free() {
        let slot = OneSlot::new();
        let mut pack = slot.claim();
        pack.append(b"sent").unwrap();
        pack.seal(&[]).free();
        let (free, first) = (slot.word(0), slot.word(entry_at(0)));
        let pack = slot.claim();
        assert_eq!(slot.read(), NOTHING, "the earlier use's entry is out of reach");
        let used = slot.word(0);
        for (state, word) in [(free, first), (free, Entry::END), (used, Entry::END)] {
            slot.store_word(0, state);
            slot.store_word(entry_at(0), word);
            assert_eq!(slot.read(), NOTHING);
        }
        drop(pack);
    }

    #[test]
    fn no_word_of_an_earlier_use_is_ever_read_also_when_the_ten_bits_wrap() {
        let slot = OneSlot::new();
        let mut pack = slot.claim();
        for event in [b"a", b"b", b"c", b"d"] {
            pack.append(event).unwrap();
        }
        pack.seal(&[]).free();
        for _ in 0..1023 {
            drop(slot.claim());
        }
        let mut pack = slot.claim();
        pack.append(b"a").unwrap();
        let (now, stale) = (Entry::from_word(slot.word(entry_at(0))), slot.word(entry_at(2)));
        assert_eq!(now.word() >> 53, stale >> 53, "the generations match in their ten bits");
        assert_eq!(slot.read(), holds(b"a", 0));
        // Even with the terminator damaged: the seed holds all of the generation.
        slot.store_word(entry_at(1), 1);
        assert_eq!(slot.read(), holds(b"a", 3));
    }

    #[test]
    fn one_damaged_entry_costs_one_event() {
        let slot = OneSlot::new();
        let mut pack = slot.claim();
        for event in [&b"one"[..], b"two", b"three", b"four"] {
            pack.append(event).unwrap();
        }
        let good = slot.word(entry_at(1));
        for (bit, expected) in [
            (0, holds(b"onethreefour", 1)),  // its checksum
            (32, holds(b"onefour", 2)),      // its end, where the next one begins
            (53, holds(b"onethreefour", 1)), // its generation
            (63, holds(b"onethreefour", 1)), // its flag
        ] {
            slot.store_word(entry_at(1), good ^ (1 << bit));
            assert_eq!(slot.read(), expected, "bit {bit}");
        }
    }

    #[test]
    fn a_slot_of_which_neither_state_nor_claim_is_left_is_reported_not_reused() {
        let slot = OneSlot::new();
        let mut pack = slot.claim();
        pack.append(b"one").unwrap();
        let good = slot.word(0);
        slot.store_word(0, good ^ 1);
        assert_eq!(slot.read(), holds(b"one", 0), "the claim record says its generation");
        for claim_at in CLAIMS_AT {
            slot.store_word(claim_at, 0);
        }
        assert!(matches!(read_slot(&slot.0.region, slot.0.geometry, 0), Contents::Unreadable));
        slot.store_word(0, good);
        assert_eq!(slot.read(), (vec![], b"one".to_vec(), 0), "without its label");
    }
}
