//! Wrong arguments are refused before anything starts. By this test cargo also builds the program itself, and not its unit tests alone.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

#[test]
fn a_row_that_does_not_exist_is_refused() {
    let ended = Command::new(env!("CARGO_BIN_EXE_windfall-bench")).arg("no.such_row").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(said.contains("jobs.trigger"), "the rows that exist are named: {said}");
}
