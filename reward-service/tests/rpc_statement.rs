//! A user's statement and withdrawals as an operator sees them over gRPC.
#![cfg(feature = "rpc")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use support::{assert_clean, badge_options, start_with};
use tonic::{Code, Request};
use windfall_connectors::fake::{FakeDownstream, FakeOptions};
use windfall_contract::Clock;
use windfall_contract::accounts::{Accounts as _, Withdrawal, WithdrawalOutcome};
use windfall_contract::rewards::{GrantReply, Rewards as _};
use windfall_edge::{Call, Caller, Role};
use windfall_ledger::{LedgerReader, WithdrawalId};
use windfall_proto::v1::archive_server::Archive;
use windfall_proto::v1::{
    FlowKind, GetStatementReply, GetStatementRequest, ListWithdrawalsReply, ListWithdrawalsRequest,
    StatementBalance, WithdrawalStatus,
};
use windfall_reward_service::rpc::ArchiveService;

const USER: i64 = 7;
/// A time after all that the services of these tests do by the clock.
const LATER_MS: i64 = 9_000_000_000_000;

fn of<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let roles = [Role::Observe].into();
    let caller = Caller { name: "ops".into(), tenant: "app".into(), roles, timers_of: Default::default() };
    request.extensions_mut().insert(Call { caller, user_id: None, trace_id: None });
    request
}

async fn statement(
    service: &ArchiveService,
    request: GetStatementRequest,
) -> Result<GetStatementReply, (Code, String)> {
    let asked = of(GetStatementRequest { user_id: USER, ..request });
    let answer = service.get_statement(asked).await.map(tonic::Response::into_inner);
    answer.map_err(|status| (status.code(), status.message().to_owned()))
}

async fn withdrawals(
    service: &ArchiveService,
    request: ListWithdrawalsRequest,
) -> Result<ListWithdrawalsReply, (Code, String)> {
    let asked = of(ListWithdrawalsRequest { user_id: USER, ..request });
    let answer = service.list_withdrawals(asked).await.map(tonic::Response::into_inner);
    answer.map_err(|status| (status.code(), status.message().to_owned()))
}

