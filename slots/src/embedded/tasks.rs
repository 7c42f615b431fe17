//! What callers do with tasks: add, change, get, send dead letters again.

use super::once::{self, Used};
use super::rows::{self, Key, PAGE_BYTES, Reading};
use super::shard::{Located, ShardStep, decode};
use crate::dead_letter;
use bytes::Bytes;
use std::cmp::Ordering;
use windfall_contract::due::{
    Added, Change, Changed, DueRecord, Found, LoadBatch, Loaded, Moved, NewRecord, Shard, SlotEntry,
    SlotMinute, StoreError, TaskAt, TaskId, Waiting,
};

pub(super) fn add(
    step: &mut ShardStep<'_>,
    batch: Vec<NewRecord>,
    now_ms: u64,
) -> Result<Vec<Added>, StoreError> {
    let mut answers = Vec::with_capacity(batch.len());
    for new in batch {
        if let Some(exists) = holder_of_key(step, &new)? {
            answers.push(Added::Exists(exists));
            continue;
        }
        let NewRecord { due_ms, route, key, payload } = new;
        let (slot, offset_ms, asked_ms) = step.place(due_ms);
        let record = DueRecord { offset_ms, route, key, asked_ms, first_id: None, payload };
        let index = step.append(slot, record.encode(), false)?;
        if let Some(key) = record.key {
            once::lose_key(step, route.tenant, key.as_bytes(), now_ms)?;
            let row = step.key_of(route.tenant, key.as_bytes());
            step.step.put(row, rows::place(slot, index));
        }
        step.count(route.tenant, 1, 0);
        answers.push(Added::Stored(id(step, slot, index)));
    }
    Ok(answers)
}

/// The task that holds the key of a new one. One that fires, or has fired, holds it against its own repeat alone.
fn holder_of_key(step: &mut ShardStep<'_>, new: &NewRecord) -> Result<Option<TaskId>, StoreError> {
    let Some(key) = &new.key else { return Ok(None) };
    let Some((slot, index)) = step.by_key(new.route.tenant, key.as_bytes())? else { return Ok(None) };
    let holder = id(step, slot, index);
    // What this step has stored is not there yet: of equal keys in one batch the first one is stored.
    let Some(bytes) = step.step.get(&rows::entry(b'r', step.number(), slot, index))? else {
        return Ok(Some(holder));
    };
    let SlotEntry::Task(record) = decode(holder, &bytes)? else { return Ok(None) };
    let due_ms = holder.slot.start_ms() + u64::from(record.offset_ms);
    let is_repeat = record.asked_ms.unwrap_or(due_ms) == new.due_ms
        && record.route == new.route
        && record.payload == new.payload;
    Ok((due_ms > step.meta().watermark_ms || is_repeat).then_some(holder))
}

pub(super) fn load(step: &mut ShardStep<'_>, batch: LoadBatch) -> Result<Loaded, StoreError> {
    let shard = step.number();
    let fence = Key::of(b'l').u16(shard).bytes(&batch.log.to_be_bytes()).end();
    let last = step.step.get(&fence)?.map(|last| Reading(&last).u64()).transpose()?;
    if let Some(last) = last {
        match last.cmp(&batch.sequence) {
            Ordering::Less => {}
            Ordering::Equal => return Ok(Loaded::Before),
            Ordering::Greater => return Ok(Loaded::Other(last)),
        }
    }
    let last = last.unwrap_or(0);
    if batch.follows.is_some_and(|follows| follows != last) {
        return Ok(Loaded::Other(last));
    }
    if batch.records.is_empty() {
        return Ok(Loaded::Stored);
    }
    let this_minute = SlotMinute::of(step.meta().watermark_ms);
    for record in batch.records {
        let (slot, offset_ms, asked_ms) = step.place(record.due_ms);
        let (route, first_id) = (record.route, Some(record.id));
        let due = DueRecord { offset_ms, route, key: None, asked_ms, first_id, payload: record.payload };
        let index = step.append(slot, due.encode(), false)?;
        // What an earlier minute had may be dropped already, and nobody would ever drop it again.
        if record.id.slot >= this_minute {
            step.keep_slot(record.id.slot.0)?;
            let row = rows::entry(b'e', shard, record.id.slot.0, record.id.index);
            step.step.append(row, rows::place(slot, index).into());
        }
        step.count(route.tenant, 1, 0);
    }
    step.step.put(fence, batch.sequence.to_be_bytes().to_vec());
    Ok(Loaded::Stored)
}

pub(super) fn change(
    step: &mut ShardStep<'_>,
    batch: Vec<Change>,
    now_ms: u64,
) -> Result<Vec<Changed>, StoreError> {
    batch.into_iter().map(|change| change_one(step, change, now_ms)).collect()
}

fn change_one(step: &mut ShardStep<'_>, change: Change, now_ms: u64) -> Result<Changed, StoreError> {
    let Some(found) = step.locate(change.tenant, &change.at)? else { return Ok(Changed::Unknown) };
    if found.is_cancelled {
        return Ok(Changed::Cancelled);
    }
    if found.due_ms() <= step.meta().watermark_ms {
        return Ok(Changed::Firing);
    }
    let old = id(step, found.slot, found.index);
    match change.to {
        None => cancel(step, found, change.tenant, now_ms).map(|()| Changed::Done(old)),
        Some(to) if changes_nothing(&found, &to) => Ok(Changed::Done(old)),
        Some(to) => move_task(step, found, to).map(Changed::Done),
    }
}

