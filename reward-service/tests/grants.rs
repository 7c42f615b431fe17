//! Grants that the ledger pays, the archive, and callers that come at once.
#![allow(clippy::unwrap_used)]

mod support;

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use support::{assert_clean, bytes, cash, event, id, ledger_path, start, start_with};
use windfall_connectors::fake::{FakeDownstream, FakeOptions};
use windfall_contract::Clock;
use windfall_contract::rewards::{Failed, GrantReply, Rejection, RetryReason, Rewards};
use windfall_contract::rules::{Budget, BudgetKind};
use windfall_ledger::{
    ArchiveFilter, BudgetSet, BudgetsApplied, Ledger, LedgerOptions, LedgerReader, OrderId, Unbudgeted,
};
use windfall_proto::event::EventRef;
use windfall_reward_service::{
    Payer, ReplayError, RewardHandle, RewardOptions, RewardService, RulesInForce, StartError,
};

fn budget(total: i64, shards: u32) -> Budget {
    Budget {
        kind: BudgetKind::Sharded,
        activity: "spring-2027".into(),
        scene: "rain".into(),
        bonus_type: "cash".into(),
        total,
        shards,
    }
}

#[tokio::test]
async fn a_conflict_is_archived_and_an_order_credits_once() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    let events = [cash("a", 1, 5), cash("a", 1, 5), cash("a", 2, 5), cash("b", 2, 7)];
    let first =
        [GrantReply::Credited, GrantReply::AlreadyCredited, GrantReply::Conflict, GrantReply::Credited];
    assert_eq!(rewards.grant_batch("cash", &events).await, first);
    let again = [
        GrantReply::AlreadyCredited,
        GrantReply::AlreadyCredited,
        GrantReply::Conflict,
        GrantReply::AlreadyCredited,
    ];
    assert_eq!(rewards.grant_batch("cash", &events).await, again);
    let archive = rewards.archive_list(ArchiveFilter::default()).await.unwrap();
    assert_eq!(archive.len(), 1, "asked twice, archived once");
    assert_eq!((archive[0].reason.as_str(), archive[0].trade_no.as_deref()), ("conflict", Some("a")));
    assert_eq!(archive[0].payload, events[2]);
    for named in ["user 1, activity spring-2027, scene rain, type cash, amount 5", "this event has user 2,"] {
        assert!(archive[0].detail.contains(named), "{}", archive[0].detail);
    }
    let stats = rewards.stats();
    let cash = stats.types["cash"];
    assert_eq!((cash.credited, cash.already_credited, cash.conflict, stats.archived), (2, 4, 2, 1));
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn the_time_from_send_to_credit_counts_once_per_order_and_is_never_negative() {
    const NOW_MS: i64 = 1_800_000_000_000;
    let folder = tempfile::tempdir().unwrap();
    let options = LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() };
    let ledger = Ledger::open(ledger_path(folder.path()), &options).unwrap();
    let clock = Clock::from_unix_ms(|| NOW_MS.unsigned_abs());
    let rewards = RewardService::start(RewardOptions::default(), ledger, vec![], None, clock).unwrap();
    let sent = |trade_no: &'static str, first_sent_ms: i64| {
        bytes(EventRef { first_sent_ms, ..event(trade_no, 7, "cash", 5) })
    };
    // In one batch twice; by a clock that is ahead; by nobody who says when; and for another user, which is a conflict.
    let other = bytes(EventRef { first_sent_ms: NOW_MS - 70, ..event("a", 8, "cash", 5) });
    let events =
        [sent("a", NOW_MS - 40), sent("a", NOW_MS - 40), sent("b", NOW_MS + 5_000), sent("c", 0), other];
    let first = rewards.grant_batch("cash", &events).await;
    assert_eq!(first.iter().filter(|reply| **reply == GrantReply::Credited).count(), 3);
    // A record that is delivered again, and a copy that its caller has sent later.
    rewards.grant_batch("cash", &events).await;
    assert_eq!(rewards.grant_batch("cash", &[sent("a", NOW_MS - 9)]).await, [GrantReply::AlreadyCredited]);
    let times = rewards.stats().types["cash"].send_to_credit;
    assert_eq!((times.count(), times.sum_ms, times.buckets[0], times.buckets[5]), (2, 40, 1, 1));
    assert_eq!(rewards.send_to_credit(), times, "over all types");
    // Two consumers that hold copies of it ask at once.
    let copies = [sent("d", NOW_MS - 3)];
    let (one, other) =
        tokio::join!(rewards.grant_batch("cash", &copies), rewards.grant_batch("cash", &copies));
    assert!([one, other].concat().contains(&GrantReply::Credited));
    let times = rewards.send_to_credit();
    assert_eq!((times.count(), times.sum_ms), (3, 43));
    rewards.close();
    assert_clean(folder.path());
}

