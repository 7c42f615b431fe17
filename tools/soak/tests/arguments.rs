//! Wrong arguments are refused before anything starts.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

#[test]
fn wrong_arguments_end_with_code_2() {
    for wrong in [
        &["--minutes", "0"][..],
        &["--minutes", "NaN"],
        &["--rate", "1"],
        &["--faults", "kill,sneeze"],
        &["--control", "nothing"],
        &["more"],
    ] {
        let ended = Command::new(env!("CARGO_BIN_EXE_windfall-soak")).args(wrong).output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "{wrong:?}: {}", String::from_utf8_lossy(&ended.stderr));
        assert!(!ended.stderr.is_empty());
    }
}

#[test]
fn a_missing_program_is_named() {
    let ended = Command::new(env!("CARGO_BIN_EXE_windfall-soak"))
        .args(["--windfall", "/nowhere/windfall", "--seed", "1"])
        .output()
        .unwrap();
    assert_eq!(ended.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("/nowhere/windfall"));
}
