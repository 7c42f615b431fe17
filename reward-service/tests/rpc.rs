//! The services as gRPC sees them.
#![cfg(feature = "rpc")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod support;

use support::{assert_clean, badge_options, start, start_with};
use tonic::{Code, Request};
use windfall_connectors::fake::{FakeDownstream, FakeOptions};
use windfall_contract::accounts::{Accounts as _, Withdrawal};
use windfall_contract::rewards::{GrantReply, Rewards as _};
use windfall_edge::{Call, Caller, Role};
use windfall_ledger::{BudgetSet, Ledger, LedgerOptions, Unbudgeted};
use windfall_proto::v1::archive_server::Archive;
use windfall_proto::v1::rewards_server::Rewards;
use windfall_proto::v1::{
    Bonus, BonusEvent, GetArchivedRequest, GrantAsyncRequest, GrantBatchRequest, GrantOutcome, GrantRequest,
    ListArchiveRequest, ListBudgetsRequest, ListHeldRequest, ListReservedRequest, ReleaseReservedRequest,
    ReplayArchivedRequest, User,
};
use windfall_reward_service::rpc::{ArchiveService, RewardsService};
use windfall_reward_service::{
    AsyncGrantOptions, AsyncGrants, EventQueue, GrantObserver, NotQueued, RewardHandle, RewardOptions,
    RewardService,
};

fn of<T>(tenant: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let roles = [Role::Grant, Role::Operate].into();
    let caller = Caller { name: "ops".into(), tenant: tenant.into(), roles, timers_of: Default::default() };
    request.extensions_mut().insert(Call { caller, user_id: None, trace_id: None });
    request
}

