//! The scheduler over its service: whose timers, what is answered, which error for what.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use tonic::{Code, Request};
use windfall_contract::Clock;
use windfall_contract::due::Durability;
use windfall_edge::{Call, Caller, RETRY_AFTER_MS, Role};
use windfall_proto::v1::timers_server::Timers as _;
use windfall_proto::v1::{
    AddTimerRequest, AddTimersRequest, CancelTimerRequest, CancelTimersRequest, DeadTimerEnd,
    EndDeadTimersRequest, ForwardedCall, GetTimerRequest, ListDeadTimersRequest, ListTimersRequest, NewTimer,
    TimerAccept, TimerChange, TimerName, TimerNeeds, TimerState, UpdateTimerRequest, add_timer_result,
    cancel_timer_result,
};
use windfall_scheduler::{Class, TargetRules, TenantRules, Tenants, Timers, TimersOptions};
use windfall_scheduler_service::TimersService;
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};

/// Far enough ahead that nothing is due.
const LATER_MS: u64 = 4_000_000_000_000;

struct Desk {
    service: TimersService,
    timers: Timers,
    _dir: tempfile::TempDir,
}

/// The tenants `shop` and `small`, which may have two waiting timers; and callers of the app `shop`.
fn desk() -> Desk {
    desk_of(Durability::Process)
}

fn desk_of(durability: Durability) -> Desk {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedSlotsOptions { shards: 16, durability, ..EmbeddedSlotsOptions::default() };
    let store = EmbeddedSlots::open(dir.path(), &options, Clock::system()).unwrap();
    let tenant = |waiting_max| TenantRules {
        waiting_max,
        adds_per_s: 10_000,
        class: Class::Normal,
        targets: [
            ("hook".to_owned(), TargetRules::default()),
            ("rewards".to_owned(), TargetRules { sends_rewards: true, ..TargetRules::default() }),
        ]
        .into(),
    };
    let tenants = [("shop".to_owned(), tenant(1_000)), ("small".to_owned(), tenant(2))];
    let tenants = Arc::new(Tenants(tenants.into()));
    let timers = Timers::start(TimersOptions::default(), tenants, store, Clock::system());
    Desk { service: TimersService::new(timers.clone()), timers, _dir: dir }
}

fn asking<T>(message: T) -> Request<T> {
    let timers_of = ["small".to_owned(), "elsewhere".to_owned()];
    let caller = Caller {
        name: "crm".into(),
        tenant: "shop".into(),
        roles: [Role::Schedule].into(),
        timers_of: Arc::new(timers_of.into()),
    };
    let mut request = Request::new(message);
    request.extensions_mut().insert(Call { caller, user_id: None, trace_id: None });
    request
}

fn timer(key: &str, due_ms: u64) -> NewTimer {
    NewTimer { target: "hook".into(), due_ms, key: key.into(), payload: b"payload".to_vec() }
}

