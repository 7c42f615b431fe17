//! Tokens that were minted once by each kind of key, with the whole ring that opens them: a refactoring that invalidates tokens
//! which are out fails here. docs/token-vectors.json has those that clients judge, which know verifiers' copies alone.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use windfall_token::{Algorithm, KeyFile, KeyId, KeyRing, State, TokenFields};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden.json");
const TENANT: &str = "windfall";
const USER: i64 = 42;

fn fields<'f>(trade_no: &'f str, amount: i64) -> TokenFields<'f> {
    TokenFields {
        trade_no,
        user_id: USER,
        app_id: TENANT,
        activity: "spring-2027",
        scene: "red-packet-rain",
        bonus_type: "cash",
        amount,
        award_time_ms: 1_800_000_000_000,
        description: "8.88 元 🧧",
    }
}

fn load(path: &Path, lines: &Value) -> KeyRing {
    let lines: Vec<&str> = lines.as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    std::fs::write(path, lines.join("\n") + "\n").unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    KeyRing::load(path).unwrap()
}

/// Only for a new version or a new kind of key, and then beside what is there: `WINDFALL_WRITE_GOLDEN=1`.
fn make(dir: &Path) -> Value {
    let path = dir.join("made.toml");
    let mut file = KeyFile::create(&path, Algorithm::HmacSha256, 1).unwrap();
    let mint = |trade_no: &str, amount| {
        KeyRing::load(&path).unwrap().minter(TENANT).unwrap().mint(&fields(trade_no, amount), 1).unwrap()
    };
    let mut tokens =
        vec![json!({"key": 1, "trade_no": "golden/1", "amount": 888, "token": mint("golden/1", 888)})];
    for (id, algorithm) in [(2, Algorithm::Ed25519), (3, Algorithm::HmacSha256)] {
        assert_eq!(file.add(algorithm, 1).unwrap(), KeyId(id));
        file.promote(KeyId(id)).unwrap();
        file.promote(KeyId(id)).unwrap();
        let trade_no = format!("golden/{id}");
        let token = mint(&trade_no, i64::from(id));
        tokens.push(json!({"key": id, "trade_no": trade_no, "amount": id, "token": token}));
    }
    let text = std::fs::read_to_string(&path).unwrap();
    json!({"ring": text.lines().collect::<Vec<_>>(), "tokens": tokens})
}

#[test]
fn tokens_of_every_kind_of_key_open_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    if std::env::var_os("WINDFALL_WRITE_GOLDEN").is_some() {
        std::fs::write(FILE, serde_json::to_string_pretty(&make(dir.path())).unwrap() + "\n").unwrap();
    }
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).unwrap();
    let ring = load(&dir.path().join("ring.toml"), &golden["ring"]);
    let mut kinds = Vec::new();
    for one in golden["tokens"].as_array().unwrap() {
        let (token, trade_no) = (one["token"].as_str().unwrap(), one["trade_no"].as_str().unwrap());
        let opened = ring.open(token.as_bytes(), TENANT, USER).unwrap();
        let expected = fields(trade_no, one["amount"].as_i64().unwrap());
        assert_eq!((&*opened.trade_no, opened.amount), (expected.trade_no, expected.amount));
        assert_eq!(
            (opened.award_time_ms, &*opened.description),
            (expected.award_time_ms, expected.description)
        );
        assert!(
            ring.open(token.as_bytes(), "another", USER).is_err()
                && ring.open(token.as_bytes(), TENANT, 43).is_err()
        );
        let key = ring.keys().find(|key| u64::from(key.id.0) == one["key"].as_u64().unwrap()).unwrap();
        kinds.push((key.algorithm, key.state));
    }
    for kind in [
        (Algorithm::HmacSha256, State::VerifyOnly),
        (Algorithm::Ed25519, State::VerifyOnly),
        (Algorithm::HmacSha256, State::Primary),
    ] {
        assert!(kinds.contains(&kind), "{kind:?} has no token");
    }
}
