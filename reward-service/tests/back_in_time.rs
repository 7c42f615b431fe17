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
use windfall_contract::rewards::{Failed, GrantReply, Rejection, RetryReason, Rewards};
use windfall_ledger::{
    Accepted, ArchiveFilter, Guard, Ledger, LedgerError, LedgerOptions, LedgerReader, Mark, MarkFile,
    MarkStore, MarkStoreError, ServerPosition, Unbudgeted,
};
use windfall_reward_service::{
    AcknowledgeError, CallError, MarkKeeper, PaidOut, Payer, ReleaseError, RewardHandle, RewardOptions,
    RewardService,
};

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

/// A mark that the ledger of a test does not hold.
fn ahead(generation: i64) -> Mark {
    Mark { generation, lineage: "another".into(), beat: 9, server: ServerPosition::default() }
}

/// Accepts the ledger as this process has found it.
async fn accept(
    rewards: &RewardHandle,
    generation: i64,
    actor: &str,
    reason: &str,
) -> Result<Accepted, CallError> {
    let Mark { lineage, beat, .. } = rewards.guard().unwrap().state().ledger.unwrap();
    rewards.accept_ledger((generation, &lineage, beat), actor, reason).await
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
    assert_eq!(
        ground.paid(),
        ["order spring-2027 b/1", "withdrawal  1 out/1"],
        "nothing was asked of the payer"
    );
    assert_eq!(ground.file().load().unwrap(), Some(lost), "the mark is kept");

    let wrong = accept(&rewards, 2, "ann", "reconciled").await;
    assert!(matches!(wrong, Err(CallError::Ledger(_))), "{wrong:?}");
    let accepted = accept(&rewards, 1, "ann", "reconciled").await.unwrap();
    assert!(matches!(accepted, Accepted::Now { ref ledger, .. } if ledger.generation == 2), "{accepted:?}");
    let again = accept(&rewards, 1, "bob", "reconciled").await.unwrap();
    assert!(matches!(again, Accepted::Before { ref actor, .. } if actor == "ann"), "{again:?}");
    assert!(!rewards.payouts_stopped());
    let mark = keeper.pass().await.unwrap().unwrap();
    assert_eq!((mark.generation, ground.file().load().unwrap()), (2, Some(mark.clone())));
    // Asked again with the same keys, the payer pays nothing twice.
    assert_eq!(rewards.grant_batch("badge", &[badge("b/1")]).await, [GrantReply::Credited]);
    assert_eq!(rewards.withdraw(&out("out/1")).await, Ok(WithdrawalOutcome::Paid));
    assert_eq!(ground.paid(), ["order spring-2027 b/1", "withdrawal  1 out/1"]);
    rewards.close();
    assert!(LedgerReader::open(ledger_path(&ground.data())).unwrap().reconcile().unwrap().is_clean());
}

#[tokio::test]
async fn grants_of_the_ledger_go_on_where_an_option_asks_for_it_and_payouts_do_not() {
    let ground = Ground::new();
    assert!(ground.file().replace(None, &ahead(1)).unwrap());
    let options = RewardOptions { grant_when_ledger_went_back: true, ..RewardOptions::default() };
    let (rewards, _) = ground.start(options);
    assert_eq!(rewards.grant_batch("cash", &[cash("o/1", 1, 10)]).await, [GrantReply::Credited]);
    let replies = rewards.grant_batch("badge", &[badge("b/1")]).await;
    assert!(is_to_come_again(&replies[0]), "{replies:?}");
    assert!(is_stopped(&rewards.withdraw(&out("out/1")).await));
    assert!(matches!(rewards.to_pay_out(0, "", 9).await, Err(AccountsError::Unavailable { .. })));
    let said = rewards.acknowledge(1, "out/1", PaidOut::Paid).await;
    assert!(matches!(said, Err(AcknowledgeError::Accounts(AccountsError::Unavailable { .. }))), "{said:?}");
    assert!(ground.paid().is_empty());
    rewards.close();
}

/// A place that cannot be read for a while.
#[derive(Debug)]
struct Away {
    file: MarkFile,
    is_away: std::sync::atomic::AtomicBool,
}

impl Away {
    fn set(&self, is_away: bool) {
        self.is_away.store(is_away, std::sync::atomic::Ordering::Release);
    }

