//! A check that stays green whatever happens proves nothing: each promise is broken on purpose, by a switch that
//! only the feature `sabotage` has, and the check must say so.

#![allow(clippy::unwrap_used)] // a test ends where its premise fails

use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use windfall_tests::{Ended, Run, assert_clean, figure, sabotaged, scratch, shipped};

const SABOTAGE: &str = "WINDFALL_SABOTAGE";

fn demo(binary: &Path, data: &Path) -> Run {
    let run = Run::new(binary).args(["demo", "--json", "--users", "1000", "--data"]).arg(data);
    if data.join("demo.toml").exists() {
        return run.arg("--resume");
    }
    run.args(["--rewards", "15000", "--seconds-of-rain", "3"])
}

/// Demands that damage was reported, and hands over the report.
fn damage(ended: &Ended) -> Value {
    assert_eq!(ended.code, Some(1), "the check is blind: {ended}");
    let report = ended.json();
    assert_eq!(report["ok"], false, "{report:#}");
    report
}

fn assert_found(report: &Value, figure_path: &str) {
    assert!(figure(report, figure_path) > 0, "{report:#}");
    assert_ne!(report["findings"], serde_json::json!([]), "damage is put in words: {report:#}");
}

/// Starts the demo with this switch thrown and kills it at three moments of the rain, then resumes it to the end.
fn killed_and_resumed(binary: &Path, switch: &str, until_the_end: bool) -> Ended {
    let dir = scratch();
    let data = dir.path().join("data");
    for words in ["refuses topic cash-a", "hangs on topic cash-a", "to divert"] {
        let mut run = demo(binary, &data).env(SABOTAGE, switch).start();
        assert!(run.wait_for(words), "{}", run.end());
        let age = run.age() + Duration::from_millis(150);
        assert!(run.kill_at(age).is_none(), "killed while it rained");
    }
    demo(binary, &data).env(SABOTAGE, if until_the_end { switch } else { "" }).end()
}

#[test]
fn dedupe_off_shows_as_double() {
    // What a killed process had credited and not yet committed is delivered again.
    let ended = killed_and_resumed(sabotaged(), "dedupe", true);
    assert_found(&damage(&ended), "total.double");
}

#[test]
fn budget_check_off_shows_as_budget_over() {
    let dir = scratch();
    let data = dir.path().join("data");
    let ended = demo(sabotaged(), &data).env(SABOTAGE, "budget").end();
    assert_found(&damage(&ended), "total.budget_over");
    // The damage is in the files: whoever looks later finds it too.
    let later = Run::new(sabotaged()).args(["reconcile", "--json", "--data"]).arg(&data).end();
    assert_found(&damage(&later), "by_type.coupon_film.budget_over");
}

#[test]
fn an_early_window_mark_shows_as_lost_after_a_kill() {
    let ended = killed_and_resumed(sabotaged(), "window", false);
    assert_found(&damage(&ended), "total.lost");
}

#[test]
fn a_skipped_spool_shows_as_lost_after_a_kill() {
    let ended = killed_and_resumed(sabotaged(), "spool", false);
    assert_found(&damage(&ended), "total.lost");
}

#[test]
fn a_token_comparison_off_shows_in_the_sampled_users() {
    let dir = scratch();
    let ended = demo(sabotaged(), &dir.path().join("data")).arg("--calm").env(SABOTAGE, "token").end();
    let report = damage(&ended);
    let samples = report["samples"].as_array().unwrap();
    assert!(samples.iter().any(|sample| sample["disagreements"] != serde_json::json!([])), "{report:#}");
}

/// Else the five above might fail for a reason of their own.
#[test]
fn with_no_switch_thrown_the_same_binary_is_sound() {
    let ended = killed_and_resumed(sabotaged(), "", true);
    assert_eq!(ended.code, Some(0), "{ended}");
    assert_clean(&ended.json(), "no sabotage");
}

#[test]
#[ignore = "builds the binary once more, without the switches: ./dev test --long runs it"]
fn the_shipped_binary_has_no_switches() {
    let ended = killed_and_resumed(shipped(), "dedupe,budget,window,copy,salvage,spool,token", true);
    assert_eq!(ended.code, Some(0), "{ended}");
    let report = ended.json();
    assert_clean(&report, "the shipped binary");
    assert!(figure(&report, "by_type.coupon_film.archived") > 0, "the short budget was met: {report:#}");
    // Not even the words are in it.
    let bytes = std::fs::read(shipped()).unwrap();
    assert!(!bytes.windows(SABOTAGE.len()).any(|window| window == SABOTAGE.as_bytes()));
}

#[test]
fn an_unknown_switch_is_refused_not_ignored() {
    let dir = scratch();
    let ended = demo(sabotaged(), &dir.path().join("data")).env(SABOTAGE, "dedup").end();
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.stderr.contains("`dedup`") && ended.stderr.contains("dedupe"), "{ended}");
}
