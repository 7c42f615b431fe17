//! Key sets, which come from the address of whoever vouches for end users.

use crate::user_token::{NOW_S, claims, issuer, options, signed_part};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64;
use ring::hmac;
use serde_json::{Value, json};
use windfall_edge::fuzzing::{UserTokens, key_uses};

const KEYS_MAX: usize = 64;
/// The keys of a set whose bytes are tried as secrets.
const TRIED_MAX: usize = 8;

/// A set from outside: of its keys only strong public ones count, each with algorithms of its kind alone. A token of ours
/// passes by its own key alone, and none passes by a shared secret, though it were in the set.
pub fn document(data: &[u8]) {
    let (Some(issuer), Ok(text)) = (issuer(), std::str::from_utf8(data)) else { return };
    let uses = key_uses(text);
    let Ok(tokens) = UserTokens::new(options(), text) else {
        let own = issuer.key_set.to_string();
        assert!(uses.is_none() && text != own, "{text}");
        return;
    };
    let document: Value = serde_json::from_str(text).unwrap_or_default();
    let no_keys = Vec::new();
    let keys = document["keys"].as_array().unwrap_or(&no_keys);
    let uses = uses.unwrap_or_default();
    assert!((1..=KEYS_MAX).contains(&keys.len()) && (1..=keys.len()).contains(&uses.len()), "{text}");
    for (id, algorithms) in &uses {
        assert!(!algorithms.is_empty());
        let is_fit = |key: &Value| key["kid"].as_str() == id.as_deref() && may(key, algorithms);
        assert!(keys.iter().any(is_fit), "{id:?} {algorithms:?} of {text}");
    }
    let kinds = [("EdDSA", "OKP"), ("ES256", "EC"), ("RS256", "RSA")];
    for ((algorithm, kind), token) in kinds.iter().zip(&issuer.honest) {
        let own =
            issuer.key_set["keys"].as_array().and_then(|own| own.iter().find(|key| key["kty"] == *kind));
        let is_own = |key: &Value| {
            own.is_some_and(|own| own["kid"] == key["kid"] && material(own) == material(key))
                && may(key, &[(*algorithm).to_owned()])
        };
        let passes = tokens.user_of(token, NOW_S).is_ok();
        assert!(!passes || keys.iter().any(is_own), "{algorithm} by {text}");
    }
    for key in keys.iter().take(TRIED_MAX) {
        for field in ["k", "n", "x"].iter().filter_map(|name| key[*name].as_str()) {
            let decoded = B64.decode(field).unwrap_or_default();
            for (name, digest) in [("HS256", hmac::HMAC_SHA256), ("HS512", hmac::HMAC_SHA512)] {
                let header = json!({ "alg": name, "kid": key["kid"] }).to_string();
                let signed = signed_part(&header, &claims().to_string());
                for secret in [field.as_bytes(), &decoded] {
                    let tag = hmac::sign(&hmac::Key::new(digest, secret), signed.as_bytes());
                    let token = format!("{signed}.{}", B64.encode(tag.as_ref()));
                    assert!(tokens.user_of(&token, NOW_S).is_err(), "{token} by {text}");
                }
            }
        }
    }
}

/// The numbers of a key, however many zeros stand before them where zeros may.
fn material(key: &Value) -> [Option<Vec<u8>>; 4] {
    ["crv", "n", "x", "y"].map(|name| {
        let text = key[name].as_str()?;
        if name == "crv" { Some(text.as_bytes().to_vec()) } else { B64.decode(text).ok() }
    })
}

/// Whether a key may be used for these algorithms, by the words of RFC 7517 and RFC 7518.
fn may(key: &Value, algorithms: &[String]) -> bool {
    let bytes = |name: &str| key[name].as_str().and_then(|text| B64.decode(text).ok()).unwrap_or_default();
    let fitting: &[&str] = match (key["kty"].as_str(), key["crv"].as_str()) {
        (Some("OKP"), Some("Ed25519")) if bytes("x").len() == 32 => &["EdDSA"],
        (Some("EC"), Some("P-256")) if bytes("x").len() == 32 && bytes("y").len() == 32 => &["ES256"],
        (Some("EC"), Some("P-384")) if bytes("x").len() == 48 && bytes("y").len() == 48 => &["ES384"],
        (Some("RSA"), _) if is_strong(&bytes("n"), &bytes("e")) => {
            &["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]
        }
        _ => return false,
    };
    let is_for_signatures = key["use"].is_null() || key["use"] == "sig";
    let own = key["alg"].as_str();
    let is_to_verify = key["key_ops"].as_array().is_none_or(|named| named.iter().any(|one| one == "verify"));
    is_to_verify
        && is_for_signatures
        && algorithms.iter().all(|one| fitting.contains(&one.as_str()) && own.is_none_or(|own| own == one))
}

/// Odd numbers without zeros before them, of 2,048 to 8,192 bits and of up to 33.
fn is_strong(n: &[u8], e: &[u8]) -> bool {
    let is_number = |bytes: &[u8]| {
        bytes.first().is_some_and(|first| *first != 0) && bytes.last().is_some_and(|last| last % 2 == 1)
    };
    is_number(n) && is_number(e) && (256..=1_024).contains(&n.len()) && e.len() <= 5
}
