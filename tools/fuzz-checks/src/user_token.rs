//! Tokens about end users: JSON Web Tokens, which whoever calls hands on from browsers and phones.

use crate::edits::edited;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD as B64};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use ring::{hmac, rsa};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::OnceLock;
use windfall_edge::JwtOptions;
use windfall_edge::fuzzing::UserTokens;

const ISSUER: &str = "https://id.test";
const AUDIENCE: &str = "windfall";
pub(crate) const NOW_S: u64 = 1_800_000_000;
const LEEWAY_S: i64 = 30;
const TOKEN_BYTES_MAX: usize = 8 << 10;
/// Whose the honest tokens are.
const USER: i64 = 42;

/// The keys of an issuer, one of each kind, and what it has signed with them.
pub(crate) struct Issuer {
    ed: Ed25519KeyPair,
    /// Private keys are not kept: ECDSA signs anew each time, and RSA slowly.
    pub(crate) honest: [String; 3],
    pub(crate) key_set: Value,
    /// Whatever "signed with the public key" might mean.
    public: Vec<Vec<u8>>,
    tokens: UserTokens,
}

/// The issuer that everybody knows; `None` where the machine has no randomness.
pub(crate) fn issuer() -> Option<&'static Issuer> {
    static ISSUER: OnceLock<Option<Issuer>> = OnceLock::new();
    ISSUER.get_or_init(make).as_ref()
}

pub(crate) fn options() -> JwtOptions {
    let algorithms = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"];
    JwtOptions {
        jwks_file: Some(PathBuf::from("not read")),
        jwks_url: None,
        jwks_ca_file: None,
        issuer: ISSUER.to_owned(),
        audience: AUDIENCE.to_owned(),
        algorithms: algorithms.map(str::to_owned).to_vec(),
        leeway_s: LEEWAY_S.unsigned_abs(),
        claim: "sub".to_owned(),
        stale_max_s: 300,
    }
}

fn make() -> Option<Issuer> {
    let random = SystemRandom::new();
    // Those of tests, and two that RFC 8037 and RFC 7515 have published: seeds stay good, and nobody trusts them.
    let rsa: String =
        include_str!("../../../edge/tests/fixture/rsa_for_tests.pkcs8.base64").split_whitespace().collect();
    let rsa = RsaKeyPair::from_pkcs8(&STANDARD.decode(rsa).ok()?).ok()?;
    let seed = B64.decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A").ok()?;
    let ed = Ed25519KeyPair::from_seed_unchecked(&seed).ok()?;
    let (x, y) =
        ("f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0");
    let point = [vec![4], B64.decode(x).ok()?, B64.decode(y).ok()?].concat();
    let secret = B64.decode("jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI").ok()?;
    let kind = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let ec = EcdsaKeyPair::from_private_key_and_public_key(kind, &secret, &point, &random).ok()?;

    let components: rsa::PublicKeyComponents<Vec<u8>> = rsa.public().into();
    let (n, e) = (B64.encode(&components.n), B64.encode(&components.e));
    let ed_x = B64.encode(ed.public_key().as_ref());
    let key_set = json!({ "keys": [
        { "kty": "OKP", "kid": "ed", "crv": "Ed25519", "x": ed_x },
        { "kty": "EC", "kid": "ec", "crv": "P-256", "x": x, "y": y },
        { "kty": "RSA", "kid": "rsa", "use": "sig", "n": n, "e": e },
        { "kty": "oct", "kid": "shared", "k": "c2VjcmV0" },
    ] });
    let signed = |algorithm, key| signed_part(&header(algorithm, key).to_string(), &claims().to_string());
    let by_ed = signed("EdDSA", "ed");
    let (by_ec, by_rsa) = (signed("ES256", "ec"), signed("RS256", "rsa"));
    let mut of_rsa = vec![0; rsa.public().modulus_len()];
    rsa.sign(&RSA_PKCS1_SHA256, &random, by_rsa.as_bytes(), &mut of_rsa).ok()?;
    let of_ec = ec.sign(&random, by_ec.as_bytes()).ok()?;
    let of_ed = ed.sign(by_ed.as_bytes());
    let honest = [
        format!("{by_ed}.{}", B64.encode(of_ed.as_ref())),
        format!("{by_ec}.{}", B64.encode(of_ec.as_ref())),
        format!("{by_rsa}.{}", B64.encode(&of_rsa)),
    ];
    let public = vec![
        ed.public_key().as_ref().to_vec(),
        ed_x.into_bytes(),
        point.clone(),
        point[1..].to_vec(),
        components.n,
        n.into_bytes(),
        rsa.public_key().as_ref().to_vec(),
        key_set.to_string().into_bytes(),
        b"secret".to_vec(),
        Vec::new(),
    ];
    let tokens = UserTokens::new(options(), &key_set.to_string()).ok()?;
    Some(Issuer { ed, honest, key_set, public, tokens })
}

pub(crate) fn header(algorithm: &str, key: &str) -> Value {
    json!({ "alg": algorithm, "kid": key })
}

pub(crate) fn claims() -> Value {
    json!({ "iss": ISSUER, "aud": AUDIENCE, "sub": USER.to_string(), "exp": NOW_S + 300 })
}