/// A second reward under a number that is taken was answered as credited before, and nobody ever heard of it again. In another
/// activity it is another reward, which its payer is asked for under a key of its own.
#[tokio::test]
async fn the_same_number_in_another_scene_is_archived_on_every_path_and_in_another_activity_granted() {
    let folder = tempfile::tempdir().unwrap();
    let calm = FakeOptions { retry_per_mille: 0, paid_then_timeout_per_mille: 0, ..FakeOptions::default() };
    let book = folder.path().join("badges.book");
    let fake = Arc::new(FakeDownstream::open(book, calm, Clock::system()).unwrap());
    let rewards = start_with(folder.path(), support::badge_options(), vec![Arc::clone(&fake) as _]);
    let twice = |bonus_type: &'static str, trade_no: &'static str| {
        let own = event(trade_no, 7, bonus_type, 1);
        [own, EventRef { scene: "cards", ..own }, EventRef { activity: "autumn-2027", ..own }].map(bytes)
    };
    let once = [GrantReply::Credited, GrantReply::Conflict, GrantReply::Credited];
    let again = [GrantReply::AlreadyCredited, GrantReply::Conflict, GrantReply::AlreadyCredited];
    for (bonus_type, trade_no) in [("cash", "c"), ("badge", "b")] {
        let [own, cards, autumn] = twice(bonus_type, trade_no);
        let mut got = Vec::new();
        for one in [&own, &cards, &autumn] {
            got.extend(rewards.grant_batch(bonus_type, std::slice::from_ref(one)).await);
        }
        assert_eq!(got, once, "{bonus_type}");
        // A caller that gives the second reward up must not have it dropped for the first one's credit (I2).
        let failed = Failed { payload: cards, rejection: Rejection::MaxFailures, detail: "given up".into() };
        rewards.archive(&[failed]).await.unwrap();
    }
    assert_eq!(rewards.grant_batch("cash", &twice("cash", "c")).await, again, "in one batch");
    let archive = rewards.archive_list(ArchiveFilter::default()).await.unwrap();
    let reasons: Vec<_> = archive.iter().map(|one| one.reason.as_str()).collect();
    assert_eq!(reasons, ["conflict", "max_failures", "conflict", "max_failures"]);
    assert!(archive[0].detail.contains("scene cards"), "{}", archive[0].detail);
    // A replay does not credit it either, and a legitimate repeat stays one.
    assert_eq!(rewards.replay(archive[0].id, "ann").await.unwrap().reply, GrantReply::Conflict);
    let [own, ..] = twice("cash", "c");
    assert_eq!(rewards.grant_batch("cash", &[own]).await, [GrantReply::AlreadyCredited]);
    assert_eq!(rewards.stats().types["cash"].conflict, 3);
    let counted = ["cash", "badge"].map(|name| rewards.stats().types[name].send_to_credit.count());
    assert_eq!(counted, [2, 2], "whoever pays, a repeat and a conflict are no credit");
    assert_eq!(fake.payments(), 2, "once in each activity, and nothing of the other scene");
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn bytes_that_are_no_event_of_the_type_are_rejected_and_archived() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    let long = "x".repeat(2048);
    let bad = [
        Bytes::from_static(b"\xff\xff"),
        Bytes::new(),
        cash("", 1, 5),
        cash(&long, 1, 5),
        cash("a\nb", 1, 5),
        cash("zero", 1, 0),
        cash("negative", 1, -5),
        cash("too-much", 1, i64::MAX),
        bytes(event("other-type", 1, "coin", 5)),
        bytes(windfall_proto::event::EventRef { activity: "", ..event("no-activity", 1, "cash", 5) }),
        cash("nobody", 0, 5),
        cash("less-than-nobody", i64::MIN, 5),
    ];
    let mut events = bad.to_vec();
    events.insert(5, cash("good", 1, 5));
    let replies = rewards.grant_batch("cash", &events).await;
    for (at, reply) in replies.iter().enumerate() {
        let expected =
            if at == 5 { GrantReply::Credited } else { GrantReply::Rejected(Rejection::Malformed) };
        assert_eq!(*reply, expected, "{at}");
    }
    let archive = rewards.archive_list(ArchiveFilter::default()).await.unwrap();
    let kept: Vec<_> = archive.iter().map(|one| Bytes::from(one.payload.clone())).collect();
    assert_eq!(kept, bad);
    assert!(archive[7].detail.contains("amount"), "{}", archive[7].detail);
    assert!(archive[10].detail.contains("user_id is 0"), "{}", archive[10].detail);
    assert_eq!(archive[11].trade_no.as_deref(), Some("less-than-nobody"));
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn an_event_of_another_app_is_archived_and_credited_when_the_app_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let apps = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let mut options = RewardOptions { apps: apps(&["app"]), ..support::badge_options() };
    let book = folder.path().join("badges.book");
    let fake = || Arc::new(FakeDownstream::open(&book, FakeOptions::default(), Clock::system()).unwrap());
    let badges = fake();
    let rewards = start_with(folder.path(), options.clone(), vec![Arc::clone(&badges) as _]);
    let of = |app_id, trade_no, bonus_type| bytes(EventRef { app_id, ..event(trade_no, 7, bonus_type, 5) });
    let foreign = GrantReply::Rejected(Rejection::ForeignApp);
    let events =
        [of("app", "a", "cash"), of("other", "b", "cash"), of("", "c", "cash"), of("App", "d", "cash")];
    let first = [GrantReply::Credited, foreign.clone(), GrantReply::Credited, foreign.clone()];
    assert_eq!(rewards.grant_batch("cash", &events).await, first);
    assert_eq!(
        rewards.grant_batch("badge", &[of("other", "e", "badge")]).await,
        std::slice::from_ref(&foreign)
    );
    assert_eq!(badges.payments(), 0);
    let filter = ArchiveFilter { reason: Some("foreign_app".into()), ..ArchiveFilter::default() };
    let archive = rewards.archive_list(filter).await.unwrap();
    let numbers: Vec<_> = archive.iter().map(|one| one.trade_no.as_deref().unwrap()).collect();
    assert_eq!(numbers, ["b", "d", "e"]);
    assert!(archive[0].detail.contains("\"other\""), "{}", archive[0].detail);
    assert_eq!(
        rewards.replay(archive[0].id, "ann").await.unwrap().reply,
        foreign,
        "a replay changes no option"
    );
    assert_eq!(
        (rewards.stats().types["cash"].foreign_app, rewards.stats().types["badge"].foreign_app),
        (3, 1)
    );
    rewards.close();
    drop((rewards, badges));
    options.apps = apps(&["app", "other"]);
    let badges = fake();
    let rewards = start_with(folder.path(), options, vec![Arc::clone(&badges) as _]);
    assert_eq!(rewards.replay(archive[0].id, "ann").await.unwrap().reply, GrantReply::Credited);
    assert_eq!(rewards.replay(archive[1].id, "ann").await.unwrap().reply, foreign);
    assert_eq!(rewards.replay(archive[2].id, "ann").await.unwrap().reply, GrantReply::Credited);
    assert_eq!(badges.payments(), 1);
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn what_no_budget_covers_is_archived_and_a_later_budget_and_a_replay_credit_it() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(ledger_path(folder.path()), &LedgerOptions::default()).unwrap();
    let book = folder.path().join("badges.book");
    let fake = Arc::new(FakeDownstream::open(book, FakeOptions::default(), Clock::system()).unwrap());
    let connectors = vec![Arc::clone(&fake) as _];
    let rewards =
        RewardService::start(support::badge_options(), ledger, connectors, None, Clock::system()).unwrap();
    let refused = [GrantReply::Rejected(Rejection::Unbudgeted)];
    let (cash, badge) = ([cash("a", 1, 5)], [support::badge("b")]);
    for _ in 0..2 {
        assert_eq!(rewards.grant_batch("cash", &cash).await, refused);
        assert_eq!(rewards.grant_batch("badge", &badge).await, refused);
    }
    assert_eq!(fake.payments(), 0);
    let archive = rewards.archive_list(ArchiveFilter::default()).await.unwrap();
    let reasons: Vec<_> = archive.iter().map(|one| one.reason.as_str()).collect();
    assert_eq!(reasons, ["unbudgeted", "unbudgeted"], "asked twice, archived once");
    assert!(archive[0].detail.contains("activity spring-2027, scene rain, type cash"), "{archive:?}");
    assert_eq!(rewards.replay(archive[0].id, "ann").await.unwrap().reply, refused[0]);
    let badges = Budget { bonus_type: "badge".into(), ..budget(1, 1) };
    rewards.apply_budgets(1, &[budget(5, 1), badges]).await.unwrap();
    for one in &archive {
        assert_eq!(rewards.replay(one.id, "ann").await.unwrap().reply, GrantReply::Credited);
        assert_eq!(rewards.replay(one.id, "ann").await.unwrap().reply, GrantReply::AlreadyCredited);
    }
    assert_eq!((fake.payments(), rewards.stats().types["cash"].unbudgeted), (1, 3));
    rewards.close();
    assert_clean(folder.path());
}

