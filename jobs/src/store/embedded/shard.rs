//! One shard: what of it is kept in memory, and the calls that change it.

use super::files::Files;
use super::rows::{self, Head};
use bytes::Bytes;
use std::collections::HashMap;
use std::ops::Bound;
use windfall_contract::entries::{
    ANSWER_MAX_BYTES, Applied, EntryChange, EntryError, EntryGroup, Expect, To, WAKE_MAX_MS, Woken,
};

/// Numbers that are set aside at a time. Those that are left when the store is closed are skipped.
const SET_ASIDE: u64 = 1_000;
/// Numbers are below this.
const NUMBERS_END: u64 = 1 << 50;

/// What of a shard is in memory: nothing for an entry.
pub(super) struct ShardState {
    number: u16,
    /// The version of the last change.
    version: u64,
    /// The last number that was given, and the last one that is set aside.
    given: u64,
    set_aside: u64,
    /// No row of a time to wake lies before this one: so the remains of rows that are gone are not looked at again.
    first_wake: Vec<u8>,
}

/// An entry that a call looks at: as it was, and as the groups of the call so far have made it.
struct Looked<'g> {
    before: Option<Head>,
    now: Option<Head>,
    /// What the call writes there.
    value: Option<&'g Bytes>,
    is_changed: bool,
}

type LookedAt<'g> = HashMap<&'g [u8], Looked<'g>>;

impl ShardState {
    pub(super) fn load(files: &Files, number: u16) -> Result<Self, EntryError> {
        let read = |letter| match files.get(&rows::of_shard(letter, number))? {
            Some(row) => rows::number(&row).map(|(found, _)| found),
            None => Ok(0),
        };
        let (version, set_aside) = (read(b'v')?, read(b'n')?);
        let first_wake = rows::of_shard(b'w', number);
        Ok(Self { number, version, given: set_aside, set_aside, first_wake })
    }

    /// Changes groups of entries in one step.
    pub(super) fn apply(
        &mut self,
        files: &Files,
        now_ms: u64,
        groups: &[EntryGroup],
    ) -> Result<Vec<Applied>, EntryError> {
        let mut looked = LookedAt::new();
        let (mut applied, mut version) = (Vec::with_capacity(groups.len()), self.version);
        for group in groups {
            applied.push(match group.not_after_ms.is_some_and(|last_ms| last_ms < now_ms) {
                true => Applied::Late,
                false if !self.all_as_expected(files, &group.changes, &mut looked)? => Applied::Conflict,
                false => {
                    version = next_version(version, now_ms)?;
                    change(&group.changes, version, &mut looked);
                    Applied::Done(version)
                }
            });
        }
        self.write(files, version, &looked)?;
        self.version = version;
        Ok(applied)
    }

