//! Grants that a downstream pays: time-outs, lost answers, refusals, restarts. It pays each order once.
#![allow(clippy::unwrap_used)]

mod support;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::{assert_clean, badge, badge_options, bytes, event, ledger_path, start_with};
use windfall_connectors::fake::{FakeBook, FakeDownstream, FakeOptions};
use windfall_contract::Clock;
use windfall_contract::accounts::Status;
use windfall_contract::connector::{Connector, PayAnswer, PayOrder};
use windfall_contract::rewards::{GrantReply, Rejection, RetryReason, Rewards};
use windfall_contract::rules::{Budget, BudgetKind};
use windfall_ledger::{ArchiveFilter, Close, Closed, Deed, Ledger, LedgerReader, Operator};
use windfall_reward_service::{ConnectorOptions, Payer, RewardHandle, RewardOptions};

/// Answers what it is told to, then `Paid`; counts its calls.
#[derive(Default)]
struct Script {
    answers: Mutex<VecDeque<PayAnswer>>,
    calls: AtomicUsize,
    hold: Option<Arc<tokio::sync::Semaphore>>,
}

impl Script {
    fn of(answers: impl IntoIterator<Item = PayAnswer>) -> Arc<Self> {
        Arc::new(Self { answers: Mutex::new(answers.into_iter().collect()), ..Self::default() })
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Connector for Script {
    fn name(&self) -> &str {
        "fake"
    }

    async fn pay(&self, _order: PayOrder<'_>) -> PayAnswer {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if let Some(hold) = &self.hold {
            hold.acquire().await.unwrap().forget();
        }
        let told = self.answers.lock().pop_front();
        told.unwrap_or(PayAnswer::Paid)
    }
}

fn budget(total: i64) -> Budget {
    Budget {
        kind: BudgetKind::Sharded,
        activity: "spring-2027".into(),
        scene: "rain".into(),
        bonus_type: "badge".into(),
        total,
        shards: 3,
    }
}

fn options(connector: ConnectorOptions) -> RewardOptions {
    let mut options = badge_options();
    options.connectors.insert("fake".into(), connector);
    options
}

/// Asks until everything is final, as a consumer does.
async fn until_final(rewards: &RewardHandle, events: &[Bytes]) -> Vec<GrantReply> {
    let mut replies = vec![None; events.len()];
    for _ in 0..500 {
        let open: Vec<usize> = (0..events.len()).filter(|at| replies[*at].is_none()).collect();
        if open.is_empty() {
            break;
        }
        let ask: Vec<Bytes> = open.iter().map(|at| events[*at].clone()).collect();
        for (at, reply) in open.iter().zip(rewards.grant_batch("badge", &ask).await) {
            replies[*at] = Some(reply).filter(GrantReply::is_final);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    replies.into_iter().map(|reply| reply.expect("final within 500 rounds")).collect()
}

#[tokio::test]
async fn each_answer_of_a_downstream_leads_where_it_should() {
    let folder = tempfile::tempdir().unwrap();
    let script = Script::of([
        PayAnswer::Unknown,
        PayAnswer::Retry { after_ms: 9 },
        PayAnswer::Busy { after_ms: 8 },
        PayAnswer::AlreadyPaid,
    ]);
    let rewards = start_with(folder.path(), options(ConnectorOptions::default()), vec![script.clone()]);
    rewards.apply_budgets(1, &[budget(1)]).await.unwrap();
    let ask = || async { rewards.grant_batch("badge", &[badge("a")]).await.remove(0) };
    assert!(matches!(ask().await, GrantReply::Retry { reason: RetryReason::DownstreamTimeout, .. }));
    assert_eq!(ask().await, GrantReply::Retry { after_ms: 9, reason: RetryReason::DownstreamRetry });
    assert_eq!(ask().await, GrantReply::Retry { after_ms: 8, reason: RetryReason::DownstreamBusy });
    // All the while its budget is held: nobody else gets it.
    let other = rewards.grant_batch("badge", &[badge("b")]).await.remove(0);
    assert_eq!(other, GrantReply::Rejected(Rejection::BudgetExhausted));
    assert_eq!(ask().await, GrantReply::Credited);
    assert_eq!(ask().await, GrantReply::AlreadyCredited);
    assert_eq!(script.calls(), 4, "not asked for what is credited, nor for what is rejected");
    let conflict = bytes(event("a", 8, "badge", 1));
    assert_eq!(rewards.grant_batch("badge", &[conflict]).await, [GrantReply::Conflict]);
    assert_eq!(script.calls(), 4);
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn a_refusal_is_final_gives_the_budget_back_and_can_be_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let script = Script::of([PayAnswer::Refused("no such badge".into())]);
    let rewards = start_with(folder.path(), options(ConnectorOptions::default()), vec![script.clone()]);
    rewards.apply_budgets(1, &[budget(1)]).await.unwrap();
    let refused = [GrantReply::Rejected(Rejection::DownstreamRefused)];
    assert_eq!(rewards.grant_batch("badge", &[badge("a")]).await, refused);
    assert_eq!(rewards.grant_batch("badge", &[badge("a")]).await, refused);
    assert_eq!(script.calls(), 1);
    let archive = rewards.archive_list(ArchiveFilter::default()).await.unwrap();
    assert!(archive.iter().any(|one| one.reason == "downstream_refused" && one.detail == "no such badge"));
    let state = LedgerReader::open(ledger_path(folder.path())).unwrap().budgets().unwrap().remove(0);
    assert_eq!((state.used, state.reserved), (0, 0));
    assert_eq!(rewards.replay(archive[0].id, "ann").await.unwrap().reply, GrantReply::Credited);
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn a_call_without_answer_times_out_and_a_row_of_them_opens_the_breaker() {
    let folder = tempfile::tempdir().unwrap();
    let script =
        Arc::new(Script { hold: Some(Arc::new(tokio::sync::Semaphore::new(0))), ..Script::default() });
    let hold = script.hold.clone().unwrap();
    let connector = ConnectorOptions {
        timeout_ms: 20,
        concurrency: 1,
        breaker_failures: 3,
        breaker_open_ms: 200,
        ..ConnectorOptions::default()
    };
    let rewards = start_with(folder.path(), options(connector), vec![script.clone()]);
    let events: Vec<Bytes> = (0..6).map(|nth| badge(&format!("order/{nth}"))).collect();
    let replies = rewards.grant_batch("badge", &events).await;
    let of = |wanted: RetryReason| {
        let is = |reply: &&GrantReply| matches!(reply, GrantReply::Retry { reason, .. } if *reason == wanted);
        replies.iter().filter(is).count()
    };
    assert_eq!(of(RetryReason::DownstreamTimeout), 3);
    assert_eq!(of(RetryReason::DownstreamBusy), 3, "the breaker is open, which counts against no event");
    assert_eq!(script.calls(), 3);
    hold.add_permits(1_000);
    assert!(until_final(&rewards, &events).await.iter().all(GrantReply::is_credited));
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn an_order_that_is_being_asked_for_is_not_asked_for_again_until_the_call_ends() {
    let folder = tempfile::tempdir().unwrap();
    let script =
        Arc::new(Script { hold: Some(Arc::new(tokio::sync::Semaphore::new(0))), ..Script::default() });
    let hold = script.hold.clone().unwrap();
    let rewards = start_with(folder.path(), options(ConnectorOptions::default()), vec![script.clone()]);
    let first = tokio::spawn({
        let rewards = rewards.clone();
        async move { rewards.grant_batch("badge", &[badge("a"), badge("a")]).await }
    });
    while script.calls() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let reply = rewards.grant_batch("badge", &[badge("a")]).await.remove(0);
    assert!(matches!(reply, GrantReply::Retry { reason: RetryReason::Busy, .. }), "{reply:?}");
    // Cancelled, it frees the order.
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    hold.add_permits(10);
    assert_eq!(rewards.grant_batch("badge", &[badge("a")]).await, [GrantReply::Credited]);
    assert_eq!(script.calls(), 2);
}

#[tokio::test]
async fn when_the_store_fails_after_a_payment_it_is_asked_again_and_paid_once() {
    let folder = tempfile::tempdir().unwrap();
    let book = folder.path().join("book");
    let fake_options = FakeOptions { rate_per_s: 0, latency_ms: 0, ..FakeOptions::default() };
    let fake = Arc::new(FakeDownstream::open(&book, fake_options, Clock::system()).unwrap());
    let rewards = start_with(folder.path(), options(ConnectorOptions::default()), vec![fake.clone()]);
    rewards.grant_batch("badge", &[badge("first")]).await;
    rewards.close();
    // Reserved and paid, never posted: as if killed right then.
    let pay = PayOrder {
        trade_no: "order spring-2027 a",
        user_id: 7,
        activity: "spring-2027",
        scene: "rain",
        bonus_type: "badge",
        amount: 1,
    };
    assert_eq!(fake.pay(pay).await, PayAnswer::Paid);
    let rewards = start_with(folder.path(), options(ConnectorOptions::default()), vec![fake]);
    assert_eq!(rewards.grant_batch("badge", &[badge("a")]).await, [GrantReply::Credited]);
    rewards.close();
    assert_eq!(FakeBook::read(&book).unwrap().len(), 2);
    assert_clean(folder.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn through_retries_lost_answers_and_restarts_each_order_is_paid_and_credited_once() {
    let folder = tempfile::tempdir().unwrap();
    let book = folder.path().join("book");
    let names: Vec<String> = (0..300).map(|nth| format!("order/{nth}")).collect();
    let events: Vec<Bytes> = names.iter().map(|name| badge(name)).collect();
    let connector = ConnectorOptions { timeout_ms: 20, breaker_open_ms: 20, ..ConnectorOptions::default() };
    for life in 0..3 {
        let fake_options = FakeOptions {
            rate_per_s: 5_000,
            burst: 50,
            latency_ms: 1,
            retry_per_mille: 100,
            paid_then_timeout_per_mille: 100,
            hang_ms: 1_000,
            seed: life,
            ..FakeOptions::default()
        };
        let fake = Arc::new(FakeDownstream::open(&book, fake_options, Clock::system()).unwrap());
        let rewards = start_with(folder.path(), options(connector), vec![fake.clone()]);
        // Two callers with the same orders; the first two lives are cut short.
        let tasks: Vec<_> = (0..2)
            .map(|_| {
                let (rewards, events) = (rewards.clone(), events.clone());
                tokio::spawn(async move { until_final(&rewards, &events).await })
            })
            .collect();
        if life < 2 {
            tokio::time::sleep(Duration::from_millis(40)).await;
            tasks.iter().for_each(tokio::task::JoinHandle::abort);
        }
        for task in tasks {
            if let Ok(replies) = task.await {
                assert!(replies.iter().all(GrantReply::is_credited));
            }
        }
        rewards.close();
    }
    let mut paid: Vec<String> = FakeBook::read(&book).unwrap().into_iter().map(|one| one.trade_no).collect();
    assert_eq!(paid.len(), 300, "no payment twice");
    paid.sort();
    paid.dedup();
    assert_eq!(paid.len(), 300);
    let reader = LedgerReader::open(ledger_path(folder.path())).unwrap();
    let lines: Vec<_> = reader.orders().unwrap().map(Result::unwrap).collect();
    assert_eq!(lines.len(), 300);
    assert!(lines.iter().all(|line| (line.status, line.credits) == (Status::Credited, 1)));
    assert_clean(folder.path());
}

#[tokio::test]
async fn the_book_survives_a_torn_line() {
    let folder = tempfile::tempdir().unwrap();
    let book = folder.path().join("book");
    std::fs::write(&book, "order spring-2027 a\t7\tbadge\t1\nb\t7\tba").unwrap();
    assert_eq!(FakeBook::read(&book).unwrap().len(), 1);
    let fake_options = FakeOptions { rate_per_s: 0, latency_ms: 0, ..FakeOptions::default() };
    let fake = Arc::new(FakeDownstream::open(&book, fake_options, Clock::system()).unwrap());
    let rewards = start_with(folder.path(), options(ConnectorOptions::default()), vec![fake]);
    rewards.grant_batch("badge", &[badge("a"), badge("b")]).await;
    rewards.close();
    let names: Vec<_> = FakeBook::read(&book).unwrap().into_iter().map(|one| one.trade_no).collect();
    assert_eq!(names, ["order spring-2027 a", "order spring-2027 b"]);
    std::fs::write(&book, "nonsense\n").unwrap();
    assert!(FakeBook::read(&book).is_err());
}

#[tokio::test]
async fn above_its_rate_the_fake_is_busy() {
    let folder = tempfile::tempdir().unwrap();
    let now_ms = Arc::new(std::sync::atomic::AtomicU64::new(1_000_000));
    let clock = Arc::clone(&now_ms);
    let fake_options = FakeOptions { rate_per_s: 100, burst: 4, latency_ms: 0, ..FakeOptions::default() };
    let fake = FakeDownstream::open(
        folder.path().join("book"),
        fake_options,
        Clock::from_unix_ms(move || clock.load(Ordering::SeqCst)),
    )
    .unwrap();
    let mut paid = 0;
    for nth in 0..400 {
        let name = format!("order/{nth}");
        let order = PayOrder {
            trade_no: &name,
            user_id: 1,
            activity: "a",
            scene: "s",
            bonus_type: "badge",
            amount: 1,
        };
        match fake.pay(order).await {
            PayAnswer::Paid => paid += 1,
            answer => assert!(matches!(answer, PayAnswer::Busy { .. }), "{answer:?}"),
        }
        now_ms.fetch_add(5, Ordering::SeqCst);
    }
    assert!((200..=205).contains(&paid), "{paid} in 2 s at 100 a second");
}

/// A slow downstream and an impatient caller, which gives each call up: what was paid by then is credited, so
/// that the orders come to an end.
#[tokio::test]
async fn what_was_paid_before_a_call_is_given_up_is_credited() {
    let folder = tempfile::tempdir().unwrap();
    let book = folder.path().join("book");
    let fake_options = FakeOptions { rate_per_s: 0, latency_ms: 20, ..FakeOptions::default() };
    let fake = Arc::new(FakeDownstream::open(&book, fake_options, Clock::system()).unwrap());
    let connector = ConnectorOptions { concurrency: 2, ..ConnectorOptions::default() };
    let rewards = start_with(folder.path(), options(connector), vec![fake]);
    let events: Vec<Bytes> = (0..20).map(|nth| badge(&format!("order/{nth}"))).collect();
    let mut lives = 0;
    while rewards.stats().types.get("badge").is_none_or(|badge| badge.credited < 20) {
        lives += 1;
        assert!(lives < 50, "the same orders are asked for again and again: {:?}", rewards.stats());
        let call = rewards.grant_batch("badge", &events);
        // The whole takes 200 ms.
        tokio::time::timeout(Duration::from_millis(100), call).await.ok();
    }
    assert_eq!(rewards.grant_batch("badge", &events).await, vec![GrantReply::AlreadyCredited; 20]);
    assert_eq!(rewards.stats().types["badge"].credited, 20);
    rewards.close();
    assert_eq!(FakeBook::read(&book).unwrap().len(), 20);
    assert_clean(folder.path());
}

/// Answers with what a test holds ready for each call, so that two calls overlap as they would when the first one
/// was given up.
struct Gated {
    calls: AtomicUsize,
    open: tokio::sync::Semaphore,
    told: [PayAnswer; 3],
}

#[async_trait]
impl Connector for Gated {
    fn name(&self) -> &str {
        "fake"
    }

    async fn pay(&self, _: PayOrder<'_>) -> PayAnswer {
        let nth = self.calls.fetch_add(1, Ordering::SeqCst);
        self.open.acquire().await.unwrap().forget();
        self.told[nth].clone()
    }
}

/// Two answers about one order that contradict each other, stored one after the other. The first call is given up
/// once its answer waits for the writer, so the second one asks again. Between the two answers the budget changes to
/// `total`.
async fn contradicted(
    folder: &std::path::Path,
    told: [PayAnswer; 3],
    total: i64,
) -> (RewardHandle, GrantReply) {
    let change = async |rewards: &RewardHandle| {
        rewards.apply_budgets(1, &[budget(total)]).await.unwrap();
    };
    contradicted_while(folder, told, change).await
}

/// The same, with something else that happens between the two answers.
async fn contradicted_while(
    folder: &std::path::Path,
    told: [PayAnswer; 3],
    meanwhile: impl AsyncFnOnce(&RewardHandle),
) -> (RewardHandle, GrantReply) {
    let gated = Gated { calls: AtomicUsize::new(0), open: tokio::sync::Semaphore::new(0), told };
    let gated = Arc::new(gated);
    let rewards = start_with(folder, options(ConnectorOptions::default()), vec![gated.clone()]);
    rewards.apply_budgets(1, &[budget(1)]).await.unwrap();
    let ask = || {
        let rewards = rewards.clone();
        tokio::spawn(async move { rewards.grant_batch("badge", &[badge("a")]).await.remove(0) })
    };
    let first = ask();
    while gated.calls.load(Ordering::SeqCst) < 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (release, held) = std::sync::mpsc::sync_channel::<()>(0);
    let (began, begun) = tokio::sync::oneshot::channel();
    let holder = tokio::spawn({
        let rewards = rewards.clone();
        async move {
            let call = move |_: &mut Ledger| {
                began.send(()).unwrap();
                held.recv().unwrap();
                Ok(())
            };
            rewards.call(call).await.unwrap();
        }
    });
    begun.await.unwrap();
    gated.open.add_permits(1);
    while rewards.stats().queued_events < 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    let second = ask();
    while rewards.stats().queued_events < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // One transaction reserves for the second call, then stores the first one's answer.
    release.send(()).unwrap();
    holder.await.unwrap();
    while gated.calls.load(Ordering::SeqCst) < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    meanwhile(&rewards).await;
    gated.open.add_permits(2);
    let reply = second.await.unwrap();
    (rewards, reply)
}

#[tokio::test]
async fn paid_after_a_refusal_it_is_credited_from_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let told = [PayAnswer::Refused("no".into()), PayAnswer::Paid, PayAnswer::Unknown];
    let (rewards, reply) = contradicted(folder.path(), told, 1).await;
    assert_eq!(reply, GrantReply::Credited, "the money is out, so the books must say it");
    rewards.close();
    let reader = LedgerReader::open(ledger_path(folder.path())).unwrap();
    assert_eq!(reader.budgets().unwrap().remove(0).used, 1);
    assert_clean(folder.path());
}

#[tokio::test]
async fn paid_after_a_refusal_when_nothing_is_left_it_waits_in_the_archive_for_a_budget() {
    let folder = tempfile::tempdir().unwrap();
    let told = [PayAnswer::Refused("no".into()), PayAnswer::Paid, PayAnswer::AlreadyPaid];
    let (rewards, reply) = contradicted(folder.path(), told, 0).await;
    assert_eq!(reply, GrantReply::Rejected(Rejection::BudgetExhausted));
    let filter = ArchiveFilter { reason: Some("budget_exhausted".into()), ..ArchiveFilter::default() };
    let entry = rewards.archive_list(filter).await.unwrap().remove(0);
    assert!(entry.detail.contains("paid downstream"), "{}", entry.detail);
    assert_clean(folder.path());
    rewards.apply_budgets(1, &[budget(1)]).await.unwrap();
    assert_eq!(rewards.replay(entry.id, "ann").await.unwrap().reply, GrantReply::Credited);
    rewards.close();
    assert_clean(folder.path());
}

/// Whatever room there is: the activity is over, and its books are closed. A person settles it with the payer.
#[tokio::test]
async fn paid_after_a_refusal_in_an_activity_that_was_closed_meanwhile_it_is_archived_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let told = [PayAnswer::Refused("no".into()), PayAnswer::Paid, PayAnswer::Unknown];
    let close = async |rewards: &RewardHandle| {
        let which = Close { activity: "spring-2027", operator: "ann", reason: "over", time_ms: 1 };
        let closed = rewards.call(move |ledger| ledger.close_activity(&which)).await.unwrap();
        assert_eq!(closed, Closed::Now);
    };
    let (rewards, reply) = contradicted_while(folder.path(), told, close).await;
    assert_eq!(reply, GrantReply::Rejected(Rejection::ActivityClosed));
    let filter = ArchiveFilter { reason: Some("activity_closed".into()), ..ArchiveFilter::default() };
    let entry = rewards.archive_list(filter).await.unwrap().remove(0);
    assert!(entry.detail.contains("settle it with the payer"), "{}", entry.detail);
    let again = rewards.replay(entry.id, "ann").await.unwrap().reply;
    assert_eq!(again, GrantReply::Rejected(Rejection::ActivityClosed), "a replay asks no payer");
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn refused_after_it_was_paid_it_stays_credited_and_is_not_archived() {
    let folder = tempfile::tempdir().unwrap();
    let told = [PayAnswer::Paid, PayAnswer::Refused("no".into()), PayAnswer::Unknown];
    let (rewards, reply) = contradicted(folder.path(), told, 1).await;
    assert_eq!(reply, GrantReply::AlreadyCredited);
    assert!(rewards.archive_list(ArchiveFilter::default()).await.unwrap().is_empty());
    rewards.close();
    assert_clean(folder.path());
}

/// One of two that answer alike.
struct Named(&'static str, Arc<Script>);

#[async_trait]
impl Connector for Named {
    fn name(&self) -> &str {
        self.0
    }

    async fn pay(&self, order: PayOrder<'_>) -> PayAnswer {
        self.1.pay(order).await
    }
}

#[tokio::test]
async fn a_payer_that_is_changed_is_not_asked_for_what_another_may_have_paid() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (Script::of([PayAnswer::Unknown, PayAnswer::Unknown]), Script::of([]));
    let own = |name, script: &Arc<Script>| Arc::new(Named(name, Arc::clone(script))) as Arc<dyn Connector>;
    let start = |payer: &str, with_a: bool| {
        let mut options = RewardOptions::default();
        if !payer.is_empty() {
            options.pays.insert("badge".into(), Payer::Connector(payer.into()));
        }
        let both = with_a.then(|| own("a", &a)).into_iter().chain([own("b", &b)]);
        start_with(folder.path(), options, both.collect())
    };
    let unknown =
        |reply: &GrantReply| matches!(reply, GrantReply::Retry { reason, .. } if reason.is_failure());
    let rewards = start("a", true);
    assert!(unknown(&rewards.grant_batch("badge", &[badge("x")]).await[0]));
    rewards.close();
    // b pays by now: it gets what is new, and a is asked for what it may have paid.
    let rewards = start("b", true);
    let replies = rewards.grant_batch("badge", &[badge("x"), badge("y")]).await;
    assert!(unknown(&replies[0]), "{replies:?}");
    assert_eq!(replies[1], GrantReply::Credited);
    assert_eq!((a.calls(), b.calls()), (2, 1));
    rewards.close();
    // a is gone, and b pays, or the ledger.
    for payer in ["b", ""] {
        let rewards = start(payer, false);
        let replies = rewards.grant_batch("badge", &[badge("x"), badge("y")]).await;
        assert!(unknown(&replies[0]), "{replies:?}");
        assert_eq!(replies[1], GrantReply::AlreadyCredited);
        assert_eq!((a.calls(), b.calls()), (2, 1), "nobody else is asked");
        rewards.close();
    }
    // The ledger pays by now, and a is there: it says that it has paid.
    let rewards = start("", true);
    let replies = rewards.grant_batch("badge", &[badge("x"), badge("z")]).await;
    assert_eq!(replies, [GrantReply::Credited, GrantReply::Credited]);
    assert_eq!((a.calls(), b.calls()), (3, 1));
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn what_was_released_is_replayed_with_whom_was_asked() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (Script::of([PayAnswer::Unknown]), Script::of([]));
    let own = |name, script: &Arc<Script>| Arc::new(Named(name, Arc::clone(script))) as Arc<dyn Connector>;
    let start = |payer: &str, with_a: bool| {
        let mut options = RewardOptions::default();
        if !payer.is_empty() {
            options.pays.insert("badge".into(), Payer::Connector(payer.into()));
        }
        let both = with_a.then(|| own("a", &a)).into_iter().chain([own("b", &b)]);
        start_with(folder.path(), options, both.collect())
    };
    // a has paid, and its answer is lost.
    let rewards = start("a", true);
    rewards.grant_batch("badge", &[badge("x")]).await;
    let deed = Deed::Release { activity: String::new(), trade_no: "x".into() };
    let by = |name: &str| Operator { name: name.into(), actor: String::new() };
    let because = ("it never answers".to_owned(), "ticket 7".to_owned());
    let act = rewards.propose_act(deed, because, by("ann"), 60_000).await.unwrap().act;
    rewards.approve_act(act.id, by("bob")).await.unwrap();
    let entry = rewards.archive_list(ArchiveFilter::default()).await.unwrap().remove(0);
    rewards.close();
    for payer in ["b", ""] {
        let rewards = start(payer, false);
        let replayed = rewards.replay(entry.id, "ann").await.unwrap();
        assert!(!replayed.reply.is_final(), "{replayed:?}");
        assert_eq!((a.calls(), b.calls()), (1, 0), "nobody else is asked");
        rewards.close();
    }
    let rewards = start("b", true);
    assert_eq!(rewards.replay(entry.id, "ann").await.unwrap().reply, GrantReply::Credited);
    assert_eq!((a.calls(), b.calls()), (2, 0));
    rewards.close();
    assert_clean(folder.path());
}
