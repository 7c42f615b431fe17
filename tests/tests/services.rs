//! The services, from outside: `windfall serve --dev` and every call over HTTP; the same by the gRPC clients.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::{Value, json};
use std::collections::BTreeSet;
use windfall_tests::{Answer, Run, Service, plain, scratch};

const USER: i64 = 42;

fn reward(trade_no: &str, user_id: i64, amount: i64) -> Value {
    json!({
        "trade_no": trade_no,
        "user": {"user_id": user_id},
        "activity": "spring-2027",
        "scene": "red-packet-rain",
        "bonus": {"type": "cash", "amount": amount, "description": "red packet"},
    })
}

fn ok(answer: Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

fn code(answer: &Answer) -> (u16, &str) {
    (answer.status, answer.body["code"].as_str().unwrap_or_default())
}

/// pbjson writes 64-bit numbers as text.
fn number(value: &Value) -> i64 {
    value.as_str().map_or_else(|| value.as_i64().unwrap(), |text| text.parse().unwrap())
}

#[test]
fn a_reward_is_sent_proved_credited_and_withdrawn() {
    let dir = scratch();
    let service = Service::dev(&dir.path().join("data"));
    let sent = ok(service.post("activity", None, "/v1/bonuses/send", &reward("rain:1", USER, 888)));
    let token = sent["token"].as_str().unwrap().to_owned();
    assert!(token.len() > 100, "{sent}");

    // Proved while it is on its way, unknown once it is credited: never both.
    let arrived = service.post_until("wallet-front", Some(USER), "/v1/wallet/get", &json!({}), |answer| {
        let balance = &answer.body["balances"][0];
        assert_eq!(answer.status, 200, "{answer:?}");
        let total = if balance.is_null() { 0 } else { number(&balance["total"]) };
        assert!(total == 888 || total == 0, "neither nothing nor once: {answer:?}");
        !balance.is_null() && number(&balance["credited"]) == 888
    });
    assert_eq!(arrived.body["tokens_complete"], true);
    assert_eq!(arrived.body["flow"][0]["reference"], "rain:1");

    let verified = json!({"tokens": [token, "AQAB", ""]});
    let verified = ok(service.post("wallet-front", Some(USER), "/v1/tokens/verify", &verified));
    let verdicts: Vec<_> = verified["tokens"].as_array().unwrap().iter().map(|one| &one["verdict"]).collect();
    assert_eq!(verdicts[1..], ["TOKEN_VERDICT_ILLEGAL", "TOKEN_VERDICT_ILLEGAL"]);
    let theirs = ok(service.post("wallet-front", Some(43), "/v1/tokens/verify", &json!({"tokens": [token]})));
    assert_eq!(theirs["tokens"][0]["verdict"], "TOKEN_VERDICT_ILLEGAL", "somebody else's");

    let withdraw = |id: &str, amount: i64| {
        let body = json!({"withdrawal_id": id, "bonus_type": "cash", "amount": amount, "tokens": [token]});
        service.post("wallet-front", Some(USER), "/v1/wallet/withdraw", &body)
    };
    for _ in 0..2 {
        let taken = ok(withdraw("w-1", 800));
        assert_eq!(
            (&taken["outcome"], number(&taken["balance"])),
            (&json!("WITHDRAW_OUTCOME_TO_PAY_OUT"), 88)
        );
    }
    // It is in the list until it is acknowledged, which two calls do once.
    let list = || ok(service.post("payouts", None, "/v1/payouts/list", &json!({})))["payouts"].clone();
    let listed = list();
    assert_eq!((&listed[0]["withdrawal_id"], number(&listed[0]["amount"])), (&json!("w-1"), 800));
    let body = json!({"user_id": USER, "withdrawal_id": "w-1", "result": "PAYOUT_RESULT_PAID"});
    let acknowledge = || service.post("payouts", None, "/v1/payouts/acknowledge", &body);
    assert_eq!(code(&service.post("wallet-front", Some(USER), "/v1/payouts/acknowledge", &body)).0, 403);
    assert_eq!([ok(acknowledge())["is_new"].clone(), ok(acknowledge())["is_new"].clone()], [true, false]);
    assert_eq!(list(), json!([]));
    let again = ok(withdraw("w-1", 800));
    assert_eq!((&again["outcome"], number(&again["balance"])), (&json!("WITHDRAW_OUTCOME_PAID_OUT"), 88));
    assert_eq!(code(&withdraw("w-1", 1)), (409, "ALREADY_EXISTS"));
    assert_eq!(code(&withdraw("w-2", 89)).1, "FAILED_PRECONDITION");
    assert_eq!(ok(withdraw("w-2", 88))["outcome"], "WITHDRAW_OUTCOME_TO_PAY_OUT", "its id was not used up");
    // Tokens that the store does not take are dropped, which the process has to show.
    let key = [("authorization", format!("Bearer {}", service.keys["operator"]))];
    let metrics = service.send("GET", "/metrics", &key, b"");
    let dropped = "windfall_token_write_behind_tokens_total{state=\"dropped\"} 0";
    let metrics = metrics.body.as_str().unwrap_or_default();
    assert!(metrics.lines().any(|line| line.starts_with(dropped)), "{metrics}");
    let ended = service.stop();
    assert_eq!(ended.code, Some(0), "{ended}");
}

/// A user's history of 300 movements is read to its end, each of them once, and by nobody else.
fn whole_history(service: &Service) {
    let (mut references, mut after) = (BTreeSet::new(), String::new());
    loop {
        let asked = json!({"flow_limit": 120, "flow_after": after});
        let page = ok(service.post("wallet-front", Some(8), "/v1/wallet/get", &asked));
        for line in page["flow"].as_array().unwrap() {
            assert!(references.insert(line["reference"].to_string()), "{line} is there twice");
        }
        match page["flow_next"].as_str() {
            Some(next) if !next.is_empty() => after = next.to_owned(),
            _ => break,
        }
    }
    assert_eq!(references.len(), 300);
    let foreign = json!({"flow_after": after});
    assert_eq!(
        code(&service.post("wallet-front", Some(USER), "/v1/wallet/get", &foreign)),
        (400, "INVALID_ARGUMENT")
    );
}

#[test]
fn batches_lists_grants_and_the_archive() {
    let dir = scratch();
    let data = dir.path().join("data");
    let service = Service::dev(&data);
    let batch = json!({"requests": [reward("b:1", USER, 1), reward("", USER, 1), reward("b:2", USER, 2)]});
    let sent = ok(service.post("activity", None, "/v1/bonuses/send-batch", &batch));
    let results = sent["results"].as_array().unwrap();
    assert!(results[0]["token"].is_string() && results[2]["token"].is_string(), "{sent}");
    assert_eq!(number(&results[1]["failure"]["code"]), 3, "{sent}");

    let event = |trade_no: &str, amount: i64| json!({"event": reward(trade_no, USER, amount)});
    let grant = |body: &Value| ok(service.post("grants", None, "/v1/rewards/grant", body));
    assert_eq!(grant(&event("g:1", 5))["outcome"], "GRANT_OUTCOME_CREDITED");
    assert_eq!(grant(&event("g:1", 5))["outcome"], "GRANT_OUTCOME_ALREADY_CREDITED");
    assert_eq!(grant(&event("g:1", 6))["outcome"], "GRANT_OUTCOME_CONFLICT");
    let many: Vec<_> = (0..500).map(|number| reward(&format!("g:b:{number}"), 7, 1)).collect();
    let many = ok(service.post("grants", None, "/v1/rewards/grant-batch", &json!({"events": many})));
    let replies = many["replies"].as_array().unwrap();
    assert!(replies.len() == 500 && replies.iter().all(|one| one["outcome"] == "GRANT_OUTCOME_CREDITED"));

    let later: Vec<_> = (0..300).map(|number| reward(&format!("l:{number}"), 8, 2)).collect();
    for _ in 0..2 {
        let taken = ok(service.post("grants", None, "/v1/rewards/grant-async", &json!({"events": later})));
        let replies = taken["replies"].as_array().unwrap();
        let accepted = |one: &Value| {
            one["outcome"] == "GRANT_OUTCOME_ACCEPTED" || one["outcome"] == "GRANT_OUTCOME_ALREADY_CREDITED"
        };
        assert!(replies.len() == 300 && replies.iter().all(accepted), "{taken}");
    }
    service.post_until("wallet-front", Some(8), "/v1/wallet/get", &json!({}), |answer| {
        answer.body["balances"][0]["credited"].as_str() == Some("600")
    });
    whole_history(&service);

    let listed = ok(service.post("operator", None, "/v1/archive/list", &json!({"reason": "conflict"})));
    let entry = &listed["entries"][0];
    assert_eq!((&entry["trade_no"], number(&entry["event"]["bonus"]["amount"])), (&json!("g:1"), 6));
    let id = &entry["id"];
    let replayed =
        ok(service.post("operator", None, "/v1/archive/replay", &json!({"id": id, "actor": "ann"})));
    assert_eq!(replayed["reply"]["outcome"], "GRANT_OUTCOME_CONFLICT", "a conflict stays one");
    let one = ok(service.post("operator", None, "/v1/archive/get", &json!({"id": id})));
    let actor = one["replays"].as_array().unwrap().last().unwrap()["actor"].as_str().unwrap();
    assert!(actor.contains("operator") && actor.contains("ann"), "{one}");
    assert_eq!(
        code(&service.post("operator", None, "/v1/archive/get", &json!({"id": 999}))),
        (404, "NOT_FOUND")
    );
    let budgets = ok(service.post("operator", None, "/v1/budgets/list", &json!({})));
    assert!(budgets["budgets"].as_array().unwrap().iter().any(|one| number(&one["used"]) > 0), "{budgets}");

    let operate = |key: &str, args: &[&str]| {
        let run = Run::new(plain()).args(["operate", "--server", &service.url()]).args(args);
        run.env("WINDFALL_KEY", &service.keys[key]).env("USER", "bob").end()
    };
    let listed = operate("operator", &["archive", "--reason", "conflict", "--json"]);
    assert_eq!((listed.code, &listed.json()[0]["trade_no"]), (Some(0), &json!("g:1")), "{listed}");
    let id = id.as_str().unwrap();
    let replayed = operate("operator", &["replay", id]);
    assert!(replayed.code == Some(0) && replayed.stdout.contains("CONFLICT"), "{replayed}");
    let inspected = operate("operator", &["inspect", id]).json();
    let actors: Vec<_> = inspected["replays"].as_array().unwrap().iter().map(|one| &one["actor"]).collect();
    assert!(actors.iter().any(|actor| actor.as_str().unwrap().contains("bob")), "{inspected}");
    for asked in ["reserved", "held", "budgets"] {
        let asked = operate("operator", &[asked, "--json"]);
        assert!(asked.code == Some(0) && asked.json().is_array(), "{asked}");
    }
    let statement = operate("operator", &["statement", "8", "--limit", "1", "--json"]).json();
    let line = &statement["lines"][0];
    assert_eq!((number(&line["balance"]), number(&line["amount"])), (600, 2), "{statement}");
    let cursor = statement["next_after"].as_str().unwrap();
    let older = operate("operator", &["statement", "8", "--after", cursor, "--limit", "1"]);
    assert!(older.code == Some(0) && older.stdout.contains("balance   598"), "{older}");
    let ago = operate("operator", &["statement", "8", "--at", "1970-01-01T00:00:01Z"]);
    assert!(ago.code == Some(0) && ago.stdout.trim() == "none", "{ago}");
    let none = operate("operator", &["withdrawals", "8", "--status", "held", "--json"]);
    assert_eq!((none.code, none.json()), (Some(0), json!([])), "{none}");
    let fleet =
        operate("operator", &["withdrawals", "--status", "held", "--to", "2000-01-01T00:00:00Z", "--json"]);
    assert_eq!((fleet.code, fleet.json()), (Some(0), json!([])), "{fleet}");
    let refusals: [(&[&str], &str); 3] = [
        (&["withdrawals", "--status", "paid"], "no others"),
        (&["withdrawals"], "USER"),
        (&["withdrawals", "8", "--from", "1"], "--from"),
    ];
    for (args, why) in refusals {
        let refused = operate("operator", args);
        assert!(refused.code == Some(2) && refused.stderr.contains(why), "{refused}");
    }
    let unknown = operate("operator", &["release", "never-seen"]);
    assert!(unknown.code == Some(2) && unknown.stderr.contains("never-seen"), "{unknown}");
    let refused = operate("grants", &["budgets"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("`observe`"), "{refused}");

    let find = |key: &str, args: &[&str]| {
        let run = Run::new(plain()).args(["find", "--server", &service.url()]).args(args);
        run.env("WINDFALL_KEY", &service.keys[key]).end()
    };
    let found = find("operator", &["g:1"]);
    assert!(found.code == Some(0) && found.stdout.contains("credited by the ledger"), "{found}");
    assert!(found.stdout.contains("conflict"), "what the archive has of it is shown, too: {found}");
    let found = find("operator", &["g:1", "--json"]).json();
    assert_eq!(
        (&found["order"]["status"], number(&found["order"]["amount"])),
        (&json!("ORDER_STATUS_CREDITED"), 5)
    );
    assert_eq!(number(&found["archived"][0]["event"]["bonus"]["amount"]), 6, "{found}");
    let unknown = find("operator", &["never-seen"]);
    assert!(unknown.code == Some(1) && unknown.stdout.contains("does not know"), "{unknown}");
    let refused = find("grants", &["g:1"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("`observe`"), "{refused}");
    let wrong = find("operator", &["two\nlines"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("trade_no"), "{wrong}");

    check_top(&service);

    // What was credited is there after a kill, and what was sent arrives.
    drop(service.kill());
    let service = Service::dev(&data);
    service.post_until("wallet-front", Some(USER), "/v1/wallet/get", &json!({}), |answer| {
        answer.body["balances"][0]["credited"].as_str() == Some("8")
    });
    assert_eq!(service.stop().code, Some(0));
}

/// `windfall top` of a process that has credited and archived, of one that is away beside it, by keys that may not, and of nobody.
fn check_top(service: &Service) {
    let away = "http://127.0.0.1:1";
    let top = |servers: &str, key: &str, args: &[&str]| {
        let run = Run::new(plain()).args(["top", "--interval", "0.2", "--server", servers]).args(args);
        run.env("WINDFALL_KEY", key).end()
    };
    let (url, operator) = (service.url(), &service.keys["operator"]);
    let shown = top(&url, operator, &["--once", "--json"]);
    assert_eq!(shown.code, Some(0), "{shown}");
    let picture = shown.json();
    assert_eq!((&picture["processes"][0]["state"], &picture["rules_version"]), (&json!("ready"), &json!(1)));
    let row = |rows: &str, name: &str| -> Value {
        let rows = picture[rows].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {picture}")).clone()
    };
    let cash = row("types", "cash");
    assert!(cash["limit_per_s"].as_f64().unwrap() > 0.0 && cash["fuse"] == "closed", "{cash}");
    assert!(row("ends", "archived")["count"].as_u64().unwrap() > 0, "{picture}");
    let topics = picture["topics"].as_array().unwrap();
    assert!(!topics.is_empty() && topics.iter().all(|topic| topic["consumers"] == 1), "{picture}");

    let printed = top(&url, operator, &[]);
    assert!(printed.code == Some(0) && printed.stderr.contains("is no terminal"), "{printed}");
    assert!(["HEALTH", "cash", "LOOK AT"].iter().all(|what| printed.stdout.contains(what)), "{printed}");
    let one_away = top(&format!("{url},{away}"), operator, &["--once"]);
    assert!(one_away.code == Some(1) && one_away.stdout.contains("1 of 2 ready, 1 away"), "{one_away}");
    let nobody = top(away, operator, &["--once"]);
    assert!(nobody.code == Some(1) && nobody.stderr.contains("cannot be reached"), "{nobody}");
    for args in [&["--once"][..], &["--json"], &[]] {
        let refused = top(&url, &service.keys["grants"], args);
        assert!(refused.code == Some(2) && refused.stderr.contains("`observe`"), "{refused}");
    }
    let unknown = top(&url, "wfk_nobody", &["--once"]);
    assert!(unknown.code == Some(2) && unknown.stderr.contains("not allowed"), "{unknown}");
}

#[test]
fn who_may_do_what() {
    let dir = scratch();
    let service = Service::dev(&dir.path().join("data"));
    let paths: [(&str, &[&str]); 28] = [
        ("/v1/bonuses/send", &["activity"]),
        ("/v1/bonuses/send-batch", &["activity"]),
        ("/v1/tokens/list", &["wallet-front"]),
        ("/v1/tokens/verify", &["wallet-front"]),
        ("/v1/rewards/grant", &["grants"]),
        ("/v1/rewards/grant-batch", &["grants"]),
        ("/v1/rewards/grant-async", &["grants"]),
        ("/v1/archive/list", &["operator", "approver"]),
        ("/v1/archive/get", &["operator", "approver"]),
        ("/v1/archive/replay", &["operator"]),
        ("/v1/budgets/list", &["operator", "approver"]),
        ("/v1/reserved/list", &["operator", "approver"]),
        ("/v1/reserved/release", &["operator"]),
        ("/v1/orders/get", &["operator", "approver"]),
        ("/v1/withdrawals/held", &["operator", "approver"]),
        ("/v1/ledger/mark", &["operator", "approver"]),
        ("/v1/ledger/accept", &["operator"]),
        ("/v1/statements/get", &["operator", "approver"]),
        ("/v1/withdrawals/list", &["operator", "approver"]),
        ("/v1/acts/propose", &["operator"]),
        ("/v1/acts/list", &["operator", "approver"]),
        ("/v1/acts/get", &["operator", "approver"]),
        ("/v1/acts/approve", &["approver"]),
        ("/v1/acts/refuse", &["operator"]),
        ("/v1/payouts/list", &["payouts"]),
        ("/v1/payouts/acknowledge", &["payouts"]),
        ("/v1/wallet/get", &["wallet-front"]),
        ("/v1/wallet/withdraw", &["wallet-front"]),
    ];
    for (path, callers) in paths {
        assert_eq!(code(&service.post("nobody", None, path, &json!({}))), (401, "UNAUTHENTICATED"), "{path}");
        for other in service.keys.keys().filter(|name| !callers.contains(&name.as_str())) {
            let refused = service.post(other, None, path, &json!({}));
            assert_eq!(code(&refused), (403, "PERMISSION_DENIED"), "{path} by {other}");
        }
        let unknown = service.post(callers[0], Some(1), path, &json!({"no_such_field": 1}));
        assert!(matches!(code(&unknown).0, 400 | 403), "{path}: {unknown:?}");
    }
    // The user is never what a body says.
    let forged = json!({"tokens": [], "user_id": 1});
    assert_eq!(code(&service.post("wallet-front", None, "/v1/tokens/verify", &forged)).0, 400);
    assert_eq!(
        code(&service.post("wallet-front", None, "/v1/tokens/list", &json!({}))),
        (401, "UNAUTHENTICATED")
    );
    assert_eq!(service.send("GET", "/health/live", &[], b"").status, 200);
    assert_eq!(service.send("GET", "/health/ready", &[], b"").status, 200);
    assert_eq!(service.send("GET", "/metrics", &[], b"").status, 401);
    let key = |name: &str| [("authorization", format!("Bearer {}", service.keys[name]))];
    let metrics = service.send("GET", "/metrics", &key("operator"), b"");
    let text = metrics.body.as_str().unwrap_or_default();
    for name in [
        "windfall_edge_calls_total",
        "windfall_sent_events_total",
        "windfall_window_records",
        "windfall_withdrawals_total",
    ] {
        assert!(text.contains(name), "{name} is missing: {text}");
    }
    assert!(!text.contains("wfk_"), "a key in the metrics");
    let spec = service.send("GET", "/openapi.json", &key("activity"), b"");
    for (path, _) in paths {
        assert!(spec.body["paths"][path]["post"].is_object(), "{path} is not in the OpenAPI document");
    }
    let said = service.said();
    assert!(!service.keys.values().any(|key| said.contains(key.as_str())), "a key in the log");
    assert_eq!(service.stop().code, Some(0));
}

/// A document that every process refuses changes nothing, and is seen: who refuses it, and why.
#[test]
fn a_change_of_the_rules_that_is_refused_is_visible() {
    let dir = scratch();
    let service = Service::dev(dir.path());
    let rules = dir.path().join("rules/rules.toml");
    let status_until = |state: &str, code: i32| {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let status = Run::new(plain()).args(["rules", "status", "--json", "--file"]).arg(&rules).end();
            if status.code == Some(code) && status.json()["processes"][0]["state"] == state {
                return status.json();
            }
            assert!(std::time::Instant::now() < until, "{status}");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    };
    let seen = status_until("runs", 0);
    assert_eq!((&seen["version"], &seen["ok"]), (&json!(1), &json!(true)), "{seen}");
    let whole = std::fs::read_to_string(&rules).unwrap();
    let wrong = whole.replacen("version = 1", "version = 2", 1).replacen("ratio = 90", "ratio = 190", 1);
    std::fs::write(&rules, wrong).unwrap();
    let seen = status_until("refuses", 1);
    let refused = &seen["processes"][0]["refuses"];
    assert_eq!((&seen["processes"][0]["version"], &refused["version"]), (&json!(1), &json!(2)), "{seen}");
    assert!(refused["why"].as_str().unwrap().contains("ratio"), "{seen}");
    std::fs::write(&rules, whole.replacen("version = 1", "version = 3", 1)).unwrap();
    status_until("runs", 0);
    assert_eq!(service.stop().code, Some(0));
    let gone = Run::new(plain()).args(["rules", "status", "--json", "--file"]).arg(&rules).end();
    assert_eq!(gone.json()["processes"], json!([]), "a process that ends takes its report back: {gone}");
}

/// A limit that some processes try: given up by itself where rewards wait too long, and promoted where it holds.
#[test]
fn a_limit_is_tried_given_up_and_promoted() {
    let dir = scratch();
    let service = Service::dev(dir.path());
    let rules = dir.path().join("rules/rules.toml");
    let command = |arguments: &[&str]| {
        let place = ["--why", "test", "--who", "ann", "--file"];
        Run::new(plain()).arg("rules").args(arguments).args(place).arg(&rules).end()
    };
    let stage = |more: &[&str]| command(&[&["stage", "--percent", "100", "--wait"], more].concat());
    let cash = || {
        let shown = Run::new(plain()).args(["rules", "show", "--json", "--file"]).arg(&rules).end().json();
        (shown["limits"]["types"]["cash"]["limit"]["rate_per_s"].clone(), shown["staged"].clone())
    };
    let in_force = || {
        let key = [("authorization", format!("Bearer {}", service.keys["operator"]))];
        let text = service.send("GET", "/metrics", &key, b"").body.as_str().unwrap_or_default().to_owned();
        let limit = text.lines().find_map(|line| {
            line.strip_prefix("windfall_limit_rate_per_second{type=\"cash\"} ")?
                .strip_suffix(".0")?
                .parse::<u64>()
                .ok()
        });
        limit.unwrap()
    };
    let unknown = command(&["stage", "--process", "nobody", "--limit", "cash=5:5"]);
    assert_eq!(unknown.code, Some(2), "{unknown}");
    assert!(unknown.stderr.contains("no process with consumers has the name nobody"), "{unknown}");

    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let status = || Run::new(plain()).args(["rules", "status", "--json", "--file"]).arg(&rules).end().json();
    while status()["processes"] == json!([]) {
        assert!(std::time::Instant::now() < until, "the process does not report");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    // Nothing flows while it is tried, so what is sent waits: the process goes back to the limit of all.
    std::thread::scope(|scope| {
        let tried =
            scope.spawn(|| stage(&["--limit", "cash=0:100", "--oldest-max-ms", "2000", "--for", "90s"]));
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while in_force() != 0 {
            assert!(std::time::Instant::now() < until && !tried.is_finished(), "it is not tried");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        for nth in 0..20 {
            ok(service.post("activity", None, "/v1/bonuses/send", &reward(&format!("rain:{nth}"), USER, 1)));
        }
        let failed = tried.join().unwrap();
        assert_eq!(failed.code, Some(1), "{failed}");
        assert!(failed.stderr.contains("an event has waited for"), "{failed}");
    });
    assert_eq!(cash(), (json!(50_000), Value::Null), "taken back");
    service.post_until("wallet-front", Some(USER), "/v1/wallet/get", &json!({}), |answer| {
        let balance = &answer.body["balances"][0];
        !balance.is_null() && number(&balance["credited"]) == 20
    });
    assert_eq!(in_force(), 50_000);
    let history = Run::new(plain()).args(["rules", "history", "--file"]).arg(&rules).end();
    assert!(history.stdout.contains("abort, since serve-"), "{history}");

    let proven = stage(&["--limit", "cash=40000:4000", "--oldest-max-ms", "60000", "--for", "2s"]);
    assert_eq!(proven.code, Some(0), "{proven}");
    assert_eq!(cash(), (json!(40_000), Value::Null), "promoted");
    let nothing = command(&["abort"]);
    assert!(nothing.code == Some(2) && nothing.stderr.contains("no change is staged"), "{nothing}");
    assert_eq!(service.stop().code, Some(0));
}
