//! Keys, roles, and users that a signature or a trusted front names.

use super::jwt::{AUDIENCE, ISSUER, Issuer, claims, header, now_s, signed_part};
use super::{SEND, Target, WALLET, code, reward};
use serde_json::{Value, json};
use windfall_tests::{Answer, scratch};

const PATHS: [(&str, &str); 39] = [
    ("/v1/bonuses/send", "send"),
    ("/v1/bonuses/send-batch", "send"),
    ("/v1/tokens/list", "verify"),
    ("/v1/tokens/verify", "verify"),
    ("/v1/wallet/get", "verify"),
    ("/v1/wallet/withdraw", "verify"),
    ("/v1/rewards/grant", "grant"),
    ("/v1/rewards/grant-batch", "grant"),
    ("/v1/rewards/grant-async", "grant"),
    ("/v1/archive/list", "operate"),
    ("/v1/archive/get", "operate"),
    ("/v1/archive/replay", "operate"),
    ("/v1/budgets/list", "operate"),
    ("/v1/reserved/list", "operate"),
    ("/v1/reserved/release", "operate"),
    ("/v1/orders/get", "operate"),
    ("/v1/withdrawals/held", "operate"),
    ("/v1/ledger/mark", "operate"),
    ("/v1/ledger/accept", "operate"),
    ("/v1/statements/get", "operate"),
    ("/v1/withdrawals/list", "operate"),
    ("/v1/acts/propose", "operate"),
    ("/v1/acts/list", "operate"),
    ("/v1/acts/get", "operate"),
    ("/v1/acts/approve", "approve"),
    ("/v1/acts/refuse", "operate"),
    ("/v1/acts/survey", "operate"),
    ("/v1/acts/carry-out", "approve"),
    ("/v1/payouts/list", "pay_out"),
    ("/v1/payouts/acknowledge", "pay_out"),
    ("/v1/timers/add", "schedule"),
    ("/v1/timers/add-batch", "schedule"),
    ("/v1/timers/update", "schedule"),
    ("/v1/timers/cancel", "schedule"),
    ("/v1/timers/cancel-batch", "schedule"),
    ("/v1/timers/get", "schedule"),
    ("/v1/timers/list", "schedule"),
    ("/v1/timers/dead/list", "schedule"),
    ("/v1/timers/dead/end", "schedule"),
];

#[test]
fn only_who_proves_it_is_anybody() {
    let issuer = Issuer::new();
    let dir = scratch();
    let jwks = dir.path().join("jwks.json");
    std::fs::write(&jwks, issuer.jwks().to_string()).unwrap();
    let access = format!(
        "\n[users.jwt]\njwks_file = {:?}\nissuer = {ISSUER:?}\naudience = {AUDIENCE:?}\n",
        jwks.display().to_string()
    );
    let callers = [
        (
            "stranger",
            "tenant = \"elsewhere\"\nroles = [\"send\", \"verify\", \"grant\", \"operate\", \"schedule\"]\nmay_name_users = true",
        ),
        ("app", "tenant = \"windfall\"\nroles = [\"verify\"]"),
    ];
    let mut target = Target::start("", &callers, &access);
    target.grant("callers:1", 42, 500);
    keys_and_roles(&target);
    another_app(&target);
    let shown = signed_users(&target, &issuer);
    target.still_serves();
    target.stop(&shown);
}

/// A key without the role; no key at all; what is nearly one.
fn keys_and_roles(target: &Target) {
    let roles = [
        ("activity", "send"),
        ("wallet-front", "verify"),
        ("grants", "grant"),
        ("operator", "operate"),
        ("scheduler", "schedule"),
    ];
    for (path, wanted) in PATHS {
        for (caller, _) in roles.iter().filter(|(_, role)| *role != wanted) {
            let refused = target.post(caller, None, path, &json!({}));
            assert_eq!(code(&refused), (403, "PERMISSION_DENIED"), "{path} by {caller}");
        }
    }
    let key = &target.service.keys["activity"];
    let mut last = key.clone();
    last.pop();
    for wrong in [
        String::new(),
        key.clone(),
        "Bearer".to_owned(),
        "Bearer ".to_owned(),
        format!("Bearer {last}"),
        format!("Bearer {last}_"),
        format!("Bearer {key}="),
        format!("Bearer  {key}"),
        format!("Basic {key}"),
        format!("Bearer {}", key.to_uppercase()),
        format!("Bearer {key},Bearer {key}"),
        format!("Bearer wfk_{}", "A".repeat(20_000)),
    ] {
        let headers = [("authorization", wrong.clone()), ("content-type", "application/json".to_owned())];
        let body = reward("callers:no", 1, 1).to_string();
        let answer = target.send(SEND, &headers, body.as_bytes());
        assert_eq!(code(&answer), (401, "UNAUTHENTICATED"), "{wrong:.80}");
        assert!(!answer.body.to_string().contains("wfk_"), "an answer repeats a key: {answer:?}");
    }
}

