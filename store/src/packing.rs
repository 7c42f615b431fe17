//! How a token is kept: canonical base64url as the bytes it stands for, a quarter less; any other text as it is.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The byte before the bytes of a token that was base64url; no text starts with it.
const DECODED: u8 = 0xff;

/// A token as it is stored. Canonical base64url without padding is one to one with its bytes.
pub(crate) fn packed(token: &str) -> Vec<u8> {
    let mut value = Vec::with_capacity(1 + token.len());
    value.push(DECODED);
    match URL_SAFE_NO_PAD.decode_vec(token, &mut value) {
        Ok(()) => value,
        Err(_) => token.as_bytes().to_vec(),
    }
}

pub(crate) fn unpacked(value: &[u8]) -> Result<Box<str>, String> {
    match value.split_first() {
        Some((&DECODED, bytes)) => Ok(URL_SAFE_NO_PAD.encode(bytes).into()),
        _ => text(value),
    }
}

pub(crate) fn text(bytes: &[u8]) -> Result<Box<str>, String> {
    std::str::from_utf8(bytes).map(Into::into).map_err(|_| "a stored token is not text".into())
}
