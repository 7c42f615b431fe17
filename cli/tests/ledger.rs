//! `windfall ledger` seals a ledger beside its writer, and says when it is not the one that was sealed.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use windfall_ledger::{Ledger, LedgerOptions, Order, Unbudgeted};

fn windfall(command: &str, data: &Path) -> Output {
    let arguments = ["ledger", command, "--json", "--data"];
    Command::new(env!("CARGO_BIN_EXE_windfall")).args(arguments).arg(data).output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_ledger_is_sealed_and_an_older_copy_of_it_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let options = LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() };
    let grant = |trade_no: &str| {
        let mut ledger = Ledger::open(&path, &options).unwrap();
        let (activity, scene, bonus_type) = ("spring", "rain", "cash");
        let order = Order { trade_no, user_id: 7, activity, scene, bonus_type, amount: 10, time_ms: 1_000 };
        ledger.apply(&[order]).unwrap();
        ledger
    };
    // The writer still has it open.
    let ledger = grant("a");
    let sealed = windfall("seal", folder.path());
    assert_eq!((sealed.status.code(), json(&sealed)["transfers"].as_i64()), (Some(0), Some(1)));
    drop(ledger);
    let verified = windfall("verify", folder.path());
    assert_eq!((verified.status.code(), json(&verified)["ok"].as_bool()), (Some(0), Some(true)));
    let copy = folder.path().join("copy.db");
    std::fs::copy(&path, &copy).unwrap();
    drop(grant("b"));
    assert_eq!(windfall("seal", folder.path()).status.code(), Some(0));
    // Somebody restores the copy.
    std::fs::rename(&copy, &path).unwrap();
    let verified = windfall("verify", folder.path());
    assert_eq!(verified.status.code(), Some(1));
    assert_eq!(json(&verified)["findings"][0]["kind"], "anchor");
    let refused = windfall("seal", folder.path());
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("windfall ledger verify"));
}
