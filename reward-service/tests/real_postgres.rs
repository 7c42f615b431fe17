//! The reward service over a ledger in PostgreSQL: several writers, several services, and a server that is killed
//! and frozen under them.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::cash;
use windfall_connectors::fake::{FakeBook, FakeDownstream, FakeOptions};
use windfall_contract::Clock;
use windfall_contract::accounts::{Accounts, AccountsError, Withdrawal, WithdrawalOutcome};
use windfall_contract::connector::Connector;
use windfall_contract::rewards::{GrantReply, RetryReason, Rewards};
use windfall_ledger::{
    ArchiveFilter, BudgetSet, Ledger, LedgerReader, ListCopies, PostgresOptions, TakeCopies, Unbudgeted,
};
use windfall_proto::event::EventRef;
use windfall_reward_service::{
    Again, AsyncGrantOptions, AsyncGrants, ConnectorOptions, EventQueue, NotQueued, Payer, ResumeOptions,
    Resumer, RewardHandle, RewardOptions, RewardService, Rewritten, RulesInForce,
};
use windfall_servers::{Private, Servers};

const PATIENCE: Duration = Duration::from_secs(90);
const USERS: u64 = 50;

fn schema(name: &str) -> PostgresOptions {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    PostgresOptions {
        schema: format!("{name}_{}_{since}", std::process::id()),
        connect_timeout_ms: 3_000,
        statement_timeout_ms: 3_000,
        unbudgeted: Unbudgeted::Allow,
        ..PostgresOptions::default()
    }
}

fn start(url: &str, options: &PostgresOptions) -> RewardHandle {
    let ledger = Ledger::connect(url, options).unwrap();
    RewardService::start(RewardOptions::default(), ledger, vec![], None, Clock::system()).unwrap()
}