/// A process that starts while etcd is away runs a copy of the rules, in which the fuse is still closed.
#[tokio::test]
async fn a_process_with_older_rules_than_the_ledger_has_seen_grants_nothing_until_it_has_newer_ones() {
    let folder = tempfile::tempdir().unwrap();
    let book = folder.path().join("badges.book");
    let fake = Arc::new(FakeDownstream::open(book, FakeOptions::default(), Clock::system()).unwrap());
    let rewards = start_with(folder.path(), support::badge_options(), vec![Arc::clone(&fake) as _]);
    // Another process has run version 5.
    rewards.call(|ledger| ledger.note_rules_version(0, 5)).await.unwrap();
    let version = Arc::new(AtomicU64::new(3));
    let own = Arc::clone(&version);
    rewards.follow_rules(Box::new(move || RulesInForce {
        version: own.load(Ordering::SeqCst),
        ..RulesInForce::default()
    }));
    let (cash, badge) = ([cash("a", 1, 5), cash("b", 2, 5)], [support::badge("c")]);
    let later = GrantReply::Retry { after_ms: 1_000, reason: RetryReason::OldRules };
    assert!(!RetryReason::OldRules.is_failure(), "it never archives an event");
    for _ in 0..2 {
        assert_eq!(rewards.grant_batch("cash", &cash).await, [later.clone(), later.clone()]);
        assert_eq!(rewards.grant_batch("badge", &badge).await, std::slice::from_ref(&later));
    }
    assert_eq!(fake.payments(), 0, "no downstream is asked either");
    assert_eq!(rewards.behind_rules(), Some((3, 5)));
    let stats = rewards.stats();
    assert_eq!((stats.rules_version, stats.is_behind_rules), (5, true));
    assert_eq!((stats.types["cash"].retry_old_rules, stats.types["cash"].retry_own), (4, 0));
    assert!(rewards.archive_list(ArchiveFilter::default()).await.unwrap().is_empty());
    let left = rewards.read(|reader| Ok((reader.order(id("a"))?, reader.order(id("c"))?))).await.unwrap();
    assert_eq!(left, (None, None), "nothing is stored");
    // Its budgets are not taken either.
    let stale = BudgetsApplied::Stale { newest: 5 };
    assert_eq!(rewards.apply_budgets(3, &[budget(1, 1)]).await.unwrap(), stale);
    // It takes over the newer rules.
    version.store(5, Ordering::SeqCst);
    assert_eq!(rewards.note_rules_version(3, 5).await.unwrap(), 5);
    assert_eq!(rewards.behind_rules(), None);
    assert!(rewards.grant_batch("cash", &cash).await.iter().all(|reply| *reply == GrantReply::Credited));
    assert_eq!(rewards.grant_batch("badge", &badge).await, [GrantReply::Credited]);
    // It notes newer ones for the others; what it does not know of is never lowered by it.
    version.store(7, Ordering::SeqCst);
    assert_eq!(rewards.note_rules_version(5, 7).await.unwrap(), 7);
    assert_eq!(rewards.note_rules_version(5, 6).await.unwrap(), 7);
    assert!(rewards.grant_batch("cash", &cash).await.iter().all(GrantReply::is_credited));
    assert_eq!(rewards.call(|ledger| ledger.transact(|tx| tx.rules_version())).await.unwrap(), 7);
    version.store(6, Ordering::SeqCst);
    assert_eq!(rewards.grant_batch("cash", &cash).await, [later.clone(), later]);
    // Restored on purpose.
    rewards.call(|ledger| ledger.transact(|tx| tx.replace_rules_version(6))).await.unwrap();
    assert!(rewards.grant_batch("cash", &cash).await.iter().all(GrantReply::is_credited));
    assert_eq!(rewards.behind_rules(), None);
    rewards.close();
    assert_clean(folder.path());
}

