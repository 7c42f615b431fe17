//! `windfall.v1.Timers` over a [`Timers`].

mod last_changes;
mod messages;
mod status;

use crate::cursor::ListCursor;
use async_trait::async_trait;
use last_changes::LastChanges;
use messages::{
    accept, added, cancelled_once, changed, dead_timer, moved, new_task, page_size, queued, task_at, task_id,
    timer,
};
use status::{add_failure, add_status, not_there_yet, timers_failure, timers_status};
use std::sync::Arc;
use tonic::{Request, Response, Status};
use windfall_contract::due::{Changed, Durability, TaskAt, TaskKey};
use windfall_edge::Call;
use windfall_proto::v1::{
    AddTimerReply, AddTimerRequest, AddTimerResult, AddTimersReply, AddTimersRequest, CancelTimerRequest,
    CancelTimerResult, CancelTimersReply, CancelTimersRequest, ChangeTimerReply, DeadTimerEnd,
    EndDeadTimersReply, EndDeadTimersRequest, ForwardedCall, GetTimerReply, GetTimerRequest,
    ListDeadTimersReply, ListDeadTimersRequest, ListTimersReply, ListTimersRequest, NewTimer, TimerFailure,
    TimerNeeds, UpdateTimerRequest, add_timer_result, cancel_timer_result, timers_server,
};
use windfall_scheduler::{Accept, AddError, NewTask, TaskView, Timers, TimersError};

/// Timers of one call at most.
pub const BATCH_MAX: usize = windfall_scheduler::CALL_TASKS_MAX;
/// Timers of a page at most.
pub const PAGE_MAX: usize = 1_000;
/// Timers of a page, where a call does not say.
pub const PAGE_DEFAULT: usize = 100;
/// A page ends when the payloads in it have so many bytes.
const PAGE_BYTES: usize = 4 << 20;

/// The service. Mount it as `TimersServer::new(TimersService::new(timers))`.
#[derive(Clone)]
pub struct TimersService {
    timers: Timers,
    forwards: bool,
    last_changes: Arc<LastChanges>,
}

impl TimersService {
    /// The service over these timers.
    pub fn new(timers: Timers) -> Self {
        Self { timers, forwards: false, last_changes: Arc::default() }
    }

    /// The same; with `forwards`, of a process that asks another one about far timers. It refuses what a further process
    /// forwards to it: two that take each other for the keeper would hand a call to and fro until it times out.
    #[must_use]
    pub fn forwarding(self, forwards: bool) -> Self {
        Self { forwards, ..self }
    }

    fn check_forwarded(&self, forwarded: Option<&ForwardedCall>) -> Result<(), Status> {
        match forwarded {
            Some(_) if self.forwards => Err(Status::failed_precondition(
                "this process does not keep the far timers: it has scheduler.far.forward_to itself. Let forward_to of \
                 every other process name the one whose [scheduler.far] has a folder or s3",
            )),
            _ => Ok(()),
        }
    }

    /// Near timers first, then those of the far tier.
    async fn page(&self, tenant: &str, after: ListCursor, limit: usize) -> Result<Page, TimersError> {
        let (mut page, after) = match after {
            ListCursor::Near(after) => {
                let (tasks, next) = self.timers.list(tenant, after, limit).await?;
                let (near, next) = (tasks.len(), next.map(|next| ListCursor::Near(Some(next))));
                let is_full = next.is_some();
                let page = Page { tasks, near, next };
                if is_full {
                    return Ok(page);
                }
                (page, None)
            }
            ListCursor::Far(after) => (Page { tasks: Vec::new(), near: 0, next: None }, after),
        };
        let room = limit.saturating_sub(page.near);
        let far = match room {
            // Whether there are any, the next page says.
            0 => None,
            _ => match self.timers.list_far(tenant, after, room).await {
                Ok(far) => Some(far),
                Err(error) if page.near > 0 => {
                    tracing::warn!(%error, "far timers cannot be listed; near ones are shown all the same");
                    None
                }
                Err(error) => return Err(error),
            },
        };
        match far {
            Some((tasks, next)) => {
                page.tasks.extend(tasks);
                page.next = next.map(|next| ListCursor::Far(Some(next)));
            }
            None => page.next = Some(ListCursor::Far(None)),
        }
        Ok(page)
    }

