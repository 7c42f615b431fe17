//! The bytes of a slot's list.
//!
//! | bytes | what | where |
//! |---|---|---|
//! | 1 | flags: 1 a key follows, 2 the asked due time follows, 4 the id that the task had first follows, 128 not a task but the end of an earlier one | all |
//! | 2 | due time: milliseconds since the slot began, big-endian | tasks |
//! | 2 + 2 | the tenant's and the target's number, big-endian | tasks |
//! | 1 + n | the key, behind its length | flag 1 |
//! | 8 | the due time that the caller asked for, where the store took the task later than that | flag 2 |
//! | 10 | the id under which the caller knows the task: shard, slot, index | flag 4 |
//! | rest | the payload | tasks |
//! | 4 | the index of the entry of this slot that was cancelled or moved | flag 128 |
//!
//! So a task with 64 bytes of payload has 71 bytes. The scripts of the store in Redis read and write parts of it, too: whoever
//! changes the form looks at `common.lua`, `add.lua`, `change.lua` and `end_dead.lua`.

use super::{KEY_MAX_BYTES, PAYLOAD_MAX_BYTES, Route, Shard, SlotMinute, TaskId, TaskKey};
use bytes::{BufMut, Bytes, BytesMut};

const WITH_KEY: u8 = 1;
const WITH_ASKED: u8 = 2;
const WITH_FIRST_ID: u8 = 4;
const END: u8 = 128;
/// Where the due offset stands.
const HEAD_BYTES: usize = 7;

/// A task as a slot keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueRecord {
    /// Milliseconds between the slot's beginning and the due time, below 60,000.
    pub offset_ms: u16,
    /// Whose it is, and where it goes.
    pub route: Route,
    /// The caller's own key.
    pub key: Option<TaskKey>,
    /// The due time that the caller asked for, where it had passed when the task was stored.
    pub asked_ms: Option<u64>,
    /// The id that the task had first, where it was moved since.
    pub first_id: Option<TaskId>,
    /// What the target gets.
    pub payload: Bytes,
}

/// An entry of a slot's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotEntry {
    /// A task.
    Task(DueRecord),
    /// The task at this index was cancelled or moved: it does not fire.
    End(u32),
}

/// The bytes are no entry of a slot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an entry of a slot is damaged: {0}")]
pub struct RecordError(pub &'static str);

impl SlotEntry {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Task(record) => record.encode(),
            Self::End(index) => {
                let mut bytes = BytesMut::with_capacity(5);
                bytes.put_u8(END);
                bytes.put_u32(*index);
                bytes.freeze()
            }
        }
    }

    /// Reads an entry.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn decode(bytes: &Bytes) -> Result<Self, RecordError> {
        match bytes.first() {
            None => Err(RecordError("it is empty")),
            Some(&END) => {
                let index = bytes[1..].try_into().map_err(|_| RecordError("an end has five bytes"))?;
                Ok(Self::End(u32::from_be_bytes(index)))
            }
            Some(_) => DueRecord::decode(bytes).map(Self::Task),
        }
    }
}

