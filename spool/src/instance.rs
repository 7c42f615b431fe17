//! One spool file with its slots: which of them are owned, and what happens to the file when all are free.
#![allow(unsafe_code, reason = "the bytes of a mapped file are written and read in place")]

use crate::directory::InstanceDir;
use crate::error::SpoolFull;
use crate::format::{
    CLAIM_HEAD_BYTES, CLAIMS_AT, Claim, DIRECTORY_AT, ENTRY_BYTES, Entry, Generation, State,
};
use crate::options::{Durability, Geometry};
use crate::region::Region;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// One spool file, or as much memory. It lives, and with it the lock on its directory, as long as a pack does.
pub(crate) struct Instance {
    // Before `directory`: unmapped first, unlocked last.
    pub region: Region,
    pub geometry: Geometry,
    pub durability: Durability,
    role: Role,
    slots_in_use: AtomicU32,
    sync_failed: AtomicBool,
    directory: Option<InstanceDir>,
}

enum Role {
    /// It takes new packs. The slot that was freed last is claimed first, because it is in the cache.
    Home { free: Mutex<Vec<u32>> },
    /// It was left behind by a process that is gone. It takes no packs, and is deleted when its last pack is freed.
    Adopted,
}

impl Instance {
    /// An instance that takes new packs in every slot that is not in `in_use`.
    pub fn home(
        region: Region,
        geometry: Geometry,
        durability: Durability,
        directory: Option<InstanceDir>,
        in_use: &[u32],
    ) -> Self {
        // Reversed, so that the first claimed is slot 0. `in_use` is in order.
        let free = (0..geometry.slots).rev().filter(|slot| in_use.binary_search(slot).is_err()).collect();
        let role = Role::Home { free: Mutex::new(free) };
        Self::new(region, geometry, durability, directory, role, in_use)
    }

    /// An instance whose packs are only waiting to be sent.
    pub fn adopted(region: Region, geometry: Geometry, directory: InstanceDir, in_use: &[u32]) -> Self {
        Self::new(region, geometry, Durability::Process, Some(directory), Role::Adopted, in_use)
    }

    fn new(
        region: Region,
        geometry: Geometry,
        durability: Durability,
        directory: Option<InstanceDir>,
        role: Role,
        in_use: &[u32],
    ) -> Self {
        let slots_in_use = AtomicU32::new(u32::try_from(in_use.len()).unwrap_or(u32::MAX));
        let sync_failed = AtomicBool::new(false);
        Self { region, geometry, durability, role, slots_in_use, sync_failed, directory }
    }

    /// Whether new packs are claimed here.
    pub const fn is_home(&self) -> bool {
        matches!(self.role, Role::Home { .. })
    }

    pub fn slots_in_use(&self) -> u32 {
        self.slots_in_use.load(Ordering::Relaxed)
    }

    pub fn sync_failed(&self) -> bool {
        self.sync_failed.load(Ordering::Relaxed)
    }

    /// Takes a free slot and marks it used.
    pub fn claim(self: &Arc<Self>, label: &[u8]) -> Result<Slot, SpoolFull> {
        let Role::Home { free } = &self.role else { return Err(SpoolFull) };
        if self.sync_failed() {
            return Err(SpoolFull);
        }
        let index = free.lock().pop().ok_or(SpoolFull)?;
        self.slots_in_use.fetch_add(1, Ordering::Relaxed);
        let at = self.geometry.slot_at(index);
        let generation = match State::decode(u64::from_le(self.region.word(at).load(Ordering::Acquire))) {
            State::Free(generation) => generation,
            // Claimed by a process that died before it had stored an event.
            State::Used(generation) => generation.next(),
            State::New | State::Damaged => Generation::FIRST,
        };
        let (record, len) = Claim::encode(generation, label);
        for claim_at in CLAIMS_AT {
            // SAFETY: the slot was on the free list, so it is ours alone, and nobody holds a slice of it.
            unsafe { self.region.write(at + claim_at, &record[..len]) };
        }
        // Before the state turns: no entry of an earlier use may be reached. Killed before the last store, the
        // slot is still free.
        self.region.word(at + DIRECTORY_AT).store(Entry::END, Ordering::Relaxed);
        self.region.word(at).store(State::Used(generation).encode().to_le(), Ordering::Release);
        let label_at = at + CLAIMS_AT[0] + CLAIM_HEAD_BYTES;
        let label = label_at..label_at + label.len();
        Ok(Slot { instance: Arc::clone(self), index, generation, label, holds_events: false })
    }

