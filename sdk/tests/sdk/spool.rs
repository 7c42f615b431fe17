//! What got Ok outlives its process, and its brokers' bad days. // I2

use crate::building::builder;
use crate::stage::{
    Mood, Scripted, Setup, Stage, comes_back, on_file, one_queue, request, rules, wait_until,
};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use windfall_sdk::{Prize, RedPacketRain, SdkOptions, SendError, SpoolMode, User};

const CHILD_SPOOL: &str = "WINDFALL_TEST_CHILD_SPOOL";

/// Not a test: the process that `killed_after_ok` kills. Says each order number after its Ok, until it dies.
#[test]
#[ignore = "runs as a child of killed_after_ok"]
fn child_that_sends_until_it_is_killed() {
    let root = PathBuf::from(std::env::var(CHILD_SPOOL).unwrap());
    let stage = Stage::with_brokers(on_file(&root), &one_queue(), Mood::Hang);
    for number in 0.. {
        let trade_no = format!("o-{number}");
        match stage.sdk.send_bonus(&request(&trade_no, 1)) {
            Ok(_) => println!("ok {trade_no}"),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn child(name: &str, root: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", name, "--nocapture"])
        .env(CHILD_SPOOL, root)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Not a test: a program that does what the crate's example does, while no broker takes anything.
#[test]
#[ignore = "runs as a child of a_program_that_copies_the_example_loses_nothing"]
fn child_that_copies_the_example() {
    let root = PathBuf::from(std::env::var(CHILD_SPOOL).unwrap());
    let sdk = builder(&root, &Scripted::new(Mood::Hang), &Scripted::new(Mood::Hang)).build().unwrap();
    let rain = RedPacketRain::new(&sdk, "spring-2027", "cash").unwrap();
    let _reply = rain.send(1, User::id(42), 0, Prize { amount: 888, description: "red packet" }).unwrap();
    println!("ok {}", rain.trade_no(1, 42, 0));
    loop {
        std::thread::park();
    }
}

/// The options' default kept events in memory, where the example's reader was promised that they outlive `kill -9`.
#[test]
fn a_program_that_copies_the_example_loses_nothing() {
    let root = tempfile::tempdir().unwrap();
    let mut child = child("spool::child_that_copies_the_example", root.path());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let trade_no = lines.find_map(|line| line.unwrap().split_once("ok ").map(|(_, no)| no.to_owned()));
    // SIGKILL.
    child.kill().unwrap();
    child.wait().unwrap();

    let setup =
        Setup { options: SdkOptions::default(), spool: SpoolMode::Process(root.path().join("spool")) };
    let stage = Stage::open(setup, &rules(1, &[("q", 100)], &[("*", "q")]));
    assert_eq!(stage.inherited.events, 1, "{:?}", stage.inherited);
    stage.wait_for_events(1);
    assert_eq!(stage.arrived(), [trade_no.unwrap()]);
    stage.end();
}

#[test]
fn killed_after_ok() {
    // In the middle of a pack, right at its end, after several.
    for oks in [1, 255, 256, 1_300] {
        let root = tempfile::tempdir().unwrap();
        let mut child = child("spool::child_that_sends_until_it_is_killed", root.path());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = BTreeSet::new();
        for line in lines {
            let line = line.unwrap();
            // The harness writes its own lines before ours, without a line's end.
            if let Some((_, trade_no)) = line.split_once("ok ") {
                said.insert(trade_no.to_owned());
            }
            if said.len() == oks {
                // SIGKILL.
                child.kill().unwrap();
                break;
            }
        }
        child.wait().unwrap();
        assert_eq!(said.len(), oks);

        let stage = Stage::open(on_file(root.path()), &one_queue());
        assert!(stage.inherited.events >= oks as u64, "{:?}", stage.inherited);
        assert_eq!((stage.inherited.torn_entries, stage.inherited.set_aside.len()), (0, 0));
        stage.wait_for_events(oks);
        wait_until("all are away", || stage.sdk.stats().packs_in_flight == 0);
        let arrived: BTreeSet<_> = stage.arrived().into_iter().collect();
        assert!(said.is_subset(&arrived), "missing: {:?}", said.difference(&arrived).collect::<Vec<_>>());
        stage.end();
        let stage = Stage::open(on_file(root.path()), &one_queue());
        assert_eq!(stage.inherited.packs, 0, "what a broker has is not sent again");
        stage.end();
    }
}

#[test]
fn when_all_brokers_hang_the_spool_fills_says_so_at_once_and_recovers() {
    let root = tempfile::tempdir().unwrap();
    let options = SdkOptions { spool_bytes: 1 << 20, shards: 1, ..SdkOptions::default() };
    let options = Setup { options, ..on_file(root.path()) };
    let stage = Stage::with_brokers(options, &one_queue(), Mood::Hang);
    let mut taken = Vec::new();
    let refused = loop {
        let trade_no = format!("o-{:06}", taken.len());
        match stage.sdk.send_bonus(&request(&trade_no, 1)) {
            Ok(_) => taken.push(trade_no),
            Err(error) => break error,
        }
    };
    assert_eq!(refused, SendError::SpoolFull);
    assert!(refused.is_worth_retrying());
    let stats = stage.sdk.stats();
    assert_eq!(stats.spool_slots.0, stats.spool_slots.1);
    let sdk = stage.sdk.clone();
    // The brokers are let go after them. If each waited for room, for 20 ms only, they would take 100 s.
    comes_back("a refusal waits for room", move || {
        for _ in 0..5_000 {
            assert_eq!(sdk.send_bonus(&request("no", 1)), Err(SendError::SpoolFull));
        }
    });

    for broker in [&stage.a, &stage.b] {
        *broker.mood.lock() = Mood::Store;
    }
    wait_until("there is room again", || stage.sdk.send_bonus(&request("o-later", 1)).is_ok());
    assert_eq!(stage.sdk.close_blocking(Duration::from_secs(60)).packs_left, 0);
    let arrived: BTreeSet<_> = stage.arrived().into_iter().collect();
    assert!(taken.iter().all(|trade_no| arrived.contains(trade_no)));
    assert!(arrived.contains("o-later") && !arrived.contains("no"));
}

#[test]
fn close_drains_and_says_what_is_left_and_the_next_start_sends_it() {
    let root = tempfile::tempdir().unwrap();
    let stage = Stage::with_brokers(on_file(root.path()), &one_queue(), Mood::Refuse);
    for number in 0..600 {
        stage.sdk.send_bonus(&request(&format!("o-{number:03}"), 1)).unwrap();
    }
    let sdk = stage.sdk.clone();
    // The brokers refuse for as long as the test lasts.
    let closed = comes_back("the close goes on", move || sdk.close_blocking(Duration::from_millis(100)));
    let left = closed.packs_left;
    assert!(left >= 3, "{left}");
    assert_eq!(stage.sdk.send_bonus(&request("late", 1)), Err(SendError::Closed));
    assert_eq!(stage.sdk.close_blocking(Duration::ZERO).packs_left, left, "a second call says the same");
    stage.break_off();

    let stage = Stage::open(on_file(root.path()), &one_queue());
    assert_eq!((stage.inherited.packs, stage.inherited.events), (left, 600));
    stage.wait_for_events(600);
    let expected: Vec<_> = (0..600).map(|number| format!("o-{number:03}")).collect();
    assert_eq!(stage.arrived(), expected);
    stage.end();
}

fn leave_behind(root: &std::path::Path, text: &str, count: usize) {
    let stage = Stage::with_brokers(on_file(root), text, Mood::Refuse);
    for number in 0..count {
        stage.sdk.send_bonus(&request(&format!("o-{number}"), 1)).unwrap();
    }
    stage.break_off();
}

#[test]
fn inherited_packs_of_a_removed_queue_take_the_route_of_now() {
    let root = tempfile::tempdir().unwrap();
    leave_behind(root.path(), &rules(1, &[("old", 100)], &[("*", "old")]), 10);
    let stage = Stage::open(on_file(root.path()), &rules(2, &[("new", 100)], &[("*", "new")]));
    assert_eq!((stage.inherited.packs, stage.inherited.waiting), (1, 0));
    stage.wait_for_events(10);
    assert!(stage.records().iter().all(|(topic, _)| topic == "new-a"));
    stage.end();
}

#[test]
fn inherited_packs_whose_route_is_gone_go_to_their_queue_as_long_as_there_is_one() {
    let root = tempfile::tempdir().unwrap();
    leave_behind(root.path(), &rules(1, &[("q", 100)], &[("*", "q")]), 10);
    let stage = Stage::open(on_file(root.path()), &rules(2, &[("q", 100)], &[("autumn", "q")]));
    stage.wait_for_events(10);
    assert!(stage.records().iter().all(|(topic, _)| topic == "q-a"));
    stage.end();
}

#[test]
fn inherited_packs_that_nothing_takes_wait_for_rules_that_do() {
    let root = tempfile::tempdir().unwrap();
    leave_behind(root.path(), &rules(1, &[("old", 100)], &[("*", "old")]), 10);
    let autumn = rules(2, &[("new", 100)], &[("autumn", "new")]);
    let stage = Stage::open(on_file(root.path()), &autumn);
    assert_eq!((stage.inherited.packs, stage.inherited.waiting), (1, 1));
    assert_eq!(
        stage.sdk.close_blocking(Duration::from_millis(50)).packs_left,
        1,
        "it waits, and close says so"
    );
    stage.break_off();

    let stage = Stage::open(on_file(root.path()), &autumn);
    assert_eq!(stage.sdk.stats().packs_waiting, 1, "still there");
    stage.change_rules(&rules(3, &[("new", 100)], &[("*", "new")]));
    stage.wait_for_events(10);
    wait_until("it is away", || stage.sdk.stats().packs_in_flight == 0);
    stage.end();
    let stage = Stage::open(on_file(root.path()), &one_queue());
    assert_eq!(stage.inherited.packs, 0);
    stage.end();
}

/// An inherited pack is in the last slot of a directory of another geometry: with it the directory goes.
#[test]
fn a_spool_of_another_shape_is_emptied_too() {
    let root = tempfile::tempdir().unwrap();
    leave_behind(root.path(), &one_queue(), 10);
    let Setup { options, spool } = on_file(root.path());
    let setup = Setup { options: SdkOptions { pack_events_max: 1, ..options }, spool };
    let stage = Stage::open(setup, &one_queue());
    assert_eq!(stage.inherited.events, 10);
    stage.wait_for_events(10);
    wait_until("the old directory is gone", || std::fs::read_dir(root.path()).unwrap().count() == 1);
    stage.end();
}

#[test]
fn what_is_synced_before_ok_arrives_the_same() {
    let root = tempfile::tempdir().unwrap();
    let options = Setup { spool: SpoolMode::Machine(root.path().to_owned()), ..on_file(root.path()) };
    let stage = Stage::open(options, &one_queue());
    for number in 0..20 {
        stage.sdk.send_bonus(&request(&format!("o-{number}"), 1)).unwrap();
    }
    stage.wait_for_events(20);
    stage.end();
}
