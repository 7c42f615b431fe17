//! The tokens of docs/token-vectors.json, which the clients of all languages judge, too: whoever changes what a token is
//! invalidates those that are out.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::Value;
use windfall_token::{Illegal, KeyRing};

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_else(|| panic!("{field} of {value}"))
}

/// The documented ring, as a file that only its owner may read.
fn ring(vectors: &Value) -> KeyRing {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("verifier.toml");
    let lines: Vec<&str> =
        vectors["verifier_file"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    KeyRing::load(&path).unwrap()
}

#[test]
fn each_documented_token_is_what_the_document_says() {
    let vectors: Value = serde_json::from_str(include_str!("../../docs/token-vectors.json")).unwrap();
    let (ring, tenant) = (ring(&vectors), text(&vectors, "tenant"));
    let (mut genuine, mut illegal) = (0, 0);
    for vector in vectors["tokens"].as_array().unwrap() {
        let what = text(vector, "what");
        let opened =
            ring.open(text(vector, "token").as_bytes(), tenant, text(vector, "user_id").parse().unwrap());
        let Some(content) = vector.get("content").filter(|content| !content.is_null()) else {
            assert_eq!(opened, Err(Illegal), "{what}");
            illegal += 1;
            continue;
        };
        let token = opened.unwrap_or_else(|_| panic!("{what} does not open"));
        let numbers = [token.user_id, token.amount, token.award_time_ms].map(|number| number.to_string());
        assert_eq!(
            numbers,
            ["user_id", "amount", "award_time_ms"].map(|field| text(content, field)),
            "{what}"
        );
        let texts =
            [token.trade_no, token.app_id, token.activity, token.scene, token.bonus_type, token.description];
        let fields = ["trade_no", "app_id", "activity", "scene", "bonus_type", "description"];
        assert_eq!(texts, fields.map(|field| text(content, field)), "{what}");
        genuine += 1;
    }
    assert!(genuine >= 5 && illegal >= 20, "{genuine} genuine, {illegal} illegal");
}
