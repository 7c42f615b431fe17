//! Withdrawals: once an id, whatever its payer answers, loses or repeats, and wherever the process dies.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod support;

use async_trait::async_trait;
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use support::{assert_clean, cash, ledger_path, start, start_with};
use tokio::sync::Semaphore;
use windfall_connectors::fake::{FakeBook, FakeDownstream, FakeOptions};
use windfall_contract::Clock;
use windfall_contract::accounts::{
    Accounts, AccountsError, FlowKind, OrderName, Withdrawal, WithdrawalOutcome,
};
use windfall_contract::connector::{Connector, PayAnswer, PayOrder};
use windfall_contract::rewards::Rewards;
use windfall_ledger::{
    HeldFor, HoldOutcome, Ledger, LedgerOptions, LedgerReader, Unbudgeted, WithdrawalId, WithdrawalStatus,
};
use windfall_reward_service::{
    ConnectorOptions, Payer, ResumeOptions, Resumed, Resumer, RewardHandle, RewardOptions,
};

/// Answers what it is told to, then `Paid`, and remembers under which keys it was asked.
#[derive(Default)]
struct Teller {
    /// Empty: `bank`.
    name: &'static str,
    answers: Mutex<VecDeque<PayAnswer>>,
    asked: Mutex<Vec<String>>,
    hold: Option<Semaphore>,
}

impl Teller {
    fn of(answers: impl IntoIterator<Item = PayAnswer>) -> Arc<Self> {
        Arc::new(Self { answers: Mutex::new(answers.into_iter().collect()), ..Self::default() })
    }

    fn named(name: &'static str, answers: impl IntoIterator<Item = PayAnswer>) -> Arc<Self> {
        Arc::new(Self { name, answers: Mutex::new(answers.into_iter().collect()), ..Self::default() })
    }

    fn calls(&self) -> usize {
        self.asked.lock().len()
    }
}

#[async_trait]
impl Connector for Teller {
    fn name(&self) -> &str {
        if self.name.is_empty() { "bank" } else { self.name }
    }

    async fn pay(&self, order: PayOrder<'_>) -> PayAnswer {
        self.asked.lock().push(order.trade_no.to_owned());
        if let Some(hold) = &self.hold {
            hold.acquire().await.unwrap().forget();
        }
        let told = self.answers.lock().pop_front();
        told.unwrap_or(PayAnswer::Paid)
    }
}

fn bank_options() -> RewardOptions {
    let mut options = RewardOptions { payout: Payer::Connector("bank".into()), ..RewardOptions::default() };
    let connector = ConnectorOptions { timeout_ms: 50, ..ConnectorOptions::default() };
    options.connectors.insert("bank".into(), connector);
    options
}

fn with_bank(folder: &Path, bank: Arc<dyn Connector>) -> RewardHandle {
    start_with(folder, bank_options(), vec![bank])
}

fn out(id: &str, user_id: i64, amount: i64) -> Withdrawal {
    Withdrawal { id: id.into(), user_id, bonus_type: "cash".into(), amount }
}

fn named(trade_no: &str) -> OrderName {
    OrderName { activity: "spring-2027".into(), trade_no: trade_no.into() }
}

async fn credit(rewards: &RewardHandle, trade_no: &str, user_id: i64, amount: i64) {
    assert!(rewards.grant_batch("cash", &[cash(trade_no, user_id, amount)]).await[0].is_credited());
}

async fn balance(rewards: &RewardHandle, user_id: i64) -> i64 {
    rewards.balances(user_id).await.unwrap().first().map_or(0, |(_, balance)| *balance)
}