/// So it is where an answer got lost, and the caller asks again.
fn changes_nothing(found: &Located, to: &Moved) -> bool {
    to.due_ms.is_none_or(|due_ms| due_ms == found.due_ms())
        && to.payload.as_ref().is_none_or(|payload| *payload == found.record.payload)
}

pub(super) fn cancel(
    step: &mut ShardStep<'_>,
    found: Located,
    tenant: u16,
    now_ms: u64,
) -> Result<(), StoreError> {
    end(step, &found, Bytes::new())?;
    if let Some(key) = &found.record.key {
        let place = (found.slot, found.index);
        once::free_key(step, tenant, key.as_bytes(), place, Used::Cancelled, now_ms)?;
    }
    step.count(tenant, 0, 1);
    Ok(())
}

/// Notes for callers and for dispatchers that the entry is no task any more.
fn end(step: &mut ShardStep<'_>, found: &Located, moved: Bytes) -> Result<(), StoreError> {
    step.step.put(rows::entry(b'e', step.number(), found.slot, found.index), moved);
    step.append(found.slot, SlotEntry::End(found.index).encode(), true)?;
    Ok(())
}

fn move_task(step: &mut ShardStep<'_>, found: Located, to: Moved) -> Result<TaskId, StoreError> {
    let old = id(step, found.slot, found.index);
    let first = found.record.first_id.unwrap_or(old);
    let (slot, offset_ms, asked_ms) = match to.due_ms {
        Some(due_ms) => step.place(due_ms),
        None => (found.slot, found.record.offset_ms, found.record.asked_ms),
    };
    let record = DueRecord {
        offset_ms,
        asked_ms,
        first_id: Some(first),
        payload: to.payload.unwrap_or_else(|| found.record.payload.clone()),
        ..found.record.clone()
    };
    let index = step.append(slot, record.encode(), true)?;
    let place = Bytes::from(rows::place(slot, index));
    end(step, &found, place.clone())?;
    // The id that the caller knows leads here in one hop, however often the task was moved.
    if first != old && step.entries(first.slot.0)?.is_some() {
        step.step.put(rows::entry(b'e', step.number(), first.slot.0, first.index), place.clone());
    }
    if let Some(key) = &record.key
        && step.by_key(record.route.tenant, key.as_bytes())? == Some((found.slot, found.index))
    {
        let row = step.key_of(record.route.tenant, key.as_bytes());
        let held = step.step.get(&row)?.unwrap_or_default();
        // Behind the place: the digest of an add that came by a queue.
        step.step.put(row, [&place[..], held.get(place.len()..).unwrap_or_default()].concat());
    }
    Ok(id(step, slot, index))
}

pub(super) fn get(
    step: &mut ShardStep<'_>,
    tenant: u16,
    at: Vec<TaskAt>,
) -> Result<Vec<Option<Found>>, StoreError> {
    let watermark_ms = step.meta().watermark_ms;
    let find = |at: TaskAt| {
        let Some(found) = step.locate(tenant, &at)? else { return Ok(None) };
        let state = match found.due_ms() <= watermark_ms {
            _ if found.is_cancelled => Waiting::Cancelled,
            true => Waiting::Firing,
            false => Waiting::Waiting,
        };
        Ok(Some(Found { id: id(step, found.slot, found.index), state, record: found.record }))
    };
    at.into_iter().map(find).collect()
}

pub(super) fn end_dead(
    step: &mut ShardStep<'_>,
    tenant: u16,
    ids: Vec<TaskId>,
    again: bool,
) -> Result<Vec<bool>, StoreError> {
    let mut answers = Vec::with_capacity(ids.len());
    for dead_id in ids {
        let row = dead_key(tenant, dead_id);
        let is_here = dead_id.shard == Shard(step.number());
        let Some(bytes) = step.step.get(&row)?.filter(|_| is_here) else {
            answers.push(false);
            continue;
        };
        step.step.remove(row);
        answers.push(true);
        if again {
            let dead = dead_letter::decode(dead_id, bytes)?;
            let (slot, offset_ms, asked_ms) = step.place(dead.record.asked_ms.unwrap_or(dead.due_ms));
            let record = DueRecord { offset_ms, asked_ms, first_id: Some(dead_id), ..dead.record };
            let index = step.append(slot, record.encode(), true)?;
            // Where another task has taken the key meanwhile, that one keeps it.
            if let Some(key) = &record.key
                && step.by_key(tenant, key.as_bytes())?.is_none()
            {
                let digest = once::digest_of_over(step, tenant, key.as_bytes())?;
                let mut held = rows::place(slot, index);
                held.extend(digest.map(u32::to_be_bytes).into_iter().flatten());
                let row = step.key_of(tenant, key.as_bytes());
                step.step.put(row, held);
            }
            step.count(tenant, 1, 0);
        }
    }
    Ok(answers)
}

pub(super) fn dead_key(tenant: u16, id: TaskId) -> Vec<u8> {
    Key::of(b'x').u16(tenant).u16(id.shard.0).u32(id.slot.0).u32(id.index).end()
}

/// The done bit of an entry in its page.
pub(super) fn is_done(page: &[u8], index: u32) -> bool {
    let bit = usize::try_from(index).unwrap_or(usize::MAX) % (PAGE_BYTES * 8);
    page.get(bit / 8).is_some_and(|byte| byte & (0x80 >> (bit % 8)) != 0)
}

pub(super) fn id(step: &ShardStep<'_>, slot: u32, index: u32) -> TaskId {
    TaskId { shard: Shard(step.number()), slot: SlotMinute(slot), index }
}
