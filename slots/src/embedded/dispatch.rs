//! What dispatchers do under a lease.

use super::files::Files;
use super::once::{self, Used};
use super::rows::{self, Key, PAGE_BYTES, Reading};
use super::shard::{ShardState, ShardStep, SlotsBound};
use super::tasks::dead_key;
use crate::{checks, dead_letter};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;
use windfall_contract::due::{
    Advanced, DUE_MAX_MS, FinishBatch, HeldBy, Lease, LeaseError, ReadFrom, Shard, SlotMinute, SlotState,
    StoreError,
};

/// The rows of a dropped slot that one write forgets at most.
const FORGOTTEN_AT_ONCE: usize = 20_000;

/// Holds a call against the epoch of the shard's lease.
pub(super) fn fence(state: &ShardState, lease: &Lease) -> Result<(), LeaseError> {
    let meta = state.meta();
    match meta.epoch == lease.epoch && meta.owner.is_some() {
        true => Ok(()),
        false => Err(LeaseError::Lost),
    }
}

pub(super) fn acquire(
    step: &mut ShardStep<'_>,
    instance: &str,
    ttl_ms: u64,
    now_ms: u64,
) -> Result<Lease, HeldBy> {
    let end_ms = now_ms.saturating_add(ttl_ms);
    if let Some(owner) = step.meta().owner.clone().filter(|owner| owner != instance) {
        // The clock may have gone back since the lease was given.
        let owned_to_ms = step.meta().lease_end_ms.min(end_ms);
        if owned_to_ms > now_ms {
            if owned_to_ms != step.meta().lease_end_ms {
                step.meta_mut().lease_end_ms = owned_to_ms;
            }
            return Err(HeldBy { instance: owner, left_ms: owned_to_ms - now_ms });
        }
    }
    let shard = Shard(step.number());
    let meta = step.meta_mut();
    meta.epoch += 1;
    meta.owner = Some(instance.to_owned());
    meta.lease_end_ms = end_ms;
    Ok(Lease { shard, epoch: meta.epoch })
}

/// Moves the watermark on, and says which slots a dispatcher has to know of.
pub(super) fn advance(
    files: &Files,
    state: &mut ShardState,
    bound: &SlotsBound,
    ahead_ms: u64,
    now_ms: u64,
) -> Result<Advanced, StoreError> {
    let watermark_ms = state.meta().watermark_ms.max(now_ms.min(DUE_MAX_MS));
    if watermark_ms != state.meta().watermark_ms {
        let mut step = ShardStep::begin(files, state, bound);
        step.meta_mut().watermark_ms = watermark_ms;
        step.commit()?;
    }
    let mut slots = Vec::new();
    for slot in state.slots_before(watermark_ms.saturating_add(ahead_ms)) {
        slots.push((SlotMinute(slot), state.entries(files, slot)?.unwrap_or(0)));
    }
    Ok(Advanced { watermark_ms, slots, entries: Vec::new() })
}

/// Reads entries as far as `max_bytes` goes, and one at least, so that a dispatcher gets on.
pub(super) fn read(
    files: &Files,
    shard: u16,
    reads: &[ReadFrom],
    max_bytes: usize,
) -> Result<Vec<(SlotMinute, u32, Vec<Bytes>)>, StoreError> {
    let mut parts = Vec::new();
    let mut bytes = 0;
    for ReadFrom { slot, next_index } in reads {
        let mut entries = Vec::new();
        let prefix = Key::of(b'r').u16(shard).u32(slot.0).end();
        let from = Bound::Included(rows::entry(b'r', shard, slot.0, *next_index));
        let mut is_full = false;
        for row in files.range(&prefix, from) {
            let (_, entry) = row?;
            is_full = bytes + entry.len() > max_bytes && bytes > 0;
            if is_full {
                break;
            }
            bytes += entry.len();
            entries.push(entry);
        }
        if !entries.is_empty() {
            parts.push((*slot, *next_index, entries));
        }
        if is_full {
            break;
        }
    }
    Ok(parts)
}

pub(super) fn slot_state(files: &Files, shard: u16, slot: SlotMinute) -> Result<SlotState, StoreError> {
    let mut done = Vec::new();
    let pages = Key::of(b'd').u16(shard).u32(slot.0).end();
    for row in files.range(&pages, Bound::Included(pages.clone())) {
        let (key, page) = row?;
        let first = usize::try_from(Reading(&key[pages.len()..]).u32()?).unwrap_or(0) * PAGE_BYTES;
        done.resize(first, 0);
        done.extend_from_slice(&page);
    }
    let mut attempts = BTreeMap::new();
    let prefix = Key::of(b'a').u16(shard).u32(slot.0).end();
    for row in files.range(&prefix, Bound::Included(prefix.clone())) {
        let (key, value) = row?;
        attempts.insert(Reading(&key[prefix.len()..]).u32()?, Reading(&value).u32()?);
    }
    Ok(SlotState { done: done.into(), attempts })
}

