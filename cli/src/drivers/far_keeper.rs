//! The process that keeps the far timers of a shared store, asked by the scheduler's own service.

use anyhow::{Context, Result};
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use windfall_client::{CallError, ClientOptions, TimersClient};
use windfall_contract::due::{
    Changed, DueRecord, Durability, Found, Moved, NewRecord, Route, SlotMinute, StoreError, TaskId, Waiting,
};
use windfall_far::FarKeeper;
use windfall_proto::v1::add_timer_result::Result as Outcome;
use windfall_proto::v1::{
    AddTimerResult, AddTimersRequest, CancelTimerRequest, ChangeTimerReply, GetTimerRequest, NewTimer, Timer,
    TimerAccept, TimerChange, TimerFailure, TimerNeeds, TimerState, UpdateTimerRequest,
};

/// The timers of a call at most, and their bytes.
const CALL_TIMERS_MAX: usize = 1_000;
const CALL_BYTES_MAX: usize = 1 << 20;
/// Codes of a timer that was refused as it is: google.rpc.Code.
const INVALID_ARGUMENT: i32 = 3;
const FAILED_PRECONDITION: i32 = 9;
/// The code of one of which nobody knows whether it is stored.
#[cfg(test)]
const UNAVAILABLE: i32 = 14;

/// The keeper, by its gRPC service.
pub struct ServiceKeeper {
    timers: TimersClient,
    /// Never repeats a call: an earlier attempt of an update that is done late would undo what came after it.
    updates: TimersClient,
    /// Whether it takes no timers, which is logged once.
    refuses: AtomicBool,
}

impl ServiceKeeper {
    /// Prepares channels, which connect when they are needed. On a runtime.
    pub fn open(options: ClientOptions) -> Result<Self> {
        let wrong = "the options [scheduler.far.forward_to] cannot be used";
        let updates = ClientOptions { attempts: 1, ..options.clone() };
        let (timers, updates) = (TimersClient::open(options), TimersClient::open(updates));
        let (timers, updates) = (timers.context(wrong)?, updates.context(wrong)?);
        Ok(Self { timers, updates, refuses: AtomicBool::new(false) })
    }

    fn refused(&self, why: &str) {
        if !self.refuses.swap(true, Relaxed) {
            tracing::warn!(
                why,
                "the keeper of far timers takes none: they are stored near, where they take memory"
            );
        }
    }

    async fn add_some(
        &self,
        tenant: &str,
        timers: Vec<NewTimer>,
        durability: Durability,
    ) -> Result<Vec<Option<TaskId>>, StoreError> {
        let count = timers.len();
        // What is refused for this is stored near, where it is as durable as the caller was told.
        let needs = TimerNeeds { machine_durability: durability == Durability::Machine, rewards: false };
        // They have no keys, so they go to the store, whatever the tenant's default is.
        let accept = TimerAccept::Store.into();
        let request = AddTimersRequest { tenant: tenant.to_owned(), timers, needs: Some(needs), accept };
        match self.timers.add_batch(request).await {
            Ok(results) if results.len() == count => {
                results.into_iter().map(|result| self.added(result)).collect()
            }
            Ok(_) => Err(unavailable("its answer does not fit the question")),
            Err(CallError::Unanswered(why)) => Err(unavailable(&why)),
            Err(error) => {
                self.refused(&error.to_string());
                Ok(vec![None; count])
            }
        }
    }

    fn added(&self, result: AddTimerResult) -> Result<Option<TaskId>, StoreError> {
        match result.result {
            Some(Outcome::Added(reply)) => {
                self.refuses.store(false, Relaxed);
                Ok(Some(task_id(&reply.id)?))
            }
            Some(Outcome::Failure(failure)) if is_refusal(&failure) => {
                self.refused(&failure.message);
                Ok(None)
            }
            Some(Outcome::Failure(failure)) => Err(unavailable(&failure.message)),
            None => Err(unavailable("its answer says neither yes nor no")),
        }
    }
}

#[async_trait]
impl FarKeeper for ServiceKeeper {
    async fn add(
        &self,
        tenant: &str,
        tasks: Vec<(String, NewRecord)>,
        durability: Durability,
    ) -> Result<Vec<Option<TaskId>>, StoreError> {
        let (mut ids, mut timers, mut bytes) = (Vec::with_capacity(tasks.len()), Vec::new(), 0);
        for (target, NewRecord { due_ms, payload, .. }) in tasks {
            bytes += payload.len();
            timers.push(NewTimer { target, due_ms, key: String::new(), payload: payload.into() });
            if timers.len() == CALL_TIMERS_MAX || bytes >= CALL_BYTES_MAX {
                ids.extend(self.add_some(tenant, std::mem::take(&mut timers), durability).await?);
                bytes = 0;
            }
        }
        if !timers.is_empty() {
            ids.extend(self.add_some(tenant, timers, durability).await?);
        }
        Ok(ids)
    }

    async fn change(&self, tenant: &str, id: TaskId, to: Option<Moved>) -> Result<Changed, StoreError> {
        let (tenant, id, key) = (tenant.to_owned(), id.to_string(), String::new());
        let accept = TimerAccept::Store.into();
        let reply = match to {
            None => self.timers.cancel(CancelTimerRequest { tenant, id, key, accept }).await,
            Some(Moved { due_ms, payload }) => {
                let payload = payload.map(Vec::from);
                self.updates.update(UpdateTimerRequest { tenant, id, key, due_ms, payload, accept }).await
            }
        };
        changed(reply.map_err(|error| unavailable(&error.to_string()))?)
    }

