//! Withdrawals that a front end pays out elsewhere: each is in the list until its end is acknowledged, whatever dies or is
//! asked twice in between.
#![cfg(feature = "rpc")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod support;

use async_trait::async_trait;
use futures_util::future::join_all;
use std::path::Path;
use std::sync::Arc;
use support::{assert_clean, cash, start, start_with};
use tonic::{Code, Request};
use windfall_contract::accounts::{Accounts, FlowKind, Withdrawal, WithdrawalOutcome};
use windfall_contract::connector::{Connector, PayAnswer, PayOrder};
use windfall_contract::rewards::Rewards;
use windfall_edge::{Call, Caller, Role};
use windfall_ledger::{ArchiveFilter, HeldFor};
use windfall_proto::v1::{self, payouts_server::Payouts};
use windfall_reward_service::rpc::PayoutsService;
use windfall_reward_service::{
    AcknowledgeError, ConnectorOptions, PaidOut, Payer, RewardHandle, RewardOptions,
};

fn out(id: &str, user_id: i64, amount: i64) -> Withdrawal {
    Withdrawal { id: id.into(), user_id, bonus_type: "cash".into(), amount }
}

async fn credited(folder: &Path) -> RewardHandle {
    let rewards = start(folder);
    for user_id in [1, 2] {
        let event = cash(&format!("order/{user_id}"), user_id, 10);
        assert!(rewards.grant_batch("cash", &[event]).await[0].is_credited());
    }
    rewards
}

async fn balance(rewards: &RewardHandle, user_id: i64) -> i64 {
    rewards.balances(user_id).await.unwrap().first().map_or(0, |(_, balance)| *balance)
}

/// The ids and users in the list.
async fn listed(rewards: &RewardHandle) -> Vec<(String, i64)> {
    let found = rewards.to_pay_out(0, "", 100).await.unwrap();
    found.into_iter().map(|one| (one.withdrawal.id, one.withdrawal.user_id)).collect()
}

fn refused(why: &str) -> PaidOut {
    PaidOut::Refused(why.into())
}