impl DueRecord {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(HEAD_BYTES + 32 + self.payload.len());
        let flag = |is_there: bool, flag: u8| if is_there { flag } else { 0 };
        bytes.put_u8(
            flag(self.key.is_some(), WITH_KEY)
                | flag(self.asked_ms.is_some(), WITH_ASKED)
                | flag(self.first_id.is_some(), WITH_FIRST_ID),
        );
        bytes.put_u16(self.offset_ms);
        bytes.put_u16(self.route.tenant);
        bytes.put_u16(self.route.target);
        if let Some(key) = &self.key {
            bytes.put_u8(u8::try_from(key.as_bytes().len()).unwrap_or(u8::MAX));
            bytes.put_slice(key.as_bytes());
        }
        if let Some(asked_ms) = self.asked_ms {
            bytes.put_u64(asked_ms);
        }
        if let Some(id) = self.first_id {
            bytes.put_u16(id.shard.0);
            bytes.put_u32(id.slot.0);
            bytes.put_u32(id.index);
        }
        bytes.put_slice(&self.payload);
        bytes.freeze()
    }

    fn decode(bytes: &Bytes) -> Result<Self, RecordError> {
        let mut at = Reading { bytes, at: 0 };
        let flags = at.u8()?;
        if flags & !(WITH_KEY | WITH_ASKED | WITH_FIRST_ID) != 0 {
            return Err(RecordError("it has a flag that this version does not know"));
        }
        let offset_ms = at.u16()?;
        if offset_ms >= 60_000 {
            return Err(RecordError("it is due after its slot"));
        }
        let route = Route { tenant: at.u16()?, target: at.u16()? };
        let key = match flags & WITH_KEY {
            0 => None,
            _ => {
                let len = usize::from(at.u8()?);
                let key = at.take(len)?;
                Some(TaskKey::new(&key).map_err(|_| RecordError("its key has no valid length"))?)
            }
        };
        let asked_ms = if flags & WITH_ASKED == 0 { None } else { Some(at.u64()?) };
        let first_id = if flags & WITH_FIRST_ID == 0 { None } else { Some(at.id()?) };
        let payload = at.rest();
        if payload.len() > PAYLOAD_MAX_BYTES {
            return Err(RecordError("its payload is too long"));
        }
        Ok(Self { offset_ms, route, key, asked_ms, first_id, payload })
    }
}

struct Reading<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl Reading<'_> {
    fn take(&mut self, len: usize) -> Result<Bytes, RecordError> {
        let end = self.at + len;
        if end > self.bytes.len() {
            return Err(RecordError("it is cut short"));
        }
        let taken = self.bytes.slice(self.at..end);
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        let taken = self.take(N)?;
        taken[..].try_into().map_err(|_| RecordError("it is cut short"))
    }

    fn u8(&mut self) -> Result<u8, RecordError> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, RecordError> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, RecordError> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, RecordError> {
        self.array().map(u64::from_be_bytes)
    }

    fn id(&mut self) -> Result<TaskId, RecordError> {
        Ok(TaskId { shard: Shard(self.u16()?), slot: SlotMinute(self.u32()?), index: self.u32()? })
    }

    fn rest(self) -> Bytes {
        self.bytes.slice(self.at..)
    }
}

const _: () = assert!(KEY_MAX_BYTES <= u8::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_record() -> impl Strategy<Value = DueRecord> {
        let key = proptest::option::of(proptest::collection::vec(any::<u8>(), 1..=KEY_MAX_BYTES));
        let id = (any::<u16>(), any::<u32>(), any::<u32>());
        let payload = proptest::collection::vec(any::<u8>(), 0..300);
        let numbers = (0_u16..60_000, any::<u16>(), any::<u16>(), any::<Option<u64>>());
        (numbers, key, proptest::option::of(id), payload).prop_map(|(numbers, key, id, payload)| DueRecord {
            offset_ms: numbers.0,
            route: Route { tenant: numbers.1, target: numbers.2 },
            key: key.map(|bytes| TaskKey::new(&bytes).expect("its length is valid")),
            asked_ms: numbers.3,
            first_id: id.map(|id| TaskId { shard: Shard(id.0), slot: SlotMinute(id.1), index: id.2 }),
            payload: payload.into(),
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(record in any_record()) {
            let entry = SlotEntry::Task(record);
            prop_assert_eq!(SlotEntry::decode(&entry.encode()), Ok(entry));
        }

        #[test]
        fn any_bytes_are_an_entry_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let bytes = Bytes::from(bytes);
            if let Ok(entry) = SlotEntry::decode(&bytes) {
                prop_assert_eq!(entry.encode(), bytes);
            }
        }
    }

    #[test]
    fn a_plain_task_has_seven_bytes_more_than_its_payload() {
        let route = Route { tenant: 1, target: 2 };
        let payload = Bytes::from(vec![7; 64]);
        let record = DueRecord { offset_ms: 3, route, key: None, asked_ms: None, first_id: None, payload };
        assert_eq!(record.encode().len(), 71);
        assert_eq!(SlotEntry::End(9).encode().len(), 5);
    }
}
