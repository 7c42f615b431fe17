//! Changes of the rules that wait for a second person, by the page's calls and by those of `windfall rules --server`; and the
//! names that keys prove.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod fixture;

use fixture::{Answered, Browser, RULES, Running, changing, start};
use serde_json::json;
use std::time::{SystemTime, UNIX_EPOCH};
use windfall_config::{Actor, ChangeRules, ProcessStatus, SetError, Written, parse_rules};
use windfall_console::{ConsoleOptions, RemoteRules, RulesRight, ServiceAt};
use windfall_edge::MintedKey;

/// The rules of the sample, which ask for a second person.
fn asking() -> String {
    RULES.replacen("# changes_need_approval = true", "changes_need_approval = true", 1)
}

/// A console whose rules ask for a second person, as version 2.
async fn asked() -> Running {
    let running = start(changing()).await;
    let written = running.rules.set(&asking(), "test", "two see more than one", 2).unwrap();
    assert_eq!(written, Written::Changed { version: 2 });
    running
}

fn at(running: &Running) -> ServiceAt {
    ServiceAt {
        name: "console".into(),
        url: format!("http://{}", running.server.address()),
        ca_file: None,
        server_name: None,
        key_in_plain_text: false,
    }
}

/// Does what `windfall rules --server` does, beside the runtime that serves it.
async fn by<T: Send + 'static>(
    running: &Running,
    key: &MintedKey,
    work: impl FnOnce(&RemoteRules) -> T + Send + 'static,
) -> T {
    let rules = RemoteRules::new(&at(running), key.text.clone()).unwrap();
    tokio::task::spawn_blocking(move || work(&rules)).await.unwrap()
}

fn now_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

fn ratio(text: &str, percent: u8) -> String {
    text.replacen("ratio = 50", &format!("ratio = {percent}"), 1)
}

fn number(waits: &Answered) -> u64 {
    waits.assert_refused(409, "waits for approval as proposal");
    let answer = waits.json();
    assert_eq!(answer["code"], "FAILED_PRECONDITION");
    let number = answer["proposal"].as_u64().unwrap();
    assert!(waits.message().contains(&format!("`windfall rules approve {number} --server")), "{answer}");
    number
}

/// The page shows the answer's text: no answer may look as if the change was made.
#[tokio::test]
async fn a_change_by_the_page_waits_and_is_made_by_another_key() {
    let running = asked().await;
    let operator = Browser::signed_in(&running, &running.keys.operate).await;
    let approver = Browser::signed_in(&running, &running.keys.approver).await;
    let text = running.rules.show().unwrap();
    let set = json!({ "text": ratio(&text, 40), "why": "broker a is slow", "actor": "Lin" });
    let number = number(&operator.post("/console/api/rules/set", &set).await);
    assert_eq!(running.rules.show().unwrap(), text);
    let shown = approver.get("/console/api/rules/proposals").await.json();
    let shown = &shown["proposals"][0];
    assert_eq!((&shown["who"], &shown["identity"]), (&json!("operator: Lin"), &json!("proved")));
    let expected = json!([{ "key": "queues.gifts.ratio", "before": "50", "after": "40" }]);
    assert_eq!((&shown["differences"], &shown["is_overtaken"]), (&expected, &json!(false)));

    // The operator lacks the role, and the approver may propose nothing.
    let end = json!({ "number": number });
    operator.post("/console/api/rules/approve", &end).await.assert_refused(403, "role `approve`");
    let proposed = approver.post("/console/api/rules/set", &set).await.status;
    assert!(matches!(proposed, 403 | 413), "{proposed}");
    let approved = approver.post("/console/api/rules/approve", &end).await;
    assert_eq!(approved.json(), json!({ "version": 3, "changed": true }));
    approver.post("/console/api/rules/approve", &end).await.assert_refused(404, "no proposal");
    let history = approver.get("/console/api/rules/history").await.json();
    let newest = &history["changes"][0];
    assert_eq!(
        (&newest["who"], &newest["identity"], &newest["approved_by"]),
        (&json!("operator: Lin"), &json!("proved"), &json!("approver"))
    );
    assert_eq!(history["changes"][1]["identity"], "said");
}

#[tokio::test]
async fn an_emergency_does_not_wait_and_a_step_of_a_trial_does() {
    let running = asked().await;
    let operator = Browser::signed_in(&running, &running.keys.operate).await;
    let text = running.rules.show().unwrap();
    let slower = json!({ "text": text.replacen("rate_per_s = 2000", "rate_per_s = 1", 1), "why": "slow" });
    let changed = operator.post("/console/api/rules/set", &slower).await;
    assert_eq!(changed.json(), json!({ "version": 3, "changed": true }));
    let back = json!({ "version": 2, "based_on": 3, "why": "it is over" });
    let first = number(&operator.post("/console/api/rules/rollback", &back).await);
    // Whoever has proposed it may take it back.
    let refused = operator.post("/console/api/rules/refuse", &json!({ "number": first })).await;
    assert_eq!(refused.status, 200, "{}", refused.message());
    let shown = operator.get("/console/api/rules/proposals").await.json();
    assert_eq!(shown, json!({ "proposals": [], "unreadable": [] }));
}

