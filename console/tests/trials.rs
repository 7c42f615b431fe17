//! Changes of the rules that some processes try first.

#![allow(clippy::unwrap_used)]

mod fixture;

use fixture::{Browser, RULES, Running, changing, start};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use windfall_config::{ProcessStatus, StagedStatus};
use windfall_console::ConsoleOptions;

fn now_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// A process with consumers reports, and what it does with the change that is staged.
fn report(running: &Running, process: &str, staged: Option<StagedStatus>) {
    let status = ProcessStatus {
        process: process.into(),
        version: 1,
        at_ms: now_ms(),
        refuses: None,
        source_failure: None,
        stages: Some(true),
        staged,
        guards: Vec::new(),
        knows_approval: true,
    };
    running.rules.report(&status).unwrap();
}

fn slower() -> String {
    RULES.replace("rate_per_s = 2000", "rate_per_s = 1500")
}

/// What the page sends for a change that half of the processes try.
fn wish() -> Value {
    json!({
        "text": slower(), "based_on": 1, "percent": 50, "proven_after_ms": 600_000,
        "guards": { "lag_max_records": 1_000_000 }, "why": "the badge system is slow", "actor": "Lin",
    })
}

/// The same wish with other values of some keys; null takes a key out.
fn wish_with(other: Value) -> Value {
    let mut wish = wish();
    for (key, value) in other.as_object().unwrap() {
        match value {
            Value::Null => drop(wish.as_object_mut().unwrap().remove(key)),
            value => wish[key] = value.clone(),
        }
    }
    wish
}

/// Two processes report, and the operator has signed in.
async fn with_processes() -> (Running, Browser) {
    let running = start(changing()).await;
    report(&running, "consumer-a-1", None);
    report(&running, "consumer-b-1", None);
    let browser = Browser::signed_in(&running, &running.keys.operate).await;
    (running, browser)
}

async fn standing(browser: &Browser) -> Value {
    browser.get("/console/api/rules/status").await.json()["staged"].clone()
}

/// Stages this wish, and answers when that was: what tells the change from others.
async fn staged(browser: &Browser, wish: &Value) -> u64 {
    let staged = browser.post("/console/api/rules/stage", wish).await;
    assert_eq!(staged.status, 200, "{}", staged.message());
    standing(browser).await["since_ms"].as_u64().unwrap()
}

#[tokio::test]
async fn a_change_is_checked_and_staged_for_the_share_that_the_command_would_choose() {
    let (running, browser) = with_processes().await;
    let checked = browser.post("/console/api/rules/stage/check", &wish()).await.json();
    let difference = json!([{ "key": "limits.types.badge.rate_per_s", "before": "2000", "after": "1500" }]);
    let expected =
        json!({ "ok": true, "problems": [], "processes": ["consumer-a-1"], "differences": difference });
    assert_eq!(checked, expected);
    assert_eq!(running.rules.show().unwrap(), RULES, "a check changes nothing");
    assert_eq!(standing(&browser).await, Value::Null);

    let staged = browser.post("/console/api/rules/stage", &wish()).await;
    let expected =
        json!({ "version": 2, "changed": true, "processes": ["consumer-a-1"], "differences": difference });
    assert_eq!((staged.status, staged.json()), (200, expected));
    let now = standing(&browser).await;
    let since_ms = now["since_ms"].as_u64().unwrap();
    assert_eq!((&now["state"], &now["reasons"]), (&json!("running"), &json!([])));
    assert_eq!((&now["processes"], &now["differences"]), (&json!(["consumer-a-1"]), &difference));
    assert_eq!(
        now["guards"],
        json!({
            "oldest_max_ms": null, "failed_max_percent": null, "lag_max_records": 1_000_000,
            "latency_p99_max_ms": null, "budget_lasts_min_ms": null,
        })
    );
    assert_eq!(
        (&now["proven_ms"], &now["until_ms"]),
        (&json!(since_ms + 600_000), &json!(since_ms + 660_000))
    );
    assert!((590_000..=600_000).contains(&now["left_ms"].as_u64().unwrap()), "{now}");
    let history: Value = browser.get("/console/api/rules/history").await.json();
    let newest = &history["changes"][0];
    assert_eq!(
        (&newest["who"], &newest["why"]),
        (&json!("operator: Lin"), &json!("stage: the badge system is slow"))
    );
    assert!(newest["at_ms"].as_u64().unwrap() >= since_ms, "the page looks who has staged it");

    // One at a time.
    let again = wish_with(
        json!({ "text": running.rules.show().unwrap().replace("burst = 200", "burst = 300"), "based_on": 2 }),
    );
    let refused = browser.post("/console/api/rules/stage", &again).await;
    refused.assert_refused(409, "staged already");
}

