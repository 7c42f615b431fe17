//! The signature of a request: HMAC-SHA256 over what the downstream acts on.
//!
//! There are two versions, each in a header of its own. A connector sends both, so that a downstream changes to the newer
//! one whenever it likes; `signature_v1 = false` in its options ends the older one.
//!
//! **Version 2**, in the header [`HEADER_V2`], carries `v2;key=<id>;time=<unix ms>;mac=<64 hex digits>`. The code is taken
//! over these bytes, with `\n` a single line feed and no line feed at the end but those of the body itself:
//!
//! ```text
//! windfall-v2\n
//! <key id>\n
//! <method, upper case>\n
//! <host of the URL, lower case, and :port unless it is the scheme's own>\n
//! <path and query, as they stand in the request line>\n
//! <the header idempotency-key>\n
//! <unix time in milliseconds, decimal>\n
//! <body, its bytes as they are>
//! ```
//!
//! A downstream puts its own name for the host, as it stands in the connector's URL, and not what the request says: then a
//! request to another system that has the same secret is refused. Behind a proxy that changes paths, put the path that the
//! connector asked for.
//!
//! **Version 1**, in the header [`HEADER`], carries `v1;key=<id>;time=<unix ms>;mac=<64 hex digits>`. It covers neither the
//! host nor `idempotency-key`: whoever reads a request can send it to another system with the same secret, and with
//! another idempotency key, within the tolerance below. A downstream that checks version 2 must not fall back to this one
//! where version 2 is missing or wrong. The code is taken over:
//!
//! ```text
//! windfall-v1\n
//! <key id>\n
//! <method, upper case>\n
//! <path and query, as they stand in the request line>\n
//! <unix time in milliseconds, decimal>\n
//! <body, its bytes as they are>
//! ```
//!
//! The key of both codes is the bytes of the secret's text, as it stands in its file without white space at its ends:
//! `openssl rand -hex 32` makes a good one.
//!
//! **Clocks.** The verifier refuses what is older or newer than its tolerance ([`SKEW_MS`]: 5 minutes). A request
//! that is played again within that time does no harm: its order number is paid once. Keep both clocks right
//! (NTP): where they are further apart every request is refused, which the connector takes for unknown and asks
//! again, so nothing is lost, but nothing is paid either.
//!
//! **Rotation.** Give the downstream the new key beside the old one, then change `key_id` and `secret_file` of the
//! connector, then take the old key away.
//!
//! ```
//! use windfall_connectors::signature::{SigningKey, SKEW_MS, Signed, verify_v2};
//!
//! let key = SigningKey::new("2027-01", b"0123456789abcdef0123456789abcdef")?;
//! let request = Signed {
//!     method: "POST",
//!     host: "pay.example.com",
//!     path_and_query: "/v1/pay?from=windfall",
//!     idempotency_key: "a",
//!     body: br#"{"trade_no":"a"}"#,
//! };
//! let header = key.sign_v2(&request, 1_800_000_000_000);
//! let known = [key];
//! assert_eq!(verify_v2(&known, &header, &request, 1_800_000_001_000, SKEW_MS), Ok(()));
//! let elsewhere = Signed { host: "coupons.example.com", ..request };
//! assert!(verify_v2(&known, &header, &elsewhere, 1_800_000_001_000, SKEW_MS).is_err());
//! # Ok::<(), windfall_connectors::signature::BadKey>(())
//! ```

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::fmt::Write as _;

/// The name of version 1's header.
pub const HEADER: &str = "windfall-signature";
/// The name of version 2's header.
pub const HEADER_V2: &str = "windfall-signature-v2";
/// How far the two clocks may be apart: 5 minutes.
pub const SKEW_MS: u64 = 300_000;

/// Bytes of a secret: 32 to 1,024.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 32..=1_024;
/// Bytes of a key's id: 1 to 64.
const ID_MAX_BYTES: usize = 64;

/// What version 2 covers of a request, beside its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signed<'a> {
    /// `POST`.
    pub method: &'a str,
    /// The host that the request is for, with `:port` unless it is the scheme's own. Upper and lower case are the same.
    pub host: &'a str,
    /// Path and query, as they stand in the request line.
    pub path_and_query: &'a str,
    /// The value of the header `idempotency-key`.
    pub idempotency_key: &'a str,
    /// The body's bytes.
    pub body: &'a [u8],
}

/// A key with its id.
#[derive(Clone)]
pub struct SigningKey {
    id: String,
    keyed: Hmac<Sha256>,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// The id is not 1 to 64 of `A-Z a-z 0-9 _ - .`.
    #[error("a key's id has 1 to 64 of A-Z, a-z, 0-9, _, - and .")]
    Id,
    /// The secret is too short or too long.
    #[error("a secret has 32 to 1,024 bytes")]
    Secret,
}

/// Why a request is not one of ours. Tell the caller no more than that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The header is missing or not of the form above.
    #[error("the signature cannot be read")]
    Malformed,
    /// No key has this id.
    #[error("the key is not known")]
    UnknownKey,
    /// Signed too long ago, or in the future.
    #[error("the time is too far from now")]
    Time,
    /// The code is another one.
    #[error("the signature is another one")]
    Mismatch,
}