#[tokio::test]
async fn a_users_statement_and_withdrawals_are_shown_page_by_page() {
    let folder = tempfile::tempdir().unwrap();
    let fake = FakeDownstream::open(folder.path().join("book"), FakeOptions::default(), Clock::system());
    let rewards = start_with(folder.path(), badge_options(), vec![Arc::new(fake.unwrap())]);
    assert_eq!(rewards.grant_batch("cash", &[support::cash("a", USER, 9)]).await, [GrantReply::Credited]);
    assert_eq!(rewards.grant_batch("badge", &[support::badge("b")]).await, [GrantReply::Credited]);
    for id in ["w", "v"] {
        let asked = Withdrawal { id: id.into(), user_id: USER, bonus_type: "cash".into(), amount: 2 };
        assert_eq!(rewards.withdraw(&asked).await.unwrap(), WithdrawalOutcome::ToPayOut);
    }
    let held = Withdrawal { id: "u".into(), user_id: USER, bonus_type: "cash".into(), amount: 1 };
    rewards.call(move |ledger| ledger.transact(|tx| tx.hold(&[(&held, "bank")], LATER_MS))).await.unwrap();
    let paid = ["w", "v"].map(|id| WithdrawalId { user_id: USER, id });
    rewards.call(move |ledger| ledger.transact(|tx| tx.pay_out(&paid, LATER_MS))).await.unwrap();

    let service = ArchiveService::new(rewards.clone());
    let whole = statement(&service, GetStatementRequest::default()).await.unwrap();
    let lines: Vec<_> =
        whole.lines.iter().map(|one| (one.kind(), one.reference.as_str(), one.amount, one.balance)).collect();
    let expected = [
        (FlowKind::Withdrawal, "u", 1, 4),
        (FlowKind::Withdrawal, "v", 2, 5),
        (FlowKind::Withdrawal, "w", 2, 7),
        (FlowKind::Settled, "b", 1, 0),
        (FlowKind::Credit, "a", 9, 9),
    ];
    assert_eq!((lines.as_slice(), whole.next_after.as_str()), (expected.as_slice(), ""));
    let balance = |bonus_type: &str, balance| StatementBalance { bonus_type: bonus_type.into(), balance };
    assert_eq!(whole.balances, [balance("badge", 0), balance("cash", 4)]);
    let (mut paged, mut after) = (Vec::new(), String::new());
    loop {
        let request = GetStatementRequest { page_size: 2, after, ..GetStatementRequest::default() };
        let page = statement(&service, request).await.unwrap();
        paged.extend(page.lines);
        after = page.next_after;
        if after.is_empty() {
            break;
        }
    }
    assert_eq!(paged, whole.lines);
    let ahead = GetStatementRequest { at_ms: i64::MAX, ..GetStatementRequest::default() };
    assert_eq!(statement(&service, ahead).await.unwrap(), whole);
    let ago = GetStatementRequest { at_ms: 1, ..GetStatementRequest::default() };
    assert_eq!(statement(&service, ago).await.unwrap(), GetStatementReply::default());

    let list = |status: WithdrawalStatus, page_size| {
        let request =
            ListWithdrawalsRequest { status: status.into(), page_size, ..ListWithdrawalsRequest::default() };
        withdrawals(&service, request)
    };
    let all = list(WithdrawalStatus::Unspecified, 0).await.unwrap();
    let ids: Vec<_> = all.withdrawals.iter().map(|one| (one.withdrawal_id.as_str(), one.status())).collect();
    let (held, paid) = (WithdrawalStatus::Held, WithdrawalStatus::Paid);
    assert_eq!(ids, [("u", held), ("v", paid), ("w", paid)]);
    let first = &all.withdrawals[0];
    assert_eq!((first.payer.as_str(), first.held_ms, first.decided_ms), ("bank", LATER_MS, 0));
    assert!(all.withdrawals[1].decided_ms >= all.withdrawals[1].held_ms && first.user_id == USER);
    assert_eq!(list(held, 9).await.unwrap().withdrawals, all.withdrawals[..1]);
    assert_eq!(list(WithdrawalStatus::Refused, 9).await.unwrap().withdrawals, []);
    let page = list(paid, 1).await.unwrap();
    assert_eq!(page.withdrawals, all.withdrawals[1..2]);
    let request = ListWithdrawalsRequest {
        status: paid.into(),
        after: page.next_after.clone(),
        ..ListWithdrawalsRequest::default()
    };
    assert_eq!(withdrawals(&service, request).await.unwrap().withdrawals, all.withdrawals[2..]);

    // Of all users, those that are held.
    let of_all = async |request: ListWithdrawalsRequest| {
        let answer = service.list_withdrawals(of(request)).await;
        answer.map(tonic::Response::into_inner).map_err(|status| status.code())
    };
    let every = ListWithdrawalsRequest { status: held.into(), ..Default::default() };
    for (from_ms, to_ms, found) in
        [(0, 0, 1), (LATER_MS, LATER_MS + 1, 1), (LATER_MS + 1, 0, 0), (0, LATER_MS, 0)]
    {
        for oldest_first in [false, true] {
            let request = ListWithdrawalsRequest { from_ms, to_ms, oldest_first, ..every.clone() };
            let page = of_all(request).await.unwrap();
            assert_eq!((&page.withdrawals[..], page.next_after.as_str()), (&all.withdrawals[..found], ""));
        }
    }
    let page = of_all(ListWithdrawalsRequest { page_size: 1, ..every.clone() }).await.unwrap();
    assert_eq!(page.next_after, format!("{LATER_MS}/{USER}/u"));
    let behind = ListWithdrawalsRequest { after: page.next_after, ..every.clone() };
    assert_eq!(of_all(behind).await.unwrap(), ListWithdrawalsReply::default());
    for wrong in [
        ListWithdrawalsRequest { status: paid.into(), ..every.clone() },
        ListWithdrawalsRequest { after: "7/1:1:1".into(), ..every.clone() },
        ListWithdrawalsRequest { page_size: 1_001, ..every.clone() },
        ListWithdrawalsRequest { from_ms: -1, ..every.clone() },
        ListWithdrawalsRequest { from_ms: 2, to_ms: 2, ..every.clone() },
        ListWithdrawalsRequest { user_id: USER, oldest_first: true, ..every.clone() },
        ListWithdrawalsRequest { user_id: USER, to_ms: 1, ..every.clone() },
        ListWithdrawalsRequest::default(),
    ] {
        assert_eq!(of_all(wrong).await.unwrap_err(), Code::InvalidArgument);
    }

    for (wrong, why) in [
        (GetStatementRequest { page_size: 1_001, ..Default::default() }, "page_size"),
        (GetStatementRequest { at_ms: -1, ..Default::default() }, "at_ms"),
        (GetStatementRequest { at_ms: 1, after: "7/1:1:1".into(), ..Default::default() }, "at most"),
        (GetStatementRequest { after: "soon".into(), ..Default::default() }, "cursor"),
        (GetStatementRequest { after: "8/1:1:1".into(), ..Default::default() }, "cursor"),
    ] {
        let (code, message) = statement(&service, wrong).await.unwrap_err();
        assert!(code == Code::InvalidArgument && message.contains(why), "{code:?} {message}");
    }
    for wrong in [
        ListWithdrawalsRequest { status: 9, ..Default::default() },
        ListWithdrawalsRequest { page_size: 1_001, ..Default::default() },
        ListWithdrawalsRequest { after: "u 7".into(), ..Default::default() },
    ] {
        assert_eq!(withdrawals(&service, wrong).await.unwrap_err().0, Code::InvalidArgument);
    }
    for user_id in [0, -7] {
        let asked = of(GetStatementRequest { user_id, ..Default::default() });
        assert_eq!(service.get_statement(asked).await.unwrap_err().code(), Code::InvalidArgument);
        let asked = of(ListWithdrawalsRequest { user_id, ..Default::default() });
        assert_eq!(service.list_withdrawals(asked).await.unwrap_err().code(), Code::InvalidArgument);
    }
    rewards.close();
    assert_eq!(list(held, 9).await.unwrap_err().0, Code::Unavailable);
    assert_clean(folder.path());
}

