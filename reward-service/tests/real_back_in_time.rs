//! Withdrawals and grants while PostgreSQL fails over to a standby that was stale, and after a person has accepted it.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};
use support::cash;
use windfall_connectors::fake::{FakeBook, FakeDownstream, FakeOptions};
use windfall_contract::Clock;
use windfall_contract::accounts::{Accounts, Withdrawal, WithdrawalOutcome};
use windfall_contract::connector::Connector;
use windfall_contract::rewards::{GrantReply, Rewards};
use windfall_ledger::{Guard, Ledger, LedgerReader, MarkFile, PostgresOptions, Unbudgeted};
use windfall_reward_service::{MarkKeeper, Payer, RewardHandle, RewardOptions, RewardService};
use windfall_servers::{PostgresOptions as ServerOptions, Private};

const PATIENCE: Duration = Duration::from_secs(90);

/// The primary and its standby, under one address.
fn servers() -> (Private, Private, String) {
    let primary = Private::start(ServerOptions::default()).unwrap();
    let standby = Private::start(ServerOptions::standby_of(primary.url())).unwrap();
    let (before, after) = primary.url().rsplit_once('/').unwrap();
    let other = standby.address("main").unwrap();
    let url = format!("{before},{other}/{after}?target_session_attrs=read-write");
    (primary, standby, url)
}

/// Whether the ledger of this server has an order.
fn has(url: &str, trade_no: &str) -> bool {
    LedgerReader::connect(url, &PostgresOptions::default())
        .is_ok_and(|reader| reader.orders_of_number(trade_no).is_ok_and(|found| !found.is_empty()))
}

async fn credited(rewards: &RewardHandle, trade_no: &str) {
    let until = Instant::now() + PATIENCE;
    while !rewards.grant_batch("cash", &[cash(trade_no, 1, 10)]).await[0].is_credited() {
        assert!(Instant::now() < until, "{trade_no} waits for ever");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn paid(rewards: &RewardHandle, id: &str) {
    let asked = Withdrawal { id: id.into(), user_id: 1, bonus_type: "cash".into(), amount: 10 };
    let until = Instant::now() + PATIENCE;
    while !matches!(
        rewards.withdraw(&asked).await,
        Ok(WithdrawalOutcome::Paid | WithdrawalOutcome::AlreadyPaid)
    ) {
        assert!(Instant::now() < until, "{id} waits for ever");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_stale_standby_pays_no_withdrawal_and_after_its_acceptance_none_twice() {
    let (primary, standby, url) = tokio::task::spawn_blocking(servers).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let book = folder.path().join("book");
    let fake = FakeOptions { rate_per_s: 0, latency_ms: 1, ..FakeOptions::default() };
    let fake: Arc<dyn Connector> = Arc::new(FakeDownstream::open(&book, fake, Clock::system()).unwrap());
    let options = PostgresOptions {
        unbudgeted: Unbudgeted::Allow,
        connect_timeout_ms: 3_000,
        failover_without_synchronous_standby: true,
        ..PostgresOptions::default()
    };
    let guard = Arc::new(Guard::new(vec![Some(None)]));
    let (opening, own) = (url.clone(), Arc::clone(&guard));
    let ledger = tokio::task::spawn_blocking(move || {
        Ledger::connect(&opening, &options).unwrap().guarded(own).unwrap()
    });
    let rewards = RewardService::start(
        RewardOptions {
            payout: Payer::Connector("fake".into()),
            grant_when_ledger_went_back: true,
            ..RewardOptions::default()
        },
        ledger.await.unwrap(),
        vec![fake],
        None,
        Clock::system(),
    )
    .unwrap();
    let store = Arc::new(MarkFile::new(folder.path().join("mark")));
    let mut keeper = MarkKeeper::new(rewards.clone(), guard, vec![store], 100);
    credited(&rewards, "o/1").await;
    keeper.pass().await.unwrap().unwrap();
    // The standby has this much, and then it is gone for a while.
    let standby = tokio::task::spawn_blocking(move || {
        let until = Instant::now() + PATIENCE;
        while !has(standby.url(), "o/1") {
            assert!(Instant::now() < until, "the standby does not follow");
            std::thread::sleep(Duration::from_millis(50));
        }
        standby.kill().unwrap();
        standby
    });
    let standby = standby.await.unwrap();
    credited(&rewards, "o/2").await;
    paid(&rewards, "out/1").await;
    keeper.pass().await.unwrap().unwrap();
    let servers = tokio::task::spawn_blocking(move || {
        primary.kill().unwrap();
        standby.start().unwrap();
        standby.promote().unwrap();
        (primary, standby)
    });
    let servers = servers.await.unwrap();
    let until = Instant::now() + PATIENCE;
    while !matches!(keeper.pass().await, Ok(None)) {
        assert!(Instant::now() < until, "nobody notices");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Grants go on, as the option asks for: the lost one and a new one. The money is on the balance once more.
    for trade_no in ["o/2", "o/3"] {
        credited(&rewards, trade_no).await;
    }
    for id in ["out/1", "out/2"] {
        let asked = Withdrawal { id: id.into(), user_id: 1, bonus_type: "cash".into(), amount: 10 };
        assert!(rewards.withdraw(&asked).await.is_err());
    }
    assert_eq!(FakeBook::read(&book).unwrap().len(), 1);
    let shown = rewards.guard().unwrap().state().ledger.unwrap();
    rewards.accept_ledger((1, &shown.lineage, shown.beat), "ann", "replayed").await.unwrap();
    assert!(keeper.pass().await.unwrap().is_some());
    paid(&rewards, "out/1").await;
    paid(&rewards, "out/2").await;
    let payments = FakeBook::read(&book).unwrap();
    let keys: Vec<&str> = payments.iter().map(|one| one.trade_no.as_str()).collect();
    assert_eq!(keys, ["withdrawal  1 out/1", "withdrawal  1 out/2"], "each is paid once");
    assert_eq!(rewards.balances(1).await.unwrap(), [("cash".to_owned(), 10)]);
    assert_eq!(rewards.grant_batch("cash", &[cash("o/1", 1, 10)]).await, [GrantReply::AlreadyCredited]);
    let found = rewards.call(|ledger| ledger.reconcile()).await.unwrap();
    assert!(found.is_clean(), "{found:?}");
    rewards.close();
    tokio::task::spawn_blocking(move || drop((rewards, servers))).await.unwrap();
}