#[tokio::test]
async fn a_withdrawal_is_taken_once_an_id_and_never_more_than_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    credit(&rewards, "a", 1, 10).await;
    assert_eq!(rewards.withdraw(&out("w", 1, 11)).await.unwrap(), WithdrawalOutcome::Short { balance: 10 });
    for _ in 0..2 {
        assert_eq!(rewards.withdraw(&out("w", 1, 4)).await.unwrap(), WithdrawalOutcome::ToPayOut);
    }
    for other in [out("w", 1, 5), Withdrawal { bonus_type: "coin".into(), ..out("w", 1, 4) }] {
        assert_eq!(rewards.withdraw(&other).await.unwrap(), WithdrawalOutcome::Conflict);
    }
    let bad = [
        out("", 1, 4),
        out("with space", 1, 4),
        out(&"x".repeat(129), 1, 4),
        out("v", 1, 0),
        out("v", 1, -4),
        out("v", 1, i64::MAX),
        Withdrawal { bonus_type: "CASH".into(), ..out("v", 1, 4) },
    ];
    for order in bad {
        assert!(matches!(rewards.withdraw(&order).await, Err(AccountsError::Invalid(_))), "{order:?}");
    }
    assert_eq!(rewards.balances(1).await.unwrap(), [("cash".to_owned(), 6)]);
    let flow = rewards.flow(1, "", 10).await.unwrap().lines;
    let lines: Vec<_> = flow.iter().map(|line| (line.kind, line.trade_no.as_str(), line.amount)).collect();
    assert_eq!(lines, [(FlowKind::Withdrawal, "w", 4), (FlowKind::Credit, "a", 10)]);
    let orders = rewards.orders(&[named("none"), named("a")]).await.unwrap();
    assert!(orders[0].is_none() && orders[1].as_ref().unwrap().amount == 10);
    rewards.close();
    assert!(matches!(rewards.withdraw(&out("w", 1, 4)).await, Err(AccountsError::Unavailable { .. })));
    assert!(matches!(rewards.balances(1).await, Err(AccountsError::Unavailable { .. })));
    assert_clean(folder.path());
}