/// The approver has to know it, however it was proposed; without force the trial has to be proven when it is approved.
#[tokio::test]
async fn a_promotion_by_force_is_shown_as_one() {
    let running = asked().await;
    let operator = Browser::signed_in(&running, &running.keys.operate).await;
    let approver = Browser::signed_in(&running, &running.keys.approver).await;
    let process = ProcessStatus {
        process: "consumer-a-1".into(),
        version: 2,
        at_ms: now_ms(),
        refuses: None,
        source_failure: None,
        stages: Some(true),
        staged: None,
        guards: Vec::new(),
        knows_approval: true,
    };
    running.rules.report(&process).unwrap();
    let faster = running.rules.show().unwrap().replacen("rate_per_s = 2000\n", "rate_per_s = 2500\n", 1);
    let wish = json!({
        "text": faster, "based_on": 2, "processes": ["consumer-a-1"], "proven_after_ms": 600_000,
        "why": "the evening",
    });
    let staged = number(&operator.post("/console/api/rules/stage", &wish).await);
    let approved = approver.post("/console/api/rules/approve", &json!({ "number": staged })).await;
    assert_eq!(approved.status, 200, "{}", approved.message());
    let status = operator.get("/console/api/rules/status").await.json();
    let since_ms = &status["staged"]["since_ms"];
    assert!(since_ms.is_u64(), "{status}");

    let promote = json!({ "since_ms": since_ms, "force": true, "why": "it is urgent" });
    let forced = number(&operator.post("/console/api/rules/promote", &promote).await);
    let by_command = by(&running, &running.keys.operate, |rules| {
        let text = windfall_config::promote(&rules.show().unwrap(), &[], true, 0).unwrap();
        let forced = rules.force_by(&text, Actor::said("kim"), "now", 0);
        (forced, rules.set(&text, "kim", "now", 0))
    });
    let (Err(SetError::Waits { number: forced_too }), Err(SetError::Waits { number: unforced })) =
        by_command.await
    else {
        panic!("one of them does not wait")
    };
    let shown = approver.get("/console/api/rules/proposals").await.json();
    let row = |nth: usize| {
        let row = &shown["proposals"][nth];
        assert_eq!(&row["promotes"], since_ms, "{shown}");
        (row["number"].clone(), row["by_force"].clone())
    };
    assert_eq!(row(0), (json!(forced), json!(true)));
    assert_eq!(row(1), (json!(forced_too), json!(true)));
    assert_eq!(row(2), (json!(unforced), json!(false)));
    let refused = approver.post("/console/api/rules/approve", &json!({ "number": unforced })).await;
    refused.assert_refused(409, "does not count as proven");
    let approved = approver.post("/console/api/rules/approve", &json!({ "number": forced })).await;
    assert_eq!(approved.json(), json!({ "version": 4, "changed": true }));
}

/// It neither hides the others nor can anybody approve it.
#[tokio::test]
async fn a_proposal_that_cannot_be_read_is_listed_and_refused_by_its_number() {
    let running = asked().await;
    let text = running.rules.show().unwrap();
    for percent in [40, 30] {
        let waits = running.rules.set(&ratio(&text, percent), "ann", "slow", now_ms()).unwrap_err();
        assert!(matches!(waits, SetError::Waits { .. }), "{waits}");
    }
    let damaged = running.folder.path().join("rules.toml.proposals/00000001.toml");
    std::fs::write(&damaged, "number = ").unwrap();
    let (rows, unreadable) = by(&running, &running.keys.approver, RemoteRules::waiting).await.unwrap();
    assert_eq!(rows.iter().map(|row| row["number"].clone()).collect::<Vec<_>>(), [json!(2)]);
    assert_eq!((unreadable.len(), unreadable[0].0), (1, 1));
    assert!(unreadable[0].1.contains("00000001.toml cannot be read"), "{unreadable:?}");
    let by_approver = |number: u64, is_approval: bool| {
        by(&running, &running.keys.approver, move |rules| {
            let by = Actor::said("lee");
            if is_approval { rules.approve(number, by, 0).map(drop) } else { rules.refuse(number, by, 0) }
        })
    };
    let refused = by_approver(1, true).await.unwrap_err();
    assert!(
        matches!(&refused, SetError::Elsewhere(why) if why.contains("`windfall rules refuse 1`")),
        "{refused}"
    );
    by_approver(1, false).await.unwrap();
    assert!(!damaged.exists());
    by_approver(2, true).await.unwrap();
    assert_eq!(running.rules.show().unwrap(), ratio(&text, 30).replacen("version = 2\n", "version = 3\n", 1));
}