impl SigningKey {
    /// A key from its id and the bytes of its secret.
    ///
    /// # Errors
    /// [`BadKey`] says which of the two cannot be used.
    pub fn new(id: &str, secret: &[u8]) -> Result<Self, BadKey> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if id.is_empty() || id.len() > ID_MAX_BYTES || !id.bytes().all(fits) {
            return Err(BadKey::Id);
        }
        if !SECRET_BYTES.contains(&secret.len()) {
            return Err(BadKey::Secret);
        }
        let keyed = Hmac::<Sha256>::new_from_slice(secret).map_err(|_| BadKey::Secret)?;
        Ok(Self { id: id.to_owned(), keyed })
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The value of version 2's header for a request.
    pub fn sign_v2(&self, request: &Signed<'_>, time_ms: i64) -> String {
        self.value("v2", time_ms, self.code_v2(request, time_ms))
    }

    /// The value of version 1's header for a request.
    pub fn sign(&self, method: &str, path_and_query: &str, time_ms: i64, body: &[u8]) -> String {
        self.value("v1", time_ms, self.code(method, path_and_query, time_ms, body))
    }

    fn value(&self, version: &str, time_ms: i64, code: Hmac<Sha256>) -> String {
        let mut value = format!("{version};key={};time={time_ms};mac=", self.id);
        for byte in code.finalize().into_bytes() {
            // Writing to a text cannot fail.
            write!(value, "{byte:02x}").ok();
        }
        value
    }

    fn code_v2(&self, request: &Signed<'_>, time_ms: i64) -> Hmac<Sha256> {
        let Signed { method, host, path_and_query, idempotency_key, body } = request;
        let (id, host) = (&self.id, host.to_ascii_lowercase());
        let head =
            format!("windfall-v2\n{id}\n{method}\n{host}\n{path_and_query}\n{idempotency_key}\n{time_ms}\n");
        let mut mac = self.keyed.clone();
        mac.update(head.as_bytes());
        mac.update(body);
        mac
    }

    fn code(&self, method: &str, path_and_query: &str, time_ms: i64, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.keyed.clone();
        let head = format!("windfall-v1\n{}\n{method}\n{path_and_query}\n{time_ms}\n", self.id);
        mac.update(head.as_bytes());
        mac.update(body);
        mac
    }
}

/// Checks version 2 of a request's signature, as a downstream does before it reads anything else of it. `header` is the
/// value of [`HEADER_V2`]; the host of `request` is the name that this downstream goes by. The codes are compared in
/// constant time.
///
/// # Errors
/// [`SignatureError`]: pay nothing, whatever version 1 says.
pub fn verify_v2(
    keys: &[SigningKey],
    header: &str,
    request: &Signed<'_>,
    now_ms: i64,
    skew_ms: u64,
) -> Result<(), SignatureError> {
    let Signed { method, host, path_and_query, idempotency_key, body: _ } = request;
    // With a line feed inside, two requests could have one text. No header and no request line has any.
    if [method, host, path_and_query, idempotency_key].iter().any(|part| part.contains('\n')) {
        return Err(SignatureError::Malformed);
    }
    check(keys, "v2", header, now_ms, skew_ms, |key, time_ms| key.code_v2(request, time_ms))
}

/// Checks version 1 of a request's signature. `header` is the value of [`HEADER`]. The codes are compared in constant time.
///
/// # Errors
/// [`SignatureError`]: pay nothing.
pub fn verify(
    keys: &[SigningKey],
    header: &str,
    method: &str,
    path_and_query: &str,
    body: &[u8],
    now_ms: i64,
    skew_ms: u64,
) -> Result<(), SignatureError> {
    check(keys, "v1", header, now_ms, skew_ms, |key, time_ms| key.code(method, path_and_query, time_ms, body))
}

fn check(
    keys: &[SigningKey],
    version: &str,
    header: &str,
    now_ms: i64,
    skew_ms: u64,
    code: impl FnOnce(&SigningKey, i64) -> Hmac<Sha256>,
) -> Result<(), SignatureError> {
    let (id, time_ms, mac) = parse(version, header).ok_or(SignatureError::Malformed)?;
    let key = keys.iter().find(|key| key.id == id).ok_or(SignatureError::UnknownKey)?;
    if now_ms.abs_diff(time_ms) > skew_ms {
        return Err(SignatureError::Time);
    }
    code(key, time_ms).verify_slice(&mac).map_err(|_| SignatureError::Mismatch)
}

fn parse<'h>(wanted: &str, header: &'h str) -> Option<(&'h str, i64, [u8; 32])> {
    let mut parts = header.split(';');
    let version = parts.next()?;
    let id = parts.next()?.strip_prefix("key=")?;
    let time = parts.next()?.strip_prefix("time=")?;
    let mac = parts.next()?.strip_prefix("mac=")?;
    if version != wanted || parts.next().is_some() || mac.len() != 64 {
        return None;
    }
    let time_ms: i64 = time.parse().ok()?;
    // One text a time: `+1` and `01` are read as 1, and would leave the signed text ambiguous.
    if time_ms.to_string() != time {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, digits) in bytes.iter_mut().zip(mac.as_bytes().chunks_exact(2)) {
        if !digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some((id, time_ms, bytes))
}
