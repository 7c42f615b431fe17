//! Tasks are cancelled and changed by their id.

use crate::add::no_room;
use crate::entry::{Entry, Push};
use crate::fail_points::FailPoint;
use crate::look::{LOOKS_MAX, Segments};
use crate::replay::log_failed;
use crate::row::{FarTask, Row, RowKey};
use crate::tier::{FarTier, Inner, dead, due_ms};
use crate::turns::{Turn, Turns};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::due::{Changed, DUE_MAX_MS, Moved, PAYLOAD_MAX_BYTES, StoreError, TaskId};

/// Tasks that were moved and are not near yet, at most, and the bytes of their payloads: each checkpoint has them.
const PUSHES_MAX: usize = 10_000;
const PUSHES_BYTES_MAX: usize = 4 << 20;
/// Bytes in memory beyond `memory_bytes_max` that changes may take.
pub(crate) const CHANGES_BYTES: usize = 8 << 20;
/// How long a move waits until the task is near.
const PUSH_WAIT: Duration = Duration::from_secs(5);

/// What became of a change of a task by its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FarChanged {
    /// Ask the slot store: if the tenant has such a task, it is near.
    Near,
    /// It was here.
    Here(Changed),
    /// It was here, has the other time, and is near by now. The slot store says where it lies.
    MovedNear,
}

/// What became of a change, and the position of the log behind it; `None` where the row was not the last word.
type Decided = Option<(FarChanged, Option<u64>)>;

/// A change that is asked for.
struct Asked {
    turn: Arc<Turn>,
    tenant: u16,
    key: RowKey,
    to: Option<Moved>,
}

impl FarTier {
    /// Cancels or changes a tenant's task. One that gets another time goes near at once, and waits there.
    ///
    /// # Errors
    /// [`StoreError`]: it may be done or not, and may be repeated. So it is for a task that is on its way near, for a
    /// moment, and for a change that another one of the same task has overtaken. [`StoreError::Unusable`] for a time or
    /// a payload that no slot store takes.
    pub async fn change(&self, tenant: u16, id: TaskId, to: Option<Moved>) -> Result<FarChanged, StoreError> {
        let turn = self.turns().begin((tenant, id), vec![to.clone()]);
        self.change_in_turn(turn, tenant, id, to).await
    }

    pub(crate) fn turns(&self) -> &Turns {
        &self.0.turns
    }

    /// The change whose turn it is.
    pub(crate) async fn change_in_turn(
        &self,
        turn: Arc<Turn>,
        tenant: u16,
        id: TaskId,
        to: Option<Moved>,
    ) -> Result<FarChanged, StoreError> {
        let Some(key) = RowKey::of(id) else { return Ok(FarChanged::Near) };
        if to.as_ref().is_some_and(|to| !may_be_stored(to)) {
            return Err(StoreError::Unusable("no slot store takes such a time or such a payload".into()));
        }
        if self.is_known_to_be_near(key)? {
            return Ok(FarChanged::Near);
        }
        for _ in 0..LOOKS_MAX {
            turn.check()?;
            let (segments, row) = self.look(key).await?;
            let (turn, to) = (Arc::clone(&turn), to.clone());
            let change = Asked { turn, tenant, key, to };
            let decided = self.blocking(move |inner| inner.change(&change, row, &segments)).await??;
            let Some((changed, end)) = decided else { continue };
            if let Some(end) = end.filter(|_| self.0.options.is_synced) {
                self.blocking(move |inner| inner.log.sync(end)).await?.map_err(log_failed)?;
            }
            if self.0.fail_points.is_dead_at(FailPoint::Appended) {
                return Err(dead());
            }
            if changed == FarChanged::MovedNear {
                self.wait_until_near(key).await?;
            }
            return Ok(changed);
        }
        Err(StoreError::Unavailable("the far tier was rewritten again and again during a look".into()))
    }

