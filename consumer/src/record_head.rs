//! Reads a delivered record: its head, and that all of it is well-formed.

use windfall_proto::record;
use windfall_proto::wire::{Malformed, Reader};

/// The field of a record that holds its events.
const EVENTS_FIELD: u64 = 6;

/// The content of a record's head, once the whole record is known to be well-formed.
#[derive(Debug)]
pub(crate) struct RecordHead<'a> {
    pub bonus_type: &'a str,
    pub attempt: u32,
    pub failures: u32,
    pub not_before_ms: i64,
    pub count: u32,
    /// Where the first event's field starts.
    pub events_at: usize,
}

/// Reads the head, and walks over all events, so that a record is granted whole or archived whole.
pub(crate) fn read(payload: &[u8]) -> Result<RecordHead<'_>, Malformed> {
    let (head, events) = record::split(payload)?;
    for event in events {
        event?;
    }
    Ok(RecordHead {
        bonus_type: head.bonus_type,
        attempt: head.attempt,
        failures: head.failures,
        not_before_ms: head.not_before_ms,
        count: head.count,
        events_at: events_at(payload)?,
    })
}

fn events_at(payload: &[u8]) -> Result<usize, Malformed> {
    let mut reader = Reader::new(payload);
    loop {
        let at = reader.position();
        if reader.field()?.0 == EVENTS_FIELD {
            return Ok(at);
        }
    }
}