    fn all_as_expected<'g>(
        &self,
        files: &Files,
        changes: &'g [EntryChange],
        looked: &mut LookedAt<'g>,
    ) -> Result<bool, EntryError> {
        for EntryChange { key, expect, .. } in changes {
            let now = match looked.get(key.as_bytes()) {
                Some(known) => known.now,
                None => {
                    let row = files.get(&rows::entry_row(self.number, key.as_bytes()))?;
                    let before = row.map(|row| Head::read(&row)).transpose()?;
                    let known = Looked { before, now: before, value: None, is_changed: false };
                    looked.insert(key.as_bytes(), known);
                    before
                }
            };
            let is_so = match expect {
                Expect::Anything => true,
                Expect::Absent => now.is_none(),
                Expect::Version(version) => now.is_some_and(|now| now.version == *version),
            };
            if !is_so {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes what has become of the entries.
    fn write(&mut self, files: &Files, version: u64, looked: &LookedAt<'_>) -> Result<(), EntryError> {
        let mut step = files.step();
        for (key, Looked { before, now, value, .. }) in looked.iter().filter(|(_, one)| one.is_changed) {
            match (now, value) {
                (Some(head), Some(value)) => {
                    step.put(rows::entry_row(self.number, key), head.with_value(value));
                }
                _ if before.is_some() => step.remove(rows::entry_row(self.number, key)),
                // Made and deleted by the same call.
                _ => {}
            }
            let (old, new) =
                (before.and_then(|head| head.wake_ms), now.as_ref().and_then(|head| head.wake_ms));
            if old == new {
                continue;
            }
            if let Some(wake_ms) = old {
                step.remove(rows::wake_row(self.number, wake_ms, key));
            }
            if let Some(wake_ms) = new {
                let row = rows::wake_row(self.number, wake_ms, key);
                if row < self.first_wake {
                    self.first_wake.clone_from(&row);
                }
                step.put(row, Bytes::new());
            }
        }
        // Also where a group wrote nothing: its version is an answer.
        if version != self.version {
            step.put(rows::of_shard(b'v', self.number), version.to_be_bytes().to_vec());
        }
        step.commit()
    }

    /// The entries whose time has come.
    pub(super) fn woken(&mut self, files: &Files, now_ms: u64, limit: usize) -> Result<Woken, EntryError> {
        let prefix = rows::of_shard(b'w', self.number);
        let mut woken = Woken { now_ms, ..Woken::default() };
        let (mut bytes, mut first) = (0, None);
        for row in files.range(&prefix, Bound::Included(self.first_wake.clone())) {
            let (row, _) = row?;
            let (wake_ms, key) = rows::read_wake_row(&row)?;
            if wake_ms > now_ms {
                break;
            }
            first.get_or_insert_with(|| row.to_vec());
            if woken.entries.len() == limit {
                woken.is_cut = true;
                break;
            }
            let entry = files.get(&rows::entry_row(self.number, key.as_bytes()))?;
            let entry = entry.ok_or_else(rows::damaged)?;
            bytes += key.as_bytes().len() + entry.len();
            if bytes > ANSWER_MAX_BYTES && !woken.entries.is_empty() {
                woken.is_cut = true;
                break;
            }
            woken.entries.push(rows::entry(key, &entry)?);
        }
        // A clock that went back does not take it back.
        let behind = || rows::wake_row(self.number, now_ms.min(WAKE_MAX_MS) + 1, &[]);
        self.first_wake = first.unwrap_or_else(behind).max(std::mem::take(&mut self.first_wake));
        Ok(woken)
    }

    /// Numbers that nobody had. They are set aside on the disk before they are given: whatever is lost there behind this,
    /// none is given twice.
    pub(super) fn numbers(&mut self, files: &Files, count: u32) -> Result<u64, EntryError> {
        let last = self.given + u64::from(count);
        if last > self.set_aside {
            let set_aside = last + SET_ASIDE;
            if set_aside >= NUMBERS_END {
                return Err(EntryError::Unusable("all numbers of the shard are given".into()));
            }
            let mut step = files.step();
            step.put(rows::of_shard(b'n', self.number), set_aside.to_be_bytes().to_vec());
            step.commit()?;
            files.sync_all()?;
            self.set_aside = set_aside;
        }
        let first = self.given + 1;
        self.given = last;
        Ok(first)
    }
}

/// Carries a group out, of which all expectations hold.
fn change<'g>(changes: &'g [EntryChange], version: u64, looked: &mut LookedAt<'g>) {
    for EntryChange { key, to, .. } in changes {
        let Some(entry) = looked.get_mut(key.as_bytes()) else { continue };
        (entry.now, entry.value) = match to {
            To::Same => continue,
            To::Put { value, wake_ms } => (Some(Head { version, wake_ms: *wake_ms }), Some(value)),
            To::Deleted => (None, None),
        };
        entry.is_changed = true;
    }
}

/// The version of the next change: the clock in microseconds, or one more than the last version where that is not less. So
/// a version that was lost with the machine is behind those that come when it is there again.
fn next_version(last: u64, now_ms: u64) -> Result<u64, EntryError> {
    /// From here on, in the year 2112, versions are counted.
    const CLOCK_END_US: u64 = 1 << 52;
    let now_us = now_ms.saturating_mul(1_000);
    let clock = if now_us < CLOCK_END_US { now_us } else { 0 };
    match clock.max(last + 1) {
        version if version < 1 << 53 => Ok(version),
        _ => Err(EntryError::Unusable("all versions of the shard are given".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_follow_the_clock_and_never_go_back() {
        assert_eq!(next_version(0, 5), Ok(5_000));
        assert_eq!(next_version(5_000, 5), Ok(5_001));
        assert_eq!(next_version(9_000, 5), Ok(9_001), "the clock has gone back");
        assert_eq!(next_version(9_000, u64::MAX), Ok(9_001), "no clock");
        assert!(next_version((1 << 53) - 1, 5).is_err());
    }
}