/// Between taking over new rules and setting their budgets, an event of a new activity was refused as unbudgeted, for good.
#[tokio::test]
async fn events_of_a_new_activity_wait_until_its_budget_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(ledger_path(folder.path()), &LedgerOptions::default()).unwrap();
    let book = folder.path().join("badges.book");
    let fake = Arc::new(FakeDownstream::open(book, FakeOptions::default(), Clock::system()).unwrap());
    let connectors = vec![Arc::clone(&fake) as _];
    let rewards =
        RewardService::start(support::badge_options(), ledger, connectors, None, Clock::system()).unwrap();
    let version = Arc::new(AtomicU64::new(1));
    let own = Arc::clone(&version);
    rewards.follow_rules(Box::new(move || RulesInForce {
        version: own.load(Ordering::SeqCst),
        ..RulesInForce::default()
    }));
    let later = GrantReply::Retry { after_ms: 100, reason: RetryReason::OldRules };
    assert_eq!(rewards.grant_batch("cash", &[cash("a", 1, 5)]).await, std::slice::from_ref(&later));
    rewards.apply_budgets(1, &[budget(100, 1)]).await.unwrap();
    assert_eq!(rewards.grant_batch("cash", &[cash("a", 1, 5)]).await, [GrantReply::Credited]);
    // Version 2 brings a budget, which waits in the queue behind these.
    version.store(2, Ordering::SeqCst);
    let new = |bonus_type: &'static str, trade_no: &'static str| {
        [bytes(EventRef { activity: "autumn-2027", ..event(trade_no, 7, bonus_type, 1) })]
    };
    for _ in 0..2 {
        assert_eq!(rewards.grant_batch("cash", &new("cash", "b")).await, std::slice::from_ref(&later));
        assert_eq!(rewards.grant_batch("badge", &new("badge", "c")).await, std::slice::from_ref(&later));
    }
    assert_eq!(fake.payments(), 0);
    let seen = || rewards.call(|ledger| ledger.transact(|tx| tx.rules_version()));
    assert_eq!(seen().await.unwrap(), 1, "others grant by the rules whose budgets are set");
    assert!(rewards.archive_list(ArchiveFilter::default()).await.unwrap().is_empty());
    let left = rewards.read(|reader| Ok((reader.order(id("b"))?, reader.order(id("c"))?))).await.unwrap();
    assert_eq!(left, (None, None), "nothing is stored");
    let budgets = ["cash", "badge"].map(|bonus_type| Budget {
        activity: "autumn-2027".into(),
        bonus_type: bonus_type.into(),
        ..budget(100, 1)
    });
    assert!(rewards.apply_budgets(2, &budgets).await.unwrap().is_set());
    assert_eq!(rewards.grant_batch("cash", &new("cash", "b")).await, [GrantReply::Credited]);
    assert_eq!(rewards.grant_batch("badge", &new("badge", "c")).await, [GrantReply::Credited]);
    assert_eq!(seen().await.unwrap(), 2);
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn caps_are_kept_and_changed_while_grants_run() {
    let folder = tempfile::tempdir().unwrap();
    let book = folder.path().join("badges.book");
    let fake = Arc::new(FakeDownstream::open(book, FakeOptions::default(), Clock::system()).unwrap());
    let rewards = start_with(folder.path(), support::badge_options(), vec![Arc::clone(&fake) as _]);
    let rules = Arc::new(Mutex::new(RulesInForce { version: 1, order_caps: [("cash".into(), 10)].into() }));
    let own = Arc::clone(&rules);
    rewards.follow_rules(Box::new(move || own.lock().clone()));
    let caps = async |version: u64, cash: i64, badge: i64| {
        let set = |bonus_type, total| BudgetSet { activity: "*", scene: "*", bonus_type, total, shards: 1 };
        rewards
            .call(move |ledger| ledger.apply_budgets(version, &[set("cash", cash), set("badge", badge)]))
            .await?;
        rewards.note_rules_version(version, version).await
    };
    caps(1, 25, 1).await.unwrap();
    let over_order = GrantReply::Rejected(Rejection::OverOrderCap);
    let over_type = GrantReply::Rejected(Rejection::OverTypeCap);
    let cash = [cash("a", 1, 11), cash("b", 1, 10), cash("c", 1, 10), cash("d", 1, 6)];
    let first = [over_order.clone(), GrantReply::Credited, GrantReply::Credited, over_type.clone()];
    assert_eq!(rewards.grant_batch("cash", &cash).await, first);
    assert_eq!(rewards.grant_batch("badge", &[support::badge("e")]).await, [GrantReply::Credited]);
    assert_eq!(rewards.grant_batch("badge", &[support::badge("f")]).await, [over_type]);
    assert_eq!(fake.payments(), 1, "what is over the cap is not asked of the downstream");
    let archive = rewards.archive_list(ArchiveFilter::default()).await.unwrap();
    let reasons: Vec<_> = archive.iter().map(|one| one.reason.as_str()).collect();
    assert_eq!(reasons, ["over_order_cap", "over_type_cap", "over_type_cap"]);
    assert!(archive[0].detail.contains("amount 11"), "{}", archive[0].detail);
    let stats = rewards.stats();
    assert_eq!((stats.types["cash"].over_order_cap, stats.types["cash"].over_type_cap), (1, 1));
    assert_eq!(stats.types["badge"].over_type_cap, 1);
    // Both are raised by newer rules, while the service runs.
    *rules.lock() = RulesInForce { version: 2, order_caps: [("cash".into(), 11)].into() };
    caps(2, 37, 2).await.unwrap();
    for one in &archive {
        assert_eq!(rewards.replay(one.id, "ann").await.unwrap().reply, GrantReply::Credited, "{one:?}");
    }
    assert_eq!(fake.payments(), 2);
    // A cap that is lowered takes nothing back: a repeat is what it was.
    *rules.lock() = RulesInForce { version: 3, order_caps: [("cash".into(), 1)].into() };
    rewards.note_rules_version(2, 3).await.unwrap();
    assert!(rewards.grant_batch("cash", &cash).await.iter().all(|one| *one == GrantReply::AlreadyCredited));
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn a_type_that_nobody_pays_is_rejected_and_archived() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = RewardOptions { default_pays: Payer::Nobody, ..RewardOptions::default() };
    options.pays.insert("cash".into(), Payer::Ledger);
    let rewards = start_with(folder.path(), options, vec![]);
    let coin = bytes(event("a", 1, "coin", 5));
    let unknown = [GrantReply::Rejected(Rejection::UnknownType)];
    assert_eq!(rewards.grant_batch("coin", std::slice::from_ref(&coin)).await, unknown);
    assert_eq!(rewards.grant_batch("cash", &[cash("b", 1, 5)]).await, [GrantReply::Credited]);
    let archive = rewards.archive_list(ArchiveFilter::default()).await.unwrap();
    assert_eq!((archive.len(), archive[0].reason.as_str()), (1, "unknown_type"));
}