    /// Whether a change may be done: no later one of the same process and timer can have come before it.
    fn check_turn(&self, tenant: &str, at: &TaskAt, forwarded: Option<&ForwardedCall>) -> Result<(), Status> {
        self.check_forwarded(forwarded)?;
        let (Some(&ForwardedCall { run, number }), TaskAt::Id(id)) = (forwarded, at) else { return Ok(()) };
        if self.last_changes.is_in_turn(run, tenant, *id, number) {
            return Ok(());
        }
        let late = "a later change of the timer may have come before this one, which is not done";
        Err(Status::aborted(late))
    }

    /// Where a call goes first.
    fn accept_of(&self, tenant: &str, asked: Option<Accept>) -> Accept {
        asked.unwrap_or_else(|| self.timers.accept_of(tenant))
    }

    /// Adds tasks to the store or by the queue. The default of a tenant is for those that have a key.
    async fn add_all(
        &self,
        tenant: &str,
        tasks: Vec<NewTask>,
        asked: Option<Accept>,
    ) -> Vec<Result<AddTimerReply, AddError>> {
        let accept = self.accept_of(tenant, asked);
        let by_queue = |task: &NewTask| accept == Accept::Queue && (asked.is_some() || task.key.is_some());
        let ways: Vec<bool> = tasks.iter().map(by_queue).collect();
        let (mut to_queue, mut to_store) = (Vec::new(), Vec::new());
        for (task, by_queue) in tasks.into_iter().zip(&ways) {
            if *by_queue { to_queue.push(task) } else { to_store.push(task) }
        }
        let keys: Vec<String> = to_queue.iter().map(|task| messages::text(task.key.as_ref())).collect();
        let stored = async {
            match to_store.is_empty() {
                true => Vec::new(),
                false => self.timers.add(tenant, to_store).await,
            }
        };
        let written = async {
            match to_queue.is_empty() {
                true => Vec::new(),
                false => self.timers.add_by_queue(tenant, to_queue).await,
            }
        };
        let (stored, written) = tokio::join!(stored, written);
        let mut stored = stored.into_iter().map(|stored| stored.map(added));
        let mut written = written.into_iter().zip(keys).map(|(written, key)| written.map(|()| queued(key)));
        let answer = |by_queue| if by_queue { written.next() } else { stored.next() };
        ways.into_iter().map(answer).map(|answer| answer.unwrap_or(Err(AddError::Busy))).collect()
    }

    /// Cancels timers. Those that are named by their keys may still be on their way in the queue.
    async fn cancel_all(
        &self,
        tenant: &str,
        at: Vec<TaskAt>,
        asked: Option<Accept>,
    ) -> Vec<Result<ChangeTimerReply, TimersError>> {
        if self.accept_of(tenant, asked) == Accept::Store {
            let cancelled = self.timers.cancel(tenant, at).await.into_iter();
            return cancelled.map(|cancelled| cancelled.map(changed)).collect();
        }
        let ways: Vec<bool> = at.iter().map(|at| matches!(at, TaskAt::Key(_))).collect();
        let (mut keys, mut ids) = (Vec::<TaskKey>::new(), Vec::new());
        for at in at {
            match at {
                TaskAt::Key(key) => keys.push(key),
                TaskAt::Id(_) => ids.push(at),
            }
        }
        let by_key = async {
            match keys.is_empty() {
                true => Vec::new(),
                false => self.timers.cancel_once(tenant, keys).await,
            }
        };
        let by_id = async {
            match ids.is_empty() {
                true => Vec::new(),
                false => self.timers.cancel(tenant, ids).await,
            }
        };
        let (by_key, by_id) = tokio::join!(by_key, by_id);
        let mut by_key = by_key.into_iter().map(|answer| answer.map(cancelled_once));
        let mut by_id = by_id.into_iter().map(|answer| answer.map(changed));
        let answer = |is_key| if is_key { by_key.next() } else { by_id.next() };
        ways.into_iter().map(answer).map(|answer| answer.unwrap_or(Err(TimersError::Busy))).collect()
    }

