//! Jobs and runs as entries: keys, values, and typed reads. All of a job lies in one shard, which its numbers name.
//!
//! | key | value | woken |
//! |---|---|---|
//! | `n/` tenant, 0, name | the job's number | – |
//! | `d/` job | [`Definition`] | – |
//! | `s/` job | [`JobState`] | when the next occurrence is overdue |
//! | `v/` job, version | a [`Definition`] that was changed | – |
//! | `r/` run | [`Run`] | when it has to go on, and at last to be forgotten |
//! | `i/` job, run from above | nothing: the runs of a job, the newest first | – |
//! | `x/` tenant, 0, run | nothing: the dead runs | – |
//! | `f/` run | [`Following`]: the run has succeeded, and these children are still to be started | at once |
//! | `c/` parent's run, job | the child's run: the parent's run has started this job | to be forgotten, with the parent's run |
//! | `e/` tenant, 0, app, 0, address | [`Registered`](crate::executors::Registered) | when its heartbeat is missing |
//!
//! Numbers are written with eight bytes, the highest first. A number is `counter × 1024 + shard`.

use crate::definition::{Definition, JobName, JobNumber};
use crate::retention::Retention;
use crate::runs::{JobState, Keep, Run, RunNumber};
use bytes::Bytes;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use windfall_contract::due::Shard;
use windfall_contract::entries::{
    APPLY_MAX_BYTES, APPLY_MAX_CHANGES, Applied, CALL_MAX, Entry, EntryChange, EntryError, EntryGroup,
    EntryKey, EntryPage, EntryStore, Expect, To, Woken,
};

/// How the keys begin that are read and woken, and never scanned. One that was here once stays: its entries are not in the order
/// of keys, and a scan would find a part of them without an error.
#[cfg(any(test, feature = "redis"))]
pub(crate) const UNLISTED: [&[u8]; 4] = [b"s/", b"r/", b"f/", b"c/"];
/// How the keys begin of marks, of which a store may keep the key alone: see [`mark`].
#[cfg(any(test, feature = "redis"))]
pub(crate) const MARKS: [&[u8]; 2] = [b"i/", b"x/"];
const SHARD_BITS: u32 = 10;
/// Numbers that a process takes at once; what it does not use is skipped.
const NUMBERS_AT_ONCE: u32 = 1_000;

/// A value with the version in which it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept<T> {
    pub version: u64,
    pub is: T,
}

/// The children of a run that has succeeded, as far as they are not started yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Following {
    pub tenant: String,
    pub children: Vec<JobName>,
    /// When they are given up, by the clock of the parent's shard.
    pub until_ms: u64,
    /// How often it was tried in vain.
    #[serde(default)]
    pub tries: u32,
}

/// What a key names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    State(JobNumber),
    Run(RunNumber),
    /// Children of this run, which are to be started.
    Following(RunNumber),
    /// A mark or an executor, which is forgotten when it wakes.
    Passing,
    Other,
}

/// The shard in a number, whether or not the store has so many.
pub(crate) fn shard_bits(number: u64) -> u16 {
    u16::try_from(number & ((1 << SHARD_BITS) - 1)).unwrap_or(0)
}

/// Typed access to a store of entries.
pub(crate) struct Book {
    store: Arc<dyn EntryStore>,
    blocks: Vec<Mutex<Range<u64>>>,
    /// How long runs are kept.
    pub retention: Retention,
}

impl Book {
    pub fn new(store: Arc<dyn EntryStore>, retention: Retention) -> Self {
        let blocks = (0..store.shards()).map(|_| Mutex::new(0..0)).collect();
        Self { store, blocks, retention }
    }

    pub fn shards(&self) -> impl Iterator<Item = Shard> + use<> {
        (0..self.store.shards()).map(Shard)
    }

    /// The shard of a job's name.
    pub fn shard_of_name(&self, tenant: &str, name: &JobName) -> Shard {
        self.shard_of_text(&[tenant.as_bytes(), b"\0", name.as_str().as_bytes()].concat())
    }

    /// The shard of an app's executors.
    pub fn shard_of_app(&self, tenant: &str, app: &str) -> Shard {
        self.shard_of_text(&[tenant.as_bytes(), b"\0", app.as_bytes()].concat())
    }

    fn shard_of_text(&self, text: &[u8]) -> Shard {
        Shard(u16::try_from(crc32c::crc32c(text) % u32::from(self.store.shards())).unwrap_or(0))
    }

    /// The shard that a number names; `None` where it is no number of this store.
    pub fn shard_of(&self, number: u64) -> Option<Shard> {
        let shard = shard_bits(number);
        (shard < self.store.shards()).then_some(Shard(shard))
    }

