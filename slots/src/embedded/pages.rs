//! A tenant's tasks by pages: those that wait, and those that were given up.

use super::files::Files;
use super::rows::{self, Key, PAGE_BYTES};
use super::shard::{ShardState, decode};
use super::tasks::{dead_key, is_done};
use crate::{checks::LISTED_MAX, dead_letter};
use bytes::Bytes;
use parking_lot::Mutex;
use std::ops::Bound;
use windfall_contract::due::{DeadTask, Found, SlotEntry, StoreError, TaskId, Waiting, WaitingPage};

pub(super) fn list(
    files: &Files,
    shards: &[Mutex<ShardState>],
    tenant: u16,
    after: Option<TaskId>,
    limit: usize,
) -> Result<WaitingPage, StoreError> {
    let from = match after {
        Some(id) => Bound::Excluded(rows::entry(b'r', id.shard.0, id.slot.0, id.index)),
        None => Bound::Included(b"r".to_vec()),
    };
    let mut page = WaitingPage::default();
    let mut look = Look { files, shards, watermark: None, done: None };
    for (looked, row) in files.range(b"r", from).enumerate() {
        let (key, bytes) = row?;
        let id = rows::read_id(&key[1..])?;
        if let SlotEntry::Task(record) = decode(id, &bytes)?
            && record.route.tenant == tenant
            && !look.is_over(id)?
        {
            let due_ms = id.slot.start_ms() + u64::from(record.offset_ms);
            let is_due = due_ms <= look.watermark_ms(id.shard.0);
            let state = if is_due { Waiting::Firing } else { Waiting::Waiting };
            page.tasks.push(Found { id, state, record });
        }
        if page.tasks.len() >= limit || looked + 1 >= LISTED_MAX {
            page.next = Some(id);
            break;
        }
    }
    Ok(page)
}

/// What the last look found, which mostly holds for the next one.
struct Look<'a> {
    files: &'a Files,
    shards: &'a [Mutex<ShardState>],
    watermark: Option<(u16, u64)>,
    done: Option<(Vec<u8>, Option<Bytes>)>,
}

impl Look<'_> {
    fn watermark_ms(&mut self, shard: u16) -> u64 {
        if let Some((of, watermark_ms)) = self.watermark
            && of == shard
        {
            return watermark_ms;
        }
        let state = self.shards.get(usize::from(shard));
        let watermark_ms = state.map_or(0, |state| state.lock().meta().watermark_ms);
        self.watermark = Some((shard, watermark_ms));
        watermark_ms
    }

    /// Whether it was cancelled, moved or fired.
    fn is_over(&mut self, id: TaskId) -> Result<bool, StoreError> {
        if self.files.get(&rows::entry(b'e', id.shard.0, id.slot.0, id.index))?.is_some() {
            return Ok(true);
        }
        let page = usize::try_from(id.index).unwrap_or(usize::MAX) / (PAGE_BYTES * 8);
        let key = rows::entry(b'd', id.shard.0, id.slot.0, u32::try_from(page).unwrap_or(u32::MAX));
        if self.done.as_ref().is_none_or(|(of, _)| *of != key) {
            let bits = self.files.get(&key)?;
            self.done = Some((key, bits));
        }
        let bits = self.done.as_ref().and_then(|(_, bits)| bits.as_ref());
        Ok(bits.is_some_and(|bits| is_done(bits, id.index)))
    }
}

pub(super) fn dead(
    files: &Files,
    tenant: u16,
    after: Option<TaskId>,
    limit: usize,
) -> Result<Vec<DeadTask>, StoreError> {
    let prefix = Key::of(b'x').u16(tenant).end();
    let from = match after {
        Some(id) => Bound::Excluded(dead_key(tenant, id)),
        None => Bound::Included(prefix.clone()),
    };
    let letter = |row: Result<(Bytes, Bytes), StoreError>| {
        let (key, bytes) = row?;
        dead_letter::decode(rows::read_id(&key[prefix.len()..])?, bytes)
    };
    files.range(&prefix, from).take(limit).map(letter).collect()
}
