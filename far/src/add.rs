//! Tasks are taken: into the log and into memory, as far as there is room.

use crate::entry::{Entry, Named};
use crate::fail_points::FailPoint;
use crate::replay::log_failed;
use crate::row::{FarTask, Row, RowKey, hour_of};
use crate::state::State;
use crate::tier::{FarTier, Inner, dead};
use bytes::Bytes;
use std::collections::HashMap;
use windfall_contract::due::{
    NewRecord, PAYLOAD_MAX_BYTES, Route, Shard, SlotMinute, SlotStore, StoreError, TaskId,
};

/// The bytes of a frame of the log from which on another one is begun.
const FRAME_BYTES: usize = 1 << 20;
/// Hours ahead of now that tasks are taken for; what is due later stays near. Bounds the figures in memory.
const HOURS_AHEAD_MAX: u32 = 400 * 24;
/// The bytes of a part of the log, for each byte of `flush_bytes`, at which a segment is written, and for each byte of
/// `memory_bytes_max`, at which no more is taken. A part is read as a whole when the log is opened.
pub(crate) const LOG_BYTES_FACTOR: u64 = 4;

impl FarTier {
    /// Whether a task that is due then is to be added here. It may be refused all the same when it is.
    pub fn takes(&self, due_ms: u64) -> bool {
        let hour = hour_of(SlotMinute::of(due_ms));
        let now_ms = self.0.clock.unix_ms();
        due_ms > now_ms.saturating_add(self.0.options.horizon_ms)
            && hour <= self.0.last_hour()
            && !self.0.state.lock().is_closed(hour)
    }

    /// Notes what the numbers of a route stand for, where it is not noted yet. Its tasks are loaded only into a slot store
    /// in which they stand for the same.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn name(&self, near: &dyn SlotStore, route: Route) -> Result<(), StoreError> {
        if self.0.state.lock().names.contains_key(&(route.tenant, route.target)) {
            return Ok(());
        }
        let Some(names) = near.names(route).await? else { return Ok(()) };
        let named = Entry::Names(vec![Named { tenant: route.tenant, target: route.target, names }]);
        self.blocking(move |inner| inner.append(&mut inner.state.lock(), vec![named])).await?.map(drop)
    }

    /// Adds tasks: one answer for each, in order; `None` for one that is to be added near, or refused there: it has a
    /// key, or its hour is on its way near already, or it is due in more than 400 days.
    ///
    /// # Errors
    /// [`StoreError`]: any of them may be stored.
    pub async fn add(&self, shard: Shard, tasks: Vec<NewRecord>) -> Result<Vec<Option<TaskId>>, StoreError> {
        let is_synced = self.0.options.is_synced;
        let (added, end) = self.blocking(move |inner| inner.add(shard, &tasks)).await??;
        if let Some(end) = end.filter(|_| is_synced) {
            self.blocking(move |inner| inner.log.sync(end)).await?.map_err(log_failed)?;
        }
        match self.0.fail_points.is_dead_at(FailPoint::Appended) {
            true => Err(dead()),
            false => Ok(added),
        }
    }
}

impl Inner {
    /// The last hour for which tasks are taken now.
    fn last_hour(&self) -> u32 {
        hour_of(SlotMinute::of(self.clock.unix_ms())).saturating_add(HOURS_AHEAD_MAX)
    }

    fn add(
        &self,
        shard: Shard,
        tasks: &[NewRecord],
    ) -> Result<(Vec<Option<TaskId>>, Option<u64>), StoreError> {
        let mut state = self.state.lock();
        if !self.make_room(&mut state, 0) {
            return Err(no_room());
        }
        let mut next: HashMap<u32, u32> = HashMap::new();
        let (mut ids, mut entries, mut bytes, mut end) =
            (Vec::with_capacity(tasks.len()), Vec::new(), 0, None);
        for task in tasks {
            let slot = SlotMinute::of(task.due_ms);
            let hour = hour_of(slot);
            let is_whole = task.payload.len() <= PAYLOAD_MAX_BYTES;
            if task.key.is_some() || !is_whole || state.is_closed(hour) || hour > self.last_hour() {
                ids.push(None);
                continue;
            }
            let number = next.get(&hour).copied().or_else(|| state.next_number(hour));
            let number = number.filter(|number| *number < u32::MAX >> 1);
            let number = number.ok_or_else(|| StoreError::Unavailable("the hour is full".into()))?;
            next.insert(hour, number + 1);
            let minute = u8::try_from(slot.0 % 60).unwrap_or(0);
            let key = RowKey { hour, shard: shard.0, minute, number };
            let offset_ms = u16::try_from(task.due_ms - slot.start_ms()).unwrap_or(0);
            // A payload may be a part of a larger buffer, which it would keep.
            let payload = Bytes::copy_from_slice(&task.payload);
            bytes += payload.len() + 32;
            entries.push(Entry::Add(key, Row::Task(FarTask { offset_ms, route: task.route, payload })));
            ids.push(Some(key.id()));
            if bytes >= FRAME_BYTES {
                self.counters.added(entries.len());
                end = Some(self.append(&mut state, std::mem::take(&mut entries))?);
                bytes = 0;
            }
        }
        if !entries.is_empty() {
            self.counters.added(entries.len());
            end = Some(self.append(&mut state, entries)?);
        }
        Ok((ids, end))
    }

    /// Whether more may be taken before what is there is in a segment. A task that is changed again and again takes no
    /// more memory, but more of the log.
    fn has_room(&self, state: &State, more: usize) -> bool {
        let max = self.options.memory_bytes_max.saturating_add(more);
        let log_max = u64::try_from(max).unwrap_or(u64::MAX).saturating_mul(LOG_BYTES_FACTOR);
        state.memory_bytes() <= max && self.log.part_bytes() <= log_max
    }

    /// The same; where there is none, rows of hours that are over make room. No task is lost with them: it is near, and
    /// no backfill fires it again.
    pub(crate) fn make_room(&self, state: &mut State, more: usize) -> bool {
        if self.has_room(state, more) {
            return true;
        }
        let over_upto = state.figures.over_upto;
        if state.memory_bytes() > self.options.memory_bytes_max.saturating_add(more) {
            if state.gone_upto < over_upto {
                tracing::error!(
                    "the far tier has no room in memory until the object store takes what is there; hours that have been \
                     loaded are not kept for a backfill, so that tasks can be added"
                );
            }
            state.forget_upto(over_upto);
        }
        self.has_room(state, more)
    }
}

pub(crate) fn no_room() -> StoreError {
    let what = "the far tier has no room in memory until the object store takes what is there";
    StoreError::Unavailable(what.into())
}
