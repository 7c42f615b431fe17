//! How many bytes of tasks are in memory, and whose.

use std::sync::atomic::{AtomicUsize, Ordering};
use windfall_contract::due::{DueRecord, KEY_MAX_BYTES, PAYLOAD_MAX_BYTES};

/// What a task costs beyond its payload and its key: its place in the queues, and its allocation.
const OVERHEAD_BYTES: usize = 176;
/// What each target may hold of due tasks whatever the others hold: the largest task.
pub(super) const RESERVE_BYTES: usize = OVERHEAD_BYTES + PAYLOAD_MAX_BYTES + KEY_MAX_BYTES;

/// The budget of all tasks in memory. A target may hold a multiple of what is free: so a target that takes nothing
/// fills a part of the memory and no more. What is left shrinks with each of them, so each target has a small reserve
/// beyond the budget as well: however many there are that take nothing, others go on, with the largest task, too.
#[derive(Debug)]
pub(super) struct Memory {
    max_bytes: usize,
    reserve_bytes: usize,
    used_bytes: AtomicUsize,
}

/// The bytes of one target's tasks.
#[derive(Debug, Default)]
pub(super) struct TargetMemory(AtomicUsize);

impl TargetMemory {
    pub fn held_bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// How soon a task is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// It is due, or about to be: its target may hold three times of what is free.
    Now,
    /// It is read ahead of its time: its target may hold as much as is free.
    Ahead,
    /// It is read long ahead of its time: so much as well, while a quarter of the memory is in use at most.
    Later,
}

impl Memory {
    pub fn new(max_bytes: usize, reserve_bytes: usize) -> Self {
        Self { max_bytes, reserve_bytes, used_bytes: AtomicUsize::new(0) }
    }

    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Takes room for a task; `false` where there is none. Calls side by side may pass the bound by a task each.
    pub fn take(&self, target: &TargetMemory, bytes: usize, need: Need) -> bool {
        let has_room = self.fits(target, bytes, need);
        if has_room {
            self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
            target.0.fetch_add(bytes, Ordering::Relaxed);
        }
        has_room
    }

    /// Whether a task has room.
    pub fn fits(&self, target: &TargetMemory, bytes: usize, need: Need) -> bool {
        let (free, bound) = self.bound(need);
        let wanted = target.held_bytes().saturating_add(bytes);
        bytes <= free && wanted <= bound || wanted <= self.reserve(need)
    }

    /// Whether it is worth reading again what had no room: a task of so many bytes would have some, and the target
    /// holds less than a half of what it may.
    pub fn is_roomy(&self, target: &TargetMemory, bytes: usize, need: Need) -> bool {
        let (free, bound) = self.bound(need);
        let held = target.held_bytes();
        let fits = |limit: usize| held <= limit / 2 && held.saturating_add(bytes) <= limit;
        bytes <= free && fits(bound) || fits(self.reserve(need))
    }

    fn reserve(&self, need: Need) -> usize {
        if need == Need::Now { self.reserve_bytes } else { 0 }
    }

    /// What is free, and what one target may hold.
    fn bound(&self, need: Need) -> (usize, usize) {
        let used = self.used_bytes();
        let free = self.max_bytes.saturating_sub(used);
        let bound = match need {
            Need::Now => free.saturating_mul(3),
            Need::Ahead => free,
            Need::Later if used <= self.max_bytes / 4 => free,
            Need::Later => 0,
        };
        (free, bound)
    }

    pub fn give_back(&self, target: &TargetMemory, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        target.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What a task costs.
pub(super) fn cost_bytes(record: &DueRecord) -> usize {
    OVERHEAD_BYTES + record.payload.len() + record.key.as_ref().map_or(0, |key| key.as_bytes().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(memory: &Memory, target: &TargetMemory, need: Need) -> usize {
        (0..).take_while(|_| memory.take(target, 1, need)).count()
    }

    #[test]
    fn one_target_fills_three_quarters_at_most_and_each_other_one_finds_room() {
        let memory = Memory::new(1_000, 0);
        let targets: Vec<_> = (0..4).map(|_| TargetMemory::default()).collect();
        assert_eq!(fill(&memory, &targets[0], Need::Later), 251);
        assert_eq!(fill(&memory, &targets[0], Need::Ahead), 249);
        assert!(memory.is_roomy(&targets[0], 1, Need::Now) && !memory.is_roomy(&targets[0], 1, Need::Ahead));
        assert_eq!(fill(&memory, &targets[0], Need::Now), 250);
        assert!(!memory.is_roomy(&targets[0], 1, Need::Now));
        assert!(memory.is_roomy(&targets[1], 1, Need::Ahead));
        assert!(!memory.is_roomy(&targets[1], 251, Need::Now), "not so much is free");
        assert_eq!(fill(&memory, &targets[1], Need::Now), 188);
        assert!(fill(&memory, &targets[2], Need::Now) > 40);
        assert!(fill(&memory, &targets[3], Need::Now) > 10);
        memory.give_back(&targets[0], 750);
        assert!(memory.used_bytes() < 300);
    }

    #[test]
    fn a_target_has_room_for_the_largest_task_however_many_others_take_nothing() {
        let memory = Memory::new(8 << 20, RESERVE_BYTES);
        let away: Vec<_> = (0..12).map(|_| TargetMemory::default()).collect();
        for target in &away {
            while memory.take(target, 1_000, Need::Now) {}
        }
        assert!(memory.used_bytes() <= (8 << 20) + away.len() * RESERVE_BYTES);
        let target = TargetMemory::default();
        for _ in 0..3 {
            assert!(memory.is_roomy(&target, RESERVE_BYTES, Need::Now));
            assert!(!memory.is_roomy(&target, RESERVE_BYTES, Need::Ahead), "it is for what is due");
            assert!(memory.take(&target, RESERVE_BYTES, Need::Now));
            assert!(!memory.is_roomy(&target, 1_000, Need::Now) && !memory.take(&target, 1_000, Need::Now));
            memory.give_back(&target, RESERVE_BYTES);
        }
    }
}
