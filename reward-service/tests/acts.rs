//! Acts of two operators, and payers that answer after them.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod support;

use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{assert_clean, badge, badge_options, cash, start, start_with};
use tokio::sync::Semaphore;
use windfall_contract::accounts::{Accounts, Status, Withdrawal, WithdrawalOutcome};
use windfall_contract::connector::{Connector, PayAnswer, PayOrder};
use windfall_contract::rewards::{GrantReply, Rejection, Rewards};
use windfall_ledger::{
    ActOutcome, ArchiveFilter, Attempt, BudgetSet, Deed, Ledger, LedgerOptions, LedgerReader, Operator, Order,
};
use windfall_reward_service::{
    ActAnswer, ActError, ConnectorOptions, Payer, ReleaseError, RewardHandle, RewardOptions,
};

/// Answers what it is told to, each time after it may.
struct Slow {
    name: &'static str,
    answers: Mutex<VecDeque<PayAnswer>>,
    calls: AtomicUsize,
    may_answer: Semaphore,
}

impl Slow {
    fn of(name: &'static str, answers: impl IntoIterator<Item = PayAnswer>) -> Arc<Self> {
        let answers = Mutex::new(answers.into_iter().collect());
        Arc::new(Self { name, answers, calls: AtomicUsize::new(0), may_answer: Semaphore::new(0) })
    }
}

#[async_trait]
impl Connector for Slow {
    fn name(&self) -> &str {
        self.name
    }

    async fn pay(&self, _order: PayOrder<'_>) -> PayAnswer {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.may_answer.acquire().await.unwrap().forget();
        let told = self.answers.lock().pop_front();
        told.unwrap_or(PayAnswer::Paid)
    }
}

fn by(name: &str) -> Operator {
    Operator { name: name.into(), actor: String::new() }
}

async fn propose(rewards: &RewardHandle, deed: Deed) -> Result<ActAnswer, ActError> {
    let because = ("the payer never answers".to_owned(), "statement of May, line 7".to_owned());
    rewards.propose_act(deed, because, by("ann"), 60_000).await
}

/// Proposes and approves it.
async fn both(rewards: &RewardHandle, deed: Deed) -> (ActOutcome, String) {
    let act = propose(rewards, deed).await.unwrap().act;
    let end = rewards.approve_act(act.id, by("bob")).await.unwrap().act.end.unwrap();
    (end.outcome, end.detail)
}

fn order(trade_no: &str, paid: bool) -> Deed {
    Deed::SettleOrder { activity: String::new(), trade_no: trade_no.into(), paid }
}

fn slow(mut options: RewardOptions, name: &str) -> RewardOptions {
    let connector = ConnectorOptions { timeout_ms: 30_000, ..ConnectorOptions::default() };
    options.connectors.insert(name.into(), connector);
    options
}

async fn reasons(rewards: &RewardHandle, trade_no: &str) -> Vec<String> {
    let filter = ArchiveFilter { trade_no: Some(trade_no.into()), limit: 9, ..ArchiveFilter::default() };
    rewards.archive_list(filter).await.unwrap().into_iter().map(|entry| entry.reason).collect()
}

