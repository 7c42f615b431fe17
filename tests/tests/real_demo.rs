//! The demo on real brokers and stores: each server is killed and started again while it rains, a second process
//! consumes for a while, the demo itself is killed, and nothing is lost or credited twice.
#![allow(clippy::unwrap_used)] // a test ends where its premise fails

use std::time::Duration;
use windfall_servers::Servers;
use windfall_tests::{Ended, Run, assert_clean, figure, plain, scratch, servers_program};

const PARTS: [&str; 5] = ["--kafka", "--rocketmq", "--redis", "--postgres", "--etcd"];
/// Servers of a busy machine take their time to come back.
const TIME_OUT: Duration = Duration::from_secs(400);

/// One after another: both stop the same servers.
#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn the_rain_on_real_parts() {
    let names = ["kafka", "rocketmq", "redis", "postgres", "etcd"];
    drop(Servers::from_env_or_start(&names).unwrap());
    without_the_program_no_server_is_found();
    servers_killed_in_turn();
    killed_itself_and_resumed();
}

/// A demo that may stop servers.
fn demo() -> Run {
    Run::new(plain()).args(["demo", "--servers-program"]).arg(servers_program())
}

/// `--kafka` means the server that `./dev up` runs, which the program alone knows.
fn without_the_program_no_server_is_found() {
    let dir = scratch();
    let data = dir.path().join("data");
    let run = |run: Run| -> Ended { run.args(["demo", "--kafka", "--data"]).arg(&data).end() };
    let ended = run(Run::new(plain()).env("WINDFALL_SERVERS_PROGRAM", ""));
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.stderr.contains("--servers-program"), "{ended}");
    let ended = run(Run::new(plain()).env("WINDFALL_SERVERS_PROGRAM", "/nowhere/servers"));
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.stderr.contains("/nowhere/servers cannot be run"), "{ended}");
    assert!(!data.exists(), "nothing was made");
}

fn servers_killed_in_turn() {
    let dir = scratch();
    let ended = demo()
        .args(["--json", "--rewards", "36000", "--seconds-of-rain", "60", "--data"])
        .arg(dir.path().join("data"))
        .args(PARTS)
        .time_out(TIME_OUT)
        .end();
    assert_eq!(ended.code, Some(0), "{ended}");
    let report = ended.json();
    assert_clean(&report, "servers killed in turn");
    assert_eq!(figure(&report, "total.sent"), 36_000);
    for trouble in [
        "kafka, broker a, is frozen",
        "kafka is killed",
        "etcd, with the live rules, is killed",
        "rocketmq, broker b, is killed",
        "redis, the token store, is killed",
        "postgres, the ledger, is killed",
        "a second process joins",
        "the second process leaves",
    ] {
        let happened = report["rain"]["happenings"].as_array().unwrap();
        let at = happened.iter().find(|one| one["what"].as_str().unwrap().contains(trouble));
        assert!(at.is_some(), "no {trouble:?}: {happened:#?}");
    }
    assert!(figure(&report, "rain.guest.credited") > 0, "the second process did nothing: {report:#}");
}

/// RocketMQ is the master of cash here.
fn killed_itself_and_resumed() {
    let dir = scratch();
    let data = dir.path().join("data");
    let running = demo()
        .args(["--calm", "--swap", "--json", "--rewards", "20000", "--seconds-of-rain", "10", "--data"])
        .arg(&data)
        .args(PARTS)
        .time_out(TIME_OUT)
        .start();
    let ended = running.kill_at(Duration::from_secs(9));
    assert!(ended.is_none(), "it was over before it was killed: {ended:?}");
    let ended =
        Run::new(plain()).args(["demo", "--resume", "--json", "--data"]).arg(&data).time_out(TIME_OUT).end();
    assert_eq!(ended.code, Some(0), "{ended}");
    assert_clean(&ended.json(), "killed and resumed");
    let total = ended.json()["total"].clone();
    // What the killed process had no answer for may have been sent.
    let sent = figure(&total, "sent") + figure(&total, "unanswered");
    assert!(sent >= 20_000, "{total:#}");
    let again = Run::new(plain()).args(["reconcile", "--json", "--data"]).arg(&data).end();
    assert_eq!(again.code, Some(0), "{again}");
}
