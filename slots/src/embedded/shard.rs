//! One shard: what of it is kept in memory, and the steps that change it.

use super::files::{Files, Step};
use super::rows::{self, Key, Reading};
use bytes::{BufMut, Bytes};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use windfall_contract::due::{
    DUE_MAX_MS, DueRecord, FAR_INDEX, Shard, SlotEntry, SlotMinute, StoreError, TaskAt, TaskId,
};

/// The number of a slot's entries has not been looked up yet.
const UNKNOWN: u32 = u32::MAX;
/// The entries of a slot at most.
const ENTRIES_MAX: u32 = FAR_INDEX;

/// What of a shard is in memory: a few bytes for each slot, none for a task.
pub(super) struct ShardState {
    number: u16,
    /// Slots and the number of their entries.
    slots: BTreeMap<u32, u32>,
    counts: BTreeMap<u16, u64>,
    meta: Meta,
}

/// The row of a shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) watermark_ms: u64,
    pub(super) epoch: u64,
    /// The lease and the number of the last batch that was finished.
    pub(super) finished: (u64, u64),
    pub(super) lease_end_ms: u64,
    pub(super) owner: Option<String>,
}

/// The slots of all shards, which are bounded.
pub(super) struct SlotsBound {
    pub(super) count: AtomicUsize,
    pub(super) max: usize,
}

/// A task as it lies in its slot.
pub(super) struct Located {
    pub(super) slot: u32,
    pub(super) index: u32,
    pub(super) is_cancelled: bool,
    pub(super) record: DueRecord,
}

impl Located {
    pub(super) fn due_ms(&self) -> u64 {
        SlotMinute(self.slot).start_ms() + u64::from(self.record.offset_ms)
    }
}

impl ShardState {
    /// Reads a shard. What was due while the store was closed cannot be changed any more: the last watermarks before
    /// the machine died may not have reached the disk, and their tasks may have fired.
    pub(super) fn load(
        files: &Files,
        number: u16,
        now_ms: u64,
        bound: &SlotsBound,
    ) -> Result<Self, StoreError> {
        let meta = match files.get(&Key::of(b'm').u16(number).end())? {
            Some(bytes) => Meta::decode(&bytes)?,
            None => Meta::default(),
        };
        let prefix = Key::of(b's').u16(number).end();
        let mut slots = BTreeMap::new();
        for row in files.range(&prefix, Bound::Included(prefix.clone())) {
            slots.insert(Reading(&row?.0[prefix.len()..]).u32()?, UNKNOWN);
        }
        bound.count.fetch_add(slots.len(), SeqCst);
        let prefix = Key::of(b'n').u16(number).end();
        let mut counts = BTreeMap::new();
        for row in files.range(&prefix, Bound::Included(prefix.clone())) {
            let (key, value) = row?;
            counts.insert(Reading(&key[prefix.len()..]).u16()?, Reading(&value).u64()?);
        }
        let mut state = Self { number, slots, counts, meta };
        let now_ms = now_ms.min(DUE_MAX_MS);
        if state.meta.epoch > 0 && state.meta.watermark_ms < now_ms {
            // On the disk too: what fires under it must not become changeable again if the clock goes back.
            let mut step = ShardStep::begin(files, &mut state, bound);
            step.meta_mut().watermark_ms = now_ms;
            step.commit()?;
        }
        Ok(state)
    }

    pub(super) fn meta(&self) -> &Meta {
        &self.meta
    }

    pub(super) fn counts(&self) -> BTreeMap<u16, u64> {
        self.counts.clone()
    }

    /// The slots that begin before a time.
    pub(super) fn slots_before(&self, end_ms: u64) -> Vec<u32> {
        let before = self.slots.range(..).map(|(slot, _)| *slot);
        before.take_while(|slot| SlotMinute(*slot).start_ms() < end_ms).collect()
    }

    /// The entries of a slot; `None` where there is none.
    pub(super) fn entries(&mut self, files: &Files, slot: u32) -> Result<Option<u32>, StoreError> {
        let Some(entries) = self.slots.get_mut(&slot) else { return Ok(None) };
        if *entries == UNKNOWN {
            let prefix = Key::of(b'r').u16(self.number).u32(slot).end();
            let last = files.last(&prefix)?;
            let last = last.map(|key| Reading(&key[prefix.len()..]).u32()).transpose()?;
            *entries = last.map_or(0, |last| last + 1);
        }
        Ok(Some(*entries))
    }
}

