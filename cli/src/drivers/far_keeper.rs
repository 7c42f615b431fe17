//! The process that keeps the far timers of a shared store, asked by the scheduler's own service.

use anyhow::{Context, Result};
use async_trait::async_trait;
use bytes::Bytes;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use windfall_client::{CallError, ClientOptions, TimersClient};
use windfall_contract::due::{
    Changed, DueRecord, Durability, Found, Moved, NewRecord, Route, SlotMinute, StoreError, TaskId, Waiting,
};
use windfall_far::{FarKeeper, FarNamedPage};
use windfall_proto::v1::add_timer_result::Result as Outcome;
use windfall_proto::v1::{
    AddTimerResult, AddTimersRequest, CancelTimerRequest, ChangeTimerReply, ForwardedCall, GetTimerRequest,
    ListTimersRequest, NewTimer, Timer, TimerAccept, TimerChange, TimerFailure, TimerNeeds, TimerState,
    UpdateTimerRequest,
};
use windfall_scheduler_service::ListCursor;

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
    /// Never repeats a call: a keeper of an earlier version, which does not look at numbers, would let an earlier attempt
    /// of an update that is done late undo what came after it.
    updates: TimersClient,
    /// Drawn at random: names this process in the calls that it forwards.
    run: u64,
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
        let run = RandomState::new().hash_one("the run of a process that forwards");
        Ok(Self { timers, updates, run, refuses: AtomicBool::new(false) })
    }

    /// What the keeper learns of a call; 0 for one that changes nothing.
    fn forwarded(&self, number: u64) -> Option<ForwardedCall> {
        Some(ForwardedCall { run: self.run, number })
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
        let machine_durability = durability == Durability::Machine;
        let needs = TimerNeeds { machine_durability, ..TimerNeeds::default() };
        let (tenant, needs, forwarded) = (tenant.to_owned(), Some(needs), self.forwarded(0));
        // They have no keys, so they go to the store, whatever the tenant's default is.
        let accept = TimerAccept::Store.into();
        let request = AddTimersRequest { tenant, timers, needs, forwarded, accept };
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

    async fn change(
        &self,
        tenant: &str,
        id: TaskId,
        to: Option<Moved>,
        number: u64,
    ) -> Result<Changed, StoreError> {
        let (tenant, id, key) = (tenant.to_owned(), id.to_string(), String::new());
        let (forwarded, accept) = (self.forwarded(number), TimerAccept::Store.into());
        let reply = match to {
            None => self.timers.cancel(CancelTimerRequest { tenant, id, key, forwarded, accept }).await,
            Some(Moved { due_ms, payload }) => {
                let payload = payload.map(Vec::from);
                let request = UpdateTimerRequest { tenant, id, key, due_ms, payload, forwarded, accept };
                self.updates.update(request).await
            }
        };
        changed(reply.map_err(failed)?)
    }

    async fn get(&self, tenant: &str, id: TaskId) -> Result<Option<(String, Found)>, StoreError> {
        let (tenant, id, key) = (tenant.to_owned(), id.to_string(), String::new());
        match self.timers.get(GetTimerRequest { tenant, id, key, forwarded: self.forwarded(0) }).await {
            Ok(timer) => Ok(Some(found(timer)?)),
            Err(CallError::NotFound(_)) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    async fn list(
        &self,
        tenant: &str,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<FarNamedPage, StoreError> {
        let page_size = u32::try_from(limit.min(CALL_TIMERS_MAX)).unwrap_or(1);
        let (tenant, after) = (tenant.to_owned(), ListCursor::Far(after).to_string());
        let request = ListTimersRequest { tenant, after, page_size, forwarded: self.forwarded(0) };
        let reply = self.timers.list(request).await.map_err(failed)?;
        let next = match reply.next_after.parse() {
            Ok(ListCursor::Near(None)) => None,
            Ok(ListCursor::Far(Some(next))) => Some(next),
            _ => return Err(unavailable("its answer does not say where to go on")),
        };
        let tasks = reply.timers.into_iter().map(found).collect::<Result<_, _>>()?;
        Ok(FarNamedPage { tasks, next })
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

/// What the keeper refuses, it refuses again: the log says so as an error.
fn failed(error: CallError) -> StoreError {
    match error {
        CallError::Refused(_) | CallError::Denied(_) => {
            StoreError::Unusable(format!("the keeper of the far timers: {error}"))
        }
        error => unavailable(&error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::{DurabilityAt, FarAt};
    use std::sync::Arc;
    use std::time::{Duration, Instant};
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;
    use tonic::transport::Server;
    use tonic::transport::server::TcpIncoming;
    use tonic::{Request, Status};
    use windfall_contract::Clock;
    use windfall_contract::due::{Added, SlotStore, TaskAt};
    use windfall_edge::{Call, Caller, Role};
    use windfall_far::FarElsewhere;
    use windfall_proto::v1::timers_server::TimersServer;
    use windfall_proto::v1::{AddTimerReply, AddTimerRequest};
    use windfall_scheduler::{Class, NewTask, TargetRules, TenantRules, Tenants, Timers, TimersOptions};
    use windfall_scheduler_service::TimersService;
    use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};

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

    fn identify(mut request: Request<()>) -> Result<Request<()>, Status> {
        let (name, tenant, roles) = ("other".into(), "shop".into(), [Role::Schedule].into());
        let caller = Caller { name, tenant, roles, timers_of: Arc::default() };
        request.extensions_mut().insert(Call { caller, user_id: None, trace_id: None });
        Ok(request)
    }

    /// A scheduler over a store, with the tenant `shop`.
    fn serve(
        listener: TcpListener,
        store: Arc<dyn SlotStore>,
        forwards: bool,
        servers: &mut JoinSet<Result<(), tonic::transport::Error>>,
    ) -> Timers {
        let targets = [("hook".to_owned(), TargetRules::default())].into();
        let rules = TenantRules { waiting_max: 100, adds_per_s: 100, class: Class::Normal, targets };
        let tenants = Arc::new(Tenants([("shop".to_owned(), rules)].into()));
        let timers = Timers::start(TimersOptions::default(), tenants, store, Clock::system());
        let service = TimersService::new(timers.clone()).forwarding(forwards);
        let server = Server::builder().add_service(TimersServer::with_interceptor(service, identify));
        servers.spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        timers
    }

    async fn listener() -> (TcpListener, ClientOptions) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoints = vec![format!("http://{}", listener.local_addr().unwrap())];
        let client = ClientOptions { endpoints, attempt_timeout_ms: 20_000, ..ClientOptions::default() };
        (listener, client)
    }

    fn embedded(dir: &std::path::Path) -> Arc<EmbeddedSlots> {
        let options = EmbeddedSlotsOptions { shards: 64, ..EmbeddedSlotsOptions::default() };
        EmbeddedSlots::open(&dir.join("near"), &options, Clock::system()).unwrap()
    }

    fn elsewhere(near: &Arc<EmbeddedSlots>, keeper: &ClientOptions) -> Arc<dyn SlotStore> {
        let keeper = Arc::new(ServiceKeeper::open(keeper.clone()).unwrap());
        Arc::new(FarElsewhere::new(near.clone(), Some(keeper), 7_200_000, Clock::system()))
    }

    /// Each takes the other one for the keeper.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_call_ends_after_one_hop_where_two_processes_forward_to_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let (near, mut servers) = (embedded(dir.path()), JoinSet::new());
        let ((first, to_first), (second, to_second)) = (listener().await, listener().await);
        let timers = serve(first, elsewhere(&near, &to_second), true, &mut servers);
        let _other = serve(second, elsewhere(&near, &to_first), true, &mut servers);
        let (began, at) = (Instant::now(), TaskAt::Id(ID.parse().unwrap()));
        let to = Moved { due_ms: None, payload: Some("x".into()) };
        let refused = [
            timers.get("shop", at.clone()).await.map(drop),
            timers.update("shop", at.clone(), to).await.map(drop),
            timers.cancel("shop", vec![at]).await.remove(0).map(drop),
            timers.list_far("shop", None, 10).await.map(drop),
        ];
        for refused in refused {
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("it has scheduler.far.forward_to itself"), "{said}");
        }
        let due_ms = Clock::system().unix_ms() + 30 * 3_600_000;
        let task = NewTask { target: "hook".into(), due_ms, key: None, payload: "x".into() };
        let added = timers.add("shop", vec![task]).await.remove(0).unwrap();
        let Added::Stored(id) = added else { panic!("{added:?}") };
        assert!(!id.is_far(), "it is stored near, and nothing is lost");
        // One that went round until its caller gave up would take 20 s, and all five of them more than a minute.
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        servers.abort_all();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_process_that_forwards_lists_near_timers_and_those_of_the_keeper() {
        let dir = tempfile::tempdir().unwrap();
        let (near, mut servers, clock) = (embedded(dir.path()), JoinSet::new(), Clock::system());
        let (at, durability) = (FarAt::default(), DurabilityAt::Process);
        let (kept, _far) = at.open(dir.path(), near.clone(), true, durability, &clock).await.unwrap();
        let ((first, to_keeper), (second, to_other)) = (listener().await, listener().await);
        let _keeper = serve(first, kept, false, &mut servers);
        let _other = serve(second, elsewhere(&near, &to_keeper), true, &mut servers);
        let client = TimersClient::open(to_other).unwrap();
        let timer = |hours: u64| NewTimer {
            target: "hook".into(),
            due_ms: clock.unix_ms() + hours * 3_600_000,
            ..NewTimer::default()
        };
        let mut ids = Vec::new();
        for hours in [1, 1, 1, 40, 41, 42, 43, 44] {
            let request = AddTimerRequest {
                tenant: String::new(),
                timer: Some(timer(hours)),
                ..AddTimerRequest::default()
            };
            ids.push(client.add(request).await.unwrap().id);
        }
        let id = ids.remove(5);
        assert!(id.parse::<TaskId>().unwrap().is_far());
        let cancel = CancelTimerRequest { id, ..CancelTimerRequest::default() };
        assert_eq!(client.cancel(cancel).await.unwrap().change(), TimerChange::Done);
        ids[..3].sort();
        for page_size in [1, 2, 3, 5, 100] {
            let (mut after, mut listed, mut pages) = (String::new(), Vec::new(), 0);
            loop {
                let request = ListTimersRequest { after, page_size, ..ListTimersRequest::default() };
                let page = client.list(request).await.unwrap();
                assert!(page.timers.iter().all(|timer| timer.target == "hook"));
                listed.extend(page.timers.into_iter().map(|timer| timer.id));
                (after, pages) = (page.next_after, pages + 1);
                if after.is_empty() {
                    break;
                }
                assert!(pages < 20, "it ends");
            }
            assert_eq!(listed, ids, "pages of {page_size}");
        }
        servers.abort_all();
    }
}
