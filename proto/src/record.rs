//! A record (`BonusEventBatch`) as bytes: its head, then its events.
//!
//! Writers put the head's fields first, so a reader knows type, attempt, due time and count from the first
//! bytes and decodes no event. Any protobuf writer's record is read, as long as it keeps fields in order. Fields of
//! the head that a reader does not know are skipped, so that a newer writer can add some.

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
const SIGNATURE: u32 = 7;
const ORIGIN: u32 = 8;

/// The most that [`put_origin`] appends.
pub const ORIGIN_MAX_BYTES: usize = 6;

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

/// Appends the key number of the signature that a requeued record was verified by, which belongs to the head; nothing
/// for 0. Call it right after [`Head::encode`].
pub fn put_origin(out: &mut impl BufMut, origin: u32) {
    wire::put_u64(out, ORIGIN, origin.into());
}

/// Appends a signature. It is the last field before the events.
pub fn put_signature(out: &mut impl BufMut, signature: &[u8]) {
    wire::put_len(out, SIGNATURE, signature);
}

/// Bytes that [`put_signature`] appends for a signature of `len` bytes.
pub const fn signature_field_len(len: usize) -> usize {
    1 + wire::varint_len(len as u64) + len
}

/// A record as its signature covers it: every byte of it is in one of the three parts, but for the field number and the
/// length of the signature, which have one encoding each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignedParts<'a> {
    /// The head as it was written, without the signature.
    pub head: &'a [u8],
    /// The key number of the signature that the original of this requeued record was verified by; 0 where the record
    /// names none.
    pub origin: u32,
    /// The signature; `None` for a record without one.
    pub signature: Option<&'a [u8]>,
    /// All that follows the head: the framed events, if the record is well-formed.
    pub events: &'a [u8],
}

/// Splits a record into the parts that a signature covers, and decodes none of them. That a record can be split says
/// nothing about its events: read it by [`split`] once its signature was verified.
///
/// # Errors
/// The head cannot be read, or a signature is not the last field before the events.
pub fn signed_parts(record: &[u8]) -> Result<SignedParts<'_>, Malformed> {
    let mut parts = SignedParts { head: record, origin: 0, signature: None, events: &[] };
    let mut reader = Reader::new(record);
    while !reader.is_empty() {
        let at = reader.position();
        let (field, value) = reader.field()?;
        let field = u32::try_from(field).unwrap_or(u32::MAX);
        if parts.signature.is_some() && field != EVENTS {
            return Err(Malformed { at, what: "events right behind the signature" });
        }
        match field {
            EVENTS => {
                if parts.signature.is_none() {
                    parts.head = &record[..at];
                }
                parts.events = &record[at..];
                return Ok(parts);
            }
            SIGNATURE => {
                let signature = wire::blob(value, at)?;
                if reader.position() - at != signature_field_len(signature.len()) {
                    return Err(Malformed { at, what: "a signature in its shortest encoding" });
                }
                parts.head = &record[..at];
                parts.signature = Some(signature);
            }
            ORIGIN => parts.origin = wire::uint32(value, at)?,
            _ => {}
        }
    }
    Ok(parts)
}

/// Reads the head and leaves the events undecoded.
///
/// # Errors
/// The head is not that of a record: no type, no events announced, or more than [`EVENTS_MAX`].
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
            // The signature, which is verified elsewhere, and what newer writers add.
            _ => {}
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
    build_copy(head, 0, events)
}

/// Builds a whole record from the bytes of events that were verified before, by the key of this number (0: none).
pub fn build_copy<'e>(
    head: Head<'_>,
    origin: u32,
    events: impl IntoIterator<Item = &'e [u8]> + Clone,
) -> Vec<u8> {
    let body: usize = events.clone().into_iter().map(|event| framed_len(event.len())).sum();
    let mut out = Vec::with_capacity(head.encoded_len() + ORIGIN_MAX_BYTES + body);
    head.encode(&mut out);
    put_origin(&mut out, origin);
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
            ..Default::default()
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

    fn signed(signature: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        head(2).encode(&mut out);
        put_origin(&mut out, 7);
        put_signature(&mut out, signature);
        push_event(&mut out, b"abc");
        push_event(&mut out, b"defg");
        out
    }

    /// A reader that knows neither signatures nor what comes after them reads such a record all the same.
    #[test]
    fn a_head_with_unknown_fields_is_read() {
        let mut record = Vec::new();
        head(1).encode(&mut record);
        wire::put_u64(&mut record, 900, 1);
        wire::put_len(&mut record, 901, b"new");
        push_event(&mut record, b"abc");
        let (read, events) = split(&record).unwrap();
        assert_eq!((read, events.count()), (head(1), 1));
        let record = signed(b"sig");
        let (read, events) = split(&record).unwrap();
        assert_eq!(read, head(2));
        let events: Vec<_> = events.map(|range| record[range.unwrap()].to_vec()).collect();
        assert_eq!(events, [b"abc".to_vec(), b"defg".to_vec()]);
        // And one of the message's generated code.
        let read = v1::BonusEventBatch::decode(&record[..record.len() - 11]).unwrap();
        assert_eq!((read.signature, read.origin), (b"sig".to_vec(), 7));
    }

    #[test]
    fn the_parts_of_a_record_are_all_of_its_bytes() {
        let record = signed(b"sig");
        let parts = signed_parts(&record).unwrap();
        assert_eq!((parts.signature, parts.origin), (Some(b"sig".as_slice()), 7));
        let mut whole = parts.head.to_vec();
        put_signature(&mut whole, b"sig");
        whole.extend_from_slice(parts.events);
        assert_eq!(whole, record);
        let unsigned = [parts.head, parts.events].concat();
        let of_unsigned = signed_parts(&unsigned).unwrap();
        assert_eq!(of_unsigned, SignedParts { signature: None, ..parts });
    }

    #[test]
    fn a_signature_stands_right_before_the_events_and_once() {
        let (mut moved, mut twice, mut long) = (Vec::new(), Vec::new(), Vec::new());
        put_signature(&mut moved, b"sig");
        head(1).encode(&mut moved);
        head(1).encode(&mut twice);
        head(1).encode(&mut long);
        put_signature(&mut twice, b"sig");
        put_signature(&mut twice, b"sig");
        // Its length in two bytes, where one is enough.
        long.extend_from_slice(&[0x3a, 0x83, 0x00]);
        long.extend_from_slice(b"sig");
        for mut record in [moved, twice, long] {
            push_event(&mut record, b"abc");
            assert!(signed_parts(&record).is_err(), "{record:02x?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_have_parts_or_none(bytes: Vec<u8>) {
            if let Ok(parts) = signed_parts(&bytes) {
                prop_assert!(parts.head.len() + parts.events.len() <= bytes.len());
            }
        }

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
