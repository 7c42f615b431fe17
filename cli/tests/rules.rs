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

/// What a process with consumers reports beside the rules; `staged` is what it does with the change that is staged.
fn report(place: &Place, staged: &Value) {
    report_with(place, staged, &[]);
}

/// The same of a process whose program knows these guards beside the first three.
fn report_with(place: &Place, staged: &Value, guards: &[&str]) {
    let status = place.folder.path().join("rules.toml.status");
    fs::create_dir_all(&status).unwrap();
    let at_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    let own = serde_json::json!({
        "process": "consumer-a-1", "version": 1, "at_ms": u64::try_from(at_ms).unwrap(), "stages": true,
        "refuses": null, "source_failure": null, "staged": staged, "guards": guards,
    });
    fs::write(status.join("consumer-a-1.json"), own.to_string()).unwrap();
}

#[test]
fn a_staged_change_ends_where_the_same_is_changed_for_all() {
    let place = Place::new();
    let stage = ["stage", "--limit", "badge=1500", "--percent", "1"];
    let nobody = place.run(&[&stage[..], &["--why", "test", "--who", "ann"]].concat());
    assert_eq!(nobody.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("nobody could try the change"));
    report(&place, &Value::Null);
    let said: Value = serde_json::from_str(&place.change(&[&stage[..], &["--json"]].concat())).unwrap();
    assert_eq!((&said["outcome"], &said["processes"][0]), (&"staged".into(), &"consumer-a-1".into()));
    let status: Value = serde_json::from_slice(&place.run(&["status", "--json"]).stdout).unwrap();
    assert_eq!((&status["staged"]["state"], &status["version"]), (&"running".into(), &2.into()));

    // Another type has nothing to do with it.
    place.change(&["limit", "cash", "250000"]);
    assert!(place.text().contains("[staged]"));
    let why = ["--why", "badge system is slow", "--who", "ann"];
    let over = place.run(&[&["limit", "badge", "100"][..], &why].concat());
    assert_eq!(over.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&over.stderr).contains("the staged change is taken back"));
    assert!(!place.text().contains("\n[staged]"));
    assert_eq!(place.shown()["limits"]["types"]["badge"]["limit"]["rate_per_s"], 100);
}

#[test]
fn a_trial_that_cannot_end_well_is_refused_at_once() {
    let place = Place::new();
    report(&place, &Value::Null);
    let why: &[&str] = &["--why", "test", "--who", "ann"];
    let refuses = |arguments: &[&str], said: &str| {
        let before = place.text();
        let refused = place.run(arguments);
        let stderr = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(said), "{arguments:?}: {stderr}");
        assert_eq!(place.text(), before);
    };
    let stage = |more: &[&'static str]| [&["stage", "--percent", "50"][..], more, why].concat();
    refuses(&stage(&["--limit", "badge=1500", "--oldest-max-ms", "5"]), "staged.guards.oldest_max_ms");
    refuses(&stage(&["--fuse", "badge=open"]), "--fuse takes TYPE=closed");
    refuses(&stage(&["--limit", "badge"]), "--limit takes TYPE=RATE");
    refuses(&stage(&["--limit", "badge=2000"]), "there is nothing to try");
    fs::write(place.folder.path().join("old.toml"), SAMPLE.replace("rate_per_s = 2000", "rate_per_s = 1"))
        .unwrap();
    place.change(&["limit", "cash", "250000"]);
    refuses(&stage(&["old.toml"]), "the document carries version 1, but version 2 is there now");
    place.change(&["stage", "--percent", "50", "--fuse", "badge=pause"]);
    refuses(&[&["promote"][..], why].concat(), "it counts as proven in");
    // Ten minutes later it would be too late to hear of it.
    refuses(&["promote", "--wait", "--why", "", "--who", "ann"], "say why");
    let too_long = "x".repeat(4096);
    refuses(&["promote", "--wait", "--why", &too_long, "--who", "ann"], "say why");
    place.change(&["promote", "--force"]);
    assert_eq!(place.shown()["limits"]["types"]["badge"]["fuse"], "pause");
}

