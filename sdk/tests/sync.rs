//! A spool that is synced, on a disk that is slow or fails. A process of its own: the switch is one for the process.
#![allow(clippy::unwrap_used)] // a test

#[path = "sdk/stage.rs"]
#[allow(dead_code)] // each test binary uses some of it
mod stage;

use parking_lot::{Condvar, Mutex, MutexGuard};
use stage::{MINUTE, Mood, Setup, Stage, comes_true, one_queue, request, standing_clock, wait_until};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;
use windfall_proto::v1::{Bonus, SendBonusRequest};
use windfall_sdk::{SdkOptions, SendError, SpoolDurability};

/// The switch is one for the process: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
/// Syncs of threads with this name wait until the test lets them go.
const SLOW: &str = "slow-caller";

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock()
}

/// A disk whose syncs wait until the test lets them go, so that it decides what happens meanwhile.
#[derive(Default)]
struct Disk {
    is_let_go: Mutex<bool>,
    let_go: Condvar,
    /// Syncs that have begun.
    begun: AtomicU64,
}

impl Disk {
    /// Ends by itself after a minute, so that a test that has failed ends, too.
    fn sync(&self) {
        self.begun.fetch_add(1, SeqCst);
        let until = Instant::now() + MINUTE;
        let mut is_let_go = self.is_let_go.lock();
        while !*is_let_go && !self.let_go.wait_until(&mut is_let_go, until).timed_out() {}
    }

    fn let_go(&self) {
        *self.is_let_go.lock() = true;
        self.let_go.notify_all();
    }
}

fn synced(root: &std::path::Path, shards: usize) -> Setup {
    let options = SdkOptions {
        spool_bytes: 4 << 20,
        spool_durability: SpoolDurability::Machine,
        shards,
        ..SdkOptions::default()
    };
    let spool = options.spool_in(root);
    Setup { options, spool }
}

fn coin(trade_no: &str) -> SendBonusRequest {
    let bonus = Some(Bonus { r#type: "coin".into(), amount: 1, description: String::new() });
    SendBonusRequest { bonus, ..request(trade_no, 1) }
}

/// A sync used to be waited for under the lock of its shard, for which the pump waited as well.
#[test]
fn a_slow_sync_of_one_caller_stops_no_other_one() {
    let _alone = alone();
    let root = tempfile::tempdir().unwrap();
    let stage = Stage::with_brokers(synced(root.path(), 2), &one_queue(), Mood::Store);
    let disk = Arc::new(Disk::default());
    let own = Arc::clone(&disk);
    windfall_spool::sabotage::on_sync(move |_| {
        if std::thread::current().name() == Some(SLOW) {
            own.sync();
        }
        Ok(())
    });
    let arrived = || stage.arrived().into_iter().collect::<BTreeSet<_>>();
    std::thread::scope(|scope| {
        let slow = std::thread::Builder::new().name(SLOW.into());
        let slow = slow.spawn_scoped(scope, || stage.sdk.send_bonus(&request("slow", 1))).unwrap();
        let has_begun = comes_true(|| disk.begun.load(SeqCst) == 1);
        let others = scope.spawn(|| {
            for number in 0..1_000 {
                stage.sdk.send_bonus(&coin(&format!("quick-{number}"))).unwrap();
            }
        });
        let have_returned = comes_true(|| others.is_finished());
        let have_arrived = comes_true(|| arrived().len() >= 1_000);
        let (before, still_waits) = (arrived(), !slow.is_finished());
        disk.let_go();
        assert!(has_begun && still_waits, "the slow caller waited for no sync");
        assert!(have_returned, "callers of other packs wait for its sync");
        assert!(have_arrived, "the pump waits for its sync: {} arrived", before.len());
        assert!(!before.contains("slow"), "it was sent before the disk had it");
        others.join().unwrap();
        slow.join().unwrap().unwrap();
    });
    windfall_spool::sabotage::on_sync(|_| Ok(()));
    wait_until("the slow one has arrived", || arrived().contains("slow"));
    stage.end();
}

/// They store their events while the first one's sync is under way: the next sync is for all of them.
#[test]
fn callers_of_one_pack_share_a_sync() {
    const CALLERS: u64 = 8;
    let _alone = alone();
    let root = tempfile::tempdir().unwrap();
    // The pack stays open until the test moves the clock.
    let (now_ms, clock) = standing_clock();
    let stage = Stage::with_clock(synced(root.path(), 1), &one_queue(), Mood::Store, clock);
    let disk = Arc::new(Disk::default());
    let own = Arc::clone(&disk);
    windfall_spool::sabotage::on_sync(move |_| {
        own.sync();
        Ok(())
    });
    std::thread::scope(|scope| {
        let stage = &stage;
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| scope.spawn(move || stage.sdk.send_bonus(&request(&format!("o-{caller}"), 1))))
            .collect();
        let have_stored = comes_true(|| stage.sdk.stats().sent == CALLERS);
        disk.let_go();
        assert!(have_stored, "callers wait for the sync of another one before they store their event");
        for caller in callers {
            caller.join().unwrap().unwrap();
        }
    });
    let syncs = disk.begun.load(SeqCst);
    assert!(syncs <= 2, "{syncs} syncs for {CALLERS} calls");
    windfall_spool::sabotage::on_sync(|_| Ok(()));
    now_ms.fetch_add(1_000, SeqCst);
    wait_until("all are in one pack", || stage.arrived().len() == 8 && stage.records().len() == 1);
    stage.end();
}

#[test]
fn what_the_disk_did_not_take_is_refused_and_not_sent() {
    let _alone = alone();
    let root = tempfile::tempdir().unwrap();
    let stage = Stage::with_brokers(synced(root.path(), 1), &one_queue(), Mood::Refuse);
    stage.sdk.send_bonus(&request("o-1", 1)).unwrap();
    windfall_spool::sabotage::on_sync(|_| Err(std::io::Error::other("scripted")));
    assert_eq!(stage.sdk.send_bonus(&request("o-2", 1)), Err(SendError::SpoolFull));
    windfall_spool::sabotage::on_sync(|_| Ok(()));
    assert_eq!(
        stage.sdk.send_bonus(&request("o-3", 1)),
        Err(SendError::SpoolFull),
        "a disk that failed is not trusted"
    );
    assert_eq!(stage.sdk.stats().sent, 1);
    stage.break_off();
    let stage = Stage::with_brokers(synced(root.path(), 1), &one_queue(), Mood::Store);
    assert_eq!(stage.inherited.events, 1);
    stage.wait_for_events(1);
    assert_eq!(stage.arrived(), ["o-1"]);
    stage.end();
}
