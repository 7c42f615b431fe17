//! A hash with its expiry, as one command makes it: `RESTORE` takes what `DUMP` gives, an entry of the snapshot format
//! (RDB) that Redis documents by its source: `rdb.c`, `listpack.c`, `crc64.c` of Redis 7.0, format version 10. Later
//! servers read it too.
//!
//! A user's first tokens come by it. It costs the server less than `HSET` and `PEXPIREAT` do, and is carried out as a
//! whole: no lost connection leaves a hash without an expiry behind. Where the hash exists, the command is refused and
//! changes nothing.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// The number of tokens of one user that one command restores at most: servers keep up to 128 fields as a list in one
/// piece.
pub(super) const FIELDS_MAX: usize = 32;
/// A hash whose fields and values are one list (RDB's type 16).
const HASH_LISTPACK: u8 = 16;
const RDB_VERSION: u16 = 10;

/// A hash of these fields and values, for `RESTORE`, written into `dump`. Fields are different from each other.
pub(super) fn dump<'a>(fields: impl Iterator<Item = (&'a [u8], Vec<u8>)>, dump: &mut Vec<u8>) {
    dump.clear();
    // The type, a length of 32 bits, and the list's own head, which are filled in below.
    dump.extend_from_slice(&[HASH_LISTPACK, 0x80, 0, 0, 0, 0]);
    let start = dump.len();
    dump.extend_from_slice(&[0; 6]);
    let mut entries: u16 = 0;
    for (field, value) in fields {
        push(dump, field);
        push(dump, &value);
        entries += 2;
    }
    dump.push(0xff);
    let bytes = u32::try_from(dump.len() - start).unwrap_or(u32::MAX);
    dump[2..6].copy_from_slice(&bytes.to_be_bytes());
    dump[6..10].copy_from_slice(&bytes.to_le_bytes());
    dump[10..12].copy_from_slice(&entries.to_le_bytes());
    dump.extend_from_slice(&RDB_VERSION.to_le_bytes());
    dump.extend_from_slice(&crc64(dump).to_le_bytes());
}

/// Appends an entry: its length, its bytes, and the length of both, for reading backwards.
fn push(list: &mut Vec<u8>, bytes: &[u8]) {
    let start = list.len();
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let [_, _, high, low] = length.to_be_bytes();
    match length {
        0..64 => list.push(0x80 | low),
        64..4096 => list.extend_from_slice(&[0xe0 | high, low]),
        _ => {
            list.push(0xf0);
            list.extend_from_slice(&length.to_le_bytes());
        }
    }
    list.extend_from_slice(bytes);
    // Seven bits per byte, the highest first; all but the first are marked.
    let back = list.len() - start;
    // The bounds are Redis's own, which leave out the last value of two and of three bytes.
    let groups = match back {
        0..=127 => 1,
        128..16_383 => 2,
        16_383..2_097_151 => 3,
        2_097_151..268_435_455 => 4,
        _ => 5,
    };
    for group in (0..groups).rev() {
        let [low, ..] = (back >> (7 * group)).to_le_bytes();
        let mark = if group + 1 == groups { 0 } else { 0x80 };
        list.push(low & 0x7f | mark);
    }
}

/// CRC-64 with the polynomial of David Jones, as Redis has it: bits reflected, from zero. It takes eight bytes in each
/// step.
fn crc64(bytes: &[u8]) -> u64 {
    let mut steps = bytes.chunks_exact(8);
    let mut crc = 0_u64;
    for step in &mut steps {
        let mut mixed = crc.to_le_bytes();
        mixed.iter_mut().zip(step).for_each(|(mixed, byte)| *mixed ^= byte);
        let tables = TABLES.iter().rev();
        crc = mixed.iter().zip(tables).fold(0, |crc, (byte, table)| crc ^ table[usize::from(*byte)]);
    }
    steps.remainder().iter().fold(crc, |crc, byte| {
        let [low, ..] = crc.to_le_bytes();
        TABLES[0][usize::from(low ^ byte)] ^ (crc >> 8)
    })
}

const TABLES: [[u64; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut at = 0;
    // The index as a number of its own: a conversion is not const.
    let mut value: u64 = 0;
    while at < 256 {
        let mut crc = value;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 0 { crc >> 1 } else { (crc >> 1) ^ 0x95AC_9329_AC4B_C9B5 };
            bit += 1;
        }
        tables[0][at] = crc;
        at += 1;
        value += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut at = 0;
        while at < 256 {
            let crc: u64 = tables[table - 1][at];
            tables[table][at] = tables[0][crc.to_le_bytes()[0] as usize] ^ (crc >> 8);
            at += 1;
        }
        table += 1;
    }
    tables
};

/// The users who had a hash lately: `RESTORE` would be refused for them, which costs a round trip. It is a guess: an
/// error costs time and nothing else. I9: it takes 512 KiB.
pub(super) struct Seen(Box<[AtomicI64]>);

const PLACES: u64 = 1 << 16;

impl Default for Seen {
    fn default() -> Self {
        Self((0..PLACES).map(|_| AtomicI64::new(i64::MIN)).collect())
    }
}

impl Seen {
    fn place(&self, user_id: i64) -> &AtomicI64 {
        let mixed = user_id.cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        &self.0[usize::try_from(mixed % PLACES).unwrap_or(0)]
    }

    pub(super) fn has(&self, user_id: i64) -> bool {
        self.place(user_id).load(Relaxed) == user_id
    }

    pub(super) fn add(&self, user_id: i64) {
        self.place(user_id).store(user_id, Relaxed);
    }

    pub(super) fn remove(&self, user_id: i64) {
        if self.has(user_id) {
            self.place(user_id).store(i64::MIN, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_redis() {
        // The check value that `crc64.c` of Redis names.
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
        assert_eq!(crc64(b""), 0);
    }

    #[test]
    fn a_dump_is_laid_out_as_redis_reads_it() {
        let fields: [(&[u8], Vec<u8>); 1] = [(b"ab", vec![7; 70])];
        let mut dump = Vec::new();
        super::dump(fields.into_iter(), &mut dump);
        let list = 6 + (1 + 2 + 1) + (2 + 70 + 1) + 1;
        assert_eq!(dump[..6], [16, 0x80, 0, 0, 0, list]);
        assert_eq!(dump[6..12], [list, 0, 0, 0, 2, 0]);
        assert_eq!(dump[12..18], [0x82, b'a', b'b', 3, 0xe0, 70]);
        assert_eq!(dump[dump.len() - 12..dump.len() - 8], [72, 0xff, 10, 0]);
    }

    #[test]
    fn long_entries_say_their_length_backwards_too() {
        let mut list = Vec::new();
        push(&mut list, &[1; 300]);
        assert_eq!(list[..2], [0xe1, 44]);
        assert_eq!(list[302..], [2, 0x80 | 46]);
        list.clear();
        push(&mut list, &[1; 5_000]);
        assert_eq!(list[..5], [0xf0, 0x88, 0x13, 0, 0]);
        assert_eq!(list[5_005..], [39, 0x80 | 13]);
    }

    #[test]
    fn the_last_who_came_to_a_place_has_it() {
        let seen = Seen::default();
        assert!(!seen.has(7));
        seen.add(7);
        assert!(seen.has(7) && !seen.has(8));
        seen.remove(8);
        seen.remove(7);
        assert!(!seen.has(7));
    }
}
