//! The page, the calls of services, the flow, and the rules.

#![allow(clippy::unwrap_used)]

mod fixture;

use fixture::{Browser, Keys, RULES, changing, parts, start, start_at, until};
use serde_json::{Value, json};
use windfall_console::{Console, ConsoleOptions, RulesRight, ServiceAt};

#[tokio::test]
async fn the_page_comes_whole_packed_or_not_at_all() {
    let running = start(ConsoleOptions::default()).await;
    let browser = Browser::new(&running);
    for path in ["/", "/console"] {
        let moved = browser.get(path).await;
        assert_eq!((moved.status, moved.header("location")), (307, Some("/console/")), "{path}");
    }
    let page = browser.get("/console/").await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let script = browser.get("/console/app.js").await;
    let tag = script.header("etag").unwrap().to_owned();
    let again = browser.send("GET", "/console/app.js", &[("if-none-match", &tag)], None).await;
    assert_eq!((again.status, again.body.len()), (304, 0));
    let packed = browser.send("GET", "/console/app.js", &[("accept-encoding", "br, gzip")], None).await;
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    assert!(packed.body.len() * 2 < script.body.len());
    assert_eq!(browser.get("/console/app.map").await.status, 404);
    assert_eq!(browser.send("POST", "/console/", &[], Some("{}")).await.status, 405);
    // The services are where they were.
    assert_eq!(browser.get("/health/live").await.status, 200);
    assert_eq!(browser.get("/metrics").await.status, 401);
}

#[tokio::test]
async fn every_answer_forbids_foreign_content_and_frames() {
    let running = start(ConsoleOptions::default()).await;
    let browser = Browser::signed_in(&running, &running.keys.operate).await;
    let out = Browser::new(&running);
    let answers = [
        browser.get("/console/").await,
        browser.get("/console/api/flow").await,
        out.get("/console/api/flow").await,
        browser.get("/console/nothing").await,
        browser.post("/console/api/call/v1/tokens/list", &json!({})).await,
    ];
    for answered in answers {
        let policy = answered.header("content-security-policy").unwrap();
        for part in ["default-src 'self'", "script-src 'self'", "frame-ancestors 'none'"] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
        assert_eq!(answered.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answered.header("x-frame-options"), Some("DENY"));
        assert_eq!(answered.header("referrer-policy"), Some("no-referrer"));
    }
}

#[tokio::test]
async fn a_call_is_made_with_the_users_key_and_the_service_decides() {
    let running = start(ConsoleOptions::default()).await;
    let path = "/console/api/call/v1/tokens/list";
    let operator = Browser::signed_in(&running, &running.keys.operate).await;
    let refused = operator.post(path, &json!({})).await;
    assert_eq!(refused.status, 403);
    assert!(refused.message().contains("role `verify`"), "{}", refused.message());
    assert!(running.fake.0.lock().is_empty());

    let front = Browser::signed_in(&running, &running.keys.front).await;
    let headers = [("x-windfall-csrf", front.csrf.as_str()), ("x-windfall-user", "42")];
    let called = front.send("POST", path, &headers, Some("{}")).await;
    assert_eq!((called.status, &called.json()["next_page_token"]), (200, &json!("42")));
    let headers = [("x-windfall-csrf", front.csrf.as_str()), ("x-windfall-user", "42 or 1")];
    assert_eq!(front.send("POST", path, &headers, Some("{}")).await.status, 400);
    // What a service cannot do is told as it says it.
    let away = front.post("/console/api/call/v1/tokens/verify", &json!({ "tokens": ["x"] })).await;
    assert_eq!((away.status, away.message()), (503, "the store cannot say".to_owned()));
    // The page's own data has the role of what stands behind it.
    for path in ["flow", "history", "budgets", "rules", "rules/history", "rules/status"] {
        let refused = front.get(&format!("/console/api/{path}")).await;
        assert_eq!(refused.status, 403, "{path}");
    }
}