    async fn get(&self, tenant: &str, id: TaskId) -> Result<Option<(String, Found)>, StoreError> {
        let (tenant, id, key) = (tenant.to_owned(), id.to_string(), String::new());
        match self.timers.get(GetTimerRequest { tenant, id, key }).await {
            Ok(timer) => Ok(Some(found(timer)?)),
            Err(CallError::NotFound(_)) => Ok(None),
            Err(error) => Err(unavailable(&error.to_string())),
        }
    }
}

/// Whether nothing was stored: a hint when to come again says so, and so do these codes.
fn is_refusal(failure: &TimerFailure) -> bool {
    failure.retry_after_ms > 0 || [INVALID_ARGUMENT, FAILED_PRECONDITION].contains(&failure.code)
}

fn changed(reply: ChangeTimerReply) -> Result<Changed, StoreError> {
    Ok(match reply.change() {
        TimerChange::Done => Changed::Done(task_id(&reply.id)?),
        TimerChange::AlreadyCancelled => Changed::Cancelled,
        TimerChange::TooLate => Changed::Firing,
        // A key is marked, and far timers have none.
        TimerChange::NotFound | TimerChange::Marked => Changed::Unknown,
        TimerChange::Unspecified => return Err(unavailable("its answer says nothing of the change")),
    })
}

/// The task, with a route that means nothing.
fn found(timer: Timer) -> Result<(String, Found), StoreError> {
    let state = match timer.state() {
        TimerState::Waiting => Waiting::Waiting,
        TimerState::Firing => Waiting::Firing,
        TimerState::Cancelled => Waiting::Cancelled,
        TimerState::Unspecified => return Err(unavailable("its answer says nothing of the state")),
    };
    let (id, first_id) = (task_id(&timer.id)?, task_id(&timer.first_id)?);
    let is_asked_before = SlotMinute::of(timer.due_ms) != id.slot;
    let offset_ms = if is_asked_before { 0 } else { timer.due_ms - id.slot.start_ms() };
    let record = DueRecord {
        offset_ms: u16::try_from(offset_ms).unwrap_or(0),
        route: Route { tenant: 0, target: 0 },
        key: None,
        asked_ms: is_asked_before.then_some(timer.due_ms),
        first_id: (first_id != id).then_some(first_id),
        payload: Bytes::from(timer.payload),
    };
    Ok((timer.target, Found { id, state, record }))
}

fn task_id(id: &str) -> Result<TaskId, StoreError> {
    id.parse().map_err(|_| unavailable("its answer has no id"))
}

fn unavailable(what: &str) -> StoreError {
    StoreError::Unavailable(format!("the keeper of the far timers: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_proto::v1::AddTimerReply;

    const ID: &str = "0012-01c3a2f0-8000002a";

    #[tokio::test]
    async fn what_the_keeper_says_is_read_and_what_it_does_not_say_is_unknown() {
        let keeper = ServiceKeeper::open(ClientOptions::default()).unwrap();
        let result = |result| keeper.added(AddTimerResult { result: Some(result) });
        let stored = Outcome::Added(AddTimerReply { id: ID.into(), ..AddTimerReply::default() });
        assert_eq!(result(stored), Ok(Some(ID.parse().unwrap())));
        let failure = |code, retry_after_ms| {
            Outcome::Failure(TimerFailure { code, message: "no".into(), retry_after_ms })
        };
        assert_eq!(result(failure(UNAVAILABLE, 50)), Ok(None));
        for sure in [INVALID_ARGUMENT, FAILED_PRECONDITION] {
            assert_eq!(result(failure(sure, 0)), Ok(None), "it is surely not stored");
        }
        assert!(result(failure(UNAVAILABLE, 0)).is_err(), "it may be stored");
        assert!(keeper.added(AddTimerResult { result: None }).is_err());
        let change =
            |change: TimerChange, id: &str| ChangeTimerReply { change: change.into(), id: id.into() };
        assert_eq!(changed(change(TimerChange::Done, ID)), Ok(Changed::Done(ID.parse().unwrap())));
        assert_eq!(changed(change(TimerChange::AlreadyCancelled, "")), Ok(Changed::Cancelled));
        assert_eq!(changed(change(TimerChange::TooLate, "")), Ok(Changed::Firing));
        assert_eq!(changed(change(TimerChange::NotFound, "")), Ok(Changed::Unknown));
        assert!(changed(change(TimerChange::Unspecified, "")).is_err());
        assert!(changed(change(TimerChange::Done, "")).is_err());
    }

    #[test]
    fn a_timer_is_read_as_it_lies_there() {
        let id: TaskId = ID.parse().unwrap();
        let timer = Timer {
            id: ID.into(),
            first_id: ID.into(),
            target: "hook".into(),
            due_ms: id.slot.start_ms() + 7,
            state: TimerState::Waiting.into(),
            payload: b"x".to_vec(),
            ..Timer::default()
        };
        let (target, waits) = found(timer.clone()).unwrap();
        assert_eq!((target.as_str(), waits.id, waits.state), ("hook", id, Waiting::Waiting));
        assert_eq!((waits.record.offset_ms, waits.record.asked_ms, waits.record.first_id), (7, None, None));
        let late = found(Timer { due_ms: 5, ..timer.clone() }).unwrap().1;
        assert_eq!((late.record.offset_ms, late.record.asked_ms), (0, Some(5)));
        assert!(found(Timer { state: 0, ..timer.clone() }).is_err());
        assert!(found(Timer { first_id: String::new(), ..timer }).is_err());
    }
}