#[test]
fn a_connector_that_is_not_there_is_an_error_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(
        ledger_path(folder.path()),
        &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() },
    )
    .unwrap();
    let options = support::badge_options();
    let error = RewardService::start(options, ledger, vec![], None, Clock::system()).map(|_| ());
    assert!(matches!(error, Err(StartError::UnknownConnector { .. })), "{error:?}");
}

/// I4 at every instant: a reader looks while many callers grant, and after each change of the total.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_budget_is_never_over_while_many_grant_and_the_total_moves() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    rewards.apply_budgets(1, &[budget(1_000, 8)]).await.unwrap();
    let mut tasks = Vec::new();
    for caller in 0..8 {
        let rewards = rewards.clone();
        tasks.push(tokio::spawn(async move {
            let mut credited = 0;
            for round in 0..20 {
                // Half of the orders are asked by another caller as well.
                let events: Vec<_> = (0..20)
                    .map(|nth| {
                        let owner = if nth % 2 == 0 { caller / 2 } else { caller + 100 };
                        cash(&format!("{owner}/{round}/{nth}"), 1 + nth, 1 + nth % 3)
                    })
                    .collect();
                for (event, reply) in events.iter().zip(rewards.grant_batch("cash", &events).await) {
                    if reply == GrantReply::Credited {
                        credited += windfall_proto::event::EventRef::parse(event).unwrap().amount;
                    }
                }
            }
            credited
        }));
    }
    let path = ledger_path(folder.path());
    for (total, shards) in [(1_500, 1), (900, 64), (2_000, 5), (1_200, 3)] {
        rewards.apply_budgets(1, &[budget(total, shards)]).await.unwrap();
        for _ in 0..5 {
            let state = LedgerReader::open(&path).unwrap().budgets().unwrap().remove(0);
            assert!(state.used + state.reserved <= state.total.unwrap(), "{state:?}");
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    }
    let mut credited = 0;
    for task in tasks {
        credited += task.await.unwrap();
    }
    rewards.close();
    let state = LedgerReader::open(&path).unwrap().budgets().unwrap().remove(0);
    assert_eq!(state.used, credited, "what was answered is what is stored");
    assert_clean(folder.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_order_asked_by_many_at_once_credits_once() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    for round in 0..20 {
        let mut tasks = Vec::new();
        for _ in 0..8 {
            let (rewards, event) = (rewards.clone(), cash(&format!("order/{round}"), 1, 5));
            tasks.push(tokio::spawn(async move { rewards.grant_batch("cash", &[event]).await.remove(0) }));
        }
        let mut credited = 0;
        for task in tasks {
            match task.await.unwrap() {
                GrantReply::Credited => credited += 1,
                reply => assert_eq!(reply, GrantReply::AlreadyCredited),
            }
        }
        assert_eq!(credited, 1);
    }
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn the_observer_hears_of_every_credit_after_it_is_durable() {
    let folder = tempfile::tempdir().unwrap();
    let path = ledger_path(folder.path());
    let ledger =
        Ledger::open(&path, &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() })
            .unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&heard);
    let observer = move |credited: &[(i64, OrderId<'_>)]| {
        let reader = LedgerReader::open(&path).unwrap();
        for (user_id, order) in credited {
            assert_eq!(reader.order(*order).unwrap().unwrap().user_id, *user_id);
            sink.lock().push((*user_id, order.trade_no.to_owned()));
        }
    };
    let rewards = RewardService::start(
        RewardOptions::default(),
        ledger,
        vec![],
        Some(Arc::new(observer)),
        Clock::system(),
    )
    .unwrap();
    rewards.grant_batch("cash", &[cash("a", 1, 5), cash("a", 2, 5), cash("b", 2, 5)]).await;
    rewards.grant_batch("cash", &[cash("a", 1, 5)]).await;
    rewards.close();
    let expected = [(1, "a".to_owned()), (2, "b".to_owned()), (1, "a".to_owned())];
    assert_eq!(*heard.lock(), expected, "what was credited before is told again: a token may still be there");
}

#[tokio::test]
async fn a_full_store_answers_retry_and_takes_the_same_batch_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = ledger_path(folder.path());
    let small = LedgerOptions {
        max_bytes: Some(300 * 1024),
        unbudgeted: Unbudgeted::Allow,
        ..LedgerOptions::default()
    };
    let ledger = Ledger::open(&path, &small).unwrap();
    let rewards =
        RewardService::start(RewardOptions::default(), ledger, vec![], None, Clock::system()).unwrap();
    let batches: Vec<Vec<Bytes>> = (0..20)
        .map(|batch| (0..200).map(|nth| cash(&format!("order/{batch:02}/{nth:03}"), 1 + nth, 1)).collect())
        .collect();
    let mut retried = 0;
    for batch in &batches {
        let replies = rewards.grant_batch("cash", batch).await;
        let retry = |reply: &GrantReply| {
            matches!(reply, GrantReply::Retry { reason: RetryReason::StoreUnavailable, .. })
        };
        let count = replies.iter().filter(|reply| retry(reply)).count();
        assert!(count == 0 || count == 200, "all of a batch or nothing");
        retried += count;
    }
    assert!(retried > 0);
    let failed = [Failed {
        payload: vec![0_u8; 100_000].into(),
        rejection: Rejection::Malformed,
        detail: "large".into(),
    }];
    assert!(rewards.archive(&failed).await.is_err(), "the archive says so as well");
    assert!(rewards.stats().failed_commits > 0);
    rewards.close();
    let rewards = start(folder.path());
    for batch in &batches {
        let replies = rewards.grant_batch("cash", batch).await;
        assert!(replies.iter().all(GrantReply::is_credited));
    }
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn what_is_paused_is_asked_for_again() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    let front = rewards.clone().with_fuses(Arc::new(|bonus_type| bonus_type != "cash"));
    let paused = GrantReply::Retry { after_ms: 1_000, reason: RetryReason::Paused };
    assert_eq!(front.grant_batch("cash", &[cash("a", 1, 5)]).await, [paused]);
    let coin = bytes(event("b", 1, "coin", 5));
    assert_eq!(front.grant_batch("coin", &[coin]).await, [GrantReply::Credited]);
    assert_eq!(rewards.grant_batch("cash", &[cash("a", 1, 5)]).await, [GrantReply::Credited]);
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn what_one_user_cannot_hold_does_not_hold_up_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    let large = |trade_no: &str, scene: usize| {
        let scene = format!("scene-{scene}");
        let largest = event(trade_no, 1, "cash", windfall_proto::order::AMOUNT_MAX);
        bytes(EventRef { activity: "rich", scene: &scene, ..largest })
    };
    // 1,024 of the largest amount are all that 64 bits hold; a scene's budget holds 31 of them.
    let rich: Vec<Bytes> = (0..1_024).map(|nth| large(&format!("rich/{nth:04}"), nth / 31)).collect();
    for batch in rich.chunks(512) {
        assert!(rewards.grant_batch("cash", batch).await.iter().all(GrantReply::is_credited));
    }
    let mut batch: Vec<Bytes> = (0..255).map(|nth| cash(&format!("poor/{nth:03}"), 100 + nth, 1)).collect();
    batch.insert(100, large("rich/over", 99));
    let replies = rewards.grant_batch("cash", &batch).await;
    for (at, reply) in replies.iter().enumerate() {
        match reply {
            GrantReply::Retry { reason: RetryReason::StoreUnavailable, .. } => assert_eq!(at, 100),
            reply => assert!(at != 100 && *reply == GrantReply::Credited, "{at}: {reply:?}"),
        }
    }
    rewards.close();
    assert_clean(folder.path());
}

