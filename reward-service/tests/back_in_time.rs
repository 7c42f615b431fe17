//! A service whose ledger goes back in time pays nothing out until a person has accepted that; and pays nothing twice
//! then.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::{badge, cash, ledger_path};
use windfall_connectors::fake::{FakeBook, FakeDownstream, FakeOptions};
use windfall_contract::Clock;
use windfall_contract::accounts::{Accounts, AccountsError, Withdrawal, WithdrawalOutcome};
use windfall_contract::connector::Connector;
use windfall_contract::rewards::{GrantReply, RetryReason, Rewards};
use windfall_ledger::{
    Accepted, Guard, Ledger, LedgerOptions, LedgerReader, Mark, MarkFile, MarkStore, MarkStoreError,
    Unbudgeted,
};
use windfall_reward_service::{CallError, MarkKeeper, Payer, RewardHandle, RewardOptions, RewardService};

/// A data directory, a mark and a payer's book, each in a place of its own.
struct Ground {
    folder: tempfile::TempDir,
}

impl Ground {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("data")).unwrap();
        Self { folder }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn file(&self) -> MarkFile {
        MarkFile::new(self.folder.path().join("mark"))
    }

    fn book(&self) -> PathBuf {
        self.folder.path().join("book")
    }

    /// Copies the data directory, or copies it back over the present one.
    fn copy(&self, from: &Path, to: &Path) {
        fs::remove_dir_all(to).ok();
        fs::create_dir(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }

    fn start(&self, options: RewardOptions) -> (RewardHandle, MarkKeeper) {
        let file = Arc::new(self.file());
        let guard = Arc::new(Guard::new(vec![Some(file.load().unwrap())]));
        self.start_with(options, guard, vec![file])
    }

    /// Badges and withdrawals are paid by the same downstream.
    fn start_with(
        &self,
        mut options: RewardOptions,
        guard: Arc<Guard>,
        stores: Vec<Arc<dyn MarkStore>>,
    ) -> (RewardHandle, MarkKeeper) {
        options.pays.insert("badge".into(), Payer::Connector("fake".into()));
        options.payout = Payer::Connector("fake".into());
        let ledger_options = LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() };
        let ledger = Ledger::open(ledger_path(&self.data()), &ledger_options).unwrap();
        let ledger = ledger.guarded(Arc::clone(&guard)).unwrap();
        let fake = FakeOptions { rate_per_s: 0, latency_ms: 0, ..FakeOptions::default() };
        let fake: Arc<dyn Connector> =
            Arc::new(FakeDownstream::open(self.book(), fake, Clock::system()).unwrap());
        let rewards = RewardService::start(options, ledger, vec![fake], None, Clock::system()).unwrap();
        let keeper = MarkKeeper::new(rewards.clone(), guard, stores, 100);
        (rewards, keeper)
    }

    fn paid(&self) -> Vec<String> {
        FakeBook::read(self.book()).unwrap().into_iter().map(|one| one.trade_no).collect()
    }
}

fn out(id: &str) -> Withdrawal {
    Withdrawal { id: id.into(), user_id: 1, bonus_type: "cash".into(), amount: 4 }
}

fn is_stopped(outcome: &Result<WithdrawalOutcome, AccountsError>) -> bool {
    matches!(outcome, Err(AccountsError::Unavailable { what, .. }) if what.contains("payouts are stopped"))
}

fn is_to_come_again(reply: &GrantReply) -> bool {
    matches!(reply, GrantReply::Retry { reason: RetryReason::StoreUnavailable, .. })
}

