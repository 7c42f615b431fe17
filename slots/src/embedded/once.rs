//! Adds that came by a queue, cancels that may come before them, and the marks of keys that were used.

use super::rows::{self, Key, Reading, damaged};
use super::shard::{ShardStep, decode};
use super::tasks;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::ops::Bound;
use windfall_contract::due::{
    AddedOnce, CancelOnce, CancelledOnce, DueRecord, KEY_MARGIN_MS, OnceRecord, Shard, SlotEntry, SlotMinute,
    StoreError, TaskAt, TaskId,
};

/// Marks that one call deletes at most.
const DELETED_AT_ONCE: usize = 500;
/// The bytes of a key row's place; what stands behind it is the digest of an add that came by a queue.
const PLACE_BYTES: usize = 8;

/// How a key was used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Used {
    /// The task of the key has fired, or was given up.
    Over = 1,
    /// It was cancelled.
    Cancelled = 2,
    /// It was cancelled before its add came.
    Awaited = 3,
}

struct Mark {
    used: Used,
    digest: u32,
    at_ms: u64,
}

impl Mark {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.used as u8];
        bytes.extend_from_slice(&self.digest.to_be_bytes());
        bytes.extend_from_slice(&self.at_ms.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let (first, rest) = bytes.split_first().ok_or_else(damaged)?;
        let used = match first {
            1 => Used::Over,
            2 => Used::Cancelled,
            3 => Used::Awaited,
            _ => return Err(damaged()),
        };
        let mut at = Reading(rest);
        Ok(Self { used, digest: at.u32()?, at_ms: at.u64()? })
    }
}

/// Behind the letter and the shard: tenant and key, as in a key row.
fn mark_row(step: &ShardStep<'_>, tenant: u16, key: &[u8]) -> Vec<u8> {
    Key::of(b'u').u16(step.number()).u16(tenant).bytes(key).end()
}

fn order_row(step: &ShardStep<'_>, at_ms: u64, tenant: u16, key: &[u8]) -> Vec<u8> {
    Key::of(b'o').u16(step.number()).u64(at_ms).u16(tenant).bytes(key).end()
}

fn mark_of(step: &ShardStep<'_>, tenant: u16, key: &[u8]) -> Result<Option<Mark>, StoreError> {
    step.step.get(&mark_row(step, tenant, key))?.map(|bytes| Mark::decode(&bytes)).transpose()
}

/// Notes how a key was used up, in place of what was noted before. A key whose add is awaited counts as a waiting task until
/// something else is noted of it.
pub(super) fn mark(
    step: &mut ShardStep<'_>,
    tenant: u16,
    key: &[u8],
    used: Used,
    digest: u32,
    now_ms: u64,
) -> Result<(), StoreError> {
    if let Some(before) = mark_of(step, tenant, key)? {
        let row = order_row(step, before.at_ms, tenant, key);
        step.step.remove(row);
        if before.used == Used::Awaited && used != Used::Awaited {
            step.count(tenant, 0, 1);
        }
    }
    let row = order_row(step, now_ms, tenant, key);
    step.step.put(row, Bytes::new());
    let row = mark_row(step, tenant, key);
    step.step.put(row, Mark { used, digest, at_ms: now_ms }.encode());
    Ok(())
}

/// The digest in a key row of a task whose add came by a queue.
pub(super) fn digest_in(key_row: &[u8]) -> Result<Option<u32>, StoreError> {
    match key_row.len() {
        0..=PLACE_BYTES => Ok(None),
        _ => Reading(&key_row[PLACE_BYTES..]).u32().map(Some),
    }
}

/// Frees a key where it leads to this place. One whose add came by a queue is marked.
pub(super) fn free_key(
    step: &mut ShardStep<'_>,
    tenant: u16,
    key: &[u8],
    place: (u32, u32),
    used: Used,
    now_ms: u64,
) -> Result<(), StoreError> {
    let row = step.key_of(tenant, key);
    let Some(held) = step.step.get(&row)? else { return Ok(()) };
    if rows::read_place(&held)? != place {
        return Ok(());
    }
    if let Some(digest) = digest_in(&held)? {
        mark(step, tenant, key, used, digest, now_ms)?;
    }
    step.step.remove(row);
    Ok(())
}

/// The digest of the add of a task that is over, where it came by a queue.
pub(super) fn digest_of_over(
    step: &ShardStep<'_>,
    tenant: u16,
    key: &[u8],
) -> Result<Option<u32>, StoreError> {
    let held = step.step.get(&step.key_of(tenant, key))?;
    if let Some(digest) = held.map(|held| digest_in(&held)).transpose()?.flatten() {
        return Ok(Some(digest));
    }
    let mark = mark_of(step, tenant, key)?.filter(|mark| mark.used == Used::Over);
    Ok(mark.map(|mark| mark.digest))
}