/// A newer build has stored a reason that this one does not know; every other event of its batches waited with it, for ever.
#[tokio::test]
async fn an_order_that_cannot_be_read_does_not_hold_up_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    rewards.apply_budgets(1, &[budget(255, 1)]).await.unwrap();
    let refused = [GrantReply::Rejected(Rejection::BudgetExhausted)];
    assert_eq!(rewards.grant_batch("cash", &[cash("bad", 1, 1_000)]).await, refused);
    rewards.close();
    drop(rewards);
    let set_reason = |code: i64| {
        let db = rusqlite::Connection::open(ledger_path(folder.path())).unwrap();
        let sql = "UPDATE orders SET reason = ?1 WHERE order_key LIKE 'bad %' AND status = 2";
        assert_eq!(db.execute(sql, [code]).unwrap(), 1);
    };
    set_reason(99);
    let rewards = start(folder.path());
    let mut batch: Vec<Bytes> = (0..255).map(|nth| cash(&format!("good/{nth:03}"), 100 + nth, 1)).collect();
    batch.insert(100, cash("bad", 1, 1_000));
    for expected in [GrantReply::Credited, GrantReply::AlreadyCredited] {
        let replies = rewards.grant_batch("cash", &batch).await;
        for (at, reply) in replies.iter().enumerate() {
            match reply {
                GrantReply::Retry { reason: RetryReason::StoreUnavailable, .. } => assert_eq!(at, 100),
                reply => assert!(at != 100 && *reply == expected, "{at}: {reply:?}"),
            }
        }
    }
    rewards.close();
    drop(rewards);
    set_reason(1);
    let rewards = start(folder.path());
    assert_eq!(rewards.grant_batch("cash", &[cash("bad", 1, 1_000)]).await, refused);
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn a_full_queue_answers_busy_and_a_closed_service_asks_to_come_again() {
    let folder = tempfile::tempdir().unwrap();
    let options = RewardOptions { queue_events_max: 4, ..RewardOptions::default() };
    let rewards = start_with(folder.path(), options, vec![]);
    let (release, holder) = hold(&rewards).await;
    let waiting = tokio::spawn({
        let rewards = rewards.clone();
        async move { rewards.grant_batch("cash", &[cash("a", 1, 5), cash("b", 1, 5)]).await }
    });
    while rewards.stats().queued_events == 0 {
        tokio::task::yield_now().await;
    }
    let events = [cash("c", 1, 5), cash("d", 1, 5), cash("e", 1, 5)];
    for reply in rewards.grant_batch("cash", &events).await {
        assert!(matches!(reply, GrantReply::Retry { reason: RetryReason::Busy, .. }), "{reply:?}");
    }
    release.send(()).unwrap();
    holder.await.unwrap();
    assert!(waiting.await.unwrap().iter().all(GrantReply::is_credited));
    rewards.close();
    for reply in rewards.grant_batch("cash", &events).await {
        assert!(matches!(reply, GrantReply::Retry { reason: RetryReason::StoreUnavailable, .. }));
    }
    assert!(rewards.archive(&[]).await.is_err());
}