#[tokio::test]
async fn each_answer_of_a_payer_leads_where_it_should() {
    let folder = tempfile::tempdir().unwrap();
    let bank = Teller::of([
        PayAnswer::Unknown,
        PayAnswer::Retry { after_ms: 9 },
        PayAnswer::Busy { after_ms: 8 },
        PayAnswer::AlreadyPaid,
        PayAnswer::Refused("closed account".into()),
    ]);
    let rewards = with_bank(folder.path(), bank.clone());
    credit(&rewards, "w", 1, 10).await;
    let ask = || async { rewards.withdraw(&out("w", 1, 10)).await.unwrap() };
    assert_eq!(ask().await, WithdrawalOutcome::Pending { after_ms: 50 });
    assert_eq!(balance(&rewards, 1).await, 0, "a time-out gives nothing back");
    assert_eq!(ask().await, WithdrawalOutcome::Pending { after_ms: 9 });
    assert_eq!(ask().await, WithdrawalOutcome::Pending { after_ms: 8 });
    // Nobody else gets it meanwhile.
    assert_eq!(rewards.withdraw(&out("v", 1, 1)).await.unwrap(), WithdrawalOutcome::Short { balance: 0 });
    assert_eq!(ask().await, WithdrawalOutcome::Paid);
    assert_eq!(ask().await, WithdrawalOutcome::AlreadyPaid);
    assert_eq!(bank.calls(), 4, "what is paid is not asked for again");
    assert!(bank.asked.lock().iter().all(|key| key == "withdrawal  1 w"), "no order has such a number");
    credit(&rewards, "b", 1, 10).await;
    let refused = WithdrawalOutcome::Refused("closed account".into());
    assert_eq!(rewards.withdraw(&out("v", 1, 7)).await.unwrap(), refused);
    assert_eq!(balance(&rewards, 1).await, 10, "the money is back");
    assert_eq!(rewards.withdraw(&out("v", 1, 7)).await.unwrap(), refused, "final for this id");
    assert_eq!(bank.calls(), 5);
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn a_payout_that_pays_and_then_times_out_is_paid_once() {
    let folder = tempfile::tempdir().unwrap();
    let options = FakeOptions {
        name: "bank".into(),
        rate_per_s: 0,
        latency_ms: 0,
        paid_then_timeout_per_mille: 1_000,
        ..FakeOptions::default()
    };
    let bank = Arc::new(FakeDownstream::open(folder.path().join("book"), options, Clock::system()).unwrap());
    let rewards = with_bank(folder.path(), bank.clone());
    credit(&rewards, "a", 1, 10).await;
    assert!(matches!(rewards.withdraw(&out("w", 1, 6)).await.unwrap(), WithdrawalOutcome::Pending { .. }));
    assert_eq!(bank.payments(), 1, "it has paid, and nobody knows");
    assert_eq!(balance(&rewards, 1).await, 4);
    bank.set_faults(0, 0);
    assert_eq!(rewards.withdraw(&out("w", 1, 6)).await.unwrap(), WithdrawalOutcome::Paid);
    assert_eq!(rewards.withdraw(&out("w", 1, 6)).await.unwrap(), WithdrawalOutcome::AlreadyPaid);
    rewards.close();
    assert_eq!(FakeBook::read(folder.path().join("book")).unwrap().len(), 1);
    assert_clean(folder.path());
}

/// Dies before the hold, after it, after the payment and after the end, each time as a fresh process finds it.
#[tokio::test]
async fn wherever_it_died_the_next_call_pays_once() {
    for died_after in ["nothing", "hold", "payment", "end"] {
        let folder = tempfile::tempdir().unwrap();
        let rewards = start(folder.path());
        credit(&rewards, "a", 1, 10).await;
        rewards.close();
        let options =
            FakeOptions { name: "bank".into(), rate_per_s: 0, latency_ms: 0, ..FakeOptions::default() };
        let book = folder.path().join("book");
        let bank = FakeDownstream::open(&book, options.clone(), Clock::system()).unwrap();
        let mut ledger = Ledger::open(
            ledger_path(folder.path()),
            &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() },
        )
        .unwrap();
        if died_after != "nothing" {
            let asked = out("w", 1, 6);
            let held = ledger.transact(|tx| tx.hold(&[(&asked, "bank")], 1));
            assert_eq!(held.unwrap(), [HoldOutcome::Held]);
        }
        if matches!(died_after, "payment" | "end") {
            let pay = PayOrder {
                trade_no: "withdrawal  1 w",
                user_id: 1,
                activity: "",
                scene: "",
                bonus_type: "cash",
                amount: 6,
            };
            assert_eq!(bank.pay(pay).await, PayAnswer::Paid);
        }
        if died_after == "end" {
            ledger.transact(|tx| tx.pay_out(&[WithdrawalId { user_id: 1, id: "w" }], 1)).unwrap();
        }
        drop((ledger, bank));
        let bank = Arc::new(FakeDownstream::open(&book, options, Clock::system()).unwrap());
        let rewards = with_bank(folder.path(), bank);
        let first =
            if died_after == "end" { WithdrawalOutcome::AlreadyPaid } else { WithdrawalOutcome::Paid };
        assert_eq!(rewards.withdraw(&out("w", 1, 6)).await.unwrap(), first, "died after {died_after}");
        assert_eq!(rewards.withdraw(&out("w", 1, 6)).await.unwrap(), WithdrawalOutcome::AlreadyPaid);
        assert_eq!(balance(&rewards, 1).await, 4);
        rewards.close();
        assert_eq!(FakeBook::read(&book).unwrap().len(), 1, "died after {died_after}");
        assert_clean(folder.path());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_with_one_id_at_once_take_once() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    credit(&rewards, "a", 1, 10).await;
    let order = out("w", 1, 3);
    let all = join_all((0..20).map(|_| rewards.withdraw(&order))).await;
    assert!(all.iter().all(|one| *one == Ok(WithdrawalOutcome::ToPayOut)), "{all:?}");
    assert_eq!(rewards.to_pay_out(0, "", 9).await.unwrap().len(), 1);
    assert_eq!(balance(&rewards, 1).await, 7);
    rewards.close();
    assert_clean(folder.path());
}

/// A caller that goes away, and others that come meanwhile, while the payer thinks.
#[tokio::test]
async fn a_call_that_is_given_up_or_doubled_while_the_payer_thinks_pays_once() {
    let folder = tempfile::tempdir().unwrap();
    let bank = Arc::new(Teller { hold: Some(Semaphore::new(0)), ..Teller::default() });
    let mut options = bank_options();
    options.connectors.get_mut("bank").unwrap().timeout_ms = 10_000;
    let rewards = start_with(folder.path(), options, vec![bank.clone()]);
    credit(&rewards, "a", 1, 10).await;
    let order = out("w", 1, 3);
    let given_up = tokio::time::timeout(Duration::from_millis(100), rewards.withdraw(&order)).await;
    assert!(given_up.is_err());
    let (first, second) = tokio::join!(rewards.withdraw(&order), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let second = rewards.withdraw(&order).await;
        bank.hold.as_ref().unwrap().add_permits(9);
        second
    });
    assert!(matches!(second, Ok(WithdrawalOutcome::Pending { .. })), "{second:?}");
    assert_eq!(first, Ok(WithdrawalOutcome::Paid));
    assert_eq!(bank.calls(), 2, "the one that was given up, and the one that took its place");
    assert_eq!(rewards.withdraw(&order).await, Ok(WithdrawalOutcome::AlreadyPaid));
    rewards.close();
    let reader = LedgerReader::open(ledger_path(folder.path())).unwrap();
    assert_eq!(
        reader.withdrawal(WithdrawalId { user_id: 1, id: "w" }).unwrap().unwrap().status,
        WithdrawalStatus::Paid
    );
    assert_clean(folder.path());
}