/// Marks a key whose task came by a queue and now loses it to another task.
pub(super) fn lose_key(
    step: &mut ShardStep<'_>,
    tenant: u16,
    key: &[u8],
    now_ms: u64,
) -> Result<(), StoreError> {
    let held = step.step.get(&step.key_of(tenant, key))?;
    match held.map(|held| digest_in(&held)).transpose()?.flatten() {
        Some(digest) => mark(step, tenant, key, Used::Over, digest, now_ms),
        None => Ok(()),
    }
}

pub(super) fn add(
    step: &mut ShardStep<'_>,
    batch: Vec<OnceRecord>,
    keys_kept_ms: u64,
    now_ms: u64,
) -> Result<Vec<AddedOnce>, StoreError> {
    let oldest_ms = oldest_ms(step, keys_kept_ms, now_ms)?;
    let mut answers = Vec::with_capacity(batch.len());
    let mut of_batch = BTreeSet::new();
    for record in batch {
        let digest = record.digest();
        if let Some(answer) = judge(step, &record, digest, &of_batch, oldest_ms, now_ms)? {
            answers.push(answer);
            continue;
        }
        let OnceRecord { due_ms, route, key, payload, .. } = record;
        let (slot, offset_ms, asked_ms) = step.place(due_ms);
        let due = DueRecord { offset_ms, route, key: Some(key.clone()), asked_ms, first_id: None, payload };
        let index = step.append(slot, due.encode(), false)?;
        let mut held = rows::place(slot, index);
        held.extend_from_slice(&digest.to_be_bytes());
        let row = step.key_of(route.tenant, key.as_bytes());
        of_batch.insert(row.clone());
        step.step.put(row, held);
        step.count(route.tenant, 1, 0);
        answers.push(AddedOnce::Stored(tasks::id(step, slot, index)));
    }
    delete_marks(step, now_ms.saturating_sub(keys_kept_ms).saturating_sub(KEY_MARGIN_MS))?;
    Ok(answers)
}

/// Notes for how long keys are kept from now on. Adds that were written before the time that is returned are not judged:
/// their marks may be gone, be it by the shorter time that was kept before.
fn oldest_ms(step: &mut ShardStep<'_>, keys_kept_ms: u64, now_ms: u64) -> Result<u64, StoreError> {
    let row = Key::of(b'p').u16(step.number()).end();
    let (kept_before_ms, from_ms) = match step.step.get(&row)? {
        Some(bytes) => {
            let mut at = Reading(&bytes);
            (Some(at.u64()?), at.u64()?)
        }
        None => (None, 0),
    };
    let shorter_ms = kept_before_ms.filter(|before_ms| *before_ms < keys_kept_ms);
    let from_ms = from_ms.max(shorter_ms.map_or(0, |shorter_ms| now_ms.saturating_sub(shorter_ms)));
    if kept_before_ms != Some(keys_kept_ms) {
        step.step.put(row, [keys_kept_ms.to_be_bytes(), from_ms.to_be_bytes()].concat());
    }
    Ok(from_ms.max(now_ms.saturating_sub(keys_kept_ms)))
}

/// What an add is answered that is not to be stored.
fn judge(
    step: &mut ShardStep<'_>,
    record: &OnceRecord,
    digest: u32,
    of_batch: &BTreeSet<Vec<u8>>,
    oldest_ms: u64,
    now_ms: u64,
) -> Result<Option<AddedOnce>, StoreError> {
    let (tenant, key) = (record.route.tenant, record.key.as_bytes());
    let known_or_other = |is_same: bool| Some(if is_same { AddedOnce::Known } else { AddedOnce::Other });
    let row = step.key_of(tenant, key);
    let mut holder = None;
    if let Some(held) = step.step.get(&row)? {
        let place = rows::read_place(&held)?;
        if let Some(known) = digest_in(&held)? {
            // A task whose slot has gone without freeing its key is over.
            if !of_batch.contains(&row) && step.entries(place.0)?.is_none() {
                free_key(step, tenant, key, place, Used::Over, now_ms)?;
            }
            return Ok(known_or_other(known == digest));
        }
        holder = held_by_other(step, record, place)?;
        if holder == Some(true) {
            return Ok(Some(AddedOnce::Known));
        }
    }
    Ok(match mark_of(step, tenant, key)? {
        Some(Mark { used: Used::Over, digest: known, .. }) => known_or_other(known == digest),
        Some(Mark { used: Used::Cancelled, .. }) => Some(AddedOnce::Cancelled { had_come: true }),
        Some(Mark { used: Used::Awaited, .. }) => {
            mark(step, tenant, key, Used::Cancelled, digest, now_ms)?;
            Some(AddedOnce::Cancelled { had_come: false })
        }
        None if holder.is_some() => Some(AddedOnce::Other),
        None if record.written_ms < oldest_ms => Some(AddedOnce::TooOld),
        None => None,
    })
}

