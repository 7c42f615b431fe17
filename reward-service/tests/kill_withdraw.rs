//! Killed at any moment of withdrawals, the payer has paid each once, and the ledger says the same.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod support;

use async_trait::async_trait;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{assert_clean, cash, ledger_path, start_with};
use windfall_connectors::fake::{FakeBook, FakeDownstream, FakeOptions};
use windfall_contract::Clock;
use windfall_contract::accounts::{Accounts, Withdrawal, WithdrawalOutcome};
use windfall_contract::connector::{Connector, PayAnswer, PayOrder};
use windfall_contract::rewards::Rewards;
use windfall_ledger::{LedgerReader, WithdrawalId, WithdrawalStatus};
use windfall_reward_service::{ConnectorOptions, Payer, Resumed, RewardHandle, RewardOptions};

/// Set for the child alone: its data directory.
const CHILD: &str = "WINDFALL_TEST_KILL_WITHDRAW_DIR";
/// The same, of the child that waits for its payer.
const HOLDING_CHILD: &str = "WINDFALL_TEST_KILL_HOLDING_DIR";
const WITHDRAWALS: u32 = 3_000;
const USERS: i64 = 20;

fn service(folder: &Path) -> RewardHandle {
    let options = FakeOptions { rate_per_s: 0, latency_ms: 1, ..FakeOptions::default() };
    let fake = FakeDownstream::open(folder.join("book"), options, Clock::system()).unwrap();
    let options = RewardOptions { payout: Payer::Connector("fake".into()), ..RewardOptions::default() };
    start_with(folder, options, vec![Arc::new(fake)])
}

fn withdrawal(nth: u32) -> Withdrawal {
    let (user_id, amount) = (1 + i64::from(nth) % USERS, 1 + i64::from(nth % 3));
    Withdrawal { id: format!("out/{nth:05}"), user_id, bonus_type: "cash".into(), amount }
}

fn name(withdrawal: &Withdrawal) -> WithdrawalId<'_> {
    WithdrawalId { user_id: withdrawal.user_id, id: &withdrawal.id }
}

/// Credits what it takes, then takes it.
async fn credit_and_withdraw(rewards: &RewardHandle, nth: u32) -> WithdrawalOutcome {
    let order = withdrawal(nth);
    let credit = cash(&format!("order/{nth:05}"), order.user_id, order.amount);
    assert!(rewards.grant_batch("cash", &[credit]).await[0].is_credited());
    rewards.withdraw(&order).await.unwrap()
}

/// Never answers: whoever asks it waits.
struct Mute;

#[async_trait]
impl Connector for Mute {
    fn name(&self) -> &str {
        "fake"
    }

    async fn pay(&self, _: PayOrder<'_>) -> PayAnswer {
        std::future::pending().await
    }
}

/// Does nothing unless the test below started it as a child: holds a withdrawal, and waits for its payer.
#[test]
fn child_that_is_killed_with_a_withdrawal_held() {
    let Ok(folder) = std::env::var(HOLDING_CHILD) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut options =
            RewardOptions { payout: Payer::Connector("fake".into()), ..RewardOptions::default() };
        let connector = ConnectorOptions { timeout_ms: 600_000, ..ConnectorOptions::default() };
        options.connectors.insert("fake".into(), connector);
        credit_and_withdraw(&start_with(&PathBuf::from(folder), options, vec![Arc::new(Mute)]), 1).await;
    });
}

#[tokio::test]
async fn killed_after_the_hold_and_never_asked_again_it_is_paid_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_is_killed_with_a_withdrawal_held", "--nocapture"])
        .env(HOLDING_CHILD, folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    let is_held = || {
        let reader = LedgerReader::open(ledger_path(folder.path())).ok()?;
        reader.withdrawal(name(&withdrawal(1))).ok()?
    };
    while is_held().is_none() {
        assert!(Instant::now() < deadline, "nothing was held");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let rewards = service(folder.path());
    assert_eq!(rewards.resume_held(3_600_000, "", 10).await.unwrap(), Resumed::default(), "not yet");
    // Two at once: one has it in hand, and the other finds that, or that it has ended.
    let (first, second) = tokio::join!(rewards.resume_held(0, "", 10), rewards.resume_held(0, "", 10));
    let both = [first.unwrap(), second.unwrap()];
    assert!(both.iter().any(|one| one.paid == 1), "{both:?}");
    assert!(both.iter().all(|one| one.failed + one.refused == 0), "{both:?}");
    assert_eq!(rewards.resume_held(0, "", 10).await.unwrap(), Resumed::default());
    rewards.close();
    assert_clean(folder.path());
    let book = FakeBook::read(folder.path().join("book")).unwrap();
    assert_eq!(
        (book.len(), book[0].trade_no.as_str()),
        (1, format!("withdrawal  {} out/00001", withdrawal(1).user_id).as_str())
    );
    let stored =
        LedgerReader::open(ledger_path(folder.path())).unwrap().withdrawal(name(&withdrawal(1))).unwrap();
    assert_eq!(stored.unwrap().status, WithdrawalStatus::Paid);
}

/// Does nothing unless the test below started it as a child.
#[test]
fn child_that_gets_killed() {
    let Ok(folder) = std::env::var(CHILD) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let rewards = service(&PathBuf::from(folder));
        let tasks: Vec<_> = (0..6)
            .map(|caller| {
                let rewards = rewards.clone();
                tokio::spawn(async move {
                    for nth in (caller..WITHDRAWALS).step_by(6) {
                        credit_and_withdraw(&rewards, nth).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[tokio::test]
async fn killed_at_any_moment_each_withdrawal_is_paid_once() {
    let folder = tempfile::tempdir().unwrap();
    for after_ms in [150, 231, 187, 402, 273] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_gets_killed", "--nocapture"])
            .env(CHILD, folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(after_ms));
        child.kill().unwrap();
        child.wait().unwrap();
        if ledger_path(folder.path()).exists() {
            drop(service(folder.path()));
            assert_clean(folder.path());
        }
    }
    let rewards = service(folder.path());
    for nth in 0..400 {
        let first = credit_and_withdraw(&rewards, nth).await;
        assert!(
            matches!(first, WithdrawalOutcome::Paid | WithdrawalOutcome::AlreadyPaid),
            "{nth}: {first:?}"
        );
        assert_eq!(rewards.withdraw(&withdrawal(nth)).await, Ok(WithdrawalOutcome::AlreadyPaid));
    }
    // What the last child had in hand beyond these may be held still, and nobody asks about it again.
    let resumed = rewards.resume_held(0, "", 10_000).await.unwrap();
    assert_eq!((resumed.pending, resumed.failed, resumed.refused), (0, 0, 0), "{resumed:?}");
    let mut paid = 0;
    for nth in 0..WITHDRAWALS {
        let asked = withdrawal(nth);
        let Some(stored) = rewards.read(move |reader| reader.withdrawal(name(&asked))).await.unwrap() else {
            continue;
        };
        assert_eq!(stored.status, WithdrawalStatus::Paid);
        paid += 1;
    }
    rewards.close();
    assert_clean(folder.path());
    let book = FakeBook::read(folder.path().join("book")).unwrap();
    assert_eq!(book.len(), paid, "each once, and nothing that the ledger does not know");
    let reader = LedgerReader::open(ledger_path(folder.path())).unwrap();
    for line in &book {
        let id = line.trade_no.rsplit(' ').next().unwrap();
        let stored = reader.withdrawal(WithdrawalId { user_id: line.user_id, id }).unwrap().unwrap();
        assert_eq!((stored.status, stored.withdrawal.amount), (WithdrawalStatus::Paid, line.amount));
    }
}