#[tokio::test]
async fn a_wish_that_is_wrong_says_all_that_is_wrong_and_changes_nothing() {
    let (running, browser) = with_processes().await;
    for (other, status, said) in [
        (json!({ "text": slower().replace("= 1500", "= -1") }), 400, "rate_per_s"),
        (json!({ "text": RULES }), 400, "nothing to try"),
        (json!({ "text": slower().replace("ratio = 50", "ratio = 40") }), 400, "for all first"),
        (json!({ "percent": 0 }), 400, "`percent`: it is 1 to 100"),
        (json!({ "percent": 101 }), 400, "`percent`: it is 1 to 100"),
        (json!({ "percent": null }), 400, "name one process"),
        (json!({ "percent": null, "processes": [] }), 400, "name one process"),
        (json!({ "processes": ["consumer-a-1"] }), 400, "name one process"),
        (
            json!({ "percent": null, "processes": ["consumer-c-1"] }),
            400,
            "there are: consumer-a-1, consumer-b-1",
        ),
        (json!({ "guards": { "oldest_max_ms": 5 } }), 400, "staged.guards.oldest_max_ms"),
        (json!({ "guards": { "failed_max_percent": 100 } }), 400, "staged.guards.failed_max_percent"),
        (json!({ "guards": { "failed_max_percent": 300 } }), 400, "guards.failed_max_percent"),
        (json!({ "guards": { "lag_max": 5 } }), 400, "the JSON that is expected"),
        (json!({ "why": " " }), 400, "say why"),
        (json!({ "actor": "a\nb" }), 400, "control character"),
        (json!({ "based_on": 7 }), 409, "version 1 now"),
        (json!({ "text": slower().replace("version = 1\n", "version = 3\n") }), 409, "from version 3"),
    ] {
        let refused = browser.post("/console/api/rules/stage", &wish_with(other.clone())).await;
        assert_eq!(refused.status, status, "{other}: {}", refused.message());
        assert!(refused.message().contains(said), "{other}: {}", refused.message());
        assert_eq!(running.rules.show().unwrap(), RULES, "{other}");
    }
    let all = json!({ "text": slower().replace("= 1500", "= -1"), "percent": 0, "guards": { "failed_max_percent": 300 } });
    let checked = browser.post("/console/api/rules/stage/check", &wish_with(all)).await.json();
    let keys: Vec<_> = checked["problems"].as_array().unwrap().iter().map(|one| &one["key"]).collect();
    assert_eq!(checked["ok"], false);
    assert_eq!(keys, ["limits.types.badge.rate_per_s", "percent", "guards.failed_max_percent"]);

    // These processes report no guards, so their program knows the first three alone.
    let newer = wish_with(json!({ "guards": { "latency_p99_max_ms": 2_000 } }));
    let refused = browser.post("/console/api/rules/stage", &newer).await;
    refused.assert_refused(409, "the guard `latency_p99_max_ms`");
    // Where a process would refuse the document, or nobody could try it.
    for name in ["consumer-a-1", "consumer-b-1"] {
        running.rules.withdraw(name).unwrap();
    }
    let refused = browser.post("/console/api/rules/stage", &wish()).await;
    refused.assert_refused(409, "nobody could try");
    let old = ProcessStatus {
        process: "old".into(),
        version: 1,
        at_ms: now_ms(),
        refuses: None,
        source_failure: None,
        stages: None,
        staged: None,
        guards: Vec::new(),
        knows_approval: false,
    };
    running.rules.report(&old).unwrap();
    let refused = browser.post("/console/api/rules/stage", &wish()).await;
    refused.assert_refused(409, "older version");
    assert_eq!(running.rules.show().unwrap(), RULES);
}

#[tokio::test]
async fn a_change_that_has_proven_itself_is_promoted_and_before_that_only_by_force() {
    let (running, browser) = with_processes().await;
    let since_ms = staged(&browser, &wish()).await;
    let end = |since_ms: u64, force: bool| json!({ "since_ms": since_ms, "force": force, "why": "it holds" });
    let early = browser.post("/console/api/rules/promote", &end(since_ms, false)).await;
    assert_eq!((early.status, early.message().contains("proven in")), (409, true), "{}", early.message());
    // Who has seen another trial has not seen this one.
    for path in ["promote", "abort"] {
        let other = json!({ "since_ms": since_ms - 1, "why": "it holds" });
        let refused = browser.post(&format!("/console/api/rules/{path}"), &other).await;
        refused.assert_refused(409, "another change");
    }
    let unsaid = browser.post("/console/api/rules/abort", &json!({ "since_ms": since_ms, "why": "" })).await;
    assert_eq!(unsaid.status, 400, "{}", unsaid.message());
    let back =
        browser.post("/console/api/rules/abort", &json!({ "since_ms": since_ms, "why": "not today" })).await;
    assert_eq!((back.status, back.json()), (200, json!({ "version": 3, "changed": true })));
    assert!(running.rules.show().unwrap().contains("rate_per_s = 2000"));
    assert_eq!(standing(&browser).await, Value::Null);
    for path in ["promote", "abort"] {
        let nothing = json!({ "since_ms": since_ms, "why": "x" });
        let refused = browser.post(&format!("/console/api/rules/{path}"), &nothing).await;
        assert_eq!((refused.status, &*refused.message()), (404, "no change is staged"), "{path}");
    }

    // It counts as proven at once, and every process of it has run it.
    let text = running.rules.show().unwrap().replace("rate_per_s = 2000", "rate_per_s = 1500");
    let at_once = wish_with(json!({ "text": text, "based_on": 3, "proven_after_ms": 0 }));
    let since_ms = staged(&browser, &at_once).await;
    report(&running, "consumer-a-1", Some(StagedStatus { since_ms, runs: true, given_up: None }));
    assert_eq!(standing(&browser).await["state"], "proven");
    let promoted = browser.post("/console/api/rules/promote", &end(since_ms, false)).await;
    assert_eq!(promoted.json()["version"], 5, "{}", promoted.message());
    let text = running.rules.show().unwrap();
    assert!(text.contains("rate_per_s = 1500") && !text.contains("\n[staged"), "{text}");
    let history: Value = browser.get("/console/api/rules/history").await.json();
    assert_eq!(history["changes"][0]["why"], "promote: it holds");
}