#[tokio::test]
async fn nothing_that_sends_or_withdraws_or_grants_without_an_archived_event_can_be_called() {
    let running = start(ConsoleOptions::default()).await;
    let front = Browser::signed_in(&running, &running.keys.front).await;
    for path in [
        "/v1/bonuses/send",
        "/v1/rewards/grant",
        "/v1/wallet/withdraw",
        "/v1/ledger/accept",
        "/v1/timers/add",
        "/v1/backfills/start",
        "/v1/jobs/put",
        "/v1/acts",
        "/v1/acts/approve/",
        "/v1/acts/approve/../../wallet/withdraw",
        "/v1/payouts",
        "/v1/audits/differences",
        "/metrics",
        "/v1/tokens/../wallet/withdraw",
        "//v1/tokens/list",
        "",
    ] {
        let refused = front.post(&format!("/console/api/call{path}"), &json!({})).await;
        assert_eq!(refused.status, 404, "{path}");
    }
    assert_eq!(front.get("/console/api/call/v1/tokens/list").await.status, 405);
}

#[tokio::test]
async fn acts_payouts_statements_and_audits_are_passed_on_with_the_proof_of_the_session() {
    let running = start(ConsoleOptions::default()).await;
    let payouts = Browser::signed_in(&running, &running.keys.payouts).await;
    for path in [
        "/v1/orders/get",
        "/v1/statements/get",
        "/v1/withdrawals/list",
        "/v1/payouts/list",
        "/v1/payouts/acknowledge",
        "/v1/acts/propose",
        "/v1/acts/list",
        "/v1/acts/get",
        "/v1/acts/approve",
        "/v1/acts/refuse",
        "/v1/audits/get",
        "/v1/audits/differences/list",
        "/v1/audits/differences/mark",
    ] {
        // This process has no such service; it is the one that says so.
        let passed_on = payouts.post(&format!("/console/api/call{path}"), &json!({})).await;
        assert_eq!(
            (passed_on.status, &*passed_on.message()),
            (404, "there is nothing at this path"),
            "{path}"
        );
        let unproved = payouts.send("POST", &format!("/console/api/call{path}"), &[], Some("{}")).await;
        assert_eq!(unproved.status, 403, "{path}: {}", unproved.message());
    }
    let unknown = payouts.post("/console/api/call/v1/acts/undo", &json!({})).await;
    assert_eq!((unknown.status, &*unknown.message()), (404, "the console makes no such call"));
    // A key that pays out sees nothing of the fleet.
    assert_eq!(payouts.get("/console/api/session").await.json()["roles"], json!(["pay_out"]));
    for path in ["flow", "history", "rules"] {
        assert_eq!(payouts.get(&format!("/console/api/{path}")).await.status, 403, "{path}");
    }
}

#[tokio::test]
async fn the_flow_is_followed_without_a_viewer_and_has_the_rules_with_it() {
    let running = start(ConsoleOptions::default()).await;
    let browser = Browser::signed_in(&running, &running.keys.operate).await;
    until("a sample is there", async || {
        browser.get("/console/api/flow").await.json()["at_ms"].as_u64() > Some(0)
    })
    .await;
    let flow = browser.get("/console/api/flow").await.json();
    assert_eq!(flow["instances"][0]["name"], "this process");
    assert_eq!(flow["rules"]["queues"][0]["name"], "cash");
    until("the charts are written", async || {
        let history = browser.get("/console/api/history").await.json();
        history["at_ms"].as_array().is_some_and(|at_ms| !at_ms.is_empty())
    })
    .await;
}

