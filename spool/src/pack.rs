//! The states of a pack: open, sealed, freed; or recovered, sealed, freed.
#![allow(unsafe_code, reason = "the bytes of a mapped file are written and read in place")]

use crate::error::NoRoom;
use crate::format::{Entry, HEAD_MAX_BYTES};
use crate::instance::Slot;
use crate::options::Durability;
use crate::sync::{Mark, PackSync, Stored};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A pack that takes events. It has one writer at a time: keep it under a lock.
///
/// Dropped with events in it, it keeps its slot, and the next start recovers them. Dropped empty, its slot is
/// free again.
pub struct OpenPack {
    slot: Slot,
    seed: u32,
    count: u32,
    end: usize,
    /// How much of the pack is on disk; only with [`Durability::Machine`].
    sync: Option<Arc<PackSync>>,
}

impl OpenPack {
    pub(crate) fn new(slot: Slot) -> Self {
        let is_synced = slot.instance.durability == Durability::Machine;
        let sync = is_synced.then(|| PackSync::new(Arc::clone(&slot.instance), slot.index));
        Self { seed: slot.generation.seed(slot.index), slot, count: 0, end: 0, sync }
    }

    /// Stores an event, framed as it stands in the record. After Ok it survives `kill -9` (I2).
    ///
    /// With [`Durability::Machine`] it also waits for the disk, and so does every caller that waits for this pack:
    /// callers that share a pack use [`store`](Self::store).
    ///
    /// # Errors
    /// [`NoRoom`]: nothing was stored.
    pub fn append(&mut self, framed_event: &[u8]) -> Result<(), NoRoom> {
        let stored = self.store(framed_event)?;
        stored.wait().map_err(|_| {
            self.settle();
            NoRoom
        })
    }

    /// Stores an event as [`append`](Self::append) does, and leaves the wait for the disk to the value that it returns.
    ///
    /// # Errors
    /// [`NoRoom`]: nothing was stored.
    pub fn store(&mut self, framed_event: &[u8]) -> Result<Stored, NoRoom> {
        let instance = &*self.slot.instance;
        let end = self.end + framed_event.len();
        if self.count == instance.geometry.slot_events || end > instance.geometry.slot_bytes as usize {
            return Err(NoRoom);
        }
        if self.sync.is_some() && instance.sync_failed() {
            return Err(NoRoom);
        }
        // SAFETY: `&mut self` is the slot's one writer, and no slice of an open pack is ever handed out.
        unsafe { instance.region.write(self.slot.data_at() + self.end, framed_event) };
        let end_in_word = u32::try_from(end).map_err(|_| NoRoom)?;
        let crc = Entry::crc_of(self.seed, self.count, framed_event);
        let entry = Entry::new(self.slot.generation, end_in_word, crc);
        // First end the directory behind this entry, then publish it: the order is what recovery rests on.
        instance.region.word(self.slot.entry_at(self.count + 1)).store(Entry::END, Ordering::Relaxed);
        let word = instance.region.word(self.slot.entry_at(self.count));
        word.store(entry.word().to_le(), Ordering::Release);
        self.slot.holds_events = true;
        self.count += 1;
        self.end = end;
        let (count, sync) = (self.count, self.sync.clone());
        if let Some(sync) = &sync {
            sync.stored(Mark { count, end });
        }
        Ok(Stored::new(sync.map(|sync| (sync, count))))
    }

    /// Whether no caller waits for the disk because of this pack. Sealing it then does not block.
    /// Events that could not be synced are removed from the pack, so that it may be empty afterwards.
    pub fn settle(&mut self) -> bool {
        let Some(sync) = &self.sync else { return true };
        let Some(Mark { count, end }) = sync.settled() else { return false };
        (self.count, self.end) = (count, end);
        self.slot.holds_events = count > 0;
        true
    }

    /// Events in it.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of its events.
    pub fn bytes(&self) -> usize {
        self.end
    }

    /// Whether it has no events.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// As given to [`Spool::claim`](crate::Spool::claim).
    pub fn label(&self) -> &[u8] {
        self.slot.label()
    }

    /// Seals the pack: writes the record's head right before the events. A head longer than [`HEAD_MAX_BYTES`] costs a
    /// copy of the events.
    /// Waits for the disk where some of its events are not synced yet; [`settle`](Self::settle) says whether it would.
    pub fn seal(mut self, head: &[u8]) -> SealedPack {
        if let Some(sync) = &self.sync
            && sync.wait(self.count).is_err()
        {
            // Whoever waited for what is cut off has heard so.
            self.settle();
        }
        let events = Events::InPlace { end: self.end };
        SealedPack::new(self.slot, self.count, events, head)
    }
}

/// A pack that can be sent. Its events do not change any more, and its head only by [`with_head`](Self::with_head).
///
/// Dropped without [`free`](Self::free), it keeps its slot, and the next start recovers it.
pub struct SealedPack {
    slot: Slot,
    count: u32,
    head_bytes: usize,
    payload: Payload,
}