#[tokio::test]
async fn what_was_rejected_is_credited_by_a_replay_once_there_is_budget() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    rewards.apply_budgets(1, &[budget(5, 2)]).await.unwrap();
    let events = [cash("a", 1, 5), cash("b", 2, 5), cash("a", 3, 5)];
    let exhausted = GrantReply::Rejected(Rejection::BudgetExhausted);
    let replies = rewards.grant_batch("cash", &events).await;
    assert_eq!(replies, [GrantReply::Credited, exhausted.clone(), GrantReply::Conflict]);
    let give_up = |payload: &Bytes| Failed {
        payload: payload.clone(),
        rejection: Rejection::MaxFailures,
        detail: "gave up".into(),
    };
    let late = cash("late", 4, 1);
    rewards.archive(&[give_up(&late), give_up(&late)]).await.unwrap();
    let record = windfall_proto::record::build(
        windfall_proto::record::Head {
            bonus_type: "cash",
            attempt: 0,
            failures: 0,
            not_before_ms: 0,
            count: 2,
        },
        [b"x".as_slice(), b"y"],
    );
    let broken = Failed { payload: record.into(), rejection: Rejection::Malformed, detail: "torn".into() };
    rewards.archive(&[broken]).await.unwrap();

    let list = rewards.archive_list(ArchiveFilter::default()).await.unwrap();
    let id = |reason: &str| list.iter().find(|one| one.reason == reason).unwrap().id;
    assert_eq!(list.len(), 4);
    assert_eq!(list.iter().find(|one| one.reason == "malformed").unwrap().trade_no, None);
    assert!(matches!(rewards.replay(99, "ann").await, Err(ReplayError::NotFound(99))));
    assert!(matches!(rewards.replay(id("conflict"), " ").await, Err(ReplayError::NoActor)));

    assert_eq!(rewards.replay(id("conflict"), "ann").await.unwrap().reply, GrantReply::Conflict);
    let malformed = GrantReply::Rejected(Rejection::Malformed);
    assert_eq!(rewards.replay(id("malformed"), "ann").await.unwrap().reply, malformed);
    assert_eq!(rewards.replay(id("budget_exhausted"), "ann").await.unwrap().reply, exhausted);
    rewards.apply_budgets(1, &[budget(10, 2)]).await.unwrap();
    assert_eq!(rewards.grant_batch("cash", &events[1..2]).await, [exhausted], "only a replay tries it anew");
    rewards.apply_budgets(1, &[budget(11, 2)]).await.unwrap();
    assert_eq!(rewards.grant_batch("cash", &[late]).await, [GrantReply::Credited]);
    assert_eq!(rewards.replay(id("max_failures"), "ann").await.unwrap().reply, GrantReply::AlreadyCredited);
    let filter = ArchiveFilter { reason: Some("budget_exhausted".into()), ..ArchiveFilter::default() };
    let replayed = rewards.replay_all(filter, "bob").await.unwrap();
    assert_eq!((replayed.len(), &replayed[0].reply), (1, &GrantReply::Credited));
    assert_eq!(rewards.grant_batch("cash", &events[1..2]).await, [GrantReply::AlreadyCredited]);

    let exhausted_id = id("budget_exhausted");
    let audit = rewards.call(move |ledger| ledger.replays(exhausted_id)).await.unwrap();
    let audit: Vec<_> = audit.iter().map(|one| (one.actor.as_str(), one.outcome.as_str())).collect();
    let asked = [("ann", "asked"), ("ann", "budget_exhausted"), ("bob", "asked"), ("bob", "credited")];
    assert_eq!(audit, asked, "who asks stands there before anything is credited");
    let open = rewards.archive_list(ArchiveFilter { open: true, ..ArchiveFilter::default() }).await.unwrap();
    let open: Vec<_> = open.iter().map(|one| one.reason.as_str()).collect();
    assert_eq!(open, ["conflict", "malformed"]);
    rewards.close();
    assert_clean(folder.path());
}

/// A record that made a consumer panic is archived whole; its rewards must not depend on somebody who cuts it by hand.
#[tokio::test]
async fn a_replay_of_a_quarantined_record_grants_each_of_its_events() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    rewards.apply_budgets(1, &[budget(10, 2)]).await.unwrap();
    let events = [cash("a", 1, 5), cash("b", 2, 5), cash("c", 3, 5)];
    let head = windfall_proto::record::Head {
        bonus_type: "cash",
        attempt: 0,
        failures: 0,
        not_before_ms: 0,
        count: 3,
    };
    let record = windfall_proto::record::build(head, events.iter().map(|event| &event[..]));
    let quarantined =
        Failed { payload: record.into(), rejection: Rejection::Quarantined, detail: "it panicked".into() };
    rewards.archive(std::slice::from_ref(&quarantined)).await.unwrap();
    rewards.archive(&[quarantined]).await.unwrap();
    let list = rewards.archive_list(ArchiveFilter::default()).await.unwrap();
    let [entry] = list.as_slice() else { panic!("{list:?}") };
    assert_eq!((entry.reason.as_str(), entry.trade_no.as_deref()), ("quarantined", None));

    let exhausted = GrantReply::Rejected(Rejection::BudgetExhausted);
    assert_eq!(rewards.replay(entry.id, "ann").await.unwrap().reply, exhausted, "the third has no budget");
    rewards.apply_budgets(1, &[budget(15, 2)]).await.unwrap();
    assert_eq!(rewards.replay(entry.id, "ann").await.unwrap().reply, GrantReply::Credited);
    assert_eq!(rewards.replay(entry.id, "ann").await.unwrap().reply, GrantReply::AlreadyCredited);
    let again = rewards.grant_batch("cash", &events).await;
    assert_eq!(
        again,
        [GrantReply::AlreadyCredited, GrantReply::AlreadyCredited, GrantReply::AlreadyCredited]
    );
    rewards.close();
    assert_clean(folder.path());
}

/// An order that a downstream may have paid is not paid by the ledger as well when its type changes hands.
#[tokio::test]
async fn a_type_that_changes_hands_pays_no_reserved_order_twice() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::open(
        ledger_path(folder.path()),
        &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() },
    )
    .unwrap();
    let order = windfall_ledger::Order {
        trade_no: "a",
        user_id: 1,
        activity: "spring-2027",
        scene: "rain",
        bonus_type: "cash",
        amount: 5,
        time_ms: 1,
    };
    let mut tx = ledger.begin().unwrap();
    tx.reserve(&[order], &["bank"], windfall_ledger::Attempt::Normal).unwrap();
    tx.commit().unwrap();
    drop(ledger);
    let rewards = start(folder.path());
    let reply = rewards.grant_batch("cash", &[cash("a", 1, 5)]).await.remove(0);
    assert!(matches!(reply, GrantReply::Retry { reason, .. } if reason.is_failure()), "{reply:?}");
    rewards.close();
    assert_clean(folder.path());
}

/// A call that panics ends the writer; nobody waits for it for ever, and what was answered stays.
#[tokio::test]
async fn when_the_writer_dies_every_caller_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    assert_eq!(rewards.grant_batch("cash", &[cash("a", 1, 5)]).await, [GrantReply::Credited]);
    let died = rewards.call(|_| -> Result<(), _> { panic!("on purpose") }).await;
    assert!(died.is_err());
    while !rewards.stats().is_closed {
        tokio::task::yield_now().await;
    }
    let reply = rewards.grant_batch("cash", &[cash("b", 1, 5)]).await.remove(0);
    assert!(matches!(reply, GrantReply::Retry { reason: RetryReason::StoreUnavailable, .. }), "{reply:?}");
    rewards.close();
    let rewards = start(folder.path());
    let events = [cash("a", 1, 5), cash("b", 1, 5)];
    let expected = [GrantReply::AlreadyCredited, GrantReply::Credited];
    assert_eq!(rewards.grant_batch("cash", &events).await, expected);
}