pub(super) fn finish(
    step: &mut ShardStep<'_>,
    lease: &Lease,
    slot: SlotMinute,
    batch: FinishBatch,
    now_ms: u64,
) -> Result<(), LeaseError> {
    let (epoch, sequence) = step.meta().finished;
    if epoch == lease.epoch && batch.sequence <= sequence {
        return Ok(());
    }
    // A slot that is gone keeps no bits; whatever else the batch says still holds.
    let entries = step.entries(slot.0)?;
    if let Some(entries) = entries {
        if checks::is_beyond(&batch, entries) {
            return Err(LeaseError::Lost);
        }
        for (first, bytes) in &batch.done {
            note_done(step, slot.0, *first, bytes)?;
        }
        for (index, attempts) in &batch.attempts {
            let row = rows::entry(b'a', step.number(), slot.0, *index);
            step.step.put(row, attempts.to_be_bytes().to_vec());
        }
    }
    for (tenant, key, index) in &batch.keys {
        once::free_key(step, *tenant, key.as_bytes(), (slot.0, *index), Used::Over, now_ms)?;
    }
    for (tenant, over) in &batch.over {
        step.count(*tenant, 0, u64::from(*over));
    }
    for dead in &batch.dead {
        step.step.put(dead_key(dead.record.route.tenant, dead.id), dead_letter::encode(dead));
    }
    step.meta_mut().finished = (lease.epoch, batch.sequence);
    Ok(())
}

/// Writes bytes of the done bitmap, which lies in pages.
fn note_done(step: &mut ShardStep<'_>, slot: u32, first: u32, mut bytes: &[u8]) -> Result<(), StoreError> {
    let mut at = usize::try_from(first).unwrap_or(usize::MAX);
    while !bytes.is_empty() {
        let (number, start) = (at / PAGE_BYTES, at % PAGE_BYTES);
        let (now, rest) = bytes.split_at(bytes.len().min(PAGE_BYTES - start));
        let row = rows::entry(b'd', step.number(), slot, u32::try_from(number).unwrap_or(u32::MAX));
        let mut page = step.step.get(&row)?.map(Vec::from).unwrap_or_default();
        page.resize(page.len().max(start + now.len()), 0);
        page[start..start + now.len()].copy_from_slice(now);
        step.step.put(row, page);
        at += now.len();
        bytes = rest;
    }
    Ok(())
}

/// Whether the slot is gone.
pub(super) fn drop_slot(
    files: &Files,
    state: &mut ShardState,
    bound: &SlotsBound,
    slot: SlotMinute,
    entries: u32,
) -> Result<bool, StoreError> {
    let Some(found) = state.entries(files, slot.0)? else { return Ok(true) };
    if slot >= SlotMinute::of(state.meta().watermark_ms) || found > entries {
        return Ok(false);
    }
    let mut step = ShardStep::begin(files, state, bound);
    let shard = step.number();
    // The slot goes first, and its rows after it, which a row of their own remembers until they are gone. No add ever
    // makes the slot again, because the watermark that is written with it is behind it.
    step.meta_mut();
    step.drop_slot(slot.0);
    step.commit()?;
    forget_rows(files, shard, slot.0)?;
    Ok(true)
}

/// Ends the drops that a kill has cut short.
pub(super) fn end_drops(files: &Files) -> Result<(), StoreError> {
    let begun: Result<Vec<_>, _> = files.range(b"z", Bound::Included(b"z".to_vec())).collect();
    for (key, _) in begun? {
        let mut at = Reading(&key[1..]);
        forget_rows(files, at.u16()?, at.u32()?)?;
    }
    Ok(())
}

/// Forgets what belonged to a slot that is gone: its tasks first, which would be listed without their bits.
fn forget_rows(files: &Files, shard: u16, slot: u32) -> Result<(), StoreError> {
    for letter in [b'r', b'e', b'd', b'a'] {
        let prefix = Key::of(letter).u16(shard).u32(slot).end();
        loop {
            let mut step = files.step();
            let mut forgotten = 0;
            for row in files.range(&prefix, Bound::Included(prefix.clone())).take(FORGOTTEN_AT_ONCE) {
                step.forget(row?.0);
                forgotten += 1;
            }
            if forgotten > 0 {
                step.commit()?;
            }
            if forgotten < FORGOTTEN_AT_ONCE {
                break;
            }
        }
    }
    let mut step = files.step();
    step.forget(Key::of(b'z').u16(shard).u32(slot).end());
    step.commit()
}