    /// Waits until the slot is on disk up to `end`. After one failure every other one fails, too: the kernel
    /// forgets what it could not write, so a second sync would lie.
    pub fn sync(&self, slot: u32, end: usize) -> bool {
        if self.sync_failed() {
            return false;
        }
        let at = self.geometry.slot_at(slot);
        let synced = before_sync(slot);
        let synced = synced.and_then(|()| self.region.sync(at..at + self.geometry.data_at() + end));
        if let Err(error) = &synced {
            self.sync_failed.store(true, Ordering::Relaxed);
            tracing::error!(%error, "the spool cannot be synced; it takes no more events");
        }
        synced.is_ok()
    }

    fn release(&self, index: u32, generation: Generation) {
        let free = State::Free(generation.next()).encode().to_le();
        self.region.word(self.geometry.slot_at(index)).store(free, Ordering::Release);
        let before = self.slots_in_use.fetch_sub(1, Ordering::AcqRel);
        match &self.role {
            Role::Home { free } => free.lock().push(index),
            Role::Adopted if before == 1 => self.delete(),
            Role::Adopted => {}
        }
    }

    /// Deletes the directory of an adopted instance, all of whose slots are free.
    fn delete(&self) {
        if let Some(directory) = &self.directory {
            directory.delete_or_warn();
        }
    }
}

#[cfg(feature = "sabotage")]
use crate::sabotage::before_sync;

#[cfg(not(feature = "sabotage"))]
const fn before_sync(_slot: u32) -> std::io::Result<()> {
    Ok(())
}

/// A slot that is owned. It is free again when this is dropped without events in it.
pub(crate) struct Slot {
    pub instance: Arc<Instance>,
    pub index: u32,
    pub generation: Generation,
    /// The label's place in the region; empty if both copies are damaged.
    pub label: Range<usize>,
    /// Whether it holds events. It is set with the first event and unset by `free` alone; otherwise the bytes stay for
    /// the next start.
    pub holds_events: bool,
}

impl Slot {
    /// The offset of the events in the region.
    pub fn data_at(&self) -> usize {
        self.instance.geometry.slot_at(self.index) + self.instance.geometry.data_at()
    }

    /// The offset of an entry's word in the region.
    pub fn entry_at(&self, entry: u32) -> usize {
        self.instance.geometry.slot_at(self.index) + DIRECTORY_AT + entry as usize * ENTRY_BYTES
    }

    pub fn label(&self) -> &[u8] {
        // SAFETY: written by `claim`, and by nobody until the slot is released, which drops `self`.
        unsafe { self.instance.region.bytes(self.label.clone()) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.holds_events {
            self.instance.release(self.index, self.generation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::NoRoom;
    use crate::options::SpoolOptions;
    use crate::pack::OpenPack;
    use memmap2::MmapMut;

    #[test]
    #[cfg_attr(miri, ignore = "Miri syncs no mappings")]
    fn after_a_failed_sync_nothing_is_taken_and_nothing_is_answered_ok() {
        let geometry = SpoolOptions::default().clamped_geometry();
        let map = MmapMut::map_anon(usize::try_from(geometry.file_bytes()).unwrap()).unwrap();
        let region = Region::mapped(map.into());
        let instance = Arc::new(Instance::home(region, geometry, Durability::Machine, None, &[]));
        let mut pack = OpenPack::new(instance.claim(b"").unwrap());
        pack.append(b"stored").unwrap();
        assert!(!instance.sync(0, 1 << 40), "nothing is mapped there");
        assert_eq!(pack.append(b"refused"), Err(NoRoom));
        assert_eq!(instance.claim(b"").err(), Some(SpoolFull));
        let sealed = pack.seal(b"");
        assert_eq!((sealed.events(), sealed.count()), (&b"stored"[..], 1));
    }
}
