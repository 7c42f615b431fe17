//! Changes of one thing in the live rules, and what differs.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

const SAMPLE: &str = include_str!("../../config/samples/rules.toml");

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("rules.toml"), SAMPLE).unwrap();
        Self { folder }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windfall"));
        command.current_dir(self.folder.path()).arg("rules").args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Changes the rules, or ends the test.
    fn change(&self, arguments: &[&str]) -> String {
        let done = self.run(&[arguments, &["--who", "ann", "--why", "badge system is slow"]].concat());
        assert_eq!(done.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    fn shown(&self) -> Value {
        serde_json::from_slice(&self.run(&["show", "--json"]).stdout).unwrap()
    }

    fn text(&self) -> String {
        fs::read_to_string(self.file()).unwrap()
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("rules.toml")
    }
}

#[test]
fn one_thing_is_changed_and_the_rest_of_the_text_stays() {
    let place = Place::new();
    let said = place.change(&["limit", "badge", "1500"]);
    assert!(said.contains("~ limits.types.badge.rate_per_s: 2000 → 1500"), "{said}");
    assert!(said.contains("has version 2 now"), "{said}");
    place.change(&["limit", "--global", "250000", "20000"]);
    place.change(&["fuse", "cash", "pause"]);
    place.change(&["ratio", "gifts", "0"]);
    let shown = place.shown();
    assert_eq!(shown["version"], 5);
    let limits = &shown["limits"];
    assert_eq!(limits["types"]["badge"]["limit"], serde_json::json!({"rate_per_s": 1500, "burst": 200}));
    assert_eq!(limits["global"], serde_json::json!({"rate_per_s": 250_000, "burst": 20_000}));
    assert_eq!(
        (&limits["types"]["cash"]["fuse"], &shown["queues"]["gifts"]["ratio"]),
        (&"pause".into(), &0.into())
    );
    // Every comment is still there, and whatever else the document says.
    let comments = |text: &str| text.lines().filter_map(|line| line.split_once('#')).count();
    assert_eq!(comments(&place.text()), comments(SAMPLE));
    assert_eq!((&shown["budgets"][0]["kind"], &shown["revoke"][0]["key"]), (&"sharded".into(), &7.into()));
    assert_eq!(
        (&shown["pacing"]["grant_batch"], &shown["routes"][1]["queue"]),
        (&1_000.into(), &"gifts".into())
    );
    // The same again is no change.
    assert!(place.change(&["ratio", "gifts", "0"]).contains("nothing changed"));
    let history = String::from_utf8(place.run(&["history"]).stdout).unwrap();
    assert_eq!(history.lines().filter(|line| line.contains("badge system is slow")).count(), 4, "{history}");
}

#[test]
fn a_dry_run_says_what_would_differ() {
    let place = Place::new();
    let said = place.change(&["fuse", "coin", "divert", "--dry-run", "--json"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["changed"], &said["version"]), (&false.into(), &Value::Null));
    assert_eq!(said["differences"][0]["key"], "limits.types.coin.fuse");
    assert_eq!(place.text(), SAMPLE);
}

#[test]
fn what_cannot_be_done_changes_nothing_and_says_why() {
    let place = Place::new();
    let why: &[&str] = &["--why", "test", "--who", "ann"];
    for (arguments, said) in [
        (&["fuse", "cahs", "pause"][..], "did you mean `cash`?"),
        (&["limit", "coin", "40"], "give its burst"),
        (&["limit", "coin", "many"], "whole number"),
        (&["limit", "coin", "40", "0"], "burst"),
        (&["limit", "--global", "40", "1", "1"], "nothing is expected"),
        (&["limit", "coin"], "give a type and its rate"),
        (&["limit", "cash", "99999999999"], "rate_per_s"),
        (&["ratio", "cash", "101"], "101"),
        (&["ratio", "rash", "50"], "did you mean `cash`?"),
        (&["diff", "--from", "9"], "no version 9"),
    ] {
        let arguments = if arguments[0] == "diff" { arguments.to_vec() } else { [arguments, why].concat() };
        let refused = place.run(&arguments);
        let stderr = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(said), "{arguments:?}: {stderr}");
    }
    assert_eq!(place.run(&["fuse", "cash", "pause"]).status.code(), Some(2), "a change has a reason");
    assert_eq!(place.text(), SAMPLE);
    let files = fs::read_dir(place.folder.path()).unwrap().count();
    assert_eq!(files, 1, "nothing but the rules");
}

/// Each makes its change on what the others have left.
#[test]
fn changes_at_the_same_time_are_all_made() {
    let place = Place::new();
    let changes: Vec<Vec<String>> = ["cash", "coupon_tea", "coupon_taxi", "coin", "badge"]
        .iter()
        .map(|name| ["fuse", name, "pause", "--who", "ann", "--why", "stop"].map(str::to_owned).to_vec())
        .collect();
    let running: Vec<_> = changes
        .iter()
        .map(|change| {
            let arguments: Vec<&str> = change.iter().map(String::as_str).collect();
            place.command(&arguments).stdout(std::process::Stdio::null()).spawn().unwrap()
        })
        .collect();
    for mut one in running {
        assert!(one.wait().unwrap().success());
    }
    let shown = place.shown();
    let types = shown["limits"]["types"].as_object().unwrap();
    assert_eq!(types.values().filter(|own| own["fuse"] == "pause").count(), 5, "{shown}");
    assert_eq!(shown["version"], 6);
}

#[test]
fn documents_and_versions_are_compared_by_what_they_say() {
    let place = Place::new();
    place.change(&["ratio", "gifts", "10"]);
    place.change(&["ratio", "gifts", "20"]);
    let diff = |arguments: &[&str]| String::from_utf8(place.run(arguments).stdout).unwrap();
    assert_eq!(diff(&["diff", "--from", "2"]), "~ queues.gifts.ratio: 10 → 20\n");
    assert_eq!(diff(&["diff", "--from", "3", "--to", "2"]), "~ queues.gifts.ratio: 20 → 10\n");
    let other = place.folder.path().join("other.toml");
    fs::write(
        &other,
        place.text().replace("# per cent", "# percentage").replace("total = 2000000", "total = 5"),
    )
    .unwrap();
    let found: Value = serde_json::from_str(&diff(&["diff", "other.toml", "--json"])).unwrap();
    assert_eq!(
        found["differences"].as_array().unwrap().len(),
        2,
        "the total, and the shards that it allows: {found}"
    );
    fs::write(&other, place.text().replace("# per cent", "# percentage")).unwrap();
    assert!(diff(&["diff", "other.toml"]).contains("say the same"));
}
