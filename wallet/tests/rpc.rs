//! The wallet over its service: who asks, what is answered, which error for what.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod bank;

use bank::{ALICE, Desk, busy};
use tonic::{Code, Request};
use windfall_edge::{Call, Caller, REASON, RETRY_AFTER_MS, Role};
use windfall_proto::v1::wallet_server::Wallet as _;
use windfall_proto::v1::{FlowKind, GetWalletRequest, WalletBalance, WithdrawOutcome, WithdrawRequest};
use windfall_wallet::WalletService;

fn asking<T>(message: T, user_id: Option<i64>) -> Request<T> {
    let caller = Caller {
        name: "front".into(),
        tenant: ALICE.tenant.into(),
        roles: [Role::Verify].into(),
        timers_of: Default::default(),
    };
    let mut request = Request::new(message);
    request.extensions_mut().insert(Call { caller, user_id, trace_id: None });
    request
}

fn withdrawal(amount: i64) -> WithdrawRequest {
    WithdrawRequest { withdrawal_id: "w1".into(), bonus_type: "cash".into(), amount, tokens: vec![] }
}

#[tokio::test]
async fn a_wallet() {
    let desk = Desk::new();
    desk.world.arrive("arrived", 1_000);
    let token = desk.hold("coming", 200);
    let service = WalletService::new(desk.wallet.clone());
    let ask = GetWalletRequest { tokens: vec![token], ..GetWalletRequest::default() };
    let reply = service.get_wallet(asking(ask.clone(), Some(42))).await.unwrap().into_inner();
    let cash = WalletBalance { bonus_type: "cash".into(), credited: 1_000, pending: 200, total: 1_200 };
    assert_eq!(reply.balances, [cash]);
    assert!(reply.tokens_complete);
    let kinds: Vec<_> = reply.flow.iter().map(|line| (line.kind(), line.reference.as_str())).collect();
    assert_eq!(kinds, [(FlowKind::Pending, "coming"), (FlowKind::Credit, "arrived")]);

    assert_eq!(reply.flow_next, "");
    let first = GetWalletRequest { flow_limit: 1, ..ask.clone() };
    let first = service.get_wallet(asking(first, Some(42))).await.unwrap().into_inner();
    assert_eq!(first.flow, reply.flow[..1]);
    let behind = GetWalletRequest { flow_after: first.flow_next, ..ask.clone() };
    let behind = service.get_wallet(asking(behind, Some(42))).await.unwrap().into_inner();
    assert_eq!((behind.flow.as_slice(), behind.flow_next.as_str()), (&reply.flow[1..], ""));

    let wrong = GetWalletRequest { flow_limit: 501, ..ask.clone() };
    let made_up = GetWalletRequest { flow_after: "soon".into(), ..ask.clone() };
    let many = GetWalletRequest { tokens: vec![String::new(); 513], ..ask.clone() };
    for (ask, user_id, code) in [
        (wrong, Some(42), Code::InvalidArgument),
        (made_up, Some(42), Code::InvalidArgument),
        (many, Some(42), Code::InvalidArgument),
        (ask, None, Code::Unauthenticated),
    ] {
        assert_eq!(service.get_wallet(asking(ask, user_id)).await.unwrap_err().code(), code);
    }
}

#[tokio::test]
async fn a_withdrawal_and_each_of_its_errors() {
    let desk = Desk::new();
    desk.hold("coming", 1_000);
    let service = WalletService::new(desk.wallet.clone());
    let withdraw =
        async |ask, user_id| service.withdraw(asking(ask, user_id)).await.map(|reply| reply.into_inner());
    let reply = withdraw(withdrawal(400), Some(42)).await.unwrap();
    assert_eq!((reply.outcome(), reply.credited_tokens, reply.balance), (WithdrawOutcome::Paid, 1, 600));
    let reply = withdraw(withdrawal(400), Some(42)).await.unwrap();
    assert_eq!(
        (reply.outcome(), reply.credited_tokens, reply.balance),
        (WithdrawOutcome::AlreadyPaid, 0, 600)
    );

    let other = |amount| WithdrawRequest { withdrawal_id: "w2".into(), ..withdrawal(amount) };
    let refusals = [
        (withdrawal(401), Some(42), Code::AlreadyExists),
        (withdrawal(400), Some(43), Code::AlreadyExists),
        (other(601), Some(42), Code::FailedPrecondition),
        (other(0), Some(42), Code::InvalidArgument),
        (other(1), None, Code::Unauthenticated),
    ];
    for (ask, user_id, code) in refusals {
        let refused = withdraw(ask.clone(), user_id).await.unwrap_err();
        assert_eq!(refused.code(), code, "{ask:?}: {refused}");
    }
    desk.hold("late", 50);
    desk.world.books.lock().grants.insert("late".into(), busy());
    let later = withdraw(other(650), Some(42)).await.unwrap_err();
    assert_eq!(later.code(), Code::Unavailable);
    assert_eq!(later.metadata().get(RETRY_AFTER_MS).unwrap(), "70");
}

/// A frozen user was told that the balance was too small, and nobody could see why: both refusals have one code.
#[tokio::test]
async fn a_withdrawal_of_a_frozen_user_is_refused_as_that_and_keeps_nothing() {
    let desk = Desk::new();
    desk.world.arrive("arrived", 1_000);
    desk.hold("coming", 200);
    let service = WalletService::new(desk.wallet.clone());
    let withdraw = async |amount| service.withdraw(asking(withdrawal(amount), Some(ALICE.user_id))).await;
    desk.world.books.lock().frozen.insert(ALICE.user_id);
    for amount in [400, 1_100, 5_000] {
        let refused = withdraw(amount).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert_eq!(refused.metadata().get(REASON).unwrap(), "user_frozen", "{refused}");
    }
    assert_eq!(desk.world.balance(), 1_000, "no token was credited for it either");
    desk.world.books.lock().frozen.clear();
    let short = withdraw(5_000).await.unwrap_err();
    assert_eq!((short.code(), short.metadata().get(REASON)), (Code::FailedPrecondition, None));
    let reply = withdraw(400).await.unwrap().into_inner();
    assert_eq!(reply.outcome(), WithdrawOutcome::Paid, "the id was free");
}
