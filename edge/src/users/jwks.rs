//! A JSON Web Key Set (RFC 7517): public keys by their ids.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};
use serde::Deserialize;

const KEYS_MAX: usize = 64;
/// The least length of an RSA modulus: 2,048 bits.
const RSA_BYTES_MIN: usize = 256;

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

impl Key {
    fn parse(value: serde_json::Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        if jwk.common.public_key_use.as_ref().is_some_and(|purpose| *purpose != PublicKeyUse::Signature) {
            return None;
        }
        let public = DecodingKey::from_jwk(&jwk).ok()?;
        let is_long = |bytes: usize| public.try_get_as_bytes().is_ok_and(|key| key.len() == bytes);
        let fitting = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) if is_strong_rsa(&public) => AlgorithmFamily::Rsa.algorithms(),
            // Uncompressed: 4, x, y.
            AlgorithmParameters::EllipticCurve(key) => match key.curve {
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

fn is_strong_rsa(key: &DecodingKey) -> bool {
    matches!(key.kind(), DecodingKeyKind::RsaModulusExponent { n, .. } if n.len() >= RSA_BYTES_MIN)
}