fn add(tenant: &str, timer: NewTimer) -> Request<AddTimerRequest> {
    asking(AddTimerRequest { tenant: tenant.into(), timer: Some(timer), ..Default::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_is_added_shown_moved_and_cancelled_by_its_id_and_by_its_key() {
    let desk = desk();
    let added = desk.service.add(add("", timer("k", LATER_MS))).await.unwrap().into_inner();
    assert!(!added.existed);
    let again = desk.service.add(add("shop", timer("k", LATER_MS + 1))).await.unwrap().into_inner();
    assert_eq!((again.existed, &again.id), (true, &added.id), "the tenant is the caller's app");

    let get = |id: &str, key: &str| GetTimerRequest { id: id.into(), key: key.into(), ..Default::default() };
    let shown = desk.service.get(asking(get("", "k"))).await.unwrap().into_inner().timer.unwrap();
    assert_eq!((&shown.id, &shown.first_id, shown.due_ms), (&added.id, &added.id, LATER_MS));
    assert_eq!((&*shown.target, &*shown.key, &*shown.payload), ("hook", "k", &b"payload"[..]));
    assert_eq!(shown.state(), TimerState::Waiting);

    let update = UpdateTimerRequest {
        id: added.id.clone(),
        due_ms: Some(LATER_MS + 120_000),
        payload: Some(b"other".to_vec()),
        ..Default::default()
    };
    let moved = desk.service.update(asking(update)).await.unwrap().into_inner();
    assert_eq!(moved.change(), TimerChange::Done);
    let shown = desk.service.get(asking(get(&moved.id, ""))).await.unwrap().into_inner().timer.unwrap();
    assert_eq!(
        (&shown.first_id, shown.due_ms, &*shown.payload),
        (&added.id, LATER_MS + 120_000, &b"other"[..])
    );

    let cancel = || asking(CancelTimerRequest { id: added.id.clone(), ..Default::default() });
    let cancelled = desk.service.cancel(cancel()).await.unwrap().into_inner();
    assert_eq!(cancelled.change(), TimerChange::Done, "its first id names it still");
    let cancelled = desk.service.cancel(cancel()).await.unwrap().into_inner();
    assert_eq!(cancelled.change(), TimerChange::AlreadyCancelled);
    let by_queue = TimerAccept::Queue.into();
    let refused = asking(UpdateTimerRequest {
        key: "k".into(),
        due_ms: Some(LATER_MS),
        accept: by_queue,
        ..Default::default()
    });
    let refused = desk.service.update(refused).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "there is no queue: {refused:?}");
    let gone = asking(CancelTimerRequest { key: "k".into(), ..Default::default() });
    assert_eq!(desk.service.cancel(gone).await.unwrap().into_inner().change(), TimerChange::NotFound);
    desk.timers.close().await;
}

/// It hung between the two processes, and its caller has asked again and changed the timer once more.
#[tokio::test(flavor = "multi_thread")]
async fn a_forwarded_change_that_arrives_behind_a_later_one_is_not_done() {
    let desk = desk();
    let added = desk.service.add(add("", timer("", LATER_MS))).await.unwrap().into_inner();
    let forwarded = |run, number| Some(ForwardedCall { run, number });
    let update = |number, text: &str| {
        let payload = Some(text.as_bytes().to_vec());
        let forwarded = forwarded(7, number);
        desk.service.update(asking(UpdateTimerRequest {
            id: added.id.clone(),
            payload,
            forwarded,
            ..Default::default()
        }))
    };
    let cancel = |run, number| {
        let (id, forwarded) = (added.id.clone(), forwarded(run, number));
        desk.service.cancel(asking(CancelTimerRequest { id, forwarded, ..Default::default() }))
    };
    let shown = || async {
        let get = GetTimerRequest { id: added.id.clone(), forwarded: forwarded(7, 0), ..Default::default() };
        desk.service.get(asking(get)).await.unwrap().into_inner().timer.unwrap()
    };
    for (number, text) in [(2, "second"), (2, "second"), (3, "third")] {
        assert_eq!(update(number, text).await.unwrap().into_inner().change(), TimerChange::Done);
    }
    assert_eq!(update(2, "late").await.unwrap_err().code(), Code::Aborted);
    assert_eq!(cancel(7, 1).await.unwrap_err().code(), Code::Aborted);
    let waits = shown().await;
    assert_eq!((waits.state(), &*waits.payload), (TimerState::Waiting, &b"third"[..]));
    // Another process has numbers of its own.
    assert_eq!(cancel(8, 1).await.unwrap().into_inner().change(), TimerChange::Done);
    desk.timers.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_forwards_takes_nothing_that_another_one_forwards() {
    let desk = desk();
    let added = desk.service.add(add("", timer("", LATER_MS))).await.unwrap().into_inner();
    let forwarder = desk.service.clone().forwarding(true);
    let (id, forwarded) = (added.id, Some(ForwardedCall { run: 1, number: 1 }));
    let timers = vec![timer("", LATER_MS)];
    let refused = [
        forwarder
            .add_batch(asking(AddTimersRequest { timers, forwarded, ..Default::default() }))
            .await
            .map(drop),
        forwarder
            .update(asking(UpdateTimerRequest {
                id: id.clone(),
                due_ms: Some(1),
                forwarded,
                ..Default::default()
            }))
            .await
            .map(drop),
        forwarder
            .cancel(asking(CancelTimerRequest { id: id.clone(), forwarded, ..Default::default() }))
            .await
            .map(drop),
        forwarder
            .get(asking(GetTimerRequest { id: id.clone(), forwarded, ..Default::default() }))
            .await
            .map(drop),
    ];
    for refused in refused {
        let status = refused.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains("scheduler.far.forward_to"), "{}", status.message());
    }
    let own = asking(GetTimerRequest { id, ..Default::default() });
    assert_eq!(forwarder.get(own).await.unwrap().into_inner().timer.unwrap().state(), TimerState::Waiting);
    desk.timers.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_caller_needs_holds_or_nothing_is_stored() {
    let on = |target: &str| NewTimer { target: target.into(), ..timer("", LATER_MS) };
    let asked = |timers: Vec<NewTimer>, machine_durability: bool, rewards: bool| {
        let needs = Some(TimerNeeds { machine_durability, rewards, ..Default::default() });
        asking(AddTimersRequest { timers, needs, ..Default::default() })
    };
    let by_queue = || {
        let needs = Some(TimerNeeds { machine_durability: true, ..Default::default() });
        let accept = TimerAccept::Queue.into();
        asking(AddTimersRequest { timers: vec![on("hook")], needs, accept, ..Default::default() })
    };
    let (weak, firm) = (desk_of(Durability::Process), desk_of(Durability::Machine));
    for (desk, request, said) in [
        (&weak, asked(vec![on("rewards")], true, false), "needs.machine_durability"),
        (&weak, asked(vec![on("rewards")], true, true), "needs.machine_durability"),
        (&firm, asked(vec![on("rewards"), on("hook")], true, true), "needs.rewards: the target `hook`"),
        (&weak, asked(vec![on("hook")], false, true), "needs.rewards"),
        (&firm, by_queue(), "before the store has it"),
    ] {
        let refused = desk.service.add_batch(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains(said), "{refused:?}");
    }
    for desk in [&weak, &firm] {
        let listed = desk.service.list(asking(ListTimersRequest::default())).await.unwrap().into_inner();
        assert!(listed.timers.is_empty(), "{listed:?}");
    }
    for (desk, request) in [
        (&firm, asked(vec![on("rewards"), on("rewards")], true, true)),
        (&firm, asked(vec![on("hook")], true, false)),
        (&weak, asked(vec![on("rewards")], false, true)),
        // Nobody's target is refused by itself, as in any other call.
        (&weak, asked(vec![on("nowhere")], false, true)),
    ] {
        let results = desk.service.add_batch(request).await.unwrap().into_inner().results;
        assert!(!results.is_empty());
    }
    for desk in [weak, firm] {
        desk.timers.close().await;
    }
}

/// A record of a consumer is over when all of its events are handed over: a tenant that never has room for so many would
/// be asked again for ever.
#[tokio::test(flavor = "multi_thread")]
async fn timers_that_belong_together_and_never_find_room_are_refused_at_once_with_the_option() {
    let desk = desk();
    let asked = |tenant: &str, count: u32, together: u32| {
        let timers = (0..count).map(|nth| timer(&format!("{count}-{nth}"), LATER_MS)).collect();
        let needs = Some(TimerNeeds { together, ..Default::default() });
        asking(AddTimersRequest { tenant: tenant.into(), timers, needs, ..Default::default() })
    };
    let refused = desk.service.add_batch(asked("small", 3, 3)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("raise scheduler.tenants.small.waiting_max"), "{refused:?}");
    assert!(refused.metadata().get(RETRY_AFTER_MS).is_none(), "coming again does not help");
    let listed = asking(ListTimersRequest { tenant: "small".into(), ..Default::default() });
    assert!(desk.service.list(listed).await.unwrap().into_inner().timers.is_empty());
    // What may find room some time is taken as far as there is room now.
    for (tenant, count, together, stored) in [("small", 3, 2, 2), ("", 3, 3, 3)] {
        let results =
            desk.service.add_batch(asked(tenant, count, together)).await.unwrap().into_inner().results;
        let is_stored = |result: &&windfall_proto::v1::AddTimerResult| {
            matches!(result.result, Some(add_timer_result::Result::Added(_)))
        };
        assert_eq!(results.iter().filter(is_stored).count(), stored, "{tenant}");
    }
    desk.timers.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_in_a_batch_does_not_keep_the_others_from_being_stored() {
    let desk = desk();
    let wrong = NewTimer { target: "nowhere".into(), ..timer("", LATER_MS) };
    let timers = vec![
        timer("a", LATER_MS),
        NewTimer { target: String::new(), ..timer("", LATER_MS) },
        wrong,
        NewTimer { payload: vec![0; 65_537], ..timer("", LATER_MS) },
        timer("", u64::MAX),
        timer("b", LATER_MS + 1),
    ];
    let batch = asking(AddTimersRequest { timers, ..Default::default() });
    let results = desk.service.add_batch(batch).await.unwrap().into_inner().results;
    let said: Vec<_> = results
        .into_iter()
        .map(|result| match result.result.unwrap() {
            add_timer_result::Result::Added(_) => "added".to_owned(),
            add_timer_result::Result::Failure(failure) => {
                assert_eq!((failure.code, failure.retry_after_ms), (Code::InvalidArgument.into(), 0));
                failure.message
            }
        })
        .collect();
    for (at, words) in [
        (0, "added"),
        (1, "timer.target is missing"),
        (2, "nowhere"),
        (3, "timer.payload"),
        (4, "timer.due_ms"),
        (5, "added"),
    ] {
        assert!(said[at].contains(words), "{at}: {said:?}");
    }

    let names = ["a", "b", "c", ""].map(|key| TimerName { id: String::new(), key: key.into() });
    let batch = asking(CancelTimersRequest { timers: names.into(), ..Default::default() });
    let results = desk.service.cancel_batch(batch).await.unwrap().into_inner().results;
    let changes: Vec<_> = results
        .into_iter()
        .map(|result| match result.result.unwrap() {
            cancel_timer_result::Result::Changed(reply) => Some(reply.change()),
            cancel_timer_result::Result::Failure(_) => None,
        })
        .collect();
    let done = Some(TimerChange::Done);
    assert_eq!(changes, [done, done, Some(TimerChange::NotFound), None]);
    desk.timers.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_go_on_where_they_ended() {
    let desk = desk();
    for nth in 0..7 {
        desk.service.add(add("", timer("", LATER_MS + nth * 60_000))).await.unwrap();
    }
    let (mut after, mut found) = (String::new(), Vec::new());
    loop {
        let page = ListTimersRequest { after, page_size: 3, ..Default::default() };
        let page = desk.service.list(asking(page)).await.unwrap().into_inner();
        assert!(page.timers.len() <= 3);
        found.extend(page.timers.into_iter().map(|timer| timer.id));
        after = page.next_after;
        if after.is_empty() {
            break;
        }
    }
    let mut sorted = found.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!((found.len(), &found), (7, &sorted));
    // Another tenant's list has none of them.
    let other = ListTimersRequest { tenant: "small".into(), ..Default::default() };
    assert!(desk.service.list(asking(other)).await.unwrap().into_inner().timers.is_empty());
    let dead = desk.service.list_dead(asking(ListDeadTimersRequest::default())).await.unwrap().into_inner();
    assert!(dead.timers.is_empty() && dead.next_after.is_empty());
    desk.timers.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_error_names_what_is_wrong() {
    let desk = desk();
    let service = &desk.service;
    for (request, code, words) in [
        (add("stranger", timer("", LATER_MS)), Code::PermissionDenied, "timers_of"),
        (add("elsewhere", timer("", LATER_MS)), Code::FailedPrecondition, "[scheduler.tenants.elsewhere]"),
        (add("", NewTimer { due_ms: 0, ..timer("", 0) }), Code::InvalidArgument, "timer.due_ms"),
        (add("", timer(&"k".repeat(201), LATER_MS)), Code::InvalidArgument, "timer.key"),
        (asking(AddTimerRequest::default()), Code::InvalidArgument, "timer is missing"),
    ] {
        let refused = service.add(request).await.unwrap_err();
        assert!(refused.code() == code && refused.message().contains(words), "{words}: {refused:?}");
    }
    for _ in 0..2 {
        service.add(add("small", timer("", LATER_MS))).await.unwrap();
    }
    let full = service.add(add("small", timer("", LATER_MS))).await.unwrap_err();
    assert!(full.code() == Code::ResourceExhausted && full.message().contains("waiting_max"), "{full:?}");
    assert!(full.metadata().contains_key(RETRY_AFTER_MS), "{full:?}");

    let nothing = asking(UpdateTimerRequest { key: "k".into(), ..Default::default() });
    let refused = service.update(nothing).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    let unknown = asking(GetTimerRequest { key: "none".into(), ..Default::default() });
    assert_eq!(service.get(unknown).await.unwrap_err().code(), Code::NotFound);
    let page = asking(ListTimersRequest { after: "page 2".into(), ..Default::default() });
    let refused = service.list(page).await.unwrap_err();
    assert!(refused.message().starts_with("after: "), "{refused:?}");
    let many = asking(AddTimersRequest { timers: vec![timer("", LATER_MS); 1_001], ..Default::default() });
    let refused = service.add_batch(many).await.unwrap_err();
    assert!(refused.message().contains("at most 1000"), "{refused:?}");
    let id = "0001-01c3a2f0-00000000".to_owned();
    let end = |ids, end| asking(EndDeadTimersRequest { tenant: String::new(), ids, end });
    for request in [
        end(vec![], DeadTimerEnd::Delete.into()),
        end(vec!["7".into()], DeadTimerEnd::Delete.into()),
        end(vec![id.clone()], 0),
    ] {
        assert_eq!(service.end_dead(request).await.unwrap_err().code(), Code::InvalidArgument);
    }
    let found =
        service.end_dead(end(vec![id], DeadTimerEnd::SendAgain.into())).await.unwrap().into_inner().found;
    assert_eq!(found, [false]);
    desk.timers.close().await;
}
