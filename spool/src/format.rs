//! The bytes of a spool file, format version 1. All numbers are little-endian on every machine.
//!
//! ```text
//! file     header page (4096) | slot 0 | slot 1 | … | trailer page (4096, a copy of the header)
//!
//! header    0  8  magic "WFSPOOL\n"
//!           8  4  format version
//!          12  4  CRC32C of bytes 0..12 and 16..64; every version keeps bytes 0..64 checked like this
//!          16  8  instance id, for people
//!          24  4  slots
//!          28  4  slot_bytes: event bytes a slot holds
//!          32  4  slot_events: events a slot holds
//!          36 28  zero
//!
//! slot      0   8  state word
//!           8  56  zero
//!          64 176  claim record
//!         240  16  zero
//!         256 176  claim record, the same again
//!         432  16  zero
//!         448   8 × (slot_events + 1)  directory: entry words, ended by a zero word
//!           …  96  head room: the record's head, right before the events, so that both are one slice
//!           …  slot_bytes  the framed events, one after the other
//!           …      padding to a whole page
//!
//! state word    generation (40 bits) | state (8: 1 free, 2 used) | check (16)
//!               check = xor of the three other 16-bit parts and 0xA5C3; a zero word: never used
//! claim record   0  4  CRC32C of bytes 4..16 and the label
//!                4  2  label length, 0 to 160
//!                6  2  zero
//!                8  8  generation
//!               16     label
//! entry word    published (1 bit, set) | low bits of the generation (10) | end (21) | CRC32C (32)
//!               end: where the event ends, from the start of the events; it begins where the one before ends
//!               CRC32C of the event's bytes, seeded with generation, slot and the entry's index
//! ```
//!
//! # Why no event is lost, doubled or made up
//! **Publishing.** To append event *i*, its writer copies the bytes, stores zero to word *i + 1*, and then stores
//! word *i* with release order. Only then does the caller hear Ok. A process that is killed has either done that
//! last store or not: the event is there whole, or the directory ends before it.
//!
//! **After a torn entry.** A slot has one writer, who publishes entry *i* before he begins entry *i + 1*. So where
//! only the process died, an entry that does not check is not there at all, and were there one, nothing behind it
//! could have been answered Ok. Where the machine died or the disk lies, pages of different age mix; a reader
//! therefore goes on behind an entry that does not check, up to the zero word, and takes each entry that checks
//! by itself.
//!
//! **Reuse.** A slot's generation grows with each use. Words of an earlier use are unreachable: claiming a slot
//! zeroes word 0 before it turns the state to `used`, and each publish zeroes the next word first, so the
//! directory of this use always ends in a zero. This does not rest on the ten generation bits, so their wrap
//! after 1,024 uses does no harm. Should damage hit the zero itself, a word of an earlier use has to match in the
//! ten bits and then in a CRC whose seed holds all 40 bits of the generation; and if even that happened, it would
//! yield an event that was sent and acknowledged, which order numbers make harmless. 2^40 uses of one slot last
//! a century at 300 packs per second and slot.
//!
//! **Freeing** is one store: state `free` with the next generation. Killed before it, the pack is sent again.
//!
//! **Syncing.** With `Durability::Machine` one `msync` before Ok covers the slot from its state word to the end of
//! the event: the claim, the directory and the bytes. Freeing is not synced; a pack is sent again at worst.
//!
//! **Damage.** Header and claim record exist twice. A state word that does not check counts as `used` if a claim
//! record checks: a pack too many is harmless, one too few is not. Every byte is covered by a checksum, apart
//! from zeros and the head room, which nobody reads back.

use crate::options::Geometry;

/// The version in the header.
pub const FORMAT_VERSION: u32 = 1;
/// The bytes of a pack's label at most. The label names the pack's queue, side and type in a form that the sender
/// chooses.
pub const LABEL_MAX_BYTES: usize = 160;
/// Room for a record's head right before its events.
pub const HEAD_MAX_BYTES: usize = 96;

pub(crate) const PAGE_BYTES: usize = 4096;
pub(crate) const HEADER_BYTES: usize = 64;
pub(crate) const ENTRY_BYTES: usize = 8;
/// The offsets of the claim records from the slot's start.
pub(crate) const CLAIMS_AT: [usize; 2] = [64, 256];
pub(crate) const CLAIM_HEAD_BYTES: usize = 16;
pub(crate) const CLAIM_BYTES: usize = CLAIM_HEAD_BYTES + LABEL_MAX_BYTES;
/// The offset of the entry words from the slot's start.
pub(crate) const DIRECTORY_AT: usize = 448;
/// The largest slot: an entry word has 21 bits for the end of an event.
pub(crate) const SLOT_BYTES_LIMIT: u32 = 1 << 20;
/// The most events of a slot: as many as a record may carry.
pub(crate) const SLOT_EVENTS_LIMIT: u32 = 4096;

const MAGIC: [u8; 8] = *b"WFSPOOL\n";
const GENERATION_MASK: u64 = (1 << 40) - 1;
const PUBLISHED: u64 = 1 << 63;
const ENTRY_GENERATION_MASK: u64 = (1 << 10) - 1;
const END_MASK: u64 = (1 << 21) - 1;

