//! A record (`BonusEventBatch`) as bytes: its head, then its events.
//!
//! Writers put the head's fields first, so a reader knows type, attempt, due time and count from the first
//! bytes and decodes no event. Any protobuf writer's record is read, as long as it keeps fields in order.

use crate::wire::{self, Malformed, Reader, Value};
use bytes::BufMut;
use std::ops::Range;

/// The number of events in a record at most. More would make one record too coarse a unit for limits and requeues.
pub const EVENTS_MAX: u32 = 4096;
/// Bytes of a bonus type's name: 1 to 32.
pub const TYPE_MAX_BYTES: usize = 32;
/// The most that [`Head::encode`] writes.
pub const HEAD_MAX_BYTES: usize = (2 + TYPE_MAX_BYTES) + 6 + 6 + 11 + 6;

const TYPE: u32 = 1;
const ATTEMPT: u32 = 2;
const FAILURES: u32 = 3;
const NOT_BEFORE_MS: u32 = 4;
const COUNT: u32 = 5;
const EVENTS: u32 = 6;

/// What a record says of itself before its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head<'a> {
    /// The bonus type of every event in it.
    pub bonus_type: &'a str,
    /// Requeues so far, of any cause.
    pub attempt: u32,
    /// Failed grants so far.
    pub failures: u32,
    /// Not to be granted before; Unix milliseconds, 0 for at once.
    pub not_before_ms: i64,
    /// Events in it.
    pub count: u32,
}

impl Head<'_> {
    /// Appends the head.
    pub fn encode(&self, out: &mut impl BufMut) {
        wire::put_bytes(out, TYPE, self.bonus_type.as_bytes());
        wire::put_u64(out, ATTEMPT, self.attempt.into());
        wire::put_u64(out, FAILURES, self.failures.into());
        wire::put_i64(out, NOT_BEFORE_MS, self.not_before_ms);
        wire::put_u64(out, COUNT, self.count.into());
    }

    /// Bytes that [`Head::encode`] appends.
    pub fn encoded_len(&self) -> usize {
        wire::bytes_field_len(self.bonus_type.len())
            + wire::u64_field_len(self.attempt.into())
            + wire::u64_field_len(self.failures.into())
            + wire::u64_field_len(self.not_before_ms.cast_unsigned())
            + wire::u64_field_len(self.count.into())
    }
}

/// Appends one event's bytes, framed as an entry of the record.
pub fn push_event(out: &mut impl BufMut, event: &[u8]) {
    wire::put_len(out, EVENTS, event);
}

/// Bytes that [`push_event`] appends for an event of `len` bytes.
pub const fn framed_len(len: usize) -> usize {
    1 + wire::varint_len(len as u64) + len
}

/// Reads the head and leaves the events undecoded.
///
/// # Errors
/// The head is not that of a record: unknown field before the events, no type, no events announced, or more
/// than [`EVENTS_MAX`].
pub fn split(record: &[u8]) -> Result<(Head<'_>, Events<'_>), Malformed> {
    let mut head = Head { bonus_type: "", attempt: 0, failures: 0, not_before_ms: 0, count: 0 };
    let mut reader = Reader::new(record);
    let mut events_at = 0;
    while !reader.is_empty() {
        let at = reader.position();
        let (field, value) = reader.field()?;
        match u32::try_from(field).unwrap_or(u32::MAX) {
            TYPE => head.bonus_type = wire::text(value, at)?,
            ATTEMPT => head.attempt = wire::uint32(value, at)?,
            FAILURES => head.failures = wire::uint32(value, at)?,
            NOT_BEFORE_MS => head.not_before_ms = wire::int64(value, at)?,
            COUNT => head.count = wire::uint32(value, at)?,
            EVENTS => break,
            _ => return Err(Malformed { at, what: "a field of a record's head" }),
        }
        events_at = reader.position();
    }
    if head.bonus_type.is_empty() || head.bonus_type.len() > TYPE_MAX_BYTES {
        return Err(Malformed { at: 0, what: "a bonus type" });
    }
    if head.count == 0 || head.count > EVENTS_MAX {
        return Err(Malformed { at: 0, what: "a count of events" });
    }
    Ok((head, Events { record, at: events_at, left: head.count }))
}

