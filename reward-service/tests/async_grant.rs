//! Grants that are taken now and done later: reserve, write, answer; and each death in between.
#![allow(clippy::unwrap_used, clippy::cloned_ref_to_slice_refs)] // a test fails by panicking; one event reads as a list of one

mod support;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use support::{assert_clean, badge, badge_options, bytes, cash, event, id, ledger_path, start, start_with};
use windfall_connectors::fake::{FakeDownstream, FakeOptions};
use windfall_contract::Clock;
use windfall_contract::accounts::Status;
use windfall_contract::rewards::{GrantReply, Rejection, RetryReason, Rewards};
use windfall_contract::rules::{Budget, BudgetKind};
use windfall_ledger::{ArchiveFilter, Awaits, Ledger, LedgerOptions, LedgerReader, Unbudgeted};
use windfall_proto::event::EventRef;
use windfall_reward_service::{
    AckMode, Again, AsyncGrantOptions, AsyncGrantReply, AsyncGrants, EventQueue, NotQueued, ReleaseError,
    RewardHandle, RewardOptions, RewardService, Rewritten, SceneSteps,
};

/// A clock that a test moves.
#[derive(Clone)]
struct Time(Arc<AtomicU64>);

impl Time {
    fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_800_000_000_000)))
    }

    fn pass_ms(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

fn start_at(folder: &Path, time: &Time) -> RewardHandle {
    let ledger = Ledger::open(
        ledger_path(folder),
        &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() },
    )
    .unwrap();
    let now = Arc::clone(&time.0);
    let clock = Clock::from_unix_ms(move || now.load(Ordering::SeqCst));
    RewardService::start(RewardOptions::default(), ledger, vec![], None, clock).unwrap()
}

async fn look(grants: &AsyncGrants, again: Again) -> Rewritten {
    grants.write_again(again, |_, _, _| false).await.unwrap()
}

/// Keeps what it is given, but for the calls that it is told to fail.
#[derive(Default)]
struct Queue {
    hangs: AtomicBool,
    written: Mutex<Vec<(Bytes, bool)>>,
    failures: Mutex<VecDeque<&'static str>>,
}

impl Queue {
    fn written(&self) -> usize {
        self.written.lock().len()
    }
}

#[async_trait]
impl EventQueue for Queue {
    fn check(&self, event: &Bytes) -> Result<(), NotQueued> {
        match EventRef::parse(event) {
            Ok(event) if event.scene == "nowhere" => Err(NotQueued { what: "no route".into(), after_ms: 9 }),
            _ => Ok(()),
        }
    }

    async fn enqueue(&self, events: &[Bytes], strong: bool) -> Vec<Result<(), NotQueued>> {
        if self.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let failure = self.failures.lock().pop_front();
        match failure {
            Some("lost") => {
                // Written, and its answer lost.
                self.written.lock().extend(events.iter().map(|event| (event.clone(), strong)));
            }
            Some(_) => {}
            None => {
                self.written.lock().extend(events.iter().map(|event| (event.clone(), strong)));
                return vec![Ok(()); events.len()];
            }
        }
        vec![Err(NotQueued { what: "no broker".into(), after_ms: 7 }); events.len()]
    }
}

fn later(rewards: &RewardHandle, options: AsyncGrantOptions) -> (AsyncGrants, Arc<Queue>) {
    let queue = Arc::new(Queue::default());
    (AsyncGrants::new(rewards.clone(), queue.clone(), options), queue)
}

async fn budget(rewards: &RewardHandle, total: i64) {
    let budget = Budget {
        kind: BudgetKind::Sharded,
        activity: "spring-2027".into(),
        scene: "rain".into(),
        bonus_type: "cash".into(),
        total,
        shards: 2,
    };
    rewards.apply_budgets(1, &[budget]).await.unwrap();
}

async fn states(rewards: &RewardHandle) -> (i64, i64) {
    let budgets = rewards.read(|reader| reader.budgets()).await.unwrap();
    budgets.first().map_or((0, 0), |one| (one.used, one.reserved))
}

