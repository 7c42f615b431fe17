//! A wrong campaign is corrected from outside: counted, proposed by one operator, approved by another, carried out.
#![allow(clippy::unwrap_used)] // a test ends where its premise fails

use serde_json::{Value, json};
use std::path::Path;
use windfall_ledger::{Ledger, LedgerOptions, LedgerReader, Order, Unbudgeted};
use windfall_tests::{Ended, Ground, Run, Service, plain, scratch};

/// A time that has long passed.
const THEN_MS: i64 = 1_700_000_000_000;
const USERS: i64 = 2_500;

/// A ledger in which every user got 10,000 in place of 100, and then 7 that were right.
fn fill(data: &Path) {
    std::fs::create_dir_all(data).unwrap();
    let options = LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() };
    let mut ledger = Ledger::open(data.join("ledger.db"), &options).unwrap();
    let names: Vec<(String, String)> =
        (0..USERS).map(|user| (format!("w-{user}"), format!("r-{user}"))).collect();
    let order = |trade_no, user_id, amount| Order {
        trade_no,
        user_id,
        activity: "spring",
        scene: "rain",
        bonus_type: "cash",
        amount,
        time_ms: THEN_MS,
    };
    let wrong: Vec<Order<'_>> =
        (1..).zip(&names).map(|(user, (name, _))| order(name, user, 10_000)).collect();
    let right: Vec<Order<'_>> = (1..).zip(&names).map(|(user, (_, name))| order(name, user, 7)).collect();
    ledger.apply(&wrong).unwrap();
    ledger.apply(&right).unwrap();
}

fn operate(service: &Service, ground: &Ground, who: &str, args: &[&str]) -> Ended {
    let server = format!("http://{}", service.address);
    Run::new(plain())
        .args(["operate", "--server", &server])
        .args(args)
        .env("WINDFALL_KEY", &ground.keys[who])
        .end()
}

fn number(value: &Value, field: &str) -> i64 {
    value[field].as_str().map_or(0, |text| text.parse().unwrap())
}

#[test]
fn what_a_typo_gave_is_taken_back_by_two_operators() {
    let dir = scratch();
    let callers = [("ops", "operate"), ("boss", "approve"), ("eyes", "observe")];
    let ground = Ground::new(dir.path(), &callers, "");
    fill(&dir.path().join("reward-service"));
    let service = ground.start("reward-service");
    let until = (THEN_MS + 1).to_string();
    let then = THEN_MS.to_string();
    let which = ["correct", "--activity", "spring", "--type", "cash", "--from", &then, "--to", &until];
    let which = [&which[..], &["--min-amount", "10000", "--keep", "100"]].concat();
    // Who may only look counts, and proposes nothing.
    let seen = operate(&service, &ground, "eyes", &[&which[..], &["--json"]].concat());
    assert_eq!(seen.code, Some(0), "{seen}");
    let sum = seen.json();
    assert_eq!((number(&sum, "orders"), number(&sum, "amount")), (USERS, USERS * 9_900), "{seen}");
    let because = ["--reason", "100 in place of 1", "--evidence", "ticket 7", "--actor", "ann"];
    let asked = [&which[..], &because].concat();
    let refused = operate(&service, &ground, "eyes", &asked);
    assert_eq!(refused.code, Some(2), "{refused}");
    let wrong = operate(&service, &ground, "ops", &[&which[..which.len() - 1], &["10000"]].concat());
    assert_eq!(wrong.code, Some(2), "{wrong}");
    assert!(wrong.to_string().contains("less than the smallest amount"), "{wrong}");

    let proposed = operate(&service, &ground, "ops", &asked);
    assert_eq!(proposed.code, Some(0), "{proposed}");
    let text = proposed.to_string();
    assert!(text.contains("24750000 cash of 2500 credited orders"), "{text}");
    assert!(text.contains("windfall operate approve 1"), "{text}");
    let early = operate(&service, &ground, "boss", &["carry-out", "1"]);
    assert_eq!(early.code, Some(2), "{early}");
    assert!(early.to_string().contains("not approved"), "{early}");
    let approved = operate(&service, &ground, "boss", &["approve", "1", "--actor", "bob"]);
    assert!(approved.code == Some(0) && approved.to_string().contains("carry-out 1"), "{approved}");
    let not_yours = operate(&service, &ground, "ops", &["carry-out", "1"]);
    assert_eq!(not_yours.code, Some(2), "{not_yours}");

    // One page over HTTP, whose answer is lost; the command goes on from the beginning.
    let page = service.post("boss", None, "/v1/acts/carry-out", &json!({"id": "1", "actor": "bob"}));
    assert_eq!((page.status, number(&page.body, "orders")), (200, 1_000), "{page:?}");
    let done = operate(&service, &ground, "boss", &["carry-out", "1", "--actor", "bob", "--json"]);
    assert_eq!(done.code, Some(0), "{done}");
    let sum = &done.json()["carried_out"];
    assert_eq!((number(sum, "orders"), number(sum, "all_orders")), (USERS - 1_000, USERS), "{done}");
    assert_eq!((number(sum, "all_taken"), number(sum, "short_orders")), (USERS * 9_900, 0), "{done}");
    let again = operate(&service, &ground, "boss", &["carry-out", "1"]);
    assert!(again.code == Some(0) && again.to_string().contains("0 from 0 orders"), "{again}");
    // Each order is an act of its own, and lists of acts are not full of them.
    let parts = operate(&service, &ground, "eyes", &["acts", "--part-of", "1", "--limit", "2", "--json"]);
    let parts = parts.json();
    assert_eq!(parts.as_array().unwrap().len(), 2, "{parts}");
    assert_eq!(
        (&parts[0]["part_of"], &parts[0]["proposed_by"]),
        (&json!("1"), &json!("ops: ann")),
        "{parts}"
    );
    let acts = operate(&service, &ground, "eyes", &["acts", "--all", "--json"]);
    assert_eq!(acts.json().as_array().unwrap().len(), 1, "{acts}");
    let user = operate(&service, &ground, "eyes", &["statement", "7"]);
    assert!(user.code == Some(0) && user.to_string().contains("107"), "{user}");
    let nothing = operate(&service, &ground, "ops", &asked);
    assert!(nothing.code == Some(0) && nothing.to_string().contains("nothing to take back"), "{nothing}");
    assert_eq!(service.stop().code, Some(0));

    let reader = LedgerReader::open(dir.path().join("reward-service").join("ledger.db")).unwrap();
    assert!(reader.reconcile().unwrap().is_clean());
    for user in [1, 7, USERS] {
        assert_eq!(reader.balances(user).unwrap(), [("cash".to_owned(), 107)]);
    }
}