/// Whether a task that did not come by a queue keeps the key, and then whether it is the same. One that fires, or has fired,
/// keeps it from its own repeat alone.
fn held_by_other(
    step: &mut ShardStep<'_>,
    record: &OnceRecord,
    (slot, index): (u32, u32),
) -> Result<Option<bool>, StoreError> {
    if step.entries(slot)?.is_none() {
        return Ok(None);
    }
    let Some(bytes) = step.step.get(&rows::entry(b'r', step.number(), slot, index))? else {
        return Ok(None);
    };
    let id = TaskId { shard: Shard(step.number()), slot: SlotMinute(slot), index };
    let SlotEntry::Task(old) = decode(id, &bytes)? else { return Ok(None) };
    let due_ms = id.slot.start_ms() + u64::from(old.offset_ms);
    let is_same = old.asked_ms.unwrap_or(due_ms) == record.due_ms
        && old.route == record.route
        && old.payload == record.payload;
    Ok((is_same || due_ms > step.meta().watermark_ms).then_some(is_same))
}

/// Deletes marks that were made before a time.
fn delete_marks(step: &mut ShardStep<'_>, before_ms: u64) -> Result<(), StoreError> {
    let prefix = Key::of(b'o').u16(step.number()).end();
    let begun: Vec<_> =
        step.files.range(&prefix, Bound::Included(prefix.clone())).take(DELETED_AT_ONCE).collect();
    for row in begun {
        let (order, _) = row?;
        let mut at = Reading(&order[prefix.len()..]);
        if at.u64()? >= before_ms {
            break;
        }
        let tenant = at.u16()?;
        let key = &order[prefix.len() + 10..];
        let own = Key::of(b'u').u16(step.number()).u16(tenant).bytes(key).end();
        // What this step has marked anew has another time, and its old row is removed already.
        if step.step.get(&order)?.is_none() {
            continue;
        }
        if let Some(bytes) = step.step.get(&own)?
            && Mark::decode(&bytes)?.used == Used::Awaited
        {
            step.count(tenant, 0, 1);
        }
        step.step.remove(own);
        step.step.remove(order.to_vec());
    }
    Ok(())
}

pub(super) fn cancel(
    step: &mut ShardStep<'_>,
    batch: Vec<CancelOnce>,
    now_ms: u64,
) -> Result<Vec<CancelledOnce>, StoreError> {
    batch.into_iter().map(|cancel| cancel_one(step, &cancel, now_ms)).collect()
}

fn cancel_one(
    step: &mut ShardStep<'_>,
    cancel: &CancelOnce,
    now_ms: u64,
) -> Result<CancelledOnce, StoreError> {
    let (tenant, key) = (cancel.tenant, cancel.key.as_bytes());
    let held = step.step.get(&step.key_of(tenant, key))?;
    let digest = held.map(|held| digest_in(&held)).transpose()?.flatten();
    if let Some(found) = step.locate(tenant, &TaskAt::Key(cancel.key.clone()))? {
        if found.is_cancelled {
            return Ok(CancelledOnce::Cancelled);
        }
        if found.due_ms() <= step.meta().watermark_ms {
            return Ok(CancelledOnce::Firing);
        }
        let id = tasks::id(step, found.slot, found.index);
        mark(step, tenant, key, Used::Cancelled, digest.unwrap_or(0), now_ms)?;
        tasks::cancel(step, found, tenant, now_ms)?;
        return Ok(CancelledOnce::Done(id));
    }
    if digest.is_some() {
        return Ok(CancelledOnce::Firing);
    }
    match mark_of(step, tenant, key)? {
        Some(Mark { used: Used::Over, .. }) => Ok(CancelledOnce::Firing),
        // The caller may rely on this cancel from now on: the mark lasts as long as a new one.
        Some(Mark { used, digest, .. }) => {
            mark(step, tenant, key, used, digest, now_ms)?;
            Ok(CancelledOnce::Cancelled)
        }
        None if !cancel.may_mark => Ok(CancelledOnce::Unmarked),
        None => {
            mark(step, tenant, key, Used::Awaited, 0, now_ms)?;
            step.count(tenant, 1, 0);
            Ok(CancelledOnce::Marked)
        }
    }
}
