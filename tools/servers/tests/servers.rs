//! What needs no server to be installed: names, state, refusals, time-outs.

// A test that cannot go on says so by a panic, in its helpers too.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

use windfall_servers::{Error, Servers, Spec};

#[test]
fn a_name_with_a_number_is_one_more_of_its_kind() {
    assert_eq!(Spec::named("kafka2").unwrap(), Spec::named("kafka").unwrap());
    for name in Spec::NAMES {
        assert_eq!(Spec::named(name).unwrap().name(), name);
    }
    assert_eq!(Spec::named("s32").unwrap(), Spec::S3);
    assert!(Spec::named("s").is_err() && Spec::named("s3x").is_err());
    let error = Spec::named("rabbit").unwrap_err().to_string();
    assert!(error.contains("'rabbit'") && error.contains("kafka, rocketmq, redis"), "{error}");
}

#[test]
fn an_unknown_name_starts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let servers = Servers::at(dir.path().join("state"));
    assert!(matches!(servers.up(&["redis", "rabbit"]), Err(Error::UnknownName { .. })));
    assert!(!servers.dir().exists());
}

#[test]
fn down_of_what_never_was_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let servers = Servers::at(dir.path().join("state"));
    servers.down(&[]).unwrap();
    assert!(servers.list().unwrap().is_empty());
    let error = servers.server("redis").unwrap_err().to_string();
    assert!(error.contains("./dev up redis"), "{error}");
}

#[test]
fn garbage_in_place_of_the_state_is_refused_by_every_call() {
    let dir = tempfile::tempdir().unwrap();
    let servers = Servers::at(dir.path());
    fs::write(servers.state_file(), b"\x00\xffgarbage").unwrap();
    assert!(matches!(servers.list(), Err(Error::BadState { .. })));
    assert!(matches!(servers.up(&["redis"]), Err(Error::BadState { .. })));
    assert!(matches!(servers.down(&[]), Err(Error::BadState { .. })));
    assert_eq!(fs::read(servers.state_file()).unwrap(), b"\x00\xffgarbage", "left for a person to look at");
}

/// Runs the binary with a PATH that holds only what is in `folder`.
fn up_redis(folder: &Path, ready_s: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_windfall-servers"))
        .args(["up", "redis", "--state"])
        .arg(folder.join("state"))
        .env("PATH", folder)
        .env("WINDFALL_SERVERS_READY_S", ready_s)
        .output()
        .unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn fake_redis(folder: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let program = folder.join("redis-server");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_missing_program_is_named_with_its_package() {
    let dir = tempfile::tempdir().unwrap();
    let error = up_redis(dir.path(), "1");
    assert!(error.contains("redis-server is missing") && error.contains("apt-get install"), "{error}");
}

#[test]
fn a_server_that_never_answers_is_ended_and_its_log_shown() {
    let dir = tempfile::tempdir().unwrap();
    fake_redis(dir.path(), "echo cannot find the rain; exec /bin/sleep 600");
    let error = up_redis(dir.path(), "1");
    for part in ["redis did not answer within 1 s", "WINDFALL_SERVERS_READY_S", "cannot find the rain"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(Servers::at(dir.path().join("state")).server("redis").unwrap().pids().unwrap().is_empty());
}

#[test]
fn a_server_that_ends_at_once_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    fake_redis(dir.path(), "echo the port is taken; exit 1");
    let error = up_redis(dir.path(), "600");
    assert!(error.contains("redis ended while it started") && error.contains("the port is taken"), "{error}");
}