#[tokio::test]
async fn a_data_directory_that_was_restored_from_a_copy_pays_nothing_out_until_it_is_accepted() {
    let ground = Ground::new();
    let (rewards, mut keeper) = ground.start(RewardOptions::default());
    assert_eq!(rewards.grant_batch("cash", &[cash("o/1", 1, 10)]).await, [GrantReply::Credited]);
    keeper.pass().await.unwrap();
    rewards.close();
    drop((rewards, keeper));
    let copy = ground.folder.path().join("copy");
    ground.copy(&ground.data(), &copy);

    let (rewards, mut keeper) = ground.start(RewardOptions::default());
    assert_eq!(rewards.grant_batch("badge", &[badge("b/1")]).await, [GrantReply::Credited]);
    assert_eq!(rewards.withdraw(&out("out/1")).await, Ok(WithdrawalOutcome::Paid));
    let lost = keeper.pass().await.unwrap().unwrap();
    rewards.close();
    drop((rewards, keeper));
    ground.copy(&copy, &ground.data());

    let (rewards, mut keeper) = ground.start(RewardOptions::default());
    assert!(rewards.payouts_stopped());
    assert_eq!(keeper.pass().await.unwrap(), None);
    let stats = rewards.mark_stats().unwrap();
    assert!(stats.went_back && stats.payouts_stopped);
    assert_eq!(stats.mark_beat, u64::try_from(lost.beat).ok());
    assert!(stats.beat < stats.mark_beat);
    // The balance is there once more, and everybody asks.
    assert!(is_stopped(&rewards.withdraw(&out("out/1")).await));
    assert!(is_stopped(&rewards.withdraw(&out("out/2")).await));
    for (bonus_type, event) in [("badge", badge("b/2")), ("cash", cash("o/2", 1, 10))] {
        let replies = rewards.grant_batch(bonus_type, &[event]).await;
        assert!(is_to_come_again(&replies[0]), "{replies:?}");
    }
    assert_eq!(rewards.resume_held(0, "", 10).await.unwrap().paid, 0);
    assert_eq!(ground.paid(), ["b/1", "withdrawal out/1"], "nothing was asked of the payer");
    assert_eq!(ground.file().load().unwrap(), Some(lost), "the mark is kept");

    let wrong = rewards.accept_ledger(2, "ann", "reconciled").await;
    assert!(matches!(wrong, Err(CallError::Ledger(_))), "{wrong:?}");
    let accepted = rewards.accept_ledger(1, "ann", "reconciled").await.unwrap();
    assert!(matches!(accepted, Accepted::Now { ref ledger, .. } if ledger.generation == 2), "{accepted:?}");
    let again = rewards.accept_ledger(1, "bob", "reconciled").await.unwrap();
    assert!(matches!(again, Accepted::Before { ref actor, .. } if actor == "ann"), "{again:?}");
    assert!(!rewards.payouts_stopped());
    let mark = keeper.pass().await.unwrap().unwrap();
    assert_eq!((mark.generation, ground.file().load().unwrap()), (2, Some(mark.clone())));
    // Asked again with the same keys, the payer pays nothing twice.
    assert_eq!(rewards.grant_batch("badge", &[badge("b/1")]).await, [GrantReply::Credited]);
    assert_eq!(rewards.withdraw(&out("out/1")).await, Ok(WithdrawalOutcome::Paid));
    assert_eq!(ground.paid(), ["b/1", "withdrawal out/1"]);
    rewards.close();
    assert!(LedgerReader::open(ledger_path(&ground.data())).unwrap().reconcile().unwrap().is_clean());
}

#[tokio::test]
async fn grants_of_the_ledger_go_on_where_an_option_asks_for_it_and_payouts_do_not() {
    let ground = Ground::new();
    let ahead = Mark {
        generation: 1,
        lineage: "another".into(),
        beat: 9,
        server: windfall_ledger::ServerPosition::default(),
    };
    assert!(ground.file().replace(None, &ahead).unwrap());
    let options = RewardOptions { grant_when_ledger_went_back: true, ..RewardOptions::default() };
    let (rewards, _) = ground.start(options);
    assert_eq!(rewards.grant_batch("cash", &[cash("o/1", 1, 10)]).await, [GrantReply::Credited]);
    let replies = rewards.grant_batch("badge", &[badge("b/1")]).await;
    assert!(is_to_come_again(&replies[0]), "{replies:?}");
    assert!(is_stopped(&rewards.withdraw(&out("out/1")).await));
    assert!(ground.paid().is_empty());
    rewards.close();
}