#[tokio::test]
async fn rules_that_cannot_be_read_any_more_are_not_shown_as_those_in_force() {
    let running = start(ConsoleOptions::default()).await;
    let browser = Browser::signed_in(&running, &running.keys.operate).await;
    let rules = async || browser.get("/console/api/flow").await.json()["rules"].clone();
    until("the rules are seen", async || rules().await["version"] == 1).await;
    assert_eq!(rules().await["is_stale"], Value::Null);
    let place = running.folder.path().join("rules.toml");
    for broken in [Some("version = \n"), None] {
        match broken {
            Some(text) => std::fs::write(&place, text).unwrap(),
            None => std::fs::remove_file(&place).unwrap(),
        }
        until("they are marked", async || rules().await["is_stale"] == true).await;
        assert_eq!(rules().await["version"], 1, "what was read last is still shown");
        std::fs::write(&place, RULES).unwrap();
        until("they are there again", async || rules().await["is_stale"] == Value::Null).await;
    }
}

#[tokio::test]
async fn rules_are_shown_and_changed_only_where_an_option_says_so() {
    let running = start(ConsoleOptions::default()).await;
    let browser = Browser::signed_in(&running, &running.keys.operate).await;
    let shown = browser.get("/console/api/rules").await.json();
    assert_eq!((shown["text"].as_str(), &shown["may_change"]), (Some(RULES), &json!(false)));
    assert_eq!(shown["checked"]["form"]["version"], 1);
    let change = json!({ "text": RULES.replace("ratio = 50", "ratio = 40"), "why": "test" });
    let refused = browser.post("/console/api/rules/set", &change).await;
    assert_eq!(refused.status, 403);
    assert!(refused.message().contains("console.rules"), "{}", refused.message());
    let refused = browser
        .post("/console/api/rules/rollback", &json!({ "version": 1, "based_on": 1, "why": "test" }))
        .await;
    assert_eq!((refused.status, running.rules.show().unwrap()), (403, RULES.to_owned()));

    let none = start(ConsoleOptions { rules: Some(RulesRight::None), ..Default::default() }).await;
    let browser = Browser::signed_in(&none, &none.keys.operate).await;
    assert_eq!(browser.get("/console/api/rules").await.status, 403);
}

#[tokio::test]
async fn a_change_of_the_rules_is_checked_kept_with_who_and_why_and_rolled_back() {
    let running = start(changing()).await;
    let browser = Browser::signed_in(&running, &running.keys.operate).await;
    let text = RULES.replace("ratio = 50", "ratio = 40");
    assert_ne!(text, RULES);
    let checked = browser
        .post("/console/api/rules/check", &json!({ "text": text.replace("= 40", "= 400") }))
        .await
        .json();
    assert_eq!(checked["ok"], false);
    assert!(
        checked["problems"][0]["line"].is_u64()
            && checked["problems"][0]["key"].as_str().unwrap().contains("ratio")
    );
    let wrong = browser
        .post("/console/api/rules/set", &json!({ "text": text.replace("= 40", "= 400"), "why": "x" }))
        .await;
    assert_eq!(wrong.status, 400);
    let unsaid = browser.post("/console/api/rules/set", &json!({ "text": text, "why": " " })).await;
    assert_eq!(unsaid.status, 400);

    let set = json!({ "text": text, "why": "broker a is slow", "actor": "Lin" });
    let changed = browser.post("/console/api/rules/set", &set).await;
    assert_eq!((changed.status, changed.json()), (200, json!({ "version": 2, "changed": true })));
    // Somebody else's page still has the first version.
    let stale = browser.post("/console/api/rules/set", &json!({ "text": RULES, "why": "late" })).await;
    assert_eq!(stale.status, 409, "{}", stale.message());

    let history: Value = browser.get("/console/api/rules/history").await.json();
    let newest = &history["changes"][0];
    assert_eq!((&newest["who"], &newest["why"]), (&json!("operator: Lin"), &json!("broker a is slow")));
    assert!(newest["before"].is_null() && newest["after"].is_null(), "texts are asked for one by one");
    let texts: Value = browser.get("/console/api/rules/version?version=2").await.json();
    assert_eq!(
        (&texts["before"], &texts["after"].as_str().unwrap().contains("ratio = 40")),
        (&json!(RULES), &true)
    );
    assert_eq!(browser.get("/console/api/rules/version?version=7").await.status, 404);
    assert_eq!(browser.get("/console/api/rules/version").await.status, 400);

    let rollback = |based_on: u64| json!({ "version": 1, "based_on": based_on, "why": "it was not" });
    // Somebody else has changed the rules since this page was loaded.
    let unseen = browser.post("/console/api/rules/rollback", &rollback(1)).await;
    assert_eq!(unseen.status, 409, "{}", unseen.message());
    let back = browser.post("/console/api/rules/rollback", &rollback(2)).await;
    assert_eq!(back.json()["version"], 3);
    assert!(running.rules.show().unwrap().contains("ratio = 50"));
    let history: Value = browser.get("/console/api/rules/history").await.json();
    assert_eq!(history["changes"][0]["why"], "rollback to version 1: it was not");
    let nothing = json!({ "version": 2, "based_on": null, "why": "it was not" });
    let unseen = browser.post("/console/api/rules/rollback", &nothing).await;
    assert_eq!(unseen.status, 409, "who was shown no rules has not seen these: {}", unseen.message());
    assert_eq!(
        browser
            .post("/console/api/rules/rollback", &json!({ "version": 9, "based_on": 3, "why": "x" }))
            .await
            .status,
        404
    );
    assert!(browser.get("/console/api/rules/status").await.json()["processes"].is_array());
}

