//! How a job is stored. Both forms are read by scripts inside Redis, too.
//!
//! A job that was never taken is a [`JobRecord`]:
//!
//! | bytes | what |
//! |---|---|
//! | 1 | flags: 1 has tries, 2 has a ttl, 4 has attributes; 255: the job was deleted, and nothing follows the id |
//! | 16 | the id |
//! | 2 | tries, where there are other than one |
//! | 4 | ttl in seconds, where it is another than [`TTL_DEFAULT_S`]; 0 is for ever |
//! | 2 + n | attributes, where there are any: their bytes, then each key and value behind its length of one byte |
//! | rest | the body |
//!
//! One that was taken is a [`HeldRecord`]: one byte of state (`L` leased, `R` ready again, `D` dead), six of the time at
//! which its ttl ends (0 is never), two of the tries that are left, and the `JobRecord`. Numbers are big-endian.

use super::{JobId, TTL_DEFAULT_S};
use bytes::{BufMut, Bytes, BytesMut};

/// The bytes of a record's flags and id.
pub const RECORD_HEAD_BYTES: usize = 17;
/// The flags of a job that was deleted while it waited.
pub const TOMBSTONE: u8 = 255;

const HAS_TRIES: u8 = 1;
const HAS_TTL: u8 = 2;
const HAS_ATTRIBUTES: u8 = 4;
const HELD_HEAD_BYTES: usize = 9;

/// Names and values that a publisher gave to a job.
pub type Attributes = Vec<(String, String)>;

/// A job as it was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRecord {
    /// Its id.
    pub id: JobId,
    /// How often it may be taken.
    pub tries: u16,
    /// How long it lives, from when it was published; 0 is for ever.
    pub ttl_s: u32,
    /// What its publisher said of it.
    pub attributes: Attributes,
    /// Its body.
    pub body: Bytes,
}

/// Where a job is that was taken at least once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldState {
    /// Somebody has it.
    Leased,
    /// It waits to be taken again.
    ReadyAgain,
    /// It is in the dead letter.
    Dead,
}

/// A job that was taken at least once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldRecord {
    /// Where it is.
    pub state: HeldState,
    /// When its ttl ends, in Unix milliseconds; 0 is never.
    pub expires_ms: u64,
    /// How often it may still be taken.
    pub tries_left: u16,
    /// As it was published.
    pub record: JobRecord,
}

/// The bytes are no job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the record of a job is damaged: {0}")]
pub struct RecordError(pub(super) &'static str);

const CUT: RecordError = RecordError("it is cut short");

/// The flags of a record, and what follows its id.
pub fn encode_tail(tries: u16, ttl_s: u32, attributes: &[(String, String)], body: &[u8]) -> (u8, Bytes) {
    let mut flags = 0;
    let mut tail = BytesMut::with_capacity(body.len() + 8);
    if tries != 1 {
        flags |= HAS_TRIES;
        tail.put_u16(tries);
    }
    if ttl_s != TTL_DEFAULT_S {
        flags |= HAS_TTL;
        tail.put_u32(ttl_s);
    }
    if !attributes.is_empty() {
        flags |= HAS_ATTRIBUTES;
        let mut all = BytesMut::new();
        for text in attributes.iter().flat_map(|(key, value)| [key, value]) {
            let short = &text.as_bytes()[..text.len().min(255)];
            all.put_u8(u8::try_from(short.len()).unwrap_or(u8::MAX));
            all.put_slice(short);
        }
        tail.put_u16(u16::try_from(all.len()).unwrap_or(u16::MAX));
        tail.put_slice(&all);
    }
    tail.put_slice(body);
    (flags, tail.freeze())
}

impl JobRecord {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let (flags, tail) = encode_tail(self.tries, self.ttl_s, &self.attributes, &self.body);
        let mut bytes = BytesMut::with_capacity(RECORD_HEAD_BYTES + tail.len());
        bytes.put_u8(flags);
        bytes.put_slice(self.id.as_bytes());
        bytes.put_slice(&tail);
        bytes.freeze()
    }

    /// Reads a record; `None` is a job that was deleted.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn decode(bytes: &Bytes) -> Result<Option<Self>, RecordError> {
        let flags = *bytes.first().ok_or(CUT)?;
        if flags == TOMBSTONE {
            return Ok(None);
        }
        if flags > HAS_TRIES | HAS_TTL | HAS_ATTRIBUTES {
            return Err(RecordError("it has a flag that this version does not know"));
        }
        let id = bytes.get(1..RECORD_HEAD_BYTES).and_then(|id| id.try_into().ok()).ok_or(CUT)?;
        let mut at = Reading { bytes, at: RECORD_HEAD_BYTES };
        let tries = if flags & HAS_TRIES == 0 { 1 } else { u16::from_be_bytes(at.array()?) };
        let ttl_s = if flags & HAS_TTL == 0 { TTL_DEFAULT_S } else { u32::from_be_bytes(at.array()?) };
        let mut attributes = Vec::new();
        if flags & HAS_ATTRIBUTES != 0 {
            let end = usize::from(u16::from_be_bytes(at.array()?)) + at.at;
            while at.at < end {
                attributes.push((at.text()?, at.text()?));
            }
        }
        let body = bytes.slice(at.at..);
        Ok(Some(Self { id: JobId::from_bytes(id), tries, ttl_s, attributes, body }))
    }

    /// When its ttl ends, in Unix milliseconds; 0 is never.
    pub fn expires_ms(&self) -> u64 {
        match self.ttl_s {
            0 => 0,
            ttl_s => self.id.published_ms() + u64::from(ttl_s) * 1_000,
        }
    }
}