#[tokio::test]
async fn accepted_is_reserved_and_written_and_its_event_credits_once() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    budget(&rewards, 10).await;
    let (grants, queue) = later(&rewards, AsyncGrantOptions::default());
    let (one, other) = (cash("a", 1, 6), cash("b", 2, 5));
    let exhausted = GrantReply::Rejected(Rejection::BudgetExhausted);
    let broken = Bytes::from_static(b"\xff");
    let answers = grants.accept("cash", &[one.clone(), other, broken]).await;
    let malformed = GrantReply::Rejected(Rejection::Malformed);
    assert_eq!(
        answers,
        [AsyncGrantReply::Accepted, AsyncGrantReply::Reply(exhausted), AsyncGrantReply::Reply(malformed)]
    );
    assert_eq!(*queue.written.lock(), [(one.clone(), true)], "what is rejected is not written");
    assert_eq!(states(&rewards).await, (0, 6));
    let archive = rewards.archive_list(ArchiveFilter::default()).await.unwrap();
    assert_eq!(archive.len(), 2);
    // The answer was lost: asked again.
    assert_eq!(grants.accept("cash", &[one.clone()]).await, [AsyncGrantReply::Accepted]);
    assert_eq!(queue.written(), 2);
    let conflict = grants.accept("cash", &[cash("a", 1, 7)]).await;
    assert_eq!(conflict, [AsyncGrantReply::Reply(GrantReply::Conflict)]);
    // Both copies come, at once.
    let copies = [one.clone(), one.clone()];
    let (first, second) =
        tokio::join!(rewards.grant_batch("cash", &copies), rewards.grant_batch("cash", &copies));
    let all = [first, second].concat();
    assert_eq!(all.iter().filter(|reply| **reply == GrantReply::Credited).count(), 1, "{all:?}");
    assert!(all.iter().all(GrantReply::is_credited));
    assert_eq!(grants.accept("cash", &[one]).await, [AsyncGrantReply::Reply(GrantReply::AlreadyCredited)]);
    assert_eq!(queue.written(), 2, "what is credited is not written");
    assert_eq!(states(&rewards).await, (6, 0));
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn what_no_route_takes_reserves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    let (grants, queue) = later(&rewards, AsyncGrantOptions::default());
    let lost = bytes(EventRef { scene: "nowhere", ..event("a", 1, "cash", 6) });
    let answers = grants.accept("cash", &[lost, cash("b", 1, 1)]).await;
    let retry = GrantReply::Retry { after_ms: 9, reason: RetryReason::QueueUnavailable };
    assert_eq!(answers, [AsyncGrantReply::Reply(retry), AsyncGrantReply::Accepted]);
    assert_eq!(queue.written(), 1);
    // What was reserved in this very millisecond is not older than now.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let reserved = rewards.reserved(None, 0, "", 10).await.unwrap();
    assert_eq!(reserved.iter().map(|one| one.order.trade_no.as_str()).collect::<Vec<_>>(), ["b"]);
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn a_queue_that_fails_is_asked_again_and_the_budget_stays_held() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    budget(&rewards, 6).await;
    let (grants, queue) = later(&rewards, AsyncGrantOptions::default());
    queue.failures.lock().extend(["refused", "lost"]);
    let retry =
        AsyncGrantReply::Reply(GrantReply::Retry { after_ms: 7, reason: RetryReason::QueueUnavailable });
    for _ in 0..2 {
        assert_eq!(grants.accept("cash", &[cash("a", 1, 6)]).await, [retry.clone()]);
        assert_eq!(states(&rewards).await, (0, 6));
    }
    assert_eq!(grants.accept("cash", &[cash("a", 1, 6)]).await, [AsyncGrantReply::Accepted]);
    let written: Vec<Bytes> = queue.written.lock().iter().map(|(event, _)| event.clone()).collect();
    assert_eq!(written.len(), 2);
    let replies = rewards.grant_batch("cash", &written).await;
    assert_eq!(replies, [GrantReply::Credited, GrantReply::AlreadyCredited]);
    rewards.close();
    assert_clean(folder.path());
}