/// A place that cannot be read at first.
#[derive(Debug)]
struct Away {
    file: MarkFile,
    is_away: std::sync::atomic::AtomicBool,
}

impl Away {
    fn check(&self) -> Result<(), MarkStoreError> {
        match self.is_away.load(std::sync::atomic::Ordering::Acquire) {
            true => Err(MarkStoreError { place: self.place(), what: "it is away".into() }),
            false => Ok(()),
        }
    }
}

impl MarkStore for Away {
    fn place(&self) -> String {
        "far away".into()
    }

    fn load(&self) -> Result<Option<Mark>, MarkStoreError> {
        self.check().and_then(|()| self.file.load())
    }

    fn replace(&self, old: Option<&Mark>, new: &Mark) -> Result<bool, MarkStoreError> {
        self.check().and_then(|()| self.file.replace(old, new))
    }
}

#[tokio::test]
async fn where_nobody_can_know_the_mark_payouts_wait_and_grants_do_not() {
    let ground = Ground::new();
    let away = Arc::new(Away { file: ground.file(), is_away: true.into() });
    let guard = Arc::new(Guard::new(vec![None]));
    let (rewards, mut keeper) =
        ground.start_with(RewardOptions::default(), guard, vec![Arc::clone(&away) as _]);
    assert_eq!(rewards.grant_batch("cash", &[cash("o/1", 1, 10)]).await, [GrantReply::Credited]);
    keeper.pass().await.unwrap();
    assert!(is_stopped(&rewards.withdraw(&out("out/1")).await));
    assert_eq!(rewards.mark_stats().unwrap().failures, 1);
    assert!(!rewards.mark_stats().unwrap().went_back);
    away.is_away.store(false, std::sync::atomic::Ordering::Release);
    let mark = keeper.pass().await.unwrap();
    assert_eq!(away.load().unwrap(), mark);
    assert_eq!(rewards.withdraw(&out("out/1")).await, Ok(WithdrawalOutcome::Paid));
    // Gone again, it stops nothing: the process itself knows how far it was.
    away.is_away.store(true, std::sync::atomic::Ordering::Release);
    keeper.pass().await.unwrap();
    assert_eq!(rewards.withdraw(&out("out/2")).await, Ok(WithdrawalOutcome::Paid));
    rewards.close();
}

#[tokio::test]
async fn a_mark_is_written_behind_the_commits_and_only_when_there_were_any() {
    let ground = Ground::new();
    let (rewards, mut keeper) = ground.start(RewardOptions::default());
    let first = keeper.pass().await.unwrap().unwrap();
    assert_eq!(ground.file().load().unwrap(), Some(first.clone()));
    assert_eq!(keeper.pass().await.unwrap(), Some(first.clone()), "nothing was committed");
    assert_eq!(rewards.grant_batch("cash", &[cash("o/1", 1, 10)]).await, [GrantReply::Credited]);
    assert_eq!(ground.file().load().unwrap(), Some(first.clone()));
    let second = keeper.pass().await.unwrap().unwrap();
    assert!(second.beat > first.beat);
    // Killed before the next mark: the next start holds the older one.
    assert_eq!(rewards.grant_batch("cash", &[cash("o/2", 1, 10)]).await, [GrantReply::Credited]);
    rewards.close();
    drop((rewards, keeper));
    let (rewards, _) = ground.start(RewardOptions::default());
    assert!(!rewards.payouts_stopped());
    assert_eq!(rewards.withdraw(&out("out/1")).await, Ok(WithdrawalOutcome::Paid));
    rewards.close();
    assert!(matches!(rewards.accept_ledger(1, "ann", "late").await, Err(CallError::Closed)));
}
