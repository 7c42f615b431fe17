//! A store of entries in memory, which fails, waits or lies as a test says.

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::due::{Durability, Shard};
use windfall_contract::entries::{
    Applied, Entry, EntryError, EntryGroup, EntryKey, EntryPage, EntryStore, Expect, To, Woken,
};

/// A call of the store.
pub(crate) enum Call<'c> {
    Read(&'c [EntryKey]),
    Apply(&'c [EntryGroup]),
    Scan(&'c [u8]),
    Woken,
    Numbers,
}

impl Call<'_> {
    /// Whether it has to do with a key that begins so.
    pub fn touches(&self, prefix: &[u8]) -> bool {
        let is_it = |key: &EntryKey| key.as_bytes().starts_with(prefix);
        match self {
            Self::Read(keys) => keys.iter().any(is_it),
            Self::Apply(groups) => {
                groups.iter().flat_map(|group| &group.changes).any(|change| is_it(&change.key))
            }
            Self::Scan(of) => of.starts_with(prefix),
            Self::Woken | Self::Numbers => false,
        }
    }
}

/// What the store does about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is done, and answered.
    None,
    /// It is not done.
    Fails,
    /// It is done, and the answer is lost.
    AnswerLost,
    /// It is done after so many milliseconds.
    After(u64),
    /// Somebody else was quicker.
    Conflict,
    Panics,
}