/// A caller of an app that is not served here gets nothing, whatever its roles.
fn another_app(target: &Target) {
    for (path, _) in PATHS {
        let refused = target.post("stranger", 42, path, &json!({}));
        assert_eq!(code(&refused), (403, "PERMISSION_DENIED"), "{path}");
    }
    let named = json!({"user_id": 42, "app_id": "elsewhere"});
    let mut foreign = reward("callers:2", 42, 5);
    foreign["user"] = named;
    assert_eq!(code(&target.post("activity", None, SEND, &foreign)), (403, "PERMISSION_DENIED"));
    let granted = target.post("grants", None, super::GRANT, &json!({"event": foreign}));
    assert_eq!(code(&granted), (403, "PERMISSION_DENIED"));
    assert_eq!(target.credited(42), 500);
}

/// Good ones are the user whom they name; each forged one is nobody. Returns what was shown.
fn signed_users(target: &Target, issuer: &Issuer) -> Vec<String> {
    let call = |token: &str| {
        let headers = [
            ("authorization", target.bearer("app")),
            ("content-type", "application/json".to_owned()),
            ("x-windfall-user-token", token.to_owned()),
        ];
        target.send(WALLET, &headers, b"{}")
    };
    let (ed, ec) = (header("EdDSA", "ed"), header("ES256", "ec"));
    let good = [issuer.sign(&ed, &claims(42)), issuer.sign(&ec, &claims(42))];
    for token in &good {
        let answer = call(token);
        assert_eq!(
            (answer.status, &answer.body["balances"][0]["credited"]),
            (200, &json!("500")),
            "{answer:?}"
        );
    }
    assert_eq!(
        call(&issuer.sign(&ed, &claims(43))).body["balances"],
        json!([]),
        "another user, another wallet"
    );

    let with = |name: &str, value: Value| {
        let mut changed = claims(42);
        changed[name] = value;
        issuer.sign(&ed, &changed)
    };
    let unsigned = |algorithm: &str| format!("{}.", signed_part(&header(algorithm, "ed"), &claims(42)));
    let (head, rest) = good[0].split_once('.').unwrap();
    let (_, signature) = rest.split_once('.').unwrap();
    let other_user = signed_part(&ed, &claims(43));
    let forged: Vec<(&str, String)> = vec![
        ("expired", with("exp", json!(now_s() - 3_600))),
        ("without an end", with("exp", Value::Null)),
        ("not yet", with("nbf", json!(now_s() + 3_600))),
        ("alg: none", unsigned("none")),
        ("alg: None", unsigned("None")),
        (
            "alg: none with a signature",
            format!("{}.{signature}", signed_part(&header("none", "ed"), &claims(42))),
        ),
        ("no signature", unsigned("EdDSA")),
        ("the public key as a secret", issuer.sign_with_the_public_key(&header("HS256", "ed"), &claims(42))),
        ("another's signature", format!("{other_user}.{signature}")),
        ("another's key", issuer.sign(&header("EdDSA", "ec"), &claims(42))),
        ("a key that nobody knows", issuer.sign(&header("EdDSA", "x"), &claims(42))),
        ("another issuer's key", Issuer::new().sign(&ed, &claims(42))),
        ("another issuer", with("iss", json!("https://evil.test"))),
        ("for others", with("aud", json!("checkout"))),
        ("no user", with("sub", json!("alice"))),
        ("user 0", with("sub", json!("0"))),
        ("a negative user", with("sub", json!(-42))),
        ("a user in another writing", with("sub", json!("042"))),
        ("cut", good[0][..good[0].len() - 4].to_owned()),
        ("two parts", format!("{head}.{signature}")),
        ("four parts", format!("{}.x", good[0])),
        ("nothing", String::new()),
        ("long", "e".repeat(20_000)),
    ];
    for (what, token) in &forged {
        let answer = call(token);
        assert_eq!(code(&answer), (401, "UNAUTHENTICATED"), "{what}: {answer:?}");
        let is_repeated = token.len() > 8 && answer.body.to_string().contains(token.as_str());
        assert!(!is_repeated, "{what}: the answer repeats the token");
    }
    // A caller that may not name users, with a good signature beside it or without.
    let with_name = |token: Option<&String>| {
        let mut headers = vec![
            ("authorization", target.bearer("app")),
            ("content-type", "application/json".to_owned()),
            ("x-windfall-user", "42".to_owned()),
        ];
        headers.extend(token.map(|token| ("x-windfall-user-token", token.clone())));
        target.send(WALLET, &headers, b"{}")
    };
    for answer in [with_name(None), with_name(Some(&good[0]))] {
        assert_eq!(code(&answer), (403, "PERMISSION_DENIED"), "{answer:?}");
    }
    // The front that may do so: by one of the two, not by both.
    let both = |user: &str| -> Answer {
        let headers = [
            ("authorization", target.bearer("wallet-front")),
            ("content-type", "application/json".to_owned()),
            ("x-windfall-user", user.to_owned()),
            ("x-windfall-user-token", good[0].clone()),
        ];
        target.send(WALLET, &headers, b"{}")
    };
    assert_eq!(code(&both("42")), (401, "UNAUTHENTICATED"));
    assert_eq!(code(&both("43")), (401, "UNAUTHENTICATED"));
    good.into_iter()
        .chain(forged.into_iter().map(|(_, token)| token).filter(|token| token.len() > 40))
        .collect()
}