#[tokio::test]
async fn what_another_payer_may_have_paid_is_not_paid_by_the_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = with_bank(folder.path(), Teller::of([PayAnswer::Unknown]));
    credit(&rewards, "a", 1, 10).await;
    assert!(matches!(rewards.withdraw(&out("w", 1, 3)).await, Ok(WithdrawalOutcome::Pending { .. })));
    rewards.close();
    let rewards = start(folder.path());
    assert!(matches!(rewards.withdraw(&out("w", 1, 3)).await, Ok(WithdrawalOutcome::Pending { .. })));
    rewards.close();
    let rewards = with_bank(folder.path(), Teller::of([PayAnswer::AlreadyPaid]));
    assert_eq!(rewards.withdraw(&out("w", 1, 3)).await, Ok(WithdrawalOutcome::Paid));
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn reads_do_not_wait_for_writers() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    credit(&rewards, "a", 1, 10).await;
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let (let_go, is_let_go) = std::sync::mpsc::sync_channel::<()>(0);
    let slow = rewards.call(move |_| {
        begun.send(()).unwrap();
        // Until the other end is dropped.
        is_let_go.recv().unwrap_err();
        Ok(())
    });
    let read = async {
        has_begun.await.unwrap();
        let both = async {
            assert_eq!(balance(&rewards, 1).await, 10);
            assert_eq!(rewards.flow(1, "", 5).await.unwrap().lines.len(), 1);
        };
        let answered = tokio::time::timeout(Duration::from_secs(60), both).await;
        drop(let_go);
        answered.expect("reads wait for the writer");
    };
    let (slow, ()) = tokio::join!(slow, read);
    slow.unwrap();
    rewards.close();
}

fn paid_by(payout: &str) -> RewardOptions {
    RewardOptions { payout: Payer::Connector(payout.into()), ..RewardOptions::default() }
}

