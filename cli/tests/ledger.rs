//! `windfall ledger` seals a ledger beside its writer, and says when it is not the one that was sealed.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use windfall_ledger::{Ledger, LedgerOptions, Mark, MarkFile, MarkStore, Order, ServerPosition, Unbudgeted};

fn windfall(command: &str, data: &Path) -> Output {
    windfall_with(command, data, &[])
}

fn windfall_with(command: &str, data: &Path, more: &[&str]) -> Output {
    let arguments = ["ledger", command, "--json", "--data"];
    let mut own = Command::new(env!("CARGO_BIN_EXE_windfall"));
    own.args(arguments).arg(data).args(more).output().unwrap()
}

/// A ledger in which this order is credited.
fn ledger_with(path: &Path, trade_no: &str) -> Ledger {
    let options = LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() };
    let mut ledger = Ledger::open(path, &options).unwrap();
    let (activity, scene, bonus_type) = ("spring", "rain", "cash");
    let order = Order { trade_no, user_id: 7, activity, scene, bonus_type, amount: 10, time_ms: 1_000 };
    ledger.apply(&[order]).unwrap();
    ledger
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_ledger_is_sealed_and_an_older_copy_of_it_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    // The writer still has it open.
    let ledger = ledger_with(&path, "a");
    let sealed = windfall("seal", folder.path());
    assert_eq!((sealed.status.code(), json(&sealed)["transfers"].as_i64()), (Some(0), Some(1)));
    drop(ledger);
    let verified = windfall("verify", folder.path());
    assert_eq!((verified.status.code(), json(&verified)["ok"].as_bool()), (Some(0), Some(true)));
    let copy = folder.path().join("copy.db");
    std::fs::copy(&path, &copy).unwrap();
    drop(ledger_with(&path, "b"));
    assert_eq!(windfall("seal", folder.path()).status.code(), Some(0));
    // Somebody restores the copy.
    std::fs::rename(&copy, &path).unwrap();
    let verified = windfall("verify", folder.path());
    assert_eq!(verified.status.code(), Some(1));
    assert_eq!(json(&verified)["findings"][0]["kind"], "anchor");
    let refused = windfall("seal", folder.path());
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("windfall ledger verify"));
    // What is lost is given up by its number alone.
    let lost = |seal| windfall_with("seal", folder.path(), &["--accept-loss", seal]).status.code();
    assert_eq!((lost("1"), lost("3"), lost("2")), (Some(1), Some(1), Some(0)));
    let verified = windfall("verify", folder.path());
    assert_eq!((verified.status.code(), json(&verified)["losses"].as_i64()), (Some(0), Some(1)));
}

#[test]
fn a_ledger_in_a_file_is_migrated_by_its_process() {
    let folder = tempfile::tempdir().unwrap();
    let mut own = Command::new(env!("CARGO_BIN_EXE_windfall"));
    let done = own.args(["ledger", "migrate"]).current_dir(folder.path()).output().unwrap();
    assert_eq!(done.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&done.stdout).contains("nothing is to be done"));
    let mut own = Command::new(env!("CARGO_BIN_EXE_windfall"));
    let done = own.args(["ledger", "migrate", "--json"]).current_dir(folder.path()).output().unwrap();
    assert_eq!((done.status.code(), json(&done)), (Some(0), serde_json::json!({"from": null, "to": null})));
}

#[test]
fn another_anchor_is_not_taken_for_the_ledgers_own() {
    let folder = tempfile::tempdir().unwrap();
    drop(ledger_with(&folder.path().join("ledger.db"), "a"));
    assert_eq!(windfall("seal", folder.path()).status.code(), Some(0));
    let mistyped = folder.path().join("ledger.ancor");
    let mistyped = ["--anchor", mistyped.to_str().unwrap()];
    let verified = windfall_with("verify", folder.path(), &mistyped);
    assert_eq!(verified.status.code(), Some(1));
    assert_eq!(json(&verified)["findings"][0]["kind"], "anchor");
    let refused = windfall_with("seal", folder.path(), &mistyped);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--new-anchor"));
    let begun = windfall_with("seal", folder.path(), &[&mistyped[..], &["--new-anchor"][..]].concat());
    assert_eq!(begun.status.code(), Some(0));
    assert_eq!(windfall_with("verify", folder.path(), &mistyped).status.code(), Some(0));
}

/// No later attempt mends it.
#[test]
fn a_sealer_that_goes_on_ends_where_the_ledger_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    drop(ledger_with(&path, "a"));
    assert_eq!(windfall("seal", folder.path()).status.code(), Some(0));
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute_batch("DROP TRIGGER seals_no_update; UPDATE seals SET hash = x'00'").unwrap();
    drop(raw);
    assert_eq!(windfall_with("seal", folder.path(), &["--every-s", "1"]).status.code(), Some(1));
}

#[test]
fn nothing_is_sealed_while_the_ledger_does_not_hold_its_mark() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    drop(ledger_with(&folder.path().join("ledger.db"), "a"));
    let (mark, options) = (elsewhere.path().join("mark"), elsewhere.path().join("options.toml"));
    std::fs::write(&options, format!("[ledger_mark]\nfile = {:?}\n", mark.display().to_string())).unwrap();
    let seal = || windfall_with("seal", folder.path(), &["--config", options.to_str().unwrap()]);
    let server = ServerPosition { system: "file".into(), ..ServerPosition::default() };
    let newer = Mark { generation: 1, lineage: "of the right file".into(), beat: 7, server };
    assert!(MarkFile::new(&mark).replace(None, &newer).unwrap());
    let refused = seal();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("went back in time"));
    std::fs::remove_file(&mark).unwrap();
    let sealed = seal();
    assert_eq!((sealed.status.code(), json(&sealed)["seals"].as_i64()), (Some(0), Some(1)));
}
