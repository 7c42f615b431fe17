//! The bytes of a task that was given up: when it was due and when it died, its attempts, the reason, its record.

use crate::checks::REASON_MAX_BYTES;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use windfall_contract::due::{DeadTask, SlotEntry, StoreError, TaskId};

const HEAD_BYTES: usize = 8 + 8 + 4 + 2;

/// All but the id, which is the key.
pub(crate) fn encode(dead: &DeadTask) -> Bytes {
    let mut end = dead.reason.len().min(REASON_MAX_BYTES);
    while !dead.reason.is_char_boundary(end) {
        end -= 1;
    }
    let record = dead.record.encode();
    let mut bytes = BytesMut::with_capacity(HEAD_BYTES + end + record.len());
    bytes.put_u64(dead.due_ms);
    bytes.put_u64(dead.died_ms);
    bytes.put_u32(dead.attempts);
    bytes.put_u16(u16::try_from(end).unwrap_or(0));
    bytes.put_slice(&dead.reason.as_bytes()[..end]);
    bytes.put_slice(&record);
    bytes.freeze()
}

pub(crate) fn decode(id: TaskId, mut bytes: Bytes) -> Result<DeadTask, StoreError> {
    let damaged = || StoreError::Unusable(format!("the dead letter {id} is damaged"));
    if bytes.len() < HEAD_BYTES {
        return Err(damaged());
    }
    let (due_ms, died_ms, attempts) = (bytes.get_u64(), bytes.get_u64(), bytes.get_u32());
    let reason_bytes = usize::from(bytes.get_u16());
    if bytes.len() < reason_bytes {
        return Err(damaged());
    }
    let reason = String::from_utf8(bytes.split_to(reason_bytes).to_vec()).map_err(|_| damaged())?;
    match SlotEntry::decode(&bytes) {
        Ok(SlotEntry::Task(record)) => Ok(DeadTask { id, due_ms, died_ms, attempts, reason, record }),
        _ => Err(damaged()),
    }
}