async fn until_called(payer: &Slow, calls: usize) {
    while payer.calls.load(Ordering::SeqCst) < calls {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

/// Asks the payer of an order, settles the order while it thinks, and lets it answer.
async fn settled_while_asked(folder: &Path, paid: bool, answer: PayAnswer) -> (GrantReply, Vec<String>, u64) {
    let payer = Slow::of("fake", [answer]);
    let rewards = start_with(folder, slow(badge_options(), "fake"), vec![payer.clone()]);
    let asked = rewards.clone();
    let call = tokio::spawn(async move { asked.grant_batch("badge", &[badge("x")]).await.remove(0) });
    until_called(&payer, 1).await;
    assert_eq!(both(&rewards, order("x", paid)).await.0, ActOutcome::Done);
    payer.may_answer.add_permits(1);
    let reply = call.await.unwrap();
    let found = (reply, reasons(&rewards, "x").await, rewards.stats().late_answers);
    rewards.close();
    assert_clean(folder);
    found
}

#[tokio::test]
async fn a_payer_that_answers_after_an_order_was_settled_pays_nothing_twice() {
    let late = |paid, answer| async move {
        let folder = tempfile::tempdir().unwrap();
        let found = settled_while_asked(folder.path(), paid, answer).await;
        let reader = LedgerReader::open(support::ledger_path(folder.path())).unwrap();
        let settled: i64 = reader.settlements().unwrap().iter().map(|one| one.amount).sum();
        (found, reader.order(support::id("x")).unwrap().unwrap().status, settled)
    };
    let ((reply, archive, differences), status, settled) = late(true, PayAnswer::Paid).await;
    assert_eq!((reply, archive, differences), (GrantReply::AlreadyCredited, vec![], 0), "it agrees");
    assert_eq!((status, settled), (Status::Credited, 1));

    let ((reply, archive, differences), status, settled) =
        late(true, PayAnswer::Refused("no such badge".into())).await;
    assert_eq!((reply, differences), (GrantReply::AlreadyCredited, 1));
    assert_eq!(
        (archive, status, settled),
        (vec!["refused_after_settlement".to_owned()], Status::Credited, 1)
    );

    let ((reply, archive, differences), status, settled) = late(false, PayAnswer::Paid).await;
    assert_eq!((reply, differences), (GrantReply::Rejected(Rejection::Released), 1));
    assert_eq!(archive, ["released", "paid_after_settlement"]);
    assert!(matches!(status, Status::Rejected(_)) && settled == 0, "{status:?} {settled}");
}

#[tokio::test]
async fn a_payer_that_answers_after_a_withdrawal_was_settled_gives_nothing_back_twice() {
    for (paid, answer, reason) in [
        (true, PayAnswer::Refused("closed account".into()), Some("refused_after_settlement")),
        (false, PayAnswer::Paid, Some("paid_after_settlement")),
        (true, PayAnswer::Paid, None),
        (false, PayAnswer::Refused("closed account".into()), None),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let bank = Slow::of("bank", [answer]);
        let options = RewardOptions { payout: Payer::Connector("bank".into()), ..RewardOptions::default() };
        let rewards = start_with(folder.path(), slow(options, "bank"), vec![bank.clone()]);
        rewards.grant_batch("cash", &[cash("a", 7, 10)]).await;
        let asked = rewards.clone();
        let call = tokio::spawn(async move {
            let out = Withdrawal { id: "w".into(), user_id: 7, bonus_type: "cash".into(), amount: 4 };
            asked.withdraw(&out).await
        });
        until_called(&bank, 1).await;
        let deed = Deed::SettleWithdrawal { user_id: 0, withdrawal: "w".into(), paid };
        assert_eq!(both(&rewards, deed).await.0, ActOutcome::Done);
        bank.may_answer.add_permits(1);
        call.await.unwrap().unwrap();
        let balances = rewards.balances(7).await.unwrap();
        assert_eq!(balances, [("cash".to_owned(), if paid { 6 } else { 10 })], "{reason:?}");
        assert_eq!(reasons(&rewards, "w").await, reason.into_iter().collect::<Vec<_>>());
        rewards.close();
        assert_clean(folder.path());
    }
}

#[tokio::test]
async fn what_was_settled_as_returned_is_replayed_with_the_same_payer() {
    let folder = tempfile::tempdir().unwrap();
    let payer = Slow::of("fake", [PayAnswer::Unknown, PayAnswer::Paid]);
    payer.may_answer.add_permits(2);
    let rewards = start_with(folder.path(), slow(badge_options(), "fake"), vec![payer.clone()]);
    rewards.grant_batch("badge", &[badge("x")]).await;
    // One operator alone does not give up what a payer may have paid.
    let alone = rewards.release(None, "x", "ann").await;
    assert!(matches!(alone, Err(ReleaseError::WaitsForPayer { .. })), "{alone:?}");
    assert_eq!(both(&rewards, order("x", false)).await.0, ActOutcome::Done);
    let entry = rewards.archive_list(ArchiveFilter::default()).await.unwrap().remove(0);
    assert_eq!(entry.reason, "released");
    assert_eq!(rewards.replay(entry.id, "ann").await.unwrap().reply, GrantReply::Credited);
    assert_eq!(payer.calls.load(Ordering::SeqCst), 2, "the same payer, with the same key");
    rewards.close();
    assert_clean(folder.path());
}

/// Version 1 of the schema did not store which payer was asked.
#[tokio::test]
async fn one_operator_alone_releases_only_what_waits_for_its_event() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::open(support::ledger_path(folder.path()), &LedgerOptions::default()).unwrap();
    let order = |trade_no| Order {
        trade_no,
        user_id: 7,
        activity: support::id("").activity,
        scene: "rain",
        bonus_type: "cash",
        amount: 1,
        time_ms: 1,
    };
    let budget = BudgetSet {
        activity: support::id("").activity,
        scene: "rain",
        bonus_type: "cash",
        total: 9,
        shards: 1,
    };
    ledger.set_budgets(&[budget]).unwrap();
    ledger.transact(|tx| tx.reserve(&[order("x")], &[""], Attempt::Normal)).unwrap();
    ledger.transact(|tx| tx.promise(&[order("y")], Attempt::Normal)).unwrap();
    drop(ledger);
    let rewards = start(folder.path());
    for activity in [None, Some(support::id("").activity)] {
        let alone = rewards.release(activity, "x", "ann").await;
        assert!(matches!(alone, Err(ReleaseError::WaitsForPayer { .. })), "{alone:?}");
    }
    rewards.release(None, "y", "ann").await.unwrap();
    let again = rewards.release(None, "y", "ann").await;
    assert!(matches!(again, Err(ReleaseError::NotReserved(_))), "{again:?}");
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn an_act_survives_a_restart_and_is_answered_the_same_when_it_is_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    rewards.grant_batch("cash", &[cash("a", 7, 10)]).await;
    let deed =
        Deed::Reverse { activity: String::new(), trade_no: "a".into(), take_what_is_there: false, keep: 0 };
    let first = propose(&rewards, deed.clone()).await.unwrap();
    assert!(!first.is_repeat);
    rewards.close();
    let rewards = start(folder.path());
    let again = propose(&rewards, deed.clone()).await.unwrap();
    assert!(again.is_repeat && again.act.id == first.act.id, "{again:?}");
    let (act, about) = rewards.act(first.act.id).await.unwrap();
    assert!(act.end.is_none() && about.contains("10 cash of user 7"), "{about}");
    let own = rewards.approve_act(first.act.id, by("ann")).await;
    assert!(matches!(own, Err(ActError::SameOperator(_))), "{own:?}");
    let done = rewards.approve_act(first.act.id, by("bob")).await.unwrap();
    // The answer was lost.
    let again = rewards.approve_act(first.act.id, by("bob")).await.unwrap();
    assert!(!done.is_repeat && again.is_repeat && again.act == done.act);
    assert_eq!(rewards.balances(7).await.unwrap(), [("cash".to_owned(), 0)]);
    assert!(propose(&rewards, deed).await.unwrap().is_repeat, "what was done is not done again");
    assert!(rewards.acts(0, true, 0, 9).await.unwrap().is_empty());
    assert!(matches!(rewards.approve_act(99, by("bob")).await, Err(ActError::Unknown(99))));
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn nothing_is_paid_out_to_a_frozen_user() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    rewards.grant_batch("cash", &[cash("a", 7, 10)]).await;
    let out = |id: &str| Withdrawal { id: id.into(), user_id: 7, bonus_type: "cash".into(), amount: 4 };
    assert_eq!(both(&rewards, Deed::Freeze { user_id: 7 }).await.0, ActOutcome::Done);
    assert_eq!(rewards.withdraw(&out("w")).await.unwrap(), WithdrawalOutcome::Frozen);
    assert_eq!(rewards.grant_batch("cash", &[cash("b", 7, 5)]).await, [GrantReply::Credited]);
    assert_eq!(both(&rewards, Deed::Thaw { user_id: 7 }).await.0, ActOutcome::Done);
    assert_eq!(rewards.withdraw(&out("w")).await.unwrap(), WithdrawalOutcome::ToPayOut);
    rewards.close();
    assert_clean(folder.path());
}
