//! A batch of the far tier as one call of its script.

use super::scripts::Argument;
use windfall_contract::due::{DueRecord, FarRecord, LoadBatch, SlotMinute};

/// In the order that the script reads them in.
pub(super) fn arguments(is_cluster: bool, batch: &LoadBatch) -> Vec<Argument> {
    let mut arguments: Vec<Argument> = Vec::with_capacity(4 + 6 * batch.records.len());
    arguments.push(u16::from(is_cluster).into());
    arguments.push(format!("l{:016x}", batch.log).into());
    arguments.push(batch.sequence.into());
    arguments.push(batch.follows.map_or_else(String::new, |follows| follows.to_string()).into());
    for task in &batch.records {
        arguments.push(task.due_ms.into());
        arguments.push(SlotMinute::of(task.due_ms).0.into());
        arguments.push(task.route.tenant.into());
        arguments.push(task.id.slot.0.into());
        arguments.push(task.id.index.into());
        arguments.push(record(task).encode().into());
    }
    arguments
}

/// The record of a task that is not late; the script turns it into that of one that is.
fn record(task: &FarRecord) -> DueRecord {
    let since_ms = task.due_ms - SlotMinute::of(task.due_ms).start_ms();
    DueRecord {
        offset_ms: u16::try_from(since_ms).unwrap_or(0),
        route: task.route,
        key: None,
        asked_ms: None,
        first_id: Some(task.id),
        payload: task.payload.clone(),
    }
}
