//! The size and durability of a spool.

use crate::error::OpenError;
use crate::format::{
    DIRECTORY_AT, ENTRY_BYTES, HEAD_MAX_BYTES, PAGE_BYTES, SLOT_BYTES_LIMIT, SLOT_EVENTS_LIMIT,
};
use std::ops::RangeInclusive;

/// The least number of slots. With fewer, every sender would wait for the slowest pack.
const SLOTS_MIN: u64 = 4;
const TOTAL_BYTES: RangeInclusive<u64> = 256 << 10..=64 << 30;
const SLOT_BYTES: RangeInclusive<u32> = 1 << 10..=SLOT_BYTES_LIMIT;
const SLOT_EVENTS: RangeInclusive<u32> = 1..=SLOT_EVENTS_LIMIT;

/// Size and strictness of a spool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpoolOptions {
    /// The size of the whole file, which is reserved on disk at the start. 256 KiB to 64 GiB and at least four slots;
    /// default 64 MiB, which is 963 packs of the default size.
    pub total_bytes: u64,
    /// The bytes of events that a pack may hold. 1 KiB to 1 MiB, default 64 KiB. A pack is sent as one record.
    pub slot_bytes: u32,
    /// The number of events that a pack may hold. 1 to 4096, default 256.
    pub slot_events: u32,
    /// How durable an appended event is. Default [`Durability::Process`].
    pub durability: Durability,
}

/// How durable an appended event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// The event survives the death of the process, not that of the machine. An append of 200 bytes costs some 35 ns.
    #[default]
    Process,
    /// The event survives the death of the machine, too: each append waits for the disk (`msync`), which costs what the
    /// disk's flush costs: 0.1 ms on a virtual disk with a cache, up to 10 ms on a spinning one, thousands of times
    /// the other. Callers of one pack share a sync, and do not wait for other packs. After a failed sync the spool
    /// takes nothing more until it is opened again: the kernel does not report a failed write twice.
    Machine,
}

impl Default for SpoolOptions {
    fn default() -> Self {
        Self {
            total_bytes: 64 << 20,
            slot_bytes: 64 << 10,
            slot_events: 256,
            durability: Durability::default(),
        }
    }
}

impl SpoolOptions {
    pub(crate) fn geometry(&self) -> Result<Geometry, OpenError> {
        let refuse = |option, value, range| Err(OpenError::Option { option, value, range });
        if !TOTAL_BYTES.contains(&self.total_bytes) {
            return refuse("total_bytes", self.total_bytes, "256 KiB to 64 GiB");
        }
        if !SLOT_BYTES.contains(&self.slot_bytes) {
            return refuse("slot_bytes", self.slot_bytes.into(), "1 KiB to 1 MiB");
        }
        if !SLOT_EVENTS.contains(&self.slot_events) {
            return refuse("slot_events", self.slot_events.into(), "1 to 4096");
        }
        let slots = Geometry::slots_in(self.total_bytes, self.slot_bytes, self.slot_events);
        match u32::try_from(slots) {
            Ok(slots) if u64::from(slots) >= SLOTS_MIN => {
                Ok(Geometry { slots, slot_bytes: self.slot_bytes, slot_events: self.slot_events })
            }
            _ => refuse("total_bytes", self.total_bytes, "enough for four slots"),
        }
    }

    /// The nearest geometry that is within the ranges.
    pub(crate) fn clamped_geometry(&self) -> Geometry {
        let slot_bytes = self.slot_bytes.clamp(*SLOT_BYTES.start(), *SLOT_BYTES.end());
        let slot_events = self.slot_events.clamp(*SLOT_EVENTS.start(), *SLOT_EVENTS.end());
        let total_bytes = self.total_bytes.clamp(*TOTAL_BYTES.start(), *TOTAL_BYTES.end());
        let slots = Geometry::slots_in(total_bytes, slot_bytes, slot_events).max(SLOTS_MIN);
        Geometry { slots: u32::try_from(slots).unwrap_or(u32::MAX), slot_bytes, slot_events }
    }
}

/// How a spool file is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub slots: u32,
    pub slot_bytes: u32,
    pub slot_events: u32,
}

impl Geometry {
    fn slots_in(total_bytes: u64, slot_bytes: u32, slot_events: u32) -> u64 {
        let one = Self { slots: 1, slot_bytes, slot_events };
        total_bytes.saturating_sub(2 * PAGE_BYTES as u64) / one.stride_bytes() as u64
    }

    /// Whether a file may have this geometry; one from a damaged header may not.
    pub fn is_sane(&self) -> bool {
        self.slots > 0
            && SLOT_BYTES.contains(&self.slot_bytes)
            && SLOT_EVENTS.contains(&self.slot_events)
            && self.file_bytes() <= *TOTAL_BYTES.end()
    }

    /// The offset of a slot's events from the slot's start.
    pub const fn data_at(&self) -> usize {
        // One word more than events: the last one is never written and ends a full directory.
        DIRECTORY_AT + (self.slot_events as usize + 1) * ENTRY_BYTES + HEAD_MAX_BYTES
    }

    /// The distance from one slot to the next, in whole pages, so that no page belongs to two slots.
    pub const fn stride_bytes(&self) -> usize {
        (self.data_at() + self.slot_bytes as usize).next_multiple_of(PAGE_BYTES)
    }

    /// The offset of a slot in the file.
    pub const fn slot_at(&self, slot: u32) -> usize {
        PAGE_BYTES + slot as usize * self.stride_bytes()
    }

    /// The size of the whole file: header page, slots, trailer page.
    pub const fn file_bytes(&self) -> u64 {
        2 * PAGE_BYTES as u64 + self.slots as u64 * self.stride_bytes() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_963_slots_in_64_mib() {
        let geometry = SpoolOptions::default().geometry().unwrap();
        assert_eq!(geometry.slots, 963);
        assert!(geometry.file_bytes() <= 64 << 20);
    }

    #[test]
    fn an_option_out_of_range_is_named() {
        let good = SpoolOptions::default();
        for (options, name) in [
            (SpoolOptions { total_bytes: 1000, ..good }, "total_bytes"),
            (SpoolOptions { total_bytes: 1 << 20, slot_bytes: 1 << 20, ..good }, "total_bytes"),
            (SpoolOptions { slot_bytes: 1023, ..good }, "slot_bytes"),
            (SpoolOptions { slot_bytes: (1 << 20) + 1, ..good }, "slot_bytes"),
            (SpoolOptions { slot_events: 0, ..good }, "slot_events"),
            (SpoolOptions { slot_events: 4097, ..good }, "slot_events"),
        ] {
            let error = options.geometry().unwrap_err();
            assert!(matches!(error, OpenError::Option { option, .. } if option == name), "{error}");
            assert!(options.clamped_geometry().is_sane(), "{options:?}");
        }
    }
}