/// A program of an earlier version refuses a document with a guard that it does not know.
#[test]
fn a_newer_guard_is_staged_where_every_process_knows_it() {
    let place = Place::new();
    report(&place, &Value::Null);
    let guard = ["--latency-p99-max-ms", "2000", "--budget-lasts-min-ms", "600000"];
    let stage = [&["stage", "--percent", "50", "--fuse", "badge=pause"][..], &guard].concat();
    let before = place.text();
    let refused = place.run(&[&stage[..], &["--why", "test", "--who", "ann"]].concat());
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("consumer-a-1 runs an older version") && stderr.contains("latency_p99_max_ms"),
        "{stderr}"
    );
    assert_eq!(place.text(), before);

    report_with(&place, &Value::Null, &["latency_p99_max_ms", "budget_lasts_min_ms"]);
    place.change(&stage);
    assert!(
        place.text().contains("latency_p99_max_ms = 2000\nbudget_lasts_min_ms = 600000"),
        "{}",
        place.text()
    );
    let status = place.run(&["status"]);
    let said = String::from_utf8(status.stdout).unwrap();
    assert!(said.contains("  guards: latency_p99_max_ms = 2000, budget_lasts_min_ms = 600000\n"), "{said}");
    let status: Value = serde_json::from_slice(&place.run(&["status", "--json"]).stdout).unwrap();
    let guards = &status["staged"]["guards"];
    assert_eq!((&guards["latency_p99_max_ms"], &guards["lag_max_records"]), (&2_000.into(), &Value::Null));
}

/// Who approves has to see what it is; and one that cannot be read is removed by its number.
#[test]
fn a_promotion_that_waits_is_listed_as_one_and_a_damaged_proposal_is_removed() {
    let place = Place::new();
    report(&place, &Value::Null);
    place.change(&["stage", "--percent", "50", "--limit", "badge=2500"]);
    let asking = place.text().replacen("# changes_need_approval = true", "changes_need_approval = true", 1);
    fs::write(place.file(), asking).unwrap();
    let promoted = place.run(&["promote", "--force", "--who", "ann", "--why", "it is urgent"]);
    assert_eq!(promoted.status.code(), Some(1), "{}", String::from_utf8_lossy(&promoted.stderr));
    let said = String::from_utf8(place.run(&["proposals"]).stdout).unwrap();
    assert!(said.contains("\npromotes a trial (by force)\n"), "{said}");
    let rows: Value = serde_json::from_slice(&place.run(&["proposals", "--json"]).stdout).unwrap();
    assert_eq!((rows[0]["promotes"].is_u64(), &rows[0]["by_force"]), (true, &true.into()), "{rows}");

    let kept = place.folder.path().join("rules.toml.proposals/00000001.toml");
    fs::write(&kept, "number = ").unwrap();
    let listed = place.run(&["proposals"]);
    let stderr = String::from_utf8(listed.stderr).unwrap();
    assert_eq!((listed.status.code(), listed.stdout.len()), (Some(0), 0), "{stderr}");
    assert!(stderr.contains("`windfall rules refuse 1` removes it"), "{stderr}");
    let refused = place.run(&["refuse", "1", "--who", "ann"]);
    assert_eq!(refused.status.code(), Some(0), "{}", String::from_utf8_lossy(&refused.stderr));
    assert!(!kept.exists());
    let said = String::from_utf8(place.run(&["proposals"]).stdout).unwrap();
    assert_eq!(said, "no change of the rules waits for approval\n");
}

/// The trial of a process that has given it up is taken back, and the reason is kept, however long the operator's own is.
#[test]
fn a_failed_trial_is_taken_back_with_what_was_said_of_it() {
    let place = Place::new();
    report(&place, &Value::Null);
    place.change(&["stage", "--percent", "50", "--fuse", "badge=pause"]);
    let status: Value = serde_json::from_slice(&place.run(&["status", "--json"]).stdout).unwrap();
    let given_up = serde_json::json!({
        "since_ms": status["staged"]["since_ms"], "runs": false, "given_up": "a topic's lag is 9 records",
    });
    report(&place, &given_up);
    let why = "x".repeat(4080);
    let failed = place.run(&["promote", "--wait", "--json", "--why", &why, "--who", "ann"]);
    assert_eq!(failed.status.code(), Some(1), "{}", String::from_utf8_lossy(&failed.stderr));
    let said: Value = serde_json::from_slice(&failed.stdout).unwrap();
    assert_eq!(said["outcome"], "taken back");
    assert!(
        said["reasons"][0].as_str().unwrap().contains("gave it up: a topic's lag is 9 records"),
        "{said}"
    );
    assert!(!place.text().contains("\n[staged]"));
    let history = String::from_utf8(place.run(&["history"]).stdout).unwrap();
    assert!(history.contains("abort, since c"), "{history}");
}