    /// Waits until a task that was moved is near.
    async fn wait_until_near(&self, key: RowKey) -> Result<(), StoreError> {
        let mut loaded = self.0.loaded.subscribe();
        let until_near = async {
            while self.0.state.lock().is_on_its_way(key) {
                self.0.wake.notify_one();
                if loaded.changed().await.is_err() {
                    return;
                }
            }
        };
        let late =
            |_| StoreError::Unavailable("the task is moved, and on its way into the slot store".into());
        tokio::time::timeout(PUSH_WAIT, until_near).await.map_err(late)
    }
}

impl Inner {
    /// `row` is what the segments have, as long as they are these.
    fn change(&self, asked: &Asked, row: Option<Row>, segments: &Segments) -> Result<Decided, StoreError> {
        let Asked { turn, tenant, key, to } = asked;
        let (tenant, key) = (*tenant, *key);
        let mut state = self.state.lock();
        turn.check()?;
        let is_pushed = |(of, push): &(RowKey, Push)| *of == key && push.tenant == tenant;
        if state.figures.pushes.iter().any(is_pushed) {
            return Err(on_its_way());
        }
        if state.is_near(key) {
            return Ok(Some((FarChanged::Near, None)));
        }
        let row = match state.in_memory(key) {
            Some(row) => Some(row.clone()),
            None if Arc::ptr_eq(segments, &state.segments) => row,
            None => return Ok(None),
        };
        // The change that this one repeats may be on its way to the disk, or have failed there.
        let here = |changed| Ok(Some((FarChanged::Here(changed), Some(self.log.end()))));
        let id = key.id();
        let task = match row.filter(|row| row.tenant() == tenant) {
            Some(Row::Task(task)) => task,
            Some(Row::Cancelled(_)) => return here(Changed::Cancelled),
            Some(Row::Moved(_)) | None => return Ok(Some((FarChanged::Near, None))),
        };
        let due_ms = due_ms(key.slot(), &task);
        let entry = match to {
            _ if state.is_closed(key.hour) => return Err(on_its_way()),
            // Changes may go on a little longer than adds, so that cancels are the last that is refused.
            _ if !self.make_room(&mut state, CHANGES_BYTES) => return Err(no_room()),
            None => Entry::Change(key, Row::Cancelled(tenant)),
            Some(to) => {
                let payload = to.payload.clone().unwrap_or_else(|| task.payload.clone());
                match to.due_ms.filter(|to_ms| *to_ms != due_ms) {
                    None if payload == task.payload => return here(Changed::Done(id)),
                    None => {
                        let payload = Bytes::copy_from_slice(&payload);
                        Entry::Change(key, Row::Task(FarTask { payload, ..task }))
                    }
                    Some(_) if is_full(&state.figures.pushes) => {
                        return Err(StoreError::Unavailable("too many tasks are on their way near".into()));
                    }
                    Some(due_ms) => {
                        let (target, payload) = (task.route.target, payload.to_vec());
                        Entry::Push(key, Push { due_ms, tenant, target, payload })
                    }
                }
            }
        };
        let changed = match entry {
            Entry::Push(..) => FarChanged::MovedNear,
            _ => FarChanged::Here(Changed::Done(id)),
        };
        let end = self.append(&mut state, vec![entry])?;
        Ok(Some((changed, Some(end))))
    }
}

/// Whether a slot store takes it: else the log could not be read again, or the task never be loaded.
pub(crate) fn may_be_stored(to: &Moved) -> bool {
    to.payload.as_ref().is_none_or(|payload| payload.len() <= PAYLOAD_MAX_BYTES)
        && to.due_ms.is_none_or(|due_ms| due_ms <= DUE_MAX_MS)
}

fn is_full(pushes: &[(RowKey, Push)]) -> bool {
    let bytes: usize = pushes.iter().map(|(_, push)| push.payload.len()).sum();
    pushes.len() >= PUSHES_MAX || bytes >= PUSHES_BYTES_MAX
}

fn on_its_way() -> StoreError {
    StoreError::Unavailable("the task is on its way into the slot store; try again in a moment".into())
}
