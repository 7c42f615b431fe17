//! Where a task lies, and who it is for.

use super::{DUE_MAX_MS, KEY_MAX_BYTES};
use std::fmt;
use std::str::FromStr;

/// A shard of a slot store: 0 to one less than the store's number of shards, which never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(pub u16);

/// A slot: the Unix minute in which its tasks are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotMinute(pub u32);

impl SlotMinute {
    /// The slot of a time.
    pub fn of(due_ms: u64) -> Self {
        Self(u32::try_from(due_ms.min(DUE_MAX_MS) / 60_000).unwrap_or(u32::MAX))
    }

    /// Unix milliseconds at which it begins.
    pub fn start_ms(self) -> u64 {
        u64::from(self.0) * 60_000
    }
}

/// The first index of tasks that were taken by the far tier. A slot of a store has fewer entries.
pub const FAR_INDEX: u32 = 1 << 31;

/// Says where a task lies: its shard, its slot, its place in the slot. As text: `0012-01c3a2f0-0000002a`, hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// Its shard.
    pub shard: Shard,
    /// Its slot.
    pub slot: SlotMinute,
    /// Its place in the slot's list, from 0.
    pub index: u32,
}

/// A task or the name of one is not what it has to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTask {
    /// Not the text of an id.
    #[error("`{0}` is not the id of a task, which looks like 0012-01c3a2f0-0000002a")]
    Id(String),
    /// A key that is empty or too long.
    #[error("a key has 1 to {KEY_MAX_BYTES} bytes, this one has {0}")]
    Key(usize),
}

impl TaskId {
    /// Whether the far tier gave it: its index is no place in a slot's list, but a store that the task was loaded into
    /// finds it by this id all the same.
    pub fn is_far(&self) -> bool {
        self.index >= FAR_INDEX
    }
}

/// An id as text, without memory of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskIdText([u8; 22]);

impl TaskId {
    /// As text: each task that fires needs it, so it costs no formatting and no memory.
    pub fn text(&self) -> TaskIdText {
        let mut text = [b'-'; 22];
        write_hex(&mut text[0..4], u32::from(self.shard.0));
        write_hex(&mut text[5..13], self.slot.0);
        write_hex(&mut text[14..22], self.index);
        TaskIdText(text)
    }
}

/// The lowest digits of a number, as many as there is room for.
fn write_hex(text: &mut [u8], number: u32) {
    let mut rest = number;
    for digit in text.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(rest & 0xf) as usize];
        rest >>= 4;
    }
}

impl TaskIdText {
    /// The 22 bytes of the text, which are ASCII.
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<str> for TaskIdText {
    fn as_ref(&self) -> &str {
        // Hexadecimal digits and dashes are text.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text().as_ref())
    }
}

impl FromStr for TaskId {
    type Err = InvalidTask;

    fn from_str(text: &str) -> Result<Self, InvalidTask> {
        let parse = || {
            let mut parts = text.split('-');
            let mut part = |digits: usize| {
                let part = parts.next().filter(|part| part.len() == digits)?;
                let is_plain = part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
                u32::from_str_radix(part, 16).ok().filter(|_| is_plain)
            };
            let (shard, slot, index) = (part(4)?, part(8)?, part(8)?);
            let id = Self { shard: Shard(u16::try_from(shard).ok()?), slot: SlotMinute(slot), index };
            parts.next().is_none().then_some(id)
        };
        parse().ok_or_else(|| InvalidTask::Id(text.chars().take(64).collect()))
    }
}

/// The tenant and the target of a task, as the numbers by which a store knows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// The tenant's number.
    pub tenant: u16,
    /// The number of the target among the tenant's own.
    pub target: u16,
}

/// A name that a caller gives to a task, unique among the waiting tasks of its tenant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskKey(Box<[u8]>);

impl TaskKey {
    /// A key of 1 to [`KEY_MAX_BYTES`] bytes.
    ///
    /// # Errors
    /// [`InvalidTask::Key`].
    pub fn new(bytes: &[u8]) -> Result<Self, InvalidTask> {
        match bytes.len() {
            1..=KEY_MAX_BYTES => Ok(Self(bytes.into())),
            other => Err(InvalidTask::Key(other)),
        }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The shard that a tenant's tasks of this key lie in: a hash of both, so that every instance looks in the same one.
    pub fn shard(&self, tenant: u16, shards: u16) -> Shard {
        let hash = crc32c::crc32c_append(crc32c::crc32c(&tenant.to_be_bytes()), &self.0);
        Shard(u16::try_from(hash % u32::from(shards.max(1))).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written_and_nothing_else_is() {
        let id = TaskId { shard: Shard(0x12), slot: SlotMinute(0x01c3_a2f0), index: 0x2a };
        assert_eq!(id.to_string(), "0012-01c3a2f0-0000002a");
        assert_eq!("0012-01c3a2f0-0000002a".parse(), Ok(id));
        for wrong in [
            "",
            "0012-01c3a2f0",
            "0012-01C3A2F0-0000002a",
            "0012-01c3a2f0-0000002a-",
            "+012-01c3a2f0-0000002a",
        ] {
            assert_eq!(wrong.parse::<TaskId>(), Err(InvalidTask::Id(wrong.into())), "{wrong}");
        }
    }

    #[test]
    fn a_time_has_one_slot_and_the_far_end_has_one_too() {
        assert_eq!(SlotMinute::of(59_999), SlotMinute(0));
        assert_eq!(SlotMinute::of(60_000), SlotMinute(1));
        assert_eq!(SlotMinute::of(u64::MAX), SlotMinute(u32::MAX));
        assert_eq!(SlotMinute::of(DUE_MAX_MS).start_ms() + 59_999, DUE_MAX_MS);
    }
}
