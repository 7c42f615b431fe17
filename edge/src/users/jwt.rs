//! A signed JSON Web Token (RFC 7519, compact): taken apart and verified by `jsonwebtoken`, judged here.
//! This module checks the length, the list of algorithms, that there is no extension and no choice of keys, and the
//! times, which the crate would read from the system's clock.

use super::KeySet;
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, AlgorithmFamily, Validation};
use serde::Deserialize;
use serde_json::Value;

/// The bytes of a token at most.
const TOKEN_BYTES_MAX: usize = 8 << 10;
/// The algorithms that have a public key.
pub(crate) const ALGORITHMS: &str = "RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA";

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

/// The claims that a token must have.
pub(crate) struct Expected<'a> {
    pub(crate) issuer: &'a str,
    pub(crate) audience: &'a str,
    pub(crate) leeway_s: u64,
    pub(crate) claim: &'a str,
}

/// A token whose signature has not been checked.
pub(crate) struct Token<'a> {
    text: &'a str,
    algorithm: Algorithm,
    key_id: Option<String>,
}

/// The claims of a token with a good signature.
#[derive(Deserialize)]
struct Claims {
    /// One text: the crate, which compares it, would also take one among several.
    #[serde(rename = "iss")]
    _issuer: Option<String>,
    exp: Option<i64>,
    nbf: Option<i64>,
    sub: Option<Value>,
    #[serde(flatten)]
    others: serde_json::Map<String, Value>,
}

/// A signature algorithm with a public key, by its name. There is no `none`, and none with a shared secret.
pub(crate) fn parse_algorithm(name: &str) -> Option<Algorithm> {
    name.parse().ok().filter(|algorithm: &Algorithm| algorithm.family() != AlgorithmFamily::Hmac)
}

impl<'a> Token<'a> {
    /// Reads a token's header. Its algorithm must be one that is taken.
    pub(crate) fn parse(text: &'a str, taken: &[Algorithm]) -> Result<Self, Refused> {
        if text.len() > TOKEN_BYTES_MAX {
            return Err(Refused::Malformed);
        }
        let header = jsonwebtoken::decode_header(text).map_err(|error| match error.kind() {
            // JSON, and no header that the crate knows: it has a closed list of algorithms.
            ErrorKind::Json(error) if error.is_data() => Refused::Algorithm,
            _ => Refused::Malformed,
        })?;
        if !taken.contains(&header.alg) {
            return Err(Refused::Algorithm);
        }
        // Extensions that must be understood. None is.
        if header.crit.is_some() {
            return Err(Refused::Malformed);
        }
        Ok(Self { text, algorithm: header.alg, key_id: header.kid })
    }

    /// The user that it asserts. Its claims are read only once the signature is good.
    pub(crate) fn judge(&self, keys: &KeySet, expected: &Expected<'_>, now_s: u64) -> Result<i64, Refused> {
        let key = keys.find(self.key_id.as_deref(), self.algorithm).ok_or(Refused::UnknownKey)?;
        let mut validation = Validation::new(self.algorithm);
        validation.validate_exp = false;
        validation.set_required_spec_claims(&["iss", "aud"]);
        validation.set_issuer(&[expected.issuer]);
        validation.set_audience(&[expected.audience]);
        let decoded = jsonwebtoken::decode::<Claims>(self.text, key, &validation);
        decoded.map_err(|error| refused(&error))?.claims.judge(expected, now_s)
    }
}

fn refused(error: &Error) -> Refused {
    match error.kind() {
        ErrorKind::InvalidSignature => Refused::Signature,
        ErrorKind::InvalidIssuer => Refused::Issuer,
        ErrorKind::InvalidAudience => Refused::Audience,
        ErrorKind::MissingRequiredClaim(claim) if claim == "iss" => Refused::Issuer,
        ErrorKind::MissingRequiredClaim(_) => Refused::Audience,
        _ => Refused::Malformed,
    }
}

impl Claims {
    fn judge(&self, expected: &Expected<'_>, now_s: u64) -> Result<i64, Refused> {
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
        let user = if expected.claim == "sub" { self.sub.as_ref() } else { self.others.get(expected.claim) };
        match user {
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
            assert_eq!(parse_algorithm(name), None, "{name}");
        }
    }
}