    /// New numbers of a shard.
    pub async fn numbers(&self, shard: Shard, count: usize) -> Result<Vec<u64>, EntryError> {
        let mut counters = Vec::with_capacity(count);
        let Some(block) = self.blocks.get(usize::from(shard.0)) else {
            return Err(EntryError::Unusable(format!("there is no shard {}", shard.0)));
        };
        loop {
            counters.extend(block.lock().by_ref().take(count - counters.len()));
            if counters.len() == count {
                let number = |counter: u64| (counter << SHARD_BITS) | u64::from(shard.0);
                return Ok(counters.into_iter().map(number).collect());
            }
            let wanted = u32::try_from(count).unwrap_or(u32::MAX).max(NUMBERS_AT_ONCE);
            let first = self.store.numbers(shard, wanted).await?;
            // Where two calls have asked, the numbers of one of them are skipped.
            let end = first.saturating_add(u64::from(wanted));
            *block.lock() = first..end;
            self.retention.numbered(shard, end);
        }
    }

    /// A new number of a shard.
    pub async fn number(&self, shard: Shard) -> Result<u64, EntryError> {
        let none = || EntryError::Unusable("the store of entries gives no numbers".to_owned());
        self.numbers(shard, 1).await?.pop().ok_or_else(none)
    }

    /// Changes groups: the store's clock, and one answer for each. More than one call holds are made one after the other.
    pub async fn apply(
        &self,
        shard: Shard,
        groups: &[EntryGroup],
    ) -> Result<(u64, Vec<Applied>), EntryError> {
        let (mut now_ms, mut answers) = (0, Vec::with_capacity(groups.len()));
        let mut left = groups;
        while !left.is_empty() {
            let (part, rest) = left.split_at(fitting(left));
            let (at_ms, applied) = self.store.apply(shard, part).await?;
            now_ms = at_ms;
            answers.extend(applied);
            left = rest;
        }
        Ok((now_ms, answers))
    }

    /// Values under keys, with the versions in which they were read; an error where one cannot be read.
    pub async fn read<T: DeserializeOwned>(
        &self,
        shard: Shard,
        keys: &[EntryKey],
    ) -> Result<Vec<Result<Option<Kept<T>>, EntryError>>, EntryError> {
        let mut read = Vec::with_capacity(keys.len());
        for part in keys.chunks(CALL_MAX) {
            let entries = self.store.read(shard, part).await?;
            read.extend(entries.into_iter().map(|entry| entry.map(|entry| kept(&entry)).transpose()));
        }
        Ok(read)
    }

    /// The value under a key.
    pub async fn read_one<T: DeserializeOwned>(
        &self,
        shard: Shard,
        key: EntryKey,
    ) -> Result<Option<Kept<T>>, EntryError> {
        self.read(shard, &[key]).await?.pop().unwrap_or(Ok(None))
    }

    pub async fn woken(&self, shard: Shard) -> Result<Woken, EntryError> {
        self.store.woken(shard, CALL_MAX).await
    }

    pub async fn scan(
        &self,
        shard: Shard,
        prefix: &[u8],
        after: Option<&EntryKey>,
        limit: usize,
    ) -> Result<EntryPage, EntryError> {
        self.store.scan(shard, prefix, after, limit.clamp(1, CALL_MAX)).await
    }
}

/// How many of the first groups fit into one call; at least one.
fn fitting(groups: &[EntryGroup]) -> usize {
    let (mut changes, mut bytes) = (0, 0);
    let size = |change: &EntryChange| match &change.to {
        To::Put { value, .. } => change.key.as_bytes().len() + value.len(),
        To::Deleted | To::Same => change.key.as_bytes().len(),
    };
    let is_full = |group: &EntryGroup| {
        changes += group.changes.len();
        bytes += group.changes.iter().map(size).sum::<usize>();
        changes > APPLY_MAX_CHANGES || bytes > APPLY_MAX_BYTES
    };
    groups.iter().take(CALL_MAX).position(is_full).unwrap_or(groups.len().min(CALL_MAX)).max(1)
}

/// A value with its version.
pub(crate) fn kept<T: DeserializeOwned>(entry: &Entry) -> Result<Kept<T>, EntryError> {
    let wrong = |error| {
        let key = String::from_utf8_lossy(entry.key.as_bytes()).into_owned();
        EntryError::Unusable(format!("the entry {key:?} cannot be read: {error}"))
    };
    Ok(Kept { version: entry.version, is: serde_json::from_slice(&entry.value).map_err(wrong)? })
}