/// A key that may do both does not approve its own.
#[tokio::test]
async fn who_has_proposed_a_change_does_not_approve_it() {
    let running = asked().await;
    let access = running.folder.path().join("access.toml");
    let both = std::fs::read_to_string(&access).unwrap().replacen(
        "roles = [\"operate\"]",
        "roles = [\"operate\", \"approve\"]",
        1,
    );
    std::fs::write(&access, both).unwrap();
    let operator = Browser::signed_in(&running, &running.keys.operate).await;
    fixture::until("the access file is read again", async || {
        let roles = operator.get("/console/api/session").await.json()["roles"].to_string();
        roles.contains("approve")
    })
    .await;
    let set = json!({ "text": ratio(&running.rules.show().unwrap(), 40), "why": "slow" });
    let end =
        json!({ "number": number(&operator.post("/console/api/rules/set", &set).await), "actor": "Kim" });
    operator.post("/console/api/rules/approve", &end).await.assert_refused(403, "proposed");
    let approver = Browser::signed_in(&running, &running.keys.approver).await;
    assert_eq!(approver.post("/console/api/rules/approve", &end).await.status, 200);
}

#[tokio::test]
async fn a_command_with_a_key_changes_the_rules_under_the_name_that_the_key_proves() {
    let running = start(changing()).await;
    let written = by(&running, &running.keys.operate, |rules| {
        let text = rules.show().unwrap();
        let changed = rules.set(&ratio(&text, 40), "kim", "broker a is slow", 0).unwrap();
        assert!(
            matches!(
                rules.set(&ratio(&text, 30), "kim", "made from what was there before", 0),
                Err(SetError::Conflict { based_on: 1, current: 2 })
            ),
            "made from rules that have moved on"
        );
        assert!(matches!(rules.change_of(9), Ok(None)));
        assert!(parse_rules(&rules.change_of(2).unwrap().unwrap().after, None).is_ok());
        assert!(rules.reports().unwrap().is_empty());
        changed
    })
    .await;
    assert_eq!(written, Written::Changed { version: 2 });
    let newest = running.rules.history().unwrap().changes.pop().unwrap();
    assert_eq!(
        (newest.who.as_str(), newest.caller.as_deref(), newest.identity()),
        ("operator: kim", Some("operator"), "proved")
    );
    let back = by(&running, &running.keys.operate, |rules| rules.rollback(1, "", "it was not", 0)).await;
    assert_eq!(back.unwrap(), Written::Changed { version: 3 });
    let (rows, unreadable) = by(&running, &running.keys.operate, RemoteRules::changes).await.unwrap();
    let row = |nth: usize| (rows[nth]["version"].clone(), rows[nth]["identity"].clone());
    assert_eq!((row(0), row(2)), ((json!(3), json!("proved")), (json!(1), json!("said"))));
    assert!(unreadable.is_empty());
}

#[tokio::test]
async fn a_command_with_a_key_proposes_and_another_one_approves() {
    let running = asked().await;
    let waits = by(&running, &running.keys.operate, |rules| {
        let text = rules.show().unwrap();
        rules.set(&ratio(&text, 40), "kim", "broker a is slow", 0)
    });
    let Err(SetError::Waits { number }) = waits.await else { panic!("it does not wait") };
    let (rows, _) = by(&running, &running.keys.approver, RemoteRules::waiting).await.unwrap();
    assert_eq!((&rows[0]["number"], &rows[0]["who"]), (&json!(number), &json!("operator: kim")));
    let own = by(&running, &running.keys.operate, move |rules| rules.approve(number, Actor::said("kim"), 0));
    assert!(matches!(own.await, Err(SetError::Elsewhere(why)) if why.contains("`approve`")));
    let made =
        by(&running, &running.keys.approver, move |rules| rules.approve(number, Actor::said("lee"), 0));
    assert_eq!(made.await.unwrap(), Written::Changed { version: 3 });
    let newest = running.rules.history().unwrap().changes.pop().unwrap();
    assert_eq!(newest.approved_by.as_deref(), Some("approver: lee"));
}

/// What a session may not do, a key in a request may not do either.
#[tokio::test]
async fn a_key_opens_no_more_than_its_session() {
    let running = start(changing()).await;
    let browser = Browser::new(&running);
    let ask = async |method: &str, path: &str, key: &str| {
        let bearer = format!("Bearer {key}");
        let body = (method == "POST").then_some("{}");
        browser.send(method, path, &[("authorization", &bearer)], body).await.status
    };
    let keys = &running.keys;
    assert_eq!(ask("GET", "/console/api/rules", &keys.operate.text).await, 200);
    assert_eq!(ask("GET", "/console/api/rules", "nobody").await, 401);
    assert_eq!(ask("GET", "/console/api/rules", &keys.front.text).await, 403);
    assert_eq!(ask("GET", "/console/api/rules", &keys.foreign.text).await, 401);
    assert_eq!(ask("POST", "/console/api/rules/approve", &keys.operate.text).await, 403);
    assert_eq!(ask("GET", "/console/api/flow", &keys.operate.text).await, 401, "the rules alone");
    assert_eq!(ask("POST", "/console/api/call/v1/acts/list", &keys.operate.text).await, 401);

    let reading = start(ConsoleOptions { rules: Some(RulesRight::Read), ..Default::default() }).await;
    let refused = by(&reading, &reading.keys.operate, |rules| rules.set(&ratio(RULES, 40), "kim", "x", 0));
    assert!(matches!(refused.await, Err(SetError::Elsewhere(why)) if why.contains("console.rules")));
    assert_eq!(reading.rules.show().unwrap(), RULES);
}