#[tokio::test]
async fn what_a_front_end_pays_is_in_the_list_until_it_says_how_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = credited(folder.path()).await;
    // Two users have one id.
    for (id, user_id, amount) in [("w", 1, 4), ("w", 2, 3), ("v", 1, 5)] {
        let taken = rewards.withdraw(&out(id, user_id, amount)).await;
        assert_eq!(taken, Ok(WithdrawalOutcome::ToPayOut));
    }
    rewards.close();
    // The process died; its answers may be lost, and the list is not.
    let rewards = start(folder.path());
    let all = [("v".to_owned(), 1), ("w".to_owned(), 1), ("w".to_owned(), 2)];
    assert_eq!(listed(&rewards).await, all);
    let page = rewards.to_pay_out(0, "", 2).await.unwrap();
    let rest = rewards.to_pay_out(0, &page[1].key, 2).await.unwrap();
    assert_eq!((page.len(), rest.len(), rest[0].withdrawal.user_id), (2, 1, 2));
    assert_ne!(page[1].payer_key, rest[0].payer_key, "a bank tells them apart");
    assert_eq!(rewards.to_pay_out(3_600_000, "", 9).await.unwrap(), [], "not so old");
    assert_eq!(rewards.resume_held(0, "", 9).await.unwrap().pending, 0, "no payer is asked about them");
    assert_eq!(rewards.withdraw(&out("w", 1, 4)).await, Ok(WithdrawalOutcome::ToPayOut));
    // Acknowledged, twice, for an answer was lost.
    assert_eq!(rewards.acknowledge(1, "w", PaidOut::Paid).await, Ok(true));
    assert_eq!(rewards.acknowledge(1, "w", PaidOut::Paid).await, Ok(false));
    assert_eq!(listed(&rewards).await, [("v".to_owned(), 1), ("w".to_owned(), 2)]);
    assert_eq!(rewards.withdraw(&out("w", 1, 4)).await, Ok(WithdrawalOutcome::PaidOut));
    // Refused: the money is back, once.
    assert_eq!(balance(&rewards, 1).await, 1);
    assert_eq!(rewards.acknowledge(1, "v", refused("closed account")).await, Ok(true));
    assert_eq!(rewards.acknowledge(1, "v", refused("no such account")).await, Ok(false));
    assert_eq!(balance(&rewards, 1).await, 6);
    let final_one = WithdrawalOutcome::Refused("closed account".into());
    assert_eq!(rewards.withdraw(&out("v", 1, 5)).await, Ok(final_one));
    let kinds: Vec<_> =
        rewards.flow(1, "", 9).await.unwrap().lines.into_iter().map(|line| line.kind).collect();
    use FlowKind::{Credit, Return, Withdrawal};
    assert_eq!(kinds, [Return, Withdrawal, Withdrawal, Credit]);
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn an_acknowledgement_that_contradicts_the_first_one_moves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = credited(folder.path()).await;
    for id in ["paid", "back"] {
        rewards.withdraw(&out(id, 1, 2)).await.unwrap();
    }
    assert_eq!(rewards.acknowledge(1, "paid", PaidOut::Paid).await, Ok(true));
    assert_eq!(rewards.acknowledge(1, "back", refused("no")).await, Ok(true));
    let late = rewards.acknowledge(1, "paid", refused("no")).await;
    assert_eq!(late, Err(AcknowledgeError::Otherwise { is_paid: true }));
    let late = rewards.acknowledge(1, "back", PaidOut::Paid).await;
    assert_eq!(late, Err(AcknowledgeError::Otherwise { is_paid: false }));
    assert_eq!(balance(&rewards, 1).await, 8);
    // Money went out that was given back: somebody has to look.
    let found = rewards.archive_list(ArchiveFilter::default()).await.unwrap();
    let reasons: Vec<_> = found.iter().map(|one| one.reason.as_str()).collect();
    assert_eq!(reasons, ["paid_after_refusal"]);
    assert_eq!(rewards.acknowledge(2, "paid", PaidOut::Paid).await, Err(AcknowledgeError::Unknown));
    assert_eq!(rewards.acknowledge(1, "other", PaidOut::Paid).await, Err(AcknowledgeError::Unknown));
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledgements_at_once_end_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = credited(folder.path()).await;
    rewards.withdraw(&out("w", 1, 4)).await.unwrap();
    let result = |nth: u32| if nth.is_multiple_of(2) { PaidOut::Paid } else { refused("no") };
    let all = join_all((0..20).map(|nth| rewards.acknowledge(1, "w", result(nth)))).await;
    assert_eq!(all.iter().filter(|one| **one == Ok(true)).count(), 1, "{all:?}");
    assert_eq!(all.iter().filter(|one| **one == Ok(false)).count(), 9, "{all:?}");
    let stored = rewards.withdraw(&out("w", 1, 4)).await.unwrap();
    let expected = if stored == WithdrawalOutcome::PaidOut { 6 } else { 10 };
    assert_eq!(balance(&rewards, 1).await, expected, "{stored:?}");
    rewards.close();
    assert_clean(folder.path());
}

/// Never says whether it has paid.
struct Bank;

#[async_trait]
impl Connector for Bank {
    fn name(&self) -> &str {
        "bank"
    }

    async fn pay(&self, _: PayOrder<'_>) -> PayAnswer {
        PayAnswer::Unknown
    }
}

