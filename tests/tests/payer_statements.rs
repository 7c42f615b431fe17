//! Payers' statements, from outside: `windfall reconcile --statement` asks an auditor whether a payer agrees with the ledger.
#![allow(clippy::unwrap_used)] // a test ends where its premise fails

use serde_json::{Value, json};
use std::path::Path;
use windfall_ledger::{Attempt, Ledger, LedgerOptions, Order, OrderId, Unbudgeted};
use windfall_tests::{Ended, Ground, Run, Service, plain, scratch};

const HOUR: i64 = 3_600_000;
/// A day that has long passed.
const DAY_BEGINS: i64 = 1_700_000_000_000 / (24 * HOUR) * (24 * HOUR);
const ORDERS: usize = 4_500;

/// A ledger of which a payer has paid many orders within a day, and is asked for one.
fn fill(data: &Path) {
    std::fs::create_dir_all(data).unwrap();
    let options = LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() };
    let mut ledger = Ledger::open(data.join("ledger.db"), &options).unwrap();
    let names: Vec<String> = (0..=ORDERS).map(|nth| format!("n-{nth}")).collect();
    let time_ms = DAY_BEGINS + 5 * HOUR;
    let order = |trade_no| Order {
        trade_no,
        user_id: 7,
        activity: "spring",
        scene: "rain",
        bonus_type: "cash",
        amount: 3,
        time_ms,
    };
    let orders: Vec<_> = names.iter().map(|name| order(name)).collect();
    ledger.transact(|tx| tx.reserve(&orders, &vec!["bank"; orders.len()], Attempt::Normal)).unwrap();
    let paid: Vec<OrderId<'_>> = orders[..ORDERS].iter().map(Order::id).collect();
    ledger.transact(|tx| tx.post(&paid, time_ms + 1)).unwrap();
}

fn statement(lines: impl IntoIterator<Item = usize>) -> String {
    let lines = lines.into_iter().map(|nth| format!("order spring n-{nth},cash,3,x\n"));
    format!("key,type,amount,note\n{}", lines.collect::<String>())
}

fn reconcile(service: &Service, ground: &Ground, more: &[&str], stdin: &str) -> Ended {
    let server = format!("http://{}", service.address);
    Run::new(plain())
        .args(["reconcile", "--server", &server, "--actor", "ann"])
        .args(more)
        .env("WINDFALL_KEY", &ground.keys["ops"])
        .stdin(stdin)
        .end()
}

fn compare(service: &Service, ground: &Ground, stdin: &str, again: &str) -> Ended {
    let (from, to) = (DAY_BEGINS.to_string(), (DAY_BEGINS + 24 * HOUR).to_string());
    let args = ["--payer", "bank", "--statement", "-", "--from", &from, "--to", &to, "--json"];
    reconcile(service, ground, &[&args[..], &["--again", again]].concat(), stdin)
}

/// The name that the command gives to the upload of these lines.
fn upload_name(lines: impl IntoIterator<Item = usize>) -> String {
    let mut text = format!("bank\n{DAY_BEGINS}\n{}\n3600\n0\n", DAY_BEGINS + 24 * HOUR);
    for nth in lines {
        text.push_str(&format!("order spring n-{nth}\ncash\n3\npaid\n"));
    }
    let hash = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn listed(service: &Service, ground: &Ground) -> usize {
    let listed = reconcile(service, ground, &["--statements", "--json"], "");
    listed.json().as_array().unwrap().len()
}

fn kinds(answer: &Value) -> Vec<&str> {
    answer["differences"].as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap()).collect()
}

