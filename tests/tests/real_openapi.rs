//! The HTTP API held against its own OpenAPI document by schemathesis: requests that the document allows and requests
//! that it does not, and whether the answers are those that it promises.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::process::Command;
use windfall_tests::{Run, Service, plain, scratch};

#[test]
#[ignore = "needs schemathesis: ./dev test installs it and runs this"]
fn the_document_says_what_happens() {
    let program = std::env::var_os("WINDFALL_SCHEMATHESIS")
        .expect("WINDFALL_SCHEMATHESIS, the path of schemathesis: ./dev test sets it");
    let dir = scratch();
    let data = dir.path().join("data");
    // Makes keys and rules, and goes.
    drop(Service::dev(&data).stop());
    let key = Run::new(plain()).args(["access", "new-key", "--json"]).end().json();
    let access = dir.path().join("access.toml");
    let entry = format!(
        "[[caller]]\nname = \"all\"\ntenant = \"windfall\"\nroles = [\"send\", \"verify\", \"grant\", \"operate\", \"schedule\"]\n\
         key_sha256 = {}\nmay_name_users = true\n",
        key["key_sha256"]
    );
    std::fs::write(&access, entry).unwrap();
    let options = dir.path().join("windfall.toml");
    std::fs::write(&options, format!("access = {access:?}\n")).unwrap();
    let args = ["serve", "--listen", "127.0.0.1:0", "--config"].map(OsStr::new);
    let args = args.into_iter().chain([options.as_os_str(), OsStr::new("--data")]);
    let service = Service::start(args, data.as_os_str()).with_keys(BTreeMap::new());
    let key = key["key"].as_str().unwrap();
    let bearer = [("authorization", format!("Bearer {key}"))];
    let document = service.send("GET", "/openapi.json", &bearer, b"").body;
    let file = dir.path().join("openapi.json");
    std::fs::write(&file, document.to_string()).unwrap();

    let mut fuzz = Command::new(program);
    fuzz.current_dir(dir.path()).arg("run").arg(&file);
    fuzz.args(["--url", &service.url(), "--phases", "examples,coverage,fuzzing", "--max-examples", "40"]);
    fuzz.args(["--checks", "all", "--seed", "1", "--no-color", "--continue-on-failure"]);
    // JSON Schema calls 1.0 an integer, protobuf's JSON does not: what is refused there is no fault.
    fuzz.args(["--exclude-checks", "positive_data_acceptance"]);
    fuzz.args(["--header", &format!("Authorization: Bearer {key}"), "--header", "x-windfall-user: 42"]);
    let ended = fuzz.output().unwrap();
    let told = String::from_utf8_lossy(&ended.stdout).replace(key, "(key)");
    println!("{told}");
    assert!(ended.status.success(), "{told}\n{}", String::from_utf8_lossy(&ended.stderr));
    let stopped = service.stop();
    assert_eq!(stopped.code, Some(0), "{stopped}");
}
