//! Adds that came by a queue, and cancels that may come before them, as calls of their scripts.

use super::answers::{array, id, text, unexpected};
use super::scripts::Argument;
use super::{Keys, key_field};
use redis::Value;
use std::collections::BTreeSet;
use windfall_contract::due::{
    AddedOnce, CancelOnce, CancelledOnce, DueRecord, KEY_MARGIN_MS, OnceAnswers, OnceRecord, Shard,
    SlotMinute, StoreError,
};

/// Keys and arguments of a call of `add_once.lua`. `watermark_ms` is the last one that is known; 0 where none is.
pub(super) fn adding(
    keys_of: &Keys,
    batch: &[OnceRecord],
    keys_kept_ms: u64,
    watermark_ms: u64,
) -> (Vec<Vec<u8>>, Vec<Argument>) {
    let late = SlotMinute::of(watermark_ms).0;
    let mut keys: Vec<_> = ["m", "n", "i", "k", "u", "x"].iter().map(|name| keys_of.of(name)).collect();
    let mut lists: BTreeSet<u32> = batch.iter().map(|task| SlotMinute::of(task.due_ms).0).collect();
    if !batch.is_empty() {
        lists.insert(late);
    }
    keys.extend(lists.into_iter().map(|slot| keys_of.slot("l", slot)));
    let mut arguments: Vec<Argument> = Vec::with_capacity(3 + 8 * batch.len());
    arguments.extend([keys_kept_ms.into(), late.into(), KEY_MARGIN_MS.into()]);
    for task in batch {
        arguments.push(task.written_ms.into());
        arguments.push(task.due_ms.into());
        arguments.push(SlotMinute::of(task.due_ms).0.into());
        arguments.push(task.route.tenant.into());
        arguments.push(key_field(task.route.tenant, task.key.as_bytes()).into());
        arguments.push(task.digest().to_be_bytes().to_vec().into());
        arguments.push(record(task, false).encode().into());
        arguments.push(record(task, true).encode().into());
    }
    (keys, arguments)
}

/// The record of a task; with `is_late` that of a task whose time the script has to replace by the watermark.
fn record(task: &OnceRecord, is_late: bool) -> DueRecord {
    let since_ms = task.due_ms - SlotMinute::of(task.due_ms).start_ms();
    DueRecord {
        offset_ms: u16::try_from(since_ms).unwrap_or(0),
        route: task.route,
        key: Some(task.key.clone()),
        asked_ms: is_late.then_some(task.due_ms),
        first_id: None,
        payload: task.payload.clone(),
    }
}

/// The answers to a batch of so many tasks.
pub(super) fn added(shard: Shard, tasks: usize, answer: Value) -> Result<OnceAnswers, StoreError> {
    let mut answer = array(answer)?.into_iter();
    let run = answer.next().unwrap_or(Value::Nil);
    let run = run_of(text(&run)?);
    let one = |one: Value| {
        let one = array(one)?;
        Ok(match (one.first().map(text).transpose()?, &one[..]) {
            (Some("s"), [_, slot, index]) => AddedOnce::Stored(id(shard, slot, index)?),
            (Some("k"), _) => AddedOnce::Known,
            (Some("o"), _) => AddedOnce::Other,
            (Some("c"), _) => AddedOnce::Cancelled { had_come: true },
            (Some("b"), _) => AddedOnce::Cancelled { had_come: false },
            (Some("t"), _) => AddedOnce::TooOld,
            _ => return Err(unexpected(&Value::Array(one))),
        })
    };
    let added: Vec<AddedOnce> = answer.map(one).collect::<Result<_, StoreError>>()?;
    match added.len() == tasks {
        true => Ok(OnceAnswers { added, run }),
        false => Err(StoreError::Unavailable("an answer is missing".into())),
    }
}

/// The beginning of the server's `run_id`, which has 40 hexadecimal digits. Without one it is the run 0 for ever.
fn run_of(run_id: &str) -> u64 {
    run_id.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

/// Keys and arguments of a call of `cancel_once.lua`.
pub(super) fn cancelling(
    keys_of: &Keys,
    is_cluster: bool,
    batch: &[CancelOnce],
) -> (Vec<Vec<u8>>, Vec<Argument>) {
    let keys = ["m", "n", "i", "k", "u", "x"].iter().map(|name| keys_of.of(name)).collect();
    let mut arguments: Vec<Argument> = Vec::with_capacity(1 + 4 * batch.len());
    arguments.push(u16::from(is_cluster).into());
    for CancelOnce { tenant, key, may_mark } in batch {
        arguments.push(tenant.to_be_bytes().to_vec().into());
        arguments.push((*tenant).into());
        arguments.push(key_field(*tenant, key.as_bytes()).into());
        arguments.push(u16::from(*may_mark).into());
    }
    (keys, arguments)
}

pub(super) fn cancelled(shard: Shard, answer: Value) -> Result<Vec<CancelledOnce>, StoreError> {
    let one = |one: Value| {
        let one = array(one)?;
        Ok(match (one.first().map(text).transpose()?, &one[..]) {
            (Some("d"), [_, slot, index]) => CancelledOnce::Done(id(shard, slot, index)?),
            (Some("c"), _) => CancelledOnce::Cancelled,
            (Some("f"), _) => CancelledOnce::Firing,
            (Some("m"), _) => CancelledOnce::Marked,
            (Some("u"), _) => CancelledOnce::Unmarked,
            _ => return Err(unexpected(&Value::Array(one))),
        })
    };
    array(answer)?.into_iter().map(one).collect()
}
