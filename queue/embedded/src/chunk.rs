//! A chunk: consecutive records of one partition, stored as one value under the first one's offset.
//! The store below costs a fixed amount per value, so small records share one; a large record is a chunk of its own.
//! Layout, little endian: `count u32`, then for each record `key_len u16, payload_len u32, key, payload`.

use bytes::Bytes;

/// A chunk is closed before it grows past this; a larger record is alone in its chunk.
pub(super) const CHUNK_BYTES: usize = 64 << 10;
const COUNT_BYTES: usize = 4;
const RECORD_HEADER_BYTES: usize = 6;
/// A chunk's first allocation; it doubles from there.
const FIRST_BYTES: usize = 1 << 10;

/// A chunk being filled.
#[derive(Debug, Default)]
pub(super) struct ChunkBuffer {
    bytes: Vec<u8>,
    count: u32,
}

impl ChunkBuffer {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether a record of this size belongs in the next chunk.
    pub(super) fn is_full_for(&self, key: &[u8], payload: &[u8]) -> bool {
        self.count > 0 && self.bytes.len() + RECORD_HEADER_BYTES + key.len() + payload.len() > CHUNK_BYTES
    }

    /// Appends a record. The caller has checked both lengths.
    pub(super) fn push(&mut self, key_len: u16, payload_len: u32, key: &[u8], payload: &[u8]) {
        let size = RECORD_HEADER_BYTES + key.len() + payload.len();
        if self.bytes.is_empty() {
            self.bytes.reserve_exact((COUNT_BYTES + size).max(FIRST_BYTES));
            self.bytes.extend_from_slice(&[0; COUNT_BYTES]);
        }
        self.bytes.extend_from_slice(&key_len.to_le_bytes());
        self.bytes.extend_from_slice(&payload_len.to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(payload);
        self.count += 1;
    }

    /// Closes the chunk: its record count and its bytes. Empties the buffer.
    pub(super) fn seal(&mut self) -> (u32, Bytes) {
        let mut bytes = std::mem::take(&mut self.bytes);
        let count = std::mem::take(&mut self.count);
        if let Some(head) = bytes.first_chunk_mut() {
            *head = count.to_le_bytes();
        }
        // The memtable keeps the allocation, and counts only what is used of it.
        bytes.shrink_to_fit();
        (count, Bytes::from(bytes))
    }
}

/// How many records a chunk holds; `None` if its head is cut off or says none.
pub(super) fn count(chunk: &[u8]) -> Option<u32> {
    chunk.first_chunk().map(|head| u32::from_le_bytes(*head)).filter(|count| *count > 0)
}

/// Reads a chunk's records in order, sharing its memory.
#[derive(Debug)]
pub(super) struct ChunkCursor {
    bytes: Bytes,
    at: usize,
    offset: u64,
    remaining: u32,
}

/// The error for bytes that do not follow the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Malformed;

impl ChunkCursor {
    /// A cursor on the record with offset `from`, which the chunk that starts at `base` must hold.
    pub(super) fn open(bytes: Bytes, base: u64, from: u64) -> Result<Self, Malformed> {
        let remaining = count(&bytes).ok_or(Malformed)?;
        let mut cursor = Self { bytes, at: COUNT_BYTES, offset: base, remaining };
        cursor.verify()?;
        if from < base {
            return Err(Malformed);
        }
        while cursor.offset < from {
            cursor.next().ok_or(Malformed)?;
        }
        if cursor.remaining == 0 { Err(Malformed) } else { Ok(cursor) }
    }

    /// The offset after the chunk's last record.
    pub(super) fn end(&self) -> u64 {
        self.offset + u64::from(self.remaining)
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The payload size of the next record.
    pub(super) fn peek_payload_bytes(&self) -> Option<usize> {
        if self.remaining == 0 { None } else { self.header().map(|(_, payload)| payload) }
    }

    /// The next record: offset, key, payload.
    pub(super) fn next(&mut self) -> Option<(u64, Bytes, Bytes)> {
        if self.remaining == 0 {
            return None;
        }
        let (key_bytes, payload_bytes) = self.header()?;
        let key_at = self.at + RECORD_HEADER_BYTES;
        let payload_at = key_at + key_bytes;
        let end = payload_at + payload_bytes;
        let key = self.bytes.slice(key_at..payload_at);
        let payload = self.bytes.slice(payload_at..end);
        let offset = self.offset;
        self.at = end;
        self.offset += 1;
        self.remaining -= 1;
        Some((offset, key, payload))
    }

    fn header(&self) -> Option<(usize, usize)> {
        let (key, rest) = self.bytes.get(self.at..)?.split_first_chunk()?;
        let payload = rest.first_chunk()?;
        let payload = usize::try_from(u32::from_le_bytes(*payload)).ok()?;
        Some((usize::from(u16::from_le_bytes(*key)), payload))
    }

    /// Walks the headers once, so that `next` never leaves the chunk.
    fn verify(&self) -> Result<(), Malformed> {
        let mut walk =
            Self { bytes: Bytes::new(), at: self.at, offset: self.offset, remaining: self.remaining };
        walk.bytes = self.bytes.clone();
        while walk.remaining > 0 {
            let (key, payload) = walk.header().ok_or(Malformed)?;
            walk.at += RECORD_HEADER_BYTES + key + payload;
            walk.remaining -= 1;
        }
        if walk.at == self.bytes.len() { Ok(()) } else { Err(Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(records: &[(&[u8], &[u8])]) -> (u32, Bytes) {
        let mut buffer = ChunkBuffer::default();
        for (key, payload) in records {
            buffer.push(key.len().try_into().unwrap(), payload.len().try_into().unwrap(), key, payload);
        }
        buffer.seal()
    }

    #[test]
    fn a_cursor_brings_what_was_pushed_from_any_record_on() {
        let (count, chunk) = sealed(&[(b"a", b"one"), (b"", b""), (b"ccc", b"three")]);
        assert_eq!(count, 3);
        let mut all = ChunkCursor::open(chunk.clone(), 10, 10).unwrap();
        assert_eq!(all.end(), 13);
        assert_eq!(all.next(), Some((10, Bytes::from_static(b"a"), Bytes::from_static(b"one"))));
        assert_eq!(all.next(), Some((11, Bytes::new(), Bytes::new())));
        let mut last = ChunkCursor::open(chunk.clone(), 10, 12).unwrap();
        assert_eq!(last.peek_payload_bytes(), Some(5));
        assert_eq!(last.next(), Some((12, Bytes::from_static(b"ccc"), Bytes::from_static(b"three"))));
        assert_eq!(last.next(), None);
        assert_eq!(ChunkCursor::open(chunk, 10, 13).unwrap_err(), Malformed);
    }

    #[test]
    fn a_chunk_that_is_cut_or_stretched_is_refused() {
        let (_, chunk) = sealed(&[(b"a", b"one"), (b"b", b"two")]);
        for len in 0..chunk.len() {
            assert!(ChunkCursor::open(chunk.slice(..len), 0, 0).is_err(), "cut to {len}");
        }
        let mut longer = chunk.to_vec();
        longer.push(0);
        assert!(ChunkCursor::open(longer.into(), 0, 0).is_err());
    }
}
