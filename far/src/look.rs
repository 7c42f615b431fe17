//! Where a task is: in memory, in a segment, or near.

use crate::entry::Push;
use crate::replay::log_failed;
use crate::row::{FarTask, Row, RowKey};
use crate::segment::{ReadError, Segment};
use crate::tier::{FarTier, not_open};
use bytes::Bytes;
use std::sync::Arc;
use windfall_contract::due::{DueRecord, Found, Route, SlotMinute, StoreError, TaskId, Waiting};

/// How often a look is repeated whose segments were merged meanwhile.
pub(crate) const LOOKS_MAX: usize = 10;

/// What the far tier says of a task by its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FarFound {
    /// Ask the slot store: if the tenant has such a task, it is near.
    Near,
    /// It waits here, or was cancelled here.
    Here(Found),
}

pub(crate) type Segments = Arc<Vec<Arc<Segment>>>;

impl FarTier {
    /// Finds a tenant's task.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn get(&self, tenant: u16, id: TaskId) -> Result<FarFound, StoreError> {
        let Some(key) = RowKey::of(id) else { return Ok(FarFound::Near) };
        if self.is_known_to_be_near(key)? {
            return Ok(FarFound::Near);
        }
        let row = self.look(key).await?.1;
        if matches!(row, Some(Row::Cancelled(_))) {
            self.sync_cancels().await?;
        }
        let state = self.0.state.lock();
        Ok(match row.filter(|row| row.tenant() == tenant) {
            Some(Row::Task(task)) if !state.is_near(key) => FarFound::Here(found(id, task)),
            Some(Row::Cancelled(tenant)) if !state.is_near(key) => {
                FarFound::Here(found_cancelled(id, tenant))
            }
            _ => {
                let pushed =
                    state.figures.pushes.iter().find(|(of, push)| *of == key && push.tenant == tenant);
                pushed.map_or(FarFound::Near, |(_, push)| FarFound::Here(found_push(id, push)))
            }
        })
    }

    /// Whether a task of a tenant that the slot store does not know was cancelled. It is known until the rows of its hour
    /// are let go of: what was cancelled before its hour was loaded is in them alone.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(crate) async fn was_cancelled(&self, tenant: u16, id: TaskId) -> Result<bool, StoreError> {
        let Some(key) = RowKey::of(id) else { return Ok(false) };
        if key.hour <= self.0.state.lock().dropped_upto() {
            return Ok(false);
        }
        if !self.is_open() {
            return Err(not_open());
        }
        let row = self.look(key).await?.1;
        let is_cancelled = matches!(row, Some(Row::Cancelled(of)) if of == tenant);
        if is_cancelled {
            self.sync_cancels().await?;
        }
        Ok(is_cancelled)
    }

    /// Nobody is told of a cancel that a machine which dies now would take along.
    async fn sync_cancels(&self) -> Result<(), StoreError> {
        match self.0.options.is_synced {
            true => self.blocking(|inner| inner.log.sync(inner.log.end())).await?.map_err(log_failed),
            false => Ok(()),
        }
    }

    /// Whether the log alone says that a task is near. An error where only the segments could say so, and are not open.
    pub(crate) fn is_known_to_be_near(&self, key: RowKey) -> Result<bool, StoreError> {
        if self.0.state.lock().is_near_for_good(key) {
            return Ok(true);
        }
        match self.is_open() {
            true => Ok(false),
            false => Err(not_open()),
        }
    }

    /// The row of a key, and the segments in which it was looked for.
    pub(crate) async fn look(&self, key: RowKey) -> Result<(Segments, Option<Row>), StoreError> {
        for _ in 0..LOOKS_MAX {
            let (segments, in_memory) = {
                let state = self.0.state.lock();
                (Arc::clone(&state.segments), state.in_memory(key).cloned())
            };
            if in_memory.is_some() {
                return Ok((segments, in_memory));
            }
            match self.find(&segments, key).await {
                Ok(row) => return Ok((segments, row)),
                // Merged meanwhile, or lost: where the list is still the same one, it is lost.
                Err(ReadError::Gone(name)) if Arc::ptr_eq(&segments, &self.0.state.lock().segments) => {
                    return Err(StoreError::Unavailable(format!("the segment {name} is missing")));
                }
                Err(ReadError::Gone(_)) => {}
                Err(error) => {
                    self.0.counters.objects_failed();
                    return Err(StoreError::Unavailable(error.to_string()));
                }
            }
        }
        Err(StoreError::Unavailable("the far tier was rewritten again and again during a look".into()))
    }

    async fn find(&self, segments: &Segments, key: RowKey) -> Result<Option<Row>, ReadError> {
        // Without them there are no segments either.
        let Some(objects) = self.0.objects.get() else { return Ok(None) };
        for segment in segments.iter().rev() {
            let found = segment.find(&**objects, key, &self.0.counters).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

pub(crate) fn found(id: TaskId, task: FarTask) -> Found {
    let FarTask { offset_ms, route, payload } = task;
    let record = DueRecord { offset_ms, route, key: None, asked_ms: None, first_id: None, payload };
    Found { id, state: Waiting::Waiting, record }
}

/// What it was is gone already.
pub(crate) fn found_cancelled(id: TaskId, tenant: u16) -> Found {
    let route = Route { tenant, target: 0 };
    let task = FarTask { offset_ms: 0, route, payload: Bytes::new() };
    Found { state: Waiting::Cancelled, ..found(id, task) }
}

/// A task that was moved, under the slot of its new time.
fn found_push(id: TaskId, push: &Push) -> Found {
    let slot = SlotMinute::of(push.due_ms);
    let offset_ms = u16::try_from(push.due_ms - slot.start_ms()).unwrap_or(0);
    let payload = Bytes::copy_from_slice(&push.payload);
    let mut found = found(TaskId { slot, ..id }, FarTask { offset_ms, route: push.route(), payload });
    found.record.first_id = Some(id);
    found
}
