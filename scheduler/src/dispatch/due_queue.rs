//! The due tasks of one target in memory, in the order in which they go out.

use super::target_lane::BatchPart;
use super::term::{HeldTask, Term};
use crate::tenants::CatchUp;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use windfall_contract::due::SlotMinute;

/// The key of what its target did not take just now: behind all others, so that each probe takes another task.
const ASIDE: u32 = u32::MAX;

/// Tasks that were read under one lease.
type Chunk = (Arc<Term>, VecDeque<HeldTask>);

/// See the module.
pub(super) struct DueQueue {
    catch_up: CatchUp,
    /// The first one goes out first. With the oldest first there is one for all, in the order in which tasks came; with
    /// the newest first there is one for each minute.
    buckets: BTreeMap<u32, VecDeque<Chunk>>,
    count: usize,
}

impl DueQueue {
    pub fn new(catch_up: CatchUp) -> Self {
        Self { catch_up, buckets: BTreeMap::new(), count: 0 }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// Puts tasks behind those of their minute, or behind all others where the oldest go first.
    pub fn push(&mut self, term: &Arc<Term>, tasks: VecDeque<HeldTask>) {
        if self.catch_up == CatchUp::OldestFirst {
            self.push_into(0, term, tasks);
            return;
        }
        let now_key = key(SlotMinute::of(term.store_now_ms()));
        let mut run: Option<(u32, VecDeque<HeldTask>)> = None;
        for task in tasks {
            // A task that was tried before goes out when its own time has come, however old it is.
            let at = if task.attempts > 0 { now_key } else { key(task.slot) };
            match &mut run {
                Some((of, tasks)) if *of == at => tasks.push_back(task),
                _ => {
                    if let Some((of, tasks)) = run.replace((at, [task].into())) {
                        self.push_into(of, term, tasks);
                    }
                }
            }
        }
        if let Some((of, tasks)) = run {
            self.push_into(of, term, tasks);
        }
    }

    /// Puts tasks behind all others, until the target takes something.
    pub fn set_aside(&mut self, term: &Arc<Term>, tasks: VecDeque<HeldTask>) {
        let at = if self.catch_up == CatchUp::OldestFirst { 0 } else { ASIDE };
        self.push_into(at, term, tasks);
    }

    /// Puts what was set aside back to its minutes.
    pub fn restore(&mut self) {
        for (term, tasks) in self.buckets.remove(&ASIDE).into_iter().flatten() {
            self.count -= tasks.len();
            self.push(&term, tasks);
        }
    }

    /// Brings tasks that may be handed over to the front of their buckets; says how many of them are there, at most
    /// `max`. `dropped` gets the tasks whose lease is over.
    pub fn sift(&mut self, max: usize, dropped: &mut Vec<HeldTask>) -> usize {
        let mut ready = 0;
        let mut has_empty = false;
        for chunks in self.buckets.values_mut() {
            let (mut at, mut unsafe_ones) = (0, VecDeque::new());
            while ready < max && at < chunks.len() {
                let (term, tasks) = &chunks[at];
                if term.is_open() && term.is_safe() && !tasks.is_empty() {
                    ready += tasks.len();
                    at += 1;
                    continue;
                }
                let Some((term, tasks)) = chunks.remove(at) else { break };
                if term.is_open() {
                    unsafe_ones.push_back((term, tasks));
                } else {
                    self.count -= tasks.len();
                    dropped.extend(tasks);
                }
            }
            chunks.append(&mut unsafe_ones);
            has_empty |= chunks.is_empty();
            if ready >= max {
                break;
            }
        }
        self.drop_empty(has_empty);
        ready.min(max)
    }

    /// Takes out the tasks that go next, as far as they may be handed over now.
    pub fn pop(&mut self, count: usize) -> Vec<BatchPart> {
        let (mut parts, mut left, mut has_empty) = (Vec::new(), count, false);
        for chunks in self.buckets.values_mut() {
            while left > 0
                && let Some((term, tasks)) = chunks.front_mut()
            {
                let taken = tasks.len().min(left);
                // I10: nothing goes out under a lease that may be over.
                if !term.begin_flight(u64::try_from(taken).unwrap_or(u64::MAX)) {
                    break;
                }
                left -= taken;
                self.count -= taken;
                parts.push(BatchPart { term: Arc::clone(term), tasks: tasks.drain(..taken).collect() });
                if tasks.is_empty() {
                    chunks.pop_front();
                }
            }
            has_empty |= chunks.is_empty();
            if left == 0 {
                break;
            }
        }
        self.drop_empty(has_empty);
        parts
    }

    /// Takes out all tasks whose lease is over.
    pub fn drop_closed(&mut self, dropped: &mut Vec<HeldTask>) {
        for chunks in self.buckets.values_mut() {
            chunks.retain_mut(|(term, tasks)| {
                if !term.is_open() {
                    dropped.extend(tasks.drain(..));
                }
                !tasks.is_empty()
            });
        }
        self.drop_empty(true);
        self.count = self.buckets.values().flatten().map(|(_, tasks)| tasks.len()).sum();
    }

    /// The task that has waited for longest, or one of its minute.
    pub fn oldest(&self) -> Option<(&Arc<Term>, &HeldTask)> {
        let (term, tasks) =
            self.buckets.range(..ASIDE).next_back().or(self.buckets.last_key_value())?.1.front()?;
        Some((term, tasks.front()?))
    }

    /// The oldest minute of which [`shed`](Self::shed) may take something.
    pub fn oldest_minute(&self) -> Option<SlotMinute> {
        match self.buckets.range(..ASIDE).next_back() {
            Some((at, _)) => Some(minute(*at)),
            None => self.buckets.contains_key(&ASIDE).then_some(SlotMinute(0)),
        }
    }

    /// With the newest first: takes tasks of the oldest minutes out, but none of `before` and the minutes behind it, until
    /// they cost so many bytes. Says which minute was the last of which something was taken.
    pub fn shed(&mut self, before: SlotMinute, bytes: usize) -> (Vec<BatchPart>, Option<SlotMinute>) {
        self.restore();
        let (mut parts, mut last, mut freed) = (Vec::new(), None, 0);
        while freed < bytes
            && let Some(mut oldest) = self.buckets.last_entry()
            && minute(*oldest.key()) < before
        {
            last = Some(minute(*oldest.key()));
            let chunks = oldest.get_mut();
            if let Some((term, mut tasks)) = chunks.pop_back() {
                let mut taken = Vec::new();
                while freed < bytes
                    && let Some(task) = tasks.pop_back()
                {
                    freed += task.cost_bytes;
                    taken.push(task);
                }
                self.count -= taken.len();
                if !tasks.is_empty() {
                    chunks.push_back((Arc::clone(&term), tasks));
                }
                parts.push(BatchPart { term, tasks: taken });
            }
            if chunks.is_empty() {
                oldest.remove();
            }
        }
        (parts, last)
    }

    fn push_into(&mut self, at: u32, term: &Arc<Term>, tasks: VecDeque<HeldTask>) {
        if tasks.is_empty() {
            return;
        }
        self.count += tasks.len();
        let chunks = self.buckets.entry(at).or_default();
        match chunks.back_mut() {
            Some((last, waiting)) if Arc::ptr_eq(last, term) => waiting.extend(tasks),
            _ => chunks.push_back((Arc::clone(term), tasks)),
        }
    }

    fn drop_empty(&mut self, has_empty: bool) {
        if has_empty {
            self.buckets.retain(|_, chunks| !chunks.is_empty());
        }
    }
}

/// The newest minute has the least key. No task is due in minute 0, which would be set aside for ever.
fn key(minute: SlotMinute) -> u32 {
    (ASIDE - minute.0).min(ASIDE - 1)
}

fn minute(key: u32) -> SlotMinute {
    SlotMinute(ASIDE - key)
}

#[cfg(test)]
#[path = "due_queue_tests.rs"]
mod tests;
