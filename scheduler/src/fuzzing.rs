//! What fuzz targets reach of this crate, and nobody else.

use bytes::Bytes;

/// Reads a record of the queue of adds and writes it again; `None` where it is refused.
pub fn queued_add(record: &Bytes) -> Option<Bytes> {
    crate::add_queue::again(record)
}
