//! Rows: what the far tier keeps, in the order in which it is loaded.
//!
//! | bytes | what | where |
//! |---|---|---|
//! | 1 | 0 a task, 1 cancelled, 2 moved near; 4 more: of the same shard and minute as the row before | all |
//! | 2 + 1 | shard, minute of the hour | without 4 |
//! | 1 to 5 | the number in the hour; with 4 the distance to the row before | all |
//! | 2 + 2 + 2 | milliseconds since the minute began, tenant, target | tasks |
//! | 1 to 3 + n | the payload behind its length | tasks |
//! | 2 | tenant | others |

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use windfall_contract::due::{FAR_INDEX, PAYLOAD_MAX_BYTES, Route, Shard, SlotMinute, TaskId};

/// The minutes of an hour.
const MINUTES: u32 = 60;
const SAME_CELL: u8 = 4;

/// Where a row stands. Rows of an hour are in the order in which they are loaded: by shard, by minute, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct RowKey {
    /// Hours since 1970.
    pub hour: u32,
    pub shard: u16,
    pub minute: u8,
    /// Given once in an hour.
    pub number: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FarTask {
    pub offset_ms: u16,
    pub route: Route,
    pub payload: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Row {
    Task(FarTask),
    /// It was cancelled by this tenant, whose it was.
    Cancelled(u16),
    /// It was moved, and has been near since.
    Moved(u16),
}

/// The bytes are no rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DamagedRow;

impl RowKey {
    /// Of an id that the far tier gave.
    pub fn of(id: TaskId) -> Option<Self> {
        let number = id.index.checked_sub(FAR_INDEX)?;
        let minute = u8::try_from(id.slot.0 % MINUTES).unwrap_or(0);
        Some(Self { hour: hour_of(id.slot), shard: id.shard.0, minute, number })
    }

    pub fn id(self) -> TaskId {
        TaskId { shard: Shard(self.shard), slot: self.slot(), index: FAR_INDEX | self.number }
    }

    pub fn slot(self) -> SlotMinute {
        SlotMinute(self.hour.saturating_mul(MINUTES).saturating_add(u32::from(self.minute)))
    }

    /// Before every row of the hour.
    pub fn first_of(hour: u32) -> Self {
        Self { hour, shard: 0, minute: 0, number: 0 }
    }
}

pub(crate) fn hour_of(slot: SlotMinute) -> u32 {
    slot.0 / MINUTES
}

impl Row {
    pub fn tenant(&self) -> u16 {
        match self {
            Self::Task(task) => task.route.tenant,
            Self::Cancelled(tenant) | Self::Moved(tenant) => *tenant,
        }
    }

    pub fn payload_bytes(&self) -> usize {
        match self {
            Self::Task(task) => task.payload.len(),
            Self::Cancelled(_) | Self::Moved(_) => 0,
        }
    }

    /// Writes it behind the row of `before`, which is of the same hour.
    pub fn encode(&self, into: &mut BytesMut, before: Option<RowKey>, key: RowKey) {
        let kind = match self {
            Self::Task(_) => 0,
            Self::Cancelled(_) => 1,
            Self::Moved(_) => 2,
        };
        let same = before.filter(|before| before.shard == key.shard && before.minute == key.minute);
        match same.and_then(|before| key.number.checked_sub(before.number)) {
            Some(distance) => {
                into.put_u8(kind | SAME_CELL);
                put_number(into, distance);
            }
            None => {
                into.put_u8(kind);
                into.put_u16(key.shard);
                into.put_u8(key.minute);
                put_number(into, key.number);
            }
        }
        match self {
            Self::Task(task) => {
                into.put_u16(task.offset_ms);
                into.put_u16(task.route.tenant);
                into.put_u16(task.route.target);
                put_number(into, u32::try_from(task.payload.len()).unwrap_or(u32::MAX));
                into.put_slice(&task.payload);
            }
            Self::Cancelled(tenant) | Self::Moved(tenant) => into.put_u16(*tenant),
        }
    }

    /// Reads the row of an hour that stands behind that of `before`.
    pub fn decode(from: &mut Bytes, before: Option<RowKey>, hour: u32) -> Result<(RowKey, Self), DamagedRow> {
        let kind = from.try_get_u8().map_err(|_| DamagedRow)?;
        let key = if kind & SAME_CELL == 0 {
            let shard = u16_of(from)?;
            let minute = from.try_get_u8().map_err(|_| DamagedRow)?;
            RowKey { hour, shard, minute, number: get_number(from)? }
        } else {
            let before = before.ok_or(DamagedRow)?;
            let number = before.number.checked_add(get_number(from)?).ok_or(DamagedRow)?;
            RowKey { number, ..before }
        };
        let row = match kind & !SAME_CELL {
            0 => {
                let offset_ms = u16_of(from)?;
                let route = Route { tenant: u16_of(from)?, target: u16_of(from)? };
                let len = usize::try_from(get_number(from)?).map_err(|_| DamagedRow)?;
                if len > from.len() || len > PAYLOAD_MAX_BYTES || offset_ms >= 60_000 {
                    return Err(DamagedRow);
                }
                Self::Task(FarTask { offset_ms, route, payload: from.split_to(len) })
            }
            1 => Self::Cancelled(u16_of(from)?),
            2 => Self::Moved(u16_of(from)?),
            _ => return Err(DamagedRow),
        };
        match u32::from(key.minute) < MINUTES {
            true => Ok((key, row)),
            false => Err(DamagedRow),
        }
    }
}

fn u16_of(from: &mut Bytes) -> Result<u16, DamagedRow> {
    from.try_get_u16().map_err(|_| DamagedRow)
}

/// Seven bits a byte, the lowest first; the highest bit says that more follow.
fn put_number(into: &mut BytesMut, mut number: u32) {
    loop {
        let low = u8::try_from(number & 0x7f).unwrap_or(0);
        number >>= 7;
        if number == 0 {
            into.put_u8(low);
            return;
        }
        into.put_u8(low | 0x80);
    }
}

fn get_number(from: &mut Bytes) -> Result<u32, DamagedRow> {
    let mut number = 0_u64;
    for shift in [0, 7, 14, 21, 28] {
        let byte = from.try_get_u8().map_err(|_| DamagedRow)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return u32::try_from(number).map_err(|_| DamagedRow);
        }
    }
    Err(DamagedRow)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(len: usize) -> Row {
        let payload = Bytes::from(vec![7; len]);
        Row::Task(FarTask { offset_ms: 59_999, route: Route { tenant: 1, target: 2 }, payload })
    }

    #[test]
    fn rows_are_read_as_they_are_written() {
        let at = |shard, minute, number| RowKey { hour: 500_000, shard, minute, number };
        let rows = [
            (at(0, 0, 0), task(0)),
            (at(0, 0, 1), task(64)),
            (at(0, 0, 300), Row::Cancelled(9)),
            (at(0, 59, 2), Row::Moved(u16::MAX)),
            (at(1_023, 59, FAR_INDEX - 1), task(PAYLOAD_MAX_BYTES)),
        ];
        let mut bytes = BytesMut::new();
        let mut before = None;
        for (key, row) in &rows {
            row.encode(&mut bytes, before, *key);
            before = Some(*key);
        }
        let mut bytes = bytes.freeze();
        let mut before = None;
        for expected in rows {
            let read = Row::decode(&mut bytes, before, 500_000).unwrap();
            before = Some(read.0);
            assert_eq!(RowKey::of(read.0.id()), Some(read.0));
            assert_eq!(read, expected);
        }
        assert!(bytes.is_empty());
    }

    #[test]
    fn a_task_has_about_ten_bytes_more_than_its_payload() {
        let mut bytes = BytesMut::new();
        let at = |number| RowKey { hour: 1, shard: 3, minute: 4, number };
        task(64).encode(&mut bytes, Some(at(5)), at(5_000));
        assert_eq!(bytes.len(), 64 + 10);
    }

    #[test]
    fn bytes_that_are_no_row_are_refused() {
        for wrong in [&[][..], &[3], &[4, 1], &[0, 0, 1, 60, 1], &[1, 0, 1, 2, 0x80, 0x80, 0x80, 0x80, 0x80]]
        {
            let mut bytes = Bytes::copy_from_slice(wrong);
            assert_eq!(Row::decode(&mut bytes, None, 1), Err(DamagedRow), "{wrong:?}");
        }
    }
}