    /// Where a call with needs goes. A target that the tenant does not have is refused when its timer is added.
    fn check_needs(
        &self,
        tenant: &str,
        timers: &[NewTimer],
        needs: TimerNeeds,
        asked: Option<Accept>,
    ) -> Result<Option<Accept>, Status> {
        // An OK of the queue comes before the store's, and is as durable as a topic.
        if needs.machine_durability && asked == Some(Accept::Queue) {
            return Err(Status::failed_precondition(
                "needs.machine_durability: it is the timers' store that is judged, and an add by the queue is answered before \
                 the store has it; leave accept out or ask for the store, or leave this out",
            ));
        }
        if needs.machine_durability && self.timers.durability() != Durability::Machine {
            return Err(Status::failed_precondition(
                "needs.machine_durability: what the timers' store has taken may be lost with its machine; set \
                 scheduler.durability to `machine` (Redis: appendfsync always), or leave this out",
            ));
        }
        if let Some((option, value)) = self.timers.never_has_room(tenant, needs.together.into()) {
            return Err(Status::failed_precondition(format!(
                "needs.together: {} timers belong together, and the tenant `{tenant}` has room for {value} at most: raise \
                 scheduler.tenants.{tenant}.{option} in the options of the scheduler",
                needs.together
            )));
        }
        let other = |timer: &&NewTimer| self.timers.sends_rewards(tenant, &timer.target) == Some(false);
        match timers.iter().find(other).filter(|_| needs.rewards) {
            Some(timer) => Err(Status::failed_precondition(format!(
                "needs.rewards: the target `{}` of the tenant `{tenant}` does not send rewards: its `to` is not send_bonus",
                timer.target
            ))),
            None if needs.machine_durability => Ok(Some(Accept::Store)),
            None => Ok(asked),
        }
    }
}

/// A page of waiting timers.
struct Page {
    tasks: Vec<TaskView>,
    /// How many of them are near: the first ones.
    near: usize,
    next: Option<ListCursor>,
}

#[async_trait]
impl timers_server::Timers for TimersService {
    async fn add(&self, request: Request<AddTimerRequest>) -> Result<Response<AddTimerReply>, Status> {
        let call = Call::of(&request)?.clone();
        let AddTimerRequest { tenant, timer, accept } = request.into_inner();
        let tenant = call.caller.timers_tenant(&tenant)?;
        let asked = self::accept(accept).map_err(Status::invalid_argument)?;
        let timer = timer.ok_or_else(|| Status::invalid_argument("timer is missing"))?;
        let task = new_task(timer).map_err(Status::invalid_argument)?;
        let mut results = self.add_all(tenant, vec![task], asked).await;
        let result = results.pop().ok_or_else(|| Status::internal("the scheduler gave no answer"))?;
        Ok(Response::new(result.map_err(|error| add_status(&error))?))
    }

    async fn add_batch(
        &self,
        request: Request<AddTimersRequest>,
    ) -> Result<Response<AddTimersReply>, Status> {
        let call = Call::of(&request)?.clone();
        let AddTimersRequest { tenant, timers, needs, forwarded, accept } = request.into_inner();
        let tenant = call.caller.timers_tenant(&tenant)?;
        self.check_forwarded(forwarded.as_ref())?;
        let asked = self::accept(accept).map_err(Status::invalid_argument)?;
        check_count("timers", timers.len())?;
        let asked = self.check_needs(tenant, &timers, needs.unwrap_or_default(), asked)?;
        // What is malformed is answered here, and does not keep the others from being stored.
        let (mut tasks, mut results) = (Vec::with_capacity(timers.len()), Vec::with_capacity(timers.len()));
        for timer in timers {
            results.push(match new_task(timer) {
                Ok(task) => {
                    tasks.push(task);
                    None
                }
                Err(what) => Some(add_timer_result::Result::Failure(invalid(what))),
            });
        }
        let mut stored = self.add_all(tenant, tasks, asked).await.into_iter();
        for result in results.iter_mut().filter(|result| result.is_none()) {
            *result = stored.next().map(|stored| match stored {
                Ok(stored) => add_timer_result::Result::Added(stored),
                Err(error) => add_timer_result::Result::Failure(add_failure(&error)),
            });
        }
        let results = results.into_iter().map(|result| AddTimerResult { result }).collect();
        Ok(Response::new(AddTimersReply { results }))
    }

