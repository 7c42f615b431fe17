//! One slot, as the owner of its shard reads, fires and finishes it.

use super::memory::{Memory, Need, cost_bytes};
use super::target_lane::TargetInfo;
use super::term::{HeldTask, Outcome, PutBack, What};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use windfall_contract::due::{DeadTask, DueRecord, FinishBatch, Shard, SlotMinute, SlotState, TaskId};

/// Tasks that are due within this time of the watermark are needed now.
const NEED_MS: u64 = 2_000;
/// Bytes of the done bitmap that lie between two changed ones and are written along with them.
const GAP_BYTES: u32 = 16;

/// What is known of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    /// A task in memory, not handed over yet.
    Held,
    /// A task that had no room in memory; it is read again.
    Deferred,
    /// A task that was handed over.
    Queued,
    /// It is over, or was no task.
    Over,
    /// It could not be read.
    Damaged,
}

/// An entry as it was read, its target known.
pub(super) enum ReadEntry {
    Task(DueRecord, Arc<TargetInfo>),
    End(u32),
    Damaged,
}

/// A task that waits for its time.
struct Waiting {
    task: HeldTask,
    info: Arc<TargetInfo>,
}

/// The tasks of one second.
#[derive(Default)]
struct Second {
    tasks: Vec<Waiting>,
    is_sorted: bool,
}

/// Tasks of one target that had no room.
#[derive(Clone)]
struct Deferred {
    info: Arc<TargetInfo>,
    first_index: u32,
    /// When the earliest one is due, and what it needs.
    earliest_ms: u64,
    earliest_bytes: usize,
}

impl Deferred {
    fn new(info: Arc<TargetInfo>, index: u32, due_ms: u64, bytes: usize) -> Self {
        Self { info, first_index: index, earliest_ms: due_ms, earliest_bytes: bytes }
    }

    /// Counts one more task in.
    fn add(&mut self, index: u32, due_ms: u64, bytes: usize) {
        self.first_index = self.first_index.min(index);
        if due_ms < self.earliest_ms {
            (self.earliest_ms, self.earliest_bytes) = (due_ms, bytes);
        }
    }

    /// Whether there is room for the earliest one. Where older minutes were made to leave for this one, any room will do.
    fn has_room(&self, memory: &Memory, minute: SlotMinute, need: Need) -> bool {
        let (target, bytes) = (&self.info.memory, self.earliest_bytes);
        let is_first = || self.info.is_newest_first() && self.info.shedding.is_above(minute);
        memory.is_roomy(target, bytes, need) || is_first() && memory.fits(target, bytes, need)
    }
}

/// See the module.
pub(super) struct Slot {
    minute: SlotMinute,
    /// How long before their time tasks are read. They are kept for twice as long, so that a slot that does not fit
    /// into the memory is read a few times, and not all the time.
    ahead_ms: u64,
    memory: Arc<Memory>,
    entries: Vec<Entry>,
    unfinished: usize,
    /// Tasks that were handed over and are not over.
    queued: usize,
    /// How many entries the store counted last.
    counted: u32,
    /// A watermark, and the entries that must have been read before it counts.
    pending: Option<(u64, u32)>,
    /// Every end that reached a task up to this time is known.
    fire_upto_ms: Option<u64>,
    /// Tasks by the second of the minute in which they are due: the second wheel.
    seconds: BTreeMap<u16, Second>,
    attempts: BTreeMap<u32, u32>,
    deferred: HashMap<usize, Deferred>,
    /// Where reading again stands, and what had no room since it began.
    again: Option<(u32, HashMap<usize, Deferred>)>,
    done: Vec<u8>,
    dirty: BTreeSet<u32>,
    finish: FinishBatch,
}

impl Slot {
    /// A slot with what earlier owners noted of it.
    pub fn new(minute: SlotMinute, state: SlotState, ahead_ms: u64, memory: Arc<Memory>) -> Self {
        Self {
            minute,
            ahead_ms,
            memory,
            entries: Vec::new(),
            unfinished: 0,
            queued: 0,
            counted: 0,
            pending: None,
            fire_upto_ms: None,
            seconds: BTreeMap::new(),
            attempts: state.attempts,
            deferred: HashMap::new(),
            again: None,
            done: state.done.into(),
            dirty: BTreeSet::new(),
            finish: FinishBatch::default(),
        }
    }