#[tokio::test]
async fn a_change_is_replayed_for_operators_and_nothing_is_written() {
    let running = start(changing()).await;
    let operator = Browser::signed_in(&running, &running.keys.operate).await;
    until("there is a sample", async || {
        operator.get("/console/api/flow").await.json()["at_ms"].as_u64() > Some(0)
    })
    .await;
    let text = RULES.replace("rate_per_s = 2000", "rate_per_s = 1");
    let replayed = operator.post("/console/api/rules/replay", &json!({ "text": text })).await;
    let replayed = (replayed.status, replayed.json());
    assert_eq!(replayed.0, 200, "{replayed:?}");
    assert_eq!(
        (&replayed.1["ok"], &replayed.1["in_force"], &replayed.1["wanted"]),
        (&json!(true), &json!([]), &json!([]))
    );
    assert_eq!(replayed.1["budgets"], json!([]));
    let paces = operator.get("/console/api/budgets").await;
    assert_eq!((paces.status, &paces.json()["budgets"]), (200, &json!([])), "no service shows any");
    assert!(replayed.1["from_ms"].as_u64() <= replayed.1["to_ms"].as_u64(), "{replayed:?}");
    // What is wrong with a document is said by its check.
    let wrong = operator.post("/console/api/rules/replay", &json!({ "text": "version = " })).await;
    assert_eq!((wrong.status, wrong.json()), (200, json!({ "ok": false })));
    assert_eq!(operator.get("/console/api/rules/replay").await.status, 405);
    // Who may not change the rules may ask all the same, but not who has no business with them.
    let metrics = Browser::signed_in(&running, &running.keys.metrics).await;
    assert_eq!(metrics.post("/console/api/rules/replay", &json!({ "text": text })).await.status, 200);
    let front = Browser::signed_in(&running, &running.keys.front).await;
    let refused = front.post("/console/api/rules/replay", &json!({ "text": text })).await;
    assert!(matches!(refused.status, 403 | 413), "{}", refused.status);
    assert_eq!(running.rules.show().unwrap(), RULES);
}