/// A value as it is stored. Our own types always can be.
pub(crate) fn value<T: Serialize>(value: &T) -> Bytes {
    serde_json::to_vec(value).unwrap_or_default().into()
}

pub(crate) fn change(key: EntryKey, expect: Expect, to: To) -> EntryChange {
    EntryChange { key, expect, to }
}

pub(crate) fn put<T: Serialize>(key: EntryKey, expect: Expect, is: &T, wake_ms: Option<u64>) -> EntryChange {
    change(key, expect, To::Put { value: value(is), wake_ms })
}

/// The change that writes a job's state, after an occurrence was decided so late.
pub(crate) fn put_state(number: JobNumber, expect: Expect, state: &JobState, late_ms: u64) -> EntryChange {
    put(state_key(number), expect, state, state.wake_ms(late_ms))
}

/// The changes that write a run: itself, and where it is listed.
pub(crate) fn put_run(number: RunNumber, expect: Expect, run: &Run, keep: Keep) -> Vec<EntryChange> {
    let mut changes = vec![put(run_key(number), expect, run, Some(run.wake_ms(keep)))];
    if expect == Expect::Absent {
        changes.push(mark(job_run_key(run.job, number)));
    }
    if run.is_dead() {
        changes.push(mark(dead_key(&run.tenant, number)));
    }
    changes
}

/// The changes that forget a run.
pub(crate) fn forget_run(number: RunNumber, expect: Expect, run: &Run) -> Vec<EntryChange> {
    vec![
        change(run_key(number), expect, To::Deleted),
        unmark(job_run_key(run.job, number)),
        unmark(dead_key(&run.tenant, number)),
    ]
}

/// The change that has a key found by scans. It is never read, and is put and deleted whatever was there.
fn mark(key: EntryKey) -> EntryChange {
    change(key, Expect::Anything, To::Put { value: Bytes::new(), wake_ms: None })
}

pub(crate) fn unmark(key: EntryKey) -> EntryChange {
    change(key, Expect::Anything, To::Deleted)
}

/// The change that leaves a run as it is, and has it looked at later.
pub(crate) fn push_run(number: RunNumber, expect: Expect, run: &Run, wake_ms: u64) -> EntryChange {
    put(run_key(number), expect, run, Some(wake_ms))
}

pub(crate) fn group(changes: Vec<EntryChange>) -> EntryGroup {
    EntryGroup { changes, not_after_ms: None }
}

pub(crate) fn name_key(tenant: &str, name: &str) -> EntryKey {
    key(b"n/", &[tenant.as_bytes(), b"\0", name.as_bytes()])
}

pub(crate) fn definition_key(number: JobNumber) -> EntryKey {
    key(b"d/", &[&number.0.to_be_bytes()])
}

pub(crate) fn state_key(number: JobNumber) -> EntryKey {
    key(b"s/", &[&number.0.to_be_bytes()])
}

pub(crate) fn version_key(number: JobNumber, version: u64) -> EntryKey {
    key(b"v/", &[&number.0.to_be_bytes(), &version.to_be_bytes()])
}

pub(crate) fn run_key(number: RunNumber) -> EntryKey {
    key(b"r/", &[&number.0.to_be_bytes()])
}

pub(crate) fn job_run_key(job: JobNumber, run: RunNumber) -> EntryKey {
    key(b"i/", &[&job.0.to_be_bytes(), &(u64::MAX - run.0).to_be_bytes()])
}

pub(crate) fn dead_key(tenant: &str, run: RunNumber) -> EntryKey {
    key(b"x/", &[tenant.as_bytes(), b"\0", &run.0.to_be_bytes()])
}

pub(crate) fn child_key(parent: RunNumber, job: JobNumber) -> EntryKey {
    key(b"c/", &[&parent.0.to_be_bytes(), &job.0.to_be_bytes()])
}

pub(crate) fn following_key(parent: RunNumber) -> EntryKey {
    key(b"f/", &[&parent.0.to_be_bytes()])
}

pub(crate) fn executor_key(tenant: &str, app: &str, address: &str) -> EntryKey {
    key(b"e/", &[tenant.as_bytes(), b"\0", app.as_bytes(), b"\0", address.as_bytes()])
}

/// Names are bounded where they are parsed, so that a key never is too long; one that would be is cut, and names nothing.
fn key(kind: &[u8], parts: &[&[u8]]) -> EntryKey {
    let mut bytes = kind.to_vec();
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes.truncate(windfall_contract::entries::KEY_MAX_BYTES);
    EntryKey::new(bytes).unwrap_or_else(|_| unreachable!("the kind is not empty, and the key was cut"))
}

