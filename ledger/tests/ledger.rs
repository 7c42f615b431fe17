//! The ledger in a file: it passes the suite, and says what is wrong with a file that cannot be used.

#![allow(clippy::unwrap_used, clippy::cast_possible_wrap)]

use std::path::PathBuf;
use tempfile::TempDir;
use windfall_conformance::ledger::{self, Fixture, Place};
use windfall_ledger::{
    Auditor, Ledger, LedgerError, LedgerOptions, LedgerReader, OpenError, Order, OrderOutcome, Sealer,
    Unbudgeted, Writers,
};

struct Files;

struct Folder(TempDir);

impl Folder {
    fn path(&self) -> PathBuf {
        self.0.path().join("ledger.db")
    }
}

impl Fixture for Files {
    fn fresh(&self) -> Result<Box<dyn Place>, Box<dyn std::error::Error>> {
        Ok(Box::new(Folder(tempfile::tempdir()?)))
    }
}

impl Place for Folder {
    fn open(&self, unbudgeted: Unbudgeted) -> Result<Ledger, OpenError> {
        Ledger::open(self.path(), &LedgerOptions { unbudgeted, ..LedgerOptions::default() })
    }

    fn reader(&self) -> Result<LedgerReader, OpenError> {
        LedgerReader::open(self.path())
    }

    fn sealer(&self) -> Result<Sealer, OpenError> {
        Sealer::open(self.path())
    }

    fn auditor(&self) -> Result<Auditor, OpenError> {
        Auditor::open(self.path())
    }
}

#[test]
fn it_passes_the_suite() {
    ledger::run(&Files);
}

#[test]
fn a_file_has_one_writer() {
    let (_folder, _, ledger) = fresh();
    assert_eq!(ledger.writers(), Writers::One);
    assert!(matches!(ledger.another(), Err(OpenError::InUse { .. })));
}

fn fresh() -> (TempDir, PathBuf, Ledger) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let ledger =
        Ledger::open(&path, &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() })
            .unwrap();
    (folder, path, ledger)
}

fn order(trade_no: &str, user_id: i64, amount: i64) -> Order<'_> {
    Order { trade_no, user_id, activity: "spring", scene: "rain", bonus_type: "cash", amount, time_ms: 1_000 }
}

#[test]
fn a_full_disk_is_named_and_leaves_nothing_half_done() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let small = LedgerOptions {
        max_bytes: Some(400 * 1024),
        unbudgeted: Unbudgeted::Allow,
        ..LedgerOptions::default()
    };
    let mut ledger = Ledger::open(&path, &small).unwrap();
    let names: Vec<String> = (0..20_000).map(|nth| format!("order/{nth:05}")).collect();
    let mut credited = 0;
    let mut full = false;
    for part in names.chunks(500) {
        let batch: Vec<_> = part.iter().map(|name| order(name, 1, 1)).collect();
        match ledger.apply(&batch) {
            Ok(outcomes) => credited += outcomes.len() as i64,
            Err(LedgerError::Full) => full = true,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(full);
    assert_eq!(ledger.balance(1, "cash").unwrap(), credited);
    assert!(ledger.reconcile().unwrap().is_clean());
    drop(ledger);
    // With room again, the same batches are asked again.
    let mut ledger =
        Ledger::open(&path, &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() })
            .unwrap();
    for part in names.chunks(500) {
        let batch: Vec<_> = part.iter().map(|name| order(name, 1, 1)).collect();
        ledger.apply(&batch).unwrap();
    }
    assert_eq!(ledger.balance(1, "cash").unwrap(), 20_000);
    assert!(ledger.reconcile().unwrap().is_clean());
}

#[test]
fn a_file_that_cannot_be_used_says_why() {
    let (folder, path, ledger) = fresh();
    let options = LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() };
    assert!(matches!(Ledger::open(&path, &options), Err(OpenError::InUse { .. })));
    LedgerReader::open(&path).unwrap();
    drop(ledger);
    let other = folder.path().join("other.db");
    std::fs::write(
        &other,
        "this is a letter to my aunt, not a database, and longer than a header of 100 bytes. \
        Dear aunt, the weather is fine.",
    )
    .unwrap();
    assert!(matches!(Ledger::open(&other, &options), Err(OpenError::Damaged { .. })));
    assert!(matches!(LedgerReader::open(&other), Err(OpenError::Damaged { .. })));
    assert!(LedgerReader::open(folder.path().join("none.db")).is_err());
    assert!(!folder.path().join("none.db").exists(), "a reader creates nothing");
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute_batch("PRAGMA user_version = 99").unwrap();
    drop(raw);
    let newer = Ledger::open(&path, &options).map(drop);
    assert!(matches!(newer, Err(OpenError::Newer { found: 99, known: 6, .. })), "{newer:?}");
    assert!(Ledger::open(folder.path().join("no/such/folder.db"), &options).is_err());
    let foreign = folder.path().join("foreign.db");
    rusqlite::Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    assert!(matches!(Ledger::open(&foreign, &options), Err(OpenError::Damaged { .. })));
}

#[test]
#[cfg(target_os = "linux")]
fn a_folder_that_may_not_be_written_is_named() {
    // Not even root makes files there.
    let refused = Ledger::open(
        "/sys/ledger.db",
        &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() },
    )
    .map(drop);
    assert!(matches!(refused, Err(OpenError::ReadOnly { .. })), "{refused:?}");
}

#[test]
fn a_locked_file_is_busy_and_the_batch_can_be_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let options =
        LedgerOptions { busy_timeout_ms: 10, unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() };
    let mut ledger = Ledger::open(&path, &options).unwrap();
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    let busy = ledger.apply(&[order("a", 1, 1)]);
    assert!(matches!(busy, Err(LedgerError::Busy)), "{busy:?}");
    raw.execute_batch("ROLLBACK").unwrap();
    assert_eq!(ledger.apply(&[order("a", 1, 1)]).unwrap(), [OrderOutcome::Credited]);
}
