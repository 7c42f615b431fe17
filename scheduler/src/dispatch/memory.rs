//! How many bytes of tasks are in memory, and whose.

use std::sync::atomic::{AtomicUsize, Ordering};
use windfall_contract::due::DueRecord;

/// What a task costs beyond its payload and its key: its place in the queues, and its allocation.
const OVERHEAD_BYTES: usize = 176;

/// The budget of all tasks in memory. A target may hold a multiple of what is free: so a target that takes nothing
/// fills a part of the memory and no more, and however many there are of them, others find room.
#[derive(Debug)]
pub(super) struct Memory {
    max_bytes: usize,
    used_bytes: AtomicUsize,
}

/// The bytes of one target's tasks.
#[derive(Debug, Default)]
pub(super) struct TargetMemory(AtomicUsize);

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
    pub fn new(max_bytes: usize) -> Self {
        Self { max_bytes, used_bytes: AtomicUsize::new(0) }
    }

    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Takes room for a task; `false` where there is none. Calls side by side may pass the bound by a task each.
    pub fn take(&self, target: &TargetMemory, bytes: usize, need: Need) -> bool {
        let (free, bound) = self.bound(need);
        let has_room = bytes <= free && target.0.load(Ordering::Relaxed) + bytes <= bound;
        if has_room {
            self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
            target.0.fetch_add(bytes, Ordering::Relaxed);
        }
        has_room
    }

    /// Whether the target holds less than a half of what it may: it is worth reading again what had no room.
    pub fn is_roomy(&self, target: &TargetMemory, need: Need) -> bool {
        target.0.load(Ordering::Relaxed) <= self.bound(need).1 / 2
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
        let memory = Memory::new(1_000);
        let targets: Vec<_> = (0..4).map(|_| TargetMemory::default()).collect();
        assert_eq!(fill(&memory, &targets[0], Need::Later), 251);
        assert_eq!(fill(&memory, &targets[0], Need::Ahead), 249);
        assert!(memory.is_roomy(&targets[0], Need::Now) && !memory.is_roomy(&targets[0], Need::Ahead));
        assert_eq!(fill(&memory, &targets[0], Need::Now), 250);
        assert!(!memory.is_roomy(&targets[0], Need::Now));
        assert!(memory.is_roomy(&targets[1], Need::Ahead));
        assert_eq!(fill(&memory, &targets[1], Need::Now), 188);
        assert!(fill(&memory, &targets[2], Need::Now) > 40);
        assert!(fill(&memory, &targets[3], Need::Now) > 10);
        memory.give_back(&targets[0], 750);
        assert!(memory.used_bytes() < 300);
    }
}