/// A caller that gave up and asks again must not fill the reading threads with what nobody waits for.
#[tokio::test]
async fn a_read_whose_caller_has_gone_is_not_done() {
    let folder = tempfile::tempdir().unwrap();
    let fake = FakeDownstream::open(folder.path().join("book"), FakeOptions::default(), Clock::system());
    let rewards = start_with(folder.path(), badge_options(), vec![Arc::new(fake.unwrap())]);
    let (go, wait) = mpsc::sync_channel::<()>(1);
    let wait = Arc::new(Mutex::new(wait));
    let mut blocked = Vec::new();
    // More than there are threads.
    for _ in 0..16 {
        let (rewards, wait) = (rewards.clone(), Arc::clone(&wait));
        let read = async move {
            let until_told = move |_: &LedgerReader| {
                wait.lock().unwrap().recv().unwrap_err();
                Ok(())
            };
            rewards.read(until_told).await
        };
        blocked.push(tokio::spawn(read));
        tokio::task::yield_now().await;
    }
    let is_done = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_done);
    let gone = rewards.read(move |_| {
        seen.store(true, Ordering::SeqCst);
        Ok(())
    });
    assert!(tokio::time::timeout(Duration::from_millis(1), gone).await.is_err());
    drop(go);
    for one in blocked {
        one.await.unwrap().unwrap();
    }
    rewards.close();
    assert!(!is_done.load(Ordering::SeqCst));
}