pub(crate) fn signed_part(header: &str, claims: &str) -> String {
    format!("{}.{}", B64.encode(header), B64.encode(claims))
}

/// Bytes from outside as a token, edits of an honest one, header and claims from outside under a good signature, or a
/// header from outside under signatures that anybody can make.
pub fn token(data: &[u8]) {
    let (Some(issuer), Some((mode, rest))) = (issuer(), data.split_first()) else { return };
    match mode % 4 {
        0 => issuer.only_honest(&String::from_utf8_lossy(rest)),
        1 => {
            let Some((which, edits)) = rest.split_first() else { return };
            let honest = &issuer.honest[usize::from(*which) % issuer.honest.len()];
            let text = edited(honest.as_bytes(), edits);
            issuer.only_honest(&String::from_utf8_lossy(&text));
        }
        2 => issuer.signed(&String::from_utf8_lossy(rest)),
        _ => issuer.unsigned(rest),
    }
}

impl Issuer {
    fn user_of(&self, text: &str) -> Result<i64, String> {
        self.tokens.user_of(text, NOW_S)
    }

    /// Nothing names a user but what was signed.
    fn only_honest(&self, text: &str) {
        // An ECDSA signature has a second form, which anybody can make of the first. It covers the same words.
        let [ed, ec, rsa] = &self.honest;
        let of_ec = |text: &str| text.rsplit_once('.').map(|(signed, _)| signed.to_owned());
        let may_pass = text == ed || text == rsa || of_ec(text) == of_ec(ec);
        let must_pass = self.honest.iter().any(|honest| honest == text);
        match self.user_of(text) {
            Ok(user) => assert!(may_pass && user == USER, "{text}"),
            Err(why) => assert!(!must_pass, "{why}: {text}"),
        }
    }

    /// The header up to a line's end, and the claims, signed with the key of Ed25519 whatever the header says.
    fn signed(&self, text: &str) {
        let (header, claims) = text.split_once('\n').unwrap_or(("{\"alg\":\"EdDSA\"}", text));
        let signed = signed_part(header, claims);
        let token = format!("{signed}.{}", B64.encode(self.ed.sign(signed.as_bytes()).as_ref()));
        let user = self.user_of(&token).ok();
        let expected = user_by(header, claims).filter(|_| token.len() <= TOKEN_BYTES_MAX);
        assert!(user.is_none() || user == expected, "{user:?} of {text}");
        // What is written without twists is not refused either.
        let plain = serde_json::from_str(claims).map(|value: Value| value.to_string());
        if plain.is_ok_and(|plain| plain == claims) && header == "{\"alg\":\"EdDSA\",\"kid\":\"ed\"}" {
            assert_eq!(user, expected, "{text}");
        }
    }

    /// A header from outside over good claims, under no signature, one by each public key taken as a shared secret, and
    /// one by a key that nobody knows.
    fn unsigned(&self, rest: &[u8]) {
        let Some((kind, header)) = rest.split_first() else { return };
        let signed = signed_part(&String::from_utf8_lossy(header), &claims().to_string());
        let refused = |signature: &[u8]| {
            let token = format!("{signed}.{}", B64.encode(signature));
            assert!(self.user_of(&token).is_err(), "{token}");
        };
        match kind % 5 {
            0 => refused(b""),
            1 => {
                let stranger = Ed25519KeyPair::from_seed_unchecked(&[7; 32]);
                stranger.iter().for_each(|key| refused(key.sign(signed.as_bytes()).as_ref()));
            }
            digest => {
                let digest =
                    [hmac::HMAC_SHA256, hmac::HMAC_SHA384, hmac::HMAC_SHA512][usize::from(digest) - 2];
                for secret in &self.public {
                    refused(hmac::sign(&hmac::Key::new(digest, secret), signed.as_bytes()).as_ref());
                }
            }
        }
    }
}

/// The user whom a token with a good signature of Ed25519 names, by the words of the RFCs and of the options.
fn user_by(header: &str, claims: &str) -> Option<i64> {
    let header: Value = serde_json::from_str(header).ok()?;
    let claims: Value = serde_json::from_str(claims).ok()?;
    let is_of_key = header["alg"] == "EdDSA" && (header["kid"] == "ed" || header["kid"].is_null());
    let audience = &claims["aud"];
    let is_for_us = audience == AUDIENCE
        || audience
            .as_array()
            .is_some_and(|all| all.iter().all(Value::is_string) && all.iter().any(|one| one == AUDIENCE));
    let now_s = NOW_S.cast_signed();
    let is_alive = claims["exp"].as_i64()?.saturating_add(LEEWAY_S) > now_s;
    let has_begun = match &claims["nbf"] {
        Value::Null => true,
        begin => begin.as_i64()?.saturating_sub(LEEWAY_S) <= now_s,
    };
    let is_good = is_of_key && header["crit"].is_null() && is_for_us && is_alive && has_begun;
    let user = match &claims["sub"] {
        Value::String(text) => text.parse().ok().filter(|id: &i64| id.to_string() == *text),
        number => number.as_i64(),
    };
    user.filter(|id| is_good && claims["iss"] == ISSUER && *id >= 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_check_compares_with_is_there() {
        assert!(issuer().is_some());
    }
}
