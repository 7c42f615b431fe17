//! What a store refuses whatever it is made of.

use std::ops::RangeInclusive;
use windfall_contract::due::Shard;
use windfall_contract::entries::{
    APPLY_MAX_BYTES, APPLY_MAX_CHANGES, CALL_MAX, EntryChange, EntryError, EntryGroup, EntryKey, GROUP_MAX,
    NUMBERS_MAX, SHARDS_MAX, To, VALUE_MAX_BYTES, WAKE_MAX_MS,
};

/// The numbers of shards that a store may have.
pub(super) const SHARDS: RangeInclusive<u16> = 1..=SHARDS_MAX;

fn unusable(what: impl Into<String>) -> EntryError {
    EntryError::Unusable(what.into())
}

pub(super) fn shard(shard: Shard, shards: u16) -> Result<(), EntryError> {
    match shard.0 < shards {
        true => Ok(()),
        false => Err(unusable(format!("there is no shard {}: the store has {shards}", shard.0))),
    }
}

pub(super) fn keys(keys: &[EntryKey]) -> Result<(), EntryError> {
    match keys.len() <= CALL_MAX {
        true => Ok(()),
        false => Err(unusable(format!("{} keys are asked for; {CALL_MAX} may be", keys.len()))),
    }
}

/// The entries that an answer may have.
pub(super) fn limit(asked: usize) -> usize {
    asked.clamp(1, CALL_MAX)
}

pub(super) fn numbers(count: u32) -> Result<(), EntryError> {
    match (1..=NUMBERS_MAX).contains(&count) {
        true => Ok(()),
        false => Err(unusable(format!("{count} numbers are asked for; 1 to {NUMBERS_MAX} may be"))),
    }
}

pub(super) fn groups(groups: &[EntryGroup]) -> Result<(), EntryError> {
    if groups.len() > CALL_MAX {
        return Err(unusable(format!("a call has {} groups; {CALL_MAX} are allowed", groups.len())));
    }
    let (mut changes, mut bytes) = (0, 0);
    for group in groups {
        self::group(group)?;
        changes += group.changes.len();
        bytes += group.changes.iter().map(len).sum::<usize>();
    }
    if changes > APPLY_MAX_CHANGES || bytes > APPLY_MAX_BYTES {
        return Err(unusable(format!(
            "a call has {changes} changes of {bytes} bytes; {APPLY_MAX_CHANGES} changes and {APPLY_MAX_BYTES} bytes are allowed"
        )));
    }
    Ok(())
}

fn len(change: &EntryChange) -> usize {
    let value = match &change.to {
        To::Put { value, .. } => value.len(),
        To::Deleted | To::Same => 0,
    };
    change.key.as_bytes().len() + value
}

fn group(group: &EntryGroup) -> Result<(), EntryError> {
    let EntryGroup { changes, .. } = group;
    if !(1..=GROUP_MAX).contains(&changes.len()) {
        return Err(unusable(format!("a group has {} changes; 1 to {GROUP_MAX} are allowed", changes.len())));
    }
    for change in changes {
        let To::Put { value, wake_ms } = &change.to else { continue };
        if value.len() > VALUE_MAX_BYTES {
            return Err(unusable(format!(
                "a value has {} bytes; {VALUE_MAX_BYTES} are allowed",
                value.len()
            )));
        }
        if wake_ms.is_some_and(|wake_ms| wake_ms >= WAKE_MAX_MS) {
            return Err(unusable(format!(
                "an entry is to be woken at {wake_ms:?}; times are below {WAKE_MAX_MS}"
            )));
        }
    }
    let mut keys: Vec<_> = changes.iter().map(|change| &change.key).collect();
    keys.sort_unstable();
    match keys.windows(2).any(|pair| pair[0] == pair[1]) {
        true => Err(unusable("a group names an entry twice")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use windfall_contract::entries::Expect;

    #[test]
    fn the_largest_group_fits_and_a_second_one_does_not() {
        let value = Bytes::from(vec![7; VALUE_MAX_BYTES]);
        let key = |at: usize| EntryKey::new(format!("{at:0512}").into_bytes()).unwrap();
        let put = |at| EntryChange {
            key: key(at),
            expect: Expect::Anything,
            to: To::Put { value: value.clone(), wake_ms: None },
        };
        let whole = EntryGroup { changes: (0..GROUP_MAX).map(put).collect(), not_after_ms: None };
        groups(std::slice::from_ref(&whole)).unwrap();
        assert!(groups(&[whole.clone(), whole]).is_err());
        let delete = EntryChange { key: key(1), expect: Expect::Anything, to: To::Deleted };
        let small = EntryGroup { changes: vec![delete.clone()], not_after_ms: None };
        groups(&vec![small.clone(); CALL_MAX]).unwrap();
        assert!(groups(&vec![small.clone(); CALL_MAX + 1]).is_err());
        let twice = EntryGroup { changes: vec![put(1), put(2), delete], not_after_ms: None };
        assert!(groups(&[twice]).unwrap_err().to_string().contains("twice"));
        let many = EntryGroup {
            changes: (0..11).map(|at| EntryChange { to: To::Same, ..put(at) }).collect(),
            not_after_ms: None,
        };
        assert!(groups(&vec![many; 1_000]).is_err(), "11,000 changes");
    }
}