/// The answer to a release is lost, and it is asked for again.
#[tokio::test]
async fn a_release_without_an_activity_never_hits_the_order_of_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    let (grants, _) = later(&rewards, AsyncGrantOptions::default());
    let other = support::bytes(EventRef { activity: "autumn-2027", ..support::event("a", 2, "cash", 5) });
    grants.accept("cash", &[cash("a", 1, 6), other, cash("b", 1, 7)]).await;
    let ambiguous =
        |answer| matches!(answer, Err(ReleaseError::Ambiguous { activities, .. }) if activities.len() == 2);
    assert!(ambiguous(rewards.release(None, "a", "ann").await));
    rewards.release(Some("spring-2027"), "a", "ann").await.unwrap();
    assert!(
        ambiguous(rewards.release(None, "a", "ann").await),
        "one has ended, and may be the one that is meant"
    );
    let again = rewards.release(Some("spring-2027"), "a", "ann").await;
    assert!(matches!(again, Err(ReleaseError::NotReserved(_))), "{again:?}");
    rewards.release(None, "b", "ann").await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let left = rewards.reserved(None, 1, "", 10).await.unwrap();
    assert_eq!((left.len(), left[0].order.activity.as_str()), (1, "autumn-2027"));
    rewards.close();
    assert_clean(folder.path());
}

/// The caller of an asynchronous grant died after the reservation, and nobody asked again.
#[tokio::test]
async fn what_never_came_is_listed_and_released_and_comes_late_to_the_archive() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    budget(&rewards, 6).await;
    let (grants, queue) = later(&rewards, AsyncGrantOptions::default());
    queue.failures.lock().extend(["refused"]);
    let event = cash("a", 1, 6);
    grants.accept("cash", &[event.clone()]).await;
    rewards.close();
    // Another process.
    let rewards = start(folder.path());
    assert!(rewards.reserved(None, 60_000, "", 10).await.unwrap().is_empty(), "not for so long");
    tokio::time::sleep(Duration::from_millis(5)).await;
    let listed = rewards.reserved(None, 1, "", 10).await.unwrap();
    assert_eq!((listed.len(), listed[0].awaits), (1, Awaits::Event));
    assert_eq!(listed[0].order.trade_no, "a");
    assert!(matches!(rewards.release(None, "a", " ").await, Err(ReleaseError::NoActor)));
    assert!(matches!(rewards.release(None, "none", "ann").await, Err(ReleaseError::NotReserved(_))));
    rewards.release(None, "a", "ann").await.unwrap();
    assert!(matches!(rewards.release(None, "a", "ann").await, Err(ReleaseError::NotReserved(_))));
    assert_eq!(states(&rewards).await, (0, 0));
    let archive = rewards.archive_list(ArchiveFilter::default()).await.unwrap();
    let entry = &archive[0];
    assert_eq!((archive.len(), entry.reason.as_str()), (1, "released"));
    let audit = entry.replay.as_ref().unwrap();
    assert_eq!((audit.actor.as_str(), audit.outcome.as_str()), ("ann", "released"));
    // The event comes after all.
    let released = GrantReply::Rejected(Rejection::Released);
    assert_eq!(rewards.grant_batch("cash", &[event]).await, [released.clone()]);
    let (grants, _) = later(&rewards, AsyncGrantOptions::default());
    assert_eq!(grants.accept("cash", &[cash("a", 1, 6)]).await, [AsyncGrantReply::Reply(released)]);
    let archive = rewards.archive_list(ArchiveFilter::default()).await.unwrap();
    assert_eq!(archive.len(), 2, "with the event's own bytes");
    assert_eq!(rewards.replay(archive[0].id, "ann").await.unwrap().reply, GrantReply::Credited);
    assert_eq!(rewards.replay(archive[1].id, "ann").await.unwrap().reply, GrantReply::AlreadyCredited);
    rewards.close();
    let order = LedgerReader::open(ledger_path(folder.path())).unwrap().order(id("a")).unwrap().unwrap();
    assert_eq!((order.status, order.amount, order.user_id), (Status::Credited, 6, 1));
    assert_clean(folder.path());
}

