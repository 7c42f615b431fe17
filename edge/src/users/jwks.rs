//! A JSON Web Key Set (RFC 7517): public keys by their ids.

use super::jwt::Algorithm;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::signature::{RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;

const KEYS_MAX: usize = 64;

/// Keys that can verify something. Others of the set are passed over.
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
    algorithm: Option<Algorithm>,
    material: Material,
}

/// What a key is, and so which algorithms it may be used with: never the token's choice.
enum Material {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
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

    /// Whether a key of this id and algorithm signed the message. `None`: there is no such key.
    pub(crate) fn verify(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
        message: &[u8],
        signature: &[u8],
    ) -> Option<bool> {
        let mut fitting = self.0.iter().filter(|key| key.fits(algorithm));
        let key = match id {
            Some(id) => fitting.find(|key| key.id.as_deref() == Some(id))?,
            // Without an id there must be no choice.
            None => fitting.next().filter(|_| fitting.next().is_none())?,
        };
        Some(key.verify(algorithm, message, signature))
    }
}

impl Key {
    fn parse(value: serde_json::Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        if jwk.purpose.is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let algorithm = match jwk.alg {
            Some(name) => Some(Algorithm::parse(&name)?),
            None => None,
        };
        let bytes = |text: &Option<String>| URL_SAFE_NO_PAD.decode(text.as_deref()?).ok();
        let point = |len: usize| {
            let (x, y) = (bytes(&jwk.x)?, bytes(&jwk.y)?);
            // Uncompressed: 4, x, y.
            (x.len() == len && y.len() == len).then(|| [&[4], x.as_slice(), &y].concat())
        };
        let material = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => {
                let n = bytes(&jwk.n)?;
                if n.len() < 256 {
                    return None;
                }
                Material::Rsa { n, e: bytes(&jwk.e)? }
            }
            ("EC", Some("P-256")) => Material::P256(point(32)?),
            ("EC", Some("P-384")) => Material::P384(point(48)?),
            ("OKP", Some("Ed25519")) => Material::Ed25519(bytes(&jwk.x).filter(|x| x.len() == 32)?),
            _ => return None,
        };
        Some(Self { id: jwk.kid, algorithm, material })
    }

    fn fits(&self, algorithm: Algorithm) -> bool {
        let of_material = match self.material {
            Material::Rsa { .. } => algorithm.is_rsa(),
            Material::P256(_) => algorithm == Algorithm::Es256,
            Material::P384(_) => algorithm == Algorithm::Es384,
            Material::Ed25519(_) => algorithm == Algorithm::EdDsa,
        };
        of_material && self.algorithm.is_none_or(|own| own == algorithm)
    }

    fn verify(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        match &self.material {
            Material::Rsa { n, e } => algorithm.rsa().is_some_and(|parameters| {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature).is_ok()
            }),
            Material::P256(point) | Material::P384(point) | Material::Ed25519(point) => {
                algorithm.other().is_some_and(|algorithm| {
                    UnparsedPublicKey::new(algorithm, point).verify(message, signature).is_ok()
                })
            }
        }
    }
}
