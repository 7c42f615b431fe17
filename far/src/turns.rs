//! Which change of a task was asked for last.
//!
//! A change may hang in a slow read of a segment long after its caller has given it up, asked again, and changed the task
//! once more. So a change is done only as long as none of the same task has been asked for after it.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use windfall_contract::due::{StoreError, TaskId};

/// The changes that go on.
#[derive(Default)]
pub(crate) struct Turns(Arc<Mutex<Asked>>);

/// One of them, until it is dropped.
pub(crate) struct Turn {
    all: Arc<Mutex<Asked>>,
    of: (u16, TaskId),
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
    going_on: usize,
}

impl Turns {
    /// A tenant's task is to be changed.
    pub fn begin(&self, tenant: u16, id: TaskId) -> Arc<Turn> {
        let of = (tenant, id);
        let mut asked = self.0.lock();
        asked.count += 1;
        let number = asked.count;
        let last = asked.last.entry(of).or_insert(Last { number, going_on: 0 });
        last.number = number;
        last.going_on += 1;
        Arc::new(Turn { all: Arc::clone(&self.0), of, number })
    }
}

impl Turn {
    /// Fails where another change of the task was asked for after this one.
    pub fn check(&self) -> Result<(), StoreError> {
        let is_last = self.all.lock().last.get(&self.of).is_some_and(|last| last.number == self.number);
        let late = "another change of the task was asked for meanwhile; this one is not done";
        if is_last { Ok(()) } else { Err(StoreError::Unavailable(late.into())) }
    }
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