    async fn update(
        &self,
        request: Request<UpdateTimerRequest>,
    ) -> Result<Response<ChangeTimerReply>, Status> {
        let call = Call::of(&request)?.clone();
        let UpdateTimerRequest { tenant, id, key, due_ms, payload, forwarded, accept } = request.into_inner();
        let tenant = call.caller.timers_tenant(&tenant)?;
        let asked = self::accept(accept).map_err(Status::invalid_argument)?;
        let at = task_at(&id, &key).map_err(Status::invalid_argument)?;
        self.check_turn(tenant, &at, forwarded.as_ref())?;
        let may_be_on_its_way =
            matches!(at, TaskAt::Key(_)) && self.accept_of(tenant, asked) == Accept::Queue;
        if may_be_on_its_way && !self.timers.has_queue() {
            return Err(timers_status(&TimersError::NoQueue));
        }
        let updated = self.timers.update(tenant, at, moved(due_ms, payload)).await;
        match updated.map_err(|error| timers_status(&error))? {
            Changed::Unknown if may_be_on_its_way => Err(not_there_yet()),
            updated => Ok(Response::new(changed(updated))),
        }
    }

    async fn cancel(
        &self,
        request: Request<CancelTimerRequest>,
    ) -> Result<Response<ChangeTimerReply>, Status> {
        let call = Call::of(&request)?.clone();
        let CancelTimerRequest { tenant, id, key, forwarded, accept } = request.into_inner();
        let tenant = call.caller.timers_tenant(&tenant)?;
        let asked = self::accept(accept).map_err(Status::invalid_argument)?;
        let at = task_at(&id, &key).map_err(Status::invalid_argument)?;
        self.check_turn(tenant, &at, forwarded.as_ref())?;
        let mut results = self.cancel_all(tenant, vec![at], asked).await;
        let result = results.pop().ok_or_else(|| Status::internal("the scheduler gave no answer"))?;
        Ok(Response::new(result.map_err(|error| timers_status(&error))?))
    }

    async fn cancel_batch(
        &self,
        request: Request<CancelTimersRequest>,
    ) -> Result<Response<CancelTimersReply>, Status> {
        let call = Call::of(&request)?.clone();
        let CancelTimersRequest { tenant, timers, accept } = request.into_inner();
        let tenant = call.caller.timers_tenant(&tenant)?;
        let asked = self::accept(accept).map_err(Status::invalid_argument)?;
        check_count("timers", timers.len())?;
        let (mut at, mut results) = (Vec::<TaskAt>::with_capacity(timers.len()), Vec::new());
        for name in timers {
            results.push(match task_at(&name.id, &name.key) {
                Ok(named) => {
                    at.push(named);
                    None
                }
                Err(what) => Some(cancel_timer_result::Result::Failure(invalid(what))),
            });
        }
        let mut cancelled = self.cancel_all(tenant, at, asked).await.into_iter();
        for result in results.iter_mut().filter(|result| result.is_none()) {
            *result = cancelled.next().map(|cancelled| match cancelled {
                Ok(cancelled) => cancel_timer_result::Result::Changed(cancelled),
                Err(error) => cancel_timer_result::Result::Failure(timers_failure(&error)),
            });
        }
        let results = results.into_iter().map(|result| CancelTimerResult { result }).collect();
        Ok(Response::new(CancelTimersReply { results }))
    }

    async fn get(&self, request: Request<GetTimerRequest>) -> Result<Response<GetTimerReply>, Status> {
        let call = Call::of(&request)?.clone();
        let GetTimerRequest { tenant, id, key, forwarded } = request.into_inner();
        let tenant = call.caller.timers_tenant(&tenant)?;
        self.check_forwarded(forwarded.as_ref())?;
        let at = task_at(&id, &key).map_err(Status::invalid_argument)?;
        let found = self.timers.get(tenant, at).await.map_err(|error| timers_status(&error))?;
        let none = || Status::not_found("the tenant has no such timer: it never had, or it is over and gone");
        Ok(Response::new(GetTimerReply { timer: Some(timer(found.ok_or_else(none)?)) }))
    }

