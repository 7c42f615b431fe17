//! What fuzz targets reach of this crate, and nobody else. What is refused is `None`.

use crate::entry::Entry;
use crate::manifest;
use crate::row::Row;
use bytes::{Bytes, BytesMut};

/// Reads rows of an hour up to the end and writes them again; and how many there are.
pub fn rows(mut bytes: Bytes, hour: u32) -> Option<(Bytes, usize)> {
    let (mut written, mut count, mut before) = (BytesMut::new(), 0, None);
    while !bytes.is_empty() {
        let (key, row) = Row::decode(&mut bytes, before, hour).ok()?;
        row.encode(&mut written, before, key);
        (before, count) = (Some(key), count + 1);
    }
    Some((written.freeze(), count))
}

/// Reads entries of the log up to the end and writes them again; and how many there are.
pub fn entries(mut bytes: Bytes) -> Option<(Bytes, usize)> {
    let (mut written, mut count) = (BytesMut::new(), 0);
    while !bytes.is_empty() {
        Entry::decode(&mut bytes).ok()?.encode(&mut written);
        count += 1;
    }
    Some((written.freeze(), count))
}

/// Reads a manifest and writes it again.
pub fn manifest(bytes: &[u8]) -> Option<Bytes> {
    manifest::again(bytes)
}