    /// How many entries were read.
    pub fn read_count(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    /// Whether entries are there that were not read.
    pub fn is_behind(&self) -> bool {
        self.read_count() < self.counted
    }

    /// Whether it is to be dropped: all that it will ever have was read, is over, and is noted.
    pub fn is_over(&self, watermark_ms: u64) -> bool {
        self.minute < SlotMinute::of(watermark_ms)
            && !self.is_behind()
            && self.unfinished == 0
            && !self.has_news()
    }

    /// Whether nothing of it is in memory but what is known of its entries, and there is no room for more: it can be
    /// closed, and opened again later.
    pub fn is_idle(&self) -> bool {
        let has_room =
            self.deferred.values().any(|deferred| deferred.has_room(&self.memory, self.minute, Need::Now));
        let is_read = !self.is_behind() && self.again.is_none();
        is_read && self.queued == 0 && self.seconds.is_empty() && !self.has_news() && !has_room
    }

    /// Whether what had no room is being read again.
    pub fn is_reading_again(&self) -> bool {
        self.again.is_some()
    }

    /// Whether a target that takes the newest tasks first has some here that had no room.
    pub fn has_newest_first(&self) -> bool {
        self.deferred.values().any(|deferred| deferred.info.is_newest_first())
    }

    /// Where to read again what had no room, if there is room now.
    pub fn read_again_from(&mut self, watermark_ms: u64) -> Option<u32> {
        if self.again.is_none() {
            let is_worth_it = |deferred: &Deferred| {
                let is_roomy = |need| deferred.has_room(&self.memory, self.minute, need);
                let left_ms = deferred.earliest_ms.saturating_sub(watermark_ms);
                let is_needed = left_ms <= NEED_MS;
                let is_worth_it =
                    is_needed && is_roomy(Need::Now) || left_ms <= self.ahead_ms / 2 && is_roomy(Need::Ahead);
                if is_needed && !is_worth_it && deferred.info.is_newest_first() {
                    deferred.info.shedding.want(self.minute);
                }
                is_worth_it
            };
            if !self.deferred.values().any(is_worth_it) {
                return None;
            }
            let first_index = self.deferred.values().map(|deferred| deferred.first_index).min()?;
            self.again = Some((first_index, HashMap::new()));
        }
        self.again.as_ref().map(|(next_index, _)| *next_index)
    }

    /// Takes entries in, as they were read from `first_index` on. Returns how many of them had no room.
    pub fn take_in(&mut self, first_index: u32, entries: Vec<ReadEntry>, watermark_ms: u64) -> u64 {
        let mut without_room = 0;
        let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        for (index, entry) in (first_index..).zip(entries) {
            let at = wide(index);
            if at > self.entries.len() {
                break;
            }
            if at < self.entries.len() {
                // It was read before: what had no room then may have some now.
                if let (Entry::Deferred, ReadEntry::Task(record, info)) = (self.entries[at], entry) {
                    self.entries[at] = self.hold(index, record, info, watermark_ms);
                }
                continue;
            }
            let entry = match entry {
                ReadEntry::Damaged => Entry::Damaged,
                ReadEntry::End(ended) => {
                    self.end(ended);
                    self.mark(index);
                    Entry::Over
                }
                ReadEntry::Task(..) if self.is_marked(index) => Entry::Over,
                ReadEntry::Task(record, info) => self.hold(index, record, info, watermark_ms),
            };
            without_room += u64::from(entry == Entry::Deferred);
            self.unfinished += usize::from(entry != Entry::Over);
            self.entries.push(entry);
        }
        let read_count = self.read_count();
        if let Some((next_index, _)) =
            self.again.as_mut().filter(|(next_index, _)| *next_index == first_index)
        {
            *next_index = next_index.saturating_add(count).min(read_count);
            if *next_index == read_count
                && let Some((_, left)) = self.again.take()
            {
                self.deferred = left;
            }
        }
        without_room
    }

    /// The store has counted so many entries at this watermark, and what it gave of them was taken in.
    pub fn saw(&mut self, watermark_ms: u64, counted: u32) {
        self.counted = self.counted.max(counted);
        let read_count = self.read_count();
        if read_count >= counted {
            self.fire_upto_ms = Some(watermark_ms);
            self.pending = None;
            return;
        }
        match self.pending {
            Some((pending_ms, needed)) if read_count >= needed => {
                self.fire_upto_ms = Some(pending_ms);
                self.pending = Some((watermark_ms, counted));
            }
            Some(_) => {}
            None => self.pending = Some((watermark_ms, counted)),
        }
    }

    /// Takes out the tasks that may be handed over, the earliest first. I10: none above the watermark, and none before
    /// every end that reached it is known.
    pub fn take_due(&mut self, mut each: impl FnMut(&Arc<TargetInfo>, HeldTask)) {
        let Some(upto_ms) = self.fire_upto_ms.and_then(|upto_ms| upto_ms.checked_sub(self.minute.start_ms()))
        else {
            return;
        };
        let upto_ms = u16::try_from(upto_ms).unwrap_or(u16::MAX);
        while let Some(mut second) =
            self.seconds.first_entry().filter(|second| *second.key() <= upto_ms / 1_000)
        {
            let Second { tasks, is_sorted } = second.get_mut();
            if !*is_sorted {
                tasks.sort_by_key(|waiting| {
                    std::cmp::Reverse((waiting.task.record.offset_ms, waiting.task.index))
                });
                *is_sorted = true;
            }
            while let Some(Waiting { task, info }) =
                tasks.pop_if(|waiting| waiting.task.record.offset_ms <= upto_ms)
            {
                let entry = &mut self.entries[wide(task.index)];
                if *entry == Entry::Held {
                    *entry = Entry::Queued;
                    self.queued += 1;
                    each(&info, task);
                } else {
                    self.memory.give_back(&info.memory, task.cost_bytes);
                }
            }
            if !tasks.is_empty() {
                break;
            }
            second.remove();
        }
    }

    /// Notes what became of a task.
    pub fn finish(&mut self, shard: Shard, watermark_ms: u64, outcome: Outcome) {
        let Outcome { index, what, .. } = outcome;
        match what {
            What::Tried(attempts) => {
                self.finish.attempts.insert(index, attempts);
                return;
            }
            What::Over { tenant, key } => self.let_go(tenant, key, index),
            What::Dead(dead) => {
                let (record, attempts, reason) = *dead;
                let id = record.first_id.unwrap_or(TaskId { shard, slot: self.minute, index });
                let due_ms = crate::timers::asked_ms(self.minute, &record);
                self.let_go(record.route.tenant, record.key.clone(), index);
                let dead = DeadTask { id, due_ms, died_ms: watermark_ms, attempts, reason, record };
                self.finish.dead.push(dead);
            }
        }
        self.finish.attempts.remove(&index);
        self.entries[wide(index)] = Entry::Over;
        self.unfinished -= 1;
        self.queued -= 1;
        self.mark(index);
    }

    /// A task was not handed over, and is in memory no more: it is read again later.
    pub fn put_back(&mut self, back: PutBack, info: &Arc<TargetInfo>) {
        let PutBack { index, offset_ms, attempts, cost_bytes, .. } = back;
        if attempts > 0 {
            self.attempts.insert(index, attempts);
        }
        self.entries[wide(index)] = Entry::Deferred;
        self.queued -= 1;
        self.defer(index, self.due_ms(offset_ms), cost_bytes, info);
    }

    /// Whether something is to be noted.
    pub fn has_news(&self) -> bool {
        !self.dirty.is_empty() || self.finish != FinishBatch::default()
    }

    /// Takes out what is to be noted.
    pub fn take_news(&mut self, sequence: u64) -> FinishBatch {
        let mut batch = FinishBatch { sequence, ..std::mem::take(&mut self.finish) };
        let mut range: Option<(u32, u32)> = None;
        let mut ranges = Vec::new();
        for at in std::mem::take(&mut self.dirty) {
            range = match range {
                Some((first, last)) if at - last <= GAP_BYTES => Some((first, at)),
                other => {
                    ranges.extend(other);
                    Some((at, at))
                }
            };
        }
        ranges.extend(range);
        let bytes = |(first, last)| (first, Bytes::copy_from_slice(&self.done[wide(first)..=wide(last)]));
        batch.done = ranges.into_iter().map(bytes).collect();
        batch
    }

    fn let_go(&mut self, tenant: u16, key: Option<windfall_contract::due::TaskKey>, index: u32) {
        *self.finish.over.entry(tenant).or_default() += 1;
        self.finish.keys.extend(key.map(|key| (tenant, key, index)));
    }

    /// Keeps a task in memory, if it has room.
    fn hold(&mut self, index: u32, record: DueRecord, info: Arc<TargetInfo>, watermark_ms: u64) -> Entry {
        let due_ms = self.due_ms(record.offset_ms);
        let need = match due_ms.saturating_sub(watermark_ms) {
            left_ms if left_ms <= NEED_MS => Need::Now,
            left_ms if left_ms <= self.ahead_ms.saturating_mul(2) => Need::Ahead,
            _ => Need::Later,
        };
        let cost_bytes = cost_bytes(&record);
        // A minute that had to leave takes no room from those that it left for.
        let is_behind = info.is_newest_first() && !info.shedding.is_above(self.minute);
        let is_welcome = !is_behind || self.memory.is_roomy(&info.memory, cost_bytes, need);
        if !is_welcome || !self.memory.take(&info.memory, cost_bytes, need) {
            self.defer(index, due_ms, cost_bytes, &info);
            return Entry::Deferred;
        }
        let second = self.seconds.entry(record.offset_ms / 1_000).or_default();
        second.is_sorted = false;
        let attempts = self.attempts.get(&index).copied().unwrap_or(0);
        let task = HeldTask { slot: self.minute, index, attempts, tried_at: None, cost_bytes, record };
        second.tasks.push(Waiting { task, info });
        Entry::Held
    }

    fn defer(&mut self, index: u32, due_ms: u64, cost_bytes: usize, info: &Arc<TargetInfo>) {
        let deferred = self.again.as_mut().map_or(&mut self.deferred, |(_, deferred)| deferred);
        let new = || Deferred::new(Arc::clone(info), index, due_ms, cost_bytes);
        deferred.entry(info.lane).or_insert_with(new).add(index, due_ms, cost_bytes);
    }

    fn due_ms(&self, offset_ms: u16) -> u64 {
        self.minute.start_ms().saturating_add(u64::from(offset_ms))
    }

    /// A task was cancelled or moved. One that was handed over lay below the watermark, and cannot have been.
    fn end(&mut self, index: u32) {
        if let Some(entry @ (Entry::Held | Entry::Deferred)) = self.entries.get_mut(wide(index)) {
            *entry = Entry::Over;
            self.unfinished -= 1;
            self.mark(index);
        }
    }

    fn is_marked(&self, index: u32) -> bool {
        self.done.get(wide(index / 8)).is_some_and(|byte| byte & bit(index) != 0)
    }

    fn mark(&mut self, index: u32) {
        let at = wide(index / 8);
        if self.done.len() <= at {
            self.done.resize(at + 1, 0);
        }
        if self.done[at] & bit(index) == 0 {
            self.done[at] |= bit(index);
            self.dirty.insert(index / 8);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        for Waiting { task, info } in self.seconds.values().flat_map(|second| &second.tasks) {
            self.memory.give_back(&info.memory, task.cost_bytes);
        }
    }
}

const fn bit(index: u32) -> u8 {
    128 >> (index % 8)
}

fn wide(index: u32) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "slot_tests.rs"]
mod tests;