/// The header of a spool file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub instance: u64,
    pub geometry: Geometry,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BadHeader {
    Damaged,
    Newer(u32),
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[16..24].copy_from_slice(&self.instance.to_le_bytes());
        out[24..28].copy_from_slice(&self.geometry.slots.to_le_bytes());
        out[28..32].copy_from_slice(&self.geometry.slot_bytes.to_le_bytes());
        out[32..36].copy_from_slice(&self.geometry.slot_events.to_le_bytes());
        let check = Self::check(&out);
        out[12..16].copy_from_slice(&check.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, BadHeader> {
        if bytes[..8] != MAGIC || u32_at(bytes, 12) != Self::check(bytes) {
            return Err(BadHeader::Damaged);
        }
        match u32_at(bytes, 8) {
            FORMAT_VERSION => {}
            newer if newer > FORMAT_VERSION => return Err(BadHeader::Newer(newer)),
            _ => return Err(BadHeader::Damaged),
        }
        let geometry = Geometry {
            slots: u32_at(bytes, 24),
            slot_bytes: u32_at(bytes, 28),
            slot_events: u32_at(bytes, 32),
        };
        if !geometry.is_sane() {
            return Err(BadHeader::Damaged);
        }
        Ok(Self { instance: u64_at(bytes, 16), geometry })
    }

    fn check(bytes: &[u8; HEADER_BYTES]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..])
    }
}

/// Counts the uses of a slot: 40 bits, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Generation(u64);

impl Generation {
    pub const FIRST: Self = Self(1);

    pub const fn next(self) -> Self {
        Self((self.0 + 1) & GENERATION_MASK)
    }

    /// The seed of the checksums of a pack's entries.
    pub fn seed(self, slot: u32) -> u32 {
        let mut key = [0; 12];
        key[..8].copy_from_slice(&self.0.to_le_bytes());
        key[8..].copy_from_slice(&slot.to_le_bytes());
        crc32c::crc32c(&key)
    }
}

/// The first word of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Never used: zeros, as preallocated disk space is read.
    New,
    /// Free; the next use has this generation.
    Free(Generation),
    /// Claimed, with this generation.
    Used(Generation),
    Damaged,
}

impl State {
    pub const fn encode(self) -> u64 {
        let (generation, state) = match self {
            Self::New | Self::Damaged => return 0,
            Self::Free(generation) => (generation, 1),
            Self::Used(generation) => (generation, 2),
        };
        let word = generation.0 << 24 | state << 16;
        word | Self::check(word)
    }

    pub const fn decode(word: u64) -> Self {
        let generation = Generation(word >> 24);
        match (word >> 16) & 0xFF {
            _ if word == 0 => Self::New,
            _ if word & 0xFFFF != Self::check(word) => Self::Damaged,
            1 => Self::Free(generation),
            2 => Self::Used(generation),
            _ => Self::Damaged,
        }
    }

    const fn check(word: u64) -> u64 {
        ((word >> 48) ^ (word >> 32) ^ (word >> 16) ^ 0xA5C3) & 0xFFFF
    }
}

/// A claim record: a slot's generation, and the label that it was claimed for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub generation: Generation,
    pub label_bytes: usize,
}

impl Claim {
    /// The bytes of the record; the label is at most [`LABEL_MAX_BYTES`] long.
    pub fn encode(generation: Generation, label: &[u8]) -> ([u8; CLAIM_BYTES], usize) {
        let mut out = [0; CLAIM_BYTES];
        let end = CLAIM_HEAD_BYTES + label.len();
        let label_bytes = u16::try_from(label.len()).unwrap_or(u16::MAX);
        out[4..6].copy_from_slice(&label_bytes.to_le_bytes());
        out[8..16].copy_from_slice(&generation.0.to_le_bytes());
        out[CLAIM_HEAD_BYTES..end].copy_from_slice(label);
        let check = crc32c::crc32c(&out[4..end]);
        out[..4].copy_from_slice(&check.to_le_bytes());
        (out, end)
    }

    /// Reads a record; `None` if its checksum does not match.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let label_bytes = usize::from(u16::from_le_bytes([*bytes.get(4)?, *bytes.get(5)?]));
        let checked = bytes.get(4..CLAIM_HEAD_BYTES + label_bytes)?;
        if label_bytes > LABEL_MAX_BYTES || u32_at(bytes, 0) != crc32c::crc32c(checked) {
            return None;
        }
        Some(Self { generation: Generation(u64_at(bytes, 8) & GENERATION_MASK), label_bytes })
    }
}

/// A published word of a slot's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry(u64);

impl Entry {
    /// The word that ends a directory.
    pub const END: u64 = 0;

    pub fn new(generation: Generation, end: u32, crc: u32) -> Self {
        let generation = generation.0 & ENTRY_GENERATION_MASK;
        Self(PUBLISHED | generation << 53 | (u64::from(end) & END_MASK) << 32 | u64::from(crc))
    }

    pub const fn word(self) -> u64 {
        self.0
    }

    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// Whether it is an entry of this use of the slot, as far as its ten bits tell.
    pub const fn is_of(self, generation: Generation) -> bool {
        self.0 & PUBLISHED != 0
            && (self.0 >> 53) & ENTRY_GENERATION_MASK == generation.0 & ENTRY_GENERATION_MASK
    }

    /// The end of the event.
    pub const fn end(self) -> usize {
        ((self.0 >> 32) & END_MASK) as usize
    }

    pub const fn crc(self) -> u32 {
        (self.0 & 0xFFFF_FFFF) as u32
    }

    /// The checksum of the event's bytes as entry `index` of the pack with this seed.
    pub fn crc_of(seed: u32, index: u32, event: &[u8]) -> u32 {
        // An odd factor, so that each index starts elsewhere.
        crc32c::crc32c_append(seed ^ index.wrapping_mul(0x9E37_79B9), event)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|eight| eight.try_into().ok()).map_or(0, u64::from_le_bytes)
}