#[tokio::test]
async fn what_a_downstream_has_paid_is_not_withdrawn() {
    let folder = tempfile::tempdir().unwrap();
    let bank = Teller::of([]);
    let mut options = RewardOptions::default();
    options.pays.insert("cash".into(), Payer::Connector("bank".into()));
    let rewards = start_with(folder.path(), options.clone(), vec![bank.clone()]);
    credit(&rewards, "a", 1, 10).await;
    let refused = AccountsError::Invalid("cash is paid by its downstream, not withdrawn".into());
    assert_eq!(rewards.withdraw(&out("w", 1, 4)).await, Err(refused.clone()));
    assert_eq!((balance(&rewards, 1).await, bank.calls()), (0, 1));
    let stored =
        rewards.read(|reader| reader.withdrawal(WithdrawalId { user_id: 1, id: "w" })).await.unwrap();
    assert_eq!(stored, None, "nothing is held");
    rewards.close();
    // Nor by another connector, nor where it is nobody's.
    options.payout = Payer::Connector("bank".into());
    let rewards = start_with(folder.path(), options, vec![bank.clone()]);
    assert_eq!(rewards.withdraw(&out("w", 1, 4)).await, Err(refused));
    rewards.close();
    let mut options = RewardOptions::default();
    options.pays.insert("cash".into(), Payer::Nobody);
    let rewards = start_with(folder.path(), options, vec![]);
    assert!(matches!(rewards.withdraw(&out("w", 1, 4)).await, Err(AccountsError::Invalid(_))));
    assert_eq!((balance(&rewards, 1).await, bank.calls()), (0, 1));
    rewards.close();
    // Nor once the ledger itself pays the type and its withdrawals.
    let rewards = start_with(folder.path(), RewardOptions::default(), vec![]);
    assert_eq!(rewards.withdraw(&out("w", 1, 4)).await, Ok(WithdrawalOutcome::Short { balance: 0 }));
    rewards.close();
    assert_clean(folder.path());
}

/// A type that is handed to a downstream while withdrawals of it are under way.
#[tokio::test]
async fn what_is_held_already_goes_on_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = with_bank(folder.path(), Teller::of([PayAnswer::Paid, PayAnswer::Unknown]));
    credit(&rewards, "a", 1, 10).await;
    assert_eq!(rewards.withdraw(&out("paid", 1, 4)).await, Ok(WithdrawalOutcome::Paid));
    assert!(matches!(rewards.withdraw(&out("held", 1, 4)).await, Ok(WithdrawalOutcome::Pending { .. })));
    rewards.close();
    let mut options = RewardOptions { payout: Payer::Nobody, ..bank_options() };
    options.pays.insert("cash".into(), Payer::Connector("bank".into()));
    let bank = Teller::of([PayAnswer::AlreadyPaid]);
    let rewards = start_with(folder.path(), options, vec![bank.clone()]);
    assert_eq!(rewards.withdraw(&out("paid", 1, 4)).await, Ok(WithdrawalOutcome::AlreadyPaid));
    assert_eq!(rewards.withdraw(&out("held", 1, 3)).await, Ok(WithdrawalOutcome::Conflict));
    assert_eq!(rewards.withdraw(&out("held", 1, 4)).await, Ok(WithdrawalOutcome::Paid));
    assert_eq!(bank.calls(), 1);
    assert!(matches!(rewards.withdraw(&out("new", 1, 1)).await, Err(AccountsError::Invalid(_))));
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn a_payer_that_is_changed_is_not_asked_about_what_another_may_have_paid() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (Teller::named("a", [PayAnswer::Unknown, PayAnswer::Unknown]), Teller::named("b", []));
    let rewards = start_with(folder.path(), paid_by("a"), vec![a.clone(), b.clone()]);
    credit(&rewards, "x", 1, 10).await;
    let ask = |rewards: RewardHandle| async move { rewards.withdraw(&out("w", 1, 4)).await.unwrap() };
    assert!(matches!(ask(rewards.clone()).await, WithdrawalOutcome::Pending { .. }));
    rewards.close();
    // b pays by now; then a is gone; then the ledger pays.
    let rewards = start_with(folder.path(), paid_by("b"), vec![a.clone(), b.clone()]);
    assert!(matches!(ask(rewards.clone()).await, WithdrawalOutcome::Pending { .. }));
    assert_eq!((a.calls(), b.calls()), (2, 0), "only a knows whether it has paid");
    rewards.close();
    for options in [paid_by("b"), RewardOptions::default()] {
        let rewards = start_with(folder.path(), options, vec![b.clone()]);
        assert!(matches!(ask(rewards.clone()).await, WithdrawalOutcome::Pending { .. }));
        let resumed = rewards.resume_held(0, "", 10).await.unwrap();
        assert_eq!((resumed.pending, resumed.paid), (1, 0));
        assert_eq!((a.calls(), b.calls()), (2, 0));
        rewards.close();
    }
    let rewards = start_with(folder.path(), paid_by("b"), vec![a.clone(), b.clone()]);
    assert_eq!(ask(rewards.clone()).await, WithdrawalOutcome::Paid);
    assert_eq!(rewards.withdraw(&out("v", 1, 4)).await, Ok(WithdrawalOutcome::Paid), "a new one is b's");
    assert_eq!((a.calls(), b.calls()), (3, 1));
    rewards.close();
    assert_clean(folder.path());
}

