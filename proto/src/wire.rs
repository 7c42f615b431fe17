//! The few protobuf encoders and decoders that borrowed views need.
//!
//! Encoding: <https://protobuf.dev/programming-guides/encoding/>. Zero values are left out, as proto3 does.

use bytes::BufMut;

/// Bytes that are not what the format says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed at byte {at}: {what}")]
pub struct Malformed {
    /// Offset of the first byte that does not fit.
    pub at: usize,
    /// What was expected there.
    pub what: &'static str,
}

/// Wire type of a varint field.
pub const VARINT: u64 = 0;
/// Wire type of a fixed 64-bit field.
pub const FIXED64: u64 = 1;
/// Wire type of a length-delimited field.
pub const LEN: u64 = 2;
/// Wire type of a fixed 32-bit field.
pub const FIXED32: u64 = 5;

/// Writes a varint.
#[inline]
pub fn put_varint(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8((value & 0x7f) as u8);
}

/// Bytes that [`put_varint`] writes for `value`: 1 to 10.
#[inline]
pub const fn varint_len(value: u64) -> usize {
    // Seven bits per byte; `| 1` makes zero take one byte.
    ((63 - (value | 1).leading_zeros()) / 7 + 1) as usize
}

/// Writes an unsigned field, nothing for 0.
#[inline]
pub fn put_u64(out: &mut impl BufMut, field: u32, value: u64) {
    if value != 0 {
        put_varint(out, u64::from(field) << 3 | VARINT);
        put_varint(out, value);
    }
}

/// Writes an `int64` field (two's complement, as protobuf does), nothing for 0.
#[inline]
pub fn put_i64(out: &mut impl BufMut, field: u32, value: i64) {
    put_u64(out, field, value.cast_unsigned());
}

/// Writes a length-delimited field even when empty (a repeated field's entry).
#[inline]
pub fn put_len(out: &mut impl BufMut, field: u32, value: &[u8]) {
    put_varint(out, u64::from(field) << 3 | LEN);
    put_varint(out, value.len() as u64);
    out.put_slice(value);
}

/// Writes a `string` or `bytes` field, nothing when empty.
#[inline]
pub fn put_bytes(out: &mut impl BufMut, field: u32, value: &[u8]) {
    if !value.is_empty() {
        put_len(out, field, value);
    }
}

/// Bytes that [`put_bytes`] writes for a field numbered below 16.
#[inline]
pub const fn bytes_field_len(len: usize) -> usize {
    if len == 0 { 0 } else { 1 + varint_len(len as u64) + len }
}

/// Bytes that [`put_u64`] writes for a field numbered below 16.
#[inline]
pub const fn u64_field_len(value: u64) -> usize {
    if value == 0 { 0 } else { 1 + varint_len(value) }
}

/// A cursor over encoded bytes.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// One field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// A varint.
    Varint(u64),
    /// A length-delimited field.
    Len(&'a [u8]),
    /// A fixed-width field, which no message of ours has; kept so that unknown fields can be passed over.
    Fixed,
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub const fn position(&self) -> usize {
        self.at
    }

    /// Nothing is left.
    pub const fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The error at this place.
    pub const fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { at: self.at, what }
    }

    /// Reads a varint of at most ten bytes.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let Some(&byte) = self.bytes.get(self.at) else {
                return Err(self.malformed("the rest of a varint"));
            };
            if shift == 63 && byte > 1 {
                return Err(self.malformed("a varint of 64 bits"));
            }
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.malformed("a varint of 64 bits"))
    }

    /// Takes `len` bytes.
    #[inline]
    pub fn take(&mut self, len: u64) -> Result<&'a [u8], Malformed> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        match end.and_then(|end| self.bytes.get(self.at..end)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(self.malformed("a field within the message")),
        }
    }

    /// Reads the next field: its number and value. Groups are malformed.
    #[inline]
    pub fn field(&mut self) -> Result<(u64, Value<'a>), Malformed> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            VARINT => Value::Varint(self.varint()?),
            LEN => {
                let len = self.varint()?;
                Value::Len(self.take(len)?)
            }
            FIXED64 => self.take(8).map(|_| Value::Fixed)?,
            FIXED32 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err(self.malformed("a known wire type")),
        };
        if tag >> 3 == 0 {
            return Err(self.malformed("a field number"));
        }
        Ok((tag >> 3, value))
    }
}

/// A `string` field's value.
#[inline]
pub fn text<'a>(value: Value<'a>, at: usize) -> Result<&'a str, Malformed> {
    match value {
        Value::Len(bytes) => std::str::from_utf8(bytes).map_err(|_| Malformed { at, what: "UTF-8 text" }),
        _ => Err(Malformed { at, what: "a length-delimited field" }),
    }
}

/// A `bytes` or message field's value.
#[inline]
pub fn blob<'a>(value: Value<'a>, at: usize) -> Result<&'a [u8], Malformed> {
    match value {
        Value::Len(bytes) => Ok(bytes),
        _ => Err(Malformed { at, what: "a length-delimited field" }),
    }
}

/// An `int64` field's value.
#[inline]
pub fn int64(value: Value<'_>, at: usize) -> Result<i64, Malformed> {
    match value {
        Value::Varint(number) => Ok(number.cast_signed()),
        _ => Err(Malformed { at, what: "a varint field" }),
    }
}

/// A `uint32` field's value; larger ones are malformed rather than cut.
#[inline]
pub fn uint32(value: Value<'_>, at: usize) -> Result<u32, Malformed> {
    match value {
        Value::Varint(number) => u32::try_from(number).map_err(|_| Malformed { at, what: "32 bits" }),
        _ => Err(Malformed { at, what: "a varint field" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_come_back(value: u64) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            prop_assert_eq!(out.len(), varint_len(value));
            let mut reader = Reader::new(&out);
            prop_assert_eq!(reader.varint(), Ok(value));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn any_bytes_end_without_panic(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes);
            while !reader.is_empty() && reader.field().is_ok() {}
        }
    }

    #[test]
    fn an_eleventh_byte_and_a_cut_varint_are_malformed() {
        assert!(Reader::new(&[0xff; 11]).varint().is_err());
        assert!(Reader::new(&[0x80]).varint().is_err());
    }
}
