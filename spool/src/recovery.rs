//! What a slot still holds after its owner is gone. `format.rs` has the argument why this loses nothing.

use crate::format::{CLAIM_BYTES, CLAIM_HEAD_BYTES, CLAIMS_AT, Claim, DIRECTORY_AT, ENTRY_BYTES, Entry};
use crate::format::{Generation, State};
use crate::options::Geometry;
use crate::pack::Events;
use crate::region::Region;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// What a slot holds.
pub(crate) enum Contents {
    /// Nothing that anybody was answered Ok for.
    Nothing { torn_entries: u64 },
    /// Events.
    Pack { generation: Generation, label: Range<usize>, count: u32, events: Events, torn_entries: u64 },
    /// Used, perhaps, and nothing in it tells by whom: state and both claim records are damaged.
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
    /// Where the events that check lie, from the slot's first event byte.
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
