//! What it says without its arguments. That it serves, the far tier's tests on it show.

use std::process::Command;

#[test]
fn missing_arguments_are_named() {
    let ended = Command::new(env!("CARGO_BIN_EXE_windfall-s3-server")).arg("127.0.0.1:0").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("ADDRESS FOLDER ACCESS_KEY_ID"), "{said}");
}
