//! The id of a job.

use super::ready_ms;
use crate::due::{FAR_INDEX, Shard, SlotMinute, TaskId};
use std::fmt;
use std::str::FromStr;

/// Crockford's base 32, in which a ULID is written.
const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const TEXT_BYTES: usize = 26;
/// The bit of the time that a job with attributes has: its text begins with `1`.
const VERSIONED: u8 = 0x20;
/// The bits of a job's number in its shard.
const SEQUENCE_BITS: u32 = 39;
/// The bit behind them, which the id of a far job has. Below it are its timer's shard, whether the far tier gave the timer's
/// index, and this index.
const IS_FAR_JOB: u64 = 1 << SEQUENCE_BITS;
const TIMER_SHARD_BITS: u32 = 10;
const TIMER_INDEX_BITS: u32 = 28;

/// Names a job for ever: 16 bytes, in text a ULID of 26 characters.
///
/// Six bytes are the time at which it was published, by the store's clock; one is its shard, five its number among the
/// jobs of the shard, modulo 2³⁹, or for a [far job](super::FarJob) which timer it waits as; the last four are its delay in
/// seconds, little-endian, as clients read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId([u8; 16]);

/// The text is no id of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id of a job has 26 characters of Crockford's base 32")]
pub struct InvalidJobId;

impl JobId {
    /// The id of a shard's job with this number.
    pub fn new(published_ms: u64, shard: Shard, sequence: u64, delay_s: u32, is_versioned: bool) -> Self {
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&published_ms.to_be_bytes()[2..]);
        bytes[0] = (bytes[0] & !VERSIONED) | if is_versioned { VERSIONED } else { 0 };
        bytes[6] = shard.0.to_be_bytes()[1];
        bytes[7..12].copy_from_slice(&sequence.to_be_bytes()[3..]);
        bytes[12..].copy_from_slice(&delay_s.to_le_bytes());
        Self(bytes)
    }

    /// The id of the far job that waits as this timer, in a store with so many shards. `seed` says when it was published,
    /// its delay, and whether it has attributes. `None` where the timer is in another minute than the job is due, or has a
    /// number for which an id has no room.
    pub fn of_timer(timer: TaskId, seed: Self, shards: u16) -> Option<Self> {
        let TaskId { shard, slot, index } = timer;
        let number = index & !FAR_INDEX;
        let has_room = number >> TIMER_INDEX_BITS == 0 && shard.0 >> TIMER_SHARD_BITS == 0;
        if !has_room || slot != seed.due_minute() {
            return None;
        }
        let place = (u64::from(shard.0) << 1 | u64::from(timer.is_far())) << TIMER_INDEX_BITS;
        let sequence = IS_FAR_JOB | place | u64::from(number);
        // Numbers of an hour follow each other, whatever shard they are in.
        let own = Shard(u16::try_from(number % u32::from(shards.max(1))).unwrap_or(0));
        Some(Self::new(seed.published_ms(), own, sequence, seed.delay_s(), seed.is_versioned()))
    }

    /// The timer that a far job waits, or has waited, as; `None` for any other job.
    pub fn timer(&self) -> Option<TaskId> {
        let sequence = self.sequence();
        if sequence & IS_FAR_JOB == 0 {
            return None;
        }
        let number = u32::try_from(sequence & ((1 << TIMER_INDEX_BITS) - 1)).ok()?;
        let place = sequence >> TIMER_INDEX_BITS;
        let index = if place & 1 == 1 { FAR_INDEX | number } else { number };
        let shard = u16::try_from((place >> 1) & ((1 << TIMER_SHARD_BITS) - 1)).ok()?;
        Some(TaskId { shard: Shard(shard), slot: self.due_minute(), index })
    }

    fn due_minute(&self) -> SlotMinute {
        SlotMinute::of(ready_ms(self.published_ms(), self.delay_s()))
    }

    /// From the bytes of an earlier id.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// When it was published, in Unix milliseconds of the store's clock.
    pub fn published_ms(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes[2..].copy_from_slice(&self.0[..6]);
        bytes[2] &= !VERSIONED;
        u64::from_be_bytes(bytes)
    }

    /// Where it lies. An id that no store has given may name a shard that is not there.
    pub fn shard(&self) -> Shard {
        Shard(self.0[6].into())
    }

    /// Its number among the jobs of its shard, below [`SEQUENCES`](Self::SEQUENCES) where it is no far job.
    pub fn sequence(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes[3..].copy_from_slice(&self.0[7..12]);
        u64::from_be_bytes(bytes)
    }

    /// The delay that its publisher asked for.
    pub fn delay_s(&self) -> u32 {
        u32::from_le_bytes([self.0[12], self.0[13], self.0[14], self.0[15]])
    }

    /// Whether it was published with attributes.
    pub const fn is_versioned(&self) -> bool {
        self.0[0] & VERSIONED != 0
    }

    /// The numbers of a shard's jobs go on from 0 behind this one.
    pub const SEQUENCES: u64 = 1 << SEQUENCE_BITS;
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = u128::from_be_bytes(self.0);
        let mut text = [0; TEXT_BYTES];
        for (at, digit) in text.iter_mut().enumerate() {
            let five = (number >> (5 * (TEXT_BYTES - 1 - at))) & 31;
            *digit = DIGITS[usize::try_from(five).unwrap_or(0)];
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl FromStr for JobId {
    type Err = InvalidJobId;

    fn from_str(text: &str) -> Result<Self, InvalidJobId> {
        // The first digit has three bits.
        if text.len() != TEXT_BYTES || !text.starts_with(|first: char| ('0'..='7').contains(&first)) {
            return Err(InvalidJobId);
        }
        let mut number: u128 = 0;
        for byte in text.bytes() {
            let digit = DIGITS.iter().position(|digit| *digit == byte).ok_or(InvalidJobId)?;
            number = (number << 5) | digit as u128;
        }
        Ok(Self(number.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_id_says_what_it_was_made_of(
            published_ms in 0_u64..(1 << 45), shard in 0_u16..256, sequence in 0_u64..(1 << 40),
            delay_s: u32, is_versioned: bool,
        ) {
            let id = JobId::new(published_ms, Shard(shard), sequence, delay_s, is_versioned);
            prop_assert_eq!(id.published_ms(), published_ms);
            prop_assert_eq!((id.shard(), id.sequence()), (Shard(shard), sequence));
            prop_assert_eq!((id.delay_s(), id.is_versioned()), (delay_s, is_versioned));
            let text = id.to_string();
            prop_assert_eq!(text.parse(), Ok(id));
            prop_assert_eq!(text.len(), 26);
        }

        #[test]
        fn any_text_is_an_id_or_none(text in "[0-9A-Za-z-]{20,30}") {
            if let Ok(id) = text.parse::<JobId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }

    #[test]
    fn later_ids_sort_behind_and_one_with_attributes_begins_with_1() {
        let id = |ms, sequence, versioned| JobId::new(ms, Shard(3), sequence, 9, versioned).to_string();
        let now_ms = 1_800_000_000_000;
        assert!(
            id(now_ms, 7, false) < id(now_ms, 8, false) && id(now_ms, 8, false) < id(now_ms + 1, 0, false)
        );
        assert!(id(now_ms, 7, false).starts_with('0') && id(now_ms, 7, true).starts_with('1'));
        assert_eq!("81ARYZ6S41TSV4RRFFQ69G5FAV".parse::<JobId>(), Err(InvalidJobId));
    }
}
