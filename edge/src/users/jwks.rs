//! A JSON Web Key Set (RFC 7517): public keys by their ids.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};
use serde::Deserialize;
use std::ops::RangeInclusive;

const KEYS_MAX: usize = 64;
/// The lengths of an RSA modulus: 2,048 to 8,192 bits.
const RSA_BYTES: RangeInclusive<usize> = 256..=1_024;
/// The most bytes of an RSA exponent. Common are one and three.
const RSA_EXPONENT_BYTES_MAX: usize = 5;

/// The keys of a set that can verify a signature. The set's other keys are ignored.
pub(crate) struct KeySet(Vec<Key>);

/// Why a set was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeySetError {
    #[error("is no JSON Web Key Set: {0}")]
    NotJson(String),
    #[error("has more than {KEYS_MAX} keys")]
    TooMany,
    #[error("has no key that can be used (RSA of 2048 bits or more, EC P-256 or P-384, OKP Ed25519)")]
    NoKey,
}

struct Key {
    id: Option<String>,
    /// The algorithms that the key may be used with: a property of the key, never the token's choice.
    algorithms: Vec<Algorithm>,
    public: DecodingKey,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<serde_json::Value>,
}

impl KeySet {
    pub(crate) fn parse(text: &str) -> Result<Self, KeySetError> {
        let document: Document =
            serde_json::from_str(text).map_err(|error| KeySetError::NotJson(error.to_string()))?;
        if document.keys.len() > KEYS_MAX {
            return Err(KeySetError::TooMany);
        }
        let keys: Vec<Key> = document.keys.into_iter().filter_map(Key::parse).collect();
        if keys.is_empty() { Err(KeySetError::NoKey) } else { Ok(Self(keys)) }
    }

    /// The key of this id that may be used with this algorithm.
    pub(crate) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&DecodingKey> {
        let mut fitting = self.0.iter().filter(|key| key.algorithms.contains(&algorithm));
        let key = match id {
            Some(id) => fitting.find(|key| key.id.as_deref() == Some(id))?,
            // Without an id there must be no choice.
            None => fitting.next().filter(|_| fitting.next().is_none())?,
        };
        Some(&key.public)
    }
}

#[cfg(feature = "fuzzing")]
impl KeySet {
    /// The ids of the keys, and what each may be used with.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (Option<&str>, &[Algorithm])> {
        self.0.iter().map(|key| (key.id.as_deref(), &key.algorithms[..]))
    }
}

impl Key {
    fn parse(value: serde_json::Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        if jwk.common.public_key_use.as_ref().is_some_and(|purpose| *purpose != PublicKeyUse::Signature) {
            return None;
        }
        let mut operations = jwk.common.key_operations.iter();
        if operations.any(|named| !named.contains(&KeyOperations::Verify)) {
            return None;
        }
        let public = DecodingKey::from_jwk(&jwk).ok()?;
        let is_long = |bytes: usize| public.try_get_as_bytes().is_ok_and(|key| key.len() == bytes);
        let fitting = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) if is_strong_rsa(&public) => AlgorithmFamily::Rsa.algorithms(),
            // Uncompressed: 4, x, y. Each half has a length of its own: the same bytes split elsewhere are another point.
            AlgorithmParameters::EllipticCurve(key) if key.x.len() == key.y.len() => match key.curve {
                EllipticCurve::P256 if is_long(65) => &[Algorithm::ES256],
                EllipticCurve::P384 if is_long(97) => &[Algorithm::ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 && is_long(32) => {
                AlgorithmFamily::Ed.algorithms()
            }
            _ => return None,
        };
        let own = jwk.common.key_algorithm.map(Algorithm::try_from).transpose().ok()?;
        let algorithms: Vec<_> =
            fitting.iter().copied().filter(|one| own.is_none_or(|own| own == *one)).collect();
        // A key that fits no algorithm verifies nothing, and must not stand in for one that does.
        (!algorithms.is_empty()).then_some(Self { id: jwk.common.key_id, algorithms, public })
    }
}

/// Whether ring verifies with it. Zeros before a number would make a short one look long.
fn is_strong_rsa(key: &DecodingKey) -> bool {
    let DecodingKeyKind::RsaModulusExponent { n, e } = key.kind() else { return false };
    let is_odd_number = |bytes: &[u8]| {
        matches!(bytes, [first, ..] if *first != 0) && bytes.last().is_some_and(|last| last % 2 == 1)
    };
    RSA_BYTES.contains(&n.len()) && e.len() <= RSA_EXPONENT_BYTES_MAX && is_odd_number(n) && is_odd_number(e)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64;
    use serde_json::json;

    const X: [u8; 32] = [3; 32];
    const Y: [u8; 32] = [5; 32];

    fn is_taken(key: serde_json::Value) -> bool {
        KeySet::parse(&json!({ "keys": [key] }).to_string()).is_ok()
    }

    /// Such keys were taken. One with zeros before it verified nothing, and stood in the way of a good one of the same id; of an
    /// EC key only the length of both halves together was looked at.
    #[test]
    fn a_key_whose_numbers_have_no_right_length_is_none() {
        let ec = |x: &[u8], y: &[u8]| {
            is_taken(json!({ "kty": "EC", "crv": "P-256", "x": B64.encode(x), "y": B64.encode(y) }))
        };
        let both = [X, Y].concat();
        assert!(ec(&X, &Y));
        assert!(!ec(&both[..31], &both[31..]));
        assert!(!ec(&both[..33], &both[33..]));
        assert!(!ec(&both, &[]));

        let rsa =
            |n: &[u8], e: &[u8]| is_taken(json!({ "kty": "RSA", "n": B64.encode(n), "e": B64.encode(e) }));
        let (n, e) = ([0xff_u8; 256], [1, 0, 1]);
        assert!(rsa(&n, &e) && rsa(&n, &[3]) && rsa(&n.repeat(4), &e));
        let short = [&[0; 128][..], &n[..128]].concat();
        assert!(!rsa(&short, &e), "1,024 bits behind zeros");
        assert!(!rsa(&n[1..], &e));
        assert!(!rsa(&[&n.repeat(4)[..], &[1]].concat(), &e));
        assert!(!rsa(&[&n[..255], &[2]].concat(), &e), "no product of two primes");
        for e in [&[][..], &[0, 3], &[2], &[0], &[1, 0, 0, 0, 0, 1]] {
            assert!(!rsa(&n, e), "{e:?}");
        }
    }

    #[test]
    fn a_key_is_used_for_what_it_is_meant_for_alone() {
        let ed = |name: &str, value: serde_json::Value| {
            let mut key = json!({ "kty": "OKP", "crv": "Ed25519", "x": B64.encode(X) });
            key[name] = value;
            is_taken(key)
        };
        assert!(ed("use", json!("sig")) && ed("key_ops", json!(["verify"])) && ed("alg", json!("EdDSA")));
        assert!(!ed("use", json!("enc")));
        assert!(!ed("key_ops", json!(["encrypt", "deriveKey"])));
        assert!(!ed("key_ops", json!([])));
        for other in ["ES256", "HS256", "none"] {
            assert!(!ed("alg", json!(other)), "{other}");
        }
    }
}
