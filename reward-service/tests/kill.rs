//! Killed at any moment, what was answered is there, once; asked again, everything is there, once.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use support::{assert_clean, bytes, event, id, ledger_path, start_with};
use windfall_connectors::fake::{FakeBook, FakeDownstream, FakeOptions};
use windfall_contract::Clock;
use windfall_contract::accounts::Status;
use windfall_contract::rewards::Rewards;
use windfall_ledger::LedgerReader;
use windfall_reward_service::RewardHandle;

/// Set for the child alone: its data directory.
const CHILD: &str = "WINDFALL_TEST_KILL_DIR";
const BATCHES: u32 = 4_000;
const BATCH: u32 = 50;

fn service(folder: &Path) -> RewardHandle {
    let options = FakeOptions { rate_per_s: 0, latency_ms: 0, ..FakeOptions::default() };
    let fake = FakeDownstream::open(folder.join("book"), options, Clock::system()).unwrap();
    start_with(folder, support::badge_options(), vec![Arc::new(fake)])
}

/// One of ten batches is paid by the downstream.
fn bonus_type(batch: u32) -> &'static str {
    if batch % 10 == 3 { "badge" } else { "cash" }
}

async fn grant(rewards: &RewardHandle, batch: u32) -> bool {
    let events: Vec<_> = (0..BATCH)
        .map(|nth| {
            let name = format!("order/{batch:05}/{nth:02}");
            bytes(event(&name, 1 + i64::from(nth), bonus_type(batch), 1 + i64::from(nth % 3)))
        })
        .collect();
    rewards.grant_batch(bonus_type(batch), &events).await.iter().all(|reply| reply.is_credited())
}

/// Does nothing unless a test below started it as a child.
#[test]
fn child_that_gets_killed() {
    let Ok(folder) = std::env::var(CHILD) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let rewards = service(&PathBuf::from(folder));
        let tasks: Vec<_> = (0..3)
            .map(|caller| {
                let rewards = rewards.clone();
                tokio::spawn(async move {
                    for batch in (caller..BATCHES).step_by(3) {
                        if grant(&rewards, batch).await {
                            writeln!(std::io::stderr(), "granted {batch}").unwrap();
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// Starts the child, kills it after a while, and answers which batches it said were granted.
fn run_and_kill(folder: &Path, after: Duration) -> Vec<u32> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_gets_killed", "--nocapture"])
        .env(CHILD, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap());
    let reader = std::thread::spawn(move || {
        let granted = |line: String| line.strip_prefix("granted ").and_then(|batch| batch.parse().ok());
        lines.lines().map_while(Result::ok).filter_map(granted).collect()
    });
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

#[tokio::test]
async fn killed_at_any_moment_what_was_answered_is_there_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut answered = Vec::new();
    for after_ms in [60, 231, 117, 402, 173] {
        answered.extend(run_and_kill(folder.path(), Duration::from_millis(after_ms)));
        let reader = LedgerReader::open(ledger_path(folder.path()));
        // Killed before it had made its tables, it cannot have answered anything.
        let Ok(reader) = reader else {
            assert!(answered.is_empty());
            continue;
        };
        for batch in &answered {
            let order = reader.order(id(&format!("order/{batch:05}/49"))).unwrap().unwrap();
            assert_eq!(order.status, Status::Credited, "batch {batch} was answered");
        }
        drop(reader);
        assert_clean(folder.path());
    }
    let last = answered.iter().max().copied().expect("some batch was granted within a second");
    let rewards = service(folder.path());
    // Each of the three callers had one more in hand, at most the third after the last that was answered; a
    // badge of it may be reserved still.
    for batch in 0..=last + 3 {
        assert!(grant(&rewards, batch).await, "batch {batch}");
    }
    rewards.close();
    assert_clean(folder.path());
    let reader = LedgerReader::open(ledger_path(folder.path())).unwrap();
    let mut badges = 0;
    for line in reader.orders().unwrap().map(Result::unwrap) {
        assert_eq!((line.status, line.credits), (Status::Credited, 1), "{line:?}");
        badges += usize::from(line.bonus_type == "badge");
    }
    let book = FakeBook::read(folder.path().join("book")).unwrap();
    assert_eq!(book.len(), badges, "what the downstream paid is what the ledger has");
}
