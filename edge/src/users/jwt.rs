//! A signed JSON Web Token (RFC 7519, compact): read, verified, judged.
//!
//! By hand, on ring, which the process has anyway: of the libraries, those on RustCrypto bring an RSA with an open
//! advisory, the others a second TLS-sized library in C. What is needed is small: one serialization, public-key
//! signatures only, no encryption.

use super::KeySet;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::signature::{self, RsaParameters, VerificationAlgorithm};
use serde::Deserialize;
use serde_json::Value;

/// Bytes of a token.
const TOKEN_BYTES_MAX: usize = 8 << 10;

/// A signature algorithm with a public key. There is no `none`, and none with a shared secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

/// Why a token was refused. No text of it is ever repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("the user token is no signed JSON Web Token")]
    Malformed,
    #[error("the user token's algorithm is not taken here")]
    Algorithm,
    #[error("the user token is signed with a key that is not known here")]
    UnknownKey,
    #[error("the user token's signature is wrong")]
    Signature,
    #[error("the user token has expired")]
    Expired,
    #[error("the user token is not valid yet")]
    NotYet,
    #[error("the user token is of another issuer")]
    Issuer,
    #[error("the user token is for another audience")]
    Audience,
    #[error("the user token names no user by a number")]
    NoUser,
    #[error("the users' keys cannot be fetched now")]
    Unavailable,
}

/// What a token must say.
pub(crate) struct Expected<'a> {
    pub(crate) issuer: &'a str,
    pub(crate) audience: &'a str,
    pub(crate) leeway_s: u64,
    pub(crate) claim: &'a str,
}

/// A token whose signature has not been looked at.
pub(crate) struct Token<'a> {
    algorithm: Algorithm,
    key_id: Option<String>,
    signed: &'a [u8],
    payload: &'a str,
    signature: Vec<u8>,
}

/// What a token with a good signature says.
#[derive(Deserialize)]
pub(crate) struct Claims {
    iss: Option<String>,
    aud: Option<Audience>,
    exp: Option<i64>,
    nbf: Option<i64>,
    sub: Option<Value>,
    #[serde(flatten)]
    others: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that must be understood. None is.
    crit: Option<Value>,
}

impl Algorithm {
    pub(crate) const NAMES: &'static str = "RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA";

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rs256,
            "RS384" => Self::Rs384,
            "RS512" => Self::Rs512,
            "PS256" => Self::Ps256,
            "PS384" => Self::Ps384,
            "PS512" => Self::Ps512,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            "EdDSA" => Self::EdDsa,
            _ => return None,
        })
    }

    pub(crate) fn is_rsa(self) -> bool {
        self.rsa().is_some()
    }

    pub(crate) fn rsa(self) -> Option<&'static RsaParameters> {
        match self {
            Self::Rs256 => Some(&signature::RSA_PKCS1_2048_8192_SHA256),
            Self::Rs384 => Some(&signature::RSA_PKCS1_2048_8192_SHA384),
            Self::Rs512 => Some(&signature::RSA_PKCS1_2048_8192_SHA512),
            Self::Ps256 => Some(&signature::RSA_PSS_2048_8192_SHA256),
            Self::Ps384 => Some(&signature::RSA_PSS_2048_8192_SHA384),
            Self::Ps512 => Some(&signature::RSA_PSS_2048_8192_SHA512),
            Self::Es256 | Self::Es384 | Self::EdDsa => None,
        }
    }

    pub(crate) fn other(self) -> Option<&'static dyn VerificationAlgorithm> {
        match self {
            Self::Es256 => Some(&signature::ECDSA_P256_SHA256_FIXED),
            Self::Es384 => Some(&signature::ECDSA_P384_SHA384_FIXED),
            Self::EdDsa => Some(&signature::ED25519),
            _ => None,
        }
    }
}

impl<'a> Token<'a> {
    /// Takes a token apart. Its algorithm must be one that is taken, before anything else is looked at.
    pub(crate) fn parse(text: &'a str, taken: &[Algorithm]) -> Result<Self, Refused> {
        if text.len() > TOKEN_BYTES_MAX {
            return Err(Refused::Malformed);
        }
        let (signed, signature) = text.rsplit_once('.').ok_or(Refused::Malformed)?;
        let (header, payload) = signed.split_once('.').ok_or(Refused::Malformed)?;
        if payload.contains('.') {
            return Err(Refused::Malformed);
        }
        let header: Header = json(header)?;
        let algorithm = Algorithm::parse(&header.alg).filter(|algorithm| taken.contains(algorithm));
        let algorithm = algorithm.ok_or(Refused::Algorithm)?;
        if header.crit.is_some() {
            return Err(Refused::Malformed);
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| Refused::Malformed)?;
        Ok(Self { algorithm, key_id: header.kid, signed: signed.as_bytes(), payload, signature })
    }

    /// Its claims, read only once the signature is good.
    pub(crate) fn verify(&self, keys: &KeySet) -> Result<Claims, Refused> {
        match keys.verify(self.key_id.as_deref(), self.algorithm, self.signed, &self.signature) {
            None => Err(Refused::UnknownKey),
            Some(false) => Err(Refused::Signature),
            Some(true) => json(self.payload),
        }
    }
}

impl Claims {
    pub(crate) fn judge(&self, expected: &Expected<'_>, now_s: u64) -> Result<i64, Refused> {
        if self.iss.as_deref() != Some(expected.issuer) {
            return Err(Refused::Issuer);
        }
        let is_ours = match &self.aud {
            Some(Audience::One(one)) => one == expected.audience,
            Some(Audience::Many(many)) => many.iter().any(|one| one == expected.audience),
            None => false,
        };
        if !is_ours {
            return Err(Refused::Audience);
        }
        let now_s = i64::try_from(now_s).unwrap_or(i64::MAX);
        let leeway_s = i64::try_from(expected.leeway_s).unwrap_or(0);
        // A token without an end is refused: it could never be taken back.
        match self.exp {
            Some(exp) if exp.saturating_add(leeway_s) > now_s => {}
            _ => return Err(Refused::Expired),
        }
        if self.nbf.is_some_and(|nbf| nbf.saturating_sub(leeway_s) > now_s) {
            return Err(Refused::NotYet);
        }
        self.user(expected.claim)
    }

    fn user(&self, claim: &str) -> Result<i64, Refused> {
        let value = if claim == "sub" { self.sub.as_ref() } else { self.others.get(claim) };
        match value {
            Some(Value::String(text)) => parse_user_id(text),
            Some(Value::Number(number)) => number.as_i64().filter(|&id| id >= 1),
            _ => None,
        }
        .ok_or(Refused::NoUser)
    }
}

/// A user's number: decimal, at least 1, written in one way only.
pub(crate) fn parse_user_id(text: &str) -> Option<i64> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) || text.starts_with('0') {
        return None;
    }
    text.parse().ok()
}

fn json<T: for<'de> Deserialize<'de>>(part: &str) -> Result<T, Refused> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| Refused::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| Refused::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_a_positive_decimal_written_in_one_way() {
        assert_eq!(parse_user_id("42"), Some(42));
        assert_eq!(parse_user_id("9223372036854775807"), Some(i64::MAX));
        for wrong in
            ["", "0", "042", "-1", "+1", " 1", "1 ", "1,2", "1e3", "9223372036854775808", "alice", "٤"]
        {
            assert_eq!(parse_user_id(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn no_algorithm_without_a_public_key_has_a_name() {
        for name in ["none", "None", "NONE", "HS256", "HS384", "HS512", "", "rs256", "ES256K"] {
            assert_eq!(Algorithm::parse(name), None, "{name}");
        }
    }
}