#[tokio::test]
async fn weak_steps_go_on_without_and_strong_ones_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    let weak = SceneSteps { store: AckMode::Weak, queue: AckMode::Weak };
    let weak_queue = SceneSteps { queue: AckMode::Weak, ..SceneSteps::default() };
    let mut options = AsyncGrantOptions { weak_store_ms: 50, ..AsyncGrantOptions::default() };
    options.scenes.insert(("spring-2027".into(), "rain".into()), weak);
    options.scenes.insert(("spring-2027".into(), "wheel".into()), weak_queue);
    let (grants, queue) = later(&rewards, options);
    let strong = |name| bytes(EventRef { scene: "cards", ..event(name, 1, "cash", 1) });
    let stored = bytes(EventRef { scene: "wheel", ..event("w", 1, "cash", 1) });
    let answers = grants.accept("cash", &[cash("a", 1, 1), strong("b"), stored.clone()]).await;
    assert_eq!(answers, [AsyncGrantReply::Accepted, AsyncGrantReply::Accepted, AsyncGrantReply::Accepted]);
    let weakly: Vec<Bytes> =
        queue.written.lock().iter().filter(|(_, strong)| !strong).map(|(event, _)| event.clone()).collect();
    assert_eq!(weakly, [stored], "one of both holds each");
    // The ledger hangs.
    let hang = rewards.call(|_| {
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    });
    let event = [cash("c", 1, 1)];
    let slow = grants.accept("cash", &event);
    let (hung, slow) = tokio::join!(hang, slow);
    hung.unwrap();
    assert_eq!(slow, [AsyncGrantReply::Accepted]);
    rewards.close();
    let closed = grants.accept("cash", &[cash("d", 1, 1), strong("e")]).await;
    assert_eq!(closed[0], AsyncGrantReply::Accepted);
    assert!(matches!(
        closed[1],
        AsyncGrantReply::Reply(GrantReply::Retry { reason: RetryReason::StoreUnavailable, .. })
    ));
    assert_eq!(queue.written(), 5, "the strong one is not written");
    // What went on without a reservation is granted as if it had none.
    let written: Vec<Bytes> = queue.written.lock().iter().map(|(event, _)| event.clone()).collect();
    let rewards = start(folder.path());
    let replies = rewards.grant_batch("cash", &written).await;
    assert_eq!(replies, vec![GrantReply::Credited; 5]);
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn a_downstreams_type_is_reserved_now_and_paid_when_its_event_comes() {
    let folder = tempfile::tempdir().unwrap();
    let options = FakeOptions { latency_ms: 0, ..FakeOptions::default() };
    let fake = Arc::new(FakeDownstream::open(folder.path().join("book"), options, Clock::system()).unwrap());
    let rewards = start_with(folder.path(), badge_options(), vec![fake.clone()]);
    let (grants, queue) = later(&rewards, AsyncGrantOptions::default());
    assert_eq!(grants.accept("badge", &[badge("a")]).await, [AsyncGrantReply::Accepted]);
    assert_eq!(fake.payments(), 0);
    let event = queue.written.lock()[0].0.clone();
    assert_eq!(rewards.grant_batch("badge", &[event]).await, [GrantReply::Credited]);
    assert_eq!(fake.payments(), 1);
    assert_eq!(
        grants.accept("badge", &[badge("a")]).await,
        [AsyncGrantReply::Reply(GrantReply::AlreadyCredited)]
    );
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn what_was_reserved_and_lost_is_written_again_and_credits_once() {
    let folder = tempfile::tempdir().unwrap();
    let time = Time::new();
    let rewards = start_at(folder.path(), &time);
    budget(&rewards, 10).await;
    let (grants, queue) = later(&rewards, AsyncGrantOptions::default());
    // Reserved, and its event came to nothing; the caller never asks again.
    queue.failures.lock().extend(["refused"]);
    grants.accept("cash", &[cash("a", 1, 6)]).await;
    assert_eq!((queue.written(), states(&rewards).await), (0, (0, 6)));
    let again = Again { after_ms: 1_000, every_ms: 1, lease_ms: 500 };
    let nothing = Rewritten::default();
    let once = Rewritten { written: 1, ..nothing };
    assert_eq!(look(&grants, again).await, nothing, "it is not old enough");
    time.pass_ms(1_000);
    assert_eq!(look(&grants, again).await, once);
    assert_eq!(look(&grants, again).await, nothing, "once for each due time");
    time.pass_ms(998);
    assert_eq!(look(&grants, again).await, nothing);
    time.pass_ms(2);
    queue.failures.lock().extend(["refused"]);
    assert_eq!(look(&grants, again).await, Rewritten { failed: 1, ..nothing });
    assert_eq!(look(&grants, again).await, nothing, "its lease has not ended");
    time.pass_ms(500);
    assert_eq!(look(&grants, again).await, once);
    let copies: Vec<Bytes> = queue.written.lock().iter().map(|(event, _)| event.clone()).collect();
    let replies = rewards.grant_batch("cash", &copies).await;
    assert_eq!(replies, [GrantReply::Credited, GrantReply::AlreadyCredited]);
    assert_eq!(states(&rewards).await, (6, 0));
    time.pass_ms(10_000);
    assert_eq!(look(&grants, again).await, nothing);
    rewards.close();
    assert_clean(folder.path());
}

/// A process that dies between taking an order and writing it, and one that dies before it has noted that: the order is due
/// again when its lease ends.
#[tokio::test]
async fn what_a_dead_process_has_taken_is_written_when_its_lease_ends() {
    let folder = tempfile::tempdir().unwrap();
    let time = Time::new();
    let rewards = start_at(folder.path(), &time);
    budget(&rewards, 10).await;
    let (grants, queue) = later(&rewards, AsyncGrantOptions::default());
    queue.failures.lock().extend(["refused"]);
    grants.accept("cash", &[cash("a", 1, 6)]).await;
    time.pass_ms(1_000);
    let again = Again { after_ms: 1_000, every_ms: 1, lease_ms: 500 };
    queue.hangs.store(true, Ordering::SeqCst);
    let dying = tokio::time::timeout(Duration::from_millis(300), look(&grants, again)).await;
    assert!(dying.is_err(), "it has taken the order, and ends while the queue has it");
    rewards.close();
    queue.hangs.store(false, Ordering::SeqCst);
    let rewards = start_at(folder.path(), &time);
    let grants = AsyncGrants::new(rewards.clone(), queue.clone(), AsyncGrantOptions::default());
    assert_eq!(look(&grants, again).await, Rewritten::default(), "it may still be written");
    time.pass_ms(500);
    assert_eq!(look(&grants, again).await, Rewritten { written: 1, ..Rewritten::default() });
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn a_queue_that_is_behind_holds_back_its_own_orders_and_not_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let time = Time::new();
    let rewards = start_at(folder.path(), &time);
    budget(&rewards, 10).await;
    let (grants, queue) = later(&rewards, AsyncGrantOptions::default());
    queue.failures.lock().extend(["refused", "refused"]);
    grants.accept("cash", &[cash("a", 1, 6)]).await;
    grants.accept("coin", &[bytes(event("b", 1, "coin", 1))]).await;
    time.pass_ms(1_000);
    let again = Again { after_ms: 1_000, every_ms: 1, lease_ms: 500 };
    let cash_is_behind = |_: &str, _: &str, bonus_type: &str| bonus_type == "cash";
    let looked = grants.write_again(again, cash_is_behind).await.unwrap();
    assert_eq!(looked, Rewritten { written: 1, behind: 1, ..Rewritten::default() });
    assert_eq!(EventRef::parse(&queue.written.lock()[0].0).unwrap().trade_no, "b");
    // 1,000 ms after it was due, whatever waits in its queue; the other one is due a second time by then.
    time.pass_ms(1_000);
    let looked = grants.write_again(again, cash_is_behind).await.unwrap();
    assert_eq!(looked, Rewritten { written: 2, behind: 1, ..Rewritten::default() });
    rewards.close();
}