    async fn list(&self, request: Request<ListTimersRequest>) -> Result<Response<ListTimersReply>, Status> {
        let call = Call::of(&request)?.clone();
        let ListTimersRequest { tenant, after, page_size: size, forwarded } = request.into_inner();
        let tenant = call.caller.timers_tenant(&tenant)?;
        self.check_forwarded(forwarded.as_ref())?;
        let after = after.parse::<ListCursor>();
        let after = after.map_err(|error| Status::invalid_argument(format!("after: {error}")))?;
        let limit = page_size(size).map_err(Status::invalid_argument)?;
        let listed = self.page(tenant, after, limit).await;
        let Page { mut tasks, near, mut next } = listed.map_err(|error| timers_status(&error))?;
        let fitting = fitting(tasks.iter().map(|task| task.payload.len()));
        if fitting < tasks.len() {
            tasks.truncate(fitting);
            let last = tasks.last().map(|last| last.id);
            next = Some(if fitting <= near { ListCursor::Near(last) } else { ListCursor::Far(last) });
        }
        Ok(Response::new(ListTimersReply {
            timers: tasks.into_iter().map(timer).collect(),
            next_after: next.map_or(String::new(), |next| next.to_string()),
        }))
    }

    async fn list_dead(
        &self,
        request: Request<ListDeadTimersRequest>,
    ) -> Result<Response<ListDeadTimersReply>, Status> {
        let call = Call::of(&request)?.clone();
        let ListDeadTimersRequest { tenant, after, page_size: size } = request.into_inner();
        let tenant = call.caller.timers_tenant(&tenant)?;
        let (after, limit) = (after_of(&after)?, page_size(size).map_err(Status::invalid_argument)?);
        let mut dead = self.timers.dead(tenant, after, limit).await.map_err(|error| timers_status(&error))?;
        let fitting = fitting(dead.iter().map(|one| one.payload.len()));
        let is_more = dead.len() >= limit || fitting < dead.len();
        dead.truncate(fitting);
        let next_after = dead.last().filter(|_| is_more).map_or(String::new(), |last| last.id.to_string());
        Ok(Response::new(ListDeadTimersReply {
            timers: dead.into_iter().map(dead_timer).collect(),
            next_after,
        }))
    }

    async fn end_dead(
        &self,
        request: Request<EndDeadTimersRequest>,
    ) -> Result<Response<EndDeadTimersReply>, Status> {
        let call = Call::of(&request)?.clone();
        let request = request.into_inner();
        let tenant = call.caller.timers_tenant(&request.tenant)?;
        check_count("ids", request.ids.len())?;
        let is_again = match request.end() {
            DeadTimerEnd::SendAgain => true,
            DeadTimerEnd::Delete => false,
            DeadTimerEnd::Unspecified => {
                return Err(Status::invalid_argument("end is missing: it is to send again or to delete"));
            }
        };
        let ids: Result<Vec<_>, _> = request.ids.iter().map(|id| task_id(id)).collect();
        let ids = ids.map_err(Status::invalid_argument)?;
        let ended = self.timers.end_dead(tenant, ids, is_again).await;
        let found = ended.map_err(|error| timers_status(&error))?;
        Ok(Response::new(EndDeadTimersReply { found }))
    }
}

/// How many of a page's payloads it may have: one at least, so that each page goes on.
fn fitting(payloads: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0_usize;
    let counted = payloads.take_while(|len| {
        let is_first = bytes == 0;
        bytes += len + 1;
        is_first || bytes <= PAGE_BYTES
    });
    counted.count()
}

fn after_of(after: &str) -> Result<Option<windfall_contract::due::TaskId>, Status> {
    if after.is_empty() {
        return Ok(None);
    }
    task_id(after).map(Some).map_err(|what| Status::invalid_argument(format!("after: {what}")))
}

fn check_count(field: &str, count: usize) -> Result<(), Status> {
    match count {
        0 => Err(Status::invalid_argument(format!("{field} is empty"))),
        1..=BATCH_MAX => Ok(()),
        more => Err(Status::invalid_argument(format!("{field}: {more} of them; at most {BATCH_MAX} a call"))),
    }
}

fn invalid(message: String) -> TimerFailure {
    TimerFailure { code: tonic::Code::InvalidArgument.into(), message, retry_after_ms: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_with_its_bytes_and_has_one_timer_at_least() {
        assert_eq!(fitting([0; 1_000].into_iter()), 1_000);
        assert_eq!(fitting([PAGE_BYTES * 2, 1].into_iter()), 1);
        assert_eq!(fitting([PAGE_BYTES / 2; 5].into_iter()), 1);
        assert_eq!(fitting([PAGE_BYTES / 2 - 1; 5].into_iter()), 2);
        assert_eq!(fitting(std::iter::empty()), 0);
    }
}