impl HeldRecord {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let record = self.record.encode();
        let mut bytes = BytesMut::with_capacity(HELD_HEAD_BYTES + record.len());
        bytes.put_u8(match self.state {
            HeldState::Leased => b'L',
            HeldState::ReadyAgain => b'R',
            HeldState::Dead => b'D',
        });
        bytes.put_slice(&self.expires_ms.to_be_bytes()[2..]);
        bytes.put_u16(self.tries_left);
        bytes.put_slice(&record);
        bytes.freeze()
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn decode(bytes: &Bytes) -> Result<Self, RecordError> {
        if bytes.len() < HELD_HEAD_BYTES {
            return Err(CUT);
        }
        let state = match bytes[0] {
            b'L' => HeldState::Leased,
            b'R' => HeldState::ReadyAgain,
            b'D' => HeldState::Dead,
            _ => return Err(RecordError("it has a state that this version does not know")),
        };
        let mut expires = [0; 8];
        expires[2..].copy_from_slice(&bytes[1..7]);
        let tries_left = u16::from_be_bytes([bytes[7], bytes[8]]);
        let record = JobRecord::decode(&bytes.slice(HELD_HEAD_BYTES..))?;
        let record = record.ok_or(RecordError("it was deleted, and is held"))?;
        Ok(Self { state, expires_ms: u64::from_be_bytes(expires), tries_left, record })
    }
}

struct Reading<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl Reading<'_> {
    fn take(&mut self, len: usize) -> Result<&[u8], RecordError> {
        let taken = self.bytes.get(self.at..self.at + len).ok_or(CUT)?;
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        self.take(N)?.try_into().map_err(|_| CUT)
    }

    fn text(&mut self) -> Result<String, RecordError> {
        let [len] = self.array()?;
        let text = self.take(len.into())?;
        Ok(String::from_utf8_lossy(text).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_record() -> impl Strategy<Value = JobRecord> {
        let numbers = (any::<[u8; 16]>(), any::<u16>(), any::<u32>());
        let attributes = proptest::collection::vec(("[a-z]{1,32}", "[ -~]{0,128}"), 0..16);
        let body = proptest::collection::vec(any::<u8>(), 0..300);
        (numbers, attributes, body).prop_map(|((id, tries, ttl_s), attributes, body)| JobRecord {
            id: JobId::from_bytes(id),
            tries,
            ttl_s,
            attributes,
            body: body.into(),
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(record in any_record(), expires_ms in 0_u64..(1 << 48), tries_left: u16) {
            prop_assert_eq!(JobRecord::decode(&record.encode()), Ok(Some(record.clone())));
            for state in [HeldState::Leased, HeldState::ReadyAgain, HeldState::Dead] {
                let held = HeldRecord { state, expires_ms, tries_left, record: record.clone() };
                prop_assert_eq!(HeldRecord::decode(&held.encode()), Ok(held));
            }
        }

        #[test]
        fn any_bytes_are_a_record_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let bytes = Bytes::from(bytes);
            prop_assert!(JobRecord::decode(&bytes).is_ok() || JobRecord::decode(&bytes).is_err());
            prop_assert!(HeldRecord::decode(&bytes).is_ok() || HeldRecord::decode(&bytes).is_err());
        }
    }

    #[test]
    fn a_plain_job_has_seventeen_bytes_more_than_its_body() {
        let id = JobId::from_bytes([7; 16]);
        let body = Bytes::from(vec![7; 64]);
        let record = JobRecord { id, tries: 1, ttl_s: TTL_DEFAULT_S, attributes: Vec::new(), body };
        assert_eq!(record.encode().len(), 81);
        assert_eq!(JobRecord::decode(&Bytes::from(vec![TOMBSTONE; 17])), Ok(None));
    }
}
