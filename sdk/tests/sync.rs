//! A spool that is synced, on a disk that is slow or fails. A process of its own: the switch is one for the process.
#![allow(clippy::unwrap_used)] // a test

#[path = "sdk/stage.rs"]
#[allow(dead_code)] // each test binary uses some of it
mod stage;

use parking_lot::{Mutex, MutexGuard};
use stage::{Mood, Setup, Stage, one_queue, request};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use windfall_proto::v1::{Bonus, SendBonusRequest};
use windfall_sdk::{SdkOptions, SendError, SpoolDurability};

/// The switch is one for the process: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
/// Syncs of threads with this name are slow.
const SLOW: &str = "slow-caller";

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock()
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
    windfall_spool::sabotage::on_sync(|_| {
        if std::thread::current().name() == Some(SLOW) {
            std::thread::sleep(Duration::from_millis(300));
        }
        Ok(())
    });
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let slow = std::thread::Builder::new().name(SLOW.into());
        let (stage, is_over) = (&stage, &is_over);
        let slow = slow.spawn_scoped(scope, move || {
            let mut sent = 0;
            while !is_over.load(SeqCst) {
                stage.sdk.send_bonus(&request(&format!("slow-{sent}"), 1)).unwrap();
                sent += 1;
            }
            sent
        });
        std::thread::sleep(Duration::from_millis(50));
        let mut took: Vec<_> = (0..1_000)
            .map(|number| {
                let began = Instant::now();
                stage.sdk.send_bonus(&coin(&format!("quick-{number}"))).unwrap();
                began.elapsed()
            })
            .collect();
        took.sort();
        let p99 = took[989];
        println!("p99 of the others beside a sync of 300 ms: {p99:?}");
        assert!(p99 < Duration::from_millis(150), "{p99:?}");
        let arrived = || stage.arrived().iter().filter(|trade_no| trade_no.starts_with("quick-")).count();
        let until = Instant::now() + Duration::from_secs(60);
        while arrived() < 1_000 {
            assert!(Instant::now() < until, "the pump waits for the disk: {} arrived", arrived());
            std::thread::sleep(Duration::from_millis(5));
        }
        is_over.store(true, SeqCst);
        assert!(slow.unwrap().join().unwrap() > 0);
    });
    windfall_spool::sabotage::on_sync(|_| Ok(()));
    stage.end();
}

#[test]
fn callers_of_one_pack_share_a_sync() {
    let _alone = alone();
    let root = tempfile::tempdir().unwrap();
    let stage = Stage::with_brokers(synced(root.path(), 1), &one_queue(), Mood::Store);
    static SYNCS: AtomicU64 = AtomicU64::new(0);
    SYNCS.store(0, SeqCst);
    windfall_spool::sabotage::on_sync(|_| {
        SYNCS.fetch_add(1, SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        Ok(())
    });
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let stage = &stage;
            scope.spawn(move || {
                for number in 0..10 {
                    stage.sdk.send_bonus(&request(&format!("o-{thread}-{number}"), 1)).unwrap();
                }
            });
        }
    });
    let syncs = SYNCS.load(SeqCst);
    assert!(syncs < 60, "{syncs} syncs for 80 calls, eight at a time");
    windfall_spool::sabotage::on_sync(|_| Ok(()));
    stage.wait_for_events(80);
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