/// What a late copy has been credited for is not archived as well; another event under its number is.
#[tokio::test]
async fn what_is_credited_is_not_archived_by_a_caller_that_gave_up() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    assert_eq!(rewards.grant_batch("cash", &[cash("a", 1, 5)]).await, [GrantReply::Credited]);
    let failed = [cash("a", 1, 5), cash("a", 1, 6), cash("b", 1, 5)].map(|payload| Failed {
        payload,
        rejection: Rejection::MaxFailures,
        detail: "gave up".into(),
    });
    rewards.archive(&failed).await.unwrap();
    let archive = rewards.archive_list(ArchiveFilter::default()).await.unwrap();
    let payloads: Vec<_> = archive.into_iter().map(|one| Bytes::from(one.payload)).collect();
    assert_eq!(payloads, [cash("a", 1, 6), cash("b", 1, 5)]);
}

/// A decision counts when it is durable, not when its caller takes it: consumers give calls up at their deadline.
#[tokio::test]
async fn a_call_that_was_given_up_counts_as_what_it_did() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    let (release, _holder) = hold(&rewards).await;
    let given_up = tokio::spawn({
        let rewards = rewards.clone();
        async move { rewards.grant_batch("cash", &[cash("a", 1, 5), cash("b", 1, 5)]).await }
    });
    while rewards.stats().queued_events < 2 {
        tokio::task::yield_now().await;
    }
    given_up.abort();
    assert!(given_up.await.unwrap_err().is_cancelled());
    release.send(()).unwrap();
    let again = [GrantReply::AlreadyCredited, GrantReply::AlreadyCredited];
    assert_eq!(rewards.grant_batch("cash", &[cash("a", 1, 5), cash("b", 1, 5)]).await, again);
    let cash = rewards.stats().types["cash"];
    assert_eq!((cash.credited, cash.already_credited), (2, 2));
}

/// Holds the writer inside a call until the sender is used.
async fn hold(rewards: &RewardHandle) -> (std::sync::mpsc::SyncSender<()>, tokio::task::JoinHandle<()>) {
    let (release, held) = std::sync::mpsc::sync_channel::<()>(0);
    let (began, begun) = tokio::sync::oneshot::channel();
    let rewards = rewards.clone();
    let holder = tokio::spawn(async move {
        let call = move |_: &mut Ledger| {
            began.send(()).unwrap();
            held.recv().unwrap();
            Ok(())
        };
        rewards.call(call).await.unwrap();
    });
    begun.await.unwrap();
    (release, holder)
}

/// An order that the ledger cannot store (here: its user's balance would leave 64 bits) harms its own call alone.
#[tokio::test]
async fn one_bad_order_does_not_hold_up_other_calls() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    let rich = |scene: u32, nth: u32| {
        let (trade_no, scene) = (format!("rich/{scene}/{nth}"), format!("scene-{scene}"));
        let amount = windfall_proto::order::AMOUNT_MAX;
        bytes(windfall_proto::event::EventRef { scene: &scene, ..event(&trade_no, 1, "cash", amount) })
    };
    for scene in 0..32 {
        let events: Vec<_> = (0..32).map(|nth| rich(scene, nth)).collect();
        assert!(rewards.grant_batch("cash", &events).await.iter().all(GrantReply::is_credited));
    }
    let (release, _holder) = hold(&rewards).await;
    let ask = |event: Bytes| {
        let rewards = rewards.clone();
        tokio::spawn(async move { rewards.grant_batch("cash", &[event]).await.remove(0) })
    };
    let other = |trade_no| {
        bytes(windfall_proto::event::EventRef { activity: "other", ..event(trade_no, 2, "cash", 5) })
    };
    let (before, bad, after) = (ask(other("a")), ask(rich(32, 0)), ask(other("b")));
    while rewards.stats().queued_events < 3 {
        tokio::task::yield_now().await;
    }
    release.send(()).unwrap();
    assert_eq!(before.await.unwrap(), GrantReply::Credited);
    assert_eq!(after.await.unwrap(), GrantReply::Credited);
    let bad = bad.await.unwrap();
    assert!(matches!(bad, GrantReply::Retry { reason: RetryReason::StoreUnavailable, .. }), "{bad:?}");
    rewards.close();
    assert_clean(folder.path());
}

#[tokio::test]
async fn the_kinds_of_budgets_of_the_rules_hold_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let rewards = start(folder.path());
    let sharded = budget(10, 2);
    let strict = Budget { kind: BudgetKind::Strict, scene: "cards".into(), shards: 1, ..sharded.clone() };
    let all = Budget {
        kind: BudgetKind::Combined,
        scene: "*".into(),
        bonus_type: "*".into(),
        total: 12,
        ..sharded.clone()
    };
    let set = rewards.apply_budgets(1, &[sharded, strict, all]).await.unwrap();
    assert_eq!(set, BudgetsApplied::Set(Vec::new()));
    let cards = |trade_no, amount| {
        bytes(windfall_proto::event::EventRef { scene: "cards", ..event(trade_no, 1, "cash", amount) })
    };
    let events = [cash("a", 1, 8), cards("b", 5), cards("c", 4), cash("d", 1, 1)];
    let no = GrantReply::Rejected(Rejection::BudgetExhausted);
    let replies = rewards.grant_batch("cash", &events).await;
    assert_eq!(replies, [GrantReply::Credited, no.clone(), GrantReply::Credited, no]);
    let budgets = rewards.read(|reader| reader.budgets()).await.unwrap();
    let found: Vec<_> = budgets.iter().map(|one| (one.scene.as_str(), one.used, one.shards)).collect();
    assert_eq!(found, [("*", 12, 2), ("cards", 4, 0), ("rain", 8, 2)]);
    rewards.close();
    assert_clean(folder.path());
}
