//! A second witness of how far each partition was written.
//!
//! fjall's journal ends, when it is recovered, at the first entry that it cannot parse; after a bit flip all later
//! records would be gone without a word. So the end of each partition is also kept here, written after the journal
//! and before anybody is told `Stored`. On open, a log that ends below its witness is damaged, except after a
//! restart of the machine where the options did not ask for `fsync`: then the loss is what they say.
//!
//! Layout, little endian: 32 bytes naming the boot, then `topic u32, partition u32, end u64, !end u64` for each entry.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Result};
use std::os::unix::fs::FileExt;
use std::path::Path;

const BOOT_BYTES: usize = 32;
const ENTRY_BYTES: usize = 24;
const NAME: &str = "ENDS";

/// The file, and where each partition's entry is in it.
pub(super) struct EndsFile {
    file: File,
    slots: BTreeMap<(u32, u32), u64>,
}

/// What the file said when it was opened.
pub(super) struct Witness {
    /// Topic and partition → end.
    pub(super) ends: BTreeMap<(u32, u32), u64>,
    /// Whether it was written since this machine started.
    pub(super) same_boot: bool,
}

impl EndsFile {
    pub(super) fn open(dir: &Path) -> Result<(Self, Witness)> {
        let path = dir.join(NAME);
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let (then, entries) = bytes.split_at_checked(BOOT_BYTES).unwrap_or((&[], &[]));
        let same_boot = then == boot();
        let mut slots = BTreeMap::new();
        let mut ends = BTreeMap::new();
        let mut at = BOOT_BYTES as u64;
        for entry in entries.chunks_exact(ENTRY_BYTES) {
            match decode(entry) {
                Some((place, end)) => {
                    slots.insert(place, at);
                    ends.insert(place, end);
                }
                None => tracing::warn!(file = NAME, at, "an entry is unreadable; it witnesses nothing"),
            }
            at += ENTRY_BYTES as u64;
        }
        Ok((Self { file, slots }, Witness { ends, same_boot }))
    }

    /// The log has been checked: from now on this file speaks of this start of the machine, and of these ends.
    pub(super) fn settle(&mut self, ends: impl Iterator<Item = ((u32, u32), u64)>) -> Result<()> {
        // Entries of what is no more must not speak again. Without entries, nothing is claimed.
        self.file.set_len(0)?;
        self.slots.clear();
        self.raise(ends)?;
        self.file.write_all_at(&boot(), 0)
    }

    /// Notes new ends.
    pub(super) fn raise(&mut self, ends: impl Iterator<Item = ((u32, u32), u64)>) -> Result<()> {
        for (place, end) in ends {
            let next = (BOOT_BYTES + self.slots.len() * ENTRY_BYTES) as u64;
            let at = *self.slots.entry(place).or_insert(next);
            self.file.write_all_at(&encode(place, end), at)?;
        }
        Ok(())
    }
}

fn encode((topic, partition): (u32, u32), end: u64) -> [u8; ENTRY_BYTES] {
    let mut entry = [0; ENTRY_BYTES];
    entry[..4].copy_from_slice(&topic.to_le_bytes());
    entry[4..8].copy_from_slice(&partition.to_le_bytes());
    entry[8..16].copy_from_slice(&end.to_le_bytes());
    entry[16..].copy_from_slice(&(!end).to_le_bytes());
    entry
}

fn decode(entry: &[u8]) -> Option<((u32, u32), u64)> {
    let (topic, rest) = entry.split_first_chunk()?;
    let (partition, rest) = rest.split_first_chunk()?;
    let (end, rest) = rest.split_first_chunk()?;
    let (inverse, _) = rest.split_first_chunk()?;
    let end = u64::from_le_bytes(*end);
    (u64::from_le_bytes(*inverse) == !end)
        .then(|| ((u32::from_le_bytes(*topic), u32::from_le_bytes(*partition)), end))
}

/// Names this start of the machine; all zero where the system does not say, which counts as the same start.
fn boot() -> [u8; BOOT_BYTES] {
    let mut boot = [0; BOOT_BYTES];
    if let Ok(text) = std::fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        let digits = text.bytes().filter(u8::is_ascii_hexdigit);
        boot.iter_mut().zip(digits).for_each(|(place, digit)| *place = digit);
    }
    boot
}