impl Meta {
    pub(super) fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(48);
        for number in [self.watermark_ms, self.epoch, self.finished.0, self.finished.1, self.lease_end_ms] {
            bytes.put_u64(number);
        }
        bytes.extend_from_slice(self.owner.as_deref().unwrap_or_default().as_bytes());
        bytes.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let mut at = Reading(bytes);
        let (watermark_ms, epoch) = (at.u64()?, at.u64()?);
        let (finished, lease_end_ms) = ((at.u64()?, at.u64()?), at.u64()?);
        let owner = Some(at.text()?.to_owned()).filter(|owner| !owner.is_empty());
        Ok(Self { watermark_ms, epoch, finished, lease_end_ms, owner })
    }
}

/// A step in one shard: memory follows when the files have it.
pub(super) struct ShardStep<'s> {
    pub(super) files: &'s Files,
    pub(super) step: Step<'s>,
    state: &'s mut ShardState,
    bound: &'s SlotsBound,
    slots: BTreeMap<u32, u32>,
    dropped: Option<u32>,
    counts: BTreeMap<u16, u64>,
    meta: Option<Meta>,
}

impl<'s> ShardStep<'s> {
    pub(super) fn begin(files: &'s Files, state: &'s mut ShardState, bound: &'s SlotsBound) -> Self {
        let (slots, counts) = (BTreeMap::new(), BTreeMap::new());
        Self { files, step: files.step(), state, bound, slots, dropped: None, counts, meta: None }
    }

    pub(super) fn number(&self) -> u16 {
        self.state.number
    }

    pub(super) fn meta(&self) -> &Meta {
        self.meta.as_ref().unwrap_or(&self.state.meta)
    }

    pub(super) fn meta_mut(&mut self) -> &mut Meta {
        self.meta.get_or_insert_with(|| self.state.meta.clone())
    }

    /// The entries of a slot, those of this step included.
    pub(super) fn entries(&mut self, slot: u32) -> Result<Option<u32>, StoreError> {
        match self.slots.get(&slot) {
            Some(entries) => Ok(Some(*entries)),
            None => self.state.entries(self.files, slot),
        }
    }

    /// Appends an entry to a slot, and returns its index. With `is_read_again` this step may look at it again.
    pub(super) fn append(&mut self, slot: u32, entry: Bytes, is_read_again: bool) -> Result<u32, StoreError> {
        let index = self.keep_slot(slot)?;
        if index >= ENTRIES_MAX {
            return Err(StoreError::Unavailable("the slot is full".into()));
        }
        self.slots.insert(slot, index + 1);
        let key = rows::entry(b'r', self.state.number, slot, index);
        match is_read_again {
            true => self.step.put(key, entry),
            false => self.step.append(key, entry),
        }
        Ok(index)
    }

    /// The entries of a slot, which is there from now on.
    pub(super) fn keep_slot(&mut self, slot: u32) -> Result<u32, StoreError> {
        let entries = match self.entries(slot)? {
            Some(entries) => entries,
            None => {
                let count = self.bound.count.load(SeqCst) + self.slots.len();
                if count >= self.bound.max {
                    let what = format!("it has all of its {} slots; raise slots_max", self.bound.max);
                    return Err(StoreError::Unavailable(what));
                }
                0
            }
        };
        self.slots.insert(slot, entries);
        Ok(entries)
    }

    /// Where a task that is due then is stored: slot, place in it, and what was asked where that is another time.
    pub(super) fn place(&self, due_ms: u64) -> (u32, u16, Option<u64>) {
        let watermark_ms = self.meta().watermark_ms;
        let at_ms = due_ms.max(watermark_ms).min(DUE_MAX_MS);
        let slot = SlotMinute::of(at_ms);
        let offset_ms = u16::try_from(at_ms - slot.start_ms()).unwrap_or(0);
        (slot.0, offset_ms, (due_ms < watermark_ms).then_some(due_ms))
    }