#[tokio::test]
async fn a_change_that_was_given_up_is_not_promoted_without_force() {
    let (running, browser) = with_processes().await;
    let named = wish_with(json!({ "percent": null, "processes": ["consumer-b-1"] }));
    let since_ms = staged(&browser, &named).await;
    let given_up = Some("the lag of cash-a is 2000000".to_owned());
    report(&running, "consumer-b-1", Some(StagedStatus { since_ms, runs: false, given_up }));
    let now = standing(&browser).await;
    let why = "consumer-b-1 gave it up: the lag of cash-a is 2000000";
    assert_eq!((&now["state"], &now["reasons"]), (&json!("failed"), &json!([why])));
    let promote = |force: bool| json!({ "since_ms": since_ms, "force": force, "why": "all the same" });
    let refused = browser.post("/console/api/rules/promote", &promote(false)).await;
    refused.assert_refused(409, why);
    assert!(!refused.message().contains("--force"), "the page has no options: {}", refused.message());
    assert!(running.rules.show().unwrap().contains("rate_per_s = 2000"));
    let promoted = browser.post("/console/api/rules/promote", &promote(true)).await;
    assert_eq!(promoted.status, 200, "{}", promoted.message());
    assert!(!running.rules.show().unwrap().contains("rate_per_s = 2000"));
}

#[tokio::test]
async fn who_may_not_change_the_rules_makes_no_step_of_a_trial() {
    let running = start(ConsoleOptions::default()).await;
    report(&running, "consumer-a-1", None);
    let operator = Browser::signed_in(&running, &running.keys.operate).await;
    let named = start(changing()).await;
    report(&named, "consumer-a-1", None);
    let (metrics, front) = (
        Browser::signed_in(&named, &named.keys.metrics).await,
        Browser::signed_in(&named, &named.keys.front).await,
    );
    for (path, body) in [
        ("stage", wish()),
        ("promote", json!({ "since_ms": 1, "force": true, "why": "x" })),
        ("abort", json!({ "since_ms": 1, "why": "x" })),
    ] {
        let path = format!("/console/api/rules/{path}");
        for (browser, said) in [(&operator, "console.rules"), (&metrics, "console.rules_changed_by")] {
            let refused = browser.post(&path, &body).await;
            refused.assert_refused(403, said);
        }
        // Its body is not even read.
        assert!(matches!(front.post(&path, &body).await.status, 403 | 413), "{path}");
        let unproved = operator.send("POST", &path, &[], Some(&body.to_string())).await;
        assert_eq!(unproved.status, 403, "another site has no proof of the session");
        assert_eq!(operator.get(&path).await.status, 405);
    }
    // Whoever may see the rules may ask what a change would be.
    let checked = operator.post("/console/api/rules/stage/check", &wish()).await.json();
    assert_eq!(checked["processes"], json!(["consumer-a-1"]));
    for rules in [&running.rules, &named.rules] {
        assert_eq!(rules.show().unwrap(), RULES);
    }
}

#[tokio::test]
async fn rules_that_somebody_has_broken_outside_are_not_staged_upon() {
    let (running, browser) = with_processes().await;
    let path = running.folder.path().join("rules.toml");
    std::fs::write(&path, "version = \n").unwrap();
    for (path, body) in [("stage", wish()), ("abort", json!({ "since_ms": 1, "why": "x" }))] {
        let refused = browser.post(&format!("/console/api/rules/{path}"), &body).await;
        refused.assert_refused(409, "in force");
    }
    assert_eq!(standing(&browser).await, Value::Null);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "version = \n");
}