#[tokio::test]
async fn a_role_does_not_suffice_to_change_the_rules() {
    let named = ["operator", "front"].map(str::to_owned).to_vec();
    let running = start(ConsoleOptions { rules_changed_by: named, ..changing() }).await;
    let text = RULES.replace("ratio = 50", "ratio = 40");
    // The key of the metrics has the role and is not named; the front end's is named and has no such role.
    for key in [&running.keys.metrics, &running.keys.front] {
        let browser = Browser::signed_in(&running, key).await;
        assert_ne!(browser.get("/console/api/session").await.json()["rules"], "change");
        assert_ne!(browser.get("/console/api/rules").await.json()["may_change"], json!(true));
        for (path, body) in [
            ("set", json!({ "text": text, "why": "x" })),
            ("rollback", json!({ "version": 1, "based_on": 1, "why": "x" })),
        ] {
            let refused = browser.post(&format!("/console/api/rules/{path}"), &body).await;
            assert_eq!(refused.status, 403, "{path}: {}", refused.message());
        }
    }
    assert_eq!(running.rules.show().unwrap(), RULES);
    let operator = Browser::signed_in(&running, &running.keys.operate).await;
    assert_eq!(operator.get("/console/api/session").await.json()["rules"], "change");
    let changed =
        operator.post("/console/api/rules/set", &json!({ "text": text, "why": "x", "actor": "a\nb" })).await;
    assert_eq!(changed.status, 400, "a name is a line");
    let changed = operator.post("/console/api/rules/set", &json!({ "text": text, "why": "x" })).await;
    assert_eq!(changed.status, 200, "{}", changed.message());
}

#[tokio::test]
async fn the_consoles_own_key_never_changes_the_rules() {
    let (folder, keys) = (tempfile::tempdir().unwrap(), Keys::mint());
    let key_file = folder.path().join("console.key");
    std::fs::write(&key_file, &keys.operate.text).unwrap();
    let options = ConsoleOptions { key_file: Some(key_file), ..changing() };
    let refused = Console::open(&options, parts(folder.path(), &keys)).unwrap_err().to_string();
    assert!(refused.contains("console.rules_changed_by"), "{refused}");
}

#[tokio::test]
async fn bodies_are_bounded() {
    let running = start(ConsoleOptions::default()).await;
    let browser = Browser::signed_in(&running, &running.keys.operate).await;
    let headers = [
        ("x-windfall-csrf", browser.csrf.as_str()),
        ("content-type", "application/json"),
        ("content-length", "4194304"),
        ("expect", "100-continue"),
    ];
    assert_eq!(browser.send("POST", "/console/api/rules/check", &headers, None).await.status, 413);
}

#[tokio::test]
async fn a_console_of_its_own_shows_and_calls_other_processes() {
    let service = start(ConsoleOptions::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let key_file = folder.path().join("console.key");
    std::fs::write(&key_file, format!("{}\n", service.keys.operate.text)).unwrap();
    let at = |name: &str, url: String| ServiceAt {
        name: name.into(),
        url,
        ca_file: None,
        server_name: None,
        key_in_plain_text: false,
    };
    let options = ConsoleOptions {
        attempts_per_min: 1_000,
        key_file: Some(key_file),
        services: vec![
            at("gone", "http://127.0.0.1:1".into()),
            at("tokens", format!("http://{}", service.server.address())),
        ],
        ..Default::default()
    };
    let running = start_at(options, false).await;
    // Both processes know the same callers.
    std::fs::write(running.folder.path().join("access.toml"), service.keys.text()).unwrap();
    let mut front = Browser::new(&running);
    until("the key is known", async || front.sign_in(&service.keys.front.text).await.status == 200).await;
    let operator = Browser::signed_in(&running, &service.keys.operate).await;
    until("the service is seen", async || {
        operator.get("/console/api/flow").await.json()["instances"][1]["ok"] == json!(true)
    })
    .await;
    let flow = operator.get("/console/api/flow").await.json();
    assert_eq!((&flow["instances"][0]["name"], &flow["instances"][0]["ok"]), (&json!("gone"), &json!(false)));

    let headers = [("x-windfall-csrf", front.csrf.as_str()), ("x-windfall-user", "7")];
    let path = "/console/api/call/v1/tokens/list";
    until("the service has said what it serves", async || {
        front.send("POST", path, &headers, Some("{}")).await.status == 200
    })
    .await;
    assert_eq!(service.fake.0.lock().last(), Some(&Some(7)));
    let unknown = operator.post("/console/api/call/v1/archive/list", &json!({})).await;
    assert_eq!(unknown.status, 501, "{}", unknown.message());
}