type Faults = Arc<dyn Fn(Shard, &Call<'_>) -> Fault + Send + Sync>;

#[derive(Default)]
struct State {
    entries: BTreeMap<(u16, Bytes), Entry>,
    version: u64,
    numbers: BTreeMap<u16, u64>,
}

pub(crate) struct FakeEntries {
    clock: Clock,
    shards: u16,
    state: Mutex<State>,
    faults: Mutex<Faults>,
    /// Whether it takes no new entries.
    is_full: Mutex<bool>,
    /// By how much its clock is ahead of the test's.
    ahead_ms: Mutex<u64>,
}

impl FakeEntries {
    pub fn new(clock: Clock, shards: u16) -> Arc<Self> {
        let faults: Faults = Arc::new(|_, _| Fault::None);
        let (faults, is_full, ahead_ms) = (Mutex::new(faults), Mutex::new(false), Mutex::default());
        Arc::new(Self { clock, shards, state: Mutex::default(), faults, is_full, ahead_ms })
    }

    pub fn fault(&self, faults: impl Fn(Shard, &Call<'_>) -> Fault + Send + Sync + 'static) {
        *self.faults.lock() = Arc::new(faults);
    }

    pub fn heal(&self) {
        self.fault(|_, _| Fault::None);
    }

    pub fn set_full(&self, is_full: bool) {
        *self.is_full.lock() = is_full;
    }

    /// Sets its clock, which is ahead of the test's by so much from now on.
    pub fn set_ahead_ms(&self, ahead_ms: u64) {
        *self.ahead_ms.lock() = ahead_ms;
    }

    /// What its clock says.
    pub fn now_ms(&self) -> u64 {
        self.clock.unix_ms() + *self.ahead_ms.lock()
    }

    pub fn entry(&self, shard: Shard, key: &EntryKey) -> Option<Entry> {
        self.state.lock().entries.get(&(shard.0, Bytes::copy_from_slice(key.as_bytes()))).cloned()
    }

    /// The values of all entries whose keys begin so.
    pub fn count(&self, prefix: &[u8]) -> usize {
        self.state.lock().entries.keys().filter(|(_, key)| key.starts_with(prefix)).count()
    }

    async fn call<T: Send>(
        &self,
        shard: Shard,
        call: Call<'_>,
        act: impl FnOnce(&mut State, bool) -> Result<T, EntryError> + Send,
    ) -> Result<T, EntryError> {
        // So that others are polled, as with a real store.
        tokio::task::yield_now().await;
        let faults = Arc::clone(&self.faults.lock());
        let fault = faults(shard, &call);
        let away = || EntryError::Unavailable("a test wants it".into());
        match fault {
            Fault::Fails => return Err(away()),
            Fault::Panics => panic!("a test wants it"),
            Fault::After(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            Fault::None | Fault::AnswerLost | Fault::Conflict => {}
        }
        let answer = act(&mut self.state.lock(), fault == Fault::Conflict);
        if fault == Fault::AnswerLost { Err(away()) } else { answer }
    }
}

impl State {
    fn holds(&self, shard: Shard, group: &EntryGroup) -> bool {
        group.changes.iter().all(|change| {
            let now = self.entries.get(&(shard.0, Bytes::copy_from_slice(change.key.as_bytes())));
            match change.expect {
                Expect::Anything => true,
                Expect::Absent => now.is_none(),
                Expect::Version(version) => now.is_some_and(|now| now.version == version),
            }
        })
    }

    fn make(&mut self, shard: Shard, group: &EntryGroup, version: u64) {
        for change in &group.changes {
            let key = (shard.0, Bytes::copy_from_slice(change.key.as_bytes()));
            match &change.to {
                To::Same => {}
                To::Deleted => drop(self.entries.remove(&key)),
                To::Put { value, wake_ms } => {
                    let (own, value, wake_ms) = (change.key.clone(), value.clone(), *wake_ms);
                    self.entries.insert(key, Entry { key: own, version, wake_ms, value });
                }
            }
        }
    }

    fn adds(&self, shard: Shard, group: &EntryGroup) -> bool {
        group.changes.iter().any(|change| {
            let key = (shard.0, Bytes::copy_from_slice(change.key.as_bytes()));
            matches!(change.to, To::Put { .. }) && !self.entries.contains_key(&key)
        })
    }
}

fn is_mark(key: &[u8]) -> bool {
    crate::book::MARKS.iter().any(|prefix| key.starts_with(prefix))
}

#[async_trait]
impl EntryStore for FakeEntries {
    fn shards(&self) -> u16 {
        self.shards
    }

    fn durability(&self) -> Durability {
        Durability::Process
    }

    async fn read(&self, shard: Shard, keys: &[EntryKey]) -> Result<Vec<Option<Entry>>, EntryError> {
        assert!(
            !keys.iter().any(|key| is_mark(key.as_bytes())),
            "a real store finds marks by scans alone: {keys:?}"
        );
        let read = |state: &mut State, _| {
            let of = |key: &EntryKey| (shard.0, Bytes::copy_from_slice(key.as_bytes()));
            Ok(keys.iter().map(|key| state.entries.get(&of(key)).cloned()).collect())
        };
        self.call(shard, Call::Read(keys), read).await
    }

    async fn apply(&self, shard: Shard, groups: &[EntryGroup]) -> Result<(u64, Vec<Applied>), EntryError> {
        let is_full = *self.is_full.lock();
        let changes = groups.iter().flat_map(|group| &group.changes);
        for change in changes.filter(|change| is_mark(change.key.as_bytes())) {
            let is_bare = matches!(&change.to, To::Deleted | To::Put { wake_ms: None, .. });
            assert!(
                is_bare && change.expect == Expect::Anything,
                "a real store keeps no more than its key: {change:?}"
            );
        }
        let apply = |state: &mut State, has_conflict: bool| {
            let is_to_add = |group: &EntryGroup| state.holds(shard, group) && state.adds(shard, group);
            if is_full && groups.iter().any(is_to_add) {
                return Err(EntryError::Unavailable("full".into()));
            }
            let mut applied = Vec::new();
            for group in groups {
                if has_conflict || !state.holds(shard, group) {
                    applied.push(Applied::Conflict);
                    continue;
                }
                state.version += 1;
                state.make(shard, group, state.version);
                applied.push(Applied::Done(state.version));
            }
            Ok((self.now_ms(), applied))
        };
        self.call(shard, Call::Apply(groups), apply).await
    }

    async fn scan(
        &self,
        shard: Shard,
        prefix: &[u8],
        after: Option<&EntryKey>,
        limit: usize,
    ) -> Result<EntryPage, EntryError> {
        let is_listed = |unlisted: &&[u8]| !prefix.starts_with(unlisted) && !unlisted.starts_with(prefix);
        assert!(crate::book::UNLISTED.iter().all(is_listed), "a real store does not list {prefix:?}");
        let scan = |state: &mut State, _| {
            let is_behind = |key: &Bytes| after.is_none_or(|after| key[..] > *after.as_bytes());
            let found = state
                .entries
                .iter()
                .filter(|((of, key), _)| *of == shard.0 && key.starts_with(prefix) && is_behind(key));
            let mut entries: Vec<Entry> = found.map(|(_, entry)| entry.clone()).take(limit + 1).collect();
            let is_cut = entries.len() > limit;
            entries.truncate(limit);
            let next = entries.last().filter(|_| is_cut).map(|entry| entry.key.clone());
            Ok(EntryPage { entries, next })
        };
        self.call(shard, Call::Scan(prefix), scan).await
    }

    async fn woken(&self, shard: Shard, limit: usize) -> Result<Woken, EntryError> {
        let woken = |state: &mut State, _| {
            let now_ms = self.now_ms();
            let of_shard = state.entries.iter().filter(|((of, _), _)| *of == shard.0);
            let mut entries: Vec<Entry> = of_shard
                .map(|(_, entry)| entry.clone())
                .filter(|entry| entry.wake_ms.is_some_and(|wake_ms| wake_ms <= now_ms))
                .collect();
            entries.sort_by_key(|entry| entry.wake_ms);
            let is_cut = entries.len() > limit;
            entries.truncate(limit);
            Ok(Woken { now_ms, entries, is_cut })
        };
        self.call(shard, Call::Woken, woken).await
    }

    async fn numbers(&self, shard: Shard, count: u32) -> Result<u64, EntryError> {
        let numbers = |state: &mut State, _| {
            let last = state.numbers.entry(shard.0).or_default();
            let first = *last + 1;
            *last += u64::from(count);
            Ok(first)
        };
        self.call(shard, Call::Numbers, numbers).await
    }
}