#[tokio::test]
async fn what_a_connector_pays_is_neither_listed_nor_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    credited(folder.path()).await.close();
    let mut options = RewardOptions { payout: Payer::Connector("bank".into()), ..RewardOptions::default() };
    options.connectors.insert("bank".into(), ConnectorOptions::default());
    let rewards = start_with(folder.path(), options, vec![Arc::new(Bank)]);
    let order = out("w", 1, 4);
    assert!(matches!(rewards.withdraw(&order).await, Ok(WithdrawalOutcome::Pending { .. })));
    rewards.close();
    // The front end pays by now; the one before goes on with its bank, and a new one is the front end's.
    let rewards = start(folder.path());
    assert!(matches!(rewards.withdraw(&order).await, Ok(WithdrawalOutcome::Pending { .. })));
    assert_eq!(rewards.withdraw(&out("v", 1, 1)).await, Ok(WithdrawalOutcome::ToPayOut));
    assert_eq!(listed(&rewards).await, [("v".to_owned(), 1)]);
    let said = rewards.acknowledge(1, "w", PaidOut::Paid).await;
    assert_eq!(said, Err(AcknowledgeError::OtherPayer("bank".into())));
    let held = rewards.held(HeldFor::Downstream, 0, "", 9).await.unwrap();
    assert_eq!(held.len(), 1);
    assert_eq!(rewards.held(HeldFor::Anybody, 0, "", 9).await.unwrap().len(), 2);
    rewards.close();
    // The bank pays again: what the front end has in hand stays with the front end.
    let rewards = start_with(
        folder.path(),
        RewardOptions { payout: Payer::Connector("bank".into()), ..RewardOptions::default() },
        vec![Arc::new(Bank)],
    );
    assert_eq!(rewards.withdraw(&out("v", 1, 1)).await, Ok(WithdrawalOutcome::ToPayOut));
    assert_eq!(rewards.acknowledge(1, "v", PaidOut::Paid).await, Ok(true));
    rewards.close();
    assert_clean(folder.path());
}

fn of<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let caller = Caller {
        name: "payouts".into(),
        tenant: "windfall".into(),
        roles: [Role::PayOut].into(),
        timers_of: Arc::default(),
    };
    request.extensions_mut().insert(Call { caller, user_id: None, trace_id: None });
    request
}

#[tokio::test]
async fn the_service_lists_pages_and_takes_only_what_is_plain() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = credited(folder.path()).await;
    for id in ["u", "v", "w"] {
        rewards.withdraw(&out(id, 1, 2)).await.unwrap();
    }
    let service = PayoutsService::new(rewards.clone());
    let mut ids = Vec::new();
    let mut after = String::new();
    loop {
        let request = v1::ListToPayOutRequest { after, page_size: 2, older_than_ms: 0 };
        let page = service.list_to_pay_out(of(request)).await.unwrap().into_inner();
        ids.extend(page.payouts.into_iter().map(|one| (one.withdrawal_id, one.user_id, one.payout_key)));
        after = page.next_after;
        if after.is_empty() {
            break;
        }
    }
    let expected = ["u", "v", "w"].map(|id| (id.to_owned(), 1, format!("withdrawal  1 {id}")));
    assert_eq!(ids, expected);
    let say = |id: &str, result: v1::PayoutResult, reason: &str| {
        let (withdrawal_id, reason) = (id.to_owned(), reason.to_owned());
        let said = v1::AcknowledgePayoutRequest { user_id: 1, withdrawal_id, result: result.into(), reason };
        let service = service.clone();
        async move {
            let said = service.acknowledge_payout(of(said)).await;
            said.map(|reply| reply.into_inner().is_new).map_err(|status| status.code())
        }
    };
    use v1::PayoutResult::{Paid, Refused, Unspecified};
    let long = "x".repeat(201);
    for (id, result, reason) in [
        ("u", Unspecified, ""),
        ("u", Paid, "why"),
        ("u", Refused, ""),
        ("u", Refused, &long),
        ("", Paid, ""),
    ] {
        assert_eq!(say(id, result, reason).await, Err(Code::InvalidArgument), "{id:?} {result:?} {reason}");
    }
    assert_eq!(say("x", Paid, "").await, Err(Code::NotFound));
    assert_eq!([say("u", Paid, "").await, say("u", Paid, "").await], [Ok(true), Ok(false)]);
    assert_eq!(say("u", Refused, "closed").await, Err(Code::AlreadyExists));
    assert_eq!(say("v", Refused, "closed").await, Ok(true));
    assert_eq!(listed(&rewards).await, [("w".to_owned(), 1)]);
    rewards.close();
    assert_clean(folder.path());
}