/// One call waits between its hold and its payer while another one comes.
#[tokio::test]
async fn a_call_that_waited_does_not_ask_about_what_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let bank = Teller::of([]);
    let rewards = with_bank(folder.path(), bank.clone());
    credit(&rewards, "a", 1, 10).await;
    let order = out("w", 1, 4);
    let mut slow = std::pin::pin!(rewards.withdraw(&order));
    std::future::poll_fn(|context| {
        assert!(slow.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    // The writer has done what it was asked for: the withdrawal is held.
    rewards.call(|_| Ok(())).await.unwrap();
    let quick = rewards.withdraw(&order).await;
    assert!(matches!(quick, Ok(WithdrawalOutcome::Paid | WithdrawalOutcome::Pending { .. })), "{quick:?}");
    assert!(matches!(slow.await, Ok(WithdrawalOutcome::Paid | WithdrawalOutcome::AlreadyPaid)));
    assert_eq!(rewards.withdraw(&order).await, Ok(WithdrawalOutcome::AlreadyPaid));
    assert_eq!(bank.calls(), 1, "one of them asked");
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn what_nobody_asks_about_again_is_asked_about_until_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let unknown = || std::iter::repeat_n(PayAnswer::Unknown, 3);
    let bank = Teller::of(unknown().chain([
        PayAnswer::Unknown,
        PayAnswer::Refused("closed account".into()),
        PayAnswer::AlreadyPaid,
    ]));
    let mut options = bank_options();
    // One after the other, so that each gets its own answer.
    options.connectors.get_mut("bank").unwrap().concurrency = 1;
    options.readers = 1;
    let rewards = start_with(folder.path(), options, vec![bank.clone()]);
    credit(&rewards, "a", 1, 10).await;
    for id in ["u", "v", "w"] {
        assert!(matches!(rewards.withdraw(&out(id, 1, 3)).await, Ok(WithdrawalOutcome::Pending { .. })));
    }
    assert_eq!(
        rewards.held(HeldFor::Anybody, 60_000, "", 9).await.unwrap(),
        [],
        "their callers may still ask"
    );
    let held = rewards.held(HeldFor::Downstream, 0, "u 1", 9).await.unwrap();
    let held: Vec<_> = held
        .iter()
        .map(|one| (one.withdrawal.id.as_str(), one.payer.as_str(), one.withdrawal.amount))
        .collect();
    assert_eq!(held, [("v", "bank", 3), ("w", "bank", 3)]);
    let options = ResumeOptions { older_than_ms: 0, limit: 2, period_ms: 100 };
    let mut resumer = Resumer::new(rewards.clone(), options);
    let first = resumer.pass().await.unwrap();
    let expected = Resumed { pending: 1, refused: 1, next_after: Some("v 1".into()), ..Resumed::default() };
    assert_eq!(first, expected);
    assert_eq!(resumer.pass().await.unwrap(), Resumed { paid: 1, ..Resumed::default() }, "w is not held up");
    assert_eq!(bank.calls(), 6);
    assert_eq!(balance(&rewards, 1).await, 4);
    // Dropped at any moment and begun anew it ends the last one as well, and ends with the service.
    let ended = async {
        while !rewards.held(HeldFor::Downstream, 0, "", 9).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = resumer.clone().run() => panic!("it goes on while the service is open"),
        ended = tokio::time::timeout(Duration::from_secs(60), ended) => ended.expect("u ends"),
    }
    assert_eq!(rewards.withdraw(&out("u", 1, 3)).await, Ok(WithdrawalOutcome::AlreadyPaid));
    assert_eq!(bank.calls(), 7);
    rewards.close();
    tokio::time::timeout(Duration::from_secs(5), resumer.run()).await.unwrap();
    assert_clean(folder.path());
}
