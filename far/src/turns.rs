//! Which change of a task was asked for last.
//!
//! A change may hang in a slow read of a segment, or in a slow store, long after its caller has given it up, asked again,
//! and changed the task once more. So a change is done only as long as no other one of the same task has been asked for
//! after it. A repeat is no other one: where reads are slower than callers wait, a change would never be done.

use crate::slots::far_id;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use windfall_contract::due::{Change, Moved, Shard, StoreError, TaskId};

/// The changes that go on.
#[derive(Default)]
pub(crate) struct Turns(Arc<Mutex<Asked>>);

/// One of them, until it is dropped.
pub(crate) struct Turn {
    all: Arc<Mutex<Asked>>,
    of: (u16, TaskId),
    /// The same for all repeats.
    shared: u64,
    number: u64,
}

#[derive(Default)]
struct Asked {
    count: u64,
    last: HashMap<(u16, TaskId), Last>,
}

/// The last change of a task, as long as any of it goes on.
struct Last {
    number: u64,
    to: Vec<Option<Moved>>,
    going_on: usize,
}

impl Turns {
    /// The turns of a batch, at the place of each change of a far task. Changes of one task share one.
    pub fn begin_all(&self, shard: Shard, batch: &[Change]) -> Vec<Option<Arc<Turn>>> {
        let of = |change: &Change| far_id(&change.at, shard).map(|id| (change.tenant, id));
        let mut asked: HashMap<(u16, TaskId), Vec<Option<Moved>>> = HashMap::new();
        for (of, change) in batch.iter().filter_map(|change| Some((of(change)?, change))) {
            asked.entry(of).or_default().push(change.to.clone());
        }
        let turns: HashMap<_, _> = asked.into_iter().map(|(of, to)| (of, self.begin(of, to))).collect();
        batch.iter().map(|change| of(change).and_then(|of| turns.get(&of).cloned())).collect()
    }

    /// A tenant's task is to be changed: to each of these, one after the other.
    pub fn begin(&self, of: (u16, TaskId), mut to: Vec<Option<Moved>>) -> Arc<Turn> {
        to.dedup();
        let mut asked = self.0.lock();
        asked.count += 1;
        let count = asked.count;
        let shared = match asked.last.entry(of) {
            Entry::Vacant(entry) => entry.insert(Last { number: count, to, going_on: 1 }).number,
            Entry::Occupied(entry) => {
                let last = entry.into_mut();
                // Half a repeat of several would undo what the other one has done.
                if to.len() != 1 || last.to != to {
                    (last.number, last.to) = (count, to);
                }
                last.going_on += 1;
                last.number
            }
        };
        Arc::new(Turn { all: Arc::clone(&self.0), of, shared, number: count })
    }
}

impl Turn {
    /// Grows with each change that is asked for, also with a repeat: what is sent late must not undo what was done between
    /// the two, wherever that was asked for.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether another change of the task was asked for after this one.
    pub fn is_overtaken(&self) -> bool {
        self.all.lock().last.get(&self.of).is_none_or(|last| last.number != self.shared)
    }

    /// Fails where it is overtaken.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.is_overtaken() { Err(overtaken()) } else { Ok(()) }
    }
}

/// What the caller of an overtaken change learns.
pub(crate) fn overtaken() -> StoreError {
    let late = "another change of the task was asked for meanwhile; this one is not done";
    StoreError::Unavailable(late.into())
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut asked = self.all.lock();
        if let Some(last) = asked.last.get_mut(&self.of) {
            last.going_on -= 1;
            if last.going_on == 0 {
                asked.last.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first one may arrive after the repeat, and after what was done in between.
    #[test]
    fn a_repeat_overtakes_nothing_and_has_a_later_number() {
        let turns = Turns::default();
        let of = (1, "0012-01c3a2f0-8000002a".parse().unwrap());
        let to = |due_ms| vec![Some(Moved { due_ms: Some(due_ms), payload: None })];
        let (first, repeat) = (turns.begin(of, to(1)), turns.begin(of, to(1)));
        assert!(!first.is_overtaken() && !repeat.is_overtaken());
        assert!(repeat.number() > first.number());
        let other = turns.begin(of, to(2));
        assert!(first.is_overtaken() && repeat.is_overtaken() && !other.is_overtaken());
        assert!(other.number() > repeat.number());
    }
}
