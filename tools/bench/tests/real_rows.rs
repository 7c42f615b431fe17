//! The rows whose baseline writes our tables by hand: after a change of the schema they must be written anew.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn the_rows_of_postgresql_measure_what_is_there() {
    let rows = ["postgres.grant", "grpc.grant", "grpc.grant_async"];
    let ended = Command::new(env!("CARGO_BIN_EXE_windfall-bench"))
        .args(rows)
        .args(["--json", "--orders", "1000"])
        .output()
        .unwrap();
    let (printed, said) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{said}");
    for row in rows {
        assert!(printed.contains(&format!("{row:?}")), "{row} is not in {printed}");
    }
}
