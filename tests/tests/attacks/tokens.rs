//! Tokens that are not the user's, or not as they were minted: all look alike, and force nothing.

use super::{LIST, SEND, Target, VERIFY, WALLET, WITHDRAW, code, reward};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const OWNER: i64 = 42;
const THIEF: i64 = 43;
/// Coins are held in their lanes, so their tokens stay VALID.
const RULES: &str = r#"version = 1
types = ["cash", "coin"]
[topics]
a = { broker = "a", partitions = 2 }
b = { broker = "b", partitions = 2 }
coins-a = { broker = "a", partitions = 1 }
coins-b = { broker = "b", partitions = 1 }
[queues.all]
master = "a"
backup = "b"
ratio = 90
[queues.coins]
master = "coins-a"
backup = "coins-b"
ratio = 90
[[routes]]
type = "cash"
queue = "all"
requeue = ["all"]
[[routes]]
type = "coin"
queue = "coins"
requeue = ["coins"]
[limits.global]
rate_per_s = 100000
burst = 10000
[limits.default]
rate_per_s = 50000
burst = 5000
[limits.types.coin]
fuse = "pause"
[end]
"#;

fn coins(trade_no: &str, user_id: i64) -> Value {
    let mut coins = reward(trade_no, user_id, 888);
    coins["bonus"]["type"] = json!("coin");
    coins
}

fn verify(target: &Target, user_id: i64, tokens: &[String]) -> Vec<Value> {
    let verified = target.ok("wallet-front", user_id, VERIFY, &json!({"tokens": tokens}));
    verified["tokens"].as_array().unwrap().clone()
}

#[test]
fn what_is_not_the_users_token_is_worth_nothing() {
    let dir = windfall_tests::scratch();
    let rules = dir.path().join("rules.toml");
    std::fs::write(&rules, RULES).unwrap();
    // Another app, with the same key ring.
    let keys = dir.path().join("keys.toml");
    let (keys, rules) = (keys.display().to_string(), rules.display().to_string());
    let options = format!("keys = {keys:?}\nrules = {{ file = {rules:?} }}\n");
    let mut target = Target::start(&options, &[], "");
    let mut cousin = Target::start(&format!("tenant = \"cousin\"\n{options}"), &[], "");
    let mint = |target: &Target, trade_no: &str| {
        let sent = target.ok("activity", None, SEND, &coins(trade_no, OWNER));
        sent["token"].as_str().unwrap().to_owned()
    };
    let (own, cousins) = (mint(&target, "t:1"), mint(&cousin, "t:2"));
    // Tokens reach the store in a moment; nobody grants coins, so they stay.
    target.until("the token is VALID", |target| {
        verify(target, OWNER, std::slice::from_ref(&own))[0]["verdict"] == "TOKEN_VERDICT_VALID"
    });
    cousin.until("the cousin's is VALID there", |cousin| {
        verify(cousin, OWNER, std::slice::from_ref(&cousins))[0]["verdict"] == "TOKEN_VERDICT_VALID"
    });
    theft(&target, &cousin, &own, &cousins);
    let changed = changes(&own);
    assert!(changed.len() > 1_000, "{} changed tokens", changed.len());
    for part in changed.chunks(512) {
        for (verdict, text) in verify(&target, OWNER, part).iter().zip(part) {
            assert_eq!(*verdict, json!({"verdict": "TOKEN_VERDICT_ILLEGAL"}), "{text}");
        }
    }
    // Presented to be paid they count for nothing.
    let stolen: Vec<&String> = changed.iter().step_by(8).take(510).chain([&own, &cousins]).collect();
    let withdrawal = json!({"withdrawal_id": "t-1", "bonus_type": "coin", "amount": 1, "tokens": stolen});
    let refused = target.post("wallet-front", THIEF, WITHDRAW, &withdrawal);
    assert_eq!(code(&refused), (400, "FAILED_PRECONDITION"));
    looks_alike(&target, &own, &cousins);
    let still = verify(&target, OWNER, std::slice::from_ref(&own));
    assert_eq!(still[0]["verdict"], "TOKEN_VERDICT_VALID", "attacks change nothing: {still:?}");
    target.still_serves();
    cousin.still_serves();
    cousin.stop(&[own.clone(), cousins.clone()]);
    target.stop(&[own, cousins]);
}