    fn check(&self) -> Result<(), MarkStoreError> {
        match self.is_away.load(std::sync::atomic::Ordering::Acquire) {
            true => Err(MarkStoreError { place: self.place(), what: "it is away".into(), may_pass: true }),
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
    away.set(false);
    let mark = keeper.pass().await.unwrap();
    assert_eq!(away.load().unwrap(), mark);
    assert_eq!(rewards.withdraw(&out("out/1")).await, Ok(WithdrawalOutcome::Paid));
    // Gone again, it stops nothing: the process itself knows how far it was.
    away.set(true);
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
    assert!(matches!(accept(&rewards, 1, "ann", "late").await, Err(CallError::Closed)));
}

#[tokio::test]
async fn a_place_that_fails_after_the_ledger_was_found_behind_ends_nothing() {
    let ground = Ground::new();
    assert!(ground.file().replace(None, &ahead(1)).unwrap());
    let away = Arc::new(Away { file: ground.file(), is_away: false.into() });
    let empty = Arc::new(MarkFile::new(ground.folder.path().join("empty")));
    let guard = Arc::new(Guard::new(vec![Some(away.load().unwrap()), Some(None)]));
    let stores: Vec<Arc<dyn MarkStore>> = vec![Arc::clone(&away) as _, Arc::clone(&empty) as _];
    let (rewards, mut keeper) = ground.start_with(RewardOptions::default(), guard, stores);
    assert!(rewards.payouts_stopped());
    away.set(true);
    for _ in 0..3 {
        assert_eq!(keeper.pass().await.unwrap(), None);
    }
    assert!(is_stopped(&rewards.withdraw(&out("out/1")).await));
    assert_eq!(empty.load().unwrap(), None, "the stale ledger's mark is written nowhere");
    rewards.close();
}

#[tokio::test]
async fn a_mark_of_somebody_who_took_the_stale_ledger_as_it_is_deceives_nobody_who_knew_better() {
    let ground = Ground::new();
    assert!(ground.file().replace(None, &ahead(1)).unwrap());
    let (rewards, mut keeper) = ground.start(RewardOptions::default());
    assert_eq!(keeper.pass().await.unwrap(), None);
    let stale = rewards.guard().unwrap().state().ledger.unwrap();
    assert!(ground.file().replace(Some(&ahead(1)), &stale).unwrap());
    for _ in 0..3 {
        assert_eq!(keeper.pass().await.unwrap(), None);
    }
    assert!(is_stopped(&rewards.withdraw(&out("out/1")).await));
    assert_eq!(rewards.guard().unwrap().state().mark, Some(ahead(1)));
    accept(&rewards, 1, "ann", "reconciled").await.unwrap();
    assert_eq!(keeper.pass().await.unwrap().map(|mark| mark.generation), Some(2));
    assert!(!rewards.payouts_stopped());
    rewards.close();
}

#[tokio::test]
async fn a_place_that_comes_back_with_a_mark_that_the_ledger_lacks_lets_nothing_out() {
    let ground = Ground::new();
    assert!(ground.file().replace(None, &ahead(1)).unwrap());
    let away = Arc::new(Away { file: ground.file(), is_away: true.into() });
    let guard = Arc::new(Guard::new(vec![None]));
    let (rewards, mut keeper) =
        ground.start_with(RewardOptions::default(), Arc::clone(&guard), vec![Arc::clone(&away) as _]);
    keeper.pass().await.unwrap();
    let refused = accept(&rewards, 1, "ann", "it looks well").await;
    assert!(
        matches!(&refused, Err(CallError::Ledger(LedgerError::Invalid(why))) if why.contains("nothing to accept")),
        "a mark that nobody has read is not given up: {refused:?}"
    );
    away.set(false);
    guard.learn(0, away.load().unwrap());
    assert!(rewards.payouts_stopped(), "it was read, and nothing was compared with it yet");
    assert_eq!(keeper.pass().await.unwrap(), None);
    assert!(is_stopped(&rewards.withdraw(&out("out/1")).await));
    rewards.close();
}

#[tokio::test]
async fn nothing_is_archived_or_released_in_a_ledger_that_went_back() {
    let ground = Ground::new();
    assert!(ground.file().replace(None, &ahead(1)).unwrap());
    let (rewards, _) = ground.start(RewardOptions::default());
    let failed = Failed {
        payload: cash("o/1", 1, 10),
        rejection: Rejection::Malformed,
        detail: "it failed too often".into(),
    };
    let refused = rewards.archive(std::slice::from_ref(&failed)).await.unwrap_err();
    assert!(refused.to_string().contains("the ledger went back in time"), "{refused}");
    assert!(
        rewards
            .archive_list(ArchiveFilter { limit: 10, ..ArchiveFilter::default() })
            .await
            .unwrap()
            .is_empty()
    );
    let refused = rewards.release(None, "o/2", "ann").await;
    assert!(
        matches!(refused, Err(ReleaseError::Call(CallError::Ledger(LedgerError::Unavailable(_))))),
        "{refused:?}"
    );
    accept(&rewards, 1, "ann", "reconciled").await.unwrap();
    rewards.archive(&[failed]).await.unwrap();
    assert!(matches!(rewards.release(None, "o/2", "ann").await, Err(ReleaseError::NotReserved(_))));
    rewards.close();
}

#[tokio::test]
async fn a_second_step_back_is_accepted_above_every_known_generation_and_a_sound_ledger_not_at_all() {
    let ground = Ground::new();
    // Accepted twice, and then restored from a copy of before both.
    assert!(ground.file().replace(None, &ahead(3)).unwrap());
    let (rewards, mut keeper) = ground.start(RewardOptions::default());
    assert!(rewards.payouts_stopped());
    let accepted = accept(&rewards, 1, "ann", "reconciled").await.unwrap();
    assert!(matches!(accepted, Accepted::Now { ref ledger, .. } if ledger.generation == 4), "{accepted:?}");
    assert!(!rewards.payouts_stopped(), "it goes on");
    assert_eq!(keeper.pass().await.unwrap().unwrap().generation, 4);
    let again = accept(&rewards, 1, "bob", "reconciled").await.unwrap();
    assert!(matches!(again, Accepted::Before { ref actor, .. } if actor == "ann"), "{again:?}");
    let refused = accept(&rewards, 4, "ann", "once more").await;
    assert!(
        matches!(&refused, Err(CallError::Ledger(LedgerError::Invalid(why))) if why.contains("nothing to accept")),
        "{refused:?}"
    );
    rewards.close();
}

/// A place whose calls hang until the test lets them go.
#[derive(Debug)]
struct Hung {
    go: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
}

impl MarkStore for Hung {
    fn place(&self) -> String {
        "a disk that hangs".into()
    }

    fn load(&self) -> Result<Option<Mark>, MarkStoreError> {
        self.go.lock().unwrap().recv().ok();
        Ok(None)
    }

    fn replace(&self, _old: Option<&Mark>, _new: &Mark) -> Result<bool, MarkStoreError> {
        Ok(true)
    }
}

#[tokio::test]
async fn a_place_that_hangs_keeps_neither_the_ledger_from_its_comparison_nor_other_places_from_the_mark() {
    let ground = Ground::new();
    let (go, gone) = std::sync::mpsc::sync_channel::<()>(1);
    let hung = Arc::new(Hung { go: std::sync::Mutex::new(gone) });
    let guard = Arc::new(Guard::new(vec![Some(None), Some(None)]));
    let stores: Vec<Arc<dyn MarkStore>> = vec![hung, Arc::new(ground.file())];
    let (rewards, mut keeper) = ground.start_with(RewardOptions::default(), Arc::clone(&guard), stores);
    for _ in 0..3 {
        let mark = keeper.pass().await.unwrap();
        assert_eq!(ground.file().load().unwrap(), mark, "it is kept at the place that answers");
    }
    assert_eq!(rewards.mark_stats().unwrap().failures, 3);
    // What another process has written is noticed all the same.
    let old = ground.file().load().unwrap();
    assert!(ground.file().replace(old.as_ref(), &ahead(1)).unwrap());
    assert_eq!(keeper.pass().await.unwrap(), None);
    assert!(rewards.payouts_stopped());
    drop(go);
    rewards.close();
}

#[tokio::test]
async fn a_call_that_takes_long_holds_up_no_answer_of_the_same_transaction() {
    let ground = Ground::new();
    let (rewards, _) = ground.start(RewardOptions::default());
    let call = |gate: std::sync::mpsc::Receiver<()>| {
        let rewards = rewards.clone();
        tokio::spawn(async move {
            rewards
                .call(move |_| {
                    gate.recv().ok();
                    Ok(())
                })
                .await
        })
    };
    let queued = async |events: usize| {
        while rewards.stats().queued_events != events {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    let (first_gate, gate) = std::sync::mpsc::sync_channel::<()>(1);
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let own = rewards.clone();
    let first = tokio::spawn(async move {
        own.call(move |_| {
            begun.send(()).ok();
            gate.recv().ok();
            Ok(())
        })
        .await
    });
    has_begun.await.unwrap();
    // The writer is busy. A call and a grant wait for it, and are taken together.
    let (second_gate, gate) = std::sync::mpsc::sync_channel::<()>(1);
    let second = call(gate);
    queued(1).await;
    let own = rewards.clone();
    let grant = tokio::spawn(async move { own.grant_batch("cash", &[cash("o/1", 1, 10)]).await });
    queued(2).await;
    drop(first_gate);
    let granted = tokio::time::timeout(std::time::Duration::from_secs(60), grant).await;
    let granted = granted.expect("the answer waits for the call").unwrap();
    assert_eq!(granted, [GrantReply::Credited]);
    assert!(!second.is_finished());
    drop(second_gate);
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    rewards.close();
}