/// What a key that was found names.
pub(crate) fn kind_of(key: &EntryKey) -> Kind {
    let Some((kind, rest)) = key.as_bytes().split_at_checked(2) else { return Kind::Other };
    let number = || rest.try_into().ok().map(u64::from_be_bytes);
    match kind {
        b"s/" => number().map_or(Kind::Other, |number| Kind::State(JobNumber(number))),
        b"r/" => number().map_or(Kind::Other, |number| Kind::Run(RunNumber(number))),
        b"f/" => number().map_or(Kind::Other, |number| Kind::Following(RunNumber(number))),
        b"c/" | b"e/" => Kind::Passing,
        _ => Kind::Other,
    }
}

/// The number at the end of a key of a list.
pub(crate) fn last_number(key: &EntryKey) -> Option<u64> {
    let bytes = key.as_bytes();
    let last = bytes.get(bytes.len().checked_sub(8)?..)?;
    Some(u64::from_be_bytes(last.try_into().ok()?))
}

/// Definitions that this process has read. One is good as long as the job's state is of its version.
#[derive(Default)]
pub(crate) struct Definitions(Mutex<Known>);

#[derive(Default)]
struct Known {
    by_job: HashMap<JobNumber, Arc<Definition>>,
    bytes: usize,
}

/// Bytes of all definitions that are remembered, as they are stored: those of about 100,000 jobs.
const DEFINITIONS_MAX_BYTES: usize = 128 << 20;
/// What a definition takes besides.
const DEFINITION_BYTES: usize = 512;

impl Definitions {
    pub fn get(&self, number: JobNumber, version: u64) -> Option<Arc<Definition>> {
        self.0.lock().by_job.get(&number).filter(|definition| definition.version == version).cloned()
    }

    pub fn put(&self, number: JobNumber, definition: Arc<Definition>) {
        if self.get(number, definition.version).is_some() {
            return;
        }
        let bytes = cost(&definition);
        let mut known = self.0.lock();
        if known.bytes.saturating_add(bytes) > DEFINITIONS_MAX_BYTES {
            known.forget_some();
        }
        known.bytes += bytes;
        if let Some(before) = known.by_job.insert(number, definition) {
            known.bytes = known.bytes.saturating_sub(cost(&before));
        }
    }
}

impl Known {
    fn forget_some(&mut self) {
        let mut freed = 0;
        forget_some(&mut self.by_job, |definition| freed += cost(definition));
        self.bytes = self.bytes.saturating_sub(freed);
    }
}

/// Forgets one in eight of what is remembered of jobs, whichever, and says which: jobs that fire in turn would find nothing of what
/// is forgotten in turn, too.
pub(crate) fn forget_some<V>(known: &mut HashMap<JobNumber, V>, mut forgotten: impl FnMut(&V)) {
    let mut at = 0;
    known.retain(|_, value| {
        at += 1;
        let stays = at % 8 != 0;
        if !stays {
            forgotten(value);
        }
        stays
    });
}

fn cost(definition: &Definition) -> usize {
    DEFINITION_BYTES + value(definition).len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::ChangeNote;

    #[test]
    fn definitions_are_remembered_up_to_their_bytes() {
        let known = Definitions::default();
        let spec = |params: usize| {
            let json = r#"{"destination": {"target": {"name": "t"}}, "schedule": {"at": {"time_ms": 5}}}"#;
            let spec: crate::definition::JobSpec = serde_json::from_str(json).unwrap();
            crate::definition::JobSpec { params: "x".repeat(params), ..spec }
        };
        let put = |number: u64, version, params| {
            let definition = Definition {
                tenant: "t".into(),
                name: JobName::new("job").unwrap(),
                version,
                change: ChangeNote::default(),
                is_paused: false,
                spec: spec(params),
            };
            known.put(JobNumber(number), Arc::new(definition));
        };
        for version in 1..=10_000 {
            put(7, version, 16 * 1024);
        }
        assert!(known.get(JobNumber(7), 10_000).is_some() && known.get(JobNumber(7), 9_999).is_none());
        assert!(known.0.lock().bytes < 32 * 1024, "one is remembered, and counted once");
        for number in 0..10_000 {
            put(number, 1, 16 * 1024);
            assert!(known.0.lock().bytes <= DEFINITIONS_MAX_BYTES);
        }
        assert!(known.get(JobNumber(9_999), 1).is_some());
        let room = DEFINITIONS_MAX_BYTES / (17 * 1024);
        let left = (0..10_000).filter(|number| known.get(JobNumber(*number), 1).is_some()).count();
        assert!(
            left > room / 2,
            "where there is no room for one more, not all are forgotten: {left} of {room}"
        );
    }
}