    pub(super) fn count(&mut self, tenant: u16, more: u64, less: u64) {
        let was = self.counts.get(&tenant).or_else(|| self.state.counts.get(&tenant)).copied().unwrap_or(0);
        self.counts.insert(tenant, (was + more).saturating_sub(less));
    }

    pub(super) fn key_of(&self, tenant: u16, key: &[u8]) -> Vec<u8> {
        Key::of(b'k').u16(self.state.number).u16(tenant).bytes(key).end()
    }

    /// The task that a key leads to, if it is still there.
    pub(super) fn by_key(&mut self, tenant: u16, key: &[u8]) -> Result<Option<(u32, u32)>, StoreError> {
        let Some(row) = self.step.get(&self.key_of(tenant, key))? else { return Ok(None) };
        let (slot, index) = rows::read_place(&row)?;
        // One whose slot was dropped without freeing the key is over.
        Ok(self.entries(slot)?.is_some().then_some((slot, index)))
    }

    /// Finds a tenant's task, wherever it was moved.
    pub(super) fn locate(&mut self, tenant: u16, at: &TaskAt) -> Result<Option<Located>, StoreError> {
        let number = self.state.number;
        let (mut slot, mut index) = match at {
            TaskAt::Id(id) if id.shard == Shard(number) => (id.slot.0, id.index),
            TaskAt::Id(_) => return Ok(None),
            TaskAt::Key(key) => match self.by_key(tenant, key.as_bytes())? {
                Some(place) => place,
                None => return Ok(None),
            },
        };
        loop {
            let end = self.step.get(&rows::entry(b'e', number, slot, index))?;
            if let Some(moved) = end.as_ref().filter(|moved| !moved.is_empty()) {
                (slot, index) = rows::read_place(moved)?;
                continue;
            }
            let Some(bytes) = self.step.get(&rows::entry(b'r', number, slot, index))? else {
                return Ok(None);
            };
            let id = TaskId { shard: Shard(number), slot: SlotMinute(slot), index };
            return Ok(match decode(id, &bytes)? {
                SlotEntry::Task(record) if record.route.tenant == tenant => {
                    Some(Located { slot, index, is_cancelled: end.is_some(), record })
                }
                _ => None,
            });
        }
    }

    pub(super) fn drop_slot(&mut self, slot: u32) {
        self.dropped = Some(slot);
        let number = self.state.number;
        self.step.forget(Key::of(b's').u16(number).u32(slot).end());
        self.step.append(Key::of(b'z').u16(number).u32(slot).end(), Bytes::new());
    }

    /// Carries the step out.
    pub(super) fn commit(mut self) -> Result<(), StoreError> {
        let number = self.state.number;
        let is_new = |slot: &&u32| !self.state.slots.contains_key(slot);
        let new: Vec<u32> = self.slots.keys().filter(is_new).copied().collect();
        for slot in &new {
            self.step.append(Key::of(b's').u16(number).u32(*slot).end(), Bytes::new());
        }
        for (tenant, count) in &self.counts {
            let key = Key::of(b'n').u16(number).u16(*tenant).end();
            match count {
                0 => self.step.forget(key),
                count => self.step.append(key, count.to_be_bytes().to_vec().into()),
            }
        }
        if let Some(meta) = &self.meta {
            self.step.append(Key::of(b'm').u16(number).end(), meta.encode());
        }
        self.step.commit()?;
        self.bound.count.fetch_add(new.len(), SeqCst);
        self.state.slots.extend(self.slots);
        if let Some(slot) = self.dropped
            && self.state.slots.remove(&slot).is_some()
        {
            self.bound.count.fetch_sub(1, SeqCst);
        }
        for (tenant, count) in self.counts {
            match count {
                0 => self.state.counts.remove(&tenant),
                count => self.state.counts.insert(tenant, count),
            };
        }
        if let Some(meta) = self.meta {
            self.state.meta = meta;
        }
        Ok(())
    }
}

/// Reads an entry, and names it where it is damaged.
pub(super) fn decode(id: TaskId, bytes: &Bytes) -> Result<SlotEntry, StoreError> {
    SlotEntry::decode(bytes).map_err(|error| StoreError::Unusable(format!("{id}: {error}")))
}