enum Payload {
    InPlace(Range<usize>),
    Copied(Box<[u8]>),
}

impl SealedPack {
    fn new(slot: Slot, count: u32, events: Events, head: &[u8]) -> Self {
        let data_at = slot.data_at();
        let payload = match events {
            Events::InPlace { end } if head.len() <= HEAD_MAX_BYTES => {
                let start = data_at - head.len();
                // SAFETY: the slot is owned, the head room holds no word, and no slice of it is borrowed any more:
                // `seal` and `with_head` consumed the only value that could have handed one out.
                unsafe { slot.instance.region.write(start, head) };
                Payload::InPlace(start..data_at + end)
            }
            events => Payload::Copied([head, events.of(&slot)].concat().into_boxed_slice()),
        };
        Self { slot, count, head_bytes: head.len(), payload }
    }

    /// The same pack under another head, which takes the place of the one so far.
    pub fn with_head(self, head: &[u8]) -> Self {
        let Self { slot, count, head_bytes, payload } = self;
        let events = match payload {
            Payload::InPlace(range) => Events::InPlace { end: range.end - slot.data_at() },
            Payload::Copied(bytes) => Events::Copied(bytes.get(head_bytes..).unwrap_or_default().into()),
        };
        Self::new(slot, count, events, head)
    }

    /// Head and events in one slice: the record as it is sent.
    pub fn payload(&self) -> &[u8] {
        match &self.payload {
            // SAFETY: written before the pack was sealed; nobody writes a sealed slot before it gets another head or is
            // released, and both take `self`.
            Payload::InPlace(range) => unsafe { self.slot.instance.region.bytes(range.clone()) },
            Payload::Copied(bytes) => bytes,
        }
    }

    /// The events alone.
    pub fn events(&self) -> &[u8] {
        self.payload().get(self.head_bytes..).unwrap_or_default()
    }

    /// Events in it.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// As given to [`Spool::claim`](crate::Spool::claim); empty if it was recovered and both copies of the label
    /// were damaged: the events themselves say where they belong.
    pub fn label(&self) -> &[u8] {
        self.slot.label()
    }

    /// Frees the pack, because a broker has acknowledged it and its bytes are not needed any more. This is the only way
    /// that they are given up.
    ///
    /// One store and a short lock. Only with the last pack of a directory that another process left, that directory
    /// is deleted, too, which takes the file system some milliseconds.
    pub fn free(mut self) {
        self.slot.holds_events = false;
    }
}

impl AsRef<[u8]> for SealedPack {
    fn as_ref(&self) -> &[u8] {
        self.payload()
    }
}

/// A pack that an earlier process left: open or sealed when it died, or sent and not yet acknowledged.
///
/// Dropped without being sealed and freed, it keeps its slot, and the next start recovers it again.
pub struct RecoveredPack {
    slot: Slot,
    count: u32,
    events: Events,
}

impl RecoveredPack {
    pub(crate) fn new(slot: Slot, count: u32, events: Events) -> Self {
        Self { slot, count, events }
    }

    /// The framed events, one after the other.
    pub fn events(&self) -> &[u8] {
        self.events.of(&self.slot)
    }

    /// Events in it.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// As given to [`Spool::claim`](crate::Spool::claim); empty if both copies were damaged: the events
    /// themselves say where they belong.
    pub fn label(&self) -> &[u8] {
        self.slot.label()
    }

    /// Whether it holds a slot of the spool that was opened. Others lie in files of their own, which take no new packs.
    pub fn holds_slot(&self) -> bool {
        self.slot.instance.is_home()
    }

    /// Seals the pack, to be sent under this head.
    pub fn seal(self, head: &[u8]) -> SealedPack {
        SealedPack::new(self.slot, self.count, self.events, head)
    }
}

/// The events of a pack that takes no more.
pub(crate) enum Events {
    /// In place, from the slot's first event byte on, without a gap.
    InPlace { end: usize },
    /// Copied together, because an entry between them was damaged.
    Copied(Box<[u8]>),
}

impl Events {
    fn of<'a>(&'a self, slot: &'a Slot) -> &'a [u8] {
        match self {
            // SAFETY: published entries of an owned slot that takes no more; the head is written before them.
            Self::InPlace { end } => unsafe {
                slot.instance.region.bytes(slot.data_at()..slot.data_at() + end)
            },
            Self::Copied(bytes) => bytes,
        }
    }
}

/// Implements `Debug` with sizes, not contents, because an event names a user.
macro_rules! debug_without_contents {
    ($($pack:ident),*) => {$(
        impl fmt::Debug for $pack {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let label = String::from_utf8_lossy(self.label());
                f.debug_struct(stringify!($pack))
                    .field("slot", &self.slot.index)
                    .field("label", &label)
                    .field("count", &self.count)
                    .finish_non_exhaustive()
            }
        }
    )*};
}
debug_without_contents!(OpenPack, SealedPack, RecoveredPack);
