//! `windfall demo` and `windfall reconcile`, as an operator sees them: output, fields, exit codes.

#![allow(clippy::unwrap_used)] // a test ends where its premise fails

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use windfall_tests::{ERRORS, Run, assert_clean, figure, plain, scratch};

fn demo(data: &Path) -> Run {
    Run::new(plain()).arg("demo").arg("--data").arg(data)
}

fn reconcile(data: &Path) -> Run {
    Run::new(plain()).arg("reconcile").arg("--data").arg(data)
}

#[test]
fn with_all_troubles_every_reward_arrives_once() {
    let dir = scratch();
    let data = dir.path().join("data");
    let ended = demo(&data).args(["--json", "--rewards", "60000", "--seconds-of-rain", "10"]).end();
    assert_eq!(ended.code, Some(0), "{ended}");
    let report = ended.json();
    assert_clean(&report, "the demo");
    assert_eq!(figure(&report, "total.sent"), 60_000);
    assert_eq!(report["by_type"].as_object().unwrap().len(), 6, "{report:#}");
    // The troubles did bite, or the figures above prove little.
    for figure_path in [
        "total.archived",
        "by_type.coupon_film.archived",
        "rain.requeued_events",
        "rain.duplicates_harmless",
        "peak_memory_bytes",
    ] {
        assert!(figure(&report, figure_path) > 0, "{figure_path}: {report:#}");
    }
    let happened: Vec<&str> = report["rain"]["happenings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["what"].as_str().unwrap())
        .collect();
    for words in
        ["refuses", "hangs", "cuts the limit", "divert", "token store is down", "raised", "lost answers"]
    {
        assert!(happened.iter().any(|what| what.contains(words)), "{words}: {happened:?}");
        assert!(ended.stderr.contains(words), "the live view says what happens, {words}: {}", ended.stderr);
    }
    let samples = report["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 20);
    assert!(samples.iter().any(|sample| figure(sample, "credited") > 0), "{samples:?}");

    let again = reconcile(&data).arg("--json").end();
    assert_eq!(again.code, Some(0), "{again}");
    let again = again.json();
    assert_eq!(again["rain"], Value::Null);
    for field in ["ok", "data", "total", "by_type", "findings", "samples"] {
        assert_eq!(again[field], report[field], "{field}");
    }
}

#[test]
fn calm_weather_archives_nothing_and_prints_a_table() {
    let dir = scratch();
    let data = dir.path().join("data");
    let ended = demo(&data).args(["--calm", "--rewards", "5000", "--users", "300"]).end();
    assert_eq!(ended.code, Some(0), "{ended}");
    for words in ["mismatched", "send_bonus", "p99.9", "peak memory", "client tokens", "OK: every reward"] {
        assert!(ended.stdout.contains(words), "{words}: {ended}");
    }
    let report = reconcile(&data).arg("--json").end().json();
    assert_clean(&report, "calm");
    assert_eq!(figure(&report, "total.credited"), 5_000);
    assert_eq!(figure(&report, "total.archived"), 0);
    let text = reconcile(&data).end();
    assert_eq!(text.code, Some(0), "{text}");
    assert!(text.stdout.contains("OK: every reward"), "{text}");
}

#[test]
fn a_seed_says_who_gets_what() {
    let figures = |seed: &str| {
        let dir = scratch();
        let ended = demo(&dir.path().join("data"))
            .args(["--calm", "--json", "--rewards", "2000", "--users", "50", "--seed", seed])
            .end();
        let report = ended.json();
        (report["by_type"].clone(), report["samples"].clone())
    };
    let seven = figures("7");
    assert_eq!(seven, figures("7"));
    assert_ne!(seven, figures("8"));
}

/// Both ways: no field without a word in the page, and no word in the page about a field that is not there.
#[test]
fn docs_demo_md_names_each_field_of_the_json_object() {
    let dir = scratch();
    let ended =
        demo(&dir.path().join("data")).args(["--json", "--rewards", "3000", "--seconds-of-rain", "1"]).end();
    assert_eq!(ended.code, Some(0), "{ended}");
    let report = ended.json();
    assert!(
        report.is_object() && ended.stdout.starts_with("{\n") && ended.stdout.ends_with("}\n"),
        "{ended}"
    );
    let mut fields = BTreeSet::new();
    paths(&report, "", &mut fields);

    assert_eq!(fields, documented("## The JSON object"));

    let names = |figures: &Value| figures.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    for figures in report["by_type"].as_object().unwrap().values() {
        assert_eq!(names(figures), names(&report["total"]), "as the page says");
    }
}

/// The fields that docs/demo.md describes below a heading.
fn documented(heading: &str) -> BTreeSet<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/demo.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once(&format!("{heading}\n")).unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let field = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    section.lines().filter_map(field).collect()
}

/// Every path of an object, `[]` for the items of a list. What is named by bonus types or answers is one path.
fn paths(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    if !at.is_empty() && !at.ends_with("[]") {
        found.insert(at.to_owned());
    }
    match value {
        Value::Object(_) if at == "by_type" || at == "by_answer" || at.ends_with(".balances") => {}
        Value::Object(fields) => {
            for (name, field) in fields {
                paths(field, &if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }, found);
            }
        }
        Value::Array(items) => {
            for item in items.iter().filter(|item| item.is_object()) {
                paths(item, &format!("{at}[]"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn ctrl_c_ends_in_order_and_resume_finishes() {
    let dir = scratch();
    let data = dir.path().join("data");
    let mut run = demo(&data).args(["--json", "--rewards", "20000", "--seconds-of-rain", "4"]).start();
    assert!(run.wait_for("hangs on topic cash-a"), "{}", run.end());
    run.interrupt();
    let ended = run.end();
    assert_eq!(ended.code, Some(130), "{ended}");
    assert_eq!(ended.stdout, "", "no report of half a rain");
    assert!(ended.stderr.contains("--resume --data"), "it says how to go on: {ended}");

    let resumed = demo(&data).args(["--resume", "--json"]).end();
    assert_eq!(resumed.code, Some(0), "{resumed}");
    let report = resumed.json();
    assert_clean(&report, "resumed");
    assert_eq!(report["rain"]["resumed"], true);
    assert_eq!(figure(&report, "rain.rewards"), 20_000);
    assert_eq!(figure(&report, "total.sent"), 20_000, "in order: no answer is missing: {report:#}");
    assert_eq!(figure(&report, "total.unanswered"), 0);

    let once_more = demo(&data).args(["--resume", "--json", "--rewards", "9"]).end();
    assert_eq!(once_more.code, Some(0), "what is finished stays finished: {once_more}");
    assert_eq!(once_more.json()["total"], report["total"]);
}

#[test]
fn a_second_ctrl_c_ends_at_once() {
    let dir = scratch();
    let data = dir.path().join("data");
    let mut run = demo(&data).args(["--rewards", "20000", "--seconds-of-rain", "4"]).start();
    assert!(run.wait_for("hangs on topic cash-a"), "{}", run.end());
    run.interrupt();
    if run.wait_for("once more to end at once") {
        run.interrupt();
    }
    let ended = run.end();
    assert_eq!(ended.code, Some(130), "{ended}");
    let resumed = demo(&data).args(["--resume", "--json"]).end();
    assert_eq!(resumed.code, Some(0), "{resumed}");
    assert_clean(&resumed.json(), "resumed");
}

#[test]
fn damage_ends_with_1_and_says_which() {
    let dir = scratch();
    let data = dir.path().join("data");
    assert_eq!(demo(&data).args(["--calm", "--rewards", "500"]).end().code, Some(0));
    // The rain's own record says another amount than what was paid.
    let journal = data.join("rain/00.log");
    let text = std::fs::read_to_string(&journal).unwrap();
    let (intent, _) = text.split_once('\n').unwrap();
    let words: Vec<&str> = intent.split(' ').collect();
    let amount: i64 = words[4].parse().unwrap();
    let richer = intent.replacen(&format!(" {amount} "), &format!(" {} ", amount + 1), 1);
    std::fs::write(&journal, text.replacen(intent, &richer, 1)).unwrap();

    let ended = reconcile(&data).arg("--json").end();
    assert_eq!(ended.code, Some(1), "{ended}");
    let report = ended.json();
    assert_eq!(report["ok"], false);
    assert_eq!(ERRORS.map(|error| figure(&report, &format!("total.{error}"))), [0, 0, 1, 0], "{report:#}");
    assert!(report["findings"][0].as_str().unwrap().contains(words[5]), "{report:#}");
    let text = reconcile(&data).end();
    assert_eq!(text.code, Some(1), "{text}");
    assert!(text.stdout.contains("FOUND") && text.stdout.contains("DAMAGE"), "{text}");
}

#[test]
fn without_data_it_keeps_its_files_in_one_place_and_makes_them_anew() {
    let dir = scratch();
    for rewards in ["300", "200"] {
        let ended = Run::new(plain())
            .args(["demo", "--calm", "--json", "--rewards", rewards])
            .within(dir.path())
            .end();
        assert_eq!(ended.code, Some(0), "{ended}");
        assert_eq!(figure(&ended.json(), "total.sent").to_string(), rewards);
    }
    assert!(dir.path().join(".windfall/demo/demo.toml").exists());
}

#[test]
fn timers_come_once_at_their_time_over_a_kill_and_a_restart() {
    let dir = scratch();
    let demo = |data: &Path| {
        Run::new(plain()).args(["demo", "--timers", "6000", "--timers-seconds", "12", "--data"]).arg(data)
    };
    let data = dir.path().join("timers");
    let ended = demo(&data).arg("--json").end();
    assert_eq!(ended.code, Some(0), "{ended}");
    let report = ended.json();
    assert_eq!(report["ok"], true, "{report:#}");
    assert_eq!(report["findings"], serde_json::json!([]), "{report:#}");
    for error in ["total.lost", "total.early", "total.fired_after_cancel", "total.mismatched", "left"] {
        assert_eq!(figure(&report, error), 0, "{error}: {report:#}");
    }
    assert_eq!(figure(&report, "repeated.unexplained"), 0, "{report:#}");
    // Everything that the proof is about did happen.
    for (answer, at_least) in [("added", 4_000), ("moved", 300), ("cancelled", 300), ("too_late", 20)] {
        let timers = figure(&report, &format!("by_answer.{answer}.timers"));
        assert!(timers >= at_least, "{answer}: {report:#}");
        let fired = figure(&report, &format!("by_answer.{answer}.fired"));
        assert_eq!(fired, if answer == "cancelled" { 0 } else { timers }, "{answer}: {report:#}");
    }
    assert_eq!(figure(&report, "total.timers"), 6_000, "{report:#}");
    // The killed dispatcher's shards wait for its leases to run out.
    assert!(report["lateness_ms"]["max"].as_f64().unwrap() > 1_000.0, "{report:#}");
    assert_eq!(report["happenings"].as_array().unwrap().len(), 4, "{report:#}");
    let mut fields = BTreeSet::new();
    paths(&report, "", &mut fields);
    assert_eq!(fields, documented("### The JSON object of the demo of timers"));
    for words in ["is killed", "joins", "is closed", "is open again", "fired 5,"] {
        assert!(ended.stderr.contains(words), "the lines of each second say {words}: {}", ended.stderr);
    }

    let again = demo(&data).end();
    assert_eq!(again.code, Some(2), "{again}");
    assert!(again.stderr.contains("holds timers of an earlier run"), "{again}");
}

#[test]
fn a_demo_of_timers_prints_a_table_and_stops_in_order() {
    let dir = scratch();
    let demo =
        |more: &[&str]| Run::new(plain()).args(["demo", "--timers", "1000"]).args(more).within(dir.path());
    let ended = demo(&["--timers-seconds", "10"]).end();
    assert_eq!(ended.code, Some(0), "{ended}");
    for words in ["fired after cancel", "too late", "while nothing was broken", "OK: every timer"] {
        assert!(ended.stdout.contains(words), "{words}: {ended}");
    }
    // Its own directory is made anew.
    let mut stopped = demo(&[]).start();
    assert!(stopped.wait_for("added 100"), "{}", stopped.said());
    stopped.interrupt();
    let ended = stopped.end();
    assert_eq!(ended.code, Some(130), "{ended}");
    assert!(ended.stderr.contains("nothing is proved") && ended.stdout.is_empty(), "{ended}");

    for wrong in ["--calm", "--resume", "--redis"] {
        let ended = demo(&[wrong]).end();
        assert_eq!(ended.code, Some(2), "{wrong}: {ended}");
    }
}