fn event(trade_no: &str, bonus_type: &str, amount: i64) -> BonusEvent {
    BonusEvent {
        trade_no: trade_no.into(),
        user: Some(User { user_id: 7, device_id: String::new(), app_id: "app".into() }),
        activity: "spring-2027".into(),
        scene: "rain".into(),
        bonus: Some(Bonus { r#type: bonus_type.into(), amount, description: "tea".into() }),
        ..BonusEvent::default()
    }
}

fn batch(events: impl IntoIterator<Item = BonusEvent>) -> GrantBatchRequest {
    GrantBatchRequest { events: events.into_iter().collect() }
}

async fn budget(rewards: &RewardHandle, total: i64) {
    rewards
        .call(move |ledger| {
            let (activity, scene, bonus_type) = ("spring-2027", "rain", "cash");
            ledger.set_budgets(&[BudgetSet { activity, scene, bonus_type, total, shards: 2 }])
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_batch_of_all_types_is_answered_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let options =
        FakeOptions { paid_then_timeout_per_mille: 1_000, hang_ms: 60_000, ..FakeOptions::default() };
    let fake = FakeDownstream::open(folder.path().join("book"), options, windfall_contract::Clock::system());
    let mut options = badge_options();
    options.connectors.entry("fake".into()).or_default().timeout_ms = 30;
    let rewards = start_with(folder.path(), options, vec![std::sync::Arc::new(fake.unwrap())]);
    budget(&rewards, 10).await;
    let service = RewardsService::new(rewards.clone());
    let events = [
        event("a", "cash", 4),
        event("b", "badge", 1),
        event("c", "", 1),
        event("d", "cash", 0),
        event("a", "cash", 4),
        event("a", "coin", 4),
        event("e", "cash", 7),
        BonusEvent { user: None, ..event("f", "coin", 1) },
        event("g", "CASH", 1),
        event("h", "cash", 6),
    ];
    let reply = service.grant_batch(of("app", batch(events))).await.unwrap().into_inner();
    let got: Vec<_> = reply.replies.iter().map(|one| (one.outcome(), one.reason.as_str())).collect();
    let expected = [
        (GrantOutcome::Credited, ""),
        (GrantOutcome::Retry, "downstream_timeout"),
        (GrantOutcome::Rejected, "malformed"),
        (GrantOutcome::Rejected, "malformed"),
        (GrantOutcome::AlreadyCredited, ""),
        (GrantOutcome::Conflict, "conflict"),
        (GrantOutcome::Rejected, "budget_exhausted"),
        (GrantOutcome::Rejected, "malformed"),
        (GrantOutcome::Rejected, "malformed"),
        (GrantOutcome::Credited, ""),
    ];
    assert_eq!(got, expected);
    assert_eq!(reply.replies[1].retry_after_ms, 50);
    let one = service.grant(of("app", GrantRequest { event: Some(event("a", "cash", 4)) })).await.unwrap();
    assert_eq!(one.into_inner().outcome(), GrantOutcome::AlreadyCredited);
    // As from a queue: the same order there is the same order.
    let bytes = support::cash("a", 7, 4);
    assert_eq!(rewards.grant_batch("cash", &[bytes]).await, [GrantReply::AlreadyCredited]);
    let archive = ArchiveService::new(rewards.clone());
    let list = archive.list_archive(of("app", ListArchiveRequest::default())).await.unwrap().into_inner();
    let mut reasons: Vec<_> = list.entries.iter().map(|one| one.reason.as_str()).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["budget_exhausted", "conflict", "malformed", "malformed", "malformed", "malformed"]);
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn a_call_as_a_whole_is_refused_for_its_size_its_emptiness_or_another_ones_event() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    let service = RewardsService::new(rewards.clone());
    let refused = |code| move |status: tonic::Status| assert_eq!(status.code(), code, "{status:?}");
    let many = batch((0..1_001).map(|nth| event(&format!("order/{nth}"), "cash", 1)));
    service.grant_batch(of("app", many)).await.map_err(refused(Code::InvalidArgument)).unwrap_err();
    let foreign = batch([event("a", "cash", 1), event("b", "cash", 1)]);
    service.grant_batch(of("other", foreign)).await.map_err(refused(Code::PermissionDenied)).unwrap_err();
    let nothing = of("app", GrantRequest { event: None });
    service.grant(nothing).await.map_err(refused(Code::InvalidArgument)).unwrap_err();
    let unknown = Request::new(batch([event("a", "cash", 1)]));
    service.grant_batch(unknown).await.map_err(refused(Code::Internal)).unwrap_err();
    assert!(
        rewards.read(|reader| reader.orders_of_number("a")).await.unwrap().is_empty(),
        "nothing of it was granted"
    );
    assert!(service.grant_batch(of("app", batch([]))).await.unwrap().into_inner().replies.is_empty());
    let thousand = batch((0..1_000).map(|nth| event(&format!("order/{nth}"), "cash", 1)));
    let replies = service.grant_batch(of("app", thousand)).await.unwrap().into_inner().replies;
    assert!(replies.iter().all(|one| one.outcome() == GrantOutcome::Credited));
    rewards.close();
    let late =
        service.grant_batch(of("app", batch([event("z", "cash", 1), event("y", "", 1)]))).await.unwrap();
    for reply in late.into_inner().replies {
        assert_eq!((reply.outcome(), reply.reason.as_str()), (GrantOutcome::Retry, "store_unavailable"));
        assert!(reply.retry_after_ms > 0);
    }
    assert_clean(folder.path());
}

#[tokio::test]
async fn the_archive_is_paged_replayed_with_an_audit_and_kept_apart_by_app() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    budget(&rewards, 0).await;
    let (service, archive) = (RewardsService::new(rewards.clone()), ArchiveService::new(rewards.clone()));
    let events: Vec<_> = (0..250).map(|nth| event(&format!("order/{nth:03}"), "cash", 1)).collect();
    service.grant_batch(of("app", batch(events))).await.unwrap();
    let (mut after, mut seen) = (0, Vec::new());
    loop {
        let request = ListArchiveRequest { page_size: 120, after, ..ListArchiveRequest::default() };
        let page = archive.list_archive(of("app", request)).await.unwrap().into_inner();
        seen.extend(page.entries.into_iter().map(|one| one.trade_no));
        after = page.next_after;
        if after == 0 {
            break;
        }
    }
    assert_eq!(seen.len(), 250);
    assert!(seen.is_sorted());
    let others = archive.list_archive(of("other", ListArchiveRequest::default())).await.unwrap();
    assert!(others.into_inner().entries.is_empty());
    let too_many = ListArchiveRequest { page_size: 1_001, ..ListArchiveRequest::default() };
    let refused = archive.list_archive(of("app", too_many)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);

    let filter =
        ListArchiveRequest { trade_no: "order/003".into(), open: true, ..ListArchiveRequest::default() };
    let found = archive.list_archive(of("app", filter.clone())).await.unwrap().into_inner().entries.remove(0);
    assert_eq!((found.reason.as_str(), found.event.unwrap().bonus.unwrap().amount), ("budget_exhausted", 1));
    let replay = |tenant, actor: &str, id| {
        let request = of(tenant, ReplayArchivedRequest { id, actor: actor.into(), ..Default::default() });
        let archive = archive.clone();
        async move { archive.replay_archived(request).await }
    };
    assert_eq!(replay("other", "ann", found.id).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(replay("app", "ann", 99_999).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(replay("app", &"x".repeat(65), found.id).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(replay("app", "an\nn", found.id).await.unwrap_err().code(), Code::InvalidArgument);
    budget(&rewards, 1).await;
    let replayed = replay("app", "ann", found.id).await.unwrap().into_inner().reply.unwrap();
    assert_eq!(replayed.outcome(), GrantOutcome::Credited);
    let get = |tenant| {
        let (archive, request) = (archive.clone(), of(tenant, GetArchivedRequest { id: found.id }));
        async move { archive.get_archived(request).await }
    };
    assert_eq!(get("other").await.unwrap_err().code(), Code::NotFound);
    let got = get("app").await.unwrap().into_inner();
    let audit: Vec<_> = got.replays.iter().map(|one| (one.actor.as_str(), one.outcome.as_str())).collect();
    assert_eq!(audit, [("ops: ann", "asked"), ("ops: ann", "credited")]);
    assert_eq!(usize::try_from(got.entry.unwrap().payload_bytes).unwrap(), got.payload.len());
    assert!(
        archive.list_archive(of("app", filter)).await.unwrap().into_inner().entries.is_empty(),
        "not open"
    );

    let budgets = archive.list_budgets(of("app", ListBudgetsRequest {})).await.unwrap().into_inner().budgets;
    assert_eq!(budgets.len(), 1);
    assert_eq!((budgets[0].is_set, budgets[0].total, budgets[0].used), (true, 1, 1));
    rewards.close();
    let closed = archive.list_budgets(of("app", ListBudgetsRequest {})).await.unwrap_err();
    assert_eq!(closed.code(), Code::Unavailable);
    assert_clean(folder.path());
}

/// Keeps what it is given.
#[derive(Default)]
struct Queue(parking_lot::Mutex<Vec<bytes::Bytes>>);

#[async_trait::async_trait]
impl EventQueue for Queue {
    fn check(&self, _event: &bytes::Bytes) -> Result<(), NotQueued> {
        Ok(())
    }

    async fn enqueue(&self, events: &[bytes::Bytes], _strong: bool) -> Vec<Result<(), NotQueued>> {
        self.0.lock().extend_from_slice(events);
        vec![Ok(()); events.len()]
    }
}

#[tokio::test]
async fn later_grants_are_accepted_and_end_where_their_events_do() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    budget(&rewards, 4).await;
    let without = RewardsService::new(rewards.clone());
    let request = || {
        let events =
            vec![event("a", "cash", 4), event("b", "cash", 4), event("c", "", 4), event("d", "coin", 1)];
        of("app", GrantAsyncRequest { events })
    };
    assert_eq!(without.grant_async(request()).await.unwrap_err().code(), Code::Unimplemented);
    let queue = std::sync::Arc::new(Queue::default());
    let grants = AsyncGrants::new(rewards.clone(), queue.clone(), AsyncGrantOptions::default());
    let service = RewardsService::with_queue(grants);
    let answers = service.grant_async(request()).await.unwrap().into_inner().replies;
    let got: Vec<_> = answers.iter().map(|one| (one.outcome(), one.reason.as_str())).collect();
    let expected = [
        (GrantOutcome::Accepted, ""),
        (GrantOutcome::Rejected, "budget_exhausted"),
        (GrantOutcome::Rejected, "malformed"),
        (GrantOutcome::Accepted, ""),
    ];
    assert_eq!(got, expected);
    let written = queue.0.lock().clone();
    assert_eq!(written.len(), 2);
    for event in written {
        let read = windfall_proto::event::EventRef::parse(&event).unwrap();
        assert!(read.first_sent_ms > 0 && read.award_time_ms > 0 && read.app_id == "app");
        let bonus_type = read.bonus_type.to_owned();
        assert_eq!(rewards.grant_batch(&bonus_type, &[event]).await, [GrantReply::Credited]);
    }
    let answers = service.grant_async(request()).await.unwrap().into_inner().replies;
    assert_eq!(answers[0].outcome(), GrantOutcome::AlreadyCredited);
    let foreign = of("other", GrantAsyncRequest { events: vec![event("z", "cash", 1)] });
    assert_eq!(service.grant_async(foreign).await.unwrap_err().code(), Code::PermissionDenied);
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn what_has_not_ended_is_listed_and_an_operator_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    let options =
        FakeOptions { paid_then_timeout_per_mille: 1_000, hang_ms: 60_000, ..FakeOptions::default() };
    let fake = FakeDownstream::open(folder.path().join("book"), options, windfall_contract::Clock::system());
    let mut options = badge_options();
    options.payout = windfall_reward_service::Payer::Connector("fake".into());
    options.connectors.entry("fake".into()).or_default().timeout_ms = 30;
    let rewards = start_with(folder.path(), options, vec![std::sync::Arc::new(fake.unwrap())]);
    rewards.grant_batch("badge", &[support::badge("b"), support::badge("a")]).await;
    rewards.grant_batch("cash", &[support::cash("c", 7, 9)]).await;
    for id in ["w", "v"] {
        let (id, bonus_type) = (id.to_owned(), "cash".to_owned());
        rewards.withdraw(&Withdrawal { id, user_id: 7, bonus_type, amount: 4 }).await.unwrap();
    }
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    let service = ArchiveService::new(rewards.clone());
    let list = |after: &str, page_size| {
        let request = ListReservedRequest { after: after.into(), page_size, older_than_ms: 0 };
        let (service, request) = (service.clone(), of("app", request));
        async move { service.list_reserved(request).await.map(tonic::Response::into_inner) }
    };
    let page = list("", 1).await.unwrap();
    let first = &page.orders[0];
    assert_eq!((first.trade_no.as_str(), first.payer.as_str(), first.awaits_event), ("a", "fake", false));
    assert_eq!((page.orders.len(), page.next_after.as_str()), (1, "a spring-2027"));
    assert_eq!(list(&page.next_after, 9).await.unwrap().orders[0].trade_no, "b");
    let page = list("a", 9).await.unwrap();
    assert_eq!((page.orders[0].trade_no.as_str(), page.next_after.as_str()), ("b", ""));
    for (after, page_size) in [("", 1_001), ("a\0", 1)] {
        assert_eq!(list(after, page_size).await.unwrap_err().code(), Code::InvalidArgument);
    }
    let request = ListHeldRequest { page_size: 1, ..ListHeldRequest::default() };
    let page = service.list_held(of("app", request)).await.unwrap().into_inner();
    let one = &page.withdrawals[0];
    assert_eq!((one.withdrawal_id.as_str(), one.user_id, one.amount), ("v", 7, 4));
    assert_eq!(
        (one.bonus_type.as_str(), one.payer.as_str(), page.next_after.as_str()),
        ("cash", "fake", "v 7")
    );
    let request = ListHeldRequest { older_than_ms: 3_600_000, ..ListHeldRequest::default() };
    assert_eq!(service.list_held(of("app", request)).await.unwrap().into_inner().withdrawals, []);
    let release = |trade_no: &str, actor: &str| {
        let request = ReleaseReservedRequest {
            trade_no: trade_no.into(),
            actor: actor.into(),
            ..ReleaseReservedRequest::default()
        };
        let (service, request) = (service.clone(), of("app", request));
        async move { service.release_reserved(request).await.map(drop).map_err(|status| status.code()) }
    };
    // Its payer may have paid it: that takes two operators.
    assert_eq!(release("a", "mara").await, Err(Code::FailedPrecondition));
    let promised = rewards.call(|ledger| {
        let order = windfall_ledger::Order {
            trade_no: "e",
            user_id: 7,
            activity: "spring-2027",
            scene: "rain",
            bonus_type: "cash",
            amount: 1,
            time_ms: 1,
        };
        ledger.transact(|tx| tx.promise(&[order], windfall_ledger::Attempt::Normal))
    });
    assert_eq!(promised.await.unwrap(), [windfall_ledger::OrderOutcome::Reserved]);
    assert_eq!(release("e", "mara").await, Ok(()));
    assert_eq!(release("e", "mara").await, Err(Code::NotFound));
    assert_eq!(release("none", "mara").await, Err(Code::NotFound));
    assert_eq!(release("", "mara").await, Err(Code::InvalidArgument));
    assert_eq!(release("b", &"x".repeat(65)).await, Err(Code::InvalidArgument));
    let filter = ListArchiveRequest { trade_no: "e".into(), ..ListArchiveRequest::default() };
    let entries = service.list_archive(of("app", filter)).await.unwrap().into_inner().entries;
    let replay = entries[0].replay.clone().unwrap();
    assert_eq!((entries[0].reason.as_str(), replay.outcome.as_str()), ("released", "released"));
    assert!(replay.actor.ends_with(": mara"), "{replay:?}");
    rewards.close();
    assert_eq!(release("b", "").await, Err(Code::Unavailable));
    assert_clean(folder.path());
}

/// The service ends between the grant of a replay and its line in the audit.
#[tokio::test]
async fn a_replay_that_could_not_be_recorded_does_not_read_as_not_done() {
    let folder = tempfile::tempdir().unwrap();
    let own: std::sync::Arc<std::sync::OnceLock<RewardHandle>> = std::sync::Arc::default();
    let seen = std::sync::Arc::clone(&own);
    let ledger = Ledger::open(
        support::ledger_path(folder.path()),
        &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() },
    )
    .unwrap();
    let observer: GrantObserver = std::sync::Arc::new(move |_| {
        if let Some(rewards) = seen.get() {
            rewards.close();
        }
    });
    let clock = windfall_contract::Clock::system();
    let rewards =
        RewardService::start(RewardOptions::default(), ledger, vec![], Some(observer), clock).unwrap();
    budget(&rewards, 1).await;
    rewards.grant_batch("cash", &[support::cash("a", 7, 4)]).await;
    budget(&rewards, 4).await;
    own.set(rewards.clone()).ok().unwrap();
    let request = ReplayArchivedRequest { id: 1, ..Default::default() };
    let status = ArchiveService::new(rewards).replay_archived(of("app", request)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(status.message().contains("was replayed"), "{status:?}");
    assert!(status.metadata().get("retry-after-ms").is_none(), "a hint is for what was not done");
    let reader = windfall_ledger::LedgerReader::open(support::ledger_path(folder.path()));
    let reader = reader.unwrap();
    assert_eq!(reader.balances(7).unwrap(), [("cash".to_owned(), 4)]);
    assert_eq!(reader.replays(1).unwrap().last().map(|one| one.outcome.clone()), Some("asked".into()));
}
