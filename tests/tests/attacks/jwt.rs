//! An issuer of signed users, and what forgers make of them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

pub const ISSUER: &str = "https://id.test";
pub const AUDIENCE: &str = "wallet";

/// With a key of either kind, `ed` and `ec`.
pub struct Issuer {
    ed: Ed25519KeyPair,
    ec: EcdsaKeyPair,
}

impl Issuer {
    pub fn new() -> Self {
        let random = SystemRandom::new();
        let ed = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let ec = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        Self {
            ed: Ed25519KeyPair::from_pkcs8(ed.as_ref()).unwrap(),
            ec: EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, ec.as_ref(), &random).unwrap(),
        }
    }

    /// The public halves.
    pub fn jwks(&self) -> Value {
        let point = self.ec.public_key().as_ref();
        json!({"keys": [
            {"kty": "OKP", "kid": "ed", "crv": "Ed25519", "x": B64.encode(self.ed.public_key().as_ref())},
            {"kty": "EC", "kid": "ec", "crv": "P-256", "x": B64.encode(&point[1..33]), "y": B64.encode(&point[33..])},
        ]})
    }

    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        let signed = signed_part(header, claims);
        let signature = match header["alg"].as_str() {
            Some("ES256") => self.ec.sign(&SystemRandom::new(), signed.as_bytes()).unwrap().as_ref().to_vec(),
            _ => self.ed.sign(signed.as_bytes()).as_ref().to_vec(),
        };
        format!("{signed}.{}", B64.encode(signature))
    }

    /// What passes where a verifier takes the public key for a shared secret.
    pub fn sign_with_the_public_key(&self, header: &Value, claims: &Value) -> String {
        let signed = signed_part(header, claims);
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.ed.public_key().as_ref());
        format!("{signed}.{}", B64.encode(hmac::sign(&key, signed.as_bytes())))
    }
}

pub fn signed_part(header: &Value, claims: &Value) -> String {
    format!("{}.{}", B64.encode(header.to_string()), B64.encode(claims.to_string()))
}

pub fn header(algorithm: &str, key: &str) -> Value {
    json!({"alg": algorithm, "typ": "JWT", "kid": key})
}

/// Of this user, good for an hour.
pub fn claims(user_id: i64) -> Value {
    json!({"iss": ISSUER, "aud": AUDIENCE, "sub": user_id.to_string(), "exp": now_s() + 3_600, "nbf": now_s() - 60})
}

pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}
