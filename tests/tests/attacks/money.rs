//! Money by saying it twice, by sums that no number holds, and by a user in the body.

use super::{
    GRANT, GRANT_BATCH, LIST, SEND, SEND_BATCH, Target, VERIFY, WALLET, WITHDRAW, code, number, reward,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::thread;
use windfall_tests::Answer;

/// The largest amount of an order. 1,024 of them are 1,023 less than what 64 bits hold.
const AMOUNT_MAX: i64 = (1 << 53) - 1;

fn withdrawal(id: &str, amount: impl Into<Value>) -> Value {
    json!({"withdrawal_id": id, "bonus_type": "cash", "amount": amount.into()})
}

#[test]
fn money_is_paid_once_and_adds_up() {
    let mut target = Target::start("", &[], "");
    said_again(&target);
    said_at_once(&target);
    users_in_bodies(&target);
    amounts_that_are_none(&target);
    target.still_serves();
    sums_beyond_64_bits(&target);
    target.still_serves();
    target.stop(&[]);
}

/// A withdrawal that is replayed, as it was and changed.
fn said_again(target: &Target) {
    target.grant("again:1", 42, 500);
    target.grant("again:2", 43, 500);
    let withdraw = |user_id: i64, body: &Value| target.post("wallet-front", user_id, WITHDRAW, body);
    let paid = withdraw(42, &withdrawal("w-1", 100));
    assert_eq!(
        (paid.status, &paid.body["outcome"]),
        (200, &json!("WITHDRAW_OUTCOME_TO_PAY_OUT")),
        "{paid:?}"
    );
    for _ in 0..3 {
        let again = withdraw(42, &withdrawal("w-1", 100));
        assert_eq!(again.body["outcome"], "WITHDRAW_OUTCOME_TO_PAY_OUT", "{again:?}");
    }
    let mut other_type = withdrawal("w-1", 100);
    other_type["bonus_type"] = json!("coin");
    let changed = [(42, withdrawal("w-1", 101)), (42, other_type)];
    for (user_id, body) in changed {
        assert_eq!(code(&withdraw(user_id, &body)), (409, "ALREADY_EXISTS"), "{user_id} {body}");
    }
    // An id belongs to its user.
    let other = withdraw(43, &withdrawal("w-1", 100));
    assert_eq!(
        (other.status, &other.body["outcome"]),
        (200, &json!("WITHDRAW_OUTCOME_TO_PAY_OUT")),
        "{other:?}"
    );
    assert_eq!((target.credited(42), target.credited(43)), (400, 400));
}

/// The same id at once: paid once. Many ids at once: no more than there is.
fn said_at_once(target: &Target) {
    target.grant("once:1", 50, 500);
    let at_once = |body: &(dyn Fn(usize) -> Value + Sync)| -> Vec<Answer> {
        thread::scope(|scope| {
            let calls: Vec<_> = (0..16)
                .map(|nth| {
                    let caller = target.service.caller();
                    scope.spawn(move || caller.post("wallet-front", Some(50), WITHDRAW, &body(nth)))
                })
                .collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        })
    };
    let outcomes = |answers: &[Answer]| {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for answer in answers {
            let outcome = answer.body["outcome"].as_str().unwrap_or_else(|| code(answer).1).to_owned();
            *counts.entry(outcome).or_default() += 1;
        }
        counts
    };
    let same = outcomes(&at_once(&|_| withdrawal("o-1", 50)));
    assert_eq!(same.get("WITHDRAW_OUTCOME_TO_PAY_OUT"), Some(&16), "{same:?}");
    assert_eq!(target.credited(50), 450);
    let others = outcomes(&at_once(&|nth| withdrawal(&format!("o-2-{nth}"), 100)));
    assert_eq!(others.get("WITHDRAW_OUTCOME_TO_PAY_OUT"), Some(&4), "{others:?}");
    assert_eq!(others.get("FAILED_PRECONDITION"), Some(&12), "{others:?}");
    assert_eq!(target.credited(50), 50);
}

/// The user is who the call is for, whatever else names one.
fn users_in_bodies(target: &Target) {
    let calls = [
        (WALLET, json!({})),
        (WITHDRAW, withdrawal("f-1", 1)),
        (LIST, json!({})),
        (VERIFY, json!({"tokens": []})),
    ];
    let forged = [
        ("user_id", json!(42)),
        ("userId", json!("42")),
        ("user", json!({"user_id": 42})),
        ("x-windfall-user", json!(42)),
        ("__proto__", json!({"user_id": 42})),
    ];
    for (path, body) in &calls {
        for (name, value) in &forged {
            let mut body = body.clone();
            body[*name] = value.clone();
            for user_id in [None, Some(43)] {
                let refused = target.post("wallet-front", user_id, path, &body);
                assert_eq!(code(&refused), (400, "INVALID_ARGUMENT"), "{path} {body}");
            }
        }
        let nobody = target.post("wallet-front", None, path, body);
        assert_eq!(code(&nobody), (401, "UNAUTHENTICATED"), "{path} for nobody");
        // A query is no place for it either.
        let asked = format!("{path}?user_id=42&x-windfall-user=42");
        let nobody = target.post("wallet-front", None, &asked, body);
        assert!(matches!(nobody.status, 401 | 404), "{path}: {nobody:?}");
    }
    let twice = r#"{"withdrawal_id": "f-2", "bonus_type": "cash", "amount": 1, "amount": 400}"#;
    let headers = [
        ("authorization", target.bearer("wallet-front")),
        ("content-type", "application/json".to_owned()),
        ("x-windfall-user", "42".to_owned()),
    ];
    let refused = target.send(WITHDRAW, &headers, twice.as_bytes());
    assert_eq!(code(&refused), (400, "INVALID_ARGUMENT"), "an amount of two meanings");
    assert_eq!((target.credited(42), target.credited(43)), (400, 400));
}

fn amounts_that_are_none(target: &Target) {
    let amounts = [
        json!(0),
        json!(-1),
        json!(i64::MIN),
        json!(i64::MAX),
        json!(AMOUNT_MAX + 1),
        json!(u64::MAX),
        json!("9223372036854775808"),
        json!("-9223372036854775809"),
        json!(1.5),
        json!(1e300),
        json!("1e3"),
        json!(" 1"),
        json!("0x10"),
        json!(null),
        json!([1]),
        json!(true),
    ];
    for (nth, amount) in amounts.iter().enumerate() {
        let refused = target.post("wallet-front", 42, WITHDRAW, &withdrawal("none", amount.clone()));
        assert_eq!(code(&refused), (400, "INVALID_ARGUMENT"), "a withdrawal of {amount}");
        let mut sent = reward(&format!("none:{nth}"), 42, 1);
        sent["bonus"]["amount"] = amount.clone();
        let refused = target.post("activity", None, SEND, &sent);
        assert_eq!(code(&refused), (400, "INVALID_ARGUMENT"), "a reward of {amount}");
        let granted = target.post("grants", None, GRANT, &json!({"event": sent}));
        let is_rejected = granted.body["outcome"] == "GRANT_OUTCOME_REJECTED";
        assert!(is_rejected || code(&granted) == (400, "INVALID_ARGUMENT"), "{amount}: {granted:?}");
    }
    assert_eq!(target.credited(42), 400);
}

/// Orders that are good each, and together more than a balance holds: never a wrong balance, and nobody else waits.
fn sums_beyond_64_bits(target: &Target) {
    let rich = 60;
    let largest = |trade_no: &str, activity: &str, scene: usize| {
        let mut largest = reward(trade_no, rich, AMOUNT_MAX);
        largest["activity"] = json!(activity);
        largest["scene"] = json!(format!("scene-{scene}"));
        largest
    };
    for half in 0..2 {
        // A budget holds 31 of them at least.
        let order = |nth: usize| largest(&format!("sum:{half}:{nth}"), &format!("half-{half}"), nth / 31);
        let orders: Vec<Value> = (0..512).map(order).collect();
        let granted = target.ok("grants", None, GRANT_BATCH, &json!({"events": orders}));
        let replies = granted["replies"].as_array().unwrap();
        assert!(replies.len() == 512 && replies.iter().all(|one| one["outcome"] == "GRANT_OUTCOME_CREDITED"));
    }
    let full = 1_024 * AMOUNT_MAX;
    assert_eq!(target.credited(rich), full);

    // One more, among others in one call: it waits, they do not.
    let mut batch: Vec<Value> = (0..50).map(|nth| reward(&format!("poor:{nth}"), 100 + nth, 1)).collect();
    batch.insert(20, largest("sum:over:1", "over", 0));
    let granted = target.ok("grants", None, GRANT_BATCH, &json!({"events": batch}));
    for (at, reply) in granted["replies"].as_array().unwrap().iter().enumerate() {
        let wanted = if at == 20 { "GRANT_OUTCOME_RETRY" } else { "GRANT_OUTCOME_CREDITED" };
        assert_eq!(reply["outcome"], wanted, "{at}: {reply}");
    }
    assert_eq!(target.credited(rich), full);

    // The same by the queue, in one record with others.
    let mut batch: Vec<Value> = (0..50).map(|nth| reward(&format!("queued:{nth}"), 200 + nth, 1)).collect();
    batch.insert(20, largest("sum:over:2", "over", 0));
    let sent = target.ok("activity", None, SEND_BATCH, &json!({"requests": batch}));
    assert!(sent["results"].as_array().unwrap().iter().all(|one| one["token"].is_string()), "{sent}");
    for nth in 0..50 {
        target.until("the others' rewards arrive", |target| target.credited(200 + nth) == 1);
    }
    // What is on its way does not fit: said, and not cut to size.
    let wallet = target.post("wallet-front", rich, WALLET, &json!({}));
    assert_eq!(code(&wallet), (400, "OUT_OF_RANGE"), "{wallet:?}");
    // Money that goes makes room for the money that waits.
    let paid = target.ok("wallet-front", rich, WITHDRAW, &withdrawal("sum-1", AMOUNT_MAX));
    assert_eq!(
        (&paid["outcome"], number(&paid["balance"])),
        (&json!("WITHDRAW_OUTCOME_TO_PAY_OUT"), full - AMOUNT_MAX)
    );
    target.until("the one that waited arrives", |target| {
        let wallet = target.ok("wallet-front", rich, WALLET, &json!({"flow_limit": 1}));
        number(&wallet["balances"][0]["credited"]) == full
    });
}