/// The events of a record, as ranges of its bytes. Iterate it; after the first error it ends.
///
/// It ends with an error when the record holds more or fewer events than its head announced.
#[derive(Debug, Clone)]
pub struct Events<'a> {
    record: &'a [u8],
    at: usize,
    left: u32,
}

impl Events<'_> {
    fn next_range(&mut self) -> Result<Range<usize>, Malformed> {
        let mut reader = Reader::new(&self.record[self.at..]);
        let (field, value) = reader.field().map_err(|bad| Malformed { at: bad.at + self.at, ..bad })?;
        let Value::Len(event) = value else {
            return Err(Malformed { at: self.at, what: "an event" });
        };
        if field != u64::from(EVENTS) {
            return Err(Malformed { at: self.at, what: "an event" });
        }
        self.at += reader.position();
        Ok(self.at - event.len()..self.at)
    }
}

impl Iterator for Events<'_> {
    type Item = Result<Range<usize>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let more = self.at < self.record.len();
        if self.left == 0 {
            let trailing = more.then_some(Malformed { at: self.at, what: "the end of the record" });
            self.at = self.record.len();
            return trailing.map(Err);
        }
        if !more {
            self.left = 0;
            return Some(Err(Malformed { at: self.at, what: "as many events as announced" }));
        }
        let range = self.next_range();
        match range {
            Ok(_) => self.left -= 1,
            Err(_) => {
                self.left = 0;
                self.at = self.record.len();
            }
        }
        Some(range)
    }
}

/// Builds a whole record from events' bytes.
pub fn build<'e>(head: Head<'_>, events: impl IntoIterator<Item = &'e [u8]> + Clone) -> Vec<u8> {
    let body: usize = events.clone().into_iter().map(|event| framed_len(event.len())).sum();
    let mut out = Vec::with_capacity(head.encoded_len() + body);
    head.encode(&mut out);
    for event in events {
        push_event(&mut out, event);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;
    use proptest::prelude::*;
    use prost::Message;

    fn head(count: u32) -> Head<'static> {
        Head { bonus_type: "cash", attempt: 3, failures: 1, not_before_ms: 1_800_000_000_000, count }
    }

    #[test]
    fn reads_what_prost_writes_and_writes_what_prost_reads() {
        let event = v1::BonusEvent { trade_no: "a-1".into(), ..Default::default() };
        let batch = v1::BonusEventBatch {
            r#type: "cash".into(),
            attempt: 3,
            failures: 1,
            not_before_ms: 1_800_000_000_000,
            count: 2,
            events: vec![event.clone(), event.clone()],
        };
        let bytes = event.encode_to_vec();
        let built = build(head(2), [bytes.as_slice(), bytes.as_slice()]);
        assert_eq!(built, batch.encode_to_vec());
        let (read, events) = split(&built).unwrap();
        assert_eq!(read, head(2));
        assert_eq!(
            events.map(|range| built[range.unwrap()].to_vec()).collect::<Vec<_>>(),
            [bytes.clone(), bytes]
        );
    }

    #[test]
    fn a_count_that_does_not_match_is_an_error_not_a_loss() {
        for announced in [1, 3] {
            let built = build(head(announced), [b"x".as_slice(), b"y"]);
            let (_, events) = split(&built).unwrap();
            assert!(events.last().unwrap().is_err(), "announced {announced}, holds 2");
        }
    }

    #[test]
    fn a_head_is_never_longer_than_its_maximum() {
        let widest = Head {
            bonus_type: &"t".repeat(TYPE_MAX_BYTES),
            attempt: u32::MAX,
            failures: u32::MAX,
            not_before_ms: -1,
            count: u32::MAX,
        };
        let mut out = Vec::new();
        widest.encode(&mut out);
        assert_eq!(out.len(), widest.encoded_len());
        assert_eq!(out.len(), HEAD_MAX_BYTES);
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_panic(bytes: Vec<u8>) {
            if let Ok((_, events)) = split(&bytes) {
                for range in events.flatten() {
                    prop_assert!(range.end <= bytes.len());
                }
            }
        }

        #[test]
        fn a_flipped_byte_never_panics(at in 0_usize..40, to: u8) {
            let mut built = build(head(2), [b"abc".as_slice(), b"defg"]);
            let at = at % built.len();
            built[at] = to;
            if let Ok((_, events)) = split(&built) {
                prop_assert!(events.count() <= EVENTS_MAX as usize + 1);
            }
        }
    }
}
