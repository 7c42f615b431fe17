//! An add as one call of its script: tasks by slot, and one by one those that have a key or are due about now.

use super::answers::{array, id, number, unexpected};
use super::options::NEAR_MS;
use super::scripts::Argument;
use super::{Keys, key_field};
use hashbrown::HashMap;
use redis::Value;
use std::collections::BTreeMap;
use windfall_contract::due::{Added, DueRecord, NewRecord, Shard, SlotMinute, StoreError, TaskId};

/// How one batch is asked for.
pub(super) struct Adding {
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) arguments: Vec<Argument>,
    /// By group: its slot, and the places of its tasks in the batch.
    groups: Vec<(u32, Vec<usize>)>,
    /// The places of tasks that go one by one.
    singles: Vec<usize>,
    tasks: usize,
}

impl Adding {
    /// `watermark_ms` is the last one that is known; 0 where none is.
    pub(super) fn new(keys_of: &Keys, batch: &[NewRecord], watermark_ms: u64) -> Self {
        let late = SlotMinute::of(watermark_ms).0;
        let mut slots: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let mut singles = Vec::new();
        let mut earliest_ms = u64::MAX;
        let mut tenants: BTreeMap<u16, u64> = BTreeMap::new();
        for (at, task) in batch.iter().enumerate() {
            if task.key.is_some() || watermark_ms > 0 && task.due_ms < watermark_ms + NEAR_MS {
                singles.push(at);
            } else {
                slots.entry(SlotMinute::of(task.due_ms).0).or_default().push(at);
                earliest_ms = earliest_ms.min(task.due_ms);
                *tenants.entry(task.route.tenant).or_default() += 1;
            }
        }
        let mut keys: Vec<_> = ["m", "n", "i", "k", "u", "x"].iter().map(|name| keys_of.of(name)).collect();
        let mut place_of: HashMap<u32, u64> = HashMap::new();
        let mut place = |slot: u32| {
            *place_of.entry(slot).or_insert_with(|| {
                keys.push(keys_of.slot("l", slot));
                keys.len() as u64
            })
        };
        if !singles.is_empty() {
            place(late);
        }
        let mut arguments: Vec<Argument> = Vec::with_capacity(8 + batch.len() + 3 * slots.len());
        // Exact in a script's numbers.
        arguments.push(earliest_ms.min(1 << 52).into());
        arguments.push(late.into());
        arguments.push((tenants.len() as u64).into());
        for (tenant, count) in tenants {
            arguments.push(tenant.into());
            arguments.push(count.into());
        }
        arguments.push((slots.len() as u64).into());
        for (slot, tasks) in &slots {
            arguments.push(place(*slot).into());
            arguments.push((*slot).into());
            arguments.push((tasks.len() as u64).into());
            arguments.extend(tasks.iter().map(|at| record(&batch[*at]).encode().into()));
        }
        for at in &singles {
            let task = &batch[*at];
            let slot = SlotMinute::of(task.due_ms).0;
            arguments.push(task.due_ms.into());
            place(slot);
            arguments.push(slot.into());
            arguments.push(task.route.tenant.into());
            let field = task.key.as_ref().map(|key| key_field(task.route.tenant, key.as_bytes()));
            arguments.push(field.unwrap_or_default().into());
            arguments.push(record(task).encode().into());
        }
        let groups = slots.into_iter().collect();
        Self { keys, arguments, groups, singles, tasks: batch.len() }
    }

    /// The answers in the order of the batch.
    pub(super) fn answers(&self, shard: Shard, answer: Value) -> Result<Vec<Added>, StoreError> {
        let answer = array(answer)?;
        if answer.len() != self.groups.len() + 3 * self.singles.len() {
            return Err(unexpected(&Value::Array(answer)));
        }
        let mut added: Vec<Option<Added>> = vec![None; self.tasks];
        let mut answer = answer.into_iter();
        for ((slot, tasks), first) in self.groups.iter().zip(answer.by_ref()) {
            let first: u32 = number(&first)?;
            for (at, index) in tasks.iter().zip(first..) {
                added[*at] = Some(Added::Stored(TaskId { shard, slot: SlotMinute(*slot), index }));
            }
        }
        for at in &self.singles {
            let (Some(exists), Some(slot), Some(index)) = (answer.next(), answer.next(), answer.next())
            else {
                break;
            };
            let id = id(shard, &slot, &index)?;
            added[*at] = Some(match number::<u8>(&exists)? {
                0 => Added::Stored(id),
                _ => Added::Exists(id),
            });
        }
        let added: Option<Vec<Added>> = added.into_iter().collect();
        added.ok_or_else(|| StoreError::Unavailable("an answer is missing".into()))
    }
}

/// The record of a task that is not late; the script turns it into that of one that is.
fn record(task: &NewRecord) -> DueRecord {
    let since_ms = task.due_ms - SlotMinute::of(task.due_ms).start_ms();
    DueRecord {
        offset_ms: u16::try_from(since_ms).unwrap_or(0),
        route: task.route,
        key: task.key.clone(),
        asked_ms: None,
        first_id: None,
        payload: task.payload.clone(),
    }
}
