//! Messages into tasks, and back. What is wrong is said with the field.

use super::{PAGE_DEFAULT, PAGE_MAX};
use bytes::Bytes;
use windfall_contract::due::{Added, CancelledOnce, Changed, Moved, TaskAt, TaskId, TaskKey, Waiting};
use windfall_proto::v1::{
    AddTimerReply, ChangeTimerReply, DeadTimer, NewTimer, Timer, TimerAccept, TimerChange, TimerState,
};
use windfall_scheduler::{Accept, DeadView, NewTask, TaskView};

/// A task to add. Its length and its time are judged with the tenant's rules.
pub(super) fn new_task(timer: NewTimer) -> Result<NewTask, String> {
    let NewTimer { target, due_ms, key, payload } = timer;
    if target.is_empty() {
        return Err("timer.target is missing: the name of one of the tenant's targets".into());
    }
    if due_ms == 0 {
        return Err("timer.due_ms is missing: the time in Unix milliseconds".into());
    }
    let key = if key.is_empty() { None } else { Some(task_key("timer.key", &key)?) };
    Ok(NewTask { target, due_ms, key, payload: Bytes::from(payload) })
}

/// How a call names a timer: by its id or by its key.
pub(super) fn task_at(id: &str, key: &str) -> Result<TaskAt, String> {
    match (id.is_empty(), key.is_empty()) {
        (false, true) => Ok(TaskAt::Id(task_id(id)?)),
        (true, false) => Ok(TaskAt::Key(task_key("key", key)?)),
        (true, true) => Err("id and key are both missing: one of them names the timer".into()),
        (false, false) => Err("id and key are both given: only one of them names the timer".into()),
    }
}

pub(super) fn task_id(id: &str) -> Result<TaskId, String> {
    id.parse().map_err(|error: windfall_contract::due::InvalidTask| error.to_string())
}

fn task_key(field: &str, key: &str) -> Result<TaskKey, String> {
    TaskKey::new(key.as_bytes()).map_err(|error| format!("{field}: {error}"))
}

pub(super) fn moved(due_ms: Option<u64>, payload: Option<Vec<u8>>) -> Moved {
    Moved { due_ms, payload: payload.map(Bytes::from) }
}

pub(super) fn page_size(asked: u32) -> Result<usize, String> {
    match usize::try_from(asked) {
        Ok(0) => Ok(PAGE_DEFAULT),
        Ok(size) if size <= PAGE_MAX => Ok(size),
        _ => Err(format!(
            "page_size is {asked}, but only 1 to {PAGE_MAX} is allowed; 0 stands for {PAGE_DEFAULT}"
        )),
    }
}

pub(super) fn added(added: Added) -> AddTimerReply {
    match added {
        Added::Stored(id) => AddTimerReply { id: id.to_string(), ..AddTimerReply::default() },
        Added::Exists(id) => AddTimerReply { id: id.to_string(), existed: true, ..AddTimerReply::default() },
    }
}

/// A timer that the queue of adds has.
pub(super) fn queued(key: String) -> AddTimerReply {
    AddTimerReply { queued: true, key, ..AddTimerReply::default() }
}

/// Where a call goes first; `None` where it leaves that to its tenant's default.
pub(super) fn accept(accept: i32) -> Result<Option<Accept>, String> {
    match TimerAccept::try_from(accept) {
        Ok(TimerAccept::Unspecified) => Ok(None),
        Ok(TimerAccept::Store) => Ok(Some(Accept::Store)),
        Ok(TimerAccept::Queue) => Ok(Some(Accept::Queue)),
        Err(_) => Err(format!("accept is {accept}, which this version does not know")),
    }
}

pub(super) fn cancelled_once(cancelled: CancelledOnce) -> ChangeTimerReply {
    match cancelled {
        CancelledOnce::Done(id) => changed(Changed::Done(id)),
        CancelledOnce::Cancelled => changed(Changed::Cancelled),
        CancelledOnce::Firing => changed(Changed::Firing),
        CancelledOnce::Unmarked => changed(Changed::Unknown),
        CancelledOnce::Marked => ChangeTimerReply { change: TimerChange::Marked.into(), id: String::new() },
    }
}

pub(super) fn changed(changed: Changed) -> ChangeTimerReply {
    let (change, id) = match changed {
        Changed::Done(id) => (TimerChange::Done, id.to_string()),
        Changed::Cancelled => (TimerChange::AlreadyCancelled, String::new()),
        Changed::Firing => (TimerChange::TooLate, String::new()),
        Changed::Unknown => (TimerChange::NotFound, String::new()),
    };
    ChangeTimerReply { change: change.into(), id }
}

pub(super) fn timer(task: TaskView) -> Timer {
    let state = match task.state {
        Waiting::Waiting => TimerState::Waiting,
        Waiting::Firing => TimerState::Firing,
        Waiting::Cancelled => TimerState::Cancelled,
    };
    Timer {
        id: task.id.to_string(),
        first_id: task.first_id.to_string(),
        target: task.target.unwrap_or_default(),
        due_ms: task.due_ms,
        key: text(task.key.as_ref()),
        payload: task.payload.into(),
        state: state.into(),
    }
}

pub(super) fn dead_timer(dead: DeadView) -> DeadTimer {
    DeadTimer {
        id: dead.id.to_string(),
        target: dead.target.unwrap_or_default(),
        due_ms: dead.due_ms,
        died_ms: dead.died_ms,
        attempts: dead.attempts,
        reason: dead.reason,
        key: text(dead.key.as_ref()),
        payload: dead.payload.into(),
    }
}

/// Keys that came by this service are texts.
pub(super) fn text(key: Option<&TaskKey>) -> String {
    key.map_or(String::new(), |key| String::from_utf8_lossy(key.as_bytes()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_is_named_by_its_id_or_by_its_key_and_never_by_both() {
        let id = "0012-01c3a2f0-0000002a";
        assert_eq!(task_at(id, ""), Ok(TaskAt::Id(id.parse().unwrap())));
        assert_eq!(task_at("", "call-7"), Ok(TaskAt::Key(TaskKey::new(b"call-7").unwrap())));
        for (id, key, words) in [
            ("", "", "both missing"),
            (id, "call-7", "both given"),
            ("12", "", "is not the id"),
            ("", &"k".repeat(201), "1 to 200 bytes"),
        ] {
            let why = task_at(id, key).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn what_lacks_a_time_or_a_target_is_no_timer() {
        let good = NewTimer { target: "hook".into(), due_ms: 1, key: "k".into(), payload: vec![7] };
        let task = new_task(good.clone()).unwrap();
        assert_eq!((task.due_ms, &task.payload[..], task.key.is_some()), (1, &[7][..], true));
        assert_eq!(new_task(NewTimer { key: String::new(), ..good.clone() }).unwrap().key, None);
        for (wrong, field) in [
            (NewTimer { target: String::new(), ..good.clone() }, "timer.target"),
            (NewTimer { due_ms: 0, ..good.clone() }, "timer.due_ms"),
            (NewTimer { key: "k".repeat(201), ..good }, "timer.key"),
        ] {
            let why = new_task(wrong).unwrap_err();
            assert!(why.starts_with(field), "{why}");
        }
    }

    #[test]
    fn a_page_has_a_bounded_size() {
        assert_eq!((page_size(0), page_size(1), page_size(1_000)), (Ok(100), Ok(1), Ok(1_000)));
        assert!(page_size(1_001).unwrap_err().contains("page_size is 1001"));
    }
}