/// Grants until it is final: once credited, then already credited.
async fn until_final(rewards: &RewardHandle, batch: u64, credited: &AtomicU64) {
    let events: Vec<_> = (0..40)
        .map(|at| {
            cash(
                &format!("order/{batch:05}/{at:02}"),
                i64::try_from(1 + (batch * 40 + at) % USERS).unwrap(),
                3,
            )
        })
        .collect();
    let started = Instant::now();
    loop {
        let replies = rewards.grant_batch("cash", &events).await;
        let new = replies.iter().filter(|reply| **reply == GrantReply::Credited).count();
        credited.fetch_add(new as u64, Ordering::Relaxed);
        if replies.iter().all(GrantReply::is_credited) {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "batch {batch} waits for ever: {replies:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Each order once, balances equal to the sum of the orders, everything fits together.
fn verify(url: &str, options: &PostgresOptions, orders: u64) {
    let reader = LedgerReader::connect(url, options).unwrap();
    let lines: Vec<_> = reader.orders().unwrap().map(Result::unwrap).collect();
    assert_eq!(lines.len() as u64, orders);
    assert!(lines.iter().all(|line| line.credits == 1), "I1");
    let sum: i64 = (1..=USERS).map(|user| reader.balances(i64::try_from(user).unwrap()).unwrap()[0].1).sum();
    assert_eq!(sum, i64::try_from(orders * 3).unwrap());
    let found = reader.reconcile().unwrap();
    assert!(found.is_clean(), "{found:?}");
    for budget in reader.budgets().unwrap() {
        assert!(budget.total.is_none_or(|total| budget.used + budget.reserved <= total), "I4");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn the_same_orders_by_many_tasks_and_two_services_are_credited_once() {
    let (url, options) = tokio::task::spawn_blocking(|| {
        let servers = Servers::from_env_or_start(&["postgres"]).unwrap();
        (servers.server("postgres").unwrap().url().to_owned(), schema("rewards"))
    })
    .await
    .unwrap();
    let services = [start(&url, &options), start(&url, &options)];
    let credited = AtomicU64::new(0);
    let tasks = (0..6_u64).map(|task| {
        let (services, credited) = (&services, &credited);
        async move {
            for nth in 0..60 {
                let batch = (nth + task * 10) % 60;
                until_final(&services[usize::try_from(task % 2).unwrap()], batch, credited).await;
            }
        }
    });
    futures_util::future::join_all(tasks).await;
    assert_eq!(credited.into_inner(), 60 * 40, "I1");
    services.iter().for_each(RewardHandle::close);
    verify(&url, &options, 60 * 40);
}

/// Of two processes one has started on an old copy of the rules: it grants by them until the other one has been heard of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_process_with_older_rules_grants_nothing_once_another_runs_newer_ones() {
    let (url, options) = tokio::task::spawn_blocking(|| {
        let servers = Servers::from_env_or_start(&["postgres"]).unwrap();
        (servers.server("postgres").unwrap().url().to_owned(), schema("rules"))
    })
    .await
    .unwrap();
    let services = [start(&url, &options), start(&url, &options)];
    let versions = [1, 2].map(|version| Arc::new(AtomicU64::new(version)));
    for (service, version) in services.iter().zip(&versions) {
        let own = Arc::clone(version);
        service.follow_rules(Box::new(move || RulesInForce {
            version: own.load(Ordering::SeqCst),
            ..RulesInForce::default()
        }));
    }
    assert_eq!(services[0].note_rules_version(0, 1).await.unwrap(), 1);
    let grant =
        async |at: usize, name: &str| services[at].grant_batch("cash", &[cash(name, 1, 3)]).await.remove(0);
    assert_eq!(grant(0, "a").await, GrantReply::Credited);
    assert_eq!(services[1].note_rules_version(1, 2).await.unwrap(), 2);
    assert_eq!(grant(1, "b").await, GrantReply::Credited);
    for _ in 0..8 {
        // Whichever of its writers has it.
        let later = GrantReply::Retry { after_ms: 1_000, reason: RetryReason::OldRules };
        assert_eq!(grant(0, "c").await, later);
    }
    assert_eq!(grant(1, "d").await, GrantReply::Credited);
    versions[0].store(2, Ordering::SeqCst);
    assert_eq!(services[0].note_rules_version(1, 2).await.unwrap(), 2);
    assert_eq!(grant(0, "c").await, GrantReply::Credited);
    services.iter().for_each(RewardHandle::close);
    let reader = LedgerReader::connect(&url, &options).unwrap();
    assert_eq!(reader.balances(1).unwrap()[0].1, 12);
    assert!(reader.archive_list(&ArchiveFilter::default()).unwrap().is_empty());
}

/// What the server goes through while grants run.
async fn under(trouble: impl FnOnce(&Private) + Send + 'static) {
    let server = tokio::task::spawn_blocking(|| Private::start(windfall_servers::PostgresOptions::default()))
        .await
        .unwrap()
        .unwrap();
    let (url, options) = (server.url().to_owned(), schema("trouble"));
    let total = 1 << 40;
    let mut ledger = Ledger::connect(&url, &options).unwrap();
    let budget = BudgetSet { activity: "spring-2027", scene: "rain", bonus_type: "cash", total, shards: 4 };
    ledger.set_budgets(&[budget]).unwrap();
    drop(ledger);
    let services = [start(&url, &options), start(&url, &options)];
    let (stop, credited, next) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let grants = (0..6_usize).map(|task| {
        let (services, stop, credited, next) = (&services, &stop, &credited, &next);
        async move {
            while !stop.load(Ordering::Relaxed) {
                until_final(&services[task % 2], next.fetch_add(1, Ordering::Relaxed), credited).await;
            }
        }
    });
    let stop = &stop;
    let trouble = async move {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let server = tokio::task::spawn_blocking(move || {
            trouble(&server);
            server
        });
        let server = server.await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        stop.store(true, Ordering::Relaxed);
        server
    };
    let (server, _) = tokio::join!(trouble, futures_util::future::join_all(grants));
    services.iter().for_each(RewardHandle::close);
    let orders = next.load(Ordering::Relaxed) * 40;
    // Those of a commit whose answer was lost were credited by nobody's reply, and say so when asked again.
    assert!(credited.load(Ordering::Relaxed) <= orders, "I1");
    verify(&url, &options, orders);
    tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_server_that_is_killed_and_started_again_loses_and_doubles_nothing() {
    under(|server| {
        for _ in 0..2 {
            server.kill().unwrap();
            server.start().unwrap();
            std::thread::sleep(Duration::from_millis(700));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_server_that_is_frozen_for_10_s_loses_and_doubles_nothing() {
    under(|server| {
        server.freeze().unwrap();
        std::thread::sleep(Duration::from_secs(10));
        server.thaw().unwrap();
    })
    .await;
}

/// Grants arrive, and the same withdrawals are asked for by two services at once, while the server is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn withdrawals_race_grants_over_two_services_and_a_killed_server() {
    const OUTS: u64 = 300;
    const OUT_USERS: u64 = 20;
    let server = tokio::task::spawn_blocking(|| Private::start(windfall_servers::PostgresOptions::default()))
        .await
        .unwrap()
        .unwrap();
    let (url, options) = (server.url().to_owned(), schema("withdrawals"));
    let folder = tempfile::tempdir().unwrap();
    let book = folder.path().join("book");
    // One payer for both, which pays and then says nothing, now and then.
    let fake = FakeOptions {
        rate_per_s: 0,
        latency_ms: 1,
        paid_then_timeout_per_mille: 50,
        ..FakeOptions::default()
    };
    let fake: Arc<dyn Connector> = Arc::new(FakeDownstream::open(&book, fake, Clock::system()).unwrap());
    let services: Vec<RewardHandle> = (0..2)
        .map(|_| {
            let ledger = Ledger::connect(&url, &options).unwrap();
            let mut options =
                RewardOptions { payout: Payer::Connector("fake".into()), ..RewardOptions::default() };
            let connector =
                ConnectorOptions { timeout_ms: 50, breaker_open_ms: 50, ..ConnectorOptions::default() };
            options.connectors.insert("fake".into(), connector);
            RewardService::start(options, ledger, vec![Arc::clone(&fake)], None, Clock::system()).unwrap()
        })
        .collect();
    let credited = AtomicU64::new(0);
    let grants = (0..4_u64).map(|task| {
        let (services, credited) = (&services, &credited);
        async move {
            for batch in 0..40 {
                until_final(&services[usize::try_from(task % 2).unwrap()], batch, credited).await;
            }
        }
    });
    let paid = AtomicU64::new(0);
    let outs = (0..6_u64).map(|task| {
        let (services, paid) = (&services, &paid);
        async move {
            let rewards = &services[usize::try_from(task % 2).unwrap()];
            for nth in 0..OUTS {
                let nth = (nth + task / 2 * 40) % OUTS;
                let order = Withdrawal {
                    id: format!("out/{nth:04}"),
                    user_id: i64::try_from(1 + nth % OUT_USERS).unwrap(),
                    bonus_type: "cash".into(),
                    amount: 4,
                };
                let started = Instant::now();
                loop {
                    match rewards.withdraw(&order).await {
                        Ok(WithdrawalOutcome::AlreadyPaid) => break,
                        Ok(WithdrawalOutcome::Paid) => {
                            paid.fetch_add(1, Ordering::Relaxed);
                            break;
                        }
                        Ok(WithdrawalOutcome::Pending { .. } | WithdrawalOutcome::Short { .. })
                        | Err(AccountsError::Unavailable { .. }) => {}
                        other => panic!("{other:?}"),
                    }
                    assert!(started.elapsed() < PATIENCE, "withdrawal {nth} waits for ever");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    });
    let trouble = tokio::task::spawn_blocking(move || {
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(700));
            server.kill().unwrap();
            server.start().unwrap();
        }
        server
    });
    // Both ask about what is held as well, all the while, of their own accord.
    let options_of = ResumeOptions { period_ms: 100, older_than_ms: 0, limit: 64 };
    let resuming = services.iter().map(|rewards| Resumer::new(rewards.clone(), options_of).run());
    let work = async {
        tokio::join!(trouble, futures_util::future::join_all(grants), futures_util::future::join_all(outs))
    };
    let (server, ..) = tokio::select! {
        done = work => done,
        _ = futures_util::future::join_all(resuming) => panic!("they go on until the services are closed"),
    };
    services.iter().for_each(RewardHandle::close);
    assert!(paid.into_inner() <= OUTS, "at most one call is told that it paid");
    let reader = LedgerReader::connect(&url, &options).unwrap();
    let found = reader.reconcile().unwrap();
    assert!(found.is_clean(), "{found:?}");
    assert_eq!((found.orders, found.withdrawals), (40 * 40, OUTS));
    let sum: i64 = (1..=USERS)
        .map(|user| reader.balances(i64::try_from(user).unwrap()).unwrap()[0].1)
        .inspect(|balance| assert!(*balance >= 0))
        .sum();
    assert_eq!(sum, i64::try_from(40 * 40 * 3 - OUTS * 4).unwrap());
    let payments = FakeBook::read(&book).unwrap();
    let keys: std::collections::BTreeSet<_> = payments.iter().map(|one| one.trade_no.as_str()).collect();
    assert_eq!((payments.len() as u64, keys.len() as u64), (OUTS, OUTS), "each is paid once");
    drop(reader);
    tokio::task::spawn_blocking(move || drop(server.unwrap())).await.unwrap();
}

/// Keeps what it is given, slowly.
#[derive(Default)]
struct SlowQueue(parking_lot::Mutex<Vec<String>>);

#[async_trait::async_trait]
impl EventQueue for SlowQueue {
    fn check(&self, _event: &bytes::Bytes) -> Result<(), NotQueued> {
        Ok(())
    }

    async fn enqueue(&self, events: &[bytes::Bytes], _strong: bool) -> Vec<Result<(), NotQueued>> {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let own = events.iter().map(|event| EventRef::parse(event).unwrap().trade_no.to_owned());
        self.0.lock().extend(own);
        vec![Ok(()); events.len()]
    }
}

/// Any number of services write one copy for each order and due time, whoever of them looks how often.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real servers: ./dev test runs it"]
async fn two_services_write_one_copy_for_each_due_time() {
    const ORDERS: usize = 2_500;
    let server = Servers::from_env_or_start(&["postgres"]).unwrap();
    let url = server.server("postgres").unwrap().url().to_owned();
    let options = schema("copies");
    let now = Arc::new(AtomicU64::new(1_800_000_000_000));
    let started: Vec<RewardHandle> = (0..2)
        .map(|_| {
            let ledger = Ledger::connect(&url, &options).unwrap();
            let own = Arc::clone(&now);
            let clock = Clock::from_unix_ms(move || own.load(Ordering::SeqCst));
            RewardService::start(RewardOptions::default(), ledger, vec![], None, clock).unwrap()
        })
        .collect();
    let queue = Arc::new(SlowQueue::default());
    let grants: Vec<AsyncGrants> = started
        .iter()
        .map(|rewards| AsyncGrants::new(rewards.clone(), queue.clone(), AsyncGrantOptions::default()))
        .collect();
    let trade_no = |nth: usize| format!("copy/{nth:05}");
    let events: Vec<_> = (0..ORDERS).map(|nth| cash(&trade_no(nth), 1, 1)).collect();
    for page in events.chunks(500) {
        grants[0].accept("cash", page).await;
    }
    queue.0.lock().clear();
    let again = Again { after_ms: 1_000, every_ms: 1, lease_ms: 100_000 };
    for (due, pass_ms) in [(1, 1_000), (2, 1_000), (3, 2_000)] {
        now.fetch_add(pass_ms, Ordering::SeqCst);
        let looks = (0..8).map(|nth| grants[nth % 2].write_again(again, |_, _, _| false));
        let looked = futures_util::future::join_all(looks).await;
        let written: u64 = looked.into_iter().map(|looked| looked.unwrap().written).sum();
        assert_eq!(written, ORDERS as u64, "due time {due}");
        let mut copies = std::mem::take(&mut *queue.0.lock());
        copies.sort_unstable();
        assert_eq!(copies, (0..ORDERS).map(trade_no).collect::<Vec<_>>(), "due time {due}");
    }
    // One of them has taken all, and dies before it has written any: the other one writes them when the lease ends.
    now.fetch_add(4_000, Ordering::SeqCst);
    let (again_short, now_ms) =
        (Again { lease_ms: 500, ..again }, i64::try_from(now.load(Ordering::SeqCst)).unwrap());
    let take = |now_ms| {
        started[0].call(move |ledger| {
            let how = ListCopies { now_ms, after_ms: 1_000, pause_ms: 1, ahead_ms: 1_000, limit: 10_000 };
            ledger.list_copies(&how)?;
            let budget_keys: Vec<i64> = ledger.copy_keys()?.iter().map(|key| key.budget_key).collect();
            let (due_ms, lease_ends_ms) = (now_ms, now_ms + 500);
            ledger.take_copies(&TakeCopies {
                budget_keys: &budget_keys,
                due_ms,
                lease_ends_ms,
                limit: 10_000,
            })
        })
    };
    // Its clock was a day ahead before, and it took them for tomorrow.
    assert_eq!(take(now_ms + 86_400_000).await.unwrap().orders.len(), ORDERS);
    assert_eq!(take(now_ms).await.unwrap().orders.len(), ORDERS);
    started[0].close();
    assert_eq!(grants[1].write_again(again_short, |_, _, _| false).await.unwrap(), Rewritten::default());
    now.fetch_add(500, Ordering::SeqCst);
    let written = grants[1].write_again(again_short, |_, _, _| false).await.unwrap().written;
    assert_eq!(written, ORDERS as u64, "taken, and never lost");
    // What is not reserved any more is forgotten.
    let replies = started[1].grant_batch("cash", &events).await;
    assert!(replies.iter().all(GrantReply::is_credited));
    now.fetch_add(100_000, Ordering::SeqCst);
    assert_eq!(grants[1].write_again(again, |_, _, _| false).await.unwrap(), Rewritten::default());
    assert!(started[1].call(|ledger| ledger.copy_keys()).await.unwrap().is_empty());
    started[1].close();
}
