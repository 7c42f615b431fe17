//! What depends on the contract alone must not compile a database or a broker's client to know a few traits.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

/// Crates whose normal dependencies are free of drivers.
const FREE: [&str; 3] = ["windfall-connectors", "windfall-token-service", "windfall-wallet"];
/// The native libraries and engines behind the drivers.
const DRIVERS: [&str; 6] = ["fjall", "libsqlite3-sys", "rdkafka", "redis", "rusqlite", "tokio-postgres"];

#[test]
fn services_compile_no_driver() {
    for package in FREE {
        let tree = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
            .args(["tree", "--locked", "--package", package, "--edges", "normal", "--prefix", "none"])
            .args(["--format", "{lib}"])
            .output()
            .unwrap();
        let (names, errors) =
            (String::from_utf8(tree.stdout).unwrap(), String::from_utf8_lossy(&tree.stderr));
        assert!(tree.status.success(), "{package}: {errors}");
        assert!(names.lines().any(|name| name == "windfall_contract"), "{package}: {names}");
        for driver in DRIVERS {
            let crate_name = driver.replace('-', "_");
            assert!(!names.lines().any(|name| name == crate_name), "{package} depends on {driver}");
        }
    }
}