/// Somebody else's, and another app's.
fn theft(target: &Target, cousin: &Target, own: &String, cousins: &String) {
    let illegal = json!({"verdict": "TOKEN_VERDICT_ILLEGAL"});
    let all = std::slice::from_ref(&illegal);
    assert_eq!(verify(target, THIEF, std::slice::from_ref(own)), all);
    assert_eq!(verify(target, OWNER, std::slice::from_ref(cousins)), all, "another app's");
    assert_eq!(verify(cousin, OWNER, std::slice::from_ref(own)), all);
    let wallet = target.ok("wallet-front", THIEF, WALLET, &json!({"tokens": [own, cousins]}));
    assert_eq!((&wallet["balances"], &wallet["flow"]), (&json!([]), &json!([])), "{wallet}");
    let owners = target.ok("wallet-front", OWNER, WALLET, &json!({"tokens": [own, cousins, own]}));
    assert_eq!(owners["balances"][0]["pending"], "888", "its own, once: {owners}");

    let listed = target.ok("wallet-front", THIEF, LIST, &json!({}));
    assert_eq!(listed["tokens"], json!([]));
    for trade_no in ["t:3", "t:4"] {
        target.ok("activity", None, SEND, &coins(trade_no, OWNER));
    }
    target.until("three are listed", |target| {
        let listed = target.ok("wallet-front", OWNER, LIST, &json!({}));
        listed["tokens"].as_array().is_some_and(|tokens| tokens.len() == 3)
    });
    let page = target.ok("wallet-front", OWNER, LIST, &json!({"page_size": 1}));
    let place = json!({"page_size": 1, "page_token": page["next_page_token"]});
    assert_eq!(target.post("wallet-front", OWNER, LIST, &place).status, 200);
    for (target, user_id) in [(target, THIEF), (cousin, OWNER)] {
        let refused = target.post("wallet-front", user_id, LIST, &place);
        assert_eq!(code(&refused), (400, "INVALID_ARGUMENT"), "another's place in another's list");
    }
}

/// Each bit flipped, each beginning, and other ways to write the same.
fn changes(own: &str) -> Vec<String> {
    let bytes = B64.decode(own).unwrap();
    let flipped = (0..bytes.len() * 8).map(|bit| {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        B64.encode(bytes)
    });
    let cut = (0..own.len()).map(|end| own[..end].to_owned());
    let written = [
        format!("{own}="),
        format!("{own}A"),
        format!(" {own}"),
        format!("{own}\n"),
        format!("{own}\0"),
        format!("{own}.{own}"),
        own.replace('-', "+").replace('_', "/") + "==",
        own.to_uppercase(),
        own.chars().rev().collect(),
        "A".repeat(own.len()),
        "é".repeat(own.len() / 2),
        "A".repeat(1 << 20),
    ];
    flipped.chain(cut).chain(written).collect()
}

/// The answers are the same to the byte, and no cause is quicker or slower by what could be told from outside.
fn looks_alike(target: &Target, own: &str, cousins: &str) {
    let flip = |at: usize| {
        let mut bytes = B64.decode(own).unwrap();
        bytes[at] ^= 1;
        B64.encode(bytes)
    };
    let last = B64.decode(own).unwrap().len() - 1;
    let causes = [
        ("somebody else's", own.to_owned(), THIEF),
        ("another app's", cousins.to_owned(), OWNER),
        ("another version", flip(0), OWNER),
        ("another key", flip(2), OWNER),
        ("another nonce", flip(10), OWNER),
        ("another content", flip(60), OWNER),
        ("another tag", flip(last), OWNER),
        ("no token", "A".repeat(own.len()), OWNER),
        ("no text", "é".repeat(own.len() / 2), OWNER),
    ];
    let mut quickest = vec![Duration::MAX; causes.len()];
    let mut bodies = Vec::new();
    // 512 of a kind, so that what one takes is seen above what a call takes; turn by turn, and the quickest counts,
    // so that what else the machine does falls on none of them.
    for _ in 0..15 {
        for (at, (what, text, user_id)) in causes.iter().enumerate() {
            let tokens = json!({"tokens": vec![text; 512]});
            let began = Instant::now();
            let answer = target.post("wallet-front", *user_id, VERIFY, &tokens);
            quickest[at] = quickest[at].min(began.elapsed());
            assert_eq!(answer.status, 200, "{what}");
            bodies.push(answer.body);
        }
    }
    assert!(bodies.iter().all(|body| *body == bodies[0]), "all say the same");
    let named: Vec<_> = causes.iter().map(|(what, ..)| what).zip(&quickest).collect();
    println!("512 of a kind: {named:?}");
    let (least, most) = (quickest.iter().min().unwrap(), quickest.iter().max().unwrap());
    assert!(*most < *least * 3, "a cause can be told by its time: {named:?}");
}