#[test]
fn a_payer_agrees_or_the_command_says_what_differs() {
    let dir = scratch();
    let ground = Ground::new(dir.path(), &[("ops", "operate"), ("eyes", "observe")], "");
    fill(&dir.path().join("auditor"));
    let service = ground.start("auditor");
    let agrees = compare(&service, &ground, &statement(0..ORDERS), "0");
    assert_eq!(agrees.code, Some(0), "{agrees}");
    let answer = agrees.json();
    let sum = &answer["statement"]["sums"][0];
    let amount = (3 * ORDERS).to_string();
    assert_eq!(
        (&answer["agrees"], &sum["amount"], &sum["agreed_amount"]),
        (&json!(true), &json!(amount), &json!(amount))
    );
    assert_eq!(sum["ledger_amount"], json!(amount));

    // One is lacking, one has another amount, one is not known to be paid, and one is there twice.
    let text = statement((1..=ORDERS).chain([5])).replace("n-2,cash,3", "n-2,cash,4");
    for again in ["0", "1"] {
        let differs = compare(&service, &ground, &text, again);
        assert_eq!(differs.code, Some(1), "{differs}");
        let answer = differs.json();
        let mut found = kinds(&answer);
        found.sort_unstable();
        assert_eq!(
            found,
            ["payer_in_flight", "payer_lacks", "payer_mismatch", "payer_repeated"],
            "{differs}"
        );
    }
    let open = reconcile(&service, &ground, &["--json"], "");
    assert_eq!(
        (open.code, kinds(&open.json()).len()),
        (Some(1), 4),
        "the second time they are the same: {open}"
    );

    // A wrong line: nothing is uploaded.
    let text = "key,type,amount\norder spring n-1,cash,3\norder spring n-2,cash,3.0\n";
    let wrong = compare(&service, &ground, text, "0");
    assert_eq!(wrong.code, Some(2), "{wrong}");
    assert!(wrong.to_string().contains("line 3 of the statement: its amount is \"3.0\""), "{wrong}");
    let listed = reconcile(&service, &ground, &["--statements", "--json"], "");
    assert_eq!((listed.code, listed.json().as_array().unwrap().len()), (Some(0), 3), "{listed}");
    assert_eq!(listed.json()[0]["actor"], json!("ops: ann"));
    // What people read.
    let (from, to) = (DAY_BEGINS.to_string(), (DAY_BEGINS + 24 * HOUR).to_string());
    let file = dir.path().join("bank.csv");
    std::fs::write(&file, statement(0..ORDERS)).unwrap();
    let file = file.to_str().unwrap();
    let args = ["--payer", "bank", "--statement", file, "--from", &from, "--to", &to];
    let shown = reconcile(&service, &ground, &args, "");
    assert_eq!(shown.code, Some(0), "{shown}");
    assert!(shown.to_string().contains("4500 lines; both sides agree"), "{shown}");
    let early = reconcile(&service, &ground, &[&args[..7], &["9999999999999"]].concat(), "");
    assert_eq!(early.code, Some(2), "{early}");
    assert!(early.to_string().contains("have not passed"), "{early}");

    // Who only looks uploads nothing, over HTTP either.
    let begin = json!({"upload": "u", "payer": "bank", "from_ms": "1", "to_ms": "2"});
    assert_eq!(service.post("eyes", None, "/v1/audits/statements/begin", &begin).status, 403);
    let begun = service.post("ops", None, "/v1/audits/statements/begin", &begin);
    assert_eq!((begun.status, &begun.body["payer"]), (200, &json!("bank")), "{begun:?}");
    let id = &begun.body["id"];
    let lines = json!({"statement": id, "first_line": "1", "lines": [{"key": "k", "bonus_type": "cash", "amount": "1"}]});
    for _ in 0..2 {
        let next = service.post("ops", None, "/v1/audits/statements/append", &lines);
        assert_eq!((next.status, &next.body["next_line"]), (200, &json!("2")), "{next:?}");
    }
    let half =
        json!({"statement": id, "lines": "2", "paid": [{"bonus_type": "cash", "lines": "2", "amount": "2"}]});
    let refused = service.post("ops", None, "/v1/audits/statements/compare", &half);
    assert_eq!(refused.status, 400, "{refused:?}");
    let seen =
        service.post("eyes", None, "/v1/audits/statements/list", &json!({"payer": "bank", "limit": 1}));
    assert_eq!(seen.body["statements"][0]["lines"], json!("1"), "{seen:?}");
    assert_eq!(service.stop().code, Some(0));
}

/// A command that dies in the middle of an upload leaves no upload behind that is never ended: called again it goes on where that one
/// ended, and a third time it shows what the second has found.
#[test]
fn an_upload_that_was_cut_off_goes_on_where_it_ended() {
    let dir = scratch();
    let ground = Ground::new(dir.path(), &[("ops", "operate")], "");
    fill(&dir.path().join("auditor"));
    let service = ground.start("auditor");
    let begin = json!({
        "upload": upload_name(0..ORDERS),
        "payer": "bank",
        "from_ms": DAY_BEGINS.to_string(),
        "to_ms": (DAY_BEGINS + 24 * HOUR).to_string(),
    });
    let begun = service.post("ops", None, "/v1/audits/statements/begin", &begin);
    assert_eq!(begun.status, 200, "{begun:?}");
    let id = &begun.body["id"];
    let line =
        |nth: usize| json!({"key": format!("order spring n-{nth}"), "bonus_type": "cash", "amount": "3"});
    // Not as many as the command sends at once.
    let lines: Vec<Value> = (0..2_345).map(line).collect();
    let part = json!({"statement": id, "first_line": "1", "lines": lines});
    let next = service.post("ops", None, "/v1/audits/statements/append", &part);
    assert_eq!((next.status, &next.body["next_line"]), (200, &json!("2346")), "{next:?}");

    let text = statement(0..ORDERS);
    let resumed = compare(&service, &ground, &text, "0");
    assert_eq!(resumed.code, Some(0), "{resumed}");
    let answer = resumed.json();
    let found = &answer["statement"];
    assert_eq!((&found["id"], &found["lines"]), (id, &json!(ORDERS.to_string())), "{resumed}");
    assert!(resumed.to_string().contains("had 2345 lines"), "{resumed}");
    let repeated = compare(&service, &ground, &text, "0");
    assert_eq!((repeated.code, &repeated.json()["statement"]), (Some(0), found), "{repeated}");
    assert!(repeated.to_string().contains("--again 1"), "{repeated}");
    assert_eq!(listed(&service, &ground), 1, "no upload is left behind");

    let anew = compare(&service, &ground, &text, "1");
    assert!(anew.code == Some(0) && &anew.json()["statement"]["id"] != id, "{anew}");
    assert_eq!(listed(&service, &ground), 2);
    assert_eq!(service.stop().code, Some(0));
}
